# %% [markdown]
# # 13. Long-Short Transformer: near keys as they are, far ones as mixtures that follow the content
#
# Can a handful of mixtures stand for everything far away, if what goes into them depends on what the keys say and not
# on where they stand?
#
# A local window is cheap and sees nothing beyond it. Linformer's mixtures see everything, through a matrix that was
# fixed in training. The Long-Short Transformer (Zhu et al. 2021) has both, in one softmax, and lets the keys themselves
# decide how they are mixed. In this chapter you will
#
# 1. cut a sequence into segments and count what the short term costs;
# 2. see that the dynamic projection is softmax attention of a few learned queries, and test it on content that moves;
# 3. find out why near keys and mixtures need a layer norm each;
# 4. derive the gradients: of the norms, and of a projection whose weights depend on what it projects;
# 5. make it causal, and count what that costs.
#
# You need chapters 1 (softmax and its gradient) and 4 (Linformer). The letters: $N$ queries, $L$ keys, widths $D$ and
# $M$, $R$ mixtures, segments of width $w$. The example is chapter 1's sentence in segments of four words, *the cat sat
# on | the old mat and | the dog slept too*.

# %% jupyter={"source_hidden": true}
import math
from functools import partial

import numpy as np
from matplotlib.colors import PowerNorm

from linattn_ref import gradcheck
from linattn_ref.attention import linformer, long_short, softmax
from linattn_ref.attention.parts import dynamic_projection
from linattn_ref.data.twelve_words import WORDS, vectors
from linattn_ref.experiments.fewer_keys import moving_content
from linattn_ref.experiments.measuring.counting import count
from linattn_ref.experiments.publishing import chapter, style
from linattn_ref.experiments.publishing.pairs import paint
from linattn_ref.experiments.sparse import pattern_pictures
from linattn_ref.nn import layer_norm

# Numbers of size 1 that have gone through some hundred roundings of 2.2e-16 each agree to this.
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-13)

# %% [markdown]
# ## The smallest example, by hand
#
# Take five tokens with the values 1 to 5, in segments of two, and all scores equal. There is one mixture of all keys,
# with equal weights, so its value is the mean, 3. A query sees the mixture, its own segment, and one key on either side
# of the segment:
#
# | queries | mixture | near values | output |
# | --- | ---: | --- | ---: |
# | 1, 2 | 3 | 1, 2, 3 | $9 / 4 = 2.25$ |
# | 3, 4 | 3 | 2, 3, 4, 5 | $17 / 5 = 3.4$ |
# | 5 | 3 | 4, 5 | $12 / 3 = 4$ |
#
# One softmax goes over both kinds of keys, near ones and mixtures:

# %%
no_scores, five_values = np.zeros((5, 2)), np.arange(1.0, 6)[:, None]
both_out, _ = long_short.forward(no_scores, no_scores, five_values, np.zeros((2, 1)), None, None, window=2)
print("by the page:", both_out.ravel())
same(both_out.ravel(), [2.25, 2.25, 3.4, 3.4, 4])

# %% [markdown]
# ## The short term
#
# Cut the sequence into segments of width $w$. All queries of a segment see the same keys: the segment itself and
# $\lfloor w/2 \rfloor$ keys on either side. So a segment is a dense block of $w$ queries and about $2w$ keys, and two
# matrix products are enough, while a sliding window would move with every query. $N / w$ segments make about $2 w N$
# pairs, instead of $N^2$. In the causal form a query sees the segment before its own, and the keys of its own segment
# up to itself.

# %%
chapter.source(long_short.segments, doc=False)


# %%
def panel(axes, window):
    for axis, causal in zip(axes, (False, True), strict=True):
        seen = long_short.pattern(32, window=window, causal=causal)
        reasons = paint([("window or block", seen), ("the query itself", np.eye(32, dtype=bool))])
        pattern_pictures.draw_picture(axis, pattern_pictures.Picture(axis.get_title(loc="left"), reasons))
        axis.set_xlabel(f"{seen.sum()} pairs")
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel("causal: query" if causal else "plain: query")


chapter.explore(
    panel,
    (2, 4, 8, 12),
    name="segment width w",
    slider=(1, 2, 3, 4, 6, 8, 12, 16, 32),
    rows=2,
    height=0.62,
    alt="Two rows of 32 by 32 grids. Plain: blocks along the diagonal, each a segment wide and twice as long. Causal: "
    "the segment before, and the lower triangle of the query's own",
)
for n, w in ((256, 8), (1024, 16)):
    pairs = long_short.pattern(n, window=w).sum()
    assert pairs == 2 * w * n - w * w  # 2 w keys per query, but for half a window at both ends

