"""The site's command: what it needs, what it says, and that nothing is half there. What is built, a browser tests."""

import importlib.util
import json
import multiprocessing
import re
import stat
import subprocess
import sys
import tempfile
import time
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import pytest
import slow_slides

from linattn_ref import cli
from linattn_ref.lecture import elsewhere
from linattn_ref.lecture.site import build, lines, pages, sections, settings
from linattn_ref.lecture.slides import build as slides
from linattn_ref.lecture.slides import deck
from linattn_ref.lecture.slides.page import in_script

CHAPTER = "05_kernel_smoother"


def test_outside_of_a_checkout_it_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["site"]) == 2
    assert capsys.readouterr().err == (
        f"linattn-ref: error: no notebooks in {tmp_path}: run this in the repository's root\n"
    )


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    for name in build.NEEDED:
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_the_extra_it_names_it(checkout, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["site"]) == 2
    assert "this needs sphinx, which is not installed: pip install 'linattn-ref[site]'" in capsys.readouterr().err
    assert not (checkout / "out" / "site").exists()


def test_a_folder_that_is_no_site_is_left_alone(checkout, capsys):
    (checkout / "mine").mkdir()
    (checkout / "mine" / "thesis.tex").write_text("all my work")
    assert cli.main(["site", "--out", "mine"]) == 2
    assert "holds something that is no site" in capsys.readouterr().err
    assert (checkout / "mine" / "thesis.tex").read_text() == "all my work"


def test_a_build_that_fails_leaves_the_site_that_was_there(checkout, monkeypatch):
    (checkout / "out").mkdir()
    (checkout / "out" / "searchindex.js").write_text("old")
    monkeypatch.setattr(build, "MODULES", ())

    def fail(root, folder, *how):
        (folder / "html").mkdir()
        raise RuntimeError("no")

    monkeypatch.setattr(build, "_build", fail)
    with pytest.raises(RuntimeError):
        build.make(checkout / "out")
    assert (checkout / "out" / "searchindex.js").read_text() == "old"
    assert {path.name for path in checkout.iterdir()} == {"out", *build.NEEDED}


def test_what_can_be_left_out_is_named(checkout, monkeypatch):
    monkeypatch.setattr(build, "MODULES", ())
    with pytest.raises(ValueError, match="without: expected slides or live, got 'api'"):
        build.make(checkout / "out", without=["live", "api"])


def test_a_new_site_takes_the_place_of_the_old(checkout, monkeypatch):
    (checkout / "out").mkdir()
    (checkout / "out" / "searchindex.js").write_text("old")
    monkeypatch.setattr(build, "MODULES", ())

    def succeed(root, folder, *how):
        (folder / "html").mkdir()
        (folder / "html" / "index.html").write_text("new")
        return folder / "html"

    monkeypatch.setattr(build, "_build", succeed)
    told = []
    build.make(checkout / "out", say=told.append)
    assert [path.name for path in (checkout / "out").iterdir()] == ["index.html"]
    assert told[-1].startswith(f"{checkout / 'out' / 'index.html'}: 1 pages, 0 MB")
    assert {path.name for path in checkout.iterdir()} == {"out", *build.NEEDED}


def test_a_new_site_that_cannot_be_moved_leaves_the_old(checkout, monkeypatch):
    (checkout / "out").mkdir()
    (checkout / "out" / "searchindex.js").write_text("old")
    monkeypatch.setattr(build, "MODULES", ())
    monkeypatch.setattr(build, "_build", lambda root, folder, *how: folder / "html")

    def interrupted(temporary, path):
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "move_into_place", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build.make(checkout / "out")
    assert (checkout / "out" / "searchindex.js").read_text() == "old"
    assert {path.name for path in checkout.iterdir()} == {"out", *build.NEEDED}


