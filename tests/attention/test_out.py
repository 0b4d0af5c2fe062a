"""Outputs written where the caller wants them: ``out=`` of every mechanism but the sparse (`test_pattern_softmax`)."""

import importlib
import tracemalloc
from functools import partial

import numpy as np
import pytest

from linattn_ref.attention import (
    chunked_delta,
    delta,
    delta_rule,
    feature_maps,
    gated_linear,
    linear,
    linformer,
    linformer_linear,
    long_short,
    nystromformer,
    online_softmax,
    performer,
    reformer,
    rfa,
    softmax,
)
from linattn_ref.kernels import jit, reference

N, D, M = 40, 4, 3
OMEGA = feature_maps.gaussian(6, D, np.random.default_rng(7))
E = linformer.mean_pool(5, N)
GATE = np.linspace(0.1, 0.9, 2 * N).reshape(2, N)
CASES = {  # the name of a page, and of what
    "softmax": partial(softmax.forward, causal=True),
    "softmax, all keys": softmax.forward,
    "online_softmax": partial(online_softmax.forward, causal=True),
    "linear": partial(linear.forward, causal=True),
    "linear, all keys": linear.forward,
    "exponential": partial(linear.forward, feature_map=feature_maps.taylor_gaussian(2, 1.3), causal=True, eps=0),
    "exponential, all keys": partial(linear.forward, feature_map=feature_maps.taylor_gaussian(2, 1.3), eps=0),
    "performer": partial(performer.forward, omega=OMEGA, causal=True),
    "performer, all keys": partial(performer.forward, omega=OMEGA),
    "performer, relu": partial(performer.forward, omega=OMEGA, kind="relu", causal=True),
    "rfa": partial(rfa.forward, omega=OMEGA, causal=True),
    "rfa, all keys": partial(rfa.forward, omega=OMEGA),
    "rfa, gate": partial(rfa.forward, omega=OMEGA, gate=GATE, causal=True),
    "gated_linear": partial(gated_linear.forward, log_gate=np.log(GATE)),
    "delta": partial(delta.forward, beta=GATE),
    "delta_rule": partial(delta_rule.forward, log_gate=np.log(GATE)),
    "chunked_delta": partial(chunked_delta.forward, log_gate=np.log(GATE)),
    "linformer": partial(linformer.forward, e=E, f=2 * E),
    "linformer_linear": partial(linformer_linear.forward, e=E, f=2 * E),
    "nystromformer": partial(nystromformer.forward, landmarks=5),
    "nystromformer, convolution": partial(nystromformer.forward, conv=np.ones((2, 3)), landmarks=5),
    "reformer": lambda q, k, v, **options: reformer.forward(q, v, rotations=OMEGA.T[None], chunk=8, **options),
    "reformer, causal": lambda q, k, v, **options: reformer.forward(
        q, v, rotations=OMEGA.T[None], chunk=8, causal=True, **options
    ),
    "long_short": partial(long_short.forward, w_p=OMEGA.T, norm_local=None, norm_global=None, window=8),
}
WITHOUT_BACKENDS = "linformer_linear", "online_softmax", "chunked_delta"  # NumPy alone
OVERLAPS = r"^out: expected axes that do not overlap, got strides \(\d+, -?\d+, \d\) for shape \(2, 40, 3\)"
OVERLAPPING = {
    "one for all": (0, 0, 0),
    "heads share": (0, 8 * M, 8),
    "rows share": (8 * M, 0, 8),
    "a window slides over the rows": (8 * N * M, 8, 8),
    "from half an entry to half an entry": (8 * N * M, 8 * M, 4),
}
each = pytest.mark.parametrize("forward", CASES.values(), ids=CASES)
in_each_backend = pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, {} if name in WITHOUT_BACKENDS else {"kernels": room}, id=f"{name}-{room.__name__[20:]}")
        for name in CASES
        for room in ((reference,) if name in WITHOUT_BACKENDS else (reference, jit))
    ],
)
rooms = pytest.mark.parametrize("room", [reference, jit], ids=["reference", "jit"])


