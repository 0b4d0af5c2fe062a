# %% [markdown]
# # 17. A transformer by hand: every layer, every gradient, and a network that writes
#
# What lies between an attention layer and a network that writes? How is the gradient of all of it written out, without
# any software that differentiates? And what is the smallest such network that learns?
#
# Chapters 1 to 16 are about one layer. This chapter adds the other six, and then builds the whole network:
#
# 1. one rule that gives every gradient, used once per layer: embedding and positions, affine, layer norm, GELU,
#    attention with many heads, residual, cross-entropy;
# 2. a block forward and backward, and the network, its gradient checked as a whole;
# 3. everything on one page of NumPy: the same numbers as the package's;
# 4. a network that learns to write film reviews, one character at a time, in some ten seconds on one core;
# 5. the same network as a recurrent one, which writes from a state of constant size, and the same text from the
#    parallel form.
#
# You need chapters 5 and 7; chapter 8 helps. The letters are $B$ sequences of $N$ tokens, each a row of $E$ numbers;
# $H$ heads of width $D = E / H$; $F$ hidden units; an alphabet of $A$ characters. Equations (1) to (17) are this
# chapter's. The source files that are shown have numbers of their own.

# %% jupyter={"source_hidden": true}
import inspect
import math
import re
from functools import partial

import numpy as np
from scipy.special import erf

from linattn_ref import gradcheck
from linattn_ref.attention import linear, softmax
from linattn_ref.data import fetch, text
from linattn_ref.experiments.publishing import chapter, style
from linattn_ref.kernels import jit
from linattn_ref.models import causal, generate
from linattn_ref.nested import leaves
from linattn_ref.nn import (
    affine,
    cross_entropy,
    embedding,
    feed_forward,
    gelu,
    layer_norm,
    mechanism,
    multi_head,
    positions,
    pre_norm,
)
from linattn_ref.training import adam, parameters

# Numbers of size 1 that have gone through some thousand roundings of 2.2e-16 each agree to this.
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-11)

# %% [markdown]
# ## The smallest example, by hand
#
# Take one affine layer with two inputs and one output: $x = (1, 2)$, weights 3 and 4, bias $\frac12$, so $y = 3 + 8 +
# \frac12 = 11.5$. Suppose that the loss grows by 1 when $y$ grows by 1. Then it grows by 3 when $x_1$ grows by 1, and
# by 4 when $x_2$ does. With the weights it grows by $x_1 = 1$ and $x_2 = 2$, and with the bias by 1.
#
# Now take one layer norm. The row $(1, 3)$ has mean 2 and deviation 1, and becomes $(-1, 1)$. If 1 is added to both
# entries, nothing changes. If their distances from the mean are doubled, nothing changes either. With two entries that
# leaves no direction in which the output can move, so the gradient is $(0, 0)$.

# %%
y_small, affine_saved = affine.forward(
    np.array([[1.0, 2.0]]), affine.Params(w=np.array([[3.0], [4.0]]), b=np.array([0.5]))
)
d_small = affine.backward(np.array([[1.0]]), affine_saved)
print("affine: y", y_small, " dx", d_small.x, " dW", d_small.params.w.T, " db", d_small.params.b)
same(y_small, 11.5)
same(d_small.params.w.T, [[1, 2]])
normed, norm_saved = layer_norm.forward(np.array([[1.0, 3.0]]), layer_norm.draw(2), eps=1e-12)
d_normed = layer_norm.backward(np.array([[0.0, 1.0]]), norm_saved).x
print("layer norm: y", normed.round(6), " dx", abs(d_normed).round(6))
same(normed, [[-1, 1]])
same(d_normed, 0)

# %% [markdown]
# ## One rule
#
# A layer makes $y$ from $x$ and from its parameters $\theta$. Somewhere behind it there is a number $\ell$, the loss.
# Let $G = \partial \ell / \partial y$, an array of the shape of $y$, be known. Then a small change of $y$ changes the
# loss by
#
# $$d\ell = \langle G, dy \rangle = \sum_i G_i\, dy_i \qquad (1)$$
#
# That is the whole rule. To find the gradients of a layer, write down $dy$ for small changes $dx$ and $d\theta$, put it
# into (1), and sort. The factor of $dx$ is $\partial \ell / \partial x$, and the factor of $d\theta$ is $\partial \ell
# / \partial \theta$. For matrices we need two moves again and again: $\langle G, XY \rangle = \langle G Y^\top, X
# \rangle = \langle X^\top G, Y \rangle$.
#
# A network is layers one after the other, and its gradient is the layers' gradients from the last to the first. Each
# layer passes $\partial \ell / \partial x$ to the one before, for which it is $G$. What is used in two places gets the
# sum of two gradients, because both uses contribute a $dx$ to (1). Nothing else is needed, no graph and no tape: the
# lines are differentiated in reverse order.
#
# ## Embedding and positions
#
# Token $t_i$ takes row $t_i$ of a table $T$. Place $i$ adds row $i$ of another table $P$, because attention by itself
# knows no order:
#
# $$y_i = T_{t_i} + P_i \qquad (2)$$
#
# $dy_i = dT_{t_i} + dP_i$. In (1), each row of $T$ collects the $G_i$ of all places where its token stands (with
# several sequences, each $P_i$ collects its $G_i$ from all of them):
#
# $$\frac{\partial \ell}{\partial T_t} = \sum_{i:\, t_i = t} G_i, \qquad \frac{\partial \ell}{\partial P_i} = G_i
# \qquad (3)$$
#
# After the source, a cell checks (2) and (3) on five tokens of three kinds. Token 2 stands at three places, so its row
# collects three rows of $G$:

