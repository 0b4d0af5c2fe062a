"""What is special to Nyström attention: landmarks that are dropped, both pseudo-inverses, the convolution."""

from functools import partial
from itertools import pairwise

import numpy as np
import plain_loops
import pytest

from linattn_ref import gradcheck
from linattn_ref.attention import nystromformer, softmax

# Sums of some products of numbers of size 1 in float64, in another order.
close = partial(np.testing.assert_allclose, rtol=0, atol=1e-12)
each_pinv = pytest.mark.parametrize("pinv", nystromformer.PSEUDO_INVERSES)
DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def draw(rng, n=11, n_keys=13, leading=(2, 3), d=5, m=4):
    """Queries and keys in groups along a line, so that no landmark is a mixture of others, and values."""
    q, k = (0.5 * rng.standard_normal((*leading, length, d)) for length in (n, n_keys))
    for x in (q, k):
        x += np.linspace(-2, 2, x.shape[-2])[:, None]
    return q, k, rng.standard_normal((*leading, n_keys, m))


def softmax_rows(scores):
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def by_definition(q, k, v, landmarks, pinv, iterations=6, allowed=None):
    """One sequence, step by step, without the landmarks that have no key; and the condition of ``A``."""
    keys = np.arange(len(k)) if allowed is None else np.flatnonzero(allowed)
    pairs = []
    for rows, columns in zip(
        np.array_split(np.arange(len(q)), landmarks), np.array_split(np.arange(len(k)), landmarks), strict=True
    ):
        columns = np.intersect1d(columns, keys)
        if len(columns):
            pairs.append((q[rows].mean(axis=0), k[columns].mean(axis=0)))
    if not pairs:
        return np.zeros((len(q), v.shape[-1])), 1.0
    q_means, k_means = (np.stack(means) for means in zip(*pairs, strict=True))
    scale = 1 / np.sqrt(q.shape[-1])
    f, a, b = (softmax_rows(scale * x @ y.T) for x, y in ((q, k_means), (q_means, k_means), (q_means, k[keys])))
    if pinv == "exact":
        z = np.linalg.pinv(a)
    else:
        z = a.T / (abs(a).sum(axis=0).max() * abs(a).sum(axis=1).max())
        eye = np.eye(len(a))
        for _ in range(iterations):
            z = 0.25 * z @ (13 * eye - a @ z @ (15 * eye - a @ z @ (7 * eye - a @ z)))
    return f @ z @ b @ v[keys], np.linalg.cond(a)


# --- The definition -------------------------------------------------------------------------------------------------


@each_pinv
@pytest.mark.parametrize("landmarks", [1, 2, 3, 5])
@pytest.mark.parametrize("masked", [False, True])
def test_output_is_the_definition_s(rng, landmarks, pinv, masked):
    """Lengths 11 and 13 are no multiples; under the mask whole segments have no key, of one sequence all."""
    q, k, v = draw(rng)
    mask = rng.random((2, 3, 13)) < 0.6
    mask[0, 0, :7], mask[1, 1], mask[0, 2] = False, False, True
    options = {"landmarks": landmarks, "pinv": pinv, "key_mask": mask if masked else None}
    out, _ = nystromformer.forward(q, k, v, **options)
    for index in np.ndindex(2, 3):
        allowed = mask[index] if masked else None
        expected, condition = by_definition(q[index], k[index], v[index], landmarks, pinv, allowed=allowed)
        # A pseudo-inverse multiplies rounding by the condition number, up to 1900 here.
        rounding = np.finfo(np.float64).eps * condition * max(1, abs(expected).max())
        np.testing.assert_allclose(out[index], expected, rtol=0, atol=8 * rounding)
    seen = np.where(options["key_mask"][..., None], v, 0) if masked else v
    close(nystromformer.matrix(q, k, **options) @ seen, out)


def test_as_many_landmarks_as_tokens_is_softmax_attention(rng):
    """Every token is its own landmark, F = A = B = P, and P P^+ P = P."""
    q, k, v = draw(rng, 6, 6)
    out, _ = nystromformer.forward(q, k, v, landmarks=6, pinv="exact")
    np.testing.assert_allclose(out, softmax.forward(q, k, v)[0], rtol=0, atol=1e-9)  # A's condition is up to 1e5


def test_one_landmark_answers_for_all_queries(rng):
    """What the mean query gets."""
    q, k, v = draw(rng)
    out, _ = nystromformer.forward(q, k, v, landmarks=1)
    close(out, np.broadcast_to(softmax.forward(q.mean(axis=-2, keepdims=True), k, v)[0], out.shape))


