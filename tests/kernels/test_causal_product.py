"""The reference causal product: Algorithm 1, chunks, gates, states, gradients, memory."""

import tracemalloc
from typing import NamedTuple

import numpy as np
import pytest

from linattn_ref.gradcheck import check_directions, check_elementwise
from linattn_ref.kernels.reference import causal_product

EPS32, EPS64 = np.finfo(np.float32).eps, np.finfo(np.float64).eps
CHUNK = causal_product.CHUNK
HARD_GATES = (0.0, 1e-30, 0.5, 1 - 1e-7, 1.0)
GATES = ("none", "random", "hard")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


class Inputs(NamedTuple):
    phi_q: np.ndarray  # (..., N, C)
    phi_k: np.ndarray  # (..., N, C)
    v: np.ndarray  # (..., N, M)
    gate: np.ndarray | None  # (..., N)
    weight: np.ndarray | None  # (..., N)
    state: np.ndarray | None  # (..., C, M)

    def rows(self, rows, state):
        """The same inputs, some rows only."""
        gate, weight = (None if x is None else x[..., rows] for x in (self.gate, self.weight))
        return Inputs(*(x[..., rows, :] for x in self[:3]), gate, weight, state)


def draw(rng, n, c, m, *, gates="random", plain=False, leading=(2,), dtype=np.float64):
    """``plain``: no weights and no state."""
    gate = {
        "none": None,
        "random": rng.uniform(0, 1, (*leading, n)),
        "hard": rng.choice(HARD_GATES, (*leading, n)),
    }[gates]
    inputs = Inputs(
        rng.standard_normal((*leading, n, c)),
        rng.standard_normal((*leading, n, c)),
        rng.standard_normal((*leading, n, m)),
        gate,
        None if plain else rng.uniform(0.1, 2, (*leading, n)),
        None if plain else rng.standard_normal((*leading, c, m)),
    )
    return Inputs(*(None if x is None else x.astype(dtype) for x in inputs))


def definition(phi_q, phi_k, v, gate, weight, state):
    """Equations (1) and (2), one row and one state after the other."""
    n = v.shape[-2]
    gate = np.ones(v.shape[:-1]) if gate is None else gate
    weight = np.ones(v.shape[:-1]) if weight is None else weight
    s = np.zeros((*v.shape[:-2], phi_k.shape[-1], v.shape[-1])) if state is None else state
    out = np.empty(v.shape)
    for i in range(n):
        s = gate[..., i, None, None] * s + weight[..., i, None, None] * (phi_k[..., i, :, None] * v[..., i, None, :])
        out[..., i, :] = (phi_q[..., i, :, None] * s).sum(axis=-2)
    return out, s


def size(*inputs):
    """The same sums of absolute values: what rounding errors are relative to."""
    return definition(*(None if x is None else abs(x.astype(np.float64)) for x in inputs))


def assert_rounding(actual, expected, magnitude, operations):
    """Off by no more than the rounding of so many operations on numbers of this magnitude."""
    eps = np.finfo(actual.dtype).eps
    assert (abs(actual - expected) <= operations * eps * magnitude).all()


SIZES = [(1, 1, 1), (CHUNK - 1, 3, 5), (CHUNK, 5, 3), (CHUNK + 1, 4, 4), (2 * CHUNK + 3, 2, 7), (211, 70, 66)]
sizes = pytest.mark.parametrize(("n", "c", "m"), SIZES)


@sizes
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("plain", [False, True])
def test_forward_is_its_definition(n, c, m, gates, plain, rng):
    inputs = draw(rng, n, c, m, gates=gates, plain=plain)
    out, state = causal_product.forward(*inputs)
    expected_out, expected_state = definition(*inputs)
    size_out, size_state = size(*inputs)
    assert_rounding(out, expected_out, size_out, n + c)
    assert_rounding(state, expected_state, size_state, n)


@sizes
def test_algorithm_1_and_chunks_agree(n, c, m, rng):
    phi_q, phi_k, v, _, _, state = draw(rng, n, c, m)
    d_out, d_state = rng.standard_normal(v.shape), rng.standard_normal(state.shape)
    chunks = causal_product.forward(phi_q, phi_k, v, None, None, state)
    rows = causal_product.forward_by_row(phi_q, phi_k, v, state)
    for x, y in zip(chunks, rows, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=EPS64 * (n + c) * 20 * c)  # products of normal numbers, c a sum
    d_phi_q, d_phi_k, d_v, d_gate, d_weight, d_start = causal_product.backward(
        d_out, d_state, phi_q, phi_k, v, None, None, state
    )
    assert d_gate is None
    assert d_weight is None
    by_row = causal_product.backward_by_row(d_out, d_state, phi_q, phi_k, v, state)
    for x, y in zip((d_phi_q, d_phi_k, d_v, d_start), by_row, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=EPS64 * (n + c + m) * 20 * (c + m))


