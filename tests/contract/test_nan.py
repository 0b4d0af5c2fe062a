"""A number that is none reaches what depends on its token, and nothing else: in every mechanism, in every backend.

What depends on what, plain loops tell: which outputs move when a token does. Each head has a NaN of its own, so that
one call asks for many of them, and that none reaches another head.
"""

from dataclasses import replace

import numpy as np
import pytest
from case import Sizes, assert_close, at, normal_like
from cases import each_setting

from linattn_ref.attention import local, nystromformer, online_softmax, reformer, softmax
from linattn_ref.kernels import jit, reference


def tokens_of(call):
    """The arrays with a row or a number for each token: ``(those of queries, those of keys)``.

    A column of Linformer's projections is none of a token's: it is mixed with the others before anybody sees it.
    """
    axes, arrays = (call.case.query_axes, call.case.key_axes), call.arrays
    return [[name for name in some if isinstance(arrays.get(name), np.ndarray) and name not in "ef"] for some in axes]


def readers(call):
    """For each array with a row for each token, ``(N, tokens)``: whose output depends on that token's row."""
    before, sees = call.expected(), {}
    queries, keys = tokens_of(call)
    for name in [*queries, *keys]:
        x = call.arrays[name]
        length = x.shape[call.axes[name]]
        sees[name] = np.zeros((call.sizes.n, length), bool)
        for t in range(length):
            moved = x.copy()
            at(moved, call.axes[name], slice(t, t + 1))[...] *= 0.75
            sees[name][:, t] = (abs(call.change(arrays={name: moved}).expected() - before) > 1e-12).any(axis=-1)
    of_token = np.logical_or.reduce([sees[name] for name in keys])  # a weight is 1 whatever the key, where it is alone
    for name in keys:
        sees[name] = of_token
    for name in {call.first, *queries}:  # a gate may find nothing in the state as yet
        sees[name] = sees[name] | (of_token if "gate" in name else np.eye(*sees[name].shape, dtype=bool))
    if call.case.module is nystromformer:  # landmarks are made of all queries
        sees[call.first][:] = True
    return sees


def may_be_none(sees, name, t):
    """Which rows of which result a NaN in row ``t`` of ``name`` may reach."""
    rows = np.arange(len(next(iter(sees.values())))) == t if name == "d_out" else sees[name][:, t]
    reached = {each: x[rows].any(axis=0) for each, x in sees.items()}
    reached["out"] = rows & (name != "d_out")
    return reached


def in_heads(call, count):
    """The same numbers in so many heads, and what is hashed held."""
    case = call.case

    def repeated(name, x):
        own = (name in call.axes and name not in case.shared) or name in case.rows
        return np.repeat(x[None], count, axis=0) if own and isinstance(x, np.ndarray) else x

    mask = call.options.get("key_mask")
    options = {} if mask is None else {"key_mask": np.repeat(mask[None], count, axis=0)}
    sizes = call.sizes._replace(leading=(count,))
    arrays = {name: repeated(name, x) for name, x in call.arrays.items()}
    return replace(call.change(sizes=sizes, arrays=arrays, **options)).held()


def with_nan(call):
    """``(spoils, call, d_out, call with NaN, d_out with NaN)``: in head ``h``, that of ``spoils[h]``, array and row."""
    queries, keys = tokens_of(call)
    names = [name for name in (*queries, *keys) if name not in call.case.bounded and name != "log_gate"]
    lengths = {"d_out": call.sizes.n, **{name: call.arrays[name].shape[call.axes[name]] for name in names}}
    spoils = [(name, t) for name, length in lengths.items() for t in (1, length - 2)]
    hidden = np.flatnonzero(~call.options.get("key_mask", np.ones(1, bool)))[:1]
    spoils += [(name, t) for name in keys for t in hidden if name in names]
    call = in_heads(call, len(spoils))
    d_out = np.repeat(normal_like(np.empty((1, call.sizes.n, call.sizes.m))), len(spoils), axis=0)
    d_out = d_out.astype(call.arrays[call.first].dtype)
    arrays = {name: call.arrays[name].copy() for name in names} | {"d_out": d_out.copy()}
    for h, (name, t) in enumerate(spoils):
        arrays[name][h, t] = np.resize([np.nan, np.inf], arrays[name][h, t].shape) if name in keys else np.nan
    return spoils, call, d_out, call.change(arrays={name: arrays[name] for name in names}), arrays["d_out"]


