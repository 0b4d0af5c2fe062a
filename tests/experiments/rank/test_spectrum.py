import json

import numpy as np
import pytest
from looks import each_look
from matplotlib.figure import Figure

from linattn_ref import cli
from linattn_ref.experiments.publishing import record, style
from linattn_ref.experiments.rank import spectrum
from linattn_ref.models import bert


def compute(tiny_model, tiny_text, **options):
    return spectrum.compute(**{"sentences": 3, "length": 24, "model": tiny_model, "text": tiny_text, **options})


def of_arrays(tmp_path, p, **options):
    np.savez(tmp_path / "p.npz", p=p)
    return spectrum.compute(arrays=tmp_path / "p.npz", **options)


def test_numbers_of_a_model_from_an_independent_svd_in_float64(tiny_model, tiny_text, tmp_path):
    results = compute(tiny_model, tiny_text, parts=tmp_path / "parts")
    model = bert.load(tiny_model)
    tokens = _tokens_of(tiny_model, tiny_text)
    p = np.array([[layer.p for layer in bert.layers(model, ids)] for ids in tokens], np.float64)  # (S, T, H, N, N)
    values = np.linalg.svd(p, compute_uv=False)
    share = np.cumsum(values, axis=-1) / values.sum(axis=-1, keepdims=True)
    given = results.curves["given"]
    # float32 singular values are off by about 1e-7 of the largest, 24 of them add up.
    assert given.mean == pytest.approx(share.mean(axis=(0, 2)), abs=5e-6)
    assert given.at_k == pytest.approx(share.mean(axis=0)[..., results.k - 1], abs=5e-6)
    quarter, three_quarters = np.quantile(share.mean(axis=0), [0.25, 0.75], axis=1)
    assert given.low == pytest.approx(quarter, abs=5e-6)
    assert given.high == pytest.approx(three_quarters, abs=5e-6)
    assert given.rank == pytest.approx((1 + (share < 0.9).sum(axis=-1)).mean(axis=0))
    assert (results.k, results.shape, given.sentences) == (6, (3, 24, 24), 3)


def _tokens_of(tiny_model, tiny_text):
    from linattn_ref.experiments.rank.spectrum_inputs import from_model

    inputs = from_model(tiny_model, tiny_text, sentences=3, length=24, baselines=0, seed=0)
    return [ids for _, _, ids in inputs.tasks["given"]]