def draw(longest=1.0):
    """Queries, keys and values. From long keys to short ones the scale of some exponentials has to rise."""
    q, k, v = (np.random.default_rng(0).standard_normal((2, N, width)) for width in (D, D, M))
    return q, np.linspace(longest, 1, N)[:, None] * k, v


@in_each_backend
@pytest.mark.parametrize("longest", [1.0, 20.0])
def test_the_output_is_written_whole_where_the_caller_wants_it(name, options, longest):
    arrays, forward = draw(longest), CASES[name]
    kept = np.full((N, 2, M + 2), np.nan)
    out = kept[..., :M].swapaxes(0, 1)  # some columns of a wider array, heads side by side
    expected, expected_saved = forward(*arrays, **options)
    got, saved = forward(*arrays, out=out, **options)
    assert got is out
    np.testing.assert_array_equal(out, expected)
    assert np.isnan(kept[..., M:]).all()
    backward = importlib.import_module(f"linattn_ref.attention.{name.partition(',')[0]}").backward
    for x, y in zip(backward(np.cos(out), saved), backward(np.cos(out), expected_saved), strict=True):
        np.testing.assert_array_equal(x, y)


def test_long_keys_cut_a_causal_pass_of_jit_into_pieces():
    _, saved = CASES["exponential"](*draw(20.0), kernels=jit)
    assert len(saved.phi.pieces) > 1


@each
@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        (np.zeros((2, N, M), np.float32), TypeError, r"^out: expected a numpy\.ndarray of float64, got float32"),
        ([[0.0]], TypeError, r"^out: expected a numpy\.ndarray of float64, got list"),
        (np.zeros((2, N, D)), ValueError, r"^out: expected shape \(2, 40, 3\), got \(2, 40, 4\)"),
        (np.broadcast_to(0.0, (2, N, M)), ValueError, r"^out: expected an array that can be written to"),
        *((np.ndarray((2, N, M), strides=strides), ValueError, OVERLAPS) for strides in OVERLAPPING.values()),
    ],
    ids=["dtype", "list", "shape", "read-only", *OVERLAPPING],
)
def test_an_output_array_that_does_not_fit(forward, wrong, error, match):
    with pytest.raises(error, match=match):
        forward(*draw(), out=wrong)


@rooms
def test_it_shares_no_memory_with_an_input(room):
    """The backward pass would read outputs as inputs; also in a call whose kind has been checked before."""
    q, v = (np.random.default_rng(0).standard_normal((2, N, D)) for _ in range(2))
    rows = np.zeros((2, N, 2 * D))
    state = linear.init_state((2,), D, D)
    wider = np.zeros((2, D + N, D))
    state = state._replace(s=wider[:, :D])
    for _ in range(2):
        for out in (rows[..., D:], np.zeros_like(v)):
            linear.forward(q, rows[..., :D], v, causal=True, state=state, out=out, kernels=room)
        for out in (q, v, rows[..., D - 1 : -1], wider[:, D - 1 : -1]):
            with pytest.raises(ValueError, match=r"^out: expected memory of its own"):
                linear.forward(q, rows[..., :D], v, causal=True, state=state, out=out, kernels=room)


@rooms
def test_it_is_refused_before_anything_is_computed(room):
    """At the door: a cache would have been appended to."""
    q, k, v = draw()
    state = softmax.init_state((2,), D, M, capacity=N)
    with pytest.raises(ValueError, match=r"^out: expected shape"):
        softmax.forward(q, k, v, causal=True, state=state, out=np.zeros((2, N, D)), kernels=room)
    assert not state.k.any()


@pytest.mark.parametrize("forward", [softmax.forward, linear.forward], ids=["softmax", "linear"])
def test_an_output_of_its_own_is_not_made(forward):
    """With a value width far larger than that of queries and keys, all else is small beside the output."""
    n, heads, narrow, wide = 1024, 4, 8, 128
    q, k, v, out = (np.ones((n, heads, width)).swapaxes(0, 1) for width in (narrow, narrow, wide, wide))
    call = partial(forward, q, k, v, causal=True, out=out, kernels=jit)
    call()
    tracemalloc.start()
    try:
        call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < out.nbytes / 2
