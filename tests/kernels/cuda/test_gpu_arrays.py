"""The mechanisms' own text with arrays on a GPU, without one: strict stand-ins go in, and the reference's kernels.

What a GPU would have to wait for or copy to the host is an error here, and what CuPy does not have (`strict_arrays`).
A new mechanism with kernels is tested by its line in ``cases.py``.
"""

import inspect
import types
from dataclasses import replace

import numpy as np
import pytest
from case import Setting, Sizes, assert_close, normal_like
from cases import CASES
from kernels.cuda import strict_arrays
from kernels.cuda.strict_arrays import Tensor, ndarray

from linattn_ref.attention import exponents
from linattn_ref.gradcheck_inputs import map_arrays
from linattn_ref.kernels import libraries, reference

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
MASKS = pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
WITH_KERNELS = [case for case in CASES if case.rooms]


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """CuPy and PyTorch replaced; the numbers that `exponents` asks for, which only it may."""
    strict_arrays.install(monkeypatch)
    numbers = []

    def told(x):
        numbers.append(x._x.item() if isinstance(x, ndarray) else x.item())
        return numbers[-1]

    monkeypatch.setattr(exponents, "told", told)
    return numbers


def room():
    """The reference's kernels behind the door of a GPU's."""
    strict = types.ModuleType("linattn_ref.kernels.strict")
    strict.on_gpu, strict.dtype_of = libraries.is_on_gpu, None
    for name in reference.__all__:
        kernel = types.ModuleType(f"linattn_ref.kernels.strict.{name}")
        for title, function in inspect.getmembers(getattr(reference, name), inspect.isfunction):
            setattr(kernel, title, of_strict_arrays(function))
        setattr(strict, name, kernel)
    return strict


def of_strict_arrays(function):
    def on_gpu(*args, **keywords):
        assert not any(isinstance(x, np.ndarray) and x.dtype.kind in "fb" for x in args), "a copy on the host"
        result = function(*strict_arrays.plain(args), **strict_arrays.plain(keywords))
        return strict_arrays.wrapped(result)

    return on_gpu


def put(x):
    """An array of PyTorch's kind, as users have them; integers, which are indices, stay on the host."""
    return x if x.dtype.kind in "iu" else Tensor(x)


def get(x):
    """The arrays in a result, which have to be of PyTorch's kind, as NumPy's."""
    if isinstance(x, (tuple, list)):
        parts = [get(part) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    assert not isinstance(x, (np.ndarray, ndarray))
    return x._x if isinstance(x, Tensor) else x


def on_gpu(call):
    """The same call with arrays that are there."""
    arrays, options = map_arrays(put, call.arrays), map_arrays(put, call.options)
    arrays = {name: map_arrays(put, x) for name, x in call.arrays.items()}
    options = {name: map_arrays(put, x) for name, x in call.options.items()}
    return replace(call, arrays=arrays, options={**options, "kernels": room()})


@DTYPES
@MASKS
@pytest.mark.parametrize("case", WITH_KERNELS, ids=str)
def test_both_passes_are_the_references(case, masked, dtype):
    if masked and not case.key_mask:
        pytest.skip("takes no mask")
    for sizes in (Sizes(), Sizes(1, 1, 1, 1, ())):
        call = Setting(case, "reference", masked).call(sizes, dtype=dtype)
        expected = call.run()
        out, saved = on_gpu(call).forward()
        gradients = case.backward(put(normal_like(expected.out)), saved)
        result = expected._replace(out=get(out), gradients=get(gradients)).named()
        assert result.keys() == expected.named().keys()
        for name, x in expected.named().items():
            assert result[name].dtype == dtype
            assert_close(result[name], x, case, name)
