"""Whole networks beside others' with the same parameters: outputs, every gradient, steps of an optimiser.

PyTorch's layers, fast-transformers' builder and transformers' BERT (extra peers).
"""

from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra peers)")

from linattn_ref.attention import linear, softmax  # noqa: E402
from linattn_ref.data.fetch import MODEL, FetchError, open_content  # noqa: E402
from linattn_ref.models import bert, causal, classifier, encoder, masked_tokens  # noqa: E402
from linattn_ref.nested import leaves, map_arrays  # noqa: E402
from linattn_ref.nn import cross_entropy, mechanism, post_norm, pre_norm  # noqa: E402
from linattn_ref.training import adam  # noqa: E402

TOKENS, WIDTH, HIDDEN, LAYERS, HEADS, WORDS = 9, 8, 20, 2, 2, 11
RNG = np.random.default_rng(0)
READ = RNG.integers(0, WORDS, (3, TOKENS))
LENGTHS = np.array([TOKENS, 5, 7])
MASK = np.arange(TOKENS) < LENGTHS[:, None]
SIZES = {"tokens": WORDS, "places": TOKENS, "width": WIDTH, "hidden": HIDDEN, "layers": LAYERS}


# --- The same parameters on both sides: for each array of ours, those of theirs that stand side by side in it -------


class Theirs(NamedTuple):
    """One of their parameters, and whether it is ours turned over."""

    parameter: Any
    turned: bool = False

    def seen(self, tensor):
        return tensor.detach().T if self.turned else tensor.detach()


def affine(*layers):
    """Weights ``(to, from)``, and biases; side by side."""
    return [[Theirs(layer.weight, True) for layer in layers], [Theirs(layer.bias) for layer in layers]]


def norm(layer):
    return [[Theirs(layer.weight)], [Theirs(layer.bias)]]


def tables(*embeddings):
    return [[Theirs(each.weight)] for each in embeddings]


def blocks(of_one, layers):
    return [part for layer in layers for part in of_one(layer)]


def of_torch(layer):
    attention = layer.self_attn
    inner = [[Theirs(attention.in_proj_weight, True)], [Theirs(attention.in_proj_bias)]]
    feed_forward = affine(layer.linear1) + affine(layer.linear2)
    return norm(layer.norm1) + inner + affine(attention.out_proj) + norm(layer.norm2) + feed_forward


def of_fast(layer):
    attention = layer.attention
    inner = affine(attention.query_projection, attention.key_projection, attention.value_projection)
    feed_forward = affine(layer.linear1) + affine(layer.linear2)
    return norm(layer.norm1) + inner + affine(attention.out_projection) + norm(layer.norm2) + feed_forward


def of_bert(layer):
    attention, out = layer.attention.self, layer.attention.output
    inner = affine(attention.query, attention.key, attention.value)
    feed_forward = affine(layer.intermediate.dense) + affine(layer.output.dense)
    return norm(out.LayerNorm) + inner + affine(out.dense) + norm(layer.output.LayerNorm) + feed_forward


def put(ours, theirs):
    for (_, array), parts in zip(leaves(ours), theirs, strict=True):
        for piece, part in zip(np.split(array, len(parts), axis=-1), parts, strict=True):
            part.seen(part.parameter).copy_(torch.tensor(piece))


def assert_same(ours, theirs, what="parameter", rtol=1e-9, atol=1e-11):
    """Array by array; beside ``atol`` of the largest number of each."""
    for (name, array), parts in zip(leaves(ours), theirs, strict=True):
        tensors = [part.seen(part.parameter if what == "parameter" else part.parameter.grad) for part in parts]
        beside = np.concatenate([tensor.numpy() for tensor in tensors], axis=-1)
        np.testing.assert_allclose(array, beside, rtol=rtol, atol=atol * max(1, abs(beside).max()), err_msg=name)


def assert_same_gradients(ours, out, u, theirs, **tolerances):
    """Those of ``<u, out>``."""
    (out * torch.tensor(u)).sum().backward()
    assert_same(ours, theirs, "gradient", **tolerances)


