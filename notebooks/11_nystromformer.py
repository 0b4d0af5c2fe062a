# %% [markdown]
# # 11. Nyströmformer: landmarks between queries and keys
#
# Can a few landmarks stand between all queries and all keys when the softmax needs whole rows, how is their small
# matrix inverted with products alone, and why does inverting it *better* make the result worse?
#
# Linformer (chapter 4) mixes the keys with a matrix that is learned and then the same for every text. Nyströmformer
# (Xiong et al. 2021) has nothing to learn: its landmarks are means of the text's own queries and keys. In this chapter
# you will
#
# 1. see the Nyström method, why it cannot be applied to attention's matrix, and what is done instead;
# 2. derive the iteration that replaces the pseudo-inverse: its order, and how long it takes to get going;
# 3. measure both on a real network, and find that stopping early is part of why it works;
# 4. derive every gradient: through each iteration, through the scale of its start, and that of the exact
#    pseudo-inverse;
# 5. add the paper's convolution along the sequence.
#
# You need chapters 1, 2 and 4. $N$ queries, $L$ keys, widths $D$ and $M$; $R$ is the number of landmarks.

# %% jupyter={"source_hidden": true}
import math
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from matplotlib.colors import PowerNorm

from linattn_ref import gradcheck
from linattn_ref.attention import nystromformer, softmax
from linattn_ref.attention.parts import depthwise, pinv_exact, pinv_iterative, segment_means
from linattn_ref.data.twelve_words import WORDS, vectors
from linattn_ref.experiments.fewer_keys import nystromformer as nystromformer_figure
from linattn_ref.experiments.fewer_keys import pinv_convergence
from linattn_ref.experiments.measuring import heads
from linattn_ref.experiments.measuring.counting import count, kept_bytes
from linattn_ref.experiments.publishing import chapter

# Numbers of size 1 that have gone through some hundred roundings of 2.2e-16 each, times small condition numbers.
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-12)

# %% [markdown]
# ## The smallest example, by hand
#
# Take two queries, 0 and 2, two keys, 0 and $\log 3$, the values 1 and 5, and one landmark. The mean query is 1. Its
# scores are 0 and $\log 3$, its weights $\frac14$ and $\frac34$, and so it gathers $\frac14 \cdot 1 + \frac34 \cdot 5 =
# 4$. Each query then looks at the only landmark there is, with weight 1, and also gets 4.
#
# Softmax attention returns 3 for the first query (weights $\frac12, \frac12$). For the second, with weights
# $\frac1{10}$ and $\frac9{10}$, it returns $0.1 + 4.5 = 4.6$. With as many landmarks as tokens, and an exact inverse,
# nothing is lost.

# %%
two_queries, two_keys, two_values = np.array([[0.0], [2.0]]), np.log([[1.0], [3.0]]), np.array([[1.0], [5.0]])
for count_of, pinv in ((1, "iterative"), (2, "exact")):
    found, _ = nystromformer.forward(two_queries, two_keys, two_values, landmarks=count_of, pinv=pinv)
    print(f"landmarks: {count_of}; outputs {found.ravel().round(4)}")
print("softmax attention:    ", softmax.forward(two_queries, two_keys, two_values)[0].ravel().round(4))
same(found.ravel(), [3, 4.6])

# %% [markdown]
# ## The Nyström method
#
# Take a matrix $P$ and choose $R$ of its rows and $R$ of its columns. Order them first:
#
# $$P = \begin{pmatrix} A & B_2 \\ F_2 & P_{22} \end{pmatrix}, \qquad
# F = \begin{pmatrix} A \\ F_2 \end{pmatrix}, \qquad B = \begin{pmatrix} A & B_2 \end{pmatrix}$$
#
# $A$ is where they cross. The Nyström method puts $F A^+ B$ in place of $P$, with $A^+$ the pseudo-inverse. For a
# regular $A$ three of the four blocks come out right, and the large one is $F_2 A^{-1} B_2$ instead of $P_{22}$. The
# error $P_{22} - F_2 A^{-1} B_2$ is the Schur complement of $A$. It is 0 exactly if $P$ has the rank of $A$. The cell
# checks this, and the blocks of a matrix of full rank:

# %%
rng = np.random.default_rng(0)


def nystrom(p, rows, columns):
    return p[:, columns] @ np.linalg.pinv(p[np.ix_(rows, columns)]) @ p[rows]


low_rank = rng.standard_normal((9, 3)) @ rng.standard_normal((3, 12))
same(nystrom(low_rank, [0, 4, 7], [2, 5, 8]), low_rank)  # rank 3 from three rows and columns

full_rank = rng.standard_normal((9, 12))
rebuilt = nystrom(full_rank, [0, 1, 2], [0, 1, 2])
same(rebuilt[:3], full_rank[:3])
same(rebuilt[:, :3], full_rank[:, :3])
A, B_2, F_2, P_22 = full_rank[:3, :3], full_rank[:3, 3:], full_rank[3:, :3], full_rank[3:, 3:]
np.testing.assert_allclose(P_22 - rebuilt[3:, 3:], P_22 - F_2 @ np.linalg.inv(A) @ B_2, rtol=0, atol=1e-10)
print(
    f"three rows and columns; rank 3: off by {abs(nystrom(low_rank, [0, 4, 7], [2, 5, 8]) - low_rank).max():.0e}",
    end=", ",
)
print(f"rank 9: by {abs(rebuilt - full_rank).max():.1f}")

# %% [markdown]
# ## Why not on $P$
#
# A quarter of the singular values of $P = \mathrm{softmax}(s\,QK^\top)$ hold some 83% of their sum (chapter 2). But the
# columns of $P$ cannot be obtained without the rest:
#
# $$P_{ij} = \frac{e^{s\,q_i \cdot k_j}}{\sum_l e^{s\,q_i \cdot k_l}}$$
#
# and the sum in the denominator runs over *all* keys. One column of $P$ costs as much as the whole matrix. So the
# softmax cannot be applied before a Nyström factorisation (Xiong et al. 2021, figure 1, make the same point). And it
# cannot be applied after one: $\mathrm{softmax}(F_S A_S^+ B_S)$ of a factorisation of the scores $S$ is again an $N
# \times L$ matrix. (Rows are no problem: row $i$ of $P$ needs only $q_i$ and the keys.) The cell takes
# chapter 1's sentence, *the cat sat on the old mat and the dog slept too*. Its last nine words ask all twelve. The cell
# counts the multiply-adds for one column, and moves one key to see what changes:

# %%
q, k, v = vectors()
q = q[3:]
(N, D), (L, M), R = q.shape, v.shape, 3
d_out = rng.standard_normal((N, M))  # the gradient of some loss, for later
P = softmax.matrix(q, k)
one_column = count(lambda q: softmax.softmax(q @ k.T)[:, :1], q)
assert one_column.multiply_adds == N * L * D  # claim 9: all the work
other_k = k.copy()
other_k[7] += 1
assert abs(softmax.matrix(q, other_k)[:, :3] - P[:, :3]).max() > 1e-3  # a key elsewhere moves the first three columns
same(softmax.matrix(q[[5]], k), P[[5]])  # a row stands alone
changes = [softmax.matrix(q, x)[2, 1] for x in (k, other_k)]
print(f"weight of {WORDS[5]!r} on {WORDS[1]!r}: {changes[0]:.3f}; with another key for {WORDS[7]!r}: {changes[1]:.3f}")
print(f"one column of P: {one_column.multiply_adds} multiply-adds, as many as all {L}")