# %%
chapter.source(embedding.forward, embedding.backward, doc=False)

# %%
rng = np.random.default_rng(0)
N, E, A = 5, 4, 3
tokens = np.array([[0, 2, 2, 1, 2]])
table, places = embedding.draw(A, E, rng), positions.draw(N, E, rng)
rows, embedded = embedding.forward(tokens, table)
y, placed = positions.forward(rows, places)
same(y[0], np.array([table.table[t] + places.table[i] for i, t in enumerate(tokens[0])]))  # (2)
G = rng.standard_normal(y.shape)
of_rows = positions.backward(G, placed)
same(of_rows.params.table, G[0])  # (3)
d_table = embedding.backward(of_rows.x, embedded).params.table
same(d_table[2], G[0, [1, 2, 4]].sum(axis=0))  # (3): where a 2 stands
print("gradient of row 2:", d_table[2].round(3))
print("G at places 1, 2 and 4:", *G[0, [1, 2, 4]].round(3))

# %% [markdown]
# ## Affine
#
# $$y = x W + b \qquad (4)$$
#
# $dy = dx\, W + x\, dW + db$, with $db$ in every row. By the two moves,
#
# $$\langle G, dy \rangle = \langle G W^\top, dx \rangle + \langle x^\top G, dW \rangle + \Big\langle \sum_i G_i, db
# \Big\rangle \qquad (5)$$
#
# There is one product forward and two backward. That is why a training step costs about three times as much as a
# forward pass.

# %%
chapter.source(affine.forward, affine.backward, doc=False)


# %%
def check(forward, backward, *inputs):
    """Every entry of every gradient by central differences."""
    report = gradcheck.check_elementwise(forward, backward, *inputs, rng=np.random.default_rng(1))
    report.assert_ok()
    return report.checked


x = rng.standard_normal((2, N, E))
print("affine:", check(affine.forward, affine.backward, x, affine.draw(E, 3, rng)), "derivatives")

# %% [markdown]
# ## Layer norm
#
# Each row gets mean 0 and variance 1, then one gain $\gamma$ and one bias $b$ per entry:
#
# $$y = \gamma\, \hat x + b, \qquad \hat x = \frac{x - \bar x}{s}, \qquad
# s = \sqrt{\mathrm{var}\, x + \varepsilon} \qquad (6)$$
#
# The gain and the bias are as in (5): $\partial \ell / \partial \gamma = \sum G \hat x$ and
# $\partial \ell / \partial b = \sum G$ over all rows. And $\hat G = \gamma\, G$ is the gradient of $\hat x$. For one
# row of $E$ entries,
#
# $$d\hat x = \frac{dx - d\bar x}{s} - \hat x\, \frac{ds}{s}, \qquad
# ds = \frac{1}{E} \sum_j \hat x_j\, dx_j$$
#
# (the second because $s^2$ is the mean of $(x_j - \bar x)^2$, plus a constant, and the $\hat x_j$ sum to 0). Put into
# (1), and sorted by $dx_j$:
#
# $$\frac{\partial \ell}{\partial x} = \frac{1}{s} \Big( \hat G - \mathrm{mean}\, \hat G - \hat x\,
# \mathrm{mean}(\hat G \hat x) \Big) \qquad (7)$$
#
# The two means are what a gradient loses by going through the norm: shifting or stretching a row of $x$ does not change
# $\hat x$. The last two lines of the check below show it.

# %%
chapter.source(layer_norm.forward, layer_norm.backward, doc=False)

# %%
norm_params = layer_norm.Params(*rng.standard_normal((2, E)))
print("layer norm:", check(layer_norm.forward, layer_norm.backward, x, norm_params), "derivatives")
_, saved = layer_norm.forward(x, norm_params, eps=1e-12)
d_x = layer_norm.backward(rng.standard_normal(x.shape), saved).x
same(d_x.sum(axis=-1), 0)  # no shift
np.testing.assert_allclose((d_x * saved.n).sum(axis=-1), 0, atol=1e-9)  # no stretch; the rest is eps's

# %% [markdown]
# ## GELU, and the feed-forward layer
#
# GELU acts on each number by itself. It returns $x$ times the probability that a standard normal variable is below $x$:
#
# $$y = x\, \Phi(x), \qquad \Phi(x) = \tfrac12 \big(1 + \mathrm{erf}(x / \sqrt 2)\big) \qquad (8)$$
#
# $$\frac{\partial \ell}{\partial x} = G \big(\Phi(x) + x\, \Phi'(x)\big), \qquad
# \Phi'(x) = \frac{e^{-x^2/2}}{\sqrt{2 \pi}} \qquad (9)$$
#
# Two affine layers, $E \to F \to E$, with GELU between them are the feed-forward layer. (The compiled backend computes
# the bracket of (9) while $\Phi$ is at hand. In the feed-forward layer, where a number costs more to keep than to
# compute, it keeps neither the hidden units nor the bracket, and computes both again in the backward pass.)

