"""An autoregressive transformer: its gradient, its past and its ways to run."""

from functools import partial

import numpy as np
import pytest
from mechanism_cases import MECHANISMS, TOKENS

from linattn_ref.attention import (
    bigbird,
    linear,
    linformer_linear,
    longformer,
    nystromformer,
    performer,
    softmax,
)
from linattn_ref.gradcheck import check_directions, check_elementwise
from linattn_ref.kernels import reference
from linattn_ref.models import causal
from linattn_ref.nested import leaves, map_arrays
from linattn_ref.nn import mechanism, no_norm, positions, post_norm, pre_norm, relu

# A step shorter than for a layer: the third derivatives of a network are some hundred times as large. Two directions:
# there are some thirty arrays, and a wrong gradient agrees with one direction only by chance.
TWICE = {"rng": 0, "step": 1e-6, "directions": 2}
CAUSAL = [inside for inside in MECHANISMS if inside.causal]
RECURRENT = [inside for inside in CAUSAL if inside.mechanism.step]
NETWORKS = {"pre": {}, "post": {"block": post_norm, "activation": relu}, "none": {"block": no_norm}}
READ = np.random.default_rng(0).integers(0, 5, (2, TOKENS))


def drawn(inside=None, width=8, layers=2, places=TOKENS, block=pre_norm):
    """Embeddings of size 1: below a layer norm, a step of the difference quotient is to be a small part of them."""
    own = [map_arrays(np.copy, inside.own) for _ in range(layers)] if inside else None
    params = causal.draw(
        np.random.default_rng(1),
        tokens=5,
        places=places,
        width=width,
        hidden=2 * width,
        layers=layers,
        block=block,
        own=own,
    )
    params.embedding.table[...] *= 50
    params.positions.table[...] *= 50
    return params


def model_of(inside, **more):
    return causal.Model(inside.mechanism, heads=2, **more)


# Every mechanism in one network, every network with one mechanism; the slow tests have the rest of the pairs.
@pytest.mark.parametrize(
    ("more", "inside"),
    [
        pytest.param(more, inside, id=f"{name}-{inside}", marks=[pytest.mark.slow] * bool(i and more))
        for name, more in NETWORKS.items()
        for i, inside in enumerate(CAUSAL)
    ],
)
def test_gradients(more, inside):
    forward = partial(causal.forward, model=model_of(inside, **more))

    def of(tokens, params):
        return forward(tokens, params)

    params = drawn(inside, block=more.get("block", pre_norm))
    check_directions(of, causal.backward, READ, params, **TWICE).assert_ok()


@pytest.mark.parametrize(
    "more", [{}, {"block": post_norm, "activation": relu}, {"block": no_norm}], ids=["pre", "post", "none"]
)
def test_gradients_with_dropout(more):
    """The same numbers are left out each time; without a generator none are."""
    inside = CAUSAL[0]
    params, model = drawn(inside, block=more.get("block", pre_norm)), model_of(inside, dropout=0.3, **more)

    def of(tokens, params):
        return causal.forward(tokens, params, model, rng=np.random.default_rng(5))

    check_directions(of, causal.backward, READ, params, **TWICE).assert_ok()
    assert not np.allclose(of(READ, params)[0], causal.forward(READ, params, model)[0])
    plain = causal.forward(READ, params, model_of(inside, **more))[0]
    np.testing.assert_array_equal(causal.forward(READ, params, model)[0], plain)


def test_every_gradient_of_a_tiny_network():
    model = causal.Model(mechanism.of(linear, causal=True), heads=1)

    def forward(tokens, params):
        return causal.forward(tokens, params, model)

    check_elementwise(forward, causal.backward, READ[:1, :3], drawn(width=2, layers=1), rng=0).assert_ok()


def test_fixed_positions_beside_the_embedding():
    """The same network as one with learned positions in those columns: scores, gradients, and token by token."""
    sinusoids = positions.sinusoidal(TOKENS, 4)
    model = causal.Model(mechanism.of(linear, causal=True), heads=2, sinusoids=sinusoids)
    params = causal.draw(np.random.default_rng(1), tokens=5, places=TOKENS, width=8, hidden=16, layers=2, sinusoids=4)
    wide = params._replace(
        embedding=params.embedding._replace(table=np.pad(params.embedding.table, ((0, 0), (0, 4)))),
        positions=positions.Params(np.pad(sinusoids, ((0, 0), (4, 0)))),
    )
    scores, saved = causal.forward(READ, params, model)
    others, saved_wide = causal.forward(READ, wide, model._replace(sinusoids=None))
    np.testing.assert_array_equal(scores, others)
    narrow, wide_gradients = (causal.backward(scores, kept).params for kept in (saved, saved_wide))
    np.testing.assert_array_equal(narrow.embedding.table, wide_gradients.embedding.table[:, :4])
    np.testing.assert_array_equal(narrow.head.w, wide_gradients.head.w)
    state = causal.init_state(len(READ), params, model)
    for t in range(TOKENS):
        scores_t, state = causal.step(READ[:, t], params, state, model)
        np.testing.assert_allclose(scores_t, scores[:, t], rtol=1e-9, atol=1e-11)
    with pytest.raises(ValueError, match=r"model: expected either sinusoids or params\.positions, got both or neither"):
        causal.forward(READ, wide, model)