# --- Gradients ------------------------------------------------------------------------------------------------------


class Gradients(NamedTuple):
    phi_q: np.ndarray
    phi_k: np.ndarray
    v: np.ndarray
    gate: np.ndarray | None
    weight: np.ndarray | None
    state: np.ndarray


def forward_flat(phi_q, phi_k, v, gate, weight, state):
    """Output and final state in one array, so that the gradient of both is checked."""
    out, last = causal_product.forward(phi_q, phi_k, v, gate, weight, state)
    flat = np.concatenate([out.reshape(-1), last.reshape(-1)])
    return flat, ((phi_q, phi_k, v, gate, weight, state), out.shape, last.shape)


def backward_flat(d_flat, saved):
    inputs, out_shape, state_shape = saved
    end = np.prod(out_shape)
    d_out, d_state = d_flat[:end].reshape(out_shape), d_flat[end:].reshape(state_shape)
    return Gradients(*causal_product.backward(d_out, d_state, *inputs))


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize(("n", "c", "m"), [(7, 2, 3), (6, 3, 2), (1, 1, 1)])
def test_gradients_entry_by_entry(n, c, m, gates, rng):
    """Also at gates of 0, 1e-30, 1 - 1e-7 and 1: the product is linear in each gate, a difference finds the slope."""
    check_elementwise(forward_flat, backward_flat, *draw(rng, n, c, m, gates=gates), rng=rng).assert_ok()


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize(("n", "c", "m"), [(2 * CHUNK, 4, 6), (3 * CHUNK + 5, 6, 4), (150, 66, 70), (150, 70, 66)])
def test_gradients_over_many_chunks(n, c, m, gates, rng):
    """The last two have chunks longer than ``CHUNK``, so that a state fits into unwritten rows: of d_v, of d_phi_k."""
    check_directions(forward_flat, backward_flat, *draw(rng, n, c, m, gates=gates), rng=rng).assert_ok()


