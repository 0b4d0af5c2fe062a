"""LSH attention: the hash, who meets whom, and that several rounds are one softmax."""

import math
import re
import tracemalloc
from functools import partial

import numpy as np
import pytest
from cases import each_compiled_dtype

from linattn_ref.attention import lsh_hashing, reformer, softmax
from linattn_ref.gradcheck import check_directions
from linattn_ref.kernels import jit, reference

BACKENDS = pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
# Sums of at most 100 products of numbers of size 1 in float64: some 100 roundings of 2.2e-16.
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-13)


def draw(n=30, rounds=3, *, leading=(2,), n_buckets=6, seed=0):
    rng = np.random.default_rng(seed)
    qk, v = rng.standard_normal((*leading, n, 4)), rng.standard_normal((*leading, n, 3))
    return qk, v, reformer.draw_rotations(rounds, 4, n_buckets, rng)


# --- The hash and the order -----------------------------------------------------------------------------------------


def test_hash_is_the_largest_of_both_ends_of_every_axis():
    qk, _, rotations = draw()
    expected = [np.concatenate([qk @ r, -(qk @ r)], axis=-1).argmax(axis=-1) for r in rotations]
    np.testing.assert_array_equal(reformer.buckets(qk, rotations), np.stack(expected, axis=-2))


def test_hash_looks_at_directions_alone():
    qk, _, rotations = draw()
    there, opposite = reformer.buckets(qk, rotations), reformer.buckets(-3 * qk, rotations)
    np.testing.assert_array_equal(reformer.buckets(2 * qk, rotations), there)
    np.testing.assert_array_equal(opposite, (there + 3) % 6)  # the other end of the same axis


def test_a_tie_goes_to_the_first():
    """Of both ends of all axes, those of ``x`` before those of ``-x``."""
    assert not reformer.buckets(np.zeros((5, 4)), draw()[2]).any()
    assert reformer.buckets(np.ones((1, 1)), np.array([[[-3.0, 3.0]]])) == 1


def test_chunks_have_a_size():
    order = np.zeros((1, 4), np.int32)
    for call in (lsh_hashing.chunk_of_token, lsh_hashing.pattern_of):
        with pytest.raises(ValueError, match=r"^chunk: expected an integer of at least 1, got 0"):
            call(order, 0)


def test_order_is_by_bucket_then_position_with_masked_tokens_last():
    buckets = np.array([[2, 0, 1, 0, 2, 1]])
    key_mask = np.array([True, True, False, True, True, True])
    assert lsh_hashing.order_by_bucket(buckets).tolist() == [[1, 3, 2, 5, 0, 4]]
    assert lsh_hashing.order_by_bucket(buckets, key_mask).tolist() == [[1, 3, 5, 0, 4, 2]]
    assert lsh_hashing.chunk_of_token(lsh_hashing.order_by_bucket(buckets), 4).tolist() == [[1, 0, 0, 0, 1, 0]]
    assert not lsh_hashing.chunk_of_token(lsh_hashing.order_by_bucket(buckets), 2**31).any()


@pytest.mark.parametrize(("n_buckets", "match"), [(5, "even number"), (0, "at least 1")])
def test_rotations_need_an_even_number_of_buckets(n_buckets, match):
    with pytest.raises(ValueError, match=rf"^n_buckets: .*{match}"):
        reformer.draw_rotations(1, 4, n_buckets, np.random.default_rng(0))


# --- Who meets whom, read from the paper word by word ---------------------------------------------------------------


def met_by_loops(buckets, chunk, causal, key_mask):
    """For each round, whom each token meets, itself left out: ``[round][i]`` is a set."""
    rounds, n = buckets.shape
    found = []
    for r in range(rounds):
        there = [i for i in range(n) if key_mask[i]]
        there.sort(key=lambda i: (buckets[r, i], i))
        chunks = [there[start : start + chunk] for start in range(0, len(there), chunk)]
        met = [set() for _ in range(n)]
        for c, members in enumerate(chunks):
            near = members + (chunks[c - 1] if c > 0 else [])
            for i in members:
                met[i] = {j for j in near if j != i and not (causal and j > i)}
        found.append(met)
    return found


