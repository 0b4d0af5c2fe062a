"""What the compiled backends have in common: a page's function on loops, whichever backend the loops are from.

A backend's page, such as ``kernels/jit/linear.py``, names its loops and has its own class ``Saved``. The rest is here.
Arguments, their shapes and types are those of the page of the same name.
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
