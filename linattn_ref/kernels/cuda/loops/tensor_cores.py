"""What a warp of 32 threads does together: products of 16-bit numbers on tensor cores, and exchanging numbers.

A *word* is 32 bits with two 16-bit numbers, the first one in the lower half. Words are int32 where the numbers are
bfloat16, and uint32 where they are float16: Numba knows both, so the type of an array says which instruction is meant.

One instruction, ``mma.sync.m16n8k16``, makes ``D = A B + C`` with ``A (16, 16)`` and ``B (16, 8)`` of 16-bit numbers,
``C`` and ``D (16, 8)`` of float32. The matrices are dealt out to the threads' registers. Lane ``l`` has, with
``g = l // 4`` and ``t = l % 4``::

    word  numbers                            word  numbers                      number
    a0    A[g, 2t], A[g, 2t + 1]             b0    B[2t, g], B[2t + 1, g]       c0, c1  C[g, 2t], C[g, 2t + 1]
    a1    A[g + 8, 2t], A[g + 8, 2t + 1]     b1    B[2t + 8, g], B[2t + 9, g]   c2, c3  C[g + 8, 2t], C[g + 8, 2t + 1]
    a2    A[g, 2t + 8], A[g, 2t + 9]
    a3    A[g + 8, 2t + 8], A[g + 8, 2t + 9]

So the rows of a word's two numbers are equal in ``A`` and ``C`` and the columns in ``B``: where two results ``C`` that
lie side by side are rounded to 16 bits, they are an ``A`` of the next product, in the same lane.

All lanes of a warp have to come to each of `multiply_add` and `of_lane`. Neither orders what is read and written in
shared memory; that is for ``syncthreads``.

References
----------
NVIDIA, "Parallel Thread Execution ISA", section "Matrix fragments for mma.m16n8k16 with floating point type".
"""

from linattn_ref.kernels.cuda.loops import device

BFLOAT16, FLOAT16 = "int32", "uint32"  # the type of a word, by its numbers

if device.SIMULATED:
    from linattn_ref.kernels.cuda.loops.simulated_warp import here, high, low, multiply_add, of_lane, pack
else:
    from llvmlite import ir
    from numba import types

    intrinsic = device.cuda.extending.intrinsic
    _WORD, _HALF, _FLOAT = ir.IntType(32), ir.HalfType(), ir.FloatType()
    _FORMATS = {types.int32: "bf16", types.uint32: "f16"}  # as the instructions call them

    def _assembler(builder, result, text, constraints, arguments):
        """Instructions of the GPU's assembler; a side effect is stated, so that they stay where all lanes come."""
        function = ir.FunctionType(result, [x.type for x in arguments])
        return builder.call(ir.InlineAsm(function, text, constraints, side_effect=True), arguments)

    @intrinsic
    def multiply_add(typing, c0, c1, c2, c3, a0, a1, a2, a3, b0, b1):
        """``d0, d1, d2, d3`` of ``D = A B + C``, in the lanes and registers shown above."""
        kind = _FORMATS[a0]
        text = (
            f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"
            " {$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
        )

        def generate(context, builder, signature, arguments):
            c, words = arguments[:4], arguments[4:]
            four = ir.LiteralStructType([_FLOAT] * 4)
            d = _assembler(builder, four, text, "=f,=f,=f,=f,r,r,r,r,r,r,0,1,2,3", [*words, *c])
            parts = [builder.extract_value(d, i) for i in range(4)]
            return context.make_tuple(builder, signature.return_type, parts)

        result = types.UniTuple(types.float32, 4)
        return result(*[types.float32] * 4, *[a0] * 6), generate

    @intrinsic
    def pack(typing, first, second, dtype):
        """A word of two float32, each rounded to the nearest 16-bit number, to even in the middle."""
        word = dtype.dtype
        text = f"cvt.rn.{_FORMATS[word]}x2.f32 $0, $1, $2;"  # the first operand goes to the upper half

        def generate(context, builder, signature, arguments):
            return _assembler(builder, _WORD, text, "=r,f,f", [arguments[1], arguments[0]])

        return word(types.float32, types.float32, dtype), generate

    def _number(builder, word, kind, upper):
        """One of a word's numbers as float32."""
        if kind == "bf16":  # the upper half of a float32
            bits = builder.and_(word, _WORD(0xFFFF0000)) if upper else builder.shl(word, _WORD(16))
            return builder.bitcast(bits, _FLOAT)
        bits = builder.trunc(builder.lshr(word, _WORD(16)) if upper else word, ir.IntType(16))
        return builder.fpext(builder.bitcast(bits, _HALF), _FLOAT)

    @intrinsic
    def low(typing, word):
        """The first of a word's numbers, as float32."""

        def generate(context, builder, signature, arguments):
            return _number(builder, arguments[0], _FORMATS[word], upper=False)

        return types.float32(word), generate

    @intrinsic
    def high(typing, word):
        """The second one."""

        def generate(context, builder, signature, arguments):
            return _number(builder, arguments[0], _FORMATS[word], upper=True)

        return types.float32(word), generate

    @intrinsic
    def here(typing, x):
        """The same number. What is computed from it is computed here, not before a loop and kept in registers."""

        def generate(context, builder, signature, arguments):
            return _assembler(builder, _WORD, "mov.b32 $0, $1;", "=r,r", arguments)

        return types.int32(types.int32), generate

    @intrinsic
    def of_lane(typing, x, step):
        """The float32 ``x`` of the lane whose number differs from the own one in the bits of ``step``."""

        def generate(context, builder, signature, arguments):
            return _assembler(builder, _FLOAT, "shfl.sync.bfly.b32 $0, $1, $2, 0x1f, 0xffffffff;", "=f,f,r", arguments)

        return types.float32(types.float32, types.int32), generate


__all__ = ["BFLOAT16", "FLOAT16", "firsts", "here", "high", "low", "multiply_add", "of_lane", "pack", "seconds"]


@device.inlined
def firsts(x, y):
    """The word of the first numbers of two words."""
    return (x & 0xFFFF) | (y << 16)


@device.inlined
def seconds(x, y):
    """The word of the second numbers of two words."""
    return ((x >> 16) & 0xFFFF) | (y >> 16 << 16)
