"""Is self-attention of low rank? Measured on a real network, and the theorems that say why it should be.

``spectrum``               the main job: singular values of a network's attention matrices
``spectrum_inputs``        where these matrices come from
``eckart_young``           no matrix of its rank is nearer than the truncated SVD
``johnson_lindenstrauss``  a random projection keeps lengths and inner products
``low_rank``               Linformer's Theorem 1
``linear_self_attention``  Linformer's Theorem 2
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
