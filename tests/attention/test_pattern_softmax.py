"""Softmax over a pattern: what mechanisms are made of, and patterns, which are built once and refused where wrong."""

import pickle
import tracemalloc

import numpy as np
import pytest

from linattn_ref.attention import bigbird, block_local, local, longformer, pattern_softmax, sparse_transformer
from linattn_ref.attention.sparse import part
from linattn_ref.kernels import jit, reference

N = 70
BLOCKS = {"block": 8, "random_blocks": bigbird.draw_random_blocks(9, 1, np.random.default_rng(0))}
SPARSE = {
    "local": (local, {"window": 5, "dilation": 2, "causal": True}, local.parts_of),
    "block_local": (block_local, {"block": 16}, block_local.parts_of),
    "sparse_transformer": (sparse_transformer, {"kind": "fixed", "stride": 8}, sparse_transformer.parts_of),
    "bigbird": (bigbird, BLOCKS, lambda n, n_keys, **options: bigbird.parts_of(n, **options)),
    "longformer": (
        longformer,
        {"window": 4, "global_tokens": [0, 33]},
        lambda n, n_keys, **options: longformer.parts_of(n, **options),
    ),
}
each = pytest.mark.parametrize(("mechanism", "options", "parts_of"), SPARSE.values(), ids=SPARSE)
backends = pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
SIZES = "window", "block", "stride"


def draw(mechanism, n=N, n_keys=N):
    count = 6 if mechanism is longformer else 3
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, n if i % 3 == 0 else n_keys, 4)) for i in range(count)]


def both_passes(mechanism, arrays, **options):
    out, saved = mechanism.forward(*arrays, **options)
    return [out, *mechanism.backward(np.cos(out), saved)]


@backends
@each
def test_softmax_over_its_parts_is_the_mechanism(mechanism, options, parts_of, kernels):
    """To the last bit, the second time with what the first one found out about the pattern."""
    arrays = draw(mechanism)
    expected = both_passes(mechanism, arrays, **options, kernels=kernels)
    if mechanism is longformer:  # ordinary rows, which know nothing of the global arrays
        options, arrays = {**options, "global_tokens": []}, arrays[:3] + [np.zeros_like(x) for x in arrays[:3]]
        expected = both_passes(mechanism, arrays, **options, kernels=kernels)
    pattern = parts_of(N, N, **options)
    for _ in range(2):
        got = both_passes(pattern_softmax, [*arrays[:3], pattern], kernels=kernels)
        for x, y in zip(got, expected, strict=False):
            np.testing.assert_array_equal(x, y)


@each
def test_a_pattern_is_built_once(mechanism, options, parts_of, monkeypatch):
    """Sorted by key once too, for any number of calls; and one for other integers is another."""
    arrays, size = draw(mechanism), next(name for name in SIZES if name in options)
    expected = both_passes(mechanism, arrays, **options, kernels=jit)
    for name in ("_tiled", "_cut", "by_key"):
        monkeypatch.delattr(part, name)
    for kind in (int, np.uint8):
        got = both_passes(mechanism, arrays, **{**options, size: kind(options[size])}, kernels=jit)
        for x, y in zip(got, expected, strict=True):
            np.testing.assert_array_equal(x, y)
    with pytest.raises(NameError):
        mechanism.forward(*draw(mechanism, N - 1, N - 1), **options)


@each
def test_what_is_wrong_is_told_though_an_equal_pattern_is_kept(mechanism, options, parts_of):
    """True and 1.0 are equal to 1, and a pattern for 1 may be there already."""
    size = next(name for name in SIZES if name in options)
    others = {name: x for name, x in options.items() if name not in (size, "random_blocks")}
    parts_of(N, N, **others, **{size: 1})
    for wrong in (True, 1.0):
        with pytest.raises(ValueError, match=rf"^{size}: expected an integer of at least 1, got {wrong}"):
            parts_of(N, N, **others, **{size: wrong})
        with pytest.raises(ValueError, match=rf"^{size}: expected an integer of at least 1, got {wrong}"):
            mechanism.forward(*draw(mechanism), **others, **{size: wrong})
    if mechanism is longformer:
        parts_of(N, N, window=1, global_tokens=[1])
        for wrong in ([True], [1.0]):
            with pytest.raises(TypeError, match=r"^global_tokens: expected integers, got "):
                parts_of(N, N, window=1, global_tokens=wrong)


