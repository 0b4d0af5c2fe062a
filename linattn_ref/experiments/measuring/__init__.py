"""What experiments measure with.

``heads``         attention heads of a pretrained network, and random ones
``counting``      multiply-adds, and bytes kept for the gradient
``timing``        calls in turn in one process, on one thread
``memory``        the peak of a process
``scaling``       growth fitted to measurements
``measurements``  many of them, kept on disk as they come, so that a stop loses none
"""