def test_rounds_combined_as_in_the_paper_are_one_softmax_over_their_union():
    """Loops over rounds and pairs, with the counts and the log-sum-exps of the paper's appendix A."""
    for seed, (causal, masked, chunk) in enumerate(
        [(False, False, 4), (True, False, 5), (False, True, 3), (True, True, 7)]
    ):
        qk, v, rotations = draw(leading=(), seed=seed)
        key_mask = np.random.default_rng(seed).random(30) < (0.6 if masked else 2)
        met = met_by_loops(reformer.buckets(qk, rotations), chunk, causal, key_mask)
        k = qk / np.linalg.norm(qk, axis=1, keepdims=True)
        expected, pattern = np.zeros((30, 3)), np.zeros((30, 30), bool)
        for i in np.flatnonzero(key_mask):
            union = set.union(*(round_[i] for round_ in met)) or {i}
            pattern[i, list(union)] = True
            if union == {i}:
                expected[i] = v[i]
                continue
            z, o = [], []
            for round_ in met:
                if round_[i]:
                    shares = {j: math.exp(qk[i] @ k[j] / 2) / sum(j in other[i] for other in met) for j in round_[i]}
                    z.append(math.log(sum(shares.values())))
                    o.append(sum(share * v[j] for j, share in shares.items()) / sum(shares.values()))
            whole = math.log(sum(math.exp(x) for x in z))
            expected[i] = sum(math.exp(x - whole) * part for x, part in zip(z, o, strict=True))
        options = {"rotations": rotations, "chunk": chunk, "causal": causal, "key_mask": key_mask}
        np.testing.assert_array_equal(reformer.pattern(qk, **options), pattern)
        for kernels in (reference, jit):
            same(reformer.forward(qk, v, **options, kernels=kernels)[0], expected)
        scores = np.where(pattern, qk @ k.T / 2, -np.inf)[key_mask]
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        same(expected[key_mask], weights / weights.sum(axis=1, keepdims=True) @ v)


def test_some_pairs_meet_in_several_rounds():
    """Otherwise the test above would not see a wrong count."""
    qk, _, rotations = draw(leading=())
    met = met_by_loops(reformer.buckets(qk, rotations), 4, False, np.ones(30, bool))
    counts = {sum(j in round_[i] for round_ in met) for i in range(30) for j in range(30)}
    assert counts == {0, 1, 2, 3}


@BACKENDS
def test_one_chunk_is_softmax_attention_to_all_others(kernels):
    qk, v, rotations = draw()
    k = qk / np.linalg.norm(qk, axis=-1, keepdims=True)
    out, _ = reformer.forward(qk, v, rotations=rotations, chunk=50, kernels=kernels)
    for i in range(30):
        others = np.arange(30) != i
        same(out[:, i : i + 1], softmax.forward(qk[:, i : i + 1], k[:, others], v[:, others])[0])


@BACKENDS
def test_rounds_that_are_the_same_change_nothing(kernels):
    qk, v, rotations = draw(rounds=1)
    once, _ = reformer.forward(qk, v, rotations=rotations, chunk=4, kernels=kernels)
    many, _ = reformer.forward(qk, v, rotations=np.repeat(rotations, 5, axis=0), chunk=4, kernels=kernels)
    same(many, once)


# --- Itself ---------------------------------------------------------------------------------------------------------


@BACKENDS
def test_a_token_sees_itself_only_if_it_is_alone_in_every_round(kernels):
    """Chunks of 1, causal: token 1 follows 0 in round 0 and goes before it in round 1; token 0 is first in time."""
    qk, v, _ = draw(n=2, leading=())
    attend = partial(reformer.forward, qk, v, chunk=1, causal=True, kernels=kernels)
    out, _ = attend(buckets=np.array([[0, 1], [1, 0]]))
    np.testing.assert_array_equal(out, v[[0, 0]])
    out, saved = attend(buckets=np.array([[1, 0]]))  # 1 is before 0 in the order: neither meets the other
    np.testing.assert_array_equal(out, v)
    d_out = np.ones((2, 3))
    gradients = reformer.backward(d_out, saved)
    assert not gradients.qk.any()
    np.testing.assert_array_equal(gradients.v, d_out)


@BACKENDS
@each_compiled_dtype
def test_the_similarity_with_itself_does_not_overflow(kernels, dtype):
    """It is the largest, and hidden: its exponential beside the others' log-sum-exp is beyond any float."""
    rng = np.random.default_rng(0)
    qk, v = (rng.standard_normal((40, 4)).astype(dtype) for _ in range(2))
    qk *= dtype(5000)
    out, saved = reformer.forward(qk, v, rotations=draw()[2], chunk=7, kernels=kernels)
    gradients = reformer.backward(out, saved)
    assert all(np.isfinite(x).all() for x in (out, *gradients))


