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

The first five are in ``feature_maps_exact.py``, the rest and the draws of ``omega`` in ``feature_maps_random.py``. A
map is a :class:`FeatureMap`: a forward and a backward function. All of them are reached from here.
"""

from linattn_ref.attention.feature_maps_exact import (
    FeatureMap,
    Split,
    check_feature_map,
    elu_plus_one,
    quadratic,
    relu,
    taylor_exp,
    taylor_gaussian,
)
from linattn_ref.attention.feature_maps_random import (
    favor_hyperbolic,
    favor_positive,
    favor_relu,
    favor_trig,
    gaussian,
    orthogonal_gaussian,
    rfa_arccos,
    rfa_gaussian,
)

__all__ = [
    "FeatureMap",
    "Split",
    "check_feature_map",
    "elu_plus_one",
    "favor_hyperbolic",
    "favor_positive",
    "favor_relu",
    "favor_trig",
    "gaussian",
    "orthogonal_gaussian",
    "quadratic",
    "relu",
    "rfa_arccos",
    "rfa_gaussian",
    "taylor_exp",
    "taylor_gaussian",
]