@each
def test_sizes_that_are_none_are_told(mechanism, options, parts_of):
    """``N`` and ``L`` too, and more queries than keys where they are aligned at the end."""
    options = {name: x for name, x in options.items() if name != "random_blocks"}
    for wrong in (0, -3, 4.0, "4", True, 2**70):
        with pytest.raises(ValueError, match=r"^n: expected "):
            parts_of(wrong, N, **options)
        if mechanism not in (longformer, bigbird):
            with pytest.raises(ValueError, match=r"^n_keys: expected "):
                parts_of(N, wrong, **options)
    if mechanism in (local, sparse_transformer):
        with pytest.raises(ValueError, match=r"^n: causal attention is .* needs N <= L, got N = 70 and L = 69"):
            parts_of(N, N - 1, **options)


@each
def test_what_is_kept_is_read_only(mechanism, options, parts_of):
    """It is that of later calls as well. So is a copy, or kernels would be compiled for it again."""
    parts = parts_of(N, N, **options)
    for one in (*parts, *pickle.loads(pickle.dumps(parts))):
        for x in (*one[:-1], *one.by_key):
            with pytest.raises(ValueError, match="read-only"):
                x[:] = 0


def test_one_of_other_lengths_is_refused():
    for n, n_keys in ((N - 1, N), (N, N + 1)):
        with pytest.raises(ValueError, match=rf"^seen: expected one for N = 70 and L = 70, .* {n} and L = {n_keys}"):
            pattern_softmax.forward(*draw(local), local.parts_of(n, n_keys, window=3))


@pytest.mark.parametrize("wrong", [local.pattern(N, window=3), [1], (1,), part.band(N, N, -3, 3), None])
def test_what_is_no_pattern_is_refused(wrong):
    with pytest.raises(TypeError, match=r"^seen: expected what a mechanism's parts_of returns, a tuple of .*, got "):
        pattern_softmax.forward(*draw(local), wrong)


# --- Without copies -------------------------------------------------------------------------------------------------


def as_heads(arrays):
    """The same numbers as a model holds them, ``(N, H, D)`` seen as ``(H, N, D)``."""
    return [np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1) for x in arrays]


@backends
@each
def test_heads_may_lie_side_by_side_and_the_output_where_the_caller_wants_it(mechanism, options, parts_of, kernels):
    arrays = draw(mechanism)
    expected = both_passes(mechanism, arrays, **options, kernels=kernels)
    kept = np.full((N, 2, 8), np.nan)
    out = kept[..., :4].swapaxes(0, 1)  # some columns of a wider array
    got, saved = mechanism.forward(*as_heads(arrays), **options, out=out, kernels=kernels)
    assert got is out
    assert np.isnan(kept[..., 4:]).all()
    for x, y in zip([got, *mechanism.backward(np.cos(out), saved)], expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-13)


def test_no_copy_is_made_of_what_a_model_holds():
    """But for two numbers per row nothing is allocated in a forward pass: not one of the four arrays."""
    n, heads, width = 1024, 4, 32
    q, k, v, out = (np.zeros((n, heads, width)).swapaxes(0, 1) for _ in range(4))
    pattern = local.parts_of(n, n, window=16)

    def call():
        pattern_softmax.forward(q, k, v, pattern, out=out, kernels=jit)

    call()
    tracemalloc.start()
    try:
        call()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < q.nbytes / 4


@backends
@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        (np.zeros((2, N, 4), np.float32), TypeError, r"^out: expected a numpy\.ndarray of float64, got float32"),
        (np.zeros((2, N, 5)), ValueError, r"^out: expected shape \(2, 70, 4\), got \(2, 70, 5\)"),
        (np.broadcast_to(0.0, (2, N, 4)), ValueError, r"^out: expected an array that can be written to"),
    ],
)
def test_an_output_array_that_does_not_fit(kernels, wrong, error, match):
    with pytest.raises(error, match=match):
        local.forward(*draw(local), window=3, out=wrong, kernels=kernels)


@pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
def test_what_loses_all_its_weight_later_leaves_nothing(kernels):
    """The last row meets a NaN first, and then a score so large that nothing of it is left."""
    k, v = np.zeros((6, 1)), np.arange(6.0)[:, None]
    k[1], v[5] = 900, np.nan
    options = {"kind": "strided", "stride": 4, "scale": 1.0, "kernels": kernels}
    out, _ = sparse_transformer.forward(np.ones((6, 1)), k, v, **options)
    np.testing.assert_array_equal(out[1:, 0], 1)
