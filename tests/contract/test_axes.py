"""Packed sequences equal separate ones, and shared heads repeated ones: outputs, gradients and states."""

import inspect
from itertools import pairwise, product

import numpy as np
import pytest
from case import Sizes, about, at, normal_like
from cases import each_setting

from linattn_ref.attention import feature_maps, linear
from linattn_ref.experiments.measuring.counting import kept_bytes
from linattn_ref.kernels import jit, reference

AXES = each_setting(lambda s: s.case.takes("groups"))
PLAIN = each_setting(lambda s: s.case.takes("groups") and s.room == "reference" and not s.masked)
OFFSETS = np.array([0, 0, 1, 5, 5, 9])  # empty ones, one of one token, and two of the same length
N, HEADS = 9, 4


# --- Calls, and the numbers that come of them -------------------------------------------------------------------------


def fewer_heads_of_keys(call, groups):
    """The same call with a ``groups``-th of the heads of all but the queries."""
    axis = len(call.sizes.leading) - 1
    keys = (*[slice(None)] * axis, slice(0, HEADS // groups))
    mask = call.options.get("key_mask")
    options = {} if mask is None else {"key_mask": mask[keys]}
    return call.change(arrays={name: x[keys] for name, x in call.arrays.items() if name != "q"}, **options)


def earlier_state(call, leading):
    """The state after two tokens."""
    sizes = call.sizes._replace(leading=leading, n=2, n_keys=2)
    arrays = call.case.draw(np.random.default_rng(5), sizes, np.float64)
    earlier = call.change(sizes=sizes, arrays=arrays, key_mask=None)
    return earlier.forward(state=earlier.init_state())[1].state


def numbers(call, state, d_out, d_state, **axes):
    """What both passes return, for gradients of the output and of the true state: arrays, and the true states."""
    out, saved = call.forward(**axes, **({} if state is None else {"state": state}))
    more = {}
    if d_state:
        scaled = {name: x * scale(saved.state, name) for name, x in d_state.items()}
        more["d_state"] = saved.state._replace(**scaled)
    grads = call.case.backward(d_out, saved, **more)._asdict()
    d_before = true_numbers(grads.pop("state", None), -1)
    return {"out": out, **{name: x for name, x in grads.items() if x is not None}}, true_numbers(saved.state), d_before


def true_numbers(state, sign=1):
    """The arrays of a state as they are without a scale, or those of its gradient."""
    fields = {} if state is None else state._asdict()
    return {name: x * scale(state, name, sign) for name, x in fields.items() if x is not None and name != "log_scale"}


def scale(state, name, sign=1):
    r = getattr(state, "log_scale", None)
    return 1 if r is None else np.exp(sign * r)[(..., *[None] * (name == "s"))]


def assert_same(found, expected):
    """To rounding; what a cache has beyond the expected is masked, and not compared."""
    found = found[tuple(map(slice, expected.shape))]
    largest = max(1.0, float(abs(expected).max(initial=0)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=64 * np.finfo(np.float64).eps * largest)


# --- Packed equals separate -------------------------------------------------------------------------------------------


@AXES
def test_packed_sequences_are_separate(setting):
    for leading, groups, goes_on in product(((), (HEADS,)), (1, 2), (False, True)):
        if (leading or groups == 1) and (setting.case.recurrent or not goes_on):
            with about(leading, groups, goes_on):
                packed_is_separate(setting, leading, groups, goes_on)


def packed_is_separate(setting, leading, groups, goes_on):
    call = setting.call(Sizes(N, N, leading=leading))
    call, mask = fewer_heads_of_keys(call, groups) if leading else call, call.options.get("key_mask")
    states, axes = None, {"offsets": OFFSETS, "groups": groups}
    if goes_on:
        states = earlier_state(call, (len(OFFSETS) - 1, *call.arrays["k"].shape[:-2]))
    out, saved = call.forward(**axes, **({"state": states} if goes_on else {}))
    d_out, d_state = normal_like(out), {}
    if not hasattr(saved.state, "key_mask") and saved.state is not None:  # a cache's is none
        d_state = {name: normal_like(x) for name, x in true_numbers(saved.state).items()}
    packed, after, d_before = numbers(call, states, d_out, d_state, **axes)
    for p, (start, stop) in enumerate(pairwise(OFFSETS.tolist())):
        tokens, state = slice(start, stop), states and states._make(x if x is None else x[p] for x in states)
        d_own = {name: x[p] for name, x in d_state.items()}
        if start < stop:
            masks = {} if mask is None else {"key_mask": call.options["key_mask"][..., tokens]}
            one = call.change(arrays=call.positions(tokens), **masks)
            alone, own_after, own_before = numbers(one, state, d_out[..., tokens, :], d_own, groups=groups)
            for name, x in alone.items():
                assert_same(at(packed[name], call.axes.get(name, -2), tokens), x)
        else:  # the state stays as it is, and so does its gradient
            own_after = true_numbers(state) or {name: 0 * x[p] for name, x in after.items()}
            own_before = d_own if d_before else {}
        for whole, own in ((after, own_after), (d_before, own_before)):
            assert whole.keys() >= own.keys()
            for name, x in own.items():
                assert_same(whole[name][p], x)


@PLAIN
def test_offsets_of_any_integers(setting):
    call = setting.call(Sizes(N, N, leading=(2,)))
    expected = call.forward(offsets=OFFSETS)[0]
    for dtype in (np.int8, np.uint8, np.int32, np.uint64):
        np.testing.assert_array_equal(call.forward(offsets=OFFSETS.astype(dtype))[0], expected, strict=True)


@AXES
def test_one_token_each_and_one_sequence(setting):
    call = setting.call(Sizes(N, N, leading=(2,)))
    whole = call.forward()[0]
    assert_same(call.forward(offsets=np.array([0, N]))[0], whole)
    single = call.forward(offsets=np.arange(N + 1))[0]
    assert_same(single[:, :1], call.forward(offsets=np.array([0, 1, N]))[0][:, :1])
    assert abs(single[:, 1:] - whole[:, 1:]).max() > 1e-3


# --- Shared equals repeated -------------------------------------------------------------------------------------------


@AXES
def test_shared_heads_are_repeated_heads(setting):
    for sizes, groups, goes_on in product(((5, 7), (1, 7), (N, N)), (2, HEADS), (False, True)):
        if setting.case.recurrent or not goes_on:
            with about(sizes, groups, goes_on):
                shared_is_repeated(setting, sizes, groups, goes_on)


def shared_is_repeated(setting, sizes, groups, goes_on):
    call = fewer_heads_of_keys(setting.call(Sizes(*sizes, leading=(2, HEADS))), groups)
    state = earlier_state(call, call.arrays["k"].shape[:-2]) if goes_on else None
    mask = call.options.get("key_mask")
    masks = {} if mask is None else {"key_mask": np.repeat(mask, groups, axis=1)}
    repeated = call.change(
        arrays={name: np.repeat(x, groups, axis=1) for name, x in call.arrays.items() if name != "q"}, **masks
    )
    out, saved = call.forward(groups=groups, **({} if state is None else {"state": state}))
    d_out, d_state = normal_like(out), {}
    if not hasattr(saved.state, "key_mask") and saved.state is not None:
        d_state = {name: normal_like(x) for name, x in true_numbers(saved.state).items()}
    shared = numbers(call, state, d_out, d_state, groups=groups)
    all_heads = state and state._make(x if x is None else np.repeat(x, groups, axis=1) for x in state)
    d_shares = {name: np.repeat(x, groups, axis=1) / groups for name, x in d_state.items()}
    arrays, after, d_before = numbers(repeated, all_heads, d_out, d_shares)

    def of_group(x):
        return x.reshape(x.shape[0], -1, groups, *x.shape[2:])

    arrays = {name: x if name in ("out", "q") else of_group(x).sum(axis=2) for name, x in arrays.items()}
    after = {name: of_group(x)[:, :, 0] for name, x in after.items()}
    d_before = {name: of_group(x).sum(axis=2) for name, x in d_before.items()}
    for found, expected in zip(shared, (arrays, after, d_before), strict=True):
        assert found.keys() == expected.keys()
        for name, x in expected.items():
            assert found[name].shape == x.shape
            assert_same(found[name], x)


@AXES
def test_what_is_not_given_is_the_default_in_every_call(setting):
    """Also in a second call of a kind, whose arguments the entry does not look at: the same bits, and as much kept."""
    call = fewer_heads_of_keys(setting.call(Sizes(5, 7, leading=(2, HEADS))), 2)
    options = inspect.signature(call.case.forward.page).parameters.items()
    given = {name: x.default for name, x in options if x.kind is x.KEYWORD_ONLY and name not in call.options}
    expected, saved = call.forward(**{**given, "groups": 2})
    for _ in range(2):
        out, again = call.forward(groups=2)
        np.testing.assert_array_equal(out, expected)
        assert kept_bytes(again) == kept_bytes(saved)


@each_setting(lambda s: s.case.takes("groups") and s.case.recurrent and not s.masked)
def test_shared_heads_step_by_step(setting):
    """From a state that has the heads of the keys."""
    call = fewer_heads_of_keys(setting.call(Sizes(6, 6, leading=(2, HEADS))), 2)
    expected, saved = call.forward(groups=2, state=call.change(groups=2).init_state())
    state = call.change(groups=2).init_state()
    for t in range(6):
        out_t, state = call.change(groups=2).step(t, state)
        assert_same(out_t, expected[..., t, :])
    for name, x in true_numbers(saved.state).items():
        assert_same(true_numbers(state)[name], x)
    setting.case.backward(normal_like(expected), saved)  # scales of no keys are the smallest numbers: no sum overflows


@PLAIN
def test_the_matrix_of_both(setting):
    call = fewer_heads_of_keys(setting.call(Sizes(N, N, leading=(HEADS,))), 2)
    axes = {"offsets": OFFSETS, "groups": 2}
    arrays = {name: x for name, x in call.arrays.items() if name != "v"}
    matrix = call.case.module.matrix(*arrays.values(), **call.accepted_by(call.case.module.matrix), **axes)
    assert_same(matrix @ np.repeat(call.arrays["v"], 2, axis=0), call.forward(**axes)[0])
    sequence = np.searchsorted(OFFSETS, np.arange(N), side="right")
    assert not matrix[:, sequence[:, None] != sequence].any()


def test_the_gradient_of_packed_states_needs_no_scale():
    """It is then on that of the states; also of the sequence without tokens, whose state stays as it is."""
    rng = np.random.default_rng(0)
    options = {"feature_map": feature_maps.favor_positive(rng.standard_normal((6, 4))), "eps": 0.0}
    q, k, v, d_out = rng.standard_normal((4, 2, N, 4))
    state = linear.init_state((len(OFFSETS) - 1, 2), 4, 4, feature_map=options["feature_map"])
    for room in (reference, jit):
        _, saved = linear.forward(q, k, v, causal=True, offsets=OFFSETS, state=state, kernels=room, **options)
        s, z = (rng.standard_normal(x.shape) for x in saved.state[:2])
        plain, scaled = linear.State(s, z), linear.State(s, z, saved.state.log_scale)
        grads, expected = (linear.backward(d_out, saved, d_state=d_state) for d_state in (plain, scaled))
        for found, right in zip((*grads[:3], *grads.state), (*expected[:3], *expected.state), strict=True):
            np.testing.assert_array_equal(found, right)


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "error", "match"),
    [
        ([0, N], TypeError, "an array of integers, got list"),
        (np.array([0.0, N]), TypeError, "an array of integers, got float64"),
        (np.array([False, True]), TypeError, "an array of integers, got bool"),
        (np.array([[0, N]]), ValueError, r"shape \(P\+1,\) = \(2,\), got \(1, 2\)$"),
        (np.array([0]), ValueError, r"P \+ 1 integers for P >= 1 sequences, got 1"),
        (np.array([1, N]), ValueError, f"from 0 to N = {N} "),
        (np.array([0, N - 1]), ValueError, f"from 0 to N = {N} "),
        (np.array([0, N + 1]), ValueError, f"from 0 to N = {N} "),
        (np.array([0, 5, 4, N], np.uint8), ValueError, "that never fall, got "),
        (np.array([0, -1, N]), ValueError, "that never fall, got "),
    ],
    ids=lambda x: str(x).replace(" ", "") if isinstance(x, (list, np.ndarray)) else None,
)
@PLAIN
def test_wrong_offsets(setting, offsets, error, match):
    with pytest.raises(error, match=rf"^offsets: expected .*{match}"):
        setting.call(Sizes(N, N)).forward(offsets=offsets)


@PLAIN
def test_packed_sequences_are_rows_of_as_many_queries_as_keys(setting):
    with pytest.raises(ValueError, match=r"^offsets: expected q \(N, D\) or \(H, N, D\) .*got shape \(2, 3, 9, 4\)"):
        setting.call(Sizes(N, N, leading=(2, 3))).forward(offsets=OFFSETS)
    if not setting.case.square:
        with pytest.raises(ValueError, match=rf"^offsets: expected N = L .*got N = 5 and L = {N}"):
            setting.call(Sizes(5, N)).forward(offsets=OFFSETS)


@PLAIN
def test_wrong_groups(setting):
    call = setting.call(Sizes(leading=(2, 6)))
    for wrong in (0, -1, 2.0, True, "2", None):
        with about(wrong), pytest.raises(ValueError, match=rf"^groups: expected an integer .*, got {wrong!r}"):
            call.forward(groups=wrong)
    for groups, heads in ((2, 6), (4, 2), (3, 3)):
        arrays = {name: x[:, :heads] for name, x in call.arrays.items() if name != "q"}
        expected = rf"^groups: expected G = H / K for the H = 6 heads of q and the K = {heads} .*, got {groups}"
        with about(groups), pytest.raises(ValueError, match=expected):
            call.change(arrays=arrays).forward(groups=groups)
    keys = [*call.arrays][1]
    for wrong, error in ((call.arrays[keys].tolist(), TypeError), (call.arrays[keys][0], ValueError)):
        with about(error), pytest.raises(error, match=rf"^{keys}: expected "):
            call.change(arrays={**call.arrays, keys: wrong}).forward(groups=2)
    with pytest.raises(ValueError, match=r"^groups: expected an axis of heads before the tokens of q, got none"):
        setting.call(Sizes(leading=())).forward(groups=2)
    arrays = {name: x[:, :2] for name, x in call.arrays.items() if name != "q"}
    with pytest.raises(ValueError, match=r"^k: expected shape"):  # never inferred
        call.change(arrays=arrays).forward()


@PLAIN
def test_wrong_gradients(setting):
    """Of the shape of the output, and of the states."""
    call = fewer_heads_of_keys(setting.call(Sizes(N, N, leading=(HEADS,))), 2)
    for axes in ({"groups": 2}, {"groups": 2, "offsets": OFFSETS}):
        out, saved = call.forward(**axes)
        for wrong in (out[:2], out[:, 1:], out[..., :1]):
            with pytest.raises(ValueError, match=r"^d_out: expected shape"):
                call.case.backward(wrong, saved)
        if hasattr(saved.state, "s"):
            state = saved.state._replace(s=saved.state.s[:1])
            with pytest.raises(ValueError, match=r"^d_state\.s: expected shape"):
                call.case.backward(out, saved, d_state=state)
