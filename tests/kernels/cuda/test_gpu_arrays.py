"""The mechanisms' own text with arrays on a GPU, without one: strict stand-ins go in, and loops of NumPy's.

What a GPU would have to wait for or copy to the host is an error here, and what CuPy does not have (`strict_arrays`).
A new mechanism with kernels is tested by its line in ``cases.py``.
"""

import contextlib
import inspect
import operator
import sys
import types
from functools import cache
from pathlib import Path

import causal_page
import delta_page
import elu_page
import lsh_page
import numpy as np
import pattern_page
import pytest
import softmax_page
from case import Setting, Sizes, assert_close
from cases import CASES
from kernels.cuda import strict_arrays
from kernels.cuda.on_gpu import both_passes, on_gpu, on_host, prefill_and_steps
from kernels.cuda.strict_arrays import Tensor, ndarray

import linattn_ref
from linattn_ref.attention import feature_maps, linear, performer, reformer, softmax
from linattn_ref.attention.parts import gate
from linattn_ref.kernels.common import rises
from linattn_ref.op import libraries

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
MASKS = pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
ROOM = "linattn_ref.kernels.strict"
WITH_KERNELS = [case for case in CASES if case.rooms]


@pytest.fixture(autouse=True)
def cupy_is(monkeypatch):
    """CuPy and PyTorch replaced: what CuPy is set to."""
    return strict_arrays.install(monkeypatch)


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """The numbers that `rises` asks for, which nothing else may."""
    numbers = []

    def told(x):
        numbers.append(getattr(x, "_x", x).item())
        return numbers[-1]

    monkeypatch.setattr(rises, "told", told)
    return numbers


@pytest.fixture(autouse=True)
def _strict_room(monkeypatch):
    """The pages of `cuda`, made anew, around NumPy's loops behind the door of a GPU's."""

    def module(name, package=None):
        made = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, made)
        if package is not None:
            setattr(package, name.rpartition(".")[2], made)
        return made

    strict = module(ROOM)
    strict.on_gpu, strict.dtype_of = libraries.is_on_gpu, None
    loops = module(f"{ROOM}.loops", strict)
    kernels = {
        "linear": {"causal_product": causal_page, "elu_plus_one": elu_page},
        "delta": {"delta_product": delta_page},
        "softmax": {"softmax": softmax_page},
        "sparse": {"pattern_softmax": pattern_page, "lsh": lsh_page},
    }
    groups = {name: module(f"{ROOM}.loops.{name}", loops) for name in kernels}
    for group, name, numpys in ((group, *each) for group, found in kernels.items() for each in found.items()):
        kernel = module(f"{ROOM}.loops.{group}.{name}", groups[group])
        for title, function in inspect.getmembers(numpys, inspect.isfunction):
            setattr(kernel, title, of_strict_arrays(function))
        setattr(strict, name, kernel)
    for name, code in pages().items():
        exec(code, vars(module(f"{ROOM}.{name}", strict)))


@cache
def pages():
    """The code of each page of `cuda`, which takes what it imports from the strict room."""
    found = {}
    for path in sorted((Path(linattn_ref.__file__).parent / "kernels" / "cuda").glob("[a-z]*.py")):
        text = path.read_text(encoding="utf-8").replace("linattn_ref.kernels.cuda", ROOM)
        found[path.stem] = compile(text, path, "exec")
    return found


def room():
    return sys.modules[ROOM]


def of_strict_arrays(function):
    def on_gpu(*args, **keywords):
        assert not any(isinstance(x, np.ndarray) and x.dtype.kind in "fb" for x in args), "a copy on the host"
        result = function(*strict_arrays.plain(args), **strict_arrays.plain(keywords))
        return strict_arrays.wrapped(result)

    return on_gpu


def get(x):
    assert isinstance(x, Tensor), "an array of another library"
    return x._x


@DTYPES
@MASKS
@pytest.mark.parametrize("case", WITH_KERNELS, ids=str)
def test_both_passes_are_the_references(case, masked, dtype):
    for sizes in (Sizes(), Sizes(1, 1, 1, 1, ())):
        call = Setting(case, "reference", masked).call(sizes, dtype=dtype)
        result, expected = both_passes(call, room(), Tensor, get)
        assert result.keys() == expected.keys()
        for name, x in expected.items():
            assert result[name].dtype == dtype
            assert_close(result[name], x, case, name)