# %% [markdown]
# ## What is done instead
#
# ![Nyströmformer, drawn](../figures/schematic_nystromformer.svg)
#
# The softmax goes *inside*: each of the three factors has its own, over the scores that it has.
#
# $$\tilde Q, \tilde K = \text{segment means of } Q, K \qquad (R \times D) \qquad (1)$$
#
# $$F = \mathrm{softmax}(s\,Q \tilde K^\top), \qquad A = \mathrm{softmax}(s\,\tilde Q \tilde K^\top), \qquad
# B = \mathrm{softmax}(s\,\tilde Q K^\top) \qquad (2), (3), (4)$$
#
# $$O = F\, Z\, (B V), \qquad Z = A^+ \text{ or near it} \qquad (5), (6)$$
#
# $B$ is what it seems: its row $r$ is the row of $P$ that the query $\tilde q_r$ would have. $F$ is not. Its rows are
# normalised over $R$ landmarks, not over $L$ keys, so its columns are no columns of any $P$, and $A$ is not where $F$
# and $B$ cross in one matrix. This is **not the Nyström method applied to something**; it is a formula of the same
# shape. Whether it is any good has to be measured, below.
#
# Read from the right, it is two softmax attentions with a small matrix in between. The landmark queries *gather* from
# all keys, $G = BV$; then $Z$ mixes what they gathered, $H = ZG$. Finally the queries *fetch* it through the landmark
# keys, $FH$. The code does just that, so nothing here is $N \times L$:

# %%
chapter.source(nystromformer.forward, segment_means.forward, doc=False)

# %% [markdown]
# The landmark keys of the sentence are the means of *the cat sat on*, *the old mat and* and *the dog slept too*. The
# loops below share nothing with that code, and yield the same outputs with either inverse:


# %%
def by_definition(q, k, v, r, invert):
    """Equations (1) to (6), entry by entry."""
    q_means, k_means = ([part.mean(axis=0) for part in np.array_split(x, r)] for x in (q, k))

    def weights(x, many):
        exponentials = [math.exp(x @ y / math.sqrt(len(x))) for y in many]
        return [each / sum(exponentials) for each in exponentials]

    f = np.array([weights(x, k_means) for x in q])
    a = np.array([weights(x, k_means) for x in q_means])
    b = np.array([weights(x, k) for x in q_means])
    return f @ invert(a) @ b @ v


out, saved = nystromformer.forward(q, k, v, landmarks=R)
exact_out, _ = nystromformer.forward(q, k, v, landmarks=R, pinv="exact")
np.testing.assert_allclose(exact_out, by_definition(q, k, v, R, np.linalg.pinv), rtol=0, atol=1e-9)
same(out, by_definition(q, k, v, R, lambda a: pinv_iterative.forward(a)[0]))
print(f"output of {WORDS[5]!r}, exact inverse:", exact_out[2].round(4), " six iterations:", out[2].round(4), end=" ")
print("softmax:", (P @ v)[2].round(4))
found = {"six iterations": out, "mean of all values": np.broadcast_to(v.mean(axis=0), out.shape), "exact": exact_out}
off = {name: heads.relative_error(x, P @ v) for name, x in found.items()}
print("relative error of all nine outputs:", ", ".join(f"{name} {error:.2f}" for name, error in off.items()))
assert 0.3 < off["six iterations"] < 0.4 < 0.5 < off["mean of all values"] < 0.6 < 6 < off["exact"]

# %% [markdown]
# Over all nine words, six iterations are off by a third of softmax attention's outputs. The mean of all values, the
# same for every word, would be off by half of them. The exact inverse is off by seven times the outputs: the three
# landmarks are nearly alike, so $A$ is nearly singular. Below we find the same on a real network. Keep these facts in
# mind:
#
# - If every token is its own landmark, $R = N = L$, then $F$, $A$ and $B$ are all $P$. As $P P^+ P = P$, this is
#   softmax attention.
# - The matrix applied, $\tilde P = F Z B$, has rank $R$ at most, and **entries of either sign**.
# - With the exact inverse its rows sum to 1: $A 1 = 1$, so $A^{-1} 1 = 1$, and $F A^{-1} B\, 1 = F 1 = 1$. An
#   unfinished iteration keeps this only roughly.
# - No parameter belongs to a position: any length works, also one that is not a multiple of $R$. The segments are
#   those of `numpy.array_split`: the first $N \bmod R$ are one longer.
# - It cannot be causal: $\tilde k_r$ and $\tilde q_r$ are means over whole segments, and $Z$ mixes all of them.

# %%
everyone, _ = nystromformer.forward(q, k[:N], v[:N], landmarks=N, pinv="exact")
np.testing.assert_allclose(everyone, softmax.forward(q, k[:N], v[:N])[0], rtol=0, atol=1e-6)  # A's condition is large

P_exact, P_six = (nystromformer.matrix(q, k, landmarks=R, pinv=pinv) for pinv in nystromformer.PSEUDO_INVERSES[::-1])
assert np.linalg.matrix_rank(P_six, tol=1e-10) == R
assert P_exact.min() < 0
np.testing.assert_allclose(P_exact.sum(axis=1), 1, rtol=0, atol=1e-9)
print(f"row sums after six iterations: {P_six.sum(axis=1).min():.3f} to {P_six.sum(axis=1).max():.3f}")

for length in range(R, 30):  # nothing has to divide
    x = rng.standard_normal((length, D))
    expected = [part.mean(axis=0) for part in np.array_split(x, R)]
    same(segment_means.forward(x, R)[0], expected)

later = k.copy()
later[-1] += 1  # only the last key moves
assert (abs(nystromformer.forward(q, later, v, landmarks=R)[0] - out).max(axis=1) > 0).all()  # every output does

# %% [markdown]
# ### What it costs
#
# Making $A$ costs $R^2 D$, and $R^3$ more, because the code obtains it by applying attention to the identity. Each of
# six iterations has four products of $R \times R$ matrices. To gather costs $R L (D + M)$, to mix $R^2 M$, and to fetch
# $N R (D + M)$. This is linear in the length, and about the same as Linformer's cost, except for $25 R^3$. That part
# does not depend on the length, and with many landmarks it is most of the cost for short texts.

# %%
counted = count(partial(nystromformer.forward, landmarks=R), q, k, v)
assert counted.multiply_adds == R * R * D + 25 * R**3 + R * L * (D + M) + R * R * M + N * R * (D + M)

rows, width = [], 64
for n in (512, 1024, 4096):
    tokens = rng.standard_normal((3, n, width)).astype(np.float32)
    dense = count(softmax.forward, *tokens).multiply_adds
    _, kept_dense = softmax.forward(*tokens)
    for r in (32, 64, 128):
        linear = count(partial(nystromformer.forward, landmarks=r), *tokens).multiply_adds
        _, kept = nystromformer.forward(*tokens, landmarks=r)
        less = (kept_bytes(kept_dense) - tokens.nbytes) / (kept_bytes(kept) - tokens.nbytes)
        rows.append((n, r, dense / linear, 24 * r**3 / linear, less))
