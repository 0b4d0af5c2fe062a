"""Memory: inputs are left alone, outputs are written in full, and no more is kept or used than promised."""

import gc
import tracemalloc
from itertools import product

import numpy as np
import pytest
from case import Sizes, about, normal_like
from cases import CASES, each_setting, each_setting_and_dtype

from linattn_ref.attention import bigbird, linear, long_short, performer, rfa
from linattn_ref.nested import map_arrays


def arrays_in(x):
    """Every array in an input, a NamedTuple or a tuple, of any dtype."""
    found = []
    map_arrays(found.append, x)
    return found


def owner(x):
    """The array whose memory this one is a view of."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


@each_setting_and_dtype()
def test_nothing_handed_in_is_written_to(setting, dtypes):
    for dtype in dtypes:
        call = setting.call(dtype=dtype)
        inputs = [*arrays_in(tuple(call.arrays.values())), *arrays_in(tuple(call.options.values()))]
        copies = [x.copy() for x in inputs]
        out, saved = call.forward()
        d_out = normal_like(out)
        everything = [*inputs, d_out, out, *arrays_in(saved)]
        copies = [*copies, *(x.copy() for x in everything[len(copies) :])]
        call.case.backward(d_out, saved)
        for x, copy in zip(everything, copies, strict=True):
            np.testing.assert_array_equal(x, copy)


@each_setting()
def test_backward_can_be_called_twice(setting):
    """``saved`` is not used up."""
    call = setting.call()
    out, saved = call.forward()
    d_out = normal_like(out)
    first = [x.copy() for x in arrays_in(call.case.backward(d_out, saved))]
    for x, y in zip(first, arrays_in(call.case.backward(d_out, saved)), strict=True):
        np.testing.assert_array_equal(x, y)


def poisoned(function):
    """``np.empty`` and its like, handing out NaN where they promise nothing."""

    def allocate(*args, **kwargs):
        x = function(*args, **kwargs)
        if x.dtype.kind == "f":
            x.fill(np.nan)
        return x

    return allocate


@each_setting_and_dtype()
def test_every_output_is_written_in_full(setting, dtypes, monkeypatch):
    """Also the rows of masked keys, of queries that see nothing, and of a ragged last tile.

    Compiled code allocates by itself; what its Python wrapper allocates for it, the outputs, is poisoned here, and for
    the rest the heap is filled with NaN that its next allocations are likely to find. Of two dtypes the second one is
    taken at one length; the slow test takes the others.
    """
    lengths = [*product(((5, 7), (21, 37), (131, 150)), dtypes[:1]), *product([(21, 37)], dtypes[1:])]
    run_poisoned(setting, lengths, monkeypatch)


@pytest.mark.slow
@each_setting(lambda s: s.room != "jit")
def test_every_output_of_float32_is_written_in_full(setting, monkeypatch):
    run_poisoned(setting, product(((5, 7), (131, 150)), [np.float32]), monkeypatch)


def run_poisoned(setting, lengths, monkeypatch):
    calls = [setting.call(Sizes(*n, 3, 5, (2,)), dtype=dtype) for n, dtype in lengths]
    if setting.masked:
        calls = [call.change(key_mask=call.options["key_mask"] & (np.arange(2) == 0)[:, None]) for call in calls]
    expected = [call.run().named() for call in calls]  # compiled before np.empty is another function
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(np, name, poisoned(getattr(np, name)))
    for call, before in zip(calls, expected, strict=True):
        dtype = before["out"].dtype
        rubbish = [np.full(size, np.nan, dtype) for size in (16, 64, 256, 1024, 4096, 16384) for _ in range(16)]
        del rubbish
        for name, x in call.run().named().items():
            np.testing.assert_array_equal(x, before[name], err_msg=name)


# --- How much -------------------------------------------------------------------------------------------------------


def promised(setting, sizes, dtype):
    """Bytes beyond the inputs: what the case says, and under a mask the keys and values with their masked rows at 0."""
    arrays = setting.call(sizes).arrays
    widths = [arrays[name].shape[-1] for name, axis in setting.case.key_axes.items() if axis == -2]
    saved = setting.case.saved_in.get(setting.room or "reference", setting.case.saved)
    numbers = saved(sizes) + setting.masked * sizes.n_keys * sum(widths)
    return int(np.prod(sizes.leading)) * numbers * np.dtype(dtype).itemsize + setting.case.shared_bytes(sizes)


@each_setting_and_dtype()
def test_saved_is_as_small_as_promised(setting, dtypes):
    """And not half of it: a promise has to be tight. A view counts as the whole array that it keeps alive."""
    for n, dtype in product((64, 256), dtypes):
        with about(f"N = {n}", dtype):
            call = setting.call(Sizes(n, n, 8, 6, (2, 2)), dtype=dtype)
            given = *arrays_in(tuple(call.arrays.values())), *arrays_in(tuple(call.options.values()))
            inputs = {id(owner(x)) for x in given}
            _, saved = call.forward()
            owners = {id(owner(x)): owner(x).nbytes for x in arrays_in(saved)}
            kept = sum(nbytes for identity, nbytes in owners.items() if identity not in inputs)
            promise = promised(setting, call.sizes, dtype)
            assert promise / 2 < kept <= promise


def peak(call):
    """The most memory that NumPy holds at once for both passes, in bytes."""
    out, _ = call.forward()
    d_out = normal_like(out)
    gc.disable()  # a full collection also frees what Python keeps for its next small objects, which are then counted
    tracemalloc.start()
    try:
        call.run(d_out)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.enable()


def first_of_its_kind(setting):
    """The first case of a mechanism, causal or not: how much memory a mechanism takes is the same in all of them."""
    case = setting.case
    first = next(c for c in CASES if (c.module, c.causal) == (case.module, case.causal))
    return case is first and setting.room in (None, "reference") and setting.masked


@each_setting(first_of_its_kind)
def test_both_passes_grow_as_saved_does(setting):
    """Four times the length: four times the memory where four times is kept, and not sixteen.

    Measured at lengths of several tiles; a quarter more is for NumPy's own objects. A kernel that allocates without
    NumPy's knowledge needs a test of its own.
    """
    by_row = setting.case.module in (linear, performer, rfa, long_short)  # or four of them: a tile is no more
    assert_growth(setting, 512 if setting.case.module is bigbird else 128 if by_row else 256)  # half of all blocks


@pytest.mark.slow
@each_setting(first_of_its_kind)
def test_both_passes_grow_as_saved_does_from_512(setting):
    assert_growth(setting, 512)


def assert_growth(setting, n):
    short, long, heads = (setting.call(Sizes(n, n, 8, 6, (h,))) for n, h in ((n, 1), (4 * n, 1), (n, 4)))
    growth = promised(setting, long.sizes, np.float64) / promised(setting, short.sizes, np.float64)
    assert peak(long) < 1.25 * growth * peak(short)
    # In float32 it is half of that, so that nothing on the way is silently float64. A fifth more is for masks and for
    # indices, one list for all heads, of which Python keeps some for later, counted or not.
    assert peak(setting.call(heads.sizes, dtype=np.float32)) < 0.7 * peak(heads)
