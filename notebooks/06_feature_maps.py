# %% [markdown]
# # 6. Feature maps: the exponential's, the quadratic kernel's, $\mathrm{elu} + 1$, and how to keep them in range
#
# How many features does a similarity need, which features are worth their cost, and how are exponential ones kept
# inside the range of float32?
#
# Chapter 5 moved a bracket and left the feature map $\phi$ open. Here you will
#
# 1. write out the exponential's features, which are infinitely many, and see what cutting them off does;
# 2. derive the quadratic kernel's, and look at $\mathrm{elu} + 1$, which approximates nothing;
# 3. keep exponential features inside the range of float32;
# 4. derive the gradient through every map, and count what each costs.
#
# You need chapter 5. $C$ is the number of features of a map, for vectors of $D$ entries. Random features, which sample
# the exponential's, are chapter 9. The example is chapter 1's sentence, *the cat sat on the old mat and the dog slept
# too*.

# %% jupyter={"source_hidden": true}
import math
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from linattn_ref import gradcheck
from linattn_ref.attention import feature_maps, feature_maps_exact, linear, softmax
from linattn_ref.attention.feature_maps import (
    FeatureMap,
    elu_plus_one,
    is_exponential,
    quadratic,
    taylor_exp,
    taylor_gaussian,
)
from linattn_ref.data.twelve_words import WORDS, vectors
from linattn_ref.experiments.features import feature_maps as feature_maps_figure
from linattn_ref.experiments.measuring.counting import count, kept_bytes
from linattn_ref.experiments.publishing import chapter, style

# Numbers of size 1 that have gone through some hundred roundings of 2.2e-16 each agree to this.
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-13)


def draw_inputs(seed, n, width, dtype=np.float64):
    """q, k, v and a gradient of the output, wider or longer than the sentence, with independent normal entries."""
    return np.random.default_rng(seed).standard_normal((4, n, width)).astype(dtype)


def smooth(similarity, q, k, v):
    """Chapter 5's kernel smoother: any similarity, given as a function (..., D), (..., D) -> (...)."""
    weights = similarity(q[:, None, :], k[None, :, :])  # (N, L)
    return weights @ v / weights.sum(axis=1, keepdims=True)  # (N, M)


def similarity_of(feature_map):
    """phi(q) . phi(k), as a function of rows."""

    def similarity(q, k):
        return (feature_map.forward(q)[0] * feature_map.forward(k)[0]).sum(axis=-1)

    return similarity


q, k, v = vectors()
(N, D), M = q.shape, v.shape[1]

# %% [markdown]
# ## The smallest example, by hand
#
# The similarity $(x^\top y + 1)^2$ of $x = (1, 2)$ and $y = (3, -1)$ is $(3 - 2 + 1)^2 = 4$. Multiply the square out,
# and it is an inner product of six features, $1,\ \sqrt2\, x_1,\ \sqrt2\, x_2,\ x_1^2,\ \sqrt2\, x_1 x_2,\ x_2^2$:
#
# $$1 \cdot 1 + 2 \cdot 1 \cdot 3 + 2 \cdot 2 \cdot (-1) + 1 \cdot 9 + 2 \cdot (1 \cdot 2)(3 \cdot (-1)) + 4 \cdot 1
# = 1 + 6 - 4 + 9 - 12 + 4 = 4$$

# %%
features_x, features_y = (quadratic(1.0).forward(np.array(each))[0] for each in ([1.0, 2.0], [3.0, -1.0]))
print("features of x:", features_x.round(3), " of y:", features_y.round(3))
print("their product:", round(features_x @ features_y, 6))
same(features_x @ features_y, 4)

# %% [markdown]
# ## The exponential: infinitely many features
#
# (The numbers (1) to (5) are those of the docstring of `feature_maps_exact`.)
#
# What is $\phi$ of softmax? Put the scale into $q$ and $k$ and take the series
# $e^{x^\top y} = \sum_p (x^\top y)^p / p!$. A power of an inner product is an inner product of tensor powers, as
# multiplying out shows:
#
# $$(x^\top y)^p = \Big(\sum_d x_d y_d\Big)^p = \sum_{d_1 \dots d_p} (x_{d_1} \cdots x_{d_p})(y_{d_1} \cdots y_{d_p})
# = \langle x^{\otimes p}, y^{\otimes p} \rangle$$
#
# The $D^p$ products $x_{d_1} \cdots x_{d_p}$ are the features of order $p$. Each is divided by $\sqrt{p!}$, so that
# both sides share the $p!$. Each order is built from the one before:
#
# $$\phi(x) = (t_0, t_1, t_2, \dots), \qquad t_0 = 1, \qquad t_p = \frac{t_{p-1} \otimes x}{\sqrt p} \qquad (4)$$
#
# The Gaussian kernel is the same, with one more factor on each side:
#
# $$e^{-\lVert x - y \rVert^2 / 2\sigma^2} = e^{-\lVert x \rVert^2 / 2\sigma^2}\, e^{-\lVert y \rVert^2 / 2\sigma^2}
# \sum_{p=0}^\infty \frac{(x^\top y)^p}{p!\, \sigma^{2p}} \qquad\Longrightarrow\qquad
# \phi(x) = e^{-\lVert x \rVert^2 / 2 \sigma^2}\, (t_0, t_1, \dots)(x / \sigma) \qquad (5)$$

# %%
chapter.source(feature_maps_exact._tensor_powers)

# %% [markdown]
# In the sentence *sat* looks for *cat*, with the score 2.23. Let $x$ be its query and $y$ the other's key, both over
# $D^{1/4} = \sqrt 2$, so that $x^\top y$ is the score. Order by order, the terms add up to $e^{2.23} = 9.30$:

# %%
x, y = q[2] / math.sqrt(2), k[1] / math.sqrt(2)  # "sat" and "cat"
powers_x, powers_y = feature_maps_exact._tensor_powers(x, 8), feature_maps_exact._tensor_powers(y, 8)
terms = [t_x @ t_y for t_x, t_y in zip(powers_x, powers_y, strict=True)]
for p, term in enumerate(terms):
    assert powers_x[p].shape == (D**p,)
    same(term, (x @ y) ** p / math.factorial(p))  # order by order

