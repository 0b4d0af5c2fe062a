"""The mechanisms that are recurrent networks: what is added to the state, what fades, what is read."""

import numpy as np

from linattn_ref.experiments.publishing.kit import Array, Results, paint
from linattn_ref.experiments.schematics.drawing import LETTER, TOY, Box, Cells, Sheet, picture
from linattn_ref.experiments.schematics.parts import EQUALS, PLUS, PRODUCT, Q, becomes, column, row, state, sums

__all__ = ["delta", "gated_linear", "linear_recurrent", "rfa"]

STEPS = ("i-1", "i", "i+1")
FADED = Box("$\\tilde S_i$", "C", "M", "state")


@picture("Causal linear attention: a recurrent network with two hidden states")
def linear_recurrent(sheet: Sheet) -> None:
    """Causal linear attention is a recurrent network: its two hidden states, S and z, are passed from token to token.
    Token i adds phi(k_i) v_i^T to S and phi(k_i) to z, and its query reads from both. The states have the same size
    at every step, however long the sequence; softmax attention would keep all earlier keys and values instead.

    Three steps: what each adds, from below, and what is read, above.
    """
    for step, i in enumerate(STEPS):
        left = 9.5 + 17 * step
        right = sheet.row(left, 0, sums(i))
        if step < len(STEPS) - 1:
            sheet.arrow((right + 0.3, 0), (right + 8.7, 0))
        # What comes in, from below
        sheet.row(left - 8, -7.5, column("weights"), PRODUCT, [row("values"), row("values", "1")])
        sheet.text(left - 7.5, -10.4, f"$\\phi(k_{{{i}}})$", size=1.2)
        sheet.text(left - 2, -8.9, f"$v_{{{i}}}$, 1", size=1.2)
        sheet.arrow((left - 3.5, -5.4), (left - 3.5, -1.2))
        sheet.text(left - 3.5, 0, "+", size=1.6, bbox={"boxstyle": "circle,pad=0.15", "fc": "white", "ec": "black"})
        sheet.arrow((left - 2.3, 0), (left - 1.1, 0))
        _read(sheet, left + 2, f"$\\phi(q_{{{i}}})$", f"$o_{{{i}}}$")


def _read(sheet: Sheet, x: float, query: str, out: str) -> None:
    """What the query reads from a state, above it."""
    sheet.arrow((x, 3.4), (x, 6.2))
    sheet.text(x + 0.5, 4.6, query, ha="left", size=1.2)
    sheet.box(x - 1.5, 6.9, row("output"), columns=False)
    sheet.text(x + 2, 6.9, out, ha="left", size=1.2)


