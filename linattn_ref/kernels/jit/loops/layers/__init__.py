"""Layers, losses and optimisers, and a token of a whole transformer.

``gelu``           GELU and its slope
``layer_norm``     layer norm
``cross_entropy``  cross-entropy and its gradient
``ctc``            CTC's sums over paths
``lstm``           an LSTM through time and back
``adam``           a step of Adam or RAdam
``decode``         a token of a whole transformer
"""

from linattn_ref.kernels.jit.loops.layers import adam, cross_entropy, ctc, decode, gelu, layer_norm, lstm

__all__ = ["adam", "cross_entropy", "ctc", "decode", "gelu", "layer_norm", "lstm"]
