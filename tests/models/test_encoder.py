"""A bidirectional transformer, and a classifier and masked tokens on it: gradients, padding, tied arrays."""

from functools import partial

import numpy as np
import pytest
from mechanism_cases import MECHANISMS, TOKENS
from scipy.special import ndtr

from linattn_ref.attention import linear, linformer, linformer_projections, softmax
from linattn_ref.gradcheck import check_directions, check_elementwise
from linattn_ref.gradcheck.inputs import float_arrays
from linattn_ref.models import classifier, encoder, masked_tokens
from linattn_ref.nested import leaves, map_arrays
from linattn_ref.nn import affine, feed_forward, mechanism, multi_head, no_norm, post_norm, pre_norm
from linattn_ref.training import parameters

# A step shorter than for a layer: the third derivatives of a network are some hundred times as large. Two directions:
# there are some thirty arrays, and a wrong gradient agrees with one direction only by chance.
TWICE = {"rng": 0, "step": 1e-6, "directions": 2}
READ = np.random.default_rng(0).integers(0, 5, (2, TOKENS))
TYPES = (np.arange(TOKENS) > 3) * np.ones_like(READ)
MASK = np.arange(TOKENS) < np.array([[TOKENS], [4]])
CHOSEN = np.array([1, 4, 8, 10])  # in READ.ravel()
INSIDE = {inside.name: inside for inside in MECHANISMS if not inside.causal}
BLOCKS = {"pre": {}, "post": {"block": post_norm, "eps": 1e-12}}
# Of all mechanisms and both blocks, these in every run.
FAST = (("softmax", "post"), ("linformer", "pre"))
everywhere = pytest.mark.parametrize(
    ("inside", "block"),
    [
        pytest.param(
            inside, BLOCKS[block], id=f"{name}, {block}", marks=[pytest.mark.slow] * ((name, block) not in FAST)
        )
        for name, inside in INSIDE.items()
        for block in BLOCKS
    ],
)
HEADS = {"classifier": (classifier, {"pool": "mean"}), "masked tokens": (masked_tokens, {"chosen": CHOSEN})}
heads = pytest.mark.parametrize(("head", "options"), HEADS.values(), ids=list(HEADS))


def model_of(inside, **more):
    return encoder.Model(inside.mechanism, heads=2, **more)


def drawn(inside=INSIDE["softmax"], width=8, layers=2, own=None):
    """Embeddings of size 1: below a layer norm, a step of the difference quotient is to be a small part of them."""
    params = encoder.draw(
        np.random.default_rng(1),
        tokens=5,
        places=TOKENS,
        width=width,
        hidden=2 * width,
        layers=layers,
        types=2,
        reads=inside.mechanism.reads,
        own=own or [map_arrays(np.copy, inside.own) for _ in range(layers)],
    )
    for part in (params.embedding, params.positions, params.types):
        part.table[...] *= 50
    return params


def above(head, below):
    more = (3,) if head is classifier else ()
    return head.draw(below, *more, np.random.default_rng(2))


def pair_of(head, model, **options):
    """A forward pass of tokens and parameters alone."""

    def forward(tokens, params):
        return head.forward(tokens, params, model, **options)

    return forward, head.backward


@everywhere
def test_gradients(inside, block):
    check_directions(
        *pair_of(encoder, model_of(inside, **block), types=TYPES, key_mask=MASK), READ, drawn(inside), **TWICE
    ).assert_ok()


@heads
def test_every_gradient_of_a_tiny_network(head, options):
    """Entry by entry, with the rows of one type and padding. A norm of two columns would leave only their signs."""
    model, options = model_of(INSIDE["softmax"], block=post_norm), dict(options, key_mask=MASK[:, :4])
    options |= {"chosen": CHOSEN[:2]} if "chosen" in options else {}
    params = above(head, drawn(width=4, layers=1))
    check_elementwise(*pair_of(head, model, **options), READ[:, :4], params, rng=0, step=TWICE["step"]).assert_ok()


