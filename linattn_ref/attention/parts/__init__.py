"""What several pages need, each a few lines or a small pair of passes.

``masks``               who sees whom, and sums in which what is not seen counts for nothing
``recurrent``           a step and a matrix, of any forward pass
``sums``, ``pieces``    states: of linear attention, of gated linear attention and the delta rule
``packed``              several sequences in one row of tokens
``shared_heads``        several heads of queries that read one head of keys
``arguments``           what these two do alike
``heads``               a matrix that serves several heads

``segment_means``, ``pinv_exact``, ``pinv_iterative``, ``depthwise``      of Nyström attention
``max_pool``, ``strided_convolution``                                     of Linformer, in place of a matrix
``dynamic_projection``, ``near_keys``                                     of the Long-Short Transformer
``lsh_hashing``                                                           of Reformer
``gate``, ``decay_gate``                                                  gates made of the layer's input
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