sigma, cut_off = 1.5, taylor_gaussian(8, 1.5)
same(cut_off.forward(x)[0] @ cut_off.forward(y)[0], math.exp(-((x - y) ** 2).sum() / (2 * sigma**2)), atol=1e-6)
print(f"terms of exp({x @ y:.2f}):", np.round(terms, 3), f" sum: {sum(terms):.3f} of {math.exp(x @ y):.3f}")

# %% [markdown]
# **Is there a cleverer, finite $\phi$?** No. Suppose $e^{x^\top y} = \phi(x)^\top \phi(y)$ with $C$ features. Then
# every matrix $e^{x_i^\top y_j}$ has rank at most $C$. Take vectors that differ in one entry only, $x_i = (a_i, 0,
# \dots)$ with different $a_1 \dots a_n$, and $y_j = (j, 0, \dots)$ for $j = 0 \dots n - 1$. The entries are
# $e^{a_i j} = (e^{a_i})^j$: a Vandermonde matrix, whose determinant
# $\prod_{i < l} (e^{a_l} - e^{a_i})$ is not 0. So $C \ge n$, for every $n$. With the Gaussian kernel rows and columns
# are only multiplied by positive numbers, which changes no rank. The feature space is infinite (Katharopoulos et al.
# 2020, section 3.2.1).

# %%
a = np.array([-0.5, 0.1, 0.4, 1.0, 1.3])
vandermonde = np.exp(a[:, None] * np.arange(5))
determinant = math.prod(np.exp(a[l]) - np.exp(a[i]) for l in range(5) for i in range(l))
np.testing.assert_allclose(np.linalg.det(vandermonde), determinant, rtol=1e-10)
assert determinant != 0
print(f"determinant: {np.linalg.det(vandermonde):.4g}, by the product: {determinant:.4g}")

# %% [markdown]
# **Cut off.** So stop after order $p$: $C = 1 + D + \dots + D^p$. (As $x_1 x_2 = x_2 x_1$, only $\binom{D + p}{p}$ of
# the products differ.) How wrong is it? Let $t = x^\top y$ and $E_p(t) = \sum_{r \le p} t^r / r!$. By Taylor's theorem
# with Lagrange's remainder, for some $\xi$ between 0 and $t$
#
# $$e^t - E_p(t) = \frac{e^\xi\, t^{p+1}}{(p+1)!} \qquad\Longrightarrow\qquad
# |e^t - E_p(t)| \le \frac{|t|^{p+1}}{(p+1)!} \max(1, e^t)$$
#
# since $e^\xi$ is largest at an end. In detail:
#
# - **For $t > 0$** the relative error is $\sum_{r > p} e^{-t}\, t^r / r!$: the probability that a Poisson variable of
#   mean $t$ exceeds $p$. At $p = t > 2$ it is a third to a half; one per cent takes about $t + 2.3 \sqrt t$ orders: **a
#   score of $t$ needs more than $t$ orders**.
# - **For $t < 0$** the terms alternate. $e^t$ is tiny, while the terms are as large as before: with few
#   orders the *relative* error is enormous.
# - **Odd orders go negative** (as a polynomial of odd degree must, on the far left); **even orders never do.** Proof:
#   an even $E_p$ has a minimum. There $E_p' = E_{p-1} = 0$, so that $E_p(t) = E_{p-1}(t) + t^p / p! = t^p / p!$ at
#   that point; and this is positive, as $t = 0$ is not such a point ($E_{p-1}(0) = 1$, for $p \ge 2$).

# %%
t = np.linspace(-12, 12, 4801)


def series(t, order):
    return sum(t**r / math.factorial(r) for r in range(order + 1))


for order in range(9):
    error = abs(np.exp(t) - series(t, order))
    bound = abs(t) ** (order + 1) / math.factorial(order + 1) * np.maximum(1, np.exp(t))
    rounding = 1e-15 * np.exp(abs(t))  # of the largest terms
    assert (error <= bound + 10 * rounding).all()  # claim 17: the error of truncation
    assert (series(t, order).min() < 0) == (order % 2 == 1)

for order in (0, 2, 4, 6):
    poisson_tail = 1 - sum(math.exp(-x @ y) * term for term in terms[: order + 1])
    same(1 - series(x @ y, order) / math.exp(x @ y), poisson_tail)
    print(f"'sat' and 'cat', score {x @ y:.2f}: order {order} misses {poisson_tail:.1%} of the exponential")
for score in (2, 4, 8, 50):
    reached = np.cumsum([math.exp(-score) * score**r / math.factorial(r) for r in range(100)])  # by orders 0, 1, ...
    needed = int((reached >= 0.99).argmax())
    assert 0.3 < 1 - reached[score] < 0.5
    assert abs(needed - score - 2.3 * math.sqrt(score)) < 1
    print(f"score {score}: order {score} misses {1 - reached[score]:.0%}, one per cent takes order {needed}")

# %% [markdown]
# The left panel shows this for the features of the package, with the bound as lines.

# %%
results = feature_maps_figure.compute(seed=0)
chapter.show(
    feature_maps_figure.draw,
    results,
    alt="Left: the relative error of the truncated series, above 1 for scores below -3 in all orders shown, tending to "
    "1 for scores well above the order. Middle: counted multiply-adds, slope 2 for softmax and 1 for three feature "
    "maps. Right: the crossover grows as D for elu + 1 and as D squared for quadratic maps",
)
for order, errors in zip(results.orders, results.errors, strict=True):
    beyond = feature_maps_figure.remainder_bound(results.scores, order) / np.exp(results.scores)
    assert (errors <= beyond + 1e-15 * math.exp(9 + 8)).all()  # rounding: products of features up to e^9, over e^-8
    assert (errors[results.scores < -4] > 1).all()

# %% [markdown]
# The sentence has no score below $-1$. To see what happens there, use the truncated exponential as a similarity on
# chapter 5's circle: sixty keys $k = (\cos \theta, \sin \theta)$, each with a noisy value. There are queries all
# around, with scores $t = 4 \cos(\text{angle})$. The upper row shows the similarity to the query at angle 0, the lower
# row what it makes of the noisy points; softmax's are dashed. Odd orders turn negative: their output is no longer an
# average. Even orders remain averages, but low ones look *behind* themselves, at the keys with the lowest scores. Order
# 8 is as good as softmax. It has 511 features, for vectors of two entries and 60 keys.


# %%
def on_circle(angle):
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


