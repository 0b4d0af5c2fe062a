"""Sine and cosine of a Vector, see `vector`.

Less the nearest multiple of a quarter turn, an angle is small enough for the Taylor polynomials:

    n = round(x 2/pi),   r = x - n pi/2,   |r| <= pi/4       (1)

and ``n`` says which of sine and cosine it is, and with which sign:

    n mod 4     0        1        2        3
    sin x     sin r    cos r   -sin r   -cos r               (2)
    cos x     cos r   -sin r   -cos r    sin r

In (1) nearly all digits may cancel, so ``pi/2`` stands there as a sum of three numbers of the dtype. What is left of
``x`` after the first is exact: a multiple of the last digit of ``pi/2``, below 1. The second and the third are rounded
beside what is left, not beside ``x``. Up to ``farthest`` that gives all digits. Where an angle lies beyond, the C
library is asked, lane by lane: as exact, and many times slower.
"""

import math
from typing import NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from linattn_ref.kernels.jit.loops.simd.vector import _fma, _integer, _polynomial, _splat, _suffix


class TrigConstants(NamedTuple):
    """What `sine_cosine` needs to know about a dtype."""

    mantissa_bits: int
    half_pi: tuple[float, float, float]  # the sum is pi/2
    farthest: float  # up to here n has no rounding that matters
    degree: int  # the Taylor remainder, (pi/4)^(degree + 1) / (degree + 1)!, is below a tenth of an ulp


TRIG = {
    types.float32: TrigConstants(23, (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15), 1e5, 10),
    types.float64: TrigConstants(52, (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33), 1e9, 17),
}


@intrinsic
def sine_cosine(typing_context, x):
    """``sin(x), cos(x)``, within 1.5 ulp; NaN for inf and NaN."""
    pair = types.UniTuple(x, 2)

    def generate(context, builder, signature, arguments):
        (angle,) = arguments
        near, results = builder.block, _of_near(builder, x, angle)
        size = builder.call(_llvm_function(builder, "fabs", x.llvm), [angle])
        beyond = builder.fcmp_ordered(">", size, _splat(builder, TRIG[x.dtype].farthest, x.llvm))  # false for NaN
        beyond = builder.bitcast(beyond, ir.IntType(x.llvm.count))  # a bit per lane
        with builder.if_then(builder.icmp_unsigned("!=", beyond, beyond.type(0)), likely=False):
            exact = [_of_each_lane(builder, angle, name) for name in ("sin", "cos")]
            far = builder.block
        chosen = [builder.phi(x.llvm) for _ in results]
        for place, ours, theirs in zip(chosen, results, exact, strict=True):
            place.add_incoming(ours, near)
            place.add_incoming(theirs, far)
        return context.make_tuple(builder, pair, chosen)

    return pair(x), generate


def _of_near(builder, x, angle):
    """Both by (1) and (2)."""
    c = TRIG[x.dtype]
    integers = ir.VectorType(ir.IntType(x.dtype.bitwidth), x.llvm.count)

    def constant(value):
        return _splat(builder, value, x.llvm)

    # As in `vector_exp`: the sum has no room for a fraction, and the integer n stands in its lowest bits.
    rounder = constant(1.5 * 2.0**c.mantissa_bits)
    shifted = _fma(builder, angle, constant(2 / math.pi), rounder)
    n, r = builder.fsub(shifted, rounder), angle
    for part in c.half_pi:
        r = _fma(builder, n, constant(-part), r)  # (1)
    square = builder.fmul(r, r)
    sin_r = _fma(builder, builder.fmul(r, square), _taylor(builder, square, 3, c.degree), r)
    cos_r = _fma(builder, square, _taylor(builder, square, 2, c.degree), constant(1.0))

    quadrant = builder.bitcast(shifted, integers)
    odd = builder.trunc(quadrant, ir.VectorType(ir.IntType(1), x.llvm.count))
    results = []
    for y, moved in ((builder.select(odd, cos_r, sin_r), 0), (builder.select(odd, sin_r, cos_r), 1)):  # (2)
        upper = builder.lshr(builder.add(quadrant, _splat(builder, moved, integers)), _splat(builder, 1, integers))
        sign = builder.shl(upper, _splat(builder, x.dtype.bitwidth - 1, integers))  # minus where the upper bit is 1
        results.append(builder.bitcast(builder.xor(builder.bitcast(y, integers), sign), x.llvm))
    return results


def _taylor(builder, square, first, last):
    """The terms of sine or cosine of degrees ``first`` to ``last``, over the power of the first of them."""
    return _polynomial(builder, square, [(-1) ** (i // 2) / math.factorial(i) for i in range(first, last + 1, 2)])


def _of_each_lane(builder, angle, name):
    """The C library's function of one lane after the other."""
    place = cgutils.alloca_once(builder, angle.type)
    builder.store(angle, place)
    number = angle.type.element
    first_lane = builder.bitcast(place, number.as_pointer())
    with cgutils.for_range(builder, _integer(angle.type.count)) as loop:
        lane = builder.gep(first_lane, [loop.index])
        builder.store(builder.call(_llvm_function(builder, name, number), [builder.load(lane)]), lane)
    return builder.load(place)


def _llvm_function(builder, name, kind):
    """LLVM's function of one number, or of one Vector, that is called so."""
    suffix = f"v{kind.count}{_suffix(kind)}" if isinstance(kind, ir.VectorType) else kind.intrinsic_name
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind]), f"llvm.{name}.{suffix}")