chapter.table(("N = L", "R", "multiply-adds, times less", "share of the iterations", "bytes kept, times less"), rows)
assert rows[2][2] < 1 < rows[0][2]  # at 512 tokens, 128 landmarks take more than softmax attention

# %% [markdown]
# ### How it looks
#
# Take a sequence whose tokens drift slowly, so that neighbours are alike. The first picture is $P$ itself. In a
# running notebook a slider goes through $R$.

# %%
drift = np.cumsum(rng.standard_normal((2, 96, 8)), axis=1)
drift -= drift.mean(axis=1, keepdims=True)
q_96 = k_96 = drift[0] / drift[0].std() * 1.5
v_96 = rng.standard_normal((96, 8))
P_96 = softmax.matrix(q_96, k_96)


def approximated(r):
    return P_96 if r == 96 else nystromformer.matrix(q_96, k_96, landmarks=r)


def panel(axes, r):
    p = approximated(r)
    axes.imshow(np.maximum(p, 0), norm=PowerNorm(0.5, vmin=0, vmax=P_96.max()))
    axes.grid(False)
    error = heads.relative_error(p, P_96)
    axes.set(xlabel=f"key j\nerror {error:.2f}\nleast {p.min():.3f}", ylabel="query i")
    axes.label_outer()


chapter.explore(
    panel,
    (96, 32, 16, 8, 4),
    name="R",
    slider=[96, 48, 32, 24, 16, 12, 8, 6, 4, 2, 1],
    height=0.3,
    sharey=True,
    alt="An attention matrix with bright blocks along its diagonal, and its approximations with 32, 16, 8 and 4 "
    "landmarks, in ever coarser blocks",
)
errors_96 = [heads.relative_error(approximated(r), P_96) for r in (32, 16, 8, 4)]
assert all(earlier < later for earlier, later in pairwise(errors_96))
assert approximated(8).min() < 0

# %% [markdown]
# ### Masked keys
#
# A landmark key is the mean over the *unmasked* keys of its segment; $B$ has no weight on masked keys. A landmark
# without any key is dropped, from $F$, $A$ and $B$: row and column $r$ of $A$ are 0, and so are those of $A^+$, as if
# they were not there. The contents of a masked key change nothing. (In self-attention its query is padding as well, and
# would stand in a query landmark. `query_mask` keeps it out; the layers of this package pass it.)
#
# One thing is different from nearly all other mechanisms of this package: **padded is not truncated.** Padding moves
# the bounds of the segments, so that the landmarks are means over other tokens. (BigBird's last block, which everybody
# sees, moves with padding too.) The cell masks the four words of the second segment:

# %%
mask = np.ones(L, bool)
mask[4:8] = False  # "the old mat and": the whole second segment, and no other
masked_out, masked_saved = nystromformer.forward(q, k, v, landmarks=R, key_mask=mask)
assert not masked_saved.z[1].any()
assert not masked_saved.z[:, 1].any()
kept = [0, 2]
small, _ = pinv_iterative.forward(masked_saved.inverse.a[np.ix_(kept, kept)])
same(masked_saved.z[np.ix_(kept, kept)], small)  # as if the landmark were not there

rubbish = k.copy()
rubbish[4:8] = 1e30
np.testing.assert_array_equal(nystromformer.forward(q, rubbish, v, landmarks=R, key_mask=mask)[0], masked_out)

padded, alone = np.arange(L) < 10, slice(0, 10)
padded_out, _ = nystromformer.forward(q, k, v, landmarks=R, key_mask=padded)
truncated_out, _ = nystromformer.forward(q, k[alone], v[alone], landmarks=R)
assert abs(padded_out - truncated_out).max() > 1e-3
nothing_to_see, _ = nystromformer.forward(q, k, v, landmarks=R, key_mask=np.zeros(L, bool))
assert not nothing_to_see.any()
print("inverse with the second landmark masked:", *masked_saved.z.round(3), sep="\n")

# %% [markdown]
# ## The pseudo-inverse, with products alone
#
# A singular value decomposition of thousands of small matrices is slow on a GPU; products are fast. The paper takes an
# iteration of Razavi et al. (2014), its equation 14:
#
# $$Z_0 = \frac{A^\top}{\lVert A \rVert_1 \lVert A \rVert_\infty} \qquad (i1) \qquad\qquad
# Z \leftarrow \tfrac14 Z\, \big(13 I - AZ\, (15 I - AZ\, (7 I - AZ))\big) \qquad (i2)$$
#
# with $\lVert A \rVert_1$ the largest column sum of $|a_{ij}|$ and $\lVert A \rVert_\infty$ the largest row sum. What
# does it do? Write $E = I - AZ$ for what is left to do, put $AZ = I - E$ into the bracket, and sort by powers (with 1
# for $I$):
#
# $$13 - 15 (1 - E) + 7 (1 - E)^2 - (1 - E)^3 = 4 + 4E + 4E^2 + E^3$$
#
# so that the iteration is
#
# $$Z \leftarrow Z \big(I + E + E^2 + \tfrac14 E^3\big)$$
#
# The inverse is $Z (I - E)^{-1} = Z (I + E + E^2 + E^3 + \dots)$, the Neumann series. The iteration takes its first
# three terms and a quarter of the fourth. What is left is then
#
# $$E' = I - (I - E)(I + E + E^2 + \tfrac14 E^3) = \tfrac34 E^3 + \tfrac14 E^4$$
#
# This is **third order**: an error of $10^{-2}$ becomes one of about $10^{-6}$, and that one of about $10^{-18}$.

# %%
chapter.source(pinv_iterative.forward, doc=False)

# %%
a = saved.inverse.a
last, kept_by = pinv_iterative.forward(a, iterations=16)
for z, following in pairwise([*kept_by.iterates, last]):
    e = np.eye(R) - a @ z
    same(following, z @ (np.eye(R) + e + e @ e + e @ e @ e / 4))
    same(np.eye(R) - a @ following, 0.75 * e @ e @ e + 0.25 * e @ e @ e @ e)
print(
    "largest entry of I - A Z, by iteration:", [float(f"{abs(np.eye(R) - a @ z).max():.1e}") for z in kept_by.iterates]
)

