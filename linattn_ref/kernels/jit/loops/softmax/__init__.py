"""Softmax attention over all keys, or those before a query.

``softmax``       both passes
``softmax_tile``  a tile of scores made into weights, which the kernels of ``sparse`` share
``softmax_step``  a token of decoding
"""

from linattn_ref.kernels.jit.loops.softmax import softmax

__all__ = ["softmax"]
