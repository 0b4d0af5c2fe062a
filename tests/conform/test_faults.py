"""Every mistake that is planted is found, and called by its name first; nothing that is right is called wrong."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from linattn_ref import conform
from linattn_ref.attention import delta, gated_linear, linear, softmax
from linattn_ref.conform import HYPOTHESES, checks, faults, judge
from linattn_ref.conform.questions import OPS

RECORD = Path(__file__).parents[2] / "figures" / "records" / "conform_confusion.json"
CASES = [(name, op) for name, each in HYPOTHESES.items() for op in each.ops if faults.applies(name, op)]


@pytest.mark.parametrize("name", HYPOTHESES)
def test_a_mistake_is_named_first(name):
    op = next(op for each, op in CASES if each == name)
    found = faults.fits(name, op, 0)
    assert found[:1] == [name]
    assert len(found) <= 2


def test_the_record_is_of_the_mistakes_there_are():
    stored = json.loads(RECORD.read_text(encoding="utf-8"))["fits"]
    assert {(name, op) for name, by_op in stored.items() for op in by_op} == set(CASES)
    anew = faults.confusion(["gate_log2", "row_sum_missing"])
    assert anew == {name: stored[name] for name in anew}


@pytest.mark.slow
@pytest.mark.parametrize("shape", [0, *(pytest.param(shape, marks=pytest.mark.thorough) for shape in (1, 2))])
@pytest.mark.parametrize(("name", "op"), CASES)
def test_a_mistake_is_named_first_on_every_shape(name, op, shape):
    found = faults.fits(name, op, shape)
    assert found[:1] == [name]
    assert len(found) <= 2
    assert json.loads(RECORD.read_text(encoding="utf-8"))["fits"][name][op][shape] == found


@pytest.mark.parametrize("op", ["softmax", "linear", "gated_linear", "delta", "gated_delta"])
def test_the_loops_are_right_without_a_mistake(op, monkeypatch):
    """They have no chunks, for which a check asks of 130 tokens."""
    monkeypatch.setattr(checks, "LENGTH", 40)
    monkeypatch.setattr(checks, "LONG_OFFSETS", np.array([0, 21, 21, 22, 40]))
    loops = partial(faults.each_head, faults.ROWS[op], "")
    mapping = conform.Mapping(declares=(*OPS[op].options, "normalise"), arrays="numpy")
    only = ("output", "masked_is_absent", "packed_is_separate", "shared_is_repeated", "fewer_queries")
    report = conform.check(
        loops, op, dtype="float64", mapping=mapping, only=only[: 5 if "causal" in OPS[op].options else 4]
    )
    report.assert_ok()
    assert all(outcome.verdict == "passed" for outcome in report.outcomes)


def zeros_for(gradient):
    def backward(d_out, saved):
        grads = gated_linear.backward(d_out, saved)
        return grads._replace(**{gradient: 0 * getattr(grads, gradient)})

    return gated_linear.forward, backward


@pytest.mark.parametrize("gradient", ["q", "k", "v", "log_gate"])
def test_zeros_never_pass(gradient):
    report = conform.check(zeros_for(gradient), "gated_linear", only=("gradients", "gates"))
    assert report["gradients"].verdict == report["gates"].verdict == "FAILED"


def test_right_answers_do_not_pass_where_zeros_would():
    """More than half of what is not 0 may be off by all of it."""
    right = np.array([1.0, 2.0, 3.0, 0.0, 0.0])
    blind, seeing = (judge.compare("", "out", right, right, budget) for budget in (2.0, 1.5))
    assert (blind.ok, str(blind)) == (False, "out: cannot be judged, zeros would pass")
    assert seeing.ok


@pytest.mark.parametrize("found", [{"q": 0, "v": 0}, (0,)])
def test_a_gradient_that_is_missing_does_not_pass(found):
    def backward(d_out, saved):
        grads = softmax.backward(d_out, saved)
        return {name: getattr(grads, name) for name in found} if isinstance(found, dict) else grads[:1]

    report = conform.check((softmax.forward, backward), "softmax", only=("gradients",))
    assert report["gradients"].verdict == "RAISED"
    assert "no gradient of k" in report["gradients"].where


def test_a_gradient_of_the_first_state_that_is_missing_does_not_pass():
    def backward(d_out, saved, d_state=None):
        return gated_linear.backward(d_out, saved, d_state=d_state)._replace(state=None)

    report = conform.check((gated_linear.forward, backward), "gated_linear", only=("gradient_of_the_last_state",))
    assert report["gradient_of_the_last_state"].verdict == "RAISED"
    assert "no gradient of state" in report["gradient_of_the_last_state"].where


def test_a_gates_gradient_that_is_noise_is_found_where_it_is_noise_alone():
    forward, backward = faults.pair_of("gated_linear", "gate_by_cancellation")
    report = conform.check((named(forward), backward), "gated_linear", mapping=conform.Mapping(arrays="numpy"))
    assert report["gradients"].verdict == "passed"
    assert report["gates"].named == ("gate_by_cancellation",)


def named(forward):
    """With the arguments that offer nothing but gradients."""
    return lambda q, k, v, log_gate: forward(q=q, k=k, v=v, log_gate=log_gate)


def test_a_kernel_that_computes_in_float32_is_told_so():
    def coarse(q, k, v):
        return softmax.forward(*(x.astype(np.float32) for x in (q, k, v)))[0].astype(np.float64)

    report = conform.check(coarse, "softmax", dtype="float64", only=("output",))
    assert report["output"].named == ("computes_in_float32",)
    conform.check(coarse, "softmax", only=("output",)).assert_ok()


def ten_bits(x):
    """Rounded as the inputs of TF32's products are."""
    return (
        ((np.ascontiguousarray(x, np.float32).view(np.uint32) + 0x1000) & 0xFFFFE000).astype(np.uint32).view(np.float32)
    )