def one_gate(*, gate: float = 0.7) -> Results:
    """The same gate for every token; two features per direction."""
    i, j = np.arange(TOY["N"])[:, None], np.arange(TOY["L"])
    # (N, L), the share of token j that is left at token i, over that of token i
    fading = np.where(j <= i, gate ** np.maximum(i - j, 0), 0.0)
    return Results(sizes={**TOY, "m": TOY["C"] // 2}, fading=fading)


@picture("Random feature attention: a state that fades", one_gate)
def rfa(sheet: Sheet, fading: Array) -> None:
    """Random feature attention. Features are the sines and cosines of queries and keys of length 1 along m random
    directions. A gate g lets the state fade before the next token comes in, which gets the rest. An older token has
    less weight, as the square at the right shows for g = 0.7; it is never made.

    ``S_t = g S_{t-1} + (1 - g) phi(k_t) v_t^T``.
    """
    q, omega = Box("$\\hat Q$", "N", "D", "queries"), Box("$\\Omega$", "m", "D", "fixed")
    features = [Box("sin", "N", "m", "weights"), Box("cos", "N", "m", "weights")]
    x = sheet.row(3, 13.5, Q, becomes("rows of\nlength 1"), q, PRODUCT, omega.T, becomes("sin, cos"), features)
    sheet.text(x + 1.5, 13.5, "$= \\phi(Q)$;\nlikewise $\\phi(K)$", ha="left", size=1.2)
    sheet.text(1.2, 0, "$g_t$", size=LETTER)
    x = sheet.row(3.8, 0, sums("t-1"), PLUS)
    sheet.text(x + 1.8, 0, "$(1 - g_t)$", size=LETTER)
    sheet.text(x + 6.3, -3, "$\\phi(k_t)$", size=1.2)
    sheet.text(x + 11.5, -1.5, "$v_t$, 1", size=1.2)
    token = [row("values"), row("values", "1")]
    x = sheet.row(x + 5.8, 0, column("weights"), PRODUCT, token, EQUALS, sums("t"))
    left = paint([("window or block", fading > 0)])
    sheet.row(x + 6, 0, Cells(left, strength=fading, label="weights: never made"))


def one_reset(*, gate: float = 0.75, reset: int = 5) -> Results:
    """One gate for all channels, and one token whose gate is 0."""
    gates = np.full(TOY["N"], gate)
    gates[reset] = 0
    below = np.tri(TOY["N"], k=-1, dtype=bool)
    return Results(sizes=dict(TOY), fading=np.tril(np.cumprod(np.where(below, gates[:, None], 1.0), axis=0)))


@picture("Gated linear attention: a state that fades", one_reset)
def gated_linear(sheet: Sheet, fading: Array) -> None:
    """Gated linear attention. Each row of the state, a channel of the keys, fades by a gate of its own before the
    next token is added, and the query reads what is there: no features, no denominator. Where all channels share a
    gate, the weight of an older token is multiplied by all gates since. The square at the right, which is never made,
    shows this for a gate of 0.75 for every token but one. Its gate is 0: what was before is forgotten.

    ``S_i = diag(g_i) S_{i-1} + k_i v_i^T``, ``o_i = S_i^T q_i``.
    """
    x = sheet.row(2.5, 0, column("weights"))
    sheet.text(2.9, -3, "$g_i$", size=1.2)
    sheet.text(x + 0.8, 0, "$\\ast$", size=LETTER)
    x = sheet.row(x + 2.6, 0, state("i-1"), PLUS, column("keys"), PRODUCT, row("values"), EQUALS, state("i"))
    sheet.text(13.1, -3, "$k_i$", size=1.2)
    sheet.text(17.8, -1.6, "$v_i$", size=1.2)
    _read(sheet, x - 1.5, "$q_i$", "$o_i$")
    kinds = paint([("window or block", fading > 0)])
    sheet.row(x + 6, 1.5, Cells(kinds, strength=fading, label="weights: never made"))


@picture("The delta rule: ask the state, then write what is missing")
def delta(sheet: Sheet) -> None:
    """The delta rule. Above: the state, which may have faded, is read at the new key; what is missing from the value,
    times beta, is u. Below: u is written at the key. For a unit key and beta = 1 the state then returns the value
    there, and what it returned before at right angles to it. Then the query reads.

    ``u_i = beta_i (v_i - S~_i^T k_i)``, ``S_i = S~_i + k_i u_i^T``, ``o_i = S_i^T q_i``.
    """
    x = sheet.row(3, 9, row("keys", "C"), PRODUCT, FADED, EQUALS, row("values"))
    sheet.text(4, 7.4, "$k_i^\\top$", size=1.2)
    sheet.text(x - 1.5, 7.4, "what is there", size=1.0)
    sheet.text(x + 5.2, 9, "$\\beta_i\\;($", size=LETTER)
    x = sheet.row(x + 7, 9, row("values"))
    sheet.text(x - 1.5, 7.4, "$v_i$", size=1.2)
    sheet.text(x + 1.3, 9, "$-$", size=1.3 * LETTER)
    x = sheet.row(x + 2.6, 9, row("values"))
    sheet.text(x - 1.5, 7.4, "what is there", size=1.0)
    sheet.text(x + 0.8, 9, ")", size=LETTER)
    x = sheet.row(x + 0.7, 9, EQUALS, row("weights"))
    sheet.text(x + 0.8, 9, "$u_i$", ha="left", size=1.2)

    x = sheet.row(9, 0, FADED, PLUS, column("keys"), PRODUCT, row("weights"), EQUALS, state("i"))
    sheet.text(15.9, -3, "$k_i$", size=1.2)
    sheet.text(21, -1.6, "$u_i$", size=1.2)
    sheet.arrow((x + 1, 0), (x + 6, 0))
    sheet.text(x + 3.3, 1.2, "$q_i$", size=1.2)
    x = sheet.box(x + 7, 0, row("output"), columns=False)
    sheet.text(x + 0.8, 0, "$o_i$", ha="left", size=1.2)
