"""Which pairs of tokens meet.

``pattern_pictures``  the sparse patterns as their papers draw them
``pattern_graphs``    layers until every token depends on every other, clustering, growth with the length
``lsh_recall``        does hashing find the most similar keys?
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
