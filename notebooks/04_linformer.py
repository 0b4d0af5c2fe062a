# %% [markdown]
# # 4. Linformer: a few mixed keys instead of all of them
#
# If attention matrices are close to low rank, can attention be computed in time linear in the length, without ever
# forming the matrix, and what is lost?
#
# Linformer's answer (Wang et al. 2020) is short: mix the $L$ keys into $R$ new ones with a matrix $E$, the values
# with a matrix $F$, and attend to the mixtures. In this chapter you will
#
# 1. see what it computes, and count what that costs;
# 2. see why the softmax has to come *after* the mixing, and what that breaks;
# 3. measure the theorem that is meant to justify it;
# 4. derive the gradients of $E$ and $F$, and share these matrices between heads and layers in four ways;
# 5. measure the error against $R$ on a real network: with random, pooled and fitted projections;
# 6. see why the mechanism cannot be causal.
#
# You need chapters 1 to 3. The letters are theirs: $N$ queries, $L$ keys, widths $D$ and $M$. $R$ is the reduced
# length, called $k$ in the paper and in the figures and tables below. Where the paper says $n$, it means $N = L$.

# %% jupyter={"source_hidden": true}
import json
import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from matplotlib.colors import PowerNorm

from linattn_ref import gradcheck
from linattn_ref.attention import linformer, linformer_projections, online_softmax, softmax
from linattn_ref.attention.parts import max_pool, strided_convolution
from linattn_ref.attention.parts.heads import product_for
from linattn_ref.data import reported
from linattn_ref.data.twelve_words import WORDS, vectors
from linattn_ref.experiments.cost import linformer_savings
from linattn_ref.experiments.fewer_keys import linformer as linformer_figure
from linattn_ref.experiments.measuring import heads
from linattn_ref.experiments.measuring.counting import count, kept_bytes, peak_bytes
from linattn_ref.experiments.publishing import chapter, style
from linattn_ref.experiments.rank import linear_self_attention as theorem_2_figure
from linattn_ref.models.bert import config as bert_config
from linattn_ref.theory import linear_self_attention as theorem_2

# Numbers of size 1 that have gone through some hundred roundings of 2.2e-16 each agree to this.
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-13)

# %% [markdown]
# ## The smallest example, by hand
#
# Take one query, $q = 1$, and four keys and four values of width 1. Mix them in pairs, by their means:
#
# | keys | mixed | values | mixed |
# | --- | --- | --- | --- |
# | $0,\ \log 3,\ 0,\ \log 3$ | $\tfrac12 \log 3,\ \tfrac12 \log 3$ | $1, 3, 6, 10$ | $2, 8$ |
#
# Both mixed keys have the same score, so the output is $(2 + 8) / 2 = 5$. Softmax attention has the weights
# $\tfrac18, \tfrac38, \tfrac18, \tfrac38$ and the output $(1 + 9 + 6 + 30) / 8 = 5.75$. If the keys of each pair were
# alike, $0, 0, \log 3, \log 3$, nothing would be lost: the mixed keys are then $0, \log 3$, the weights
# $\tfrac14, \tfrac34$, and both outputs are $6.5$.

# %%
one_query, four_values = np.array([[1.0]]), np.array([[1.0], [3.0], [6.0], [10.0]])
in_pairs = linformer.mean_pool(2, 4)  # (2, 4): E and F
for four_keys in (np.log([[1.0], [3], [1], [3]]), np.log([[1.0], [1], [3], [3]])):
    mixed, _ = linformer.forward(one_query, four_keys, four_values, in_pairs, in_pairs)
    exact, _ = softmax.forward(one_query, four_keys, four_values)
    print(f"keys {four_keys.ravel().round(2)}: Linformer {mixed.item():.3f}, softmax attention {exact.item():.3f}")
assert abs(mixed.item() - 6.5) < 1e-12
assert abs(exact.item() - 6.5) < 1e-12

# %% [markdown]
# ## The formula
#
# ![Linformer, drawn](../figures/schematic_linformer.svg)
#
# $$\tilde K = E K, \qquad \tilde V = F V \qquad\qquad E, F \in \mathbb R^{R \times L} \qquad (1)$$
#
# $$\tilde P = \mathrm{softmax}(s\, Q \tilde K^\top), \qquad s = \frac{1}{\sqrt D}, \qquad
# O = \tilde P\, \tilde V \qquad (2)$$
#
# Row $r$ of $\tilde K$ is a mixture of all keys, $\tilde k_r = \sum_j E_{rj} k_j$; row $r$ of $\tilde V$ is a mixture
# of all values. Then comes softmax attention as in chapter 1, to $R$ keys instead of $L$. $E$ and $F$ are parameters
# of the network: they are learned, and afterwards they are the same for every text. The whole mechanism is one line on
# top of softmax attention. The numbers (1) to (4) are those of the code:

# %%
chapter.source(linformer.forward, linformer.matrix, doc=False)

# %% [markdown]
# Take chapter 1's sentence of twelve words. The last seven words, *old mat and the dog slept too*, ask, and four
# mixtures of all twelve answer. $E$ and $F$ are random, as before training. Loops that share nothing with that code
# return the same:

# %%
q_12, k, v = vectors()  # the cat sat on the old mat and the dog slept too
q = q_12[5:]
(N, D), (L, M), R = q.shape, v.shape, 4
rng = np.random.default_rng(13)
d_out = rng.standard_normal((N, M))  # the gradient of some loss, for later
e, f = rng.standard_normal((2, R, L)) / math.sqrt(R)
out, saved = linformer.forward(q, k, v, e, f)

by_loops = np.zeros((N, M))
for i in range(N):
    weights = []
    for r in range(R):
        mixed_key = sum(e[r, j] * k[j] for j in range(L))
        weights.append(math.exp(q[i] @ mixed_key / math.sqrt(D)))
    for r in range(R):
        by_loops[i] += weights[r] / sum(weights) * sum(f[r, j] * v[j] for j in range(L))
same(out, by_loops)

P_mixed = linformer.matrix(q, k, e)
assert P_mixed.shape == (N, R)  # claim 7: the context mapping matrix is N x R
same(P_mixed @ (f @ v), out)
print(
    f"the output of {WORDS[5]!r}, by loops:",
    by_loops[0].round(4),
    " by the page:",
    out[0].round(4),
    " matrix:",
    P_mixed.shape,
)

# %% [markdown]
# Keep four facts in mind.
#
# - With $E = F = I$ it *is* softmax attention. With one row of $1/L$ in both, every query gets the mean of the
#   values.
# - What is applied to $V$ is the matrix $\tilde P F$, which is $N \times L$ like $P$. Its **rank is at most $R$**.
#   It is never formed; here we form it to look at it.
# - The rows of $\tilde P$ sum to 1; those of $\tilde P F$ need not, and their entries may be negative. So, unlike in
#   softmax attention, **an output is not an average of values** and may lie outside their range.
# - Column $j$ of $E$ belongs to *position* $j$. If you exchange two keys together with their values, softmax attention
#   returns the same output, but Linformer with a learned $E$ another one; and **a longer text than $L$ cannot be read
#   at all**.

# %%
identity, average = np.eye(L), np.full((1, L), 1 / L)
same(linformer.forward(q, k, v, identity, identity)[0], softmax.forward(q, k, v)[0])
same(linformer.forward(q, k, v, average, average)[0], np.tile(v.mean(axis=0), (N, 1)))

applied = P_mixed @ f  # (N, L)
same(applied @ v, out)
assert np.linalg.matrix_rank(applied) == R < min(N, L)
same(P_mixed.sum(axis=1), np.ones(N))
assert abs(applied.sum(axis=1) - 1).max() > 0.1
assert applied.min() < 0
ones = np.ones((L, M))
same(softmax.forward(q, k, ones)[0], np.ones((N, M)))
assert linformer.forward(q, k, ones, e, f)[0].max() < 0  # values that are all 1 come out negative

order = rng.permutation(L)
same(softmax.forward(q, k[order], v[order])[0], softmax.forward(q, k, v)[0])
assert abs(linformer.forward(q, k[order], v[order], e, f)[0] - out).max() > 0.1
same(linformer.forward(q, k[order], v[order], e[:, order], f[:, order])[0], out)  # the columns must move along
print("sums of the rows of what is applied:", applied.sum(axis=1).round(2), f" least entry {applied.min():.2f}")
print("values of 1 come out as:", linformer.forward(q, k, ones, e, f)[0][:, 0].round(2))