class Ends(torch.nn.Module):
    """The embedding, positions and one norm."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH, dtype=dtype)
        self.places = torch.nn.Embedding(TOKENS, WIDTH, dtype=dtype)
        self.norm = torch.nn.LayerNorm(WIDTH, dtype=dtype)

    def forward(self, read):
        return self.words(torch.tensor(read)) + self.places(torch.arange(TOKENS))

    def parts(self):
        return tables(self.words, self.places) + norm(self.norm)


def noise_for(params):
    """Every bias and gain away from where it starts."""
    return map_arrays(lambda x: x + 0.3 * RNG.standard_normal(x.shape).astype(x.dtype), params)


# --- PyTorch --------------------------------------------------------------------------------------------------------


def torch_layers(norm_first):
    one = torch.nn.TransformerEncoderLayer(
        WIDTH, HEADS, HIDDEN, 0.0, "gelu", batch_first=True, norm_first=norm_first, dtype=torch.float64
    )
    return torch.nn.TransformerEncoder(one, LAYERS, enable_nested_tensor=False)


@pytest.mark.parametrize("kind", [pre_norm, post_norm])
def test_masked_tokens_over_an_encoder_with_padding(kind):
    """The tied table among the parameters."""
    ends, layers = Ends(), torch_layers(kind is pre_norm)
    inner, last = torch.nn.Linear(WIDTH, WIDTH).double(), torch.nn.LayerNorm(WIDTH).double()
    bias = torch.zeros(WORDS, dtype=torch.float64, requires_grad=True)
    theirs = ends.parts() + blocks(of_torch, layers.layers) + affine(inner) + norm(last) + [[Theirs(bias)]]
    params = noise_for(masked_tokens.draw(encoder.draw(RNG, **SIZES), RNG))
    put(params, theirs)
    chosen = np.flatnonzero(MASK & (RNG.random(MASK.shape) < 0.5))
    x = ends(READ) if kind is pre_norm else ends.norm(ends(READ))
    x = layers(x, src_key_padding_mask=torch.tensor(~MASK))
    x = (ends.norm(x) if kind is pre_norm else x).reshape(-1, WIDTH)[torch.tensor(chosen)]
    expected = last(torch.nn.functional.gelu(inner(x))) @ ends.words.weight.T + bias
    model = encoder.Model(mechanism.of(softmax), HEADS, kind)
    scores, saved = masked_tokens.forward(READ, params, model, chosen=chosen, key_mask=MASK)
    np.testing.assert_allclose(scores, expected.detach().numpy(), rtol=1e-10, atol=1e-11)
    u = RNG.standard_normal(scores.shape)
    assert_same_gradients(masked_tokens.backward(u, saved).params, expected, u, theirs)


@pytest.mark.parametrize("kind", [pre_norm, post_norm])
def test_twenty_steps_of_an_autoregressive_network(kind):
    """AdamW, from the same start, learning the same next tokens."""
    ends, layers, head = Ends(), torch_layers(kind is pre_norm), torch.nn.Linear(WIDTH, WORDS).double()
    theirs = ends.parts()[:2] + blocks(of_torch, layers.layers) + norm(ends.norm) + affine(head)
    params = noise_for(causal.draw(RNG, **SIZES))
    put(params, theirs)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(TOKENS, dtype=torch.float64)
    everything = [*ends.parameters(), *layers.parameters(), *head.parameters()]
    optimiser = torch.optim.AdamW(everything, lr=0.01, weight_decay=0.1)
    model, state = causal.Model(mechanism.of(softmax, causal=True), HEADS, kind), adam.init_state(params)
    for step in range(20):
        goal = np.random.default_rng(step).integers(0, WORDS, READ.shape)
        scores = head(ends.norm(layers(ends(READ), mask=mask)))
        expected = torch.nn.functional.cross_entropy(scores.reshape(-1, WORDS), torch.tensor(goal.ravel()))
        optimiser.zero_grad()
        expected.backward()
        optimiser.step()
        scores, saved = causal.forward(READ, params, model)
        loss, surprise = cross_entropy.forward(scores, goal)
        grads = causal.backward(cross_entropy.backward(1.0, surprise).scores, saved).params
        assert loss == pytest.approx(expected.item(), rel=1e-9)
        state = adam.step(params, grads, state, learning_rate=0.01, weight_decay=0.1, decoupled=True)
    assert_same(params, theirs, rtol=1e-7, atol=1e-9)


# --- fast-transformers, by the authors of linear attention ----------------------------------------------------------


def fast_layers(attention, **more):
    builders = pytest.importorskip(
        "fast_transformers.builders", reason="fast-transformers is not installed (CONTRIBUTING.md)"
    )
    return builders.TransformerEncoderBuilder.from_kwargs(
        attention_type=attention,
        n_layers=LAYERS,
        n_heads=HEADS,
        feed_forward_dimensions=HIDDEN,
        query_dimensions=WIDTH // HEADS,
        value_dimensions=WIDTH // HEADS,
        activation="gelu",
        dropout=0.0,
        **more,
    ).get()


def test_fast_transformers_encoder():
    """Linear attention, sequences of three lengths, float64. Rows that pad are left out of the comparison."""
    ends, layers = Ends(), fast_layers("linear", final_normalization=False).double()
    from fast_transformers.masking import LengthMask

    theirs = ends.parts() + blocks(of_fast, layers.layers)
    params = noise_for(encoder.draw(RNG, **SIZES))
    put(params, theirs)
    lengths = LengthMask(torch.tensor(LENGTHS))
    expected = layers(ends.norm(ends(READ)), length_mask=lengths)
    model = encoder.Model(mechanism.of(linear), HEADS, post_norm)
    rows, saved = encoder.forward(READ, params, model, key_mask=MASK)
    np.testing.assert_allclose(rows[MASK], expected.detach().numpy()[MASK], rtol=1e-10, atol=1e-11)
    u = RNG.standard_normal(rows.shape) * MASK[..., None]
    assert_same_gradients(encoder.backward(u, saved).params, expected, u, theirs)


def test_fast_transformers_autoregressive_network():
    """Its causal product computes in float32 alone: some hundred roundings of 6e-8 relative to the largest number."""
    ends, layers = Ends(torch.float32), fast_layers("causal-linear")
    masking = pytest.importorskip("fast_transformers.masking")
    head = torch.nn.Linear(WIDTH, WORDS)
    theirs = ends.parts()[:2] + blocks(of_fast, layers.layers) + norm(layers.norm) + affine(head)
    params = noise_for(causal.draw(RNG, **SIZES, dtype=np.float32))
    put(params, theirs)
    expected = head(layers(ends(READ), attn_mask=masking.TriangularCausalMask(TOKENS)))
    model = causal.Model(mechanism.of(linear, causal=True), HEADS, post_norm)
    scores, saved = causal.forward(READ, params, model)
    np.testing.assert_allclose(scores, expected.detach().numpy(), rtol=0, atol=1e-5)
    u = RNG.standard_normal(scores.shape).astype(np.float32)
    assert_same_gradients(causal.backward(u, saved).params, expected, u, theirs, rtol=0, atol=2e-5)


# --- transformers' BERT ---------------------------------------------------------------------------------------------


def bert_parts(peer, head):
    of = peer.embeddings
    words = tables(of.word_embeddings, of.position_embeddings, of.token_type_embeddings)
    return words + norm(of.LayerNorm) + blocks(of_bert, peer.encoder.layer) + affine(head)


def assert_bert_has_the_same(folder, tokens, mask, types=None, rtol=1e-9):
    """Mean over the tokens that do not pad, three classes, cross-entropy; all in float64."""
    transformers = pytest.importorskip("transformers")
    peer = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager", add_pooling_layer=False)
    peer = peer.eval().double()
    how, params = bert.network(bert.load(folder))
    params = map_arrays(lambda x: x.astype(np.float64), params)
    params = classifier.draw(params, 3, np.random.default_rng(0))
    head = torch.nn.Linear(params.head.w.shape[0], 3).double()
    theirs, targets = bert_parts(peer, head), np.arange(len(tokens)) % 3
    put(params.head, affine(head))
    more = {} if types is None else {"token_type_ids": torch.tensor(types)}
    rows = peer(torch.tensor(tokens), attention_mask=torch.tensor(mask), **more).last_hidden_state
    kept = torch.tensor(mask[..., None], dtype=torch.float64)
    expected = torch.nn.functional.cross_entropy(head((rows * kept).sum(1) / kept.sum(1)), torch.tensor(targets))
    scores, saved = classifier.forward(tokens, params, how, types=types, key_mask=mask)
    loss, surprise = cross_entropy.forward(scores, targets)
    assert loss == pytest.approx(expected.item(), rel=1e-9)
    grads = classifier.backward(cross_entropy.backward(1.0, surprise).scores, saved).params
    assert_same_gradients(grads, expected, 1.0, theirs, rtol=rtol)


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_berts_gradients(tmp_path, family):
    """Without a pooler, and of a Bert its class for sequences, which has one."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    config = getattr(transformers, f"{family}Config")(
        vocab_size=40,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=30,
        max_position_embeddings=20,
        type_vocab_size=2,
    )
    network = getattr(transformers, f"{family}Model")(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    network.save_pretrained(tmp_path)
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, "[UNK]")).save(str(tmp_path / "tokenizer.json"))
    tokens = np.where(MASK, RNG.integers(3, 40, MASK.shape), config.pad_token_id)
    assert_bert_has_the_same(tmp_path, tokens, MASK, types=RNG.integers(0, 2, MASK.shape))
    if family == "Bert":
        assert_the_pooler_is_the_same(tmp_path, tokens, MASK)


