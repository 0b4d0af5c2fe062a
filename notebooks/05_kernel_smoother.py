# %% [markdown]
# # 5. Attention as a kernel smoother: other weights than the exponential, and what associativity saves
#
# Which weights other than $e^{q^\top k / \sqrt D}$ can attention average its values with, and which of them bring its
# cost down from $N^2$ to $N$?
#
# This is the idea behind *linear attention*, and behind everything in the next chapters. Here you will
#
# 1. see softmax attention as a method of statistics, the kernel smoother, and try other kernels in it;
# 2. write the weight as an inner product of features, move one bracket, and count what that saves and what it costs;
# 3. derive the gradient by hand.
#
# You need chapter 1. The letters are the same: $N$ queries, $L$ keys, keys of width $D$, values of width $M$. The
# only new one is $C$, the number of features. Chapter 6 is about which features there are, chapter 7 about the causal
# case, chapter 8 about the recurrent network.

# %% jupyter={"source_hidden": true}
import math
from functools import partial

import numpy as np
from matplotlib.patches import Rectangle

from linattn_ref import gradcheck
from linattn_ref.attention import linear, softmax
from linattn_ref.attention.feature_maps import elu_plus_one, quadratic
from linattn_ref.data.twelve_words import WORDS, vectors
from linattn_ref.experiments.features import feature_maps as feature_maps_figure
from linattn_ref.experiments.measuring.counting import count, kept_bytes
from linattn_ref.experiments.measuring.scaling import growth_exponent
from linattn_ref.experiments.publishing import chapter, style

# Numbers of size 1 that have gone through some hundred roundings of 2.2e-16 each agree to this.
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-13)


def draw_inputs(seed, n, n_keys, d, m, dtype=np.float64):
    """q, k, v and a gradient of the output, with independent normal entries."""
    rng = np.random.default_rng(seed)
    shapes = ((n, d), (n_keys, d), (n_keys, m), (n, m))
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


# %% [markdown]
# ## The smallest example, by hand
#
# Take one query and two keys, and a similarity of one feature, $\mathrm{sim}(q, k) = \phi(q)\, \phi(k)$ with $\phi(x) =
# x + 1$ for $x \ge 0$. The query is 0, so $\phi(q) = 1$. The keys are 2 and 0, so their features are 3 and 1;
# the values are 10 and 20.
#
# - As an average, the weights are $3/4$ and $1/4$, and the output is $7.5 + 5 = 12.5$.
# - With the bracket moved, first add up: $3 \cdot 10 + 1 \cdot 20 = 50$ and $3 + 1 = 4$. Then multiply both by
#   $\phi(q) = 1$ and divide: $50 / 4 = 12.5$. However many queries there are, the two sums are computed once.

# %%
one_query, two_keys, two_values = np.array([[0.0]]), np.array([[2.0], [0.0]]), np.array([[10.0], [20.0]])
averaged, _ = linear.forward(one_query, two_keys, two_values, eps=0.0)
print("by the page:", averaged.item(), " weights:", linear.matrix(one_query, two_keys, eps=0.0))
same(averaged, 12.5)

# %% [markdown]
# ## A weighted average, with any weights
#
# Row by row, softmax attention is a weighted average of the values, and the weights are made of a *similarity* of the
# query and each key:
#
# $$o_i = \frac{\sum_j \mathrm{sim}(q_i, k_j)\, v_j}{\sum_j \mathrm{sim}(q_i, k_j)}, \qquad
# \mathrm{sim}(q, k) = \exp\Big(\frac{q^\top k}{\sqrt D}\Big) \qquad (\ast)$$
#
# (Katharopoulos et al. 2020, equation 3). With this similarity it is $\mathrm{softmax}(QK^\top / \sqrt D)\, V$. We
# check that on the sentence of chapter 1: its first seven words, *the cat sat on the old mat*, are the keys, and the
# last five of these ask.


# %%
def smooth(similarity, q, k, v):
    """The generalised form: any similarity, given as a function (..., D), (..., D) -> (...)."""
    weights = similarity(q[:, None, :], k[None, :, :])  # (N, L)
    return weights @ v / weights.sum(axis=1, keepdims=True)  # (N, M)


def exponential(q, k):
    return np.exp((q * k).sum(axis=-1) / math.sqrt(q.shape[-1]))


q, k, v = vectors()
q, k, v = q[2:7], k[:7], v[:7]
(N, D), (L, M) = q.shape, v.shape
d_out = np.random.default_rng(0).standard_normal((N, M))  # the gradient of some loss, for later
same(smooth(exponential, q, k, v), softmax.forward(q, k, v)[0])  # claim 13
print(
    f"output of {WORDS[2]!r}, smoother:",
    smooth(exponential, q, k, v)[0].round(4),
    " page:",
    softmax.forward(q, k, v)[0][0].round(4),
)

# %% [markdown]
# Statisticians have known $(\ast)$ since 1964 as the *Nadaraya-Watson kernel smoother*. The $k_j$ are points at which
# noisy values $v_j$ were measured, and $o_i$ is the estimate at a new point $q_i$, an average over the points that
# are similar to it. Their usual similarity is the Gaussian kernel of the distance. It is already close to that of
# softmax. Since $\lVert q - k \rVert^2 = \lVert q \rVert^2 - 2 q^\top k + \lVert k \rVert^2$,
#
# $$\exp\Big(-\frac{\lVert q - k \rVert^2}{2 \sigma^2}\Big)
# = \exp\Big(-\frac{\lVert q \rVert^2}{2 \sigma^2}\Big) \exp\Big(-\frac{\lVert k \rVert^2}{2 \sigma^2}\Big)
# \exp\Big(\frac{q^\top k}{\sigma^2}\Big)$$
#
# With $\sigma^2 = \sqrt D$ the last factor is softmax's. The first is common to the numerator and the denominator of
# $(\ast)$ and cancels. The second stays: the Gaussian smoother is softmax attention in which long keys count for less.
# If all keys have one length, it cancels as well.


