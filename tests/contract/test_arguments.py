"""Bad input gives an error that names the argument, what it got and what it needs; never a wrong answer."""

import re
from collections import namedtuple
from contextlib import nullcontext
from itertools import product

import numpy as np
import pytest
from case import about, normal_like
from cases import each_setting

from linattn_ref.kernels import jit
from linattn_ref.nested import map_arrays


def each_plain(where):
    """Once a case: what is refused is the same in all rooms."""
    return each_setting(lambda s: s.room in (None, "reference") and not s.masked and where(s))


PLAIN = each_plain(lambda s: True)
MASKED = each_setting(lambda s: s.room in (None, "reference") and s.masked)


def arrays_of(call):
    """The inputs that are arrays, not tuples of arrays."""
    return {name: x for name, x in call.arrays.items() if isinstance(x, np.ndarray)}


def refuse(call, error, names, **changed):
    """The call raises ``error``, whose message begins with one of ``names``."""
    with pytest.raises(error, match=rf"^({'|'.join(names)}): ") as raised:
        call.change(arrays=changed).run()
    return str(raised.value)


# --- Arrays ---------------------------------------------------------------------------------------------------------

WRONG_KINDS = {
    "a list": lambda x: x.tolist(),
    "integers": lambda x: x.astype(int),
    "booleans": lambda x: x > 0,
    "complex": lambda x: x.astype(complex),
    "float16": lambda x: x.astype(np.float16),
    "objects": lambda x: x.astype(object),
    "masked": lambda x: np.ma.masked_array(x),
    "None": lambda x: None,
}


@PLAIN
def test_wrong_kinds(setting):
    call = setting.call()
    for kind, (name, x) in product(WRONG_KINDS, arrays_of(call).items()):
        if kind == "None" and name in call.case.optional:
            continue
        with about(kind):
            message = refuse(call, TypeError, [name], **{name: WRONG_KINDS[kind](x)})
            assert re.search(r"float32 or float64|numpy\.ndarray|None", message)


@PLAIN
def test_mixed_dtypes(setting):
    """The first array decides, so that it is the next one which differs."""
    for dtype, other in ((np.float64, np.float32), (np.float32, np.float64)):
        call = setting.call(dtype=dtype)
        second = [*call.arrays][1]
        for name, x in arrays_of(call).items():
            if name not in call.case.constants:
                refuse(call, TypeError, [second if name == call.first else name], **{name: x.astype(other)})


@each_setting(lambda s: s.case.constants and not s.masked and s.room != "jit")  # asked at the door of every room
def test_a_constant_is_used_in_the_dtype_of_the_inputs(setting):
    """One that was drawn in float64 need not be cast by the caller."""
    call = setting.call(dtype=np.float32)
    result = call.run()
    wider = call.change(arrays={name: call.arrays[name].astype(np.float64) for name in call.case.constants}).run()
    for name, x in result.named().items():
        np.testing.assert_array_equal(wider.named()[name], x, strict=True)


@PLAIN
def test_wrong_rank(setting):
    call = setting.call()
    for name, x in arrays_of(call).items():
        refuse(call, ValueError, [name], **{name: x.reshape(-1)})
        if name not in call.case.shared:
            refuse(call, ValueError, [*call.arrays], **{name: x[None]})


@PLAIN
def test_unequal_leading_axes(setting):
    call = setting.call()
    others = set(call.arrays) - {call.first}
    for name, x in arrays_of(call).items():
        three = np.stack([x if name in call.case.shared else x[0]] * 3)
        refuse(call, ValueError, others if name == call.first else [name], **{name: three})


@PLAIN
def test_empty_axes(setting):
    call = setting.call()
    for name, x in arrays_of(call).items():
        for axis in range(x.ndim):
            refuse(call, ValueError, [*call.arrays], **{name: np.take(x, [], axis=axis)})


@each_plain(lambda s: {"q", "k"} <= {*s.case.query_axes, *s.case.key_axes})
def test_unequal_key_widths(setting):
    call = setting.call()
    for name in ("q", "k"):
        refuse(call, ValueError, ["k"], **{name: np.repeat(call.arrays[name], 2, axis=-1)})


@PLAIN
def test_unequal_numbers_of_keys(setting):
    """Each array with an axis of keys, one position too long and one too short."""
    call = setting.call()
    for name, axis in call.case.key_axes.items():
        x = call.arrays[name]
        for places in (range(call.sizes.n_keys - 1), [*range(call.sizes.n_keys), 0]):
            refuse(call, ValueError, call.case.key_axes, **{name: np.take(x, places, axis=axis)})


@each_plain(lambda s: s.case.causal and not s.case.square)
def test_more_causal_queries_than_keys(setting):
    call = setting.call()
    q = np.repeat(call.arrays["q"], 2, axis=-2)
    message = refuse(call, ValueError, ["q"], q=q)
    assert "N <= L" in message
    assert "N = 10" in message
    assert "L = 7" in message


@each_plain(lambda s: s.case.bad)
def test_what_this_mechanism_refuses(setting):
    for bad in setting.case.bad:
        with about(bad), pytest.raises(bad.error, match=bad.match):
            bad.change(setting.call()).forward()


