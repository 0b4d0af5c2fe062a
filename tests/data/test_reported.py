"""The numbers copied from papers agree with what the same papers print of their ratios and means."""

import numpy as np
import pytest

from linattn_ref.data import reported


@pytest.mark.parametrize("table", [reported.MNIST, reported.CIFAR_10], ids=["MNIST", "CIFAR-10"])
def test_times_faster_is_the_ratio_of_images_per_second(table):
    for row in table.values():
        ratio = row.images_per_second / table["softmax"].images_per_second
        assert ratio == pytest.approx(row.times_faster, rel=0.02)


@pytest.mark.parametrize(
    ("table", "printed"),  # table 5's ratios to linear, CPU and GPU
    [
        (reported.MNIST_SECONDS, [(13.2, 1.4), (1.3, 1.42), (8.3, 2.6), (20, 7.6), (1, 1)]),
        (reported.CIFAR_10_SECONDS, [(191.8, 4.9), (1.6, 1.14), (51.4, 3.6), (116.7, 11.1), (1, 1)]),
    ],
    ids=["MNIST", "CIFAR-10"],
)
def test_seconds_have_the_printed_ratios(table, printed):
    ratios = np.array(list(table.values())) / table["linear"]
    np.testing.assert_allclose(ratios, printed, rtol=0.04)


def test_linformer_saves_more_at_greater_length_and_smaller_k():
    for table in (reported.LINFORMER_TIME_SAVED, reported.LINFORMER_MEMORY_SAVED):
        for n, row in table.items():
            assert len(row) == sum(k <= n / 2 for k in reported.LINFORMER_REDUCED)
            assert list(row) == sorted(row, reverse=True)
        for shorter, longer in zip(list(table.values())[:-1], list(table.values())[1:], strict=True):
            assert all(a <= b for a, b in zip(shorter, longer, strict=False))


def test_every_table_is_public():
    assert {name for name in vars(reported) if name.isupper()} <= {*reported.__all__}


def test_the_average_accuracy_is_the_mean_of_four():
    for *tasks, average in reported.LINFORMER_ACCURACY.values():
        assert average == pytest.approx(np.mean(tasks), abs=0.0051)
