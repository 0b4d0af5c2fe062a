"""The normal distribution, for GELU: how much of it is below a number, lane by lane of a Vector.

    Phi(-a) = exp(-a^2 / 2) R(u),   u = 1 - 2 K / (a + K),   a >= 0      (1)

``R`` is ``erfcx(a / sqrt 2) / 2``, a smooth function of ``u`` from -1 (at ``a = 0``) to 1 (at infinity), here the
polynomial that meets it at as many Chebyshev points as it has coefficients. With (1), in absolute numbers within 2e-7
of ``Phi`` in float32 and 1e-14 in float64.
"""

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from linattn_ref.kernels.jit.vector import _fma, _splat, exp, maximum

K = 3.5
# Of 1, u, u^2, ...: numpy.polynomial.Chebyshev.interpolate(R, degree).convert(kind=numpy.polynomial.Polynomial).coef
COEFFICIENTS = {
    types.float32: (
        *(0.10634512897225579, -0.18713968693417193, 0.1258564931626185, -0.06164000812845479, 0.019055423811163597),
        *(-0.0015568420446154154, -0.0013510986840472136, 0.0003781207421402034, 9.407338681881594e-05),
        -4.159406024799584e-05,
    ),
    types.float64: (
        *(0.10634515363370521, -0.1871396987842391, 0.12585525513458581, -0.061639414086465685, 0.019065537329043404),
        *(-0.001561659087588469, -0.0013807599717278823, 0.0003920124912302553, 0.0001316670016492793),
        *(-5.8517221671688935e-05, -2.037349543185493e-05, 8.112355302741287e-06, 4.3271599435744754e-06),
        *(-8.344593681092699e-07, -9.737907991080872e-07, -4.561840230818153e-08, 1.92815672438552e-07),
        *(6.054521054207644e-08, -2.7899674974336924e-08, -1.8700491337271658e-08, 2.0830322517378427e-09),
        2.566485529149015e-09,
    ),
}


@njit(forceinline=True)
def gelu(x, minus_half):
    """``x Phi(x)``, which is ``max(x, 0) - |x| Phi(-|x|)``; ``minus_half`` is -1/2 in every lane."""
    zero = minus_half - minus_half
    a = maximum(zero - x, x)
    return maximum(zero, x) - a * exp(minus_half * a * a) * tail(a)


@intrinsic
def tail(typing_context, a):
    """``R`` of (1)."""
    *lower, last = COEFFICIENTS[a.dtype]

    def generate(context, builder, signature, arguments):
        def constant(value):
            return ir.Constant(a.llvm, [value] * a.llvm.count)

        share = builder.fdiv(constant(2 * K), builder.fadd(*arguments, constant(K)))
        u = builder.fsub(constant(1.0), share)
        value = _splat(builder, last, a.llvm)
        for coefficient in reversed(lower):
            value = _fma(builder, value, u, constant(coefficient))
        return value

    return a(a), generate
