"""Masked language modelling: what is hidden, what counts say, a run, its command."""

import numpy as np
import pytest

from linattn_ref import cli
from linattn_ref.attention import linformer, softmax
from linattn_ref.data import subwords
from linattn_ref.experiments.learning import encoder_attention, learn, mlm, mlm_start, ngrams
from linattn_ref.models import encoder, masked_tokens
from linattn_ref.nested import map_arrays
from linattn_ref.nn import mechanism
from linattn_ref.training import adam, parameters

TINY = mlm.Shape(width=16, hidden=32, heads=2, layers=1, length=16, tokens=128, vocabulary=300)


def test_what_is_hidden():
    """15 % of each window, in the shares of BERT, never a separator, and the targets are what stood there."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(len(subwords.SPECIAL), 1000, (200, 100))
    tokens[:, ::10] = subwords.SEP
    read, chosen, targets = mlm.hide(tokens, rng, 1000)
    assert chosen.size == 200 * 15
    assert (np.bincount(chosen // 100, minlength=200) == 15).all()
    np.testing.assert_array_equal(targets, tokens.ravel()[chosen])
    assert (targets != subwords.SEP).all()
    others = np.setdiff1d(np.arange(tokens.size), chosen)
    np.testing.assert_array_equal(read.ravel()[others], tokens.ravel()[others])
    shown = read.ravel()[chosen]
    shares = [(shown == subwords.MASK).mean(), (shown == targets).mean()]
    np.testing.assert_allclose(shares, [0.8, 0.1], atol=5 * np.sqrt(0.8 * 0.2 / 3000))  # five standard deviations


def test_counts_of_pieces_and_pairs_are_probabilities():
    training = np.random.default_rng(0).integers(0, 6, 50)
    for before in (0, 3):
        each = [ngrams.surprise(training, np.array([before]), np.array([t]), 7) for t in range(7)]
        for name in each[0]:
            assert sum(np.exp(-found[name]) for found in each) == pytest.approx(1, rel=1e-12)
    for s, r in ((3, 2), (3, -1), (-1, 2), (6, 6), (-1, -1)):  # 6 is never seen
        one = [ngrams.between(training, [s], [t], [r], 7) for t in range(7)]
        assert np.exp(-np.array(one)).sum() == pytest.approx(1, rel=1e-12)
        if r < 0:  # by one neighbour, or by none
            name, at = ("pieces alone", 0) if s < 0 else ("pairs of pieces", s)
            expected = [ngrams.surprise(training, np.array([at]), np.array([t]), 7)[name] for t in range(7)]
            np.testing.assert_allclose(one, expected, rtol=1e-12)
    p = np.array([[ngrams.between(training, [s], [t], [-1], 7) for t in range(7)] for s in range(7)])
    p = np.exp(-p)  # p(t | s)
    expected = -np.log(p[3] * p[:, 2] / (p[3] @ p[:, 2]))
    np.testing.assert_allclose([ngrams.between(training, [3], [t], [2], 7) for t in range(7)], expected, rtol=1e-12)
    never = ngrams.surprise(np.array([0, 1, 0, 1]), np.array([5]), np.array([1]), 6)
    assert never["pairs of pieces"] == never["pieces alone"]


def test_a_head_begins_by_looking_beside():
    """Without tokens, the mean over draws: the best score is one place before, one behind, two before, two behind."""
    rng, best = np.random.default_rng(0), np.zeros((4, 64, 64))
    for _ in range(200):
        below = encoder.draw(rng, tokens=5, places=64, width=32, hidden=16, layers=1)
        params = mlm_start.begun(masked_tokens.draw(below, rng), 4, rng).encoder
        q, k, _ = np.split(params.positions.table @ params.blocks[0].attention.inner.w, 3, axis=-1)
        best += np.stack([a @ b.T for a, b in zip(np.split(q, 4, axis=1), np.split(k, 4, axis=1), strict=True)])
    inner = np.arange(3, 61)
    for scores, offset in zip(best, (-1, 1, -2, 2), strict=True):
        np.testing.assert_array_equal(scores[inner].argmax(axis=1), inner + offset)
    assert params.embedding.table[:, 16:].std() == pytest.approx(mlm_start.SPREAD, rel=0.3)  # 80 numbers
    assert params.positions.table[:, :16].std() == pytest.approx(mlm_start.SPREAD, rel=0.1)


def test_a_mechanism_of_other_projections_keeps_them():
    """Reformer's two are as they were drawn."""
    rng = np.random.default_rng(0)
    below = encoder.draw(rng, tokens=5, places=16, width=16, hidden=16, layers=1, reads=2)
    drawn = below.blocks[0].attention.inner.w.copy()
    begun = mlm_start.begun(masked_tokens.draw(below, rng), 2, rng)
    np.testing.assert_array_equal(begun.encoder.blocks[0].attention.inner.w, drawn)


