"""The feature map elu + 1 with the arguments and results of a backend's loop, which is held against it."""

import causal_page

from linattn_ref.attention.feature_maps import elu_plus_one

__all__ = ["backward", "forward", "step"]


def forward(x):
    return elu_plus_one.forward(x)


def backward(d_phi, phi):
    return elu_plus_one.backward(d_phi, phi)


def step(q, k, v, s, z, eps):
    return causal_page.step(forward(q)[0], forward(k)[0], v, s, z, eps)
