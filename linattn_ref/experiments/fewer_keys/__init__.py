"""Attention to fewer keys than there are.

``linformer``         mixtures of keys: random, pooled and fitted (``linformer_fit``), on a pretrained network's heads
``nystromformer``     landmarks, on the same heads
``pinv_convergence``  how many iterations its pseudo-inverse needs
``moving_content``    a mixture that depends on the keys (long-short transformer) beside one fixed by position
"""