@pytest.mark.parametrize("put", [Tensor, ndarray])
@pytest.mark.parametrize("case", WITH_KERNELS, ids=str)
def test_an_output_array_there_is_filled(case, put):
    call = on_gpu(Setting(case, "reference", masked=False).call(Sizes(5, 5)), room(), put)
    expected = call.forward()[0]._x
    out = put(np.full_like(expected, np.nan))
    assert call.change(out=out).forward()[0] is out
    np.testing.assert_array_equal(out._x, expected)


@pytest.mark.parametrize(
    ("out", "error", "match"),
    [
        (np.zeros((2, 5, 4)), TypeError, r"^out: expected torch tensor on cuda:0 like q, got numpy array"),
        (ndarray(np.zeros((2, 5, 4))), TypeError, r"^out: expected torch tensor on cuda:0 like q, got cupy array"),
        ([0.0], TypeError, r"^out: expected an array on the GPU of float64, got list"),
        (
            Tensor(np.zeros((2, 5, 4), np.float32)),
            TypeError,
            "^out: expected an array on the GPU of float64, got float32",
        ),
        (Tensor(np.zeros((2, 4, 5))), ValueError, r"^out: expected shape \(2, 5, 4\), got \(2, 4, 5\)"),
    ],
    ids=["numpy", "cupy", "list", "dtype", "shape"],
)
def test_an_output_array_that_is_refused_there(out, error, match):
    q, k, v = np.ones((3, 2, 5, 4))
    with pytest.raises(error, match=match):
        softmax.forward(*map(Tensor, (q, k, v)), out=out, kernels=room())


def test_an_output_array_has_memory_of_its_own_there():
    q, k, rows = Tensor(np.ones((2, 5, 4))), Tensor(np.ones((2, 5, 4))), np.ones((2, 5, 8))
    v, beside = Tensor(rows[..., :4]), Tensor(rows[..., 4:])
    with pytest.raises(ValueError, match=r"^out: expected memory of its own"):
        softmax.forward(q, k, v, out=v, kernels=room())
    assert softmax.forward(q, k, v, out=beside, kernels=room())[0] is beside


def test_beside_numpys_arrays_an_output_array_is_numpys():
    q, k, v = np.ones((3, 2, 5, 4))
    for out, got in ((Tensor(v.copy()), "torch tensor on cuda:0"), (ndarray(v.copy()), "cupy array on device 0")):
        with pytest.raises(TypeError, match=rf"^out: expected a numpy\.ndarray of float64, got {got}$"):
            softmax.forward(q, k, v, out=out)


# --- States ---------------------------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("case", [case for case in WITH_KERNELS if case.recurrent], ids=str)
def test_a_state_goes_in_and_out(case, dtype):
    call = Setting(case, "reference", masked=False).call(Sizes(6, 6), dtype=dtype)
    outs, state = prefill_and_steps(call, room(), Tensor, first=3)
    first, *steps = on_host(outs, get)
    assert_close(np.concatenate([first, np.stack(steps, axis=-2)], axis=-2), call.run().out, case)
    on_host(state, get)


def test_a_step_writes_to_the_callers_state():
    q, k, v = (Tensor(np.ones((2, width))) for width in (4, 4, 3))
    state = linear.init_state((2,), 4, 3, like=q, kernels=room())
    _, after = linear.step(q, k, v, state, overwrite_state=True, kernels=room())
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
            assert all(isinstance(x, Tensor) for x in whole[:3] if x is not None)
        scale = 0 if expected.log_scale is None else get(linear.combine(*parts).log_scale) - expected.log_scale
        np.testing.assert_allclose(get(linear.combine(*parts).z) * np.exp(scale), expected.z, rtol=1e-12)


# --- What the GPU is asked ------------------------------------------------------------------------------------------