def test_more_iterations_come_to_the_exact_output(rng):
    q, k, v = draw(rng)
    exact, _ = nystromformer.forward(q, k, v, landmarks=3, pinv="exact")
    errors = [
        abs(nystromformer.forward(q, k, v, landmarks=3, iterations=i)[0] - exact).max() for i in (1, 3, 6, 9, 12, 15)
    ]
    assert errors[0] > 0.1
    assert errors[-1] < 1e-11
    assert all(later < earlier or later < 1e-11 for earlier, later in pairwise(errors))


@each_pinv
def test_the_matrix_has_rank_r(rng, pinv):
    q, k, _ = draw(rng, leading=())
    p = nystromformer.matrix(q, k, landmarks=3, pinv=pinv)
    assert np.linalg.matrix_rank(p, tol=1e-10) == 3
    if pinv == "exact":
        close(p.sum(axis=-1), np.ones(11))  # A^-1 1 = 1, as A 1 = 1


# --- Masks ----------------------------------------------------------------------------------------------------------


@each_pinv
def test_a_dropped_landmark_has_no_part(rng, pinv):
    """Neither the queries of its segment as a landmark, nor its place in A and Z; other sequences keep it."""
    q, k, v = draw(rng, 12, 12, leading=(2,))
    mask = np.ones((2, 12), bool)
    mask[0, 3:6] = False  # all of landmark 1
    options = {"landmarks": 4, "pinv": pinv, "key_mask": mask}
    out, saved = nystromformer.forward(q, k, v, **options)
    for x in (saved.inverse.a, saved.z):
        assert not x[0, 1].any()
        assert not x[0, :, 1].any()
        assert x[1].all()
    # The queries of that segment see the other landmarks as before when one of them moves.
    moved = q.copy()
    moved[0, 4] += 1
    after, _ = nystromformer.forward(moved, k, v, **options)
    others = np.arange(12) != 4
    np.testing.assert_array_equal(after[0, others], out[0, others])
    assert (after[0, 4] != out[0, 4]).any()


@each_pinv
def test_gradients_with_dropped_landmarks(rng, pinv):
    q, k, v = draw(rng, 9, 8, leading=(2,), d=3, m=2)
    mask = np.ones((2, 8), bool)
    mask[0, :4] = False  # landmark 0 and a key of landmark 1
    mask[1, 7] = False
    forward = partial(nystromformer.forward, landmarks=3, pinv=pinv, key_mask=mask)
    gradcheck.check_elementwise(forward, nystromformer.backward, q, k, v, rng=rng).assert_ok()


@each_pinv
def test_masked_queries_have_no_part_in_landmarks(rng, pinv):
    """Against loops, and finite differences; a row changes with its own query alone."""
    q, k, v = draw(rng, 9, 8, leading=(2,), d=3, m=2)
    masks = {"key_mask": np.ones((2, 8), bool), "query_mask": np.ones((2, 9), bool)}
    masks["key_mask"][0, 3:6] = False  # landmark 1
    masks["query_mask"][0, :3] = False  # landmark 0
    masks["query_mask"][:, 7] = False
    forward = partial(nystromformer.forward, landmarks=3, pinv=pinv, **masks)
    out, _ = forward(q, k, v)
    for i in range(2):
        of_one = {name: mask[i] for name, mask in masks.items()}
        expected = plain_loops.nystromformer(q[i], k[i], v[i], landmarks=3, pinv=pinv, **of_one)
        np.testing.assert_allclose(out[i], expected, rtol=1e-8, atol=1e-10)
    gradcheck.check_elementwise(forward, nystromformer.backward, q, k, v, rng=rng).assert_ok()
    moved = np.where(masks["query_mask"][..., None], q, q + 1)
    after, _ = forward(moved, k, v)
    np.testing.assert_array_equal(after[masks["query_mask"]], out[masks["query_mask"]])


# --- The pseudo-inverse ---------------------------------------------------------------------------------------------


@each_pinv
def test_no_sequence_changes_another(rng, pinv):
    """By a bit. Norms over the whole batch, as public implementations have them, would."""
    q, k, v = draw(rng, leading=(3,))
    d_out = rng.standard_normal((3, 11, 4))
    out, saved = nystromformer.forward(q, k, v, landmarks=4, pinv=pinv)
    gradients = nystromformer.backward(d_out, saved)
    k[1:] *= 5  # sharper rows, larger column sums
    after, saved = nystromformer.forward(q, k, v, landmarks=4, pinv=pinv)
    np.testing.assert_array_equal(after[0], out[0])
    for x, y in zip(nystromformer.backward(d_out, saved)[:3], gradients[:3], strict=True):
        np.testing.assert_array_equal(x[0], y[0])


