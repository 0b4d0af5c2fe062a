# %% [markdown]
# # 10. Random feature attention: a gate that lets the past fade
#
# How can linear attention prefer what is recent, and learn by itself when to forget?
#
# Linear attention adds up everything it has seen, and the first token counts as much as the last. Random feature
# attention (RFA, Peng et al. 2021) has two ideas: features of sine and cosine that are safe because all vectors have
# length 1, and a gate. In this chapter you will
#
# 1. see why vectors are divided by their lengths, and what that does to the features' error, and to attention itself;
# 2. derive the gradient through that division;
# 3. let the state fade by a gate, and read off how far back it reaches;
# 4. derive the gradient of the gate, and of the two parameters that make it;
# 5. train a gate that forgets at the right token, which no constant does;
# 6. meet an $\varepsilon$ that is no longer small.
#
# You need chapters 6 (feature maps) and 7 (prefix sums, the causal product and its gradient). The letters are theirs:
# $N$ tokens, keys of width $D$ and values of width $M$. From $m$ random directions come $C$ features. The example is
# chapter 1's sentence, *the cat sat on the old mat and the dog slept too*. Equations are numbered by chapter in the
# text and by file in the source that is shown: (1) and (2) of `rfa.py` are (6) here, (3) is (7), and (6) is (9).

# %% jupyter={"source_hidden": true}
import math
from functools import partial
from typing import NamedTuple

import numpy as np

from linattn_ref import gradcheck
from linattn_ref.attention import feature_maps_random, gated_linear, linear, rfa, softmax
from linattn_ref.attention.feature_maps import gaussian, orthogonal_gaussian, rfa_arccos, rfa_gaussian
from linattn_ref.attention.parts import gate
from linattn_ref.data.twelve_words import WORDS, vectors
from linattn_ref.experiments.measuring.counting import count
from linattn_ref.experiments.publishing import chapter
from linattn_ref.experiments.recurrence import rfa_decay

# Numbers of size 1 that have gone through some hundred roundings of 2.2e-16 each agree to this.
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-13)

# %% [markdown]
# ## The smallest example, by hand
#
# *Features.* With one direction $\omega = \pi / 3$ the features of $x$ are $\cos \omega x$ and $\sin \omega x$. For $q
# = 1$ and $k = 0$ their product is $\cos\frac\pi3 \cdot 1 + \sin\frac\pi3 \cdot 0 = \frac12$. Over random $\omega$ from
# $N(0, 1)$ the mean of $\cos \omega (q - k)$ is $e^{-(q - k)^2 / 2} = 0.61$.
#
# *A gate.* Take three equal keys with the values 0, 1 and 2, and a gate of one half, which keeps half of what was
# there and takes half of what comes. After the third token the values have the weights $\frac18, \frac14, \frac12$,
# and the output is
#
# $$\frac{\frac18 \cdot 0 + \frac14 \cdot 1 + \frac12 \cdot 2}{\frac18 + \frac14 + \frac12} = \frac{1.25}{0.875} =
# 1.429$$
#
# Without a gate it would be the mean, 1. Recent tokens count for more:

# %%
alike, three_values, half = np.zeros((3, 1)), np.array([[0.0], [1.0], [2.0]]), np.full(3, 0.5)
gated_out, _ = rfa.forward(alike, alike, three_values, np.ones((1, 1)), half, causal=True, eps=0.0)
print("outputs with a gate of one half:", gated_out.ravel().round(3))
same(gated_out.ravel(), [0, 2 / 3, 1.25 / 0.875])
one_direction = np.array([math.cos(math.pi / 3), math.sin(math.pi / 3)]) @ [1, 0]
many = np.cos(np.random.default_rng(0).standard_normal(100_000)).mean()
print(f"one direction: {one_direction:.3f}; mean of 100,000: {many:.3f}; exp(-1/2) = {math.exp(-0.5):.3f}")

# %% [markdown]
# ## Vectors of length 1
#
# We take the similarity of softmax attention apart, here without the factor $1 / \sqrt D$ on the scores:
#
# $$e^{q^\top k} = e^{\lVert q \rVert^2/2}\; e^{-\lVert q - k \rVert^2/2}\; e^{\lVert k \rVert^2/2} \qquad (1)$$
#
# The middle factor is the Gaussian kernel. If all queries and keys have length 1, the outer factors are the same number
# $\sqrt e$ everywhere and cancel in the ratio: **on the unit sphere, softmax attention and Gaussian attention are the
# same thing**. So RFA replaces $q$ and $k$ by $\hat q = q / \lVert q \rVert$ and $\hat k = k / \lVert k \rVert$. In the
# sentence, the weights of *sat* come out the same by both:

