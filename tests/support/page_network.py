"""The network that a page in the browser computes, for NumPy: the same rounded numbers, in float64.

What is left between the two is the order of sums, some 1e-13 of a score.
"""

import numpy as np

from linattn_ref.attention import linear, softmax
from linattn_ref.kernels import reference
from linattn_ref.lecture.live import weights
from linattn_ref.models.causal import Model
from linattn_ref.nested import map_arrays
from linattn_ref.nn import mechanism


def network(trained):
    """``trained``, rounded as in `weights.packed`."""
    rounded = np.float16 if weights.packed(trained)["format"] == "float16" else from_steps
    params = map_arrays(lambda array: np.float64(rounded(array)), trained.params)
    causal = mechanism.of({"linear": linear, "softmax": softmax}[trained.facts["attention"]], causal=True)
    return trained._replace(params=params, model=Model(causal, trained.model.heads, kernels=reference))


def from_steps(array):
    factor, steps = weights.steps(array)
    return steps * factor  # float32
