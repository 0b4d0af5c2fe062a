import importlib.util
import inspect
import json
import re
import shutil
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from linattn_ref.experiments.publishing import catalogue, gallery, tables
from linattn_ref.experiments.publishing.registry import MODULES

FIGURES = Path(__file__).parents[3] / "figures"


def test_committed_gallery_is_made_of_the_committed_records():
    assert gallery.page_of(FIGURES) == (FIGURES / "README.md").read_text(encoding="utf-8")


def test_figures_folder_holds_nothing_else():
    known = {f"{name}.{ending}" for name in catalogue.ALL for ending in ("svg", "png", "pdf", "json")}
    assert {path.name for path in FIGURES.iterdir()} - {"records", "pages", "frames"} == {
        *known,
        "README.md",
    }  # what training said, and how pages look


def test_make_draws_one_and_keeps_the_others_in_the_page(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(Figure, "savefig", lambda _, path, **__: path.touch())  # a later test draws
    gallery.make(["eckart_young"], out=tmp_path, quick=True, say=told.append)
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"README.md", *(f"eckart_young.{ending}" for ending in ("svg", "png", "pdf", "json"))}
    record = json.loads((tmp_path / "eckart_young.json").read_text(encoding="utf-8"))
    assert record["command"] == "linattn-ref figures --only eckart_young --quick"
    (tmp_path / "low_rank.json").write_text(json.dumps({**record, "name": "low_rank"}), encoding="utf-8")
    gallery.make(["eckart_young"], out=tmp_path, quick=True, style_name="projector")
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == ["eckart young", "low rank"]
    assert record["caption"] in page.replace("\\", "")
    assert "`linattn-ref figures --only eckart_young --quick --style projector` · seed 0 · python 3" in page
    assert len(told) == 2


def test_what_takes_minutes_is_told_before_and_what_is_left_after(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(gallery, "draw", lambda *_, **__: told.append("drawn"))
    gallery.make(["linformer", "resources", "rewind"], out=tmp_path, say=told.append)
    assert told[0] == "3 figures, about 15 minutes on one core"
    assert told[1] == "drawn"
    assert told[2].endswith("linformer.svg, .png, .pdf, .json; about 5 minutes left")
    assert told[4].endswith("resources.svg, .png, .pdf, .json")
    assert catalogue.MINUTES.keys() <= set(catalogue.ALL)


def test_a_bench_stays_where_a_package_of_its_record_is_missing(tmp_path, monkeypatch):
    told, drawn, missing = [], [], {"openvino"}
    monkeypatch.setattr(gallery, "draw", lambda name, *_, **__: drawn.append(name))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else name)
    names = ["bench_softmax", "bench_linear", "bench_threads"]
    for name in names:
        shutil.copy(FIGURES / f"{name}.json", tmp_path)
    gallery.make(names, out=tmp_path, say=told.append)
    assert drawn == names[1:]
    assert told[1] == "bench_softmax: left as it is, since it needs OpenVINO, not installed here (extra peers)"
    missing |= {"torch", "fast_transformers_native"}
    gallery.make(names, out=tmp_path, say=told.append)
    assert drawn == [*names[1:], "bench_threads"]  # which compares with no package
    assert "since it needs PyTorch, fast-transformers native, not installed here (extra peers)" in "".join(told)


def test_the_packages_of_all_records_are_known():
    for name in catalogue.BENCHES:
        results = json.loads((FIGURES / f"{name}.json").read_text(encoding="utf-8"))["results"]
        assert results.get("versions", {}).keys() <= MODULES.keys()


def test_what_cannot_be_written_is_not_computed(tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "compute", lambda *_, **__: pytest.fail("computed"))
    (tmp_path / "eckart_young.json").mkdir()
    with pytest.raises(IsADirectoryError):
        gallery.make(["eckart_young"], out=tmp_path)


