"""Softmax attention over some of the pairs.

``pattern_softmax``  over a pattern's
``lsh``              Reformer's, within sorted chunks; its kernels are in ``lsh_runs``, who meets whom in ``lsh_meet``
"""

from linattn_ref.kernels.jit.loops.sparse import lsh, pattern_softmax

__all__ = ["lsh", "pattern_softmax"]
