"""The gradient checks: they pass what is right, fail what is wrong, and say what is wrong."""

import doctest
from collections import namedtuple
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

from linattn_ref import gradcheck
from linattn_ref.attention import softmax
from linattn_ref.gradcheck import (
    GradientError,
    Report,
    check_complex_step,
    check_directions,
    check_elementwise,
    complex_step,
    complex_steps,
    differences,
)

CHECKS = pytest.mark.parametrize("check", [check_elementwise, check_directions])


class Gradients(NamedTuple):
    x: np.ndarray
    w: np.ndarray


def forward(x, w):
    """``tanh(x w)``: curved in both."""
    out = np.tanh(x @ w)
    return out, (x, w, out)


def backward(d_out, saved):
    x, w, out = saved
    d_product = d_out * (1 - out**2)
    return Gradients(d_product @ w.T, x.T @ d_product)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def x(rng):
    return rng.standard_normal((3, 4))


@pytest.fixture
def w(rng):
    return rng.standard_normal((4, 2))


def with_gradients(change):
    """``backward`` with its result changed."""
    return lambda d_out, saved: change(backward(d_out, saved))


# --- Right and wrong ------------------------------------------------------------------------------------------------


@CHECKS
def test_right_gradient_passes_far_below_the_tolerance(check, x, w, rng):
    report = check(forward, backward, x, w, rng=rng)
    assert report.ok
    assert report.failed == 0
    assert {entry.name for entry in report.worst_by_input} == {"x", "w"}
    assert report.worst.excess < 0.1  # so that there is room for a longer forward pass
    report.assert_ok()


def test_complex_step_is_exact_to_rounding(x, w, rng):
    report = check_complex_step(lambda x, w: np.tanh(x @ w), forward, backward, x, w, rng=rng)
    assert report.ok
    assert report.worst.absolute <= 64 * np.finfo(float).eps  # sums of up to 12 products of numbers up to 3
    assert complex_step(np.exp, np.array([1.0]), 1.0)[0] == pytest.approx(np.e, rel=1e-15)


def test_worst_entry_is_named_with_both_values(x, w, rng):
    def wrong(gradients):
        gradients.w[2, 1] += 1e-3
        return gradients

    report = check_elementwise(forward, with_gradients(wrong), x, w, rng=rng)
    right = backward(np.random.default_rng(0).standard_normal((3, 2)), forward(x, w)[1]).w[2, 1]
    worst = report.worst
    assert not report.ok
    assert (report.failed, report.checked) == (1, x.size + w.size)
    assert (worst.name, worst.index) == ("w", (2, 1))
    assert worst.absolute == pytest.approx(1e-3, rel=1e-5)
    assert worst.relative == pytest.approx(worst.absolute / max(abs(worst.analytic), abs(worst.numeric)))
    assert worst.absolute > worst.tolerance > 0
    assert worst.step == pytest.approx(6.1e-6 * max(1, abs(w[2, 1])), rel=0.01)
    assert "w[2, 1]" in str(report)
    assert "WRONG in 1 of 20" in str(report)
    assert f"{worst.analytic:.6g}" in str(report)
    assert f"{worst.numeric:.6g}" in str(report)
    assert right != worst.numeric
    with pytest.raises(GradientError, match=r"w\[2, 1\]"):
        report.assert_ok()


@pytest.mark.parametrize("index", [(0, 0), (2, 3)])
@pytest.mark.parametrize("error", [1e-6, np.nan, np.inf, -np.inf])
def test_one_wrong_entry_is_found_by_every_check(index, error, x, w, rng):
    def wrong(gradients):
        gradients.x[index] += error
        return gradients

    pair = forward, with_gradients(wrong)
    reports = [
        check_elementwise(*pair, x, w, rng=rng),
        check_directions(*pair, x, w, rng=rng),
        check_complex_step(lambda x, w: np.tanh(x @ w), *pair, x, w, rng=rng),
    ]
    for report in reports:
        assert not report
        assert report.worst.name == "x"
    assert [report.worst.index for report in (reports[0], reports[2])] == [index, index]


