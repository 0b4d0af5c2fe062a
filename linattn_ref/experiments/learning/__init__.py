"""What is learned by this package's own gradients: a module per task, trained by ``linattn-ref train``."""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