# %%
q, k, v = vectors()
(N, D), M = q.shape, v.shape[1]
rng = np.random.default_rng(0)
d_out = rng.standard_normal((N, M))  # the gradient of some loss, for later


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


square_distance = ((unit(q)[:, None] - unit(k)[None]) ** 2).sum(axis=-1)  # (N, N)
kernel = np.exp(-square_distance / 2)
same(math.e * kernel, np.exp(unit(q) @ unit(k).T))  # (1)
same(kernel / kernel.sum(axis=1, keepdims=True), softmax.matrix(unit(q), unit(k), scale=1.0))
print("words:   ", " ".join(f"{word:>5}" for word in WORDS))
for name, p in (
    ("Gaussian:", kernel / kernel.sum(axis=1, keepdims=True)),
    ("softmax: ", softmax.matrix(unit(q), unit(k), scale=1.0)),
):
    print(name, " ".join(f"{weight:5.2f}" for weight in p[2]))

# %% [markdown]
# ### Sines and cosines
#
# Draw $\omega$ from $N(0, I)$. Chapter 9 has shown what sines and cosines of $\omega^\top x$ estimate: with $m$
# directions, the rows of a matrix $\omega$,
#
# $$\phi(x) = \tfrac{1}{\sqrt m} \big[\sin(\omega \hat x),\, \cos(\omega \hat x)\big], \qquad
# \mathbb E\, \phi(x)^\top \phi(y) = e^{-\lVert \hat x - \hat y \rVert^2/2} \qquad (2)$$
#
# How far off is it? Chapter 9's error of any such estimate is, with $\Delta = \hat x - \hat y$,
#
# $$\mathrm{Var} = \frac 1m \Big(\tfrac12 \big(1 + e^{-2 \lVert \Delta \rVert^2}\big) - e^{-\lVert \Delta \rVert^2}\Big)
# = \frac{(1 - e^{-\lVert \Delta \rVert^2})^2}{2m} \qquad (3)$$
#
# It is at most $1/2m$, whatever the vectors are. What matters is the error *relative to the kernel*, and here the unit
# sphere helps. There $\lVert \Delta \rVert \le 2$, the kernel is never below $e^{-2} = 0.135$, and the relative error
# is never above $5.2 / \sqrt m$. For vectors of length 3 the kernel goes down to $e^{-18}$, while the variance is still
# about $1 / 2m$.

# %%
chapter.source(feature_maps_random.rfa_gaussian, feature_maps_random.unit, doc=False)

# %%
m, draws = 64, 4000
pairs = [(np.eye(D)[0], math.cos(t) * np.eye(D)[0] + math.sin(t) * np.eye(D)[1]) for t in (0.3, 1.0, 2.0, math.pi)]
rows = []
for x, y in pairs:
    estimates = np.array(
        [rfa_gaussian(gaussian(m, D, rng)).forward(np.stack([x, y]))[0].prod(axis=0).sum() for _ in range(draws)]
    )
    z = np.linalg.norm(x - y)
    truth, variance = math.exp(-(z**2) / 2), (1 - math.exp(-(z**2))) ** 2 / (2 * m)
    assert abs(estimates.mean() - truth) < 5 * math.sqrt(variance / draws)  # (2): five standard errors
    np.testing.assert_allclose(estimates.var(), variance, rtol=5 * 2 / math.sqrt(draws))  # (3)
    assert math.sqrt(variance) / truth < 5.2 / math.sqrt(m)
    rows.append((f"{z:.3f}", truth, float(estimates.mean()), math.sqrt(variance), float(estimates.std())))
chapter.table((f"distance, m = {m}", "kernel", "mean of estimates", "deviation by (3)", "measured"), rows)

# %% [markdown]
# The second kind of features, with a ReLU in place of sine and cosine, estimates the arc-cosine kernel (Cho and Saul
# 2009). With $\theta$ the angle between $x$ and $y$,
#
# $$\phi(x) = \tfrac1{\sqrt m} \max(\omega \hat x, 0), \qquad
# \mathbb E\, \phi(x)^\top \phi(y) = \frac{\sin \theta + (\pi - \theta) \cos \theta}{2 \pi} \qquad (4)$$
#
# It is not softmax's kernel. But no similarity can come out negative, while an estimate by (2) can. The next cell
# checks both statements:

# %%
many = 200_000
for x, y in pairs:
    t = math.acos(np.clip(x @ y, -1, 1))
    expected = (math.sin(t) + (math.pi - t) * math.cos(t)) / (2 * math.pi)
    phi, _ = rfa_arccos(gaussian(many, D, rng)).forward(np.stack([x, y]))
    assert (phi >= 0).all()  # so no similarity is negative
    assert abs(phi.prod(axis=0).sum() - expected) < 5 * 1.2 / math.sqrt(many)  # (4); the deviation is sqrt(5)/2 at most
    print(
        f"angle {t:.2f}: arc-cosine kernel {expected:.4f}, mean of {many:,} ReLU features {phi.prod(axis=0).sum():.4f}"
    )

