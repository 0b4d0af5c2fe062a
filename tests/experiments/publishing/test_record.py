import errno
import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from matplotlib.figure import Figure

import linattn_ref
from linattn_ref.atomic import check_writable, write_all
from linattn_ref.experiments.publishing import record, style


class Point(NamedTuple):
    x: np.ndarray
    note: str


class Pair(NamedTuple):
    left: float
    right: Path


def drawing():
    with style.use("paper"):
        figure, axes = style.figure(1, 2)
        for i, colour in enumerate(style.sequence(3)):
            axes[0].plot([0, 1], [0, i], color=colour, label=f"línea {i}")
            axes[0].fill_between([0, 1], [0, i], alpha=0.2)
        axes[0].legend()
        axes[1].imshow(np.arange(6.0).reshape(2, 3))
    return figure


def save(folder, results=None, figure=None, **options):
    given = {"command": "linattn-ref figures", "seed": 0, **options}
    return record.write(figure or drawing(), record.document(results or {"x": 1}, "name", **given), folder)


def test_four_files_the_same_bytes_every_time_without_a_date(tmp_path):
    first, second = save(tmp_path / "a"), save(tmp_path / "b")
    assert [path.name for path in first] == ["name.svg", "name.png", "name.pdf", "name.json"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert {path.name for path in (tmp_path / "a").iterdir()} == {path.name for path in first}
    for path in first:
        assert not re.search(rb"CreationDate|ModDate|dc:date|tIME|20\d\d-\d\d-\d\d", path.read_bytes()), path


def test_png_is_as_wide_for_print_as_for_a_slide(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "METADATA", {"png": record.METADATA["png"]})  # nothing else is drawn
    for name in style.STYLES:
        with style.use(name):
            png = save(tmp_path / name, figure=style.figure()[0])[0]
        assert int.from_bytes(png.read_bytes()[16:20], "big") == record.PNG_WIDTH


def test_record_says_where_the_figure_comes_from(tmp_path, monkeypatch):
    results = Point(np.float32([0.1, 2]), "é")
    monkeypatch.setattr(Figure, "savefig", lambda _, path, **__: path.touch())
    path = save(tmp_path, results, Figure(), caption="What is seen.", seed=7, model_sha256="ab")[3]
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["results"] == {"x": [0.1, 2.0], "note": "é"}
    assert (document["command"], document["seed"]) == ("linattn-ref figures", 7)
    assert (document["caption"], document["model_sha256"]) == ("What is seen.", "ab")
    assert document["versions"]["numpy"] == np.__version__
    assert document["versions"]["linattn_ref"] == linattn_ref.__version__
    assert {"python", "scipy", "matplotlib"} <= set(document["versions"])
    assert document["machine"]["processor"]
    assert document["machine"]["blas"]


def test_plain_reads_back_to_the_same_numbers():
    rng = np.random.default_rng(0)
    singles, doubles = rng.standard_normal(50, np.float32), rng.standard_normal((2, 3))
    value = {"a": singles, "b": [doubles, (np.int64(3), np.bool_(True), None)], "c": Pair(1.5, Path("d"))}
    back = json.loads(record.json_text(record.plain(value)))
    assert (np.array(back["a"], np.float32) == singles).all()
    assert (np.array(back["b"][0]) == doubles).all()
    assert back["b"][1] == [3, True, None]
    assert back["c"] == {"left": 1.5, "right": "d"}
    assert len(json.dumps(back["a"])) < 14 * 50  # no digits that a float32 has not


def test_what_json_has_no_number_for_reads_back_by_float():
    back = json.loads(record.json_text(record.plain(np.array([np.nan, np.inf, -np.inf, 1.0]))))
    assert back == ["nan", "inf", "-inf", 1.0]
    assert np.isnan(float(back[0]))
    assert float(back[2]) == -np.inf


@pytest.mark.parametrize("thing", [np.random.default_rng(0), np.complex64(1), 1j, np.datetime64("2020-01-01")])
def test_plain_refuses_objects(thing):
    with pytest.raises(TypeError, match=r"numbers, strings and arrays, got (Generator|complex|date)"):
        record.plain({"thing": [thing]})


def test_json_text_puts_a_row_of_numbers_on_a_line():
    text = record.json_text({"a": [[1, 2], [3, 4]], "b": {"c": []}, "d": {}})
    assert text.splitlines() == [
        *("{", '  "a": [', "    [1, 2],", "    [3, 4]", "  ],"),
        *('  "b": {', '    "c": []', "  },", '  "d": {}', "}"),
    ]


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_changes_nothing_and_is_told_with_the_file(tmp_path, monkeypatch):
    saved = []

    def savefig(self, path, *, format, **_):
        saved.append(format)
        path.write_text(f"drawing {len(saved)}")
        if saved.count("pdf") == 2:
            full_disk()

    monkeypatch.setattr(Figure, "savefig", savefig)
    before = {path: path.read_bytes() for path in save(tmp_path, figure=Figure())}
    with pytest.raises(OSError, match=r"\[Errno 28\] cannot write: No space left on device: .*name\.pdf"):
        save(tmp_path, {"x": 2}, Figure())
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_results_that_cannot_be_recorded_leave_no_drawing(tmp_path):
    with pytest.raises(TypeError):
        save(tmp_path / "new", {"x": object()})
    assert not (tmp_path / "new").exists()


def test_write_all_is_all_or_nothing_when_interrupted(tmp_path):
    def interrupted(path):
        path.write_text("half")
        raise KeyboardInterrupt

    (tmp_path / "a").write_text("old")
    with pytest.raises(KeyboardInterrupt):
        write_all({tmp_path / "a": lambda path: path.write_text("new"), tmp_path / "b": interrupted})
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]


def test_write_all_makes_folders_and_names_one_that_it_cannot_make(tmp_path):
    write_all({tmp_path / "x" / "y": lambda path: path.write_text("1")})
    assert (tmp_path / "x" / "y").read_text() == "1"
    with pytest.raises(OSError, match=r"cannot write: .*y/z"):
        write_all({tmp_path / "x" / "y" / "z": lambda path: path.write_text("1")})


def test_write_all_names_a_folder_that_it_cannot_replace(tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(OSError, match=r"cannot write: .*/there'"):
        write_all({tmp_path / "there": lambda path: path.write_text("1")})
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_what_cannot_be_written_is_known_beforehand(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("kept")
    for wrong in ("there", "file/name"):
        with pytest.raises(OSError, match=f"cannot write: .*/{wrong}'"):
            check_writable(tmp_path / wrong)
    check_writable(tmp_path / "file")
    check_writable(tmp_path / "new" / "name")
    assert (tmp_path / "file").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "new", "there"]