def test_gradient_without_a_gradient_of_the_last_state(rng):
    inputs = draw(rng, 2 * CHUNK + 3, 3, 4)
    d_out = rng.standard_normal(inputs.v.shape)
    without = causal_product.backward(d_out, None, *inputs)
    with_zero = causal_product.backward(d_out, np.zeros_like(inputs.state), *inputs)
    for x, y in zip(without, with_zero, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("cut", [1, 50, CHUNK, 149])
def test_two_pieces_are_the_whole(gates, cut, rng):
    """Forward and backward through the state: that is what truncation cuts and what several machines exchange."""
    inputs = draw(rng, 150, 4, 3, gates=gates)
    d_out, d_state = rng.standard_normal(inputs.v.shape), rng.standard_normal(inputs.state.shape)
    out, last = causal_product.forward(*inputs)
    whole = causal_product.backward(d_out, d_state, *inputs)

    first = inputs.rows(slice(0, cut), inputs.state)
    out_a, middle = causal_product.forward(*first)
    second = inputs.rows(slice(cut, None), middle)
    out_b, end = causal_product.forward(*second)
    *parts_b, d_middle = causal_product.backward(d_out[..., cut:, :], d_state, *second)
    *parts_a, d_start = causal_product.backward(d_out[..., :cut, :], d_middle, *first)

    tolerance = {"rtol": 0, "atol": 1e3 * EPS64 * size(*inputs)[0].max()}  # sums of 150 numbers no larger than that
    np.testing.assert_allclose(np.concatenate([out_a, out_b], axis=-2), out, **tolerance)
    np.testing.assert_allclose(end, last, **tolerance)
    np.testing.assert_allclose(d_start, whole[-1], **tolerance)
    for a, b, expected in zip(parts_a, parts_b, whole[:-1], strict=True):
        if expected is not None:
            axis = -2 if expected.ndim == 3 else -1
            np.testing.assert_allclose(np.concatenate([a, b], axis=axis), expected, **tolerance)


# --- Numbers that float32 makes difficult ---------------------------------------------------------------------------


@pytest.mark.parametrize("gates", GATES)
def test_float32_stays_float32_and_close(gates, rng):
    inputs = draw(rng, 300, 5, 4, gates=gates, dtype=np.float32)
    exact = [None if x is None else x.astype(np.float64) for x in inputs]
    d_out = rng.standard_normal(inputs.v.shape).astype(np.float32)
    out, state = causal_product.forward(*inputs)
    size_out, size_state = size(*inputs)
    expected_out, expected_state = definition(*exact)
    assert out.dtype == state.dtype == np.float32
    assert_rounding(out, expected_out, size_out, 300)
    assert_rounding(state, expected_state, size_state, 300)

    gradients = causal_product.backward(d_out, None, *inputs)
    expected = causal_product.backward(d_out.astype(np.float64), None, *exact)
    sizes = causal_product.backward(
        abs(d_out).astype(np.float64), None, *(None if x is None else abs(x) for x in exact)
    )
    for x, y, magnitude in zip(gradients, expected, sizes, strict=True):
        if y is not None:
            assert x.dtype == np.float32
            assert_rounding(x, y, magnitude, 300)


def test_a_gate_of_zero_forgets_exactly(rng):
    """What came before a gate of 0 has no influence and no gradient; the gate itself has one, never divided by it."""
    inputs = draw(rng, 100, 3, 4, plain=True)
    inputs.gate[:, 70] = 0
    d_out = rng.standard_normal(inputs.v.shape)
    d_out[:, :70] = 0  # only rows from 70 on are asked for
    d_phi_q, d_phi_k, d_v, d_gate, _, d_state = causal_product.backward(d_out, None, *inputs)
    for x in (d_phi_q, d_phi_k, d_v):
        assert not x[:, :70].any()
        assert x[:, 70:].any()
    assert not d_gate[:, :70].any()
    assert (d_gate[:, 70] != 0).all()
    assert not d_state.any()


def test_large_rows_of_the_future_change_nothing(rng):
    inputs = draw(rng, 40, 3, 4, gates="none", plain=True, dtype=np.float32)
    out, _ = causal_product.forward(*inputs)
    for x in inputs[:3]:
        x[:, 30:] *= 1e12
    changed, _ = causal_product.forward(*inputs)
    np.testing.assert_array_equal(changed[:, :30], out[:, :30])


# --- Memory, buffers ------------------------------------------------------------------------------------------------


def bytes_beyond_inputs_and_outputs(n, c, m, gates, rng):
    """The peak of forward and of backward, less what they return."""
    inputs = draw(rng, n, c, m, gates=gates, plain=True, leading=(1,))
    d_out = rng.standard_normal(inputs.v.shape)
    peaks = []
    for call in (
        lambda: causal_product.forward(*inputs),
        lambda: causal_product.backward(d_out, None, *inputs),
    ):
        call()
        tracemalloc.start()
        returned = call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        peaks.append(peak - sum(x.nbytes for x in returned if x is not None))
    return peaks


@pytest.mark.parametrize("gates", ["none", "random"])
@pytest.mark.parametrize(("c", "m"), [(64, 64), (96, 32), (32, 96)])
def test_memory_beyond_inputs_and_outputs_does_not_grow_with_length(c, m, gates, rng):
    short = bytes_beyond_inputs_and_outputs(1024, c, m, gates, rng)
    long = bytes_beyond_inputs_and_outputs(4096, c, m, gates, rng)
    state, chunk = 8 * c * m, 8 * CHUNK * max(c, m, CHUNK)
    for at_1024, at_4096 in zip(short, long, strict=True):
        assert at_4096 - at_1024 < state  # one state; a state every chunk would be 48 more of them
        assert at_4096 < 4 * state + 12 * chunk  # some states, and a dozen blocks of a chunk


def test_all_of_every_output_is_written_and_no_input(monkeypatch, rng):
    inputs = draw(rng, 2 * CHUNK + 3, 4, 5)
    copies = [x.copy() for x in inputs]
    d_out, d_state = rng.standard_normal(inputs.v.shape), rng.standard_normal(inputs.state.shape)
    copies += [d_out.copy(), d_state.copy()]
    monkeypatch.setattr(np, "empty", lambda shape, dtype: np.full(shape, np.nan, dtype))
    for x in (
        *causal_product.forward(*inputs),
        *causal_product.backward(d_out, d_state, *inputs),
        *causal_product.forward_by_row(*inputs[:3], inputs.state),
        *causal_product.backward_by_row(d_out, d_state, *inputs[:3], inputs.state),
    ):
        assert not np.isnan(x).any()
    for x, copy in zip((*inputs, d_out, d_state), copies, strict=True):
        np.testing.assert_array_equal(x, copy)


def test_any_strides(rng):
    inputs = draw(rng, 70, 3, 4, leading=(2, 3))
    d_out = rng.standard_normal(inputs.v.shape)
    strided = [np.moveaxis(np.moveaxis(x, 0, -1).copy(), -1, 0) for x in inputs]
    assert not any(x.flags.c_contiguous for x in strided)
    for x, y in zip(
        (*causal_product.forward(*strided), *causal_product.backward(d_out, None, *strided)),
        (*causal_product.forward(*inputs), *causal_product.backward(d_out, None, *inputs)),
        strict=True,
    ):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)  # another layout, another order of summation