few = [rfa_gaussian(gaussian(8, D, rng)).forward(np.stack(pairs[3]))[0].prod(axis=0).sum() for _ in range(200)]
assert min(few) < 0  # opposite vectors, 8 directions
print(
    f"opposite vectors, 8 directions of sine and cosine: kernel 0.135, estimates from {min(few):.2f} to {max(few):.2f}"
)

# %% [markdown]
# ### What is lost with the lengths
#
# A score on the unit sphere lies between $-1$ and $1$, so one weight is at most $e^2 = 7.4$ times another. Softmax
# attention in a trained network is far sharper. The paper's solution is a width $\sigma$ of the kernel, here a factor
# $1/\sigma$ on $\omega$ (exercise 1). Twelve words have little to choose from, so the cell takes 100 random keys and
# queries, with entries of standard deviation 2. It prints the largest weight, averaged over the queries: with lengths
# as they come, on the sphere, and by features there.

# %%
q_100, k_100 = rng.standard_normal((2, 100, 16)) * 2
omega_100 = orthogonal_gaussian(256, 16, rng)
largest = [
    p.max(axis=1).mean()
    for p in (
        softmax.matrix(q_100, k_100),
        softmax.matrix(unit(q_100), unit(k_100), scale=1.0),
        rfa.matrix(q_100, k_100, omega_100),
    )
]
rows = list(zip(("softmax attention", "on the unit sphere", "RFA, 256 directions"), map(float, largest), strict=True))
chapter.table(("mean of the largest weight; a uniform one is 0.01", ""), rows)
assert largest[0] > 0.2
assert largest[1] < math.exp(2) / 100
assert abs(largest[2] / largest[1] - 1) < 0.3

# %% [markdown]
# ## Without a gate it is linear attention
#
# All of chapters 5 to 8 applies, with two sums, associativity, prefix sums and states. `rfa.forward` without a gate
# *is* `linear.forward` with the features (2) or (4).

# %%
omega = gaussian(32, D, np.random.default_rng(1))
for options in ({}, {"causal": True}):
    plain, _ = rfa.forward(q, k, v, omega, **options)
    same(plain, linear.forward(q, k, v, feature_map=rfa_gaussian(omega), **options)[0])
same(rfa.forward(100 * q, k / 100, v, omega)[0], rfa.forward(q, k, v, omega)[0])  # lengths do not matter
print("output of 'sat':", rfa.forward(q, k, v, omega)[0][2].round(4), end=" ")
print("with longer queries and shorter keys:", rfa.forward(100 * q, k / 100, v, omega)[0][2].round(4))

# %% [markdown]
# ### The gradient through the division
#
# From the features down to $\hat x$ the gradient is chapter 9's: sine and cosine become each other. With $p = \omega
# \hat x$ we have $dp = (d_{\sin} * \cos p - d_{\cos} * \sin p) / \sqrt m$ and $d\hat x = \omega^\top dp$. The step from
# $\hat x = x / \lVert x \rVert$ to $x$ is new. In indices, with $\partial \lVert x \rVert / \partial x_j = x_j / \lVert
# x \rVert = \hat x_j$,
#
# $$\frac{\partial \hat x_i}{\partial x_j}
# = \frac{\delta_{ij}}{\lVert x \rVert} - \frac{x_i}{\lVert x \rVert^2}\, \hat x_j
# = \frac{\delta_{ij} - \hat x_i \hat x_j}{\lVert x \rVert}$$
#
# and summed with $d\hat x_i$,
#
# $$dx = \frac{d\hat x - \hat x\, (\hat x^\top d\hat x)}{\lVert x \rVert} \qquad (5)$$
#
# The matrix $I - \hat x \hat x^\top$ takes away the part along $x$: making a vector longer does not change its
# direction, so the gradient has no part along it. And a vector ten times as long gets a gradient ten times smaller. For
# $x = 0$ the direction is undefined: the package leaves $\hat x = 0$ and returns the gradient 0.

# %%
chapter.source(feature_maps_random.unit_backward, doc=False)

# %%
out, saved = rfa.forward(q, k, v, omega, causal=True)
grads = rfa.backward(d_out, saved)
same((grads.q * q).sum(axis=1), 0)  # (5): across q
same((grads.k * k).sum(axis=1), 0)
_, saved = rfa.forward(10 * q, k, v, omega, causal=True)
same(10 * rfa.backward(d_out, saved).q, grads.q)

