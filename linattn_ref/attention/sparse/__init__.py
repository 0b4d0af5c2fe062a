"""Mechanisms that are softmax attention over a few of the pairs; each mechanism chooses its own.

``pattern_softmax``       softmax over a pattern: the loop over its tiles, forward and backward
``local``                 a sliding window
``block_local``           blocks
``longformer``            a window, and global tokens with projections of their own
``bigbird``               a window, global and random ones, in blocks
``sparse_transformer``    strided and fixed causal patterns

``part``                  a pattern in a few numbers per query
``patterns``              the same as boolean matrices, and the dense softmax over one, for teaching and testing
``indices``               positions and blocks that a caller names
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