is_asked = each_setting(lambda s: s.case.options.get("pinv") != "exact")  # whose decomposition does not converge


@is_asked
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_nan_reaches_what_depends_on_its_token(setting):
    # of a simulated GPU three chunks
    one = setting.call(Sizes(13, 13, leading=()) if setting.room == "cuda" else Sizes(leading=()))
    sees = readers(one)
    spoils, call, d_out, spoiled, d_spoiled = with_nan(one)
    expected, found = call.run(d_out).named(), spoiled.run(d_spoiled).named()
    for h, (name, t) in enumerate(spoils):
        for result, reached in may_be_none(sees, name, t).items():
            if result not in call.case.shared:
                axis = call.axes.get(result, -2)
                x, y = (np.moveaxis(each[result][h], axis, 0)[~reached] for each in (found, expected))
                if y.size:
                    assert_close(x, y, call.case, f"{result}, of NaN in {name}, row {t}")
    for name, axis in call.case.key_axes.items() if setting.masked else ():
        if axis == -2:
            assert not found[name][~call.options["key_mask"]].any(), name


@each_setting(lambda s: s.room == "jit" and not s.masked and s.case.options.get("pinv") != "exact")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_it_reaches_no_further_across_tiles(setting):
    """Than on the page, at lengths of several tiles and chunks."""
    one = setting.call(Sizes(70, 70, 4, 3, ()))
    spoils, call, d_out, spoiled, d_spoiled = with_nan(one)
    page, found = (x.run(d_spoiled).named() for x in (spoiled.change(kernels=reference), spoiled))
    expected = call.run(d_out).named()
    for h, (name, t) in enumerate(spoils):
        for result in {"out", *call.axes} & {*found} - {*call.case.shared}:
            axis = call.axes.get(result, -2)
            of_page, x, y = (np.moveaxis(each[result][h], axis, 0) for each in (page, found, expected))
            reached = ~np.isfinite(of_page).reshape(len(of_page), -1).all(axis=1)
            if not reached.all():
                assert_close(x[~reached], y[~reached], call.case, f"{result}, of NaN in {name}, row {t}")


def of(module, **fixed):
    def both_passes(q, k, v, d_out, **options):
        out, saved = module.forward(q, k, v, **fixed, **options)
        return out, *module.backward(d_out, saved)

    return both_passes


def of_reformer(q, k, v, d_out, **options):
    """Queries are keys."""
    out, saved = reformer.forward(k, v, rotations=np.ones((1, 4, 1)), chunk=80, **options)
    return out, *reformer.backward(d_out, saved)


BY_SOFTMAX = {
    "softmax": of(softmax),
    "softmax, causal": of(softmax, causal=True),
    "local": of(local, window=9),
    "reformer": of_reformer,
}


@pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
@pytest.mark.parametrize("name", BY_SOFTMAX)
@pytest.mark.parametrize("value", [np.inf, 1e200])  # with a gradient of the output of 1e200 in row 7
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_has_no_weight_changes_nothing(name, value, kernels):
    """A value whose weights have all become 0, and a head that sees no key."""
    q, k, v, d_out = np.random.default_rng(0).random((4, 2, 37, 4)) + 0.1
    q, k, d_out[0, 7] = 1e4 * q, 1e4 * k, 1e200
    k[0, 5] *= -1  # which all others see from behind
    mask = np.array([[True], [False]]).repeat(37, axis=-1)

    def run():
        return BY_SOFTMAX[name](q, k, v, d_out, key_mask=mask, kernels=kernels)

    expected = run()
    v[0, 5] = value
    q[1, 3] = k[1, 4] = v[1, 5] = np.nan if value == np.inf else 0
    for x, y in zip(run(), expected, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_loses_its_weight_to_a_later_tile_changes_nothing(value):
    """Key 0 is in a tile of equal keys, to which key 200 then leaves no weight."""
    q, v, d_out = np.random.default_rng(0).random((3, 300, 2)) + 0.1
    k = np.where(np.arange(300) == 200, 1e5, 0)[:, None].repeat(2, axis=1)
    for call in (of(softmax), of(online_softmax), of(softmax, kernels=jit), of(local, window=599, kernels=jit)):
        expected, spoiled = call(q, k, v, d_out), v.copy()
        spoiled[0] = value
        for x, y in zip(call(q, k, spoiled, d_out), expected, strict=True):
            np.testing.assert_array_equal(x, y)
