"""What networks learn from in tests: small, made up, and fetched from nowhere."""

import csv

import numpy as np
import pytest

from linattn_ref.data import cifar


@pytest.fixture
def text(tmp_path):
    """Two hundred paragraphs in which each word says what the next is."""
    path, words = tmp_path / "text.txt", [f"w{chr(97 + i)}" for i in range(12)]
    lines = [" ".join(words[(start + step) % 12] for step in range(20 + start % 7)) for start in range(200)]
    path.write_text("\n\n".join(f"{line} {i}" for i, line in enumerate(lines)), encoding="utf-8")
    return path


@pytest.fixture
def data(tmp_path):
    """Texts of the first or of the last words of the tiny model."""
    rng, path = np.random.default_rng(0), tmp_path / "data.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", "source"])
        for i in range(400):
            words = list("abcdefgh" if i % 2 else "jklmnopq")
            writer.writerow([" ".join(rng.choice(words, rng.integers(5, 12))), i % 2, "here"])
    return path


@pytest.fixture
def colours(tmp_path):
    """CIFAR-10's six files, four images of noise in each."""
    rng, folder = np.random.default_rng(0), tmp_path / "cifar"
    folder.mkdir()
    for name in (*cifar.TRAINING, *cifar.TEST):
        records = rng.integers(0, 256, (4, cifar.RECORD), np.uint8)
        records[:, 0] = 1
        (folder / name).write_bytes(records.tobytes())
    return folder


@pytest.fixture
def recordings(tmp_path):
    """Three sounds a part, a second of noise each; for the last there is more to say than frames."""
    soundfile = pytest.importorskip("soundfile", reason="needs the extra speech")
    rng, folder = np.random.default_rng(0), tmp_path / "data"
    for part in ("train", "dev", "test"):
        for i in range(3):
            path = folder / part / f"anna of {part}" / f"{i}.flac"
            path.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(path, 0.1 * rng.standard_normal(16000), 16000)
            path.with_suffix(".txt").write_text("a film")
    path.with_suffix(".txt").write_text("a film of so many letters that a second has no time for them")
    return folder