@BACKENDS
def test_a_zero_vector_is_a_key_of_zeros_with_no_gradient_as_a_key(kernels):
    """It scores 0 with everyone; as a query it has a gradient."""
    qk, v, rotations = draw(leading=())
    qk[3] = 0
    out, saved = reformer.forward(qk, v, rotations=rotations, chunk=50, kernels=kernels)
    same(out[3], np.delete(v, 3, axis=0).mean(axis=0))
    d_out = np.random.default_rng(1).standard_normal(out.shape)
    d_out[3] = 0
    assert not reformer.backward(d_out, saved).qk[3].any()
    d_out[3] = 1
    assert reformer.backward(d_out, saved).qk[3].any()


def test_a_length_whose_square_underflows():
    qk, v, rotations = draw()
    (expected, _), (out, saved) = (
        reformer.forward(1e-162 * qk, v, rotations=rotations, chunk=4, kernels=kernels) for kernels in (reference, jit)
    )
    np.testing.assert_allclose(saved.length[..., 0], 1e-162 * np.linalg.norm(qk, axis=-1), rtol=1e-14)
    same(out, expected)


# --- Masked tokens, and the future ----------------------------------------------------------------------------------


@BACKENDS
def test_a_masked_token_is_neither_key_nor_query(kernels):
    """As if it were not there, wherever it is; its own output is 0."""
    qk, v, rotations = draw(leading=())
    key_mask = np.random.default_rng(3).random(30) < 0.6
    out, _ = reformer.forward(qk, v, rotations=rotations, chunk=4, key_mask=key_mask, kernels=kernels)
    alone, _ = reformer.forward(qk[key_mask], v[key_mask], rotations=rotations, chunk=4, kernels=kernels)
    same(out[key_mask], alone)
    assert not out[~key_mask].any()


def test_causal_weights_do_not_see_the_future_but_who_is_met_depends_on_it():
    """A later token that moves to another bucket shifts the chunks, and an early token meets other early ones."""
    qk, v, _ = draw(n=6, rounds=1, leading=())
    attend = partial(reformer.forward, qk, v, chunk=2, causal=True)
    before, after = np.array([[1, 1, 1, 1, 1, 2]]), np.array([[1, 1, 1, 1, 1, 0]])
    met_before, met_after = (reformer.pattern(qk, chunk=2, causal=True, buckets=b) for b in (before, after))
    assert not np.triu(met_before, 1).any()
    assert not np.triu(met_after, 1).any()
    assert met_before[4].tolist() != met_after[4].tolist()
    assert not np.allclose(attend(buckets=before)[0][4], attend(buckets=after)[0][4])


# --- Gradients ------------------------------------------------------------------------------------------------------


@BACKENDS
@pytest.mark.parametrize("rounds", [1, 3, 8])
def test_gradient_with_many_rounds(kernels, rounds):
    """The share of a pair that meets in several rounds counts once, backwards too."""
    qk, v, rotations = draw(n=70, rounds=rounds)
    forward = partial(reformer.forward, chunk=6, kernels=kernels, buckets=reformer.buckets(qk, rotations))
    check_directions(forward, reformer.backward, qk, v, rng=np.random.default_rng(0)).assert_ok()


def test_given_buckets_are_those_of_the_rotations():
    qk, v, rotations = draw()
    expected, _ = reformer.forward(qk, v, rotations=rotations, chunk=4)
    out, _ = reformer.forward(qk, v, chunk=4, buckets=reformer.buckets(qk, rotations))
    np.testing.assert_array_equal(out, expected)


def test_rotations_may_be_of_another_dtype():
    qk, v, rotations = (x.astype(np.float32) for x in draw())
    expected, _ = reformer.forward(qk, v, rotations=rotations, chunk=4)
    out, saved = reformer.forward(qk, v, rotations=rotations.astype(np.float64), chunk=4)
    np.testing.assert_array_equal(out, expected)
    assert {x.dtype for x in (out, *reformer.backward(out, saved))} == {np.dtype(np.float32)}