# %%
def gaussian(q, k):
    return np.exp(-((q - k) ** 2).sum(axis=-1) / (2 * math.sqrt(q.shape[-1])))


def weighted_exponential(q, k):
    return exponential(q, k) * np.exp(-(k**2).sum(axis=-1) / (2 * math.sqrt(k.shape[-1])))


same(smooth(gaussian, q, k, v), smooth(weighted_exponential, q, k, v))
assert abs(smooth(gaussian, q, k, v) - smooth(exponential, q, k, v)).max() > 0.1
k_unit = k / np.linalg.norm(k, axis=1, keepdims=True)
same(smooth(gaussian, q, k_unit, v), smooth(exponential, q, k_unit, v))
for name, keys in (("keys of any length", k), ("keys of length 1", k_unit)):
    print(
        f"{name}, Gaussian against softmax:",
        abs(smooth(gaussian, q, keys, v) - smooth(exponential, q, keys, v)).max().round(3),
    )

# %% [markdown]
# ### What a similarity must be
#
# **Not negative: that is all** (Katharopoulos et al. 2020, section 3.2). Let $w_{ij} = \mathrm{sim}(q_i, k_j) \ge 0$
# with a sum over $j$ that is not 0, and $P_{ij} = w_{ij} / \sum_l w_{il}$. Then $P_{ij} \ge 0$ and $\sum_j P_{ij} = 1$,
# so
#
# $$\min_j v_{jm} = \sum_j P_{ij} \min_l v_{lm} \;\le\; \sum_j P_{ij} v_{jm} = o_{im} \;\le\;
# \sum_j P_{ij} \max_l v_{lm} = \max_j v_{jm}$$
#
# An average stays in the range of what it averages. If some $w_{ij}$ are negative, both inequalities can fail. Worse,
# the denominator is then a sum of numbers of either sign. It can take any value, even one near 0.
#
# To see this, put sixty keys on a circle, $k = (\cos \theta, \sin \theta)$, each with a noisy value; the queries go
# all around. (On a circle all keys have one length: softmax and the Gaussian kernel are one smoother.)


# %%
def on_circle(angle):
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


rng = np.random.default_rng(1)
key_angles = np.sort(rng.uniform(-math.pi, math.pi, 60))
circle_keys, circle_values = on_circle(key_angles), (np.sin(2 * key_angles) + 0.25 * rng.standard_normal(60))[:, None]
angles = np.linspace(-math.pi, math.pi, 401)
circle_queries = on_circle(angles)


def similarity_of(feature_map):
    def similarity(q, k):
        return (feature_map.forward(q)[0] * feature_map.forward(k)[0]).sum(axis=-1)

    return similarity


SIMILARITIES = {
    "exp(8 q·k)": lambda q, k: np.exp(8 * (q * k).sum(axis=-1)),
    "box |q − k| < 0.5": lambda q, k: (((q - k) ** 2).sum(axis=-1) < 0.25).astype(float),
    "(q·k + 1)²": lambda q, k: ((q * k).sum(axis=-1) + 1) ** 2,
    "elu + 1": similarity_of(elu_plus_one),
    "q·k": lambda q, k: (q * k).sum(axis=-1),
}


def draw_smoothers():
    figure, axes = style.figure(2, 5, height=0.44, sharex=True, sharey="row")
    for (upper, lower), (name, similarity) in zip(axes.T, SIMILARITIES.items(), strict=True):
        weights = similarity(on_circle(np.array(0.5)), circle_queries)
        upper.plot(angles, weights / weights.max())
        upper.axhline(0, color=style.GREY, linewidth=0.8)
        upper.set(title=name, ylim=(-1.1, 1.1))
        lower.plot(key_angles, circle_values[:, 0], ".", color=style.GREY, markersize=3)
        smoothed = smooth(similarity, circle_queries, circle_keys, circle_values)[:, 0]
        lower.plot(angles, np.where(abs(smoothed) < 6, smoothed, np.nan), color=style.VERMILLION)
        lower.set(ylim=(-3, 3), xlabel="angle")
        lower.set_xticks([-3, 0, 3])
    axes[0, 0].set_ylabel("sim to q at 0.5")
    axes[1, 0].set_ylabel("values, output")
    return figure


chapter.show(
    draw_smoothers,
    alt="Five similarities over the angle and the curves they make of noisy points: exp and box follow the points, "
    "the quadratic kernel and elu + 1 are flat averages, q.k runs to infinity at two angles",
)
lowest, highest = circle_values.min(), circle_values.max()
for name, similarity in SIMILARITIES.items():
    smoothed = smooth(similarity, circle_queries, circle_keys, circle_values)
    denominators = similarity(circle_queries[:, None], circle_keys).sum(axis=1)
    if name == "q·k":
        assert abs(smoothed).max() > 10 * highest  # far outside
        assert denominators.min() < 0 < denominators.max()  # it passes through 0
    else:
        assert (smoothed >= lowest).all()  # claim 14
        assert (smoothed <= highest).all()
wide, wider = (SIMILARITIES[name](on_circle(np.array(0.5)), circle_queries) for name in ("(q·k + 1)²", "elu + 1"))
assert 1 / 3 < (wide > wide.max() / 2).mean() < 0.4  # of the circle
assert wider.min() > wider.max() / 4

