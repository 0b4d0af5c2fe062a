"""What the chapters show: sources as they are, figures as bytes that do not change, tables, sliders that redraw."""

import inspect

import numpy as np
import pytest

from linattn_ref.attention import softmax
from linattn_ref.experiments.publishing import catalogue, style
from linattn_ref.kernels.jit import loops

pytest.importorskip("IPython")
pytest.importorskip("ipywidgets")

from linattn_ref.experiments.publishing import chapter


@pytest.fixture
def shown(monkeypatch):
    """What is displayed, with its metadata; of few pixels."""
    things = []
    monkeypatch.setattr(chapter, "DPI", 40)
    monkeypatch.setattr(chapter, "display", lambda thing, metadata=None: things.append((thing, metadata)))
    return things


def test_source_is_the_package_s_own(shown):
    chapter.source(softmax.forward, softmax.backward)
    (markdown, metadata), name = shown[0], softmax.__name__
    for function in (softmax.forward, softmax.backward):
        assert inspect.getsource(function).rstrip() in markdown.data
    assert markdown.data.count(f"# {name}\n") == 1  # once for both
    assert metadata[chapter.SOURCE_OF] == {"names": [f"{name}:forward", f"{name}:backward"], "doc": True}
    assert chapter.source_text(metadata[chapter.SOURCE_OF]["names"]) == markdown.data


def test_source_without_docstrings(shown):
    chapter.source(softmax.forward, softmax.Saved, softmax.divide, doc=False)
    text = shown[0][0].data
    assert '"""' not in text
    assert "# (1)\n" in text  # the comments stay
    assert "class Saved(NamedTuple):\n    q: Float[Array" in text
    assert "# linattn_ref.attention.parts.masks\ndef divide" in text


def test_source_of_a_compiled_function_a_method_and_a_module(shown):
    chapter.source(loops.softmax.softmax._forward_tile)
    chapter.source(chapter.ast.NodeVisitor.visit)
    chapter.source(style, doc=False)
    compiled, method, module = (markdown.data for markdown, _ in shown)
    assert "def _forward_tile(" in compiled
    assert "def visit(self, node):" in method
    assert "STYLES = " in module
    assert '"""Two looks' not in module


def test_source_is_read_without_importing(tmp_path, monkeypatch):
    """As kernels are whose package is not installed."""
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "absent" / "kernels.py").write_text(
        "import no_such_package\n\n\n@no_such_package.kernel\ndef f(x):\n    x[0] = 1\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert "# absent.kernels\n@no_such_package.kernel\ndef f(x):\n    x[0] = 1\n" in chapter.source_text(
        ["absent.kernels:f"]
    )
    with pytest.raises(ValueError, match="no source of the module nowhere"):
        chapter.source_text(["nowhere:f"])


def draw(title):
    figure, axes = style.figure()
    axes.plot([0, 1])
    axes.set_title(title)
    return figure


def test_show_gives_the_same_bytes_each_time(shown):
    chapter.show(draw, "a", alt="A line")
    chapter.show(draw, "a", alt="A line")
    chapter.show(draw, "b", alt="A line", look="projector")
    first, again, other = (image for image, _ in shown)
    assert first.data == again.data
    assert first.data != other.data
    assert first.data.startswith(b"\x89PNG")
    assert first.alt == "A line"
    assert first.width < other.width  # a slide is larger than a page


def test_table(shown):
    chapter.table(("form", "bytes", "share"), [("dense", np.int64(4194304), 1.0), ("online", 16640, 1 / 3)])
    assert shown[0][0].data.splitlines() == [
        "| form | bytes | share |",
        "| --- | ---: | ---: |",
        "| dense | 4,194,304 | 1 |",
        "| online | 16,640 | 0.3333 |",
    ]


def test_results_of_a_committed_figure_are_what_it_is_drawn_from():
    results = chapter.results("eckart_young")
    assert results == catalogue.results_of("eckart_young", chapter.record("eckart_young"))


def test_a_record_says_what_made_it_and_where(shown):
    found = chapter.record("causal_cost")
    assert found["name"] == "causal_cost"
    ((line, _),) = shown
    assert line.data == (
        "*From record `figures/causal_cost.json`, made by `linattn-ref figures --only causal_cost` on "
        f"{found['machine']['processor']}, {found['machine']['cores']} cores; not measured now.*"
    )


def test_explore_draws_each_value_and_redraws_under_the_slider(shown):
    drawn = []

    def panel(axes, value):
        drawn.append((value, np.shape(axes)))

    chapter.explore(panel, (1, 2, 4), name="n", slider=(1, 2, 3, 4), rows=2, alt="Nothing", sharey=True)
    assert drawn[:3] == [(1, (2,)), (2, (2,)), (4, (2,))]  # side by side, a column of two axes each
    box = shown[-1][0]
    control = box.children[0]
    assert drawn[3:] == [(control.value, (2,))]
    control.value = 4
    assert drawn[4:] == [(4, (2,))]


def test_explore_hands_over_single_axes_for_one_row(shown):
    titles = []
    chapter.explore(lambda axes, value: titles.append(axes.get_title(loc="left")), (0.5, 2), name="T", alt="Nothing")
    assert titles[:2] == ["T = 0.5", "T = 2"]