def test_products_of_ten_bits_are_told_from_a_wrong_formula():
    def in_tf32(q, k, v, log_gate):
        return gated_linear.forward(ten_bits(q), ten_bits(k), ten_bits(v), log_gate)[0]

    def too_large(q, k, v, log_gate):
        return np.float32(1.01) * gated_linear.forward(q, k, v, log_gate)[0]

    report = conform.check(in_tf32, "gated_linear", only=("output", "lengths"))
    assert report["output"].named == report["lengths"].named == ("products_in_tf32",)
    assert conform.check(too_large, "gated_linear", only=("output",))["output"].named == ("rows_off_by_a_factor",)


def test_a_mask_of_the_first_sequence_alone_is_told():
    def of_the_first(q, k, v, key_mask=None, causal=False):
        mask = None if key_mask is None else np.broadcast_to(key_mask[:1], key_mask.shape)
        return softmax.forward(q, k, v, key_mask=mask, causal=causal)[0]

    report = conform.check(of_the_first, "softmax", only=("masked_content",))
    assert report["masked_content"].where.startswith("masked near the front")
    assert not report.ok


def test_of_one_key_no_denominator_is_told():
    """Where there is one key, every row is a multiple of its value, whatever is wrong."""

    def less_a_channel(q, k, v, log_gate):
        first = int(k.shape[-2] == 1)
        return gated_linear.forward(q[..., first:], k[..., first:], v, log_gate, scale=q.shape[-1] ** -0.5)[0]

    report = conform.check(less_a_channel, "gated_linear", only=("lengths",))
    assert report["lengths"].where.startswith("1 tokens")
    assert report["lengths"].named == ()


def scores_of(q, k, causal=False):
    scores, sees = q @ k.mT / np.sqrt(q.shape[-1]), np.tri(q.shape[-2], k.shape[-2], k.shape[-2] - q.shape[-2])
    return np.where(sees, scores, -1e4) if causal else scores