# %% [markdown]
# Every non-negative similarity smooths. How *well* is another matter. Exp and box look at neighbours and follow the
# points. The quadratic kernel and $\mathrm{elu} + 1$ are wide, and little of a wave with two periods is left. The
# last one, $q^\top k$, is not an average at all: where its denominator passes through 0 the output runs off to
# infinity.
#
# "Non-negative" has one gap, the sum that is 0: far from all keys the box kernel sees nothing. The package's rule for
# a query that sees nothing is an output of 0, here as in chapter 1. A positive similarity has no such queries.
#
# ### What a similarity must be, to be an inner product
#
# Linear attention asks for more: $\mathrm{sim}(q, k) = \phi(q)^\top \phi(k)$, with a *feature map* $\phi$ that sends
# vectors of $D$ entries to vectors of $C$. The paper says "all kernels", and two properties are easily mixed up here:
#
# - **non-negative**: $\mathrm{sim}(x, y) \ge 0$ for all $x$, $y$. It makes outputs averages.
# - **positive semi-definite**: for any points $x_1 \dots x_n$ the matrix $G_{ij} = \mathrm{sim}(x_i, x_j)$ is symmetric
#   and has no negative eigenvalue. This is what the word *kernel* means in "kernel method". An inner product of
#   features has it: with the rows $\phi(x_i)$ in a matrix $\Phi$, $G = \Phi \Phi^\top$, and $z^\top G z = \lVert
#   \Phi^\top z \rVert^2 \ge 0$. Conversely (Moore and Aronszajn), every similarity with this property *is* an inner
#   product of features, perhaps of infinitely many.
#
# Neither implies the other. And there is a third property, a small $C$: as $\Phi$ has $C$ columns, the rank of $G$ is
# at most $C$, however many points there are. Forty random points in three dimensions show which similarity has which
# property:

# %%
points = np.random.default_rng(2).standard_normal((40, 3))
candidates = {
    "exponential": exponential,
    "Gaussian": gaussian,
    "box": lambda q, k: (((q - k) ** 2).sum(axis=-1) < 1).astype(float),
    "q·k": SIMILARITIES["q·k"],
    "(q·k + 1)²": SIMILARITIES["(q·k + 1)²"],
    "elu + 1": SIMILARITIES["elu + 1"],
}
rows, properties = [], {}
for name, similarity in candidates.items():
    G = similarity(points[:, None], points[None])
    eigenvalues = np.linalg.eigvalsh(G)
    rounding = 40 * np.finfo(float).eps * eigenvalues[-1]  # what a computed eigenvalue of 0 may come out as
    not_negative, semi_definite = bool(G.min() >= 0), bool(eigenvalues[0] > -rounding)
    rank = int((abs(eigenvalues) > rounding).sum())
    properties[name] = not_negative, semi_definite, rank
    rows.append((name, G.min(), not_negative, eigenvalues[0] / eigenvalues[-1], semi_definite, rank))
assert properties["box"][:2] == (True, False)  # averages, but no features
assert properties["q·k"] == (False, True, 3)  # features, but no averages
assert properties["(q·k + 1)²"] == (True, True, 10)
assert properties["elu + 1"] == (True, True, 3)
assert properties["exponential"] == properties["Gaussian"] == (True, True, 40)
chapter.table(
    ("similarity", "least entry of G", "non-negative?", "least eigenvalue / largest", "semi-definite?", "rank of G"),
    rows,
)

# %% [markdown]
# The box kernel has no features at all, not even infinitely many. Three points in a row show it: the middle one is
# close to both others, which are not close to each other, and that matrix has the eigenvalue $1 - \sqrt 2$. The
# exponential and the Gaussian kernel have features, but at least 40 of them (in fact infinitely many, as chapter 6
# shows). Linear attention needs the rows with a small rank and no negative entry.

# %%
three_in_a_row = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
same(np.linalg.eigvalsh(three_in_a_row)[0], 1 - math.sqrt(2))
print("eigenvalues:", np.linalg.eigvalsh(three_in_a_row).round(3))

# %% [markdown]
# (Queries and keys may also have *different* maps, $\phi(q)^\top \psi(k)$; then $G$ need not be symmetric, and only
# the rank matters. The papers use one map for both.)
#
# ## The bracket
#
# ![Linear attention, drawn](../figures/schematic_linear.svg)
#
# Let $\mathrm{sim}(q, k) = \phi(q)^\top \phi(k)$. Put it into $(\ast)$. The query's features do not depend on $j$, so
# they come out of both sums (Katharopoulos et al. 2020, equations 4 to 6):
#
# $$o_i^\top = \frac{\sum_j \phi(q_i)^\top \phi(k_j)\, v_j^\top}{\sum_j \phi(q_i)^\top \phi(k_j)}
# = \frac{\phi(q_i)^\top \sum_j \phi(k_j)\, v_j^\top}{\phi(q_i)^\top \sum_j \phi(k_j)}$$
#
# What is left in the sums does not depend on $i$: it is computed **once, for all queries**. With the package's
# numbers:
#
# $$S = \sum_j \phi(k_j)\, v_j^\top \quad (C, M) \qquad (1)$$
#
# $$Z = \sum_j \phi(k_j) \quad (C) \qquad (2)$$
#
# $$o_i = \frac{S^\top \phi(q_i)}{Z^\top \phi(q_i) + \varepsilon} \qquad (3)$$
#
# For all rows at once this is the associative law, $(AB)C = A(BC)$. With $\phi$ applied to each row of $Q$ and $K$, and
# $1$ a column of ones, the numerators are
#
# $$\big(\phi(Q)\, \phi(K)^\top\big) V = \phi(Q) \big(\phi(K)^\top V\big) = \phi(Q)\, S$$
#
# and the denominators are the diagonal of a diagonal matrix, by whose inverse the numerators are multiplied:
#
# $$\mathrm{diag}\Big(\big(\phi(Q)\, \phi(K)^\top\big) 1\Big) = \mathrm{diag}\Big(\phi(Q) \big(\phi(K)^\top 1\big)\Big)
# = \mathrm{diag}\big(\phi(Q)\, Z\big)$$
#
# (Equation (3) has an $\varepsilon$ that the paper's does not have. In the code it is $10^{-6}$ unless another is
# given. It keeps the quotient finite where all features of a query are tiny. This has a price: it draws every output a
# little towards 0, and by a lot where all features are small. Six keys, and a query, with four features of $e^{-7}$
# each and all values 1 should return 1. They return 0.952.)