@pytest.mark.parametrize("started", [False, True])
def test_ctrl_c_ends_the_process_that_draws_slides(tmp_path, monkeypatch, started):
    """It would be waited for, and after a second Ctrl-C write into a folder that is gone."""
    monkeypatch.setattr(slides, "decks", lambda: {"01": tmp_path / "01.md"})
    monkeypatch.setattr(slides, "make", slow_slides.make)

    def interrupted(*given):
        while started and not (tmp_path / "html" / "slides").exists():
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(pages, "write", interrupted)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        build._build(tmp_path, tmp_path, False, False, ["live"], print)
    assert time.monotonic() - begun < slow_slides.SECONDS
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("address", ["", "https://example.org/a/b"])
def test_without_an_address_on_github_no_link_is_drawn(address):
    assert elsewhere.links(address, "notebooks/01.ipynb") == {}


def test_links_are_made_from_the_one_address(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\n[project.urls]\nRepository = "https://github.com/a/b.git"\n')
    address = elsewhere.repository(tmp_path)
    assert elsewhere.links(address, "notebooks/01.ipynb") == {
        "Binder": "https://mybinder.org/v2/gh/a/b/main?urlpath=lab/tree/notebooks/01.ipynb",
        "Colab": "https://colab.research.google.com/github/a/b/blob/main/notebooks/01.ipynb",
    }
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    assert elsewhere.set_up_cell(elsewhere.repository(tmp_path)) == ""


def test_the_set_up_cell_clones_into_a_folder_that_is_nobody_elses(tmp_path, monkeypatch):
    """``/tmp/linattn_ref`` could be there already, with somebody else's code in it."""
    commands = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: commands.append(command))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = {}
    exec(elsewhere.set_up_cell("https://github.com/a/b"), names)
    (folder,) = tmp_path.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert commands[0][-2:] == ["https://github.com/a/b", str(folder)]
    assert commands[1][-1] == f"{folder}[notebooks]"
    assert sys.path[0] == str(folder)


def test_the_first_cell_is_python_and_checks_what_is_installed(monkeypatch):
    compile(elsewhere.set_up_cell("https://github.com/a/b"), "cell", "exec")
    versions = {"numpy": "1.0"}
    monkeypatch.setattr(elsewhere.metadata, "version", lambda name: versions[name])
    monkeypatch.setattr(elsewhere.metadata, "requires", lambda name: ["numpy>=2.0", 'torch>=2; extra == "peers"'])
    with pytest.raises(RuntimeError, match=r"numpy 1\.0 is not >=2\.0: pip install --upgrade"):
        elsewhere.check_versions()
    versions["numpy"] = "2.4"
    elsewhere.check_versions()


def test_what_publishes_the_site_is_pinned_by_hash():
    workflow = (Path(__file__).parents[2] / ".github" / "workflows" / "pages.yml").read_text(encoding="utf-8")
    used = re.findall(r"uses: (\S+)", workflow)
    assert len(used) == 4
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", each) for each in used)


def test_what_decks_have_in_common_is_kept_once(tmp_path):
    (tmp_path / "slides").mkdir()
    (tmp_path / "_static").mkdir()
    large, typesetting = "a()" * build.LARGE, "b('</script>')" * build.LARGE
    (tmp_path / "_static" / "tex.js").write_text(typesetting)
    for name in ("01", "02"):
        scripts = "".join(f"<script>\n{code}\n</script>\n" for code in ("small()", large, in_script(typesetting)))
        (tmp_path / "slides" / f"{name}.html").write_text(f"{scripts}<style>\np {{}}\n</style>\n")
    build._share(tmp_path / "slides", tmp_path / "_static", tmp_path / "_static" / "tex.js", {})
    (shared,) = (path for path in (tmp_path / "_static").iterdir() if path.name != "tex.js")
    assert shared.read_text() == large
    kept = (tmp_path / "slides" / "02.html").read_text()
    links = f'<script src="../_static/{shared.name}"></script>\n<script src="../_static/tex.js"></script>'
    assert kept == f"<script>\nsmall()\n</script>\n{links}\n<style>\np {{}}\n</style>\n"


