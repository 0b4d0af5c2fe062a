"""A mixture of logistic distributions over the values 0 to 255 of a pixel (Salimans et al. 2017): loss and sampler.

A logistic distribution with mean ``mu`` and scale ``s`` has the distribution function ``sigma((x - mu) / s)``, with
the sigmoid ``sigma``. The value ``n`` is the point ``x = 2 n / 255 - 1``, and its probability is the mass within
``h = 1/255`` of it; for 0 also all mass below, and for 255 all mass above. For component ``k``

    a = (x + h - mu_k) / s_k,   b = (x - h - mu_k) / s_k     (1)  at n = 0: b = -inf;  at n = 255: a = +inf
    P_k = sigma(a) - sigma(b)                                (2)
    loss = -log sum_k pi_k P_k,   pi = softmax(w)            (3)

A network outputs ``w``, ``mu`` and ``log s`` of ``K`` components, ``3 K`` numbers per pixel. The loss is in nats, the
mean over pixels; over ``log 2`` it is in bits per dimension.

Far from its mean both terms of (2) round to the same number, and its logarithm would be that of 0. With
``t = a - b = 2 h / s`` it is, exactly,

    log P_k = log sigma(a) + log sigma(-b) + log(1 - e^-t)   (4)

in which nothing cancels. PixelCNN++ takes the density at ``x`` times the width instead, where (2) is below 1e-5, which
is off by ``t/2 - log t + log(1 - e^-t)`` nats in a tail: 2.1 at the lowest scale, 0.001 at ``log s = -3``.
``switch=True`` does it too, for comparison.

The gradient, by hand
---------------------
From (4), since ``d log sigma(a) / da = sigma(-a)`` and ``d log(1 - e^-t) / dt = 1 / (e^t - 1)``, and as ``mu`` moves
``a`` and ``b`` alike, by ``-1/s``, and ``log s`` moves them by ``-a`` and ``-b``, and ``t`` by ``-t``:

    dlog P_k / dmu_k    = (sigma(b) - sigma(-a)) / s_k                       (5)
    dlog P_k / dlog s_k = b sigma(b) - a sigma(-a) - t / (e^t - 1)           (6)

A term of the infinite ``a`` or ``b`` is 0. With ``r_k = pi_k P_k / sum_l pi_l P_l``, the share of component ``k``,

    dw_k = pi_k - r_k,   dmu_k = -r_k dlog P_k / dmu_k,   dlog s_k = -r_k dlog P_k / dlog s_k      (7)

``log s`` is held at ``LOWEST`` where it is below, and has gradient 0 there. Above 88 in float32, and above 709 in
float64, ``s`` is infinite: a component without a share in the values 1 to 254. If all are, their loss is NaN.

>>> params = np.array([[0.0, 0.0, -2.0]])  # w, mu and log s of one component
>>> loss, saved = forward(params, np.array([127]))
>>> round(float(loss / np.log(2)), 3), backward(1.0, saved).params.round(3)
(6.109, array([[0.   , 0.107, 0.999]]))

References
----------
Salimans, Karpathy, Chen and Kingma (2017), "PixelCNN++", section 2.1.
Katharopoulos et al. (2020), "Transformers are RNNs", section 4.2 (a mixture of 10 logistics).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.nn.embedding import check_tokens
from linattn_ref.op import Array, Float, Int, Integers, op
from linattn_ref.op.options import is_number

__all__ = ["LOWEST", "VALUES", "Gradients", "Saved", "backward", "forward", "probabilities", "sample"]

VALUES = 256
HALF = 1 / (VALUES - 1)  # h: half the distance of two values
LOWEST = -7.0  # of log s, as in PixelCNN++
SMALL = 1e-5  # PixelCNN++'s switch


class Saved(NamedTuple):
    pi: Float[Array, "... K"]
    r: Float[Array, "... K"]
    slope_mu: Float[Array, "... K"]  # (5)
    slope_log_s: Float[Array, "... K"]  # (6)


class Gradients(NamedTuple):
    params: Float[Array, "... P"]


def look(params: Any, **_: Any) -> None:
    if params.shape[-1] % 3:
        raise ValueError(f"params: expected w, mu and log s of K components, (..., 3 K), got shape {params.shape}")


def check_values(values: Any, **_: Any) -> None:
    check_tokens("values", values, VALUES)


@op(look=look, values=check_values)
def forward(params: Float[Array, "... P"], values: Int[Integers, "..."], *, switch: bool = False) -> tuple[Any, Saved]:
    """Equations (1)-(4).

    Parameters
    ----------
    params : ndarray ``(..., 3 K)``
        ``w``, then ``mu``, then ``log s`` of the ``K`` components.
    values : ndarray of int ``(...)``
        0 to 255.
    switch : bool
        Take PixelCNN++'s approximation where (2) is small.

    Returns
    -------
    loss : number
        In nats, the mean over all values.
    saved : Saved
    """
    w, mu, log_s = np.split(params, 3, axis=-1)  # (..., K) each
    log_p, slope_mu, slope_log_s = _log_probability(values[..., None], mu, np.maximum(log_s, LOWEST), switch)
    slope_log_s = np.where(log_s > LOWEST, slope_log_s, 0)
    log_pi = w - log_sum_exp(w)
    joint = log_pi + log_p  # (..., K)
    log_likelihood = log_sum_exp(joint)  # (3)  (..., 1)
    return -log_likelihood.mean(), Saved(np.exp(log_pi), np.exp(joint - log_likelihood), slope_mu, slope_log_s)


@op
def backward(d_loss: float, saved: Saved) -> Gradients:
    """Equation (7)."""
    pi, r, slope_mu, slope_log_s = saved
    share = d_loss / (pi.size // pi.shape[-1])  # of one value in the mean
    return Gradients(share * np.concatenate([pi - r, -r * slope_mu, -r * slope_log_s], axis=-1))  # (7)


def _log_probability(values: Any, mu: Array, log_s: Array, switch: bool) -> tuple[Array, Array, Array]:
    """``log P_k`` of (4), and its slopes (5) and (6)."""
    dtype, s = mu.dtype.type, np.exp(log_s)
    centred = (2 * HALF * values - 1).astype(mu.dtype) - mu  # x - mu
    a, b, t = (centred + dtype(HALF)) / s, (centred - dtype(HALF)) / s, dtype(2 * HALF) / s  # (1)
    lowest, highest = values == 0, values == VALUES - 1
    below, above = np.where(lowest, 0, sigmoid(b)), np.where(highest, 0, sigmoid(-a))  # sigma(b), sigma(-a)
    inside = ~(lowest | highest)
    log_p = np.where(highest, 0, -softplus(-a)) + np.where(lowest, 0, -softplus(b))
    log_p = log_p + np.where(inside, np.log(-np.expm1(-t)), 0)  # (2) by (4)
    slope_mu = (below - above) / s  # (5)
    with np.errstate(over="ignore"):  # 0 where e^t is infinite, 1 where t is 0
        spread = np.divide(t, np.expm1(t), out=np.ones_like(t), where=t > 0)
    slope_log_s = b * below - a * above - np.where(inside, spread, 0)  # (6)
    if switch:
        small = inside & (np.exp(log_p) <= SMALL)
        at = centred / s
        log_p = np.where(small, np.log(dtype(2 * HALF)) - log_s - softplus(at) - softplus(-at), log_p)
        middle = sigmoid(at) - sigmoid(-at)
        slope_mu = np.where(small, middle / s, slope_mu)
        slope_log_s = np.where(small, at * middle - 1, slope_log_s)
    return log_p, slope_mu, slope_log_s


@op(look=look)
def probabilities(params: Float[Array, "... P"]) -> Array:
    """Return the chance of each value: ``(..., 3 K)`` to ``(..., 256)``, which sums to 1."""
    w, mu, log_s = np.split(params[..., None, :], 3, axis=-1)  # (..., 1, K)
    log_p, _, _ = _log_probability(np.arange(VALUES)[:, None], mu, np.maximum(log_s, LOWEST), False)  # (..., 256, K)
    return np.exp(log_sum_exp(w - log_sum_exp(w) + log_p))[..., 0]


def check_temperature(temperature: float) -> None:
    """What :func:`sample` can multiply by: at 0 all would be one value."""
    if not (is_number(temperature) and 0 < temperature < np.inf):
        raise ValueError(f"temperature: expected a finite number above 0, got {temperature!r}")


def check_sample(params: Any, temperature: float, **_: Any) -> None:
    look(params)
    check_temperature(temperature)


def check_numbers(params: Any, **_: Any) -> None:
    if np.isnan(params).any():
        raise ValueError("params: expected numbers to draw from, got NaN")


@op(look=check_sample, values=check_numbers)
def sample(params: Float[Array, "... P"], rng: np.random.Generator, *, temperature: float = 1.0) -> Integers:
    """A value of each distribution: ``(..., 3 K) -> (...)``, uint8, with the chances of the loss.

    Parameters
    ----------
    params : ndarray ``(..., 3 K)``
    rng : numpy.random.Generator
    temperature : float
        Above 0. ``w`` is divided by it and ``s`` multiplied: below 1 what is likely becomes likelier.

    Raises
    ------
    ValueError
        A parameter is NaN.
    """
    w, mu, log_s = np.split(params, 3, axis=-1)  # (..., K)
    with np.errstate(over="ignore"):  # in float64: a low temperature is not 0 there
        sharper = (w - w.max(axis=-1, keepdims=True)).astype(np.float64) / temperature
    component = (sharper + rng.gumbel(size=w.shape)).argmax(axis=-1)[..., None]  # drawn from softmax(w / temperature)
    mu_k, log_s_k = (np.take_along_axis(x, component, axis=-1)[..., 0] for x in (mu, np.maximum(log_s, LOWEST)))
    x = mu_k + temperature * np.exp(log_s_k) * rng.logistic(size=mu_k.shape)
    return np.clip(np.rint((x + 1) / (2 * HALF)), 0, VALUES - 1).astype(np.uint8)


def log_sum_exp(x: Array) -> Array:
    """Over the last axis, which stays with length 1."""
    largest = x.max(axis=-1, keepdims=True)
    return largest + np.log(np.exp(x - largest).sum(axis=-1, keepdims=True))


def softplus(x: Array) -> Array:
    """``log(1 + e^x)``, which is ``-log sigma(-x)``."""
    return np.logaddexp(x, x.dtype.type(0))


def sigmoid(x: Array) -> Array:
    """``1 / (1 + e^-x)``, without overflow."""
    return np.exp(-softplus(-x))
