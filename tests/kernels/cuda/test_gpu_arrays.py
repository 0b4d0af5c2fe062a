"""The mechanisms' own text with arrays on a GPU, without one: strict stand-ins go in, and the reference's kernels.

What a GPU would have to wait for or copy to the host is an error here, and what CuPy does not have (`strict_arrays`).
A new mechanism with kernels is tested by its line in ``cases.py``.
"""

import inspect
import operator
import sys
import types
from dataclasses import replace

import numpy as np
import pytest
from case import Setting, Sizes, assert_close, normal_like
from cases import CASES
from kernels.cuda import strict_arrays
from kernels.cuda.strict_arrays import Tensor, ndarray

from linattn_ref.attention import exponents, feature_maps, linear, performer, softmax
from linattn_ref.gradcheck_inputs import map_arrays
from linattn_ref.kernels import libraries, reference

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
MASKS = pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
WITH_KERNELS = [case for case in CASES if case.rooms]


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """CuPy and PyTorch replaced; the numbers that `exponents` asks for, which only it may."""
    strict_arrays.install(monkeypatch)
    numbers = []

    def told(x):
        numbers.append(x._x.item() if isinstance(x, ndarray) else x.item())
        return numbers[-1]

    monkeypatch.setattr(exponents, "told", told)
    return numbers


def room():
    """The reference's kernels behind the door of a GPU's."""
    strict = types.ModuleType("linattn_ref.kernels.strict")
    strict.on_gpu, strict.dtype_of = libraries.is_on_gpu, None
    for name in reference.__all__:
        kernel = types.ModuleType(f"linattn_ref.kernels.strict.{name}")
        for title, function in inspect.getmembers(getattr(reference, name), inspect.isfunction):
            setattr(kernel, title, of_strict_arrays(function))
        setattr(strict, name, kernel)
    return strict


def of_strict_arrays(function):
    def on_gpu(*args, **keywords):
        assert not any(isinstance(x, np.ndarray) and x.dtype.kind in "fb" for x in args), "a copy on the host"
        result = function(*strict_arrays.plain(args), **strict_arrays.plain(keywords))
        return strict_arrays.wrapped(result)

    return on_gpu


def put(x):
    """An array of PyTorch's kind, as users have them; integers, which are indices, stay on the host."""
    return x if x.dtype.kind in "iu" else Tensor(x)


