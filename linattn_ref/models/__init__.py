"""Real transformers in plain NumPy: ``bert`` loads and runs a pretrained BERT or RoBERTa encoder."""

from linattn_ref import lazy

__all__ = ["activation", "bert", "bert_config", "bert_weights", "causal", "generate"]

__getattr__, __dir__ = lazy.modules(__name__, __all__)
