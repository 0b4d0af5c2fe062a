"""Feature maps, and how the random ones are drawn.

``feature_maps``            all of them, and the table of what they are
``feature_map_protocol``    what a map has to have
``feature_maps_exact``      elu + 1, relu, quadratic, Taylor's
``feature_maps_favor``      Performer's
``feature_maps_random``     random feature attention's, and random directions
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
