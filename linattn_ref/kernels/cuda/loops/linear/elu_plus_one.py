"""The feature map ``elu + 1`` of `linattn_ref.attention.feature_maps` on a GPU, a thread per number."""

import math

from linattn_ref.kernels.cuda.loops.arrays import Call, dtype_of
from linattn_ref.kernels.cuda.loops.device import cuda, kernel
from linattn_ref.kernels.cuda.loops.linear import causal_step
from linattn_ref.kernels.cuda.loops.tile import THREADS


def forward(x):
    """``phi(x)``, and what the gradient needs, which is the same."""
    call = Call(x.shape[:-2], x=x)
    x = call.flat(x)
    phi = call.empty(x.shape[1:], dtype_of(x))
    size = math.prod(x.shape)
    call.for_each(write_phi, size, x.reshape((size,)), phi.reshape((size,)))
    phi = call.results(phi)[0]
    return phi, phi


def backward(d_phi, phi):
    """The gradient of ``x``; that of ``phi(x)`` may be written over."""
    call = Call(phi.shape[:-2], d_phi=d_phi, phi=phi)
    d_x, size = call.flat(d_phi), math.prod(phi.shape)
    call.for_each(multiply_by_slope, size, d_x.reshape((size,)), call.flat(phi).reshape((size,)))
    return call.results(d_x)[0]


def step(q, k, v, s, z, eps):
    """One token, ``(..., D)``, ``(..., D)``, ``(..., M)`` -> ``out (..., M)``; brings ``s`` and ``z`` up to date."""
    return causal_step.step(q, k, v, s, z, eps, elu_plus_one=True)


@kernel
def write_phi(x, phi):
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < x.shape[0]:
        if x[i] > 0:
            phi[i] = x[i] + 1  # (1)
        else:
            phi[i] = math.exp(x[i])


@kernel
def multiply_by_slope(d_phi, phi):
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < phi.shape[0] and phi[i] < 1:
        d_phi[i] *= phi[i]  # (2)
