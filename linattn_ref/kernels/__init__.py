"""The workshop: the hot loops, under the same file and function names in each room.

``linattn_ref.kernels.reference``  NumPy, the loop as the paper prints it; needs nothing but NumPy
``linattn_ref.kernels.jit``        Numba on the CPU, float32 and float64
``linattn_ref.kernels.cuda``       Numba on an NVIDIA GPU, or in Numba's simulator

``linattn_ref.kernels.parts`` is for all rooms: which query sees which key, for `pattern_softmax`. And
``linattn_ref.kernels.libraries`` knows CuPy, PyTorch and Numba, whose arrays may be on a GPU.

A mechanism is handed the room itself: ``softmax.forward(q, k, v, kernels=jit)``.
Nothing falls back silently.

A room of your own will do: anything that has the kernel, with the functions that are called, and that take and give
what those of ``reference`` do. To try a module ``my_softmax`` with a ``forward`` and a ``backward``::

    softmax.forward(q, k, v, kernels=types.SimpleNamespace(softmax=my_softmax))

With a ``step`` too, a token of decoding is computed by that; without, as in ``cuda``, by its ``forward`` for one query.
"""

from linattn_ref import lazy

__all__ = ["cuda", "jit", "parts", "reference"]

__getattr__, __dir__ = lazy.modules(__name__, __all__)
