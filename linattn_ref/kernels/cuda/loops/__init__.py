"""The loops of the cuda backend, for NVIDIA GPUs, float32 and float64; its pages, in the folder above, call them.

``machine``  what kernels are made of: the device, arrays in and out, tiles, tensor cores
``linear``   causal linear attention
``delta``    a causal product whose state decays and corrects itself
``softmax``  softmax attention by tiles
``sparse``   softmax attention over some of the pairs

``causal_product`` and ``softmax`` take arrays of 16 bits as well: the modules called ``half_...``.
With ``kernels=cuda`` a mechanism takes arrays of CuPy, PyTorch and Numba that are on a GPU. Its loops are these
kernels; feature maps, masks and sums around them are its own text, which CuPy runs (`linattn_ref.op.gpu_arrays`).
"""

from linattn_ref.kernels.cuda.loops import delta, linear, softmax, sparse

__all__ = ["delta", "linear", "softmax", "sparse"]
