"""Whole transformers, made of the layers of `linattn_ref.nn`.

``causal``         an autoregressive one, with any causal mechanism: all positions at once, or token by token; what it
                   is made of is in ``causal_network``, its steps are in ``causal_recurrent``
``decoding``       a step of it in one compiled call
``generate``       writes with it
``encoder``        a bidirectional one, with any mechanism; ``refit`` gives a trained one another
``classifier``     predicts with it the class of a text
``masked_tokens``  predicts with it which tokens were hidden
``speech``         one that hears, for CTC; ``speech_lstm`` has LSTMs in the place of the blocks
``bert``           a pretrained BERT or RoBERTa, read as such an encoder
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