# %%
chapter.source(gelu.forward, gelu.backward, feed_forward.forward, feed_forward.backward, doc=False)

# %%
fed = feed_forward.draw(E, 6, rng)
print("GELU:", check(gelu.forward, gelu.backward, x), "derivatives")
print("feed-forward:", check(feed_forward.forward, feed_forward.backward, x, fed), "derivatives")

# %% [markdown]
# ## Attention with many heads
#
# One affine layer, $E \to 3E$, makes queries, keys and values of all heads. Its columns are cut into $H$ heads, and
# each head attends by itself. Joined again, the outputs go through a last affine layer. Cutting and joining only
# rearrange numbers, so their backward pass rearranges them back. What is left is one head, here causal linear attention
# with $\phi = \mathrm{elu} + 1$ (chapter 5):
#
# $$S_{ij} = \phi(q_i)^\top \phi(k_j) \ \text{ for } j \le i, \text{ else } 0, \qquad
# z_i = \sum_j S_{ij}, \qquad o_i = \frac{1}{z_i} \sum_j S_{ij}\, v_j \qquad (10)$$
#
# $do_i = \frac{1}{z_i} \sum_j \big( dS_{ij} (v_j - o_i) + S_{ij}\, dv_j \big)$, where $-o_i$ comes from $dz_i$. So
#
# $$\frac{\partial \ell}{\partial S_{ij}} = \frac{G_i^\top (v_j - o_i)}{z_i} \ \text{ for } j \le i, \qquad
# \frac{\partial \ell}{\partial v_j} = \sum_{i \ge j} S_{ij}\, \frac{G_i}{z_i} \qquad (11)$$
#
# Write $dS$, from here on, for the matrix of the $\partial \ell / \partial S_{ij}$. By the two moves,
#
# $$\frac{\partial \ell}{\partial \phi(Q)} = dS\; \phi(K), \qquad
# \frac{\partial \ell}{\partial \phi(K)} = dS^\top \phi(Q) \qquad (12)$$
#
# Then the gradient goes through the map, whose slope is 1 where $x > 0$ and $e^x$ elsewhere:
#
# $$\phi'(x) = \min(\phi(x), 1) \qquad (13)$$
#
# Written like this, attention takes $N \times N$ matrices. Chapter 7 computes the same sums over $j \le i$ and $i \ge
# j$ in one pass each, and that is what the package calls here.

# %%
chapter.source(multi_head.forward, multi_head.backward, doc=False)

# %%
attention = mechanism.of(linear, causal=True)
heads_params = multi_head.draw(E, rng)


def two_heads(x, params):
    return multi_head.forward(x, params, attention, heads=2)


print("multi-head:", check(two_heads, multi_head.backward, x, heads_params), "derivatives")

# %% [markdown]
# A network that writes keeps keys and values, or sums of them, for every head. Several heads of queries can share one
# head of keys and values: with `groups=2` two heads of queries read each head of keys and values (grouped-query
# attention, Ainslie et al. 2023). The state is half as large, and so are $W_k$ and $W_v$. The gradient of a shared head
# is the sum over the heads that read it.

# %%
shared_params = multi_head.draw(E, rng, groups=2)


def shared_heads(x, params):
    return multi_head.forward(x, params, attention, heads=2, groups=2)


print("shared heads:", check(shared_heads, multi_head.backward, x, shared_params), "derivatives")
whole = multi_head.init_state(1, heads_params, attention, heads=2).s
assert multi_head.init_state(1, shared_params, attention, heads=2, groups=2).s.size == whole.size / 2

# %% [markdown]
# ## Residual, and the block
#
# The output of a layer is added to its input, so that there is a path through the network on which nothing is done:
#
# $$y = x + f(x), \qquad \frac{\partial \ell}{\partial x} = G + \big(G \text{ through } f\big) \qquad (14)$$
#
# since $x$ is used twice. A block consists of two of these: attention and feed-forward, each after a layer norm. The
# backward pass is the forward pass in a mirror, and where the forward pass adds, the backward pass copies. In the code,
# `dropouts` sets some numbers to 0 at random during training; without a generator it sets none.
#
# ![A block of a transformer, forward and backward, drawn](../figures/schematic_block.svg)

# %%
chapter.source(pre_norm.forward, pre_norm.backward, doc=False)

# %%
block_params = pre_norm.draw(E, 6, rng)


def block_of_two(x, params):
    return pre_norm.forward(x, params, attention, heads=2)


print("block:", check(block_of_two, pre_norm.backward, x, block_params), "derivatives")

# %% [markdown]
# ## Cross-entropy
#
# The network outputs $A$ scores $a$ for the character that comes next. A softmax turns them into probabilities $p$. The
# loss is the surprise at the character $t$ that came, in nats, averaged over all $n = BN$ places:
#
# $$\ell = -\frac1n \sum_i \log p_{i t_i}, \qquad \log p_{ic} = a_{ic} - \log \sum_{c'} e^{a_{ic'}} \qquad (15)$$
#
# $d \log p_{it} = da_{it} - \sum_c p_{ic}\, da_{ic}$, so that
#
# $$\frac{\partial \ell}{\partial a_{ic}} = \frac1n \big(p_{ic} - [c = t_i]\big) \qquad (16)$$
#
# This is what the network predicted minus what it should have predicted, and here the backward pass begins. The
# function can also leave targets out, weight them, and spread a part of each over all characters (label smoothing);
# here it does none of this.

