"""Log-mel filterbank: a sound as 40 numbers every 10 ms, the energy in bands that are as wide as the ear's.

    x'_n = x_n - 0.97 x_(n-1)                                (1)  treble is raised
    P_tk = |sum_n w_n x'_(s t + n) exp(-2 pi i n k / F)|^2   (2)  the power of window t at frequency k R / F
    m(f) = 1127 ln(1 + f / 700)                              (3)  mel
    M_tc = sum_k tri_c(m(k R / F)) P_tk                      (4)
    f_tc = ln max(M_tc, eps)                                 (5)

A window is 25 ms long and begins ``s`` samples (10 ms) after the one before; ``w`` is Hamming's, and ``F`` the next
power of two. In (4) ``tri_c`` rises from 0 at the centre of band ``c - 1`` to 1 at its own and falls to 0 at that of
band ``c + 1``; centres are evenly spaced in mel. Windows that are not whole are left out.

A speaker's channels are then shifted and scaled to mean 0 and variance 1 over all that he or she says
(:func:`normalise`): that takes a good part of voice and microphone away.

>>> tone = np.sin(2 * np.pi * 1000 * np.arange(16000) / 16000)
>>> features = log_mel(tone, 16000)
>>> features.shape, int(features.mean(axis=0).argmax())
((98, 40), 13)
>>> int(700 * np.expm1(14 * mel(8000) / 41 / 1127))  # where that band is largest, in Hz
955

References
----------
Davis and Mermelstein (1980), "Comparison of parametric representations for monosyllabic word recognition in
continuously spoken sentences". The constants of (1), (3) and (4) are HTK's and Kaldi's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linattn_ref.op import Array, plain_numbers
from linattn_ref.op.options import check_sizes

__all__ = ["CHANNELS", "STEP", "WINDOW", "log_mel", "normalise"]

CHANNELS = 40
WINDOW, STEP = 0.025, 0.010  # seconds
TREBLE = 0.97
SMALLEST = 1e-10  # eps


@plain_numbers
def log_mel(samples: Array, rate: int, *, channels: int = CHANNELS) -> Array:
    """Equations (1)-(5).

    Parameters
    ----------
    samples : ndarray ``(samples,)``
        From -1 to 1.
    rate : int
        Samples per second.
    channels : int

    Returns
    -------
    ndarray ``(T, channels)`` of float32

    Raises
    ------
    ValueError
        Not one channel of sound, or less than one window of it.
    """
    from scipy import fft

    check_sizes(round(1 / STEP), rate=rate)
    check_sizes(channels=channels)
    window, step = round(WINDOW * rate), round(STEP * rate)
    if samples.ndim != 1 or len(samples) < window:
        raise ValueError(f"samples: expected one channel of at least {window} samples (25 ms), got {samples.shape}")
    x = samples.astype(np.float64)
    x[1:] -= TREBLE * x[:-1]  # (1)
    size = 1 << (window - 1).bit_length()  # F
    windows = np.lib.stride_tricks.sliding_window_view(x, window)[::step]  # (T, window)
    spectrum = fft.rfft(windows * np.hamming(window), size)  # (2)  (T, F/2 + 1)
    power = spectrum.real**2 + spectrum.imag**2  # (2)
    bands = power @ triangles(rate, size, channels)  # (4)  (T, channels)
    return np.log(np.maximum(bands, SMALLEST)).astype(np.float32)  # (5)


def triangles(rate: int, size: int, channels: int) -> Array:
    """``tri_c`` at each frequency: ``(F/2 + 1, channels)``."""
    frequency = mel(np.arange(size // 2 + 1) * rate / size)[:, None]  # (F/2 + 1, 1)
    corner = np.linspace(0, mel(rate / 2), channels + 2)
    width = corner[1]
    return np.maximum(0, 1 - np.abs(frequency - corner[1:-1]) / width)


def mel(frequency: Array | float) -> Array:
    """Equation (3)."""
    return 1127 * np.log1p(np.asarray(frequency) / 700)


def normalise(utterances: Sequence[Array]) -> list[Array]:
    """All that one speaker says, each ``(T, channels)``, with mean 0 and variance 1 over all frames together."""
    frames = np.concatenate(utterances).astype(np.float64)
    mean, scale = frames.mean(axis=0), np.maximum(frames.std(axis=0), 1e-5)
    return [((each - mean) / scale).astype(np.float32) for each in utterances]
