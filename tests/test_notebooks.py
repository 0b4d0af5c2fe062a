"""The chapters: each .ipynb is its .py, executed without error; and the script that makes them so."""

import importlib.util
import shutil
from pathlib import Path

import chapter_numbers
import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("jupytext")
pytest.importorskip("nbclient")

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
spec = importlib.util.spec_from_file_location("execute", NOTEBOOKS / "execute.py")
execute = importlib.util.module_from_spec(spec)
spec.loader.exec_module(execute)

CHAPTERS = sorted(path.stem for path in NOTEBOOKS.glob("[0-9][0-9]_*.py"))
MAX_BYTES = 1_000_000  # GitHub shows a larger notebook slowly or not at all


@pytest.mark.parametrize("name", CHAPTERS)
def test_notebook_is_its_source_executed(name):
    assert execute.problems(NOTEBOOKS / f"{name}.py", NOTEBOOKS / f"{name}.ipynb") == []


def test_where_the_repository_has_an_address_a_chapter_sets_the_package_up(monkeypatch):
    chapter = NOTEBOOKS / f"{CHAPTERS[0]}.py"
    plain = execute.read(chapter).cells
    monkeypatch.setattr(execute.elsewhere, "repository", lambda root: "https://github.com/a/b")
    cells = execute.read(chapter).cells
    assert "https://github.com/a/b" in cells[1].source
    assert [cell.source for cell in cells[:1] + cells[2:]] == [cell.source for cell in plain]
    assert len({cell.id for cell in cells}) == len(cells)


@pytest.mark.parametrize("name", CHAPTERS)
def test_notebook_is_small(name):
    assert (NOTEBOOKS / f"{name}.ipynb").stat().st_size < MAX_BYTES


@pytest.mark.parametrize("name", CHAPTERS)
def test_chapter_has_what_every_chapter_has(name):
    cells = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    code = "\n\n".join(cell.source for cell in cells if cell.cell_type == "code")
    assert text.startswith(f"# {int(name[:2])}. ")  # the title
    assert text.split("\n\n")[1].rstrip().endswith("?")  # the question, which README's table quotes
    assert text.count("<details><summary>Solution</summary>") >= 2
    assert text.count("<details>") == text.count("</details>")
    assert "chapter.source(" in code
    assert "chapter.explore(" in code
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell.get("outputs", []))


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_cell_shows_something_or_is_folded(name):
    cells = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
    silent = [
        cell.source[:100]
        for cell in cells
        if cell.cell_type == "code" and not cell.outputs and not cell.metadata.get("jupyter", {}).get("source_hidden")
    ]
    assert silent == []


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_begins_with_an_example_by_hand_that_a_cell_computes(name):
    """The section is the first one, and its first cell prints and asserts."""
    cells = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
    first = next(i for i, cell in enumerate(cells) if cell.source.startswith("## "))
    assert cells[first].source.startswith("## The smallest example, by hand")
    computed = cells[first + 1]
    assert any(output.output_type == "stream" for output in computed.outputs)
    assert "assert " in computed.source or "same(" in computed.source


def test_every_notebook_has_a_source():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} <= set(CHAPTERS)


LONG = {"15_comparison"}  # two minutes and more, in which it measures


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.thorough] * (x in LONG)) for x in CHAPTERS])
def test_chapter_runs_afresh(name, tmp_path):
    source = shutil.copy(NOTEBOOKS / f"{name}.py", tmp_path)
    execute.execute(Path(source), tmp_path / f"{name}.ipynb")
    assert execute.problems(Path(source), tmp_path / f"{name}.ipynb") == []
    assert stale(NOTEBOOKS / f"{name}.ipynb", tmp_path / f"{name}.ipynb") == []


def stale(committed, afresh):
    """The numbers and pictures of a committed notebook that a new execution does not have."""
    cells, new = (
        [x for x in nbformat.read(p, as_version=4).cells if x.cell_type == "code"] for p in (committed, afresh)
    )
    return [
        f"cell {i}: {text}"
        for i, (cell, again) in enumerate(zip(cells, new, strict=True), 1)
        for text in chapter_numbers.differences(cell, [*map(chapter_numbers.noted, again.outputs)])
    ]


# --- The script -----------------------------------------------------------------------------------------------------

CHAPTER = """# %% [markdown]
# # 9. A chapter: of no content
#
# Is this a question?

# %%
from linattn_ref.attention import softmax
from linattn_ref.experiments.publishing import chapter

chapter.source(softmax.backward)

# %%
import ipywidgets
from IPython.display import display

display(ipywidgets.IntSlider())
print("done")
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A small chapter, executed once for all tests."""
    folder = tmp_path_factory.mktemp("chapter")
    source, target = folder / "09_small.py", folder / "09_small.ipynb"
    source.write_text(CHAPTER, encoding="utf-8")
    execute.execute(source, target)
    return source, target


@pytest.fixture
def small(executed, tmp_path):
    """A copy of it to be spoilt: the source's path, the notebook's path, the notebook."""
    source, target = (Path(shutil.copy(path, tmp_path)) for path in executed)
    return source, target, nbformat.read(target, as_version=4)


def test_an_executed_chapter_has_no_problems(small):
    assert execute.problems(small[0], small[1]) == []


def test_nothing_volatile_is_kept(small):
    _, target, notebook = small
    assert notebook.metadata == execute.METADATA
    assert [cell.id for cell in notebook.cells] == ["cell-01", "cell-02", "cell-03"]
    assert all("execution" not in cell.metadata for cell in notebook.cells)
    assert [output.output_type for output in notebook.cells[2].outputs] == ["stream"]  # the slider is left out
    assert target.read_bytes().endswith(b"}\n")


