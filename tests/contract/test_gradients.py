"""Every gradient of every input, against differences of the forward pass in float64.

Entry by entry in the reference's room alone: both passes of the others are compared with it (``test_rooms.py``).
"""

import numpy as np
import pytest
from case import Sizes, about, assert_close, normal_like
from cases import each_setting

from linattn_ref.gradcheck import check_directions, check_elementwise
from linattn_ref.gradcheck.inputs import float_arrays

SMALL = {
    "one of everything": Sizes(1, 1, 1, 1, ()),
    "D above M": Sizes(3, 4, 3, 2, ()),
    "M above D": Sizes(4, 4, 2, 3, ()),
    "more queries than keys": Sizes(5, 3, 2, 3, ()),
    "three leading axes": Sizes(2, 3, 2, 1, (1, 2, 1)),
}
DEFAULT = {  # by whether there is a mask
    True: ("one of everything", "D above M", "three leading axes"),
    False: ("one of everything", "M above D"),
}


def check(how, call, **options):
    how(call.function(), call.case.backward, *call.arrays.values(), rng=np.random.default_rng(2), **options).assert_ok()


@each_setting(lambda s: s.room in (None, "reference"))
def test_entry_by_entry(setting):
    in_shapes(setting, DEFAULT[setting.masked])


@pytest.mark.slow
@each_setting(lambda s: s.room in (None, "reference"))
def test_entry_by_entry_in_the_other_shapes(setting):
    in_shapes(setting, [shape for shape in SMALL if shape not in DEFAULT[setting.masked]])


def in_shapes(setting, shapes):
    for shape in shapes:
        with about(shape):
            check(check_elementwise, setting.call(SMALL[shape]))


@each_setting(lambda s: s.room != "jit")
def test_a_random_direction_over_many_tiles(setting):
    """Of as many queries as keys under a mask, and fewer without; ``..._with_and_without_a_mask`` takes the others."""
    along(setting, 300 if setting.masked else 40)


@pytest.mark.slow
@each_setting(lambda s: s.room == "jit")
def test_a_random_direction_of_compiled_loops(setting):
    """``test_rooms`` compares them with the pages number by number; here gradients are those of the outputs."""
    along(setting, 70)


@pytest.mark.slow
@each_setting(lambda s: s.room in (None, "reference"))
def test_a_random_direction_with_and_without_a_mask(setting):
    along(setting, 40 if setting.masked else 300)


def along(setting, n):
    with about(f"N = {n}"):
        check(check_directions, setting.call(Sizes(n, 300, 9, 11, (2,))), directions=1)


@each_setting(lambda s: s.room in (None, "reference"))
def test_every_array_has_its_gradient(setting):
    """Under its own name and in its own shape. Arrays that get none are named by the mechanism's signature alone."""
    call = setting.call()
    gradients = call.run().gradients
    with_gradient = [name for name in call.arrays if name not in call.case.constants]
    fields = gradients._asdict()
    assert [name for name, x in fields.items() if x is not None or name in with_gradient] == with_gradient
    for name in with_gradient:
        shapes = [
            {leaf: x.shape for leaf, x in float_arrays(name, y)} for y in (call.arrays[name], getattr(gradients, name))
        ]
        assert shapes[0] == shapes[1]


@each_setting()
def test_a_batch_is_its_sequences(setting):
    """Side by side, each with its own mask. The gradient of an array that they share is the sum over them."""
    call = setting.call()
    out, _, gradients = call.run()
    d_out = normal_like(out)
    results = [call.head((b,)).run(d_out[b]) for b in range(2)]
    assert_close(out, np.stack([result.out for result in results]), call.case, "out")
    for name in gradients._fields:
        join = sum if name in call.case.shared else np.stack
        alone = [dict(float_arrays(name, getattr(result.gradients, name))) for result in results]
        for leaf, x in float_arrays(name, getattr(gradients, name)):
            assert_close(x, join([each[leaf] for each in alone]), call.case, leaf)
