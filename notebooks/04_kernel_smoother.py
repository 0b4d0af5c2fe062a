# %% [markdown]
# # 4. Attention as a kernel smoother: other weights than the exponential, and what associativity saves
#
# Which weights other than $e^{q^\top k / \sqrt D}$ can attention average its values with, and which of them bring its
# cost down from $N^2$ to $N$?
#
# This is the idea behind *linear attention*, and behind everything in the next chapters. Here you will
#
# 1. see softmax attention as a method of statistics, the kernel smoother, and try other kernels in it;
# 2. write the weight as an inner product of features, move one bracket, and count what that saves and what it costs;
# 3. meet the feature maps: the exponential's, which is infinite; the quadratic kernel's; $\mathrm{elu} + 1$; and, in
#    short, random ones;
# 4. keep exponential features inside the range of float32;
# 5. derive the gradient of all of it by hand.
#
# You need chapter 1. The letters are the same: $N$ queries, $L$ keys, keys of width $D$, values of width $M$; new is
# $C$, the number of features. The causal case comes in chapter 5, the recurrent network in chapter 6.

# %%
import math
from functools import partial
from itertools import pairwise

import numpy as np
from matplotlib.patches import Rectangle

from linattn_ref import gradcheck
from linattn_ref.attention import feature_maps, feature_maps_exact, linear, softmax
from linattn_ref.attention.feature_maps import FeatureMap, elu_plus_one, quadratic, taylor_exp, taylor_gaussian
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
# ## A weighted average, with any weights
#
# Row by row, softmax attention is a weighted average of the values, and the weights are made of a *similarity* of the
# query and each key:
#
# $$o_i = \frac{\sum_j \mathrm{sim}(q_i, k_j)\, v_j}{\sum_j \mathrm{sim}(q_i, k_j)}, \qquad
# \mathrm{sim}(q, k) = \exp\Big(\frac{q^\top k}{\sqrt D}\Big) \qquad (\ast)$$
#
# Claim 13 of the seeds: this generalised form, with this similarity, gives the same output as
# $\mathrm{softmax}(QK^\top / \sqrt D)\, V$.


# %%
def smooth(similarity, q, k, v):
    """The generalised form: any similarity, given as a function (..., D), (..., D) -> (...)."""
    weights = similarity(q[:, None, :], k[None, :, :])  # (N, L)
    return weights @ v / weights.sum(axis=1, keepdims=True)  # (N, M)


def exponential(q, k):
    return np.exp((q * k).sum(axis=-1) / math.sqrt(q.shape[-1]))


N, L, D, M = 5, 7, 4, 3
q, k, v, d_out = draw_inputs(0, N, L, D, M)
same(smooth(exponential, q, k, v), softmax.dense_forward(q, k, v)[0])  # claim 13
same(smooth(exponential, q, k, v), softmax.forward(q, k, v)[0])

# %% [markdown]
# Statisticians have known $(\ast)$ since 1964 as the *Nadaraya-Watson kernel smoother*: $k_j$ are points at which
# noisy values $v_j$ were measured, and $o_i$ is the estimate at a new point $q_i$, an average over the points that are
# similar to it. Their usual similarity is the Gaussian kernel of the distance. It is nearly the softmax one already.
# Since $\lVert q - k \rVert^2 = \lVert q \rVert^2 - 2 q^\top k + \lVert k \rVert^2$,
#
# $$\exp\Big(-\frac{\lVert q - k \rVert^2}{2 \sigma^2}\Big)
# = \exp\Big(-\frac{\lVert q \rVert^2}{2 \sigma^2}\Big) \exp\Big(-\frac{\lVert k \rVert^2}{2 \sigma^2}\Big)
# \exp\Big(\frac{q^\top k}{\sigma^2}\Big)$$
#
# With $\sigma^2 = \sqrt D$ the last factor is softmax's. The first is common to the numerator and the denominator of
# $(\ast)$ and cancels. The second stays: the Gaussian smoother is softmax attention that thinks less of long keys. If
# all keys have one length, it cancels as well.


# %%
def gaussian(q, k):
    return np.exp(-((q - k) ** 2).sum(axis=-1) / (2 * math.sqrt(q.shape[-1])))


def weighted_exponential(q, k):
    return exponential(q, k) * np.exp(-(k**2).sum(axis=-1) / (2 * math.sqrt(k.shape[-1])))


same(smooth(gaussian, q, k, v), smooth(weighted_exponential, q, k, v))
assert abs(smooth(gaussian, q, k, v) - smooth(exponential, q, k, v)).max() > 0.1
k_unit = k / np.linalg.norm(k, axis=1, keepdims=True)
same(smooth(gaussian, q, k_unit, v), smooth(exponential, q, k_unit, v))

# %% [markdown]
# ### What a similarity must be
#
# **Not negative: that is all** (claim 14 of the seeds). Let $w_{ij} = \mathrm{sim}(q_i, k_j) \ge 0$ with a sum over
# $j$ that is not 0, and $P_{ij} = w_{ij} / \sum_l w_{il}$. Then $P_{ij} \ge 0$ and $\sum_j P_{ij} = 1$, so
#
# $$\min_j v_{jm} = \sum_j P_{ij} \min_l v_{lm} \;\le\; \sum_j P_{ij} v_{jm} = o_{im} \;\le\;
# \sum_j P_{ij} \max_l v_{lm} = \max_j v_{jm}$$
#
# An average stays in the range of what it averages. If some $w_{ij}$ are negative, both inequalities are gone, and,
# what is worse, the denominator is a sum of numbers of either sign. It can come out anywhere, near 0 too.
#
# To look at it, sixty keys on a circle, $k = (\cos \theta, \sin \theta)$, each with a noisy value; the queries go all
# around. (On a circle all keys have one length: softmax and the Gaussian kernel are one smoother.)


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

# %% [markdown]
# Every non-negative similarity smooths: claim 14. How *well* is another matter. Exp and box look at neighbours and
# follow the points. The quadratic kernel and $\mathrm{elu} + 1$ are wide, and of a wave with two periods they leave
# little. The last one, $q^\top k$, is not an average at all: where its denominator passes through 0 the output runs
# off to infinity.
#
# "Non-negative" has one gap, the sum that is 0: far from all keys the box kernel sees nothing. The package's rule for
# a query that sees nothing is an output of 0, here as in chapter 1. A positive similarity has no such queries.
#
# ### What a similarity must be, to be an inner product
#
# Linear attention asks for more: $\mathrm{sim}(q, k) = \phi(q)^\top \phi(k)$, with a *feature map* $\phi$ that sends
# vectors of $D$ entries to vectors of $C$. The seeds take "any kernel", and two properties are easily mixed up here:
#
# - **non-negative**: $\mathrm{sim}(x, y) \ge 0$ for all $x$, $y$. It makes outputs averages.
# - **positive semi-definite**: for any points $x_1 \dots x_n$ the matrix $G_{ij} = \mathrm{sim}(x_i, x_j)$ has no
#   negative eigenvalue. It is what the word *kernel* means in "kernel method". An inner product of features has it:
#   with the rows $\phi(x_i)$ in a matrix $\Phi$, $G = \Phi \Phi^\top$, and
#   $z^\top G z = \lVert \Phi^\top z \rVert^2 \ge 0$. Conversely (Moore and Aronszajn) whatever has it *is* an inner
#   product of features, perhaps of infinitely many.
#
# Neither implies the other. And there is a third property, a small $C$: as $\Phi$ has $C$ columns, the rank of $G$ is
# at most $C$, however many points there are. Forty random points in three dimensions say which similarity has what:

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
# exponential and the Gaussian kernel have features, but at least 40 of them. Linear attention lives in the rows with
# a small rank and no negative entry.
#
# %%
three_in_a_row = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
same(np.linalg.eigvalsh(three_in_a_row)[0], 1 - math.sqrt(2))

