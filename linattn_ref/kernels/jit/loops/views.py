"""Rows and columns of arrays as compiled code wants them: views that cost nothing, and rows of any width as a Vector.

A slice of Numba's takes some twenty instructions, which look for indices below 0 and beyond the end, and ``reshape``
more: as long as a fifth of a step of decoding. The views here trust their caller.
"""

from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.simd.vector import lanes, load, store
from linattn_ref.kernels.jit.loops.simd.vector_part import load_first, store_first

# --- A row as a Vector ----------------------------------------------------------------------------------------------


@inner(forceinline=True)
def load_row(x, i):
    """``x[i]``, which has as many numbers as a Vector, or fewer: then there are zeros after them."""
    return load(x, i) if x.shape[1] == lanes(x) else load_first(x, i, x.shape[1])


@inner(forceinline=True)
def store_row(x, i, value):
    """``x[i] = value``, as much of it as there is room for."""
    if x.shape[1] == lanes(x):
        store(x, i, value)
    else:
        store_first(x, i, value, x.shape[1])


# --- Views ----------------------------------------------------------------------------------------------------------


@inner(forceinline=True)
def columns_from(x, first):
    """``x[:, first:]``, no more of it than a Vector has lanes; a row's numbers must follow one another in memory."""
    width = min(lanes(x), x.shape[1] - first)
    return rows_apart(x.ctypes.data + first * x.itemsize, len(x), width, x.strides[0], x.dtype)


@inner(forceinline=True)
def copy_columns(panel, x, first):
    """The columns from ``first`` on, written to the rows of a panel."""
    columns = columns_from(x, first)
    for i in range(len(x)):
        store(panel, i, load_row(columns, i))


@inner(forceinline=True)
def give_rows(x, first, count, panel, column):
    """``x[first : first + count, column:] = panel[:count]``, as many columns as a panel has."""
    target = columns_from(x, column)
    for i in range(count):
        store_row(target, first + i, load(panel, i))


@inner(forceinline=True)
def rows_of(x):
    """``x``, which has no gaps, with two axes, the last one kept."""
    return rows_at(x.ctypes.data, x.size // x.shape[-1], x.shape[-1], x.dtype)


@intrinsic
def rows_at(typing_context, address, rows, width, dtype):
    """The memory at an address as ``(rows, width)``, contiguous."""
    return types.Array(dtype.dtype, 2, "C")(types.intp, types.intp, types.intp, dtype), _view


@intrinsic
def rows_apart(typing_context, address, rows, width, stride, dtype):
    """The memory at an address as ``(rows, width)``, so many bytes from row to row."""
    return types.Array(dtype.dtype, 2, "A")(types.intp, types.intp, types.intp, types.intp, dtype), _view


def _view(context, builder, signature, arguments):
    """Instructions for either."""
    address, rows, width, *stride, _ = arguments
    view = make_array(signature.return_type)(context, builder)
    itemsize = context.get_constant(types.intp, signature.return_type.dtype.bitwidth // 8)
    strides = [*(stride or [builder.mul(width, itemsize)]), itemsize]
    data = builder.inttoptr(address, view.data.type)
    populate_array(view, data, [rows, width], strides, itemsize, meminfo=None)  # what owns the memory outlives the view
    return view._getvalue()


@intrinsic
def unit_stride(typing_context, x):
    """``x``, of which the compiler is told that the numbers of a row lie side by side."""

    def generate(context, builder, signature, arguments):
        view = make_array(x)(context, builder, arguments[0])
        itemsize = context.get_constant(types.intp, x.dtype.bitwidth // 8)
        view.strides = cgutils.pack_array(builder, [builder.extract_value(view.strides, 0), itemsize])
        return impl_ret_borrowed(context, builder, x, view._getvalue())  # of the same owner

    return x(x), generate


@intrinsic
def unowned(typing_context, x):
    """An array, or a tuple of arrays, whose holders are not counted: `x` has to be kept until it is done (`hold`).

    A count is an atomic addition, whenever an array is taken out of a tuple or an index is put to it: of a kernel that
    does so for every few rows it took a tenth of the time.
    """

    def generate(context, builder, signature, arguments):
        return without_owner(context, builder, x, arguments[0])

    return x(x), generate


def without_owner(context, builder, kind, value):
    """The same for an intrinsic; what is not an array stays as it is."""
    if isinstance(kind, types.BaseTuple):
        values = zip(kind.types, cgutils.unpack_tuple(builder, value), strict=True)
        return context.make_tuple(builder, kind, [without_owner(context, builder, *each) for each in values])
    if not isinstance(kind, types.Array):
        return value
    view = make_array(kind)(context, builder, value)
    view.meminfo = cgutils.get_null_value(view.meminfo.type)
    return view._getvalue()


@intrinsic
def hold(typing_context, x):
    """Nothing; but Numba gives back what a variable owns after it is last named, so that ``x`` is kept until here."""
    return types.void(x), lambda context, builder, signature, arguments: context.get_dummy_value()
