"""CIFAR-10's binary files, made small: the order of labels, colours and pixels, and files that are none."""

import numpy as np
import pytest

from linattn_ref.data import cifar


@pytest.fixture
def written(tmp_path):
    """Six files of two records each; their images ``(12, 32, 32, 3)`` and labels."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, cifar.SIDE, cifar.SIDE, 3), np.uint8)
    labels = rng.integers(0, 10, 12).astype(np.uint8)
    for i, name in enumerate((*cifar.TRAINING, *cifar.TEST)):
        content = bytearray()
        for j in (2 * i, 2 * i + 1):
            content += bytes([labels[j]])
            for colour in range(3):
                for row in range(cifar.SIDE):
                    content += images[j, row, :, colour].tobytes()
        (tmp_path / name).write_bytes(content)
    return tmp_path, images, labels


def test_a_record_is_a_label_and_three_planes(written):
    folder, images, labels = written
    found = cifar.read_folder(folder)
    np.testing.assert_array_equal(np.concatenate([found.training, found.test]), images)
    np.testing.assert_array_equal(np.concatenate([found.training_labels, found.test_labels]), labels)
    assert len(found.training) == 10


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "expected records of 3073 bytes, got 0 bytes"),
        (bytes(3074), "expected records of 3073 bytes, got 3074 bytes"),
        (bytes([77]) + bytes(3072), "expected labels 0 to 9, got 77"),
        (bytes([10]) + bytes(3072), "expected labels 0 to 9, got 10"),
    ],
)
def test_what_is_no_such_file_is_an_error(written, content, told):
    folder, *_ = written
    (folder / "data_batch_3.bin").write_bytes(content)
    with pytest.raises(ValueError, match=f"^data: .*data_batch_3.bin: {told}"):
        cifar.read_folder(folder)


def test_a_file_that_is_not_there_is_named(written):
    folder, *_ = written
    (folder / "test_batch.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no test_batch\.bin"):
        cifar.read_folder(folder)
