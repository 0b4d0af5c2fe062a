"""Layers and losses as pairs: ``forward(x, params) -> (y, saved)``, ``backward(d_y, saved) -> Gradients(x, params)``.

    from linattn_ref.nn import affine
    y, saved = affine.forward(x, params)
    grads = affine.backward(d_y, saved)        # grads.x, grads.params.w, grads.params.b

``params``  a NamedTuple of arrays, nested where layers are composed; there is no other state
``saved``   what the backward pass needs, a NamedTuple too: its size is the memory of training

Each layer is a page, as the mechanisms of `linattn_ref.attention` are: ``kernels=`` chooses the backend of the whole
call, also of the layers and the mechanism inside. Gradients of parameters have the structure of the parameters. To
train with little new memory per step, see `linattn_ref.op.workspace`.
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
