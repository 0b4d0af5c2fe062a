"""Softmax attention as a kernel in Triton, tile by tile; it stands behind the functions in PyTorch."""

import torch
import triton
import triton.language as tl


@triton.jit
def attend(q, k, v, o, n, l, scale, causal: tl.constexpr, D: tl.constexpr, M: tl.constexpr, R: tl.constexpr):
    """One program for R queries of one head: Algorithm 1 of FlashAttention, with tiles of R keys."""
    head, rows = tl.program_id(0), tl.program_id(1) * R + tl.arange(0, R)
    d, m = tl.arange(0, triton.next_power_of_2(D)), tl.arange(0, triton.next_power_of_2(M))
    queries = tl.load(q + (head * n + rows[:, None]) * D + d, mask=(rows[:, None] < n) & (d < D), other=0.0)
    largest = tl.full([R, 1], float("-inf"), queries.dtype)
    total = tl.zeros([R, 1], queries.dtype)
    out = tl.zeros([R, triton.next_power_of_2(M)], queries.dtype)
    for start in range(0, l, R):
        columns = start + tl.arange(0, R)
        keys = tl.load(k + (head * l + columns[:, None]) * D + d, mask=(columns[:, None] < l) & (d < D), other=0.0)
        values = tl.load(v + (head * l + columns[:, None]) * M + m, mask=(columns[:, None] < l) & (m < M), other=0.0)
        seen = columns[None, :] < l
        if causal:
            seen = seen & (columns[None, :] <= rows[:, None] + l - n)
        a = scale * tl.sum(queries[:, None, :] * keys[None, :, :], 2)
        a = tl.where(seen, a, float("-inf"))
        new = tl.maximum(largest, tl.maximum(tl.max(a, 1)[:, None], -1e30))  # finite, where no key is seen
        weights, decay = tl.exp(a - new), tl.exp(largest - new)
        total = decay * total + tl.sum(weights, 1)[:, None]
        out = decay * out + tl.sum(weights[:, :, None] * values[None, :, :], 1)
        largest = new
    tl.store(o + (head * n + rows[:, None]) * M + m, out / tl.maximum(total, 1e-30), mask=(rows[:, None] < n) & (m < M))


def forward(q, k, v, *, causal=False, scale=None):
    (n, d), (l, m), heads = q.shape[-2:], v.shape[-2:], q.shape[:-2].numel()
    scale = d**-0.5 if scale is None else scale
    out = q.new_empty(*q.shape[:-1], m)
    attend[heads, triton.cdiv(n, 4)](*(x.contiguous() for x in (q, k, v)), out, n, l, scale, causal, d, m, 4)
    a = (scale * q @ k.mT).masked_fill(torch.ones(n, l, dtype=torch.bool).triu(l - n + 1) & causal, -torch.inf)
    return out, Saved(q, k, v, softmax(a), scale)


@triton.jit
def softmax_rows(a, p, l, C: tl.constexpr):
    row, columns = tl.program_id(0), tl.arange(0, C)
    x = tl.load(a + row * l + columns, mask=columns < l, other=float("-inf"))
    weights = tl.exp(x - tl.maximum(tl.max(x, 0), -1e30))
    tl.store(p + row * l + columns, weights / tl.maximum(tl.sum(weights, 0), 1e-30), mask=columns < l)


def softmax(a):
    p = torch.empty_like(a)
    softmax_rows[(a[..., 0].numel(),)](a.contiguous(), p, a.shape[-1], triton.next_power_of_2(a.shape[-1]))
    return p
