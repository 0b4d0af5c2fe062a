"""Causal linear attention.

``causal_product``        its kernels are in ``causal_states``, ``causal_chunks`` and ``causal_step``; of 16 bits in
                          ``half_causal_product`` and ``half_causal_chunks``
``causal_product_plain``  Algorithm 1 as it stands
``elu_plus_one``          the feature map
"""

from linattn_ref.kernels.cuda.loops.linear import causal_product, elu_plus_one

__all__ = ["causal_product", "elu_plus_one"]
