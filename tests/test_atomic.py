"""What others could do to a file while it is written, and what a power cut could."""

import os
import stat
import sys
from pathlib import Path
from urllib.error import URLError

import pytest

from linattn_ref.atomic import check_writable, move_into_place, write_all


def written(path, text="new"):
    """Have ``path`` written; the temporary file's path."""
    seen = []

    def write(temporary):
        assert temporary.parent == path.parent  # so that a rename is enough
        assert temporary.read_bytes() == b""  # it is there already: nobody else can put something there
        temporary.write_text(text)
        seen.append(temporary)

    assert write_all({path: write}) == [path]
    return seen[0]


def test_a_link_under_the_temporary_name_is_not_followed(tmp_path):
    """Somebody who guesses the name could have a file of the user's written over, such as ~/.bashrc."""
    victim, folder = tmp_path / "victim", tmp_path / "shared"
    victim.write_text("kept")
    folder.mkdir()
    guessed = folder / f".record.json.{os.getpid()}.part"
    guessed.symlink_to(victim)
    written(folder / "record.json")
    check_writable(folder / "record.json")
    assert victim.read_text() == "kept"
    assert guessed.is_symlink()
    assert (folder / "record.json").read_text() == "new"


def test_the_temporary_name_is_another_each_time(tmp_path):
    names = {written(tmp_path / "file").name for _ in range(20)}
    assert len(names) == 20
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_has_no_utf_8_is_written_by_its_number(tmp_path):
    """Such as a file's name of Latin-1, which Python has as a lone surrogate."""
    write_all({tmp_path / "file": "of k\udce9r.py"})
    assert (tmp_path / "file").read_text(encoding="utf-8") == r"of k\udce9r.py"


def test_a_temporary_file_is_made_anew_or_not_at_all(tmp_path, monkeypatch):
    opened, real = [], os.open

    def noted(path, flags, *mode, **options):
        opened.append(flags)
        return real(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", noted)
    check_writable(tmp_path / "file")
    assert opened[0] & os.O_CREAT
    assert opened[0] & os.O_EXCL


@pytest.mark.skipif(sys.platform == "win32", reason="inode numbers")
def test_content_is_on_the_disk_before_its_name_is(tmp_path, monkeypatch):
    """After a power cut record.jsonl was there, and empty."""
    on_disk, fsync, replace = set(), os.fsync, os.replace

    def noted(descriptor):
        on_disk.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def checked(source, target):
        files = [path for path in (source, *source.rglob("*")) if path.is_file()]
        assert files
        assert {path.stat().st_ino for path in files} <= on_disk
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", checked)
    written(tmp_path / "file")
    assert tmp_path.stat().st_ino in on_disk  # the new name itself
    for name in ("a", "b/c"):
        (tmp_path / "site" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "site" / name).write_text(name)
    move_into_place(tmp_path / "site", tmp_path / "there")
    assert (tmp_path / "there" / "b" / "c").read_text() == "b/c"


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_others_may_read_it_as_far_as_the_user_lets_them(tmp_path):
    before = os.umask(0o027)
    try:
        written(tmp_path / "file")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_a_folder_in_place_of_a_file_leaves_the_others_as_they_were(tmp_path):
    (tmp_path / "a").write_text("old")
    (tmp_path / "b").mkdir()
    with pytest.raises(IsADirectoryError, match="cannot write"):
        write_all({tmp_path / "a": "new", tmp_path / "b": "new"})
    assert (tmp_path / "a").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


@pytest.mark.skipif(sys.platform == "win32", reason="pipes")
def test_a_device_or_a_pipe_stays_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for write in (check_writable, written):
        with pytest.raises(OSError, match="cannot write: a device or a pipe"):
            write(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_where_modes_cannot_be_set_nothing_is_left_behind(tmp_path, monkeypatch):
    def refused(self, mode):
        raise PermissionError("a file system without modes")

    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(Path, "chmod", refused)
    check_writable(tmp_path / "file")
    written(tmp_path / "file")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "new"}


def test_another_may_clear_unfinished_files_away(tmp_path, monkeypatch):
    """As a run that begins does in its folder, while the next one looks whether it could write there."""
    close = os.close

    def cleared(descriptor):
        close(descriptor)
        for path in tmp_path.glob(".*.part"):
            path.unlink()

    monkeypatch.setattr(os, "close", cleared)
    check_writable(tmp_path / "file")


@pytest.mark.skipif(sys.platform == "win32", reason="modes and links")
def test_a_file_keeps_its_mode_and_a_link_what_it_points_to(tmp_path):
    real, link = tmp_path / "folder" / "real", tmp_path / "link"
    real.parent.mkdir()
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    write_all({link: "new"})
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    written(tmp_path / ("x" * 250))  # whose temporary name is no longer


@pytest.mark.skipif(sys.platform == "win32", reason="links")
def test_a_file_and_a_link_to_it_leave_nothing_behind(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    write_all({real: "first", link: "second"})
    assert real.read_text() == "second"
    assert {path.name for path in tmp_path.iterdir()} == {"real", "link"}


def test_an_error_of_another_kind_is_told_with_the_file(tmp_path):
    """Not all are made of a number and a text, as Python's own are."""

    def fetches(temporary):
        raise URLError("no network")

    with pytest.raises(OSError, match=r"cannot write: .*no network") as told:
        write_all({tmp_path / "file": fetches})
    assert told.value.filename == str(tmp_path / "file")
    assert [*tmp_path.iterdir()] == []


def test_a_file_in_place_of_a_folder_is_told(tmp_path):
    (tmp_path / "a").write_text("no folder")
    with pytest.raises(NotADirectoryError):
        write_all({tmp_path / "a" / "b": "text"})