@pytest.mark.parametrize("inside", CAUSAL, ids=str)
def test_the_future_moves_nothing(inside):
    params, model, other = drawn(inside), model_of(inside), READ.copy()
    other[:, 4:] = (other[:, 4:] + 1) % 5
    scores, others = (causal.forward(tokens, params, model)[0] for tokens in (READ, other))
    np.testing.assert_allclose(scores[:, :4], others[:, :4], rtol=0, atol=1e-12)
    assert abs(scores[:, 4:] - others[:, 4:]).min(axis=-1).max() > 1e-6


@pytest.mark.parametrize("inside", RECURRENT, ids=str)
def test_token_by_token_is_the_same_network(inside):
    params, model = drawn(inside), model_of(inside)
    scores, _ = causal.forward(READ, params, model)
    state = causal.init_state(len(READ), params, model)
    for t in range(TOKENS):
        scores_t, state = causal.step(READ[:, t], params, state, model)
        np.testing.assert_allclose(scores_t, scores[:, t], rtol=1e-9, atol=1e-11)
    with pytest.raises(ValueError, match=f"state: there are {TOKENS} places, and all are taken"):
        causal.step(READ[:, 0], params, state, model)


@pytest.mark.parametrize("inside", RECURRENT, ids=str)
@pytest.mark.parametrize("first", [1, 4])
def test_several_tokens_at_once_lead_to_the_same_state(inside, first):
    params, model = drawn(inside), model_of(inside)
    scores, _ = causal.forward(READ, params, model)
    state = causal.read(READ[:, :first], params, causal.init_state(len(READ), params, model), model)
    state = causal.read(READ[:, first:-1], params, state, model)
    scores_t, _ = causal.step(READ[:, -1], params, state, model)
    np.testing.assert_allclose(scores_t, scores[:, -1], rtol=1e-9, atol=1e-11)
    with pytest.raises(ValueError, match=f"tokens: there are {TOKENS} places, got 2 tokens after {TOKENS - 1}"):
        causal.read(READ[:, :2], params, state, model)


@pytest.mark.parametrize("kernels", ["reference", "jit"])
@pytest.mark.parametrize("inside", [m for m in RECURRENT if m.name in ("softmax causal", "linear causal")], ids=str)
def test_heads_of_keys_may_be_shared(inside, kernels):
    """Two heads of queries read one of keys: its gradient, token by token, and after several tokens at once."""
    model = causal.Model(inside.mechanism, heads=4, groups=2, kernels=f"linattn_ref.kernels.{kernels}")
    params = causal.draw(*(np.random.default_rng(1),), tokens=5, places=TOKENS, width=8, hidden=16, layers=2, groups=2)
    assert params.blocks[0].attention.inner.w.shape == (8, 8 + 4 + 4)
    params.embedding.table[...] *= 50
    scores, _ = causal.forward(READ, params, model)
    state = causal.init_state(len(READ), params, model)
    assert state.blocks[0][0].shape[:2] == (len(READ), 2)
    state = causal.read(READ[:, :3], params, state, model)
    for t in range(3, TOKENS):
        scores_t, state = causal.step(READ[:, t], params, state, model)
        np.testing.assert_allclose(scores_t, scores[:, t], rtol=1e-9, atol=1e-11)

    def of(tokens, params):
        return causal.forward(tokens, params, model)

    check_directions(of, causal.backward, READ, params, **TWICE).assert_ok()
    with pytest.raises(ValueError, match=r"^heads: 4 heads of 3 projections need a multiple of as many columns"):
        causal.forward(READ, params, model._replace(groups=4))


