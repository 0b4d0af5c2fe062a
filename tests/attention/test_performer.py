"""Performer: what its features estimate, its gradients across the kinks of ReLU, memory, states, drawing again."""

import math
from functools import partial

import numpy as np
import pytest

from linattn_ref.attention import feature_maps, linear, performer, softmax
from linattn_ref.experiments.measuring.counting import count, kept_bytes, peak_bytes
from linattn_ref.gradcheck import check_complex_step, check_directions
from linattn_ref.kernels import jit, reference

EPS32, EPS64 = np.finfo(np.float32).eps, np.finfo(np.float64).eps
D, M, FEATURES = 4, 3, 6
each_kind = pytest.mark.parametrize("kind", performer.KINDS)
either_way = pytest.mark.parametrize("causal", [False, True])


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def draw(rng, n, length, *, leading=(2,), size=0.5, features=FEATURES, dtype=np.float64):
    """Short queries and keys, of which trig features have positive denominators too."""
    shapes = (*leading, n, D), (*leading, length, D), (*leading, length, M), (features, D)
    q, k, v, omega = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return dtype(size) * q, dtype(size) * k, v, omega


# --- What it computes -----------------------------------------------------------------------------------------------


@each_kind
@either_way
def test_linear_attention_with_the_map_of_scaled_inputs(kind, causal, rng):
    """The fourth root of D, once: in the output, and in the gradient of queries and keys."""
    q, k, v, omega = draw(rng, 5, 7)
    phi = {
        "trig": feature_maps.favor_trig,
        "positive": feature_maps.favor_positive,
        "hyperbolic": feature_maps.favor_hyperbolic,
        "relu": feature_maps.favor_relu,
    }[kind](omega)
    root = D**0.25
    out, saved = performer.forward(q, k, v, omega, kind=kind, causal=causal)
    expected, expected_saved = linear.forward(q / root, k / root, v, feature_map=phi, causal=causal, eps=0.0)
    np.testing.assert_allclose(out, expected, rtol=1e-12)
    d_out = rng.standard_normal(out.shape)
    grads, of_scaled = performer.backward(d_out, saved), linear.backward(d_out, expected_saved)
    np.testing.assert_allclose(grads.q, of_scaled.q / root, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(grads.k, of_scaled.k / root, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(grads.v, of_scaled.v, rtol=1e-12)
    assert grads._fields == ("q", "k", "v", "state")  # omega is a constant
    assert grads.state is None


@pytest.mark.parametrize("kind", ["trig", "positive", "hyperbolic"])
@either_way
def test_many_features_are_softmax_attention(kind, causal, rng):
    """The error falls as ``1 / sqrt(m)``: 25 times the features, a fifth of it, give or take."""
    q, k, v, _ = draw(rng, 20, 20)
    target, _ = softmax.forward(q, k, v, causal=causal)

    def error(m):
        omegas = [feature_maps.gaussian(m, D, rng) for _ in range(8)]
        outs = [performer.forward(q, k, v, omega, kind=kind, causal=causal)[0] for omega in omegas]
        return math.sqrt(np.mean([((out - target) ** 2).mean() for out in outs]))

    assert error(100) < 0.5 * abs(target).max()
    assert 0.1 < error(2_500) / error(100) < 0.4


def test_relu_features_are_another_similarity(rng):
    """Positive, but not softmax's: the error stays."""
    q, k, v, _ = draw(rng, 20, 20, size=2.0)
    target, _ = softmax.forward(q, k, v)
    few, many = (feature_maps.gaussian(m, D, rng) for m in (1000, 10_000))
    errors = [abs(performer.forward(q, k, v, omega, kind="relu")[0] - target).mean() for omega in (few, many)]
    assert errors[1] > 0.9 * errors[0] > 0.05
    assert performer.matrix(q, k, many, kind="relu").min() > 0


@each_kind
@either_way
def test_matrix_times_values(kind, causal, rng):
    q, k, v, omega = draw(rng, 6, 8)
    key_mask = rng.random((2, 8)) < 0.7
    options = {"kind": kind, "causal": causal, "key_mask": key_mask}
    p = performer.matrix(q, k, omega, **options)
    assert p.shape == (2, 6, 8)
    np.testing.assert_allclose(p @ v, performer.forward(q, k, v, omega, **options)[0], atol=1e-12)
    row_sums = p.sum(axis=-1)
    np.testing.assert_allclose(row_sums[row_sums != 0], 1, rtol=1e-12)
    if kind != "trig":
        assert (p >= 0).all()


def test_denominators_of_either_sign(rng):
    """What the docstring warns of: for long queries and keys trig outputs leave the range of the values."""
    q, k, v, omega = draw(rng, 50, 50, size=3.0, features=64)
    for kind in performer.KINDS:
        out, saved = performer.forward(q, k, v, omega, kind=kind)
        inside = (v.min(axis=-2, keepdims=True) <= out) & (out <= v.max(axis=-2, keepdims=True))
        assert inside.all() == (kind != "trig")
        assert (saved.d > 0).all() == (kind != "trig")


def test_eps_of_relu_features(rng):
    q, k, v, omega = draw(rng, 5, 7)
    out, saved = performer.forward(q, k, v, omega, kind="relu")
    with_eps, _ = performer.forward(q, k, v, omega, kind="relu", eps=0.5)
    np.testing.assert_allclose(with_eps * (saved.d + 0.5), out * saved.d)
    for kind in ("trig", "positive", "hyperbolic"):
        with pytest.raises(ValueError, match=f"eps: must be 0 with the exponential map favor_{kind}"):
            performer.forward(q, k, v, omega, kind=kind, eps=1e-6)


# --- Gradients ------------------------------------------------------------------------------------------------------


@each_kind
@either_way
def test_gradients_of_many_features(kind, causal, rng):
    """Features of either side of ReLU's kink; a smaller step crosses fewer of them."""
    q, k, v, omega = draw(rng, 33, 40, features=50, size=0.4)
    forward = partial(performer.forward, kind=kind, causal=causal)
    check_directions(forward, performer.backward, q, k, v, omega, rng=rng, step=3e-7, rtol=1e-6).assert_ok()


@pytest.mark.parametrize("kind", ["trig", "positive", "hyperbolic"])
def test_the_stabiliser_cancels_in_the_gradient(kind, rng):
    """Against the complex step through the formula as the paper prints it, with nothing subtracted anywhere."""
    q, k, v, omega = draw(rng, 5, 7, leading=())

    def features(x):
        p, square = x @ omega.T, (x**2).sum(axis=-1, keepdims=True) / 2
        if kind == "trig":
            return np.exp(square) * np.concatenate([np.sin(p), np.cos(p)], axis=-1)
        return np.exp(np.concatenate([p, -p], axis=-1) - square) if kind == "hyperbolic" else np.exp(p - square)

    def formula(q, k, v):
        similarity = features(q / D**0.25) @ features(k / D**0.25).T
        return similarity / similarity.sum(axis=-1, keepdims=True) @ v

    def forward(q, k, v):
        return performer.forward(q, k, v, omega, kind=kind)

    check_complex_step(formula, forward, performer.backward, q, k, v, rng=rng).assert_ok()


@pytest.mark.parametrize("kind", ["positive", "hyperbolic"])
@either_way
def test_float32_at_exponents_that_it_cannot_hold(kind, causal, rng):
    """Keys along the directions, whose exponents reach several hundred; float32's exp ends at 88."""
    q, _, v, omega = draw(rng, 40, 40, features=8, dtype=np.float32)
    k = (20 * omega[rng.integers(0, 8, (2, 40))] * D**0.25 / np.sqrt((omega**2).sum(axis=-1)).max()).astype(np.float32)
    q = q + k  # so that some similarity is not lost beside the others
    exponents = performer.feature_map(omega, kind).split(k)[0]
    assert np.ptp(exponents) > 200
    out, saved = performer.forward(q, k, v, omega, kind=kind, causal=causal)
    expected = performer.matrix(*(x.astype(np.float64) for x in (q, k, omega)), kind=kind, causal=causal) @ v
    # exponents of this size, rounded; a few times
    np.testing.assert_allclose(out, expected, atol=8 * EPS32 * abs(exponents).max() * abs(v).max())
    grads = performer.backward(np.ones_like(out), saved)
    assert all(x.dtype == np.float32 and np.isfinite(x).all() for x in (out, *grads[:3]))


# --- Cost -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "per_direction"), [("trig", 2), ("positive", 1), ("hyperbolic", 2), ("relu", 1)])
def test_multiply_adds_are_linear_in_the_length(kind, per_direction, rng):
    n, length, m = 30, 50, 16
    q, k, v, omega = draw(rng, n, length, leading=(), features=m)
    found = count(partial(performer.forward, kind=kind), q, k, v, omega).multiply_adds
    width = m * per_direction  # C
    exponents = (n + length) * m * (D + (kind == "positive"))  # |x|^2/2 is a column beside x
    assert found == exponents + (n + length) * width * M + n * width


@either_way
def test_no_state_a_position_and_no_matrix(causal, rng):
    """Kept: features, output, denominators, three states, causal a factor for each rise. In use: a few times that."""
    n, m = 2048, 32
    q, k, v, omega = draw(rng, n, n, leading=(), features=m)
    v = rng.standard_normal((n, m))
    forward = partial(performer.forward, causal=causal)
    _, saved = forward(q, k, v, omega)
    rows, states = (2 + causal) * n * m + n * (m + 1), 3 * m * (m + 2)
    assert kept_bytes((q, k, v, saved)) - kept_bytes((q, k, v)) <= 8 * (rows + states)

    def both(q, k, v, omega):
        out, saved = forward(q, k, v, omega)
        performer.backward(out, saved)

    assert peak_bytes(both, q, k, v, omega) / 8 < 6 * rows < n * m * m < n * n


# --- States, and drawing again --------------------------------------------------------------------------------------


def test_a_state_belongs_to_its_kind(rng):
    q, k, v, omega = draw(rng, 5, 5)
    states = {kind: performer.init_state((2,), D, M, omega, kind=kind) for kind in performer.KINDS}
    for kind, state in states.items():
        assert state.s.shape == (2, FEATURES * (2 if kind in ("trig", "hyperbolic") else 1), M)
    with pytest.raises(ValueError, match="state: expected a state made for favor_positive, got one without a log_"):
        performer.forward(q, k, v, omega, causal=True, state=states["relu"])
    with pytest.raises(ValueError, match=r"state\.s: expected C = 6 for favor_positive, got shape \(2, 12, 3\)"):
        performer.step(q[:, 0], k[:, 0], v[:, 0], states["trig"], omega)


@each_kind
def test_gradients_through_the_state(kind, rng):
    """Two halves, the gradient of the state handed back from the second to the first: that of the whole."""
    q, k, v, omega = draw(rng, 9, 9)
    options = {"kind": kind, "causal": True}
    out, saved = performer.forward(q, k, v, omega, **options)
    d_out = rng.standard_normal(out.shape)
    whole = performer.backward(d_out, saved)
    halves = slice(0, 4), slice(4, 9)
    _, first = performer.forward(*(x[:, halves[0]] for x in (q, k, v)), omega, **options)
    _, second = performer.forward(*(x[:, halves[1]] for x in (q, k, v)), omega, state=first.state, **options)
    of_second = performer.backward(d_out[:, halves[1]], second)
    of_first = performer.backward(d_out[:, halves[0]], first, d_state=of_second.state)
    for name in "qkv":
        joined = np.concatenate([getattr(of_first, name), getattr(of_second, name)], axis=1)
        np.testing.assert_allclose(joined, getattr(whole, name), rtol=1e-9, atol=1e-12)


def test_redraw(rng):
    omega = feature_maps.orthogonal_gaussian(6, D, rng, dtype=np.float32)
    before = omega.copy()
    first = performer.redraw(omega, np.random.default_rng(1))
    np.testing.assert_array_equal(first, performer.redraw(omega, np.random.default_rng(1)))
    np.testing.assert_array_equal(omega, before)
    assert first.shape == omega.shape
    assert first.dtype == np.float32
    assert (first != omega).all()
    block = first[:D].astype(np.float64)
    gram = block @ block.T
    np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=64 * EPS32)
    lengths = np.linalg.norm(performer.redraw(omega, rng, regular=True), axis=-1)
    np.testing.assert_allclose(lengths, math.sqrt(D), rtol=8 * EPS32)
    independent = performer.redraw(omega, rng, orthogonal=False)
    assert independent.dtype == np.float32
    assert abs(independent[0] @ independent[1]) > 0.01


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda q, k, v, w: performer.forward(q, k, v, w, kind=["trig"]), ValueError, "kind: expected one of trig, "),
        (lambda q, k, v, w: performer.feature_map(w, "cosine"), ValueError, "kind: expected one of .*, got 'cosine'"),
        (
            lambda q, k, v, w: performer.forward(q, k, v, w[None]),
            ValueError,
            r"omega: expected shape \(m, D\) = \(6, 4\), got \(1, 6, 4\)",
        ),
        (
            lambda q, k, v, w: performer.matrix(q, k, w[:, 1:]),
            ValueError,
            r"omega: expected shape \(m, D\) = \(6, 4\), got \(6, 3\)",
        ),
        (
            lambda q, k, v, w: performer.init_state((2,), 5, M, w),
            ValueError,
            r"omega: expected shape \(m, D\) = \(6, 5\), got \(6, 4\)",
        ),
        (lambda q, k, v, w: performer.redraw(w, 0), TypeError, "rng: expected a numpy.random.Generator, got int"),
        (lambda q, k, v, w: performer.redraw(w[0], 0), ValueError, "omega: expected at least 2 axes"),
    ],
)
def test_bad_arguments(call, error, message, rng):
    q, k, v, omega = draw(rng, 5, 7, leading=())
    with pytest.raises(error, match=message):
        call(q, k, v, omega)


@pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
def test_a_later_key_that_is_nan_leaves_the_queries_before_it(rng, kernels):
    q, k, v, omega = draw(rng, 6, 6, leading=(1,))
    key_mask = np.arange(6)[None] > 0  # without its first key a running maximum begins far below
    expected = performer.forward(q, k, v, omega, causal=True, key_mask=key_mask)[0]
    k[0, 5] = np.nan
    out = performer.forward(q, k, v, omega, causal=True, key_mask=key_mask, kernels=kernels)[0]
    np.testing.assert_allclose(out[:, :5], expected[:, :5], rtol=1e-10)
    assert np.isnan(out[:, 5]).all()