# %% [markdown]
# (Queries and keys may also have *different* maps, $\phi(q)^\top \psi(k)$; then $G$ need not be symmetric, and only
# the rank matters. The papers use one map for both.)
#
# ## The bracket
#
# Let $\mathrm{sim}(q, k) = \phi(q)^\top \phi(k)$. Put it into $(\ast)$. The query's features do not depend on $j$, so
# they come out of both sums (claim 15 of the seeds):
#
# $$o_i^\top = \frac{\sum_j \phi(q_i)^\top \phi(k_j)\, v_j^\top}{\sum_j \phi(q_i)^\top \phi(k_j)}
# = \frac{\phi(q_i)^\top \sum_j \phi(k_j)\, v_j^\top}{\phi(q_i)^\top \sum_j \phi(k_j)}$$
#
# What is left in the sums does not depend on $i$: it is computed **once, for all queries**. The package's numbers:
#
# $$S = \sum_j \phi(k_j)\, v_j^\top \quad (C, M) \qquad (1)$$
#
# $$Z = \sum_j \phi(k_j) \quad (C) \qquad (2)$$
#
# $$o_i = \frac{S^\top \phi(q_i)}{Z^\top \phi(q_i) + \epsilon} \qquad (3)$$
#
# For all rows at once it is the law that $(AB)C = A(BC)$. With $\phi$ applied to each row of $Q$ and $K$, and $1$ a
# column of ones, the numerators are
#
# $$\big(\phi(Q)\, \phi(K)^\top\big) V = \phi(Q) \big(\phi(K)^\top V\big) = \phi(Q)\, S$$
#
# and the denominators are the diagonal of a diagonal matrix, by whose inverse the numerators are multiplied:
#
# $$\mathrm{diag}\Big(\big(\phi(Q)\, \phi(K)^\top\big) 1\Big) = \mathrm{diag}\Big(\phi(Q) \big(\phi(K)^\top 1\big)\Big)
# = \mathrm{diag}\big(\phi(Q)\, Z\big)$$
#
# In the code, $\epsilon = 10^{-6}$ unless another is given. It keeps the quotient finite where all features of a query
# are tiny.

# %%
chapter.source(linear.add_up, linear.read, doc=False)

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

# %% [markdown]
# The whole forward pass: features, (1) and (2), (3). (What is said there of `causal`, `state` and pieces belongs to
# the next chapter.)

# %%
chapter.source(linear.forward, doc=False)

# %% [markdown]
# ### What the bracket saves
#
# The left bracket costs $N L C$ multiply-adds for $\phi(Q)\phi(K)^\top$ and $N L M$ for the product with $V$. The
# right one costs $L C M$ for (1) and, in (3), $N C M$ for the numerators and $N C$ for the denominators. (Sums such as
# (2) multiply nothing.) Claim 16 of the seeds: $O(N^2 \max(D, M))$ against $O(N C M)$. Counted while the code runs:


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
assert count(softmax.dense_forward, q, k, v).multiply_adds == N * L * (D + M)
assert count(softmax.dense_forward, q, k, v).exponentials == N * L  # an exponential a pair
assert count(right_first, q, k, v).exponentials == (N + L) * D  # an exponential an entry of Q and K

lengths = np.array([128, 256, 512, 1024])
grown = {"softmax": [], "linear": []}
for n in lengths:
    arrays = draw_inputs(3, n, n, 64, 64, np.float32)[:3]
    grown["softmax"].append(count(softmax.dense_forward, *arrays).multiply_adds)
    grown["linear"].append(count(right_first, *arrays).multiply_adds)
assert growth_exponent(lengths, np.array(grown["softmax"])) == 2
assert growth_exponent(lengths, np.array(grown["linear"])) == 1
chapter.table(
    ("multiply-adds, D = M = 64", *(f"N = {n}" for n in lengths)), [(name, *counts) for name, counts in grown.items()]
)

# %% [markdown]
# Both brackets to scale, for $C = M = 32$: on the left $\phi(Q)\phi(K)^\top$ (orange) and $V$, on the right $\phi(Q)$
# and $S$ (blue). The area is memory. The left one's square grows in two directions; the right one only gets longer,
# and $S$ stays as it is.


# %%
def draw_brackets(axes, n):
    width = 32
    arrays = draw_inputs(4, n, n, width, width, np.float32)[:3]
    right = 2 * max(n, 128) - 60
    for x, rows, columns, colour in (
        (0, n, n, style.VERMILLION),
        (n + 6, n, width, style.GREY),
        (right, n, width, style.GREY),
        (right + width + 6, width, width, style.BLUE),
    ):
        axes.add_patch(Rectangle((x, -rows), columns, rows, facecolor=colour, edgecolor="none"))
    axes.set(xlim=(-4, right + 2 * width + 10), ylim=(-max(n, 128) - 4, 4), aspect="equal", xticks=[], yticks=[])
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

# %% [markdown]
# This compares *one* number, multiply-adds. Softmax needs $N L$ exponentials besides, and linear attention makes $C$
# features a row; a count does not say how fast either runs on a machine.
#
# ### What the bracket costs: rank $C$
#
# Associativity is exact; nothing was approximated *given $\phi$*. But the matrix that linear attention applies,
# $P = \mathrm{diag}(\dots)^{-1} \phi(Q)\, \phi(K)^\top$, has a rank of at most $C$, and softmax's has not. A head that
# wants to copy every token to itself needs $P = I$, of rank $N$. By the theorem of Eckart, Young and Mirsky
# (chapter 2) a matrix of rank $C$ is at least $\sqrt{N - C}$ away from it, in the Frobenius norm: all its other $N - C$
# singular values are missed.

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
# ## Feature maps, one by one
#
# The numbers ($\phi$1) to ($\phi$5) are (1) to (5) in the docstring of `feature_maps_exact`.
#
# ### The exponential: infinitely many features
#
# What is $\phi$ of softmax? Put the scale into $q$ and $k$ and take the series
# $e^{x^\top y} = \sum_p (x^\top y)^p / p!$. A power of an inner product is an inner product of tensor powers:
# multiply out,
#
# $$(x^\top y)^p = \Big(\sum_d x_d y_d\Big)^p = \sum_{d_1 \dots d_p} (x_{d_1} \cdots x_{d_p})(y_{d_1} \cdots y_{d_p})
# = \langle x^{\otimes p}, y^{\otimes p} \rangle$$
#
# The $D^p$ products $x_{d_1} \cdots x_{d_p}$ are the features of order $p$, each over $\sqrt{p!}$ so that the $p!$ is
# shared by both sides. Built one order from the last:
#
# $$\phi(x) = (t_0, t_1, t_2, \dots), \qquad t_0 = 1, \qquad t_p = \frac{t_{p-1} \otimes x}{\sqrt p} \qquad (\phi 4)$$
#
# The Gaussian kernel is the same with a factor for each side (claim 17 of the seeds):
#
# $$e^{-\lVert x - y \rVert^2 / 2\sigma^2} = e^{-\lVert x \rVert^2 / 2\sigma^2}\, e^{-\lVert y \rVert^2 / 2\sigma^2}
# \sum_{p=0}^\infty \frac{(x^\top y)^p}{p!\, \sigma^{2p}} \qquad\Longrightarrow\qquad
# \phi(x) = e^{-\lVert x \rVert^2 / 2 \sigma^2}\, (t_0, t_1, \dots)(x / \sigma) \qquad (\phi 5)$$

# %%
chapter.source(feature_maps_exact._tensor_powers)

# %%
x, y = np.random.default_rng(6).standard_normal((2, 3))
powers_x, powers_y = feature_maps_exact._tensor_powers(x, 6), feature_maps_exact._tensor_powers(y, 6)
for p, (t_x, t_y) in enumerate(zip(powers_x, powers_y, strict=True)):
    assert t_x.shape == (3**p,)
    same(t_x @ t_y, (x @ y) ** p / math.factorial(p))  # order by order