def test_a_report_is_true_only_if_all_is_well(x, w, rng):
    assert check_elementwise(forward, backward, x, w, rng=rng)
    assert not check_elementwise(forward, with_gradients(lambda g: Gradients(-g.x, g.w)), x, w, rng=rng)


def test_zero_gradients_are_compared_exactly(x, rng):
    """Where ``out`` is exactly 0 there is no rounding, and the tolerance is 0 too."""
    pair = lambda x: (0 * x, None), lambda d_out, saved: np.zeros_like(x)
    report = check_elementwise(*pair, x, rng=rng)
    assert report.ok
    assert report.worst.tolerance == 0
    wrong = check_elementwise(pair[0], lambda d_out, saved: np.full_like(x, 1e-300), x, rng=rng)
    assert wrong.failed == x.size


@CHECKS
def test_a_constant_function_has_the_gradient_0(check, x):
    pair = lambda x: (0 * x + 1, None), lambda d_out, saved: np.zeros_like(x)
    check(*pair, x, rng=1).assert_ok()
    assert check(pair[0], lambda d_out, saved: np.full_like(x, 1e-3), x, rng=1).failed


def test_same_seed_same_report(x, w):
    reports = [check_directions(forward, backward, x, w, rng=np.random.default_rng(3)) for _ in range(2)]
    assert reports[0] == reports[1]


@CHECKS
@pytest.mark.parametrize("causal", [False, True])
def test_softmax_attention(check, causal, rng):
    arrays = (rng.standard_normal(shape) for shape in [(2, 5, 4), (2, 7, 4), (2, 7, 3)])
    check(partial(softmax.forward, causal=causal), softmax.backward, *arrays, rng=rng).assert_ok()


def test_module_examples_run():
    results = [doctest.testmod(module) for module in (gradcheck, differences, complex_steps)]
    assert sum(result.attempted for result in results) >= 10
    assert not any(result.failed for result in results)


# --- What can be told ---------------------------------------------------------------------------------------------

WRONG = {
    "zeros": lambda gradient: 0 * gradient,
    "sign": lambda gradient: -gradient,
    "one percent": lambda gradient: 1.01 * gradient,
    "one entry": lambda gradient: np.where(abs(gradient) == abs(gradient).max(), 0, gradient),
}
SCALES = [1e-6, 1e-3, 1.0, 1e3, 1e7]
EXTREMES = [size if size in (1e-6, 1.0, 1e7) else pytest.param(size, marks=pytest.mark.slow) for size in SCALES]
wrong_gradients = pytest.mark.parametrize("wrong", WRONG)


def scaled(size_in, size_out, constant=0.0):
    """The pair as a function of numbers of one size, with values of another."""

    def scaled_forward(x, w):
        out, saved = forward(x / size_in, w)
        return size_out * out + constant, saved

    def scaled_backward(d_out, saved):
        gradients = backward(size_out * d_out, saved)
        return gradients._replace(x=gradients.x / size_in)

    return scaled_forward, scaled_backward


def spoiled(backward, wrong, name="x"):
    """``backward`` with one of its gradients wrong."""

    def spoiled_backward(d_out, saved):
        gradients = backward(d_out, saved)
        return gradients._replace(**{name: WRONG[wrong](getattr(gradients, name))})

    return spoiled_backward


@CHECKS
@pytest.mark.parametrize("size_out", EXTREMES)
@pytest.mark.parametrize("size_in", EXTREMES)
def test_any_size_of_inputs_and_outputs(check, size_in, size_out, x, w):
    pair = scaled(size_in, size_out)
    check(*pair, size_in * x, w, rng=1).assert_ok()
    for wrong, name in product(WRONG, ("x", "w")):
        report = check(pair[0], spoiled(pair[1], wrong, name), size_in * x, w, rng=1)
        assert report.failed, (wrong, name)
        assert report.worst.name == name


