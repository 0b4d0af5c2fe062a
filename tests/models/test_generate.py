"""Writing: whichever way the scores come, the same network and seed write the same."""

from functools import partial

import numpy as np
import pytest
from mechanism_cases import MECHANISMS

from linattn_ref.attention import linear, local, softmax
from linattn_ref.kernels import jit, reference
from linattn_ref.models import causal
from linattn_ref.models import generate as generating
from linattn_ref.models.generate import generate, pick, ways
from linattn_ref.nn import logistic_mixture, mechanism

RECURRENT = [inside for inside in MECHANISMS if inside.causal and inside.mechanism.step]
PREFIX = np.array([[3, 1, 4], [1, 4, 0]])
PLACES = 22


def drawn(tokens=5, **more):
    params = causal.draw(np.random.default_rng(1), tokens=tokens, places=PLACES, width=8, hidden=16, layers=2, **more)
    params.embedding.table[...] *= 50
    params.positions.table[...] *= 50
    return params


def written_by_each(params, model, prefix=PREFIX, **options):
    write = partial(generate, prefix, PLACES + 1 - prefix.shape[1], params, model, **options)
    return [write(rng=np.random.default_rng(2), way=way) for way in ways(params, model)]


@pytest.mark.parametrize(
    ("inside", "options"),
    [
        pytest.param(inside, options, marks=[pytest.mark.slow] * bool(i and options), id=f"{inside}-{options}")
        for i, inside in enumerate(RECURRENT)
        for options in ({}, {"temperature": 0.0}, {"temperature": 0.7, "top_k": 2})
    ],
)
def test_both_ways_write_the_same(inside, options):
    written = written_by_each(drawn(own=[inside.own] * 2), causal.Model(inside.mechanism, heads=2), **options)
    np.testing.assert_array_equal(*written)
    np.testing.assert_array_equal(written[0][:, :3], PREFIX)
    assert written[0].shape == (2, PLACES + 1)


def test_each_new_token_is_a_step_of_the_progress():
    seen = []
    model = causal.Model(RECURRENT[0].mechanism, heads=2)
    generate(PREFIX, 2, drawn(), model, rng=np.random.default_rng(0), progress=lambda steps: seen.extend(steps) or seen)
    assert len(seen) == 2


@pytest.mark.parametrize("module", [linear, softmax])
@pytest.mark.parametrize("length", [1, 3])
def test_the_compiled_step_writes_the_same(module, length):
    params, prefix = drawn(), PREFIX[:, :length]
    by_text, again = written_by_each(params, causal.Model(mechanism.of(module, causal=True), heads=2), prefix)
    model = causal.Model(mechanism.of(module, causal=True, kernels=jit), heads=2)
    assert ways(params, model) == ("compiled", "steps", "anew")
    compiled = generate(prefix, PLACES + 1 - length, params, model, rng=np.random.default_rng(2))
    np.testing.assert_array_equal(compiled, by_text)
    np.testing.assert_array_equal(by_text, again)


@pytest.mark.parametrize(("kernels", "way"), [(jit, "compiled"), (reference, "steps")])
def test_unless_a_way_is_given_it_is_the_fastest(kernels, way, monkeypatch):
    monkeypatch.setattr(generating, "WAYS", {way: generating.WAYS[way]})
    model = causal.Model(mechanism.of(linear, causal=True, kernels=kernels), heads=2)
    assert generate(PREFIX, 2, drawn(), model, rng=np.random.default_rng(0)).shape == (2, 5)


def test_images_are_drawn_from_a_mixture():
    params = drawn(tokens=256, outputs=6)
    params.head.b[...] = [0, 0, -0.4, 0.4, -3, -3]  # two components, both narrow
    draw = {"sample": logistic_mixture.sample, "temperature": 0.9}
    model = causal.Model(mechanism.of(linear, causal=True), heads=2)
    by_steps, anew = written_by_each(params, model, **draw)
    np.testing.assert_array_equal(by_steps, anew)
    assert len(np.unique(by_steps)) > 10


def test_what_is_drawn_has_the_chances_of_the_scores():
    scores, draws = np.log([[0.1, 0.6, 0.3]]), 30_000
    rows = np.repeat(scores, draws, axis=0)
    often = np.bincount(pick(rows, np.random.default_rng(0)), minlength=3) / draws
    np.testing.assert_allclose(often, [0.1, 0.6, 0.3], atol=5 * np.sqrt(0.25 / draws))  # five standard deviations
    sharp = np.bincount(pick(rows, np.random.default_rng(0), temperature=0.5, top_k=2), minlength=3) / draws
    np.testing.assert_allclose(sharp, [0, 0.8, 0.2], atol=5 * np.sqrt(0.25 / draws))


@pytest.mark.parametrize("way", [None, "anew"])
@pytest.mark.parametrize("prefix", [PREFIX, PREFIX[:, :1]])
def test_a_network_that_sees_the_future_is_refused_in_every_way(way, prefix):
    model = causal.Model(mechanism.of(linear), heads=2)
    with pytest.raises(ValueError, match=r"^model\.mechanism: expected causal=True"):
        generate(prefix, 2, drawn(), model, rng=np.random.default_rng(0), way=way)