# %%
small, ones = np.full((6, 4), -7.0), np.ones((6, 1))
biased, _ = linear.forward(small, small, ones)  # eps = 1e-6
right, _ = linear.forward(small, small, ones, eps=0.0)
np.testing.assert_allclose(right, 1, rtol=1e-12)
denominator = 6 * 4 * math.exp(-7) ** 2
np.testing.assert_allclose(biased, denominator / (denominator + 1e-6), rtol=1e-12)
assert round(float(biased[0, 0]), 3) == 0.952
print(f"with eps: {biased[0, 0]:.3f}, without: {right[0, 0]:.3f}")

# %% [markdown]
# Back to the sentence. The cell checks that both brackets have the same numerators and denominators:

# %%
phi_q, phi_k = elu_plus_one.forward(q)[0], elu_plus_one.forward(k)[0]
ones = np.ones((L, 1))
left_numerator, right_numerator = (phi_q @ phi_k.T) @ v, phi_q @ (phi_k.T @ v)
left_diagonal, right_diagonal = np.diag(((phi_q @ phi_k.T) @ ones)[:, 0]), np.diag((phi_q @ (phi_k.T @ ones))[:, 0])
np.testing.assert_allclose(left_numerator, right_numerator, rtol=1e-13, atol=1e-12)  # claim 15
np.testing.assert_allclose(left_diagonal, right_diagonal, rtol=1e-13)  # claim 15: the denominators

by_hand = np.linalg.inv(right_diagonal) @ right_numerator
out, saved = linear.forward(q, k, v, feature_map=elu_plus_one, eps=0.0)
same(out, by_hand)
same(out, smooth(SIMILARITIES["elu + 1"], q, k, v))
same(linear.matrix(q, k, eps=0.0) @ v, out)  # the matrix that is applied without being formed
print(f"numerators of {WORDS[2]!r}, left bracket:", left_numerator[0].round(4), " right:", right_numerator[0].round(4))
print("its weights:", *(f"{w} {p:.2f}" for w, p in zip(WORDS, linear.matrix(q, k, eps=0.0)[0], strict=False)), end=" ")
print("(with softmax, cat", f"{softmax.matrix(q, k)[0, 1]:.2f})")

# %% [markdown]
# The largest weight is still on *cat*, but it is .21 and not .52: $\mathrm{elu} + 1$ is a flat kernel here too.
#
# The package's forward pass computes the features, then (1) and (2), then (3). Here the loop has one round, for all
# queries and all keys. (`causal` and (4) belong to chapter 7, `state` to chapter 8, exponential feature maps to
# chapter 6.)

# %%
chapter.source(linear.forward, doc=False)

# %% [markdown]
# ### What the bracket saves
#
# The left bracket costs $N L C$ multiply-adds for $\phi(Q)\phi(K)^\top$ and $N L M$ for the product with $V$. The
# right one costs $L C M$ for (1) and, in (3), $N C M$ for the numerators and $N C$ for the denominators. (Sums such
# as (2) multiply nothing.) The left bracket takes $O(N^2 \max(C, M))$, and softmax $O(N^2 \max(D, M))$. The right one
# takes $O(N C M)$ (Katharopoulos et al. 2020, section 3.2.1). We count this while the code runs, and once more by hand,
# in loops over single numbers that share nothing with the package:


# %%
def left_first(q, k, v):
    phi_q, phi_k = elu_plus_one.forward(q)[0], elu_plus_one.forward(k)[0]
    weights = phi_q @ phi_k.swapaxes(-1, -2)
    return weights @ v / weights.sum(axis=-1, keepdims=True)


C = elu_plus_one.width(D)
assert C == D
right_first = partial(linear.forward, feature_map=elu_plus_one)
assert count(left_first, q, k, v).multiply_adds == N * L * (C + M)  # claim 16
assert count(right_first, q, k, v).multiply_adds == L * C * M + N * C * M + N * C  # claim 16
assert count(softmax.forward, q, k, v).multiply_adds == N * L * (D + M)
assert count(softmax.forward, q, k, v).exponentials == N * L  # an exponential per pair
assert count(right_first, q, k, v).exponentials == (N + L) * D  # an exponential per entry of Q and K


def by_hand_left(phi_q, phi_k, v):
    """Numerators and denominators with the bracket on the left, number by number; and how many products that took."""
    products, numerator, denominator = 0, np.zeros((len(phi_q), v.shape[1])), np.zeros(len(phi_q))
    for i, j in np.ndindex(len(phi_q), len(phi_k)):
        weight = 0.0
        for c in range(phi_q.shape[1]):
            weight += phi_q[i, c] * phi_k[j, c]
            products += 1
        denominator[i] += weight
        for m in range(v.shape[1]):
            numerator[i, m] += weight * v[j, m]
            products += 1
    return numerator / denominator[:, None], products


