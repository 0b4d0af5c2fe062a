"""The cuda backend: pages by their names, on an NVIDIA GPU, float32 and float64.

``cuda.linear.forward`` is what ``linear.forward(..., kernels=cuda)`` runs. The loops are in ``loops/``; what a page
does around them is in ``linattn_ref/kernels/common`` where the CPU does the same, and CuPy runs it on the GPU
(`linattn_ref.op.gpu_arrays`). Arrays may be NumPy's, or those of CuPy, PyTorch and Numba on a GPU.

Each kernel compiles once per dtype (some seconds). Without a GPU the same kernels run in Numba's simulator, slowly:
set ``NUMBA_ENABLE_CUDASIM=1`` before Numba is first imported.
"""

from linattn_ref.kernels.cuda import delta_rule, exponential, linear, pattern_softmax, reformer, softmax
from linattn_ref.kernels.cuda.loops.arrays import dtype_of, on_gpu
from linattn_ref.kernels.cuda.loops.delta import delta_product
from linattn_ref.kernels.cuda.loops.linear import causal_product, elu_plus_one

__all__ = ["causal_product", "delta_product", "delta_rule", "elu_plus_one", "exponential", "linear", "pattern_softmax"]
__all__ += ["dtype_of", "on_gpu", "reformer", "softmax"]
