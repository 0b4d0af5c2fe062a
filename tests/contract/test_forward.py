"""The output of every mechanism is that of plain loops over its formula, for any shape."""

import inspect
from itertools import product

import pytest
from case import Sizes, about, assert_close
from cases import each_setting, each_setting_and_dtype

from linattn_ref.attention.parts.masks import shown
from linattn_ref.gradcheck.inputs import float_arrays

SHAPES = {
    "one of everything": Sizes(1, 1, 1, 1, ()),
    "no leading axes": Sizes(5, 7, 4, 3, ()),
    "three leading axes": Sizes(5, 7, 4, 3, (2, 1, 3)),
    "one query": Sizes(1, 9, 4, 3, (2,)),
    "one key": Sizes(5, 1, 4, 3, (2,)),
    "more queries than keys": Sizes(9, 4, 4, 3, (2,)),
    "wide keys": Sizes(5, 7, 33, 2, (2,)),
    "wide values": Sizes(5, 7, 2, 33, (2,)),
}


@each_setting_and_dtype()
def test_output_is_that_of_plain_loops(setting, dtypes):
    """Both passes are run in any shape, whatever the gradients; of two dtypes in the first one."""
    for dtype, shape in product(dtypes, SHAPES):
        with about(dtype, shape):
            call = setting.call(SHAPES[shape], dtype=dtype)
            out, s = call.run().out if dtype == dtypes[0] else call.forward()[0], call.sizes
            assert out.shape == (*s.leading, s.n, s.m)
            assert_close(out, call.expected(), call.case)


def around(width):
    return (width - 1, width, width + 1, 2 * width + 3)


@each_setting(lambda s: s.room in (None, "reference"))
def test_ragged_lengths(setting):
    """Around the widths of tiles and blocks; as many queries as keys where that is soon done, and not.

    The other rooms are compared with this one at the same lengths, in ``test_rooms.py``.
    """
    for i, length in enumerate(lengths_of(setting)):
        short = length < 40 and (i + setting.masked) % 2  # with a mask or without; the slow test does both
        check_length(setting, length if short else min(length, 5), length)


def lengths_of(setting):
    """And 131 where that is more than all of them; the slow test takes it in any case."""
    lengths = {n for width in setting.case.widths for n in around(width) if n < 300}
    return sorted(lengths | ({131} if max(lengths) < 131 else set()))


@pytest.mark.slow
@each_setting(lambda s: s.room in (None, "reference"))
def test_any_number_of_queries(setting):
    for length in {131, *lengths_of(setting)}:
        for n in {length, min(length, 5)}:
            check_length(setting, n, length)


def check_length(setting, n, n_keys):
    with about(f"N = {n}", f"L = {n_keys}"):
        call = setting.call(Sizes(n, n_keys, 3, 2, ()))
        out = call.run().out if setting.room is None else call.forward()[0]  # in test_rooms.py both passes are run
        assert_close(out, call.expected(), call.case)


def has_matrix(setting):
    """One that is applied to the values as they are, with all that decides over it among its arguments."""
    matrix, call = getattr(setting.case.module, "matrix", None), setting.call()
    takes = inspect.signature(matrix).parameters if matrix else ()
    normed = call.arrays.get("norm_local") is not None
    return {*call.arrays, *call.case.options} - {"v"} <= set(takes) and not normed


@each_setting(lambda s: s.room in (None, "reference") and has_matrix(s))
def test_output_is_matrix_times_v(setting):
    for sizes in (Sizes(), Sizes(40, 140)):
        call = setting.call(sizes).held()
        matrix = call.case.module.matrix
        arrays = {name: x for name, x in call.arrays.items() if name != "v"}
        p = matrix(**arrays, **call.accepted_by(matrix))
        assert_close(call.forward()[0], p @ shown(call.arrays["v"], call.options.get("key_mask")), call.case)


@each_setting_and_dtype()
def test_every_array_keeps_its_dtype(setting, dtypes):
    for dtype in dtypes:
        out, saved, gradients = setting.call(dtype=dtype).run()
        for name, x in (("out", out), *float_arrays("saved", saved), *float_arrays("gradients", gradients)):
            assert x.dtype == dtype, name