# %%
chapter.source(cross_entropy.forward, cross_entropy.backward, doc=False)

# %%
scores, targets = rng.standard_normal((2, N, A)), rng.integers(A, size=(2, N))
print(
    "cross-entropy:",
    check(partial(cross_entropy.forward, targets=targets), cross_entropy.backward, scores),
    "derivatives",
)
p = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
_, saved = cross_entropy.forward(scores, targets)
same(cross_entropy.backward(1.0, saved).scores, (p - np.eye(A)[targets]) / targets.size)  # (16)

# %% [markdown]
# ## The network
#
# The network is (2), then blocks, a last norm, and an affine layer to the scores. There is nothing new in it, in either
# direction:

# %%
chapter.source(causal.forward, causal.backward, doc=False)

# %% [markdown]
# Is the gradient of the whole network right? Each layer's gradient was checked entry by entry. What can still be wrong
# is how they are put together, and such a mistake shows along almost any direction. So move *all* parameters along a
# random direction $w$, and compare the slope of the loss with $\langle \partial \ell / \partial \theta, w \rangle$. All
# parameters are views of one flat array, so a move is one line. The check takes two blocks, twenty directions, and
# float64:

# %%
ALPHABET = "\n abcdefghijklmnopqrstuvwxyz.,'"
LENGTH, HEADS = 32, 2
SIZES = {"tokens": len(ALPHABET), "places": LENGTH, "width": 32, "hidden": 128, "layers": 2}
model = causal.Model(attention, HEADS)


def loss_and_gradient(params, model, windows):
    """Of windows ``(B, N + 1)``: what is read, and one place later what is to be predicted."""
    scores, network = causal.forward(windows[:, :-1], params, model)
    loss, surprise = cross_entropy.forward(scores, windows[:, 1:])
    return loss, causal.backward(cross_entropy.backward(1.0, surprise).scores, network).params


def slopes(loss_and_gradient, params, directions=20, h=1e-5):
    """The slope of the loss along random directions: by central differences, and by the gradient."""
    flat, params = parameters.flatten(params)
    start, rng, found = flat.copy(), np.random.default_rng(4), []
    gradient, _ = parameters.flatten(loss_and_gradient(params)[1])
    for w in rng.standard_normal((directions, flat.size)) / math.sqrt(flat.size):
        flat[:] = start + h * w
        high, _ = loss_and_gradient(params)
        flat[:] = start - h * w
        found.append(((high - loss_and_gradient(params)[0]) / (2 * h), gradient @ w))
    return np.array(found)


params = causal.draw(np.random.default_rng(2), **SIZES)
windows = np.random.default_rng(3).integers(len(ALPHABET), size=(2, 17))
numeric, by_hand = slopes(lambda params: loss_and_gradient(params, model, windows), params).T
off = abs(numeric - by_hand).max() / abs(numeric).max()
print(f"{sum(x.size for _, x in leaves(params)):,} parameters in {len(list(leaves(params)))} arrays; off by {off:.0e}")
assert off < 1e-7  # h^2, and the rounding of a loss of 3 over h

# %% [markdown]
# ## Everything on one page
#
# Karpathy's *microgpt* (2026) trains a GPT and writes with it in some 200 lines of plain Python (243 when it came out),
# with a tape for single numbers. Here is the same idea with arrays, and with every gradient written where its layer is:
# the formulas above, from (2) to (16), once more from the beginning. It uses NumPy and one function of SciPy, and
# nothing of this package. (Data and loops come later. The 243 lines of microgpt include them, and its comments.)


# %%
def norm(x, gain, bias):
    s = np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    y = (x - x.mean(axis=-1, keepdims=True)) / s  # (6)
    return gain * y + bias, (y, s, gain)


def norm_back(g, saved):
    y, s, gain = saved
    d = gain * g
    d_x = (d - d.mean(axis=-1, keepdims=True) - y * (d * y).mean(axis=-1, keepdims=True)) / s  # (7)
    return d_x, ((g * y).sum(axis=(0, 1)), g.sum(axis=(0, 1)))


def line(x, w, b):
    return x @ w + b, (x, w)  # (4)


def line_back(g, saved):
    x, w = saved
    return g @ w.T, (np.tensordot(x, g, [(0, 1), (0, 1)]), g.sum(axis=(0, 1)))  # (5)


def bend(x):
    below = (1 + erf(x / np.sqrt(2))) / 2
    return x * below, below + x * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)  # (8), (9)


def split(x):  # (B, N, E) to (B, H, N, D)
    return x.reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2)


