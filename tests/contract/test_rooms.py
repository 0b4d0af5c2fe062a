"""A kernel is its reference, made fast: the same numbers, whatever the layout of arrays and the number of threads."""

import tempfile

import numba
import numpy as np
import pytest
from case import Setting, Sizes, assert_close
from cases import CASES, each_setting

from linattn_ref.attention.arguments import ROOMS

DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])
SIZES = [Sizes(1, 1, 1, 1, ()), Sizes(7, 17, 4, 3, (2,)), Sizes(35, 70, 19, 34, (2, 2)), Sizes(300, 300, 5, 6, (1,))]


@DTYPES
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@each_setting(lambda s: s.room not in (None, "reference"))
def test_both_passes_are_the_references(setting, sizes, dtype):
    call = setting.call(sizes, dtype=dtype)
    reference = Setting(setting.case, "reference", setting.masked).call(sizes, dtype=dtype)
    result, expected = call.run().named(), reference.run().named()
    assert result.keys() == expected.keys()
    for name, x in expected.items():
        assert result[name].dtype == dtype
        assert_close(result[name], x, call.case, name)


def runs_in(case, room):
    try:
        Setting(case, room, masked=False).call().forward()
    except TypeError as error:
        if not str(error).startswith("kernels: "):
            raise
        return False
    return True


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_room_that_has_the_kernel_is_tested(case):
    """No case leaves one out quietly. The room ``cuda`` is in ``tests/kernels/cuda``, which asks the same."""
    rooms = [room for room in ROOMS if room != "cuda"]
    assert case.rooms == tuple(room for room in rooms if case.takes("kernels") and runs_in(case, room))


@DTYPES
@each_setting(lambda s: s.room == "jit")
def test_any_number_of_threads_gives_the_same_bits(setting, dtype):
    call = setting.call(Sizes(90, 140, 5, 6, (3,)), dtype=dtype)
    most = numba.config.NUMBA_NUM_THREADS
    assert most > 1, "conftest.py asks for four"
    try:
        results = []
        for threads in (most, 1, 2, most):
            numba.set_num_threads(threads)
            results.append(call.run().named())
    finally:
        numba.set_num_threads(most)
    for result in results[1:]:
        for name, x in result.items():
            np.testing.assert_array_equal(x, results[0][name], err_msg=name)


@DTYPES
@each_setting()
def test_called_twice_the_same_bits(setting, dtype):
    """Nothing is drawn inside, nothing is remembered."""
    call = setting.call(dtype=dtype)
    first, second = call.run().named(), call.run().named()
    for name, x in first.items():
        np.testing.assert_array_equal(second[name], x, err_msg=name)


def mapped(x):
    # The file goes with its last reader.
    with tempfile.TemporaryFile() as file:
        copy = np.memmap(file, x.dtype, "w+", shape=x.shape)
    copy[...] = x
    return copy


LAYOUTS = {
    "transposed": lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "every second row": lambda x: np.repeat(x, 2, axis=-2)[..., ::2, :],
    "reversed": lambda x: x[..., ::-1, ::-1].copy()[..., ::-1, ::-1],
    "read-only": lambda x: np.broadcast_to(x, x.shape),
    "in a file": mapped,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@each_setting()
def test_any_layout(setting, layout):
    """As heads split off by a transpose, or an array read from a file, come."""
    call = setting.call(Sizes(9, 21, 4, 3))
    strided = {name: LAYOUTS[layout](x) for name, x in call.arrays.items() if isinstance(x, np.ndarray) and x.ndim > 1}
    expected = call.run().named()
    d_out = LAYOUTS[layout](np.random.default_rng(1).standard_normal(expected["out"].shape))
    for name, x in call.change(arrays=strided).run(d_out).named().items():
        assert_close(x, expected[name], call.case, name)