# %% [markdown]
# ## What it costs
#
# $EK$ takes $R L D$ multiply-adds and $FV$ takes $R L M$; then softmax attention to $R$ keys takes $N R (D + M)$.
# Together
#
# $$(N + L)\, R\, (D + M) \qquad\text{instead of}\qquad N L\, (D + M)$$
#
# and $N R$ exponentials instead of $N L$. Backward, softmax attention to $R$ keys takes $2 N R (D + M)$; the
# gradients of $E$, $F$, $K$ and $V$ are four products of $L R D$ or $L R M$ (they are derived below). Between the
# passes, $\tilde K$, $\tilde V$ and $\tilde P$ are kept in addition to the inputs: $R (D + M) + N R$ numbers, and no
# $N L$. With $R$ fixed everything is linear in the length (Wang et al. 2020, section 4), counted while the code runs:

# %%
counted = count(linformer.forward, q, k, v, e, f)
assert counted.multiply_adds == (N + L) * R * (D + M)
assert count(softmax.forward, q, k, v).multiply_adds == N * L * (D + M)
assert count(softmax.forward, q, k, v).exponentials == N * L


def both_passes(q, k, v, e, f, d_out):
    return linformer.backward(d_out, linformer.forward(q, k, v, e, f)[1])


in_both = count(both_passes, q, k, v, e, f, d_out).multiply_adds
assert in_both - counted.multiply_adds == 2 * N * R * (D + M) + 2 * L * R * (D + M)

inputs = (N * D + L * (D + M) + 2 * R * L) * 8  # q, k, v, e, f in float64
assert kept_bytes(saved) - inputs == (R * (D + M) + N * R) * 8
chapter.source(linformer.Saved, doc=False)

# %% [markdown]
# Note the factor $N + L$. With $N = L$ the forward pass takes $2 N R$ against $N^2$ products: at $R = N/2$, such as $R
# = 256$ for the 512 tokens of BERT, **no multiply-adds are saved**. The table compares with the dense form of softmax
# attention, both passes, one head of 64 in float32: multiply-adds and kept bytes are the same on any machine. The last
# column is measured: the most bytes in use at once, inputs aside.


# %%
class Cost(NamedTuple):
    multiply_adds: int
    kept: int  # bytes, beyond the inputs
    peak: int  # bytes


def cost_of(forward: Callable, backward: Callable, *arrays: np.ndarray) -> Cost:
    given = arrays[:-1]  # the last one is d_out

    def both(*arrays: np.ndarray) -> None:
        backward(arrays[-1], forward(*arrays[:-1])[1])

    kept = kept_bytes(forward(*given)[1]) - kept_bytes(given)
    return Cost(count(both, *arrays).multiply_adds, kept, peak_bytes(both, *arrays))


width, rows, linear = 64, [], {}
for n in (512, 1024, 2048, 4096):
    tokens = rng.standard_normal((4, n, width)).astype(np.float32)  # q, k, v, d_out
    dense = cost_of(softmax.forward, softmax.backward, *tokens)
    assert dense.multiply_adds == 3 * n * n * 2 * width
    assert dense.kept == n * n * 4
    for r in (128, 256):
        matrices = rng.standard_normal((2, r, n)).astype(np.float32)
        reduced = cost_of(linformer.forward, linformer.backward, *tokens[:3], *matrices, tokens[3])
        assert reduced.multiply_adds == 3 * (n + n) * r * 2 * width
        assert reduced.kept == (r * 2 * width + n * r) * 4
        linear[n, r] = reduced
        rows.append((n, r, *(a / b for a, b in zip(dense, reduced, strict=True))))
chapter.table(("n", "k", "multiply-adds, times less", "bytes kept, times less", "bytes at the peak, times less"), rows)

# %% [markdown]
# At a fixed $R$, twice the length takes exactly twice as many multiply-adds, and about twice the memory. At $n = 512$,
# $k = 256$ the two passes take *as many* multiply-adds as those of the dense form.

# %%
for r in (128, 256):
    short, long = linear[2048, r], linear[4096, r]
    assert long.multiply_adds == 2 * short.multiply_adds  # claim 7: linear time
    assert 1.7 < long.kept / short.kept < 2  # linear, with a constant part of R rows
    assert 1.7 < long.peak / short.peak < 2.1
assert linear[512, 256].multiply_adds == 3 * 512 * 512 * 2 * width

# The online form of softmax attention keeps less still: linear memory is no privilege of Linformer, linear time is.
online = cost_of(online_softmax.forward, online_softmax.backward, *tokens)
assert online.kept == 4096 * (width + 2) * 4 < linear[4096, 128].kept
print(
    f"n = 4096: kept {online.kept / 2**20:.1f} MiB by online softmax, {linear[4096, 128].kept / 2**20:.1f} by Linformer"
)

# %% [markdown]
# Wang et al. (2020, section 5.3, table 3) print the time and memory saved by $n$ and $k$, measured on a GPU with a
# whole network, whose layers share one projection. Here we measure attention alone, on a CPU: the time or memory of
# softmax attention divided by that of Linformer, forward pass, 8 heads.

# %%
savings = chapter.results("linformer_savings")
chapter.show(
    linformer_savings.draw,
    savings,
    alt="Four tables by n and k: with the matrix kept, time and memory saved grow from 1.4 (time) and 1.9 (memory) at "
    "k = n / 2 to some 35 and 64 at n = 8192, k = 128; online, time saved is up to some 18, and memory always below 1",
)
kept_matrix, no_matrix = savings.forms["matrix kept"], savings.forms["online"]
for saved in (kept_matrix.time, kept_matrix.memory, no_matrix.time):  # claim 12
    assert (np.diff(saved[:, 0]) > 0).all()  # at k = 128: the longer, the more
    assert (np.diff(saved[-1]) < 0).all()  # at n = 8192: the smaller k, the more
assert np.nanmin(kept_matrix.memory) > 1 > np.nanmax(no_matrix.memory)

sizes = [(n / k, no_matrix.time[i, j]) for i, n in enumerate(savings.lengths) for j, k in enumerate(savings.reduced)]
at_half, others = [x for ratio, x in sizes if ratio == 2], [x for ratio, x in sizes if ratio > 2]
print(
    f"time saved with no matrix: {min(at_half):.2f} to {max(at_half):.2f} at k = n / 2, else {min(others):.2f} and more"
)
assert max(at_half) < 1 < min(others)

# What the counts say, typed anew: N L products against (N + L) R, n / 2k times less; N L exponentials against N R.
by_counting = np.array([[n / (2 * r) for r in savings.reduced] for n in savings.lengths])
ratio = kept_matrix.time[by_counting >= 1] / by_counting[by_counting >= 1]
assert 1 < ratio.min() < ratio.max() < 2  # claim 12: the clock saves what the counts save
print(f"time saved over n / 2k, with the matrix kept: {ratio.min():.2f} to {ratio.max():.2f}")

rows = []
for i, n in enumerate(savings.lengths):
    for j, k_n in enumerate(savings.reduced[: len(reported.LINFORMER_TIME_SAVED[n])]):
        here = (kept_matrix.time[i, j], kept_matrix.memory[i, j])
        printed = reported.LINFORMER_TIME_SAVED[n][j], reported.LINFORMER_MEMORY_SAVED[n][j]
        rows.append((n, k_n, here[0], printed[0], here[1], printed[1]))
rows = np.array(rows)
for here, printed in ((rows[:, 2], rows[:, 3]), (rows[:, 4], rows[:, 5])):  # claim 12: in the same order
    assert np.corrcoef(np.log(here), np.log(printed))[0, 1] > 0.8
chapter.table(
    ("n", "k", "time saved here", "printed", "memory saved here", "printed"),
    [row for row in rows.tolist() if row[1] in (128, 512)],
)

# %% [markdown]
# - Where both make their matrix in full, the time saved is what counting says, and a tenth to a half more. There are $n
#   / 2k$ times fewer multiply-adds, but $n / k$ times fewer exponentials. So at $k = n / 2$, with as many
#   multiply-adds, about three tenths of the time is saved all the same.
# - The time saved grows faster with $n$ here than in the paper. We time attention alone; the paper times a whole
#   network, in which Linformer makes only one part cheaper.
# - In the upper row both sides make their matrix in full, $N \times L$ or $N \times R$, as in the paper's forward pass.
#   In the lower row neither does, and **the saving of memory is gone**: every ratio is below 1, as Linformer has to
#   hold $\tilde K$ and $\tilde V$ as well. Time is still saved, except at $k = n / 2$: there Linformer takes 1.4 to 1.5
#   times as long.