sigma, cut_off = 1.5, taylor_gaussian(12, 1.5)
same(cut_off.forward(x)[0] @ cut_off.forward(y)[0], math.exp(-((x - y) ** 2).sum() / (2 * sigma**2)), atol=1e-9)

# %% [markdown]
# **Is there a cleverer, finite $\phi$?** No. Suppose $e^{x^\top y} = \phi(x)^\top \phi(y)$ with $C$ features. Then
# every matrix $e^{x_i^\top y_j}$ has rank at most $C$. Take vectors that differ in one entry only, $x_i = (a_i, 0,
# \dots)$ with different $a_1 \dots a_n$, and $y_j = (j, 0, \dots)$ for $j = 0 \dots n - 1$. The entries are
# $e^{a_i j} = (e^{a_i})^j$: a Vandermonde matrix, whose determinant
# $\prod_{i < l} (e^{a_l} - e^{a_i})$ is not 0. So $C \ge n$, for every $n$. With the Gaussian kernel rows and columns
# are only multiplied by positive numbers, which changes no rank. Claim 17: the feature space is infinite.

# %%
a = np.array([-0.5, 0.1, 0.4, 1.0, 1.3])
vandermonde = np.exp(a[:, None] * np.arange(5))
determinant = math.prod(np.exp(a[l]) - np.exp(a[i]) for l in range(5) for i in range(l))
np.testing.assert_allclose(np.linalg.det(vandermonde), determinant, rtol=1e-10)
assert determinant != 0

# %% [markdown]
# **Cut off.** So stop after order $p$: $C = 1 + D + \dots + D^p$. (As $x_1 x_2 = x_2 x_1$, only $\binom{D + p}{p}$ of
# the products differ; chapter 1 counted those.) How wrong is it? Let $t = x^\top y$ and
# $E_p(t) = \sum_{r \le p} t^r / r!$. Taylor's theorem with Lagrange's remainder: for some $\xi$ between 0 and $t$
#
# $$e^t - E_p(t) = \frac{e^\xi\, t^{p+1}}{(p+1)!} \qquad\Longrightarrow\qquad
# |e^t - E_p(t)| \le \frac{|t|^{p+1}}{(p+1)!} \max(1, e^t)$$
#
# since $e^\xi$ is largest at an end. More can be said:
#
# - **For $t > 0$** the relative error is $\sum_{r > p} e^{-t}\, t^r / r!$: the probability that a Poisson variable of
#   mean $t$ exceeds $p$. Its spread is $\sqrt t$. So the error is close to 1 until $p$ reaches $t$, and falls steeply
#   after: **a score of $t$ needs orders up to about $t$**.
# - **For $t < 0$** the terms alternate. $e^t$ is tiny, while the terms are as large as before: beside the first few
#   orders the *relative* error is enormous. The truncated series does not know how to be small.
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

score, order = 5.0, 7
poisson_tail = 1 - sum(math.exp(-score) * score**r / math.factorial(r) for r in range(order + 1))
same((math.exp(score) - series(score, order)) / math.exp(score), poisson_tail)

# %% [markdown]
# Measured with the package's features in the left panel: points are errors, lines the bound. The two other panels are
# about cost; we come to them below.

# %%
results = feature_maps_figure.compute(seed=0)
chapter.show(
    feature_maps_figure.draw,
    results,
    alt="Left: the relative error of the truncated series, above 1 for scores below -3 in all orders shown, near 1 for "
    "scores above the order. Middle: counted multiply-adds, slope 2 for softmax and 1 for three feature maps. Right: "
    "the crossover grows as D for elu + 1 and as D squared for quadratic maps",
)
for order, errors in zip(results.orders, results.errors, strict=True):
    beyond = feature_maps_figure.remainder_bound(results.scores, order) / np.exp(results.scores)
    assert (errors <= beyond + 1e-15 * math.exp(9 + 8)).all()  # rounding: products of features up to e^9, over e^-8
    assert (errors[results.scores < -4] > 1).all()

# %% [markdown]
# The truncated exponential as a similarity, on the circle of before with scores $t = 4 \cos(\text{angle})$. Above:
# the similarity to the query at angle 0 (line) and $e^t$ (dashed), on a scale that shows both signs. Below: what it
# makes of the noisy points, and softmax (dashed). Odd orders turn negative: what they give is an average no more. Even
# orders remain averages, but low ones look *behind* themselves, at the keys with the lowest scores. Order 8 is as good
# as softmax. It has 511 features, for vectors of two entries and 60 keys.


# %%
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
# As attention, on random inputs with $D = 4$: $x$ and $y$ are $q$ and $k$ over $D^{1/4}$ each, so that $x^\top y$ is
# softmax's score. The error falls with the order, and the features multiply by $D$ with each. For a head of
# $D = 64$ order 2 has 4161 features, and order 4 has 17 million. So the seeds' verdict stands: cut off, the exponential
# kernel is not for linear attention.

# %%
width = 4
q_4, k_4, v_4, _ = draw_inputs(7, 64, 64, width, width)
target, _ = softmax.dense_forward(q_4, k_4, v_4)
root = width**0.25
rows, errors = [], []
for order in (2, 4, 6, 8):
    approximate, _ = linear.forward(q_4 / root, k_4 / root, v_4, feature_map=taylor_exp(order), eps=0.0)
    errors.append(float(abs(approximate - target).max()))
    rows.append((order, taylor_exp(order).width(width), taylor_exp(order).width(64), errors[-1]))
assert all(later < earlier / 2 for earlier, later in pairwise(errors))
assert taylor_exp(2).width(64) == 4161
assert 17e6 < taylor_exp(4).width(64) < 18e6
chapter.table(("order", "features, D = 4", "features, D = 64", "largest error of the output, D = 4"), rows)

# %% [markdown]
# ### The quadratic kernel: about $D^2 / 2$ features, exact
#
# A polynomial kernel *is* a finite sum. Multiply out, and put the terms with $i < j$ and $i > j$ together, which are
# equal:
#
# $$(x^\top y + c)^2 = c^2 + 2c \sum_i x_i y_i + \sum_{ij} x_i x_j\, y_i y_j
# = c \cdot c + \sum_i (\sqrt{2c}\, x_i)(\sqrt{2c}\, y_i) + \sum_i x_i^2\, y_i^2 +
# \sum_{i < j} (\sqrt 2\, x_i x_j)(\sqrt 2\, y_i y_j)$$
#
# Read off (claim 18 of the seeds):
#
# $$\phi(x) = \big(c,\; \sqrt{2c}\, x_i,\; x_i^2,\; \sqrt 2\, x_i x_j \text{ for } i < j\big), \qquad
# C = 1 + D + \frac{D (D + 1)}{2} \qquad (\phi 3)$$

# %%
chapter.source(quadratic, doc=False)

# %%
rng = np.random.default_rng(8)
for c, width in ((0.0, 3), (0.7, 5), (2.0, 8)):
    x, y = rng.standard_normal((2, 50, width))
    phi_x, phi_y = quadratic(c).forward(x)[0], quadratic(c).forward(y)[0]
    np.testing.assert_allclose((phi_x * phi_y).sum(axis=1), ((x * y).sum(axis=1) + c) ** 2, atol=1e-12)  # claim 18
    assert phi_x.shape[1] == 1 + width + width * (width + 1) // 2 == math.comb(width + 2, 2)

