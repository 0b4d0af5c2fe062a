"""BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019), pretrained: read, run, looked into, and trained on.

    model = bert.load(folder)
    for layer in bert.layers(model, tokens): ...             # what each layer makes of one sequence: q, k, v, p, hidden
    network, params = bert.network(model)                    # as `models.encoder` runs and trains it
    rows, saved = encoder.forward(tokens, params, network)
    params = classifier.draw(params, 2, rng, pooler=bert.pooler(model))      # to be trained with ``pool="first"``

``config``   what ``config.json`` says
``weights``  the parameters, as a checkpoint names them
``tokenizer``  what makes tokens of a text
``network``  the same as layers take them, with any mechanism in place of softmax attention
"""

from linattn_ref.models.bert.config import Config
from linattn_ref.models.bert.network import Layer, embed, encode, layers, network, pooler
from linattn_ref.models.bert.weights import Model, load, untrained

__all__ = ["Config", "Layer", "Model", "embed", "encode", "layers", "load", "network", "pooler", "untrained"]
