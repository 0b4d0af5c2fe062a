"""The logarithm of a sum of three exponentials on Vectors, of numbers that are logarithms themselves.

    log(e^a + e^b + e^c) = m + log z,   z = e^(a-m) + e^(b-m) + e^(c-m),   m = max(a, b, c)          (1)
    log z = 2 (u + u^3/3 + u^5/5 + ...),   u = (z - 1) / (z + 1)                                     (2)

``z`` is from 1 to 3. Halved where it is above 3/2, it leaves ``|u| <= 1/5``, for which (2) needs few terms.
"""

import math

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.simd.vector import _fma, _polynomial, _splat, maximum
from linattn_ref.kernels.jit.loops.simd.vector_exp import exp

__all__ = ["TERMS", "log_from_1_to_3", "log_sum_exp"]

TERMS = {types.float32: 5, types.float64: 12}  # of (2): what is left out is below (1/25)^TERMS / (2 TERMS + 1)


@inner(forceinline=True)
def log_sum_exp(a, b, c, lowest):
    """(1), lane by lane; ``lowest`` is the least finite number in every lane. Three times -inf give -inf."""
    m = maximum(a, maximum(b, c))
    shift = maximum(m, lowest)  # -inf - (-inf) would be NaN
    z = exp(a - shift) + exp(b - shift) + exp(c - shift)
    return m + log_from_1_to_3(z)


@intrinsic
def log_from_1_to_3(typing_context, z):
    """(2); below 1 it is 0. NaN gives NaN."""

    def generate(context, builder, signature, arguments):
        def constant(value):
            return _splat(builder, value, z.llvm)

        (x,) = arguments
        x = builder.select(builder.fcmp_ordered("<", x, constant(1.0)), constant(1.0), x)
        large = builder.fcmp_ordered(">", x, constant(1.5))
        x = builder.select(large, builder.fmul(x, constant(0.5)), x)
        u = builder.fdiv(builder.fsub(x, constant(1.0)), builder.fadd(x, constant(1.0)))
        square = builder.fmul(u, u)
        polynomial = _polynomial(builder, square, [2 / (2 * k + 1) for k in range(TERMS[z.dtype])])
        return _fma(builder, polynomial, u, builder.select(large, constant(math.log(2)), ir.Constant(z.llvm, None)))

    return z(z), generate