def by_hand_right(phi_q, phi_k, v):
    """The same with the bracket on the right."""
    products, s, z = 0, np.zeros((phi_k.shape[1], v.shape[1])), np.zeros(phi_k.shape[1])
    for j, c in np.ndindex(phi_k.shape):
        z[c] += phi_k[j, c]
        for m in range(v.shape[1]):
            s[c, m] += phi_k[j, c] * v[j, m]
            products += 1
    numerator, denominator = np.zeros((len(phi_q), v.shape[1])), np.zeros(len(phi_q))
    for i, c in np.ndindex(phi_q.shape):
        denominator[i] += phi_q[i, c] * z[c]
        products += 1
        for m in range(v.shape[1]):
            numerator[i, m] += phi_q[i, c] * s[c, m]
            products += 1
    return numerator / denominator[:, None], products


for by_hand_form, form in ((by_hand_left, left_first), (by_hand_right, right_first)):
    out_by_hand, products = by_hand_form(phi_q, phi_k, v)
    same(out_by_hand, smooth(SIMILARITIES["elu + 1"], q, k, v))
    assert count(form, q, k, v).multiply_adds == products  # claim 16

lengths = np.array([128, 256, 512, 1024])
grown = {"softmax": [], "linear": []}
for n in lengths:
    arrays = draw_inputs(3, n, n, 64, 64, np.float32)[:3]
    grown["softmax"].append(count(softmax.forward, *arrays).multiply_adds)
    grown["linear"].append(count(right_first, *arrays).multiply_adds)
assert growth_exponent(lengths, np.array(grown["softmax"])) == 2
assert growth_exponent(lengths, np.array(grown["linear"])) == 1
chapter.table(
    ("multiply-adds, D = M = 64", *(f"N = {n}" for n in lengths)), [(name, *counts) for name, counts in grown.items()]
)

# %% [markdown]
# Both brackets to scale, for $C = M = 32$: on the left the $N \times N$ matrix $\phi(Q)\phi(K)^\top$ and $V$, on the
# right $\phi(Q)$ and $S$. The area is memory. The left one's square grows in two directions; the right one only gets
# longer, and $S$ stays as it is.


# %%
def draw_brackets(axes, n):
    width = 32
    arrays = draw_inputs(4, n, n, width, width, np.float32)[:3]
    right = 2 * max(n, 128) - 60
    for x, rows, columns, colour, name in (
        (0, n, n, style.ROLES["weights"], "N × N"),
        (n + 6, n, width, style.ROLES["values"], "V"),
        (right, n, width, style.ROLES["queries"], "φ(Q)"),
        (right + width + 6, width, width, style.ROLES["state"], "S"),
    ):
        axes.add_patch(Rectangle((x, -rows), columns, rows, facecolor=colour, edgecolor="none"))
        axes.text(x + columns / 2, 3, name, ha="center", va="bottom", color=colour, fontsize=6)
    axes.set(xlim=(-4, right + 2 * width + 10), ylim=(-max(n, 128) - 4, 22), aspect="equal", xticks=[], yticks=[])
    left_count, right_count = (count(f, *arrays).multiply_adds for f in (left_first, right_first))
    axes.set_xlabel(f"left {left_count:,}\nright {right_count:,}")
    axes.grid(False)
    axes.spines[:].set_visible(False)


chapter.explore(
    draw_brackets,
    (16, 32, 64, 128),
    name="N",
    slider=(8, 16, 24, 32, 48, 64, 96, 128, 192, 256),
    height=0.24,
    alt="An N by N square beside an N by 32 strip, and an N by 32 strip beside a 32 by 32 square, for four lengths, "
    "with the multiply-adds of both",
)
assert count(left_first, *draw_inputs(4, 32, 32, 32, 32)[:3]).multiply_adds == 65_536
assert count(right_first, *draw_inputs(4, 32, 32, 32, 32)[:3]).multiply_adds == 66_560  # N = C: as good as equal

# %% [markdown]
# ### Where the two cross
#
# With $N = L$ softmax takes $N^2 (D + M)$ and linear attention $N C (2M + 1)$, so linear attention takes fewer
# multiply-adds if
#
# $$N > \frac{C\, (2M + 1)}{D + M}$$
#
# which for $M = D$ is $C + \frac{C}{2D}$: **about the number of features**. With $C = D = 64$, an ordinary head, that
# is at 65 tokens.

# %%
assert feature_maps_figure.crossover_formula(64, 64, 64) == 64.5
assert feature_maps_figure.crossover(elu_plus_one, 64, 64) == 65  # the first N with the smaller count
assert 15 < feature_maps_figure.crossover_formula(64, 64, 8) < 16
assert feature_maps_figure.crossover(elu_plus_one, 64, 8) == 16  # narrow values: earlier
for m in (64, 8):
    print(f"M = {m}: cheaper from N = {feature_maps_figure.crossover(elu_plus_one, 64, m)} on, counted")

# %% [markdown]
# This compares *one* number, multiply-adds. Softmax also needs $N L$ exponentials, and linear attention makes $C$
# features per row. How fast either runs is another question, which only a clock answers: forward and backward pass,
# eight heads of 64, from 64 to 65,536 tokens (softmax to 4,096, online to 8,192).