@pytest.mark.parametrize("room", ["linattn_ref.kernels.reference", "linattn_ref.kernels.jit"])
@pytest.mark.parametrize("untie", [False, True], ids=["tied", "a matrix of its own"])
def test_masked_tokens_by_their_formulas_and_their_gradients(untie, room):
    params = above(masked_tokens, drawn())
    if untie:
        params = params._replace(u=np.random.default_rng(3).standard_normal((8, 5)))
    model = model_of(INSIDE["linear"], kernels=room)
    pair = pair_of(masked_tokens, model, chosen=CHOSEN)
    check_directions(*pair, READ, params, **TWICE).assert_ok()
    a = encoder.forward(READ, params.encoder, model)[0].reshape(-1, 8)[CHOSEN] @ params.inner.w + params.inner.b
    h = a * ndtr(a)
    h = (h - h.mean(axis=-1, keepdims=True)) / np.sqrt(h.var(axis=-1, keepdims=True) + model.eps)
    table = params.encoder.embedding.table.T if params.u is None else params.u
    expected = (params.norm.gain * h + params.norm.bias) @ table + params.c
    np.testing.assert_allclose(pair[0](READ, params)[0], expected, rtol=1e-11, atol=1e-12)


def test_the_first_row_is_a_pool_too():
    pair = pair_of(classifier, model_of(INSIDE["linear"]), pool="first", key_mask=MASK)
    check_directions(*pair, READ, above(classifier, drawn()), **TWICE).assert_ok()


def test_gradients_of_a_classifier_with_berts_pooler_and_dropout():
    params = above(classifier, drawn())
    rng = np.random.default_rng(6)
    params = params._replace(pooler=affine.Params(rng.standard_normal((8, 8)), rng.standard_normal(8)))
    model = model_of(INSIDE["softmax"], dropout=0.3)

    def forward(tokens, params):
        return classifier.forward(tokens, params, model, pool="first", rng=np.random.default_rng(7))

    check_directions(forward, classifier.backward, READ, params, **TWICE).assert_ok()
    scores, _ = classifier.forward(READ, params, model, pool="first")
    rows, _ = encoder.forward(READ, params.encoder, model)
    expected = np.tanh(rows[:, 0] @ params.pooler.w + params.pooler.b) @ params.head.w + params.head.b
    np.testing.assert_allclose(scores, expected, rtol=1e-12)


PADDED = [name for name in INSIDE if name not in ("linformer", "nystromformer", "bigbird")]  # of any length


@pytest.mark.parametrize("block", BLOCKS.values(), ids=list(BLOCKS))
@pytest.mark.parametrize("name", PADDED)
def test_padded_is_truncated(name, block):
    """What pads has no share in anything: not in rows, scores or gradients. Dense and longer projections apart."""
    inside, kept = INSIDE[name], 5
    model, params = model_of(inside, **block), above(classifier, drawn(inside))
    mask = np.arange(TOKENS) < kept * np.ones((2, 1))
    results = []
    for tokens, options in ((READ[:, :kept], {}), (READ, {"key_mask": mask})):
        rows, _ = encoder.forward(tokens, params.encoder, model, **options)
        scores, saved = classifier.forward(tokens, params, model, **options)
        results.append((rows[:, :kept], scores, classifier.backward(scores, saved).params))
    for (where, short), (_, padded) in zip(*(float_arrays("", result) for result in results), strict=True):
        np.testing.assert_allclose(padded, short, rtol=1e-8, atol=1e-10, err_msg=where)


@pytest.mark.parametrize("block", BLOCKS.values(), ids=list(BLOCKS))
@pytest.mark.parametrize("name", INSIDE)
def test_what_is_put_where_nothing_is_changes_nothing(name, block):
    """Also where padding moves the parts that a mechanism mixes or looks at together."""
    inside, mask = INSIDE[name], np.arange(TOKENS) < [[TOKENS - 2], [TOKENS - 1]]
    model, params = model_of(inside, **block), drawn(inside)
    others = np.where(mask, READ, (READ + 1) % len(params.embedding.table))
    rows, changed = (encoder.forward(tokens, params, model, key_mask=mask)[0] for tokens in (READ, others))
    np.testing.assert_array_equal(rows[mask], changed[mask])
    assert (rows != changed).any()


def test_where_the_norm_beside_the_blocks_stands():
    """Norms last: the rows that the first block reads are normed. Norms first: the rows that come out are."""
    for block in BLOCKS.values():
        rows, saved = encoder.forward(READ, drawn(), model_of(INSIDE["softmax"], **block))
        first = saved.blocks[0].attention.inner.x if block else rows
        np.testing.assert_allclose(first.mean(axis=-1), 0, atol=1e-12)
        np.testing.assert_allclose((first**2).mean(axis=-1), 1, rtol=1e-4)