# %% [markdown]
# **Does it converge?** Each $Z$ is $A^\top$ times a polynomial of $A A^\top$, so it has the singular vectors of $A$,
# and each singular value $\sigma$ evolves by itself. Let $t$ be $\sigma$ times its inverse so far: it begins at
#
# $$t_0 = \frac{\sigma^2}{\lVert A \rVert_1 \lVert A \rVert_\infty} \qquad\text{and}\qquad
# 1 - t' = \tfrac34 (1 - t)^3 + \tfrac14 (1 - t)^4$$
#
# As $\sigma^2 \le \lVert A \rVert_2^2 \le \lVert A \rVert_1 \lVert A \rVert_\infty$, each $t_0$ lies in $(0, 1]$, and
# $t$ rises to 1. It always converges. (The second inequality: $A^\top A w = \sigma^2 w$ gives $\sigma^2 \lVert w
# \rVert_\infty \le \lVert A^\top \rVert_\infty \lVert A \rVert_\infty \lVert w \rVert_\infty$, and $\lVert A^\top
# \rVert_\infty = \lVert A \rVert_1$.) A singular value of 0 stays at 0: hence the *pseudo*-inverse.
#
# **How long does it take?** While $t$ is small, $t' = t\,(13 - 15 t + \dots)/4 \approx \frac{13}{4} t$. Third order
# comes at the end; before it, each iteration multiplies $t$ by $13/4$, and
#
# $$\frac{\log(\lVert A \rVert_1 \lVert A \rVert_\infty / \sigma^2)}{\log(13/4)}$$
#
# iterations go by until anything happens. With six, $t$ has grown at most $(13/4)^6 = 1178$ times: a singular value a
# fortieth of $\sqrt{\lVert A \rVert_1 \lVert A \rVert_\infty}$ is inverted to one half, smaller ones to less. In the
# figure, the left panel has matrices of prescribed condition; its lines are the recursion for $t$ alone. The middle
# panel shows which share of $1 / \sigma$ a singular value is inverted to, the right one the condition of *real*
# landmark matrices.

# %%
convergence = chapter.results("pinv_convergence")
chapter.show(
    pinv_convergence.draw,
    convergence,
    alt="Three panels: error by iteration for five condition numbers, flat at first, then a steep fall; the share of "
    "1/sigma against sigma, an S that moves left with more iterations; condition numbers of real landmark matrices, "
    "rising from tens to millions with the number of landmarks",
)
np.testing.assert_allclose(convergence.measured, convergence.predicted, rtol=0, atol=1e-12)  # points on the lines

# A condition number ten times larger: log(10^2) / log(13/4) more iterations until half is left.
half = [np.flatnonzero(errors < 0.5)[0] for errors in convergence.measured[1:]]
expected = math.log(10**2) / math.log(13 / 4)  # 3.9 for each factor of ten
assert all(abs(later - earlier - expected) < 1 for earlier, later in pairwise(half))

assert abs(pinv_convergence.reach(6) - convergence.reach) < 1e-9
beyond = (convergence.real > convergence.reach).mean(axis=1)  # share of layers
assert beyond[0] < 0.5
assert (beyond[-2:] == 1).all()
chapter.table(
    ("landmarks R", "smallest condition of a layer", "largest", "layers beyond the reach of six"),
    [
        (r, float(real.min()), float(real.max()), f"{share:.0%}")
        for r, real, share in zip(convergence.landmarks, convergence.real, beyond, strict=True)
    ],
)

# %% [markdown]
# So on real landmarks **six iterations are nowhere near the pseudo-inverse**: from 128 on, every layer's median
# condition is out of reach. What they compute is a pseudo-inverse that fades out for singular values below a fortieth
# of the scale $\sqrt{\lVert A \rVert_1 \lVert A \rVert_\infty}$.
#
# ### A choice in public code: one scale for the whole batch
#
# The authors' code, and after it `transformers` and `nystrom-attention`, divides by the largest sums over *all*
# matrices of a batch. The authors call this the original, "more conservative" start, and offer the exact one, with each
# matrix's own scale, as an option. With the shared scale the iteration still converges; $t_0$ is only smaller. But six
# iterations are not enough to converge, so the output of a sequence changes with the other sequences in the batch
# (`tests/peers/test_nystromformer.py` shows it). Here the norms are each matrix's own, and a neighbour changes nothing,
# to the last bit:

# %%
pair = np.stack([a, np.array([[0.98, 0.01, 0.01]] * 3)])  # the neighbour's first column sums to almost 3
np.testing.assert_array_equal(pinv_iterative.forward(pair)[0][0], pinv_iterative.forward(a)[0])


def scaled_over_the_batch(a, iterations=6):
    z = a.swapaxes(-1, -2) / (abs(a).sum(axis=-2).max() * abs(a).sum(axis=-1).max())
    for _ in range(iterations):
        t = a @ z
        z = z @ (13 * np.eye(3) - t @ (15 * np.eye(3) - t @ (7 * np.eye(3) - t))) / 4
    return z


same(scaled_over_the_batch(a[None])[0], pinv_iterative.forward(a)[0])  # alone
beside = scaled_over_the_batch(pair)[0]
change = np.linalg.norm(beside - pinv_iterative.forward(a)[0]) / np.linalg.norm(pinv_iterative.forward(a)[0])
print(f"the same matrix next to that neighbour, with one scale for both: off by {change:.0%}")
assert change > 0.05

# %% [markdown]
# > **A break.** Nyström attention is $F Z B V$: landmark queries gather, a small matrix $Z$ mixes, and queries fetch.
# > Each factor has a softmax of its own, so this has the shape of the Nyström method without being it. $Z$ comes from
# > an iteration. Its inverse of a small singular value grows only by $13/4$ at a time, so six iterations do not
# > reach the true one. After the break we measure what that means on a real network, and derive every gradient.

# %% [markdown]
# ## On a real network
#
# We take the network and the reviews of chapter 4 with $Q$, $K$ and $V$ as they are, and replace softmax attention.
# Errors are relative to the output, and to $P$. For comparison there are Linformer with the same $R$ and the truncated
# SVD of $P$, the best possible at rank $R$.
#
# This is **one network** (all-MiniLM-L6-v2): all 72 heads of its six layers, on **eight reviews** of 512 tokens that
# nothing was fitted to. The figure and the table have the median over heads and texts, and the range of the middle
# 80% of them: heads differ more among themselves than most of the methods do. Every statement below is therefore
# checked layer by layer and text by text. Where it does not hold in all layers, the number of layers is given.

# %%
measured = chapter.results("nystromformer")
chapter.show(
    nystromformer_figure.draw,
    measured,
    alt="Output and matrix errors against R: six iterations below Linformer; the exact pseudo-inverse above, in some "
    "heads up to eight times the output; cut at a thirtieth it is nearly as good as six iterations. Last: error by "
    "iteration, a U with its bottom at seven to nine",
)
error = {way: found.median for way, found in measured.output.items()}  # (K,) each
chapter.table(
    ("relative error of the output, median (from tenth to tenth)", *(f"R = {r}" for r in measured.reduced)),
    [
        (
            nystromformer_figure.WAYS[way][0],
            *(f"{m:.2f} ({a:.2f} to {b:.2f})" for a, m, b in zip(found.low, found.median, found.high, strict=True)),
        )
        for way, found in measured.output.items()
    ],
)

