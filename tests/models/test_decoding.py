"""The compiled step of a whole network beside its text, `causal.step`."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
from cases import each_compiled_dtype
from scipy.special import erfcx, ndtr

from linattn_ref.attention import feature_maps, linear, softmax
from linattn_ref.kernels import jit, reference
from linattn_ref.models import causal, decoding
from linattn_ref.nested import leaves
from linattn_ref.nn import feed_forward, mechanism, multi_head, positions, post_norm, relu

PLACES = 5
OTHER = {"block": post_norm, "activation": relu}
# Softmax's usual scale, of the width of one head, is another than that of all of them; eps is as large as its sums.
OPTIONS = [(linear, {}), (linear, {"eps": 0.5}), (softmax, {}), (softmax, {"scale": 0.7})]


def network(module, width=12, hidden=50, heads=3, dtype=np.float64, more=(), options=(), **fixed):
    """Of widths that fill no Vector, or several."""
    model = causal.Model(mechanism.of(module, causal=True, kernels=jit, **dict(options)), heads, **dict(more))
    params = causal.draw(
        *(np.random.default_rng(0),),
        **{"tokens": 7, "places": PLACES, "width": width, "hidden": hidden, "layers": 2, "dtype": dtype, **fixed},
    )
    params.embedding.table[...] *= 50
    rng = np.random.default_rng(2)
    for _, array in leaves(params):
        if array.ndim == 1:  # gains that begin as 1, biases that begin as 0
            array += rng.uniform(-0.3, 0.3, array.shape).astype(dtype)
    return params, model


def compare(params, model, batch, tolerance):
    packed = decoding.pack(params, model)
    state, by_text = decoding.init_state(batch, packed), causal.init_state(batch, params, model)
    for tokens_t in np.random.default_rng(1).integers(0, 7, (PLACES, batch)):
        scores, state = decoding.step(tokens_t, packed, state)
        wanted, by_text = causal.step(tokens_t, params, by_text, model)
        np.testing.assert_allclose(scores, wanted, rtol=0, atol=tolerance * abs(wanted).max())
        assert scores.dtype == wanted.dtype
    with pytest.raises(ValueError, match=f"state: there are {PLACES} places, and all are taken"):
        decoding.step(tokens_t, packed, state)


@pytest.mark.parametrize(("module", "options"), OPTIONS)
@pytest.mark.parametrize(("batch", "more"), [(1, {}), (9, OTHER)], ids=["pre", "post"])
def test_is_the_step_of_the_text(module, options, batch, more):
    compare(*network(module, more=more, options=options), batch, 1e-13)


@pytest.mark.parametrize("module", [linear, softmax])
@pytest.mark.parametrize(
    ("width", "batch", "more"), [(6, 4, OTHER), (64, 8, {}), (132, 17, OTHER)], ids=["6", "64", "132"]
)
@each_compiled_dtype
def test_is_the_step_of_the_text_at_any_size(module, width, batch, more, dtype):
    """Of some hundred roundings each."""
    compare(*network(module, width, 2 * width + 3, 2, dtype, more), batch, 100 * np.finfo(dtype).eps)


@each_compiled_dtype
def test_fixed_positions_have_columns_of_their_own(dtype):
    more = {"sinusoids": positions.sinusoidal(PLACES, 4)}  # float64 beside either
    compare(*network(linear, sinusoids=4, more=more, dtype=dtype), 2, 500 * np.finfo(dtype).eps)


@pytest.mark.parametrize("module", [linear, softmax])
def test_goes_on_from_a_prefix_that_was_read_at_once(module):
    params, model = network(module)
    packed, tokens = decoding.pack(params, model), np.array([[3, 1, 4, 1], [5, 2, 6, 0]])
    state = causal.read(tokens[:, :3], params, causal.init_state(2, params, model), model)
    scores, _ = decoding.step(tokens[:, 3], packed, decoding.stacked(state, packed))
    np.testing.assert_allclose(scores, causal.forward(tokens, params, model)[0][:, -1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("module", [linear, softmax])
def test_states_are_values(module):
    """Any number of steps may go on from one, whatever was done meanwhile; in its own arrays only who says so."""
    tokens_t, others_t = np.array([[1, 2], [3, 4]])
    params, model = network(module)
    packed = pickle.loads(pickle.dumps(decoding.pack(params, model)))
    _, state = decoding.step(tokens_t, packed, decoding.init_state(2, packed))
    before = copy.deepcopy(state)
    scores, after = decoding.step(tokens_t, packed, state)
    decoding.step(others_t, packed, state)
    for x, unchanged in zip(state, before, strict=True):
        np.testing.assert_array_equal(x, unchanged)
    np.testing.assert_array_equal(decoding.step(tokens_t, packed, state)[0], scores)
    written, there = decoding.step(tokens_t, packed, state, overwrite_state=True)
    np.testing.assert_array_equal(written, scores)
    for x, y, own in zip(there[:2], after[:2], state[:2], strict=True):
        np.testing.assert_array_equal(x, y)
        assert np.shares_memory(x, own)


@pytest.mark.parametrize("module", [linear, softmax])
def test_states_of_the_text_are_values(module):
    tokens_t, others_t = np.array([[1, 2], [3, 4]])
    params, model = network(module)
    _, state = causal.step(tokens_t, params, causal.init_state(2, params, model), model)
    before = copy.deepcopy(state)
    scores, _ = causal.step(tokens_t, params, state, model)
    causal.step(others_t, params, state, model)
    for (_, x), (_, unchanged) in zip(leaves(state), leaves(before), strict=True):
        np.testing.assert_array_equal(x, unchanged)
    np.testing.assert_array_equal(causal.step(tokens_t, params, state, model, overwrite_state=True)[0], scores)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_tokens_of_any_integers_are_read(dtype):
    params, model = network(linear)
    packed, tokens_t = decoding.pack(params, model), np.array([3, 0, 6])
    scores, given = (
        decoding.step(t, packed, decoding.init_state(3, packed))[0] for t in (tokens_t, tokens_t.astype(dtype))
    )
    np.testing.assert_array_equal(given, scores)


def test_what_would_be_read_or_written_elsewhere_is_refused():
    """Compiled code looks at no index: a place or a length from outside, arrays of another network, without room."""
    tokens_t = np.array([1, 2])
    for module in (linear, softmax):
        params, model = network(module)
        packed = decoding.pack(params, model)
        state = decoding.init_state(2, packed)
        with pytest.raises(ValueError, match=f"state: there are {PLACES} places, and place is -1"):
            decoding.step(tokens_t, packed, state._replace(place=-1))
        for name, cut in (("weights", slice(-1)), ("norms", slice(-1)), ("places", (..., slice(-1)))):
            with pytest.raises(ValueError, match=f"packed: expected C-contiguous {name} of shape"):
                decoding.step(tokens_t, packed._replace(**{name: getattr(packed, name)[cut]}), state)
        with pytest.raises(ValueError, match="packed: expected C-contiguous tokens"):
            decoding.step(tokens_t, packed._replace(tokens=np.asfortranarray(packed.tokens)), state)
        with pytest.raises(
            ValueError, match=r"packed: expected C-contiguous norms of shape .* and float64 .* and float32;"
        ):
            decoding.step(tokens_t, packed._replace(norms=packed.norms.astype(np.float32)), state)
        for x in state[:2]:
            x.flags.writeable = False
        with pytest.raises(ValueError, match="state: expected C-contiguous arrays that can be written to"):
            decoding.step(tokens_t, packed, state, overwrite_state=True)
        assert np.isfinite(decoding.step(tokens_t, packed, state)[0]).all()  # in a copy


def test_what_has_no_compiled_step_is_said():
    params, model = network(linear)
    for options, reason in (
        ({"feature_map": feature_maps.relu}, "there is none with the feature map relu"),
        ({"kernels": reference}, "kernels=linattn_ref.kernels.reference of the mechanism has none"),
        ({"key_mask": None}, "there is none of linattn_ref.attention.linear with key_mask"),
    ):
        inside = mechanism.of(linear, **{"causal": True, "kernels": jit, **options})
        with pytest.raises(ValueError, match=f"model: expected one with a compiled step, but {reason}"):
            decoding.pack(params, model._replace(mechanism=inside))
    shared = network(linear, heads=4, more={"groups": 2}, groups=2)
    with pytest.raises(ValueError, match=r"but there is none of heads that are shared"):
        decoding.pack(*shared)
    for heads in (5, 0, -2):
        with pytest.raises(ValueError, match=f"but there is none of {heads} heads in a width of 12"):
            decoding.pack(params, model._replace(heads=heads))
    with pytest.raises(ValueError, match="but there is none without blocks"):
        decoding.pack(params._replace(blocks=()), model)
    first, second = params.blocks
    odd = multi_head.draw(12, np.random.default_rng(0), key_columns=9, value_columns=18)
    with pytest.raises(ValueError, match=r"but there is none of heads that .* have widths of their own"):
        decoding.pack(params._replace(blocks=(first._replace(attention=odd),) * 2), model)
    wide = feed_forward.draw(12, 60, np.random.default_rng(0))
    with pytest.raises(ValueError, match="but there is none of blocks of several hidden widths"):
        decoding.pack(params._replace(blocks=(first, second._replace(feed_forward=wide))), model)
    packed = decoding.pack(params, model)
    with pytest.raises(ValueError, match=r"tokens_t: expected shape \(2,\) of the state, got \(3,\)"):
        decoding.step(np.zeros(3, int), packed, decoding.init_state(2, packed))
    with pytest.raises(ValueError, match=r"state: expected one of this network, with arrays of shapes \(\(2, 2, 3, 4"):
        decoding.step(np.zeros(2, int), packed, decoding.init_state(2, packed._replace(heads=6)))
    narrow = packed._replace(weights=packed.weights[:, :-1])
    with pytest.raises(ValueError, match="packed: expected C-contiguous weights of shape"):
        decoding.step(np.zeros(2, int), narrow, decoding.init_state(2, packed))
    with pytest.raises(TypeError, match="overwrite_state: expected True or False, got 1"):
        decoding.step(np.zeros(1, int), packed, decoding.init_state(1, packed), overwrite_state=1)
    with pytest.raises(ValueError, match="tokens_t: expected numbers from 0 to 6, got 7 to 7"):
        decoding.step(np.array([7]), packed, decoding.init_state(1, packed))


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (linear, {"causal": False}, r"model\.mechanism: expected causal=True among its options"),
        (linear, {"eps": -1.0}, "eps: expected a finite number of at least 0"),
        (linear, {"eps": np.nan}, "eps: expected a finite number of at least 0"),
        (softmax, {"scale": np.inf}, "scale: expected a finite number"),
    ],
)
def test_what_the_text_refuses_is_not_packed(module, options, message):
    params, model = network(module)
    inside = mechanism.of(module, **{"causal": True, "kernels": jit, **options})
    for run in (decoding.pack, partial(causal.forward, np.zeros((1, 1), int))):
        with pytest.raises(ValueError, match=message):
            run(params, model._replace(mechanism=inside))


def test_gelu_knows_the_normal_distribution():
    from numba import njit

    from linattn_ref.kernels.jit.loops.simd import normal
    from linattn_ref.kernels.jit.loops.simd.vector import broadcast, lanes, load, store

    z = np.linspace(0, 14, 1001)
    tail = erfcx(z / np.sqrt(2)) / 2  # exp(z^2 / 2) Phi(-z)
    for error, coefficients in zip((2e-8, 1e-15), normal.COEFFICIENTS.values(), strict=True):
        p = np.polynomial.Polynomial(coefficients)(1 - 8 / (z + 4))
        np.testing.assert_allclose(p / (z + 4), tail, rtol=error)

    @njit
    def gelu(x):
        for row in range(len(x)):
            store(x, row, normal.gelu(load(x, row), broadcast(x.dtype.type(-0.5))))

    x = np.linspace(-20, 20, 4000 * lanes(np.empty(0))).reshape(-1, lanes(np.empty(0)))
    got = x.copy()
    gelu(got)
    np.testing.assert_allclose(got, x * ndtr(x), rtol=0, atol=4e-15)


def test_numpys_numbers_are_packed_too():
    params, model = network(linear)
    packed = decoding.pack(params, model._replace(heads=np.int64(3)))
    assert [*map(str, packed[4:])] == [*map(str, decoding.pack(params, model)[4:])]
