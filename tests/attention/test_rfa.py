"""Random feature attention beyond the contract: its kernels, lengths that do not matter, the gate and how it learns."""

import itertools
import math
from functools import partial

import numpy as np
import pytest

from linattn_ref.attention import linear, rfa, softmax
from linattn_ref.attention.feature_maps import gaussian, orthogonal_gaussian, rfa_arccos, rfa_gaussian
from linattn_ref.attention.parts import gate as learned_gate
from linattn_ref.gradcheck import check_directions, check_elementwise
from linattn_ref.kernels import jit, reference

ROOMS = pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
KINDS = pytest.mark.parametrize("kind", ["gaussian", "arccos"])
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-13)  # some hundred roundings of numbers of size 1


def draw(n, d=4, m=3, features=40, leading=(), seed=0):
    """Queries, keys, values, directions and gates; so many directions that no denominator is near 0."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((*leading, n, width)) for width in (d, d, m))
    return q, k, v, gaussian(features, d, rng), rng.uniform(0.1, 0.99, (*leading, n))


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


# --- The features ---------------------------------------------------------------------------------------------------


def test_gaussian_features_estimate_softmax_of_unit_vectors():
    """The factor 1/e between the kernels cancels in the ratio."""
    q, k, v, _, _ = draw(30)
    omega = orthogonal_gaussian(20_000, 4, np.random.default_rng(1))
    truth = softmax.forward(unit(q), unit(k), v, scale=1.0)[0]
    # The standard error of a similarity, from cosines: below 1 / sqrt(2 * 20000) = 0.005, and similarities are of
    # size 0.4; averaged over 30 keys, five of them leave 0.02
    np.testing.assert_allclose(rfa.forward(q, k, v, omega, eps=0.0)[0], truth, atol=0.02)


def test_arccos_features_estimate_the_arc_cosine_kernel():
    q, k, _, _, _ = draw(30)
    phi = rfa_arccos(gaussian(100_000, 4, np.random.default_rng(1)))
    angle = np.arccos(np.clip((unit(q) * unit(k)).sum(axis=-1), -1, 1))
    kernel = (np.sin(angle) + (math.pi - angle) * np.cos(angle)) / (2 * math.pi)
    estimate = (phi.forward(q)[0] * phi.forward(k)[0]).sum(axis=-1)
    np.testing.assert_allclose(estimate, kernel, atol=5 * 1.3 / math.sqrt(100_000))  # 5 standard errors: sd below 1.3


@KINDS
def test_lengths_do_not_matter(kind):
    """Neither to the output nor along the gradient, which is 0 in the direction of the vector itself."""
    q, k, v, omega, gate = draw(12)
    out, saved = rfa.forward(q, k, v, omega, gate, kind=kind, causal=True)
    longer = rfa.forward(1e100 * q, 1e-100 * k, v, omega, gate, kind=kind, causal=True)[0]
    same(longer, out)
    grads = rfa.backward(np.ones_like(out), saved)
    for x, d_x in ((q, grads.q), (k, grads.k)):
        assert abs(d_x).max() > 1e-3
        np.testing.assert_allclose((x * d_x).sum(axis=-1), 0, atol=1e-12)


@ROOMS
@KINDS
@pytest.mark.parametrize("gated", [False, True])
def test_a_zero_vector_stays_zero_and_has_gradient_zero(kind, kernels, gated):
    q, k, v, omega, gate = draw(8)
    q[3], k[2], k[3] = 0, 0, 0
    out, saved = rfa.forward(q, k, v, omega, gate if gated else None, kind=kind, causal=True, kernels=kernels)
    grads = rfa.backward(np.ones_like(out), saved)
    assert np.isfinite(out).all()
    assert not grads.q[3].any()
    assert not grads.k[[2, 3]].any()
    assert grads.q[4].any()
    if kind == "arccos":  # phi(0) = 0: such a query is like nothing, such a key adds nothing
        assert not out[3].any()
    else:  # phi(0) = (0, 1) / sqrt(m): cos(0) = 1
        assert out[3].all()


def test_without_a_gate_it_is_linear_attention():
    q, k, v, omega, _ = draw(9)
    for options in ({}, {"causal": True}):
        out, saved = rfa.forward(q, k, v, omega, **options)
        expected, expected_saved = linear.forward(q, k, v, feature_map=rfa_gaussian(omega), **options)
        np.testing.assert_array_equal(out, expected)
        for ours, theirs in zip(
            rfa.backward(np.ones_like(out), saved), linear.backward(np.ones_like(out), expected_saved), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)


# --- The gate -------------------------------------------------------------------------------------------------------


def test_recency_by_its_definition():
    gate = np.random.default_rng(0).uniform(0, 1, (2, 7))
    r = rfa.recency(gate)
    for b, t, j in itertools.product(range(2), range(7), range(7)):
        expected = (1 - gate[b, j]) * math.prod(gate[b, j + 1 : t + 1]) if j <= t else 0
        assert r[b, t, j] == pytest.approx(expected, rel=1e-14, abs=0)
    same(r.sum(axis=-1), 1 - np.cumprod(gate, axis=-1))  # what is missing to 1 is the share of the state before


def test_one_gate_for_all_is_exponential_decay():
    n, g = 60, 0.9
    distance = np.subtract.outer(np.arange(n), np.arange(n))
    same(rfa.recency(np.full(n, g)), np.where(distance >= 0, (1 - g) * g ** np.maximum(distance, 0.0), 0))


@ROOMS
@KINDS
@pytest.mark.parametrize("masked", [False, True])
def test_gated_output_is_matrix_times_values(kind, kernels, masked):
    q, k, v, omega, gate = draw(150, leading=(2,))
    key_mask = np.random.default_rng(2).random((2, 150)) < 0.6 if masked else None
    options = {"kind": kind, "causal": True, "key_mask": key_mask}
    matrix = rfa.matrix(q, k, omega, gate, **options)
    out, _ = rfa.forward(q, k, v, omega, gate, kernels=kernels, **options)
    np.testing.assert_allclose(out, matrix @ v, atol=1e-12)
    assert not matrix[:, *np.triu_indices(150, 1)].any()


def test_a_masked_key_leaves_the_state_as_it_is():
    q, k, v, omega, gate = draw(6)
    key_mask = np.array([True, True, False, False, True, True])
    matrix = rfa.matrix(q, k, omega, gate, causal=True, key_mask=key_mask, eps=0.0)
    similarity = rfa_gaussian(omega).forward(q)[0] @ rfa_gaussian(omega).forward(k)[0].T
    ratio = matrix[5, 1] / matrix[5, 4] * similarity[5, 4] / similarity[5, 1]
    assert ratio == pytest.approx((1 - gate[1]) * gate[4] / (1 - gate[4]))
    out, saved = rfa.forward(q, k, v, omega, gate, causal=True, key_mask=key_mask)
    grads = rfa.backward(np.ones_like(out), saved)
    assert not grads.gate[[2, 3]].any()


@ROOMS
@KINDS
def test_gradients_of_both_kinds(kind, kernels):
    """Elementwise, at a point where no product with a direction is within a step of the kink of (2)."""
    q, k, v, omega, gate = draw(4, leading=(2,), seed=3)
    for x in (unit(q), unit(k)):
        assert abs(x @ omega.T).min() > 1e-4
    for gates, options in (((), {}), ((), {"causal": True}), ((gate,), {"causal": True})):
        forward = partial(rfa.forward, kind=kind, kernels=kernels, **options)
        check_elementwise(forward, rfa.backward, q, k, v, omega, *gates, rng=np.random.default_rng(0)).assert_ok()


@ROOMS
def test_gradient_through_a_state_between_two_blocks(kernels):
    """Handed back, it makes of the blocks' gradients those of the whole."""
    q, k, v, omega, gate = draw(90, leading=(2,))
    forward = partial(rfa.forward, causal=True, kernels=kernels)
    out, saved = forward(q, k, v, omega, gate)
    d_out = np.random.default_rng(1).standard_normal(out.shape)
    whole = rfa.backward(d_out, saved)
    first, last = slice(0, 37), slice(37, 90)
    _, saved_a = forward(q[:, first], k[:, first], v[:, first], omega, gate[:, first])
    state = saved_a.state
    out_b, saved_b = forward(q[:, last], k[:, last], v[:, last], omega, gate[:, last], state=state)
    same(out_b, out[:, last])
    grads_b = rfa.backward(d_out[:, last], saved_b)
    grads_a = rfa.backward(d_out[:, first], saved_a, d_state=grads_b.state)
    for name in ("q", "k", "v", "gate"):
        both = np.concatenate([getattr(grads_a, name), getattr(grads_b, name)], axis=1)
        np.testing.assert_allclose(both, getattr(whole, name), atol=1e-12)


