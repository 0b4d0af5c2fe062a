"""The feature map ``elu + 1`` on a GPU: `linattn_ref.kernels.reference.elu_plus_one`, a thread a number."""

import math

from linattn_ref.kernels.cuda import causal_step
from linattn_ref.kernels.cuda.arrays import Call, dtype_of
from linattn_ref.kernels.cuda.device import cuda, kernel
from linattn_ref.kernels.cuda.tile import THREADS


def forward(x):
    """``phi(x)``, and what the gradient needs, which is the same."""
    call = Call(x.shape[:-2], x=x)
    phi = call.results(features(call, call.flat(x)))[0]
    return phi, phi


def backward_in_place(d_phi, phi):
    """The gradient of ``x``; that of ``phi(x)`` may be written over."""
    call = Call(phi.shape[:-2], d_phi=d_phi, phi=phi)
    d_x = call.flat(d_phi)
    multiply_by_slopes(call, d_x, call.flat(phi))
    return call.results(d_x)[0]


def step(q, k, v, s, z, eps):
    """One token, ``(..., D)``, ``(..., D)``, ``(..., M)`` -> ``out (..., M)``; brings ``s`` and ``z`` up to date."""
    return causal_step.step(q, k, v, s, z, eps, elu_plus_one=True)


def features(call, x):
    """``phi(x)``, a new array ``(heads, rows, width)``."""
    phi = call.empty(x.shape[1:], dtype_of(x))
    size = math.prod(x.shape)
    call.launch(write_phi, (-(-size // THREADS),), (THREADS,), x.reshape((size,)), phi.reshape((size,)))
    return phi


def multiply_by_slopes(call, d_phi, phi):
    """The gradient of ``x`` in place of that of ``phi(x)``."""
    size = math.prod(phi.shape)
    call.launch(multiply_by_slope, (-(-size // THREADS),), (THREADS,), d_phi.reshape((size,)), phi.reshape((size,)))


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
