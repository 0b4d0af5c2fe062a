"""The loops of the jit backend, in Numba, float32 and float64; its pages, in the folder above, call them.

``calls``    how a loop is called: what it may be given, its cache, its tasks on threads
``vectors``  what loops are made of: short vectors as Numba values, and matrix products on them
``linear``   causal linear attention, and its feature maps
``delta``    the product of states that decay and correct themselves
``softmax``  softmax attention by tiles, and a token of decoding
``sparse``   softmax attention over some of the pairs
``layers``   layers, losses and optimisers, and a token of a whole transformer

The cache lies beside these files or where the environment variable ``NUMBA_CACHE_DIR`` says; see ``calls.cache``.
"""

from linattn_ref.kernels.jit.loops import delta, layers, linear, softmax, sparse

__all__ = ["delta", "layers", "linear", "softmax", "sparse"]