# %% [markdown]
# (There is one row per query and one column per key; black is the query's own place.)
#
# ## The long term: mixtures by content
#
# Linformer mixes keys with a matrix $E$ that has one column for each position. The Long-Short Transformer computes the
# matrix from the keys:
#
# $$P = \mathrm{softmax}_{\text{over the sequence}}(K W_p), \qquad P \in \mathbb R^{L \times R},\quad
# W_p \in \mathbb R^{D \times R} \qquad (1)$$
#
# $$\bar K = P^\top K, \qquad \bar V = P^\top V \qquad (2)$$
#
# Each column of $P$ is a distribution over positions. This is familiar: column $r$ of $W_p$ is a *query*. It is scored
# against every key; then follow a softmax over the keys and a weighted mean of the values. **The dynamic projection is
# softmax attention of $R$ learned queries**, with scale 1.
#
# For the sentence we choose two columns by hand: one asks for things, the other for what is done. So the first mixture
# should be made of *cat*, *mat* and *dog*, the second of *sat* and *slept*.

# %%
q, k, v = vectors()
(N, D), M, R, w = q.shape, v.shape[1], 2, 4
w_p = np.array([[2.0, 0.0], [0.0, 2.0], [0.0, 0.0], [0.0, 0.0]])
d_out = np.random.default_rng(0).standard_normal((N, M))  # the gradient of some loss, for later

mixed, mixing = dynamic_projection.forward(k, v, w_p, window=w)
P = mixing.p[0]  # (L, R)
by_loops = np.zeros((N, R))
for r in range(R):
    shares = [math.exp(k[j] @ w_p[:, r]) for j in range(N)]
    by_loops[:, r] = np.array(shares) / sum(shares)  # (1)
same(P, by_loops)
same(P.sum(axis=0), 1)
same(mixed.k, P.T @ k)  # (2)
same(mixed.k, softmax.forward(w_p.T, k, k, scale=1.0)[0])  # R learned queries
same(mixed.v, softmax.forward(w_p.T, k, v, scale=1.0)[0])
for name, shares in zip(("things", "done"), P.T, strict=True):
    print(f"{name:6}", *(f"{word} {share:.2f}" for word, share in zip(WORDS, shares, strict=True)))
chapter.source(dynamic_projection.forward, doc=False)

# %% [markdown]
# This has three consequences, all unlike Linformer, whose projection is fixed (Zhu et al. 2021, section 3):
#
# - **The projection depends on the input.** Another text has another $P$.
# - **It follows content.** Put the same words into another order, and each keeps its share: the mixtures are the same.
# - **It fits any length.** $W_p$ has $D R$ parameters and does not depend on $L$; Linformer has $2 L R$.
#
# The cell replaces *cat* by *and*, reads the sentence backwards, and reads shorter and longer ones:


# %%
def projection(k, w_p):
    """``P (L, R)``, whatever the values are."""
    return dynamic_projection.forward(k, k, w_p, window=w)[1].p[0]


other = projection(np.concatenate([k[:1], k[7:8], k[2:]]), w_p)
assert abs(other - P).max() > 0.05  # claim 36: it depends on the input
print("share of 'dog' among the things:", P[9, 0].round(2), " without the cat:", other[9, 0].round(2))

backwards = projection(k[::-1], w_p)
same(backwards, P[::-1])
same(backwards.T @ v[::-1], P.T @ v)
E = linformer.mean_pool(R, N)
assert abs(E @ v[::-1] - E @ v).max() > 0.1  # claim 36: Linformer's columns stay where they are
print("mixed value of the things:", (P.T @ v)[0].round(3), " backwards:", (backwards.T @ v[::-1])[0].round(3))
print("Linformer's first mixture:", (E @ v)[0].round(3), " backwards:", (E @ v[::-1])[0].round(3))

for length in (1, 5, 1000):
    assert projection(np.resize(k, (length, D)), w_p).shape == (length, R)
refused = ""
try:
    linformer.forward(q[:5], k[:5], v[:5], E, E)
except ValueError as error:
    refused = str(error)
assert refused.startswith("e: expected shape (..., R, L)")
print(refused)

# %% [markdown]
# ### Content that moves
#
# Here is a task that isolates the difference. One token is marked, anywhere in the sequence, and all queries ask for
# its value. Linformer mixes fixed places. If a mixture holds $n = L/R$ of them, and the softmax finds the right
# mixture, the output is $c$ times a sum of $n$ independent values of mean 0 and variance 1, of which one is wanted. The
# squared error $(1 - c)^2 + (n - 1)\, c^2$ is least at $c = 1/n$, where it is
#
# $$1 - \frac 1n = 1 - \frac RL \qquad (3)$$
#
# No other choice of the mixtures does better. Let row $j$ of a matrix hold the weights that all values get when the
# mark is at place $j$. This matrix has at most rank $R$, and the task asks for the identity. By Eckart, Young and
# Mirsky the squared distance is at least $L - R$, which is $1 - R/L$ per place. A dynamic projection needs one column
# of $W_p$ in the direction of the mark. Both are trained with their hand-derived gradients. Linformer starts from its
# best known answer, the segments of (3), and gets four times the steps on batches four times as large; training hardly
# changes its error. $W_p$ starts from small random numbers:

# %%
results = moving_content.compute(reduced=(1, 8, 32), steps=300)
chapter.show(
    moving_content.draw,
    results,
    alt="Weights of the last query by place of the mark: Linformer's are blocks of eight keys along the diagonal, and "
    "noise; Long-Short's are a thin diagonal. Error: Linformer's lies on 1 - R / L, Long-Short's below 0.01 for all R",
)
bound = 1 - results.reduced / results.length
test, at_start = moving_content.draw_batch(np.random.default_rng(1), results.length, size=512), []
for r in results.reduced.tolist():
    segments_of_places = moving_content.train_linformer(r, results.length, 0, rng=None)  # no step yet
    at_start.append(moving_content.linformer_loss(*segments_of_places, test)[0])
np.testing.assert_allclose(results.linformer, at_start, atol=0.01)  # on the same sequences
np.testing.assert_allclose(results.linformer, bound, atol=0.1)  # (3)
assert (results.long_short < 0.01).all()  # claim 36: it finds what has moved
assert (results.longer < 0.02).all()  # four times as long, the same parameters
assert np.diag(results.map_long_short).mean() > 0.9
assert np.diag(results.map_linformer).mean() < 0.3
chapter.table(
    ("mixtures R", "Linformer at the start", "trained", "1 - R / L", "Long-Short", "Long-Short, 4 L"),
    list(
        zip(
            results.reduced.tolist(),
            at_start,
            *(x.tolist() for x in (results.linformer, bound, results.long_short, results.longer)),
            strict=True,
        )
    ),
)

# %% [markdown]
# Do not read too much into this. The task was made to suit one and not the other. A query that asks for *two* things at
# two places needs two columns, and $R$ learned queries can only ask for what they have learned to ask for. A query that
# wants something else from far away gets an average.
#
# ## One softmax, two layer norms
#
# ![Long-Short Transformer, drawn](../figures/schematic_long_short.svg)
#
# Near keys and mixtures compete in one softmax. With $s$ the scale, $\tilde K$ for the normed near keys and $\hat K$
# for the normed mixtures (and likewise for the values),
#
# $$o_i = \mathrm{softmax}\big(s\, q_i\, [\hat K;\ \tilde K_{\text{near } i}]^\top\big)\,
# [\hat V;\ \tilde V_{\text{near } i}] \qquad (4)$$
#
# What are the norms for? A mixture is a mean, and means are short. At the start of training $W_p$ is small, $P$ is
# nearly uniform, and the mean of $L$ independent keys is $\sqrt L$ times shorter than each of them. So its score is
# almost 0 for every query, and so is its value. Then every query gives each mixture the same weight, and the mixtures
# convey little. The remedy is a layer norm for each of the two kinds ("dual layer norm"), of keys and of values:
#
# $$\mathrm{norm}(x) = a * y + b, \qquad y = \frac{x - \mu}{\sigma}, \qquad \mu = \frac1W \sum_i x_i, \qquad
# \sigma = \sqrt{\tfrac1W \sum_i (x_i - \mu)^2 + 10^{-5}} \qquad (5)$$
#
# with a gain $a$ and a bias $b$ for each of its $W$ entries. (The code calls $\sigma$ `s` and the fraction `n`; here
# $s$ is the scale of the scores.) We measure the spread of the scores, their standard deviation over queries and keys,
# for near keys and for mixtures of many random keys, with $W_p$ as it is at the start.

# %%
rows, rng = [], np.random.default_rng(1)
for length in (64, 1024):
    q_l, k_l = rng.standard_normal((2, length, 32))
    start = 0.02 * rng.standard_normal((32, 4))
    mixed_k = dynamic_projection.forward(k_l, k_l, start, window=16)[0].k
    params = layer_norm.Params(gain=np.ones(32), bias=np.zeros(32))
    spreads = []
    for keys in (k_l, mixed_k):
        for rows_of_keys in (keys, layer_norm.forward(keys, params)[0]):
            spreads.append(float((q_l @ rows_of_keys.T / math.sqrt(32)).std()))
    near, near_normed, far, far_normed = spreads
    rows.append((length, near, far, near_normed, far_normed))
    assert far < 2 * near / math.sqrt(length)
    assert 0.7 < far_normed / near_normed < 1.4
chapter.table(("L", "near, no norm", "mixtures, no norm", "near, norm", "mixtures, norm"), rows)
chapter.source(layer_norm.forward, doc=False)

