"""A compiled token of the delta rule beside the page's rows, and what the kernel refuses."""

import delta_page
import numpy as np
import pytest
from cases import each_compiled_dtype

from linattn_ref.attention import delta, gated_linear
from linattn_ref.kernels import jit
from linattn_ref.kernels.jit.loops.delta import delta_product as kernel
from linattn_ref.kernels.jit.loops.simd.vector import lanes

WIDTH = lanes(np.empty(0, np.float64))
SIZES = [(1, 1), (3, 2), (WIDTH, WIDTH + 1), (2 * WIDTH + 1, 4 * WIDTH + 3)]
GATES = {"no gate": None, "a head": (2, 3), "a channel": (2, 3, -1)}


def draw(c, m, gate="a channel", dtype=np.float64):
    """``q, k, v, erase, log_gate, s`` of (2, 3) heads; among the gates one of 0 and one of 1."""
    rng = np.random.default_rng(c)
    q, k, e, v = (rng.standard_normal((2, 3, width)) / np.sqrt(c) for width in (c, c, c, m))
    log_gate = GATES[gate]
    if log_gate is not None:
        log_gate = -rng.exponential(size=[c if size == -1 else size for size in log_gate])
        log_gate.flat[:2] = -np.inf, -0.0
    arrays = q, k, v, e, log_gate, rng.standard_normal((2, 3, c, m))
    return [None if x is None else x.astype(dtype) for x in arrays]


def assert_close(found, expected, dtype):
    tolerance = 64 * np.finfo(dtype).eps * max(1, abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@each_compiled_dtype
@pytest.mark.parametrize("erases", [True, False])
@pytest.mark.parametrize("gate", GATES)
def test_a_token_is_a_row(gate, erases, dtype):
    for c, m in SIZES:
        q, k, v, e, log_gate, s = draw(c, m, gate, dtype)
        after, expected_after = s.copy(), s.astype(np.float64)
        rows = [None if x is None else x.astype(np.float64) for x in (q, k, v, e if erases else None, log_gate)]
        expected = delta_page.step(*rows, expected_after)
        found = kernel.step(q, k, v, e if erases else None, log_gate, after)
        assert found.dtype == dtype
        assert_close(found, expected, dtype)
        assert_close(after, expected_after, dtype)


@each_compiled_dtype
@pytest.mark.parametrize("normalise", [True, False])
def test_what_the_page_does_around_it(normalise, dtype):
    """``beta``, the scale and unit length are the kernel's; a new state leaves the old one as it is."""
    q, k, v, _, log_gate, s = draw(5, 4, dtype=dtype)
    beta = np.linspace(0, 2, 6, dtype=dtype).reshape(2, 3)
    wide = [x.astype(np.float64) for x in (q, k, v, s, beta, log_gate)]
    options = {"normalise": normalise, "scale": 0.7}
    expected, after = delta.step(*wide[:3], delta.State(wide[3]), *wide[4:], **options)
    before, state = s.copy(), delta.State(s)
    out, new = delta.step(q, k, v, state, beta, log_gate, **options, kernels=jit)
    assert_close(out, expected, dtype)
    assert_close(new.s, after.s, dtype)
    np.testing.assert_array_equal(s, before)
    gapped = np.repeat(s, 2, axis=-1)[..., ::2]
    out, new = delta.step(q, k, v, delta.State(gapped), beta, log_gate, **options, kernels=jit, overwrite_state=True)
    assert_close(out, expected, dtype)
    assert_close(new.s, after.s, dtype)


@pytest.mark.parametrize("wrong", ["gate", "gate of gated linear attention", "beta"])
@pytest.mark.parametrize("value", [np.nan, 2.5])
def test_numbers_out_of_range_are_refused_and_nothing_is_written(wrong, value):
    """In the second call of a kind too, which the entry does not check."""
    q, k, v, _, log_gate, s = draw(3, 2, "a head")
    beta, before = np.ones((2, 3)), s.copy()

    def step():
        options = {"kernels": jit, "overwrite_state": True}
        if wrong == "gate of gated linear attention":
            return gated_linear.step(q, k, v, gated_linear.State(s), log_gate, **options)
        return delta.step(q, k, v, delta.State(s), beta, log_gate, **options)

    step()
    s[...] = before
    (beta if wrong == "beta" else log_gate)[1, 1] = value
    with pytest.raises(ValueError, match="beta_t: expected" if wrong == "beta" else "log_gate_t: expected"):
        step()
    np.testing.assert_array_equal(s, before)


@pytest.mark.parametrize("place", range(5))
def test_lengths_that_do_not_fit_are_refused(place):
    arrays = draw(3, 2)
    arrays[place] = arrays[place][:, :2].copy()
    with pytest.raises(ValueError, match="expected"):
        kernel.step(*arrays)
