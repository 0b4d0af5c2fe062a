"""Layer norm: the formula, its gradient, and what it refuses."""

import numpy as np
import pytest

from linattn_ref.gradcheck import check_elementwise
from linattn_ref.nn import layer_norm
from linattn_ref.nn.layer_norm import Params


def draw(shape=(2, 7, 5), dtype=np.float64):
    rng = np.random.default_rng(0)
    return rng.standard_normal(shape).astype(dtype), Params(*rng.standard_normal((2, shape[-1])).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("eps", [1e-5, 1e-12, 0.5])
def test_the_formula(dtype, eps):
    x, params = draw(dtype=dtype)
    expected = params.gain * (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) + params.bias
    y, saved = layer_norm.forward(x, params, eps=eps)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, expected, rtol=0, atol=32 * np.finfo(dtype).eps)
    assert all(d.dtype == dtype for d in (layer_norm.backward(y, saved).x, *layer_norm.backward(y, saved).params))


@pytest.mark.parametrize("shape", [(5,), (1, 5), (2, 3, 5)])
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_gradients(shape, eps):
    x, params = draw(shape)

    def forward(x, params):
        return layer_norm.forward(x, Params(*params), eps=eps)

    check_elementwise(forward, layer_norm.backward, x, params, rng=np.random.default_rng(2)).assert_ok()


def test_the_input_is_not_kept():
    """One array of its size, which is what (1) gives."""
    x, params = draw()
    _, saved = layer_norm.forward(x, params)
    assert saved.n.size + saved.s.size == x.size + x.size // 5


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"x": [[1.0]]}, TypeError, r"^x: expected a numpy\.ndarray, got list"),
        ({"params": np.ones((2, 5))}, TypeError, r"^params: expected layer_norm.Params, got numpy.ndarray"),
        (
            {"params": Params(np.ones(4), np.ones(5))},
            ValueError,
            r"^params.gain: expected shape \(W,\) = \(5,\), got \(4,\)",
        ),
        ({"params": Params(np.ones(5), np.ones(5, np.float32))}, TypeError, r"^params.bias: expected float64"),
        ({"eps": 0}, ValueError, r"^eps: expected a number above 0 in float64, got 0"),
        (
            {"x": np.ones((1, 5), np.float32), "params": Params(*np.ones((2, 5), np.float32)), "eps": 1e-50},
            ValueError,
            r"^eps: expected a number above 0 in float32, got 1e-50",
        ),
        *(
            ({"eps": eps}, ValueError, r"^eps: expected a finite number of at least 0")
            for eps in (-1e-5, np.nan, np.inf)
        ),
        ({"eps": "1e-5"}, TypeError, r"^eps: expected a number, got '1e-5'"),
    ],
)
def test_what_is_refused(changed, error, match):
    x, params = draw()
    with pytest.raises(error, match=match):
        layer_norm.forward(**{"x": x, "params": params, **changed})


def test_what_backward_refuses():
    y, saved = layer_norm.forward(*draw())
    with pytest.raises(TypeError, match=r"^saved: expected what forward returned second, layer_norm.Saved"):
        layer_norm.backward(y, (y, saved))
    with pytest.raises(ValueError, match=r"^d_y: expected shape \(\.\.\., W\) = \(2, 7, 5\), got \(7, 5\)"):
        layer_norm.backward(y[0], saved)
