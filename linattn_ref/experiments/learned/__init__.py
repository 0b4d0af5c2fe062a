"""What was learned: figures of the runs of `linattn_ref.experiments.learning`."""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
