"""The functions in plain PyTorch of transformers' Qwen3-Next, which compute in float32 whatever comes in.

linattn-ref conform tests/peers/judged/qwen3_next.py:torch_chunk_gated_delta_rule --op gated_delta --dtype float64
"""

import sys

sys.modules["fla"] = None  # which transformers would call in their place

from transformers.models.qwen3_next.modeling_qwen3_next import (  # noqa: E402
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

__all__ = ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"]
