"""What Linformer saves in a whole encoder layer, by length and ``k``: `linformer_savings` around attention.

Table 3 of the paper is of a whole network. Projections, norms and the feed-forward layer cost as much with Linformer as
without, and their share is largest at short lengths.

References
----------
Wang et al. (2020), "Linformer: self-attention with linear complexity", Table 3.
"""

from typing import Any

from linattn_ref.experiments.cost import linformer_savings
from linattn_ref.experiments.cost.linformer_savings import LAYER, QUICK
from linattn_ref.experiments.publishing.kit import Figure, Results

__all__ = ["QUICK", "compute", "draw"]


def compute(*, rounds: int = 2, seed: int = 0, **where: Any) -> Results:
    """Measure a layer at every length and every ``k`` up to half of it; some 2 minutes. See `linformer_savings`."""
    return linformer_savings.compute(rounds=rounds, seed=seed, forms=(LAYER,), **where)


def draw(results: Results) -> Figure:
    """What Linformer saves in a whole encoder layer: time and memory with softmax attention over those with Linformer.
    Forward pass of one sequence, 8 heads of 64, feed-forward layer of 2,048, float32, one thread. No matrix is kept on
    either side. What is not attention costs the same on both. Time is the least of the rounds. Memory is the most in
    use beyond weights and inputs. A number below 1 is a loss. No entry: k is more than half of n.
    """
    return linformer_savings.draw(results)