def test_prose_of_short_paragraphs_is_joined_and_what_it_makes_is_recorded(tiny_model, tmp_path, capsys, monkeypatch):
    """A licence or a novel was refused: none of its paragraphs had 510 word pieces."""
    monkeypatch.setattr(Figure, "savefig", lambda _, path, **__: path.touch())
    prose = tmp_path / "prose.txt"
    prose.write_text("\n\n".join(["a b c d\ne f g", "h i", "j k l\nm n o p q"] * 10), encoding="utf-8")  # 170 words
    words = ["spectrum", "--workers", "1", "--model", tiny_model, "--text", prose, "--length", 32, "--baselines", 0]
    assert cli.main([*map(str, words), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert "tiny: 5 sentences x 2 layers x 3 heads, matrices 32 x 32" in printed.out
    assert printed.err.splitlines() == [
        "prose.txt: 0 of 30 documents have at least 30 word pieces, 32 are needed; so all are joined, and cut after"
        " every 30",
        "prose.txt: this makes 5 sentences of 32 tokens; 32 were asked for",
    ]
    record = json.loads((tmp_path / "out" / "spectrum.json").read_text(encoding="utf-8"))
    assert record["results"]["settings"]["sentences"] == 5


def test_spectra_that_are_known(tmp_path):
    n = 16
    uniform = np.full((n, n), 1 / n)  # rank 1
    given = of_arrays(tmp_path, np.stack([np.eye(n), uniform])[:, None], baselines=0).curves["given"]
    assert given.mean[0] == pytest.approx(np.arange(1, n + 1) / n, abs=1e-12)
    assert given.mean[1] == pytest.approx(1, abs=1e-12)
    assert given.at_k[:, 0] == pytest.approx([0.25, 1], abs=1e-12)
    assert given.rank[:, 0].tolist() == [15, 1]  # 14/16 < 0.9 <= 15/16


def test_baselines_stand_beside(tiny_model, tiny_text):
    curves = compute(tiny_model, tiny_text, baselines=2).curves
    assert {name: (group.sentences, group.mean.shape) for name, group in curves.items()} == {
        "given": (3, (2, 24)),
        "untrained": (2, (2, 24)),
        "gaussian": (2, (1, 24)),
    }
    # Weights of standard deviation 0.02 leave the scores near 0 and every row of P near uniform: near rank 1.
    assert curves["untrained"].mean[:, 0].min() > 0.9 > curves["gaussian"].mean[0, 0]


def test_method_gram_says_what_it_lost(tiny_model, tiny_text):
    loss = compute(tiny_model, tiny_text, method="gram").gram_loss
    assert loss.matrices == 2
    assert 0 < loss.value_svd < 1e-6 < loss.value < 2e-3  # sqrt(machine epsilon) is 3.5e-4
    assert 0 < loss.curve_svd < loss.curve < 1e-2
    assert "largest error" in spectrum.table(compute(tiny_model, tiny_text, method="gram"))
    assert compute(tiny_model, tiny_text).gram_loss is None


def test_unknown_method_before_anything_is_read(tmp_path):
    with pytest.raises(ValueError, match="method: expected one of svd, gram, got 'qr'"):
        spectrum.compute(method="qr", model=tmp_path / "none")


def test_results_are_kept_where_asked_and_else_nowhere(tiny_model, tiny_text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.rglob("*"))
    compute(tiny_model, tiny_text)
    assert set(tmp_path.rglob("*")) == before
    compute(tiny_model, tiny_text, parts=tmp_path / "parts")
    settings = json.loads((tmp_path / "parts" / "settings.json").read_text(encoding="utf-8"))
    assert {"model_sha256", "text_sha256", "sentences", "length", "seed", "method", "versions"} <= set(settings)


def test_table_has_a_line_a_layer_and_baseline(tiny_model, tiny_text):
    results = compute(tiny_model, tiny_text)
    lines = spectrum.table(results).splitlines()
    assert lines[0] == "tiny: 3 sentences x 2 layers x 3 heads, matrices 24 x 24"
    assert [line.split("  ")[0] for line in lines[3:]] == ["layer 0", "layer 1", "all layers", "untrained", "gaussian"]
    layer = results.curves["given"].at_k[1]
    assert f"{layer.mean():.3f}" in lines[4]
    assert f"{layer.min():.3f}, {layer.max():.3f}" in lines[4]


def _texts(axes):
    return [text.get_text() for text in axes.texts]


def test_drawing_shows_the_numbers(tiny_model, tiny_text):
    results = compute(tiny_model, tiny_text)
    with style.use("paper"):
        figure = spectrum.draw(results)
    left, middle, right = figure.axes
    given = results.curves["given"]
    for layer in range(2):
        assert any(np.array_equal(line.get_ydata(), given.mean[layer]) for line in left.get_lines())
    assert sum(np.array_equal(line.get_ydata(), given.mean.mean(axis=0)) for line in middle.get_lines()) == 1
    labels = [text.get_text() for text in middle.get_legend().get_texts()]
    assert [label.split("  ")[1] for label in labels] == ["untrained", "trained", "Gaussian"]
    assert _texts(right) == [f"{share:.2f}".removeprefix("0") for share in given.at_k.ravel()]
    assert middle.get_ylim() == left.get_ylim()


@pytest.mark.parametrize(
    ("shape", "baselines", "panels"),
    [
        ((3, 3), 0, 2),  # one matrix
        ((1, 1, 1, 1, 1), 1, 3),
        ((2, 2, 30, 9, 7), 1, 4),  # too many heads for numbers: a colour bar
        ((14, 2, 9, 9), 1, 3),  # many layers
    ],
)
@each_look
def test_every_shape_can_be_drawn(tmp_path, shape, baselines, panels, look):
    p = np.random.default_rng(0).random(shape, np.float32)
    results = of_arrays(tmp_path, p, baselines=baselines)
    with style.use(look):
        figure = spectrum.draw(results)
        figure.draw_without_rendering()
    assert len(figure.axes) == panels
    json.loads(record.json_text(record.plain(results)))
