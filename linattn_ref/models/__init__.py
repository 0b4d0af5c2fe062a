"""Whole transformers in plain NumPy.

``causal``    an autoregressive one, with any causal mechanism: all positions at once, or token by token
``generate``  writes with it
``bert``      loads and runs a pretrained BERT or RoBERTa encoder; its settings are in ``bert_config``, its parameters
              in ``bert_weights``, its activations in ``activation``
"""

from linattn_ref import lazy

__all__ = ["activation", "bert", "bert_config", "bert_weights", "causal", "generate"]

__getattr__, __dir__ = lazy.modules(__name__, __all__)
