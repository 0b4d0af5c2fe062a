"""Adam, for what a figure fits: the direction of a step.

References
----------
Kingma and Ba (2015), "Adam: a method for stochastic optimization", Algorithm 1, with the constants given there.
"""

import numpy as np

from linattn_ref.attention.arguments import Array


def adam(gradient: Array, moments: Array, step: int) -> Array:
    """The direction of one step of Adam (Kingma and Ba 2015); ``moments`` are brought up to date."""
    moments[0] += 0.1 * (gradient - moments[0])
    moments[1] += 0.001 * (gradient**2 - moments[1])
    direction: Array = moments[0] / (1 - 0.9**step) / (np.sqrt(moments[1] / (1 - 0.999**step)) + 1e-8)
    return direction