# %% [markdown]
# **Cost: $O(N D^2 M)$, worth it when $N > D^2$** say the seeds. By the rule from above the crossover is at
# $N = C\,(2M + 1)/(D + M)$. For $M = D$ that is about $C$, and $C$ is about $D^2 / 2$: the quadratic kernel pays
# *earlier* than stated, from half as many tokens. The seeds count $D^2$ features, $x_i x_j$ and $x_j x_i$ each, as
# `taylor_exp(2)` does, and then the rule is right. In the right panel of the figure above both are found by counting,
# with no formula: for each width the least $N$ at which linear attention's count is below softmax's.

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

# %%
for n, d, m in ((40, 6, 5), (30, 9, 2)):
    arrays = draw_inputs(9, n, n, d, m)[:3]
    C = quadratic().width(d)
    cost = count(partial(linear.forward, feature_map=quadratic()), *arrays)
    assert cost.multiply_adds == n * C * (2 * m + 1)  # claim 18: O(N D^2 M)
assert count(quadratic().forward, arrays[0]).elementwise <= 2 * n * C  # making the features: two products each at most

# %% [markdown]
# As a similarity the square has a property to be aware of: it is smallest at $x^\top y = -c$, and grows again below.
# Keys that point *away* from the query get weight.

# %%
towards = np.array([1.0, 0.0, -1.0, -3.0])  # x.y
np.testing.assert_array_equal((towards + 1) ** 2, [4, 1, 0, 4])  # c = 1: away by 3 weighs as much as towards by 1

# %% [markdown]
# ### $\mathrm{elu} + 1$: $D$ features, positive
#
# The paper's choice (claim 19 of the seeds) does not approximate anything. It is a positive function, applied to each
# entry, so $C = D$ and the cost is $O(N D M)$:
#
# $$\phi(x) = \mathrm{elu}(x) + 1 = \begin{cases} x + 1 & x > 0 \\ e^x & x \le 0 \end{cases} \qquad (\phi 1)$$
#
# Why not simply $\max(x, 0)$? Its derivative is 0 wherever $x < 0$: a feature that is off gets no gradient and stays
# off. $\mathrm{elu} + 1$ has a slope everywhere, and both branches meet at 0 with the value 1 and the slope 1.

# %%
chapter.source(feature_maps_exact._elu_plus_one_forward, feature_maps_exact._elu_plus_one_backward)

# %%
x = np.linspace(-5, 5, 1001)
value, saved_value = elu_plus_one.forward(x)
slope = elu_plus_one.backward(np.ones_like(x), saved_value)
assert (value > 0).all()
assert (slope > 0).all()
assert (np.diff(value) > 0).all()
same(elu_plus_one.forward(np.array([-1e-9, 0.0, 1e-9]))[0], np.ones(3), atol=1.1e-9)
assert (feature_maps.relu.backward(np.ones_like(x), feature_maps.relu.forward(x)[1])[x < 0] == 0).all()

for n, d, m in ((40, 6, 5), (30, 9, 2)):
    cost = count(right_first, *draw_inputs(10, n, n, d, m)[:3])
    assert cost.multiply_adds == n * d * (2 * m + 1)  # claim 19: O(N D M)

# %% [markdown]
# ### Temperature: what $\mathrm{elu} + 1$ cannot do
#
# Divide queries and keys by $\sqrt T$ each, so that scores are divided by $T$. Softmax moves between the best key
# alone ($T \to 0$) and all alike ($T \to \infty$), see chapter 1. Now $\mathrm{elu} + 1$ with $\lambda = 1 / \sqrt T$:
# as $\lambda \to \infty$,
#
# $$\frac{\phi(\lambda x)}{\lambda} \to \max(x, 0), \qquad\text{so}\qquad
# P_{ij} \to \frac{\max(q_i, 0)^\top \max(k_j, 0)}{\sum_l \max(q_i, 0)^\top \max(k_l, 0)}$$
#
# as the two factors $\lambda$ cancel. **There is a limit to how sharp it gets**: a polynomial kernel does not care
# for scale as an exponential does. (For $\lambda \to 0$ all features are 1, and all keys alike.) A model with linear
# attention must live with softer attention, or learn other directions.

# %%
tokens, width = 12, 8
q_12, k_12, _, _ = draw_inputs(11, tokens, tokens, width, 1)
q_relu, k_relu = np.maximum(q_12, 0), np.maximum(k_12, 0)
limit = q_relu @ k_relu.T / (q_relu @ k_relu.T).sum(axis=1, keepdims=True)


def softmax_at(temperature):
    return softmax.matrix(q_12, k_12, scale=1 / (temperature * math.sqrt(width)))


def linear_at(temperature):
    root = math.sqrt(temperature) * width**0.25  # scores as softmax's
    return linear.matrix(q_12 / root, k_12 / root)


def entropy(p):
    """Of each row, in nats."""
    return -(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1)


same(linear_at(1e-14), limit, atol=1e-6)  # 1 / lambda is 1e-7
assert entropy(softmax_at(1e-3)).mean() < 0.01
assert entropy(limit).mean() > 0.8 * math.log(tokens)
for at in (softmax_at, linear_at):
    same(at(1e14), np.full((tokens, tokens), 1 / tokens), atol=1e-6)


# %%
def draw_temperature(axes, temperature):
    for each, p in zip(axes, (softmax_at(temperature), linear_at(temperature)), strict=True):
        each.imshow(p, vmin=0, vmax=1, aspect="equal")
        each.grid(False)
        each.set(xticks=[], yticks=[], xlabel=f"entropy {entropy(p).mean():.2f}")
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
    alt="Attention matrices at five temperatures: softmax goes from one bright entry a row to an even field, elu + 1 "
    "stays an almost even field",
)

# %% [markdown]
# ### Random features, in short
#
# Where the features are infinitely many, one can also draw some of them at random. Claim 37 of the seeds, for a
# positive semi-definite kernel that depends on $x - y$ only: draw directions $\omega$ from the density that is the
# kernel's Fourier transform; then (Bochner's theorem)
#
# $$\mathrm{sim}(x, y) = \mathbb E_\omega \cos(\omega^\top (x - y))
# = \mathbb E_\omega \big[\cos \omega^\top x \cos \omega^\top y + \sin \omega^\top x \sin \omega^\top y\big]$$
#
# so the $2m$ features $\frac{1}{\sqrt m} [\sin \omega^\top x, \cos \omega^\top x]$ estimate it without bias. Normal
# $\omega$ give the Gaussian kernel. Any kernel: $\omega$ with Cauchy entries, for one, give
# $e^{-\sum_d |x_d - y_d|}$.

# %%
draws = 40_000
rng = np.random.default_rng(12)
difference = np.array([0.3, -0.5, 0.2])  # x - y
standard_error = 1 / math.sqrt(draws)  # a cosine has a standard deviation of at most 1
for omega, kernel in (
    (rng.standard_normal((draws, 3)), math.exp(-(difference**2).sum() / 2)),
    (rng.standard_cauchy((draws, 3)), math.exp(-abs(difference).sum())),
):
    assert abs(np.cos(omega @ difference).mean() - kernel) < 4 * standard_error  # claim 37

