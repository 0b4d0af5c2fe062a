"""The list of all figures: what each is called, and where its module is."""

import importlib
import inspect
import typing
from collections.abc import Mapping
from typing import Any

from linattn_ref.experiments.publishing import registry
from linattn_ref.experiments.publishing.restore import Results, restore

__all__ = ["ALL", "BENCHES", "COMPILED", "FIGURES", "MINUTES", "NEEDS", "caption_of", "module_of", "results_of"]

# A figure is called by its module's name; before it, the folder of `linattn_ref.experiments` that it is in. The module
# has `compute(...)`, whose `seed`, `rng` and `workers` the gallery fills in if it has them; `QUICK`, the arguments with
# which it takes a second; and `draw(results)`, whose docstring begins with the caption. Several schematics are in one
# module: `schematic_linear` is `schematics.dense.linear`, which has both.
# In the gallery's order:
PLACES = (
    ("schematics.dense", "schematic_softmax schematic_linformer schematic_nystromformer schematic_linear"),
    ("schematics.recurrent", "schematic_linear_recurrent"),
    ("schematics.dense", "schematic_performer"),
    ("schematics.recurrent", "schematic_rfa schematic_gated_linear schematic_delta"),
    ("schematics.dense", "schematic_linformer_linear"),
    ("schematics.sparse", "schematic_local schematic_block_local schematic_longformer schematic_bigbird"),
    ("schematics.sparse", "schematic_sparse_transformer"),
    ("schematics.dense", "schematic_long_short"),
    ("schematics.sparse", "schematic_reformer"),
    ("schematics.block", "schematic_block"),
    ("rank", "spectrum eckart_young johnson_lindenstrauss low_rank linear_self_attention"),
    ("fewer_keys", "linformer"),
    ("cost", "linformer_savings layer_savings attention_cost"),
    ("features", "feature_maps random_features random_features_attention"),
    ("recurrence", "causal_cost rewind decoding"),
    ("learned", "images_learned images_short images_drawn images_state"),
    ("recurrence", "rfa_decay write_fade_erase"),
    ("sparse", "pattern_pictures pattern_graphs"),
    ("fewer_keys", "moving_content"),
    ("sparse", "lsh_recall"),
    ("fewer_keys", "nystromformer pinv_convergence"),
    ("cost", "comparison resources model_resources"),
    ("learned", "duplication_curves duplication_attention speech_curves speech_utterance mlm_curves downstream"),
    ("learned", "every_mechanism mechanism_time"),
)
FIGURES = {name: folder for folder, names in PLACES for name in names.split()}
# Comparisons with other packages (extra "peers"): like the figures, and with `table(results)`, which the gallery's page
# shows; its docstring says how to read it. Where a package of its record is not installed, that stays as it is. With
# the minutes that each takes:
BENCHES = {bench.figure(name): bench.minutes for name, bench in registry.BENCHES.items() if bench.in_gallery}
# Compiled by NVIDIA's compiler (extra "cuda12").
COMPILED = {"cuda_occupancy": "cost"}
ALL = (*FIGURES, *BENCHES, *COMPILED)
# What cannot be measured at all without these.
NEEDS = {"cuda_occupancy": ("numba-cuda",), "bench_cuda": ("PyTorch", "numba-cuda")}
# Minutes that a figure takes on one core, where they are some; the others take seconds.
MINUTES = {"linformer": 10, "spectrum": 5, "nystromformer": 5, "resources": 5} | BENCHES
MINUTES |= dict.fromkeys(("comparison", "model_resources", "linformer_savings", "layer_savings"), 2)


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
    kind = typing.get_type_hints(module_of(name).compute)["return"]
    return restore(kind if issubclass(kind, Results) else Results, record["results"])
