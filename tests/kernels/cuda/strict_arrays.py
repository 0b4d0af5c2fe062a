"""Stand-ins for arrays on a GPU, which allow no more than those do: CuPy's, and a tensor of another library.

:class:`ndarray` is a NumPy array under CuPy's rules. It does what CuPy's does, by the names and keywords that are
listed here; a test compares the lists with CuPy, where that is installed. What would copy from the GPU or wait for it
is an error, and so is a NumPy array beside it. :class:`Tensor` can do nothing but be handed over.
"""

import contextlib
import functools
import sys
import types

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

# Those of CuPy that mechanisms use. In the functions, which keywords.
UFUNCS = {
    *("absolute", "add", "bitwise_and", "bitwise_or", "cos", "divide", "equal", "exp", "floor_divide", "greater"),
    *(
        "greater_equal",
        "invert",
        "isfinite",
        "less",
        "less_equal",
        "log",
        "logaddexp",
        "logical_and",
        "logical_or",
        "matmul",
        "maximum",
        "minimum",
    ),
    *("multiply", "negative", "not_equal", "sign", "sin", "sqrt", "subtract", "tanh"),
}
FUNCTIONS = {
    **dict.fromkeys(
        (
            "arange",
            "broadcast_to",
            "clip",
            "einsum",
            "expand_dims",
            "isneginf",
            "may_share_memory",
            "moveaxis",
            "pad",
            "shares_memory",
            "sum",
            "take",
            "where",
            "zeros",
        ),
        (),
    ),
    **dict.fromkeys(("empty_like", "full_like", "ones_like", "zeros_like"), ("shape",)),
    **dict.fromkeys(("stack", "take_along_axis"), ("axis",)),
    "asarray": ("dtype",),
    "concatenate": ("axis", "out"),
    "copyto": ("where",),
    "identity": ("dtype",),
    "linalg.svd": ("full_matrices",),
}
METHODS = {
    **dict.fromkeys(("astype", "copy", "reshape", "swapaxes", "transpose"), ()),
    **dict.fromkeys(("any", "max", "mean", "sum"), ("axis", "keepdims", "dtype")),
    "argmax": ("axis",),
    "argsort": ("axis", "kind"),
}
ON_HOST = {"asarray"}  # takes NumPy's arrays, and copies them to the GPU


class ndarray(NDArrayOperatorsMixin):
    """An array on a GPU, as far as anyone can tell."""

    __module__ = "cupy"

    def __init__(self, x):
        self._x = np.asarray(x)

    # --- What NumPy's names lead to ---

    def __array_ufunc__(self, ufunc, method, *inputs, **keywords):
        if method != "__call__" or (ufunc.signature is not None and ufunc is not np.matmul):
            raise TypeError(f"CuPy has no {ufunc.__name__}.{method} by NumPy's name")
        _check(ufunc.__name__, ufunc.__name__ in UFUNCS, keywords, ["out", "dtype"], inputs)
        return wrapped(ufunc(*plain(inputs), **plain(keywords)))

    def __array_function__(self, function, kinds, args, keywords):
        name = f"{function.__module__}.{function.__name__}".removeprefix("numpy.")
        _check(name, name in FUNCTIONS, keywords, FUNCTIONS.get(name, ()), () if name in ON_HOST else args)
        result = function(*plain(args), **plain(keywords))
        return result if isinstance(result, bool) else wrapped(result)

    def __matmul__(self, other):
        return np.matmul(self, other)

    def __getattr__(self, name):
        if name not in METHODS:
            raise AttributeError(f"the stand-in for a GPU's array has no {name!r}")

        def method(*args, **keywords):
            _check(name, True, keywords, METHODS[name], args)
            return wrapped(getattr(self._x, name)(*plain(args), **plain(keywords)))

        return method

    # --- What it knows without a look at its numbers ---

    shape, dtype, ndim, size, strides, nbytes = (
        property(functools.partial(lambda name, self: getattr(self._x, name), name))
        for name in ("shape", "dtype", "ndim", "size", "strides", "nbytes")
    )
    T = property(lambda self: ndarray(self._x.T))
    mT = property(lambda self: ndarray(self._x.mT))  # CuPy has it since version 14
    device = property(lambda self: Device())
    __cuda_array_interface__ = property(lambda self: self._x.__array_interface__)

    def __len__(self):
        return len(self._x)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index):
        return ndarray(self._x[_index(index)])

    def __setitem__(self, index, value):
        _check("an assignment", True, {}, [], (value,))
        self._x[_index(index)] = plain(value)

    # --- What would have to wait for the GPU, and copy from it ---

    def _refuse(self, *args, **keywords):
        raise TypeError("a number of an array on a GPU was asked for")

    __array__ = __bool__ = __float__ = __int__ = __index__ = __complex__ = __contains__ = _refuse
    item = tolist = get = nonzero = _refuse
    __hash__ = None