# %% [markdown]
# ## Why the softmax cannot wait
#
# By chapter 2, a quarter of the singular values of $P$ hold some 83% of their sum, so a matrix of low rank keeps much
# of $P$. Why not take such a factorisation and apply that? Because to have $P$ at all, all of it must be computed
# (Xiong et al. 2021, figure 1, say it of the Nyström method). There are three ways to try, and each fails for its own
# reason.
#
# **From the factors of the scores.** $A = s\,QK^\top$ *is* given by two thin factors, of rank $D$. But the
# exponential works on entries, and an entry of $A$ is an inner product. No finite number of features, computed from
# each row of $Q$ alone and each row of $K$ alone, has $e^{A_{ij}}$ as its inner product for all queries and keys. The
# rank of $e^A$ is full. (Infinitely many features do it; how few are enough is the subject of the chapters on linear
# attention.)
#
# **From some of its columns.** The Nyström method rebuilds a matrix from a few columns $J$ and rows. A few columns
# of $A$ are cheap: $N |J| D$. The same columns of $P$ are not, since
#
# $$P_{ij} = \frac{e^{A_{ij}}}{\sum_l e^{A_{il}}}$$
#
# has *all* $L$ scores of the row in its denominator. Change one key outside $J$, and all those columns of $P$ change,
# while the columns of $A$ stay as they were: **$P_{:J}$ is not a function of $A_{:J}$**. And the softmax of the columns
# alone is another matrix.

# %%
A, P = q @ k.T / math.sqrt(D), softmax.matrix(q, k)
assert np.linalg.matrix_rank(A) == D
assert np.linalg.matrix_rank(np.exp(A)) == np.linalg.matrix_rank(P) == min(N, L)

J = [1, 6, 9]  # cat, mat, dog: the things
outside = k.copy()
outside[0] += 1.0  # the first word is not in J
A_moved, P_moved = q @ outside.T / math.sqrt(D), softmax.matrix(q, outside)
np.testing.assert_array_equal(A_moved[:, J], A[:, J])
assert abs(P_moved[:, J] - P[:, J]).max() > 0.01  # claim 9

softmax_of_columns = softmax.matrix(q, k[J])
assert abs(softmax_of_columns - P[:, J]).max() > 0.1
seen = P[:, J].sum(axis=1, keepdims=True)  # the share of the columns in each row's sum: known only from all columns
same(softmax_of_columns * seen, P[:, J])
assert (
    count(lambda q: softmax.softmax(q @ k.T)[:, J], q).multiply_adds == N * L * D
)  # three columns cost as much as all
print(f"rank of the scores: {np.linalg.matrix_rank(A)}, of P: {np.linalg.matrix_rank(P)}")
print(
    f"weights of {WORDS[5]!r} on {', '.join(WORDS[j] for j in J)}:",
    P[0, J].round(3),
    " softmax of these alone:",
    end=" ",
)
print(softmax_of_columns[0].round(3))

# %% [markdown]
# **From a projection.** Theorem 1's $P R^\top R$ has the projection on the right of $P$. ($R$ is chapter 3's random
# matrix here, and in all that is said of Theorems 1 and 2, not the reduced length.) To bring it to the keys one would
# need
#
# $$\mathrm{softmax}(s\,Q K^\top)\, E^\top \overset{?}{=} \mathrm{softmax}(s\,Q\, (E K)^\top)$$
#
# The two sides are different functions: the left mixes *weights* after the softmax, the right mixes *scores* before
# it, and softmax is not linear. They agree where $E$ is a permutation, and hardly anywhere else. Even mean pooling,
# the tamest $E$, does not pass through. By Jensen's inequality a mean of exponentials is at least the exponential of
# the mean. So a segment with one strong key among weak ones loses weight: in the example below, its share falls from
# .974 to .622.

# %%
permutation = np.eye(L)[order]
same(P @ permutation.T, softmax.matrix(q, permutation @ k))
pool = linformer.mean_pool(R, L)  # the cat sat | on the old | mat and the | dog slept too
segment_weight = P @ (3 * pool).T  # the sum over each segment of three
assert abs(segment_weight - linformer.matrix(q, k, pool)).max() > 0.03
assert ((np.exp(A) @ pool.T) >= np.exp(A @ pool.T)).all()  # Jensen

one_strong = np.array([[6.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]])  # one row of scores, two segments of four
halves = linformer.mean_pool(2, 8)
true_share = softmax.matrix(np.ones((1, 1)), one_strong.T, scale=1.0)[0, :4].sum()
pooled_share = linformer.matrix(np.ones((1, 1)), one_strong.T, halves, scale=1.0)[0, 0]
assert true_share > 0.97
assert 0.6 < pooled_share < 0.63  # of the mean score 1.5 against 1
print("weights of 'old' on three words each:", segment_weight[0].round(2), " pooled:", end=" ")
print(linformer.matrix(q, k, pool)[0].round(2))
print(f"weight of the segment with the strong key: {true_share:.3f} exactly, {pooled_share:.3f} after mean pooling")

# %% [markdown]
# So Linformer mixes *inside* the softmax. It no longer approximates $P$ by construction. Whether the output is any
# good is a separate question, for a theorem or for a measurement. First the theorem.
#
# ## Theorem 2: what it states, what its proof does
#
# > **Theorem 2** (Wang et al. 2020, section 4). For any $Q_i, K_i, V_i \in \mathbb R^{n \times d}$ there are
# > $E, F \in \mathbb R^{k \times n}$, with
# > $k = \min\{\Theta(9 d \log d / \varepsilon^2),\ 5\,\Theta(\log n / \varepsilon^2)\}$, such that for any row vector
# > $w$ of $A = s\,QK^\top$
# >
# > $$\Pr\big(\lVert \mathrm{softmax}(w E^\top)\, F V - \mathrm{softmax}(w)\, V \rVert \le
# > \varepsilon \lVert \mathrm{softmax}(w) \rVert\, \lVert V \rVert\big) > 1 - o(1)$$
#
# Read the quantifiers: $E$ and $F$ may depend on $Q$, $K$ and $V$. The proof (appendix B) takes a Gaussian $R$ as in
# Theorem 1 and
#
# $$E = \delta R, \qquad F = e^{-\delta} R, \qquad \delta = 1/2^n$$
#
# As printed there are two $\delta$: "$\delta = 1/2^n$" where it is introduced, and "$\delta = \theta(1/n)$" further
# down. What follows is for $\delta = 1/2^n$. With $1/n$ the weights are still nearly $1/k$. That no $k$ helps where
# values have the mean 1 holds for every $\delta$ in the figure below.

# %%
chapter.source(theorem_2.projections, theorem_2.stated_dimension, doc=False)
for n in (512, 4096, 10**6):
    assert theorem_2.stated_dimension(n, 64, 0.5) == math.ceil(5 * math.log(n) / 0.25)  # the term free of n is larger
assert theorem_2.stated_dimension(512, 32, 0.5) == 125

# %% [markdown]
# What does this construction compute? With a tiny $\delta$ the scores $w E^\top = \delta\, w R^\top$ are almost 0,
# so all weights are $1/k$ and **every query gets the same output**, the mean of the rows of $F V \approx R V$:
#
# $$\frac1k\, 1^\top R\, V = \frac1k\, g^\top V, \qquad g = R^\top 1$$
#
# $g_j$ is a sum of $k$ independent $N(0, 1/k)$ entries, so the $g_j$ are independent $N(0, 1)$, and
# $\mathbb E \lVert g^\top V \rVert^2 = \lVert V \rVert_F^2$. With $p = \mathrm{softmax}(w)$ the mean of the output
# is 0, the cross term vanishes, and
#
# $$\mathbb E\, \Big\lVert \frac1k g^\top V - p V \Big\rVert^2 = \lVert p V \rVert^2 + \frac{\lVert V \rVert_F^2}{k^2}$$
#
# The second part goes away as $k$ grows. The first is the error of answering 0 to every query. It is within the
# theorem's tolerance $\varepsilon \lVert p \rVert \lVert V \rVert$ where that is generous: for values of mean 0 the
# answer 0 passes. For values of mean 1 it is off by $0.44 \lVert p \rVert \lVert V \rVert$ here, more than $\varepsilon
# = 0.4$ allows, whatever $k$ is. In floating point the paper's $\delta$ makes the weights equal to the last bit. We
# measure all of this, for random queries and keys:

# %%
measured_2 = theorem_2_figure.compute(seed=0)
chapter.show(
    theorem_2_figure.draw,
    measured_2,
    alt="Errors of Theorem 2's construction level off at the error of answering 0; those of Theorem 1 go on falling",
)
with_mean, without_mean = measured_2.curves
k_large = -1  # the largest k
np.testing.assert_allclose(with_mean.linformer[:, k_large], with_mean.zero, rtol=0.05)  # for every delta: no k helps
assert with_mean.zero > measured_2.eps > without_mean.zero  # the answer 0 passes only for values of mean 0
assert with_mean.low_rank[k_large] < with_mean.zero / 5  # Theorem 1, which needs P, goes on falling
for by_exponent in measured_2.dependence.values():
    assert by_exponent[-1] == 0  # all weights are equal to the last bit, far above delta = 1/2^512

# %% [markdown]
# The step that fails is the proof's (b), equations 22 and 23, which says that $\lVert e^{x E^\top} - e^{x} R^\top
# \rVert = o(\lVert e^x \rVert)$. With $\delta \to 0$ the left side tends to $\lVert 1 - e^x R^\top \rVert$, whose mean
# square is $k + \lVert e^x \rVert^2$. So it is as large as $\lVert e^x \rVert$, not small compared with it. Here it is
# for one row of scores:

# %%
x = rng.standard_normal(512)
step = theorem_2.step_b(x, 2.0**-512, 125, trials=200, rng=np.random.default_rng(1))
assert step.needed.min() > 0.5  # stated: tends to 0
rms = math.sqrt((step.needed**2).mean())
assert abs(rms / step.needed_limit - 1) < 0.05  # sampling error of 200 trials of 125 terms: below 1 %
print(f"step (b), relative error: stated o(1); measured {rms:.3f}; expected {step.needed_limit:.3f}")

# %% [markdown]
# And on a real network? The network is that of chapter 2, trained with softmax attention: all 72 heads, on film reviews
# of 512 tokens. With $\varepsilon = 1/2$ the theorem states $k = 125$ (with 1 for what $\Theta$ hides). Errors are root
# mean squares over the rows of all twelve heads of a layer, two reviews and five draws of $R$, in the theorem's unit
# $\lVert \mathrm{softmax}(w) \rVert \lVert V \rVert$:

# %%
real, _sources = heads.read_heads(sentences=2, length=512, seed=0)
assert real.q.shape == (2, 6, 12, 512, 32)  # sentences, layers, heads, tokens, width

ANSWERS = ("Theorem 2's E, F", "P RᵀR V (Theorem 1)", "answer 0", "answer mean of V")
units, misses = np.empty((2, 6, 12, 4)), np.zeros(4)  # sentences, layers, heads, ANSWERS
for s, layer, head in np.ndindex(units.shape[:3]):
    one_head = (x[s, layer, head].astype(np.float64) for x in (real.q, real.k, real.v))
    found = theorem_2.attention_errors(*one_head, 125, 2.0**-512, trials=5, rng=np.random.default_rng(head))
    answers = found.linformer, found.low_rank, found.zero, found.uniform
    misses += [(x > 0.5).mean() / units[..., 0].size for x in answers]  # share of rows and draws beyond the tolerance
    units[s, layer, head] = [math.sqrt((x**2).mean()) for x in answers]
theorem_2s, theorem_1s, zero, mean_of_v = np.moveaxis(units, -1, 0)
assert misses.max() < 0.002  # nearly all keep the theorem's promise, whatever the answer
assert (zero < theorem_2s).mean() > 0.9  # the answer 0 is nearer than the construction
by_layer = np.sqrt((units**2).mean(axis=(0, 2)))  # (layers, ANSWERS)
mean_beats_theorem_1 = int((by_layer[:, 3] < by_layer[:, 1]).sum())
assert mean_beats_theorem_1 == 5
chapter.table(("layer", *ANSWERS), [(layer, *map(float, row)) for layer, row in enumerate(by_layer)])
mean_wins = (mean_of_v < theorem_1s).mean()
print(f"the mean of V beats Theorem 1 in {mean_beats_theorem_1} of 6 layers, and in {mean_wins:.0%} of heads")

# %% [markdown]
# Hardly a row misses the theorem's tolerance. That means nothing, because the answer 0 hardly misses it either, and
# it is nearer than the construction in nine heads of ten. Nor is Theorem 1's $P R^\top R V$ worth its price at this
# $k$, since it needs all of $P$. *One and the same answer for every query*, the mean of the values, is nearer in five
# layers of six and in three quarters of the heads. The unit is too large to be informative. In what follows errors
# are measured against the output $\lVert P V \rVert$ itself.
#
# So the theorem's *proof* does not explain why Linformer works. Its *statement* is about matrices that may depend
# on $Q$, $K$ and $V$; exercise 3 finds the best $F$ of that kind. Neither speaks of one $E$ and one $F$ that serve
# all texts, which is what is trained. For that there is only measurement; it comes after the gradients that
# training needs.
#
# > **A break.** Linformer mixes $L$ keys and values into $R$ before the softmax, for $(N + L) R (D + M)$ multiply-adds,
# > and the matrix it applies has rank $R$. The softmax cannot come first, because each row of $P$ needs all its scores.
# > Theorem 2's proof does not explain why this works: its construction gives every query the same answer. After the
# > break come the gradients, sharing, and the error on a real network.
#
# ## The gradient, by hand
#
# We are given $dO$ and want $dQ$, $dK$, $dV$, $dE$ and $dF$.
#
# **Step 1: through the attention.** (2) is softmax attention with queries $Q$, keys $\tilde K$ and values $\tilde V$.
# Chapter 1's backward pass gives $dQ$, $d\tilde K$ and $d\tilde V$. Nothing here is new.
#
# **Step 2: through $\tilde K = EK$.** In indices, $\tilde K_{rd} = \sum_j E_{rj} K_{jd}$. The entry $E_{rj}$ occurs
# in $\tilde K_{rd}$ for every $d$, with the factor $K_{jd}$:
#
# $$dE_{rj} = \sum_d d\tilde K_{rd}\, K_{jd} \quad\Longrightarrow\quad dE = d\tilde K\, K^\top, \qquad
# dF = d\tilde V\, V^\top \qquad (3)$$
#
# The entry $K_{jd}$ occurs in $\tilde K_{rd}$ for every $r$, with the factor $E_{rj}$:
#
# $$dK_{jd} = \sum_r E_{rj}\, d\tilde K_{rd} \quad\Longrightarrow\quad dK = E^\top d\tilde K, \qquad
# dV = F^\top d\tilde V \qquad (4)$$
#
# **Step 3: a matrix in several places.** Let one matrix $X$ be used as $E$ of head 1 and as $E$ of head 2. Think of
# two copies, $X_1 = X$ and $X_2 = X$, and a loss $\ell(X_1, X_2)$. The chain rule gives
#
# $$dX = \frac{\partial \ell}{\partial X_1} \frac{\partial X_1}{\partial X}
# + \frac{\partial \ell}{\partial X_2} \frac{\partial X_2}{\partial X} = dX_1 + dX_2$$
#
# so **the gradient of sharing is a sum** over all places of use: examples of a batch, heads, key and value, layers.
# In NumPy sharing is broadcasting, so the gradient of broadcasting is a sum over the repeated axes. A sum of products
# is a product of longer matrices, $dX_1 + dX_2 = [d\tilde K_1, d\tilde K_2]\,[K_1, K_2]^\top$: so no head's own
# $(R, L)$ gradient has to be held on the way (`product_for`).
#
# **Step 4: masked keys.** A masked key's rows of $K$ and $V$ are set to 0 before (1): it then has no share in any
# mixed key. The gradient at these rows is 0 too.
#
# No step has an $N \times L$ array in it.

# %%
chapter.source(linformer.backward, product_for, doc=False)

# %%
report = gradcheck.check_elementwise(linformer.forward, linformer.backward, q, k, v, e, f, rng=np.random.default_rng(2))
print(report)
report.assert_ok()
assert {entry.name for entry in report.worst_by_input} == {"q", "k", "v", "e", "f"}