# %% [markdown]
# For softmax two families matter. Both rest on $\mathbb E\, e^{\omega^\top s} = e^{\lVert s \rVert^2 / 2}$ for normal
# $\omega$ (complete the square in the integral), and $\mathbb E \cos(\omega^\top s) = e^{-\lVert s \rVert^2/2}$ (the
# same with $is$):
#
# - *trigonometric*, $s = x - y$: as $e^{x^\top y} = e^{\lVert x \rVert^2/2} e^{\lVert y \rVert^2/2}
#   e^{-\lVert x - y \rVert^2 / 2}$, the features
#   $\frac{1}{\sqrt m} e^{\lVert x \rVert^2/2} [\sin \omega^\top x, \cos \omega^\top x]$;
# - *positive*, $s = x + y$: as $\mathbb E\, e^{\omega^\top x}\, e^{\omega^\top y} = e^{\lVert x + y \rVert^2 / 2}
#   = e^{\lVert x \rVert^2/2} e^{\lVert y \rVert^2/2} e^{x^\top y}$, the features
#   $\frac{1}{\sqrt m} e^{\omega^\top x - \lVert x \rVert^2/2}$.
#
# Both are right on average. The variances differ. With $\cos^2 u = \frac12 (1 + \cos 2u)$,
# $\mathrm{Var} \cos(\omega^\top s) = \frac12 (1 + e^{-2 \lVert s \rVert^2}) - e^{-\lVert s \rVert^2}
# = \frac12 (1 - e^{-\lVert s \rVert^2})^2$; and $\mathrm{Var}\, e^{\omega^\top s} = e^{2 \lVert s \rVert^2} -
# e^{\lVert s \rVert^2}$. So the standard deviations, relative to $e^{x^\top y}$, are
#
# $$\text{trigonometric: } \frac{e^{\lVert x - y \rVert^2 / 2}}{\sqrt{2m}} \big(1 - e^{-\lVert x - y \rVert^2}\big),
# \qquad \text{positive: } \sqrt{\frac{e^{\lVert x + y \rVert^2} - 1}{m}}$$
#
# The first explodes where the kernel is near 0, the second where it is large. In attention most weights are small,
# and a small weight must not come out as a large one of either sign. For $y = -x$ the positive features have no
# variance at all. Measured, for vectors of length 1.5 at all angles:

# %%
m, length, width = 64, 1.5, 16
turn = np.linspace(0, math.pi, 13)
x = np.zeros(width)
x[0] = length
y = np.zeros((13, width))
y[:, 0], y[:, 1] = length * np.cos(turn), length * np.sin(turn)
score = y @ x

rng = np.random.default_rng(13)
kinds = {"trigonometric": feature_maps.favor_trig, "positive": feature_maps.favor_positive}
estimates = {name: np.empty((1000, 13)) for name in kinds}  # over exp(x.y)
for i in range(1000):
    omega = feature_maps.gaussian(m, width, rng)
    for name, make in kinds.items():
        phi = make(omega)
        estimates[name][i] = phi.forward(y)[0] @ phi.forward(x)[0] / np.exp(score)
stated = {
    "trigonometric": np.exp(length**2 - score) * (1 - np.exp(-((x - y) ** 2).sum(axis=1))) / math.sqrt(2 * m),
    "positive": np.sqrt((np.exp(((x + y) ** 2).sum(axis=1)) - 1) / m),
}


def draw_spread():
    figure, axes = style.figure(1, 1, height=0.34)
    for name, marker, colour in zip(kinds, "os", (style.VERMILLION, style.BLUE), strict=True):
        axes.plot(score, estimates[name].std(axis=0), marker, color=colour, label=name)
        axes.plot(score, stated[name], "-", color=colour)
    axes.axhline(1, linestyle="--", color=style.GREY)
    axes.set(yscale="log", ylim=(3e-3, 30), xlabel="score x·y", ylabel="spread over exp(x·y)")
    axes.legend()
    return figure


chapter.show(
    draw_spread,
    alt="Spread of the estimates relative to the kernel: the trigonometric one rises to 8 at the lowest score, the "
    "positive one falls to 0 there and rises at high scores",
)
# 1000 draws know a standard deviation to some 3 % as long as the tails are light: for |x + y| up to 1.
light = ((x + y) ** 2).sum(axis=1) < 1
np.testing.assert_allclose(estimates["trigonometric"].std(axis=0)[1:], stated["trigonometric"][1:], rtol=0.15)
np.testing.assert_allclose(estimates["positive"].std(axis=0)[light], stated["positive"][light], rtol=0.15, atol=1e-12)
for name in stated:  # claim 37: without bias, within 4 standard errors
    error = abs(estimates[name].mean(axis=0) - 1)[light]
    assert (error <= 4 * stated[name][light] / math.sqrt(1000) + 1e-12).all()
assert stated["trigonometric"][-1] > 1 > stated["positive"][-2]  # claim 37: high variance where the kernel is near 0
assert (estimates["trigonometric"][:, -1] < 0).mean() > 0.3  # and of either sign
assert (estimates["positive"] > 0).all()  # claim 38

# %% [markdown]
# (Points that lie below their line at high scores are what heavy tails look like: the variance sits in draws so rare
# that a thousand of them hold none.)
#
# Claim 38 in short. Positive features mend the fault of the trigonometric ones. Any positive function makes a
# smoother, ReLU in place of exp say. And drawing the $\omega$ orthogonal to each other lowers the variance: with
# $s = x + y$, the variance of the mean of $m$ features is $\frac1m$ of a single one's, plus $1 - \frac1m$ of the
# covariance of two. Two features of orthogonal directions have the product $e^{s^\top(\omega_1 + \omega_2)}$, and the
# squared length of $\omega_1 + \omega_2$ is a $\chi^2$ variable with $2D$ degrees of freedom; for independent
# directions it is twice one with $D$, which spreads more. Taking the mean term by term, the product's is
#
# $$\sum_r \frac{\lVert s \rVert^{2r}}{r!} \prod_{i < r} \frac{D + i}{D + 2i} \;<\; e^{\lVert s \rVert^2}$$
#
# as each factor is at most 1; so the covariance is negative. The gain is real and modest: a ninth of the variance for
# $m = D = 4$ and $\lVert s \rVert = 1$.

# %%
relu_features = feature_maps.favor_relu(feature_maps.gaussian(64, 4, np.random.default_rng(14)))
assert linear.matrix(q, k, feature_map=relu_features).min() > 0  # claim 38: ReLU in place of exp

m = width = 4
s = np.array([1.0, 0, 0, 0])
orthogonal_product = sum(
    math.prod((width + i) / (width + 2 * i) for i in range(r)) / math.factorial(r) for r in range(20)
)
rng = np.random.default_rng(15)
rows = []
for name, draw, product in (
    ("independent", feature_maps.gaussian, math.e),
    ("orthogonal", feature_maps.orthogonal_gaussian, orthogonal_product),
):
    features = np.exp(np.stack([draw(m, width, rng) for _ in range(20_000)]) @ s)  # (20000, m)
    pairs = (features.sum(axis=1) ** 2 - (features**2).sum(axis=1)) / (m * (m - 1))  # mean product of two features
    assert abs(pairs.mean() - product) < 4 * pairs.std() / math.sqrt(20_000)
    rows.append((name, pairs.mean(), product, (math.e**2 - math.e) / m + (1 - 1 / m) * (product - math.e)))
chapter.table(("directions", "mean product, measured", "mean product", "variance of the mean of m"), rows)
assert 0.88 < rows[1][-1] / rows[0][-1] < 0.9  # claim 38
assert rows[1][1] < rows[0][1]

# %% [markdown]
# And the effect on attention: the error of the output relative to softmax's (root mean square, median of ten draws
# of 256 features), for inputs of three sizes. It is not that one kind is better than the other. For *short* queries
# and keys trigonometric features are more accurate. As they grow, all estimates get worse, and the trigonometric
# denominators come out near 0 or negative: their error has no bound. The chapter on Performer takes this up.

# %%
width, tokens = 16, 128
q_16, k_16, v_16, _ = draw_inputs(16, tokens, tokens, width, width)
rows = []
for size in (0.5, 0.7, 1.0):
    q_size, k_size = size * q_16, size * k_16
    target, _ = softmax.dense_forward(q_size, k_size, v_16)
    row, least = [size], []
    for make in kinds.values():
        errors, denominators = [], []
        for seed in range(10):
            phi = make(feature_maps.gaussian(256, width, np.random.default_rng(seed)))
            approximate, kept = linear.forward(q_size / 2, k_size / 2, v_16, feature_map=phi, eps=0.0)  # 2 = D^(1/4)
            errors.append(math.sqrt(((approximate - target) ** 2).mean() / (target**2).mean()))
            denominators.append(kept.denominator)
        row.append(float(np.median(errors)))
        least.append(np.min(denominators))
    rows.append((*row, bool(least[0] < 0)))
    assert least[1] > 0