@CHECKS
@pytest.mark.parametrize("size", SCALES)
def test_numbers_of_any_size_that_bend_as_those_of_size_one_do(check, size, rng):
    """Far from 0 the first step is too long, and small numbers are not stepped by their own size."""
    x = size * (1 + rng.random(6))
    pair = lambda x: (np.sin(x), np.cos(x)), lambda d_out, slope: namedtuple("OfX", "x")(d_out * slope)
    check(*pair, x, rng=1).assert_ok()
    for wrong in WRONG:
        assert check(pair[0], spoiled(pair[1], wrong), x, rng=1).failed, wrong


@CHECKS
def test_numbers_whose_squares_are_no_floats(check, rng):
    x = 1e155 * (1 + rng.random(3))
    with np.errstate(over="raise"):
        assert check(lambda x: (2 * x, None), lambda d_out, saved: namedtuple("OfX", "x")(2 * d_out), x, rng=1).ok


def masked_scores(fill):
    """Scaled products, and ``fill`` where a key is later than its query."""

    def scores(x, w):
        scores = x @ w
        later = np.triu(np.ones(scores.shape, bool), 1)
        return np.where(later, fill, scores), (x, w, later)

    def of_scores(d_out, saved):
        x, w, later = saved
        d_scores = np.where(later, 0, d_out)
        return Gradients(d_scores @ w.T, x.T @ d_scores)

    return scores, of_scores


@pytest.mark.parametrize("fill", [-1e9, float(np.finfo(np.float32).min), float(np.finfo(np.float64).min), -np.inf])
@CHECKS
def test_masked_scores_count_for_nothing(check, fill, x, w):
    pair = masked_scores(fill)
    check(*pair, x, w, rng=1).assert_ok()
    for wrong, name in product(WRONG, ("x", "w")):
        assert check(pair[0], spoiled(pair[1], wrong, name), x, w, rng=1).failed, (wrong, name)
    formula = lambda x, w: np.where(np.triu(np.ones((3, 2), bool), 1), fill, x @ w)  # noqa: E731
    check_complex_step(formula, *pair, x, w, rng=1).assert_ok()
    for wrong in WRONG:
        assert check_complex_step(formula, pair[0], spoiled(pair[1], wrong), x, w, rng=1).failed, wrong


@wrong_gradients
@CHECKS
def test_a_constant_that_leaves_some_digits(check, wrong, x, w):
    """Larger steps find the derivative beside it."""
    pair = scaled(1.0, 1.0, 1e9)
    assert check(*pair, x, w, rng=1).failed == 0
    assert check(pair[0], spoiled(pair[1], wrong), x, w, rng=1).failed


@pytest.mark.parametrize("constant", [1e14, 1e18, -3e38])
@CHECKS
def test_a_constant_that_leaves_no_digits_is_inconclusive(check, constant, x, w):
    pair = scaled(1.0, 1.0, constant)
    for those in (pair[1], spoiled(pair[1], "zeros"), lambda d_out, saved: Gradients(0 * x, 0 * w)):
        report = check(pair[0], those, x, w, rng=1)
        assert not report
        assert not report.failed
        assert report.inconclusive
        assert "may be lost" in report.reason or "rounding" in report.reason
        assert "INCONCLUSIVE in " in str(report)
        with pytest.raises(GradientError, match="INCONCLUSIVE"):
            report.assert_ok()


@CHECKS
def test_an_input_lost_beside_another_is_inconclusive(check, x, w):
    """``w`` moves all that ``x`` does not; what ``x`` does is lost beside a constant."""

    def lost(x, w):
        return np.concatenate([x.ravel() + 1e18, w.ravel()]), None

    for of_x in (0.0, 1.0):
        of = lambda d_out, saved, of_x=of_x: Gradients(of_x * d_out[:12].reshape(3, 4), d_out[12:].reshape(4, 2))  # noqa: E731
        report = check(lost, of, x, w, rng=1)
        assert not report
        assert report.worst.name == "x"


