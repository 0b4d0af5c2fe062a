"""Any mechanism in multi-head attention and in a block: its formula, gradient, recurrent form, backends."""

import pickle
from functools import partial

import numpy as np
import pytest
from mechanism_cases import HEADS, MECHANISMS, TOKENS, WIDTH, Inside

from linattn_ref.attention import delta, gated_linear, linear, local, performer, reformer, softmax
from linattn_ref.attention.parts import gate
from linattn_ref.gradcheck import check_directions, check_elementwise
from linattn_ref.gradcheck.inputs import float_arrays
from linattn_ref.kernels import jit, reference
from linattn_ref.nested import map_arrays
from linattn_ref.nn import (
    dropout,
    feed_forward,
    gelu,
    layer_norm,
    mechanism,
    multi_head,
    no_norm,
    post_norm,
    pre_norm,
    relu,
)

mechanisms = pytest.mark.parametrize("inside", MECHANISMS, ids=str)
BLOCKS = {"pre-norm": pre_norm, "post-norm": post_norm, "no norm": no_norm}
blocks = pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
recurrent = pytest.mark.parametrize("inside", [m for m in MECHANISMS if m.causal and m.mechanism.step], ids=str)
X = np.random.default_rng(0).standard_normal((2, TOKENS, WIDTH))


def drawn(inside, layer=multi_head, seed=1):
    rng = np.random.default_rng(seed)
    shape = (WIDTH,) if layer is multi_head else (WIDTH, 3 * WIDTH)
    return layer.draw(*shape, rng, reads=inside.mechanism.reads, own=inside.own)


def bound(inside, layer=multi_head):
    """``forward(x, params)``."""

    def forward(x, params):
        return layer.forward(x, params, inside.mechanism, heads=HEADS)

    return forward


@mechanisms
def test_heads_are_columns_one_after_the_other(inside):
    """(1)-(3), a sequence and a head at a time."""
    params = drawn(inside)
    y, _ = multi_head.forward(X, params, inside.mechanism, heads=HEADS)
    d, reads = WIDTH // HEADS, inside.mechanism.reads
    for b in range(len(X)):
        projected = X[b] @ params.inner.w + params.inner.b
        parts = [np.stack(np.split(part, HEADS, axis=1)) for part in np.split(projected, reads, axis=1)]  # (H, N, D)
        own, of_gates = multi_head.split_own(params, inside.mechanism)
        gates = {
            name: np.stack([pair.forward(X[b], w, bias)[0] for w, bias in zip(*its, strict=True)])  # (H, N)
            for (name, pair), its in zip(inside.mechanism.gates.items(), of_gates, strict=True)
        }
        out, _ = inside.mechanism.forward(*parts, *own, **inside.mechanism.options, **gates)
        beside = np.concatenate(list(out), axis=1)
        assert beside.shape == (TOKENS, HEADS * d)
        np.testing.assert_allclose(y[b], beside @ params.outer.w + params.outer.b, rtol=1e-12, atol=1e-13)


@mechanisms
def test_gradients(inside):
    check_directions(bound(inside), multi_head.backward, X, drawn(inside), rng=0).assert_ok()


@pytest.mark.parametrize(
    ("inside", "block"),
    [
        pytest.param(inside, block, marks=[pytest.mark.slow] * (i > 2 and i % 3 != j), id=f"{inside}-{name}")
        for i, inside in enumerate(MECHANISMS)
        for j, (name, block) in enumerate(BLOCKS.items())
    ],
)
def test_gradients_of_a_block(inside, block):
    check_directions(bound(inside, block), block.backward, X, drawn(inside, block), rng=0).assert_ok()


@blocks
def test_every_gradient_of_a_small_block(block):
    """Entry by entry, which directions can miss."""
    inside, x = MECHANISMS[3], X[:1, :3]
    check_elementwise(bound(inside, block), block.backward, x, drawn(inside, block), rng=0).assert_ok()


