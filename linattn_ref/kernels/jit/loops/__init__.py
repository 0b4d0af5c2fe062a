"""The loops of the jit backend, in Numba, float32 and float64; its pages, in the folder above, call them.

``vector``                short vectors as Numba values; more that they can do is in ``vector_block``, ``vector_part``,
                          ``vector_exp`` and ``vector_trig``
``row_sums``              inner products of many rows with one Vector
``panel``                 matrix products on them
``transposed``            panels transposed in registers
``triangle``              triangular products and systems of equations
``views``                 rows and columns of arrays, for them
``rows``                  arrays as rows without gaps
``heads``                 heads of arrays with any strides, and where results are written
``reciprocal``            a reciprocal in range, of a denominator as small as the dtype has
``inner``                 functions that only compiled code calls
``cache``                 the compilation cache
``entrance``              what axes and lengths a kernel may be given, looked at before it is called
``tasks``                 the loop over a kernel's tasks, which is compiled apart from it
``threads``               several Python threads, forked processes
``softmax``               softmax attention; a token of decoding is in ``softmax_step``
``pattern_softmax``       the same over an allowed set of pairs
``softmax_tile``          what these two share
``causal_product``        linear attention's causal product; its kernels are in ``causal_scan`` and ``causal_step``
``causal_product_plain``  the same in a few lines
``elu_plus_one``          its feature map
``delta_product``         the product of states that decay and correct themselves; its kernels are in ``delta_forward``
                          and ``delta_backward``; rows before and after it in ``unit_rows``
``exponential_features``  those of the Performer; a token of decoding with the positive ones is in ``favor_positive``
``decode``                a token of a whole transformer
``rfa``                   a token of decoding with random feature attention
``gelu``                  GELU and its slope, by ``normal``
``layer_norm``            layer norm
``cross_entropy``         cross-entropy and its gradient
``adam``                  a step of Adam or RAdam
``ctc``                   CTC's sums over paths, by ``log_sum``
``lstm``                  an LSTM through time and back
``lsh``                   Reformer's attention within sorted chunks; its kernels are in ``lsh_runs``, who meets whom in
                          ``lsh_meet``

The cache lies beside these files or where the environment variable ``NUMBA_CACHE_DIR`` says; see ``cache``.
"""

from importlib import import_module

__all__ = ["adam", "causal_product", "causal_product_plain", "cross_entropy", "ctc", "decode", "delta_product"]
__all__ += ["elu_plus_one", "exponential_features", "favor_positive", "gelu", "layer_norm", "lsh", "lstm"]
__all__ += ["pattern_softmax", "rfa", "softmax", "unit_rows"]

for name in __all__:
    import_module(f"{__name__}.{name}")