@pytest.mark.parametrize("large", [1e11, 1e15, 2.0**60])
def test_a_wrong_gradient_of_what_a_step_is_lost_beside_is_not_right(large):
    """The plain step does not move the sum: both sides say 0 of the second number, one of them wrongly."""
    report = check_elementwise(lambda x: (x.sum(), x), lambda d, x: np.array([d, 0.0]), np.array([large, 1.0]), rng=0)
    assert not report.ok


def root(x):
    if (x < 0).any():
        raise ValueError("x: expected no negative numbers")
    return np.sqrt(x), np.sqrt(x)


@pytest.mark.parametrize(
    ("border", "function", "gradient"),
    [(0.0, root, lambda d, y: d / (2 * y + (y == 0))), (-np.inf, lambda x: (np.exp(x), np.exp(x)), lambda d, y: d * y)],
    ids=["refused", "infinite"],
)
def test_of_the_border_of_a_domain_nothing_is_said(border, function, gradient):
    for atol in (None, 1e-6):
        report = check_elementwise(function, gradient, np.array([border, 0.25]), rng=0, atol=atol)
        assert (report.failed, report.inconclusive) == (0, 1)
        assert report.reason == "forward has no number at this point, or beside it"


@pytest.mark.parametrize(("slope", "right"), [(3.0, True), (2.0, False), (0.0, False)])
def test_where_the_plain_step_leaves_the_domain_shorter_ones_tell(slope, right):
    def narrow(x):
        if (abs(x - 0.5) > 1e-6).any():
            raise ValueError("x: expected 0.5")
        return 3 * x, None

    report = check_elementwise(narrow, lambda d, _: slope * d, np.array([0.5]), rng=0)
    assert (report.ok, report.failed) == (right, int(not right))


def test_a_forward_that_is_broken_beside_the_point_is_told():
    def broken(x):
        return np.array([{0.5: 1.0}[float(x[0])]]), None

    with pytest.raises(KeyError):
        check_elementwise(broken, lambda d, _: d, np.array([0.5]), rng=0)


@pytest.mark.parametrize("size", [1.0, 1e3, *(pytest.param(size, marks=pytest.mark.slow) for size in (30.0, 1e6))])
@CHECKS
def test_saturated_softmax(check, size, rng):
    """Queries and keys move next to nothing, and one key alone nothing at all."""
    for n_keys in (5, 1):
        q, k, v = (rng.standard_normal(shape) for shape in [(3, 4), (n_keys, 4), (n_keys, 2)])
        check(softmax.forward, softmax.backward, size * q, k, v, rng=1).assert_ok()
        for wrong in WRONG:
            assert check(softmax.forward, spoiled(softmax.backward, wrong, "v"), size * q, k, v, rng=1).failed, wrong
        if n_keys > 1 and size == 1:
            assert check(softmax.forward, spoiled(softmax.backward, "zeros", "k"), q, k, v, rng=1).failed


@pytest.mark.parametrize("size", [1e-6, 1e-8, 1e-10])
@CHECKS
def test_a_small_difference_of_large_numbers_is_rounded_as_they_are(check, size):
    """The cross-entropy of what is nearly certain: of the last one only a digit or two are left."""

    def forward(x):
        e = np.exp(x)
        return np.log(e.sum(axis=-1)) - x[:, 0], e / e.sum(axis=-1, keepdims=True)

    def backward(d_out, p):
        return d_out[:, None] * np.concatenate([-p[:, 1:].sum(axis=-1, keepdims=True), p[:, 1:]], axis=-1)

    for seed in range(5):
        x = np.random.default_rng(seed).standard_normal((3, 4))
        x[:, 0] -= np.log(size)
        report = check(forward, backward, x, rng=seed)
        assert not report.failed, report
        if size > 1e-10:
            report.assert_ok()
            assert check(forward, lambda d_out, p: 1.01 * backward(d_out, p), x, rng=seed).failed