def test_prints_are_joined_but_keep_their_place():
    def stream(name, text):
        return nbformat.v4.new_output("stream", name=name, text=text)

    figure = nbformat.v4.new_output("display_data", data={"text/plain": "a figure"})
    outputs = [stream("stdout", "a"), stream("stdout", "b"), figure, stream("stdout", "c"), stream("stderr", "d")]
    assert [output.get("text", "figure") for output in execute.joined(outputs)] == ["ab", "figure", "c", "d"]


def spoil_source(notebook):
    notebook.cells[2].source += "\n# more"


def leave_out_a_cell(notebook):
    notebook.cells.pop()


def not_executed(notebook):
    notebook.cells[2].execution_count = None


def executed_in_another_order(notebook):
    notebook.cells[1].execution_count, notebook.cells[2].execution_count = 2, 1


def fail(notebook):
    notebook.cells[2].outputs = [nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[])]


def warn(notebook):
    notebook.cells[2].outputs[0].name = "stderr"


def show_a_path(notebook):
    notebook.cells[2].outputs[0].text = "saved in /home/someone/figures/a.svg\n"


def show_an_address(notebook):
    notebook.cells[2].outputs[0].text = "<function f at 0x7f0123456789>\n"


def keep_a_slider(notebook):
    notebook.cells[2].outputs.append(nbformat.v4.new_output("display_data", data={execute.SLIDER: {"model_id": "1"}}))


def show_what_is_gone(notebook):
    notebook.cells[1].outputs[0].metadata[execute.chapter.SOURCE_OF]["names"] = ["linattn_ref.attention.softmax:gone"]


def show_an_old_source(notebook):
    data = notebook.cells[1].outputs[0].data
    data["text/markdown"] = data["text/markdown"].replace("# (6)", "# (5)")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_source, "its cells are not those of 09_small.py"),
        (leave_out_a_cell, "its cells are not those of 09_small.py"),
        (not_executed, "not each executed once, in order"),
        (executed_in_another_order, "not each executed once, in order"),
        (fail, "code cell 2 failed: ValueError: no"),
        (warn, "code cell 2 wrote to standard error"),
        (show_a_path, "code cell 2 shows '/home/someone/figures/a.svg'"),
        (show_an_address, "code cell 2 shows 'at 0x7f0123456789'"),
        (keep_a_slider, "code cell 2 holds a slider"),
        (show_what_is_gone, "code cell 1 shows linattn_ref.attention.softmax:gone as it was"),
        (show_an_old_source, "code cell 1 shows linattn_ref.attention.softmax:backward as it was"),
    ],
)
def test_problems_are_found(small, spoil, message):
    source, target, notebook = small
    spoil(notebook)
    nbformat.write(notebook, target)
    found = execute.problems(source, target)
    assert len(found) == 1
    assert message in found[0]


def test_text_alone_is_taken_over_and_gives_what_executing_gives(small):
    source, target, _ = small
    before = target.read_bytes()
    source.write_text(CHAPTER.replace("Is this a question?", "Is it one?"), encoding="utf-8")
    execute.take_text(source, target)
    assert execute.problems(source, target) == []
    assert target.read_bytes() == before.replace(b"Is this a question?", b"Is it one?")


@pytest.mark.parametrize("spoil", [spoil_source, show_an_old_source])
def test_text_is_not_taken_over_where_code_has_changed(small, spoil):
    source, target, notebook = small
    spoil(notebook)
    nbformat.write(notebook, target)
    before = target.read_bytes()
    with pytest.raises(execute.ChapterError, match=r"its code has changed|as it was"):
        execute.take_text(source, target)
    assert target.read_bytes() == before


def test_a_missing_notebook_is_a_problem(small):
    small[1].unlink()
    assert execute.problems(small[0], small[1]) == ["it is not there"]


@pytest.mark.parametrize("text", ["N/L/D", "1 / 2", "https://a.org/b/c", "</details>", "$x/y/z$", "a/b/c.py", "and/or"])
def test_what_is_not_a_path_of_this_machine(text):
    assert not execute.MACHINE.search(text)


@pytest.mark.parametrize("text", ["/usr/lib/x.py", "in '/tmp/a/b'", 'File "/home/a/b.py"', "C:\\Users\\a", "(/var/x)"])
def test_what_is_a_path_of_this_machine(text):
    assert execute.MACHINE.search(text)


def test_a_failing_cell_leaves_the_notebook_as_it_was(small):
    source, target, _ = small
    before = target.read_bytes()
    source.write_text("# %%\nprint('done')\n\n# %%\nraise ValueError('on purpose')\n", encoding="utf-8")
    with pytest.raises(execute.ChapterError, match=r"09_small.py(.|\n)*on purpose"):
        execute.execute(source, target)
    assert target.read_bytes() == before
    assert sorted(path.name for path in target.parent.iterdir()) == ["09_small.ipynb", "09_small.py"]


def test_a_cell_that_takes_too_long_is_stopped(small):
    source, target, _ = small
    source.write_text("# %%\nimport time\ntime.sleep(60)\n", encoding="utf-8")
    before = target.read_bytes()
    with pytest.raises(execute.ChapterError, match="cell timed out"):
        execute.execute(source, target, timeout=1)
    assert target.read_bytes() == before


def test_the_command_names_unknown_chapters(capsys):
    with pytest.raises(SystemExit) as stop:
        execute.main(["99"])
    assert stop.value.code == 2
    assert f"no chapter '99'; there are {CHAPTERS[0]}" in capsys.readouterr().err


def test_the_command_checks(capsys, tmp_path):
    name = CHAPTERS[0]
    assert execute.main(["--check", name]) == 0
    assert execute.main(["--check", "--out", str(tmp_path), name]) == 1
    assert capsys.readouterr().err == f"{name}.ipynb: it is not there\n"
