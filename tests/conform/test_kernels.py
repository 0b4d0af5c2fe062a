"""Kernels that are right pass, in every precision that they have; and what is not offered is not asked."""

import ctypes
import functools
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from linattn_ref import conform
from linattn_ref.attention import delta, gated_linear, linear, softmax
from linattn_ref.conform import report as report_module
from linattn_ref.conform.arrays import library_of
from linattn_ref.kernels import jit

PAGES = {"softmax": softmax, "linear": linear, "gated_linear": gated_linear, "delta": delta, "gated_delta": delta}
GATED = "gated_linear", "gated_delta"


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("op", PAGES)
def test_the_pages_pass(op, dtype):
    report = conform.check(PAGES[op], op, dtype=dtype)
    report.assert_ok()
    assert report["gradients"].verdict == "passed"
    assert report["masked_is_absent"].verdict == "passed"


@pytest.mark.parametrize("name", [name for name, each in conform.CHECKS.items() if "linear" in each.ops])
def test_a_check_by_itself_passes(name):
    conform.check((linear.forward, linear.backward), "linear", only=(name,)).assert_ok()


def test_the_largest_size_of_a_check_is_no_false_alarm():
    """Row 0 of causal attention has gradients that are nearly, or exactly, 0."""
    for op, page in PAGES.items():
        conform.check(page, op, only=("gradient_of_one_row",), full=True).assert_ok()


@pytest.mark.parametrize("op", GATED)
def test_the_pages_pass_with_a_gate_per_channel(op):
    conform.check(PAGES[op], op, mapping=conform.Mapping(gate="channel")).assert_ok()


# In float32 the same kernels are compiled anew, which takes a minute.
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("op", "gate"), [*((op, "head") for op in PAGES), *((op, "channel") for op in GATED)])
def test_the_compiled_kernels_pass(op, gate, dtype):
    mapping = conform.Mapping(given={"kernels": jit}, gate=gate)
    conform.check(PAGES[op], op, dtype=dtype, mapping=mapping).assert_ok()


def attention(query, key, value, is_causal=False):
    """As PyTorch calls its arguments, and with tokens before heads."""
    query, key, value = (x.swapaxes(1, 2).astype(np.float64) for x in (query, key, value))
    scores = query @ key.mT / np.sqrt(key.shape[-1])
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], scores.shape[-1] - scores.shape[-2], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True) @ value).swapaxes(1, 2).astype(np.float32)


NAMES = {"q": "query", "k": "key", "v": "value", "causal": "is_causal"}


def test_a_function_of_other_names_and_layout():
    report = conform.check(attention, "softmax", mapping=conform.Mapping(names=NAMES, layout="BNHD"))
    report.assert_ok()
    assert {x.name for x in report.outcomes if x.verdict == "not offered"} == {
        "gradients", "gradient_of_one_row", "scale", "masked_is_absent", "masked_content", "sees_nothing",
        "packed_is_separate", "shared_is_repeated", "options_together",
    }  # fmt: skip


def test_an_option_is_asked_for_only_where_it_is_named():
    def open_ended(q, k, v, **anything):
        assert not anything
        return softmax.forward(q, k, v)[0]

    report = conform.check(open_ended, "softmax")
    report.assert_ok()
    assert report["causal"].verdict == "not offered"


@pytest.mark.parametrize("way", ["module", "part", "name"])
@pytest.mark.parametrize("name", ["torch", "jax", "cupy", "numpy"])
def test_the_library_is_that_of_the_targets_module(way, name, monkeypatch):
    """Also if another module has the name of the target's own; and behind ``partial``."""
    monkeypatch.setitem(sys.modules, "my_kernels", types.ModuleType("my_kernels"))
    if way == "name":  # from torch import Tensor
        found = type("Tensor", (), {"__module__": name})
    else:
        found = types.ModuleType(name if way == "module" else f"{name}.nn")
    space = {"__name__": "my_kernels", "it": found}
    exec("def attention(q, k, v):\n    return v", space)
    for function in (space["attention"], functools.partial(space["attention"])):
        assert library_of(function).name == name
    if name == "numpy":
        assert library_of(function).module is np


@pytest.mark.parametrize("op", ["softmax", "linear"])
def test_a_kernels_own_default_of_causal_does_not_matter(op):
    def usually_causal(q, k, v, *, causal=True):
        return PAGES[op].forward(q, k, v, causal=causal)[0]

    conform.check(usually_causal, op).assert_ok()