@pytest.mark.parametrize("large", [1e4, 1e6])
@CHECKS
def test_an_output_with_a_grain_is_right(check, large):
    """Whose steps are those of much larger numbers that were subtracted again."""

    def forward(x):
        return (np.tanh(x) + large) - large, x

    def backward(d_out, x):
        return d_out * (1 - np.tanh(x) ** 2)

    for seed in range(5):
        x = np.random.default_rng(seed).standard_normal(6)
        assert not check(forward, backward, x, rng=seed).failed
        assert check(forward, lambda d_out, x: 1.02 * backward(d_out, x), x, rng=seed).failed


@pytest.mark.parametrize("where", [0.0, 1e-3, 1.0, -4.0, 1e4])
def test_the_step_is_scaled_as_documented(where):
    """``h`` is ``step * max(1, |x_j|)``, entry by entry, and of the root mean square for a direction."""
    seen = []

    def square(x):
        seen.append(x.copy())
        return x**2, x

    x = np.array([where, 2.0])
    for step in (6.1e-6, 1e-3):
        seen.clear()
        report = check_elementwise(square, lambda d_out, x: 2 * x * d_out, x, rng=0, step=step)
        moved = [abs(other - x) for other in seen if not np.array_equal(other, x)]
        for index, h in enumerate([step * max(1, abs(where)), step * 2]):
            assert moved[2 * index][index] == pytest.approx(h, rel=1e-6)
            assert moved[2 * index + 1][index] == pytest.approx(h, rel=1e-6)
            assert moved[2 * index][1 - index] == 0
        assert report.ok
        report = check_directions(square, lambda d_out, x: 2 * x * d_out, x, rng=0, step=step)
        assert report.worst.step == pytest.approx(step * max(1, np.sqrt((where**2 + 4) / 2)))


def test_a_tolerance_that_is_given_is_taken_as_it_is(x, w):
    wrong = spoiled(backward, "one percent")
    assert check_elementwise(forward, wrong, x, w, rng=1, atol=20.0).ok
    assert not check_elementwise(forward, wrong, x, w, rng=1, atol=1e-6).ok


# --- Passes that are no functions -----------------------------------------------------------------------------------


def altering(index):
    """A forward pass that writes to one of its inputs, and gives what it should."""

    def altering_forward(x, w):
        result = forward(x.copy(), w.copy())
        (x, w)[index][0, 1] += 1.0
        return result

    return altering_forward


@pytest.mark.parametrize(("index", "name"), [(0, "x"), (1, "w")])
@CHECKS
def test_a_forward_that_alters_its_inputs_is_told(check, index, name, x, w):
    with pytest.raises(ValueError, match=rf"^forward: expected {name} to be left as it was, but it was written to"):
        check(altering(index), backward, x, w, rng=1)


@CHECKS
def test_a_backward_that_alters_what_it_is_given_is_told(check, x, w):
    def alters(d_out, saved):
        gradients = backward(d_out, saved)
        d_out *= 2
        return gradients

    with pytest.raises(ValueError, match=r"^backward: expected d_out to be left as it was, but it was written to"):
        check(forward, alters, x, w, rng=1)
    for index, name in enumerate(["x", "w", "out"]):

        def alters_saved(d_out, saved, index=index):
            gradients = backward(d_out, saved)
            saved[index][...] = 0
            return gradients

        with pytest.raises(ValueError, match=rf"^backward: expected {name} to be left as it was"):
            check(forward, alters_saved, x, w, rng=1)


@CHECKS
def test_a_forward_that_differs_from_call_to_call_is_told(check, x, w):
    noise = np.random.default_rng(0)

    def dropout(x, w):
        return forward(x * (noise.random(x.shape) < 0.5), w)

    with pytest.raises(ValueError, match=r"^forward: expected the same out for the same inputs, got another"):
        check(dropout, backward, x, w, rng=1)


