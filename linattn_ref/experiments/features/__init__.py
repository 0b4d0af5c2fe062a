"""Feature maps in place of the exponential.

``feature_maps``               the error of a truncated exponential, and the length from which a feature map pays
``random_features``            how far estimates of a kernel by random features are off
``random_features_attention``  what that does to attention, on random and on a pretrained network's heads
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