report = gradcheck.check_elementwise(
    partial(rfa.forward, causal=True), rfa.backward, q, k, v, omega, rng=np.random.default_rng(2)
)
print(report)
report.assert_ok()

q_zero = q.copy()
q_zero[2] = 0
out, saved = rfa.forward(q_zero, k, v, omega)
assert not rfa.backward(d_out, saved).q[2].any()

# %% [markdown]
# ## The gate
#
# ![Random feature attention, drawn](../figures/schematic_rfa.svg)
#
# Neither linear attention nor softmax attention knows distance. But softmax attention can point at one key out of
# thousands, and positions that are added to the tokens show it where. A state of fixed size cannot keep thousands of
# keys apart. In language what matters is often near. So let the state fade (Peng et al. 2021, section 3.2): with $g_t$
# between 0 and 1,
#
# $$S_t = g_t\, S_{t-1} + (1 - g_t)\, \phi(k_t)\, v_t^\top, \qquad
# Z_t = g_t\, Z_{t-1} + (1 - g_t)\, \phi(k_t) \qquad (6)$$
#
# $$o_t = \frac{S_t^\top \phi(q_t)}{\phi(q_t)^\top Z_t + \varepsilon} \qquad (7)$$
#
# (6) is a weighted mean of the old state and the new token, so the state stays in the range of its terms however long
# the sequence is. Put (6) into itself until only $S_0 = 0$ is left:
#
# $$S_t = \sum_{j \le t} r_{tj}\, \phi(k_j)\, v_j^\top, \qquad r_{tj} = (1 - g_j)\, g_{j+1} \cdots g_t \qquad (8)$$
#
# So the matrix of RFA is $r_{tj}\, \phi(q_t)^\top \phi(k_j)$ with each row divided by its sum. The weights $r_{tj}$ of
# a row sum to $1 - g_1 \cdots g_t$: what is missing is the share of $S_0 = 0$.
#
# Give every word a gate, a low one to a thing, and high ones to small words, which leave the state as it is. So when
# *slept* asks, *dog* should weigh much more than *cat*:

# %%
gates = np.array([0.9, 0.3, 0.5, 0.9, 0.9, 0.7, 0.5, 0.9, 0.9, 0.2, 0.4, 0.9])
r = rfa.recency(gates)
for t in range(N):
    for j in range(N):
        same(r[t, j], (1 - gates[j]) * math.prod(gates[j + 1 : t + 1]) if j <= t else 0)  # (8)
same(r.sum(axis=1), 1 - np.cumprod(gates))

out, saved = rfa.forward(q, k, v, omega, gates, causal=True)
phi_q, phi_k = (rfa_gaussian(omega).forward(x)[0] for x in (q, k))
s, z = np.zeros((64, M)), np.zeros(64)
for t in range(N):
    s = gates[t] * s + (1 - gates[t]) * phi_k[t, :, None] * v[t, None, :]  # (6)
    z = gates[t] * z + (1 - gates[t]) * phi_k[t]
    same(out[t], s.T @ phi_q[t] / (phi_q[t] @ z + 1e-6))  # (7)

weights = r * (phi_q @ phi_k.T)
same(out, weights @ v / (weights.sum(axis=1, keepdims=True) + 1e-6))
same(out, rfa.matrix(q, k, omega, gates, causal=True) @ v)
for name, options in (("no gate", {}), ("gates", {"gate": gates})):
    p = rfa.matrix(q, k, omega, causal=True, **options)
    print(f"weights of 'slept', {name}: cat {p[10, 1]:.3f}, dog {p[10, 9]:.3f}")
assert p[10, 9] > 20 * p[10, 1]
chapter.source(rfa.forward, doc=False)

# %% [markdown]
# The loop is that of gated linear attention (chapter 19). RFA passes it $g$ as the gate, keys multiplied by $1 - g$,
# and values with a column of ones appended, for the denominator. Time and memory stay linear. Move the slider to see
# the sentence's matrix for one gate $g$, the same for all words.

# %%
many_omegas = orthogonal_gaussian(128, D, np.random.default_rng(4))


def panel(axes, g):
    matrix = rfa.matrix(q, k, many_omegas, np.full(N, float(g)), causal=True)
    axes.imshow(matrix, vmin=0, vmax=0.5, cmap="viridis")
    axes.grid(False)
    axes.set(yticks=range(N), yticklabels=WORDS)
    axes.set_xticks(range(N), WORDS, rotation=90)
    axes.tick_params(labelsize=6, length=0)
    axes.label_outer()


chapter.explore(
    panel,
    (0.5, 0.8, 0.95, 0.999),
    name="gate g",
    slider=(0.2, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999),
    height=0.34,
    sharey=True,
    alt="Lower triangles of weights, words by words. g = 0.5: a bright diagonal that fades within three words. "
    "g = 0.999: rows that follow the words and do not fade",
)

