"""Compile what the tests call, once: ``python compile_kernels.py float64 sums``, and the same for ``scores``.

With several workers every kernel would be compiled by each of them, and that is most of a first run. So ``conftest.py``
runs this before it starts them, a process for the mechanisms that keep sums of features and one for those that have
scores and for networks, which takes as long; they and later runs read the machine code from Numba's cache. Every case
in ``cases.py`` is called in ``jit``, those that are slow, and ``float32``, only for the slow tests: ``slow`` is a third
argument. What else tests need is in :func:`rest_of_sums`, :func:`rest_of_scores` and :func:`network`; nothing breaks if
something is missing there, but pytest's last lines then say so.
"""

import gc
import sys
from pathlib import Path

import numpy as np

SUPPORT = Path(__file__).parent
LEADING = (), (2,), (2, 1, 3)
SUMS = "linear", "exponential", "performer", "rfa", "delta_rule", "delta", "gated_linear"


def compile_cases(dtype, part, slow):
    """Both passes of every case of this part, and its recurrent form."""
    from case import Setting, Sizes
    from cases import CASES

    for case in CASES:
        has_sums = case.module.__name__.rpartition(".")[2] in SUMS
        if "jit" not in case.rooms or (case.slow and not slow) or has_sums != (part == "sums"):
            continue
        for leading in LEADING if case.recurrent else LEADING[1:2]:
            call = Setting(case, "jit", masked=False).call(Sizes(5, 5, 3, 2, leading), dtype=dtype)
            call.run()
            if case.recurrent:
                call.step(1, call.init_state())


def rest_of_sums(dtype):
    """What tests of single kernels call besides: a product of one head; steps."""
    from linattn_ref.attention import delta, performer, rfa
    from linattn_ref.kernels import jit
    from linattn_ref.kernels.jit.loops.delta import delta_product
    from linattn_ref.kernels.jit.loops.linear import causal_product, causal_product_plain, elu_plus_one

    x = np.ones((1, 5, 3), dtype)
    causal_product.forward(x, x, x, None)
    causal_product_plain.backward_by_row(x, None, x, x, x, None)
    for leading in ((), (2,), (2, 3)):
        for module in (causal_product, elu_plus_one):
            row = np.ones((*leading, 3), dtype)
            module.step(row, row, row, np.ones((*leading, 3, 3), dtype), row.copy(), 0.5)
    row = np.ones((2, 3), dtype)
    omega = row.copy()
    for mechanism in (performer, rfa):
        state = mechanism.init_state((2,), 3, 3, omega, dtype=dtype)
        mechanism.step(row, row, row, state, omega, kernels=jit)
    delta_product.step(row, row, row, row, None, np.ones((2, 3, 3), dtype))
    few, gate, state = x[:, :2], np.zeros((1, 2), dtype), np.ones((1, 3, 3), dtype)
    out, saved = delta.forward(few, few, few, gate, kernels=jit)
    delta.backward(out, saved)
    *_, u = delta_product.forward(few, few, few, few, gate, state)
    delta_product.backward(few, state, few, few, few, few, gate, state, u)


def rest_of_scores(dtype):
    """Steps from a cache."""
    from linattn_ref.kernels.jit.loops.softmax import softmax

    row, keys = np.ones((2, 3), dtype), np.ones((2, 3, 3), dtype)
    softmax.step(row, keys, keys, 2, 0.5)
    softmax.step(keys, np.ones((2, 3, 3, 3), dtype), np.ones((2, 3, 3, 3), dtype), 2, 0.5)
    softmax.step(np.ones((2, 1, 3, 3), dtype), *np.ones((2, 2, 1, 3, 3, 3), dtype), 2, 0.5)


def network(dtype):
    """A training step's kernels, those that read a prefix and write a token, and an LSTM."""
    from linattn_ref.attention import linear, softmax
    from linattn_ref.kernels import jit
    from linattn_ref.models import causal, decoding
    from linattn_ref.nn import cross_entropy, ctc, lstm, mechanism
    from linattn_ref.training import adam

    sums, model = (causal.Model(mechanism.of(of, causal=True, kernels=jit), heads=2) for of in (linear, softmax))
    params = causal.draw(np.random.default_rng(0), tokens=2, places=2, width=4, hidden=2, layers=1, dtype=dtype)
    scores, saved = causal.forward(np.array([[0]]), params, model)
    causal.backward(scores, saved)
    cross_entropy.forward(scores, np.array([[0]]), kernels=jit)
    ctc.forward(scores, np.array([[1]]), kernels=jit)
    p, g = np.ones((2, 2), dtype)
    adam.step(p, g, adam.init_state(p), learning_rate=0.1, kernels=jit)
    causal.read(np.array([[0, 1]]), params, causal.init_state(1, params, model), model)
    packed = decoding.pack(params, sums)
    decoding.step(np.array([0]), packed, decoding.init_state(1, packed))
    x = np.ones((1, 2, 3), dtype)
    y, saved = lstm.forward(x, lstm.draw(3, 1, np.random.default_rng(0), dtype=dtype), kernels=jit)
    lstm.backward(y, saved)


if __name__ == "__main__":
    gc.disable()  # an eighth of the time, to find next to nothing
    sys.path[:0] = [str(SUPPORT), str(SUPPORT.parents[1])]
    dtype, part, *slow = sys.argv[1:]
    compile_cases(np.dtype(dtype).type, part, slow)
    if part == "sums":
        rest_of_sums(np.dtype(dtype).type)
    else:
        rest_of_scores(np.dtype(dtype).type)
        network(np.dtype(dtype).type)