@pytest.mark.parametrize("numbers", [[1.0, 2.0], [[1.0], [2.0]], [np.float64(1.0)]])
@CHECKS
def test_a_list_of_numbers_is_told(check, numbers, x):
    pair = lambda x, w: (x * np.sum(w), None), lambda d_out, saved: Gradients(d_out, np.zeros(2))
    for those in (pair[1], lambda d_out, saved: namedtuple("OnlyX", "x")(d_out)):
        with pytest.raises(TypeError, match=r"^w: expected a float64 array, or a tuple of them, got list"):
            check(pair[0], those, x, numbers, rng=1)


@CHECKS
def test_an_empty_list_holds_nothing_fixed(check, x):
    assert check(lambda x, names: (2 * x, None), lambda d_out, saved: namedtuple("OnlyX", "x")(2 * d_out), x, [], rng=1)


@CHECKS
def test_a_number_with_a_gradient_is_told(check, x):
    pair = lambda x, w: (x * w, x), lambda d_out, x: Gradients(d_out, float((d_out * x).sum()))
    with pytest.raises(TypeError, match=r"^w: expected a float64 array, or a tuple of them, got float"):
        check(*pair, x, 2.0, rng=1)


@CHECKS
def test_an_array_without_axes_as_input(check, x):
    pair = lambda x, w: (x * w, (x, w)), lambda d_out, saved: Gradients(d_out * saved[1], (d_out * saved[0]).sum())
    with_array = lambda d_out, saved: Gradients(*map(np.asarray, pair[1](d_out, saved)))  # noqa: E731
    check(pair[0], with_array, x, np.array(2.0), rng=1).assert_ok()
    assert not check(pair[0], spoiled(with_array, "zeros", "w"), x, np.array(2.0), rng=1)


# --- Inputs ---------------------------------------------------------------------------------------------------------


@CHECKS
def test_inputs_are_not_touched(check, x, w, rng):
    copies = x.copy(), w.copy()
    x.flags.writeable = w.flags.writeable = False
    check(forward, backward, x, w, rng=rng)
    np.testing.assert_array_equal(x, copies[0])
    np.testing.assert_array_equal(w, copies[1])


@CHECKS
def test_an_output_that_is_a_view_of_its_input(check, x, rng):
    assert check(lambda x: (x.T, None), lambda d_out, saved: d_out.T, x, rng=rng)
    assert not check(lambda x: (x.T, None), lambda d_out, saved: 2 * d_out.T, x, rng=rng)


@CHECKS
def test_a_number_as_output(check, x, rng):
    """A loss."""
    assert check(lambda x: (float((x**2).sum()), x), lambda d_out, x: 2 * d_out * x, x, rng=rng)
    assert not check(lambda x: (float((x**2).sum()), x), lambda d_out, x: d_out * x, x, rng=rng)


@CHECKS
def test_integer_arguments_none_and_constants(check, x, w, rng):
    rows = np.array([2, 0, 1, 1])

    def indexed(x, rows, bias, w):
        out, saved = forward(x[rows], w)
        return out, (x, rows, saved)

    def indexed_backward(d_out, saved):
        x, rows, inner = saved
        d_x = np.zeros_like(x)
        np.add.at(d_x, rows, backward(d_out, inner).x)
        return namedtuple("OnlyX", "x bias")(d_x, None)

    report = check(indexed, indexed_backward, x, rows, None, w, rng=rng)
    assert report.ok
    assert [entry.name for entry in report.worst_by_input] == ["x"]
    assert report.constants == ("w",)
    assert "held fixed: w" in str(report)


