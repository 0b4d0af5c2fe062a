"""Queries, keys and values of one real head on one text, for ``sums.html``.

all-MiniLM-L6-v2 reads a text of ours. Of its 72 heads this is the one whose smallest weight from an "it" to "animal" is
the largest. The network sees both sides of a token. The page lets each query see the tokens up to its own, as a causal
network would.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from linattn_ref import clone
from linattn_ref.atomic import write_all
from linattn_ref.attention import softmax
from linattn_ref.telling import Say, silent

__all__ = ["RECORD", "compute", "read", "save"]

RECORD = clone.ROOT / "figures" / "records" / "live_head.json"
TEXT = (
    "The animal did not cross the street because it was too tired. The children who had waited on the other side"
    " called to it, and when the last car was gone it stood up, looked at them, and slowly came across."
)
FROM, TO = "it", "animal"
DIGITS = 4  # after the point


def compute(say: Say = silent) -> dict[str, Any]:
    """Read the text by the pinned network, which is fetched once."""
    from linattn_ref.data import fetch
    from linattn_ref.models import bert

    model = bert.load(fetch.open_content(fetch.MODEL, progress=say))
    assert model.tokenizer is not None
    encoded = model.tokenizer.encode(TEXT)
    layers = list(bert.layers(model, np.array(encoded.ids)))
    looking = [i for i, token in enumerate(encoded.tokens) if token == FROM]
    p = np.stack([softmax.matrix(layer.q, layer.k, causal=True) for layer in layers])  # (T, H, N, N)
    least = p[:, :, looking, encoded.tokens.index(TO)].min(axis=-1)  # (T, H), of the weights on "animal"
    t, h = map(int, np.unravel_index(least.argmax(), least.shape))
    arrays = {name: getattr(layers[t], name)[h].astype(float).round(DIGITS).tolist() for name in "qkv"}
    where = {"model": "all-MiniLM-L6-v2", "model_sha256": model.sha256, "layer": t, "head": h}
    return {**where, "text": TEXT, "tokens": encoded.tokens, **arrays}


def save(found: dict[str, Any], command: str, path: Path = RECORD) -> None:
    """Write the record: the head, and what it was made with; without a clone there is no place for it."""
    from linattn_ref.experiments.publishing.record import machine, versions

    if path == RECORD:
        clone.check("live --head")
    made_with = {"command": command, "versions": versions(("numpy", "tokenizers")), "machine": machine()}
    write_all({path: json.dumps({**made_with, "results": found}) + "\n"})


def read(path: Path = RECORD) -> dict[str, Any]:
    """What the page is given.

    Raises
    ------
    FileNotFoundError
        There is no record: outside a clone.
    """
    document = json.loads(clone.needed(path).read_text(encoding="utf-8"))
    found: dict[str, Any] = document["results"]
    origin = (
        f"Layer {found['layer'] + 1} of 6, head {found['head'] + 1} of 12 of {found['model']}, a network that was"
        f" trained with softmax and sees both sides of a token; here each query sees the tokens up to its own."
        f" Exported by “{document['command']}”, rounded to {DIGITS} digits after the point."
    )
    return {"origin": origin, **{name: found[name] for name in ("tokens", "q", "k", "v")}}