def test_a_backward_pass_that_does_not_subtract_the_maximum():
    def forward(q, k, v):
        return softmax.forward(q, k, v)[0], (q, k, v)

    @np.errstate(all="ignore")
    def backward(d_out, saved):
        q, k, v = saved
        p = np.exp(scores_of(q, k))
        p /= p.sum(axis=-1, keepdims=True)
        d_p = d_out @ v.mT
        d_s = p * (d_p - (p * d_p).sum(axis=-1, keepdims=True)) / np.sqrt(q.shape[-1])
        return {"q": d_s @ k, "k": d_s.mT @ q, "v": p.mT @ d_out}

    report = conform.check((forward, backward), "softmax", only=("gradients", "large_scores"))
    assert [x.verdict for x in report.outcomes] == ["passed", "FAILED"]


def test_a_mask_that_is_a_large_number():
    def forward(q, k, v, causal=False):
        scores = scores_of(q, k, causal)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return p / p.sum(axis=-1, keepdims=True) @ v

    report = conform.check(forward, "softmax", only=("causal", "large_scores"))
    assert [x.verdict for x in report.outcomes] == ["passed", "FAILED"]


def test_options_that_are_wrong_together():
    def normalises_with_a_state(q, k, v, beta, *, normalise=True, state=None):
        state = None if state is None else delta.State(state)
        out, saved = delta.forward(q, k, v, beta, normalise=normalise or state is not None, state=state)
        return out, saved.state.s

    report = conform.check(normalises_with_a_state, "delta", only=("normalise", "from_a_state", "options_together"))
    assert [x.name for x in report.outcomes if not x.ok] == ["options_together"]

    def resets_nothing(q, k, v, log_gate, *, state=None):
        log_gate = log_gate.copy()
        log_gate[..., 0] = np.where(np.isneginf(log_gate[..., 0]) & (state is not None), 0, log_gate[..., 0])
        out, saved = gated_linear.forward(q, k, v, log_gate, state=None if state is None else gated_linear.State(state))
        return out, saved.state.s

    report = conform.check(resets_nothing, "gated_linear", only=("gates", "from_a_state", "resets"))
    assert [x.name for x in report.outcomes if not x.ok] == ["resets"]
    assert report["resets"].where.startswith("log gate -inf at token 0")


def test_a_state_that_the_third_chunk_overwrites():
    def chunks(q, k, v, causal=False):
        if not causal:
            return linear.forward(q, k, v)[0]
        outs, state = [], None
        for start in range(0, k.shape[-2], 128):
            rows = np.s_[..., start : start + 128, :]
            out, _ = linear.forward(q[rows], k[rows], v[rows], causal=True, state=state)
            outs.append(out)
            state = linear.forward(q[rows], k[rows], v[rows], causal=True)[1].state
        return np.concatenate(outs, axis=-2)

    assert conform.check(chunks, "linear", only=("lengths",)).ok
    assert not conform.check(chunks, "linear", only=("lengths",), full=True).ok


def test_no_denominator_is_told_where_there_is_none():
    report = conform.check(lambda q, k, v, beta: 1.5 * delta.forward(q, k, v, beta)[0], "delta", only=("output",))
    assert report["output"].named == ("rows_off_by_a_factor",)
    assert report["output"].diagnosis[0].endswith("as with another scale")


@pytest.mark.parametrize("factor", [-1, 0, 0.5, 20])
def test_a_multiple_of_one_gradient_is_told(factor):
    def backward(d_out, saved):
        found = linear.backward(d_out, saved)
        return found._replace(v=found.v * np.float32(factor))

    report = conform.check((linear.forward, backward), "linear", only=("gradients", "gradient_of_one_row"))
    for outcome in report.outcomes:
        assert outcome.named == ("gradients_off_by_a_factor",)
        assert outcome.diagnosis == (f"the gradient of v is {f'multiplied by {factor}' if factor else 0}",)


def test_an_output_is_judged_where_the_backward_pass_raises():
    def refuses(d_out, saved):
        raise RuntimeError("wrong on this GPU")

    report = conform.check(
        (softmax.forward, refuses), "softmax", only=("output", "gradients", "lengths", "inputs_kept")
    )
    assert report["gradients"].verdict == "RAISED"
    for name in ("output", "lengths", "inputs_kept"):
        assert report[name].verdict == "passed"
        assert "without gradients, which raised: RuntimeError: wrong on this GPU" in report[name].where
    wrong = conform.check((partial(softmax.forward, scale=1.0), refuses), "softmax", only=("output",))
    assert wrong["output"].named == ("scale_missing",)
    assert not report.ok