# %% [markdown]
# ### All of it
#
# Segment by segment, it is softmax attention of $w$ queries to $R$ mixtures and about $2w$ keys; the mixtures come
# first. (The numbers in the code are its module's own.) The cell below the code computes each output once more from (4)
# and (5), query by query, with gains and biases that are drawn.
#
# The authors' code (NVIDIA/transformer-ls) differs. There the scores of (1) come from the layer's input, and here from
# the head's keys. There one norm for near rows and one for mixtures serve keys *and* values of all heads, and here each
# head has four. And except in the language model, the mixtures there are of keys and values that are already normed.
# Two statements below hold only for our form: the four parts of a key's gradient, and the biases in exercise 4.

# %%
chapter.source(long_short.forward, doc=False)


# %%
def draw_norm():
    return tuple((rng.standard_normal(width), rng.standard_normal(width)) for width in (D, M))


norm_local, norm_global = draw_norm(), draw_norm()
out, saved = long_short.forward(q, k, v, w_p, norm_local, norm_global, window=w)


def normed(x, pair):
    y = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    return pair[0] * y + pair[1]  # (5)


for i in range(N):
    start = i // w * w
    near = slice(max(start - w // 2, 0), start + w + w // 2)
    keys = np.concatenate([normed(P.T @ k, norm_global[0]), normed(k, norm_local[0])[near]])
    values = np.concatenate([normed(P.T @ v, norm_global[1]), normed(v, norm_local[1])[near]])
    weights = np.exp(q[i] @ keys.T / math.sqrt(D))
    same(out[i], weights / weights.sum() @ values)  # (4)
print(f"{WORDS[-1]!r}, {len(keys)} keys and mixtures, by hand:", (weights / weights.sum() @ values).round(4), end=" ")
print("by the page:", out[-1].round(4))

# %% [markdown]
# The forward pass takes $N R (2 D + M)$ multiply-adds for (1) and (2), and $D + M$ for each pair of a query and what it
# sees: $O(N (w + R))$ in all. Beyond the inputs, we keep for the backward pass $P$ and the mixtures, the normalised
# rows of the four norms, and for each segment its keys and values and the softmax of its scores.

# %%
for n in (64, 128, 256):
    arrays = [rng.standard_normal((n, width)) for width in (D, D, M)]
    counted = count(partial(long_short.forward, window=8), *arrays, w_p, None, None).multiply_adds
    pairs = long_short.pattern(n, window=8).sum() + n * R
    assert counted == n * R * (2 * D + M) + pairs * (D + M)
    print(f"N = {n}: {counted:,} multiply-adds, {counted / n:.0f} per token")

# %% [markdown]
# Without norms of the values, the mechanism applies a matrix to $V$: $P$ passes each mixture's weight on to the keys in
# it. In the left picture the short term shows as blocks. The long term behind them is a matrix of rank $R$, which shows
# as vertical stripes: *cat*, *sat*, *dog* and *slept* can be read from anywhere.

# %%
matrices = [
    long_short.matrix(q, k, w_p, None, None, window=w),
    long_short.matrix(q, k, w_p, None, None, window=w, causal=True),
    softmax.matrix(q, k, causal=True),
]


def draw_matrices():
    figure, all_axes = style.figure(1, 3, height=0.42, sharey=True)
    titles = ("Long-Short", "Long-Short, causal", "softmax, causal")
    for axes, title, matrix in zip(all_axes, titles, matrices, strict=True):
        axes.imshow(matrix, norm=PowerNorm(0.5, 0, 0.5))
        axes.grid(False)
        axes.set(title=title, yticks=range(N), yticklabels=WORDS)
        axes.set_xticks(range(N), WORDS, rotation=90)
        axes.tick_params(labelsize=6, length=0)
        axes.label_outer()
    return figure


chapter.show(
    draw_matrices,
    alt="Three matrices of 12 by 12 words. Long-Short: blocks along the diagonal, with vertical stripes through them. "
    "Causal: the blocks cut at the diagonal, stripes below it only. Softmax: irregular lower triangle",
)
for matrix in matrices:
    same(matrix.sum(axis=1), 1)
far_part = matrices[0][0:4, 6:]  # segment 0 sees keys 0..5 near, the others through two mixtures
assert np.linalg.matrix_rank(far_part) == 2
same(matrices[0] @ v, long_short.forward(q, k, v, w_p, None, None, window=w)[0])

# %% [markdown]
# ## The gradients, by hand
#
# Let $G = \partial \ell / \partial O$. We go back through (4), (5), (2) and (1), in this order. (The files have numbers
# of their own: (1) to (6) of `layer_norm.py` are (5) and (6) here, and (3) to (5) of `dynamic_projection.py` are (7) to
# (10).)
#
# ### Step 1: the blocks
#
# Each segment is softmax attention, and chapter 1's backward pass yields the gradients of its queries, of the keys and
# values it saw, and of the mixtures. A query is in one segment. A key is seen by up to two, a mixture by all (causal,
# by all later ones): their gradients **add up** over the segments that saw them. The result is $d\tilde K$ and $d\tilde
# V$ (normed near keys and values), and the gradients of the normed mixtures.
#
# ### Step 2: layer norm
#
# For one row, $y = (x - \mu) / \sigma$ and $\mathrm{norm}(x) = a * y + b$. With $g$ the gradient of the row of
# $\mathrm{norm}(x)$, the parameters get $da = \sum g * y$ and $db = \sum g$, over all rows, and $y$ gets $dy = a * g$.
# For $x$ differentiate $y_j$, where $\mu$ and $\sigma$ depend on every entry:
#
# $$\frac{\partial \mu}{\partial x_i} = \frac 1W, \qquad
# \frac{\partial \sigma}{\partial x_i} = \frac{1}{2\sigma} \cdot \frac 2W (x_i - \mu) = \frac{y_i}{W}$$
#
# $$\frac{\partial y_j}{\partial x_i}
# = \frac 1\sigma \Big(\delta_{ij} - \frac 1W\Big) - \frac{x_j - \mu}{\sigma^2} \cdot \frac{y_i}{W}
# = \frac 1\sigma \Big(\delta_{ij} - \frac 1W - \frac{y_i y_j}{W}\Big)$$
#
# and summed with $dy_j$,
#
# $$dx_i = \frac 1\sigma \Big(dy_i - \tfrac1W \textstyle\sum_j dy_j - y_i\, \tfrac1W \sum_j dy_j\, y_j\Big) \qquad (6)$$
#
# (In $\partial \sigma / \partial x_i$ the term from $\mu$ drops out, as $\sum_j (x_j - \mu) = 0$.) Two parts are taken
# away: along $(1, \dots, 1)$ and along $y$.

# %%
params, g = layer_norm.Params(*norm_local[0]), rng.standard_normal(k.shape)
_, normed_k = layer_norm.forward(k, params)
y, s, (gain, _) = normed_k
d_x, (d_gain, d_bias) = layer_norm.backward(g, normed_k)
for row in range(N):
    jacobian = (np.eye(D) - 1 / D - np.outer(y[row], y[row]) / D) / s[row]
    same(d_x[row], (gain * g[row]) @ jacobian)  # (6)
same(d_gain, (g * y).sum(axis=0))
same(d_bias, g.sum(axis=0))
same(d_x.sum(axis=1), 0)  # a step along (1, ..., 1) changes nothing
chapter.source(layer_norm.backward, doc=False)

# %% [markdown]
# ### Step 3: the mixtures
#
# $\bar K_{rd} = \sum_j P_{jr} K_{jd}$ and $\bar V_{rm} = \sum_j P_{jr} V_{jm}$. $P$ occurs in both:
#
# $$dP_{jr} = \sum_d K_{jd}\, d\bar K_{rd} + \sum_m V_{jm}\, d\bar V_{rm}
# \quad\Longrightarrow\quad dP = K\, d\bar K^\top + V\, d\bar V^\top \qquad (7)$$
#
# $$dK \mathrel{+}= P\, d\bar K, \qquad dV \mathrel{+}= P\, d\bar V \qquad (8)$$
#
# With Linformer (7) would be the end, because $E = P^\top$ is a parameter. Here the gradient goes on.
#
# ### Step 4: the projection
#
# $P$ is a softmax over the *sequence*, one column at a time. With $A = K W_p$, this is chapter 1's formula with rows
# and columns exchanged:
#
# $$dA_{jr} = P_{jr} \Big(dP_{jr} - \sum_l dP_{lr} P_{lr}\Big) \qquad (9)$$
#
# $$dW_p = K^\top dA, \qquad dK \mathrel{+}= dA\, W_p^\top \qquad (10)$$
#
# So the gradient of a key has **four parts**. The key is seen as a near key (step 2). It is a part of the mixed keys
# (8). Its score decides how large its share of the mixed keys is, and how large its value's share of the mixed values
# is. The last two add up in (7) and reach the key by (10).

# %%
d_mixed_k, d_mixed_v = rng.standard_normal((R, D)), rng.standard_normal((R, M))
d_P = k @ d_mixed_k.T + v @ d_mixed_v.T  # (7)
d_A = P * (d_P - (d_P * P).sum(axis=0))  # (9)
d_k_by_hand = P @ d_mixed_k + d_A @ w_p.T  # (8), (10)
d_k, d_v, d_w_p = dynamic_projection.backward(dynamic_projection.Mixtures(d_mixed_k, d_mixed_v), mixing)
same(d_k, d_k_by_hand)
same(d_v, P @ d_mixed_v)
same(d_w_p, k.T @ d_A)

# It is softmax attention of the columns of W_p; so say chapter 1's gradients.
_, kept = softmax.forward(w_p.T, k, np.concatenate([k, v], axis=1), scale=1.0)
as_queries = softmax.backward(np.concatenate([d_mixed_k, d_mixed_v], axis=1), kept)
same(d_w_p, as_queries.q.T)
same(d_k, as_queries.k + as_queries.v[:, :D])
chapter.source(dynamic_projection.backward, long_short.backward, doc=False)

# %% [markdown]
# All gradients together, by finite differences, for both forms:

# %%
for causal in (False, True):
    report = gradcheck.check_elementwise(
        partial(long_short.forward, window=w, causal=causal),
        long_short.backward,
        *(q, k, v, w_p, norm_local, norm_global),
        rng=np.random.default_rng(4),
    )
    print(report)
    report.assert_ok()

# %% [markdown]
# The typical mistake here is to treat $P$ as a constant, as if it were Linformer's $E$. Then $W_p$ learns nothing, and
# the gradient of the keys lacks (10). The check finds both errors and no other:


# %%
def constant_projection(d_out, saved):
    right = long_short.backward(d_out, saved)
    no_w_p = saved.mixing._replace(w_p=np.zeros_like(saved.mixing.w_p))  # (10) with W_p = 0: nothing flows back to K
    wrong = long_short.backward(d_out, saved._replace(mixing=no_w_p))
    return wrong._replace(w_p=np.zeros_like(right.w_p))


report = gradcheck.check_elementwise(
    partial(long_short.forward, window=w),
    constant_projection,
    *(q, k, v, w_p, norm_local, norm_global),
    rng=np.random.default_rng(4),
)
assert {entry.name for entry in report.worst_by_input if entry.excess > 1} == {"k", "w_p"}
print(report)

# %% [markdown]
# ## Causal
#
# Mixtures of the whole sequence hold the future. Masking the *pairs* afterwards does not help, as in chapter 4. And
# here the future is in the weights of the past as well, through the denominator of the softmax (1). So every segment is
# projected on its own, and a query sees the $R$ mixtures of each segment **wholly before its own**. Take *dog*. Of its
# own segment it sees *the dog* as near keys. It sees *the old mat and* twice, as near keys and as $R$ mixtures, and
# *the cat sat on* as $R$ mixtures only. The cell computes this query by hand. It also changes all later keys and
# values, for each query in turn, and no output changes by a single bit:

# %%
out, saved = long_short.forward(q, k, v, w_p, norm_local, norm_global, window=w, causal=True)
p = saved.mixing.p
assert p.shape == (2, w, R)  # two segments have a later one; the last four words are mixed with nobody
keys = [normed(p[t].T @ k[w * t : w * (t + 1)], norm_global[0]) for t in (0, 1)]
values = [normed(p[t].T @ v[w * t : w * (t + 1)], norm_global[1]) for t in (0, 1)]
keys = np.concatenate([*keys, normed(k, norm_local[0])[4:10]])
values = np.concatenate([*values, normed(v, norm_local[1])[4:10]])
weights = np.exp(q[9] @ keys.T / math.sqrt(D))
same(out[9], weights / weights.sum() @ values)

for i in range(N):
    k_new, v_new = k.copy(), v.copy()
    k_new[i + 1 :], v_new[i + 1 :] = 1e3, -1e3
    changed, _ = long_short.forward(q, k_new, v_new, w_p, norm_local, norm_global, window=w, causal=True)
    assert (changed[: i + 1] == out[: i + 1]).all()  # not one bit
print("'dog', by hand:", (weights / weights.sum() @ values).round(4), " by the page:", out[9].round(4))

# %% [markdown]
# What does it cost? The query at position $i$ sees $R \lfloor i / w \rfloor$ mixtures: $N^2 R / 2w$ in all. **That is
# quadratic**, with a factor $R / w$ compared with causal softmax attention. The paper's abstract says of the mechanism
# that it "can be applied to both autoregressive and bidirectional models without additional complexity". With a fixed
# $w$, only the form of the sections above is linear. Here the cost of a forward pass is counted, with $w = 64$, $R = 4$
# and $D = M = 16$. Causal softmax attention is counted up to the diagonal:

# %%
rows, width, segment, r = [], 16, 64, 4
for n in (256, 1024, 4096):
    arrays = rng.standard_normal((3, n, width)).astype(np.float32)
    w_p_32 = rng.standard_normal((width, r)).astype(np.float32)
    plain, causal = (
        count(partial(long_short.forward, window=segment, causal=c), *arrays, w_p_32, None, None).multiply_adds
        for c in (False, True)
    )
    parts = n // segment
    far = segment * r * parts * (parts - 1) // 2
    near = segment * segment * (1 + 2 * (parts - 1))
    assert causal == (near + far) * 2 * width + (n - segment) * r * 3 * width
    rows.append((n, plain, causal, far / n, n * (n + 1) // 2 * 2 * width))
chapter.table(("N", "plain", "causal", "mixtures per causal query, mean", "causal softmax"), rows)
assert 3.9 < rows[2][1] / rows[1][1] < 4.1  # four times the length: linear
assert rows[2][3] / rows[1][3] > 4  # what a query sees grows with the length
assert 7.5 < rows[2][4] / rows[2][2] < 8.5  # an eighth of causal softmax attention all the same

# %% [markdown]
# ## Masks
#
# A masked key is not near, has no share in $P$, and does not count in its denominator. A segment of padding alone has
# no mixtures. (A mixture of nothing would be a key of 0, and with a bias after the norm even an attractive one.) The
# cell masks *the old mat and*:

# %%
key_mask = np.ones(N, bool)
key_mask[4:8] = False  # segment 1
options = {"window": w, "causal": True, "key_mask": key_mask}
masked, _ = long_short.forward(q, k, v, w_p, norm_local, norm_global, **options)
rubbish = k.copy()
rubbish[4:8] = 1e300
same(long_short.forward(q, rubbish, v, w_p, norm_local, norm_global, **options)[0], masked)
matrix = long_short.matrix(q, k, w_p, norm_local, norm_global, **options)
assert not matrix[:, 4:8].any()
same(matrix[:4].sum(axis=1), 1)
same(matrix[4:8].sum(axis=1), 1)  # they see segment 0 near and mixed
print(
    "weight of each segment in the row of 'too':",
    [float(matrix[-1, i : i + 4].sum().round(3)) for i in range(0, N, 4)],
)

# %% [markdown]
# ## Exercises
#
# **1. The best segment.** For a causal sequence of $N$ tokens, which $w$ makes the fewest pairs, and how does their
# number then grow with $N$?
#
# <details><summary>Solution</summary>
#
# A causal query sees $w + \frac w2$ near keys on average (the segment before, half of its own) and $\frac{N R}{2 w}$
# mixtures. The sum $\frac32 w + \frac{N R}{2w}$ is least at $w = \sqrt{N R / 3}$, where it is $\sqrt{3 N R}$. All
# queries together have $N^{3/2} \sqrt{3 R}$ pairs, with the same exponent as in the Sparse Transformer. The cell counts
# them with $R = 4$, as the cost table does.
#
# </details>


# %%
def causal_pairs(n, window, reduced):
    return sum(
        (part.queries.stop - part.queries.start) * part.far for part in long_short.segments(n, n, window, reduced, True)
    ) + sum(i - max(i // window * window - window, 0) + 1 for i in range(n))


best = {}
for n in (1024, 4096, 16384):
    pairs = {window: causal_pairs(n, window, 4) for window in range(16, 400, 2)}
    best[n] = min(pairs, key=pairs.get)
    assert abs(best[n] / math.sqrt(4 * n / 3) - 1) < 0.15
    assert abs(pairs[best[n]] / (n**1.5 * math.sqrt(12)) - 1) < 0.1
print("best width:", best)

# %% [markdown]
# **2. Equal mixtures.** Set $W_p = 0$, without norms. What are the $R$ mixtures? What do they do in (4) as $R$ grows?
# Which single key, with which score, could replace them?
#
# <details><summary>Solution</summary>
#
# All are the mean $\bar k$ of the keys, with the mean of the values. $R$ copies of a key have the weight $R e^{s q
# \cdot \bar k} = e^{s q \cdot \bar k + \log R}$, like one key whose score is $\log R$ higher. More copies of the mean
# push every output towards the mean of all values. More columns are useful only when they differ.
#
# </details>

# %%
outputs = {}
for copies in (1, 4, 10_000):
    outputs[copies], _ = long_short.forward(q, k, v, np.zeros((D, copies)), None, None, window=N)
    scores = np.concatenate([q @ k.mean(axis=0)[:, None] / math.sqrt(D) + math.log(copies), q @ k.T / math.sqrt(D)], 1)
    weights = np.exp(scores)
    same(outputs[copies], weights / weights.sum(axis=1, keepdims=True) @ np.concatenate([v.mean(axis=0)[None], v]))
np.testing.assert_allclose(outputs[10_000], np.tile(v.mean(axis=0), (N, 1)), atol=0.05)
for copies, each in outputs.items():
    print(
        f"{copies:6} copies of the mean, first output:",
        each[0].round(3),
        " mean of the values:",
        v.mean(axis=0).round(3),
    )

# %% [markdown]
# **3. Counted twice.** A near key is in the mixtures as well. How much of a query's weight lies on its near keys only
# *because of* the mixtures? Is it a fault?
#
# <details><summary>Solution</summary>
#
# It is the weights of the mixtures times the near keys' shares in them. With long sequences, here random ones, the
# shares are small, unless a column of $W_p$ points at a near key. It could be cured by one projection per segment, of
# all keys except its near ones. Computed afresh for each of $N / w$ segments that is quadratic again, $N^2 R / w$; but
# the sums over the keys before and after the near ones are running sums from both ends (chapter 7), so linear time is
# enough. It is not a fault as such: the mechanism does not claim to approximate softmax attention, and there is nothing
# wrong with a key that can be reached in two ways.
#
# </details>

# %%
share = []
for length in (16, 64, 256):
    q_l, k_l = rng.standard_normal((2, length, 8))
    w_l = rng.standard_normal((8, 2))
    whole = long_short.matrix(q_l, k_l, w_l, None, None, window=8)
    mixed_keys = projection(k_l, w_l).T @ k_l
    near = long_short.pattern(length, window=8)
    scores = np.where(near, q_l @ k_l.T / math.sqrt(8), -np.inf)
    total = np.exp(scores).sum(axis=1) + np.exp(q_l @ mixed_keys.T / math.sqrt(8)).sum(axis=1)
    direct = np.exp(scores).sum(axis=1) / total
    through_mixtures = np.where(near, whole, 0).sum(axis=1) - direct
    assert (through_mixtures > 0).all()
    share.append(float(through_mixtures.mean()))
assert share[0] > share[1] > share[2]
print("weight on near keys through mixtures, L = 16, 64, 256:", [f"{x:.3f}" for x in share])

# %% [markdown]
# **4. What a norm does not see.** Show from (6) that a row's gradient sums to 0 and, but for the $10^{-5}$, is
# orthogonal to $x - \mu$. What does that mean for a key that is to get more weight? And why do the gradients of the two
# key biases, near and far, add up to 0?
#
# <details><summary>Solution</summary>
#
# Sum (6) over $i$: $\sum_i dy_i - \sum_j dy_j - (\sum_i y_i) (\dots) = 0$, as $\sum_i y_i = 0$. Multiply by $y_i$ and
# sum: $\sum_i dy_i y_i - 0 - \tfrac1W \sum_i y_i^2 \sum_j dy_j y_j$, and $\tfrac1W \sum_i y_i^2 = \mathrm{var} /
# \sigma^2 = 1 - 10^{-5} / \sigma^2$. Neither the mean nor the length of a key can be used to get more weight: only its
# direction counts. So it is in random feature attention, which divides by the length but does not subtract the mean.
#
# The same step on both biases adds $s\, q_i \cdot b$ to all scores of query $i$, and softmax does not notice: only
# their difference matters.
#
# </details>

# %%
long = 100 * k
d_long = layer_norm.backward(g, layer_norm.forward(long, params)[1]).x
same(d_long.sum(axis=1), 0)
centred = long - long.mean(axis=1, keepdims=True)
cosine = (d_long * centred).sum(axis=1) / np.linalg.norm(d_long, axis=1) / np.linalg.norm(centred, axis=1)
assert abs(cosine).max() < 1e-7

_, saved = long_short.forward(q, k, v, w_p, norm_local, norm_global, window=w)
grads = long_short.backward(d_out, saved)
same(grads.norm_local[0][1] + grads.norm_global[0][1], 0)
assert abs(grads.norm_local[0][1]).max() > 0.1
print(f"cosine of the gradient and the centred row: {abs(cosine).max():.0e} at most")
print(
    "shifts of the keys' norms, near:", grads.norm_local[0][1].round(3), " mixtures:", grads.norm_global[0][1].round(3)
)

# %% [markdown]
# ## What to remember
#
# - The short term consists of segments with a margin: dense blocks with $2 w N$ pairs. The long term consists of $R$
#   mixtures of everything, weighted by content.
# - The dynamic projection is softmax attention of $R$ learned queries. It follows content, and fits any length.
# - Means are short: near keys and mixtures get a layer norm each before they meet in one softmax.
# - $P$ is not a constant: its gradient goes on into the keys and $W_p$.
# - The causal form has one projection per segment, which only later segments see. It makes $N^2 R / 2w$ pairs,
#   quadratic with a small factor, or $N^{3/2}$ with the best $w$.
#
# **Sources.** Zhu et al. (2021), *Long-short Transformer: efficient Transformers for language and vision*. Wang et al.
# (2020), *Linformer*. Ba, Kiros and Hinton (2016), *Layer normalization*. Lee et al. (2019), *Set Transformer* (learned
# queries).