# %% [markdown]
# Here is what it shows.
#
# 1. **With six iterations it is better than Linformer** at each $R$, even than Linformer with matrices fitted to 48
#    reviews, and its matrix is nearer to $P$. Its landmarks come from the text itself. This holds in each text, and in
#    every layer from $R = 16$ on; with eight landmarks in four of the six.
# 2. **Inverting better makes it worse**: with the exact pseudo-inverse the error is larger in every layer and in each
#    text, at each $R$, and from $R = 8$ to 128 it *grows*. The median stays below the error of answering 0. But in a
#    tenth of the heads the error is above that for each $R$, and for $R = 128$ it is eight times the output. Those
#    heads dominate the mean over all heads, which is above 1 at each $R$.
# 3. **The reason is the small singular values.** Take the exact pseudo-inverse, but only of the singular values above a
#    thirtieth of the largest. The error is then nearly that of six iterations: it is 1 to 4 percent larger in the
#    median, and differs by less than eight percent in any layer. And in the last panel, more than nine iterations,
#    which reach further down, make the error rise again, most in the heads where it is large. The Nyström method may
#    divide by small singular values of $A$, because its $F$ and $B$ are as small in those directions. These $F$ and $B$
#    are not parts of one matrix with $A$, and nothing makes them small there. Stopping early is a *regularisation*, as
#    it is for other iterative inverses. The paper takes "about 6 iterations in order to achieve a good approximation"
#    of the pseudo-inverse. On these matrices six do not approximate it, and the output is better for that; its least
#    error is at seven to nine.
# 4. **Sampling $P$ itself is no better.** Take $R$ columns and rows of the true $P$ (which cannot be obtained cheaply)
#    and the same six iterations. The error is *larger* at each $R$, in each text and in at least five layers. In the
#    median head little of that difference is left at $R = 128$. But a tenth of the heads is off by more than twice the
#    output at each $R$. (These landmarks are single tokens, not means.)
# 5. **The convolution helps**, in every layer and text, and most where there are few landmarks: on average by 15% at
#    $R = 8$ and by 7% at 128. The median head gains half of that and less; the worst tenth, from 0.91 down to 0.67 at
#    $R = 8$, gains most. It restores what is near the diagonal.
# 6. **It stays far from the truncated SVD**, in every layer. That $P$ is close to low rank does not mean that landmarks
#    find its best approximation.


# %%
def layers_where(better, worse):
    """In how many of the six layers the one has the smaller error, at each R: means over texts and heads."""
    return (measured.output[better].by_layer < measured.output[worse].by_layer).sum(axis=1)


mean = {way: found.by_layer.mean(axis=1) for way, found in measured.output.items()}  # (K,) each
chapter.table(
    ("in how many of six layers is the error smaller", *(f"R = {r}" for r in measured.reduced)),
    [
        ("six iterations than fitted Linformer", *layers_where("nystrom", "fitted")),
        ("six iterations than the exact pseudo-inverse", *layers_where("nystrom", "exact")),
        ("six iterations than rows and columns of P", *layers_where("nystrom", "of_p")),
        ("with the convolution than without", *layers_where("convolution", "nystrom")),
        ("the exact pseudo-inverse than answering 0", *(measured.output["exact"].by_layer < 1).sum(axis=1)),
    ],
)
for better, worse in (
    ("nystrom", "fitted"),
    ("fitted", "mean"),
    ("nystrom", "exact"),
    ("nystrom", "of_p"),
    ("convolution", "nystrom"),
    ("svd", "nystrom"),
):
    assert (error[better] < error[worse]).all(), (better, worse)  # in the median, and in each text:
    assert (measured.output[better].by_sentence < measured.output[worse].by_sentence).all(), (better, worse)
assert layers_where("nystrom", "fitted")[0] == 4
assert layers_where("nystrom", "fitted")[1:].min() == 6
assert layers_where("nystrom", "exact").min() == 6
assert layers_where("nystrom", "of_p").min() == 5
assert layers_where("convolution", "nystrom").min() == 6
assert layers_where("svd", "nystrom").min() == 6
assert (measured.matrix["nystrom"].median < measured.matrix["mean"].median).all()
assert (measured.matrix["nystrom"].median < measured.matrix["fitted"].median).all()

exact, six = measured.output["exact"], measured.output["nystrom"]
assert (np.diff(exact.median) > 0).all()
assert (exact.median < 1).all()
assert (exact.high > 1).all()
assert exact.high[-1] > 8
assert (mean["exact"] > 1).all()
assert all(1.01 < ratio < 1.045 for ratio in measured.output["cut"].median / six.median)
assert abs(measured.output["cut"].by_layer / six.by_layer - 1).max() < 0.08

iterations = measured.by_iteration
best = iterations.median.argmin(axis=1)
assert set(best) <= {7, 8, 9}
assert (iterations.median[:, -1] > 1.2 * iterations.median[:, 6]).all()
assert iterations.high[-1, -1] / iterations.high[-1, 6] > 2 * iterations.median[-1, -1] / iterations.median[-1, 6]

assert error["of_p"][-1] / error["nystrom"][-1] < 1.05
assert measured.output["of_p"].high.min() > 2
gain, of_median = (1 - x["convolution"] / x["nystrom"] for x in (mean, error))
assert (np.diff(gain) < 0).all()
assert (gain[[0, -1]].round(2) == (0.15, 0.07)).all()
assert (of_median < 0.52 * gain).all()
for way in set(measured.matrix) - {"convolution"}:  # which adds a matrix of full rank
    for part in ("by_layer", "by_sentence", "low", "median", "high"):
        assert (getattr(measured.matrix[way], part) >= getattr(measured.matrix["svd"], part)).all(), (way, part)
print("iterations with the least error, by R:", dict(zip(measured.reduced, map(int, best), strict=True)))

# %% [markdown]
# All of this is read from a record. What needs no fit can be computed here, at $R = 32$: the same eight reviews, all
# heads.

# %% native="It reads with the pretrained network, and for this one cell the page does not load it."
real, _sources = heads.read_heads(sentences=8, length=512, seed=measured.settings["seed"])
at = list(measured.reduced).index(32)
rows = []
for way, pinv in (("nystrom", "iterative"), ("exact", "exact")):
    again, _ = heads.each_error(
        real, range(8), lambda q, k, v, pinv=pinv: nystromformer.forward(q, k, v, landmarks=32, pinv=pinv)[0]
    )
    now, kept = heads.spread(again), measured.output[way]
    rows.append((nystromformer_figure.WAYS[way][0], float(now.median), float(kept.median[at])))
    np.testing.assert_allclose(now.by_layer, kept.by_layer[at], rtol=0.01)
    np.testing.assert_allclose(now.by_sentence, kept.by_sentence[at], rtol=0.01)
six_now, exact_now = (row[1] for row in rows)
assert six_now < 0.9 * exact_now  # inverting better makes it worse

by_number = nystromformer_figure.errors_by_iteration(32, real, range(1), measured.most_iterations)  # (I + 1, 1, T, H)
median_now = np.median(by_number, axis=(1, 2, 3))
rows += [(f"{i} iterations, one review", float(median_now[i]), "–") for i in (2, 6, 8, 16)]
chapter.table(("error of the output at R = 32, median", "computed here", "in the record"), rows)
assert median_now[2] > median_now[6]  # two are too few,
assert median_now[16] > 1.1 * median_now[6]  # and sixteen too many

# %% [markdown]
# As in chapter 4, these numbers show how well a *given* attention is imitated. A network that is trained with Nyström
# attention adapts to it.
#
# There is a second reason to stop. After rounding, a singular value that is exactly 0 is about $\varepsilon$, the
# rounding error of float32. The iteration cannot tell, and its inverse of this also grows by $13/4$ each time.

