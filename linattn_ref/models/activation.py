"""The non-linearities that BERT-family configurations name.

    gelu(x) = x Phi(x) = x/2 (1 + erf(x / sqrt 2))                                  (1)
    gelu_tanh(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))                    (2)

``Phi`` is the normal distribution function. (2) is the approximation that the paper gives for (1); some checkpoints
were trained with it, and must then be run with it.

References
----------
Hendrycks and Gimpel (2016), "Gaussian error linear units (GELUs)", section 2.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.special import erf

from linattn_ref.attention.arguments import Array

__all__ = ["ACTIVATIONS", "gelu", "gelu_tanh", "relu"]


def gelu(x: Array) -> Array:
    """Equation (1), exact; any shape, the dtype of ``x``."""
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))  # (1)


def gelu_tanh(x: Array) -> Array:
    """Equation (2); any shape, the dtype of ``x``."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))  # (2)


def relu(x: Array) -> Array:
    """``max(x, 0)``; any shape, the dtype of ``x``."""
    return np.maximum(x, 0)


# By the names that config.json's "hidden_act" uses.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": relu,
}