# --- With the denominator -------------------------------------------------------------------------------------------


class NormalisedGradients(NamedTuple):
    phi_q: np.ndarray
    phi_k: np.ndarray
    v: np.ndarray
    gate: np.ndarray | None
    weight: np.ndarray | None
    s: np.ndarray
    z: np.ndarray


def normalised_flat(phi_q, phi_k, v, gate, weight, s, z):
    out, denominator, last_s, last_z = causal_product.normalised_forward(phi_q, phi_k, v, gate, weight, s, z, 0.1)
    flat = np.concatenate([x.reshape(-1) for x in (out, last_s, last_z)])
    return flat, ((phi_q, phi_k, v, gate, weight, s, z, out, denominator), last_s.shape, last_z.shape)


def normalised_backward_flat(d_flat, saved):
    inputs, s_shape, z_shape = saved
    ends = np.cumsum([np.prod(inputs[2].shape), np.prod(s_shape)])
    d_out, d_s, d_z = (
        x.reshape(shape) for x, shape in zip(np.split(d_flat, ends), (inputs[2].shape, s_shape, z_shape), strict=True)
    )
    return NormalisedGradients(*causal_product.normalised_backward(d_out, d_s, d_z, *inputs))


def draw_normalised(rng, n, c, m, gates):
    """Positive features: a denominator far from 0."""
    phi_q, phi_k, v, gate, weight, s = draw(rng, n, c, m, gates=gates)
    return abs(phi_q), abs(phi_k), v, gate, weight, s, rng.uniform(0.5, 1, s.shape[:-1])


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("n", [1, 6, CHUNK + 6])
def test_normalised_is_numerator_over_denominator(n, gates, rng):
    phi_q, phi_k, v, gate, weight, s, z = draw_normalised(rng, n, 3, 4, gates)
    out, denominator, last_s, last_z = causal_product.normalised_forward(phi_q, phi_k, v, gate, weight, s, z, 0.1)
    numerator, expected_s = definition(phi_q, phi_k, v, gate, weight, s)
    ones, expected_z = definition(phi_q, phi_k, np.ones_like(v[..., :1]), gate, weight, z[..., None])
    np.testing.assert_allclose(denominator, ones[..., 0] + 0.1, rtol=n * 4 * EPS64)
    np.testing.assert_allclose(out, numerator / (ones + 0.1), rtol=0, atol=n * 100 * EPS64)
    np.testing.assert_allclose(last_s, expected_s, rtol=0, atol=n * 100 * EPS64)
    np.testing.assert_allclose(last_z, expected_z[..., 0], rtol=n * 4 * EPS64)


@pytest.mark.parametrize("gates", GATES)
def test_normalised_gradients(gates, rng):
    small, large = draw_normalised(rng, 6, 2, 3, gates), draw_normalised(rng, 2 * CHUNK + 5, 4, 3, gates)
    check_elementwise(normalised_flat, normalised_backward_flat, *small, rng=rng).assert_ok()
    check_directions(normalised_flat, normalised_backward_flat, *large, rng=rng).assert_ok()


def test_a_query_that_has_seen_nothing_is_zero_and_passes_no_gradient(rng):
    phi_q, phi_k, v, _, _, _, _ = draw_normalised(rng, 8, 2, 3, "none")
    phi_k[:, :5] = 0
    out, denominator, _, _ = causal_product.normalised_forward(phi_q, phi_k, v, None, None, None, None, 0.0)
    assert not out[:, :5].any()
    assert not denominator[:, :5].any()
    assert out[:, 5:].all()
    d_phi_q, d_phi_k, d_v, *_ = causal_product.normalised_backward(
        np.ones_like(out), None, None, phi_q, phi_k, v, None, None, None, None, out, denominator
    )
    assert not d_phi_q[:, :5].any()
    assert not d_v[:, :5].any()
    assert np.isfinite(d_phi_k).all()


def test_step_by_step(rng):
    phi_q, phi_k, v, _, _, s, z = draw_normalised(rng, 10, 3, 4, "none")
    out, _, last_s, last_z = causal_product.normalised_forward(phi_q, phi_k, v, None, None, s, z, 1e-6)
    state_s, state_z = s.copy(), z.copy()
    for i in range(10):
        out_i = causal_product.step(phi_q[:, i], phi_k[:, i], v[:, i], state_s, state_z, 1e-6)
        np.testing.assert_allclose(out_i, out[:, i], rtol=0, atol=1e-13)  # some 30 roundings of numbers below 10
    np.testing.assert_allclose(state_s, last_s, rtol=0, atol=1e-13)
    np.testing.assert_allclose(state_z, last_z, rtol=0, atol=1e-13)
