"""The jit backend: pages by their names, compiled by Numba for the CPU, float32 and float64.

``jit.linear.forward`` is what ``linear.forward(..., kernels=jit)`` runs. The loops are in ``loops/``; what a page does
around them is in ``linattn_ref/kernels/common`` where CUDA does the same.

The first call in each dtype compiles (a few seconds); later processes read the result from the cache.
"""

try:
    import numba  # noqa: F401
except ImportError as error:
    raise ImportError(f"linattn_ref.kernels.jit needs Numba ({error}): pip install 'numba>=0.61'") from error

from linattn_ref.kernels.jit import (
    adam,
    cross_entropy,
    ctc,
    delta,
    delta_rule,
    exponential,
    feed_forward,
    gated_linear,
    gelu,
    layer_norm,
    linear,
    lstm_steps,
    multi_head,
    pattern_softmax,
    pre_norm,
    radam,
    reformer,
    rfa,
    softmax,
)
from linattn_ref.kernels.jit.loops import (
    causal_product,
    decode,
    delta_product,
    elu_plus_one,
    exponential_features,
    favor_positive,
)

__all__ = [
    "adam",
    "causal_product",
    "cross_entropy",
    "ctc",
    "decode",
    "delta",
    "delta_product",
    "delta_rule",
    "elu_plus_one",
    "exponential",
    "exponential_features",
    "favor_positive",
    "feed_forward",
    "gated_linear",
    "gelu",
    "layer_norm",
    "linear",
    "lstm_steps",
    "multi_head",
    "pattern_softmax",
    "pre_norm",
    "radam",
    "reformer",
    "rfa",
    "softmax",
]