def other_options(block):
    """Of a block: none of them what it is unless it is said."""
    return {"activation": relu} if block is no_norm else {"activation": relu, "eps": 0.1}


def by_parts(block, x, params, inside, p, rng, activation=gelu, eps=1e-5):
    """A block made of its layers, in which what attention and the feed-forward layer add is dropped, in this order."""

    def dropped(y):
        return dropout.forward(y, p=p, rng=rng)[0]

    def attend(x):
        return dropped(multi_head.forward(x, params.attention, inside.mechanism, heads=HEADS)[0])

    def feed(x):
        return dropped(feed_forward.forward(x, params.feed_forward, activation=activation)[0])

    if block is no_norm:
        return feed(x + attend(x))
    norm_1, norm_2 = (partial(layer_norm.forward, params=one, eps=eps) for one in (params.norm_1, params.norm_2))
    if block is pre_norm:
        h = x + attend(norm_1(x)[0])
        return h + feed(norm_2(h)[0])
    h = norm_1(x + attend(x))[0]
    return norm_2(h + feed(h))[0]


@blocks
def test_a_block_is_its_layers_with_what_they_add_dropped(block):
    """In training alone: without a generator nothing is."""
    inside, params = MECHANISMS[3], drawn(MECHANISMS[3], block)
    run = partial(block.forward, X, params, inside.mechanism, heads=HEADS)
    for p, more in ((0.0, {}), (0.0, other_options(block)), (0.4, {})):
        y, _ = run(dropout=p, rng=np.random.default_rng(3), **more)
        expected = by_parts(block, X, params, inside, p, np.random.default_rng(3), **more)
        np.testing.assert_allclose(y, expected, rtol=1e-11, atol=1e-12)
    np.testing.assert_array_equal(run(dropout=0.4)[0], run()[0])
    assert abs(y - run()[0]).max() > 0.1


@blocks
def test_gradients_of_a_block_with_dropout(block):
    inside, params = MECHANISMS[3], drawn(MECHANISMS[3], block)

    def forward(x, params):
        rng = np.random.default_rng(3)  # the same numbers are dropped each time
        return block.forward(x, params, inside.mechanism, heads=HEADS, dropout=0.4, rng=rng)

    check_directions(forward, block.backward, X, params, rng=0).assert_ok()


@blocks
@recurrent
def test_token_by_token_is_the_same_layer(inside, block):
    params = drawn(inside, block)
    for more in ({}, other_options(block)):
        y, _ = block.forward(X, params, inside.mechanism, heads=HEADS, **more)
        state = multi_head.init_state(len(X), params.attention, inside.mechanism, heads=HEADS, **inside.more)
        for t in range(TOKENS):
            y_t, state = block.step(X[:, t], params, state, inside.mechanism, heads=HEADS, **more)
            np.testing.assert_allclose(y_t, y[:, t], rtol=1e-10, atol=1e-12)


@blocks
def test_saved_is_data(block):
    inside = MECHANISMS[3]
    y, saved = block.forward(X, drawn(inside, block), inside.mechanism, heads=HEADS)
    again = pickle.loads(pickle.dumps(saved))
    np.testing.assert_array_equal(block.backward(y, again).x, block.backward(y, saved).x)


@pytest.mark.parametrize("layer", [multi_head, *BLOCKS.values()], ids=["attention alone", *BLOCKS])
def test_a_key_mask_is_for_all_heads(layer):
    """What a masked token is changes nothing elsewhere."""
    inside, mask = MECHANISMS[0], np.arange(TOKENS) < 5
    params, other = drawn(inside, layer), X.copy()
    other[:, 5:] = 9
    attend = partial(layer.forward, params=params, mechanism=inside.mechanism, heads=HEADS)
    y, y_other = (attend(x, key_mask=np.stack([mask, mask]))[0] for x in (X, other))
    np.testing.assert_array_equal(y[:, :5], y_other[:, :5])
    assert abs(y - attend(X)[0]).max() > 1e-3


