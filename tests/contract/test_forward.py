"""The output of every mechanism is that of its dense oracle, for any shape."""

import numpy as np
import pytest
from case import Sizes, assert_close
from cases import each_setting

from linattn_ref.gradcheck_inputs import float_arrays

DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])

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


@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
@each_setting()
def test_output_is_the_oracles(setting, shape, dtype):
    call = setting.call(SHAPES[shape], dtype=dtype)
    out, _, _ = call.run()
    s = call.sizes
    assert out.shape == (*s.leading, s.n, s.m)
    assert_close(out, call.expected(), call.case)


@pytest.mark.parametrize("around", ["one less", "full", "one more", "two and a bit", "prime"])
@each_setting()
def test_ragged_lengths(setting, around):
    """Around the widths of tiles and blocks; as many queries as keys, and not."""
    for width in setting.case.widths:
        length = {"one less": width - 1, "full": width, "one more": width + 1, "two and a bit": 2 * width + 3}.get(
            around, 131
        )
        for n in {length, min(length, 5)}:
            call = setting.call(Sizes(n, length, 3, 2, ()))
            assert_close(call.run().out, call.expected(), call.case, f"N = {n}, L = {length}")


@DTYPES
@each_setting()
def test_every_array_keeps_its_dtype(setting, dtype):
    out, saved, gradients = setting.call(dtype=dtype).run()
    for name, x in (("out", out), *float_arrays("saved", saved), *float_arrays("gradients", gradients)):
        assert x.dtype == dtype, name