def test_what_is_built_in_is_not_passed():
    def unscaled(q, k, v):
        return softmax.forward(q, k, v, causal=True, scale=1.0)[0]

    fixed = {"scale": 1.0, "causal": True}
    report = conform.check(unscaled, "softmax", mapping=conform.Mapping(fixed=fixed))
    report.assert_ok()
    assert report["causal"].verdict == report["fewer_queries"].verdict == "passed"
    assert report["scale"].verdict == "not offered"
    assert not conform.check(unscaled, "softmax", only=("output",)).ok


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 8])
def test_groups_that_are_built_in(groups):
    def shares(q, k, v, causal=False):
        return softmax.forward(q, k, v, causal=causal, groups=groups)[0]

    report = conform.check(
        shares, "softmax", mapping=conform.Mapping(fixed={"groups": groups}), only=("output", "lengths", "widths")
    )
    assert [x.verdict for x in report.outcomes] == ["passed"] * 3


def test_a_state_that_is_transposed_and_packed_rows():
    def rule(q, k, v, g, initial_state=None, cu_seqlens=None):
        q, k, v = (x.swapaxes(0, 1) for x in (q, k, v))
        outs, states = [], []
        for p in range(len(cu_seqlens) - 1):
            rows = slice(cu_seqlens[p], cu_seqlens[p + 1])
            state = None if initial_state is None else gated_linear.State(initial_state[p].mT)
            if rows.start == rows.stop:
                states.append(np.zeros_like(states[0]) if state is None else initial_state[p])
                continue
            out, saved = gated_linear.forward(q[:, rows], k[:, rows], v[:, rows], g.T[:, rows], state=state)
            outs.append(out.swapaxes(0, 1))
            states.append(saved.state.s.mT)
        return np.concatenate(outs), np.stack(states)

    names = {"log_gate": "g", "state": "initial_state", "offsets": "cu_seqlens"}
    report = conform.check(rule, "gated_linear", mapping=conform.Mapping(names=names, layout="packed", state="MC"))
    report.assert_ok()
    assert {report[name].verdict for name in ("packed_is_separate", "from_a_state", "pieces")} == {"passed"}


def packed(q, k, v, *, offsets, causal=False, key_mask=None):
    """Softmax attention of sequences one after the other; arrays are (tokens, heads, width), a mask (tokens,)."""
    out = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    for rows in map(slice, offsets[:-1], offsets[1:]):
        if rows.start < rows.stop:
            arrays = [np.moveaxis(x[rows], 0, 1) for x in (q, k, v)]
            mask = None if key_mask is None else np.broadcast_to(key_mask[rows], arrays[1].shape[:-1])
            out[rows] = np.moveaxis(softmax.forward(*arrays, causal=causal, key_mask=mask)[0], 0, 1)
    return out


def test_packed_rows_have_as_many_queries_as_keys():
    report = conform.check(packed, "softmax", mapping=conform.Mapping(layout="packed", mask="BL"))
    report.assert_ok()
    assert report["fewer_queries"].verdict == "not offered"
    assert report["options_together"].verdict == report["masked_is_absent"].verdict == "passed"


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v, /: softmax.forward(q, k, v)[0],
        lambda query, key, value, **more: softmax.forward(query, key, value, **more)[0],
        lambda query, k, value: softmax.forward(query, k, value)[0],
        lambda q, *rest: softmax.forward(q, *rest)[0],
        lambda *arrays: softmax.forward(*arrays)[0],
        lambda **arrays: softmax.forward(**arrays)[0],
    ],
)
def test_however_arrays_are_taken(function):
    conform.check(function, "softmax", only=("output",)).assert_ok()


def test_gradients_under_the_targets_own_names():
    def backward(d_out, saved):
        grads = gated_linear.backward(d_out, saved)
        return {"q": grads.q, "k": grads.k, "v": grads.v, "g": grads.log_gate}

    pair = lambda q, k, v, g: gated_linear.forward(q, k, v, g), backward
    conform.check(
        pair, "gated_linear", mapping=conform.Mapping(names={"log_gate": "g"}), only=("gradients",)
    ).assert_ok()


def test_a_backward_pass_that_shows_no_signature():
    function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object)
    report = conform.check(
        (linear.forward, function(linear.backward)), "linear", only=("gradients", "gradient_of_the_last_state")
    )
    assert [x.verdict for x in report.outcomes] == ["passed", "not offered"]


