"""Writing: whichever way the scores come, the same network and seed write the same."""

from functools import partial

import numpy as np
import pytest
from mechanism_cases import MECHANISMS

from linattn_ref.attention import linear, local, softmax
from linattn_ref.kernels import jit
from linattn_ref.models import causal
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


@pytest.mark.parametrize("inside", RECURRENT, ids=str)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"temperature": 0.7, "top_k": 2}], ids=str)
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


@pytest.mark.slow
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


def test_wrong_arguments_are_named():
    params, model = drawn(), causal.Model(mechanism.of(local, window=2, causal=True), heads=2)
    write = partial(generate, PREFIX, params=params, model=model, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="count: 3 tokens and 21 more need 23 places, the network has 22"):
        write(21)
    with pytest.raises(ValueError, match=r"way: expected one of anew, got 'steps'$"):
        write(2, way="steps")
    with pytest.raises(ValueError, match=r"got 'compiled' \(there is none of linattn_ref.attention.local\)"):
        write(2, way="compiled")
    for wrong in (-1, np.inf, np.nan):
        with pytest.raises(ValueError, match=f"temperature: expected a finite number of at least 0, got {wrong}"):
            pick(np.zeros((1, 3)), np.random.default_rng(0), temperature=wrong)


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