class Device:
    """The only one."""

    id = 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


class Tensor:
    """As one of PyTorch's on a GPU: something in memory."""

    __module__ = "torch"
    is_cuda, device = True, "cuda:0"

    def __init__(self, x):
        self._x = x

    def detach(self):
        return self

    shape = property(lambda self: self._x.shape)
    __cuda_array_interface__ = property(lambda self: self._x.__array_interface__)


STREAM = 7  # PyTorch's current one


def install(monkeypatch):
    """In place of CuPy and PyTorch; returns what CuPy is set to, the last one in use: streams and allocators."""
    used = types.SimpleNamespace(streams=[0], allocators=[None])

    @contextlib.contextmanager
    def using(kind, x):
        kind.append(x)
        yield
        kind.pop()

    cupy, torch = types.ModuleType("cupy"), types.ModuleType("torch")
    cupy.ndarray, cupy.asarray, cupy.empty = ndarray, asarray, lambda shape, dtype: ndarray(np.empty(shape, dtype))
    cupy.full = lambda shape, value, dtype: ndarray(np.full(shape, value, dtype))
    cupy.ascontiguousarray = lambda x: ndarray(np.ascontiguousarray(x._x))
    cupy.cuda = types.SimpleNamespace(
        Stream=types.SimpleNamespace(from_external=lambda stream: using(used.streams, stream.__cuda_stream__()[1])),
        get_current_stream=lambda: types.SimpleNamespace(ptr=used.streams[-1]),
        PythonFunctionAllocator=lambda allocate, free: types.SimpleNamespace(malloc=(allocate, free)),
        using_allocator=lambda malloc: using(used.allocators, malloc),
    )
    torch.as_tensor = lambda x, device: Tensor(x._x)
    torch.cuda = types.SimpleNamespace(current_stream=lambda device: types.SimpleNamespace(cuda_stream=STREAM))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return used


def asarray(x):
    """What ``cupy.asarray`` does: nothing, or another name for the same memory, or a copy to the GPU."""
    if isinstance(x, ndarray):
        return x
    if isinstance(x, np.ndarray):
        return ndarray(x.copy())
    interface = x.__cuda_array_interface__
    assert interface.get("stream") is None, "CuPy would wait for that stream"
    return ndarray(np.asarray(types.SimpleNamespace(__array_interface__=interface, owner=x)))


# --- The rules ------------------------------------------------------------------------------------------------------


def _check(name, known, keywords, allowed, values):
    if not known:
        raise TypeError(f"not in the list of what CuPy's arrays can do: {name}")
    if not set(keywords) <= set(allowed):
        raise TypeError(f"{name}: not in the list of CuPy's keywords: {sorted(set(keywords) - set(allowed))}")
    for x in _leaves([*values, *keywords.values()]):
        if isinstance(x, np.ndarray):
            raise TypeError(f"{name}: a NumPy array beside one on a GPU")


def _index(index):
    """Positions, slices, and integers in an array of either kind; which are True, a GPU would have to count."""
    parts = plain(index if isinstance(index, tuple) else (index,))
    if any(isinstance(part, np.ndarray | np.bool_ | bool) and np.asarray(part).dtype == bool for part in parts):
        raise TypeError("a boolean index, of which a GPU would have to be asked how many are True")
    return parts


def _leaves(x):
    if isinstance(x, tuple | list):
        for part in x:
            yield from _leaves(part)
    else:
        yield x


def plain(x):
    if isinstance(x, tuple | list):
        parts = [plain(part) for part in x]
        return x._make(parts) if hasattr(x, "_make") else type(x)(parts)
    if isinstance(x, dict):
        return {name: plain(part) for name, part in x.items()}
    return x._x if isinstance(x, ndarray) else x


def wrapped(x):
    if x is None:
        return None
    if isinstance(x, tuple):
        return tuple(wrapped(part) for part in x)
    return ndarray(x)