@pytest.mark.parametrize("module", [softmax, linear])
def test_jit_kernels_give_the_same(module):
    params, x = drawn(MECHANISMS[0]), X
    results = []
    for options in ({}, {"kernels": jit}):
        y, saved = multi_head.forward(x, params, mechanism.of(module, causal=True, **options), heads=HEADS)
        results.append((y, multi_head.backward(y, saved)))
    for (name, a), (_, b) in zip(*(float_arrays("", result) for result in results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12, err_msg=name)


@blocks
@pytest.mark.parametrize("masked", [False, True])
@mechanisms
def test_a_block_on_jit_gives_the_same(inside, block, masked):
    """The mechanism inside too, where the backend has it; norms that are made again, hidden units that are."""
    params, results = drawn(inside, block), []
    mask = np.arange(2 * TOKENS).reshape(2, TOKENS) % 5 < 4
    more = {"key_mask": mask, **other_options(block)} if masked else {}
    for room in (reference, jit):
        y, saved = block.forward(X, params, inside.mechanism, heads=HEADS, kernels=room, **more)
        results.append((y, block.backward(np.cos(y), saved)))
    for (name, a), (_, b) in zip(*(float_arrays("", result) for result in results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11, err_msg=name)


def test_a_block_on_jit_keeps_less():
    """Neither what its norms return nor the hidden units."""
    inside, block = mechanism.of(linear, causal=True), pre_norm
    x, params = np.ones((1, 64, WIDTH)), drawn(MECHANISMS[3], block)
    kept = {}
    for room in (reference, jit):
        _, saved = block.forward(x, params, inside, heads=HEADS, kernels=room)
        learned = {id(array) for _, array in float_arrays("", params)}
        kept[room] = sum(array.size for _, array in float_arrays("", saved) if id(array) not in learned)
    assert kept[jit] < 0.7 * kept[reference]


def test_wrong_arguments_are_named():
    inside, params = MECHANISMS[0], drawn(MECHANISMS[0])
    with pytest.raises(TypeError, match=r"mechanism: expected mechanism\.Mechanism, got module"):
        multi_head.forward(X, params, softmax, heads=HEADS)
    with pytest.raises(ValueError, match="heads: 5 heads of 3 projections need a multiple of as many columns"):
        multi_head.forward(X, params, inside.mechanism, heads=5)
    with pytest.raises(ValueError, match=r"key_mask: expected shape \(B, L\)"):
        multi_head.forward(X, params, inside.mechanism, heads=HEADS, key_mask=np.ones((3, 4), bool))
    local = next(m for m in MECHANISMS if m.name == "local")
    with pytest.raises(ValueError, match=r"mechanism: linattn_ref\.attention\.sparse\.local has no recurrent form"):
        multi_head.init_state(2, params, local.mechanism, heads=HEADS)


def test_numpys_numbers_are_pythons():
    """An unsigned window would wrap around, in a pattern that is kept for whoever asks for it next."""
    inside = mechanism.of(local, window=np.uint8(2))
    multi_head.forward(np.ones((1, 6, 4)), multi_head.draw(4, np.random.default_rng(0)), inside, heads=1)
    out, _ = local.forward(np.ones((6, 1)), np.ones((6, 1)), np.arange(6.0)[:, None], window=2)
    np.testing.assert_allclose(out[:, 0], [1, 1.5, 2, 3, 3.5, 4])


@pytest.mark.parametrize("layer", [multi_head, *BLOCKS.values()], ids=["attention alone", *BLOCKS])
def test_a_state_that_does_not_fit_is_named(layer):
    inside, params = MECHANISMS[3], drawn(MECHANISMS[3], layer)
    attention = params if layer is multi_head else params.attention
    state = multi_head.init_state(2, attention, inside.mechanism, heads=HEADS)
    for error, wrong in {
        r": expected sums\.State, got NoneType": None,
        r": expected sums\.State, got softmax\.State": softmax.init_state((2, HEADS), 4, 4),
        r"\.s: expected shape .* = \(2, 2, 4, 4\), got \(3, 2, 4, 4\)": linear.init_state((3, HEADS), 4, 4),
        r"\.s: expected float64 like the other arrays, got float32": map_arrays(np.float32, state),
    }.items():
        with pytest.raises((TypeError, ValueError), match=f"^state{error}"):
            layer.step(X[:, 0], params, wrong, inside.mechanism, heads=HEADS)
    layer.step(X[:, 0], params, state, inside.mechanism, heads=HEADS)


def test_parameters_of_gates_that_do_not_fit_are_named():
    inside, rng = mechanism.of(delta, gates={"beta": gate}), np.random.default_rng(0)
    state = delta.init_state((2, HEADS), 4, 4)
    for error, own in {
        r"params\.own: expected a tuple of parameters for each of the gates \(beta\), got 0": (),
        r"w_g: expected shape": ((np.ones((HEADS, WIDTH + 1)), np.ones(HEADS)),),
        r"beta(_t)?: expected shape": ((np.ones((3, WIDTH)), np.ones(3)),),
        r"w_g: expected float64 like": (tuple(np.ones((1 + HEADS, HEADS, WIDTH), np.float32)[:2]),),
    }.items():
        params = multi_head.draw(WIDTH, rng, own=own)
        with pytest.raises((TypeError, ValueError), match=f"^{error}"):
            multi_head.forward(X, params, inside, heads=HEADS)
        with pytest.raises((TypeError, ValueError), match=f"^{error}"):
            multi_head.step(X[:, 0], params, state, inside, heads=HEADS)


@pytest.mark.parametrize(
    ("module", "constants", "error"),
    [
        (delta, {"beta": np.full((2, HEADS, 7), -3.0)}, "beta: expected numbers from 0 to 2"),
        (gated_linear, {"log_gate": np.full((2, HEADS, 7), 0.5)}, "log_gate: expected logarithms of gates up to 1"),
        (performer, {"omega": np.full((8, 4), np.nan)}, "omega: expected finite numbers"),
        (reformer, {"rotations": np.full((2, 4, 3), np.nan)}, "rotations: expected finite numbers"),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_a_mechanism_whose_constants_are_no_good(module, constants, error):
    """Refused when it is made: of a call that is known a layer looks at no numbers."""
    with pytest.raises(ValueError, match=f"^{error}"):
        mechanism.of(module, **constants)


@blocks
def test_a_step_of_a_block_refuses_what_its_forward_pass_does(block):
    inside, params = MECHANISMS[3].mechanism, drawn(MECHANISMS[3], block)
    state = multi_head.init_state(2, params.attention, inside, heads=HEADS)
    for error, options in {
        "activation: expected a module with forward and backward": {"activation": "relu"},
        **({} if block is no_norm else {"eps: expected a number above 0 in float64": {"eps": 0}}),
    }.items():
        with pytest.raises((TypeError, ValueError), match=f"^{error}"):
            block.forward(X, params, inside, heads=HEADS, **options)
        with pytest.raises((TypeError, ValueError), match=f"^{error}"):
            block.step(X[:, 0], params, state, inside, heads=HEADS, **options)


class summed:  # in place of a module
    """Linear attention, whose state is made without options of the entrance."""

    forward, backward, step = linear.forward, linear.backward, linear.step

    def init_state(leading, key_width, value_width, *, dtype):
        return linear.init_state(leading, key_width, value_width, dtype=dtype)


def test_a_cache_has_room_from_the_start():
    """A mechanism without one may be asked too, and no option is misspelt in silence."""
    params, cached = drawn(MECHANISMS[1]), MECHANISMS[1].mechanism
    assert multi_head.init_state(2, params, cached, heads=HEADS, capacity=64, kernels=jit).rows.k.shape[-2] == 64
    for module in (linear, summed):
        state = multi_head.init_state(2, params, mechanism.of(module, causal=True), heads=HEADS, capacity=64)
        assert state.s.shape == (2, HEADS, 4, 4)
    with pytest.raises(ValueError, match=r"^capacity: expected an integer of at least 1, got 0"):
        multi_head.init_state(2, params, cached, heads=HEADS, capacity=0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'capcity'"):
        multi_head.init_state(2, params, cached, heads=HEADS, capcity=64)


# --- Shared heads, a memory, widths of their own ----------------------------------------------------------------------

H, G, D_KEY, M_VALUE = 4, 2, 3, 5
MEMORY = np.random.default_rng(2).standard_normal((2, 4, WIDTH))
SHARING = (
    *(m for m in MECHANISMS if m.name in ("softmax", "softmax causal", "linear", "linear causal")),
    Inside("delta", mechanism.of(delta, gates={"beta": gate}), causal=True),
)
sharing = pytest.mark.parametrize("inside", SHARING, ids=str)
rooms = pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])


def drawn_shared(inside):
    """Two heads of keys and values for four of queries; gates belong to the keys."""
    rng = np.random.default_rng(7)
    own = tuple((rng.standard_normal((H // G, WIDTH)), rng.standard_normal(H // G)) for _ in inside.mechanism.gates)
    return multi_head.draw(WIDTH, rng, groups=G, key_columns=H * D_KEY, value_columns=H * M_VALUE, own=own)


def repeated(params):
    """The same layer with a head of keys and values for each head of queries."""

    def twice(x):
        q, *others = np.split(x, np.cumsum([H * D_KEY, H // G * D_KEY]), axis=-1)
        heads = (part.reshape(*part.shape[:-1], H // G, -1) for part in others)
        return np.concatenate([q, *(np.repeat(x, G, axis=-2).reshape(*q.shape[:-1], -1) for x in heads)], axis=-1)

    own = tuple(tuple(np.repeat(x, G, axis=0) for x in gates) for gates in params.own)
    return params._replace(inner=type(params.inner)(*map(twice, params.inner)), own=own)


@rooms
@sharing
def test_shared_heads_are_repeated_heads(inside, kernels):
    """Of widths of their own, D and M; the parameters are as many numbers fewer."""
    params, options = drawn_shared(inside), {"heads": H, "kernels": kernels}
    assert params.inner.w.shape[1] == H * D_KEY + H // G * (D_KEY + M_VALUE)
    assert params.outer.w.shape == (H * M_VALUE, WIDTH)
    y, _ = multi_head.forward(X, params, inside.mechanism, groups=G, **options)
    expected, _ = multi_head.forward(X, repeated(params), inside.mechanism, **options)
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-13)
    as_option = inside.mechanism._replace(options={**inside.mechanism.options, "groups": G})
    np.testing.assert_array_equal(multi_head.forward(X, params, as_option, **options)[0], y)


@rooms
@sharing
def test_gradients_of_shared_heads(inside, kernels):
    def forward(x, params):
        return multi_head.forward(x, params, inside.mechanism, heads=H, groups=G, kernels=kernels)

    check_directions(forward, multi_head.backward, X, drawn_shared(inside), rng=0).assert_ok()


@pytest.mark.parametrize("inside", [m for m in SHARING if m.causal], ids=str)
def test_shared_heads_token_by_token(inside):
    params = drawn_shared(inside)
    y, _ = multi_head.forward(X, params, inside.mechanism, heads=H, groups=G)
    state = multi_head.init_state(len(X), params, inside.mechanism, heads=H, groups=G, **inside.more)
    assert state[0].shape[:2] == (len(X), H // G)
    for t in range(TOKENS):
        y_t, state = multi_head.step(X[:, t], params, state, inside.mechanism, heads=H, groups=G)
        np.testing.assert_allclose(y_t, y[:, t], rtol=1e-10, atol=1e-12)


@rooms
@pytest.mark.parametrize("inside", [m for m in SHARING if not m.causal], ids=str)
def test_keys_and_values_of_a_memory(inside, kernels):
    """Cross-attention, (1)-(3) a sequence and a head at a time; what is masked of the memory is not there."""
    params, mask = drawn_shared(inside), np.array([[True] * 4, [False, True, True, False]])
    options = {"heads": H, "groups": G, "kernels": kernels}
    y, _ = multi_head.forward(X, params, inside.mechanism, memory=MEMORY, key_mask=mask, **options)
    for b in range(len(X)):
        seen = MEMORY[b, mask[b]] @ repeated(params).inner.w + repeated(params).inner.b
        q = (X[b] @ params.inner.w + params.inner.b)[:, : H * D_KEY]
        _, k, v = np.split(seen, [H * D_KEY, 2 * H * D_KEY], axis=1)
        heads = [np.stack(np.split(part, H, axis=1)) for part in (q, k, v)]
        out, _ = inside.mechanism.forward(*heads, **inside.mechanism.options)
        np.testing.assert_allclose(
            y[b], np.concatenate([*out], axis=1) @ params.outer.w + params.outer.b, rtol=1e-12, atol=1e-13
        )


@rooms
@pytest.mark.parametrize("inside", [m for m in SHARING if not m.causal], ids=str)
def test_gradients_of_a_memory(inside, kernels):
    def forward(x, params, memory):
        return multi_head.forward(x, params, inside.mechanism, heads=H, groups=G, memory=memory, kernels=kernels)

    check_directions(forward, multi_head.backward, X, drawn_shared(inside), MEMORY, rng=0).assert_ok()


@rooms
def test_gradients_of_a_memory_that_gates_are_made_of(kernels):
    """As long as ``x``, for the delta rule."""
    rng = np.random.default_rng(3)
    inside = mechanism.of(delta, gates={"beta": gate})
    own = ((rng.standard_normal((HEADS, WIDTH)), rng.standard_normal(HEADS)),)
    params = multi_head.draw(WIDTH, rng, own=own)

    def forward(x, params, memory):
        return multi_head.forward(x, params, inside, heads=HEADS, memory=memory, kernels=kernels)

    check_directions(forward, multi_head.backward, X, params, rng.standard_normal(X.shape), rng=0).assert_ok()


def test_what_shared_heads_and_a_memory_need():
    inside = SHARING[0].mechanism
    params = drawn_shared(SHARING[0])
    with pytest.raises(ValueError, match=r"^groups: expected a divisor of heads = 4, got 3"):
        multi_head.forward(X, params, inside, heads=H, groups=3)
    with pytest.raises(ValueError, match=r"^heads: 4 heads of 3 projections need"):
        multi_head.forward(X, params, inside, heads=H, groups=4)
    local = next(m for m in MECHANISMS if m.name == "local")
    with pytest.raises(ValueError, match=r"^groups: expected 1, for linattn_ref.*\.local shares no heads, got 2"):
        multi_head.forward(X, drawn(local), local.mechanism, heads=HEADS, groups=2)
    with pytest.raises(ValueError, match=r"^memory: expected shape \(B, L, E\)"):
        multi_head.forward(X, params, inside, heads=H, groups=G, memory=MEMORY[:1])
    longformer = next(m for m in MECHANISMS if m.name == "longformer")
    with pytest.raises(ValueError, match=r"^memory: expected a mechanism that reads q, k and v, got .*longformer"):
        multi_head.forward(X, drawn(longformer), longformer.mechanism, heads=HEADS, memory=MEMORY)
    with pytest.raises(ValueError, match=r"^key_mask: expected shape \(B, L\) = \(2, 4\), got \(2, 7\)"):
        multi_head.forward(X, params, inside, heads=H, groups=G, memory=MEMORY, key_mask=np.ones((2, 7), bool))
    with pytest.raises(ValueError, match=r"^groups: expected a divisor of the columns 8 and 8, got 3"):
        multi_head.draw(8, np.random.default_rng(0), groups=3)
    with pytest.raises(ValueError, match=r"^reads: expected 3 with groups"):
        multi_head.draw(8, np.random.default_rng(0), reads=6, groups=2)
