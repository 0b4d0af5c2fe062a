"""The list of all figures: what each is called, and where its module is."""

import importlib
import inspect
import typing
from collections.abc import Mapping
from typing import Any

from linattn_ref.experiments.publishing import registry
from linattn_ref.experiments.publishing.restore import restore

__all__ = ["BENCHES", "COMPILED", "FIGURES", "MINUTES", "caption_of", "module_of", "results_of"]

# A figure is called by its module's name; beside it, the folder of `linattn_ref.experiments` that it is in. The module
# has `compute(...)`, whose `seed`, `rng` and `workers` the gallery fills in if it has them; `QUICK`, the arguments with
# which it takes a second; and `draw(results)`, whose docstring begins with the caption. Several schematics are in one
# module: `schematic_linear` is `schematics.dense.linear`, which has both.
SCHEMATICS = {
    "schematic_softmax": "schematics.dense",
    "schematic_linformer": "schematics.dense",
    "schematic_nystromformer": "schematics.dense",
    "schematic_linear": "schematics.dense",
    "schematic_linear_recurrent": "schematics.recurrent",
    "schematic_performer": "schematics.dense",
    "schematic_rfa": "schematics.recurrent",
    "schematic_gated_linear": "schematics.recurrent",
    "schematic_delta": "schematics.recurrent",
    "schematic_linformer_linear": "schematics.dense",
    "schematic_local": "schematics.sparse",
    "schematic_block_local": "schematics.sparse",
    "schematic_longformer": "schematics.sparse",
    "schematic_bigbird": "schematics.sparse",
    "schematic_sparse_transformer": "schematics.sparse",
    "schematic_long_short": "schematics.dense",
    "schematic_reformer": "schematics.sparse",
    "schematic_block": "schematics.block",
}
# In the gallery's order:
FIGURES = {
    **SCHEMATICS,
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
# Comparisons with other packages (extra "peers"): like the figures, and with `table(results)`, which the gallery's page
# shows; its docstring says how to read it. Where the packages are not installed, the committed ones stay as they are.
BENCHES = tuple(bench.figure(name) for name, bench in registry.BENCHES.items() if bench.in_gallery)
# Compiled by NVIDIA's compiler (extra "cuda12"), and left as they are where it is missing.
COMPILED = {"cuda_occupancy": "cost"}


# Minutes that a figure takes on one core, where they are some; the others take seconds.
MINUTES = {
    "spectrum": 5,
    "linformer": 10,
    "nystromformer": 5,
    "comparison": 2,
    "resources": 5,
    "model_resources": 2,
    "linformer_savings": 2,
    "layer_savings": 2,
    **{bench.figure(name): bench.minutes for name, bench in registry.BENCHES.items() if bench.in_gallery},
}


def module_of(name: str) -> Any:
    """The module of a figure or a bench; or what has its ``compute`` and ``draw``, in a module of several."""
    folder = {**FIGURES, **COMPILED}.get(name, "benches")
    if "." in folder:
        return getattr(importlib.import_module(f"linattn_ref.experiments.{folder}"), name.removeprefix("schematic_"))
    return importlib.import_module(f"linattn_ref.experiments.{folder}.{name}")


def caption_of(name: str) -> str:
    """What the figure shows: the first paragraph of the docstring of its ``draw``."""
    return " ".join((inspect.getdoc(module_of(name).draw) or "").partition("\n\n")[0].split())


def results_of(name: str, record: Mapping[str, Any]) -> Any:
    """What ``compute`` of that figure returned, of the record that was kept of it."""
    return restore(typing.get_type_hints(module_of(name).compute)["return"], record["results"])