def changes_its_inputs(q, k, v):
    q *= k.shape[-1] ** -0.5
    return softmax.forward(q, k, v, scale=1.0)[0]


def overwrites_its_state(q, k, v, log_gate, *, state=None):
    out, saved = gated_linear.forward(q, k, v, log_gate, state=None if state is None else gated_linear.State(state))
    if state is None:
        return out
    state[...] = saved.state.s
    return out, state


def test_a_state_that_is_overwritten():
    report = conform.check(overwrites_its_state, "gated_linear", only=("from_a_state", "pieces", "inputs_kept"))
    assert [x.verdict for x in report.outcomes] == ["passed", "passed", "FAILED"]
    assert report["inputs_kept"].where.startswith("state=True: altered_s")


def test_eps_is_beneath_the_square_root():
    def by_length(q, k, v, beta):
        q, k = (x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12) for x in (q, k))
        return delta.forward(q, k, v, beta, normalise=False)[0]

    report = conform.check(by_length, "delta", only=("output", "short_rows"))
    assert report["output"].verdict == "passed"
    assert report["short_rows"].named == ("eps_missing_in_the_root",)


def test_eps_is_in_the_denominator():
    for ways in ((False, True), (True,)):  # without eps in all calls, or in causal ones

        def without(q, k, v, causal=False, ways=ways):
            return linear.forward(q, k, v, causal=causal, eps=0.0 if causal in ways else 1e-6)[0]

        report = conform.check(without, "linear", only=("output", "small_features"))
        assert report["output"].verdict == "passed"
        assert "eps_missing" in report["small_features"].named


def test_a_feature_map_as_it_is_written_loses_no_digits_that_are_asked_for():
    def as_written(q, k, v):
        phi_q, phi_k = (np.where(x > 0, x, np.expm1(x)) + x.dtype.type(1) for x in (q, k))
        weights = phi_q @ phi_k.mT
        return weights @ v / (weights.sum(axis=-1, keepdims=True) + q.dtype.type(1e-6))

    for dtype in ("float32", "float64"):
        conform.check(as_written, "linear", dtype=dtype).assert_ok()


def leaves_rows_unwritten(q, k, v):
    out = np.empty_like(v, shape=(*q.shape[:-1], v.shape[-1]))
    out[..., :16, :] = softmax.forward(q, k, v)[0][..., :16, :]
    out[..., 16:, :] = np.nan
    return out


def is_never_the_same(q, k, v, seen=[]):  # noqa: B006
    seen.append(1)
    return softmax.forward(q, k, v)[0] * (
        1 + len(seen) * np.finfo(q.dtype).eps / 2 * (np.arange(v.shape[-1]) == 0)
    ).astype(q.dtype)


def reads_at_its_own_strides(q, k, v):
    q, k, v = (np.lib.stride_tricks.as_strided(x, x.shape, np.empty(x.shape, x.dtype).strides) for x in (q, k, v))
    return softmax.forward(q, k, v)[0]


def derives_its_outer_strides(q, k, v):
    """Which are right of an array whose rows and heads follow one another, with a gap at most between its numbers."""

    def read(x):
        *_, heads, n, _ = x.shape
        row, column = x.strides[-2:]
        return np.lib.stride_tricks.as_strided(x, x.shape, (heads * n * row, n * row, row, column)).copy()

    return softmax.forward(read(q), read(k), read(v))[0]


def changes_its_inputs_if_not_causal(q, k, v, causal=False):
    out, _ = softmax.forward(q, k, v, causal=causal)
    q *= 1 if causal else 2
    return out


def alternates_if_not_causal(q, k, v, causal=False, seen=[]):  # noqa: B006
    seen.append(1)
    return softmax.forward(q, k, v, causal=causal)[0] * (1 + 2 * np.finfo(q.dtype).eps * (not causal and len(seen) % 2))


def has_128_rows(q, k, v, causal=False):
    out, _ = softmax.forward(q, k, v, causal=causal)
    out[..., 128:, :] = 0
    return out


