from pathlib import Path
from types import ModuleType

import pytest

from linattn_ref.attention import softmax
from linattn_ref.experiments.publishing import tables

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", tables.PAGES)
def test_a_page_is_up_to_date(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert tables.updated(text, ROOT, name) == text, "run `linattn-ref figures --only tables`"


def test_every_file_with_a_mechanism_has_a_row():
    names = [row.name for row in tables.mechanisms()]
    assert names[0] == "softmax"
    assert {"softmax", "linformer"} <= set(names)
    for row in tables.mechanisms():
        assert (ROOT / row.file).is_file()


def test_a_row_is_what_the_code_says():
    row = tables.mechanism(softmax)
    assert (row.title, row.source, row.recurrent, row.parameters) == (
        "Softmax attention",
        "Vaswani et al. 2017",
        True,
        (),
    )
    assert row.fields["Time"] == "``O(N L max(D, M))``"
    linformer = next(row for row in tables.mechanisms() if row.name == "linformer")
    assert (linformer.recurrent, linformer.parameters) == (False, ("e", "f"))
    line = next(line for line in tables.mechanisms_table([linformer]).splitlines() if "Linformer" in line)
    drawn = "figures/schematic_linformer.svg"
    assert line.startswith(f'| <a href="{drawn}"><img src="{drawn}" width="280" alt="Linformer, drawn"></a> | ')
    assert " | [Linformer](linattn_ref/attention/linformer.py)<br>Wang et al. 2020 | softmax attention of " in line
    assert line.endswith(" | no | no | `e`, `f` |")
    assert "``" not in line


def new_module(doc, **members):
    module = ModuleType("linattn_ref.attention.new", doc)
    module.forward = lambda q, k, v, omega, *, kind="x", kernels=None: None
    vars(module).update(members)
    return module


def test_a_module_without_a_field_is_an_error_that_names_it():
    doc = "New thing: it does.\n\n:Time: ``O(1)``\n:Causal: no\n:Exact: no\n"
    with pytest.raises(ValueError, match=r"linattn_ref\.attention\.new: its docstring needs :Gives:, :Memory:; see"):
        tables.mechanism(new_module(doc))


def test_a_module_with_all_fields_is_a_row():
    fields = ":Time: ``O(1)``\n:Memory: ``O(N)``\n:Causal: no\n:Exact: no\n:Gives: nothing\n"
    doc = f"New, odd (A. and B. 2021): it does.\n\n{fields}"
    row = tables.mechanism(new_module(doc, step=None))
    assert (row.title, row.source, row.recurrent, row.parameters) == ("New", "–", True, ("omega", "kind"))
    row = tables.mechanism(new_module(doc.replace(", odd", "")))
    assert (row.title, row.source, row.recurrent) == ("New", "A. and B. 2021", False)


def test_a_chapter_is_its_heading_and_first_paragraph(tmp_path):
    text = (
        "# ---\n# jupyter: x\n# ---\n\n# %% [markdown]\n# # 1. A title\n#\n# A question\n# in two lines?\n#\n# More.\n"
    )
    (tmp_path / "01_name.py").write_text(text, encoding="utf-8")
    (tmp_path / "execute.py").write_text("# no chapter")
    (row,) = tables.chapters(tmp_path)
    assert row == ("01_name", "1. A title", "A question in two lines?")
    (tmp_path / "01_name.py").write_text(f"{text}#\n# You need chapter 1, and\n# patience.\n", encoding="utf-8")
    told = "| [1. A title](01_name.ipynb) | A question in two lines? | 0 | chapter 1, and patience | – |"
    assert told in tables.chapters_table(tmp_path)


def test_a_chapter_without_heading_is_an_error(tmp_path):
    (tmp_path / "01_x.py").write_text("x = 1\n# ## small\n")
    with pytest.raises(ValueError, match=r"01_x\.py: expected a line '# # Title'"):
        tables.chapters(tmp_path)


MARKS = (
    "a\n<!-- gradient:begin -->\nold\n<!-- gradient:end -->\nb\n<!-- routes:begin --><!-- routes:end -->\nc\n"
    "<!-- headlines:begin --><!-- headlines:end -->\n"
)


@pytest.fixture
def root(tmp_path):
    """A folder with the committed records and chapters."""
    for name in ("figures", "notebooks"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def test_updated_changes_only_what_is_between_the_marks(root):
    text = tables.updated(MARKS, root)
    assert "old" not in text
    assert text.startswith("a\n<!-- gradient:begin -->\n```py\n")
    assert "<!-- routes:end -->\nc\n<!-- headlines:begin -->\n| what | against |" in text
    assert text.endswith("\n<!-- headlines:end -->\n")
    assert "\n<!-- gradient:end -->\nb\n<!-- routes:begin -->\n| route |" in text
    assert tables.updated(text, root) == text


@pytest.mark.parametrize("mark", ["<!-- gradient:begin -->", "<!-- routes:end -->"])
def test_marks_that_are_missing_or_doubled_are_an_error(root, mark):
    name = mark[5:].partition(":")[0]
    for text in (MARKS.replace(mark, ""), MARKS + mark):
        with pytest.raises(ValueError, match=f"README.md: expected <!-- {name}:begin --> and then"):
            tables.updated(text, root)


def test_no_readme_says_where_to_run(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no README\.md in .*: run this in the repository's root"):
        tables.update(tmp_path / "README.md")
