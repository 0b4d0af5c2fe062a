"""The LSTM: padding, wrong arguments, and its compiled loop; the formula and gradients are in ``test_layers.py``."""

from functools import partial

import numba
import numpy as np
import pytest
from cases import each_compiled_dtype

from linattn_ref.gradcheck import check_elementwise
from linattn_ref.kernels import jit, reference
from linattn_ref.nested import leaves
from linattn_ref.nn import lstm, lstm_steps

RNG = np.random.default_rng(0)
PARAMS = lstm.draw(4, 3, RNG)
rooms = pytest.mark.parametrize("room", [reference, jit], ids=["reference", "jit"])


@rooms
def test_what_pads_a_sequence_changes_nothing(room):
    """NaN in it neither; the way back begins at the last step that counts."""
    x, d_y, lengths = RNG.standard_normal((3, 5, 4)), RNG.standard_normal((3, 5, 6)), np.array([5, 2, 0])
    x[1, 2:], x[2], d_y[1, 2:] = np.nan, np.inf, np.nan
    y, saved = lstm.forward(x, PARAMS, lengths=lengths, kernels=room)
    d_x = lstm.backward(d_y, saved).x
    for b, n in enumerate(lengths):
        assert np.all(y[b, n:] == 0)
        assert np.all(d_x[b, n:] == 0)
        if n:
            alone, saved_alone = lstm.forward(x[b : b + 1, :n], PARAMS, kernels=room)
            np.testing.assert_allclose(y[b, :n], alone[0], rtol=1e-13)
            np.testing.assert_allclose(d_x[b, :n], lstm.backward(d_y[b : b + 1, :n], saved_alone).x[0], rtol=1e-12)


@rooms
def test_what_it_starts_from_has_gradients(room):
    """Also of sequences that are padded, one of them empty."""
    x, starts, lengths = RNG.standard_normal((3, 4, 4)), RNG.standard_normal((2, 2, 3, 3)), np.array([4, 2, 0])
    forward = partial(lstm.forward, lengths=lengths, kernels=room)
    check_elementwise(forward, lstm.backward, x, PARAMS, *starts, rng=0).assert_ok()


@rooms
def test_steps_go_on_from_where_others_ended(room):
    x, d_h = RNG.standard_normal((5, 2, 4)), RNG.standard_normal((5, 2, 3))
    h, saved = lstm_steps.forward(x, PARAMS.ahead, kernels=room)
    first, saved_first = lstm_steps.forward(x[:2], PARAMS.ahead, kernels=room)
    rest, saved_rest = lstm_steps.forward(x[2:], PARAMS.ahead, saved_first.h[-1], saved_first.c[-1], kernels=room)
    np.testing.assert_allclose([*first, *rest], h, rtol=1e-13, atol=1e-15)
    only_last = np.concatenate([np.zeros_like(d_h[:2]), d_h[2:]])
    expected, of_rest = lstm_steps.backward(only_last, saved), lstm_steps.backward(d_h[2:], saved_rest)
    np.testing.assert_allclose(of_rest.x, expected.x[2:], rtol=1e-12, atol=1e-14)


def test_small_inputs_keep_their_digits():
    """``tanh`` near 0, where a difference of exponentials would cancel; on both sides of it."""
    x, params = 1e-12 * RNG.standard_normal((5, 2, 4)), PARAMS.ahead._replace(b=np.zeros_like(PARAMS.ahead.b))
    (expected, _), (h, _) = (lstm_steps.forward(x, params, kernels=room) for room in (reference, jit))
    np.testing.assert_allclose(h, expected, rtol=1e-11)


def test_inputs_of_any_size():
    """The gates are 0 or 1 then, and no number overflows."""
    y, _ = lstm.forward(np.full((1, 3, 4), 1e4), PARAMS)
    assert np.all(np.isfinite(y))


def test_wrong_arguments_are_named():
    x, ahead = RNG.standard_normal((3, 5, 4)), PARAMS.ahead
    for error, options in {
        "x: expected shape .B, T, E.": {"x": x[None]},
        "lengths: expected numbers from 0 to 5, got 6 to 6": {"lengths": np.full(3, 6)},
        r"h0: expected shape \(2, B, H\) = \(2, 3, 3\)": {"h0": np.ones((2, 3, 4))},
        "c0: expected float64": {"c0": np.ones((2, 3, 3), np.float32)},
        "params.ahead.u: expected shape .H, K.": {"params": PARAMS._replace(ahead=ahead._replace(u=ahead.u[:, :5]))},
        "params.back.w: expected shape .E, K.": {"params": PARAMS._replace(back=ahead._replace(w=ahead.w[1:]))},
        "params.back.b: expected float64": {"params": PARAMS._replace(back=ahead._replace(b=np.ones(12, np.float32)))},
        "kernels: expected a backend with the page 'lstm' or 'lstm_steps'": {"kernels": np},
    }.items():
        with pytest.raises((TypeError, ValueError), match=f"^{error}"):
            lstm.forward(**{"x": x, "params": PARAMS, **options})


@rooms
def test_parameters_have_four_columns_per_unit(room):
    with pytest.raises(ValueError, match=r"^params\.u: expected shape \(H, 4 H\) = \(2, 8\), got \(2, 4\)"):
        lstm_steps.forward(
            np.ones((2, 1, 1)), lstm.Direction(np.ones((1, 4)), np.ones((2, 4)), np.ones(4)), kernels=room
        )


@each_compiled_dtype
@pytest.mark.parametrize(("batch", "width", "hidden"), [(1, 2, 1), (3, 40, 5), (9, 1, 16), (17, 33, 37)])
def test_jit_is_the_reference(batch, width, hidden, dtype):
    """Whole Vectors and Blocks, and parts of them; the same bits with any number of threads."""
    shapes = (6, batch, width), (6, batch, hidden), (width, 4 * hidden), (hidden, 4 * hidden), (4 * hidden,)
    x, d_h, *params = (RNG.standard_normal(shape).astype(dtype) for shape in shapes)

    def both(room, dtype):
        kept, saved = lstm_steps.forward(
            x.astype(dtype), lstm.Direction(*(p.astype(dtype) for p in params)), kernels=room
        )
        return [each for _, each in leaves((kept, lstm_steps.backward(d_h.astype(dtype), saved)))]

    exact, results, threads = both(reference, float), [], numba.get_num_threads()
    try:
        for count in (threads, 1):
            numba.set_num_threads(count)
            results.append(both(jit, dtype))
    finally:
        numba.set_num_threads(threads)
    for got, alone, expected in zip(*results, exact, strict=True):
        np.testing.assert_array_equal(got, alone)
        assert got.dtype == dtype
        # Six steps, each of them a product of as many terms as there are inputs and units, whose weights are about 1.
        error = 256 * np.finfo(dtype).eps * max(1, abs(expected).max())
        np.testing.assert_allclose(got, expected, rtol=0, atol=error)


def test_jit_at_its_ends():
    x = np.array([1e300, -1e300, np.inf, -np.inf, 1e4, -1e4, 0.0, np.nan])[None, :, None]
    params = lstm.Direction(np.ones((1, 4)), np.zeros((1, 4)), np.zeros(4))  # all gates of a sequence from one number
    h, saved = lstm_steps.forward(x, params, kernels=jit)
    with np.errstate(invalid="ignore"):
        expected, saved_expected = lstm_steps.forward(x, params)
    np.testing.assert_allclose(saved.gates, saved_expected.gates, rtol=0, atol=1e-15)
    np.testing.assert_allclose(h, expected, rtol=0, atol=1e-15)
