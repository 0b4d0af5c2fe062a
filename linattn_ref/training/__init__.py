"""Training: optimisers that step over trees of arrays, schedules, clipping, the loop, checkpoints.

    state = adam.init_state(params)
    with workspace():                                   # of `linattn_ref.op.workspace`: memory is used again
        for _ in range(steps):
            y, saved = layer.forward(x, params)
            grads = layer.backward(d_y, saved).params   # of the structure of `params`
            state = adam.step(params, grads, state, learning_rate=1e-3)             # in place

Parameters are an array, or a tree of arrays (`parameters`). `loop` trains with checkpoints, in a `folder`.
"""

from linattn_ref import lazy

__all__ = ["adam", "checkpoint", "clip", "folder", "loop", "parameters", "radam", "schedule", "sgd"]

__getattr__, __dir__ = lazy.modules(__name__, __all__)