rng = np.random.default_rng(1)
key_angles = np.sort(rng.uniform(-math.pi, math.pi, 60))
circle_keys, circle_values = on_circle(key_angles), (np.sin(2 * key_angles) + 0.25 * rng.standard_normal(60))[:, None]
angles = np.linspace(-math.pi, math.pi, 401)
circle_queries = on_circle(angles)


def draw_order(axes, order):
    phi = taylor_exp(order).forward
    keys, queries = phi(2 * circle_keys)[0], phi(2 * circle_queries)[0]
    upper, lower = axes
    upper.plot(angles, queries @ phi(np.array([2.0, 0.0]))[0])
    upper.plot(angles, np.exp(4 * np.cos(angles)), "--", color=style.GREY)
    upper.set_yscale("symlog", linthresh=1)
    upper.set(ylim=(-10, 100), yticks=[-10, 0, 10, 100], ylabel="similarity")
    weights = queries @ keys.T
    smoothed = (weights @ circle_values / weights.sum(axis=1, keepdims=True))[:, 0]
    exact = smooth(lambda q, k: np.exp(4 * (q * k).sum(axis=-1)), circle_queries, circle_keys, circle_values)
    lower.plot(key_angles, circle_values, ".", color=style.GREY, markersize=2)
    lower.plot(angles, smoothed, color=style.VERMILLION)
    lower.plot(angles, exact, "--", color=style.GREY)
    lower.set(ylim=(-3, 3), xlabel="angle", ylabel="values, output", xticks=[-3, 0, 3])
    upper.label_outer()
    lower.label_outer()


chapter.explore(
    draw_order,
    (1, 2, 3, 4, 8),
    name="order",
    slider=tuple(range(11)),
    rows=2,
    height=0.44,
    sharex=True,
    alt="Truncated exponentials of order 1, 2, 3, 4 and 8 beside the exponential, and the curves they make of points",
)


def on_the_circle(order):
    phi_q, phi_k = taylor_exp(order).forward(2 * circle_queries)[0], taylor_exp(order).forward(2 * circle_keys)[0]
    return phi_q @ phi_k.T, phi_q.shape[1]


for order in (1, 2, 3, 4, 8):
    weights, features = on_the_circle(order)
    assert (weights.min() < 0) == (order % 2 == 1)
    assert features == 2 ** (order + 1) - 1
assert series(-4.0, 2) > series(-1.0, 2) > math.exp(-1)  # order 2 looks behind itself
exact_weights = np.exp(4 * circle_queries @ circle_keys.T)
exact, by_series = (w @ circle_values / w.sum(axis=1, keepdims=True) for w in (exact_weights, weights))
assert abs(by_series - exact).max() < 0.01  # order 8

# %% [markdown]
# Next, attention: first on the sentence, then on 64 random tokens of width 16. The error falls with the order, and each
# order multiplies the number of features by $D$. For a head of $D = 64$, order 2 has 4161 features and order 4 has 17
# million: linear attention cannot *come close* to softmax in this way.
#
# It is used all the same, with the order and the width kept small. **Based** (Arora et al. 2024) projects queries and
# keys to $D = 16$ and takes the second order: $1 + 16 + 16^2 = 273$ features per head, for which its authors wrote
# their own kernels. It adds a window of exact softmax attention for what is near. Like $\mathrm{elu} + 1$ below, it is
# a similarity that a network is trained with, and an even order is never negative.

# %%
rows, errors, random_16 = [], {}, draw_inputs(7, 64, 16)[:3]
for (q_w, k_w, v_w), orders in (((q, k, v), (2, 4, 6, 8)), (random_16, (2, 4))):
    target, _ = softmax.forward(q_w, k_w, v_w)
    width, root = q_w.shape[1], q_w.shape[1] ** 0.25
    for order in orders:
        approximate, _ = linear.forward(q_w / root, k_w / root, v_w, feature_map=taylor_exp(order), eps=0.0)
        errors[width, order] = float(abs(approximate - target).max())
        rows.append((width, order, taylor_exp(order).width(width), errors[width, order]))
assert all(errors[4, later] < errors[4, earlier] / 2 for earlier, later in pairwise((2, 4, 6, 8)))
assert errors[16, 2] > 0.1  # Based's: far from softmax
assert taylor_exp(2).width(64) == 4161
assert 17e6 < taylor_exp(4).width(64) < 18e6
chapter.table(("D", "order", "features", "largest error of the output"), rows)


def features_of_based(x):
    """As in its code, `models/mixers/linear_attention.py`: 1, x / D^(1/4), products of two entries / sqrt(2 D)."""
    products = (x[..., :, None] * x[..., None, :]).reshape(*x.shape[:-1], -1)
    d = x.shape[-1]
    return np.concatenate([np.ones_like(x[..., :1]), x / d**0.25, products / math.sqrt(2) / math.sqrt(d)], axis=-1)


np.testing.assert_allclose(features_of_based(q_w), taylor_exp(2).forward(q_w / 16**0.25)[0], rtol=1e-12)
assert features_of_based(q_w).shape[-1] == taylor_exp(2).width(16) == 273

# %% [markdown]
# ## The quadratic kernel: about $D^2 / 2$ features, exact
#
# A polynomial kernel *is* a finite sum. Multiply out, and put the terms with $i < j$ and $i > j$ together, which are
# equal:
#
# $$(x^\top y + c)^2 = c^2 + 2c \sum_i x_i y_i + \sum_{ij} x_i x_j\, y_i y_j
# = c \cdot c + \sum_i (\sqrt{2c}\, x_i)(\sqrt{2c}\, y_i) + \sum_i x_i^2\, y_i^2 +
# \sum_{i < j} (\sqrt 2\, x_i x_j)(\sqrt 2\, y_i y_j)$$
#
# Read off:
#
# $$\phi(x) = \big(c,\; \sqrt{2c}\, x_i,\; x_i^2,\; \sqrt 2\, x_i x_j \text{ for } i < j\big), \qquad
# C = 1 + D + \frac{D (D + 1)}{2} \qquad (3)$$

# %%
chapter.source(feature_maps_exact.Quadratic, doc=False)

# %%
for c in (0.0, 0.7, 2.0):
    phi_q, phi_k = quadratic(c).forward(q)[0], quadratic(c).forward(k)[0]
    same(phi_q @ phi_k.T, (q @ k.T + c) ** 2)  # claim 18
    assert phi_q.shape[1] == 1 + D + D * (D + 1) // 2 == math.comb(D + 2, 2)
    print(f"'sat' and 'cat', {phi_q.shape[1]} features: {phi_q[2] @ phi_k[1]:.4f} = ({q[2] @ k[1]:.2f} + {c})²")

