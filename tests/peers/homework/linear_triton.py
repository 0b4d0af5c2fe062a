"""The recurrent form of linear attention as a kernel in Triton: a program per head, the state in its registers."""

import triton
import triton.language as tl


@triton.jit
def recurrence(phi_q, phi_k, v, numerator, d, n, l, C: tl.constexpr, M: tl.constexpr):
    head = tl.program_id(0)
    c, m = tl.arange(0, triton.next_power_of_2(C)), tl.arange(0, triton.next_power_of_2(M))
    s = tl.zeros([triton.next_power_of_2(C), triton.next_power_of_2(M)], v.dtype.element_ty)
    z = tl.zeros([triton.next_power_of_2(C)], v.dtype.element_ty)
    for j in range(l):
        key = tl.load(phi_k + (head * l + j) * C + c, mask=c < C, other=0.0)
        s += key[:, None] * tl.load(v + (head * l + j) * M + m, mask=m < M, other=0.0)
        z += key
        i = j - (l - n)  # the last query sees all keys
        if i >= 0:
            query = tl.load(phi_q + (head * n + i) * C + c, mask=c < C, other=0.0)
            tl.store(numerator + (head * n + i) * M + m, tl.sum(query[:, None] * s, 0), mask=m < M)
            tl.store(d + head * n + i, tl.sum(query * z, 0))


def forward(q, k, v, *, causal=False, eps=1e-6):
    phi_q, phi_k = features(q).contiguous(), features(k).contiguous()
    if causal:
        (n, c), (l, m) = q.shape[-2:], v.shape[-2:]
        numerator, d = q.new_empty(*q.shape[:-1], m), q.new_empty(*q.shape[:-1], 1)
        recurrence[(q.shape[:-2].numel(),)](phi_q, phi_k, v.contiguous(), numerator, d, n, l, c, m)
    else:
        numerator, d = phi_q @ (phi_k.mT @ v), phi_q @ phi_k.sum(-2)[..., None]
    return numerator / (d + eps), Saved(phi_q, phi_k, v, numerator / (d + eps), d + eps, causal)
