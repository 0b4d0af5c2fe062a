"""The figure of moving content: Long-Short finds the mark, Linformer's fixed mixtures stay at their bound."""

import numpy as np
import pytest
from quick import quick

from linattn_ref.experiments.fewer_keys import moving_content
from linattn_ref.gradcheck import check_elementwise


@pytest.fixture(scope="module")
def results():
    return quick("moving_content")


def test_errors(results):
    assert (results.long_short < 0.02).all()
    assert (results.longer < 0.05).all()
    bound = 1 - results.reduced / results.length
    # 512 sequences of 4 values: the mean of 2048 squares, standard deviation sqrt(2 / 2048) = 0.03
    assert (results.linformer > bound - 0.1).all()
    assert (results.linformer < bound + 0.25).all()


def test_maps(results):
    """Long-Short puts the weight where the mark is; Linformer spreads it over places that do not move with it."""
    n = results.length
    on_mark = np.diag(results.map_long_short)
    assert on_mark.mean() > 0.9
    assert np.diag(results.map_linformer).mean() < 2 * results.shown / n
    assert results.map_long_short.shape == results.map_linformer.shape == (n, n)


def test_batches_have_one_mark_each():
    batch = moving_content.draw_batch(np.random.default_rng(0), 16, places=range(16))
    np.testing.assert_array_equal(batch.k[..., 0].argmax(axis=1), np.arange(16))
    for b in range(16):
        np.testing.assert_array_equal(batch.target[b, 0], batch.v[b, b])


def test_the_gradients_that_train():
    batch = moving_content.draw_batch(np.random.default_rng(0), 8, size=2)
    rng = np.random.default_rng(1)
    w_p, e, f = rng.standard_normal((8, 2)), *rng.standard_normal((2, 2, 8))
    check_elementwise(
        lambda w_p: moving_content.long_short_loss(w_p, batch),
        lambda d_out, gradient: (d_out * gradient,),
        w_p,
        rng=rng,
    ).assert_ok()

    def of_linformer(e, f):
        loss, *gradients = moving_content.linformer_loss(e, f, batch)
        return loss, gradients

    check_elementwise(of_linformer, lambda d_out, saved: [d_out * x for x in saved], e, f, rng=rng).assert_ok()