def get(x):
    """The arrays in a result, which have to be of PyTorch's kind, as NumPy's."""
    if isinstance(x, (tuple, list)):
        parts = [get(part) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    assert not isinstance(x, (np.ndarray, ndarray))
    return x._x if isinstance(x, Tensor) else x


def on_gpu(call, kernels=None):
    """The same call with arrays that are there."""
    arrays = {name: map_arrays(put, x) for name, x in call.arrays.items()}
    options = {name: map_arrays(put, x) for name, x in call.options.items()}
    return replace(call, arrays=arrays, options={**options, "kernels": kernels or room()})


@DTYPES
@MASKS
@pytest.mark.parametrize("case", WITH_KERNELS, ids=str)
def test_both_passes_are_the_references(case, masked, dtype):
    if masked and not case.key_mask:
        pytest.skip("takes no mask")
    for sizes in (Sizes(), Sizes(1, 1, 1, 1, ())):
        call = Setting(case, "reference", masked).call(sizes, dtype=dtype)
        expected = call.run()
        out, saved = on_gpu(call).forward()
        gradients = case.backward(put(normal_like(expected.out)), saved)
        result = expected._replace(out=get(out), gradients=get(gradients)).named()
        assert result.keys() == expected.named().keys()
        for name, x in expected.named().items():
            assert result[name].dtype == dtype
            assert_close(result[name], x, case, name)


# --- States ---------------------------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("case", [case for case in WITH_KERNELS if case.recurrent], ids=str)
def test_a_state_goes_in_and_out(case, dtype):
    """Some tokens at once, the others one by one, from a state that was made on the GPU."""
    n, first = 6, 3
    call = Setting(case, "reference", masked=False).call(Sizes(n, n), dtype=dtype)
    expected, there, sizes = call.run().out, on_gpu(call), call.sizes
    constants = [x for name, x in there.arrays.items() if name not in call.axes]
    options = there.change(capacity=n, dtype=dtype, like=there.arrays["q"]).accepted_by(case.module.init_state)
    state = case.module.init_state(sizes.leading, sizes.d, sizes.m, *constants, **options)

    tokens = map_arrays(put, tuple(call.positions(slice(first)).values()))
    out, saved = case.forward(*tokens, **there.options, state=state)
    outs, state = [get(out)[..., t, :] for t in range(first)], saved.state
    for t in range(first, n):
        q_t, k_t, v_t, *others = map_arrays(put, tuple(call.positions(t).values()))
        out_t, state = case.module.step(q_t, k_t, v_t, state, *others, **there.accepted_by(case.module.step))
        outs.append(get(out_t))
    assert all(isinstance(x, (Tensor, int, type(None))) for x in state)
    assert_close(np.stack(outs, axis=-2), expected, case)


def test_a_step_writes_to_the_callers_state():
    state = linear.State(*(Tensor(np.zeros(shape)) for shape in ((2, 4, 3), (2, 4))), None)
    q, k, v = (Tensor(np.ones((2, width))) for width in (4, 4, 3))
    _, after = linear.step(q, k, v, state, kernels=room())
    assert after.s is state.s
    np.testing.assert_array_equal(state.z._x, 2)


def test_states_are_combined_there():
    rng = np.random.default_rng(0)
    k, v = rng.standard_normal((2, 8, 4))
    omega = rng.standard_normal((5, 4))
    maps = (
        *(feature_maps.elu_plus_one, feature_maps.relu, feature_maps.quadratic(1.0), feature_maps.taylor_exp(2)),
        *(feature_maps.taylor_gaussian(2), feature_maps.favor_hyperbolic(omega), feature_maps.rfa_arccos(omega)),
    )
    for phi in maps:
        expected = linear.summarise(k, v, feature_map=phi)
        parts = [
            linear.summarise(Tensor(k[rows]), Tensor(v[rows]), feature_map=phi) for rows in (slice(3), slice(3, 8))
        ]
        for whole in (linear.combine(*parts), linear.combine_gradients(parts[0], linear.combine(*parts))):
            assert all(isinstance(x, Tensor) for x in whole if x is not None)
        scale = 0 if expected.log_scale is None else get(linear.combine(*parts).log_scale) - expected.log_scale
        np.testing.assert_allclose(get(linear.combine(*parts).z) * np.exp(scale), expected.z, rtol=1e-12)


# --- What the GPU is asked ------------------------------------------------------------------------------------------


def test_only_exponents_ask_and_little(asked):
    """Two numbers a piece of a causal pass: does the scale rise, and where does it next."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 200, 4))
    omega = rng.standard_normal((5, 4))
    for jump, pieces in ((1, 1), (40, None)):
        k[150:] *= jump
        expected, saved = performer.forward(q, k, v, omega, kind="trig", causal=True)
        asked.clear()
        out, _ = performer.forward(*(Tensor(x) for x in (q, k, v)), omega, kind="trig", causal=True, kernels=room())
        np.testing.assert_allclose(get(out), expected, rtol=1e-6)
        assert pieces in (None, len(saved.phi.pieces))
        assert len(asked) <= 3 * len(saved.phi.pieces)
    assert len(saved.phi.pieces) > 1
    asked.clear()
    performer.forward(*(Tensor(x) for x in (q, k, v)), omega, kernels=room())
    assert not asked


# --- The door -------------------------------------------------------------------------------------------------------


def test_arrays_of_cupy_need_no_change():
    q, k, v = (ndarray(x) for x in np.ones((3, 2, 5, 4)))
    out, saved = softmax.forward(q, k, v, kernels=room())
    assert type(out) is ndarray
    assert saved.q is q
    assert type(softmax.backward(out, saved).q) is ndarray


def test_vectors_of_another_width_are_refused_there_too():
    q, k, v = (Tensor(x) for x in np.ones((3, 2, 5, 4)))
    with pytest.raises(ValueError, match=r"^k: expected shape \(\.\.\., L, D\)"):
        softmax.forward(q, Tensor(np.ones((2, 5, 3))), v, kernels=room())
    with pytest.raises(TypeError, match=r"^q: expected float32 or float64, got int64"):
        softmax.forward(Tensor(np.ones((2, 5, 4), np.int64)), k, v, kernels=room())


def test_a_mix_is_one_clear_error():
    q, k, v = np.ones((3, 2, 5, 4))
    for arrays in ((Tensor(q), k, Tensor(v)), (Tensor(q), Tensor(k), ndarray(v))):
        with pytest.raises(TypeError, match=r"^[kv]: expected torch tensor on cuda:0 like q, got (numpy|cupy) array"):
            softmax.forward(*arrays, kernels=room())
    for arrays in ((q, Tensor(k), v), (q, k, ndarray(v))):
        with pytest.raises(TypeError, match=r"^[kv]: expected a numpy\.ndarray, got (Tensor|ndarray)"):
            softmax.forward(*arrays, kernels=room())
    out, saved = softmax.forward(*(Tensor(x) for x in (q, k, v)), kernels=room())
    with pytest.raises(TypeError, match=r"^saved: expected torch tensor .* like d_out, got numpy array"):
        softmax.backward(out, softmax.forward(q, k, v)[1])
    with pytest.raises(TypeError, match=r"^d_out: expected torch tensor .* like saved, got numpy array"):
        softmax.backward(q, saved)


def test_other_rooms_do_not_take_them():
    q, k, v = (Tensor(x) for x in np.ones((3, 2, 5, 4)))
    with pytest.raises(
        TypeError, match=r"^kernels: expected linattn_ref.kernels.cuda for arrays on a GPU, got .*refer"
    ):
        linear.forward(q, k, v)
    with pytest.raises(TypeError, match=r"^q: expected a numpy\.ndarray, got Tensor"):
        softmax.matrix(q, k)


def test_without_cupy_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    q, k, v = (Tensor(x) for x in np.ones((3, 2, 5, 4)))
    with pytest.raises(ImportError, match=r"^arrays on a GPU need CuPy .*: pip install 'linattn-ref\[cuda12\]'"):
        softmax.forward(q, k, v, kernels=room())


# --- The stand-in ---------------------------------------------------------------------------------------------------

FORBIDDEN = {
    "float": float,
    "bool": bool,
    "index": lambda x: [1, 2][x],
    "item": lambda x: x.item(),
    "a NumPy array of it": np.asarray,
    "a NumPy array beside it": lambda x: x + np.ones(3),
    "an unknown function": np.fft.fft,
    "an unknown keyword": lambda x: np.divide(x, x, where=x > 0),
    "a ufunc's method": lambda x: np.add.reduceat(x, [0, 1]),
    "a product for which CuPy has no name": lambda x: np.vecdot(x, x),
    "a boolean index": lambda x: x[x > 0],
    "an assignment from the host": lambda x: x.__setitem__(0, np.ones(3)),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_the_stand_in_refuses(name):
    with pytest.raises((TypeError, AttributeError)):
        FORBIDDEN[name](ndarray(np.ones((2, 3))) if name != "index" else ndarray(np.array(0)))


def test_the_stand_in_can_no_more_than_cupy(monkeypatch):
    monkeypatch.undo()
    cupy = pytest.importorskip("cupy", reason="compares the stand-in with CuPy: pip install cupy-cuda12x")
    for name in strict_arrays.UFUNCS - {"matmul"}:
        assert isinstance(getattr(cupy, name), cupy.ufunc)
    for name, keywords in strict_arrays.FUNCTIONS.items():
        assert set(keywords) <= set(inspect.signature(operator.attrgetter(name)(cupy)).parameters), name
    for name in strict_arrays.METHODS:
        assert hasattr(cupy.ndarray, name)
