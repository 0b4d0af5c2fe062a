"""What experiments measure with.

``pretrained``     a pretrained network, and sentences of a real text
``heads``          its attention heads, and random ones
``mechanisms``     how each is called
``linformer_fit``  mixtures of keys fitted to such heads
``counting``       multiply-adds, and bytes kept for the gradient
``timing``         calls in turn in one process, on one thread
``memory``         the peak of a process
``scaling``        growth fitted to measurements
``measurements``   what takes minutes, each on disk as it comes, so that a stop loses none
``spread``         calls spread over processes, or over a cluster (``dask_workers``)
``points``         time and memory against the length, each point in a process of its own
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