chapter.table(("size of q, k", *(f"error, {name}" for name in kinds), "some trigonometric denominator negative?"), rows)
assert rows[0][1] < rows[0][2]  # short: trigonometric features are better
assert rows[2][1] > 5 * rows[2][2]  # longer: they are useless

# %% [markdown]
# ## Keeping exponentials in range
#
# Features such as $e^{\omega^\top x - \lVert x \rVert^2/2}$ or $e^{\lVert x \rVert^2/2} \sin \omega^\top x$ leave the
# range of float32 soon: it ends at $e^{88.7}$ above and at about $e^{-103}$ below. With $D = 16$ and entries of
# size 5, $\lVert x \rVert^2 / 2 = 200$: the first kind underflows to 0 in every feature, and $0/0$ is not a number;
# the second overflows, and $\infty/\infty$ is not one either.
#
# In softmax the cure was to subtract the maximum of a row. Here a row of $P$ is never formed, and what is subtracted
# from a key's exponent must be the same for all queries. Write $\phi_c(x) = e^{a_c(x)} b_c(x)$. For *any* numbers
# $r_c$, one a feature, and $t_i$, one a query,
#
# $$\sum_c \phi_c(q_i)\, \phi_c(k_j) = e^{t_i} \sum_c
# \Big[e^{a_c(q_i) + r_c - t_i}\, b_c(q_i)\Big] \Big[e^{a_c(k_j) - r_c}\, b_c(k_j)\Big]$$
#
# ($r_c$ is added on one side and subtracted on the other), and the factor $e^{t_i}$ is common to numerator and
# denominator of row $i$. So the brackets may be used as features in place of $\phi$, **exactly**, whatever $r$ and $t$
# are. Now choose them:
#
# $$r_c = \max_j a_c(k_j), \qquad t_i = \max_c \big(a_c(q_i) + r_c\big)$$
#
# No exponent is above 0: nothing overflows. And there is a feature $c$ in which $t_i$ is attained, and a key in which
# that $r_c$ is: there both brackets have the exponent 0. With positive features that term is 1, so the denominator is
# at least 1, and underflow of all others does not matter.


# %%
def stabilised(phi, q, k, v):
    """Linear attention, not causal, with features exp(a), by the two formulas above."""
    (a_q, _), (a_k, _) = phi.split(q), phi.split(k)  # (N, C), (L, C)
    r = a_k.max(axis=0)  # (C,)
    t = (a_q + r).max(axis=1, keepdims=True)  # (N, 1)
    phi_q, phi_k = np.exp(a_q + r - t), np.exp(a_k - r)
    return linear.read(phi_q, *linear.add_up(phi_k, v), eps=0.0)


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
q_16, k_16, v_16, _ = draw_inputs(18, 20, 30, width, 4)

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
    assert np.isfinite(trig).all()  # in range; of no worth, see above
chapter.table(("size of q, k", "largest exponent", "least denominator", "largest error in float32"), rows)
assert 1.5e-5 < np.spacing(np.float32(rows[1][1])) / 2 < 1.6e-5
assert 1e-6 < rows[1][3] < 1e-4
assert rows[2][3] < 1e-6

# %% [markdown]
# The last column shows what a scale cannot do. An exponent of 382 is rounded in float32, by up to
# $1.5 \cdot 10^{-5}$, before any exponential is taken, and that is a relative error of the weight: the $10^{-5}$ of the
# second row. (In the third row each query has all its weight on one key, and there is nothing left to be wrong.)
#
# Three details that are easily got wrong:
#
# - **One maximum for all features is not enough.** Say there are two features; the only key has the exponents
#   $(200, 0)$ and the query $(-200, 0)$. Both terms of the sum are $e^0 = 1$. With the single maximum 200 the key's
#   features become $(1, e^{-200})$ and the query's $(e^{-200}, 1)$, and in float32 both products are 0.
# - **$\epsilon$ must be 0.** $(n_i, d_i)$ may be multiplied by $e^{-t_i}$, but $n_i / (d_i + \epsilon)$ may not: how
#   much $\epsilon$ weighs would depend on the largest key. The package refuses it.
# - **The exponent is all of $\omega^\top x - \lVert x \rVert^2/2$**, not $\omega^\top x$ alone; what remains outside
#   the maximum can overflow or underflow by itself.
#
# What changes for a causal query, whose $r$ must not depend on later keys, is a matter for chapter 5.

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
# ## The gradient, by hand
#
# As in chapter 1, $\ell$ is the loss, $dX$ the array of $\partial \ell / \partial X$. Given is $G_i = do_i$, one row a
# query; wanted are $dQ$, $dK$, $dV$. Write the two sums of (3) as $n_i = S^\top \phi(q_i)$ ($M$ numbers) and
# $d_i = Z^\top \phi(q_i) + \epsilon$ (one number), so that $o_i = n_i / d_i$.
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
# The output is at hand, so $n_i$ need not be kept.
#
# ### Step 2: through the reading of $S$ and $Z$
#
# With an index $c$ for the features, $n_{im} = \sum_c S_{cm}\, \phi(q_i)_c$ and $d_i = \sum_c Z_c\, \phi(q_i)_c +
# \epsilon$. The feature $\phi(q_i)_c$ occurs in $n_{im}$ for all $m$, and in $d_i$:
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
# The shape of it is worth a look. Going forward, the keys write a sum, $S$ and $Z$, and the queries read it. Going
# backward, **the queries write a sum**, $dS$ and $dZ$, **and the keys read it**. No step has an $i$ and a $j$ at once,
# so the gradient is linear in the length too.

# %%
chapter.source(linear.read_backward, linear.add_up_backward, linear.backward, doc=False)

# %% [markdown]
# The left bracket gives the same gradient in another way, through $w_{ij} = \phi(q_i)^\top \phi(k_j)$ and
# $P_{ij} = w_{ij} / d_i$: $dP = G V^\top$, and the quotient rule gives $dw_{ij} = (dP_{ij} - \sum_l dP_{il} P_{il}) /
# d_i$. (In softmax $w = e^A$, so $dA = w * dw$, which is equation (6) of chapter 1.) Then $d\phi(q_i) = \sum_j
# dw_{ij}\, \phi(k_j)$, and so on. Both ways agree by associativity:

# %%
out, saved = linear.forward(q, k, v, eps=0.1)  # an eps large enough to be seen
d_phi_q, d_S, d_Z = linear.read_backward(d_out, saved.phi.q, saved.out, saved.denominator, *saved.starts[0])
d_phi_k, d_v = linear.add_up_backward(d_S, d_Z, saved.phi.k, v)

P, d_P = linear.matrix(q, k, eps=0.1), d_out @ v.T
d_w = (d_P - (d_P * P).sum(axis=1, keepdims=True)) / saved.denominator[:, None]
same(d_phi_q, d_w @ saved.phi.k)
same(d_phi_k, d_w.T @ saved.phi.q)
same(d_v, P.T @ d_out)

# %% [markdown]
# **What it costs.** (6), (7), (8) and (9) are a product of $N C M$, $N C M$, $L C M$ and $L C M$ multiply-adds, and
# $dZ$ takes $N C$ more: twice the forward pass, as ever. What is kept is rows, the features, $V$, the output and the
# denominators, and two states of $C M + C$ numbers. Nothing has $N L$ entries.


# %%
def both(q, k, v, d_out):
    _, saved = linear.forward(q, k, v)
    linear.backward(d_out, saved)


