"""A kernel is its reference, made fast: the same numbers, whatever the layout of arrays and the number of threads."""

import tempfile
from itertools import product

import numba
import numpy as np
import pytest
from case import SIZES, Setting, Sizes, about, assert_close, normal_like
from cases import CASES, each_setting, each_setting_and_dtype
from threads import several_threads


@each_setting_and_dtype(lambda s: s.room not in (None, "reference"))
def test_both_passes_are_the_references(setting, dtypes):
    for dtype, sizes in product(dtypes, SIZES):
        compare(setting, sizes, dtype)


@each_setting(lambda s: s.room not in (None, "reference"))
def test_ragged_lengths(setting):
    """Around the widths of tiles and blocks; as many queries as keys, and not: one with a mask, the other without."""
    for i, length in enumerate(lengths_of(setting)):
        compare(setting, Sizes(length if (i + setting.masked) % 2 else min(length, 5), length, 3, 2, ()), np.float64)


@pytest.mark.slow
@each_setting(lambda s: s.room not in (None, "reference"))
def test_ragged_lengths_the_other_way_round(setting):
    compare(setting, Sizes(131, 131, 3, 2, ()), np.float64)
    for i, length in enumerate(lengths_of(setting)):
        compare(setting, Sizes(min(length, 5) if (i + setting.masked) % 2 else length, length, 3, 2, ()), np.float64)


def lengths_of(setting):
    """And 131 where that is more than all of them; the slow test takes it in any case."""
    lengths = {length for w in setting.case.widths for length in (w - 1, w, w + 1, 2 * w + 3)}
    return sorted(lengths | ({131} if max(lengths) < 131 else set()))


def compare(setting, sizes, dtype):
    with about(dtype, sizes):
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


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=str(c), marks=[pytest.mark.slow] if c.slow or c.left_to_slow else []) for c in CASES]
)
def test_every_room_that_has_the_kernel_is_tested(case):
    """No case leaves one out quietly. The room ``cuda`` is in ``tests/kernels/cuda``, which asks the same."""
    rooms = ["reference", "jit"]
    has = tuple(room for room in rooms if case.takes("kernels") and runs_in(case, room))
    page_alone = ("reference",) * case.takes("kernels")
    assert (case.rooms or page_alone) + case.left_to_slow == has
    slow_rooms = {room for other in CASES if other.slow and other.module is case.module for room in other.rooms}
    assert set(case.left_to_slow) <= slow_rooms


@several_threads
@each_setting_and_dtype(lambda s: s.room == "jit")
def test_any_number_of_threads_gives_the_same_bits(setting, dtypes):
    most = numba.config.NUMBA_NUM_THREADS
    for dtype in dtypes:
        call = setting.call(Sizes(90, 140, 5, 6, (3,)), dtype=dtype)
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


@each_setting_and_dtype()
def test_called_twice_the_same_bits(setting, dtypes):
    """Nothing is drawn inside, nothing is remembered."""
    for dtype in dtypes:
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


@each_setting()
def test_any_layout(setting):
    """As heads split off by a transpose, or an array read from a file, come."""
    call = setting.call(Sizes(9, 21, 4, 3))
    expected = call.run().named()
    for layout, lay in LAYOUTS.items():
        with about(layout):
            strided = {name: lay(x) for name, x in call.arrays.items() if isinstance(x, np.ndarray) and x.ndim > 1}
            d_out = lay(normal_like(expected["out"]))
            for name, x in call.change(arrays=strided).run(d_out).named().items():
                assert_close(x, expected[name], call.case, name)