# %%
timed = chapter.results("resources")
rows = []
for name, label in (("dense", "softmax, matrix kept"), ("online", "softmax, online"), ("linear", "linear, elu + 1")):
    curve = timed.curves[name]
    exponent = np.polyfit(np.log(curve.lengths[-4:]), np.log(curve.seconds[-4:]), 1)[0]  # once more, not as recorded
    rows.append((label, int(curve.lengths[-1]), float(curve.seconds[-1]), exponent))
assert all(1.8 < exponent < 2.2 for *_, exponent in rows[:2])  # claim 16, measured: the square,
assert 0.85 < rows[2][-1] < 1.15  # and linear
chapter.table(("forward and backward, 8 heads of 64", "longest N", "seconds there", "grows as N to the power"), rows)


def both_passes(page, q, k, v, d_out):
    _, saved = page.forward(q, k, v)
    page.backward(d_out, saved)


def multiply_adds(page, n):
    return count(partial(both_passes, page), *draw_inputs(3, n, n, 64, 64, np.float32)).multiply_adds


counted = next(n for n in range(60, 90) if multiply_adds(linear, n) < multiply_adds(softmax, n))
faster = {pair.high: pair.faster for pair in timed.pairs if pair.low == "linear"}
assert faster["online"].after < counted < faster["online"].before  # measured crossing: between these two lengths
assert faster["dense"].before == timed.curves["linear"].lengths[0] == 64
print(f"linear attention is faster than online softmax from between {faster['online'].after} and", end=" ")
print(f"{faster['online'].before} tokens on, and than softmax with its matrix already at 64;")
print(f"counted, against softmax with its matrix: from 65 on forward, from {counted} on for both passes")

# %% [markdown]
# ### What the bracket costs: rank $C$
#
# Associativity is exact; nothing was approximated *given $\phi$*. But the matrix that linear attention applies, $P =
# \mathrm{diag}(\dots)^{-1} \phi(Q)\, \phi(K)^\top$, has rank at most $C$, and that of softmax has no such limit. A
# head that wants to copy every token to itself needs $P = I$, of rank $N$. By the theorem of Eckart, Young and Mirsky
# (chapter 3) a matrix of rank $C$ is at least $\sqrt{N - C}$ away from it, in the Frobenius norm: all its other $N - C$
# singular values are missed. For $N = 64$ and $C = 16$ that is 6.9; the zero matrix is 8 away.

# %%
tokens, width = 64, 16
q_64, k_64, v_64, _ = draw_inputs(5, tokens, tokens, width, width)
for feature_map, features in ((elu_plus_one, 16), (quadratic(1.0), 153)):
    values = np.linalg.svd(linear.matrix(q_64, k_64, feature_map=feature_map), compute_uv=False)
    assert feature_map.width(width) == features
    assert (values > 1e-13 * values[0]).sum() == min(features, tokens)
assert np.linalg.matrix_rank(softmax.matrix(q_64, k_64)) == tokens

unit = 40 * q_64 / np.linalg.norm(q_64, axis=1, keepdims=True)  # each query finds its own key best
to_copy = [np.linalg.norm(np.eye(tokens) - P) for P in (softmax.matrix(unit, unit), linear.matrix(unit, unit))]
assert to_copy[0] < 1e-6
assert to_copy[1] >= math.sqrt(tokens - width)
chapter.table(
    ("64 tokens, D = C = 16", "distance of P from I"), zip(("softmax", "elu + 1"), map(float, to_copy), strict=True)
)

# %% [markdown]
# ## The gradient, by hand
#
# As in chapter 1, $\ell$ is the loss, $dX$ the array of $\partial \ell / \partial X$. We are given $G_i = do_i$, one
# row per query, and want $dQ$, $dK$, $dV$. ($G$ is no longer the matrix of similarities.) Write the two sums of (3) as
# $n_i = S^\top \phi(q_i)$ ($M$ numbers) and $d_i = Z^\top \phi(q_i) + \varepsilon$ (one number), so that $o_i = n_i /
# d_i$.
#
# ### Step 1: through the quotient
#
# $o_{im} = n_{im} / d_i$. The entry $n_{im}$ occurs once, with the factor $1 / d_i$. The denominator $d_i$ occurs in
# $o_{im}$ for all $m$, and $\partial o_{im} / \partial d_i = -n_{im} / d_i^2$:
#
# $$dn_{im} = \frac{G_{im}}{d_i}, \qquad
# dd_i = -\sum_m G_{im} \frac{n_{im}}{d_i^2} = -\sum_m \frac{G_{im}}{d_i} \cdot \frac{n_{im}}{d_i}
# = -\sum_m dn_{im}\, o_{im} \qquad (5)$$
#
# The output is available, so $n_i$ need not be kept.
#
# ### Step 2: through the reading of $S$ and $Z$
#
# With an index $c$ for the features, $n_{im} = \sum_c S_{cm}\, \phi(q_i)_c$ and $d_i = \sum_c Z_c\, \phi(q_i)_c +
# \varepsilon$. The feature $\phi(q_i)_c$ occurs in $n_{im}$ for all $m$, and in $d_i$:
#
# $$d\phi(q_i)_c = \sum_m S_{cm}\, dn_{im} + Z_c\, dd_i
# \quad\Longrightarrow\quad d\phi(q_i) = S\, dn_i + Z\, dd_i \qquad (6)$$
#
# $S_{cm}$ occurs in $n_{im}$ for all $i$, with the factor $\phi(q_i)_c$, and $Z_c$ in all $d_i$ with the same:
#
# $$dS_{cm} = \sum_i \phi(q_i)_c\, dn_{im}, \qquad dZ_c = \sum_i \phi(q_i)_c\, dd_i
# \quad\Longrightarrow\quad dS = \sum_i \phi(q_i)\, dn_i^\top, \quad dZ = \sum_i \phi(q_i)\, dd_i \qquad (7)$$
#
# ### Step 3: through the sums over keys
#
# $S_{cm} = \sum_j \phi(k_j)_c\, v_{jm}$ and $Z_c = \sum_j \phi(k_j)_c$. The feature $\phi(k_j)_c$ occurs in $S_{cm}$
# for all $m$, with the factor $v_{jm}$, and in $Z_c$ with the factor 1; the value $v_{jm}$ occurs in $S_{cm}$ for
# all $c$:
#
# $$d\phi(k_j)_c = \sum_m dS_{cm}\, v_{jm} + dZ_c \quad\Longrightarrow\quad d\phi(k_j) = dS\, v_j + dZ \qquad (8)$$
#
# $$dv_{jm} = \sum_c dS_{cm}\, \phi(k_j)_c \quad\Longrightarrow\quad dv_j = dS^\top \phi(k_j) \qquad (9)$$
#
# The pattern is worth noticing. Going forward, the keys write a sum, $S$ and $Z$, and the queries read it. Going
# backward, **the queries write a sum**, $dS$ and $dZ$, **and the keys read it**. No step has an $i$ and a $j$ at
# once, so the gradient is linear in the length too.