@pytest.mark.parametrize("block", [pre_norm, post_norm])
def test_the_models_eps_is_in_every_norm(block):
    """As large as a variance, so that it moves every row: the network put together from its layers, and both heads."""
    params, model, eps = above(masked_tokens, drawn()), model_of(INSIDE["softmax"], block=block, eps=0.7), 0.7
    below = params.encoder

    def norm(x, params):
        centred = x - x.mean(axis=-1, keepdims=True)
        return params.gain * centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps) + params.bias

    rng = np.random.default_rng(4)
    for _, array in leaves(params):  # gains that begin as 1, biases that begin as 0
        array += 0.1 * rng.standard_normal(array.shape)
    x = below.embedding.table[READ] + below.positions.table + below.types.table[0]
    x = norm(x, below.norm) if block is post_norm else x
    for one in below.blocks:
        attend = partial(multi_head.forward, params=one.attention, mechanism=model.mechanism, heads=model.heads)
        if block is post_norm:
            x = norm(x + attend(x)[0], one.norm_1)
            x = norm(x + feed_forward.forward(x, one.feed_forward)[0], one.norm_2)
        else:
            x = x + attend(norm(x, one.norm_1))[0]
            x = x + feed_forward.forward(norm(x, one.norm_2), one.feed_forward)[0]
    x = x if block is post_norm else norm(x, below.norm)
    np.testing.assert_allclose(encoder.forward(READ, below, model)[0], x, rtol=1e-10, atol=1e-12)
    a = x.reshape(-1, 8)[CHOSEN] @ params.inner.w + params.inner.b
    expected = norm(a * ndtr(a), params.norm) @ below.embedding.table.T + params.c
    scores, _ = masked_tokens.forward(READ, params, model, chosen=CHOSEN)
    np.testing.assert_allclose(scores, expected, rtol=1e-10, atol=1e-12)


def test_each_block_may_have_a_mechanism_of_its_own():
    params, of_one = drawn(), model_of(INSIDE["softmax"])
    mixed = of_one._replace(mechanism=(mechanism.of(softmax), mechanism.of(linear)))
    _, saved = encoder.forward(READ, params, mixed)
    assert [one.attention.backward for one in saved.blocks] == [softmax.backward, linear.backward]
    check_directions(*pair_of(encoder, mixed), READ, params, **TWICE).assert_ok()
    with pytest.raises(TypeError, match=r"model\.mechanism: expected mechanism\.Mechanism, .*, got module"):
        encoder.forward(READ, params, of_one._replace(mechanism=softmax))
    with pytest.raises(ValueError, match=r"model\.mechanism: expected one, or one for each of 2 blocks, got 1"):
        encoder.forward(READ, params, mixed._replace(mechanism=mixed.mechanism[:1]))


@pytest.mark.parametrize("sharing", linformer_projections.SHARING)
def test_shared_projections_are_learned_as_one(sharing):
    """Linformer's four ways to share: the gradient of the flat array, by differences in the flat array."""
    drawn_here = linformer.draw_projections(3, TOKENS, np.random.default_rng(4), layers=2, heads=2, sharing=sharing)
    own = [(each.e, each.f) for each in drawn_here]
    params = drawn(own=own)
    flat, views = parameters.flatten(params)
    distinct = {"none": 8, "headwise": 4, "key_value": 2, "layerwise": 1}[sharing]
    assert flat.size - parameters.flatten(drawn())[0].size == distinct * 3 * TOKENS
    assert all(np.shares_memory(flat, one.attention.own[0]) for one in views.blocks)

    def forward(flat):
        return encoder.forward(READ, parameters.views(flat, params), encoder.Model(mechanism.of(linformer), heads=2))

    def backward(d_rows, saved):
        return parameters.flatten(parameters.tied(params, encoder.backward(d_rows, saved).params))[0]

    check_directions(forward, backward, flat, **TWICE).assert_ok()


