"""The pseudo-inverse, by iteration and exactly: what it is, its gradients, how fast, and each matrix by itself."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from linattn_ref import gradcheck
from linattn_ref.attention.parts import pinv_exact, pinv_iterative

FORMS = {
    "iterative": (pinv_iterative.forward, pinv_iterative.backward),
    "exact": (pinv_exact.forward, pinv_exact.backward),
}
each_form = pytest.mark.parametrize(("forward", "backward"), FORMS.values(), ids=FORMS)
DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def with_singular_values(rng, values, rows, columns):
    """A random matrix with these singular values."""
    u, w = (np.linalg.qr(rng.standard_normal((n, n)))[0][:, : len(values)] for n in (rows, columns))
    return (u * values) @ w.T


# --- What it is -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (1, 1), (1, 4)])
@pytest.mark.parametrize("form", [pinv_exact.forward, partial(pinv_iterative.forward, iterations=12)])
def test_the_four_conditions_of_penrose(rng, form, shape):
    """They have one solution. Singular values of 1 to 1/3, so that rounding is not multiplied by much."""
    a = with_singular_values(rng, np.linspace(1, 1 / 3, min(shape)), *shape)
    x, _ = form(a)
    same = partial(np.testing.assert_allclose, rtol=0, atol=1e-13)
    same(a @ x @ a, a)
    same(x @ a @ x, x)
    same((a @ x).T, a @ x)
    same((x @ a).T, x @ a)


def test_exact_is_numpys(rng):
    a = rng.standard_normal((2, 3, 6, 4))
    np.testing.assert_allclose(pinv_exact.forward(a)[0], np.linalg.pinv(a), rtol=0, atol=1e-13)


@DTYPES
def test_singular_values_of_the_size_of_rounding_count_as_zero(rng, dtype):
    """A matrix of rank 2, as it is stored: the others are about eps, and their inverses must not come in."""
    a = with_singular_values(rng, np.array([1, 0.5]), 6, 6).astype(dtype)
    x, _ = pinv_exact.forward(a)
    assert x.dtype == dtype
    assert abs(np.linalg.norm(x, 2) - 2) < 100 * np.finfo(dtype).eps
    assert np.linalg.norm(pinv_exact.forward(a, rcond=0)[0], 2) > 1e-3 / np.finfo(dtype).eps


def test_rcond_is_relative_to_the_largest(rng):
    a = with_singular_values(rng, 100 * np.array([1, 0.1, 0.01]), 3, 3)
    norms = [np.linalg.norm(pinv_exact.forward(a, rcond=rcond)[0], 2) for rcond in (0.5, 0.05, 0.005)]
    np.testing.assert_allclose(norms, [0.01, 0.1, 1], rtol=1e-12)


def test_what_turns_with_the_matrix_and_is_left_out_has_no_gradient_here(rng):
    for values, fits in (([1, 0.5, 0.05], False), ([1, 0.5, 0], True)):
        x, saved = pinv_exact.forward(with_singular_values(rng, np.array(values), 3, 3), rcond=0.1)
        if fits:
            assert np.isfinite(pinv_exact.backward(x, saved).a).all()
        else:
            with pytest.raises(ValueError, match="saved: expected a pseudo-inverse that leaves out rounding alone"):
                pinv_exact.backward(x, saved)


@each_form
@DTYPES
def test_zero_is_its_own_pseudo_inverse(forward, backward, dtype):
    """Beside one that is not: no division by 0, and gradient 0."""
    a = np.zeros((2, 3, 3), dtype)
    a[1] = np.eye(3)
    x, saved = forward(a)
    d_a = backward(np.ones_like(x), saved).a
    assert x.dtype == d_a.dtype == dtype
    assert not x[0].any()
    np.testing.assert_allclose(x[1], np.eye(3), rtol=0, atol=1e-3)  # six iterations, from t = 1
    assert np.isfinite(d_a).all()
    if forward is pinv_iterative.forward:
        assert not d_a[0].any()


@each_form
def test_each_matrix_by_itself(rng, forward, backward):
    """What one matrix gives does not depend, by a bit, on its neighbours: the norms are its own."""
    a, d_x = rng.standard_normal((2, 4, 5, 5))
    x, saved = forward(a)
    d_a = backward(d_x, saved).a
    a[1:] *= 1000
    other, saved = forward(a)
    np.testing.assert_array_equal(other[0], x[0])
    np.testing.assert_array_equal(backward(d_x, saved).a[0], d_a[0])


@each_form
def test_a_matrix_with_nan_is_nan_alone(rng, forward, backward):
    a, d_x = rng.standard_normal((2, 3, 4, 4))
    expected, saved = forward(a)
    d_a = backward(d_x, saved).a
    a[1, 2, 0] = np.nan
    x, saved = forward(a)
    for found, without in ((x, expected), (backward(d_x, saved).a, d_a)):
        assert np.isnan(found[1]).all()
        np.testing.assert_array_equal(found[[0, 2]], without[[0, 2]])


@each_form
def test_any_scale(rng, forward, backward):
    """The pseudo-inverse of c A is that of A over c, also where the product of the norms is no number any more."""
    a = rng.standard_normal((4, 4))
    for c in (2.0**-600, 2.0**600):  # powers of 2: exact
        np.testing.assert_allclose(forward(c * a)[0] * c, forward(a)[0], rtol=1e-13)


@each_form
def test_nothing_handed_in_is_written_to(rng, forward, backward):
    a, d_x = rng.standard_normal((2, 4, 4))
    copies = a.copy(), d_x.copy()
    x, saved = forward(a)
    kept = [z.copy() for z in (x, *getattr(saved, "iterates", []))]
    backward(d_x, saved)
    np.testing.assert_array_equal((a, d_x), copies)
    np.testing.assert_array_equal([x, *getattr(saved, "iterates", [])], kept)


# --- Convergence ----------------------------------------------------------------------------------------------------


def test_what_is_left_follows_the_recursion(rng):
    """E <- (3 E^3 + E^4) / 4 for E = I - A Z."""
    a = rng.standard_normal((5, 5))
    last, saved = pinv_iterative.forward(a, iterations=8)
    iterates = [*saved.iterates, last]
    for z, following in pairwise(iterates):
        e = np.eye(5) - a @ z
        expected = (3 * e @ e @ e + e @ e @ e @ e) / 4
        np.testing.assert_allclose(np.eye(5) - a @ following, expected, rtol=0, atol=1e-13)


def test_third_order(rng):
    """Near the end the error is three quarters of the third power of the one before."""
    a = with_singular_values(rng, np.linspace(1, 0.5, 6), 6, 6)
    last, saved = pinv_iterative.forward(a, iterations=12)
    errors = [np.linalg.norm(np.eye(6) - a @ z, 2) for z in (*saved.iterates, last)]
    close = [(e, after) for e, after in pairwise(errors) if 1e-4 < e < 0.1]
    assert close
    for e, after in close:
        np.testing.assert_allclose(after, 0.75 * e**3, rtol=0.04)  # and a quarter of the fourth: e / 3 of it


def test_small_singular_values_grow_by_13_quarters(rng):
    """Until then they stay too small: never too large."""
    a = with_singular_values(rng, np.array([1, 1e-5]), 2, 2)
    last, saved = pinv_iterative.forward(a, iterations=6)
    u, sigma, w_t = np.linalg.svd(a)
    inverted = [float(w_t[1] @ z @ u[:, 1]) for z in (*saved.iterates, last)]
    start = float(sigma[1] / np.prod(saved.norms))
    np.testing.assert_allclose(inverted, start * 3.25 ** np.arange(7), rtol=1e-4)
    assert inverted[-1] < 1e-4 / sigma[1]


@DTYPES
def test_the_start_is_scaled_by_the_largest_sums_of_absolute_values(dtype):
    a = np.array([[1, -2], [0.5, 4], [0, 3]], dtype)
    _, saved = pinv_iterative.forward(a, iterations=1)
    np.testing.assert_array_equal(saved.iterates[0], a.T / dtype(9 * 4.5))
    assert (saved.column, saved.row) == (1, 1)


# --- Gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (5, 3), (3, 5), (2, 2, 3, 3)], ids=str)
@pytest.mark.parametrize("iterations", [1, 2, 6])
def test_gradient_of_the_iteration(rng, shape, iterations):
    a = rng.standard_normal(shape)
    forward = partial(pinv_iterative.forward, iterations=iterations)
    gradcheck.check_elementwise(forward, pinv_iterative.backward, a, rng=rng).assert_ok()


def test_gradient_of_the_iteration_by_the_complex_step(rng):
    """To rounding: with the norms written for the signs that the entries have."""
    a = rng.standard_normal((4, 4))
    column, row = abs(a).sum(axis=0).argmax(), abs(a).sum(axis=1).argmax()
    signs = np.sign(a)

    def formula(a):
        z = a.T / ((signs * a)[:, column].sum() * (signs * a)[row].sum())
        identity = np.eye(4)
        for _ in range(6):
            t = a @ z
            z = z @ (13 * identity - t @ (15 * identity - t @ (7 * identity - t))) / 4
        return z

    gradcheck.check_complex_step(formula, pinv_iterative.forward, pinv_iterative.backward, a, rng=rng).assert_ok()


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (5, 3), (3, 5), (2, 2, 3, 3)], ids=str)
def test_gradient_of_the_exact_one(rng, shape):
    """Of full rank; where A is not square, the terms of both projections count."""
    values = np.linspace(1, 1 / 3, min(shape[-2:]))
    a = np.empty(shape)
    for index in np.ndindex(shape[:-2]):
        a[index] = with_singular_values(rng, values, *shape[-2:])
    gradcheck.check_elementwise(pinv_exact.forward, pinv_exact.backward, a, rng=rng).assert_ok()


def test_gradient_of_the_exact_one_where_the_rank_stays_below(rng):
    """A = B C of rank 2 in 5 x 4: both projections count, and the differences stay within the matrices of rank 2."""

    def forward(b, c):
        x, saved = pinv_exact.forward(b @ c)
        return x, (saved, b, c)

    def backward(d_x, saved):
        saved, b, c = saved
        d_a = pinv_exact.backward(d_x, saved).a
        return d_a @ c.T, b.T @ d_a

    b, c = rng.standard_normal((5, 2)), rng.standard_normal((2, 4))
    gradcheck.check_elementwise(forward, backward, b, c, rng=rng).assert_ok()


def test_many_iterations_have_the_exact_gradient(rng):
    """Of a matrix of full rank, where both are smooth: another way to the same numbers."""
    a = with_singular_values(rng, np.linspace(1, 0.5, 4), 4, 4)
    d_x = rng.standard_normal((4, 4))
    iterated = pinv_iterative.backward(d_x, pinv_iterative.forward(a, iterations=14)[1]).a
    exact = pinv_exact.backward(d_x, pinv_exact.forward(a)[1]).a
    np.testing.assert_allclose(iterated, exact, rtol=0, atol=1e-12)


# --- Bad input ------------------------------------------------------------------------------------------------------


@each_form
def test_what_is_refused(rng, forward, backward):
    a = rng.standard_normal((2, 4, 3))
    with pytest.raises(TypeError, match=r"^a: expected float32 or float64, got int64"):
        forward(a.astype(int))
    with pytest.raises(ValueError, match=r"^a: expected at least 2 axes"):
        forward(a[0, 0])
    x, saved = forward(a)
    name = r"^d_[zx]: expected "
    with pytest.raises(ValueError, match=name + "shape"):
        backward(a, saved)
    with pytest.raises(TypeError, match=name + "float64"):
        backward(x.astype(np.float32), saved)


@pytest.mark.parametrize("iterations", [0, -1, 2.0, True, None])
def test_iterations_are_a_count(iterations):
    with pytest.raises(ValueError, match=r"^iterations: expected an integer of at least 1, got "):
        pinv_iterative.forward(np.eye(2), iterations=iterations)


@pytest.mark.parametrize("rcond", [-0.1, 1, np.nan])
def test_rcond_is_a_share(rcond):
    with pytest.raises(ValueError, match=r"^rcond: expected a number with 0 <= rcond < 1, got "):
        pinv_exact.forward(np.eye(2), rcond=rcond)
