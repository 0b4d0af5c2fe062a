"""An option that is a number of NumPy's is the same as Python's: the same bits, in the dtype of the arrays."""

import inspect
import itertools

import numpy as np
import pytest
from case import about, assert_close
from cases import each_setting, settings

from linattn_ref.attention import (
    bigbird,
    block_local,
    feature_maps,
    gated_linear,
    linear,
    linformer,
    local,
    long_short,
    longformer,
    lsh_hashing,
    patterns,
    performer,
    reformer,
    rfa,
    softmax,
    sparse_transformer,
)
from linattn_ref.attention.parts import segment_means
from linattn_ref.models import causal_network, encoder, generate
from linattn_ref.nn import affine, dropout, embedding, layer_norm, lstm, positions
from linattn_ref.theory import (
    eckart_young,
    johnson_lindenstrauss,
    linear_self_attention,
    low_rank,
    lsh_collision,
    pattern_graphs,
    random_features,
    spectrum,
)
from linattn_ref.training import adam, clip, radam, schedule, sgd

WHOLE = (np.int8, np.uint8, np.uint32, np.uint64)
REAL = (np.float32, np.float64)


def numbers_of(call):
    """The options that are numbers: ``(name, value, kinds)``."""
    for name, parameter in inspect.signature(call.case.forward).parameters.items():
        value = call.options.get(name, parameter.default)
        said = parameter.annotation  # a text, where a page has the import from __future__
        kind = said.__name__ if isinstance(said, type) else str(said).split(" |")[0]
        if kind == "float":
            yield name, 0.25 if value is None else value, (*REAL, np.array)
        elif kind == "int" and value is not None:
            yield name, value, WHOLE


@each_setting(lambda s: not s.masked)
def test_options_of_every_mechanism(setting):
    whole = setting.call()
    for name, value, kinds in numbers_of(whole):
        call = whole
        if name == "groups":  # of two heads of queries, which have one of keys
            value, call = 2, whole.change(arrays={array: x[:1] for array, x in whole.arrays.items() if array != "q"})
        for kind in kinds:
            with about(name, kind):
                number = kind(value)
                expected = call.change(**{name: number.item()}).run().named()
                for result, x in call.change(**{name: number}).run().named().items():
                    assert_close(x, expected[result], call.case, result)
                    if name != "groups":  # there BLAS rounds as its arrays lie in memory
                        np.testing.assert_array_equal(x, expected[result], err_msg=result, strict=True)


def test_they_are_found():
    found = {name for setting in settings() for name, *_ in numbers_of(setting.call())}
    assert found >= {"eps", "scale", "window", "groups"}


@each_setting(lambda s: s.room == "reference" and not s.masked)
def test_float32_stays_float32(setting):
    call = setting.call(dtype=np.float32)
    for name, value, _ in numbers_of(call):
        if isinstance(value, float):
            for result, x in call.change(**{name: np.float64(value)}).run().named().items():
                assert x.dtype == np.float32, (name, result)


@each_setting(lambda s: s.room in (None, "reference") and not s.masked)
def test_whole_numbers_beyond_64_bits(setting):
    call = setting.call()
    for name, _, kinds in numbers_of(call):
        if kinds is WHOLE:
            with about(name), pytest.raises(ValueError, match=rf"^{name}: expected "):
                call.change(**{name: 2**70}).forward()


# --- Functions that are no mechanism ----------------------------------------------------------------------------------


def rng():
    return np.random.default_rng(0)


def normal(*shape):
    return rng().standard_normal(shape)


def stepped(step, init_state, t, f, **options):
    """The parameters after one step of an optimiser."""
    params = normal(6).astype(np.float32)
    state = init_state(params)
    step(params, np.ones_like(params), state, learning_rate=f(0.5), weight_decay=f(0.25), **options)
    return params


def decoded(module, t, f, **options):
    """The outputs of two tokens."""
    q, k, v = normal(3, 2, 2, 4).astype(np.float32)
    state = module.init_state((t(2),), t(4), t(4), dtype=np.float32, **options)
    outs = []
    for i in range(2):
        out, state = module.step(
            q[i], k[i], v[i], state, **({"scale": f(0.5)} if module is softmax else {"eps": f(0.5)})
        )
        outs.append(out)
    return outs


