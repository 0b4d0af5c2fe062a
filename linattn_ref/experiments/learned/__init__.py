"""What networks have learned, and how: figures of the runs of `linattn_ref.experiments.learning`.

``duplication_curves``  copying words, and ``duplication_attention``, where attention looks
``images_learned``      drawing digits: bits against images seen; ``images_short``, shorter runs and their seeds;
                        ``images_drawn``, what is drawn, and ``images_state``, what a state holds meanwhile
``drawing``             the network that comes with the package, and draws
``speech_curves``       telling phonemes, and ``speech_utterance``, one of the utterances
``mlm_curves``          telling hidden tokens
``downstream``          a pretrained network with Linformer in it, whose records ``finetune_result`` reads
``every_mechanism``     the same with each mechanism, and ``mechanism_time``, what a sequence costs it
``seeds``               runs that differ in their seed alone, put side by side
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
