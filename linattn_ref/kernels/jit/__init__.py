"""The jit backend: pages by their names, compiled by Numba for the CPU, float32 and float64.

``jit.linear.forward`` is what ``linear.forward(..., kernels=jit)`` runs. The loops are in ``loops/``; what a page does
around them is in ``linattn_ref/kernels/common`` where CUDA does the same.

The first call in each dtype compiles, which takes seconds to minutes; later processes read the result from the cache.
"""

try:
    import numba  # noqa: F401
except ImportError as error:
    raise ImportError(f"linattn_ref.kernels.jit needs Numba ({error}): pip install 'numba>=0.61'") from error

from linattn_ref import lazy
from linattn_ref.kernels.jit.loops.layers import decode as decode  # no page: a model asks for it

__all__ = lazy.at_once(__name__, __path__)