def test_every_page_is_written_with_a_title(tmp_path, monkeypatch):
    """What Sphinx makes of them, a browser tests; what stands beside the code, `test_beside.py`."""
    monkeypatch.setattr(pages.beside, "page_html", lambda *given: "<h1>", raising=True)
    root = Path(__file__).parents[2]
    slides, sliders = {CHAPTER: f"slides/{CHAPTER}.html"}, {CHAPTER[:2]: "live/frames/05.html"}
    pages.write(root, tmp_path, pages.Extras(slides, {}, sliders))
    for folder in ("chapters", "code", "api"):
        assert len(list((tmp_path / folder).glob("*.*"))) > 10
    for path in tmp_path.rglob("*.md"):
        assert re.search(r"^(# |title: )|^<h1", path.read_text(encoding="utf-8"), re.MULTILINE), path
    cells = json.loads((tmp_path / "chapters" / f"{CHAPTER}.ipynb").read_text(encoding="utf-8"))["cells"]
    (moved,) = (i for i, cell in enumerate(cells) if "\nchapter.explore(" in "".join(cell["source"]))
    assert "Guess first." in cells[moved - 1]["source"]
    assert 'src="../live/frames/05.html?slider=0" title="Slider: N"' in cells[moved + 1]["source"]
    assert "four lengths" in cells[moved]["metadata"]["mystnb"]["image"]["alt"]
    assert f'../slides/{CHAPTER}.html#/2">Slide</a>' in "".join("".join(cell["source"]) for cell in cells)
    files = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "chapters" / "files").iterdir()}
    assert files[f"{CHAPTER}.py"] == (root / "notebooks" / f"{CHAPTER}.py").read_text(encoding="utf-8")
    given = json.loads(files[f"{CHAPTER}.ipynb"])["cells"]
    assert not any(cell.get("outputs") for cell in given)
    assert not any("Guess first." in "".join(cell["source"]) for cell in given)
    gallery = (tmp_path / "figures" / "gallery.md").read_text(encoding="utf-8")
    assert "## Softmax attention\n\n![Softmax attention](schematic_softmax.svg)\n" in gallery
    assert "## Feature maps\n" in gallery  # whose caption begins with "Left"
    papers = (tmp_path / "papers.md").read_text(encoding="utf-8")
    title = '"[Practical and optimal LSH for angular distance](https://scholar.google.com/scholar?q=Practical+and'
    assert papers.count(title) == 1  # though one file says what it takes from there, and another the theorem
    assert "[`linattn_ref/attention/parts/lsh_hashing.py`](code/attention.parts.lsh_hashing.md) (the hash" in papers


def test_slides_and_sections_lead_to_each_other():
    notes = (
        "None.",
        'From chapter 5: "it is $x$, exactly"',
        'From chapter 5: "it is $x$", "42 |"\nFrom chapter 6: "a b"',
    )
    slides = [deck.Slide("idea", 1, "", None, note, "05") for note in notes]
    cells = [
        {"cell_type": "markdown", "source": "# T\n\nOnce.\n## One\n\nit is\n$x$, exactly\n"},
        {"cell_type": "markdown", "source": "## Two\na b\n### Three of them\n### Three\nc"},
        {"cell_type": "code", "source": "print(42)", "outputs": [{"text": ["41 | 42 |"]}]},
    ]
    sections.link_slides(cells, slides, "deck.html")
    first, second = (
        '<a class="to-slide" href="deck.html#/1">Slide</a>',
        '<a class="to-slide" href="deck.html#/2">Slide</a>',
    )
    assert f"## One\n\n{first}\n" in cells[0]["source"]
    assert cells[1]["source"] == f"## Two\na b\n### Three of them\n### Three\n\n{second}\n\nc"
    slide = '<section><div class="slide {} below"><p class="foot">5 · T</p></div></section>'
    linked = sections.link_sliders(slide.format("picture") + slide.format("idea"), {"05": "live/frames/05.html"})
    shown = "Reveal.showPreview(this.href); return false"
    link = f'<a href="../live/frames/05.html" onclick="{shown}">Move it</a>'
    assert linked == slide.format("picture").replace("5 · T", f"{link} · 5 · T") + slide.format("idea")