# --- Options --------------------------------------------------------------------------------------------------------

WRONG_MASKS = {
    "integers": (lambda mask: mask.astype(int), TypeError, "bool"),
    "a list": (lambda mask: mask.tolist(), TypeError, "bool"),
    "scores": (lambda mask: np.where(mask, 0.0, -np.inf), TypeError, "bool"),
    "masked": (lambda mask: np.ma.masked_array(mask), TypeError, "bool"),
    "no leading axes": (lambda mask: mask[0], ValueError, r"\(2, 7\)"),
    "one leading axis of 1": (lambda mask: mask[:1], ValueError, r"\(2, 7\)"),
    "one key too few": (lambda mask: mask[:, :-1], ValueError, r"\(2, 7\)"),
    "a query axis": (lambda mask: mask[:, None], ValueError, r"\(2, 7\)"),
}


@MASKED
def test_wrong_masks(setting):
    call = setting.call()
    for wrong, (change, error, needs) in WRONG_MASKS.items():
        with about(wrong), pytest.raises(error, match=rf"^key_mask: .*{needs}"):
            call.change(key_mask=change(call.options["key_mask"])).forward()


@each_plain(lambda s: s.case.takes("scale"))
def test_a_scale_that_is_no_finite_number(setting):
    for scale in ("1", True, 1j, np.ones(3)):
        with about(scale), pytest.raises(TypeError, match=r"^scale: expected a number or None"):
            setting.call().change(scale=scale).forward()
    for scale in (np.nan, np.inf, -np.inf, 10**400):
        with about(scale), pytest.raises(ValueError, match=r"^scale: expected a finite number"):
            setting.call().change(scale=scale).forward()
    call = setting.call()
    narrow = call.change(arrays={name: map_arrays(np.float32, x) for name, x in call.arrays.items()})
    for scale in (1e39, -1e39):
        with about(scale), pytest.raises(ValueError, match=r"^scale: expected a finite number in float32, got "):
            narrow.change(scale=scale).forward()


@each_plain(lambda s: s.case.takes("scale"))
def test_a_scale_of_any_kind_of_number(setting):
    """NumPy's numbers, and an array of no axes, as ``1 / np.sqrt(x)`` can be."""
    call = setting.call()
    expected, _ = call.change(scale=0.5).forward()
    for kind in (np.float32, np.float64, np.array):
        with about(kind):
            np.testing.assert_array_equal(call.change(scale=kind(0.5)).forward()[0], expected, strict=True)


@each_plain(lambda s: "causal" in s.case.options)
def test_causal_is_true_or_false(setting):
    for causal in (1, "yes", None):
        with about(causal), pytest.raises(TypeError, match=r"^causal: expected True or False"):
            setting.call().change(causal=causal).forward()


@each_plain(lambda s: s.case.takes("kernels"))
def test_kernels_that_are_none(setting):
    """Nothing falls back silently; the error lists what there is, and nothing that is refused in turn."""
    call = setting.call()
    for kernels in (np, None, "jit", object()):
        with about(kernels), pytest.raises(TypeError, match=r"^kernels: .*linattn_ref\.kernels\.reference") as raised:
            call.change(kernels=kernels).forward()
    has_page = "linattn_ref.kernels.jit" in str(raised.value)
    assert has_page or setting.room is None
    with nullcontext() if has_page else pytest.raises(TypeError, match=r"^kernels: .*\.reference, or your own"):
        call.case.forward.check(*call.arrays.values(), **{**call.options, "kernels": jit})


# --- The backward pass ----------------------------------------------------------------------------------------------

WRONG_D_OUT = {
    "transposed": (lambda x: x.swapaxes(-1, -2), ValueError),
    "no leading axes": (lambda x: x[0], ValueError),
    "broadcasts": (lambda x: x[..., :1], ValueError),
    "a row too few": (lambda x: x[..., 1:, :], ValueError),
    "a number": (lambda x: 1.0, TypeError),
    "float32": (lambda x: x.astype(np.float32), TypeError),
    "integers": (lambda x: x.astype(int), TypeError),
}


@PLAIN
def test_wrong_d_out(setting):
    out, saved = (call := setting.call()).forward()
    for wrong, (change, error) in WRONG_D_OUT.items():
        with about(wrong), pytest.raises(error, match=r"^d_out: "):
            call.case.backward(change(normal_like(out)), saved)


WRONG_SAVED = {
    "both results": lambda out, saved: (out, (out, saved)),
    "swapped": lambda out, saved: (saved, out),
    "another's": lambda out, saved: (out, namedtuple("Saved", saved._fields)(*saved)),
    "nothing": lambda out, saved: (out, None),
}


@PLAIN
def test_wrong_saved(setting):
    call = setting.call()
    expected = (
        r"^saved: (expected what forward returned second, \w+\.\w*Saved, got |.* has no function backward that goes)"
    )
    for wrong, change in WRONG_SAVED.items():
        with about(wrong), pytest.raises(TypeError, match=expected):
            call.case.backward(*change(*call.forward()))