# %% [markdown]
# ### How far back
#
# With one gate for all tokens, $r_{tj} = (1 - g)\, g^{t-j}$. All tokens that are less than $d$ back have the share $1 -
# g^d$, so 90% of the weight lies within $d = \log 0.1 / \log g$ tokens: for $g$ near 1 about $2.3 / (1 - g)$.

# %%
for g in (0.5, 0.9, 0.99, 0.999):
    reach = math.log(0.1) / math.log(g)
    same(sum((1 - g) * g**d for d in range(3000)), 1 - g**3000)
    assert abs(reach * (1 - g) / -math.log(0.1) - 1) < 0.3
    print(f"g = {g}: 90% of the weight within {math.ceil(reach)} tokens")

decay = rfa_decay.compute()
chapter.show(
    rfa_decay.draw,
    decay,
    alt="Left: weight against distance falls exponentially for five gates, points on lines; flat without a gate. "
    "Middle: the reach rises from 3.4 tokens at g = 0.5 to 224 at 0.99. Right: on the latch task the loss stays near "
    "0.9 without a gate and with one constant, and falls below 0.01 with a learned gate",
)
for g, measured in zip(decay.gates, decay.weights, strict=True):
    near = decay.distances < 20
    formula = (1 - g) * g ** decay.distances.astype(float) / (1 - g**decay.length)
    np.testing.assert_allclose(measured[near], formula[near], rtol=0.1)  # claim 39: a bias to recent tokens
np.testing.assert_allclose(decay.without, 1 / decay.length, rtol=0.1)  # and none without a gate

# %% [markdown]
# The points are measured: they are the weights of the last query, averaged over heads with random queries and keys. (We
# return to the right panel below.)
#
# ## The gradient of the gate
#
# Let $A_t$ be the gradient of the loss with respect to $S_t$. Let $G_t$ be its gradient with respect to the numerator
# $S_t^\top \phi(q_t)$. Chapter 7 derived, for $S_t = g_t S_{t-1} + w_t\, \phi(k_t) v_t^\top$ with a gate $g$ and a
# weight $w$ that are independent of each other,
#
# $$A_t = \phi(q_t)\, G_t^\top + g_{t+1} A_{t+1}, \qquad
# \frac{\partial \ell}{\partial g_t} = \langle A_t, S_{t-1} \rangle, \qquad
# \frac{\partial \ell}{\partial w_t} = \phi(k_t)^\top A_t\, v_t$$
#
# (with the column of ones appended to $V$, so that $Z$ is a part of $S$). Here $w_t = 1 - g_t$, one number used in
# two places. So its gradient is the sum of what comes from both places, with $dw_t / dg_t = -1$:
#
# $$\frac{\partial \ell}{\partial\, \mathrm{gate}_t} = \langle A_t, S_{t-1} \rangle - \phi(k_t)^\top A_t\, v_t
# = \big\langle A_t,\; S_{t-1} - \phi(k_t)\, v_t^\top \big\rangle \qquad (9)$$
#
# In words: the loss grows if the state moves along $A_t$. A step of gradient descent raises the gate, which then keeps
# more of the old state, if the old state lies less in that direction than the new token does. The cell computes (9)
# step by step, with every $S$ and $A$ kept (which the package does not do):

# %%
with_ones = np.concatenate([v, np.ones((N, 1))], axis=1)  # (N, M + 1)
d_n = d_out / saved.d
g_ones = np.concatenate([d_n, -(d_n * out).sum(axis=1, keepdims=True)], axis=1)  # the G of numerator and denominator
S = [np.zeros((64, M + 1))]
for t in range(N):
    S.append(gates[t] * S[-1] + (1 - gates[t]) * phi_k[t, :, None] * with_ones[t, None, :])
A = [np.zeros((64, M + 1))] * (N + 1)
for t in reversed(range(N)):
    A[t] = phi_q[t, :, None] * g_ones[t, None, :] + (gates[t + 1] * A[t + 1] if t + 1 < N else 0)
by_hand = [(A[t] * (S[t] - phi_k[t, :, None] * with_ones[t, None, :])).sum() for t in range(N)]  # (9)
same(rfa.backward(d_out, saved).gate, by_hand)
chapter.source(rfa.backward, doc=False)

# %%
report = gradcheck.check_elementwise(
    partial(rfa.forward, causal=True), rfa.backward, q, k, v, omega, gates, rng=np.random.default_rng(5)
)
print(report)
report.assert_ok()

