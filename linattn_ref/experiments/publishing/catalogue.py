"""The list of all figures: what each is called, and where its module is."""

import importlib
import inspect
import typing
from collections.abc import Mapping
from typing import Any

from linattn_ref.experiments.publishing.restore import restore

__all__ = ["BENCHES", "COMPILED", "FIGURES", "caption_of", "module_of", "results_of"]

# A figure is called by its module's name; beside it, the folder of `linattn_ref.experiments` that it is in. The module
# has `compute(...)`, whose `seed`, `rng`, `quick` and `workers` the gallery fills in if it has them, and
# `draw(results)`, whose docstring begins with the caption. A schematic is called by its mechanism's name:
# `schematic_linear` is `schematics.linear`.
SCHEMATICS = (
    "schematic_softmax",
    "schematic_linformer",
    "schematic_nystromformer",
    "schematic_linear",
    "schematic_linear_recurrent",
    "schematic_performer",
    "schematic_rfa",
    "schematic_gated_linear",
    "schematic_delta",
    "schematic_linformer_linear",
    "schematic_local",
    "schematic_block_local",
    "schematic_longformer",
    "schematic_bigbird",
    "schematic_sparse_transformer",
    "schematic_long_short",
    "schematic_reformer",
    "schematic_block",
)
# In the gallery's order:
FIGURES = {
    **dict.fromkeys(SCHEMATICS, "schematics"),
    "spectrum": "rank",
    "eckart_young": "rank",
    "johnson_lindenstrauss": "rank",
    "low_rank": "rank",
    "linear_self_attention": "rank",
    "linformer": "fewer_keys",
    "linformer_savings": "cost",
    "layer_savings": "cost",
    "attention_cost": "cost",
    "feature_maps": "features",
    "random_features": "features",
    "random_features_attention": "features",
    "causal_cost": "recurrence",
    "rewind": "recurrence",
    "decoding": "recurrence",
    "images_learned": "learning",
    "images_short": "learning",
    "images_drawn": "learning",
    "images_state": "learning",
    "rfa_decay": "recurrence",
    "write_fade_erase": "recurrence",
    "pattern_pictures": "sparse",
    "pattern_graphs": "sparse",
    "moving_content": "fewer_keys",
    "lsh_recall": "sparse",
    "nystromformer": "fewer_keys",
    "pinv_convergence": "fewer_keys",
    "comparison": "cost",
    "resources": "cost",
    "model_resources": "cost",
    "duplication_curves": "learning",
    "duplication_attention": "learning",
    "speech_curves": "learning",
    "speech_utterance": "learning",
    "mlm_curves": "learning",
    "downstream": "learning",
    "every_mechanism": "learning",
    "mechanism_time": "learning",
}
# Comparisons with other packages (extra "peers"): like the figures, and with `table(results)`, which the
# gallery's page shows; `READING`, if there, says how to read it.
# Where the packages are not installed, the committed ones stay as they are.
BENCHES = (
    "bench_softmax",
    "bench_linear",
    "bench_performer",
    "bench_patterns",
    "bench_reformer",
    "bench_training",
    "bench_delta",
    "bench_generation",
    "bench_drawing",
    "bench_speech",
    "bench_steps",
    "bench_encoder",
)
# Compiled by NVIDIA's compiler (extra "cuda12"), and left as they are where it is missing.
COMPILED = {"cuda_occupancy": "cost"}


def module_of(name: str) -> Any:
    """The module of a figure, or of a bench."""
    folder = {**FIGURES, **COMPILED}.get(name, "benches")
    return importlib.import_module(f"linattn_ref.experiments.{folder}.{name.removeprefix('schematic_')}")


def caption_of(name: str) -> str:
    """What the figure shows: the first paragraph of the docstring of its ``draw``."""
    return " ".join((inspect.getdoc(module_of(name).draw) or "").partition("\n\n")[0].split())


def results_of(name: str, record: Mapping[str, Any]) -> Any:
    """What ``compute`` of that figure returned, of the record that was kept of it."""
    return restore(typing.get_type_hints(module_of(name).compute)["return"], record["results"])