def test_a_search_has_lines_of_pages_to_show(tmp_path):
    (tmp_path / "chapters").mkdir()
    (tmp_path / "_static").mkdir()
    text = """<p>Not of the article, though long enough.</p><article><h1>A title is not a line here</h1>
    <p>Too short.</p><p>The <em>weight</em> is <span class="math x">\\(x &lt; 1\\)</span> &amp; falls.</p></article>"""
    (tmp_path / "chapters" / "01.html").write_text(text)
    lines.write(tmp_path)
    written = (tmp_path / "_static" / "lines.js").read_text(encoding="utf-8")
    assert written == 'const LINES = {"chapters/01.html":["The weight is … & falls."]};\n'


class Domain:
    """As Sphinx's: of pages that were read at the same time, the last one's entry stays."""

    def __init__(self):
        self.objects = {}

    def merge_domaindata(self, docnames, found):
        self.objects |= found


def test_sphinx_is_told_everything():
    """The text of its file, and what it calls on its way."""
    given, connected, scripts, domains = {}, [], [], []
    exec(settings.conf_py("https://github.com/some/where"), given)
    assert given["html_theme_options"]["source_repository"] == "https://github.com/some/where"
    methods = {
        "connect": lambda self, event, function, priority=0: connected.append((event, function)),
        "add_js_file": lambda self, name, body: scripts.append(body),
        "add_domain": lambda self, domain, override: domains.append(domain),
        "registry": SimpleNamespace(domains={"py": Domain}),
    }
    assert settings.setup(type("App", (), methods)())["parallel_read_safe"]
    assert "tabIndex" in scripts[0]
    own, alias, other = (SimpleNamespace(docname=x, aliased=x > "a") for x in "abc")
    for order in permutations((own, alias, other)):
        merged = domains[0]()
        for entry in order:
            merged.merge_domaindata([entry.docname], {"linear.Gradients": entry})
        assert merged.objects == {"linear.Gradients": own}
    page = {"body": '<th class="a"></th><th>b</th>', "furo_navigation_tree": '<p role="heading">', "toctree": dict}
    for event, function in connected:
        if event == "html-page-context":
            function(None, "x", "", page, None)
    assert page["toctree"](collapse=False, maxdepth=-1) == {"collapse": True, "maxdepth": -1}
    module = {"toctree": dict}
    for event, function in connected:
        if event == "html-page-context":
            function(None, "api/x", "", module, None)
    assert module["toctree"](collapse=False, maxdepth=-1) == {"collapse": True, "maxdepth": 1}
    assert page["body"] == '<td class="a"></td><th>b</th>'
    assert page["furo_navigation_tree"] == '<p role="heading" aria-level="2">'
    lines = ["What it is.", "", "    S = 1    (1)"]
    dict(connected)["autodoc-process-docstring"](None, "module", "m", None, None, lines)
    assert lines == ["What it is.", ""]
    lines = ["The length |x| of ``|y|``."]
    dict(connected)["autodoc-process-docstring"](None, "class", "c", None, None, lines)
    assert lines == [r"The length \|x\| of ``|y|``."]
    written = dict(connected)["autodoc-process-signature"]
    shown, _ = written(None, "function", "f", None, None, "(x, activation=<module 'a.gelu' from '/b/c.py'>)", None)
    assert shown == "(x, activation=a.gelu)"
    assert written(None, "class", "c", None, None, None, None) is None  # "" would take it from the index