def assert_the_pooler_is_the_same(folder, tokens, mask):
    transformers = pytest.importorskip("transformers")
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3).eval().double()
    loaded = bert.load(folder)
    how, params = bert.network(loaded)
    params = classifier.draw(params, 3, np.random.default_rng(0), pooler=bert.pooler(loaded))
    params = map_arrays(lambda x: x.astype(np.float64), params)
    theirs = bert_parts(peer.bert, peer.classifier) + affine(peer.bert.pooler.dense)
    put(params.head, affine(peer.classifier))
    expected = peer(torch.tensor(tokens), attention_mask=torch.tensor(mask)).logits
    scores, saved = classifier.forward(tokens, params, how, pool="first", key_mask=mask)
    np.testing.assert_allclose(scores, expected.detach().numpy(), rtol=1e-9)
    u = RNG.standard_normal(scores.shape)
    assert_same_gradients(classifier.backward(u, saved).params, expected, u, theirs)


@pytest.mark.network
@pytest.mark.slow
def test_the_pretrained_models_gradients(tmp_path):
    """22.6 million parameters, two reviews of different length."""
    try:
        content = open_content(MODEL)
    except FetchError as error:
        pytest.skip(str(error))
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((content / name).read_bytes())
    mask = np.arange(60) < np.array([[60], [33]])
    tokens = np.where(mask, RNG.integers(1000, 30000, mask.shape), 0)
    assert_bert_has_the_same(tmp_path, tokens, mask, rtol=1e-8)
