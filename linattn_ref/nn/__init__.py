"""Layers and losses as pairs: ``forward(x, params) -> (y, saved)``, ``backward(d_y, saved) -> Gradients(x, params)``.

    from linattn_ref.nn import affine
    y, saved = affine.forward(x, params)
    grads = affine.backward(d_y, saved)        # grads.x, grads.params.w, grads.params.b

``params``  a NamedTuple of arrays, nested where layers are composed; there is no other state
``saved``   what the backward pass needs, a NamedTuple too: its size is the memory of training
``into``    gradients of parameters are added to these, for tied weights and micro-batches, and not made anew
``kernels`` the room where the hot loops run: `linattn_ref.kernels.reference`, their plain text, or ``jit``
``work``    where arrays for results come from: new ones (`buffers.fresh`), or an arena that is used again each step

``forward.unchecked`` and ``backward.unchecked`` are the same without a look at the arguments: for whoever has checked
once, as a model that calls its layers a thousand times.
"""

from linattn_ref import lazy

__all__ = [
    "affine",
    "block",
    "buffers",
    "cross_entropy",
    "ctc",
    "ctc_decoding",
    "dropout",
    "embedding",
    "feed_forward",
    "gelu",
    "gelu_tanh",
    "layer_norm",
    "lengths",
    "logistic_mixture",
    "lstm",
    "mechanism",
    "multi_head",
    "no_norm",
    "pooling",
    "positions",
    "post_norm",
    "pre_norm",
    "relu",
]

__getattr__, __dir__ = lazy.modules(__name__, __all__)