def test_gates_near_both_ends_in_float32():
    q, k, v, omega, _ = (x.astype(np.float32) for x in draw(200))
    ends = np.finfo(np.float32)
    for g in (ends.tiny, 1e-20, 1e-6, 1 - 1e-6, 1 - ends.epsneg):
        gate = np.full(200, g, np.float32)
        out, saved = rfa.forward(q, k, v, omega, gate, causal=True, eps=0.0)
        grads = rfa.backward(np.ones_like(out), saved)
        for x in (out, *grads[:4]):
            assert x.dtype == np.float32
            assert np.isfinite(x).all()
    # gates of almost 1: no decay, all weights equally small, which cancels; as without a gate
    plain = rfa.forward(q, k, v, omega, causal=True, eps=0.0)[0]
    np.testing.assert_allclose(out, plain, rtol=0, atol=1e-3)


# --- Arguments ------------------------------------------------------------------------------------------------------


def test_what_step_refuses():
    q, k, v, omega, gate = draw(4, leading=(2,))
    state = rfa.init_state((2,), 4, 3, omega)
    good = (q[:, 0], k[:, 0], v[:, 0], state, omega)
    with pytest.raises(ValueError, match=r"^gate_t: expected shape \(\.\.\.\) = \(2,\), got \(2, 4\)"):
        rfa.step(*good, gate)
    with pytest.raises(ValueError, match=r"^gate_t: expected numbers strictly between 0 and 1, got 1\.0 to 1\.0"):
        rfa.step(*good, np.ones(2))
    with pytest.raises(TypeError, match=r"^gate_t: expected float64 like the other arrays, got float32"):
        rfa.step(*good, gate[:, 0].astype(np.float32))
    with pytest.raises(TypeError, match=r"^q_t: "):
        rfa.step(q[:, 0].tolist(), *good[1:])


