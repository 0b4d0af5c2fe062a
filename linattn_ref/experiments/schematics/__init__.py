"""One drawn picture per mechanism: shapes of arrays as boxes with their letters, what is summed, what is never made.

``drawing`` and ``parts`` are the vocabulary. The pictures are functions that put boxes on a sheet, each with the name
of its mechanism in `linattn_ref.attention`; ``linear_recurrent`` is the second picture of ``linear``.

``dense``      all keys, or mixtures of them
``recurrent``  a state that is passed on from token to token
``sparse``     few pairs, by a pattern or a hash
``block``      a block of a transformer, both ways
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
