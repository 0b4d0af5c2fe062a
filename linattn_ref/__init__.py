"""Efficient attention, written to be read: NumPy with hand-derived gradients, Numba kernels, theorems checked.

Where things are
----------------
``linattn_ref.attention``    one mechanism per file: formula, ``forward``, and the hand-derived ``backward`` below it
``linattn_ref.kernels``      backends, pages of the same names that are faster: Numba (``jit``), GPU (``cuda``)
``linattn_ref.gradcheck``    finite-difference and complex-step checks for any ``forward``/``backward`` pair
``linattn_ref.conform``      is somebody's attention kernel right, and if not, why?
``linattn_ref.nn``           layers and losses as such pairs; ``linattn_ref.training`` steps over their parameters
``linattn_ref.theory``       each theorem as functions: what it states, what is measured
``linattn_ref.models``       transformers: autoregressive, bidirectional, for speech, and BERT, pretrained
``linattn_ref.data``         texts, images and speech: fetched and pinned, or synthesised
``linattn_ref.experiments``  one module per figure: ``compute(...)`` then ``draw(...)``
``linattn_ref.homework``     sheets that grade themselves; ``linattn_ref.lecture`` the chapters as web pages and slides
``linattn_ref.op``           the layer around the pages; ``linattn_ref.cli`` the command ``linattn-ref``

Glossary of letters (in every shape comment)
--------------------------------------------
``B`` batch · ``H`` heads · ``N`` queries · ``L`` keys · ``D`` key width · ``M`` value width · ``C`` feature width ·
``R`` reduced length (Linformer's k, landmarks) · ``E`` model width · ``...`` any leading axes, usually ``(B, H)``

What is public is what ``__all__`` of each module lists; ``linattn_ref.attention.linear.forward`` can be called after
``import linattn_ref``, for packages and modules are imported when they are first named. Importing this package imports
no other; a page needs NumPy alone.
"""

from linattn_ref import lazy

__version__ = "0.1.0"

__all__ = ["attention", "conform", "data", "experiments", "gradcheck", "kernels", "models", "nn", "theory", "training"]

__getattr__, __dir__ = lazy.modules(__name__, __all__)