def join(x):
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def features(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def attend(q, k, v):
    similar = np.tril(features(q) @ features(k).swapaxes(-1, -2))  # (B, H, N, N)
    z = similar.sum(axis=-1, keepdims=True) + 1e-6
    o = similar @ v / z  # (10)
    return o, (features(q), features(k), v, similar, z, o)


def attend_back(g, saved):
    phi_q, phi_k, v, similar, z, o = saved
    g = g / z
    d_similar = np.tril(g @ v.swapaxes(-1, -2) - (g * o).sum(axis=-1, keepdims=True))  # (11)
    d_v = similar.swapaxes(-1, -2) @ g  # (11)
    d_q, d_k = d_similar @ phi_k, d_similar.swapaxes(-1, -2) @ phi_q  # (12)
    return d_q * np.minimum(phi_q, 1), d_k * np.minimum(phi_k, 1), d_v  # (13)


def block(x, p):
    norm_1, (inner, outer, _), norm_2, (up, down) = p
    a, by_norm_1 = norm(x, *norm_1)
    qkv, by_inner = line(a, *inner)
    o, by_heads = attend(*map(split, np.split(qkv, 3, axis=-1)))
    o, by_outer = line(join(o), *outer)
    x = x + o  # (14)
    a, by_norm_2 = norm(x, *norm_2)
    h, by_up = line(a, *up)
    h, slope = bend(h)
    h, by_down = line(h, *down)
    return x + h, (by_norm_1, by_inner, by_heads, by_outer, by_norm_2, by_up, slope, by_down)  # (14)


def block_back(g, saved):
    by_norm_1, by_inner, by_heads, by_outer, by_norm_2, by_up, slope, by_down = saved
    d, down = line_back(g, by_down)
    d, up = line_back(d * slope, by_up)
    d, norm_2 = norm_back(d, by_norm_2)
    g = g + d  # (14)
    d, outer = line_back(g, by_outer)
    d_qkv = np.concatenate([join(x) for x in attend_back(split(d), by_heads)], axis=-1)
    d, inner = line_back(d_qkv, by_inner)
    d, norm_1 = norm_back(d, by_norm_1)
    return g + d, (norm_1, (inner, outer, ()), norm_2, (up, down))  # (14)


def network(tokens, p):
    (table,), (places,), blocks, last, head = p
    x, by_blocks = table[tokens] + places[: tokens.shape[1]], []  # (2)
    for one in blocks:
        x, saved = block(x, one)
        by_blocks.append(saved)
    x, by_last = norm(x, *last)
    scores, by_head = line(x, *head)
    return scores, (tokens, table, places, by_blocks, by_last, by_head)


def network_back(g, saved):
    tokens, table, places, by_blocks, by_last, by_head = saved
    g, head = line_back(g, by_head)
    g, last = norm_back(g, by_last)
    blocks = []
    for one in reversed(by_blocks):
        g, gradient = block_back(g, one)
        blocks.insert(0, gradient)
    d_table, d_places = np.zeros_like(table), np.zeros_like(places)
    np.add.at(d_table, tokens, g)  # (3)
    d_places[: g.shape[1]] = g.sum(axis=0)  # (3)
    return (d_table,), (d_places,), tuple(blocks), last, head


def learn(windows, p):
    scores, saved = network(windows[:, :-1], p)
    targets = windows[:, 1:, None]
    log_p = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))  # (15)
    g = np.exp(log_p)
    np.put_along_axis(g, targets, np.take_along_axis(g, targets, axis=-1) - 1, axis=-1)  # (16)
    return -np.take_along_axis(log_p, targets, axis=-1).mean(), network_back(g / targets.size, saved)


def adam_step(p, g, m, v, t, rate):
    m += 0.1 * (g - m)
    v += 0.001 * (g * g - v)
    p -= rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)  # (17)


def predict(token, i, p, states):
    """The scores after one token, as a recurrent network: per head a sum of phi(k) v^T and one of phi(k)."""
    (table,), (places,), blocks, last, head = p
    x = (table[token] + places[i])[:, None]  # (B, 1, E)
    for (norm_1, (inner, outer, _), norm_2, (up, down)), (s, z) in zip(blocks, states, strict=True):
        qkv, _ = line(norm(x, *norm_1)[0], *inner)
        q, k, v = map(split, np.split(qkv, 3, axis=-1))  # (B, H, 1, D)
        s += features(k).swapaxes(-1, -2) @ v
        z += features(k).swapaxes(-1, -2)
        x = x + line(join(features(q) @ s / (features(q) @ z + 1e-6)), *outer)[0]
        x = x + line(bend(line(norm(x, *norm_2)[0], *up)[0])[0], *down)[0]
    return line(norm(x, *last)[0], *head)[0][:, 0]


page = [norm, norm_back, line, line_back, bend, split, join, features, attend, attend_back, block, block_back]
page += [network, network_back, learn, adam_step, predict]
lines = sum(len(inspect.getsource(function).splitlines()) for function in page)
print(f"{len(page)} functions, {lines} lines")
assert lines < 243 / 2

# %% [markdown]
# The package's layers use prefix sums, and the page uses masked matrices, so the two programs have nothing in common
# but the formulas. They compute the same loss and the same gradient of every array, and five steps of training take
# both to the same parameters. Token by token, the page outputs what it outputs in parallel:

# %%
loss, gradients = loss_and_gradient(params, model, windows)
loss_of_page, gradients_of_page = learn(windows, params)
same(loss_of_page, loss)
for (name, ours), (_, of_page) in zip(leaves(gradients), leaves(gradients_of_page), strict=True):
    np.testing.assert_allclose(of_page, ours, rtol=0, atol=1e-12, err_msg=name)
