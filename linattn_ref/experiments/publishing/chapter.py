"""What the chapters in ``notebooks/`` share: showing the package's own source, figures, tables and sliders.

A chapter is a ``.py`` file in jupytext's percent format; ``notebooks/execute.py`` makes the ``.ipynb`` next to it. The
functions here display something and return nothing, so a cell may end in any of them::

    chapter.source(softmax.forward, softmax.backward, doc=False)
    chapter.show(attention_cost.draw, results, alt="Three panels over the length: ...")
    chapter.table(("form", "bytes"), [("dense", 4_194_304), ("online", 16_640)])
    chapter.explore(panel, (0.25, 1, 4), name="temperature T", alt="Rows of P at three temperatures")
    measured = chapter.results("decoding")

The same code gives the same bytes, so that a chapter executed again differs only where a result does.
"""

import ast
import importlib.util
import io
import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import dropwhile
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import PIL.Image
from IPython.display import Image, Markdown, display
from matplotlib.figure import Figure

from linattn_ref import clone
from linattn_ref.experiments.publishing import catalogue, markdown, style
from linattn_ref.experiments.publishing.record import read

__all__ = ["SOURCE_OF", "cell_text", "draw_alone", "explore", "in_few_colours", "record", "results", "show", "source"]
__all__ += ["source_text", "table"]

# The page that nbconvert makes shows code inside an output in the font of its surroundings; hence the div.
IN_CODE_FONT = '<div style="font-family: var(--jp-code-font-family, monospace)">\n\n```python\n{}\n```\n\n</div>'
SOURCE_OF = "linattn_ref_source"  # the key under which an output says whose source it shows
FIGURES = clone.ROOT / "figures"  # the committed figures, with their records
DPI = 160  # of a figure's PNG; browsers show it at DISPLAY_DPI, so that it is sharp on a fine screen
DISPLAY_DPI = 110


# --- Source ---------------------------------------------------------------------------------------------------------


def source(*objects: Any, doc: bool = True) -> None:
    """Show the source of functions, classes or modules of the package, as it is now.

    Parameters
    ----------
    *objects
        A compiled Numba function is shown as the Python it was made from.
    doc : bool
        False leaves out the docstrings, where the text around has said it all.
    """
    names = [_name(x) for x in objects]
    # The names go into the notebook with the text, so that a test can tell when the text is out of date.
    display(Markdown(source_text(names, doc=doc)), metadata={SOURCE_OF: {"names": names, "doc": doc}})


def source_text(names: Sequence[str], *, doc: bool = True) -> str:
    """The Markdown that :func:`source` shows for objects given by name, ``"package.module:function"``."""
    parts, last_module = [], ""
    for name in names:
        module, _, path = name.partition(":")
        text = textwrap.dedent(_text_of(module, path)).rstrip()
        heading = f"# {module}\n" if module != last_module else ""
        parts.append(heading + (text if doc else _without_docstring(text)))
        last_module = module
    return IN_CODE_FONT.format("\n\n\n".join(parts))


def _name(x: Any) -> str:
    if isinstance(x, ModuleType):
        return f"{x.__name__}:"
    x = getattr(x, "py_func", x)
    return f"{x.__module__}:{x.__qualname__}"


def _text_of(module: str, path: str) -> str:
    """Read from the module's file, which need not be importable here: kernels for a GPU need its packages."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        raise ValueError(f"no source of the module {module}")
    inside = Path(spec.origin).parent.joinpath(*rest)
    file = Path(spec.origin) if not rest else inside / "__init__.py" if inside.is_dir() else inside.with_suffix(".py")
    text = file.read_text(encoding="utf-8")
    node: Any = ast.parse(text)
    for part in path.split(".") if path else ():
        node = next((x for x in node.body if getattr(x, "name", None) == part), None)
        if node is None:
            raise ValueError(f"no {path} in {module}")
    if not path:
        return text
    first = min(x.lineno for x in (node, *node.decorator_list))
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])


def _without_docstring(text: str) -> str:
    tree: Any = ast.parse(text)
    outermost = tree if ast.get_docstring(tree) else tree.body[0]  # a module, or its one function or class
    if not isinstance(outermost, ast.Module | ast.FunctionDef | ast.ClassDef) or not ast.get_docstring(outermost):
        return text
    docstring, lines = outermost.body[0], text.splitlines()
    before, after = lines[: docstring.lineno - 1], lines[docstring.end_lineno :]
    return "\n".join([*before, *dropwhile(lambda line: not line.strip(), after)])


# --- Figures and tables ---------------------------------------------------------------------------------------------


def show(draw: Callable[..., Figure], *arguments: Any, alt: str, look: str = "paper", **options: Any) -> None:
    """Draw in one of the package's styles and show the figure.

    Parameters
    ----------
    draw : callable, ``draw(*arguments, **options) -> Figure``
        As the ``draw`` of a module in `linattn_ref.experiments`, or a function of the chapter's own.
    alt : str
        What the figure shows, for a reader who cannot see it.
    look : {"paper", "projector"}
    """
    stored = io.BytesIO()
    with style.use(look):
        figure = draw(*arguments, **options)
        # 256 colours take a third of the bytes, and a committed notebook is to stay below a megabyte. No version: the
        # same bytes everywhere.
        in_few_colours(figure, DPI, 256).save(stored, format="png", optimize=True)
        display(Image(stored.getvalue(), format="png", width=round(figure.get_figwidth() * DISPLAY_DPI), alt=alt))


def in_few_colours(figure: Figure, dpi: int, count: int) -> PIL.Image.Image:
    """The figure as a picture of so many colours."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi)
    return PIL.Image.open(drawn).convert("RGB").quantize(count, dither=PIL.Image.Dither.NONE)