@pytest.mark.parametrize(
    ("op", "mapping", "says"),
    [
        ("gated_linear", {"names": {"sate": "initial_state"}}, "names: expected an argument of gated_linear"),
        ("gated_linear", {"names": {"initial_state": "state"}}, "names: expected an argument of gated_linear"),
        ("linear", {"fixed": {"scale": 1.0}}, r"fixed: expected an option of linear \(causal, groups, eps\)"),
        ("softmax", {"fixed": {"causal": "no"}}, "fixed: expected true or false for causal, got 'no'"),
        ("softmax", {"fixed": {"scale": "1/8"}}, "fixed: expected a number for scale, got '1/8'"),
        ("softmax", {"fixed": {"groups": 0}}, "fixed: expected a whole number of at least 1 for groups, got 0"),
        ("delta", {"fixed": {"state": True}}, "fixed: expected an option of delta"),
    ],
)
def test_a_mapping_that_makes_no_sense(op, mapping, says):
    with pytest.raises(conform.NotATarget, match=says):
        conform.check(PAGES[op], op, mapping=conform.Mapping(**mapping), only=("output",))


@pytest.mark.parametrize(("module", "extra"), [("ml_dtypes", "half"), ("torch", "peers"), ("jax", "peers")])
def test_what_is_not_installed_is_told_with_its_extra(module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    dtype = "bfloat16" if module == "ml_dtypes" else "float64"
    mapping = conform.Mapping(arrays="numpy" if module == "ml_dtypes" else module)
    with pytest.raises(conform.NotATarget, match=rf"{module}.*pip install 'linattn-ref\[{extra}\]'"):
        conform.check(softmax, "softmax", dtype=dtype, mapping=mapping)


def test_a_report_is_read_by_names_and_raises_without_assert():
    report = conform.check(lambda q, k, v: v[..., :1, :] + q[..., :1], "softmax", only=("output",))
    assert report["output"] is report.outcomes[0]
    with pytest.raises(KeyError, match="outputs"):
        report["outputs"]
    space = {"__name__": "linattn_ref.conform.optimised"}
    exec(compile(Path(report_module.__file__).read_text("utf-8"), "report.py", "exec", optimize=1), space)
    with pytest.raises(AssertionError, match="1 failed"):
        space["Report"](*report).assert_ok()


def test_the_mapping_in_the_manual():
    names, given = {"log_gate": "g", "state": "initial_state"}, {"output_final_state": True}

    def attention(q, k, v, g, initial_state=None, output_final_state=False):
        state = None if initial_state is None else gated_linear.State(initial_state)
        q, k, v, g = (x.swapaxes(1, 2) for x in (q, k, v, g))
        out, saved = gated_linear.forward(q, k, v, g, scale=1.0, state=state)
        return out.swapaxes(1, 2), saved.state.s if output_final_state else None

    mapping = conform.Mapping(names=names, fixed={"scale": 1.0}, given=given, layout="BNHD")
    report = conform.check(attention, "gated_linear", mapping=mapping)
    report.assert_ok()
    assert report["pieces"].verdict == "passed"


def test_options_that_a_kernel_refuses_together():
    def masked_or_scaled(q, k, v, key_mask=None, scale=None):
        if key_mask is not None and scale is not None:
            raise NotImplementedError
        return softmax.forward(q, k, v, key_mask=key_mask, scale=scale)[0]

    report = conform.check(masked_or_scaled, "softmax", only=("masked_is_absent", "scale", "options_together"))
    assert [x.verdict for x in report.outcomes] == ["passed", "passed", "not offered"]


def test_float16_where_a_gradient_is_smaller_than_its_numbers():
    def forward(q, k, v, log_gate):
        out, saved = gated_linear.forward(*(x.astype(np.float32) for x in (q, k, v, log_gate)))
        return out.astype(np.float16), saved

    def backward(d_out, saved, size=1):
        grads = gated_linear.backward(d_out.astype(np.float32), saved)
        found = {name: getattr(grads, name).astype(np.float16) for name in ("q", "k", "v", "log_gate")}
        return {**found, "log_gate": size * found["log_gate"]}

    judged = functools.partial(conform.check, op="gated_linear", dtype="float16", only=("gates",))
    judged((forward, backward)).assert_ok()
    assert judged((forward, functools.partial(backward, size=0)))["gates"].verdict == "FAILED"


def test_bfloat16_is_judged_by_what_is_rounded_and_by_sums_in_float32():
    """Tensor cores multiply 16 bits, so weights are rounded; nothing that is added to may be."""
    ml_dtypes = pytest.importorskip("ml_dtypes")

    def rounds_once(q, k, v):
        out, _ = softmax.forward(*(np.asarray(x, np.float32) for x in (q, k, v)))
        return out.astype(ml_dtypes.bfloat16)

    def rounds_weights(q, k, v):
        weights = softmax.matrix(*(np.asarray(x, np.float32) for x in (q, k)))
        sums = weights.astype(ml_dtypes.bfloat16).astype(np.float32) @ np.asarray(v, np.float32)
        return sums.astype(ml_dtypes.bfloat16)

    def adds_in_16_bits(q, k, v):
        weights, out = softmax.matrix(*(np.asarray(x, np.float32) for x in (q, k))), np.zeros_like(q, shape=v.shape)
        for j in range(k.shape[-2]):
            term = weights[..., j : j + 1] * np.asarray(v[..., j : j + 1, :], np.float32)
            out = (np.asarray(out, np.float32) + term).astype(ml_dtypes.bfloat16)
        return out

    conform.check(rounds_once, "softmax", dtype="bfloat16").assert_ok()
    conform.check(rounds_weights, "softmax", dtype="bfloat16", only=("output", "lengths", "large_scores")).assert_ok()
    assert not conform.check(adds_in_16_bits, "softmax", dtype="bfloat16", only=("lengths",)).ok


@pytest.mark.parametrize("seed", range(3))
def test_weights_that_are_made_again_from_a_logarithm(seed):
    """As fused kernels do. At scores of 1000 in float32, that costs some digits of P, and more of q's gradient."""

    def backward(d_out, saved):
        p, scores = saved.p, saved.scale * saved.q @ saved.k.mT
        row_sums = (d_out * (p @ saved.v)).sum(axis=-1, keepdims=True)
        largest = scores.max(axis=-1, keepdims=True)
        logarithm = largest + np.log(np.exp(scores - largest).sum(axis=-1, keepdims=True, where=p > 0))
        p = np.where(p > 0, np.exp(scores - logarithm), p)
        d_scores = saved.scale * p * (d_out @ saved.v.mT - row_sums)
        return d_scores @ saved.k, d_scores.mT @ saved.q, p.mT @ d_out

    conform.check((softmax.forward, backward), "softmax", only=("large_scores", "gradients"), seed=seed).assert_ok()


def test_a_mask_that_adds_a_large_number():
    """Where a query sees no key at all it takes the mean of all values: that is wrong, and nothing else is."""

    def forward(q, k, v, *, key_mask=None, causal=False):
        seen = np.tril(np.ones((q.shape[-2], k.shape[-2]), bool), k.shape[-2] - q.shape[-2]) if causal else True
        seen = np.broadcast_to(
            seen if key_mask is None else seen & key_mask[..., None, :], (*q.shape[:-1], k.shape[-2])
        )
        scores = q.shape[-1] ** -0.5 * q @ k.mT + np.where(seen, 0, np.finfo(q.dtype).min).astype(q.dtype)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True) @ v

    report = conform.check(forward, "softmax")
    assert [x.name for x in report.outcomes if not x.ok] == ["sees_nothing"]


