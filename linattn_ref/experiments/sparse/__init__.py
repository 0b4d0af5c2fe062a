"""Which pairs of tokens meet.

``pattern_pictures``  the sparse patterns as their papers draw them
``pattern_graphs``    layers until all depends on all, clustering, growth with the length
``lsh_recall``        does hashing find the most similar keys?
"""

from linattn_ref import lazy

__all__ = ["lsh_recall", "pattern_graphs", "pattern_pictures"]

__getattr__, __dir__ = lazy.modules(__name__, __all__)
