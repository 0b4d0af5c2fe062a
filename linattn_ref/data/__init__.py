"""Real data: ``fetch`` brings the pinned, checked packages, ``text`` reads documents and cuts sentences from them,
``splits`` reads texts with labels and splits them for good, ``subwords`` turns texts into numbers, ``twelve_words``
is the sentence of the chapters, ``digits`` MNIST's images, ``cifar`` CIFAR-10's, ``duplication`` draws words to be
copied, ``reported`` has the numbers that papers print, ``npm`` brings the front-end libraries of the web pages and
``pyodide`` a Python for them, ``espeak`` synthesises speech and ``speech`` makes a corpus of it, ``recordings``
reads a real one, ``transcripts`` turns what is said into letters, ``filterbank`` sounds into features."""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
