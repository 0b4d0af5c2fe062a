"""Softmax attention over some of the pairs.

``pattern_softmax``  over a pattern's: ``pattern_tasks``, ``pattern_tiles`` and ``pattern_pieces``
``lsh``              Reformer's; its kernels are in ``lsh_tiles``
"""

from linattn_ref.kernels.cuda.loops.sparse import lsh, pattern_softmax

__all__ = ["lsh", "pattern_softmax"]
