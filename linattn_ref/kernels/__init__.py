"""Backends: pages of `linattn_ref.attention` by the same names, which compute the same numbers faster.

``linattn_ref.kernels.reference``  the name of the pages themselves
``linattn_ref.kernels.jit``        Numba on the CPU, float32 and float64
``linattn_ref.kernels.cuda``       Numba on an NVIDIA GPU, or in Numba's simulator

``linattn_ref.kernels.common`` is what the compiled ones share, and ``linattn_ref.op.libraries`` knows CuPy, PyTorch and
Numba, whose arrays may be on a GPU.

The backend itself is the argument: ``softmax.forward(q, k, v, kernels=jit)``. Nothing is slow in silence.

Anything that has the page can be a backend, yours too. To try a module ``my_softmax`` with a ``forward``, a class
``Saved`` of what that saves, and a ``backward``, which is found by the module of this class::

    softmax.forward(q, k, v, kernels=types.SimpleNamespace(softmax=my_softmax))

If it has a ``step``, that computes a token of decoding; otherwise its ``forward`` does, for one query.
"""

from linattn_ref import lazy

__all__ = ["cuda", "jit", "reference"]

__getattr__, __dir__ = lazy.modules(__name__, __all__)
