"""A tiny BERT learns two kinds of text, with one mechanism and then with another."""

import numpy as np
import pytest

from linattn_ref import cli
from linattn_ref.experiments.learning import encoder_attention, finetune, finetune_fit, learn, runs
from linattn_ref.models import bert
from linattn_ref.training import checkpoint

SHAPE = finetune.Shape(length=16, batch=8, examples=200, watched=20, tested=40)


def test_the_interval_of_a_share():
    """Wilson's, by hand for 8 of 10; never outside of 0 and 1."""
    assert finetune.interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert finetune.interval(0, 10)[0] == pytest.approx(0, abs=1e-12)
    assert finetune.interval(10, 10)[1] == pytest.approx(1, abs=1e-12)


def test_fewer_texts_than_a_batch_are_an_error(tiny_model, data):
    """As many as are asked for, of those that there are."""
    given = {"model": tiny_model, "data": data, "source": "here"}
    with pytest.raises(ValueError, match="data: 4 texts are for training, at least 8 are needed"):
        finetune.begin(**given, shape=SHAPE._replace(examples=4))


def test_a_start_that_does_not_fit_is_named(tmp_path, tiny_model, data):
    given = {"model": tiny_model, "data": data, "source": "here", "shape": SHAPE, "start_from": tmp_path / "run"}
    best = tmp_path / "run" / "best.safetensors"
    with pytest.raises(FileNotFoundError, match=f"^no checkpoint at {best}$"):
        finetune.begin(**given)
    checkpoint.save(best, (np.zeros(3),), {})
    with pytest.raises(ValueError, match=f"^{best}: the checkpoint is of another model: it lacks params"):
        finetune.begin(**given)


@pytest.mark.slow
def test_every_mechanism_goes_on_from_softmax(tmp_path, tiny_model, data):
    """What was learned is there before any further training."""
    common = {"model": tiny_model, "data": data, "source": "here", "peak": 1e-2, "shape": SHAPE, "k": 8}
    first = learn.run(finetune.begin, tmp_path / "first", steps=100, **common).run.facts["result"]
    assert first["before"] is None
    assert first["after"]["accuracy"] > 0.75
    for attention in encoder_attention.NAMES:
        out = tmp_path / attention
        run = learn.run(finetune.begin, out, attention=attention, start_from=tmp_path / "first", steps=1, **common).run
        assert np.isfinite(run.curves["training_loss"]).all()
        then = run.facts["result"]
        if attention == "softmax":
            assert then["before"]["accuracy"] > 0.75


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["none", "headwise", "key_value", "layerwise"])
def test_fitted_projections_are_nearer_and_shared_as_they_should(tiny_model, sharing):
    pretrained = bert.load(tiny_model)
    model, params = bert.network(pretrained)
    tokens = np.random.default_rng(0).integers(0, 10, (80, 16))
    mask = np.ones(tokens.shape, bool)
    mask[:2, 9:] = False  # texts that do not fill the length are left out
    fitted = finetune_fit.fit_projections(
        params, model, tokens, mask, k=4, sharing=sharing, rng=np.random.default_rng(0)
    )
    assert fitted.fitted < fitted.pooled
    (e, f), (other, _) = fitted.own[:2]
    assert (e is f) == (sharing in ("key_value", "layerwise"))
    assert (e is other) == (sharing == "layerwise")
    assert e.shape == ((pretrained.config.heads, 4, 16) if sharing == "none" else (4, 16))
    with pytest.raises(ValueError, match="4 texts that fill 16 tokens are needed to fit to, got 1"):
        finetune_fit.fit_projections(
            params, model, tokens[:3], mask[:3], k=4, sharing=sharing, rng=np.random.default_rng(0)
        )


@pytest.mark.slow
def test_the_command_says_what_is_wrong(tmp_path, tiny_model, data, capsys):
    words = ["train", "finetune", "--quick", "--model", str(tiny_model), "--data", str(data), "--source", "here"]
    words += ["--steps", "4", "--k", "8", "--out", str(tmp_path / "run")]
    assert cli.main(words) == 0
    assert "after training:" in capsys.readouterr().out
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    for more, message in (
        (["--resume", "--peak", "0.01"], "resume: the run in"),
        (["--length", "41"], "length: the model has positions for 40 tokens, got 41"),
        (["--source", "there"], "no text whose source is 'there'"),
        (["--attention", "linformer", "--k", "33"], "k: expected 8 to the length, 32, got 33"),
        (["--start", str(tmp_path / "nowhere")], "no checkpoint at"),
        (["--batch", "500"], "texts are for training, at least 500 are needed"),
        (["--attention", "linformer", "--k", "7"], "k: expected 8 to the length, 32, got 7"),
        (["--fitted"], "fitted: linformer has projections to fit, got attention 'softmax'"),
        (["--attention", "linformer", "--fitted"], "4 texts that fill 32 tokens are needed to fit to, got 0"),
    ):
        elsewhere = ["--out", str(tmp_path / "new")] if more and "--resume" not in more else []
        assert cli.main([*words, *more, *elsewhere]) == 2, message
        told = capsys.readouterr().err
        assert message in told
        assert told.count("\n") == 1
    assert not (tmp_path / "new").exists()
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "k"), [([], 8), (["--k", "16"], 16), (["--length", "8"], 8), (["--length", "40"], 10)]
)
def test_the_quick_command_chooses_a_price_that_fits(tmp_path, tiny_model, data, more, k):
    words = ["train", "finetune", "--quick", "--model", str(tiny_model), "--data", str(data), "--source", "here"]
    words += ["--attention", "linformer", "--steps", "1", "--out", str(tmp_path / "run"), *more]
    assert cli.main(words) == 0
    assert runs.read(tmp_path / "run").facts["k"] == k