# %%
chapter.source(linear.backward, doc=False)

# %% [markdown]
# The left bracket gives the same gradient in another way, through $w_{ij} = \phi(q_i)^\top \phi(k_j)$ and
# $P_{ij} = w_{ij} / d_i$: $dP = G V^\top$, and the quotient rule gives $dw_{ij} = (dP_{ij} - \sum_l dP_{il} P_{il}) /
# d_i$. (In softmax $w = e^A$, so $dA = w * dw$, which is equation (6) of chapter 1.) Then $d\phi(q_i) = \sum_j
# dw_{ij}\, \phi(k_j)$, and so on. Both ways agree by associativity:


# %%
def gradients_of_features(d_out, saved):
    """Equations (5)-(9), up to the features."""
    S, Z, _ = saved.state
    d_n = d_out / saved.d  # (5)
    d_d = -(d_n * saved.out).sum(axis=1, keepdims=True)  # (5)
    d_phi_q = d_n @ S.T + d_d * Z  # (6)
    d_S, d_Z = saved.phi_q.T @ d_n, (saved.phi_q * d_d).sum(axis=0)  # (7)
    return d_phi_q, saved.v @ d_S.T + d_Z, saved.phi_k @ d_S  # (8), (9)


out, saved = linear.forward(q, k, v, eps=0.1)  # an eps large enough to be seen
d_phi_q, d_phi_k, d_v = gradients_of_features(d_out, saved)

P, d_P = linear.matrix(q, k, eps=0.1), d_out @ v.T
d_w = (d_P - (d_P * P).sum(axis=1, keepdims=True)) / saved.d
same(d_phi_q, d_w @ saved.phi_k)
same(d_phi_k, d_w.T @ saved.phi_q)
same(d_v, P.T @ d_out)
same(d_v, linear.backward(d_out, saved).v)
print("gradient of the first key's features, right bracket:", d_phi_k[0].round(4))
print("                                       left bracket:", (d_w.T @ saved.phi_q)[0].round(4))

# %% [markdown]
# **What it costs.** (6), (7), (8) and (9) are products of $N C M$, $N C M$, $L C M$ and $L C M$ multiply-adds: as
# always, twice the forward pass. The code adds up $S$ once more, for $L C M$, because a causal pass (chapter 7) keeps
# no sums. We keep only rows (the features, $V$, the output and the denominators) and a state of $C M + C$ numbers.
# Nothing has $N L$ entries.


# %%
C = elu_plus_one.width(D)
forward_cost = L * C * M + N * C * M + N * C
backward_cost = 2 * (N + L) * C * M + L * C * M
assert count(partial(both_passes, linear), q, k, v, d_out).multiply_adds == forward_cost + backward_cost
assert kept_bytes(saved) == ((N + L) * C + L * M + N * M + N + C * M + C) * 8
print(f"multiply-adds: {forward_cost} forward, {backward_cost} backward; kept {kept_bytes(saved)} bytes")

# %% [markdown]
# ### Checked
#
# We check against finite differences, and with the complex step. The latter takes nothing but the formula $(q^\top k +
# 1)^2$: no feature map, no bracket. ($\mathrm{elu} + 1$ and the quadratic map are taken apart in chapter 6.)

# %%
for feature_map in (elu_plus_one, quadratic(1.0)):
    forward = partial(linear.forward, feature_map=feature_map)
    report = gradcheck.check_elementwise(forward, linear.backward, q, k, v, rng=np.random.default_rng(20))
    print(report)
    report.assert_ok()


def formula(q, k, v):
    weights = (q @ k.T + 1) ** 2
    return weights / weights.sum(axis=1, keepdims=True) @ v


forward = partial(linear.forward, feature_map=quadratic(1.0), eps=0.0)
exact = gradcheck.check_complex_step(formula, forward, linear.backward, q, k, v, rng=np.random.default_rng(21))
print(exact)
exact.assert_ok()

# %% [markdown]
# A check that cannot fail is worth nothing. Forget the denominator, $dd_i$ in (5), and see what is wrong then:


# %%
def forgetful_backward(d_out, saved):
    feature_map, of_q, of_k = saved.features
    d_n = d_out / saved.d  # where is d_d?
    d_s = saved.phi_q.T @ d_n
    d_q = feature_map.backward(d_n @ saved.state.s.T, of_q)
    d_k = feature_map.backward(saved.v @ d_s.T, of_k)
    return linear.Gradients(d_q, d_k, saved.phi_k @ d_s)