def test_only_rises_ask_and_little(asked):
    """Two numbers of a causal pass, does the scale rise at its start, and does it later; and three more a rise."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 200, 4))
    omega = rng.standard_normal((5, 4))
    for jump, pieces in ((1, 1), (40, None)):
        k[150:] *= jump
        expected, _ = performer.forward(q, k, v, omega, kind="trig", causal=True)
        asked.clear()
        out, saved = performer.forward(*(Tensor(x) for x in (q, k, v)), omega, kind="trig", causal=True, kernels=room())
        np.testing.assert_allclose(get(out), expected, rtol=1e-6)
        assert pieces in (None, len(saved.phi.pieces))
        assert len(asked) == 3 * len(saved.phi.pieces) - 1
    assert len(saved.phi.pieces) > 1
    asked.clear()
    performer.forward(*(Tensor(x) for x in (q, k, v)), omega, kernels=room())
    assert not asked


# --- The door -------------------------------------------------------------------------------------------------------


def test_work_is_done_on_the_callers_stream_and_in_its_memory(cupy_is, monkeypatch):
    kernels, seen = room(), []
    forward = kernels.softmax.forward

    def watched(*arguments, **options):
        seen.append((cupy_is.streams[-1], cupy_is.allocators[-1]))
        return forward(*arguments, **options)

    monkeypatch.setattr(kernels.softmax, "forward", watched)
    for put in (Tensor, ndarray):
        softmax.forward(*(put(x) for x in np.ones((3, 2, 5, 4))), kernels=kernels)
    (stream, allocator), cupys_own = seen
    assert stream == strict_arrays.STREAM
    assert allocator is not None
    assert cupys_own == (0, None)
    assert cupy_is.streams == [0]


@pytest.mark.parametrize(("stream", "expected"), [(None, 0), (5, 5)])
def test_an_array_of_numbas_brings_its_stream_or_none(cupy_is, monkeypatch, stream, expected):
    monkeypatch.setattr(libraries, "as_cupy", lambda x: types.SimpleNamespace(device=contextlib.nullcontext()))
    with libraries.as_the_library_of(types.SimpleNamespace(__cuda_ndarray__=True, stream=stream)):
        assert cupy_is.streams == [0, expected]
        assert cupy_is.allocators == [None]


def test_arrays_of_cupy_need_no_change():
    q, k, v = (ndarray(x) for x in np.ones((3, 2, 5, 4)))
    out, saved = softmax.forward(q, k, v, kernels=room())
    assert type(out) is ndarray
    assert saved.q is q
    assert type(softmax.backward(out, saved).q) is ndarray


def test_buckets_may_be_numpys_beside_a_mask_there():
    rng = np.random.default_rng(0)
    x, buckets, key_mask = rng.standard_normal((2, 12, 4)), rng.integers(0, 6, (2, 3, 12)), rng.random((2, 12)) < 0.7
    expected, _ = reformer.forward(x, x, chunk=4, key_mask=key_mask, buckets=buckets)
    for given in (buckets, Tensor(buckets)):
        options = {"chunk": 4, "key_mask": Tensor(key_mask), "buckets": given, "kernels": room()}
        out, saved = reformer.forward(Tensor(x), Tensor(x), **options)
        np.testing.assert_allclose(get(out), expected, rtol=0, atol=1e-14)
        assert isinstance(saved.order, Tensor)


def test_a_single_number_may_be_numpys():
    q, k, v = (Tensor(x) for x in np.random.default_rng(0).standard_normal((3, 5, 4)))
    results = [softmax.forward(q, k, v, scale=scale, kernels=room())[0] for scale in (0.25, np.array(0.25))]
    np.testing.assert_array_equal(*map(get, results))


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


def test_what_needs_no_kernels_takes_them_too():
    arrays = np.random.default_rng(0).standard_normal((2, 2, 5, 4))
    expected = softmax.matrix(*arrays, causal=True)
    np.testing.assert_array_equal(get(softmax.matrix(*map(Tensor, arrays), causal=True)), expected)


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
    for name in ("T", "mT", *strict_arrays.METHODS):
        assert hasattr(cupy.ndarray, name)


def of_cupy(cupy, shape, dtype):
    """An array of CuPy's; without a GPU one that claims host memory, which nothing can come to touch."""
    try:
        return cupy.ones(shape, dtype)
    except cupy.cuda.runtime.CUDARuntimeError:
        x = np.ones(shape, dtype)
        memory = cupy.cuda.UnownedMemory(x.ctypes.data, x.nbytes, x, 0)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


