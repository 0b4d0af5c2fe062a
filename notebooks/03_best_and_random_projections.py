# %% [markdown]
# # 3. Best and random projections: what rank $k$ can keep, and what Theorem 1 proves
#
# If a matrix of rank $k$ is to stand in for $P$, how good can it be at best, how good is a random one, and what does
# Linformer's Theorem 1 say about either?
#
# Chapter 2 measured singular values. Here you will
#
# 1. prove the Eckart-Young-Mirsky theorem, which says what singular values are good for;
# 2. prove the Johnson-Lindenstrauss lemma, the only tool of Theorem 1, and measure its bound;
# 3. prove Theorem 1 of Wang et al. (2020), find that its wording matters, and measure it on the matrices of a real
#    network;
# 4. compare what the best and the random projection leave of the output $P V$.
#
# You need chapter 2. $k$ is a rank or a number of dimensions; in the paper's theorem $n$ stands for $N = L$.
# $\lVert \cdot \rVert$ is the length of a vector, $\lVert \cdot \rVert_F$ the Frobenius norm and
# $\lVert \cdot \rVert_2$ the spectral norm (largest singular value) of a matrix.

# %% jupyter={"source_hidden": true}
import itertools
import math
from functools import partial

import numpy as np
from matplotlib.colors import PowerNorm

from linattn_ref import gradcheck
from linattn_ref.attention import softmax
from linattn_ref.data import fetch, text
from linattn_ref.experiments.publishing import chapter, style
from linattn_ref.experiments.rank import eckart_young as eckart_young_figure
from linattn_ref.experiments.rank import johnson_lindenstrauss as johnson_lindenstrauss_figure
from linattn_ref.experiments.rank import low_rank as low_rank_figure
from linattn_ref.models import bert
from linattn_ref.theory import eckart_young, low_rank, spectrum
from linattn_ref.theory import johnson_lindenstrauss as jl

# Float64 results of size 1 after some thousand roundings of 2.2e-16 each agree to this.
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-11)

# %% [markdown]
# ## The smallest example, by hand
#
# Take the matrix $P = \begin{pmatrix} 4 & 0 \\ 0 & 3 \end{pmatrix}$, whose singular values are 4 and 3. The best
# matrix of rank 1 keeps the larger one, and the error is the one left out, 3. For $v = (1, 1)$ the result $(4, 3)$
# becomes $(4, 0)$.
#
# Now take a random projection to one dimension, $R = (1, s)$ with a random sign $s$. For $x = (3, 4)$, of squared
# length 25, $Rx$ is $3 + 4 = 7$ or $3 - 4 = -1$, with the squares 49 and 1. Neither is right, but their mean is:
# $(49 + 1) / 2 = 25$.

# %%
small = np.diag([4.0, 3.0])
best = eckart_young.truncated_svd(small, 1)
print("best of rank 1:", best.tolist(), " error:", np.linalg.norm(small - best), " result:", best @ [1, 1])
squares = [float(np.dot((1, sign), (3, 4)) ** 2) for sign in (1, -1)]
print("squared lengths after the projection:", squares, " mean:", np.mean(squares))
assert np.mean(squares) == 25
same(best, [[4, 0], [0, 0]])

# %% [markdown]
# The matrices are those of chapter 2: all 72 heads of all-MiniLM-L6-v2, reading one film review of 512 tokens.

# %%
model = bert.load(fetch.open_content(fetch.MODEL))
reviews = text.read_reviews(fetch.open_content(fetch.REVIEWS))
tokens, _ = text.choose_sentences(
    reviews, model.tokenizer, count=2, length=512, rng=np.random.default_rng(0)
).tokens  # (2, N)
layers = list(bert.layers(model, tokens))
V, P = (np.stack([getattr(each, name) for each in layers]) for name in ("v", "p"))
N = P.shape[-1]
assert P.shape == (6, 12, 512, 512)
values = spectrum.singular_values(P)  # (layers, H, N)
share = spectrum.cumulative_share(values)
layer, head = 3, 0  # an ordinary one
print(f"{P.shape[0]} layers, {P.shape[1]} heads; c at 128 of layer {layer}, head {head}: {share[layer, head, 127]:.2f}")

