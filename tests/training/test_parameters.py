"""One flat array and the layers' views of it; clipping over either."""

from typing import NamedTuple

import numpy as np
import pytest

from linattn_ref.nn import affine, feed_forward
from linattn_ref.training import clip, parameters


def drawn(dtype=np.float64):
    return feed_forward.draw(3, 5, np.random.default_rng(0), dtype=dtype)


def test_views_share_the_memory_in_order():
    params = drawn()
    flat, views = parameters.flatten(params)
    assert [name for name, _ in parameters.leaves(views)] == ["inner.w", "inner.b", "outer.w", "outer.b"]
    assert flat.size == 3 * 5 + 5 + 5 * 3 + 3
    np.testing.assert_array_equal(flat, np.concatenate([x.ravel() for _, x in parameters.leaves(params)]))
    flat[:] = np.arange(flat.size)
    assert views.inner.b[0] == 15
    assert isinstance(views.inner, affine.Params)
    views.outer.b[:] = -1
    assert np.all(flat[-3:] == -1)
    assert not np.shares_memory(flat, params.inner.w)


def test_gradients_go_into_the_flat_array():
    params = drawn()
    total, grads = parameters.flatten(parameters.zeros_like(params))
    x = np.random.default_rng(1).standard_normal((2, 3))
    y, saved = feed_forward.forward(x, params)
    feed_forward.backward(y, saved, into=grads)
    alone = feed_forward.backward(y, saved).params
    np.testing.assert_array_equal(total, np.concatenate([g.ravel() for _, g in parameters.leaves(alone)]))


def test_what_is_no_parameter_is_an_error():
    class Odd(NamedTuple):
        w: np.ndarray
        name: str

    with pytest.raises(TypeError, match="name: expected arrays in NamedTuples, got a str"):
        parameters.flatten(Odd(np.ones(2), "x"))
    with pytest.raises(
        TypeError, match=r"params: expected arrays all float32 or all float64, got \['float32', 'float64'\]"
    ):
        parameters.flatten((np.ones(2), np.ones(2, np.float32)))
    with pytest.raises(ValueError, match=r"flat: expected shape \(38,\), the numbers of params, got \(3,\)"):
        parameters.views(np.ones(3), drawn())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clipping_keeps_the_direction(dtype):
    flat, views = parameters.flatten(drawn(dtype))
    before, length = flat.copy(), float(np.linalg.norm(flat))
    assert clip.by_global_norm(flat, length * 2) == pytest.approx(length)
    np.testing.assert_array_equal(flat, before)  # short enough
    clip.by_global_norm(flat, length / 4)
    np.testing.assert_allclose(flat, before / 4, rtol=1e-5)
    clip.each(views, 0.01)
    assert all(np.linalg.norm(x) == pytest.approx(0.01, rel=1e-3) for _, x in parameters.leaves(views) if x.any())


def test_a_huge_gradient_is_clipped_and_not_lost():
    """The square of 1e30 is more than float32 holds."""
    grads = np.full(4, 1e30, np.float32)
    assert clip.by_global_norm(grads, 1.0) == pytest.approx(2e30)
    np.testing.assert_allclose(grads, 0.5, rtol=1e-5)


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), None])
def test_a_limit_is_a_number_above_0(limit):
    with pytest.raises(ValueError, match="limit: expected a number above 0"):
        clip.by_global_norm(np.ones(2), limit)