# %% [markdown]
# **Cost: $O(N D^2 M)$, worth it when $N > D^2$** (Katharopoulos et al. 2020, section 3.2.1). By chapter 5 the crossover
# is at $N = C\,(2M + 1)/(D + M)$. For $M = D$ that is about $C$, and $C$ is about $D^2 / 2$: the quadratic kernel pays
# *earlier* than stated, from half as many tokens. (In very narrow heads the terms of lower order outweigh that: at $D =
# 4$ it takes 17 tokens, not 16.) The paper counts $D^2$ features, $x_i x_j$ and $x_j x_i$ each, as `taylor_exp(2)`
# does, and then the rule is right. In the right panel of the figure above both are found by counting, with no formula:
# for each width the least $N$ at which linear attention's count is below softmax's.

# %%
rows = []
for i, d in enumerate(int(each) for each in results.widths):
    by_counting = {phi.name: int(results.crossovers[phi.name][i]) for phi in feature_maps_figure.MAPS}
    for phi in feature_maps_figure.MAPS:
        formula = feature_maps_figure.crossover_formula(phi.width(d), d, d)
        assert by_counting[phi.name] == math.floor(formula) + 1  # claims 16 and 18
    rows.append((d, by_counting["elu_plus_one"], by_counting["quadratic(1)"], d**2, by_counting["taylor_exp(2)"]))
chapter.table(("D = M", "elu + 1", "quadratic", "D²", "all products (taylor_exp(2))"), rows)
assert d**2 / 2 < by_counting["quadratic(1)"] < 0.6 * d**2  # half of D², at D = 32
assert d**2 < by_counting["taylor_exp(2)"] < 1.1 * d**2

# %% [markdown]
# Multiply-adds are counted, not timed: they cross at the same point on any machine. The sentence, with $D = 4$, is a
# little too short for the quadratic kernel to pay. With three of the four entries it pays from its last word on. We
# count that by hand too, in loops over single numbers, with the features typed out one by one:


# %%
def by_hand_softmax(q, k, v):
    """Products that scores and weighted values take, one by one."""
    return sum(1 for _ in np.ndindex(len(q), len(k), q.shape[1])) + sum(1 for _ in np.ndindex(len(q), *v.shape))


def by_hand_quadratic(q, k, v, c=1.0):
    """(q.k + c)^2 by its features, number by number: the output, and the products after the features are made."""

    def features(x):  # x_i^2, sqrt(2) x_i x_j, sqrt(2c) x_i, c
        squares, mixed = [a * a for a in x], [math.sqrt(2) * x[i] * x[j] for i in range(len(x)) for j in range(i)]
        return [*squares, *mixed, *(math.sqrt(2 * c) * a for a in x), c]

    phi_q, phi_k, products = [features(x) for x in q], [features(x) for x in k], 0
    s, z = np.zeros((len(phi_k[0]), v.shape[1])), np.zeros(len(phi_k[0]))
    for phi, row in zip(phi_k, v, strict=True):
        for c_, feature in enumerate(phi):
            z[c_] += feature
            for m, value in enumerate(row):
                s[c_, m] += feature * value
                products += 1
    out = np.zeros((len(q), v.shape[1]))
    for i, phi in enumerate(phi_q):
        denominator = 0.0
        for c_, feature in enumerate(phi):
            denominator += feature * z[c_]
            products += 1
            for m in range(v.shape[1]):
                out[i, m] += feature * s[c_, m]
                products += 1
        out[i] /= denominator
    return out, products


squared = partial(linear.forward, feature_map=quadratic(1.0))
by_page = [count(form, q, k, v).multiply_adds for form in (squared, softmax.forward)]
assert by_page == [N * 15 * (2 * M + 1), N * N * (D + M)]  # claim 18: O(N D^2 M)
assert count(quadratic().forward, q).elementwise <= 2 * N * 15  # making the features: two products each at most
print(f"the sentence, D = {D}: {by_page[0]} multiply-adds with quadratic features, {by_page[1]} with softmax")
d = 3
for n in range(1, N + 1):
    q_n, k_n, v_n = q[:n, :d], k[:n, :d], v[:n]
    out, products = by_hand_quadratic(q_n, k_n, v_n)
    same(out, smooth(lambda q, k: ((q * k).sum(axis=-1) + 1) ** 2, q_n, k_n, v_n))
    assert products == count(squared, q_n, k_n, v_n).multiply_adds
    if products < by_hand_softmax(q_n, k_n, v_n):
        break
assert n == feature_maps_figure.crossover(quadratic(1.0), d, d) == 12  # claim 18; at the sentence's last word
assert d**2 < n < 1.5 * d**2  # C = 10: at this width not yet half of D^2
print(f"D = {d}: {products} products against {by_hand_softmax(q_n, k_n, v_n)} from N = {n} on; D^2 = {d**2}")

# %% [markdown]
# As a similarity the square has an unusual property: it is smallest at $x^\top y = -c$, and grows again below that.
# Keys that point *away* from the query get weight.

# %%
towards = np.array([1.0, 0.0, -1.0, -3.0])  # x.y
np.testing.assert_array_equal((towards + 1) ** 2, [4, 1, 0, 4])  # c = 1: away by 3 weighs as much as towards by 1
print("x.y:", towards, " (x.y + 1)²:", (towards + 1) ** 2)

# %% [markdown]
# ## $\mathrm{elu} + 1$: $D$ features, positive
#
# The paper's choice (Katharopoulos et al. 2020, equation 7) does not approximate anything. It is a positive function,
# applied to each entry, so $C = D$ and the cost is $O(N D M)$:
#
# $$\phi(x) = \mathrm{elu}(x) + 1 = \begin{cases} x + 1 & x > 0 \\ e^x & x \le 0 \end{cases} \qquad (1)$$
#
# Why not simply a ReLU, with a small constant so that no denominator is 0?
#
# $$\phi(x) = \max(x, 0) + 10^{-3} \qquad (2)$$
#
# The paper argues that its derivative is 0 wherever $x < 0$: a feature that is off gets no gradient. $\mathrm{elu} + 1$
# has a slope everywhere, and both branches meet at 0 with the value 1 and the slope 1.

