"""BERT as an encoder: the same numbers, its gradient, other mechanisms with the same parameters."""

import numpy as np
import pytest
from mechanism_cases import MECHANISMS

from linattn_ref.attention import linear, longformer
from linattn_ref.gradcheck import check_directions
from linattn_ref.models import bert, classifier, encoder
from linattn_ref.nested import leaves, map_arrays
from linattn_ref.nn import affine, mechanism

TOKENS = np.array([[1, 7, 29, 0, 7, 12, 2], [1, 3, 5, 2, 0, 0, 0]])
MASK = np.array([[True] * 7, [True] * 4 + [False] * 3])


def test_a_batch_with_padding_is_each_sequence_alone(checkpoint):
    model = bert.load(checkpoint.folder)
    how, params = bert.network(model)
    rows, _ = encoder.forward(TOKENS, params, how, key_mask=MASK)
    np.testing.assert_allclose(rows[0], bert.encode(model, TOKENS[0]), atol=2e-5)  # as in test_bert_forward
    np.testing.assert_allclose(rows[1, :4], bert.encode(model, TOKENS[1, :4]), atol=2e-5)


def test_its_arrays_are_all_of_the_checkpoints(checkpoint):
    """None is left out and none is there twice."""
    model = bert.load(checkpoint.folder)
    _, params = bert.network(model)
    assert sum(array.size for _, array in leaves(params)) == sum(array.size for array in model.parameters.values())
    ours = np.sort(np.concatenate([array.ravel() for _, array in leaves(params)]))
    np.testing.assert_array_equal(ours, np.sort(np.concatenate([x.ravel() for x in model.parameters.values()])))


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_gradients(checkpoint, activation):
    """In float64, of every parameter; weights of a fourth of their size, for the differences' sake."""
    checkpoint.write_config(checkpoint.fields | {"hidden_act": activation})
    how, params = bert.network(bert.load(checkpoint.folder))
    params = map_arrays(lambda array: array.astype(np.float64) / (4 if array.ndim == 2 else 1), params)
    params = classifier.draw(params, 3, np.random.default_rng(0))

    def forward(tokens, params):
        return classifier.forward(tokens, params, how, key_mask=MASK)

    check_directions(forward, classifier.backward, TOKENS, params, rng=0, step=1e-6, directions=2).assert_ok()


@pytest.mark.parametrize("inside", [inside for inside in MECHANISMS if not inside.causal], ids=str)
def test_any_mechanism_reads_the_projections_of_the_checkpoint(bert_checkpoint, inside):
    """The right one of queries, keys and values in each place, and the rest of the network as it was."""
    model = bert.load(bert_checkpoint.folder)
    names = {2: ["query", "value"], 3: ["query", "key", "value"], 6: ["query", "key", "value"] * 2}
    _, params = bert.network(model, inside.mechanism, own=[inside.own] * 2)
    _, plain = bert.network(model)
    for index, (one, other) in enumerate(zip(params.blocks, plain.blocks, strict=True)):
        reads = inside.mechanism.reads
        for part, name in zip(np.split(one.attention.inner.w, reads, axis=1), names[reads], strict=True):
            weight = model.parameters[f"encoder.layer.{index}.attention.self.{name}.weight"]
            np.testing.assert_array_equal(part, weight.T)
        assert one.attention.own is inside.own
        for (name, a), (_, b) in zip(leaves(one.feed_forward), leaves(other.feed_forward), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)


def test_mechanisms_that_read_unequally_many_arrays_are_refused(bert_checkpoint):
    """All layers' projections are arranged for one number of them."""
    model, six = bert.load(bert_checkpoint.folder), mechanism.of(longformer, window=2, global_tokens=(0,))
    for inside in ((mechanism.of(linear), six), (six, mechanism.of(linear)), ()):
        with pytest.raises(ValueError, match="inside: expected mechanisms that read equally many arrays"):
            bert.network(model, inside)


def test_another_mechanism_runs_in_all_layers(bert_checkpoint):
    model = bert.load(bert_checkpoint.folder)
    how, params = bert.network(model, mechanism.of(linear))
    rows, saved = encoder.forward(TOKENS, params, how, key_mask=MASK)
    assert {one.attention.backward for one in saved.blocks} == {linear.backward}
    assert isinstance(params.blocks[0].attention.outer, affine.Params)
    assert abs(rows[0] - bert.encode(model, TOKENS[0])).max() > 0.1
