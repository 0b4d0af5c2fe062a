"""Arrays of 16 bits, float16 and bfloat16, for backends: storage alone. All that is computed and summed is float32.

What comes in is widened, which is exact, and outputs and gradients are rounded once, at the end. States stay float32:
a sum over many tokens has no digits to lose, and may exceed 65504, the largest number of float16.

NumPy's float16 has 10 binary digits for the fraction. bfloat16 has 7, and the range of float32. It is a dtype of the
package ``ml_dtypes``, the extra ``half``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.op.shapes import Axes, Sizes, is_array, rules_of, sizes_of

__all__ = ["NAMES", "Saved", "backward", "widened"]

NAMES = ("float16", "bfloat16")


class Saved(NamedTuple):
    """What the backward pass needs."""

    inner: Any  # what was saved in float32
    dtype: np.dtype[Any]  # of the inputs
    page_backward: Callable[..., Any]

    @property
    def state(self) -> Any:
        return self.inner.state

    def sizes(self) -> Sizes:
        return {**sizes_of(self.inner, {}), "dtype": self.dtype}


def widened(function: Any, arguments: dict[str, Any], dtype: Any) -> dict[str, Any]:
    """The arguments with arrays in float32, but for a state's, which are that already.

    Raises
    ------
    TypeError
        The arrays are not all of the same 16 bits.
    """
    for name, rule in rules_of(function).items():
        x: Any = arguments.get(name)
        if isinstance(rule.kind, Axes) and rule.kind.dtype == "float" and is_array(x):
            if x.dtype != dtype:
                raise TypeError(f"{name}: expected {dtype} like the other arrays, got {x.dtype}")
            arguments = {**arguments, name: x.astype(np.float32)}
    return arguments


def backward(d_out: Any, saved: Saved, *, d_state: Any = None) -> Any:
    """The page's gradients, rounded; that of a state is float32."""
    more = {} if d_state is None else {"d_state": d_state}
    grads = saved.page_backward(d_out.astype(np.float32), saved.inner, **more)
    rounded = {name: x.astype(saved.dtype) for name, x in grads._asdict().items() if is_array(x)}
    return grads._replace(**rounded)