# %% [markdown]
# The first gate has $S_0 = 0$ on one side, and only its own token on the other. In the first output, numerator and
# denominator get the same factor $1 - g_1$, which cancels but for $\varepsilon$. So the first output contributes almost
# nothing to that gate's gradient. The first gate still decides how much the first token counts compared with later
# ones.
#
# ### From the gate to its parameters
#
# The gate of a token is made from the token itself. Let $x_t$ be the input of the layer, here the word's key:
#
# $$g_t = \mathrm{sigmoid}(a_t), \qquad a_t = w_g^\top x_t + b_g, \qquad
# \mathrm{sigmoid}(a) = \frac{1}{1 + e^{-a}} \qquad (10)$$
#
# Its derivative is $e^{-a} / (1 + e^{-a})^2 = g (1 - g)$, and by the chain rule,
#
# $$da_t = \frac{\partial \ell}{\partial g_t}\, g_t (1 - g_t), \qquad dx_t = da_t\, w_g, \qquad
# dw_g = \sum_t da_t\, x_t, \qquad db_g = \sum_t da_t \qquad (11)$$
#
# In float32 the sigmoid of 18 is exactly 1. By (11) a gate of 1 has no gradient, so `gate.forward` stops at the last
# number below 1, and at the smallest normal number above 0. With $w_g = (-1, -0.8, 0, 1)$ and $b_g = 1$, things and
# what is done get low gates, and small words high ones. To one decimal, these are the gates above:

# %%
chapter.source(gate.forward, gate.backward, doc=False)

# %%
w_g, b_g = np.array([-1.0, -0.8, 0.0, 1.0]), np.array(1.0)
made, _ = gate.forward(k, w_g, b_g)
np.testing.assert_array_equal(made.round(1), gates)
print("gates:", *(f"{word} {g:.2f}" for word, g in zip(WORDS, made, strict=True)))


class LayerGradients(NamedTuple):
    x: np.ndarray
    w_g: np.ndarray
    b_g: np.ndarray
    q: np.ndarray


def layer_forward(x, w_g, b_g, q):
    g, gate_saved = gate.forward(x, w_g, b_g)
    out, saved = rfa.forward(q, k, v, omega, g, causal=True)
    return out, (gate_saved, saved)


def layer_backward(d_out, saved):
    grads = rfa.backward(d_out, saved[1])
    return LayerGradients(*gate.backward(grads.gate, saved[0]), grads.q)


report = gradcheck.check_elementwise(layer_forward, layer_backward, k, w_g, b_g, q, rng=np.random.default_rng(6))
print(report)
report.assert_ok()
saturated, _ = gate.forward(np.array([[-1e4], [18.0], [1e4]], np.float32), np.ones(1, np.float32), np.float32(0))
assert saturated[0] == np.finfo(np.float32).tiny
assert (saturated[1:] == np.nextafter(np.float32(1), np.float32(0))).all()
assert np.float32(1) / (np.float32(1) + np.exp(np.float32(-18))) == 1

# %% [markdown]
# ### A gate that learns when to forget
#
# Why a gate *of the token*, and not simply a good constant? In the right panel above, some tokens are marked, and the
# output should be the value at the last mark, however long ago it was. All queries and keys are the same, so that only
# the gate decides. At best, a constant gate slightly favours recent tokens. The learned gate closes at marks ($g
# \approx 0$: drop all, take this) and stays open elsewhere ($g \approx 1$: keep, ignore this): a latch. It is trained
# with (9) and (11) and nothing else.

# %%
chapter.source(rfa_decay.latch_loss, doc=False)
rows = [
    (label, float(decay.latch[form].losses[-30:].mean()), decay.latch[form].gate_marked, decay.latch[form].gate_other)
    for form, label in rfa_decay.FORMS.items()
]
chapter.table(("form", "loss at the end", "gate at marks", "gate elsewhere"), rows)
assert rows[0][1] > 0.7
assert rows[1][1] > 0.7
assert rows[2][1] < 0.01  # claim 39: a learned gate
assert rows[2][2] < 0.05 < 0.99 < rows[2][3]

# %% [markdown]
# ## The recurrent form, masks, and an $\varepsilon$ that is not small
#
# (6) is a recurrence already: a step costs the same at every position. A padded token leaves the state as it is: it
# adds nothing, and nothing fades. The cell counts each step, and masks *old mat*:

# %%
state, costs = rfa.init_state((), D, M, omega), set()
for t in range(N):
    spent = linear.State(state.s.copy(), state.z.copy(), None)
    cost = count(lambda q_t, k_t, v_t, s=spent, t=t: rfa.step(q_t, k_t, v_t, s, omega, gates[t]), q[t], k[t], v[t])
    costs.add((cost.multiply_adds, cost.elementwise))
    row, state = rfa.step(q[t], k[t], v[t], state, omega, gates[t])
    same(row, out[t])
assert len(costs) == 1

