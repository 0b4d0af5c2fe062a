"""``linattn-ref site``: web pages from the executed chapters, the gallery and the source, by Sphinx."""

import contextlib
import hashlib
import importlib.util
import io
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from linattn_ref.atomic import move_into_place, write_all
from linattn_ref.data import fetch, npm
from linattn_ref.telling import Say, silent

__all__ = ["EXTRAS", "make"]

NEEDED = ("notebooks", "figures", "pyproject.toml", "linattn_ref")
LARGE = 100_000  # letters of a script or style that decks share
ALIAS = "duplicate object description"  # a class that is public in several modules: each page may describe it
EXTRAS = ("slides", "live")  # pages that others make
MODULES = ("sphinx", "myst_nb", "furo", "sphinx_design", "numpydoc")


def make(
    out: Path,
    *,
    root: Path = Path(),
    run: bool = False,
    sentence: bool = False,
    without: Collection[str] = (),
    say: Say = silent,
) -> None:
    """Build the site of the checkout ``root`` into ``out``, which is replaced when the new one is whole.

    Parameters
    ----------
    out : Path
        Must not be there, or be empty or a site.
    root : Path
    run : bool
        Have each chapter's cells run in the browser, and the pages of mechanisms checked: 59 MB, of which the
        pretrained network of chapters 2 to 4 takes 21.
    sentence : bool
        Add a page where a pretrained network reads the reader's own text: 49 MB, all but its scripts those of ``run``.
    without : collection of str
        What to leave out of `EXTRAS`.
    say : callable
        Called with what is done, one line per step.

    Raises
    ------
    FileNotFoundError
        ``root`` is no checkout.
    ValueError
        What is in ``out`` is no site, or ``without`` has another word.
    ModuleNotFoundError
        The extra ``site`` is not installed.
    RuntimeError
        Sphinx failed, or complains of a page.
    FetchError
        MathJax cannot be had, or what runs in the pages.
    """
    root, out = root.resolve(), out.resolve()
    missing = [name for name in NEEDED if not (root / name).exists()]
    if missing:
        raise FileNotFoundError(f"no {missing[0]} in {root}: run this in the repository's root")
    if out.exists() and any(out.iterdir()) and not (out / "searchindex.js").exists():
        raise ValueError(f"--out {out} holds something that is no site: give another folder, or remove it")
    for name in MODULES:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    if unknown := {*without} - {*EXTRAS}:
        raise ValueError(f"without: expected {' or '.join(EXTRAS)}, got {min(unknown)!r}")
    start = time.perf_counter()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as folder:
        html = _build(root, Path(folder), run, sentence, without, say)
        old = Path(folder) / "old"
        if out.exists():
            os.replace(out, old)  # at no moment is there half of a site
        try:
            move_into_place(html, out)
        except BaseException:
            if old.exists() and not out.exists():
                os.replace(old, out)
            raise
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    pages = len(list(out.rglob("*.html")))
    say(f"{out / 'index.html'}: {pages} pages, {size / 1e6:.0f} MB, {time.perf_counter() - start:.0f} s")


def _build(root: Path, folder: Path, run: bool, sentence: bool, without: Collection[str], say: Say) -> Path:
    """The whole site, in ``folder``; where."""
    from linattn_ref.lecture import elsewhere
    from linattn_ref.lecture.live import build as live
    from linattn_ref.lecture.live import page
    from linattn_ref.lecture.run import build as runtime
    from linattn_ref.lecture.site import lines, pages, settings
    from linattn_ref.lecture.slides import build as slides

    html, extras = folder / "html", pages.Extras({}, {}, {}, run, sentence)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as beside, _alone_at_the_end():
        if "slides" not in without:
            decks = slides.decks()
            extras.slides.update({path.stem: f"slides/{path.stem}.html" for path in decks.values()})
            drawn = beside.submit(slides.make, list(decks), html / "slides")  # their pictures, which takes a core
        if "live" not in without:
            say("pages that run in the browser")
            written = live.make(html / "live", home="../index.html")
            extras.live.update({f"live/{name}": title for name, title in page.PAGES.items()})
            extras.sliders.update({path.stem: f"live/frames/{path.name}" for path in written if path.stem.isdecimal()})
        say("pages: chapters, formulas beside code, gallery, API")
        pages.write(root, folder / "source", extras)
        (folder / "source" / "conf.py").write_text(settings.conf_py(elsewhere.repository(root)), encoding="utf-8")
        _run_sphinx(folder, html, say)
        if extras.slides:
            say("slides")
            drawn.result()
    fetch.fetch(npm.MATHJAX, progress=say)
    typesetting, licence = (html / "_static" / "mathjax" / name for name in ("tex-svg.js", "LICENSE"))
    write_all({typesetting: npm.read(npm.MATHJAX, "es5/tex-svg.js"), licence: npm.read(npm.MATHJAX, "LICENSE")})
    if extras.slides:
        _share(html / "slides", html / "_static", typesetting, extras.sliders)
    lines.write(html)
    if run or sentence:
        say("Python for the browser")
        runtime.make(root, html / runtime.FOLDER, cells=run, sentence=sentence, say=say)
    return html


@contextlib.contextmanager
def _alone_at_the_end() -> Iterator[None]:
    """After an error, or Ctrl-C, end the processes begun meanwhile: they would write the removed folder anew."""
    before = {*multiprocessing.active_children()}
    try:
        yield
    except BaseException:
        for process in {*multiprocessing.active_children()} - before:
            process.terminate()
            process.join()
        raise


def _run_sphinx(folder: Path, html: Path, say: Say) -> None:
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace

    source, complaints = folder / "source", io.StringIO()
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    with docutils_namespace():
        app = Sphinx(source, source, html, folder / "doctrees", "html", status=None, warning=complaints, parallel=cores)
        say("Sphinx: reading and writing")
        app.build()
    lines = complaints.getvalue().replace(f"{source}/", "").splitlines()
    told = "; ".join(line for line in lines if ALIAS not in line)
    if app.statuscode or told:
        raise RuntimeError(f"Sphinx complains: {told or app.statuscode}")


def _share(decks: Path, shared: Path, typesetting: Path, sliders: Mapping[str, str]) -> None:
    """What all decks have in them the site keeps once: a deck on its own is one file of 3 MB or more.

    Letters and styles go into ``shared``. The script ``typesetting`` is there already, for the other pages. Pictures
    lead to the ``sliders``.
    """
    from linattn_ref.lecture.site.sections import link_sliders
    from linattn_ref.lecture.slides.page import in_script

    known = {in_script(typesetting.read_text(encoding="utf-8")): typesetting}

    def moved(match: re.Match[str]) -> str:
        kind, text = match.groups()
        if len(text) < LARGE:
            return match[0]
        name = f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.{'js' if kind == 'script' else 'css'}"
        if text not in known:
            known[text] = shared / name
            known[text].write_text(text, encoding="utf-8")
        address = f"../{known[text].relative_to(decks.parent).as_posix()}"
        return f'<script src="{address}"></script>' if kind == "script" else f'<link rel="stylesheet" href="{address}">'

    for deck in decks.glob("*.html"):
        text = re.sub(r"<(script|style)>\n(.*?)\n</\1>", moved, deck.read_text(encoding="utf-8"), flags=re.DOTALL)
        deck.write_text(link_sliders(text, sliders), encoding="utf-8")
