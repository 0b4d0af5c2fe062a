"""The product of states that fade and correct themselves: rows, chunks and steps are the same, and so are gradients."""

import copy
import tracemalloc
from itertools import product

import numpy as np
import pytest

from linattn_ref.gradcheck import check_elementwise
from linattn_ref.kernels.reference import delta_product

C, M = 4, 3
SHAPES = {"a head": (), "a channel": (C,)}
LENGTHS = (1, 15, 16, 17, 37)  # around a chunk


def draw(n, gate="a channel", *, erases=True, begins=True, resets=True, leading=(2,)):
    """What ``forward`` takes, by name: ``erase`` and ``k`` in two directions, gates down to a hundredth and a reset."""
    rng = np.random.default_rng(0)
    q, k, e, v = (rng.standard_normal((*leading, n, width)) / 2 for width in (C, C, C, M))
    log_gate = None
    if gate is not None:
        log_gate = np.log(rng.uniform(0.01, 1, (*leading, n, *SHAPES[gate])))
        if resets:
            log_gate[:, n // 2] = -np.inf
    state = rng.standard_normal((*leading, C, M)) if begins else None
    return {"q": q, "k": k, "v": v, "erase": e if erases else None, "log_gate": log_gate, "state": state}


EACH = [
    dict(zip(("gate", "erases", "begins"), choice, strict=True))
    for choice in product((None, *SHAPES), (True, False), (True, False))
]


def assert_same(actual, expected, tolerance=1e-12):
    for x, y in zip(actual, expected, strict=True):
        assert (x is None) == (y is None)
        if y is not None:
            np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * max(1, abs(y).max()))


@pytest.mark.parametrize("options", EACH, ids=str)
def test_chunks_are_rows(options):
    """Sums of some hundred numbers of size 1, in another order."""
    for n in LENGTHS:
        inputs = draw(n, **options)
        out, s, u = by_row = delta_product.forward_by_row(**inputs)
        assert_same(delta_product.forward(**inputs), by_row)
        rng = np.random.default_rng(1)
        d_out, d_state = rng.standard_normal(out.shape), rng.standard_normal(s.shape) if options["begins"] else None
        expected = delta_product.backward_by_row(d_out, d_state, **inputs, u=u)
        assert_same(delta_product.backward(d_out, d_state, **inputs, u=u), expected)


@pytest.mark.parametrize("options", EACH, ids=str)
def test_steps_are_rows(options):
    inputs = draw(5, **options)
    expected, last, _ = delta_product.forward_by_row(**inputs)
    s = np.zeros((2, C, M)) if inputs["state"] is None else inputs.pop("state").copy()
    inputs.pop("state", None)
    for t in range(5):
        at_t = {name: x if x is None else x[:, t] for name, x in inputs.items()}
        np.testing.assert_allclose(delta_product.step(**at_t, s=s), expected[:, t], rtol=0, atol=1e-13)
    np.testing.assert_allclose(s, last, rtol=0, atol=1e-13)


@pytest.mark.parametrize("gate", SHAPES)
@pytest.mark.parametrize("form", ["", "_by_row"])
def test_every_gradient_of_output_and_state(gate, form):
    """``erase`` apart from ``k``, which no mechanism does; the state before and after among the rest."""
    forward, backward = (getattr(delta_product, f"{name}{form}") for name in ("forward", "backward"))
    inputs = draw(6, gate, resets=False, leading=())

    def both(q, k, v, erase, log_gate, state):
        out, s, u = forward(q, k, v, erase, log_gate, state)
        return np.concatenate([out, s]), (q, k, v, erase, log_gate, state, u)

    def gradients(d_both, saved):
        return backward(d_both[:6], d_both[6:], *saved)

    check_elementwise(both, gradients, *inputs.values(), rng=0).assert_ok()