# %%
singular = (rng.standard_normal((6, 2)) @ rng.standard_normal((2, 6))).astype(np.float32)
true = np.linalg.pinv(singular.astype(np.float64), rcond=1e-5)
off = {
    i: np.linalg.norm(pinv_iterative.forward(singular, iterations=i)[0] - true) / np.linalg.norm(true)
    for i in (6, 10, 20, 30)
}
chapter.table(("iterations, a matrix of rank 2 in float32", "relative error"), [(i, float(x)) for i, x in off.items()])
assert off[10] < 0.01
assert off[30] > 10

# %% [markdown]
# ## The gradient, by hand
#
# We are given $dO$ and want $dQ$, $dK$, $dV$. The numbers are those of the code: plain ones are in `nystromformer.py`,
# (i3) is (3) in `pinv_iterative.py`, and (e2) is (2) in `pinv_exact.py`. (`segment_means.py` and `depthwise.py` have
# numbers of their own: (2) of the first is part of (13) here, and (1) to (3) of the second are part of (7).)
#
# **Step 1: from the outside.** $O = FH$ is softmax attention with queries $Q$, keys $\tilde K$ and values $H$.
# Chapter 1's backward pass yields $dQ$, $d\tilde K$ and $dH$. $H = ZG$ is a product:
#
# $$dG = Z^\top dH, \qquad dZ = dH\, G^\top \qquad (9)$$
#
# and $G = BV$ is softmax attention with queries $\tilde Q$: from $dG$ come $d\tilde Q$, $dK$ and $dV$.
#
# **Step 2: through the middle.** Suppose $dA$ is known (steps 3 to 5). $A$ is a softmax of $s\,\tilde Q \tilde K^\top$:
#
# $$dS = A * (dA - \mathrm{rowsum}(dA * A)), \qquad
# d\tilde Q \mathrel{+}= s\, dS\, \tilde K, \qquad d\tilde K \mathrel{+}= s\, dS^\top \tilde Q \qquad (11), (12)$$
#
# **Step 3: through one iteration.** Give the brackets names, from the inside: $T = AZ$, $\beta = 7I - T$, $\gamma = 15
# I - T \beta$, $W = 13 I - T \gamma$ (`b` and `c` in the code), and $Z' = \frac14 Z W$. A product $Y = X_1 X_2$ has
# $dX_1 = dY X_2^\top$ and $dX_2 = X_1^\top dY$. Apply this line by line, from the last to the first:
#
# $$dW = \tfrac14 Z^\top dZ', \qquad d\gamma = -T^\top dW, \qquad d\beta = -T^\top d\gamma \qquad (i3), (i4)$$
#
# $T$ occurs in three places, in $W$, in $\gamma$ and in $\beta$, and its gradient is the sum:
#
# $$dT = -dW\, \gamma^\top - d\gamma\, \beta^\top - d\beta \qquad (i5)$$
#
# $A$ and $Z$ occur in $T = AZ$, and $Z$ once more in $Z' = \frac14 Z W$:
#
# $$dA \mathrel{+}= dT\, Z^\top, \qquad dZ = \tfrac14 dZ' W^\top + A^\top dT \qquad (i6)$$
#
# Every iteration adds to the same $dA$. The iterates $Z_0, Z_1, \dots$ are kept from the forward pass, $R^2$ numbers
# each; $T$, $\beta$, $\gamma$, $W$ are computed again.
#
# **Step 4: through the start.** With $n_1 = \lVert A \rVert_1$ and $n_\infty = \lVert A \rVert_\infty$,
# $Z_0 = A^\top / (n_1 n_\infty)$ depends on $A$ in three ways. Above the line:
# $dA \mathrel{+}= dZ_0^\top / (n_1 n_\infty)$. Below it, $\partial Z_0 / \partial n_1 = -Z_0 / n_1$, so
#
# $$dn_1 = -\frac{\langle dZ_0, Z_0 \rangle}{n_1}, \qquad dn_\infty = -\frac{\langle dZ_0, Z_0 \rangle}{n_\infty}
# \qquad (i7)$$
#
# and $n_1 = \sum_i |a_{ij}|$ for the column $j$ with the largest sum, so $dn_1\, \mathrm{sign}(a_{ij})$ goes to that
# column alone; $n_\infty$ likewise to a row. Where two columns are largest there is a kink, and no gradient; as with a
# maximum, the first is taken.

# %%
chapter.source(pinv_iterative.backward, pinv_iterative.polynomial, doc=False)

# %%
signed = rng.standard_normal((4, 4))
for iterations in (1, 2, 6):
    report = gradcheck.check_elementwise(
        partial(pinv_iterative.forward, iterations=iterations),
        pinv_iterative.backward,
        signed,
        rng=np.random.default_rng(1),
    )
    report.assert_ok()
print(report)


def scale_as_constant(d_z, saved):
    """The mistake that is easiest to make: no column and no row counts as the largest."""
    nowhere = np.array(-1)
    return pinv_iterative.backward(d_z, saved._replace(column=nowhere, row=nowhere))


found_wrong = {}
for iterations in (2, 6, 9):
    forward = partial(pinv_iterative.forward, iterations=iterations)
    report = gradcheck.check_elementwise(forward, scale_as_constant, signed, rng=np.random.default_rng(1))
    found_wrong[iterations] = not report.ok
print("the mistake is found after so many iterations:", found_wrong)
assert found_wrong[2]
assert not found_wrong[9]

# %% [markdown]
# The last line is a warning. Once the iteration has converged, $Z$ no longer depends on where it began, and the
# gradient of the start is 0. So a gradient check on a well-conditioned matrix after many iterations finds nothing
# wrong.

# %% [markdown]
# A remark on $n_\infty$. The rows of our $A$ are softmaxes and sum to 1, so $n_\infty = 1$ whatever $Q$ and $K$ are,
# and nothing may reach $Q$ and $K$ through it. Nothing does: the gradient of $n_\infty$ adds the same number $c$ to a
# whole row of $dA$, and (11) takes it away again, $A * (c - \mathrm{rowsum}(c A)) = 0$. The column sums do depend on
# $Q$ and $K$, and their gradient stays. The cell checks both:

# %%
c = 3.7
d_a = np.zeros((R, R))
d_a[1] = c
same(a * (d_a - (d_a * a).sum(axis=1, keepdims=True)), np.zeros((R, R)))
d_a = np.zeros((R, R))
d_a[:, 1] = c
assert abs(a * (d_a - (d_a * a).sum(axis=1, keepdims=True))).max() > 0.1
largest_through = abs(a * (d_a - (d_a * a).sum(axis=1, keepdims=True))).max()
print(f"gradient of the scores: 0 from a constant along a row, {largest_through:.2f} along a column")

