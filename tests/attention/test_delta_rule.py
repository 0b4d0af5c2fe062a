"""The delta rule by rows and by chunks: the same numbers, masked tokens as if they were absent, every gradient."""

import copy
from itertools import product

import numpy as np
import pytest

from linattn_ref.attention import chunked_delta, delta_rule
from linattn_ref.attention.delta_rule import State
from linattn_ref.gradcheck import check_elementwise

C, M = 4, 3
SHAPES = {"a head": (), "a channel": (C,)}
LENGTHS = (1, chunked_delta.T - 1, chunked_delta.T, chunked_delta.T + 1, 37)
PAGES = pytest.mark.parametrize("page", [delta_rule, chunked_delta], ids=["rows", "chunks"])
EACH = [
    dict(zip(("gate", "erases", "begins"), choice, strict=True))
    for choice in product((None, *SHAPES), (True, False), (True, False))
]


def draw(n, gate="a channel", *, erases=True, begins=True, resets=True, leading=(2,)):
    """What ``forward`` takes, by name: ``erase`` and ``k`` in two directions, gates down to a hundredth and a reset."""
    rng = np.random.default_rng(0)
    q, k, e, v = (rng.standard_normal((*leading, n, width)) / 2 for width in (C, C, C, M))
    log_gate = None
    if gate is not None:
        log_gate = np.log(rng.uniform(0.01, 1, (*leading, n, *SHAPES[gate])))
        if resets:
            log_gate[:, n // 2] = -np.inf
    state = State(rng.standard_normal((*leading, C, M))) if begins else None
    return {"q": q, "k": k, "v": v, "erase": e if erases else None, "log_gate": log_gate, "state": state}


def run(page, inputs, d_out=None, **options):
    """All results by name; where there is a state, one went on from the last."""
    out, saved = page.forward(**inputs, **options)
    rng = np.random.default_rng(1)
    d_state = State(rng.standard_normal(saved.state.s.shape)) if inputs["state"] is not None else None
    d_out = rng.standard_normal(out.shape) if d_out is None else d_out
    gradients = page.backward(d_out, saved, d_state=d_state)._asdict()
    return {"out": out, "after": saved.state, "u": saved.u, **{f"d_{name}": x for name, x in gradients.items()}}


def assert_same(actual, expected, tolerance=1e-12):
    for name, y in expected.items():
        x = actual[name]
        assert (x is None) == (y is None), name
        if y is not None:
            x, y = np.asarray(getattr(x, "s", x)), np.asarray(getattr(y, "s", y))
            np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * max(1, abs(y).max()), err_msg=name)


@pytest.mark.parametrize("options", EACH, ids=str)
def test_chunks_are_rows(options):
    """Sums of some hundred numbers of size 1, in another order."""
    for n in LENGTHS:
        inputs = draw(n, **options)
        assert_same(run(chunked_delta, inputs), run(delta_rule, inputs))


@pytest.mark.parametrize("options", EACH, ids=str)
def test_steps_are_rows(options):
    inputs = draw(5, **options)
    expected, saved = delta_rule.forward(**inputs)
    state = inputs.pop("state") or delta_rule.init_state((2,), C, M)
    for t in range(5):
        q, k, v, erase, log_gate = (None if x is None else x[:, t] for x in inputs.values())
        out, state = delta_rule.step(q, k, v, state, erase, log_gate)
        np.testing.assert_allclose(out, expected[:, t], rtol=0, atol=1e-13)
    np.testing.assert_allclose(state.s, saved.state.s, rtol=0, atol=1e-13)


