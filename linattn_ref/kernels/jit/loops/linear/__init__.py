"""Causal linear attention, and feature maps.

``causal_product``        the causal product; its kernels are in ``causal_scan`` and ``causal_step``
``causal_product_plain``  the same in a few lines
``elu_plus_one``          the feature map
``exponential_features``  those of the Performer; a token of decoding with the positive ones is in ``favor_positive``
``rfa``                   a token of decoding with random feature attention
"""

from linattn_ref.kernels.jit.loops.linear import (
    causal_product,
    causal_product_plain,
    elu_plus_one,
    exponential_features,
    favor_positive,
    rfa,
)

__all__ = ["causal_product", "causal_product_plain", "elu_plus_one", "exponential_features", "favor_positive", "rfa"]