def test_wrong_arguments_are_named():
    params, model = drawn(), causal.Model(mechanism.of(local, window=2, causal=True), heads=2)
    write = partial(generate, PREFIX, params=params, model=model, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="count: 3 tokens and 21 more need 23 places, the network has 22"):
        write(21)
    with pytest.raises(ValueError, match="count: 3 tokens and 254 more need 256 places, the network has 22"):
        write(np.uint8(254))
    with pytest.raises(ValueError, match=r"way: expected one of anew, got 'steps'$"):
        write(2, way="steps")
    with pytest.raises(ValueError, match=r"got 'compiled' \(there is none of linattn_ref.attention.sparse.local\)"):
        write(2, way="compiled")
    for wrong in (-1, np.inf, np.nan):
        with pytest.raises(ValueError, match=f"temperature: expected a finite number of at least 0, got {wrong}"):
            pick(np.zeros((1, 3)), np.random.default_rng(0), temperature=wrong)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("row", "found"),
    [
        ([0.0, np.nan, 5.0], "nan"),
        ([0.0, np.inf, 5.0], "inf"),
        ([-np.inf] * 3, "nothing but -inf"),
        ([np.nan] * 3, "nan"),
        ([-np.inf, -np.inf, np.nan], "nan"),
    ],
)
def test_scores_without_a_softmax_are_refused(row, found, temperature):
    for top_k in (None, 1):
        with pytest.raises(ValueError, match=f"scores: expected finite numbers, .* got {found} in row 1$"):
            pick(np.array([[0.0, 1.0, -np.inf], row]), np.random.default_rng(0), temperature=temperature, top_k=top_k)


@pytest.mark.parametrize("scores", [np.zeros(3), np.zeros((1, 3), complex), np.zeros((2, 0)), [[1.0, 2.0]]])
def test_what_is_no_array_of_scores_is_refused(scores):
    with pytest.raises(ValueError, match=r"scores: expected an array of numbers \(B, V\)"):
        pick(scores, np.random.default_rng(0))


def test_top_k_draws_from_no_more_than_k():
    """Of equal scores the first; a score of -inf is not drawn even where ``k`` has room for it."""
    rows = np.tile([1.0, 3.0, -np.inf, 3.0, 3.0], (500, 1))
    for top_k, drawn in ((1, {1}), (2, {1, 3}), (np.uint8(3), {1, 3, 4}), (4, {0, 1, 3, 4}), (9, {0, 1, 3, 4})):
        for scores in (rows, rows.astype(np.float32)):
            assert set(pick(scores, np.random.default_rng(0), top_k=top_k).tolist()) == drawn
    whole = np.tile(np.array([0, 200, 7], np.uint8), (50, 1))
    assert set(pick(whole, np.random.default_rng(0), top_k=1).tolist()) == {1}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.uint64])
@pytest.mark.parametrize("way", ["steps", "anew"])
def test_a_prefix_of_small_integers_does_not_narrow_what_is_written(dtype, way):
    """Token 280 is more than a byte holds."""
    params, model = drawn(tokens=300), causal.Model(mechanism.of(linear, causal=True), heads=2)
    params.head.b[280] = 50
    written = generate(
        PREFIX.astype(dtype), dtype(4), params, model, rng=np.random.default_rng(0), temperature=0, way=way
    )
    assert written.dtype == np.int64
    np.testing.assert_array_equal(written, np.pad(PREFIX, ((0, 0), (0, 4)), constant_values=280))


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (np.array([1.0, 2.0]), TypeError, "sample: expected an array of integers, got float64"),
        (np.array([1, 5]), ValueError, "sample: expected numbers from 0 to 4, got 1 to 5"),
        (np.array([1]), ValueError, r"sample: expected tokens of shape \(2,\), got \(1,\)"),
    ],
)
def test_what_sample_returns_is_looked_at(answer, error, message):
    model = causal.Model(mechanism.of(linear, causal=True), heads=2)
    with pytest.raises(error, match=message):
        generate(PREFIX, 1, drawn(), model, rng=np.random.default_rng(0), sample=lambda scores, rng: answer)


def test_whole_numbers_are_scores_too():
    given = np.array([[3, 1, 2], [0, 5, 5]])
    drawn, as_floats = (pick(scores, np.random.default_rng(0)) for scores in (given, given.astype(float)))
    np.testing.assert_array_equal(drawn, as_floats)


@pytest.mark.parametrize("temperature", [0.0, 1e-320, 1e-50, 1e-38, 2e-38, 1e-6])
def test_a_temperature_close_to_0_takes_the_likeliest(temperature):
    """Without a warning, in float32, where the first three are 0."""
    scores = 100 * np.random.default_rng(0).standard_normal((50, 9)).astype(np.float32)  # over 2e-38 they overflow
    drawn = pick(scores, np.random.default_rng(1), temperature=temperature)
    np.testing.assert_array_equal(drawn, scores.argmax(axis=-1))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("temperature", [1e39, 10**400], ids=["1e39", "1e400"])
def test_a_temperature_beyond_the_numbers_of_the_scores_draws_evenly(dtype, temperature):
    """Without a warning, and never what has score -inf."""
    scores = np.tile(np.array([1, 5, -np.inf, 3], dtype), (300, 1))
    drawn = np.bincount(pick(scores, np.random.default_rng(0), temperature=temperature), minlength=4)
    assert drawn[2] == 0
    assert drawn[[0, 1, 3]].min() > 60


def test_16_bits_draw_every_token():
    assert pick(np.zeros((500, 8192), np.float16), np.random.default_rng(0)).max() > 8000