# %% [markdown]
# ## Eckart-Young-Mirsky: the best approximation of rank k
#
# What are singular values good for? Let $P_k = \sum_{i \le k} \sigma_i u_i v_i^\top$ be the *truncated SVD* (Wang et
# al. 2020, equation 6). No matrix $B$ of rank $k$ is nearer to $P$,
#
# $$\min_{\mathrm{rank}\, B \le k} \lVert P - B \rVert_2 = \lVert P - P_k \rVert_2 = \sigma_{k+1}$$
#
# $$\min_{\mathrm{rank}\, B \le k} \lVert P - B \rVert_F = \lVert P - P_k \rVert_F
# = \sqrt{\textstyle\sum_{i > k} \sigma_i^2}$$
#
# The right-hand equations are clear: $P - P_k = \sum_{i > k} \sigma_i u_i v_i^\top$ is an SVD, with these singular
# values. We have to prove that no $B$ does better.
#
# **Spectral norm.** $B$ has rank at most $k$, so its null space $\{x: Bx = 0\}$ has dimension at least $L - k$. The
# span of $v_1 \dots v_{k+1}$ has dimension $k + 1$. Together that is more than $L$, so the two share a unit vector
# $x$. For it
#
# $$\lVert P - B \rVert_2 \ge \lVert (P - B) x \rVert = \lVert P x \rVert
# = \sqrt{\textstyle\sum_{i \le k+1} \sigma_i^2\, (v_i^\top x)^2} \ge \sigma_{k+1}
# \sqrt{\textstyle\sum_{i \le k+1} (v_i^\top x)^2} = \sigma_{k+1}$$
#
# The last root is 1 because $x$ lies in the span of these $v_i$.
#
# **A lemma** (Weyl): $\sigma_{i+j-1}(X + Y) \le \sigma_i(X) + \sigma_j(Y)$. Cut $X$ after $i - 1$ triples and $Y$
# after $j - 1$. The sum $X_{i-1} + Y_{j-1}$ has rank at most $i + j - 2$, so by the spectral part it is no nearer to
# $X + Y$ than $\sigma_{i+j-1}(X + Y)$:
#
# $$\sigma_{i+j-1}(X + Y) \le \lVert X - X_{i-1} + Y - Y_{j-1} \rVert_2
# \le \lVert X - X_{i-1} \rVert_2 + \lVert Y - Y_{j-1} \rVert_2 = \sigma_i(X) + \sigma_j(Y)$$
#
# **Frobenius norm.** Take $X = P - B$, $Y = B$ and $j = k + 1$. Then $\sigma_j(Y) = 0$, and the lemma says
# $\sigma_{i+k}(P) \le \sigma_i(P - B)$ for every $i$. Square and sum:
#
# $$\sum_{i > k} \sigma_i(P)^2 \le \sum_i \sigma_i(P - B)^2 = \lVert P - B \rVert_F^2$$
#
# Sum without squaring, and it is the same theorem for the *nuclear* norm, the sum of the singular values. So $1 - c_k$
# of chapter 2's figure has a meaning: it is the smallest error of rank $k$ in the nuclear norm, relative to that of
# $P$.
#
# Check every step of the proof, on a real head and a competitor $B$ that is not bad:

# %%
chapter.source(eckart_young.truncated_svd, eckart_young.tail_frobenius, eckart_young.tail_spectral, doc=False)

P_real, k = P[layer, head].astype(np.float64), 128
u, sigma, v_t = np.linalg.svd(P_real)
B = eckart_young.competitor(P_real, k, "sketch", np.random.default_rng(4))
null_space = np.linalg.svd(B)[2][k:]  # (N - k, N), rows
same(np.linalg.norm(B @ null_space.T, axis=0), np.zeros(N - k))

both = np.linalg.svd(np.vstack([v_t[k + 1 :], B]))[2][-1]  # orthogonal to v_(k+2) ... and to all rows of B
same(np.linalg.norm(both), 1)
same(B @ both, np.zeros(N))  # in the null space,
same(v_t[k + 1 :] @ both, np.zeros(N - k - 1))  # and in the span of v_1 ... v_(k+1)
assert np.linalg.norm(P_real - B, 2) >= np.linalg.norm(P_real @ both) >= sigma[k] - 1e-11

of_error = spectrum.singular_values(P_real - B)
assert (sigma[k:] <= of_error[: N - k] + 1e-11).all()  # Weyl: all of them, and so every sum of them
X, Y = np.random.default_rng(5).standard_normal((2, 12, 9))
of_x, of_y, of_sum = (spectrum.singular_values(matrix) for matrix in (X, Y, X + Y))
for i, j in itertools.product(range(9), repeat=2):  # from 0: sigma_(i + j + 1) counts from 1
    assert i + j >= 9 or of_sum[i + j] <= of_x[i] + of_y[j] + 1e-11

# %% [markdown]
# Next comes the statement itself, at all ranks. The truncated SVD (points) lies on the tail of the spectrum (line) in
# both norms, and none of the four kinds of random competitors of the same rank gets below it. Look at the uppermost
# line, too: $P R^\top R$ is the matrix of Theorem 1. It is no approximation of $P$ at all.

# %%
best_rank = eckart_young_figure.compute(matrix=P_real, draws=2)
chapter.show(
    eckart_young_figure.draw,
    best_rank,
    alt="Error over rank in both norms: truncated SVD on the spectrum's tail, competitors above, P R'R above 1",
)
for each in best_rank.errors:  # claim 6
    same(each.measured_frobenius, each.stated_frobenius)
    same(each.measured_spectral, each.stated_spectral)
    assert min(each.competitors_frobenius.values()) >= each.stated_frobenius - 1e-11
    assert min(each.competitors_spectral.values()) >= each.stated_spectral - 1e-11
    assert each.competitors_frobenius["johnson_lindenstrauss"] > best_rank.frobenius
    assert each.competitors_spectral["johnson_lindenstrauss"] > best_rank.spectral

# %% [markdown]
# What does a truncated attention matrix look like? Here is the head from before, layer 3, head 0, with its first 48
# tokens. Entries can be negative, and the rows no longer sum to 1 exactly: the nearest matrix need not be an attention
# matrix.


# %%
def rank_panel(axes, k):
    approximation = eckart_young.truncated_svd(P_real, k)
    error = eckart_young.tail_frobenius(sigma, k) / best_rank.frobenius
    axes.imshow(np.maximum(approximation[:48, :48], 0), norm=PowerNorm(0.5, vmin=0, vmax=P_real[:48, :48].max()))
    axes.grid(False)
    axes.set(xlabel=f"$c_k$ = {spectrum.cumulative_share(sigma)[k - 1]:.2f}\nerror {error:.0%}", xticks=(), yticks=())
    same(np.linalg.norm(P_real - approximation) / best_rank.frobenius, error)


chapter.explore(
    rank_panel,
    (4, 16, 64, 128, 512),
    name="k",
    slider=(1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512),
    height=0.28,
    alt="The matrix at ranks 4 to 512: at 64 the pattern is there, at 128 it can hardly be told from the whole",
)
assert eckart_young.truncated_svd(P_real, 16).min() < -1e-3