@each_pinv
@pytest.mark.parametrize("landmarks", [2, 4])
def test_gradients_of_the_whole(rng, landmarks, pinv):
    q, k, v = draw(rng, 9, 9, leading=(2,), d=3, m=2)
    conv = rng.standard_normal((2, 3))
    forward = partial(nystromformer.forward, landmarks=landmarks, pinv=pinv)
    report = gradcheck.check_elementwise(forward, nystromformer.backward, q, k, v, conv, rng=rng)
    report.assert_ok()
    assert {entry.name for entry in report.worst_by_input} == {"q", "k", "v", "conv"}


@each_pinv
def test_equal_keys_give_the_mean_of_the_values(rng, pinv):
    """All of A is then 1/R, of rank 1, and A^+ = A."""
    q, _, v = draw(rng)
    out, _ = nystromformer.forward(q, np.ones((2, 3, 13, 5)), v, landmarks=4, pinv=pinv, iterations=10)
    close(out, np.broadcast_to(v.mean(axis=-2, keepdims=True), out.shape))


# --- The convolution ------------------------------------------------------------------------------------------------


def test_the_convolution_is_added(rng):
    """Masked values are 0 in it."""
    q, k, v = draw(rng, 9, 9)
    conv, mask = rng.standard_normal((3, 5)), rng.random((2, 3, 9)) < 0.7
    options = {"landmarks": 3, "key_mask": mask}
    out, _ = nystromformer.forward(q, k, v, conv, **options)
    without, saved = nystromformer.forward(q, k, v, **options)
    seen = np.pad(np.where(mask[..., None], v, 0), [(0, 0), (0, 0), (2, 2), (0, 0)])
    close(out - without, sum(conv[:, t, None, None] * seen[:, :, t : t + 9] for t in range(5)))
    grads = nystromformer.backward(out, saved)
    assert grads.conv is None  # there was none


def test_without_leading_axes_a_row_or_a_matrix_of_one_row(rng):
    q, k, v = draw(rng, 9, 9, leading=())
    conv = rng.standard_normal(5)
    results = [nystromformer.forward(q, k, v, c, landmarks=3) for c in (conv, conv[None])]
    close(results[0][0], results[1][0])
    for c, (out, saved) in zip((conv, conv[None]), results, strict=True):
        assert nystromformer.backward(out, saved).conv.shape == c.shape


# --- Bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("landmarks", [0, -1, 12, 64, True, False, 2.0, "3"])
def test_landmarks_are_a_count_up_to_the_shorter_sequence(rng, landmarks):
    """12 would do for the 13 keys, not for the 11 queries."""
    q, k, v = draw(rng)
    message = r"^landmarks: expected an integer with 1 <= R <= min\(N, L\) = 11, got "
    with pytest.raises(ValueError, match=message + repr(landmarks)):
        nystromformer.forward(q, k, v, landmarks=landmarks)
    with pytest.raises(ValueError, match=message):
        nystromformer.matrix(q, k, landmarks=landmarks)


@pytest.mark.parametrize(("n", "n_keys", "landmarks"), [(70, 65, 64), (70, 63, 63), (5, 70, 5), (1, 1, 1)])
def test_there_are_64_landmarks_unless_given_or_as_many_as_there_can_be(rng, n, n_keys, landmarks):
    q, k, v = draw(rng, n, n_keys, leading=())
    np.testing.assert_array_equal(
        nystromformer.forward(q, k, v)[0], nystromformer.forward(q, k, v, landmarks=landmarks, iterations=6)[0]
    )
    np.testing.assert_array_equal(nystromformer.matrix(q, k), nystromformer.matrix(q, k, landmarks=landmarks))
    if landmarks < 64:  # one that is given is kept to
        with pytest.raises(ValueError, match=rf"^landmarks: .* = {landmarks}, got 64"):
            nystromformer.forward(q, k, v, landmarks=64)


def test_other_options_that_are_refused(rng):
    q, k, v = draw(rng)
    forward = partial(nystromformer.forward, q, k, v, landmarks=3)
    with pytest.raises(ValueError, match=r"^pinv: expected one of iterative, exact, got 'svd'"):
        forward(pinv="svd")
    for pinv in nystromformer.PSEUDO_INVERSES:
        with pytest.raises(ValueError, match=r"^iterations: expected an integer of at least 1, got 0"):
            forward(pinv=pinv, iterations=0)
    with pytest.raises(ValueError, match=r"^conv: needs N = L, a value for each query, got N = 11 and L = 13"):
        forward(np.ones((3, 3)))
    q, k, v = draw(rng, 9, 9)
    with pytest.raises(ValueError, match=r"^conv: expected shape \(H, K\) with H = 3"):
        nystromformer.forward(q, k, v, np.ones((1, 3)), landmarks=3)
    with pytest.raises(ValueError, match=r"^conv: expected an odd number of weights K, got 2"):
        nystromformer.forward(q, k, v, np.ones((3, 2)), landmarks=3)
