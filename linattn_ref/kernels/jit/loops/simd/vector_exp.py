"""The exponential of a Vector, and that less 1, see `vector`."""

import math
from typing import NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from linattn_ref.kernels.jit.loops.simd.vector import _fma, _polynomial, _splat


class ExpConstants(NamedTuple):
    """What `exp` needs to know about a dtype."""

    mantissa_bits: int
    exponent_bias: int
    lowest: float  # exp is 0 here: log2(e) times it rounds to -exponent_bias
    highest: float  # exp is inf here: log2(e) times it rounds to exponent_bias + 1
    log_2: float  # log(2) rounded to the dtype
    log_2_rest: float  # and what the rounding lost
    degree: int  # the Taylor remainder, (log(2)/2)^(degree + 1) / (degree + 1)!, is below a tenth of an ulp


EXP = {
    types.float32: ExpConstants(23, 127, -88.0, 88.5, 0.693147182464599609375, -1.9046542121259336e-09, 7),
    types.float64: ExpConstants(52, 1023, -709.0, 709.5, 0.6931471805599453094, 2.3190468138462996e-17, 13),
}


@intrinsic
def exp(typing_context, x):
    """``exp(x)``: ``2^n`` times a Taylor polynomial in ``r = x - n log(2)``, ``|r| <= log(2)/2``.

    Within 1 ulp. ``exp(0) == 1``, ``exp(-inf) == 0``, NaN gives NaN. What would be smaller than about 2^-126.5 in
    float32 (2^-1022.5 in float64) is 0; from about 88.4 (709.4) on it is inf, a little early.
    """

    def generate(context, builder, signature, arguments):
        r, power = _reduced(builder, x, *arguments)
        return builder.fmul(_taylor(builder, x, r, 0), power)

    return x(x), generate


@intrinsic
def exp_less_1(typing_context, x):
    """``exp(x) - 1`` for ``x <= 0``, also near 0, where the difference would cancel. NaN gives NaN."""

    def generate(context, builder, signature, arguments):
        r, power = _reduced(builder, x, *arguments)
        less_1 = builder.fsub(power, _splat(builder, 1.0, x.llvm))
        return _fma(builder, power, builder.fmul(_taylor(builder, x, r, 1), r), less_1)

    return x(x), generate


def _reduced(builder, x, y):
    """``r`` and ``2^n`` of ``y = n log 2 + r``, ``n`` an integer."""
    c = EXP[x.dtype]
    integers = ir.VectorType(ir.IntType(x.dtype.bitwidth), x.llvm.count)

    def constant(value):
        return _splat(builder, value, x.llvm)

    for sign, limit in (("<", constant(c.lowest)), (">", constant(c.highest))):
        y = builder.select(builder.fcmp_ordered(sign, y, limit), limit, y)  # NaN compares false and stays
    # Adding 1.5 * 2^mantissa_bits leaves no room for a fraction: it rounds y / log(2) to an integer n, which then
    # stands in the lowest bits of the sum.
    rounder = constant(1.5 * 2.0**c.mantissa_bits)
    shifted = _fma(builder, y, constant(1 / math.log(2)), rounder)
    n = builder.fsub(shifted, rounder)
    r = _fma(builder, n, constant(-c.log_2), y)
    r = _fma(builder, n, constant(-c.log_2_rest), r)
    # 2^n: n + bias moved to the exponent's place. n = -bias gives 0, n = bias + 1 gives inf.
    exponent = builder.add(builder.bitcast(shifted, integers), _splat(builder, c.exponent_bias, integers))
    return r, builder.bitcast(builder.shl(exponent, _splat(builder, c.mantissa_bits, integers)), x.llvm)


def _taylor(builder, x, r, first):
    """The terms of ``exp(r)`` from degree ``first`` on, over the power of the first of them."""
    return _polynomial(builder, r, [1 / math.factorial(i) for i in range(first, EXP[x.dtype].degree + 1)])
