"""Feature maps, and how the random ones are drawn.

``feature_maps``            all of them, and the table of what they are
``feature_map_protocol``    what a map has to have
``feature_maps_exact``      elu + 1, relu, quadratic, Taylor's
``feature_maps_favor``      Performer's
``feature_maps_random``     random feature attention's, and random directions
"""

from linattn_ref import lazy

__all__ = [
    "feature_map_protocol",
    "feature_maps",
    "feature_maps_exact",
    "feature_maps_favor",
    "feature_maps_random",
]

__getattr__, __dir__ = lazy.modules(__name__, __all__)
