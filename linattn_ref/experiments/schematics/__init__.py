"""One drawn picture a mechanism: shapes of arrays as boxes with their letters, what is summed, what is never made.

``drawing`` and ``parts`` are the vocabulary, ``patterns`` what the sparse ones share; each other module is a figure,
and has the name of its mechanism in `linattn_ref.attention`. ``linear_recurrent`` is the second picture of ``linear``,
``block`` that of a transformer's block.
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
