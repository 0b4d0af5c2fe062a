"""The site's command: what it needs, what it says, and that nothing is half there. What is built, a browser tests."""

import importlib.util
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from linattn_ref import cli
from linattn_ref.lecture import elsewhere
from linattn_ref.lecture.site import build, pages, settings
from linattn_ref.lecture.slides.page import in_script


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
    build._share(tmp_path / "slides", tmp_path / "_static", tmp_path / "_static" / "tex.js")
    (shared,) = (path for path in (tmp_path / "_static").iterdir() if path.name != "tex.js")
    assert shared.read_text() == large
    kept = (tmp_path / "slides" / "02.html").read_text()
    links = f'<script src="../_static/{shared.name}"></script>\n<script src="../_static/tex.js"></script>'
    assert kept == f"<script>\nsmall()\n</script>\n{links}\n<style>\np {{}}\n</style>\n"


def test_every_page_is_written_with_a_title(tmp_path, monkeypatch):
    """What Sphinx makes of them, a browser tests; what stands beside the code, `test_beside.py`."""
    monkeypatch.setattr(pages.beside, "page_html", lambda *given: "<h1>", raising=True)
    root = Path(__file__).parents[2]
    pages.write(root, tmp_path, pages.Extras({}, {}, {}))
    for folder in ("chapters", "code", "api"):
        assert len(list((tmp_path / folder).glob("*.*"))) > 10
    for path in tmp_path.rglob("*.md"):
        assert re.search(r"^(# |title: )|^<h1", path.read_text(encoding="utf-8"), re.MULTILINE), path


def test_sphinx_is_told_everything():
    """The text of its file, and what it calls on its way."""
    given, connected, scripts = {}, [], []
    exec(settings.conf_py("https://github.com/some/where"), given)
    assert given["html_theme_options"]["source_repository"] == "https://github.com/some/where"
    methods = {
        "connect": lambda self, event, function, priority=0: connected.append((event, function)),
        "add_js_file": lambda self, name, body: scripts.append(body),
    }
    assert settings.setup(type("App", (), methods)())["parallel_read_safe"]
    assert "tabIndex" in scripts[0]
    page = {"body": '<th class="a"></th><th>b</th>', "furo_navigation_tree": '<p role="heading">', "toctree": dict}
    for event, function in connected:
        if event == "html-page-context":
            function(None, "x", "", page, None)
    assert page["toctree"](collapse=False, maxdepth=-1) == {"collapse": True, "maxdepth": -1}
    assert page["body"] == '<td class="a"></td><th>b</th>'
    assert page["furo_navigation_tree"] == '<p role="heading" aria-level="2">'
    lines = ["What it is.", "", "    S = 1    (1)"]
    dict(connected)["autodoc-process-docstring"](None, "module", "m", None, None, lines)
    assert lines == ["What it is.", ""]
    lines = ["The length |x| of ``|y|``."]
    dict(connected)["autodoc-process-docstring"](None, "class", "c", None, None, lines)
    assert lines == [r"The length \|x\| of ``|y|``."]
