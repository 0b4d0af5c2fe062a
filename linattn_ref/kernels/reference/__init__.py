"""Kernels in NumPy: the loop as the paper prints it."""

from linattn_ref.kernels.reference import (
    adam,
    causal_product,
    cross_entropy,
    ctc,
    delta_product,
    elu_plus_one,
    gelu,
    layer_norm,
    lstm,
)

__all__ = [
    "adam",
    "causal_product",
    "cross_entropy",
    "ctc",
    "delta_product",
    "elu_plus_one",
    "gelu",
    "layer_norm",
    "lstm",
]
