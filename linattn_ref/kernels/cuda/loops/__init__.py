"""The loops of the cuda backend, for NVIDIA GPUs, float32 and float64; its pages, in the folder above, call them.

``linear``          causal linear attention
``delta``           a causal product whose state decays and corrects itself
``softmax``         softmax attention by tiles
``sparse``          softmax attention over some of the pairs
``device``          every CUDA import; what to install
``arrays``          arrays of NumPy, CuPy, PyTorch and Numba, in and out
``tile``            sizes, tiles in shared memory, products of tiles
``rows``            small kernels that go once over their arrays
``online_softmax``  the steps of an online softmax
``gather``          tiles of queries and keys fetched by their numbers
``tensor_cores``    products of bfloat16 and float16, and ``simulated_warp``, the same in the simulator
``half_words``      arrays of 16 bits, in and out; with ``half_tiles`` and ``half_rows`` as ``tile`` and ``rows``
``offline``         compiling kernels without a GPU

``causal_product`` and ``softmax`` take arrays of 16 bits as well: the modules called ``half_...``.
With ``kernels=cuda`` a mechanism takes arrays of CuPy, PyTorch and Numba that are on a GPU. Its loops are these
kernels; feature maps, masks and sums around them are its own text, which CuPy runs (`linattn_ref.op.gpu_arrays`).
"""

from linattn_ref.kernels.cuda.loops import delta, linear, softmax, sparse

__all__ = ["delta", "linear", "softmax", "sparse"]