# %% [markdown]
# **Step 5: the exact pseudo-inverse.** It has a gradient of its own, found by Golub and Pereyra in 1973. Let $X = A^+$,
# and let the rank of $A$ not change. $AX$ and $XA$ are symmetric projections, $AXA = A$, $XAX = X$: Penrose's four
# conditions. Write $\delta$ for small changes and split $\delta X$ by the projections:
#
# $$\delta X = XA\, \delta X\, AX + \delta X\,(I - AX) + (I - XA)\, \delta X\, AX$$
#
# *First part.* From $A = AXA$: $\delta A = \delta A\, XA + A\, \delta X\, A + AX\, \delta A$. Multiply by $X$ on both
# sides. As $XAX = X$, the first and the last term become $X\, \delta A\, X$ each:
#
# $$XA\, \delta X\, AX = -X\, \delta A\, X$$
#
# *Second part.* $X (I - AX) = 0$, so $\delta X\, (I - AX) = X\, \delta(AX)$. Multiply by $I - AX$ once more (it is its
# own square), and use that $AX$ is symmetric, so that $\delta(AX) = (\delta A\, X + A\, \delta X)^\top
# = X^\top \delta A^\top + \delta X^\top A^\top$. The last term vanishes, as $A^\top (I - AX) = ((I - AX) A)^\top = 0$:
#
# $$\delta X\, (I - AX) = X X^\top \delta A^\top (I - AX)$$
#
# *Third part*, in the same way from $(I - XA) X = 0$: $(I - XA)\, \delta X\, AX = (I - XA)\, \delta A^\top X^\top X$.
# Together
#
# $$\delta X = -X\, \delta A\, X + X X^\top \delta A^\top (I - AX) + (I - XA)\, \delta A^\top X^\top X$$
#
# For a regular $A$ both projections $I - AX$ and $I - XA$ are 0, and the well-known $-A^{-1} \delta A\, A^{-1}$ is
# left.
#
# *The gradient.* Let $dX$ be the gradient of the loss with respect to $X$, and take $\langle dX, \delta X \rangle =
# \mathrm{tr}(dX^\top \delta X)$ term by term. Rotate each trace until $\delta A$ or $\delta A^\top$ stands at its end,
# and read off what it is multiplied by:
#
# $$dA = -X^\top dX\, X^\top + (I - AX)\, dX^\top X X^\top + X^\top X\, dX^\top (I - XA) \qquad (e2)$$
#
# $dX$ is multiplied by $X$ twice: with a condition number of $10^4$ the gradient can be $10^8$ times as large. And
# where the rank changes there is no gradient: $1/\sigma$ jumps to 0.

# %%
chapter.source(pinv_exact.forward, pinv_exact.backward, doc=False)

# %%
for shape in ((4, 4), (5, 3), (3, 5)):
    wide = rng.standard_normal(shape)
    report = gradcheck.check_elementwise(pinv_exact.forward, pinv_exact.backward, wide, rng=np.random.default_rng(2))
    report.assert_ok()
print(report)


class Factors(NamedTuple):
    left: np.ndarray
    right: np.ndarray


def of_low_rank(left, right):
    """The pseudo-inverse of a product: its rank stays 2 when the factors move."""
    x, saved = pinv_exact.forward(left @ right)
    return x, (saved, left, right)


def of_low_rank_backward(d_x, saved):
    saved, left, right = saved
    d_a = pinv_exact.backward(d_x, saved).a
    return Factors(d_a @ right.T, left.T @ d_a)


report = gradcheck.check_elementwise(
    of_low_rank, of_low_rank_backward, rng.standard_normal((5, 2)), rng.standard_normal((2, 4)),
    rng=np.random.default_rng(3),
)  # fmt: skip
report.assert_ok()


def as_if_regular(d_x, saved):
    saved, left, right = saved
    d_a = -saved.x.T @ d_x @ saved.x.T  # the two projections forgotten
    return Factors(d_a @ right.T, left.T @ d_a)


assert not gradcheck.check_elementwise(
    of_low_rank, as_if_regular, rng.standard_normal((5, 2)), rng.standard_normal((2, 4)), rng=np.random.default_rng(3)
).ok

# %% [markdown]
# **Step 6: through the means.** $\tilde q_r$ is the mean of its segment, so each $q_i$ in it gets an equal part, $dq_i
# \mathrel{+}= d\tilde q_r / |\text{segment } r|$ (13). For keys, only the segment's *unmasked* keys count, and a masked
# key gets 0.
#
# All steps together:

# %%
chapter.source(nystromformer.backward, segment_means.backward, doc=False)

# %%
for pinv in nystromformer.PSEUDO_INVERSES:
    for key_mask in (None, mask):
        report = gradcheck.check_elementwise(
            partial(nystromformer.forward, landmarks=R, pinv=pinv, key_mask=key_mask),
            nystromformer.backward,
            2 * q,  # landmarks further apart: the exact gradient is of the size of |A^+|^2
            2 * k,
            v,
            rng=np.random.default_rng(4),
        )
        report.assert_ok()
        print(f"{pinv}, {'a landmark dropped' if key_mask is not None else 'all keys'}: {report}")

# %% [markdown]
# ## An added convolution
#
# The paper adds a convolution of $V$ along the sequence (its figure 4, without a length). Here it has $K = 33$ weights
# per head, the same for all features (the number $K$ and the matrix $C$ belong to this section alone):
#
# $$O_i \mathrel{+}= \sum_{\tau=0}^{K-1} c_\tau\, v_{i + \tau - \lfloor K/2 \rfloor} \qquad (7)$$
#
# with zeros beyond the ends. As a matrix it is banded, $C_{ij} = c_{j - i + \lfloor K/2 \rfloor}$: it usually has full
# rank and lies near the diagonal, which is just what landmarks cannot provide. The gradient of $V$ is $C^\top dO$;
# transposing turns $j - i$ into $i - j$, so it is **the same convolution with the weights in reverse order**. The
# weight $c_\tau$ sits on one whole diagonal: $dc_\tau = \sum_i dO_i^\top v_{i + \tau - \lfloor K/2 \rfloor}$, summed
# over everything that shares it.

# %%
chapter.source(depthwise.forward, depthwise.backward, depthwise.correlate, doc=False)

# %%
q_2, k_2, v_2 = rng.standard_normal((3, 2, 2, 9, D))  # two examples, two heads
conv = rng.standard_normal((2, 5))
added = (
    nystromformer.forward(q_2, k_2, v_2, conv, landmarks=R)[0] - nystromformer.forward(q_2, k_2, v_2, landmarks=R)[0]
)
band = depthwise.matrix(conv, 9)  # (H, N, N)
same(added, band @ v_2)
same(np.tril(band[0], -3), np.zeros((9, 9)))
same(np.triu(band[0], 3), np.zeros((9, 9)))
d_y = rng.standard_normal(v_2.shape)
same(depthwise.backward(d_y, depthwise.forward(v_2, conv)[1]).v, depthwise.forward(d_y, conv[:, ::-1])[0])
same(depthwise.forward(d_y, conv[:, ::-1])[0], band.swapaxes(-1, -2) @ d_y)

report = gradcheck.check_elementwise(
    partial(nystromformer.forward, landmarks=R),
    nystromformer.backward,
    q_2,
    k_2,
    v_2,
    conv,
    rng=np.random.default_rng(5),
)
print(report)
report.assert_ok()

# %% [markdown]
# ## Exercises
#
# **1. A better iteration at the same price.** One step of the paper's iteration takes four products of $R \times R$
# matrices. Newton and Schulz's, $Z \leftarrow Z(2I - AZ)$, takes two. What is its order, and which iteration is ahead
# after 24 products?
#
# <details><summary>Solution</summary>
#
# $2I - AZ = I + E$: the first two terms of the Neumann series, $E' = I - (I - E)(I + E) = E^2$. This is second order.
# But two steps, which cost as much as one of the paper's, yield $E'' = E^4$, fourth order. The paper's step yields
# $\frac34 E^3 + \frac14 E^4$, which is larger for every $E$ between 0 and 1. And at the start two steps multiply $t$ by
# $2 \cdot 2 = 4$ where the paper's multiplies by $3.25$. So at equal cost Newton and Schulz are always ahead. (But see
# above: further is not better here. Six of the paper's iterations reach as far as about $6 \log 3.25 / \log 4 = 5.1$
# double steps.)
#
# </details>

