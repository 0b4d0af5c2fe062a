"""Attention to fewer keys than there are.

``linformer``         mixtures of keys: random, pooled and fitted, on a pretrained network's heads
``nystromformer``     landmarks, on the same heads
``pinv_convergence``  how many iterations its pseudo-inverse needs
``moving_content``    a mixture that depends on the keys (Long-Short Transformer) against one fixed by position
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