# As the mechanisms call NumPy: of numbers, of a mask of its rows, and of integers.
CALLS = {
    "new arrays": lambda x, mask, i: np.zeros((2, 3), np.float32, like=x),
    "filled ones": lambda x, mask, i: np.full_like(x, -np.inf, shape=(2, 1)),
    "a constant": lambda x, mask, i: np.asarray(np.ones(3), np.float32, like=x),
    "numbers in order": lambda x, mask, i: np.arange(5, like=x),
    "the identity": lambda x, mask, i: np.identity(3, np.float32, like=x),
    "a choice": lambda x, mask, i: np.where(mask[..., None], x, x.dtype.type(0)),
    "a choice in place": lambda x, mask, i: np.copyto(x, x, where=mask[..., None]),
    "a function in place": lambda x, mask, i: np.exp(x, out=x),
    "a Python number": lambda x, mask, i: 0.5 * np.maximum(x, 0),
    "a product": lambda x, mask, i: x @ x.swapaxes(-1, -2),
    "a sum of products": lambda x, mask, i: np.einsum("...d,...d->...", x, x),
    "a largest one": lambda x, mask, i: abs(x).argmax(axis=-1),
    "a count": lambda x, mask, i: mask.sum(axis=-1, dtype=np.int32),
    "a mean": lambda x, mask, i: x.mean(axis=-1, keepdims=True),
    "an order": lambda x, mask, i: i.argsort(axis=-1, kind="stable"),
    "entries by number": lambda x, mask, i: np.take_along_axis(x, i, axis=-1),
    "rows by number": lambda x, mask, i: x[..., np.array([0, 1]), :],
    "pairs by number": lambda x, mask, i: x.__setitem__((..., np.array([0, 1]), np.array([1, 2])), x[..., 0, :2]),
    "arrays in a row": lambda x, mask, i: np.concatenate([x, x], axis=-2),
    "padding": lambda x, mask, i: np.pad(x, [(0, 0), (2, 2), (0, 0)]),
    "limits": lambda x, mask, i: np.clip(x, np.finfo(x.dtype).tiny, 1 - np.finfo(x.dtype).epsneg),
    "singular values": lambda x, mask, i: np.linalg.svd(x, full_matrices=False),
}


@pytest.mark.parametrize("name", CALLS)
def test_numpys_names_lead_to_cupy(name, monkeypatch):
    """Names and keywords of functions are CuPy's; without a GPU no ufunc gets as far as to refuse its keywords."""
    monkeypatch.undo()
    cupy = pytest.importorskip("cupy", reason="calls CuPy by NumPy's names: pip install cupy-cuda12x")
    arrays = (of_cupy(cupy, *kind) for kind in (((2, 5, 4), np.float32), ((2, 5), bool), ((2, 5, 1), np.int64)))
    with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError, ImportError):  # no driver; no cuBLAS, no cuSOLVER
        CALLS[name](*arrays)


# --- Gates ----------------------------------------------------------------------------------------------------------


@DTYPES
def test_gates(dtype):
    rng = np.random.default_rng(0)
    x, w_g, b_g, d_gate = (
        rng.standard_normal(shape).astype(dtype) for shape in ((2, 1, 5, 4), (3, 4), (3,), (2, 3, 5))
    )
    expected, saved = gate.forward(x, w_g, b_g)
    wanted = gate.backward(d_gate, saved)
    got, saved = gate.forward(Tensor(x), Tensor(w_g), Tensor(b_g))
    np.testing.assert_allclose(get(got), expected, rtol=1e-6)
    for x, want in zip(gate.backward(Tensor(d_gate), saved), wanted, strict=True):
        assert get(x).dtype == dtype
        np.testing.assert_allclose(get(x), want, atol=1e-5)