def test_values_that_have_to_be_as_wide_as_keys():
    def forward(q, k, v, causal=False):
        assert v.shape[-1] == k.shape[-1]
        return softmax.forward(q, k, v, causal=causal)[0]

    conform.check(forward, "softmax", mapping=conform.Mapping(widths="same"), full=True).assert_ok()
    assert conform.check(forward, "softmax", only=("output",))["output"].verdict == "RAISED"


def test_a_shape_that_is_not_offered():
    def square(q, k, v):
        if q.shape[-2] != k.shape[-2]:
            raise NotImplementedError("as many queries as keys")
        return softmax.forward(q, k, v)[0]

    report = conform.check(square, "softmax")
    report.assert_ok()
    assert report["other_lengths"].verdict == "not offered"
    assert "as many queries as keys" in report["other_lengths"].where


def test_arguments_without_a_default():
    def tutorial(q, k, v, causal, sm_scale):
        return softmax.forward(q, k, v, causal=causal, scale=sm_scale)[0]

    report = conform.check(tutorial, "softmax", mapping=conform.Mapping(names={"scale": "sm_scale"}))
    report.assert_ok()
    assert report["scale"].verdict == report["causal"].verdict == "passed"
    with pytest.raises(conform.NotATarget, match=r"the target needs sm_scale; say what that is: --give sm_scale=VALUE"):
        conform.check(tutorial, "softmax")


class Module:
    """As PyTorch's: what it is called with stands at its `forward`."""

    def __call__(self, *args, **kwargs):
        return self.forward(*args, **kwargs)

    def forward(self, query, key, value, causal=False):
        return softmax.forward(query, key, value)[0]


def test_an_object_with_a_forward_pass_shows_its_options():
    report = conform.check(Module(), "softmax", only=("output", "causal"))
    assert report["output"].named == ("causal_ignored",)
    assert report["causal"].verdict == "FAILED"


def test_a_method_is_of_its_classs_library():
    function = type("Function", (), {"__module__": "torch.autograd.function"})
    apply = type("Mine", (function,), {"apply": classmethod(lambda cls, q, k, v: None)}).apply
    assert library_of(apply).name == "torch"
