"""What the compiled backends have in common: a page's function on loops, whichever backend the loops are from.

A backend's page, such as ``kernels/jit/linear.py``, names its loops and has its own class ``Saved``. The rest is here.
"""

from linattn_ref import lazy

__all__ = [
    "delta_rule",
    "exponential",
    "exponential_features",
    "linear",
    "pattern_softmax",
    "rises",
    "saturation",
    "softmax",
]

__getattr__, __dir__ = lazy.modules(__name__, __all__)