@CHECKS
def test_tuples_of_arrays(check, x, rng):
    """As the layer norms of a mechanism: one argument, several arrays."""

    class NormGradients(NamedTuple):
        x: np.ndarray
        norm: tuple[np.ndarray, tuple[np.ndarray]]

    norm = rng.standard_normal(4), (rng.standard_normal(4),)

    def affine(x, norm):
        gain, (bias,) = norm
        return x * gain + bias, (x, gain)

    def affine_backward(d_out, saved, error=0.0):
        x, gain = saved
        return NormGradients(d_out * gain, ((d_out * x).sum(axis=0), (d_out.sum(axis=0) + error,)))

    assert check(affine, affine_backward, x, norm, rng=rng).ok
    report = check(affine, partial(affine_backward, error=1.0), x, norm, rng=rng)
    assert not report.ok
    assert report.worst.name == "norm[1][0]"
    formula = lambda x, norm: x * norm[0] + norm[1][0]  # noqa: E731
    assert check_complex_step(formula, affine, affine_backward, x, norm, rng=rng).ok


def test_names_come_from_the_fields_where_forward_has_none(x, w, rng):
    report = check_elementwise(lambda *inputs: forward(*inputs), backward, x, w, rng=rng)
    assert [entry.name for entry in report.worst_by_input] == ["x", "w"]


def test_gradients_are_matched_by_name_not_by_order(x, w, rng):
    reordered = namedtuple("Reordered", "w x")
    assert check_elementwise(forward, with_gradients(lambda g: reordered(g.w, g.x)), x, w, rng=rng).ok


# --- What cannot be checked -----------------------------------------------------------------------------------------


@CHECKS
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.complex128])
def test_float64_is_required(check, dtype, x, w, rng):
    with pytest.raises(TypeError, match=r"^w: expected float64"):
        check(lambda x, w: forward(x, np.asarray(w.real, float)), backward, x, w.astype(dtype), rng=rng)


@CHECKS
def test_output_and_gradients_have_to_be_float64(check, x, w, rng):
    with pytest.raises(TypeError, match=r"^out: expected float64"):
        check(lambda x, w: (forward(x, w)[0].astype(np.float32), None), backward, x, w, rng=rng)
    with pytest.raises(TypeError, match=r"^gradient of w: expected float64"):
        check(forward, with_gradients(lambda g: g._replace(w=g.w.astype(np.float32))), x, w, rng=rng)


MALFORMED = {
    "shape": (lambda g: g._replace(w=g.w.T), r"^gradient of w: expected shape \(4, 2\) like w, got \(2, 4\)"),
    "broadcast": (lambda g: g._replace(x=g.x[:1]), r"^gradient of x: expected shape"),
    "None": (lambda g: g._replace(x=None), r"^gradient of x: expected one for each float array"),
    "too few": (lambda g: (g.x,), r"^backward: expected a gradient for each of the 2 float inputs"),
    "another name": (
        lambda g: namedtuple("Other", "x w b")(*g, g.x),
        r"^backward: expected a gradient for each.*'b'",
    ),
}


@CHECKS
@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_gradients_are_errors(check, case, x, w, rng):
    change, message = MALFORMED[case]
    with pytest.raises(ValueError, match=message):
        check(forward, with_gradients(change), x, w, rng=rng)


@CHECKS
def test_nothing_to_check_is_an_error(check, rng):
    no_gradients = namedtuple("Nothing", "")
    with pytest.raises(ValueError, match=r"^inputs: expected at least one"):
        check(lambda i: (np.zeros(2), None), lambda d_out, saved: no_gradients(), np.arange(3), rng=rng)


@CHECKS
def test_integers_with_a_gradient_are_named(check, x, rng):
    """Not the output, which has integers because they have."""
    rows = np.arange(6).reshape(3, 2)

    def product(x, w):
        return x @ w, (x, w)

    with pytest.raises(ValueError, match=r"^inputs: expected .* got none; x is int64; w is int64$"):
        check(product, backward, rows.T.astype(np.int64), rows.astype(np.int64), rng=rng)
    with pytest.raises(TypeError, match=r"^w: expected float64 .*, got int64$"):
        check(forward, backward, x[:, :3], rows.astype(np.int64), rng=rng)


