"""Training: parameters in one flat array, optimisers that step over it, schedules, clipping.

flat, params = parameters.flatten(params)          # the layers' arrays are views of `flat` now
total, grads = parameters.flatten(parameters.zeros_like(params))
state = adam.init_state(flat)
for _ in range(steps):
    total[:] = 0
    y, saved = layer.forward(x, params)
    layer.backward(d_y, saved, into=grads)
    state = adam.step(flat, total, state, learning_rate=1e-3)
"""

from importlib import import_module
from types import ModuleType

__all__ = ["adam", "checkpoint", "clip", "loop", "parameters", "radam", "schedule", "sgd"]


def __getattr__(name: str) -> ModuleType:
    """A module, imported when it is first named."""
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
