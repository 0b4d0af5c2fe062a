"""Patterns that the caller built: used as they are, never built again, refused where they do not fit."""

import tracemalloc

import numpy as np
import pytest

from linattn_ref.attention import bigbird, block_local, local, longformer, pattern_softmax, sparse_transformer
from linattn_ref.kernels import jit, parts, reference

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
rooms = pytest.mark.parametrize("room", [reference, jit], ids=["reference", "jit"])


def draw(mechanism, n=N, n_keys=N):
    count = 6 if mechanism is longformer else 3
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, n if i % 3 == 0 else n_keys, 4)) for i in range(count)]


def both_passes(mechanism, arrays, **options):
    out, saved = mechanism.forward(*arrays, **options)
    return [out, *mechanism.backward(np.cos(out), saved)]


@rooms
@each
def test_a_pattern_handed_in_gives_the_same_bits(mechanism, options, parts_of, room):
    arrays = draw(mechanism)
    expected = both_passes(mechanism, arrays, **options, kernels=room)
    pattern = parts_of(N, N, **options)
    for _ in range(2):  # the second time with what the first one found out about the pattern
        got = both_passes(mechanism, arrays, **options, pattern=pattern, kernels=room)
        for x, y in zip(got, expected, strict=True):
            np.testing.assert_array_equal(x, y)


@each
def test_it_alone_says_who_sees_whom(mechanism, options, parts_of):
    arrays, pattern = draw(mechanism), parts_of(N, N, **options)
    size = next(name for name in ("window", "block", "stride") if name in options)
    other = {**options, size: 2 * options[size], "pattern": pattern}
    other.pop("random_blocks", None)
    expected, _ = mechanism.forward(*arrays, **options)
    np.testing.assert_array_equal(mechanism.forward(*arrays, **other)[0], expected)


@pytest.fixture
def built(monkeypatch):
    """How often a part was built, and how often it was sorted by key."""
    counts = {"built": 0, "by_key": 0}

    def counted(function, what):
        def call(*args, **keywords):
            counts[what] += 1
            return function(*args, **keywords)

        return call

    for name in ("_tiled", "blocks"):
        monkeypatch.setattr(parts, name, counted(getattr(parts, name), "built"))
    monkeypatch.setattr(parts, "by_key", counted(parts.by_key, "by_key"))
    return counts


@each
def test_it_is_built_once(mechanism, options, parts_of, built):
    """By the caller, or by the forward pass for both; and sorted by key once for any number of backward passes."""
    arrays = draw(mechanism)
    both_passes(mechanism, arrays, **options, kernels=jit)
    for_one = built["built"]
    assert for_one == built["by_key"] > 0
    pattern = parts_of(N, N, **options)
    assert built["built"] == 2 * for_one
    for _ in range(3):
        both_passes(mechanism, arrays, **options, pattern=pattern, kernels=jit)
    assert built["built"] == built["by_key"] == 2 * for_one


@each
def test_one_of_other_lengths_is_refused(mechanism, options, parts_of):
    options = {name: x for name, x in options.items() if name != "random_blocks"}
    for wrong in (N - 1, N + 1):
        with pytest.raises(
            ValueError, match=rf"^pattern: expected one for N = 70 and L = 70, got one for N = {wrong} and L = {wrong}"
        ):
            mechanism.forward(*draw(mechanism), **options, pattern=parts_of(wrong, wrong, **options))


@pytest.mark.parametrize("kind", sparse_transformer.KINDS)
def test_one_of_other_keys_is_refused_though_its_queries_are_as_many(kind):
    """An old pattern, when the cache has grown."""
    options = {"kind": kind, "stride": 8}
    q, k, v = draw(sparse_transformer, 10, 40)
    for wrong in (39, 41):
        with pytest.raises(ValueError, match=rf"^pattern: .* N = 10 and L = 40, got one for N = 10 and L = {wrong}"):
            sparse_transformer.forward(q, k, v, **options, pattern=sparse_transformer.parts_of(10, wrong, **options))


@pytest.mark.parametrize("wrong", [local.pattern(N, window=3), [1], (1,), parts.band(N, N, -3, 3)])
@each
def test_what_is_no_pattern_is_refused(mechanism, options, parts_of, wrong):
    with pytest.raises(TypeError, match=r"^pattern: expected what a mechanism's parts_of gives, a tuple of .*, got a "):
        mechanism.forward(*draw(mechanism), **options, pattern=wrong)
    with pytest.raises(TypeError, match=r"^pattern: "):
        pattern_softmax.forward(*draw(local), wrong)


def test_none_is_no_pattern_where_one_is_needed():
    with pytest.raises(TypeError, match=r"^pattern: .* got a NoneType"):
        pattern_softmax.forward(*draw(local), None)


# --- Without copies -------------------------------------------------------------------------------------------------


def as_heads(arrays):
    """The same numbers as a model holds them, ``(N, H, D)`` seen as ``(H, N, D)``."""
    return [np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1) for x in arrays]


@rooms
@each
def test_heads_may_lie_side_by_side_and_the_output_where_the_caller_wants_it(mechanism, options, parts_of, room):
    arrays = draw(mechanism)
    expected = both_passes(mechanism, arrays, **options, kernels=room)
    kept = np.full((N, 2, 8), np.nan)
    out = kept[..., :4].swapaxes(0, 1)  # some columns of a wider array
    got, saved = mechanism.forward(*as_heads(arrays), **options, out=out, kernels=room)
    assert got is out
    assert np.isnan(kept[..., 4:]).all()
    for x, y in zip([got, *mechanism.backward(np.cos(out), saved)], expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-13)


def test_no_copy_is_made_of_what_a_model_holds():
    """Beside the log-sum-exp, a number a row, nothing is allocated in a forward pass: not one of the four arrays."""
    n, heads, width = 1024, 4, 32
    q, k, v, out = (np.zeros((n, heads, width)).swapaxes(0, 1) for _ in range(4))
    pattern = local.parts_of(n, n, window=16)

    def call():
        local.forward(q, k, v, window=16, pattern=pattern, out=out, kernels=jit)

    call()
    tracemalloc.start()
    try:
        call()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < q.nbytes / 4


@rooms
@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        (np.zeros((2, N, 4), np.float32), TypeError, r"^out: expected a numpy\.ndarray of float64, got float32"),
        (np.zeros((2, N, 5)), ValueError, r"^out: expected shape \(2, 70, 4\), got \(2, 70, 5\)"),
        (np.broadcast_to(0.0, (2, N, 4)), ValueError, r"^out: expected an array that can be written to"),
    ],
)
def test_an_output_array_that_does_not_fit(room, wrong, error, match):
    with pytest.raises(error, match=match):
        local.forward(*draw(local), window=3, out=wrong, kernels=room)
