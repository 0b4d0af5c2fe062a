"""The layer around the pages: it makes a page's function the one that users call, and holds what changes no number.

``entry``       ``@op``: checks arguments, normalises options, chooses a backend; once, at the outermost call
``shapes``      the notation of shapes in signatures, and their check
``axes``        the same check where heads are shared or sequences packed
``options``     the options that pages share, and their checks
``extras``      the options that are on no page, and their checks
``backends``    which backend is in force, which pages it has, and which backward pass goes with what was saved
``gpu_arrays``  runs the same pages on arrays of CuPy, PyTorch and Numba that are on a GPU
``libraries``   these three libraries: whose array it is, and as whose it is returned
``half``        widens arrays of 16 bits, and rounds what comes of them
``workspace``   keeps freed memory during a training run
"""

from linattn_ref.op.entry import op
from linattn_ref.op.options import plain_numbers
from linattn_ref.op.shapes import Array, Bool, Constant, Float, Int, Integers, Mask, Of

__all__ = ["Array", "Bool", "Constant", "Float", "Int", "Integers", "Mask", "Of", "op", "plain_numbers"]