key_mask = ~np.isin(WORDS, ["old", "mat"])
masked = rfa.matrix(q, k, omega, gates, causal=True, key_mask=key_mask, eps=0.0)
assert not masked[:, [5, 6]].any()
ratio = masked[7] / (phi_q @ phi_k.T)[7]  # of "and": its r, up to a common factor
same(ratio[4] / ratio[7], (1 - gates[4]) * gates[7] / (1 - gates[7]))  # the masked words let nothing fade
print("output of 'too', step by step:", row.round(4), " in one pass:", out[-1].round(4))
print(
    "weights of 'and', 'old mat' masked:", *(f"{word} {p:.2f}" for word, p in zip(WORDS[:8], masked[7], strict=False))
)

# %% [markdown]
# In plain linear attention the denominator of the first token is about 1, and $\varepsilon = 10^{-6}$ is nothing
# compared with it. Here the first weight is $1 - g_1$. If the gates are near 1, denominators start near 0, and
# $\varepsilon$ shrinks the first outputs. The first token sees only itself, so its output should be its value:

# %%
rows = []
for g in (0.9, 0.999, 1 - 1e-5, 1 - 1e-6):
    first, _ = rfa.forward(q, k, v, omega, np.full(N, g), causal=True)
    exact, _ = rfa.forward(q, k, v, omega, np.full(N, g), causal=True, eps=0.0)
    same(exact[0], v[0])
    similarity_11 = phi_q[0] @ phi_k[0]
    np.testing.assert_allclose(first[0] / v[0], 1 / (1 + 1e-6 / ((1 - g) * similarity_11)), rtol=1e-9)
    rows.append((f"1 - {1 - g:.0e}", float(first[0, 0] / v[0, 0])))
assert abs(rows[0][1] - 1) < 1e-4
assert rows[-1][1] < 0.7
chapter.table(("gate", "first output over its value, eps = 1e-6"), rows)

# %% [markdown]
# So choose $\varepsilon$ well below $1 - g$. With the arc-cosine features it can be 0, as long as some direction sees
# both vectors: their denominators are never negative. With the Gaussian features no $\varepsilon$ helps against the
# other danger. An estimate of a similarity may be negative, and with few directions a denominator may come out near 0.

# %%
extremes = []
for directions in (4, 16, 64, 256):
    drawn = (gaussian(directions, D, np.random.default_rng(seed)) for seed in range(50))
    outs = np.stack([rfa.forward(q, k, v, each, gates, causal=True)[0] for each in drawn])
    extremes.append((directions, float(abs(outs).max() / abs(v).max())))
chapter.table(("directions m", "largest output over largest value, 50 draws"), extremes)
assert extremes[0][1] > 2  # far outside the values
assert extremes[-1][1] < 1.2

# %% [markdown]
# ## Exercises
#
# A sheet of homework goes further: `linattn-ref assignment random_features --out DIR` (see [the course](README.md)).
#
# **1. A sharper kernel.** Which $\omega$ makes the Gaussian features estimate
# $e^{-\lVert \hat x - \hat y \rVert^2 / 2 \sigma^2}$, and which scale of softmax attention on the sphere is that? What
# does it do to the error of the estimate for opposite vectors?
#
# <details><summary>Solution</summary>
#
# $\omega / \sigma$: then $\omega^\top \Delta / \sigma$ has variance $\lVert \Delta \rVert^2 / \sigma^2$. On the sphere
# $-\lVert \hat x - \hat y \rVert^2 / 2\sigma^2 = \hat x^\top \hat y / \sigma^2 - 1/\sigma^2$, so the scale is
# $1/\sigma^2$. By (3) the deviation is still about $1 / \sqrt{2m}$, but the smallest kernel is $e^{-2/\sigma^2}$. At
# $\sigma = 1/2$ that is $3 \cdot 10^{-4}$, and a relative error of 10% there would take about $4 \cdot 10^8$
# directions. Sharp attention by sines and cosines is expensive; the positive features of the Performer exist for that
# reason.
#
# </details>

# %%
sigma = 0.5
sharp = rfa.matrix(q, k, gaussian(200_000, D, np.random.default_rng(7)) / sigma, eps=0.0)
truth = softmax.matrix(unit(q), unit(k), scale=1 / sigma**2)
np.testing.assert_allclose(sharp, truth, atol=0.02)
needed = 1 / 2 / (0.1 * math.exp(-2 / sigma**2)) ** 2  # m from 1 / sqrt(2 m) = 10% of the kernel
assert 3e8 < needed < 5e8
print(
    f"200,000 directions: off by {abs(sharp - truth).max():.4f} at most; an error of 10% everywhere takes {needed:.1e}"
)

