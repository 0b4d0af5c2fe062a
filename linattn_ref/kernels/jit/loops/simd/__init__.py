"""What loops are made of.

``vector``      short vectors as Numba values; more that they can do is in ``vector_block``, ``vector_part``,
                ``vector_exp`` and ``vector_trig``
``log_sum``     the logarithm of a sum of three exponentials
``normal``      the normal distribution function
``row_sums``    inner products of many rows with one Vector
``panel``       matrix products on such vectors
``transposed``  panels transposed in registers
``triangle``    triangular products and systems of equations
``reciprocal``  a reciprocal in range, of a denominator as small as the dtype has
"""