def test_wrong_arguments_are_named():
    params, model = above(masked_tokens, drawn()), model_of(INSIDE["softmax"])
    run = partial(masked_tokens.forward, params=params, model=model)
    for chosen in ([3, 3], [14], [-1, 2], np.array([7, 3], np.uint8)):  # unsigned, 3 - 7 would be 252
        with pytest.raises(ValueError, match="chosen: expected places from 0 to 13, each larger than the last"):
            run(READ, chosen=np.array(chosen))
    for chosen, error in (([1], TypeError), (np.array([]), TypeError), (np.array([], int), ValueError),
                          (np.array([[1]]), ValueError)):  # fmt: skip
        with pytest.raises(error, match=r"chosen: (expected an array of integers|every axis needs|expected shape)"):
            run(READ, chosen=chosen)
    run = partial(classifier.forward, params=above(classifier, drawn()), model=model)
    with pytest.raises(ValueError, match="key_mask: sequence 1 has no token"):
        run(READ, key_mask=MASK & [[True], [False]])
    assert np.isfinite(run(READ, key_mask=MASK & [[True], [False]], pool="first")[0]).all()
    with pytest.raises(ValueError, match="pool: expected one of mean, first, got 'last'"):
        run(READ, pool="last")
    with pytest.raises(ValueError, match="tokens: there are 7 places, got 8 tokens"):
        run(np.zeros((1, 8), int))
    with pytest.raises(ValueError, match="tokens: there are 5 places, got 7 tokens"):
        classifier.forward(READ, run.keywords["params"], model._replace(first=2))
    for first in (-3, -1, 7, 20, 1.0, True):
        with pytest.raises(ValueError, match=f"model.first: expected an integer from 0 to 6, got {first}"):
            encoder.forward(READ[:, :2], drawn(), model._replace(first=first))
    with pytest.raises(ValueError, match=r"model\.block: expected pre_norm or post_norm, got linattn_ref\.nn\.no_norm"):
        encoder.forward(READ, drawn(), model._replace(block=no_norm))
    with pytest.raises(ValueError, match="eps: expected a finite number of at least 0, got -1"):
        encoder.forward(READ, drawn()._replace(blocks=()), model._replace(eps=-1))
    with pytest.raises(TypeError, match="activation: expected a module with forward and backward"):
        encoder.forward(READ, drawn(), model._replace(activation="relu"))
    with pytest.raises(ValueError, match="types: expected numbers from 0 to 1, got 2 to 2"):
        run(READ, types=np.full_like(READ, 2))
    with pytest.raises(ValueError, match=r"types: the network has none, params\.types is None"):
        encoder.forward(READ, drawn()._replace(types=None), model, types=TYPES)
    with pytest.raises(TypeError, match=r"model: expected encoder\.Model"):
        encoder.forward(READ, drawn(), "softmax")


@pytest.mark.parametrize("layers", [0, -1, 2.0])
def test_as_many_blocks_as_were_asked_for(layers):
    sizes = {"tokens": 5, "places": 7, "width": 8, "hidden": 8}
    with pytest.raises(ValueError, match=f"layers: expected an integer of at least 1, got {layers}"):
        encoder.draw(np.random.default_rng(0), layers=layers, **sizes)
    with pytest.raises(ValueError, match="own: expected parameters for each of 3 blocks, got 2"):
        encoder.draw(np.random.default_rng(0), layers=3, own=[()] * 2, **sizes)


def test_what_another_mechanism_is_given():
    """Of queries, keys and values the first and last for two, each twice for six; and it must have been those three."""
    params = drawn()
    q, k, v = np.split(params.blocks[0].attention.inner.w, 3, axis=-1)
    for reads, expected in ((2, (q, v)), (3, (q, k, v)), (6, (q, k, v, q, k, v))):
        found = encoder.refit(params, reads, [(np.ones(reads),)] * 2).blocks[0].attention
        np.testing.assert_array_equal(found.inner.w, np.concatenate(expected, axis=-1))
        np.testing.assert_array_equal(found.own, [np.ones(reads)])
    for reads in (2, 6):
        with pytest.raises(ValueError, match=f"params: expected .* values of 8 columns, got {8 * reads}"):
            encoder.refit(encoder.refit(params, reads), 3)
    with pytest.raises(ValueError, match="own: expected parameters for each of 2 blocks, got 1"):
        encoder.refit(params, 3, [()])
    with pytest.raises(ValueError, match="reads: expected one of 2, 3, 6, got 4"):
        encoder.refit(params, 4)