@CHECKS
@pytest.mark.parametrize(
    ("result", "got"), [(np.ones((2, 3)), "ndarray"), (1.0, "float"), ((np.ones(2),) * 3, "3 of them"), (None, "None")]
)
def test_a_forward_without_saved_is_named(check, result, got, x, rng):
    with pytest.raises(TypeError, match=rf"^forward: expected two results, \(out, saved\), got {got}"):
        check(lambda x: result, lambda d_out, saved: d_out, x, rng=rng)


@CHECKS
@pytest.mark.parametrize("step", [0, -1e-6, np.nan, np.inf])
def test_a_step_that_is_none(check, step, x, w, rng):
    with pytest.raises(ValueError, match=r"^step: expected a finite number above 0, got "):
        check(forward, backward, x, w, rng=rng, step=step)


@pytest.mark.parametrize("name", ["rtol", "atol"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_a_tolerance_that_is_none(name, value, x, w, rng):
    for check in (check_elementwise, check_directions, partial(check_complex_step, lambda x, w: np.tanh(x @ w))):
        with pytest.raises(ValueError, match=rf"^{name}: expected a finite number, at least 0, got "):
            check(
                forward, with_gradients(lambda grads: Gradients(5 * grads.x, grads.w)), x, w, rng=rng, **{name: value}
            )


@CHECKS
def test_a_seed_does_for_a_generator(check, x, w):
    assert check(forward, backward, x, w, rng=3) == check(forward, backward, x, w, rng=np.random.default_rng(3))
    for rng in (None, True, -1, 0.5, np.random):
        with pytest.raises(TypeError, match=r"^rng: expected a numpy\.random\.Generator or a seed"):
            check(forward, backward, x, w, rng=rng)


def test_no_directions_is_an_error(x, w, rng):
    for wrong in (0, 2.5, True):
        with pytest.raises(ValueError, match=f"^directions: expected a whole number of at least 1, got {wrong}"):
            check_directions(forward, backward, x, w, rng=rng, directions=wrong)


def test_complex_step_refuses_another_function_and_a_lost_imaginary_part(x, w, rng):
    with pytest.raises(ValueError, match=r"^function: expected the output that forward gives"):
        check_complex_step(lambda x, w: np.tanh(x @ w) + 1e-6, forward, backward, x, w, rng=rng)
    with pytest.raises(TypeError, match=r"^function: expected a complex output"):
        check_complex_step(lambda x, w: np.tanh(x @ w).real, forward, backward, x, w, rng=rng)
    for wrong, of in ((np.zeros(2, np.float32), "float64"), ([0.0, 0.0], "a float64 array"), (0.0, "a float64 array")):
        with pytest.raises(TypeError, match=rf"^x: expected {of}"):
            complex_step(np.exp, wrong, 1.0)
    with pytest.raises(ValueError, match=r"^u: expected shape \(2,\) like out, got \(3, 2\)"):
        complex_step(np.exp, np.zeros(2), np.ones((3, 2)))
    with pytest.raises(TypeError, match=r"^u: expected real numbers, got complex128"):
        complex_step(np.exp, np.zeros(2), np.ones(2) * 1j)


def test_report_is_a_named_tuple(x, w, rng):
    report = check_elementwise(forward, backward, x, w, rng=rng)
    assert isinstance(report, Report)
    assert report._fields == ("method", "worst_by_input", "checked", "failed", "constants", "inconclusive")


def test_a_backward_that_returns_nothing_is_named(rng):
    with pytest.raises(TypeError, match=r"^backward: expected a NamedTuple of gradients or one array, got NoneType"):
        check_elementwise(lambda x: (x, None), lambda d_out, saved: None, np.ones(2), rng=rng)