def test_recency_is_of_an_array_of_floats():
    for wrong in ([0.5, 0.5], np.array([1, 0])):
        with pytest.raises(TypeError, match=r"^gate: expected "):
            rfa.recency(wrong)


def test_d_state_is_checked():
    q, k, v, omega, gate = draw(4)
    out, saved = rfa.forward(q, k, v, omega, gate, causal=True)
    with pytest.raises(TypeError, match=r"^d_state: expected sums\.State, got tuple"):
        rfa.backward(out, saved, d_state=(1, 2))
    wrong = linear.State(np.zeros((3, 3)), np.zeros(3), None)
    with pytest.raises(ValueError, match=r"^d_state\.s: "):
        rfa.backward(out, saved, d_state=wrong)


# --- The learned gate -----------------------------------------------------------------------------------------------

SHAPES = {
    "one head": ((7, 5), (5,), ()),
    "three heads, a batch of two": ((2, 1, 7, 5), (3, 5), (3,)),
    "own inputs for each head": ((2, 3, 7, 5), (3, 5), (3,)),
}


@pytest.mark.parametrize("shapes", SHAPES)
def test_gradients_of_the_learned_gate(shapes):
    rng = np.random.default_rng(0)
    arrays = [np.asarray(rng.standard_normal(shape)) for shape in SHAPES[shapes]]
    gate, _ = learned_gate.forward(*arrays)
    same(gate, 1 / (1 + np.exp(-((arrays[0] * arrays[1][..., None, :]).sum(axis=-1) + arrays[2][..., None]))))
    check_elementwise(learned_gate.forward, learned_gate.backward, *arrays, rng=rng).assert_ok()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_saturated_gate_stays_between_0_and_1(dtype):
    x = np.array([[-1e4], [-50.0], [0.0], [50.0], [1e4]], dtype)
    gate, saved = learned_gate.forward(x, np.ones(1, dtype), np.zeros((), dtype))
    assert gate.dtype == dtype
    assert (gate > 0).all()
    assert (gate < 1).all()
    assert gate[2] == 0.5
    for gradient in learned_gate.backward(np.ones_like(gate), saved):
        assert gradient.dtype == dtype
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_small_gate_keeps_its_digits(dtype):
    """Down to the smallest number; its logarithm is what a state forgets by."""
    x = np.array([[-5.0], [-18.0], [-40.0], [-80.0]], dtype)
    gate, saved = learned_gate.forward(x, np.ones(1, dtype), np.zeros((), dtype))
    exact = np.exp(x[:, 0].astype(float))
    np.testing.assert_allclose(gate, exact / (1 + exact), rtol=100 * np.finfo(dtype).eps)
    d_x = learned_gate.backward(np.ones_like(gate), saved).x[:, 0]
    np.testing.assert_allclose(d_x, exact / (1 + exact) ** 2, rtol=100 * np.finfo(dtype).eps)