def has_one_output(q, k, v, kept={}):  # noqa: B006
    """Each call writes where the last one of that shape did."""
    out, _ = softmax.forward(q, k, v)
    kept.setdefault(out.shape, out)[...] = out
    return kept[out.shape]


def remembers_the_last_call(kept=[]):  # noqa: B006
    def forward(q, k, v):
        out, saved = softmax.forward(q, k, v)
        kept[:] = [saved]
        return out, None

    return forward, lambda d_out, _: softmax.backward(d_out, kept[0])


def gradients_of_64_bits(d_out, saved):
    return tuple(x.astype(np.float64) for x in softmax.backward(d_out, saved))


def needs_even_widths(q, k, v):
    out = softmax.forward(q, k, v)[0]
    out[..., v.shape[-1] // 2 * 2 :] = 0
    return out


def sums_of_nothing(q, k, v, causal=False, key_mask=None):
    scores = softmax_scores(q, k, causal, key_mask)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True) @ v


def overflows(q, k, v):
    with np.errstate(over="ignore", invalid="ignore"):
        weights = np.exp(softmax_scores(q, k, False, None))
        return weights / weights.sum(axis=-1, keepdims=True) @ v


def softmax_scores(q, k, causal, key_mask):
    see = np.tri(q.shape[-2], k.shape[-2], k.shape[-2] - q.shape[-2], dtype=bool) if causal else True
    see = see if key_mask is None else see & key_mask[..., None, :]
    return np.where(see, q @ k.mT * k.dtype.type(k.shape[-1] ** -0.5), k.dtype.type(-np.inf))


@pytest.mark.parametrize(
    ("kernel", "check"),
    [
        (changes_its_inputs, "inputs_kept"),
        (changes_its_inputs_if_not_causal, "inputs_kept"),
        (alternates_if_not_causal, "same_twice"),
        (has_128_rows, "lengths"),
        (has_one_output, "calls_apart"),
        (remembers_the_last_call(), "calls_apart"),
        ((softmax.forward, gradients_of_64_bits), "output_dtype"),
        (leaves_rows_unwritten, "output"),
        (is_never_the_same, "same_twice"),
        (reads_at_its_own_strides, "strides"),
        (derives_its_outer_strides, "strides"),
        (needs_even_widths, "widths"),
        (sums_of_nothing, "sees_nothing"),
        (overflows, "large_scores"),
    ],
)
def test_what_is_no_wrong_formula(kernel, check):
    report = conform.check(kernel, "softmax", only=(check,))
    assert report[check].verdict == "FAILED"


def test_rows_that_are_not_written_have_no_other_denominator():
    assert conform.check(has_128_rows, "softmax", only=("lengths",))["lengths"].named == ()


def test_what_is_forgotten_late_is_no_coarser_product():
    def forgets_gate_64(q, k, v, beta, log_gate, key_mask=None):
        log_gate = log_gate.copy()
        log_gate[..., 64:65] = 0
        return delta.forward(q, k, v, beta, log_gate, key_mask=key_mask)[0]

    assert conform.check(forgets_gate_64, "gated_delta", only=("masked_is_absent",))["masked_is_absent"].named == ()


def test_what_comes_with_the_output_is_no_state_unless_one_is_taken():
    def with_a_denominator(q, k, v):
        out, _ = linear.forward(q, k, v)
        return out, {"denominator": out}

    conform.check(with_a_denominator, "linear", only=("output", "lengths")).assert_ok()


def mask_of_the_first(q, k, v, key_mask=None):
    """Every sequence gets the padding of the first."""
    mask = None if key_mask is None else np.broadcast_to(key_mask[:1], key_mask.shape)
    return softmax.forward(q, k, v, key_mask=mask)[0]


def mask_of_the_first_head(q, k, v, key_mask=None):
    mask = None if key_mask is None else np.broadcast_to(key_mask[:, :1], key_mask.shape)
    return softmax.forward(q, k, v, key_mask=mask)[0]


def mask_if_causal(q, k, v, causal=False, key_mask=None):
    return softmax.forward(q, k, v, causal=causal, key_mask=key_mask if causal else None)[0]


