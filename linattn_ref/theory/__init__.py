"""The theorems as functions: what each states, and what is measured.

``spectrum``                singular values of attention matrices, the curve of Linformer's Figure 1
``johnson_lindenstrauss``   random projections keep lengths, distances and inner products
``low_rank``                Linformer's Theorem 1, "self-attention is low rank"
``dimension_growth``        the reduced dimension that Theorem 1 takes, against the length
``linear_self_attention``   Linformer's Theorem 2, its proof's projections
``eckart_young``            the best approximation of a given rank
``random_features``         kernels by random features, their mean squared errors in closed form (Performer)
``lsh_collision``           how often vectors at an angle share a bucket of Reformer's hash
``pattern_graphs``          sparse patterns as graphs: steps, diameter, clustering, pairs

Everything random takes an explicit ``numpy.random.Generator``. These modules need SciPy.
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