@pytest.mark.parametrize("gate", SHAPES)
def test_the_gradient_of_the_gate_is_what_both_states_say(gate):
    """Equation (12), a running sum of products that are there, against (11), which needs ``S`` and ``A`` of a row."""
    inputs = draw(23, gate)
    out, s, u = delta_product.forward(**inputs)
    rng = np.random.default_rng(1)
    d_out, d_state = rng.standard_normal(out.shape), rng.standard_normal(s.shape)
    found = delta_product.backward(d_out, d_state, **inputs, u=u)[4]
    for i in range(23):
        s_before = inputs["state"] if i == 0 else delta_product.forward_by_row(**rows_of(inputs, slice(i)))[1]
        gates = np.exp(inputs["log_gate"][:, i]).reshape(2, -1, 1)
        faded = gates * s_before  # S~_i
        rest = {
            **rows_of(inputs, slice(i, None)),
            "log_gate": without_first_gate(inputs["log_gate"][:, i:]),
            "state": faded,
        }
        u_rest = delta_product.forward_by_row(**rest)[2]
        a = delta_product.backward_by_row(d_out[:, i:], d_state, **rest, u=u_rest)[5]  # A~_i
        expected = (a * faded).sum(axis=-1)  # (11)
        expected = expected if gate == "a channel" else expected.sum(axis=-1)
        np.testing.assert_allclose(found[:, i], expected, rtol=0, atol=1e-13 * abs(found).max())


def rows_of(inputs, where):
    return {name: x if name == "state" else x[:, where] for name, x in inputs.items()}


def without_first_gate(log_gate):
    log_gate = log_gate.copy()
    log_gate[:, 0] = 0
    return log_gate


def test_inputs_are_left_alone():
    inputs = draw(20)
    copies = copy.deepcopy(inputs)
    out, s, u = delta_product.forward(**inputs)
    d_out, d_state = np.ones_like(out), np.ones_like(s)
    delta_product.backward(d_out, d_state, **inputs, u=u)
    for name, x in inputs.items():
        np.testing.assert_array_equal(x, copies[name], err_msg=name)
    assert (d_out == 1).all()
    assert (d_state == 1).all()


def test_a_quotient_of_products_of_gates_would_not_do():
    """Eight gates of 1e-6 in a chunk: their product is 0 in float32, and a ratio of such products would be 0 / 0."""
    inputs = {name: None if x is None else x.astype(np.float32) for name, x in draw(48, None).items()}
    log_gate = np.log(np.full((2, 48), 1e-6, np.float32))
    log_gate[:, 1::2] = np.log1p(np.float32(-1e-6))  # between them gates next to 1
    inputs["log_gate"] = log_gate
    since_start = np.cumprod(np.exp(log_gate[:, :16]), axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        assert not np.isfinite(since_start[:, :, None] / since_start[:, None, :]).all()
    wide = {name: x.astype(np.float64) for name, x in inputs.items()}
    expected = delta_product.forward_by_row(**wide)
    found = delta_product.forward(**inputs)
    assert_same(found, expected, 1e-5)
    d_out, d_state = np.ones_like(found[0]), np.ones_like(found[1])
    expected = delta_product.backward_by_row(d_out.astype(float), d_state.astype(float), **wide, u=expected[2])
    assert_same(delta_product.backward(d_out, d_state, **inputs, u=found[2]), expected, 1e-5)


def test_a_later_row_moves_no_earlier_one():
    """In one chunk with a key and an ``erase`` a trillion times longer: a solver with pivots would lose the others."""
    inputs = draw(12, None)
    before, _, _ = delta_product.forward(**inputs)
    for name in ("k", "erase"):
        inputs[name][:, 8:] *= 1e12
    after, _, _ = delta_product.forward(**inputs)
    np.testing.assert_array_equal(after[:, :8], before[:, :8])


@pytest.mark.parametrize("gate", SHAPES)
def test_the_backward_pass_keeps_a_state_a_chunk(gate):
    """Beside its results, and a chunk's pairs."""
    beside = []
    for n in (128, 128, 1024):  # once for what Python keeps
        inputs = draw(n, gate, leading=(1,))
        out, s, u = delta_product.forward(**inputs)
        d_out, d_state = np.ones_like(out), np.ones_like(s)
        tracemalloc.start()
        try:
            results = delta_product.backward(d_out, d_state, **inputs, u=u)
            beside.append(tracemalloc.get_traced_memory()[1] - sum(x.nbytes for x in results))
        finally:
            tracemalloc.stop()
    assert beside[2] - beside[1] < (s.nbytes + 200) * (1024 - 128) // delta_product.CHUNK  # 200: a Python object
