"""The filterbank against the one that transformers has for its speech models."""

import numpy as np
import pytest
from scipy import signal

from linattn_ref.data import filterbank

audio = pytest.importorskip("transformers.audio_utils")


@pytest.mark.parametrize(("rate", "size"), [(16000, 512), (8000, 256)])
def test_transformers_has_the_same_numbers(rate, size):
    x = np.random.default_rng(0).standard_normal(rate // 2)
    triangles = audio.mel_filter_bank(
        size // 2 + 1, 40, 0, rate / 2, rate, norm=None, mel_scale="kaldi", triangularize_in_mel_space=True
    )
    theirs = audio.spectrogram(
        signal.lfilter([1, -0.97], [1], x),  # theirs would begin anew in each window, as HTK does
        audio.window_function(rate // 40, "hamming", periodic=False),
        frame_length=rate // 40,
        hop_length=rate // 100,
        fft_length=size,
        power=2.0,
        center=False,
        mel_filters=triangles,
        log_mel="log",
        dtype=np.float64,
    ).T
    ours = filterbank.log_mel(x, rate)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)  # ours ends in float32
