"""The product of states that decay and correct themselves.

``delta_product``  both passes, whose kernels are in ``delta_forward`` and ``delta_backward``
``delta_chunk``    what both passes need of a chunk, and ``delta_state`` of the state; for the backward pass alone,
                   ``delta_gradients`` has what pairs of rows send, and ``delta_log_gate`` the gradient of gates
``delta_step``     a row, for decoding
``unit_rows``      rows before and after the product
"""

from linattn_ref.kernels.jit.loops.delta import delta_product, unit_rows

__all__ = ["delta_product", "unit_rows"]
