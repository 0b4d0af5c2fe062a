"""What kernels are made of.

``device``        every CUDA import; what to install
``arrays``        arrays of NumPy, CuPy, PyTorch and Numba, in and out; of 16 bits in ``half_words``
``tile``          sizes, tiles in shared memory, products of tiles; of 16 bits in ``half_tiles``
``rows``          small kernels that go once over their arrays; of 16 bits in ``half_rows``
``gather``        tiles of queries and keys fetched by their numbers
``tensor_cores``  products of bfloat16 and float16, and ``simulated_warp``, the same in the simulator
``offline``       compiling kernels without a GPU
"""