# %%
chapter.source(feature_maps_exact.EluPlusOne)

# %%
x = np.linspace(-5, 5, 1001)
value, saved_value = elu_plus_one.forward(x)
slope = elu_plus_one.backward(np.ones_like(x), saved_value)
assert (value > 0).all()
assert (slope > 0).all()
assert (np.diff(value) > 0).all()
same(elu_plus_one.forward(np.array([-1e-9, 0.0, 1e-9]))[0], np.ones(3), atol=1.1e-9)
assert (feature_maps.relu.backward(np.ones_like(x), feature_maps.relu.forward(x)[1])[x < 0] == 0).all()

cost = count(partial(linear.forward, feature_map=elu_plus_one), q, k, v)
assert cost.multiply_adds == N * D * (2 * M + 1)  # claim 19: O(N D M)
print(f"the sentence: {D} features, {cost.multiply_adds} multiply-adds")

# %% [markdown]
# ### Temperature: what $\mathrm{elu} + 1$ cannot do
#
# Divide queries and keys by $\sqrt T$ each, so that scores are divided by $T$. Softmax moves between the best key
# alone ($T \to 0$) and all keys alike ($T \to \infty$), as chapter 1 showed. Now $\mathrm{elu} + 1$ with $\lambda = 1
# / \sqrt T$: as $\lambda \to \infty$,
#
# $$\frac{\phi(\lambda x)}{\lambda} \to \max(x, 0), \qquad\text{so}\qquad
# P_{ij} \to \frac{\max(q_i, 0)^\top \max(k_j, 0)}{\sum_l \max(q_i, 0)^\top \max(k_l, 0)}$$
#
# as the two factors $\lambda$ cancel, if the denominator is not 0: if the query and some key are positive in the same
# entry. In the limit, the keys that share a positive entry with the query take all the weight. Among them **there is a
# limit to how sharp it gets**: as the features grow in proportion to $\lambda$, their ratios stay. If there is only one
# such key, it takes all: for the query $(1, -1)$ and the keys $(1, -1)$ and $(-1, 1)$, the first. An exponential is
# different: its ratios grow without bound. (So do those of the negative entries, $e^{\lambda x}$. They decide only
# where no positive entries meet. For $\lambda \to 0$ all features are 1, and all keys alike.) A model with
# $\mathrm{elu} + 1$ must live with softer attention, or learn other directions. We cool the sentence down, with both
# similarities:

# %%
q_relu, k_relu = np.maximum(q, 0), np.maximum(k, 0)
limit = q_relu @ k_relu.T / (q_relu @ k_relu.T).sum(axis=1, keepdims=True)


def softmax_at(temperature):
    return softmax.matrix(q, k, scale=1 / (temperature * math.sqrt(D)))


def linear_at(temperature):
    root = math.sqrt(temperature) * D**0.25  # scores as softmax's
    return linear.matrix(q / root, k / root)


def entropy(p):
    """Of each row, in nats."""
    return -(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1)


same(linear_at(1e-14), limit, atol=1e-6)  # 1 / lambda is 1e-7
assert entropy(softmax_at(1e-3)).mean() < 0.01
assert entropy(limit).mean() > 0.75 * math.log(N)
for at in (softmax_at, linear_at):
    same(at(1e14), np.full((N, N), 1 / N), atol=1e-6)
coldest = softmax_at(1e-3), limit
print("mean entropy as T falls to 0: softmax {:.2f}, elu + 1 {:.2f}".format(*(entropy(p).mean() for p in coldest)))
print("weight of 'sat' on 'dog':     softmax {:.2f}, elu + 1 {:.2f}".format(*(p[2, 9] for p in coldest)))
negative = np.array([[-1.0, -2.0]]), np.array([[-1.0, -3.0], [-2.0, -1.0]])  # a query, two keys: no positive entries
only_one = np.array([[1.0, -1.0]]), np.array([[1.0, -1.0], [-1.0, 1.0]])  # shares a positive entry
for pair in (negative, only_one):
    warm, cold = (linear.matrix(*(scale * x for x in pair), eps=0.0)[0, 0] for scale in (1, 10))
    assert cold > 0.999 > 0.75 > warm


# %%
def draw_temperature(axes, temperature):
    for each, p in zip(axes, (softmax_at(temperature), linear_at(temperature)), strict=True):
        each.imshow(p, vmin=0, vmax=1, aspect="equal")
        each.grid(False)
        each.set(xticks=[], yticks=range(N), yticklabels=WORDS)
        each.tick_params(labelsize=6, length=0)
        each.label_outer()
        each.set_xlabel(f"entropy {entropy(p).mean():.2f}")
    if axes[0].get_subplotspec().is_first_col():
        axes[0].set_ylabel("softmax")
        axes[1].set_ylabel("elu + 1")


chapter.explore(
    draw_temperature,
    (0.01, 0.1, 0.3, 1, 10),
    name="T",
    slider=[float(f"{t:.2g}") for t in np.geomspace(0.001, 20, 27)],
    rows=2,
    height=0.5,
    alt="Attention matrices at five temperatures: softmax goes from one bright entry per row to an even field, elu + 1 "
    "shows a soft pattern that never becomes one entry per row",
)

# %% [markdown]
# ## Random features, and keeping exponentials in range
#
# Where there are infinitely many features, one can also draw some of them at random. Chapter 9 derives them. Here we
# only need that they are exponentials, such as $e^{\omega^\top x - \lVert x \rVert^2/2}$ or $e^{\lVert x \rVert^2/2}
# \sin \omega^\top x$ with normal directions $\omega$. These leave the range of float32 soon: it ends at $e^{88.7}$
# above and at about $e^{-103}$ below. With $D = 16$ and entries of size 5, $\lVert x \rVert^2 / 2 = 200$. The first
# kind underflows to 0 in every feature, and $0/0$ is not a number; the second overflows, and $\infty/\infty$ is not one
# either.
#
# In softmax the cure was to subtract the maximum of a row. Here a row of $P$ is never formed, and what is subtracted
# from a key's exponent must be the same for all queries. Write $\phi_c(x) = e^{a_c(x)} b_c(x)$. For *any* numbers
# $r_c$, one per feature, and $t_i$, one per query,
#
# $$\sum_c \phi_c(q_i)\, \phi_c(k_j) = e^{t_i} \sum_c
# \Big[e^{a_c(q_i) + r_c - t_i}\, b_c(q_i)\Big] \Big[e^{a_c(k_j) - r_c}\, b_c(k_j)\Big]$$
#
# ($r_c$ is added on one side and subtracted on the other). The factor $e^{t_i}$ is common to numerator and
# denominator of row $i$. So the brackets may be used as features in place of $\phi$, **exactly**, whatever $r$ and
# $t$ are. Now choose them:
#
# $$r_c = \max_j a_c(k_j), \qquad t_i = \max_c \big(a_c(q_i) + r_c\big)$$
#
# No exponent is above 0: nothing overflows. And there is a feature $c$ at which $t_i$ is attained, and a key at which
# that $r_c$ is attained: there both brackets have the exponent 0. If all $b_c$ are 1, that term is 1. So the
# denominator is at least 1, and underflow of all others does not matter. The sentence's vectors are too short for any
# of this, so the cell takes random ones of 16 entries:


# %%
def stabilised(phi, q, k, v):
    """Linear attention, not causal, with features exp(a), by the two formulas above."""
    (a_q, _), (a_k, _) = phi.split(q), phi.split(k)  # (N, C), (L, C)
    r = a_k.max(axis=0)  # (C,)
    t = (a_q + r).max(axis=1, keepdims=True)  # (N, 1)
    phi_q, phi_k = np.exp(a_q + r - t), np.exp(a_k - r)
    s, z = phi_k.T @ v, phi_k.sum(axis=0)  # (C, M), (C,)
    return phi_q @ s / (phi_q @ z)[:, None], phi_q @ z


def by_logarithms(phi, q, k, v):
    """The same in O(N L C): the logarithm of each similarity, and then a softmax."""
    exponent = phi.split(q)[0][:, None] + phi.split(k)[0][None]  # (N, L, C)
    log_similarity = np.logaddexp.reduce(exponent, axis=-1)  # (N, L)
    weights = np.exp(log_similarity - log_similarity.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ v


limits = np.finfo(np.float32)
assert abs(math.log(limits.max) - 88.7) < 0.05
assert abs(math.log(limits.smallest_subnormal) + 103.3) < 0.05

width = 16
omega = feature_maps.gaussian(32, width, np.random.default_rng(17))  # float64; a map takes it in the dtype of x
positive_map, trig_map = feature_maps.favor_positive(omega), feature_maps.favor_trig(omega)
q_16, k_16, v_16, _ = draw_inputs(18, 30, width)

entries_of_5 = np.float32(5) * np.sign(q_16).astype(np.float32)  # |x|^2 / 2 = 200
assert (positive_map.forward(entries_of_5)[0] == 0).all()  # underflow
with np.errstate(over="ignore"):
    assert np.isinf(trig_map.forward(entries_of_5)[0]).all()  # overflow

rows = []
for size in (1, 5, 30):
    exact = by_logarithms(positive_map, size * q_16, size * k_16, v_16)
    stable, denominator = stabilised(positive_map, size * q_16, size * k_16, v_16)
    package, _ = linear.forward(size * q_16, size * k_16, v_16, feature_map=positive_map, eps=0.0)
    same(package, stable)
    # The exponents, of size |x|^2, are rounded before exp; so the outputs are off by that times eps.
    same(package, exact, atol=1e-14 * (size**2 * width + 1))
    assert (denominator >= 1).all()
    short = [x.astype(np.float32) for x in (size * q_16, size * k_16, v_16)]
    short_out, short_saved = linear.forward(*short, feature_map=positive_map, eps=0.0)
    assert short_out.dtype == np.float32
    assert np.isfinite(short_out).all()
    largest = max(abs(positive_map.split(size * x)[0]).max() for x in (q_16, k_16))
    rows.append((size, largest, denominator.min(), float(abs(short_out - exact).max())))
    trig, _ = linear.forward(*short, feature_map=trig_map, eps=0.0)  # a factor of either sign
    assert np.isfinite(trig).all()  # in range; of no worth for long vectors, see chapter 9
chapter.table(("size of q, k", "largest exponent", "least denominator", "largest error in float32"), rows)
assert 1.5e-5 < np.spacing(np.float32(rows[1][1])) / 2 < 1.6e-5
assert 1e-6 < rows[1][3] < 1e-4
assert rows[2][3] < 1e-6

# %% [markdown]
# The last column shows what a scale cannot do. An exponent of 416 is rounded in float32, by up to $1.5 \cdot 10^{-5}$,
# before any exponential is taken. That is a relative error of the weight, and it explains the second row. (In the third
# row each query has all its weight on one key, and nothing is left to be wrong.)
#
# Three details are easy to get wrong:
#
# - **One maximum for all features is not enough.** Say there are two features; the only key has the exponents
#   $(200, 0)$ and the query $(-200, 0)$. Both terms of the sum are $e^0 = 1$. With the single maximum 200 the key's
#   features become $(1, e^{-200})$ and the query's $(e^{-200}, 1)$, and in float32 both products are 0.
# - **$\varepsilon$ must be 0.** $(n_i, d_i)$ may be multiplied by $e^{-t_i}$, but $n_i / (d_i + \varepsilon)$ may not:
#   the weight of $\varepsilon$ would depend on the largest key. The package refuses it.
# - **The exponent is all of $\omega^\top x - \lVert x \rVert^2/2$**, not $\omega^\top x$ alone; what remains outside
#   the maximum can overflow or underflow by itself.
#
# For a causal query $r$ must not depend on later keys: see chapter 7.

# %%
key_exponent, query_exponent = np.float32([200, 0]), np.float32([-200, 0])
one_maximum = np.exp(key_exponent - 200) * np.exp(query_exponent - query_exponent.max())
assert one_maximum.sum() == 0
r = key_exponent  # the maximum over the keys, of which there is one
a_maximum_each = np.exp(key_exponent - r) * np.exp(query_exponent + r - (query_exponent + r).max())
assert a_maximum_each.sum() == 2

try:
    linear.forward(q_16, k_16, v_16, feature_map=positive_map, eps=1e-6)
    raise AssertionError("an eps beside an exponential map was accepted")
except ValueError as error:
    print(error)

# %% [markdown]
# ## The gradient through a feature map
#
# Chapter 5's backward pass ends with $d\phi(q_i)$ and $d\phi(k_j)$. $\phi$ acts on each row by itself; let $x$ be a
# row and $d\phi$ its gradient.
#
# **$\mathrm{elu} + 1$.** $\phi' = 1$ for $x > 0$ and $\phi' = e^x = \phi$ for $x \le 0$. As $\phi > 1$ in the first
# case and $\phi \le 1$ in the second, both are $\min(\phi, 1)$: only $\phi$ is kept. **ReLU** (2): 1 or 0.
#
# **Quadratic**, (3). The constant passes nothing on. The linear features pass on $\sqrt{2c}\, d\phi_{\text{linear}}$.
# Let $g_{ij}$, $i \le j$, be the gradient of the product $x_i x_j$ (that of the feature, times its factor 1 or $\sqrt
# 2$), and 0 for $i > j$. The entry $x_l$ occurs in $x_l x_j$, with the derivative $x_j$, and in $x_i x_l$, with the
# derivative $x_i$. In $x_l^2$ both count, and $2 x_l$ is right:
#
# $$dx_l = \sqrt{2c}\, d\phi_l + \sum_j g_{lj} x_j + \sum_i g_{il} x_i
# \quad\Longrightarrow\quad dx = \sqrt{2c}\, d\phi_{\text{linear}} + (g + g^\top)\, x$$
#
# **Truncated exponential**, (4). The entries of $t_p$ are $t_{p-1, a}\, x_b / \sqrt p$. From the highest order
# down, $t_{p-1}$ and $x$ receive
#
# $$dt_{p-1, a} \mathrel{+}= \frac{1}{\sqrt p} \sum_b dt_{p, ab}\, x_b, \qquad
# dx_b \mathrel{+}= \frac{1}{\sqrt p} \sum_a t_{p-1, a}\, dt_{p, ab}$$
#
# **Gaussian**, (5). With $u = x / \sigma$ and $h = e^{-\lVert u \rVert^2 / 2}$ we have $\phi = h\, t(u)$, and apply the
# product rule. $t$ receives $h\, d\phi$, which goes on as above, and $\partial h / \partial u = -u\, h$ contributes $-u
# \sum_c \phi_c\, d\phi_c$. The sum of both, divided by $\sigma$, is $dx$.
#
# (Random features follow in chapters 9 and 10.)
#
# **And the scale?** With $\varepsilon = 0$ the output does not depend on $r_c$ and $t_i$ at all. So although they are
# computed from the inputs, as maxima with kinks, no gradient goes through them: they are constants. The gradient
# above is used with the scaled features as it stands, since $e^{a - r}$ is its own derivative just as $e^a$ is.

# %%
chapter.source(feature_maps_exact._tensor_powers_backward, doc=False)

# %% [markdown]
# ### Checked
#
# We check every map alone, and every positive one in attention, against finite differences.

# %%
omega = feature_maps.gaussian(6, D, np.random.default_rng(19))
maps = [
    elu_plus_one,
    feature_maps.relu,
    quadratic(0.7),
    taylor_exp(4),
    taylor_gaussian(4, 1.3),
    feature_maps.favor_positive(omega),
    feature_maps.favor_trig(omega),
    feature_maps.favor_hyperbolic(omega),
    feature_maps.favor_relu(omega),
    feature_maps.rfa_gaussian(omega),
    feature_maps.rfa_arccos(omega),
]
rows = []
for phi in maps:
    rng = np.random.default_rng(20)
    alone = gradcheck.check_elementwise(phi.forward, phi.backward, q, rng=rng)
    alone.assert_ok()
    if not phi.positive:  # a denominator may be near 0, where no difference quotient is of use
        rows.append((phi.name, phi.width(D), alone.worst.absolute, "–"))
        continue
    forward = partial(linear.forward, feature_map=phi, eps=0.0 if is_exponential(phi) else 1e-6)
    whole = gradcheck.check_elementwise(forward, linear.backward, q, k, v, rng=rng)
    whole.assert_ok()
    rows.append((phi.name, phi.width(D), alone.worst.absolute, whole.worst.absolute))
chapter.table(("map", "C, D = 4", "alone: worst difference", "in attention: worst difference"), rows)


# %% [markdown]
# ## What each costs
#
# Take one head and a longer text: $N = L = 512$ random tokens with $D = M = 16$, in float32. All numbers are counted
# while the code runs. The last column is the least $N = L$ at which a forward pass takes fewer multiply-adds than
# softmax's. As $C$ grows, linear attention stays linear, and ceases to be cheap.

# %%
tokens, width = 512, 16
arrays = draw_inputs(23, tokens, width, np.float32)


def costs_of(forward, backward):
    def both(q, k, v, d_out):
        _, saved = forward(q, k, v)
        backward(d_out, saved)

    one = count(forward, *arrays[:3])
    return one.multiply_adds, count(both, *arrays).multiply_adds, one.exponentials, kept_bytes(forward(*arrays[:3])[1])


omega = feature_maps.gaussian(64, width, np.random.default_rng(24), dtype=np.float32)
rows = [("softmax, dense", "infinite", "–", *costs_of(softmax.forward, softmax.backward), "–")]
for phi in (elu_plus_one, quadratic(1.0), taylor_exp(2), taylor_exp(3), feature_maps.favor_positive(omega)):
    forward = partial(linear.forward, feature_map=phi, eps=0.0 if is_exponential(phi) else 1e-6)
    C, costs = phi.width(width), costs_of(forward, linear.backward)
    # omega x, for queries and keys; |x|^2 / 2 is one more column of x
    projection = 2 * tokens * C * (width + 1) if is_exponential(phi) else 0
    assert costs[0] == tokens * C * (2 * width + 1) + projection  # linear in N, so the crossover follows:
    crossover = math.floor(costs[0] / tokens / (2 * width)) + 1
    if not is_exponential(phi):
        assert crossover == math.floor(feature_maps_figure.crossover_formula(C, width, width)) + 1
    rows.append((phi.name, C, C * (width + 1), *costs, crossover))
assert rows[0][3] == 2 * tokens**2 * width
assert rows[0][5] == tokens**2
chapter.table(
    (
        "similarity",
        "C",
        "numbers in S and Z",
        "multiply-adds forward",
        "forward + backward",
        "exponentials forward",
        "bytes kept",
        "pays from N =",
    ),
    rows,
)

# %% [markdown]
# ## Exercises
#
# A sheet of homework goes further: `linattn-ref assignment random_features --out DIR` (see [the course](README.md)).
#
# **1. New kernels from old.** Show that the product of two similarities $\phi_a(x)^\top \phi_a(y)$ and
# $\phi_b(x)^\top \phi_b(y)$ is an inner product of $C_a C_b$ features, and write the map with its gradient. Which map
# gives $(x^\top y + 1)^4$? Is it the smallest that does?
#
# <details><summary>Solution</summary>
#
# Multiply the sums out: $\sum_a \phi_a(x) \phi_a(y) \sum_b \phi_b(x) \phi_b(y) = \sum_{ab} [\phi_a(x) \phi_b(x)]\,
# [\phi_a(y) \phi_b(y)]$. The features are all products. (The *sum* of two similarities has both lists of features,
# one after the other.) The product rule yields the gradient. $\phi_a$ receives $\sum_b d\phi_{ab}\, \phi_b$, and
# $\phi_b$ receives $\sum_a d\phi_{ab}\, \phi_a$. Both pass theirs on to $x$, where they add up.
#
# $(x^\top y + 1)^4$ is the product of the quadratic kernel with itself. For $D = 4$ that makes $15^2 = 225$ features.
# The monomials of degree up to 4 in four variables are only $\binom{8}{4} = 70$, and as the rank of the Gram matrix of
# many points shows, fewer will not do.
#
# </details>


# %%
class Product(NamedTuple):
    """A feature map as the package takes them: a name, whether it is positive, a width, and a pair."""

    a: FeatureMap
    b: FeatureMap

    @property
    def name(self):
        return f"{self.a.name} * {self.b.name}"

    @property
    def positive(self):
        return self.a.positive and self.b.positive

    def width(self, d):
        return self.a.width(d) * self.b.width(d)

    def forward(self, x):
        (phi_a, saved_a), (phi_b, saved_b) = self.a.forward(x), self.b.forward(x)
        phi = phi_a[..., :, None] * phi_b[..., None, :]  # (..., C_a, C_b)
        return phi.reshape(*x.shape[:-1], -1), (phi_a, saved_a, phi_b, saved_b)

    def backward(self, d_phi, saved):
        phi_a, saved_a, phi_b, saved_b = saved
        d = d_phi.reshape(*d_phi.shape[:-1], phi_a.shape[-1], phi_b.shape[-1])
        d_a, d_b = (d @ phi_b[..., None])[..., 0], (phi_a[..., None, :] @ d)[..., 0, :]
        return self.a.backward(d_a, saved_a) + self.b.backward(d_b, saved_b)


quartic = Product(quadratic(1.0), quadratic(1.0))
x, y = np.random.default_rng(25).standard_normal((2, 100, 4))
np.testing.assert_allclose(similarity_of(quartic)(x, y), ((x * y).sum(axis=1) + 1) ** 4, rtol=1e-12, atol=1e-11)
gradcheck.check_elementwise(quartic.forward, quartic.backward, q, rng=np.random.default_rng(26)).assert_ok()
same(
    linear.forward(q, k, v, feature_map=quartic, eps=0.0)[0],
    smooth(lambda q, k: ((q * k).sum(axis=-1) + 1) ** 4, q, k, v),
)
assert quartic.width(4) == 225
assert np.linalg.matrix_rank((x @ x.T + 1) ** 4) == math.comb(8, 4) == 70
print(f"{quartic.name}: {quartic.width(4)} features, rank {np.linalg.matrix_rank((x @ x.T + 1) ** 4)}")

# %% [markdown]
# **2. Order 2 with fewer features.** `taylor_exp(2)` has $1 + D + D^2$ features. Show that its similarity,
# $1 + t + \frac{t^2}{2}$ with $t = x^\top y$, is $\frac12 (t + 1)^2 + \frac12$. How many features does it need, then?
# Is it ever small?
#
# <details><summary>Solution</summary>
#
# $\frac12 (t + 1)^2 + \frac12 = \frac12 t^2 + t + 1$. So the features are those of the quadratic kernel with $c = 1$,
# over $\sqrt 2$, and one constant, $\frac{1}{\sqrt 2}$. The quadratic kernel has a constant already, so the two can
# be merged. That makes $\binom{D + 2}{2}$ features: 153 instead of 273 at $D = 16$.
#
# It is never below $\frac12$. Softmax lets a query ignore a key. With this similarity, every key gets at least half the
# weight of a key that is orthogonal to the query.
#
# </details>

# %%
x, y = np.random.default_rng(27).standard_normal((2, 100, 16))
t = (x * y).sum(axis=1)
by_tensors = similarity_of(taylor_exp(2))(x, y)
np.testing.assert_allclose(by_tensors, (t + 1) ** 2 / 2 + 1 / 2, rtol=1e-12)
phi_x, phi_y = (quadratic(1.0).forward(each)[0] / math.sqrt(2) for each in (x, y))
for phi in (phi_x, phi_y):
    phi[:, 0] = 1.0  # the constants 1 / sqrt(2) of both: 1/2 + 1/2
np.testing.assert_allclose((phi_x * phi_y).sum(axis=1), by_tensors, rtol=1e-12)
assert (taylor_exp(2).width(16), phi_x.shape[1]) == (273, 153)
assert by_tensors.min() >= 1 / 2
print(
    f"{taylor_exp(2).width(16)} features or {phi_x.shape[1]}: the first similarity is {by_tensors[0]:.4f}, and", end=" "
)
print(f"{phi_x[0] @ phi_y[0]:.4f}")

# %% [markdown]
# ## What to remember
#
# - Softmax has infinitely many features: $N$ different tokens can make a matrix of rank $N$. Cut off after order $p$,
#   the series is right for scores from near 0 to well below $p$. Odd orders go negative.
# - The quadratic kernel has about $D^2 / 2$ features and pays from about as many tokens on.
# - $\mathrm{elu} + 1$ has $D$ and approximates nothing. Among keys that share a positive entry with the query, its
#   sharpness has a limit, however low the temperature is.
# - Exponential features need a scale: one maximum per feature for the keys, then one per query. This is exact, and
#   constant in the backward pass. $\varepsilon$ must then be 0.
#
# **Sources.** Katharopoulos et al. (2020), *Transformers are RNNs*, section 3.2.1. Arora et al. (2024), *Simple linear
# attention language models balance the recall-throughput tradeoff*, and its code, github.com/HazyResearch/based.