report = gradcheck.check_elementwise(linear.forward, forgetful_backward, q, k, v, rng=np.random.default_rng(22))
print(report)
assert not report.ok
assert {entry.name for entry in report.worst_by_input if entry.excess > 1} == {"q", "k"}  # dv does not go through dd_i

# %% [markdown]
# ## Exercises
#
# A sheet of homework goes further: `linattn-ref assignment linear --out DIR` (see [the course](README.md)).
#
# **1. Length without effect.** With $\varepsilon = 0$, multiplying $\phi(q_i)$ by a positive number changes nothing.
# Multiplying a single $\phi(k_j)$ does; multiplying *all* of them by the same number does not. What do these two facts
# say about the gradients $d\phi(q_i)$ and $d\phi(k_j)$? What is left of the first if $\varepsilon > 0$?
#
# <details><summary>Solution</summary>
#
# Let $\phi(q_i)$ be multiplied by $s$ and differentiate by $s$ at $s = 1$ (Euler's theorem on homogeneous functions).
# The output does not move, so $\phi(q_i)^\top d\phi(q_i) = 0$: the gradient is orthogonal to the features, row by
# row. For the keys $\sum_j \phi(k_j)^\top d\phi(k_j) = 0$; this holds only for the sum.
#
# With $\varepsilon$, $o_i = s\, n_i / (s\, \phi(q_i)^\top Z + \varepsilon)$. The derivative by $s$ at 1 is
# $\frac{n_i}{d_i} - \frac{n_i\, \phi(q_i)^\top Z}{d_i^2} = o_i \big(1 - \frac{d_i - \varepsilon}{d_i}\big)
# = o_i\, \frac{\varepsilon}{d_i}$, so that $\phi(q_i)^\top d\phi(q_i) = \frac{\varepsilon}{d_i}\, G_i^\top o_i$.
#
# </details>


# %%
def along_features(eps):
    _, saved = linear.forward(q, k, v, eps=eps)
    d_phi_q, d_phi_k, _ = gradients_of_features(d_out, saved)
    return saved, (saved.phi_q * d_phi_q).sum(axis=1), (saved.phi_k * d_phi_k).sum(axis=1)


_, along_q, along_k = along_features(eps=0.0)
same(along_q, np.zeros(N))
same(along_k.sum(), 0)
assert abs(along_k).max() > 0.01  # one key's length matters: it is a weight

saved, along_q, _ = along_features(eps=0.5)
same(along_q, 0.5 / saved.d[:, 0] * (d_out * saved.out).sum(axis=1))
print("along the keys' features, eps = 0:", along_k.round(3), f" sum {abs(along_k.sum()):.0e}")
print("along the queries', eps = 0.5:", along_q.round(3))

# %% [markdown]
# **2. One query.** How many queries must share the sums over $L$ keys before linear attention takes fewer
# multiply-adds than softmax? Is it useful for a single query? Take $C = D = M = 64$.
#
# <details><summary>Solution</summary>
#
# Softmax takes $N L (D + M)$ and linear attention $(N + L)\, C M + N C$. Linear attention is cheaper if
#
# $$N \big[L (D + M) - C (M + 1)\big] > L C M$$
#
# If $L (D + M) \le C (M + 1)$ that never happens: there are too few keys. Otherwise $N$ must exceed $\frac{L C M}{L
# (D + M) - C (M + 1)}$, which for many keys is about $\frac{C M}{D + M}$: here 32. For one query it is a loss: adding
# up $S$ costs $C M$ per key, and a score and a weighted value cost $D + M$. Linear attention is not faster at
# attending; it *shares* work between queries. (A language model asks one query at a time, but there $S$ is kept from
# the last one. That is chapter 8.)
#
# </details>


# %%
def pays(n, n_keys):
    arrays = draw_inputs(27, n, n_keys, 64, 64, np.float32)[:3]
    return count(linear.forward, *arrays).multiply_adds < count(softmax.forward, *arrays).multiply_adds


for n_keys in (200, 1000, 5000):
    least = math.floor(n_keys * 64 * 64 / (n_keys * 128 - 64 * 65)) + 1
    assert not pays(least - 1, n_keys)
    assert pays(least, n_keys)
assert least == 33
assert not pays(1, 5000)
assert not pays(500, 32)  # 32 * 128 < 64 * 65: too few keys for any number of queries
print(f"{n_keys} keys: linear attention is cheaper from {least} queries on")

# %% [markdown]
# ## What to remember
#
# - Attention is a kernel smoother. Any non-negative similarity yields averages of values; with a sign-changing one
#   the denominator can pass through 0.
# - A similarity that is an inner product of $C$ features lets the query out of the sum: $S$ and $Z$ once, for all
#   queries. $(\phi(Q)\phi(K)^\top) V = \phi(Q)(\phi(K)^\top V)$ takes $O(N C M)$ in place of $O(N^2 \max(C, M))$,
#   forward and backward. At width 64 it takes fewer multiply-adds than softmax from 65 tokens on forward, and from 75
#   on for both passes.
# - The price is rank: $P$ has rank $C$ at most.
# - Backward, the queries write a sum and the keys read it.
#
# **Sources.** Nadaraya (1964), *On estimating regression*; Watson (1964), *Smooth regression analysis*. Tsai et al.
# (2019), *Transformer dissection: a unified understanding of transformer's attention via the lens of kernel*.
# Katharopoulos et al. (2020), *Transformers are RNNs*, sections 3.1 and 3.2.