def record(name: str) -> dict[str, Any]:
    """A committed figure's record, ``figures/NAME.json``, as `record.write` wrote it; and a line that says so.

    The line names the command and the machine: what follows in the chapter was measured there and then, not now.
    """
    found = read(clone.needed(FIGURES / f"{name}.json"))
    command, machine = found["command"], found["machine"]
    where = f"{machine['processor']}, {machine['cores']} cores"
    display(Markdown(f"*From record `figures/{name}.json`, made by `{command}` on {where}; not measured now.*"))
    return found


def results(name: str) -> Any:
    """What ``compute`` of a committed figure returned."""
    return catalogue.results_of(name, record(name))


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Show a table. Whole numbers get separators, other numbers four digits; text is Markdown."""
    display(Markdown("\n".join(markdown.table(header, [[cell_text(x) for x in row] for row in rows]))))


def cell_text(x: Any) -> str:
    """Whole numbers with separators, other numbers with four digits, text as it is."""
    if isinstance(x, str | bool):
        return str(x)
    return f"{x:,.0f}" if float(x).is_integer() and abs(x) < 1e15 else f"{x:.4g}"


# --- Sliders --------------------------------------------------------------------------------------------------------


def explore(
    panel: Callable[[Any, Any], object],
    values: Sequence[Any],
    *,
    name: str,
    alt: str,
    slider: Sequence[Any] | None = None,
    rows: int = 1,
    height: float = 0.38,
    **options: Any,
) -> None:
    """Show one drawing at several values side by side and, in a running notebook, once more under a slider.

    What a reader of the executed notebook sees is the row of drawings; ``notebooks/execute.py`` leaves out the slider,
    which does nothing without Python behind it.

    Parameters
    ----------
    panel : callable, ``panel(axes, value)``
        Draws one value: on one matplotlib axes, or on a column of them (an array of ``rows``).
    values : sequence
        Those shown side by side.
    name : str
        What the values are; stands on the slider and above each drawing.
    alt : str
        What the row of drawings shows, for a reader who cannot see it.
    slider : sequence, optional
        The values the slider goes through; ``values`` unless given.
    rows : int
        Axes for each value, one above the other.
    height : float
        Of the row of drawings, over its width.
    **options
        Passed on to ``Figure.subplots`` (``sharey``, ``height_ratios``, ...).
    """

    def side_by_side() -> Figure:
        figure, axes = style.figure(rows, len(values), height=height, squeeze=False, **options)
        for column, value in zip(axes.T, values, strict=True):
            column[0].set_title(f"{name} = {cell_text(value)}")
            panel(column[0] if rows == 1 else column, value)
        return figure

    show(side_by_side, alt=alt)

    def redraw(value: Any) -> None:
        show(draw_alone, panel, value, alt=f"{name} = {cell_text(value)}", rows=rows, **options)

    _slider(values if slider is None else slider, name, redraw)


def draw_alone(panel: Callable[[Any, Any], object], value: Any, *, rows: int = 1, **options: Any) -> Figure:
    """What stands under a slider at ``value``; the arguments are those of :func:`explore`."""
    width = matplotlib.rcParams["figure.figsize"][0]
    figure = Figure(figsize=(0.6 * width, 0.36 * width * rows**0.5))
    axes = figure.subplots(rows, 1, squeeze=False, **options)[:, 0]
    panel(axes[0] if rows == 1 else axes, value)
    return figure


def _slider(values: Sequence[Any], name: str, redraw: Callable[[Any], None]) -> None:
    import ipywidgets  # type: ignore[import-untyped]

    control = ipywidgets.SelectionSlider(
        options=[(cell_text(value), value) for value in values],
        value=values[len(values) // 2],
        description=name,
        continuous_update=False,
        style={"description_width": "initial"},
    )
    display(ipywidgets.VBox([control, ipywidgets.interactive_output(redraw, {"value": control})]))