def test_what_the_learned_gate_refuses():
    x, w_g, b_g = np.zeros((4, 3)), np.zeros(3), np.zeros(())
    for error, name, arguments in (
        (TypeError, "w_g", (x, w_g.astype(np.float32), b_g)),
        (ValueError, "w_g", (x, np.zeros(4), b_g)),
        (ValueError, "w_g", (np.zeros((2, 4, 3)), np.zeros((3, 3)), np.zeros(3))),
        (ValueError, "b_g", (x, w_g, np.zeros(2))),
        (TypeError, "x", (x.tolist(), w_g, b_g)),
    ):
        with pytest.raises(error, match=rf"^{name}: "):
            learned_gate.forward(*arguments)
    _, saved = learned_gate.forward(x, w_g, b_g)
    with pytest.raises(ValueError, match=r"^d_gate: "):
        learned_gate.backward(np.zeros(5), saved)


def test_gradient_of_the_whole_layer():
    """Tokens to gates, queries, keys and values, attention: one pair, random directions."""
    rng = np.random.default_rng(5)
    omega = gaussian(40, 4, rng)
    x, w_g, b_g = rng.standard_normal((1, 30, 6)), rng.standard_normal((2, 6)), rng.standard_normal(2)
    w_q, w_k, w_v = (rng.standard_normal((2, 6, width)) for width in (4, 4, 3))

    def forward(x, w_g, b_g, w_q, w_k, w_v):
        gate, gate_saved = learned_gate.forward(x, w_g, b_g)
        out, saved = rfa.forward(x @ w_q, x @ w_k, x @ w_v, omega, gate, causal=True)
        return out, (x, w_q, w_k, w_v, gate_saved, saved)

    def backward(d_out, everything):
        x, w_q, w_k, w_v, gate_saved, saved = everything
        grads = rfa.backward(d_out, saved)
        of_gate = learned_gate.backward(grads.gate, gate_saved)
        d_x, d_w = of_gate.x, []
        for w, d in ((w_q, grads.q), (w_k, grads.k), (w_v, grads.v)):
            d_x = d_x + (d @ w.swapaxes(-1, -2)).sum(axis=0, keepdims=True)
            d_w.append(x.swapaxes(-1, -2) @ d)
        return d_x, of_gate.w_g, of_gate.b_g, *d_w

    check_directions(forward, backward, x, w_g, b_g, w_q, w_k, w_v, rng=rng).assert_ok()
