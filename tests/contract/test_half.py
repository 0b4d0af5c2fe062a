"""Arrays of 16 bits, for backends: float32 inside, and one rounding at the end."""

import pickle
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from case import Sizes, about, normal_like
from cases import CASES

from linattn_ref.attention import delta, delta_rule, exponential, gated_linear, linear, performer, softmax
from linattn_ref.kernels import jit

PAGES = SimpleNamespace(  # as a backend of one's own, which computes in the precision that it is given
    softmax=softmax,
    linear=linear,
    exponential=exponential,
    delta_rule=delta_rule,
    gated_linear=gated_linear,
    delta=delta,
)
BACKENDS = pytest.mark.parametrize(
    "kernels", [pytest.param(PAGES, id="pages"), pytest.param(jit, id="jit", marks=pytest.mark.slow)]
)
HALVES = pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16])
MEMBERS = pytest.mark.parametrize("case", [c for c in CASES if c.takes("groups") and "positive" not in c.name], ids=str)
ROUNDINGS = 64  # of float32, as in the contract tests


def drawn(case, half, sizes=Sizes(9, 9)):  # noqa: B008
    """A call in 16 bits, and the same numbers in float64."""
    rng = np.random.default_rng(0)
    arrays = {name: x.astype(half) for name, x in case.draw(rng, case.fit(sizes), np.float32).items()}
    return arrays, {name: x.astype(np.float64) for name, x in arrays.items()}


def assert_rounded_once(found, exact, half):
    """Twice the error of a rounding, and that of float32."""
    info = ml_dtypes.finfo(half)
    of_float32 = ROUNDINGS * np.finfo(np.float32).eps * max(1.0, abs(exact).max())
    allowed = float(info.eps) * abs(exact) + float(info.smallest_subnormal) + of_float32
    assert found.dtype == half
    assert (abs(found.astype(np.float64) - exact) <= allowed).all()


@HALVES
@MEMBERS
@BACKENDS
def test_outputs_and_gradients_are_rounded_once(kernels, case, half):
    arrays, exact_arrays = drawn(case, half)
    out, saved = case.forward(*arrays.values(), **case.options, kernels=kernels)
    exact, exact_saved = case.forward(*exact_arrays.values(), **case.options)
    assert_rounded_once(out, exact, half)
    d_out = normal_like(exact).astype(half)
    grads = case.backward(d_out, saved)._asdict()
    for name, x in case.backward(d_out.astype(np.float64), exact_saved)._asdict().items():
        with about(name):
            assert grads[name] is x if x is None else assert_rounded_once(grads[name], x, half) is None


@HALVES
@MEMBERS
@BACKENDS
def test_states_are_float32(kernels, case, half):
    """Token by token, and all at once; with packed sequences and shared heads, whose gradients are as many."""
    arrays, _ = drawn(case, half, Sizes(6, 6, leading=(4,)))
    axes = {"offsets": np.array([0, 2, 2, 6]), "groups": 2}
    few = {name: x if name == "q" else x[:2] for name, x in arrays.items()}
    out, saved = case.forward(*few.values(), **case.options, **axes, kernels=kernels)
    assert out.dtype == half
    assert pickle.loads(pickle.dumps(saved)).dtype == saved.dtype
    for name, x in case.backward(out, saved)._asdict().items():
        assert x is None or (x.shape, x.dtype) == (few[name].shape, half)
    if case.recurrent:
        made = {name: x for name, x in case.options.items() if name == "feature_map"}
        state = case.module.init_state((4,), 4, 3, **made, dtype=np.float32, kernels=kernels)
        _, whole = case.forward(*arrays.values(), **case.options, state=state, kernels=kernels)
        for t in range(6):
            q, k, v, *others = (x[:, t] for x in arrays.values())
            out, state = case.module.step(q, k, v, state, *others, kernels=kernels)
            assert out.dtype == half
        for found, expected in zip(state, whole.state, strict=True):
            if expected is not None:
                assert found.dtype == np.float32
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_out_is_of_16_bits_too():
    x = np.ones((2, 3, 4), np.float16)
    out = np.empty_like(x)
    assert softmax.forward(x, x, x, out=out, kernels=PAGES)[0] is out
    np.testing.assert_array_equal(out, x)
    with pytest.raises(TypeError, match=r"^out: expected a numpy\.ndarray of float16, got float32"):
        softmax.forward(x, x, x, out=out.astype(np.float32), kernels=PAGES)


def test_out_shares_no_memory_in_16_bits():
    x = np.ones((2, 3, 4), np.float16)
    with pytest.raises(ValueError, match=r"^out: expected memory of its own"):
        softmax.forward(x, x.copy(), x.copy(), out=x, kernels=PAGES)


def test_what_is_refused():
    x, wide = np.ones((3, 4), np.float16), np.ones((3, 4), np.float32)
    for other in (wide, x.astype(ml_dtypes.bfloat16)):
        with pytest.raises(TypeError, match=r"^k: expected float16 like the other arrays, got "):
            softmax.forward(x, other, x, kernels=PAGES)
    with pytest.raises(TypeError, match=r"^q: expected float32 or float64, got float16"):
        softmax.forward(x, x, x)
    with pytest.raises(TypeError, match=r"^q: expected float32 or float64, got float16"):
        performer.forward(x, x, x, wide, kernels=PAGES)
    with pytest.raises(TypeError, match=r"^k: expected float32 or float64, got float16"):
        softmax.forward(wide, x, x, kernels=PAGES)
    with pytest.raises(TypeError, match=r"^state\.s: expected float32 .*, got float64"):
        linear.forward(x, x, x, causal=True, state=linear.init_state((), 4, 4), kernels=PAGES)
    with pytest.raises(TypeError, match=r"^forward\(\) missing a required argument: 'v'"):
        softmax.forward(x, x, kernels=PAGES)
    out, saved = softmax.forward(x, x, x, kernels=PAGES)
    with pytest.raises(TypeError, match=r"^d_out: expected float16 like the other arrays, got float32"):
        softmax.backward(wide, saved)
    with pytest.raises(ValueError, match=r"^d_out: expected shape"):
        softmax.backward(out[1:], saved)
    with pytest.raises(TypeError, match=r"^saved: expected what forward returned second, linear\.Saved, got half"):
        linear.backward(out, saved)
