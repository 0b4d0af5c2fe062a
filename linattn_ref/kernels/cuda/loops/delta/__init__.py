"""A causal product whose state decays and corrects itself.

``delta_product``  its kernels are in ``delta_rows``, ``delta_chunks`` and ``delta_step``
"""

from linattn_ref.kernels.cuda.loops.delta import delta_product

__all__ = ["delta_product"]
