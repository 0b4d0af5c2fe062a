"""Softmax attention over all keys, or those before a query.

``softmax``  its kernels are in ``softmax_tiles``; of 16 bits in ``half_softmax`` and ``half_softmax_tiles``
"""

from linattn_ref.kernels.cuda.loops.softmax import softmax

__all__ = ["softmax"]
