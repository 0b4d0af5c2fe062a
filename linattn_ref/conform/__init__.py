"""Is somebody's attention kernel right? Checks, a budget for rounding, and a guess at what is wrong.

    linattn-ref conform my_kernels.py:attention --op softmax

or, in a test of one's own,

>>> import numpy as np
>>> from linattn_ref import conform
>>> def attention(q, k, v):
...     scores = q @ k.mT / np.sqrt(k.shape[-1])
...     weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
...     return weights / weights.sum(axis=-1, keepdims=True) @ v
>>> conform.check(attention, "softmax", only=("output", "lengths")).ok
True
>>> def forgetful(q, k, v):
...     return attention(q * np.sqrt(k.shape[-1]), k, v)
>>> print(*conform.check(forgetful, "softmax", only=("output",))["output"].diagnosis)
no scale is applied

What is judged and how it is called is in `target.py`, the right answers in `questions.py`, how far off they may be in
`budget.py`, the checks in `checks.py`, and what people get wrong in `wrong_outputs.py` and
`wrong_gradients.py`.
"""

from linattn_ref.conform.checks import CHECKS
from linattn_ref.conform.diagnosis import HYPOTHESES
from linattn_ref.conform.report import Outcome, Report
from linattn_ref.conform.run import check
from linattn_ref.conform.target import Mapping, NotATarget

__all__ = ["CHECKS", "HYPOTHESES", "Mapping", "NotATarget", "Outcome", "Report", "check"]