def groups_if_causal(q, k, v, causal=False, groups=1):
    """Without ``causal`` query head h reads key head h % K."""
    if causal or groups == 1:
        return softmax.forward(q, k, v, causal=causal, groups=groups)[0]
    return softmax.forward(q, *(np.tile(x, (1, groups, 1, 1)) for x in (k, v)))[0]


def scale_with_a_mask(q, k, v, key_mask=None, scale=None):
    """A scale is forgotten where there is a mask."""
    return softmax.forward(q, k, v, key_mask=key_mask, scale=scale if key_mask is None else None)[0]


def mask_is_overwritten(q, k, v, key_mask=None):
    out = softmax.forward(q, k, v, key_mask=None if key_mask is None else key_mask.copy())[0]
    if key_mask is not None:
        key_mask[...] = False
    return out


def offsets_are_overwritten(q, k, v, offsets=None):
    out = softmax.forward(q, k, v, offsets=None if offsets is None else offsets.copy())[0]
    if offsets is not None:
        offsets[...] = 0
    return out


def by_chunks(q, k, v, log_gate, *, state=None, key_mask=None, offsets=None, lost=""):
    """Chunks of 64 tokens, and ``lost`` after the first."""
    s = None if state is None else gated_linear.State(state)
    if offsets is not None:
        offsets = offsets if lost != "offsets" or q.shape[-2] <= 64 else [0, q.shape[-2]]
        return gated_linear.forward(q, k, v, log_gate, offsets=np.array(offsets))[0]
    outs = []
    for rows in [slice(i, i + 64) for i in range(0, q.shape[-2], 64)]:
        mask = None if key_mask is None or (lost == "mask" and rows.start) else key_mask[..., rows]
        gate = np.zeros_like(log_gate[..., rows]) if lost == "gates" and rows.start else log_gate[..., rows]
        out, saved = gated_linear.forward(
            *(x[..., rows, :] for x in (q, k, v)), gate, key_mask=mask, **({} if s is None else {"state": s})
        )
        outs.append(out)
        s = saved.state
        if lost == "state" and state is not None and rows.start == 0 < q.shape[-2] - 64:
            s = gated_linear.State(s.s - np.exp(log_gate[..., rows].sum(axis=-1))[..., None, None] * state)
    out = np.concatenate(outs, axis=-2)
    return out if state is None else (out, s.s)


@pytest.mark.parametrize(
    ("kernel", "check"),
    [
        (mask_of_the_first, "masked_is_absent"),
        (mask_of_the_first_head, "masked_is_absent"),
        (mask_if_causal, "masked_is_absent"),
        (groups_if_causal, "shared_is_repeated"),
        (scale_with_a_mask, "options_together"),
        (mask_is_overwritten, "inputs_kept"),
        (offsets_are_overwritten, "inputs_kept"),
    ],
)
def test_an_option_that_is_right_elsewhere(kernel, check):
    report = conform.check(kernel, "softmax", only=("output", check))
    assert [x.verdict for x in report.outcomes] == ["passed", "FAILED"]


@pytest.mark.parametrize(
    ("lost", "checks"),
    [
        ("state", ("from_a_state", "pieces")),
        ("mask", ("masked_is_absent",)),
        ("offsets", ("packed_is_separate",)),
        ("gates", ("gates", "resets")),
    ],
)
def test_what_is_lost_after_a_chunk(lost, checks):
    report = conform.check(named_chunks(lost), "gated_linear", only=checks)
    assert [x.verdict for x in report.outcomes] == ["FAILED"] * len(checks)
    conform.check(named_chunks(""), "gated_linear", only=checks).assert_ok()


