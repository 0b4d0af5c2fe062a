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

from linattn_ref import lazy

__all__ = ["adam", "checkpoint", "clip", "folder", "loop", "parameters", "radam", "schedule", "sgd"]

__getattr__, __dir__ = lazy.modules(__name__, __all__)
