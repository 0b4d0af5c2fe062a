"""The LSTM: padding, wrong arguments, and its compiled loop; the formula and gradients are in ``test_layers.py``."""

import numba
import numpy as np
import pytest

from linattn_ref.kernels import reference
from linattn_ref.nn import lstm

RNG = np.random.default_rng(0)
PARAMS = lstm.draw(4, 3, RNG)


def test_what_pads_a_sequence_changes_nothing():
    """NaN in it neither; the way back begins at the last step that counts."""
    x, d_y, lengths = RNG.standard_normal((3, 5, 4)), RNG.standard_normal((3, 5, 6)), np.array([5, 2, 0])
    x[1, 2:], x[2], d_y[1, 2:] = np.nan, np.inf, np.nan
    y, saved = lstm.forward(x, PARAMS, lengths=lengths)
    d_x = lstm.backward(d_y, saved).x
    for b, n in enumerate(lengths):
        assert np.all(y[b, n:] == 0)
        assert np.all(d_x[b, n:] == 0)
        if n:
            alone, saved_alone = lstm.forward(x[b : b + 1, :n], PARAMS)
            np.testing.assert_allclose(y[b, :n], alone[0], rtol=1e-13)
            np.testing.assert_allclose(d_x[b, :n], lstm.backward(d_y[b : b + 1, :n], saved_alone).x[0], rtol=1e-12)


def test_inputs_of_any_size():
    """The gates are 0 or 1 then, and no number overflows."""
    y, _ = lstm.forward(np.full((1, 3, 4), 1e4), PARAMS)
    assert np.all(np.isfinite(y))


def test_wrong_arguments_are_named():
    x, ahead = RNG.standard_normal((3, 5, 4)), PARAMS.ahead
    for error, options in {
        "x: expected shape .B, T, E.": {"x": x[None]},
        "lengths: expected numbers from 0 to 5, got 6 to 6": {"lengths": np.full(3, 6)},
        "params.ahead.u: expected shape .H, 4 H.": {"params": PARAMS._replace(ahead=ahead._replace(u=ahead.u[:, :5]))},
        "params.back.w: expected shape .E, 4 H.": {"params": PARAMS._replace(back=ahead._replace(w=ahead.w[1:]))},
        "params.back.b: expected float64": {"params": PARAMS._replace(back=ahead._replace(b=np.ones(12, np.float32)))},
        "kernels: expected a module with a 'lstm' kernel": {"kernels": np},
    }.items():
        with pytest.raises((TypeError, ValueError), match=f"^{error}"):
            lstm.forward(**{"x": x, "params": PARAMS, **options})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("batch", "hidden"), [(1, 1), (3, 5), (9, 16), (17, 37)])
def test_jit_is_the_reference(batch, hidden, dtype):
    """Whole Vectors and Blocks, and parts of them; the same bits with any number of threads."""
    from linattn_ref.kernels import jit

    a = 2 * RNG.standard_normal((6, batch, 4 * hidden)).astype(dtype)
    u, d_h = (RNG.standard_normal(shape).astype(dtype) for shape in ((hidden, 4 * hidden), (6, batch, hidden)))
    exact = reference.lstm.forward(a.astype(float), u.astype(float))
    d_exact = reference.lstm.backward(d_h.astype(float), u.astype(float), *exact[1:])
    results, threads = [], numba.get_num_threads()
    try:
        for count in (threads, 1):
            numba.set_num_threads(count)
            h, c, gates = jit.lstm.forward(a, u)
            results.append((h, c, gates, jit.lstm.backward(d_h, u, c, gates)))
    finally:
        numba.set_num_threads(threads)
    for got, alone, expected in zip(*results, (*exact, d_exact), strict=True):
        np.testing.assert_array_equal(got, alone)
        assert got.dtype == dtype
        # Six steps, each of them a product of as many terms as there are units, whose weights are about 1.
        error = 256 * np.finfo(dtype).eps * max(1, abs(expected).max())
        np.testing.assert_allclose(got, expected, rtol=0, atol=error)


@pytest.mark.slow
def test_jit_at_its_ends():
    from linattn_ref.kernels import jit

    a = np.array([1e300, -1e300, np.inf, -np.inf, 1e4, -1e4, 0.0, np.nan])[:, None].repeat(4, axis=1)[None]  # H = 1
    h, _, gates = jit.lstm.forward(a, np.zeros((1, 4)))
    with np.errstate(invalid="ignore"):
        expected, _, expected_gates = reference.lstm.forward(a, np.zeros((1, 4)))
    np.testing.assert_allclose(gates, expected_gates, rtol=0, atol=1e-15)
    np.testing.assert_allclose(h, expected, rtol=0, atol=1e-15)
