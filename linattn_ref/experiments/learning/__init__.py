"""What is learned by this package's own gradients: a module a task, trained by ``linattn-ref train``."""

from linattn_ref import lazy

__all__ = [
    "causal_attention",
    "characters",
    "downstream",
    "drawing",
    "duplication",
    "duplication_attention",
    "duplication_curves",
    "encoder_attention",
    "encoder_names",
    "every_mechanism",
    "finetune",
    "finetune_fit",
    "finetune_result",
    "images",
    "images_bits",
    "images_drawn",
    "images_learned",
    "images_short",
    "images_state",
    "mechanism_time",
    "mlm",
    "mlm_curves",
    "mlm_start",
    "ngrams",
    "runs",
    "seeds",
    "speech",
    "speech_curves",
    "speech_frames",
    "speech_result",
    "speech_utterance",
]

__getattr__, __dir__ = lazy.modules(__name__, __all__)
