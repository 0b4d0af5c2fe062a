"""When training fails: a loss or gradient that is NaN or infinite, a loss that exploded, and where that begins."""

import math
from typing import Any

import numpy as np

from linattn_ref.op import Array
from linattn_ref.training import parameters

__all__ = ["TrainingError", "check_step", "no_number"]

EXPLODED = 10.0  # times the early loss


class TrainingError(RuntimeError):
    """A loss or gradient that is NaN or infinite, or a loss that exploded. Checkpoints are of the time before."""


def check_step(step: int, loss: float, norm: float, early_loss: float, params: Any, grads: Any, saved: Any) -> None:
    """Check a step's loss and the norm of its gradient, before any parameter changes.

    Parameters
    ----------
    step : int
    loss, norm : float
    early_loss : float
        The mean training loss up to the first evaluation; before it, the first loss.
    params, grads : NamedTuple
    saved : iterable
        What the forward pass of each batch saves, gone through if the step has failed; empty if that is not known.

    Raises
    ------
    TrainingError
        The step is named, and the layer.
    """
    if math.isfinite(loss) and math.isfinite(norm) and loss <= EXPLODED * max(abs(early_loss), 1.0):
        return
    if not (math.isfinite(loss) and all(_is_finite(array) for _, array in parameters.leaves(grads))):
        raise no_number(step, "the loss", loss, params, saved, grads)
    name = max(parameters.leaves(grads), key=lambda leaf: float(np.abs(leaf[1]).max()))[0]
    exploded = f"the loss exploded, from {early_loss:.3g} to {loss:.3g}"
    told = exploded if math.isfinite(norm) else "the norm of the gradient is infinite"
    raise TrainingError(f"step {step}: {told}, and {name} has the largest gradient")


def no_number(step: int, what: str, loss: float, params: Any, saved: Any, grads: Any = ()) -> TrainingError:
    """The error, which says where it begins: a parameter, the first thing saved on the way forward, a gradient."""
    where = ""
    if wrong := [name for name, array in parameters.leaves(params) if not _is_finite(array)]:
        where = f", and {wrong[0]} is NaN or infinite"
    elif wrong := [
        name for one in saved for name, array in parameters.leaves(one, strict=False) if not _is_below_inf(array)
    ]:
        where = f", and {wrong[0]} is the first that is NaN or infinite on the way forward"
    elif wrong := [name for name, array in parameters.leaves(grads) if not _is_finite(array)]:
        where = f", and the gradient of {wrong[-1]} is the first that is NaN or infinite on the way back"
    return TrainingError(f"step {step}: {what} is {loss:.3g}{where}")


def _is_finite(array: Array) -> bool:
    return bool(np.isfinite(array).all())


def _is_below_inf(array: Array) -> bool:
    """-inf is what a query that sees nothing has."""
    return array.dtype.kind != "f" or bool((array < np.inf).all())