def test_buckets_of_few_bits_leave_room_for_masked_tokens():
    qk, v, rotations = draw(n_buckets=256)
    buckets, key_mask = reformer.buckets(qk, rotations), np.arange(30) < np.array([[20], [29]])
    buckets[0, 0, 3] = 255
    expected, _ = reformer.forward(qk, v, buckets=buckets, chunk=4, key_mask=key_mask)
    got, _ = reformer.forward(qk, v, buckets=buckets.astype(np.uint8), chunk=4, key_mask=key_mask)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", [pytest.param(np.float32, marks=pytest.mark.slow), np.float64])
def test_large_scores_are_rounded_alike_forward_and_backward(dtype):
    """Rounded in two ways, scores of 1e20 are so far apart that weights would be infinite."""
    qk, v, rotations = (x.astype(dtype) for x in draw())
    found, expected = (
        reformer.forward(dtype(1e20) * qk, v, rotations=rotations, chunk=4, scale=0.3, kernels=kernels)
        for kernels in (jit, reference)
    )
    found, expected = (reformer.backward(np.ones_like(out), saved).v for out, saved in (found, expected))
    np.testing.assert_allclose(found, expected, rtol=8 * np.finfo(dtype).eps)


@pytest.mark.parametrize("kernels", [reference, jit])
def test_a_chunk_longer_than_the_sequence_is_one_chunk(kernels):
    """In memory too, which would be the square of the chunk."""
    qk, v = np.random.default_rng(0).standard_normal((2, 7, 4))
    d_out, buckets = np.ones((7, 4)), np.arange(7)[None]
    expected, saved = reformer.forward(qk, v, chunk=7, buckets=buckets, kernels=kernels)
    gradients = reformer.backward(d_out, saved)
    tracemalloc.start()
    out, saved = reformer.forward(qk, v, chunk=20_000, buckets=buckets, kernels=kernels)
    found = reformer.backward(d_out, saved)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(out, expected)
    for a, b in zip(found, gradients, strict=True):
        np.testing.assert_array_equal(a, b)
    assert peak < 100_000


@pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
def test_what_the_hash_is_made_of(kernels):
    x, options = np.random.default_rng(0).standard_normal((4, 3)), {"chunk": 2, "kernels": kernels}
    for largest in (np.int64(2**63 - 1), np.uint64(2**63)):
        with pytest.raises(ValueError, match=rf"^buckets: expected numbers below 2\*\*63 - 1, got {largest}$"):
            reformer.forward(x, x, buckets=np.array([[0, largest, 1, 2]], largest.dtype), **options)
    with pytest.raises(ValueError, match=r"^rotations: expected finite numbers"):
        reformer.buckets(x, np.full((1, 3, 1), np.nan))
    for shape in ((0, 3, 2), (1, 3, 0)):
        match = rf"^rotations: every axis needs at least one entry, got shape {re.escape(str(shape))}$"
        for call in (reformer.buckets, partial(reformer.pattern, chunk=2)):
            with pytest.raises(ValueError, match=match):
                call(x, rotations=np.zeros(shape))
    with pytest.raises(TypeError, match=r"^rng: expected a numpy.random.Generator, got int"):
        reformer.draw_rotations(1, 3, 4, 0)


@pytest.mark.filterwarnings("ignore:overflow")
def test_the_gradient_of_the_shortest_vectors():
    x = np.random.default_rng(0).standard_normal((5, 1))
    x[2] = 1e-310
    grads = []
    for kernels in (reference, jit):
        out, saved = reformer.forward(x, x, buckets=np.zeros((1, 5), int), chunk=5, kernels=kernels)
        grads.append(reformer.backward(np.cos(out), saved).qk)
    assert np.isfinite(grads[0]).all()
    np.testing.assert_allclose(*grads, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
def test_keys_at_either_end_of_the_range(kernels):
    """Their length is beyond it, or has no digits; their direction is as good as any."""
    v = np.array([[1.0], [2.0], [4.0]])
    for end in (1.7e308, 5e-324):
        x = np.array([[end, end], [1.0, 1.0], [1.0, -1.0]])
        with np.errstate(over="ignore"):
            out, _ = reformer.forward(x, v, chunk=3, buckets=np.zeros((1, 3), int), scale=1.0, kernels=kernels)
        e = np.exp(2**0.5)
        np.testing.assert_allclose(out[1, 0], (e + 4) / (e + 1), rtol=1e-12)