@pytest.mark.parametrize(("inside", "other"), [(linear, softmax), (softmax, linear)])
def test_a_state_of_something_else_is_refused(inside, other):
    """Of other sequences, numbers, blocks, heads or another mechanism: some of these states gave a wrong row."""
    params, model = drawn(), causal.Model(mechanism.of(inside, causal=True), heads=2)
    _, state = causal.step(np.array([1, 2, 3]), params, causal.init_state(3, params, model), model)
    single = map_arrays(lambda array: array.astype(np.float32), params)
    four, another = model._replace(heads=4), model._replace(mechanism=mechanism.of(other, causal=True))
    wide = causal.draw(np.random.default_rng(0), tokens=5, places=TOKENS, width=16, hidden=16, layers=2)
    for rows, its, given, error, message in (
        (1, params, state, ValueError, r"expected float64 with \(B, H\) = \(1, 2\), got float64 of shape \(3, 2, "),
        (4, params, state, ValueError, r"expected float64 with \(B, H\) = \(4, 2\), got float64 of shape \(3, 2, "),
        (3, single, state, ValueError, "expected float32 with .*, got float64 of"),
        (3, params, state._replace(place=-1), ValueError, "a place of at least 0, got 2 and -1"),
        (3, params, state._replace(blocks=state.blocks[1:]), ValueError, "expected one of 2 blocks .*, got 1 and 1"),
        (3, params, causal.init_state(3, params, four), ValueError, r"= \(3, 2\), got float64 of shape \(3, 4, "),
        (3, params, causal.init_state(3, wide, model), ValueError, r"expected one of \w+, got one with another [sk]$"),
        (
            3,
            params,
            causal.init_state(3, params, another),
            TypeError,
            r"expected \w+\.State for each block, got \w+\.\w+$",
        ),
    ):
        for tokens, call in ((np.zeros(rows, int), causal.step), (np.zeros((rows, 2), int), causal.read)):
            with pytest.raises(error, match=f"^state: .*{message}"):
                call(tokens, its, given, model)


def test_a_state_of_other_features_is_refused():
    omega = np.random.default_rng(0).standard_normal((4, 4))
    params, model = drawn(), causal.Model(mechanism.of(linear, causal=True), heads=2)
    other = model._replace(mechanism=mechanism.of(performer, omega=omega, causal=True))
    for one, another in ((model, other), (other, model)):
        with pytest.raises(ValueError, match=r"^state: expected one of \w+, got one with another log_scale"):
            causal.step(np.array([1]), params, causal.init_state(1, params, another), one)


@pytest.mark.parametrize("module", [bigbird, longformer, nystromformer, linformer_linear])
def test_a_network_that_sees_the_future_is_refused(module):
    with pytest.raises(ValueError, match=r"^model\.mechanism: expected a causal one, or a token would see later ones"):
        causal.forward(READ, drawn(), causal.Model(mechanism.of(module), heads=2))


def test_numpys_numbers_in_a_model_are_pythons():
    """A float64 scale or dropout would widen float32; small integers would wrap around."""
    params = map_arrays(lambda array: array.astype(np.float32), drawn())
    inside = mechanism.of(softmax, causal=True, scale=np.float64(0.5))
    model = causal.Model(inside, np.uint8(2), dropout=np.float64(0.1), kernels=reference)
    scores, saved = causal.forward(READ, params, model, rng=np.random.default_rng(0))
    assert scores.dtype == np.float32
    gradients = dict(leaves(causal.backward(np.ones_like(scores), saved), strict=False))
    assert {x.dtype for x in gradients.values()} == {scores.dtype}


@pytest.mark.parametrize("layers", [0, -1, 2.0])
def test_as_many_blocks_as_were_asked_for(layers):
    sizes = {"tokens": 5, "places": 7, "width": 8, "hidden": 8}
    with pytest.raises(ValueError, match=f"layers: expected an integer of at least 1, got {layers}"):
        causal.draw(np.random.default_rng(0), layers=layers, **sizes)
    with pytest.raises(ValueError, match="own: expected parameters for each of 3 blocks, got 2"):
        causal.draw(np.random.default_rng(0), layers=3, own=[()] * 2, **sizes)


def test_wrong_arguments_are_named():
    params, model = drawn(), model_of(CAUSAL[0])
    with pytest.raises(ValueError, match="tokens: expected numbers from 0 to 4, got 0 to 5"):
        causal.forward(np.array([[0, 5]]), params, model)
    with pytest.raises(ValueError, match="tokens: there are 7 places, got 8 tokens"):
        causal.forward(np.zeros((1, 8), int), params, model)
    with pytest.raises(ValueError, match=r"model\.mechanism: expected causal=True among its options"):
        causal.forward(READ, params, causal.Model(mechanism.of(linear), heads=2))
    for wrong in ("jit", ""):
        with pytest.raises(TypeError, match=rf"^model\.kernels: expected a backend or its name, .*, got {wrong!r}"):
            causal.forward(READ, params, model._replace(kernels=wrong))
    with pytest.raises(ValueError, match="groups: expected an integer of at least 1, got 0"):
        causal.forward(READ, params, model._replace(groups=0))
    for shape in ((3,), (1, 3, 2)):
        with pytest.raises(ValueError, match=r"model\.sinusoids: expected (at least )?2 axes, got shape \("):
            causal.forward(READ, params._replace(positions=None), model._replace(sinusoids=np.zeros(shape)))
    with pytest.raises(TypeError, match="activation: expected a module with forward and backward"):
        causal.forward(READ, params, model._replace(activation="relu"))
    with pytest.raises(TypeError, match=r"model: expected causal_network\.Model, got str"):
        causal.forward(READ, params, "linear")