def formula(q, k, v, e, f):
    exp = np.exp(q @ (e @ k).T / math.sqrt(q.shape[-1]))  # complex numbers pass: the complex step is exact
    return exp / exp.sum(axis=1, keepdims=True) @ (f @ v)


exact = gradcheck.check_complex_step(
    formula, linformer.forward, linformer.backward, q, k, v, e, f, rng=np.random.default_rng(3)
)
print(exact)
exact.assert_ok()

# %% [markdown]
# We check this with heads, an $E$ for each head, one $F$ for all, and a mask. Then we make the easiest mistake, and
# forget the sum over examples. With `[0]` in its place, the shapes still fit and only the numbers are wrong. The check
# names the input, $E$.

# %%
q_h, k_h, v_h = (rng.standard_normal((2, 3, *shape)) for shape in ((N, D), (L, D), (L, M)))  # 2 examples, 3 heads
e_each = rng.standard_normal((3, R, L))  # one per head
masked = partial(linformer.forward, key_mask=rng.random((2, 3, L)) < 0.8)
# f is (R, L): it serves all examples and heads
report = gradcheck.check_directions(masked, linformer.backward, q_h, k_h, v_h, e_each, f, rng=np.random.default_rng(4))
print(report)
report.assert_ok()


def forgetful_backward(d_out, saved):
    gradients = linformer.backward(d_out, saved)
    _, d_mixed_k, _ = softmax.backward(d_out, saved.attention)
    return gradients._replace(e=(d_mixed_k @ saved.k.swapaxes(-1, -2))[0])  # the first example only


report = gradcheck.check_elementwise(masked, forgetful_backward, q_h, k_h, v_h, e_each, f, rng=np.random.default_rng(4))
assert not report.ok
assert {entry.name for entry in report.worst_by_input if entry.excess > 1} == {"e"}

# %% [markdown]
# ## Sharing
#
# A separate $E$ and $F$ for each head of each layer is a lot of parameters. Wang et al. (2020, section 4) list three
# ways to share, each on top of the one before:
#
# | mode | what is shared | matrices |
# | --- | --- | --- |
# | none | nothing | $2 \cdot \text{layers} \cdot \text{heads}$ |
# | headwise | one $E$, one $F$ for all heads of a layer | $2 \cdot \text{layers}$ |
# | key-value | and $E = F$ | $\text{layers}$ |
# | layerwise | and the same matrix in all layers | 1 |
#
# For 12 layers of 12 heads the paper counts 24, 12 and 1 matrices (section 4). We count them in the package's own
# projections, at BERT-base's $n = 512$ and $k = 256$. (Parameters are proportional to $R L$, so small matrices do.)