# %% [markdown]
# The truncated SVD costs $O(n^3)$ and needs $P$. To save anything, we have to do without both. That is what random
# projections are for.
#
# ## Johnson-Lindenstrauss: a random projection keeps lengths
#
# Let $R$ be $(k, n)$ with independent normal entries of mean 0 and variance $1/k$. Then $R$ maps $n$-dimensional points
# to $k$ dimensions so that lengths and distances hardly change. How large $k$ must be does not depend on $n$. For a
# fixed vector $x$ and $0 < \varepsilon < 1$
#
# $$\Pr\big(\big|\, \lVert R x \rVert^2 - \lVert x \rVert^2 \,\big| > \varepsilon \lVert x \rVert^2\big)
# \le 2\, e^{-(\varepsilon^2 - \varepsilon^3) k / 4} \qquad (1)$$
#
# **Step 1: the distribution.** Let $\lVert x \rVert = 1$. Entry $r$ of $Rx$ is $\sum_j R_{rj} x_j$, a sum of
# independent normal numbers, so it is normal, with mean 0 and variance $\sum_j x_j^2 / k = 1/k$. Different rows of
# $R$ are independent. So $k \lVert R x \rVert^2 = Z_1^2 + \dots + Z_k^2$ with independent standard normal $Z_r$: a
# chi-squared variable with $k$ degrees of freedom. Its mean is $k$, hence $\mathbb E \lVert Rx \rVert^2 = 1$; and $n$
# no longer occurs.
#
# **Step 2: the moment generating function.** For $t < \frac12$, completing the normal integral,
#
# $$\mathbb E\, e^{t Z^2} = \frac{1}{\sqrt{2\pi}} \int e^{-(1 - 2t) z^2 / 2}\, dz = (1 - 2t)^{-1/2}$$
#
# **Step 3: Markov's inequality, upper tail.** For every $t \in (0, \frac12)$, as $e^{tx}$ rises with $x$,
#
# $$\Pr\Big(\sum Z_r^2 \ge (1 + \varepsilon) k\Big)
# \le \frac{\mathbb E\, e^{t \sum Z_r^2}}{e^{t (1 + \varepsilon) k}}
# = \Big((1 - 2t)^{-1/2} e^{-t (1 + \varepsilon)}\Big)^k$$
#
# Now find the best $t$. The logarithm of the bracket, $-\frac12 \log(1 - 2t) - t(1 + \varepsilon)$, has the derivative
# $\frac{1}{1 - 2t} - (1 + \varepsilon)$, which is 0 at $t = \frac{\varepsilon}{2(1 + \varepsilon)}$. There $1 - 2t =
# \frac{1}{1 + \varepsilon}$, and the bound is $\big(\sqrt{1 + \varepsilon}\; e^{-\varepsilon / 2}\big)^k = e^{(\log(1 +
# \varepsilon) - \varepsilon) k / 2}$. With $\log(1 + \varepsilon) \le \varepsilon - \frac{\varepsilon^2}{2} +
# \frac{\varepsilon^3}{3}$ it is at most $e^{-(\varepsilon^2 / 2 - \varepsilon^3 / 3) k / 2} \le e^{-(\varepsilon^2 -
# \varepsilon^3) k / 4}$.
#
# **Step 4: lower tail.** Do the same with $-t$. The bound $\big((1 + 2t)^{-1/2} e^{t (1 - \varepsilon)}\big)^k$ is best
# at $t = \frac{\varepsilon}{2 (1 - \varepsilon)}$, where it is $e^{(\log(1 - \varepsilon) + \varepsilon) k / 2}$, and
# $\log(1 - \varepsilon) \le -\varepsilon - \frac{\varepsilon^2}{2}$ makes it at most $e^{-\varepsilon^2 k / 4}$. The
# two tails together give (1).

# %%
chapter.source(jl.gaussian_projection, jl.failure_bound, jl.required_dimension, jl.norm_failure, doc=False)

eps = np.linspace(0.01, 0.99, 99)
upper, lower = np.log1p(eps) - eps, np.log1p(-eps) + eps  # twice the exponent of a tail, for k = 1
assert (upper / 2 <= -(eps**2 - eps**3) / 4).all()  # step 3
assert (lower / 2 <= -(eps**2) / 4).all()  # step 4
for k in (1, 4, 16, 64, 256, 1024):
    assert (jl.norm_failure(eps, k) <= jl.failure_bound(eps, k)).all()  # (1), with chi-squared's exact tails