# %% [markdown]
# **2. Why $1 - g$?** Take the weight 1 instead, $S_t = g_t S_{t-1} + \phi(k_t) v_t^\top$ and likewise $Z$, with
# $\varepsilon = 0$. For one constant gate the outputs are the same. Show it, and give gates for which they differ.
# Which form can skip a token?
#
# <details><summary>Solution</summary>
#
# With a constant gate the weight $1 - g$ is a common factor of all terms of numerator and denominator. With gates that
# differ it is not. The form with $1 - g_t$ ignores a token where $g_t \approx 1$: nothing fades and nothing comes in.
# With the weight 1 every token comes in fully; a latch is impossible.
#
# </details>


# %%
def with_weight_1(gates):
    with_ones = np.concatenate([v, np.ones_like(v[:, :1])], axis=1)  # the last column is the denominator
    both, _ = gated_linear.forward(phi_q, phi_k, with_ones, np.log(gates))
    return both[:, :-1] / both[:, -1:]


constant = np.full(N, 0.8)
same(with_weight_1(constant), rfa.forward(q, k, v, omega, constant, causal=True, eps=0.0)[0])
skip_last = np.append(np.full(N - 1, 0.5), 1 - 1e-12)
gated, _ = rfa.forward(q, k, v, omega, skip_last, causal=True, eps=0.0)
asking = np.append(q[: N - 2], q[-1:], axis=0)  # "too" in the place of "slept"
without_it, _ = rfa.forward(asking, k[:-1], v[:-1], omega, np.full(N - 1, 0.5), causal=True, eps=0.0)
np.testing.assert_allclose(gated[-1], without_it[-1], atol=1e-10)  # the key and value of "too" are ignored
assert abs(with_weight_1(skip_last)[-1] - gated[-1]).max() > 0.01
print("'too' is to be ignored, weight 1 - g:", gated[-1].round(3), " weight 1:", with_weight_1(skip_last)[-1].round(3))

# %% [markdown]
# **3. Where to begin.** A layer should start with a reach of $n$ tokens (90% of the weight), whatever the token. Which
# $w_g$ and $b_g$ should it have? What is wrong with starting at $b_g = 0$ where something 200 tokens back matters?
#
# <details><summary>Solution</summary>
#
# $w_g = 0$ and $g = 0.1^{1/n}$, so $b_g = \log \frac{g}{1 - g}$, about $\log (n / 2.3)$. At $b_g = 0$ the gate is $g =
# 1/2$. What is 200 tokens back has the weight $2^{-201}$, and all gradients that pass through it have this factor too.
# So no gradient opens the gate. (LSTMs start with a large forget bias for the same reason.)
#
# </details>

# %%
for n in (10, 100, 1000):
    g = 0.1 ** (1 / n)
    b = math.log(g / (1 - g))
    same(gate.forward(np.zeros((1, 3)), np.zeros(3), np.array(b))[0], g)
    same(1 - g**n, 0.9)
    assert abs(b - math.log(n / math.log(10))) < 0.15

long = [np.random.default_rng(8).standard_normal((201, width)) for width in (D, D, M)]
wanted = np.zeros((201, M))
wanted[200] = 1  # a loss of the last output alone
seen = []
for g in (0.5, 0.1 ** (1 / 200)):
    _, saved = rfa.forward(*long, omega, np.full(201, g), causal=True, eps=0.0)
    seen.append(abs(rfa.backward(wanted, saved).v[0]).max())
assert seen[0] < 1e-55
assert seen[1] > 1e-4
print(f"gradient of the value 200 tokens back: {seen[0]:.0e} with g = 1/2, {seen[1]:.0e} with a reach of 200")

# %% [markdown]
# ## What to remember
#
# - On the unit sphere softmax's kernel is Gaussian, and sines and cosines of random projections estimate it with an
#   error that is bounded relative to the kernel. The price is that scores lie between $-1$ and $1$, unless $\omega$
#   is scaled.
# - The gradient through $\hat x = x / \lVert x \rVert$ is perpendicular to $x$, and the longer $x$ is, the smaller it
#   is.
# - A gate makes the state a running mean. At distance $d$ the weight has faded to $g^d$ of the nearest one's; the reach
#   is about $2.3 / (1 - g)$ tokens.
# - The gate's gradient asks whether the old state or the new token serves the loss better. A gate that is made from the
#   token learns when to forget.
# - With $1 - g$ as a weight, denominators can be small: mind $\varepsilon$.
#
# **Sources.** Peng et al. (2021), *Random feature attention*. Rahimi and Recht (2007), *Random features for large-scale
# kernel machines*. Cho and Saul (2009), *Kernel methods for deep learning*. Gers, Schmidhuber and Cummins (2000),
# *Learning to forget* (the forget gate).