C = elu_plus_one.width(D)
forward_cost = L * C * M + N * C * M + N * C
backward_cost = 2 * (N + L) * C * M + N * C
assert count(both, q, k, v, d_out).multiply_adds == forward_cost + backward_cost
assert kept_bytes(saved) == ((N + L) * C + L * M + N * M + N + 2 * (C * M + C)) * 8

# %% [markdown]
# ### Step 4: through the feature maps
#
# $\phi$ acts on each row by itself; let $x$ be a row and $d\phi$ its gradient.
#
# **$\mathrm{elu} + 1$.** $\phi' = 1$ for $x > 0$ and $\phi' = e^x = \phi$ for $x \le 0$. As $\phi > 1$ in the first
# case and $\phi \le 1$ in the second, both are $\min(\phi, 1)$: only $\phi$ is kept. **ReLU** ($\phi$2): 1 or 0.
#
# **Quadratic**, ($\phi$3). The constant passes nothing on. The linear features give
# $\sqrt{2c}\, d\phi_{\text{linear}}$. Let $g_{ij}$, $i \le j$, be the gradient of the product $x_i x_j$ (that of the
# feature, times its factor 1 or $\sqrt 2$), and 0 for $i > j$. The entry $x_l$ occurs in $x_l x_j$, with the derivative
# $x_j$, and in $x_i x_l$, with the derivative $x_i$; in $x_l^2$ both count, and $2 x_l$ is right:
#
# $$dx_l = \sqrt{2c}\, d\phi_l + \sum_j g_{lj} x_j + \sum_i g_{il} x_i
# \quad\Longrightarrow\quad dx = \sqrt{2c}\, d\phi_{\text{linear}} + (g + g^\top)\, x$$
#
# **Truncated exponential**, ($\phi$4). The entries of $t_p$ are $t_{p-1, a}\, x_b / \sqrt p$. From the highest order
# down, $t_{p-1}$ and $x$ receive
#
# $$dt_{p-1, a} \mathrel{+}= \frac{1}{\sqrt p} \sum_b dt_{p, ab}\, x_b, \qquad
# dx_b \mathrel{+}= \frac{1}{\sqrt p} \sum_a t_{p-1, a}\, dt_{p, ab}$$
#
# **Gaussian**, ($\phi$5). With $u = x / \sigma$ and $e = e^{-\lVert u \rVert^2 / 2}$, $\phi = e\, t(u)$, and the
# product rule: $t$ receives $e\, d\phi$, which goes on as above; and $\partial e / \partial u = -u\, e$ gives
# $-u \sum_c \phi_c\, d\phi_c$. Their sum over $\sigma$ is $dx$.
#
# **Positive random features.** $\phi_c = e^{a_c}$ with $\partial a_c / \partial x = \omega_c - x$, so
# $dx = \sum_c d\phi_c\, \phi_c\, (\omega_c - x)$. **Trigonometric ones:** sine and cosine become each other. With
# $p = \omega x$, $dp = d\phi_{\sin} * \phi_{\cos} - d\phi_{\cos} * \phi_{\sin}$; then
# $dx = \omega^\top dp + x \sum_c \phi_c\, d\phi_c$, the second part from $e^{\lVert x \rVert^2 / 2}$.
#
# **The others of the table.** Hyperbolic features are positive ones for $\omega$ and $-\omega$. Random ReLU features
# put $p = \omega x$ before a ReLU: $dx = \omega^\top (d\phi * [p > 0]) / \sqrt m$. Those of random feature attention
# act on $y = x / \lVert x \rVert$. By the quotient rule
#
# $$\frac{\partial y_i}{\partial x_j} = \frac{\delta_{ij}}{\lVert x \rVert} - \frac{x_i x_j}{\lVert x \rVert^3}
# = \frac{\delta_{ij} - y_i y_j}{\lVert x \rVert} \quad\Longrightarrow\quad
# dx = \frac{dy - y\, (y^\top dy)}{\lVert x \rVert}$$
#
# **And the scale?** With $\epsilon = 0$ the output does not depend on $r_c$ and $t_i$ at all. So although they are
# computed from the inputs, as maxima, with kinks, no gradient goes through them: they are constants. The gradient
# above is used with the scaled features as it stands, since $e^{a - r}$ is its own derivative just as $e^a$ is.

# %%
chapter.source(feature_maps_exact._tensor_powers_backward, feature_maps.favor_positive, doc=False)

# %% [markdown]
# ### Checked
#
# Every map alone, and every positive one in attention, against finite differences. And one check with the complex
# step, which takes nothing but the formula $(q^\top k + 1)^2$: no feature map, no bracket.

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
    forward = partial(linear.forward, feature_map=phi, eps=1e-6 if phi.split is None else 0.0)
    whole = gradcheck.check_elementwise(forward, linear.backward, q, k, v, rng=rng)
    whole.assert_ok()
    rows.append((phi.name, phi.width(D), alone.worst.absolute, whole.worst.absolute))
chapter.table(("map", "C, D = 4", "alone: worst difference", "in attention: worst difference"), rows)


# %%
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
    s, _ = saved.starts[0]
    d_n = d_out / saved.denominator[:, None]  # where is d_d?
    d_s = saved.phi.q.T @ d_n
    d_q = elu_plus_one.backward(d_n @ s.T, saved.phi.saved_q)
    d_k = elu_plus_one.backward(saved.v @ d_s.T, saved.phi.saved_k)
    return linear.Gradients(d_q, d_k, saved.phi.k @ d_s)


report = gradcheck.check_elementwise(linear.forward, forgetful_backward, q, k, v, rng=np.random.default_rng(22))
print(report)
assert not report.ok
assert {entry.name for entry in report.worst_by_input if entry.excess > 1} == {"q", "k"}  # dv does not go through (5)

# %% [markdown]
# ## What each costs
#
# One head, $N = L = 512$, $D = M = 16$, float32; all numbers counted or added up while the code ran. The last column
# is the least $N = L$ at which a forward pass takes fewer multiply-adds than softmax's. As $C$ grows, linear attention
# stays linear, and ceases to be cheap.

# %%
tokens, width = 512, 16
arrays = draw_inputs(23, tokens, tokens, width, width, np.float32)


def costs_of(forward, backward):
    def both(q, k, v, d_out):
        _, saved = forward(q, k, v)
        backward(d_out, saved)

    one = count(forward, *arrays[:3])
    return one.multiply_adds, count(both, *arrays).multiply_adds, one.exponentials, kept_bytes(forward(*arrays[:3])[1])


omega = feature_maps.gaussian(64, width, np.random.default_rng(24), dtype=np.float32)
rows = [("softmax, dense", "infinite", "–", *costs_of(softmax.dense_forward, softmax.dense_backward), "–")]
for phi in (elu_plus_one, quadratic(1.0), taylor_exp(2), taylor_exp(3), feature_maps.favor_positive(omega)):
    forward = partial(linear.forward, feature_map=phi, eps=1e-6 if phi.split is None else 0.0)
    C, costs = phi.width(width), costs_of(forward, linear.backward)
    projection = 2 * tokens * C * width if phi.split else 0  # omega x, for queries and keys
    assert costs[0] == tokens * C * (2 * width + 1) + projection  # linear in N, so the crossover follows:
    crossover = math.floor(costs[0] / tokens / (2 * width)) + 1
    if phi.split is None:
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
# **1. Length without effect.** With $\epsilon = 0$, multiplying $\phi(q_i)$ by a positive number changes nothing.
# Multiplying a single $\phi(k_j)$ does; multiplying *all* of them by the same number does not. What do these two facts
# say about the gradients $d\phi(q_i)$ and $d\phi(k_j)$? What is left of the first if $\epsilon > 0$?
#
# <details><summary>Solution</summary>
#
# Let $\phi(q_i)$ be multiplied by $s$ and differentiate by $s$ at $s = 1$ (Euler's theorem on homogeneous functions).
# The output does not move, so $\phi(q_i)^\top d\phi(q_i) = 0$: the gradient is orthogonal to the features, row by
# row. For the keys $\sum_j \phi(k_j)^\top d\phi(k_j) = 0$, the sum only.
#
# With $\epsilon$, $o_i = s\, n_i / (s\, \phi(q_i)^\top Z + \epsilon)$. The derivative by $s$ at 1 is
# $\frac{n_i}{d_i} - \frac{n_i\, \phi(q_i)^\top Z}{d_i^2} = o_i \big(1 - \frac{d_i - \epsilon}{d_i}\big)
# = o_i\, \frac{\epsilon}{d_i}$, so that $\phi(q_i)^\top d\phi(q_i) = \frac{\epsilon}{d_i}\, G_i^\top o_i$.
#
# </details>