# %% [markdown]
# **Many points.** Among $m$ points there are $m(m-1)/2$ differences, each a fixed vector. The probability that *any*
# of them fails is at most the sum of their probabilities (the *union bound*):
#
# $$\Pr(\text{some squared distance is off by more than } \varepsilon)
# \le m (m - 1)\, e^{-(\varepsilon^2 - \varepsilon^3) k / 4}$$
#
# To keep it below $p$, solve for $k$: $k \ge \frac{4 \log(m (m-1) / p)}{\varepsilon^2 - \varepsilon^3}$. This is
# where a logarithm comes from: not from dimensions, but from the *number of things that must all go well at once*.
#
# **Inner products** of unit vectors at the cosine $c = x^\top y$: $x + y$ and $x - y$ are orthogonal, with squared
# lengths $2 \pm 2c$. Projections of orthogonal vectors are independent (a row of $R$ gives two uncorrelated, jointly
# normal numbers). With $4 x^\top y = \lVert x + y \rVert^2 - \lVert x - y \rVert^2$, once for $x, y$ and once for
# $Rx, Ry$,
#
# $$x^\top R^\top R y = \frac{1 + c}{2}\, U - \frac{1 - c}{2}\, W, \qquad kU,\ kW \text{ independent chi-squared}$$
#
# Each of $U, W$ has the variance $2/k$. So the error has the variance $\frac{2}{k} \cdot \frac{(1 + c)^2 + (1 -
# c)^2}{4} = \frac{1 + c^2}{k}$: about $1/\sqrt k$, **whatever $c$ is**. This holds for orthogonal vectors too, where
# $c = 0$. Therefore the lemma for inner products must measure the error in lengths,
#
# $$\Pr\big(|x^\top R^\top R y - x^\top y| > \varepsilon \lVert x \rVert \lVert y \rVert\big)
# \le 2\, e^{-(\varepsilon^2 - \varepsilon^3) k / 4} \qquad (2)$$
#
# Lemma 1 of Wang et al. (2020, equation 12) prints $\varepsilon \lVert x y \rVert$ there, for rows $x$ and $y$. This
# can be read as $\varepsilon \lVert x \rVert \lVert y \rVert$ or as $\varepsilon\, |x y^\top|$. Read the first way, it
# is (2). Read the second way, it cannot be right: the smaller the cosine, the likelier it fails, for any $k$. The proof
# of Theorem 1 uses the second reading (equation 19); step (c) of the proof of Theorem 2 (equation 22) uses the first.
# (The proof that (2) has the same right side as (1) is folded away.)
#
# <details><summary>Proof of (2)</summary>
#
# For $s > 0$ let $g(c)$ be the logarithm of $\mathbb E\, e^{s k (x^\top R^\top R y - c)}$, divided by $k$. By step 2,
# for both chi-squared variables,
#
# $$g(c) = -\tfrac12 \log(1 - (1 + c) s) - \tfrac12 \log(1 + (1 - c) s) - c s$$
#
# Its derivative, with $h = 1 - cs$, is $g'(c) = \frac s2 \big(\frac{1}{h - s} + \frac{1}{h + s}\big) - s = s
# \big(\frac{h}{h^2 - s^2} - 1\big)$. The fraction falls as $h$ rises, and $h$ falls as $c$ rises. So $g'$ rises: $g$ is
# convex, and largest at an end, $c = 1$ or $c = -1$. There $g(1) = -\frac12 \log(1 - 2s) - s$, the upper tail of step
# 3, and $g(-1) = -\frac12 \log(1 + 2s) + s$, the lower tail of step 4. As $\log \frac{1 + 2s}{1 - 2s} \ge 4s$ (its
# series begins with $4s$ and has positive terms only), $g(-1) \le g(1)$. So with the $s$ of step 3 each tail is at most
# $e^{k (g(1) - s \varepsilon)} \le e^{-(\varepsilon^2 - \varepsilon^3) k / 4}$; for the other tail replace $y$ by $-y$.
#
# </details>
#
# The next figure shows measurements: points are counts over 2000 draws of $R$ (500 in the middle), with 95% intervals.
# Squares are for matrices of random *signs* $\pm 1/\sqrt k$, which are cheaper and no worse (exercise 1). Lines are
# exact; dashed lines are the bounds.

# %%
projections = johnson_lindenstrauss_figure.compute(seed=0)
chapter.show(
    johnson_lindenstrauss_figure.draw,
    projections,
    alt="Failure probability over k falls below the bounds; relative to |x.y| it stays near 1 for small cosines",
)

# %%
inside = total = 0
assert [projections.norms["gaussian"][0][0].trials, projections.pairs[0][0].trials] == [2000, 500]
for i, eps in enumerate(projections.epsilons):  # claim 5
    for counted in (*projections.norms["gaussian"][i], *projections.norms["signs"][i], *projections.pairs[i]):
        assert counted.low <= counted.stated  # no count contradicts a bound
    for k, counted in zip(projections.dimensions, projections.norms["gaussian"][i], strict=True):
        inside += counted.low <= jl.norm_failure(eps, k) <= counted.high
        total += 1
assert inside >= 0.85 * total  # 95% intervals, 27 of them, not independent: the same draws serve all three eps
assert (projections.inner_by_norms <= projections.inner_bound).all()
assert projections.inner_as_printed[-1].min() > 0.6  # at the cosine 0.01: for all k up to 2048
print(f"the exact probability is in {inside} of {total} intervals")

# %% [markdown]
# Is that useful at the sizes of attention? Take 64 rows of a real $P$, points in 512 dimensions, and ask for all 2016
# squared distances to within 50%, with a failure probability of at most 10%:

# %%
points = P[2, 3, :64].astype(np.float64)
guaranteed = jl.required_dimension(0.5, 0.1, vectors=64 * 63 // 2)
rng, rows = np.random.default_rng(6), []
for k in (32, 64, 128, 256, guaranteed):
    errors = jl.pairwise_errors(points, k, trials=40, rng=rng)  # (trials, pairs)
    counted = jl.count_failures(errors.max(axis=1), 0.5, 2016 * jl.failure_bound(0.5, k))
    rows.append((k, (errors > 0.5).mean(), counted.measured, counted.stated))
    assert counted.low <= counted.stated  # claim 5
assert guaranteed == 340
assert rows[-1][2] == rows[-2][2] == 0
chapter.table(("k", "pairs that fail", "draws in which some pair fails", "at most"), rows)

# %% [markdown]
# The guarantee asks for 340 of 512 dimensions, and at 256 no pair failed in any draw. A bound free of $n$ pays off when
# $n$ is in the thousands or more; at 512, measure instead.
#
# ## Theorem 1
#
# Theorem 1 of Wang et al. (2020, section 3), "self-attention is low rank": for each column $v$ of the values *there is*
# a matrix $\tilde P$ of rank $\Theta(\log n)$ with
#
# $$\Pr\big(\lVert \tilde P v - P v \rVert < \varepsilon \lVert P v \rVert\big) > 1 - o(1)$$
#
# Read the quantifiers: for one $v$ that is known, $\tilde P = (P v) v^\top / \lVert v \rVert^2$ has rank 1 and no error
# at all. What the theorem is worth is in its proof, whose matrix does not depend on $v$: $\tilde P = P R^\top R$ with
# $R$ as above and $k = 5 \log(n) / (\varepsilon^2 - \varepsilon^3)$. The proof (appendix A, equations 16 to 20), step
# by step:
#
# 1. Entry $i$ of $\tilde P v$ is $p_i R^\top R v$, an inner product of the two projected vectors $R p_i^\top$ and
#    $R v$, with $p_i$ the row $i$ of $P$. Lemma (2) applies: it is off by more than
#    $\varepsilon \lVert p_i \rVert \lVert v \rVert$ with probability at most
#    $2 e^{-(\varepsilon^2 - \varepsilon^3) k / 4}$.
# 2. There are $n$ rows. By the union bound, *some* entry is off by more than that with probability at most
#    $2 n\, e^{-(\varepsilon^2 - \varepsilon^3) k / 4}$.
# 3. Put in $k$: the exponent is $-\frac54 \log n$, and the bound is $2 n \cdot n^{-5/4} = 2 n^{-1/4}$. It tends to 0.
#
# Steps 2 and 3 are sound. In step 1 the paper writes $\varepsilon\, |p_i v|$ (equation 19), from its Lemma 1 in the
# second reading. So **what has been proved** is
#
# $$\Pr\big(\text{all } |p_i R^\top R v - p_i v| \le \varepsilon \lVert p_i \rVert \lVert v \rVert\big)
# \ge 1 - 2 n^{-1/4}$$
#
# and not the bound as printed, with the error relative to $P v$ itself. So there are four readings: the error of the
# vector or of every entry, relative to the result ($\lVert P v \rVert$, $|p_i v|$) or to the norms ($\lVert P \rVert_F
# \lVert v \rVert$, $\lVert p_i \rVert \lVert v \rVert$).

# %%
chapter.source(
    low_rank.stated_dimension, low_rank.stated_failure, low_rank.Errors, low_rank.projection_errors, doc=False
)

k = low_rank.stated_dimension(N, 0.5)
P_tilde = eckart_young.competitor(P_real, k, "johnson_lindenstrauss", np.random.default_rng(7))
assert k == 250
assert np.linalg.matrix_rank(P_tilde) == k  # rank k, as said
assert 0.98 < low_rank.stated_failure(N, 0.5, k) / (2 * N ** (-1 / 4)) <= 1  # k is rounded up
print(f"n = {N}, eps = 0.5: k = {k}; some entry is off by more with probability at most {2 * N ** (-1 / 4):.2f}")
print(f"at eps = 0.1 the proof's k is {low_rank.stated_dimension(N, 0.1)}, more than n")

# %% [markdown]
# ### A counterexample
#
# Nothing in the statement or the proof uses that $P$ comes from a softmax, so try $P = I$ (every token looks at itself;
# a softmax comes as near to it as you like). The bound as printed then says $\lVert R^\top R v - v \rVert < \varepsilon
# \lVert v \rVert$ for nearly all $R$. But $R^\top R v$ is a poor copy of $v$:
#
# **The mean square of the error.** The length of $v$ is arbitrary. $R^\top R v$ is a sum of independent vectors $r
# (r^\top v)$, one for each row $r$ of $R$. For normal numbers of variance $\frac1k$ a fourth moment is a sum over
# pairings:
#
# $$\mathbb E[r_j r_l r_a r_b]
# = \frac{1}{k^2} (\delta_{jl} \delta_{ab} + \delta_{ja} \delta_{lb} + \delta_{jb} \delta_{la})$$
#
# $$\mathbb E\big[r_j r_l (r^\top v)^2\big] = \sum_{ab} v_a v_b\, \mathbb E[r_j r_l r_a r_b]
# = \frac{1}{k^2} \big(\delta_{jl} \lVert v \rVert^2 + 2 v_j v_l\big)$$
#
# The means are $\mathbb E[r_j (r^\top v)] = v_j / k$. A covariance is the mean of the product less the product of the
# means, and those of the $k$ rows add up:
#
# $$\mathbb E[R^\top R v] = v, \qquad
# \mathrm{Cov}(R^\top R v) = \frac1k \big(\lVert v \rVert^2 I + v v^\top\big) \qquad (3)$$
#
# Send it through any $P$: the mean square of the length is the trace of $P\, \mathrm{Cov}\, P^\top$,
#
# $$\mathbb E \lVert \tilde P v - P v \rVert^2
# = \frac1k \big(\lVert P \rVert_F^2 \lVert v \rVert^2 + \lVert P v \rVert^2\big)
# = \frac{1 + a^2}{k}\, \lVert P v \rVert^2, \qquad
# a = \frac{\lVert P \rVert_F \lVert v \rVert}{\lVert P v \rVert} \ge 1 \qquad (4)$$
#
# Everything about the theorem is in the *amplification* $a$. By Markov's inequality for the square of the error, the
# bound as printed fails with probability at most $(1 + a^2) / (k \varepsilon^2)$. For $P$ uniform, $a = \lVert v \rVert
# / (\sqrt n\, |\bar v|)$ with $\bar v$ the mean of the values: for values that have a mean it does not grow with $n$,
# and a *constant* $k$ will do, without a logarithm. But for $P = I$ it is $\lVert I \rVert_F = \sqrt n$, whatever $v$
# is: the error is about $\sqrt{n / k}$ times the result. To get it below $\varepsilon$ takes $k > n / \varepsilon^2$,
# more than $n$ dimensions, and $\log n$ of them leave nothing of $v$.

# %%
rng = np.random.default_rng(8)
v = rng.standard_normal(N)
counterexample = low_rank.projection_errors([np.eye(N)], v, k, trials=100, rng=rng)
assert (counterexample.vector > 0.5).all()  # claim 4 as printed: fails in every single draw
assert (counterexample.entry_by_norms <= 0.5).all()  # as proved: holds in every draw
print(f"P = I: error / |P v| is {counterexample.vector.mean():.2f}, by (4) {math.sqrt((1 + N) / k):.2f}")

for p, column in ((np.eye(N), v), (P_real, V[layer, head, :, 0].astype(np.float64))):
    squares = low_rank.projection_errors([p], column, k, trials=400, rng=rng).vector ** 2
    a = np.linalg.norm(p) * np.linalg.norm(column) / np.linalg.norm(p @ column)
    standard_error = squares.std() / math.sqrt(squares.size)
    assert abs(squares.mean() - (1 + a**2) / k) < 4 * standard_error  # (4)

# %% [markdown]
# ### On the real matrices
#
# Take every head of the network, two columns of its own values, one text, and 200 draws of $R$. How often does each of
# the four errors exceed $\varepsilon = 0.5$, at the $k = 250$ that the proof takes? (`low_rank.action` gives errors of
# the same distribution as `projection_errors` from fewer random numbers: its module's docstring splits $R^\top R v$
# into a multiple of $v$ and normal noise orthogonal to $v$.)

# %%
eps, rng = 0.5, np.random.default_rng(9)
rates = np.empty((*P.shape[:2], 4))  # (layers, H, readings)
amplification = np.empty(P.shape[:2])
for i, h in np.ndindex(P.shape[:2]):
    acted = [low_rank.action([P[i, h]], V[i, h, :, column], trials=200, rng=rng) for column in (0, 16)]
    amplification[i, h] = np.mean([low_rank.amplification(each) for each in acted])
    rates[i, h] = [
        np.mean([low_rank.errors_at(each, k, event) > eps for each in acted]) for event in low_rank.Errors._fields
    ]
vector, entry, entry_by_norms, vector_by_norms = np.moveaxis(rates, -1, 0)
assert entry_by_norms.max() <= 2 * N ** (-1 / 4)  # claim 4, as proved: below its bound for each head;
assert entry_by_norms.mean() < 1e-3  # in truth it hardly ever fails
assert vector_by_norms.max() == 0
assert vector.mean() > 0.7  # claim 4, as printed: fails for most heads,
assert entry.mean() > 0.99  # and as its proof is printed, for all
chapter.table(
    (
        "share of failures, k = 250",
        r"vector, by $\lVert Pv \rVert$ (as printed)",
        r"entries, by $p_i v$",
        r"entries, by $\lVert p_i \rVert \lVert v \rVert$ (as proved)",
        r"vector, by $\lVert P \rVert_F \lVert v \rVert$",
        "amplification $a$",
    ),
    [(f"layer {i}", *rates[i].mean(axis=0), amplification[i].mean()) for i in range(len(P))],
)

# %% [markdown]
# ### With the length
#
# Does the needed $k$ grow as $\log n$? The experiment (for queries, keys and values with normal entries, $n$ up
# to 8192) looks for the smallest $k$ at which at most 10% of the draws fail. `linattn-ref figures --only low_rank`
# draws it too.

# %%
growth = low_rank_figure.compute(seed=0)
chapter.show(
    low_rank_figure.draw,
    growth,
    alt="Failure rates below the bounds; needed k rises with log n for entries; proportional to n as printed, mean 0",
)
entries, by_norms, mean_one, mean_zero = growth.growth
assert all(counted.low <= counted.stated for of_eps in growth.failures for counted in of_eps)
assert 2 < entries.measured_slope < entries.stated_slope / 3  # claim 4: log n, and the constant 5 is generous
assert abs(by_norms.measured_slope) < 0.5  # a constant k, no logarithm
assert max(each.measured for each in by_norms.needed) < 2 / (
    eps**2 * 0.1
)  # Markov's inequality with (4), as 1 + 1 / a^2 <= 2
assert abs(mean_one.exponent) < 0.1  # as printed: constant for values with a mean,
assert 0.8 < mean_zero.exponent < 1.2  # proportional to n for values of mean 0,
assert all(each.measured > n for n, each in zip(mean_zero.lengths, mean_zero.needed, strict=True))  # and above n

# %% [markdown]
# So there is no one answer; it depends on which event is meant. For all entries at once, relative to the norms, it is
# at most $O(\log n)$ for every $P$, because $n$ things must go well at once. In the figure it grows as $\log n$, with
# less than a third of the proved slope. For a uniform $P$, whose rows are all alike, it is a constant. For the whole
# vector, relative to the norms, it is always a constant. Relative to $P v$, as printed, it is anything from a constant
# to more than $n$, depending on the values.
#
# ## What rank says, and what it does not
#
# So far we have seen two separate statements: *the spectrum of $P$ falls* (measured) and *$P R^\top R$ keeps $P v$*
# (proved). It is tempting to read the second as a consequence of the first. It is not: Theorem 1, as proved, holds
# for every $P$, the identity included. What matters to the network is the output $P V$. So compare, for all 72 heads at
# the same $k = 128$:
#
# - the truncated SVD: $\lVert (P - P_k) V \rVert_F / \lVert P V \rVert_F$;
# - Theorem 1: $\lVert (P R^\top R - P) V \rVert_F / \lVert P V \rVert_F$. Summing (4) over the columns of $V$ gives
#   $\sqrt{(1 + a^2) / k}$, with $a = \lVert P \rVert_F \lVert V \rVert_F / \lVert P V \rVert_F$.

# %%
k, rng = 128, np.random.default_rng(10)
by_svd, by_projection, predicted = (np.empty(P.shape[:2]) for _ in range(3))
for i, h in np.ndindex(P.shape[:2]):
    p, v = P[i, h], V[i, h]
    out = p @ v
    size = np.linalg.norm(out)
    by_svd[i, h] = np.linalg.norm(eckart_young.truncated_svd(p, k) @ v - out) / size
    bound = eckart_young.tail_spectral(values[i, h], k) * np.linalg.norm(v) / size
    assert by_svd[i, h] <= bound * (1 + 1e-3)  # |(P - P_k) V| <= sigma_(k+1) |V|; float32
    r = jl.gaussian_projection(k, N, rng, dtype=np.float32)
    by_projection[i, h] = np.linalg.norm((p @ r.T) @ (r @ v) - out) / size
    predicted[i, h] = math.sqrt((1 + (np.linalg.norm(p) * np.linalg.norm(v) / size) ** 2) / k)


def draw_outputs():
    figure, (left, right) = style.figure(1, 2, height=0.4, sharey=True)
    for i, colour in enumerate(style.sequence(len(P))):
        left.plot(1 - share[i, :, k - 1], by_svd[i], "o", color=colour)
        left.plot(1 - share[i, :, k - 1], by_projection[i], "^", color=colour, mfc="none")
        right.plot(predicted[i], by_projection[i], "^", color=colour, mfc="none", label=f"layer {i}")
    left.plot([], [], "o", color=style.GREY, label="truncated SVD")
    left.plot([], [], "^", color=style.GREY, mfc="none", label="Theorem 1")
    left.axhline(1, color=style.BLACK, linestyle=":")
    ends = predicted.min(), predicted.max()
    right.plot(ends, ends, "--", color=style.BLACK, label="equal")
    left.set(
        title=f"k = {k}, 72 heads", xlabel="$1 - c_{128}$ (spectrum left out)", ylabel="error of $P V$", yscale="log"
    )
    right.set(title="Theorem 1, predicted", xlabel=r"$\sqrt{(1 + a^2) / k}$", xscale="log")
    right.minorticks_off()
    right.set_xticks([0.3, 1, 3], ["0.3", "1", "3"])
    left.set_yticks([0.01, 0.1, 1], ["1%", "10%", "100%"])
    left.legend()
    right.legend(ncols=2)
    return figure


chapter.show(
    draw_outputs,
    alt="The SVD's error follows the spectrum, from below 1 to 70 per cent; Theorem 1's lies around 100",
)


# %%
def correlation(x, y):
    return np.corrcoef(np.log(x).ravel(), np.log(y).ravel())[0, 1]


left_out = 1 - share[..., k - 1]
assert correlation(left_out, by_svd) > 0.85
assert correlation(left_out, by_projection) < 0.6
assert correlation(predicted, by_projection) > 0.85
assert abs(np.median(by_svd) - 0.02) < 0.005
assert abs(np.median(by_projection) - 1.35) < 0.05  # the answer 0 has the error 1
assert (by_projection > by_svd).all()
print(f"medians over all 72 heads: {np.median(by_svd):.3f} and {np.median(by_projection):.3f}")
chapter.table(
    ("error of P V, k = 128", "truncated SVD", "Theorem 1"),
    [(f"layer {i}", by_svd[i].mean(), by_projection[i].mean()) for i in range(len(P))],
)

# %% [markdown]
# (The table has the means over the heads of each layer.) At a quarter of the rank, the best approximation has a median
# error of 2% over all heads. So low rank *is* a useful property of these matrices. At the same rank, the random
# projection is worse than answering 0 on most heads: that is not what it is good for. So a network that uses $k = 128$
# cannot rely on Theorem 1. It must *learn* projections that fit, and be trained to make do with what they keep. That is
# Linformer, chapter 4.
#
# The two share a practical problem: $P_k$ and $P R^\top R$ are made from $P$, which costs $O(n^2)$ to begin with.

# %% [markdown]
# ## Exercises
#
# A sheet of homework goes further: `linattn-ref assignment low_rank --out DIR` (see [the course](README.md)).
#
# **1. Signs instead of normal numbers** (Achlioptas). Let $R$ have the entries $\pm 1/\sqrt k$, each with probability
# $\frac12$, and let $X = \sum_j s_j x_j$ with random signs $s_j$ and $\lVert x \rVert = 1$. Show that (1) holds as it
# is. *Hints:* for the upper tail show $\mathbb E\, e^{t X^2} \le (1 - 2t)^{-1/2}$, using
# $e^{t X^2} = \mathbb E_Z\, e^{\sqrt{2t}\, Z X}$ for a standard normal $Z$. For the lower tail use
# $e^{-y} \le 1 - y + y^2 / 2$ for $y \ge 0$ and the fourth moment of $X$, with $t = \varepsilon / 2$.
#
# <details><summary>Solution</summary>
#
# *Upper tail.* $\mathbb E\, e^{aZ} = e^{a^2/2}$ proves the hint. Exchange the two expectations; for fixed $Z$ the
# signs are independent, and $\cosh y \le e^{y^2 / 2}$ (compare the series term by term: $(2p)! \ge 2^p p!$):
#
# $$\mathbb E\, e^{tX^2} = \mathbb E_Z \prod_j \cosh(\sqrt{2t}\, Z x_j) \le \mathbb E_Z \prod_j e^{t Z^2 x_j^2}
# = \mathbb E_Z\, e^{t Z^2} = (1 - 2t)^{-1/2}$$
#
# From here on step 3 is the same.
#
# *Lower tail.* $\mathbb E X^2 = \sum_j x_j^2 = 1$. In $\mathbb E X^4$ only products of even powers survive:
# $\sum_j x_j^4 + 3 \sum_{j \ne l} x_j^2 x_l^2 = 3 - 2 \sum_j x_j^4 \le 3$. So
# $\mathbb E\, e^{-tX^2} \le 1 - t + \frac32 t^2$. With $t = \varepsilon / 2$, Markov's inequality gives
#
# $$\Pr\Big(\sum_r X_r^2 \le (1 - \varepsilon) k\Big) \le e^{t (1 - \varepsilon) k} \big(\mathbb E\, e^{-tX^2}\big)^k
# \le e^{k h(\varepsilon)}$$
#
# $$h(\varepsilon) = \tfrac\varepsilon2 (1 - \varepsilon) +
# \log\big(1 - \tfrac\varepsilon2 + \tfrac38 \varepsilon^2\big)$$
#
# To show: $f(\varepsilon) = -\frac14 (\varepsilon^2 - \varepsilon^3) - h(\varepsilon) \ge 0$. We have $f(0) = 0$, and
# multiplying $f'$ by $1 - \frac\varepsilon2 + \frac38 \varepsilon^2 > 0$ leaves
# $\frac{5}{16} \varepsilon^2 - \frac{3}{16} \varepsilon^3 + \frac{9}{32} \varepsilon^4$, which is positive for
# $0 < \varepsilon < 1$. So $f$ rises from 0.
#
# </details>

# %%
x = np.random.default_rng(13).standard_normal(10)
x /= np.linalg.norm(x)
X = np.array(list(itertools.product((-1, 1), repeat=10))) @ x  # all 1024 sign vectors: expectations are exact means
same((X**2).mean(), 1)
same((X**4).mean(), 3 - 2 * (x**4).sum())
for t in (0.05, 0.2, 0.4):
    assert np.exp(t * X**2).mean() <= (1 - 2 * t) ** (-1 / 2)
    assert np.exp(-t * X**2).mean() <= 1 - t + 1.5 * t**2

eps = np.linspace(0.001, 0.999, 999)
tail = eps / 2 * (1 - eps) + np.log(1 - eps / 2 + 3 * eps**2 / 8)  # h
assert (tail <= -(eps**2 - eps**3) / 4).all()
denominator = 1 - eps / 2 + 3 * eps**2 / 8
h_slope = (1 - 2 * eps) / 2 + (-1 / 2 + 3 * eps / 4) / denominator
f_slope = -(2 * eps - 3 * eps**2) / 4 - h_slope
same(f_slope * denominator, 5 / 16 * eps**2 - 3 / 16 * eps**3 + 9 / 32 * eps**4)
print(f"mean of X^2: {(X**2).mean():.3f}, of X^4: {(X**4).mean():.3f}, below the 3 of a normal number")
print(f"f is at least {(-(eps**2 - eps**3) / 4 - tail).min():.1e} on (0, 1)")

# %% [markdown]
# **2. The gradient of the best error.** Let $t_k(P) = \min \lVert P - B \rVert_F^2 = \sum_{i > k} \sigma_i^2$ over
# all $B$ of rank $k$. Find its gradient in one line from equation (2) of chapter 2, $d\sigma_i = u_i^\top dP\, v_i$.
# Then find it a second time without any singular vectors, by thinking about the minimum.
#
# <details><summary>Solution</summary>
#
# By $d\sigma_i = u_i^\top dP\, v_i$, $\frac{\partial t_k}{\partial P} = \sum_{i > k} 2 \sigma_i\, u_i v_i^\top = 2 (P -
# P_k)$.
#
# The second way: $t_k(P) = \lVert P - B \rVert_F^2$ at the best $B = P_k$. When $P$ moves, $B$ moves too. But at a
# minimum a small move of $B$ changes nothing to first order. So only the $P$ in the formula counts, and the gradient is
# $2 (P - B)$. Where $\sigma_k = \sigma_{k+1} > 0$ the best $B$ is not unique, and neither is the gradient: the kink
# again.
#
# A step of length $\frac12$ against the gradient leads to $P - (P - P_k) = P_k$: right at the goal.
#
# </details>


# %%
P_check = softmax.matrix(*np.random.default_rng(3).standard_normal((2, 9, 4)))


def tail_forward(p, k):
    sigma = np.linalg.svd(p, compute_uv=False)
    return (sigma[k:] ** 2).sum(), (p, k)


def tail_backward(d_tail, saved):
    p, k = saved
    return d_tail * 2 * (p - eckart_young.truncated_svd(p, k))


report = gradcheck.check_elementwise(partial(tail_forward, k=3), tail_backward, P_check, rng=np.random.default_rng(14))
print(report)
report.assert_ok()
moved = P_check - tail_backward(1.0, (P_check, 3)) / 2
same(moved, eckart_young.truncated_svd(P_check, 3))

# %% [markdown]
# ## What to remember
#
# - The truncated SVD is the best approximation of its rank in the spectral, the Frobenius and the nuclear norm;
#   $1 - c_k$ is its error in the last.
# - Johnson-Lindenstrauss: errors are about $1/\sqrt k$ relative to *lengths*, not to the result. The logarithm comes
#   from asking for many things at once.
# - Theorem 1 promises one matrix for each column of the values, and for one column rank 1 is enough. For the matrix of
#   its proof, $P R^\top R$, the bound holds with $\lVert p_i \rVert \lVert v \rVert$ on the right side, not as printed,
#   and has nothing to do with the spectrum.
# - At $k = 128$ of 512 the best approximation leaves a median error of the output of 2%, the random projection one of
#   135%. Linformer has to learn its projections.
#
# **Sources.** Wang et al. (2020), *Linformer: self-attention with linear complexity*, section 3 and appendix A. Eckart
# and Young (1936), *The approximation of one matrix by another of lower rank*. Mirsky (1960), *Symmetric gauge
# functions and unitarily invariant norms*. Johnson and Lindenstrauss (1984), *Extensions of Lipschitz mappings into a
# Hilbert space*. Achlioptas (2003), *Database-friendly random projections*. Model: all-MiniLM-L6-v2. Text: Maas et al.
# (2011), *Learning word vectors for sentiment analysis*.
