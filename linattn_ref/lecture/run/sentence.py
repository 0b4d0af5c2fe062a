"""What the page of one's own sentence computes, in the browser: `linattn-ref spectrum` for one text.

The network is the pinned one, its weights rounded (`linattn_ref.models.bert.rounded`). The untrained network and the
random queries and keys are those of ``linattn-ref spectrum`` with seed 0.
"""

import base64
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import scipy.linalg

from linattn_ref import clone
from linattn_ref.attention import softmax
from linattn_ref.lecture.run.fetched import NETWORK
from linattn_ref.models import bert
from linattn_ref.models.bert import rounded, word_pieces
from linattn_ref.op import Array
from linattn_ref.theory.spectrum import cumulative_share, singular_values

__all__ = ["Reader", "start"]

Send = Callable[[str, str], object]  # what kind of output, and its content

SEED = 0  # the default of the command


def start(send: Send) -> "Reader":
    """Return what answers the page; the weights lie beside the package there."""
    return Reader(send, clone.ROOT / NETWORK)


class Reader:
    """One text, and what the network makes of it.

    ``send(kind, content)`` gets ``"status"``, a line that says what is being done, and ``"data"``, JSON in which arrays
    are float32 in base64. Methods return True, as the page expects of what ran to its end.
    """

    def __init__(self, send: Send, file: Path) -> None:
        self.send, self.file = send, file
        _, weights, noise = np.random.SeedSequence(SEED).spawn(3)  # as in `experiments.rank.spectrum_inputs`
        self.weights, (self.noise,) = weights, noise.spawn(1)

    def read(self, text: str) -> bool:
        """Send the tokens, and the curves ``c_k (T, H, N)`` of all heads."""
        self.send("status", "Taking out the weights …")
        model, pieces = rounded.unpack(self.file)
        numbers = {piece: number for number, piece in enumerate(pieces)}
        tokens = word_pieces.encode(text, numbers)
        most = model.config.max_tokens
        self.tokens = tokens if len(tokens) <= most else [*tokens[: most - 1], tokens[-1]]
        self.config, self.ids = model.config, [numbers[token] for token in self.tokens]
        self.send("status", f"Reading {len(self.tokens)} tokens, which takes some seconds per hundred …")
        self.p = [layer.p for layer in bert.layers(model, self.ids)]  # (H, N, N) by layer
        shares = self._shares(self.p, "the network")
        self._send("read", tokens=self.tokens, left_out=len(tokens) - len(self.tokens), given=_packed(shares))
        return True

    def compare(self) -> bool:
        """Send the curves of the untrained network ``(T, H, N)``, and of random queries and keys ``(1, H, N)``."""
        self.send("status", "Drawing the weights of an untrained network …")
        model = bert.untrained(self.config, np.random.default_rng(self.weights))
        untrained = self._shares((layer.p for layer in bert.layers(model, self.ids)), "the untrained network")
        rng, shape = np.random.default_rng(self.noise), (self.config.heads, len(self.ids), self.config.head_width)
        q, k = rng.standard_normal(shape, np.float32), rng.standard_normal(shape, np.float32)
        gaussian = self._shares([softmax.matrix(q, k)], "random queries and keys")
        self._send("compared", untrained=_packed(untrained), gaussian=_packed(gaussian))
        return True

    def look(self, layer: int, head: int) -> bool:
        """Send one head's matrix ``P = U diag(s) V^T``, and these three."""
        p = self.p[layer][head]
        u, s, vt = scipy.linalg.svd(p, full_matrices=False)
        self._send("head", layer=layer, head=head, p=_packed(p), u=_packed(u), s=_packed(s), vt=_packed(vt))
        return True

    def _shares(self, layers: Iterable[Array], whose: str) -> Array:
        found: list[Array] = []
        for p in layers:
            self.send("status", f"Singular values of {whose}, layer {len(found)} …")
            found.append(cumulative_share(singular_values(p)))
        return np.stack(found)

    def _send(self, kind: str, **content: object) -> None:
        self.send("data", json.dumps({"kind": kind, **content}))


def _packed(array: Array) -> str:
    return base64.b64encode(array.astype("<f4").tobytes()).decode()