# %%
def feature_gradients(eps):
    _, saved = linear.forward(q, k, v, eps=eps)
    d_phi_q, d_s, d_z = linear.read_backward(d_out, saved.phi.q, saved.out, saved.denominator, *saved.starts[0])
    d_phi_k, _ = linear.add_up_backward(d_s, d_z, saved.phi.k, v)
    return saved, (saved.phi.q * d_phi_q).sum(axis=1), (saved.phi.k * d_phi_k).sum(axis=1)


_, along_q, along_k = feature_gradients(eps=0.0)
same(along_q, np.zeros(N))
same(along_k.sum(), 0)
assert abs(along_k).max() > 0.01  # one key's length matters: it is a weight

saved, along_q, _ = feature_gradients(eps=0.5)
same(along_q, 0.5 / saved.denominator * (d_out * saved.out).sum(axis=1))

# %% [markdown]
# **2. New kernels from old.** Show that the product of two similarities $\phi_a(x)^\top \phi_a(y)$ and
# $\phi_b(x)^\top \phi_b(y)$ is an inner product of $C_a C_b$ features, and write the map with its gradient. Which map
# gives $(x^\top y + 1)^4$? Is it the smallest that does?
#
# <details><summary>Solution</summary>
#
# Multiply the sums out: $\sum_a \phi_a(x) \phi_a(y) \sum_b \phi_b(x) \phi_b(y)
# = \sum_{ab} [\phi_a(x) \phi_b(x)]\, [\phi_a(y) \phi_b(y)]$. The features are all products. (And the *sum* of two
# similarities has both lists of features, one after the other.) The gradient by the product rule: $\phi_a$ receives
# $\sum_b d\phi_{ab}\, \phi_b$, and $\phi_b$ receives $\sum_a d\phi_{ab}\, \phi_a$; both pass theirs on to $x$, where
# they add up.
#
# $(x^\top y + 1)^4$ is the product of the quadratic kernel with itself. For $D = 4$ that makes $15^2 = 225$ features.
# The monomials of degree up to 4 in four variables are only $\binom{8}{4} = 70$, and as the rank of the Gram matrix of
# many points shows, fewer will not do.
#
# </details>


# %%
def product(a, b):
    def forward(x):
        (phi_a, saved_a), (phi_b, saved_b) = a.forward(x), b.forward(x)
        phi = phi_a[..., :, None] * phi_b[..., None, :]  # (..., C_a, C_b)
        return phi.reshape(*x.shape[:-1], -1), (phi_a, saved_a, phi_b, saved_b)

    def backward(d_phi, saved):
        phi_a, saved_a, phi_b, saved_b = saved
        d = d_phi.reshape(*d_phi.shape[:-1], phi_a.shape[-1], phi_b.shape[-1])
        d_a, d_b = (d @ phi_b[..., None])[..., 0], (phi_a[..., None, :] @ d)[..., 0, :]
        return a.backward(d_a, saved_a) + b.backward(d_b, saved_b)

    return FeatureMap(
        f"{a.name} * {b.name}", forward, backward, lambda d: a.width(d) * b.width(d), a.positive and b.positive
    )


quartic = product(quadratic(1.0), quadratic(1.0))
x, y = np.random.default_rng(25).standard_normal((2, 100, 4))
np.testing.assert_allclose(similarity_of(quartic)(x, y), ((x * y).sum(axis=1) + 1) ** 4, rtol=1e-12, atol=1e-11)
gradcheck.check_elementwise(quartic.forward, quartic.backward, q, rng=np.random.default_rng(26)).assert_ok()
same(
    linear.forward(q, k, v, feature_map=quartic, eps=0.0)[0],
    smooth(lambda q, k: ((q * k).sum(axis=-1) + 1) ** 4, q, k, v),
)
assert quartic.width(4) == 225
assert np.linalg.matrix_rank((x @ x.T + 1) ** 4) == math.comb(8, 4) == 70

# %% [markdown]
# **3. One query.** How many queries must share the sums over $L$ keys before linear attention takes fewer
# multiply-adds than softmax? Is it of any use for a single query? Take $C = D = M = 64$.
#
# <details><summary>Solution</summary>
#
# Softmax takes $N L (D + M)$ and linear attention $(N + L)\, C M + N C$. It is the lesser one if
#
# $$N \big[L (D + M) - C (M + 1)\big] > L C M$$
#
# If $L (D + M) \le C (M + 1)$ that never happens: there are too few keys. Else $N$ must exceed
# $\frac{L C M}{L (D + M) - C (M + 1)}$, which for many keys is about $\frac{C M}{D + M}$: here 32. For one query it
# is a loss: adding up $S$ costs $C M$ a key, and a score and a weighted value cost $D + M$. Linear attention is not
# faster at attending; it *shares* work between queries. (A language model asks one query at a time, but there $S$ is
# still there from the last one. That is chapter 6.)
#
# </details>


# %%
def pays(n, n_keys):
    arrays = draw_inputs(27, n, n_keys, 64, 64, np.float32)[:3]
    return count(linear.forward, *arrays).multiply_adds < count(softmax.dense_forward, *arrays).multiply_adds


for n_keys in (200, 1000, 5000):
    least = math.floor(n_keys * 64 * 64 / (n_keys * 128 - 64 * 65)) + 1
    assert not pays(least - 1, n_keys)
    assert pays(least, n_keys)
assert least == 33
assert not pays(1, 5000)
assert not pays(500, 32)  # 32 * 128 < 64 * 65: too few keys for any number of queries

# %% [markdown]
# ## What to remember
#
# - Attention is a kernel smoother. Any non-negative similarity gives averages of values; with a sign-changing one the
#   denominator can pass through 0.
# - A similarity that is an inner product of $C$ features lets the query out of the sum: $S$ and $Z$ once, for all
#   queries. $(\phi(Q)\phi(K)^\top) V = \phi(Q)(\phi(K)^\top V)$: $O(N C M)$ in place of $O(N^2 \max(D, M))$, forward
#   and backward, and fewer multiply-adds from about $N = C$ on.
# - The price is rank: $P$ has rank $C$ at most. Softmax's features are infinitely many; the quadratic kernel's about
#   $D^2/2$; $\mathrm{elu} + 1$ has $D$, and gives soft attention whatever the temperature.
# - Exponential features need a scale: one maximum a feature for the keys, then one a query; exact, and constant in the
#   backward pass. $\epsilon$ must then be 0.
# - Backward, the queries write a sum and the keys read it.
#
# **Sources.** Nadaraya (1964), *On estimating regression*; Watson (1964), *Smooth regression analysis*. Tsai et al.
# (2019), *Transformer dissection: a unified understanding of transformer's attention via the lens of kernel*.
# Katharopoulos et al. (2020), *Transformers are RNNs*. Rahimi and Recht (2007), *Random features for large-scale kernel
# machines*. Choromanski et al. (2021), *Rethinking attention with Performers*. Peng et al. (2021), *Random feature
# attention*.
