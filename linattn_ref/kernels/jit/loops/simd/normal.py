"""The normal distribution function on Vectors, from one exponential and one polynomial.

    Phi(-z) = exp(-z^2 / 2) P(u) / (z + 4),   u = 1 - 8 / (z + 4),   z >= 0             (1)

The exponential is that of the density, so a caller that needs both pays for one. What is left of ``Phi(-z)``, a
function without any sharp turn, is mapped from ``0 <= z < inf`` to ``-1 <= u < 1``; there a polynomial of few terms is
near to it.

References
----------
Shepherd and Laframboise (1981), "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in 0 <= x < inf".
"""

import math

from numba import types
from numba.extending import intrinsic
from numpy.polynomial import Chebyshev, Polynomial

from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.simd.vector import _fma, _polynomial, _splat, maximum
from linattn_ref.kernels.jit.loops.simd.vector_exp import exp

__all__ = ["COEFFICIENTS", "DENSITY", "gelu", "scaled_tail"]

# P of (1), lowest first: the polynomial through (z + 4) exp(z^2 / 2) Phi(-z), computed to 40 digits at 23 Chebyshev
# points, z up to 40; in float32 the one of degree 9 through that, z up to 14. Largest relative error between: 3.7e-17
# and 1.2e-8.
DOUBLE = (
    0.7552851304157515,
    -0.6078966419718917,
    0.38713740074221936,
    -0.1865218579596934,
    0.06039657489067665,
    -0.007540188965625017,
    -0.0034796923618040597,
    0.0016308184424805887,
    0.00013334424978358428,
    -0.00023109482414997105,
    -1.9078434059248706e-06,
    3.51442149682578e-05,
    7.149308325478401e-07,
    -5.919013186154044e-06,
    -6.249906995369785e-07,
    1.0200713392568465e-06,
    2.6354310560684456e-07,
    -1.546196819122192e-07,
    -7.634712843441086e-08,
    1.4842390072751344e-08,
    1.3976528155950821e-08,
    -1.015295717649618e-11,
    -9.990624160023276e-10,
)
SINGLE = Chebyshev.interpolate(Polynomial(DOUBLE), 9, domain=(-1, 5 / 9)).convert(kind=Polynomial).coef.tolist()
COEFFICIENTS = {types.float32: SINGLE, types.float64: DOUBLE}
CENTRE = 4.0
DENSITY = 1 / math.sqrt(2 * math.pi)


@inner(forceinline=True)
def gelu(x, minus_half):
    """``x Phi(x)``, which is ``max(x, 0) - |x| Phi(-|x|)``; ``minus_half`` is -1/2 in every lane."""
    zero = minus_half - minus_half
    z = maximum(zero - x, x)
    return maximum(zero, x) - z * exp(minus_half * z * z) * scaled_tail(z)


@intrinsic
def scaled_tail(typing_context, z):
    """``exp(z^2 / 2) Phi(-z)``, lane by lane, for ``z >= 0``: ``P(u) / (z + 4)`` of (1)."""

    def generate(context, builder, signature, arguments):
        def constant(value):
            return _splat(builder, value, z.llvm)

        share = builder.fdiv(constant(1.0), builder.fadd(*arguments, constant(CENTRE)))
        u = _fma(builder, share, constant(-2 * CENTRE), constant(1.0))
        return builder.fmul(_polynomial(builder, u, COEFFICIENTS[z.dtype]), share)

    return z(z), generate