print(f"loss {loss:.9f}, by the page {loss_of_page:.9f}; {len(list(leaves(gradients)))} gradients agree to 1e-12")

flat, of_package = parameters.flatten(params)
flat_of_page, of_page = parameters.flatten(params)
state, m, v = adam.init_state(flat), np.zeros_like(flat), np.zeros_like(flat)
for t in range(1, 6):
    total, _ = parameters.flatten(loss_and_gradient(of_package, model, windows)[1])
    state = adam.step(flat, total, state, learning_rate=1e-3)
    total, _ = parameters.flatten(learn(windows, of_page)[1])
    adam_step(flat_of_page, total, m, v, t, 1e-3)
np.testing.assert_allclose(flat_of_page, flat, rtol=0, atol=1e-8)  # Adam divides by gradients that are almost 0
after = (loss_and_gradient(of_package, model, windows)[0], learn(windows, of_page)[0])
print("loss after five steps: {:.9f}, by the page {:.9f}".format(*after))

states = [(np.zeros((2, HEADS, 16, 16)), np.zeros((2, HEADS, 16, 1))) for _ in params.blocks]
by_steps = np.stack([predict(windows[:, i], i, params, states) for i in range(16)], axis=1)
in_parallel, _ = network(windows[:, :-1], params)
same(by_steps, in_parallel)
print("last scores, token by token:", by_steps[0, -1, :3].round(6), " in parallel:", in_parallel[0, -1, :3].round(6))

# %% [markdown]
# ## The smallest thing that learns
#
# The text consists of sentences from film reviews, in lower case. The alphabet has 31 characters, and all others are
# left out. The network reads windows of 32 characters and predicts at each place which comes next. Two yardsticks need
# no network: how often each character occurs, and how often each follows each other one.

# %%
reviews = text.read_reviews(fetch.open_content(fetch.REVIEWS), source="rotten_tomatoes").documents
joined = "\n".join(reviews).lower()
number = {character: i for i, character in enumerate(ALPHABET)}
numbers = np.array([number[character] for character in joined if character in number])
training, held_out = numbers[:-40_000], numbers[-40_000:]
pairs = np.ones((len(ALPHABET), len(ALPHABET)))
np.add.at(pairs, (training[:-1], training[1:]), 1)
following = pairs / pairs.sum(axis=1, keepdims=True)
alone = -np.log(pairs.sum(axis=0) / pairs.sum())[held_out].mean()
in_pairs = -np.log(following[held_out[:-1], held_out[1:]]).mean()
print(f"{len(training):,} characters; nats per character: alone {alone:.2f}, in pairs {in_pairs:.2f}")

# %% [markdown]
# Adam moves each parameter by about the learning rate $\eta$, whatever the size of its gradient $g$. It keeps running
# means $m$ of $g$ and $v$ of $g^2$, which forget by $\beta_1 = 0.9$ and $\beta_2 = 0.999$ per step. Both start from 0
# and are corrected for that at step $t$; $\varepsilon$ keeps the denominator away from 0:
#
# $$\theta \leftarrow \theta - \eta\, \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \varepsilon} \qquad (17)$$
#
# The rate $\eta$ rises for fifty steps and then falls to 0 like half a cosine wave. Training is a loop of a few lines,
# and the page above does the work. To write, the package's network takes the parameters that the page has trained:

# %%
STEPS, BATCH, PEAK = 2000, 8, 1e-2
flat, learned = parameters.flatten(causal.draw(np.random.default_rng(5), **SIZES))
rng, m, v, losses = np.random.default_rng(6), np.zeros_like(flat), np.zeros_like(flat), []


def windows_of(numbers, starts):
    return numbers[starts[:, None] + np.arange(LENGTH + 1)]


def train(until):
    """Go on to this step, and return the network."""
    for t in range(len(losses) + 1, until + 1):
        loss, gradient = learn(windows_of(training, rng.integers(len(training) - LENGTH, size=BATCH)), learned)
        rate = PEAK * min(1, t / 50) * (1 + math.cos(math.pi * t / STEPS)) / 2
        adam_step(flat, parameters.flatten(gradient)[0], m, v, t, rate)
        losses.append(float(loss))
    return learned


fast = causal.Model(mechanism.of(linear, causal=True, kernels=jit), HEADS)


def write(seed, rows=12, **options):
    """After an empty line, at temperature 0.7."""
    start = np.zeros((rows, 1), np.int64)
    drawing = np.random.default_rng(seed)
    return generate.generate(start, LENGTH - 1, learned, fast, rng=drawing, temperature=0.7, **options)


def as_text(row):
    return "".join(ALPHABET[i] for i in row[1:]).replace("\n", " / ")


for until in (1, 100, 1000):
    learned = train(until)
    print(f"{until:4} steps: {as_text(write(7)[0])}")

# %%
learned = train(STEPS)
seen = windows_of(held_out, np.arange(0, len(held_out) - LENGTH, LENGTH))
found = float(cross_entropy.forward(network(seen[:, :-1], learned)[0], seen[:, 1:])[0])
print(f"{flat.size:,} parameters, {STEPS} steps of {BATCH} windows: {found:.2f} nats per character on held-out text")
assert found < in_pairs - 0.3 < alone - 0.3  # it looks further back than one character


