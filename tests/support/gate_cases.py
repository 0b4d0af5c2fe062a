"""The gradient of log gates, each entry beside its own size, for any backend: used here and in the simulator."""

import numpy as np
import plain_loops

from linattn_ref.attention import delta

LOG_GATES = (0.0, -0.01, -1.0, -10.0, -20.0, -40.0, -np.inf, None)  # None: all of these in turn
ROUNDINGS = 4096  # of an entry's terms; the worst seen is 900, where A~ is itself a difference


def assert_gradient_of_gates(module, kernels, dtype, log_gate, per_channel, n, c=12, m=7):
    """One head of ``module``, ``delta`` or ``gated_linear``, all gates ``log_gate``, against equation (11)."""
    rng = np.random.default_rng(0)
    q, k, v, d_out = (rng.standard_normal((n, width)).astype(dtype) for width in (c, c, m, m))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    beta, shape = (rng.random(n).astype(dtype) if module is delta else None), (n, c) if per_channel else (n,)
    gates = rng.choice(LOG_GATES[:-1], shape) if log_gate is None else np.full(shape, log_gate)
    gates = gates.astype(dtype)
    exact, size = plain_loops.log_gate_gradient(d_out, q, k, v, beta, gates)
    arrays, options = (q, k, v, gates), {}
    if module is delta:
        arrays, options = (q, k, v, beta, gates), {"normalise": False}
    _, saved = module.forward(*arrays, scale=1.0, kernels=kernels, **options)
    found = module.backward(d_out, saved).log_gate
    assert found.dtype == dtype
    assert (abs(found - exact) <= ROUNDINGS * np.finfo(dtype).eps * size).all()
    assert not found[np.isneginf(gates)].any()
    assert found.any() == (log_gate != -np.inf)