def named_chunks(lost):
    if lost == "offsets":
        return lambda q, k, v, log_gate, offsets=None: by_chunks(q, k, v, log_gate, offsets=offsets, lost=lost)
    return lambda q, k, v, log_gate, state=None, key_mask=None: by_chunks(
        q, k, v, log_gate, state=state, key_mask=key_mask, lost=lost
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("eps", [1e-4, 1e-3, 0.2])
def test_another_denominator_is_not_taken_for_a_coarser_dtype(dtype, eps):
    def eps_in_the_denominator(q, k, v):
        scores = softmax_scores(q, k, False, None)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return weights / (weights.sum(axis=-1, keepdims=True) + q.dtype.type(eps)) @ v

    report = conform.check(eps_in_the_denominator, "softmax", dtype=dtype, only=("output",))
    assert report["output"].named == ("rows_off_by_a_factor",)


def test_a_future_that_is_seen():
    def stabilised_by_all(q, k, v, beta, log_gate):
        return delta.forward(q, k, v, beta, log_gate)[0] + k[..., -1:, :1] * np.float32(1e-3)

    report = conform.check(stabilised_by_all, "gated_delta", only=("causality",))
    assert report["causality"].verdict == "FAILED"


def test_a_check_of_what_must_not_matter_compares_a_kernel_with_itself():
    """A wrong kernel is not told that it sees the future, or what is masked, unless it does."""

    def warmer(q, k, v, causal=False, key_mask=None):
        return softmax.forward(q, k, v, causal=causal, key_mask=key_mask, scale=1.1 * q.shape[-1] ** -0.5)[0]

    report = conform.check(warmer, "softmax", only=("output", "causal", "masked_content"))
    assert [x.verdict for x in report.outcomes] == ["FAILED", "passed", "passed"]

    def sees_all(q, k, v, causal=False, key_mask=None):
        return softmax.forward(q, k, v)[0]

    report = conform.check(sees_all, "softmax", only=("causal", "masked_content"))
    assert [x.verdict for x in report.outcomes] == ["FAILED", "FAILED"]


def test_linear_attention_of_more_queries_than_keys():
    def as_many(q, k, v):
        n = min(q.shape[-2], k.shape[-2])
        out = np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
        out[..., :n, :] = linear.forward(q[..., :n, :], k, v)[0]
        return out

    report = conform.check(as_many, "linear", only=("output", "other_lengths"))
    assert [x.verdict for x in report.outcomes] == ["passed", "FAILED"]


@pytest.mark.parametrize("fixed", [{}, {"normalise": False}])
def test_normalising_what_is_not_to_be_normalised(fixed):
    def always(q, k, v, beta, normalise=True):
        return delta.forward(q, k, v, beta)[0]

    def as_asked(q, k, v, beta, normalise=not fixed):
        return delta.forward(q, k, v, beta, normalise=normalise)[0]

    for kernel, verdict in ((always, "FAILED"), (as_asked, "passed")):
        report = conform.check(kernel, "delta", mapping=conform.Mapping(fixed=fixed), only=("output", "normalise"))
        assert [x.verdict for x in report.outcomes] == ["passed", verdict]
    assert conform.check(delta, "gated_delta", only=("normalise",))["normalise"].verdict == "passed"


def test_a_gradient_at_zero():
    def forward(q, k, v):
        out, saved = softmax.forward(q, k, v)
        return out, (saved, v)

    def backward(d_out, saved):
        grads = softmax.backward(d_out, saved[0])
        with np.errstate(invalid="ignore"):
            return grads._replace(v=grads.v * (saved[1] / saved[1]))

    report = conform.check((forward, backward), "softmax", only=("gradients", "zeros"))
    assert [x.verdict for x in report.outcomes] == ["passed", "FAILED"]
    assert "v = 0: d_v" in report["zeros"].where


@pytest.mark.parametrize(
    "right",
    [
        lambda q, k, v: softmax.forward(q[..., ::-1], k[..., ::-1], v)[0],  # another order of sums
        lambda q, k, v: softmax.forward(q, k[..., ::-1, :], v[..., ::-1, :])[0],
        lambda q, k, v: np.concatenate(
            [softmax.forward(q[..., i : i + 7, :], k, v)[0] for i in range(0, q.shape[-2], 7)], -2
        ),
        lambda q, k, v: softmax.forward(*(x.astype(np.float64) for x in (q, k, v)))[0].astype(np.float32),
    ],
)
def test_no_false_alarm(right):
    conform.check(right, "softmax").assert_ok()