# %%
def draw_losses():
    figure, axes = style.figure(1, 1, height=0.42)
    smooth = np.reshape(losses, (-1, 20)).mean(axis=1)  # of twenty steps
    axes.plot(20 * np.arange(len(smooth)) + 10, smooth, "-", color=style.BLUE)
    ends = ((math.log(len(ALPHABET)), "nothing known"), (alone, "characters alone"), (in_pairs, "pairs"))
    for level, name in (*ends, (found, "held-out text")):
        axes.axhline(level, linestyle="--", color=style.BLUE if name == "held-out text" else style.GREY)
        axes.text(STEPS, level + 0.02, name, ha="right", va="bottom")
    axes.set(xlabel="step", ylabel="loss, nats per character", xlim=(0, STEPS))
    return figure


chapter.show(
    draw_losses,
    alt="The loss falls from above the logarithm of the alphabet's size within a hundred steps below that of single "
    "characters, then below that of pairs, and flattens out",
)

# %% [markdown]
# ## It writes, as a recurrent network
#
# The next character is drawn from what the network predicts, appended, and read in turn. Token by token, each layer
# keeps two sums per head and nothing else, however long the text is. Characters are drawn from $\mathrm{softmax}(a /
# \tau)$, where $\tau$ is the temperature.

# %%
written = write(7)
for row in written:
    print(as_text(row))
state = causal.init_state(1, learned, fast)
kept = sum(x.size for _, x in leaves(state.blocks))
sums = SIZES["layers"] * HEADS * (16 * 16 + 16)  # S and z of each head
print(f"carried from character to character: {kept:,} numbers")
assert kept == sums  # claim 23: whatever the length

# %% [markdown]
# And here is the same text from the parallel form, which reads the whole sequence again for each character. The network
# and the random numbers are the same, and so are the characters. The scores differ by roundings:

# %%
for way in generate.ways(learned, fast):  # a step compiled for all layers, the steps of the text, whole sequences
    np.testing.assert_array_equal(write(7, way=way), written)
print("the same text:", ", ".join(generate.ways(learned, fast)))
in_parallel, _ = causal.forward(written[:, :-1], learned, fast)
by_steps, state = [], causal.init_state(len(written), learned, fast)
for t in range(LENGTH - 1):
    scores_t, state = causal.step(written[:, t], learned, state, fast)
    by_steps.append(scores_t)
same(np.stack(by_steps, axis=1), in_parallel)
print(f"scores of size {abs(in_parallel).max():.0f}, the same to 1e-11")


# %% [markdown]
# Is this more than noise? We count how many of the words occur in the reviews, and compare with a text drawn from the
# frequencies of pairs:

# %%
by_pairs, rng = np.zeros_like(written), np.random.default_rng(9)
for t in range(LENGTH - 1):
    by_pairs[:, t + 1] = generate.pick(np.log(following[by_pairs[:, t]]), rng, temperature=0.7)
words = set(re.findall("[a-z']{2,}", joined))


def share_known(rows):
    drawn = [word for row in rows for word in re.findall("[a-z']{2,}(?=[^a-z'])", as_text(row))]  # whole ones
    return np.mean([word in words for word in drawn])


print(f"in the reviews: {share_known(written):.0%} of its words, {share_known(by_pairs):.0%} of the pairs'")
assert share_known(written) > 1.2 * share_known(by_pairs)

# %% [markdown]
# What does the network know after the beginning of a word? Here are the probabilities of the next character at three
# temperatures:

# %%
PREFIX = "\nthe acting is terrib"


def draw_next(axes, temperature):
    scores, _ = causal.forward(np.array([[number[c] for c in PREFIX]]), learned, fast)
    p = np.exp((scores[0, -1] - scores[0, -1].max()) / temperature)
    p /= p.sum()
    likeliest = np.argsort(-p)[:8]
    axes.bar(range(8), p[likeliest], color=style.BLUE)
    axes.set_xticks(range(8), [{" ": "space", "\n": "line"}.get(ALPHABET[i], ALPHABET[i]) for i in likeliest])
    axes.set(ylim=(0, 1))


chapter.explore(
    draw_next,
    (0.5, 1.0, 2.0),
    slider=(0.1, 0.25, 0.5, 0.7, 1.0, 1.5, 2.0, 4.0),
    name="temperature",
    alt="Probabilities of the eight likeliest characters after 'the acting is terrib': l stands out, the more the "
    "lower the temperature",
    sharey=True,
)

# %% [markdown]
# ## Exercises
#
# A sheet of homework goes further: `linattn-ref assignment transformer --out DIR` (see [the course](README.md)).
#
# **1. One table for both ends.** Many networks use the embedding's table $T$ a second time, in the last layer: $a =
# \mathrm{norm}(x)\, T^\top$. What is the gradient of $T$? Check it with the page above.
#
# <details><summary>Solution</summary>
#
# $T$ is used twice, so it gets the sum of two gradients: (3), and the transpose of that of the last layer's $W =
# T^\top$ from (5). In the package, `tied` in `training/parameters.py` adds the two. The cell checks this along random
# directions.
#
# </details>


# %%
def tied(params):
    (table,), places, blocks, last, (_, b) = params
    loss, (d_table, *d_middle, (d_w, d_b)) = learn(windows, (params[0], places, blocks, last, (table.T, b)))
    return loss, ((d_table[0] + d_w.T,), *d_middle, (np.zeros_like(d_w), d_b))