# %%
matrix = pinv_convergence.with_condition(8, 20.0, np.random.default_rng(6))
newton = matrix.T / (abs(matrix).sum(axis=0).max() * abs(matrix).sum(axis=1).max())
for _ in range(12):
    newton = newton @ (2 * np.eye(8) - matrix @ newton)
papers, _ = pinv_iterative.forward(matrix, iterations=6)
left = [np.linalg.norm(np.eye(8) - matrix @ z, 2) for z in (papers, newton)]
print(f"after 24 products, left to do: {left[0]:.3f} by the paper's iteration, {left[1]:.2g} by Newton and Schulz")
assert left[1] < left[0]
e = np.linspace(0, 1, 101)[1:-1]
assert (e**4 < 0.75 * e**3 + 0.25 * e**4).all()

# %% [markdown]
# **2. Where is it worth it?** For $N = L$ and $D = M$, up to which $R$ does Nyström attention take fewer multiply-adds
# than softmax attention? What is the bound at $N = 512$ and $D = 64$?
#
# <details><summary>Solution</summary>
#
# $4 N R D + 2 R^2 D + 25 R^3 < 2 N^2 D$. Without the last two terms $R < N/2$, as for Linformer. The iterations move
# that down: at $N = 512$, $D = 64$ the last term is more than all the rest from $R = 76$ on, and the bound is $R = 93$,
# not 256. For long sequences the last term decides alone, $25 R^3 < 2 N^2 D$, and the bound grows as $N^{2/3}$. With
# $R$ fixed none of this matters.
#
# </details>


# %%
def multiply_adds(n, r, d):
    return 4 * n * r * d + 2 * r * r * d + 25 * r**3


largest = max(r for r in range(1, 513) if multiply_adds(512, r, 64) < 2 * 512**2 * 64)
assert largest == 93
assert min(r for r in range(1, 513) if 2 * 25 * r**3 > multiply_adds(512, r, 64)) == 76
n = 10**9
assert abs(multiply_adds(n, round((n * n * 64 / 12.5) ** (1 / 3)), 64) / (2 * n * n * 64) - 1) < 0.01
tokens = rng.standard_normal((3, 512, 64)).astype(np.float32)
for r in (largest, largest + 1):
    assert count(partial(nystromformer.forward, landmarks=r), *tokens).multiply_adds == multiply_adds(512, r, 64)
assert multiply_adds(512, largest + 1, 64) >= 2 * 512**2 * 64
for r in (largest, largest + 1):
    print(f"{r} landmarks: {multiply_adds(512, r, 64):,} multiply-adds; softmax {2 * 512**2 * 64:,}")

# %% [markdown]
# **3. One landmark.** What does Nyström attention compute for $R = 1$, and what is the gradient of a query?
#
# <details><summary>Solution</summary>
#
# $F$ is a column of ones, $A = (1)$, $Z = (1)$ (the iteration: $t_0 = 1$, and $1 - t = 0$ stays 0). So every query gets
# the same output, $B V$ with the mean query: softmax attention of $\bar q$. Each $q_i$ gets the gradient that $\bar q$
# has, over $N$: all rows of $dQ$ are equal.
#
# </details>

# %%
one, saved_one = nystromformer.forward(q, k, v, landmarks=1)
by_mean, saved_mean = softmax.forward(q.mean(axis=0, keepdims=True), k, v)
same(one, np.tile(by_mean, (N, 1)))
d_q = nystromformer.backward(d_out, saved_one).q
same(d_q, np.tile(softmax.backward(d_out.sum(axis=0, keepdims=True), saved_mean).q / N, (N, 1)))
print("one landmark, every output:", one[0].round(4), " of the mean query:", by_mean[0].round(4))

# %% [markdown]
# **4. A soft cut, exactly.** Tikhonov's regularisation puts $\sigma / (\sigma^2 + \mu)$ in place of $1/\sigma$, i.e. $Z
# = (A^\top A + \mu I)^{-1} A^\top$. Which $\mu$ cuts where six iterations do (both inverting to one half)? Compare the
# two as functions of $\sigma$.
#
# <details><summary>Solution</summary>
#
# $t = \sigma^2 / (\sigma^2 + \mu) = \frac12$ at $\sigma^2 = \mu$. Six iterations have $t = \frac12$ at $\sigma^2 = n_1
# n_\infty / 41.06^2$, so $\mu = n_1 n_\infty / 1686$. Both start as a constant times $\sigma^2$. The iteration's $t$
# then goes to 1 much faster, so its cut is the sharper one.
#
# </details>

# %%
mu = pinv_convergence.reach(6) ** -2  # for n_1 n_inf = 1
sigma = np.geomspace(1e-4, 1, 200)
six = pinv_convergence.inverted_share(sigma**2, 6)[-1]
tikhonov = sigma**2 / (sigma**2 + mu)
below, above = sigma**2 < 0.25 * mu, sigma**2 > 4 * mu
assert abs(np.interp(math.sqrt(mu), sigma, six) - 0.5) < 0.01
assert (six[above] > tikhonov[above]).all()
assert (1 - six[above]).max() < 0.1 < (1 - tikhonov[above]).max()
assert (abs(six / sigma**2 / (13 / 4) ** 6 - 1)[below & (sigma < 1e-3)] < 0.01).all()
for at in (0.5, 1, 2, 4):
    found = [np.interp(at * math.sqrt(mu), sigma, each) for each in (six, tikhonov)]
    print(f"singular value {at} sqrt(mu): inverted to {found[0]:.0%} by six iterations, {found[1]:.0%} by Tikhonov")

# %% [markdown]
# ## What to remember
#
# - $O = F Z (BV)$: landmark queries gather, a small matrix mixes, queries fetch. Each factor has its own softmax, since
#   the softmax of $P$ needs whole rows; so it has the shape of the Nyström method without being it.
# - The iteration is $Z (I + E + E^2 + \frac14 E^3)$. It has third order at the end; before, small singular values gain
#   a factor $13/4$ per iteration.
# - Six iterations do not invert real landmark matrices, and that is good. On the one network measured here the exact
#   pseudo-inverse is worse in every layer, and on average over its heads worse than answering 0.
# - The gradient goes back through every iteration, and through the norms of the start. The exact pseudo-inverse has
#   Golub and Pereyra's gradient, which multiplies by $A^+$ twice.
# - Norms belong to each matrix, not to the batch. The length need not be a multiple of $R$. Padding is not truncation.
#
# **Sources.** Xiong et al. (2021), *Nyströmformer*. Razavi et al. (2014), *A new iterative method for finding
# approximate inverses of complex matrices*. Golub and Pereyra (1973), *The differentiation of pseudo-inverses and
# nonlinear least squares problems whose variables separate*. Schulz (1933), *Iterative Berechnung der reziproken
# Matrix*.