@pytest.mark.parametrize("name", catalogue.BENCHES)
def test_no_caption_fixes_what_is_an_option(name):
    options = inspect.signature(catalogue.module_of(name).compute).parameters
    for option in {"heads", "rounds", "features", "pixels"}.intersection(options):
        assert not re.search(rf"\b(\d+|two|four|eight) (\w+ )?{option}", catalogue.caption_of(name))


def test_drawing_again_measures_nothing_and_keeps_who_measured(tmp_path, monkeypatch):
    for name, little in (("METADATA", {"png": {}}), ("PNG_WIDTH", 400)):  # drawn as that alone, and small
        monkeypatch.setattr(f"linattn_ref.experiments.publishing.record.{name}", little)
    gallery.make(["eckart_young"], out=tmp_path, quick=True)
    path = tmp_path / "eckart_young.json"
    before = json.loads(path.read_text(encoding="utf-8"))
    measured = {**before, "machine": {"processor": "another"}, "caption": "old"}
    path.write_text(json.dumps(measured), encoding="utf-8")
    drawn = (tmp_path / "eckart_young.png").read_bytes()
    (tmp_path / "eckart_young.png").unlink()
    monkeypatch.setattr(catalogue.module_of("eckart_young").np.linalg, "svd", None)
    gallery.make(["eckart_young"], out=tmp_path, redraw=True)
    assert json.loads(path.read_text(encoding="utf-8")) == {**measured, "caption": before["caption"]}
    assert (tmp_path / "eckart_young.png").read_bytes() == drawn
    monkeypatch.chdir(tmp_path.parent)
    tmp_path.rename("figures")
    gallery.make(["eckart_young"], out=Path("slide"), redraw=True, style_name="projector")
    assert json.loads(Path("slide", path.name).read_text(encoding="utf-8"))["machine"] == {"processor": "another"}


def test_a_bench_drawn_again_gets_its_table_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(Figure, "savefig", lambda _, path, **__: path.touch())
    before = json.loads((FIGURES / "bench_softmax.json").read_text(encoding="utf-8"))
    path = tmp_path / "bench_softmax.json"
    path.write_text(json.dumps({**before, "table": "old"}), encoding="utf-8")
    gallery.make(["bench_softmax"], out=tmp_path, redraw=True)
    assert json.loads(path.read_text(encoding="utf-8")) == before


def test_signs_of_markdown_in_a_caption_are_shown_as_they_are():
    record = {"name": "x", "caption": "P~ by |p_i| is *not* <b>", "command": "c", "seed": 0, "versions": {}}
    assert r"P\~ by \|p\_i\| is \*not\* \<b\>" in gallery.page([record])


@pytest.mark.parametrize(
    ("word", "names"),
    [("speech", ["speech_curves", "speech_utterance"]), ("mlm", ["mlm_curves"]), ("linformer", ["linformer"])],
)
def test_a_name_or_how_several_begin(word, names):
    assert gallery._called(word) == names


def test_unknown_name_lists_those_there_are(tmp_path):
    with pytest.raises(ValueError, match=r"only: no figure named mona_lisa; there are .*spectrum, .* and tables"):
        gallery.make(["spectrum", "mona_lisa"], out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_tables_alone_leave_the_gallery(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    for source in sorted((FIGURES.parent / "notebooks").glob("[0-9s]*")):
        (tmp_path / "notebooks" / source.name).symlink_to(source)
    for name, made in tables.PAGES.items():
        marks = "".join(f"<!-- {table}:begin -->\n<!-- {table}:end -->\n" for table in made)
        (tmp_path / name).write_text(marks, encoding="utf-8")
    (tmp_path / "figures").symlink_to(FIGURES)
    monkeypatch.chdir(tmp_path)
    gallery.make(["tables"], out=tmp_path / "gallery")
    assert "Vaswani et al. 2017" in (tmp_path / "MECHANISMS.md").read_text(encoding="utf-8")
    assert "| One evening |" in (tmp_path / "README.md").read_text(encoding="utf-8")
    assert not (tmp_path / "gallery").exists()
