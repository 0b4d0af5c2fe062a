"""The loops of the cuda backend, for NVIDIA GPUs, float32 and float64; its pages, in the folder above, call them.

``device``          every CUDA import; what to install
``arrays``          arrays of NumPy, CuPy, PyTorch and Numba, in and out
``tile``            sizes, tiles in shared memory, products of tiles
``rows``            small kernels that go once over their arrays
``causal_product``  linear attention's causal product; kernels in ``causal_states``, ``causal_chunks`` and
                    ``causal_step``; ``causal_product_plain`` is Algorithm 1 as it stands
``elu_plus_one``    its feature map
``delta_product``   a causal product whose state decays and corrects itself; kernels in ``delta_rows``, ``delta_chunks``
                    and ``delta_step``
``softmax``         softmax attention; kernels in ``softmax_tiles``
``pattern_softmax`` softmax attention over pairs of a pattern: ``pattern_tasks``, ``pattern_tiles``, ``pattern_pieces``
``lsh``             Reformer's LSH attention; kernels in ``lsh_tiles``
``tensor_cores``    products of bfloat16 and float16, and ``simulated_warp``, the same in the simulator; with them
                    ``causal_product`` and ``softmax`` take arrays of 16 bits: the modules called ``half_...``
``online_softmax``  the steps of an online softmax, for kernels
``gather``          tiles of queries and keys fetched by their numbers
``offline``         compiling them without a GPU

With ``kernels=cuda`` a mechanism takes arrays of CuPy, PyTorch and Numba that are on a GPU. Its loops are these
kernels; feature maps, masks and sums around them are its own text, which CuPy runs (`linattn_ref.op.gpu_arrays`).
"""

from linattn_ref.kernels.cuda.loops import causal_product, delta_product, elu_plus_one, lsh, pattern_softmax, softmax

__all__ = ["causal_product", "delta_product", "elu_plus_one", "lsh", "pattern_softmax", "softmax"]
