"""Feature maps: the ``phi`` of linear attention, whose similarity of a query and a key is ``phi(q) . phi(k)``.

================================ ========================================== ================== =====================
map                              phi(x)                                     C                  similarity
================================ ========================================== ================== =====================
``elu_plus_one``                 ``x + 1`` if ``x > 0`` else ``exp(x)``     D                  positive
``relu``                         ``max(x, 0) + eps``                        D                  positive
``quadratic(c)``                 monomials of degree 0, 1, 2                1 + D + D(D+1)/2   ``(x.y + c)^2``
``taylor_exp(order)``            ``(1, x, x⊗x / sqrt 2, ...)``              1 + D + D^2 + ...  ``exp(x.y)``, cut off
``taylor_gaussian(order, s)``    ``exp(-|x|^2/2s^2) taylor_exp(x/s)``       1 + D + D^2 + ...  Gaussian, cut off
``favor_trig(omega)``            ``exp(|x|^2/2) / sqrt m [sin, cos]``       2m                 ``exp(x.y)``, estimate
``favor_positive(omega)``        ``exp(omega x - |x|^2/2) / sqrt m``        m                  ``exp(x.y)``, estimate
``favor_hyperbolic(omega)``      the same for ``omega`` and ``-omega``      2m                 ``exp(x.y)``, estimate
``favor_relu(omega)``            ``(max(omega x, 0) + eps) / sqrt m``       m                  positive
``rfa_gaussian(omega)``          ``[sin, cos] / sqrt m`` of ``x / |x|``     2m                 Gaussian, estimate
``rfa_arccos(omega)``            ``max(omega x, 0) / sqrt m``, ``x / |x|``  m                  arc-cosine, estimate
================================ ========================================== ================== =====================

The first five are in ``feature_maps_exact.py``, four in ``feature_maps_favor.py``, the last two and the draws of
``omega`` in ``feature_maps_random.py``; all of them are reached from here. A map is a :class:`FeatureMap`, from
``feature_map_protocol.py``: its parameters, with a forward and a backward function. One of your own needs these members
and nothing else.

>>> import numpy as np
>>> phi, saved = quadratic(1.0).forward(np.array([1.0, 2.0]))  # (c, sqrt(2c) x_i, x_i^2, sqrt(2) x_i x_j)
>>> phi.round(3)
array([1.   , 1.414, 2.828, 1.   , 2.828, 4.   ])
>>> psi, _ = quadratic(1.0).forward(np.array([3.0, -1.0]))
>>> round(float(phi @ psi), 6)  # (x.y + c)^2 = (1 + 1)^2
4.0
"""

from linattn_ref.attention.features.feature_map_protocol import *  # noqa: F403
from linattn_ref.attention.features.feature_maps_exact import *  # noqa: F403
from linattn_ref.attention.features.feature_maps_favor import *  # noqa: F403
from linattn_ref.attention.features.feature_maps_random import *  # noqa: F403

__all__ = [name for name in globals() if not name.startswith("_")]  # of these four modules
