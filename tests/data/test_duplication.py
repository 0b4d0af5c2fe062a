"""Words and their copies."""

import numpy as np
import pytest

from linattn_ref.data import duplication


def test_the_second_copy_can_be_told_from_the_first():
    words = duplication.draw(np.random.default_rng(0), count=200, length=17)
    lengths = set()
    for read, told, counts in zip(*words, strict=True):
        n = int(np.flatnonzero(read == 0)[0])
        lengths.add(n)
        assert read[:n].min() >= 1
        np.testing.assert_array_equal(read, [*read[:n], 0, *read[:n], *[0] * (17 - 2 * n - 1)])
        np.testing.assert_array_equal(told[:-1], read[1:])
        assert told[counts].tolist() == [0, *read[:n]]
    assert lengths == set(range(4, 8))  # from S // 4 to (S - 1) // 2 - 1
    assert set(words.read.ravel()) == set(range(duplication.SYMBOLS + 1))


def test_a_length_without_room_is_an_error():
    with pytest.raises(ValueError, match="length: expected at least 5 places"):
        duplication.draw(np.random.default_rng(0), count=1, length=4)
