"""What may not be seen changes nothing: the future, padding, masked keys."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from case import Result, Sizes, about, assert_close, at
from cases import each_setting, each_setting_and_dtype

from linattn_ref.attention import delta, gated_linear, linear, linformer, linformer_linear, performer, rfa, softmax
from linattn_ref.gradcheck.inputs import float_arrays


def zero_from(d_out, n):
    """``d_out`` for a loss of the first ``n`` rows."""
    d_out = d_out.copy()
    d_out[..., n:, :] = 0
    return d_out


def assert_same(actual, expected, case, what):
    """To the last bit, unless the case says to rounding."""
    if case.causality == "bitwise":
        np.testing.assert_array_equal(actual, expected, err_msg=what)
    else:
        assert_close(actual, expected, case, what)


# --- The future -----------------------------------------------------------------------------------------------------


@each_setting_and_dtype(lambda s: s.case.causal)
def test_the_future_changes_nothing(setting, dtypes):
    """Made ten thousand times larger, it moves no earlier output or gradient by a bit, and has gradient 0 from them.

    All but the first row, half of them or the last; where there are both dtypes, in float32 half of them alone.
    """
    for dtype, sizes in product(dtypes, (Sizes(7, 7), Sizes(5, 8), Sizes(70, 133, 3, 2))):
        ends = dtype == np.float64 or len(dtypes) == 1
        change_from_each(lambda n, ends=ends: {1, n // 2, n - 1} if ends else {n // 2}, setting, sizes, dtype)


@pytest.mark.slow
@each_setting(lambda s: s.case.causal and s.room != "jit")
def test_the_future_from_the_second_row_and_from_the_last(setting):
    for sizes in (Sizes(7, 7), Sizes(5, 8), Sizes(70, 133, 3, 2)):
        change_from_each(lambda n: {1, n - 1}, setting, sizes, np.float32)


def change_from_each(places, setting, sizes, dtype):
    call, other = setting.call(sizes, dtype=dtype).held(), setting.call(sizes, dtype=dtype, seed=1)
    for rows in places(call.sizes.n):
        with about(dtype, call.sizes, f"rows from {rows} on changed"):
            change_from(rows, call, other)


def change_from(rows, call, other):
    shift, dtype = call.sizes.n_keys - call.sizes.n, call.arrays["v"].dtype.type
    d_out = zero_from(call.d_out(), rows)
    before = call.run(d_out)
    ends = {**dict.fromkeys(call.case.query_axes, rows), **dict.fromkeys(call.case.key_axes, rows + shift)}
    changed = {}
    for name, end in ends.items():
        future = other.arrays[name] if name in call.case.bounded else dtype(1e4) * call.arrays[name]
        changed[name] = call.arrays[name].copy()
        at(changed[name], call.axes[name], slice(end, None))[:] = at(future, call.axes[name], slice(end, None))
    after = call.change(arrays=changed).run(d_out)

    assert_same(after.out[..., :rows, :], before.out[..., :rows, :], call.case, "out")
    for name, end in ends.items():
        old, new = (getattr(result.gradients, name) for result in (before, after))
        past, future = (partial(at, axis=call.axes[name], where=where) for where in (slice(end), slice(end, None)))
        assert_same(past(new), past(old), call.case, name)
        assert not future(new).any(), name


@each_setting()
def test_exactly_the_allowed_pairs_have_weight(setting):
    """The other half: a query does see the last key that it may see."""
    call = setting.call(Sizes(4, 6, leading=()))
    allowed = call.pattern()
    d_out = np.zeros_like(call.d_out())
    for row in range(call.sizes.n):
        d_out[:], d_out[row] = 0, 1
        weights = abs(call.run(d_out).gradients.v).sum(axis=-1)  # (L,)
        assert (weights > 0).tolist() == allowed[row].tolist()


# --- Masked keys ----------------------------------------------------------------------------------------------------


@each_setting_and_dtype(lambda s: s.masked)
def test_what_masked_keys_contain_changes_nothing(setting, dtypes):
    """Be it the largest number there is."""
    for dtype in dtypes:
        call = setting.call(Sizes(9, 30), dtype=dtype)
        masked, before = ~call.options["key_mask"], call.run().named()
        assert masked.any(axis=-1).all()
        for content in (0, 1, -1):
            with about(dtype, f"{content} x the largest number"):
                arrays = {name: call.arrays[name].copy() for name, axis in call.case.key_axes.items() if axis == -2}
                for x in arrays.values():
                    x[masked] = content * np.finfo(dtype).max
                after = call.change(arrays=arrays).run().named()
                for name, x in before.items():
                    np.testing.assert_array_equal(after[name], x, err_msg=name)


@each_setting_and_dtype(lambda s: s.masked)
def test_masked_keys_have_gradient_zero(setting, dtypes):
    """Exactly, in everything that belongs to them; the others have one."""
    for dtype in dtypes:
        call = setting.call(Sizes(9, 30), dtype=dtype)
        key_mask = call.options["key_mask"]
        gradients = call.run().gradients
        for name, axis in call.case.key_axes.items():
            if name in call.case.shared:  # a column belongs to the keys of all sequences
                seen, by_key = key_mask.any(axis=0), np.moveaxis(getattr(gradients, name), axis, 0)
            else:
                seen, by_key = key_mask, np.moveaxis(getattr(gradients, name), axis, 1)
            assert not by_key[~seen].any(), name
            assert by_key[seen].any(), name


@each_setting_and_dtype(lambda s: s.masked and s.case.padding_is_truncation)
def test_padded_is_truncated(setting, dtypes):
    """A batch of sequences of different lengths, padded to the longest, gives each what it gets alone."""
    for dtype, lengths in product(dtypes, ((3, 6), (9, 4))):
        with about(dtype, f"lengths {lengths}"):
            pad(setting.call(Sizes(9, 9), dtype=dtype), lengths)


def pad(call, lengths):
    call = call.change(key_mask=np.arange(9) < np.array(lengths)[:, None])
    alone = [call.head((b,)).without_last(9 - length) for b, length in enumerate(lengths)]
    d_out = call.d_out()
    for b in range(2):
        d_out[b, alone[b].sizes.n :] = 0
    padded = call.run(d_out)
    expected = {name: np.zeros_like(x) for name, x in padded.named().items()}
    for b in range(2):
        n = alone[b].sizes.n
        result = alone[b].run(d_out[b, :n])
        assert_close(padded.out[b, :n], result.out, call.case, "out")
        for leaf, x in result.named().items():
            name = leaf.partition("[")[0]
            where = expected[leaf] if name in call.case.shared else expected[leaf][b]
            where[tuple(slice(0, size) for size in x.shape)] += x
    for leaf, x in padded.named().items():
        if leaf != "out":
            assert_close(x, expected[leaf], call.case, leaf)


WITHOUT_POSITIONS = (softmax, linear, linformer, linformer_linear, performer, rfa, gated_linear, delta)
MASKED = {"in front": (0, 5), "in the middle": (14, 19), "at the end": (35, 40), "all but some": (2, 38)}


@each_setting_and_dtype(lambda s: s.masked and s.case.module in WITHOUT_POSITIONS)
def test_masked_tokens_are_as_if_they_were_absent(setting, dtypes):
    """Where no place is counted: outputs, all gradients and the state after the last token, from a state too."""
    for dtype, (name, (start, stop)) in product(dtypes, MASKED.items()):
        call = setting.call(Sizes(40, 40), dtype=dtype)
        for begins in (False, True) if setting.case.recurrent else (False,):
            with about(dtype, f"masked {name}", f"from a state: {begins}"):
                leave_out(call, (np.arange(40) < start) | (np.arange(40) >= stop), begins)


def leave_out(call, seen, begins):
    case, aligned = call.case, call.case.causal or call.case.square
    absent = call.change(
        sizes=call.sizes._replace(n=seen.sum() if aligned else call.sizes.n, n_keys=seen.sum()),
        arrays={
            name: at(call.arrays[name], axis, seen) for name, axis in (call.axes if aligned else case.key_axes).items()
        },
        key_mask=None,
    )
    d_out = call.d_out()
    if aligned:
        d_out[..., ~seen, :] = 0
    masked = call.change(key_mask=np.broadcast_to(seen, call.options["key_mask"].shape))
    before = {"state": call.change(key_mask=None).block(1, 6).forward()[1].state} if begins else {}
    found, state = passes(masked, d_out, before)
    expected, other_state = passes(absent, d_out[..., seen, :] if aligned else d_out, before)
    for leaf, x in found.items():
        axis = (call.axes if aligned else case.key_axes).get(leaf.partition("[")[0])
        axis = -2 if leaf == "out" and aligned else axis
        assert_close(x if axis is None else at(x, axis, seen), expected[leaf], case, leaf)
        if leaf != "out" and axis is not None:
            assert not at(x, axis, ~seen).any(), leaf
    if state is not None:
        if case.module is softmax:  # keeps masked rows, and says which they are
            state = rows_seen(state)
        for (leaf, x), (_, other) in zip(*(float_arrays("state", each) for each in (state, other_state)), strict=True):
            assert_close(x, other, case, leaf)


def rows_seen(state):
    """The state with the keys and values that may be seen alone, as many in all sequences."""
    assert not state.k[~state.key_mask].any()
    assert not state.v[~state.key_mask].any()
    rows = [x[state.key_mask].reshape(*x.shape[:-2], -1, x.shape[-1]) for x in (state.k, state.v)]
    return softmax.State(*rows)


def passes(call, d_out, before):
    """The output and all gradients by name, and the state after the last token; ``before`` may have a state."""
    out, saved = call.forward(**before)
    return Result(out, saved, call.case.backward(d_out, saved)).named(), getattr(saved, "state", None)


# --- Nothing to see -------------------------------------------------------------------------------------------------


@each_setting_and_dtype(lambda s: s.masked)
def test_a_sequence_that_sees_nothing_is_zero(setting, dtypes):
    """Exactly 0, and so are its gradients; its neighbour in the batch is what it was."""
    for dtype in dtypes:
        call = setting.call(dtype=dtype)
        before = call.run()
        key_mask = call.options["key_mask"].copy()
        key_mask[0] = False
        after = call.change(key_mask=key_mask).run()
        assert not after.out[0].any()
        np.testing.assert_array_equal(after.out[1], before.out[1])
        for name in after.gradients._fields:
            new, old = getattr(after.gradients, name), getattr(before.gradients, name)
            if new is None:  # of what there was not
                assert old is None, name
            elif name in call.case.shared:
                assert all(np.isfinite(x).all() for _, x in float_arrays(name, new)), name
            else:
                assert not new[0].any(), name
                np.testing.assert_array_equal(new[1], old[1], err_msg=name)


@each_setting_and_dtype(lambda s: s.masked)
def test_a_batch_that_sees_nothing_is_zero(setting, dtypes):
    for dtype in dtypes:
        call = setting.call(dtype=dtype)
        result = call.change(key_mask=np.zeros_like(call.options["key_mask"])).run()
        for name, x in result.named().items():
            assert not x.any(), name  # NaN is not 0


@each_setting_and_dtype(lambda s: s.masked and s.case.causal and "q" in s.case.query_axes)
def test_rows_before_the_first_key_are_zero(setting, dtypes):
    for dtype in dtypes:
        call = setting.call(Sizes(6, 6), dtype=dtype)
        key_mask = np.ones_like(call.options["key_mask"])
        key_mask[:, :3] = False
        result = call.change(key_mask=key_mask).run()
        assert not result.out[:, :3].any()
        assert not result.gradients.q[:, :3].any()
        assert result.out[:, 3:].all()
