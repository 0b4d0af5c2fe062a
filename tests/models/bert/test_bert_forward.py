"""The forward pass, against the same equations written out token by token in double precision."""

import math
import tracemalloc

import numpy as np
import pytest

from linattn_ref.models import bert

TOKENS = [1, 7, 29, 0, 7, 12, 2]

# float32 has 6e-8 of relative rounding an operation; a few hundred of them lie between input and output.
TOLERANCE = 2e-5


def norm(x, gain, bias, eps):
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    return gain * (x - mean) / math.sqrt(variance + eps) + bias


def token_by_token(fields, tensors, tokens, nonlinearity):
    """Equations (1)-(6) of `bert`, one token and one head at a time; yields (p, hidden) of every layer."""
    w = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    first, heads = (
        (fields["pad_token_id"] + 1 if fields["model_type"] == "roberta" else 0),
        fields["num_attention_heads"],
    )
    width = fields["hidden_size"] // heads

    def normed(x, name):
        return norm(x, w[f"{name}.weight"], w[f"{name}.bias"], fields["layer_norm_eps"])

    def dense(x, name):
        return w[f"{name}.weight"] @ x + w[f"{name}.bias"]

    tables = [w[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
    hidden = [
        normed(tables[0][token] + tables[1][first + i] + tables[2][0], "embeddings.LayerNorm")
        for i, token in enumerate(tokens)
    ]
    for index in range(fields["num_hidden_layers"]):
        layer = f"encoder.layer.{index}"
        q, k, v = ([dense(x, f"{layer}.attention.self.{name}") for x in hidden] for name in ("query", "key", "value"))
        p = np.zeros((heads, len(tokens), len(tokens)))
        outputs = []
        for i, x in enumerate(hidden):
            attended = np.zeros(fields["hidden_size"])
            for h in range(heads):
                part = slice(h * width, (h + 1) * width)
                weights = [math.exp(q[i][part] @ key[part] / math.sqrt(width)) for key in k]
                p[h, i] = np.array(weights) / sum(weights)
                attended[part] = sum(share * value[part] for share, value in zip(p[h, i], v, strict=True))
            y = normed(x + dense(attended, f"{layer}.attention.output.dense"), f"{layer}.attention.output.LayerNorm")
            inner = np.array([nonlinearity(value) for value in dense(y, f"{layer}.intermediate.dense")])
            outputs.append(normed(y + dense(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm"))
        hidden = outputs
        yield p, np.array(hidden)


def exact_gelu(x):
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def test_every_layer_against_the_equations_written_out(checkpoint):
    model = bert.load(checkpoint.folder)
    expected = list(token_by_token(checkpoint.fields, checkpoint.tensors, TOKENS, exact_gelu))
    computed = list(bert.layers(model, TOKENS))
    assert len(computed) == len(expected) == 2
    for layer, (p, hidden) in zip(computed, expected, strict=True):
        np.testing.assert_allclose(layer.p, p, atol=TOLERANCE)
        np.testing.assert_allclose(layer.hidden, hidden, atol=TOLERANCE)
    np.testing.assert_array_equal(bert.encode(model, TOKENS), computed[-1].hidden)


def test_the_eps_of_the_configuration_is_in_every_norm(checkpoint):
    """As large as a variance, it moves every row."""
    checkpoint.write_config(checkpoint.fields | {"layer_norm_eps": 0.7})
    expected = token_by_token(checkpoint.fields, checkpoint.tensors, TOKENS, exact_gelu)
    for layer, (_, hidden) in zip(bert.layers(bert.load(checkpoint.folder), TOKENS), expected, strict=True):
        np.testing.assert_allclose(layer.hidden, hidden, atol=TOLERANCE)


def tanh_gelu(x):
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(
    ("name", "nonlinearity"),
    [
        *[(name, exact_gelu) for name in ("gelu", "gelu_python")],
        *[(f"gelu_{name}", tanh_gelu) for name in ("accurate", "fast", "new", "python_tanh", "pytorch_tanh")],
        ("relu", lambda x: max(x, 0.0)),
    ],
)
def test_the_activation_is_the_one_of_the_configuration(bert_checkpoint, name, nonlinearity):
    bert_checkpoint.write_config(bert_checkpoint.fields | {"hidden_act": name})
    (*_, (_, hidden)) = token_by_token(bert_checkpoint.fields, bert_checkpoint.tensors, TOKENS, nonlinearity)
    np.testing.assert_allclose(bert.encode(bert.load(bert_checkpoint.folder), TOKENS), hidden, atol=TOLERANCE)


def test_shapes_and_float32_throughout(checkpoint):
    model = bert.load(checkpoint.folder)
    assert bert.embed(model, TOKENS).dtype == np.float32
    for layer in bert.layers(model, TOKENS):
        assert layer.q.shape == layer.k.shape == layer.v.shape == (3, 7, 4)
        assert layer.p.shape == (3, 7, 7)
        assert layer.hidden.shape == (7, 12)
        assert {array.dtype for array in layer} == {np.dtype(np.float32)}
        # Seven numbers that sum to 1, each rounded to 6e-8.
        np.testing.assert_allclose(layer.p.sum(axis=-1), 1, atol=1e-6)


def test_robertas_first_positions_are_never_read(roberta_checkpoint):
    tensors = roberta_checkpoint.tensors
    before = bert.encode(bert.load(roberta_checkpoint.folder), TOKENS)
    table = tensors["embeddings.position_embeddings.weight"].copy()
    table[:2] = np.nan  # rows 0 ... pad_token_id belong to padding
    roberta_checkpoint.write_tensors({**tensors, "embeddings.position_embeddings.weight": table})
    np.testing.assert_array_equal(bert.encode(bert.load(roberta_checkpoint.folder), TOKENS), before)


def test_one_token_and_as_many_as_there_are_positions(checkpoint):
    model = bert.load(checkpoint.folder)
    longest = 9 if checkpoint.fields["model_type"] == "bert" else 7
    assert model.config.max_tokens == longest
    (layer, _) = bert.layers(model, [5])
    np.testing.assert_array_equal(layer.p, np.ones((3, 1, 1)))
    assert bert.encode(model, [5] * longest).shape == (longest, 12)
    with pytest.raises(ValueError, match=f"tokens: there are {longest} places, got {longest + 1} tokens"):
        bert.layers(model, [5] * (longest + 1))


@pytest.mark.parametrize(
    ("tokens", "error", "message"),
    [
        ([], ValueError, r"at least one token, got shape \(0,\)"),
        ([[1, 2]], ValueError, r"one sequence \(N,\).* got shape \(1, 2\)"),
        (3, ValueError, r"got shape \(\)"),
        ([1.0, 2.0], TypeError, "expected integers, got float64"),
        ([1, 30], ValueError, "expected numbers from 0 to 29, got 1 to 30"),
        ([-1, 2], ValueError, "expected numbers from 0 to 29, got -1 to 2"),
    ],
)
def test_bad_tokens_are_refused_before_the_first_layer(bert_checkpoint, tokens, error, message):
    model = bert.load(bert_checkpoint.folder)
    with pytest.raises(error, match=f"tokens: .*{message}"):
        bert.layers(model, tokens)


def test_one_layers_matrix_is_in_memory_at_a_time(bert_checkpoint):
    """Six more layers need less additional memory than two of their matrices take."""
    config, peaks = bert.load(bert_checkpoint.folder).config._replace(positions=64), []
    for layers in (2, 8):
        model = bert.untrained(config._replace(layers=layers), np.random.default_rng(0))
        for count in (1, 64):  # the first call imports and caches
            tracemalloc.start()
            for layer in bert.layers(model, [5] * count):
                assert layer.p.shape == (3, count, count)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 2 * 3 * 64 * 64 * 4


def test_nothing_handed_in_is_changed(bert_checkpoint):
    model = bert.load(bert_checkpoint.folder)
    tokens = np.array(TOKENS)
    bert.encode(model, tokens)
    np.testing.assert_array_equal(tokens, TOKENS)
    for name, array in model.parameters.items():
        np.testing.assert_array_equal(array, bert_checkpoint.tensors[name])


def test_untrained_attention_is_nearly_even(bert_checkpoint):
    """Weights of 0.02 make scores near 0: P is near 1/N everywhere, as an untrained baseline's must be."""
    model = bert.untrained(bert.load(bert_checkpoint.folder).config, np.random.default_rng(0))
    for layer in bert.layers(model, TOKENS):
        # A score is a sum over D = 4 of products of two numbers near 0.02 sqrt(E) = 0.07, halved: well below 0.05.
        np.testing.assert_allclose(layer.p, 1 / len(TOKENS), rtol=0.05)