@PAGES
@pytest.mark.parametrize("options", EACH, ids=str)
def test_a_masked_token_is_as_if_it_were_absent(page, options):
    """In front, in the middle and at the end; its gradients are 0."""
    inputs, kept = draw(21, **options), np.ones(21, bool)
    kept[[0, 1, 7, 18, 20]] = False
    d_out = np.random.default_rng(2).standard_normal((2, 21, M))
    masked = run(page, inputs, d_out * kept[:, None], key_mask=np.broadcast_to(kept, (2, 21)))
    fewer = {name: x if x is None or name == "state" else x[:, kept] for name, x in inputs.items()}
    for name, x in masked.items():
        if isinstance(x, np.ndarray):
            if name in ("d_k", "d_v", "d_erase", "d_log_gate"):
                assert not x[:, ~kept].any(), name
            masked[name] = x[:, kept]
    assert_same(masked, run(page, fewer, d_out[:, kept]))


@PAGES
@pytest.mark.parametrize("gate", SHAPES)
def test_every_gradient_of_output_and_state(gate, page):
    """``erase`` apart from ``k``, which no mechanism does; the state before and after among the rest."""
    inputs = draw(6, gate, resets=False, leading=())

    def both(q, k, v, erase, log_gate, s):
        out, saved = page.forward(q, k, v, erase, log_gate, state=State(s))
        return np.concatenate([out, saved.state.s]), saved

    def gradients(d_both, saved):
        *d_inputs, d_first = page.backward(d_both[:6], saved, d_state=State(d_both[6:]))
        return *d_inputs, d_first.s

    check_elementwise(both, gradients, *list(inputs.values())[:5], inputs["state"].s, rng=0).assert_ok()


@pytest.mark.parametrize("options", EACH, ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_nan_reaches_the_same_rows(options):
    """In the first chunk, at its end, and in the last one."""
    inputs = draw(37, **options, resets=False)
    for name, t in product(("q", "k", "v", "erase", "d_out"), (4, 15, 33)):
        if name == "d_out" or inputs[name] is not None:
            spoiled = {**inputs, "d_out": np.ones((2, 37, M))}
            spoiled[name] = spoiled[name].copy()
            spoiled[name][0, t] = np.nan
            d_out = spoiled.pop("d_out")
            rows, chunks = (run(page, spoiled, d_out) for page in (delta_rule, chunked_delta))
            for result, x in rows.items():
                if isinstance(x, np.ndarray):
                    np.testing.assert_array_equal(np.isnan(chunks[result]), np.isnan(x), f"{result}, NaN in {name} {t}")


@PAGES
def test_inputs_are_left_alone(page):
    inputs = draw(20)
    kept = copy.deepcopy(inputs)
    run(page, inputs)
    for name, x in inputs.items():
        np.testing.assert_array_equal(x, kept[name], err_msg=name)


def test_a_quotient_of_products_of_gates_would_not_do():
    """Eight gates of 1e-6 in a chunk: their product is 0 in float32, and a ratio of such products would be 0 / 0."""
    inputs = draw(48, None, begins=False)
    log_gate = np.log(np.full((2, 48), 1e-6))
    log_gate[:, 1::2] = np.log1p(-1e-6)  # between them gates next to 1
    single = {name: None if x is None else x.astype(np.float32) for name, x in {**inputs, "log_gate": log_gate}.items()}
    since_start = np.cumprod(np.exp(single["log_gate"][:, :16]), axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        assert not np.isfinite(since_start[:, :, None] / since_start[:, None, :]).all()
    wide = {name: None if x is None else x.astype(np.float64) for name, x in single.items()}
    d_out = np.ones((2, 48, M))
    assert_same(run(chunked_delta, single, d_out.astype(np.float32)), run(delta_rule, wide, d_out), 1e-5)


def test_a_later_row_moves_no_earlier_one():
    """In one chunk with a key and an ``erase`` a trillion times longer: a solver with pivots would lose the others."""
    inputs = draw(12, None)
    before, _ = chunked_delta.forward(**inputs)
    for name in ("k", "erase"):
        inputs[name][:, 8:] *= 1e12
    after, _ = chunked_delta.forward(**inputs)
    np.testing.assert_array_equal(after[:, :8], before[:, :8])