def test_all_pieces_begin_nearly_equal():
    rng = np.random.default_rng(0)
    below = encoder.draw(rng, tokens=50, places=16, width=32, hidden=32, layers=1)
    params = mlm_start.begun(masked_tokens.draw(below, rng), 2, rng)
    tokens, chosen = rng.integers(0, 50, (4, 16)), np.arange(64)
    scores, _ = masked_tokens.forward(tokens, params, encoder.Model(mechanism.of(softmax), 2), chosen=chosen)
    assert scores.std() < 0.3  # nats


@pytest.mark.parametrize("ratio", [0.0, 0.1, 1.0])
def test_a_step_of_the_projections_is_a_part_of_adams(ratio):
    """All other numbers move as ever; what two layers share moves once."""
    rng, shared = np.random.default_rng(0), np.full((2, 4), 0.25)
    below = encoder.draw(rng, tokens=5, places=4, width=4, hidden=4, layers=2, own=[(shared, shared)] * 2)
    drawn = masked_tokens.draw(below, rng)
    (_, start), (_, usual), (_, own) = (parameters.flatten(drawn) for _ in range(3))
    grads = map_arrays(lambda x: rng.standard_normal(x.shape), drawn)
    adam.step(usual, grads, adam.init_state(usual), learning_rate=0.01)
    optimiser = mlm.OwnRate(ratio)
    optimiser.step(own, grads, optimiser.init_state(own), learning_rate=0.01)
    for (name, before), (_, whole), (_, part) in zip(*map(parameters.leaves, (start, usual, own)), strict=True):
        np.testing.assert_allclose(part - before, (ratio if ".own." in name else 1) * (whole - before), atol=1e-15)
    assert np.abs(usual.encoder.blocks[0].attention.own[0] - shared).min() > 1e-3


@pytest.mark.slow
def test_projections_have_a_rate_of_their_own(tmp_path, text):
    """Held, they stay to the bit; each of 8 updates at 1 / n of the rate moves a number by that at most, nearly."""
    pool, how = linformer.mean_pool(8, TINY.length), {"attention": "linformer", "k": 8, "pooled": True, "steps": 8}
    moved = {}
    for ratio in (0.0, None, 1.0):
        how |= {"text": text, "own_rate": ratio, "shape": TINY, "peak": 1e-2}
        params = learn.run(mlm.begin, tmp_path / f"run-{ratio}", **how).params
        moved[ratio] = max(np.abs(matrix - pool).max() for matrix in params.encoder.blocks[0].attention.own)
    assert moved[0.0] == 0
    assert 0 < moved[None] < 1.5 * 8 * 1e-2 / TINY.length
    assert moved[1.0] > 8 * moved[None]


@pytest.mark.parametrize(
    ("width", "heads", "told"),
    [(10, 4, "cannot be cut into 4 heads"), (2, 1, "cannot be halved into pairs"), (3, 1, "cannot be halved into")],
)
def test_a_width_that_does_not_fit_is_told(tmp_path, width, heads, told):
    with pytest.raises(ValueError, match=f"^shape: a width of {width} {told}"):
        mlm.begin(text=tmp_path / "nowhere", shape=TINY._replace(width=width, heads=heads))