# Each is called with a kind of whole and a kind of real numbers.
FUNCTIONS = {
    "patterns.local": lambda t, f: patterns.local(t(40), window=t(3), dilation=t(2)),
    "patterns.block_local": lambda t, f: patterns.block_local(t(40), block=t(3)),
    "patterns.longformer": lambda t, f: patterns.longformer(t(40), window=t(3), global_tokens=[t(0)]),
    "patterns.bigbird": lambda t, f: patterns.bigbird(t(40), block=t(4), window_blocks=t(3)),
    "patterns.sparse_transformer": lambda t, f: patterns.sparse_transformer(
        t(40), kind="fixed", stride=t(5), summary=t(2)
    ),
    "local.parts_of": lambda t, f: local.parts_of(t(40), t(40), window=t(3), causal=True),
    "block_local.parts_of": lambda t, f: block_local.parts_of(t(40), t(40), block=t(3), causal=True),
    "longformer.parts_of": lambda t, f: longformer.parts_of(t(40), window=t(3), global_tokens=[t(0)])[0],
    "bigbird.parts_of": lambda t, f: bigbird.parts_of(t(40), block=t(4)),
    "sparse_transformer.parts_of": lambda t, f: sparse_transformer.parts_of(t(40), t(40), kind="strided", stride=t(5)),
    "bigbird.draw_random_blocks": lambda t, f: bigbird.draw_random_blocks(t(10), t(2), rng()),
    "linformer.draw_projections": lambda t, f: linformer.draw_projections(t(4), t(40), rng(), layers=t(2), heads=t(2)),
    "linformer.mean_pool": lambda t, f: linformer.mean_pool(t(4), t(40)),
    "long_short.pattern": lambda t, f: long_short.pattern(t(40), window=t(7)),
    "lsh_hashing.chunk_of_token": lambda t, f: lsh_hashing.chunk_of_token(np.arange(40)[None], t(7)),
    "reformer.draw_rotations": lambda t, f: reformer.draw_rotations(t(2), t(4), t(6), rng()),
    "segment_means.occupied": lambda t, f: segment_means.occupied(np.ones((1, 40), bool), landmarks=t(3)),
    "feature_maps.taylor_exp": lambda t, f: feature_maps.taylor_exp(t(2)).forward(normal(3, 4))[0],
    "feature_maps.quadratic": lambda t, f: feature_maps.quadratic(f(0.5)).forward(np.float32(normal(3, 4)))[0],
    "feature_maps.favor_positive": lambda t, f: feature_maps.favor_positive(normal(5, 4), scale=f(0.5)).split(
        normal(3, 4)
    )[0],
    "feature_maps.gaussian": lambda t, f: feature_maps.gaussian(t(6), t(4), rng()),
    "feature_maps.orthogonal_gaussian": lambda t, f: feature_maps.orthogonal_gaussian(t(6), t(4), rng()),
    "linear.matrix": lambda t, f: linear.matrix(*np.float32(normal(2, 5, 4)), eps=f(0.5)),
    "performer.matrix": lambda t, f: performer.matrix(
        *np.float32(normal(2, 5, 4)), normal(6, 4), kind="relu", eps=f(0.5)
    ),
    "rfa.matrix": lambda t, f: rfa.matrix(*np.float32(normal(2, 5, 4)), normal(6, 4), eps=f(0.5)),
    "softmax.step": lambda t, f: decoded(softmax, t, f, capacity=t(3)),
    "linear.step": lambda t, f: decoded(linear, t, f),
    "gated_linear.retention_gate": lambda t, f: gated_linear.retention_gate(t(3)),
    "nn.affine.draw": lambda t, f: affine.draw(t(20), t(30), rng()),
    "nn.embedding.draw": lambda t, f: embedding.draw(t(20), t(30), rng(), scale=f(0.5)),
    "nn.lstm.draw": lambda t, f: lstm.draw(t(8), t(40), rng()),
    "nn.positions.sinusoidal": lambda t, f: positions.sinusoidal(t(40), t(6)),
    "nn.layer_norm.forward": lambda t, f: layer_norm.forward(
        np.float32(normal(3, 4)), layer_norm.draw(4, dtype=np.float32), eps=f(0.5)
    )[0],
    "nn.dropout.forward": lambda t, f: dropout.forward(np.float32(normal(3, 4)), p=f(0.5), rng=rng())[0],
    "models.causal_network.draw": lambda t, f: causal_network.draw(
        rng(), tokens=t(9), places=t(9), width=t(16), hidden=t(16), layers=t(2)
    ),
    "models.encoder.draw": lambda t, f: encoder.draw(
        rng(), tokens=t(9), places=t(9), width=t(16), hidden=t(16), layers=t(2)
    ),
    "models.generate.pick": lambda t, f: generate.pick(np.float32(normal(2, 9)), rng(), temperature=f(0.5), top_k=t(3)),
    "training.adam": lambda t, f: stepped(adam.step, adam.init_state, t, f, betas=(f(0.5), f(0.5)), eps=f(0.25)),
    "training.radam": lambda t, f: stepped(radam.step, radam.init_state, t, f, betas=(f(0.5), f(0.5)), eps=f(0.25)),
    "training.sgd": lambda t, f: stepped(sgd.step, sgd.init_state, t, f, momentum=f(0.5)),
    "training.clip": lambda t, f: (grads := np.float32(normal(9)), clip.by_global_norm(grads, f(0.5)))[0],
    "training.schedule.cosine": lambda t, f: schedule.cosine(t(90), peak=f(0.5), steps=t(120), last=f(0.25)),
    "training.schedule.noam": lambda t, f: schedule.noam(t(90), width=t(100), warmup=t(100)),
    "training.schedule.warm_up": lambda t, f: schedule.warm_up(t(90), peak=f(0.5), warmup=t(100)),
    "training.schedule.milestones": lambda t, f: schedule.milestones(
        t(90), rate=f(0.5), at=[t(20), t(40)], factor=f(0.5)
    ),
    "theory.eckart_young": lambda t, f: eckart_young.truncated_svd(normal(9, 9), t(3)),
    "theory.johnson_lindenstrauss": lambda t, f: johnson_lindenstrauss.required_dimension(
        f(0.5), f(0.25), vectors=t(100)
    ),
    "theory.linear_self_attention": lambda t, f: linear_self_attention.stated_dimension(t(120), t(100), f(0.25)),
    "theory.low_rank": lambda t, f: low_rank.stated_dimension(t(120), f(0.25)),
    "theory.lsh_collision": lambda t, f: lsh_collision.collision_probability(f(0.5), t(4)),
    "theory.pattern_graphs": lambda t, f: pattern_graphs.pairs(t(120), kind="strided", stride=t(100)),
    "theory.random_features": lambda t, f: random_features.draw_directions(t(60), t(100), t(2), rng()),
    "theory.spectrum": lambda t, f: spectrum.rank_for_share(np.arange(9.0)[::-1], f(0.5)),
}