numeric, by_hand = slopes(tied, params).T
print("first slopes by differences:", numeric[:3].round(6), " by hand:", by_hand[:3].round(6))
assert abs(numeric - by_hand).max() < 1e-7 * abs(numeric).max()

# %% [markdown]
# **2. A forgotten copy.** In `block_back` the line `g = g + d` is written as `g = d`. The page still runs. Which check
# finds the mistake, and what is lost by it?
#
# <details><summary>Solution</summary>
#
# The check along random directions finds it, since the gradient of everything below is wrong. What is lost is the path
# past the feed-forward layers: the gradient of a low block has to come through every feed-forward layer above it.
#
# </details>

# %%
source = inspect.getsource(block_back).replace("g = g + d  # (14)", "g = d")
assert source != inspect.getsource(block_back)
right, mistaken = block_back, {**globals()}
exec(source, mistaken)
block_back = mistaken["block_back"]
numeric, by_hand = slopes(lambda params: learn(windows, params), params).T
block_back = right
print(f"with the mistake slopes are off by {abs(numeric - by_hand).max() / abs(numeric).max():.0%}")
assert abs(numeric - by_hand).max() > 0.01 * abs(numeric).max()
numeric, by_hand = slopes(lambda params: learn(windows, params), params).T
assert abs(numeric - by_hand).max() < 1e-7 * abs(numeric).max()

# %% [markdown]
# **3. Another attention.** What has to be changed for softmax attention? Which checks of this chapter still hold, and
# what becomes of the state?
#
# <details><summary>Solution</summary>
#
# Only one word changes: the mechanism that is passed to `multi_head`. The gradient is right in any direction, and the
# text written token by token is still that of the parallel form. But the state is now a cache of all keys and values:
# $2 N E$ numbers per layer, instead of $H (D^2 + D)$. The cell checks gradient and text.
#
# </details>

# %%
of_softmax = causal.Model(mechanism.of(softmax, causal=True), HEADS)
numeric, by_hand = slopes(lambda params: loss_and_gradient(params, of_softmax, windows), params).T
print("first slopes by differences:", numeric[:3].round(6), " by hand:", by_hand[:3].round(6))
assert abs(numeric - by_hand).max() < 1e-7 * abs(numeric).max()
texts = [
    generate.generate(windows[:, :1], 30, params, of_softmax, rng=np.random.default_rng(8), way=way)
    for way in ("steps", "anew")
]
np.testing.assert_array_equal(*texts)
print("step by step and by whole sequences:", *(repr("".join(ALPHABET[i] for i in row[0])) for row in texts), sep="\n")

# %% [markdown]
# **4. The first loss.** A network that knows nothing assigns $1/A$ to each character and is surprised by $\log A =
# 3.43$ nats. The loss of our network begins above that. Why, and by how much?
#
# <details><summary>Solution</summary>
#
# The network does predict something, and what it predicts is noise. Let its scores be independent normal numbers of
# variance $\sigma^2$. The target's score is 0 on average, and $\mathbb E\, e^a = e^{\sigma^2 / 2}$, so the loss is
# about $\log A + \sigma^2 / 2$. The last norm gives rows of length $\sqrt E$, and entries of $W$ that are uniform up to
# $\sqrt{6 / (E + A)}$ have the variance $2 / (E + A)$: $\sigma^2 = 2 E / (E + A)$, and the loss begins $E / (E + A)$
# above $\log A$. A single network can be some way off, as ours is, so the cell takes the mean of twenty. Small weights
# in the last layer would spare the network the first steps, in which it learns to predict nothing in particular.
#
# </details>

# %%
stated = math.log(len(ALPHABET)) + SIZES["width"] / (SIZES["width"] + len(ALPHABET))
fresh = [learn(windows, causal.draw(np.random.default_rng(seed), **SIZES))[0] for seed in range(20)]
print(f"stated {stated:.2f}, mean of twenty networks {np.mean(fresh):.2f}, ours {losses[0]:.2f}")
assert abs(np.mean(fresh) - stated) < 0.1

# %% [markdown]
# ## What to remember
#
# - One rule, $d\ell = \langle G, dy \rangle$, gives every gradient; each is as short as its layer.
# - A network's backward pass is its forward pass in a mirror. What is used twice gets a sum; where the forward pass
#   adds, the backward pass copies.
# - Check layers entry by entry, the whole along random directions, and a program against another one that has only the
#   formulas in common.
# - With linear attention one set of parameters is trained in parallel. As a recurrent network it then writes the same
#   text from two sums per head.
#
# **Sources.** Karpathy (2026), *microgpt*, and (2020) *micrograd*. Vaswani et al. (2017), *Attention is all you need*.
# Radford et al. (2019), *Language models are unsupervised multitask learners* (norms first). Ba, Kiros and Hinton
# (2016), *Layer normalization*. Hendrycks and Gimpel (2016), *Gaussian error linear units*. Kingma and Ba (2015),
# *Adam*. Katharopoulos et al. (2020), *Transformers are RNNs*, section 3.4. Ainslie et al. (2023), *GQA*. Press and
# Wolf (2017), *Using the output embedding to improve language models* (exercise 1).
