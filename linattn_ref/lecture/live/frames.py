"""What the chapters' sliders show, as frames: drawn by the chapters' own functions, shown by a page without Python.

Some come from a real network's attention, and take what their chapter takes; so ``linattn-ref live --draw`` keeps them
in ``figures/frames/NN.json``, one file per chapter. It holds the hash of the statements that they come from (`slices`):
a test tells when a chapter has moved on.
"""

import base64
import contextlib
import hashlib
import html
import io
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linattn_ref import clone
from linattn_ref.atomic import write_all
from linattn_ref.lecture.live import page, slices

__all__ = ["KEPT", "draw", "guesses", "pages", "source_hash"]

CHAPTERS, KEPT = clone.ROOT / "notebooks", clone.ROOT / "figures" / "frames"
GUESSES = page.ASSETS / "guesses.toml"
DPI = 190
COLOURS = 128


# --- Drawn and kept -------------------------------------------------------------------------------------------------


def chapters() -> dict[str, Path]:
    """The chapters with sliders, by number."""
    clone.check("live")
    paths = sorted(CHAPTERS.glob("[0-9][0-9]_*.py"))
    return {path.name[:2]: path for path in paths if "\nchapter.explore(" in path.read_text(encoding="utf-8")}


def draw(number: str, command: str) -> Path:
    """Draw all frames of a chapter and keep them.

    Raises
    ------
    ValueError
        No chapter of that number has a slider.
    """
    known = chapters()
    if number not in known:
        raise ValueError(f"draw: expected a chapter with sliders, {', '.join(known)}, got {number!r}")
    chapter, out = known[number], KEPT / f"{number}.json"
    with contextlib.redirect_stdout(io.StringIO()):  # what a chapter shows on its way
        sliders = [_slider(*given) for given in slices.calls(chapter)]
    document = {"command": command, "source": source_hash(chapter), "title": _title(chapter), "sliders": sliders}
    write_all({out: json.dumps(document, indent=0) + "\n"})
    return out


def source_hash(chapter: Path) -> str:
    """Of the statements that the sliders of a chapter come from."""
    return hashlib.sha256(slices.source(chapter).encode()).hexdigest()[:16]


def _title(chapter: Path) -> str:
    match = re.search(r"^# # (.+)$", chapter.read_text(encoding="utf-8"), re.MULTILINE)
    return _plain(match[1]) if match else chapter.stem


def _slider(given: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    from linattn_ref.experiments.publishing.chapter import cell_text

    panel, values = given
    name, alt, stops = options.pop("name"), options.pop("alt"), options.pop("slider", None) or values
    options.pop("height", None)  # of the row of drawings
    frames, written = zip(*(_frame(panel, stop, options) for stop in stops), strict=True)
    # What is written on the axes is said where it changes from frame to frame: numbers, not names.
    told = [line for line in zip(*written, strict=True) if len(set(line)) > 1]
    for i, (frame, stop) in enumerate(zip(frames, stops, strict=True)):
        frame["said"] = "; ".join([f"{_plain(name)} = {cell_text(stop)}", *(line[i] for line in told if line[i])])
    return {"name": _plain(name), "alt": _plain(alt), "frames": frames}


def _frame(panel: Any, value: Any, options: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A drawing, and the lines that stand at its axes."""
    from linattn_ref.experiments.publishing import chapter, style

    with style.use():
        figure = chapter.draw_alone(panel, value, **options)
        for axes in figure.axes:  # side by side one legend does for all drawings
            if axes.get_legend() is None and axes.get_legend_handles_labels()[0]:
                axes.legend()
        colours, stored = chapter.in_few_colours(figure, DPI, COLOURS), io.BytesIO()
    colours.convert("RGB").save(stored, format="webp", lossless=True, method=3, quality=100)
    written = [text for axes in figure.axes for text in (axes.get_title(), *axes.get_xlabel().split("\n"))]
    encoded = base64.b64encode(stored.getvalue()).decode()
    return {"size": colours.size, "image": encoded}, [_plain(line) for line in written]


def _plain(text: str) -> str:
    """Without the signs of TeX, for a voice to read."""
    return re.sub(r"\\(?:mathrm|,|;)|[${}\\]", "", text).strip()


# --- Shown ----------------------------------------------------------------------------------------------------------


def pages(*, home: str | None = None) -> dict[str, str]:
    """The text of each page: ``frames/NN.html`` a chapter, and ``frames/index.html``."""
    kept = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(KEPT.glob("[0-9][0-9].json"))}
    if not kept:
        raise FileNotFoundError(f"no frames in {KEPT}: `linattn-ref live --draw NN` draws those of a chapter")
    home = home and f"../{home}"
    found = {f"frames/{number}.html": _page(number, document, home) for number, document in kept.items()}
    return {**found, "frames/index.html": _index(kept, home)}


def guesses(number: str) -> dict[str, dict[str, str]]:
    """What a reader of a chapter guesses before moving a slider: ``guess`` and ``answer`` by the slider's name."""
    asked = tomllib.loads(GUESSES.read_text(encoding="utf-8"))
    if number not in asked:
        raise ValueError(f"{GUESSES}: expected a guess for each slider of chapter {number}, found no [{number}]")
    return dict(asked[number])


def _page(number: str, document: Mapping[str, Any], home: str | None) -> str:
    title, asked = document["title"], guesses(number)
    sliders = [{**slider, **asked[slider["name"]]} for slider in document["sliders"]]
    data = {"chapter": {"title": title, "sliders": sliders}, "title": page.Html(html.escape(title))}
    return page.inline("frames.html", data, links=page.navigation(f"frames/{number}.html", home=home))


def _index(kept: Mapping[str, Any], home: str | None) -> str:
    rows = []
    for number, document in kept.items():
        frames, names = document["sliders"][0]["frames"], ", ".join(one["name"] for one in document["sliders"])
        middle = f"data:image/webp;base64,{frames[len(frames) // 2]['image']}"
        rows.append(
            f'<li class="card"><a href="{number}.html"><img alt="" src="{middle}"></a>'
            f'<h2><a href="{number}.html">{html.escape(document["title"])}</a></h2>'
            f'<p class="small">{html.escape(names)}</p></li>\n'
        )
    listed = page.Html(f'<ol class="chapters">\n{"".join(rows)}</ol>')
    return page.inline("frames_index.html", {"list": listed}, links=page.navigation("frames/index.html", home=home))