def flat(x):
    """What is in tuples and lists, one in the other."""
    return [leaf for part in x for leaf in flat(part)] if isinstance(x, (tuple, list)) else [np.asarray(x)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_options_of_other_functions(name):
    expected = flat(FUNCTIONS[name](int, float))
    for whole, real in [(t, float) for t in WHOLE] + [(int, f) for f in REAL]:
        with about(whole, real):
            got = flat(FUNCTIONS[name](whole, real))
            assert len(got) == len(expected)
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_array_equal(a, b, strict=True)


def large_at(place):
    """A kind of whole numbers of which one is too large."""
    places = itertools.count()
    return lambda x: 2**70 if next(places) == place else x


OTHERS = "nn", "models", "training", "theory"
ATTENTION = {*FUNCTIONS} - {name for name in FUNCTIONS if name.startswith(OTHERS)} - {"feature_maps.taylor_exp"}


@pytest.mark.parametrize("name", sorted(ATTENTION))
def test_whole_numbers_beyond_64_bits_of_other_functions(name):
    """One after the other. (A Taylor series has any number of terms.)"""
    whole = []
    FUNCTIONS[name](lambda x: whole.append(x) or x, float)
    for place in range(len(whole)):
        with about(place), pytest.raises((ValueError, TypeError), match=r"^[\w\[\]]+: expected "):
            FUNCTIONS[name](large_at(place), float)