@pytest.mark.parametrize("attention", encoder_attention.WITHOUT_K)
def test_a_price_that_would_be_ignored_is_told(tmp_path, attention):
    with pytest.raises(ValueError, match=rf"^k \(--k\): {attention} attention has none, got 7; leave it out"):
        mlm.begin(text=tmp_path / "nowhere", attention=attention, k=7, shape=TINY)


def test_a_rate_that_is_none_is_told(text):
    with pytest.raises(ValueError, match="own_rate: expected a finite number of at least 0, got -1"):
        mlm.begin(text=text, attention="linformer", own_rate=-1.0, shape=TINY)


@pytest.mark.slow
def test_what_is_said_of_masks_alone(tmp_path, text):
    """Of a network that begins, all hidden tokens are alike; the total is the mean over both kinds."""
    curves = learn.run(mlm.begin, tmp_path / "run", text=text, steps=1, shape=TINY).run.curves
    assert curves["masked"] == pytest.approx(curves["loss"], rel=0.1)
    assert curves["masked"] != curves["loss"]


@pytest.mark.slow
def test_it_learns_what_stands_beside(tmp_path, text):
    """Better than what single pieces say, which needs the neighbours."""
    shape = TINY._replace(width=32, hidden=64, tokens=256)
    run = learn.run(mlm.begin, tmp_path / "run", text=text, steps=400, peak=1e-2, shape=shape).run
    yardsticks = run.facts["yardsticks"]
    assert yardsticks["pairs of pieces"] < yardsticks["pieces alone"]
    assert run.curves["loss"][-1] < 0.95 * yardsticks["pieces alone"]


@pytest.mark.slow
@pytest.mark.parametrize("attention", encoder_attention.NAMES)
def test_every_mechanism_takes_a_step(tmp_path, text, attention):
    """Losses are numbers, near that of knowing nothing."""
    k = 0 if attention in encoder_attention.WITHOUT_K else 8
    how = {"text": text, "attention": attention, "k": k, "steps": 2, "shape": TINY}
    assert learn.run(mlm.begin, tmp_path / "run", **how).run.curves["loss"][-1] == pytest.approx(
        np.log(TINY.vocabulary), rel=0.2
    )


@pytest.mark.slow
def test_the_command_says_what_is_wrong(tmp_path, text, capsys):
    out = tmp_path / "run"
    words = ["train", "mlm", "--quick", "--text", str(text), "--vocabulary", "300", "--steps", "6", "--out", str(out)]
    words += ["--attention", "linformer", "--sharing", "layerwise", "--k", "16"]
    assert cli.main(words) == 0
    told = capsys.readouterr().out
    assert "pairs of pieces: perplexity" in told
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    other = tmp_path / "other.txt"
    other.write_text(text.read_text(encoding="utf-8").replace("w", "v"), encoding="utf-8")
    for more, message in (
        (["--resume", "--vocabulary", "290"], "resume: the run in"),
        (["--resume", "--text", str(other)], "is one with other settings: text"),
        (["--peak", "nan"], "peak: expected a finite number of at least 0, got nan"),
        (["--attention", "softmax", "--pooled"], "pooled: linformer alone has projections, got attention 'softmax'"),
        (["--attention", "linear", "--own-rate", "1"], "own_rate: linformer alone has projections"),
        (["--k", "65"], "k: expected 8 to the length, 64, got 65"),
        (["--vocabulary", "7000"], "texts: a vocabulary of 7000 pieces was asked for"),
        (["--length", "5000", "--k", "16"], "pieces of it are for training, one sequence has 5000"),
    ):
        capsys.readouterr()
        elsewhere = ["--out", str(tmp_path / "new")] if more and "--resume" not in more else []
        assert cli.main([*words, *more, *elsewhere]) == 2
        told = capsys.readouterr().err
        assert message in told
        assert told.count("\n") == 1
    assert not (tmp_path / "new").exists()
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
