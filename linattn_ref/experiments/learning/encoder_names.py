"""The mechanisms of `encoder_attention`, by the names that commands and records use, with the titles of figures.

Alone in a module that imports nothing: ``linattn-ref train --help`` lists the names without loading a mechanism.
"""

__all__ = ["TITLES"]

TITLES = {
    "softmax": "softmax",
    "linformer": "Linformer",
    "nystromformer": "Nyströmformer",
    "performer": "Performer",
    "rfa": "RFA",
    "linear": "linear, elu + 1",
    "local": "local window",
    "longformer": "Longformer",
    "bigbird": "BigBird",
    "long-short": "Long-Short",
    "reformer": "Reformer (LSH)",
}
