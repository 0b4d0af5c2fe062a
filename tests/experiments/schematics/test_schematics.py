import inspect

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from linattn_ref.attention import bigbird, linear, linformer, long_short, performer, rfa, softmax
from linattn_ref.attention.parts import segment_means
from linattn_ref.experiments.publishing import catalogue, style, tables
from linattn_ref.experiments.publishing.pairs import PAIRS
from linattn_ref.experiments.schematics.drawing import Sheet
from linattn_ref.experiments.schematics.sparse import CHUNK

NAMES = [name.removeprefix("schematic_") for name in catalogue.FIGURES if name.startswith("schematic_")]
# Lengths that differ, so that a letter cannot stand for another.
N, L, D, M, R, DIRECTIONS = 24, 24, 3, 5, 4, 7


def results_of(name):
    module = catalogue.module_of(f"schematic_{name}")
    drawn = {"rng": np.random.default_rng(0)} if "rng" in inspect.signature(module.compute).parameters else {}
    return module, module.compute(**drawn)


@pytest.fixture
def sheet_of(monkeypatch):
    """What a picture puts on its sheet, without drawing it."""
    monkeypatch.setattr(Sheet, "figure", lambda self, title: self)
    for drawing in ("_frame", "text"):
        monkeypatch.setattr(Sheet, drawing, lambda *_, **__: None)

    def sheet(name):
        module, results = results_of(name)
        return module.draw(results)

    return sheet


def test_every_mechanism_has_a_picture():
    assert {row.name for row in tables.mechanisms()} | {"linear_recurrent", "block"} == set(NAMES)


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * (i % 3 > 0)) for i, x in enumerate(NAMES)])
def test_everything_written_is_on_the_page_and_looks_the_same_on_a_slide(name):
    module, results = results_of(name)
    seen = {}
    for look in style.STYLES:
        with style.use(look):
            figure = module.draw(results)
            canvas = FigureCanvasAgg(figure)
            page = figure.bbox
            texts = [text for text in figure.findobj(Text) if text.get_text()]
            for text in texts:
                box = text.get_window_extent(canvas.get_renderer())
                inside = page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
                assert inside, text.get_text()
            seen[look] = [text.get_fontsize() / (72 * figure.get_figwidth()) for text in texts]
            assert min(seen[look]) > 1 / 65  # of the width of a slide
    assert seen["paper"] == pytest.approx(seen["projector"])


@pytest.mark.parametrize("name", NAMES)
def test_no_array_but_that_of_softmax_has_a_row_a_query_and_a_column_a_key(name, sheet_of):
    square = [box for box in sheet_of(name).boxes if (box.rows, box.columns) == ("N", "L")]
    assert bool(square) == (name == "softmax")


def arrays():
    """Arrays that the mechanisms really have, under the names of their boxes."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((N, D)), rng.standard_normal((L, D)), rng.standard_normal((L, M))
    e, omega, w_p = (rng.standard_normal(shape) for shape in ((R, L), (DIRECTIONS, D), (D, R)))
    given = {"$Q$": q, "$K$": k, "$K^\\top$": k.T, "$V$": v}
    yield "softmax", {**given, "$P$": softmax.matrix(q, k), "$O$": softmax.forward(q, k, v)[0]}
    out, _ = linformer.forward(q, k, v, e, e)
    mixed = {"$\\tilde K$": e @ k, "$\\tilde K^\\top$": (e @ k).T, "$\\tilde V$": e @ v}
    yield "linformer", {**given, **mixed, "$E$": e, "$F$": e, "$\\tilde P$": softmax.matrix(q, e @ k), "$O$": out}
    state = linear.summarise(k, v)
    out, _ = linear.forward(q, k, v)
    yield "linear", {**given, "$S$": state.s, "$z$": state.z[:, None], "$O$": out}
    yield "performer", {**given, "$\\Omega^\\top$": omega.T, "$O$": performer.forward(q, k, v, omega)[0]}
    q_means, k_means = (segment_means.forward(x, R)[0] for x in (q, k))
    small = [softmax.matrix(*pair) for pair in ((q, k_means), (q_means, k_means), (q_means, k))]
    named = dict(zip(("$F$", "$A^{+}$", "$B$"), small, strict=True))
    yield "nystromformer", {**given, **named, "$\\tilde Q$": q_means, "$\\tilde K$": k_means}
    out, saved = long_short.forward(q, k, v, w_p, None, None, window=4)
    mixtures = {"$P$": saved.mixing.p[0], "$\\bar K$": saved.mixed.k, "$\\bar V$": saved.mixed.v}
    yield "long_short", {**given, **mixtures, "$W_p$": w_p, "$O$": out}


@pytest.mark.parametrize(("name", "known"), list(arrays()), ids=lambda x: x if isinstance(x, str) else "")
def test_letters_are_the_shapes_of_the_mechanisms_arrays(name, known, sheet_of):
    lengths = {"N": N, "L": L, "D": D, "M": M, "R": R, "C": D, "m": DIRECTIONS, "1": 1}
    boxes = {box.name: (lengths[box.rows], lengths[box.columns]) for box in sheet_of(name).boxes}
    found = known.keys() & boxes.keys()
    assert len(found) >= 4
    assert {box: boxes[box] for box in found} == {box: known[box].shape for box in found}


def test_features_drawn_are_as_many_as_the_state_has_rows():
    _, results = results_of("rfa")
    assert results.sizes["C"] == 2 * results.sizes["m"]


def test_fading_weights_are_those_of_the_mechanism():
    _, results = results_of("rfa")
    shares = rfa.recency(np.full(results.sizes["N"], 0.7))
    assert results.fading * 0.3 == pytest.approx(shares)


def test_patterns_are_those_that_the_mechanisms_compute():
    _, results = results_of("bigbird")
    (kinds,) = results.patterns.values()
    q, k, v = np.random.default_rng(0).standard_normal((3, len(kinds), 4))
    drawn = np.arange(12)[:, None]  # its own block, where the random one is global or in the window
    for block, pairs in enumerate(kinds[::2] == list(PAIRS).index("random")):
        drawn[block] = np.flatnonzero(pairs)[0] // 2 if pairs.any() else block
    out, _ = bigbird.forward(q, k, v, block=2, window_blocks=3, global_blocks=(0,), random_blocks=drawn)
    dense = np.where(kinds > 0, np.exp(q @ k.T / 2), 0)
    assert out == pytest.approx(dense / dense.sum(axis=1, keepdims=True) @ v)


def test_reformers_chunks_are_a_band_in_sorted_order():
    _, results = results_of("reformer")
    assert (np.diff(results.buckets[results.order]) >= 0).all()
    i, j = np.nonzero(results.pairs[results.order][:, results.order])
    assert set(i // CHUNK - j // CHUNK) == {0, 1}
    assert (i != j).all()
