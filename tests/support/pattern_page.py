"""The page `pattern_softmax` with the arguments and results of a backend's loop, which is held against it."""

from softmax_page import reciprocal

from linattn_ref.attention import pattern_softmax

__all__ = ["backward", "forward"]


def forward(q, k, v, key_mask, pattern, scale):
    out, saved = pattern_softmax.forward.page(q, k, v, pattern, key_mask=key_mask, scale=scale)
    return out, saved.m[..., 0], reciprocal(saved.s[..., 0])


def backward(d_out, q, k, v, out, m, share, key_mask, pattern, scale):
    _, saved = pattern_softmax.forward.page(q, k, v, pattern, key_mask=key_mask, scale=scale)
    return pattern_softmax.backward.page(d_out, saved)
