"""fast-transformers' causal linear attention, C++ behind PyTorch's autograd; conform.toml has how it is called.

linattn-ref conform tests/peers/judged/fast_transformers_linear.py:causal_linear --op linear
"""

import torch
from fast_transformers.attention.causal_linear_attention import CausalLinearAttention
from fast_transformers.masking import FullMask, TriangularCausalMask


def causal_linear(q, k, v, *, key_mask=None):
    seen = torch.ones(k.shape[:2], dtype=torch.bool) if key_mask is None else key_mask
    attention = CausalLinearAttention(q.shape[-1])
    return attention(q, k, v, TriangularCausalMask(q.shape[1]), None, FullMask(seen))
