"""Every mechanism of `linattn_ref.attention` as a layer takes it: a line each."""

from typing import Any, NamedTuple

import numpy as np

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
    nystromformer,
    performer,
    reformer,
    rfa,
    softmax,
    sparse_transformer,
)
from linattn_ref.attention.parts import gate
from linattn_ref.nn import mechanism
from linattn_ref.nn.mechanism import Mechanism

TOKENS, WIDTH, HEADS = 7, 8, 2
D = WIDTH // HEADS
RNG = np.random.default_rng(0)
OMEGA = feature_maps.orthogonal_gaussian(6, D, RNG)
ROTATIONS = reformer.draw_rotations(2, D, 4, RNG)
RANDOM = bigbird.draw_random_blocks(4, 1, RNG, window_blocks=1, global_blocks=(0,))


def norms():
    return tuple((RNG.standard_normal(D), RNG.standard_normal(D)) for _ in range(2))


class log_gate:  # in place of a module
    """The logarithm of `gate`, a pair of its own."""

    def forward(x, *params):
        found, saved = gate.forward(x, *params)
        return np.log(found), (found, saved)

    def backward(d_log_gate, saved):
        return gate.backward(d_log_gate / saved[0], saved[1])


class Inside(NamedTuple):
    """A mechanism in a layer, and its own parameters."""

    name: str
    mechanism: Mechanism
    own: tuple[Any, ...] = ()
    causal: bool = False
    more: Any = {}  # of init_state  # noqa: RUF012

    def __str__(self):
        return self.name


def causal(name, module, **options):
    more = options.pop("more", {})
    return Inside(name, mechanism.of(module, **{"causal": True, **options}), causal=True, more=more)


MECHANISMS = (
    Inside("softmax", mechanism.of(softmax)),
    causal("softmax causal", softmax, more={"capacity": TOKENS}),
    Inside("linear", mechanism.of(linear)),
    causal("linear causal", linear),
    causal("linear, quadratic", linear, feature_map=feature_maps.quadratic(1.0)),
    causal("performer causal", performer, omega=OMEGA),
    Inside("performer", mechanism.of(performer, omega=OMEGA, kind="hyperbolic")),
    causal("rfa causal", rfa, omega=OMEGA, kind="arccos", eps=0.1),
    Inside(
        "rfa causal, gated",
        mechanism.of(rfa, gates={"gate": gate}, omega=OMEGA, kind="arccos", eps=0.1, causal=True),
        ((RNG.standard_normal((HEADS, WIDTH)), RNG.standard_normal(HEADS)),),
        causal=True,
    ),
    Inside(
        "gated linear",
        mechanism.of(gated_linear, gates={"log_gate": log_gate}),
        ((RNG.standard_normal((HEADS, WIDTH)), RNG.standard_normal(HEADS)),),
        causal=True,
    ),
    Inside("gated linear without a gate", mechanism.of(gated_linear, log_gate=None), causal=True),
    Inside("linformer", mechanism.of(linformer), tuple(RNG.standard_normal((2, 3, TOKENS)))),
    Inside("nystromformer", mechanism.of(nystromformer, landmarks=3), (RNG.standard_normal((HEADS, 3)),)),
    Inside("local", mechanism.of(local, window=2)),
    Inside("block-local", mechanism.of(block_local, block=3)),
    Inside("longformer", mechanism.of(longformer, window=1, global_tokens=np.array([0, 4]))),
    Inside("bigbird", mechanism.of(bigbird, block=2, window_blocks=1, global_blocks=(0,), random_blocks=RANDOM)),
    Inside("sparse transformer", mechanism.of(sparse_transformer, kind="fixed", stride=3), causal=True),
    Inside("long-short", mechanism.of(long_short, window=2), (RNG.standard_normal((D, 3)), norms(), norms())),
    Inside("reformer", mechanism.of(reformer, rotations=ROTATIONS, chunk=3)),
)
