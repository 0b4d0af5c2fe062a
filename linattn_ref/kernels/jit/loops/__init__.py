"""The loops of the jit backend, in Numba, float32 and float64; its pages, in the folder above, call them.

``linear``    causal linear attention, and its feature maps
``delta``     the product of states that decay and correct themselves
``softmax``   softmax attention by tiles, and a token of decoding
``sparse``    softmax attention over some of the pairs
``layers``    layers, losses and optimisers, and a token of a whole transformer
``simd``      what they are made of: short vectors as Numba values, and matrix products on them
``inner``     functions that only compiled code calls
``cache``     the compilation cache
``entrance``  what axes and lengths a kernel may be given, looked at before it is called
``tasks``     the loop over a kernel's tasks, which is compiled apart from it
``threads``   several Python threads, forked processes
``views``     rows and columns of arrays as compiled code wants them
``rows``      arrays as rows without gaps
``heads``     heads of arrays with any strides, and where results are written

The cache lies beside these files or where the environment variable ``NUMBA_CACHE_DIR`` says; see ``cache``.
"""

from linattn_ref.kernels.jit.loops import delta, layers, linear, softmax, sparse

__all__ = ["delta", "layers", "linear", "softmax", "sparse"]