# %%
chapter.source(linformer_projections.draw_projections, linformer_projections.parameter_count, doc=False)
base = {"model_type": "bert", "num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768}
base |= {"intermediate_size": 3072, "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2}
shapes = bert_config.parameter_shapes(bert_config.parse_config(json.dumps(base)))
network = sum(math.prod(shape) for shape in shapes.values())

rows, matrices_of = [], {}
for sharing in linformer_projections.SHARING:
    small = linformer.draw_projections(1, 2, np.random.default_rng(0), layers=12, heads=12, sharing=sharing)
    matrices_of[sharing] = linformer_projections.parameter_count(small) // 2
    parameters = matrices_of[sharing] * 256 * 512
    rows.append((sharing, matrices_of[sharing], parameters, f"{parameters / network:.1%}"))
assert matrices_of == {"none": 288, "headwise": 24, "key_value": 12, "layerwise": 1}  # claim 8
full = linformer.draw_projections(
    256, 512, np.random.default_rng(0), layers=12, heads=12, sharing="headwise", dtype=np.float32
)
assert linformer_projections.parameter_count(full) == 24 * 256 * 512  # and in full size
chapter.table(("sharing", "matrices", "parameters", "of the network's"), rows)
print(f"BERT-base, embeddings included: {network:,} parameters")

# %% [markdown]
# Here all four are at work: three layers of four heads, each layer's values being the output of the one before,
# forward and backward. `distinct_gradients` does step 3 over layers and over key and value; `forward` and `backward`
# do it over heads. Finite differences perturb every distinct matrix.

# %%
chapter.source(linformer_projections.distinct_gradients, doc=False)


class Matrices(NamedTuple):
    matrices: tuple[np.ndarray, ...]  # each distinct one once


def stack(q, k, v, projections):
    """Three layers on top of each other, and all that was saved."""
    kept = []
    for projection in projections:
        v, saved = linformer.forward(q, k, v, projection.e, projection.f, row_mask=projection.row_mask)
        kept.append(saved)
    return v, kept


def stack_backward(d_out, kept):
    gradients = []
    for saved in reversed(kept):
        gradients.append(linformer.backward(d_out, saved))
        d_out = gradients[-1].v
    return gradients[::-1]


def check_sharing(projections, seed):
    """Compare the gradient of every distinct matrix with finite differences."""
    rng = np.random.default_rng(seed)
    q, k, v = rng.standard_normal((3, 4, L, D))  # 4 heads, N = L
    matrices = tuple({id(x): x for p in projections for x in (p.e, p.f)}.values())

    def rebuilt(new):
        replaced = {id(x): y for x, y in zip(matrices, new, strict=True)}
        return [p._replace(e=replaced[id(p.e)], f=replaced[id(p.f)]) for p in projections]

    def forward(new):
        used = rebuilt(new)
        out, kept = stack(q, k, v, used)
        return out, (used, kept)

    def backward(d_out, saved):
        used, kept = saved
        found = linformer.distinct_gradients(used, stack_backward(d_out, kept))
        return Matrices(tuple(gradient for _, gradient in found))

    report = gradcheck.check_elementwise(forward, backward, matrices, rng=rng)
    report.assert_ok()
    return matrices, report


rows = []
for sharing in linformer_projections.SHARING:  # claim 8: all four working
    projections = linformer.draw_projections(R, L, np.random.default_rng(5), layers=3, heads=4, sharing=sharing)
    matrices, report = check_sharing(projections, 6)
    size = linformer_projections.parameter_count(projections)
    assert len(matrices) == {"none": 3 * 2, "headwise": 3 * 2, "key_value": 3, "layerwise": 1}[sharing]
    assert sum(x.size for x in matrices) == size
    rows.append((sharing, len(matrices), size, report.checked, report.worst.absolute))
chapter.table(("sharing", "arrays", "parameters", "compared", "largest difference"), rows)

# %% [markdown]
# ### A different $R$ for each layer and head
#
# In chapter 2 the spectra of different layers fall at very different speeds, so why give every head the same $R$? The
# paper proposes it too ("nonuniform projected dimension", section 4). Heads of one layer live in one array, so those
# with fewer rows are padded to the largest, and `row_mask` hides the padding from the softmax. Merely leaving zeros
# would not do: a mixed key of 0 has the score 0, and $e^0 = 1$ takes its share of the weight. The result is that of
# each head alone:

# %%
reduced_by_head = [[1, 5, 2, 3], [4, 4, 4, 4], [2, 1, 6, 2]]  # (layers, heads)
ragged = linformer.draw_projections(reduced_by_head, L, np.random.default_rng(7), layers=3, heads=4)
check_sharing(ragged, 8)
parameters = linformer_projections.parameter_count(ragged)
assert parameters == 2 * sum(map(sum, reduced_by_head)) * L  # padding is no parameter
assert ragged[0].e.shape == (4, 5, L)

q_4, k_4, v_4 = rng.standard_normal((3, 4, L, D))
together, _ = linformer.forward(q_4, k_4, v_4, ragged[0].e, ragged[0].f, row_mask=ragged[0].row_mask)
unmasked, _ = linformer.forward(q_4, k_4, v_4, ragged[0].e, ragged[0].f)
for head, r in enumerate(reduced_by_head[0]):
    alone, _ = linformer.forward(q_4[head], k_4[head], v_4[head], ragged[0].e[head, :r], ragged[0].f[head, :r])
    same(together[head], alone)
    assert (abs(unmasked[head] - alone).max() > 0.01) == (r < 5)  # what zeros without a mask would give
    off = abs(unmasked[head] - alone).max()
    print(f"{r} mixed key{'s' * (r > 1)}: off by {off:.2f} without a mask, and by rounding with it")

# %% [markdown]
# ## Without a learned matrix: pooling and convolution
#
# The paper names other ways to get from $L$ rows to $R$ ("general projections", section 4). **Mean pooling** over $R$
# segments is a matrix $E$ with nothing to learn. **Strided convolution**, with a window as wide as its stride, mixes
# each segment with learned weights, $y_r = \sum_t x_{rh + t} W_t$ with $h = L/R$. They are the same for all segments,
# so it works at any length. Its $W_t$, $(D, D)$ each, can also mix *features*, which $E$ cannot. It has $h D^2$
# parameters where $E$ has $R L$: fewer as soon as $R > D$. **Max pooling** takes the largest entry of each feature in
# each segment; that is no matrix, as it is not linear.

# %%
chapter.source(
    linformer.mean_pool, strided_convolution.forward, strided_convolution.backward, max_pool.forward, doc=False
)

# %%
x = k[None]  # the keys of the twelve words
same(pool @ x, x.reshape(1, R, 3, D).mean(axis=2))
same(strided_convolution.forward(x, np.broadcast_to(np.eye(D) / 3, (3, D, D)))[0], pool @ x)  # a convolution of a kind

# A convolution that leaves the features alone is an E with the same taps in every segment.
taps = rng.standard_normal(3)
banded = np.kron(np.eye(R), taps)  # (R, 12)
same(strided_convolution.forward(x, taps[:, None, None] * np.eye(D))[0], banded @ x)

pooled, _ = max_pool.forward(x, R)
np.testing.assert_array_equal(pooled, x.reshape(1, R, 3, D).max(axis=2))
assert abs(max_pool.forward(-x, R)[0] + pooled).max() > 0.1  # not linear
assert all(((512 // r) * 32**2 < r * 512) == (r > 32) for r in (8, 16, 32, 64, 128))  # a head of width D = 32
print(
    "how much of a thing each word is:",
    *(f"{word} {feature:.1f}" for word, feature in zip(WORDS, k[:, 0], strict=True)),
)
print("mean of each three:", (pool @ x)[0, :, 0].round(2), " maximum:", pooled[0, :, 0].round(2))

# %% [markdown]
# Now their gradients. A convolution with stride $h$ cuts the sequence into rows of $h D$ numbers and applies one
# linear layer to each, so it has a linear layer's gradients. The maximum of a segment changes with its largest entry,
# one for one, and with no other: the gradient goes to the key that gave the maximum. (Where two are equal there is no
# derivative, and the first one gets it all.) Softmax attention to the pooled keys and values, by finite differences:


# %%
class QKV(NamedTuple):
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray


def max_pooled_forward(q, k, v):
    mixed_k, saved_k = max_pool.forward(k, R)
    mixed_v, saved_v = max_pool.forward(v, R)
    out, attention = softmax.forward(q, mixed_k, mixed_v)
    return out, (attention, saved_k, saved_v)


def max_pooled_backward(d_out, saved):
    attention, saved_k, saved_v = saved
    d_q, d_k, d_v = softmax.backward(d_out, attention)
    return QKV(d_q, max_pool.backward(d_k, saved_k).x, max_pool.backward(d_v, saved_v).x)


for report in (
    gradcheck.check_elementwise(max_pooled_forward, max_pooled_backward, q_h, k_h, v_h, rng=np.random.default_rng(9)),
    gradcheck.check_elementwise(
        strided_convolution.forward,
        strided_convolution.backward,
        rng.standard_normal((2, 11, D)),  # 11 is no multiple of 4: zeros follow the end
        rng.standard_normal((4, D, M)),
        rng=np.random.default_rng(10),
    ),
):
    print(report)
    report.assert_ok()

# %% [markdown]
# ## The error against $R$, on a real network
#
# Now the question itself: how far is Linformer's output from softmax attention's, on those real heads, when $Q$,
# $K$ and $V$ stay as they are?
#
# How does a pooled matrix look? The cell draws $P$, which is the case $R = 512$, and next to it the matrix $\tilde P F$
# that mean pooling applies. It takes the first 128 tokens of one head, and notes the relative error of the output. In a
# running notebook a slider goes through $R$.

# %%
q_1, k_1, v_1, out_1 = (x[3, 0] for x in real.sentence(0))  # layer 3, head 0 of the first sentence
P_1 = softmax.matrix(q_1, k_1)


def applied_by_pooling(r):
    pool = linformer.mean_pool(r, 512, np.float32)
    return linformer.matrix(q_1, k_1, pool) @ pool


def panel(axes, r):
    matrix = applied_by_pooling(r)
    axes.imshow(matrix[:128, :128], norm=PowerNorm(0.5, vmin=0, vmax=0.2))
    axes.grid(False)
    error = heads.relative_error(matrix @ v_1, out_1)
    axes.set(xlabel=f"key j\nerror {error:.2f}", ylabel="query i")
    axes.label_outer()


chapter.explore(
    panel,
    (512, 256, 128, 32, 8),
    name="R",
    slider=[2**i for i in range(10)],
    height=0.3,
    sharey=True,
    alt="An attention matrix, sharp at R = 512; with smaller R it is smeared over ever wider segments of keys",
)
errors = [heads.relative_error(applied_by_pooling(2**i) @ v_1, out_1) for i in range(10)]
assert errors[-1] < 1e-5  # R = 512: E is the identity
assert all(later < earlier for earlier, later in pairwise(errors))

# %% [markdown]
# The next figure has all 72 heads and eight reviews. The *relative error* of an output is $\lVert \tilde O - O \rVert_F
# / \lVert O \rVert_F$: 1 is what answering 0 would give. There are random, mean pooled and max pooled projections, and
# three that are *fitted*, by Adam on the squared relative error, with the gradients derived above, starting from mean
# pooling. Two of them are fitted on 48 other reviews: $E$ and $F$ of each head, and its convolutions. The third is $E$
# and $F$ for one single review, measured on that same review. The fits take minutes. Pooling needs no fit; its errors
# are computed again below, for the first two of the eight reviews.

# %%
figure_results = chapter.results("linformer")
chapter.show(
    linformer_figure.draw,
    figure_results,
    alt="Output error against k: random projections above 1; mean pooling, fitted matrices, fitted convolution below "
    "1, in this order; matrices fitted to one sentence far below, near the truncated SVD; sharing modes close together",
)
header = ("relative error of the output, median (from tenth to tenth)", *(f"k = {r}" for r in figure_results.reduced))
chapter.table(
    header,
    [
        (
            linformer_figure.WAYS[way][0],
            *(f"{m:.2g} ({a:.2g} to {b:.2g})" for a, m, b in zip(found.low, found.median, found.high, strict=True)),
        )
        for way, found in figure_results.output.items()
    ],
)


# %% native="It recomputes the record to its last digits, and the network that this page loads is rounded."
# What is in the record and only pools, once more: two of the eight reviews, all heads.
def as_recorded(recorded, forward):
    again, _ = heads.each_error(real, range(2), forward)  # (2, layers, heads)
    np.testing.assert_allclose(heads.spread(again).by_sentence, recorded[..., :2], rtol=1e-4)
    return again.mean()


as_recorded(figure_results.mean_of_values.by_sentence, lambda q, k, v: v.mean(axis=-2, keepdims=True))
for i, r in enumerate(figure_results.reduced):
    pool = linformer.mean_pool(r, 512, np.float32)
    for way, forward in (
        ("mean", lambda q, k, v, pool=pool: linformer.forward(q, k, v, pool, pool)[0]),
        (
            "max",
            lambda q, k, v, r=r: softmax.forward(q, max_pool.forward(k, r)[0], max_pool.forward(v, r)[0])[0],
        ),
    ):
        found = as_recorded(figure_results.output[way].by_sentence[i], forward)
        print(f"R = {r:3}, {way} pooling: error {found:.3f}, as recorded")

# %% [markdown]
# Here is what it shows, line by line.
#
# 1. **Random $E$ and $F$ are useless in a network trained without them**: the error is larger than the output. The
#    rows of $E$ have the length $\sqrt{L/R}$, so mixed keys, mixed values and scores are about that much larger than
#    real ones, and the softmax puts its weight on one arbitrary mixture. (Chapter 3's lemma is about lengths of whole
#    columns, $\lVert R x \rVert$, not about these.) Theorem 1's $P R^\top R V$ is right on average over the
#    random matrix $R$. But a single draw has an error of about $\sqrt{(1 + a^2)/k}$ with $a = \lVert P \rVert_F \lVert
#    V \rVert_F / \lVert O \rVert_F$ (chapter 3): for $k = 128$ not yet below 1.
# 2. **Mean pooling is better than answering with the mean of all values**: by a twelfth at $k = 8$, by a third at
#    $k = 128$.
# 3. **Fitting helps a little, on other text.** $E$ and $F$ know positions only. What a token attends to depends on
#    what the other tokens *are*, and that is somewhere else in the next review.
# 4. **A fitted convolution is better.** It is the same at every position, so 48 reviews teach it more, and it can
#    weigh features. (From $k = 64$ on it has fewer parameters as well.)
# 5. **For one given sentence there are good $E$ and $F$**, as Theorem 2 says there should be. Their error is a
#    fraction of the others', and at $k = 8$ it is even below that of the truncated SVD of $P$. (This does not
#    contradict Eckart and Young. Their theorem is about $P$, and the output $P V$ has only 32 columns.)
# 6. **Nothing comes below the truncated SVD where the matrix is measured**, as Eckart and Young proved. The real $P$
#    *is* close to low rank, for some heads much closer than for others. Yet $\tilde P F$ is far from it: the fit to
#    the output makes the matrix worse, not better.
# 7. **Heads differ more than the methods of 2 to 4 do.** The bars, the middle 80% of heads and texts, are long: at
#    $k = 128$ fitted matrices leave 31% of error in one head and 70% in another. The order of the methods is the same
#    in every text.

# %%
error = {way: found.by_layer.mean(axis=1) for way, found in figure_results.output.items()}  # (K,) each
for way, errors in error.items():
    assert (np.diff(errors) < 0).all(), way  # all of them fall with k
assert figure_results.output["gaussian"].low.min() > 1
assert figure_results.output["max"].low.min() > 1
assert error["theorem_1"][-1] > 1
assert (error["mean"] < figure_results.mean_of_values.by_layer.mean()).all()
for way, other in (("fitted", "mean"), ("convolution", "fitted")):  # in every text
    assert (figure_results.output[way].by_sentence < figure_results.output[other].by_sentence).all()
assert (error["fitted"] > 0.9 * error["mean"]).all()
assert (error["one_sentence"] < 0.6 * error["fitted"]).all()
((svd_of_that_sentence, _),) = heads.truncated_svd((8,), real, range(1))
assert error["one_sentence"][0] < svd_of_that_sentence.mean()
for way, found in figure_results.matrix.items():
    assert (found.by_layer >= figure_results.matrix["svd"].by_layer).all(), way
assert (figure_results.matrix["fitted"].median > figure_results.matrix["mean"].median).all()

# Theorem 1: what its variance says of these heads, against one draw of R for each k.
amplification = np.stack(
    [
        np.linalg.norm(softmax.forward(q, k, v)[1].p, axis=(-2, -1))
        * np.linalg.norm(v, axis=(-2, -1))
        / np.linalg.norm(out, axis=(-2, -1))
        for q, k, v, out in map(real.sentence, range(2))
    ]
)  # (sentences, layers, heads)
expected = [np.sqrt((1 + amplification**2) / r).mean(axis=(1, 2)) for r in figure_results.reduced]  # (K, sentences)
ratio = figure_results.output["theorem_1"].by_sentence[:, :2] / expected
assert 0.7 < ratio.mean() < 1.3  # claim 4, in part
print(f"Theorem 1, error measured over expected: {ratio.mean():.2f}")

# Random projections: the mixed keys are longer than the real ones by sqrt(L / R) or so.
drawn = rng.standard_normal((64, 512)).astype(np.float32) / 8
longer = np.linalg.norm(drawn @ k_1, axis=1).mean() / np.linalg.norm(k_1, axis=1).mean()
assert abs(longer / math.sqrt(512 / 64) - 1) < 0.25
assert linformer.matrix(q_1, k_1, drawn).max(axis=1).mean() > 2 * P_1.max(axis=1).mean()

# %% [markdown]
# **What does sharing cost?** One matrix for all layers, heads, keys and values has a 144th of the parameters. On text
# that nothing was fitted to, it gives back a quarter of what fitting had gained over mean pooling (15% to 37%, from
# text to text). On the text of the fit it gives back half: much of what separate matrices learn beyond it is about
# those 48 reviews. In *training* the paper finds less. With layerwise sharing the validation perplexity "almost
# matches" that of separate matrices (section 5.1), and of the fine-tuned networks with $k = 256$ the layerwise one
# does best (section 5.2, table 2):

# %%
none, layerwise = figure_results.sharing["none"], figure_results.sharing["layerwise"]
assert layerwise.parameters * 144 == none.parameters
gives_back = linformer_figure.returned(figure_results.sharing, "layerwise")  # (texts,)
assert 0.2 < gives_back.mean() < 0.3
assert gives_back.min() > 0.1
assert gives_back.max() < 0.4
print(f"given back: {gives_back.mean():.0%}, from text to text {gives_back.min():.0%} to {gives_back.max():.0%}")
pooled_seen, none_seen, layerwise_seen = (
    figure_results.sharing[mode].seen.by_sentence.mean() for mode in ("mean_pooling", "none", "layerwise")
)
assert 0.45 < (layerwise_seen - none_seen) / (pooled_seen - none_seen) < 0.6
chapter.table(
    (f"sharing, k = {figure_results.sharing_reduced}", "parameters", "error, other text", "error, text of the fit"),
    [
        (mode, fitted.parameters, float(fitted.output.by_sentence.mean()), float(fitted.seen.by_sentence.mean()))
        for mode, fitted in figure_results.sharing.items()
    ],
)
chapter.table(
    ("accuracy, printed in Wang et al. (2020), n = 512", "SST-2", "IMDB", "QNLI", "QQP", "average"),
    [(name, *numbers) for (n, name), numbers in reported.LINFORMER_ACCURACY.items() if n == 512],
)

# %% [markdown]
# **What all this does not say.** The paper trains $E$ and $F$ together with all other weights, for the network's own
# loss, so that $Q$, $K$ and $V$ adapt to the mixing. Here they could not adapt: these numbers show how well Linformer
# *imitates* the attention of one given network at 512 tokens. That it can *learn as well* does not follow from
# imitation, nor from the low rank of $P$.
#
# ## Why it cannot be causal
#
# In a language model output $i$ must not depend on tokens after $i$. In softmax attention a triangular mask prevents
# that, since column $j$ of $P$ belongs to token $j$. But column $r$ of $\tilde P$ belongs to a mixture. Try a triangle
# all the same: in the sentence of $N = L = 12$ words, with $R = 4$, let query $i$ see the mixed keys up to that of its
# own segment.


# %%
def triangular(q, k, v, e, f, allowed):
    """Linformer with the mixed keys that are not allowed (N, R) masked out; and the matrix applied to V."""
    scores = np.where(allowed, q @ (e @ k).T / math.sqrt(q.shape[-1]), -np.inf)
    exp = np.exp(scores - np.maximum(scores.max(axis=1, keepdims=True), -1e300))
    weights = exp / np.maximum(exp.sum(axis=1, keepdims=True), 1e-300)  # a row that sees nothing is 0
    return weights @ (f @ v), weights @ f


def leaks(e, f, allowed):
    """Which outputs i change when only tokens after i do."""
    before, _ = triangular(q_12, k, v, e, f, allowed)
    found = []
    for i in range(12):
        future = np.arange(12) > i
        k_new, v_new = k.copy(), v.copy()
        k_new[future] += 1
        v_new[future] -= 1
        found.append(bool(abs(triangular(q_12, k_new, v_new, e, f, allowed)[0][i] - before[i]).max() > 1e-9))
    return np.array(found)


segment = np.arange(12) // 3  # of each token
own_or_earlier = np.arange(4) <= segment[:, None]  # (N, R)
wholly_past = np.arange(4) < segment[:, None]
pool_12 = linformer.mean_pool(R, L)
learned = rng.standard_normal((4, 12)) / 2

leaks_of_pool, leaks_of_learned = leaks(pool_12, pool_12, own_or_earlier), leaks(learned, learned, own_or_earlier)
np.testing.assert_array_equal(leaks_of_pool, np.arange(12) % 3 != 2)  # all but the last token of each segment
np.testing.assert_array_equal(leaks_of_learned, np.arange(12) < 11)  # all but the very last token
assert not leaks(pool_12, pool_12, wholly_past).any()


def draw_influence():
    attempts = (
        ("softmax, causal", softmax.matrix(q_12, k, causal=True)),
        ("pooling, triangle", triangular(q_12, k, v, pool_12, pool_12, own_or_earlier)[1]),
        ("learned E, triangle", triangular(q_12, k, v, learned, learned, own_or_earlier)[1]),
        ("pooling, past segments", triangular(q_12, k, v, pool_12, pool_12, wholly_past)[1]),
    )
    figure, all_axes = style.figure(1, 4, height=0.32, sharey=True)
    for axes, (title, influence) in zip(all_axes, attempts, strict=True):
        axes.imshow(abs(influence), norm=PowerNorm(0.5, vmin=0, vmax=0.6))
        axes.plot(np.arange(13) - 0.5, np.arange(13) - 0.5, color=style.VERMILLION)  # above it is the future
        axes.grid(False)
        axes.set(title=title, xlabel="value j", xlim=(-0.5, 11.5), ylim=(11.5, -0.5), xticks=range(0, 12, 3))
    all_axes[0].set_ylabel("output i")
    return figure


chapter.show(
    draw_influence,
    alt="How much output i takes of value j: nothing above the diagonal for causal softmax; small triangles above it "
    "for pooling; everything for a learned E; nothing for pooling of past segments, whose first rows are empty",
)

# %% [markdown]
# The brighter, the larger the weight; above the red line is the future. Pooling leaks within its segments; a learned
# $E$, whose every row mixes all positions, leaks everywhere. If we allow only mixtures that lie *wholly in the past*,
# nothing leaks. But then the first segment sees nothing, only the first token of a segment sees the one before it
# (inside a mixture), and with a learned $E$ no query sees anything at all. (Pooled past segments together with a local
# window *do* make a causal mechanism: the Long-Short Transformer, in a later chapter.)
#
# A language model that leaks has a low loss in training and, when it writes, no future to copy from. So the package
# refuses:

# %%
try:
    linformer.forward(q_12, k, v, learned, learned, causal=True)
except ValueError as refusal:
    message = str(refusal)
assert "future" in message
print(message)

# %% [markdown]
# ## Exercises
#
# A sheet of homework goes further: `linattn-ref assignment low_rank --out DIR` (see [the course](README.md)).
#
# **1. When is it worth it?** For which $R$ does Linformer's forward pass take fewer multiply-adds than softmax
# attention? For $N = L$? And when one query attends to a long cache ($N = 1$)?
#
# <details><summary>Solution</summary>
#
# $(N + L) R (D + M) < N L (D + M)$ means $R < \frac{N L}{N + L}$, half the harmonic mean of $N$ and $L$. For
# $N = L$ that is $N / 2$. For $N = 1$ it is $\frac{L}{L + 1} < 1$: never. Mixing the keys costs $R$ times as much as it
# costs one query to look at all of them. It pays only because all queries share it.
#
# </details>


# %%
def saves(n, n_keys, r):
    arrays = [np.ones(shape) for shape in ((n, D), (n_keys, D), (n_keys, M), (r, n_keys), (r, n_keys))]
    return count(linformer.forward, *arrays).multiply_adds < count(softmax.forward, *arrays[:3]).multiply_adds


for n, n_keys in ((64, 64), (64, 32), (10, 90), (1, 500)):
    for r in range(1, n_keys + 1, 3):
        assert saves(n, n_keys, r) == (r < n * n_keys / (n + n_keys))
    who = "1 query" if n == 1 else f"{n} queries"
    print(f"{who}, {n_keys} keys: cheaper for fewer than {n * n_keys / (n + n_keys):.1f} mixed keys")

# %% [markdown]
# **2. Key-value sharing, through the gradient.** With $E = F$, what is $dE$? Suppose in addition that keys and
# values are the same array, $K = V = X$, as in a layer that shares these too. What is $dX$? Check both.
#
# <details><summary>Solution</summary>
#
# Both are sums over the places of use (step 3): $dE = d\tilde K\, K^\top + d\tilde V\, V^\top$, and
# $dX = E^\top d\tilde K + E^\top d\tilde V = E^\top (d\tilde K + d\tilde V)$.
#
# </details>


# %%
class Shared(NamedTuple):
    q: np.ndarray
    x: np.ndarray
    e: np.ndarray


def shared_forward(q, x, e):
    return linformer.forward(q, x, x, e, e)


def shared_backward(d_out, saved):
    gradients = linformer.backward(d_out, saved)
    return Shared(gradients.q, gradients.k + gradients.v, gradients.e + gradients.f)


report = gradcheck.check_elementwise(shared_forward, shared_backward, q, k, e, rng=np.random.default_rng(11))
print(report)
report.assert_ok()

# %% [markdown]
# **3. The best $F$, in closed form.** Let $Q$, $K$, $V$ of one sentence and some $E$ be given. Which $F$ makes $\lVert
# \tilde P F V - O \rVert_F$ smallest, and how small does it get? When is it 0? What is wrong with using it?
#
# <details><summary>Solution</summary>
#
# $F$ enters only through $X = F V$. The best $X$ is a least squares solution, $X = \tilde P^+ O$, and what remains
# is the part of $O$ outside the column space of $\tilde P$: $(I - \tilde P \tilde P^+) O$. If the columns of $V$
# are independent ($M \le L$), every $X$ is reached: $F = X V^+$ has $F V = X V^+ V = X$.
#
# It is 0 where the columns of $O$ lie in the column space of $\tilde P$: for sure at $R = N$ if $\tilde P$ is
# invertible. What is wrong with it is that $F$ needs $O$, the thing to be computed, and it fits this one sentence. On
# another it is usually worse than mean pooling.
#
# </details>

# %%
rows = []
q_64, k_64, v_64 = (x.astype(np.float64) for x in (q_1, k_1, v_1))
other_q, other_k, other_v, other_out = (x[3, 0].astype(np.float64) for x in real.sentence(1))
target = softmax.matrix(q_64, k_64) @ v_64
for r in (8, 32, 128):
    pool = linformer.mean_pool(r, 512)
    P_r = linformer.matrix(q_64, k_64, pool)  # (512, r)
    best_f = np.linalg.pinv(P_r) @ target @ np.linalg.pinv(v_64)  # (r, 512)
    found, _ = linformer.forward(q_64, k_64, v_64, pool, best_f)
    basis, _ = np.linalg.qr(P_r)
    np.testing.assert_allclose(found, basis @ (basis.T @ target), atol=1e-8)  # as the pseudo-inverses are conditioned

    pooled_only, _ = linformer.forward(q_64, k_64, v_64, pool, pool)
    elsewhere, _ = linformer.forward(other_q, other_k, other_v, pool, best_f)
    pooled_elsewhere, _ = linformer.forward(other_q, other_k, other_v, pool, pool)
    errors = [heads.relative_error(x, target) for x in (pooled_only, found)]
    errors += [heads.relative_error(x, other_out) for x in (pooled_elsewhere, elsewhere)]
    assert errors[1] < errors[0]
    assert errors[3] > errors[2]
    rows.append((r, *map(float, errors)))
header = ("R", "mean pooling", "best F", "another sentence: mean pooling", "that best F")
chapter.table(header, rows)

# %% [markdown]
# ## What to remember
#
# - $O = \mathrm{softmax}(s\,Q (EK)^\top)\, F V$: $(N + L) R (D + M)$ multiply-adds, no $N \times L$ array. It saves
#   multiply-adds if $R < N/2$, and ties the network to a length.
# - The softmax must come after the mixing, as $P$'s normaliser needs the whole row. So $\tilde P F$ is not a low-rank
#   approximation of $P$; it replaces it.
# - $dE = d\tilde K K^\top$, $dF = d\tilde V V^\top$, summed over all places where a matrix is used. That is all there
#   is to sharing, of which there are four modes (288, 24, 12 and 1 matrices in BERT-base).
# - The theorem's construction gives every query the same answer. A given network is imitated only roughly, and the
#   low rank of $P$ is not what limits it: one $E$ and one $F$ have to serve all texts. The paper's results rest on
#   training the whole network with them.
# - A learned mixture holds the future: no causal form.
#
# **Sources.** Wang et al. (2020), *Linformer: Self-Attention with Linear Complexity*, sections 4 and 5, appendix B.
# Xiong et al. (2021), *Nyströmformer* (why the softmax cannot wait). Kingma and Ba (2015), *Adam*.
