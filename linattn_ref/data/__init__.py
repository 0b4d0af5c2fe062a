"""Real data: ``fetch`` brings the pinned, checked packages, ``text`` reads documents and cuts sentences from them,
``digits`` MNIST's images, ``duplication`` draws words to be copied, ``reported`` has the numbers that papers print."""

from linattn_ref import lazy

__all__ = ["digits", "duplication", "fetch", "reported", "text"]

__getattr__, __dir__ = lazy.modules(__name__, __all__)
