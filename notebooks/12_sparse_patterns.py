# %% [markdown]
# # 12. Sparse patterns: who looks at whom
#
# If every token may look at only a few others, which few should they be, so that the cost no longer grows with the
# square of the length and yet nothing stays out of reach?
#
# Linformer and the kernel methods change *what* is computed. Here softmax attention stays as it is, over fewer pairs:
# a window (Longformer), blocks and random blocks (BigBird), rows and columns of a picture (Sparse Transformer).
# You will see
#
# 1. one softmax over any set of pairs, computed in parts that are joined by their log-sum-exp, and its gradient;
# 2. windows, dilated windows and blocks, with their cost counted;
# 3. global tokens, and why a single one brings every pair of tokens within two steps;
# 4. random blocks, and what graph theory says about them;
# 5. Sparse Transformer's two patterns, and how many pairs they have: not $N \log N$.
#
# You need chapter 1, its online form above all. The letters are the same: $N$ queries, $L$ keys, widths $D$ and $M$.
# Unless said otherwise $L = N$.

# %% jupyter={"source_hidden": true}
import math
from functools import partial

import numpy as np
from matplotlib.colors import ListedColormap

from linattn_ref import gradcheck
from linattn_ref.attention import (
    bigbird,
    block_local,
    local,
    longformer,
    pattern_softmax,
    patterns,
    softmax,
    sparse_transformer,
)
from linattn_ref.attention.sparse import part
from linattn_ref.data.twelve_words import WORDS, vectors
from linattn_ref.experiments.measuring.counting import count, kept_bytes, peak_bytes
from linattn_ref.experiments.measuring.scaling import growth
from linattn_ref.experiments.publishing import chapter, style
from linattn_ref.experiments.sparse import pattern_graphs as graph_figure
from linattn_ref.experiments.sparse import pattern_pictures
from linattn_ref.theory import pattern_graphs

# Numbers of size 1 that have gone through some hundred roundings of 2.2e-16 each agree to this.
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-13)


def draw_inputs(seed, n, d=4, m=3):
    """q, k, v and a gradient of the output."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, width)) for width in (d, d, m, m)]


# %% [markdown]
# ## The smallest example, by hand
#
# Take four tokens with the values 1, 3, 8 and 4, and queries of 0, so that all scores are alike and each query
# averages the values that it may see. With a window of one key on both sides:
#
# | query | sees | output |
# | ---: | --- | ---: |
# | 1 | 1, 3 | 2 |
# | 2 | 1, 3, 8 | 4 |
# | 3 | 3, 8, 4 | 5 |
# | 4 | 8, 4 | 6 |
#
# There are ten pairs instead of sixteen. Over all sixteen, softmax attention would return 4 in each row.

# %%
no_scores, four_values = np.zeros((4, 2)), np.array([[1.0], [3.0], [8.0], [4.0]])
near_out, _ = local.forward(no_scores, no_scores, four_values, window=1)
print("window of 1:", near_out.ravel(), " pairs:", patterns.local(4, window=1).sum())
same(near_out.ravel(), [2, 4, 5, 6])

# %% [markdown]
# ## A softmax over a set
#
# Let $S_i$ be the keys that query $i$ may look at. With scores $a_{ij} = s\, q_i^\top k_j$, where $s = 1/\sqrt D$,
#
# $$P_{ij} = \frac{e^{a_{ij}}}{\sum_{j' \in S_i} e^{a_{ij'}}} \quad (j \in S_i), \qquad P_{ij} = 0 \quad (j \notin S_i),
# \qquad o_i = \sum_{j \in S_i} P_{ij}\, v_j$$
#
# A causal mask is one such family of sets, $S_i = \{j \le i\}$; all the mechanisms of this chapter are others. $S_i$ is
# a *set*: a key that is in it for two reasons counts once. The family, written out as a boolean matrix, is called the
# *pattern*. The module `patterns` writes them all out, for us to look at and for the tests; the mechanisms themselves
# never do.

# %%
chapter.source(patterns.local, patterns.block_local, doc=False)

# %% [markdown]
# The example is chapter 1's sentence, *the cat sat on the old mat and the dog slept too*. With a window of two words on
# each side, *old* sees *on the old mat and*, and can no longer find the cat:

# %%
q, k, v = vectors()
d_out = np.random.default_rng(0).standard_normal(v.shape)  # the gradient of some loss, for later
window = patterns.local(12, window=2)
P = patterns.matrix(q, k, window)
same(P.sum(axis=1), np.ones(12))
assert ((P > 0) == window).all()
same(local.forward(q, k, v, window=2)[0], P @ v)

renormalised = softmax.matrix(q, k) * window
same(renormalised / renormalised.sum(axis=1, keepdims=True), P)  # the full matrix, cut out and normalised again
for name, weights in (("all pairs", softmax.matrix(q, k)), ("window", P)):
    print(f"{WORDS[5]!r}, {name}:", *(f"{word} {p:.2f}" for word, p in zip(WORDS, weights[5], strict=True)))

# %% [markdown]
# What is lost is the weight that the full softmax puts outside the pattern. No pattern is an *approximation* for all
# inputs: if a key outside $S_i$ has a score that is 100 larger than all others, it is not seen. The patterns of
# this chapter are fixed before any text is read.
#
# ## Windows and blocks
#
# ![Local attention, drawn](../figures/schematic_local.svg)
#
# ![Block-local attention, drawn](../figures/schematic_block_local.svg)
#
# In a text most of what matters is near. A **sliding window** of $w$ keys on each side has $S_i = \{|i - j| \le w\}$,
# $2w + 1$ keys for most queries. **Dilated** by $d$ it takes every $d$-th key only,
#
# $$S_i = \{j : |i - j| \le w d,\ (i - j) \bmod d = 0\}$$
#
# which is as many keys, from $d$ times as far. And **blocks** of width $b$ are the easiest to program: cut the sequence
# into $N / b$ pieces, and apply softmax attention within each. A piece costs $b^2$ pairs, and all together cost
#
# $$b^2 \cdot \frac{N}{b} = N b$$
#
# which is linear in $N$. We count the multiply-adds:

# %%
rows = []
for n in (512, 1024, 2048):
    inputs = draw_inputs(1, n)[:3]
    for b in (32, 64):
        counted = count(lambda q, k, v, b=b: block_local.forward(q, k, v, block=b)[0], *inputs)
        assert patterns.block_local(n, block=b).sum() == n * b == b**2 * (n // b)
        assert counted.multiply_adds == n * b * (4 + 3)  # claim 41: D + M for each of the N b pairs
        rows.append((n, b, n * b, counted.multiply_adds, n * n * (4 + 3)))
chapter.table(("N", "b", "pairs", "multiply-adds", "all pairs"), rows)

# %% [markdown]
# Blocks have a price: two neighbours on either side of a border never see each other, however many layers there are. A
# window has no such borders. After $t$ layers, what token $j$ knew has travelled $t w d$ places ($d = 1$ without
# dilation). With the same dilation in all layers there are borders of another kind: token $i$ never learns of $i + 1$.

# %%
assert pattern_graphs.diameter(patterns.block_local(24, block=8)) == math.inf
assert pattern_graphs.diameter(patterns.local(24, window=3, dilation=2)) == math.inf
for w in (1, 2, 5):
    steps = pattern_graphs.steps(patterns.local(24, window=w))
    distance = abs(np.arange(24)[:, None] - np.arange(24))
    assert (steps == np.ceil(distance / w)).all()
    print(f"24 tokens, window {w}: {steps.max():.0f} layers from one end to the other")


# %%
def panel(axes, layers):
    reached = [pattern_graphs.steps(pattern) <= layers for pattern in (plain, dilated, starred)]
    for ax, seen, title in zip(axes, reached, ("window", "dilated", "window, one global"), strict=True):
        ax.imshow(seen, cmap=ListedColormap(["white", style.BLUE]), vmin=0, vmax=1)
        ax.grid(False)
        ax.set(xticks=[], yticks=[], ylabel=title)
        ax.spines[:].set_visible(True)


plain = patterns.local(48, window=3)
dilated = patterns.local(48, window=3, dilation=2)
starred = patterns.longformer(48, window=3, global_tokens=[20])
chapter.explore(
    panel,
    (1, 2, 3, 6),
    name="layers",
    slider=range(1, 17),
    rows=3,
    height=0.8,
    alt="Which output depends on which input after 1, 2, 3 and 6 layers: a band that widens, a band with gaps that "
    "stay, and with one global token everything from the second layer on",
)

# %% [markdown]
# Rows are outputs, columns inputs: blue is what can have arrived. The last row is the surprise of this chapter; we come
# to it below.
#
# ### A dilated window is a plain one
#
# How does one compute a window without the $N \times N$ matrix? PyTorch and TensorFlow have no products of two matrices
# of which only a band is computed, so Longformer's authors wrote their own CUDA kernel (Beltagy et al. 2020, section
# 3.2). Ours takes *intervals*: query $i$ sees the keys at places $p$ with $low_i \le p < high_i$. Dilation does not
# seem to fit in. But query $i$ sees only keys of its own residue, $j \bmod d = i \bmod d$. Sort the keys by residue,
# and within a residue by position. Now the keys that a query sees are neighbours, and its window is an interval again.

# %%
d, w = 3, 2
order = np.argsort(np.arange(12) % d, kind="stable")
print("keys in their new order:", *order)
sorted_pattern = patterns.local(12, window=w, dilation=d)[:, order]
for row in sorted_pattern:
    first, last = np.flatnonzero(row)[[0, -1]]
    assert row[first : last + 1].all()  # an interval
(band,) = local.parts_of(12, 12, window=w, dilation=d)
assert (band.keys == order).all()
chapter.source(local.parts_of, doc=False)

# %% [markdown]
# ## Parts, joined by their log-sum-exp
#
# A window *and* some global keys are no interval. But the set can be cut into simple parts, $S_i = A \cup B$. If the
# two have no key in common, the softmax over the union can be put together from the softmaxes over the parts. For a
# set $A$ of keys let
#
# $$z_A = \log \sum_{j \in A} e^{a_j}, \qquad o_A = \sum_{j \in A} e^{a_j - z_A}\, v_j$$
#
# be its log-sum-exp and its output. Then $e^{z_A} o_A = \sum_{j \in A} e^{a_j} v_j$ is the sum *before* it is
# normalised, and sums over disjoint sets add up:
#
# $$e^{z} = e^{z_A} + e^{z_B}, \qquad e^{z} o = e^{z_A} o_A + e^{z_B} o_B$$
#
# $$z = \log (e^{z_A} + e^{z_B}), \qquad o = e^{z_A - z}\, o_A + e^{z_B - z}\, o_B$$
#
# In other words, this is a softmax over *two* keys, with the scores $z_A$, $z_B$ and the values $o_A$, $o_B$. What has
# been seen so far is one more key in the next part. In this way the parts can come one after the other, in any order
# and number. Chapter 1's online softmax is the special case in which every part is a tile of keys. An empty set has $z
# = -\infty$ and $o = 0$, and changes nothing.
#
# In the sentence, let *cat* and *and* be seen by every word, in addition to its window:

# %%
near, columns = part.band(12, 12, -2, 2, without=[1, 7]), part.columns(12, 12, [1, 7])  # "cat" and "and"
over = partial(pattern_softmax.forward, q, k, v)
(o_a, saved_a), (o_b, saved_b), (o, saved) = (over(pattern) for pattern in ((near,), (columns,), (near, columns)))
joined = np.logaddexp(saved_a.lse, saved_b.lse)
same(saved.lse, joined)
same(o, np.exp(saved_a.lse - joined) * o_a + np.exp(saved_b.lse - joined) * o_b)
same(over((columns, near))[0], o)  # in any order
assert not (set(zip(*part.pairs((near,)), strict=True)) & set(zip(*part.pairs((columns,)), strict=True)))  # disjoint

share = np.exp(saved_b.lse - joined)[5, 0]
print(f"of the weight of {WORDS[5]!r}, {share:.2f} is on the two global words")
chapter.source(pattern_softmax.forward, pattern_softmax.scores_by_tile, doc=False)

# %% [markdown]
# (The numbers in the code are those of its module's docstring, and of online softmax's.) `tiles_of` returns 32 queries
# at a time, the keys that any of them can see, and which query sees which key. So the cost is proportional to the
# pairs; here the corners of tiles nearly double it. Nothing of size $N^2$ is made, not even of booleans.

# %%
rows = []
for n in (1024, 2048, 4096):
    inputs = draw_inputs(3, n)
    allowed = longformer.parts_of(n, window=16, global_tokens=[0, 100])
    pairs = part.count_pairs(allowed)
    assert abs(pairs - n * (2 * 16 + 1 + 2)) < 500  # the window is shorter at the ends, and the two are in it somewhere
    work = count(lambda q, k, v, allowed=allowed: pattern_softmax.forward(q, k, v, allowed), *inputs[:3])
    peak = peak_bytes(pattern_softmax.forward, *inputs[:3], allowed)
    assert pairs * (4 + 3) < work.multiply_adds < 2.2 * pairs * (4 + 3)
    assert peak < n * n / 2  # bytes; a boolean matrix has n * n
    rows.append((n, pairs, pairs / n**2, work.multiply_adds / pairs, round(peak / 1024)))
assert abs(growth([row[0] for row in rows], [row[1] for row in rows]).exponent - 1) < 0.01  # linear
chapter.table(("N", "pairs", "share of all", "multiply-adds per pair, D + M = 7", "KiB at the peak"), rows)

# %% [markdown]
# ## The gradient, by hand
#
# Let $\ell$ be the loss and $G = \partial \ell / \partial O$. Start from chapter 1's backward pass and see what a
# missing pair does to it.
#
# **Step 1: values.** $o_i = \sum_{j \in S_i} P_{ij} v_j$, so $v_j$ occurs in the rows $i$ that see it:
#
# $$dv_j = \sum_{i : j \in S_i} P_{ij}\, G_i$$
#
# **Step 2: weights.** $dP_{ij} = G_i^\top v_j$ for $j \in S_i$. The other $P_{ij}$ are constants 0.
#
# **Step 3: scores.** Row $i$ of $P$ is the softmax of the scores $a_{ij'}$ with $j' \in S_i$. Its derivative is the one
# of chapter 1, on a shorter vector: $\partial P_{ij} / \partial a_{ij'} = P_{ij} (\delta_{jj'} - P_{ij'})$. So
#
# $$da_{ij'} = \sum_{j \in S_i} dP_{ij} P_{ij} (\delta_{jj'} - P_{ij'})
# = P_{ij'} \Big( dP_{ij'} - \sum_{j \in S_i} dP_{ij} P_{ij} \Big)$$
#
# **Step 4: the row sum needs no pairs.** $\sum_{j \in S_i} P_{ij}\, G_i^\top v_j = G_i^\top o_i$. It can be computed
# before any pair is looked at, from the *whole* row's output:
#
# $$da_{ij} = P_{ij}\, (G_i^\top v_j - G_i^\top o_i), \qquad P_{ij} = e^{a_{ij} - z_i}$$
#
# **Step 5: queries and keys.** $a_{ij} = s\, q_i^\top k_j$:
#
# $$dq_i = s \sum_{j \in S_i} da_{ij}\, k_j, \qquad dk_j = s \sum_{i : j \in S_i} da_{ij}\, q_i$$
#
# Once $z_i$ and $o_i$ of the whole row are known, **each pair has its gradient by itself**. The parts may
# be visited in any order, and their contributions are added. No part needs to know the others. The sums for $dv_j$ and
# $dk_j$ go along the *columns* of the pattern: over the queries that see $j$. For a window that is a window again; for
# a causal one, the keys before become the queries after.

# %%
chapter.source(pattern_softmax.backward, doc=False)

# %%
for forward, backward in (
    (partial(local.forward, window=2), local.backward),
    (partial(local.forward, window=2, dilation=2, causal=True), local.backward),
    (partial(block_local.forward, block=4), block_local.backward),
):
    report = gradcheck.check_elementwise(forward, backward, q, k, v, rng=np.random.default_rng(5))
    report.assert_ok()
print(report)

# %% [markdown]
# The typical mistake is in step 4: to treat a part as a row of its own, with *its* log-sum-exp and *its* output. The
# result for each part is then a correct gradient, but of another function. $dv$ comes out too large, since the weights
# of every part sum to 1. With the two parts of our example, the sum over them is twice as large as it should
# be. The right way adds up:

# %%
right = pattern_softmax.backward(d_out, saved)
by_parts = [pattern_softmax.backward(d_out, of_part) for of_part in (saved_a, saved_b)]
same(right.v.sum(axis=0), d_out.sum(axis=0))  # every row's weights sum to 1
wrong = sum(gradients.v for gradients in by_parts)
same(wrong.sum(axis=0), 2 * d_out.sum(axis=0))

in_turn = [pattern_softmax.backward(d_out, saved._replace(pattern=(one,))) for one in (near, columns)]
for whole, first, second in zip(right, *in_turn, strict=True):
    same(first + second, whole)  # with the whole row's output and sum: shares that add up
print("sums of the values' gradients:", right.v.sum(axis=0).round(2), " part by part:", wrong.sum(axis=0).round(2))

# %% [markdown]
# Between the passes we keep the inputs, the output, two numbers per row, and the pattern. The pattern is a few numbers
# per query, however wide the window is, and is stored once for all heads. It depends on integers alone. So a model that
# calls again and again with the same length reuses the pattern that was built first.

# %%
for n in (256, 512):
    given = draw_inputs(6, n)[:3]
    _, saved = local.forward(*given, window=8)
    assert kept_bytes(saved) - kept_bytes((*given, saved.pattern)) == n * (3 + 2) * 8
    assert kept_bytes(saved.pattern) < 5 * n * 8
    _, again = local.forward(*given, window=8)
    assert again.pattern is saved.pattern
chapter.source(local.forward, local.Saved, doc=False)

# %% [markdown]
# ## Longformer: global tokens
#
# ![Longformer, drawn](../figures/schematic_longformer.svg)
#
# A window alone needs $(N - 1) / w$ layers until the first token can know of the last. Longformer adds a few **global
# tokens** $\mathcal G$, chosen by the task, for example the classification token or the tokens of a question. A global
# token sees everything, and everything sees it:
#
# $$S_i = W_i \cup \mathcal G \quad (i \notin \mathcal G), \qquad S_g = \{1 \dots N\} \quad (g \in \mathcal G)$$
#
# The first row is the paper's Figure 2. Below it are the pictures of the other two papers:

# %%
pictures = pattern_pictures.compute(rng=np.random.default_rng(0))
chapter.show(
    pattern_pictures.draw,
    pictures,
    alt="Longformer: full, window, dilated window, global and window. BigBird: random, window, global, all three. "
    "Sparse Transformer: strided and fixed, as matrices and as seen from one pixel",
)
full, banded, gaps, starred = (picture.reasons > 0 for picture in pictures.longformer)


def pairs_where(condition, n=16):
    """The pattern of a condition on i and j, asked pair by pair."""
    return np.array([[bool(condition(i, j)) for j in range(n)] for i in range(n)])


# Longformer, section 3.1, typed anew: w / 2 tokens on each side (w = 4), gaps of d = 2, and the global tokens.
two_apart = (-4, -2, 0, 2, 4)
assert full.all()  # claim 34: (a) all pairs,
assert (banded == pairs_where(lambda i, j: i - 2 <= j <= i + 2)).all()  # (b) a band,
assert (gaps == pairs_where(lambda i, j: j - i in two_apart)).all()  # (c) the same number, further apart,
see_all = {0, 5, 15}
assert (
    starred == pairs_where(lambda i, j: i - 2 <= j <= i + 2 or {i, j} & see_all)
).all()  # (d) and three global tokens
print(f"cells of the window: {banded.sum()}, with the global tokens: {starred.sum()}")

# %% [markdown]
# Two details matter. A key that is in the window of $i$ *and* global must not count twice, so the window's part leaves
# the global keys out. And a global token plays another role than an ordinary one, so its row has projections of its
# own: `q_global`, `k_global`, `v_global`. Ordinary rows use `k` and `v` for all keys, the global ones too.

# %%
chapter.source(longformer.forward, longformer.parts_of, doc=False)

# %%
others = [x + 0.3 * np.random.default_rng(7).standard_normal(x.shape) for x in (q, k, v)]  # projections of their own
arrays, tokens = [q, k, v, *others], [1, 7]  # cat, and
out, saved = longformer.forward(*arrays, window=2, global_tokens=tokens)
q_global, k_global, v_global = others
ordinary = patterns.matrix(q, k, patterns.longformer(12, window=2, global_tokens=tokens)) @ v
globally = softmax.matrix(q_global, k_global) @ v_global
is_global = np.isin(np.arange(12), tokens)
same(out, np.where(is_global[:, None], globally, ordinary))
print(f"{WORDS[7]!r}, global:", out[7].round(3), " by the formula of ordinary words:", ordinary[7].round(3))

# %% [markdown]
# **Its backward pass.** The output has two kinds of rows, which share no input. Cut $G$ into those rows. The gradients
# of `q`, `k`, `v` are those of the pattern, in which global queries see nothing; those of `q_global`, `k_global`,
# `v_global` come from softmax attention of $|\mathcal G|$ queries. What has no influence has gradient 0: the rows of
# `q` that are global, and the rows of `q_global` that are not.

# %%
chapter.source(longformer.backward, doc=False)

gradients = longformer.backward(d_out, saved)
assert not gradients.q[is_global].any()
assert not gradients.q_global[~is_global].any()
report = gradcheck.check_elementwise(
    partial(longformer.forward, window=2, global_tokens=[0, 4]),
    longformer.backward,
    *(x[:7] for x in arrays),
    rng=np.random.default_rng(8),
)
print(report)
report.assert_ok()

# %% [markdown]
# ## The star
#
# Take a pattern as a **graph**: tokens are nodes, and an edge leads from $i$ to each $j \in S_i$. One layer of
# attention moves information along one edge. Then the number of layers until output $i$ can depend on input $j$ is the
# number of steps from $i$ to $j$; the residual connection lets a token stay where it is.
#
# Let there be one global token $g$, and take any $i$ and $j$. Then $g \in S_i$, as all see $g$, and $j \in S_g$, as $g$
# sees all. So $i \to g \to j$ is a path: **every pair is at most two steps apart**, whatever the length, and whatever
# else is in the pattern. This graph is called a *star*, and it is what BigBird's proofs rest on (Zaheer et al. 2020,
# section 3): two layers can route anything anywhere, through the centre.

# %%
chapter.source(pattern_graphs.steps, pattern_graphs.within_steps, doc=False)

for n in (10, 100, 400):
    alone = patterns.longformer(n, window=1, global_tokens=[])
    with_one = patterns.longformer(n, window=1, global_tokens=[n // 3])
    assert pattern_graphs.diameter(alone) == n - 1
    assert pattern_graphs.within_steps(with_one, 2)  # claim 35
    assert pattern_graphs.within_steps(patterns.bigbird(n, block=4, global_blocks=(1,)), 2)

# Both directions are needed. A token that only sees, or is only seen, is no centre:
for where in ((20, slice(None)), (slice(None), 20)):
    one_way = patterns.local(60, window=1)
    one_way[where] = True
    assert not pattern_graphs.within_steps(one_way, 2)

# %% [markdown]
# In numbers, take layers of attention with a residual connection, $X \mapsto X + P(X) X$. Change the last token and
# look at the first. After one layer not a bit has changed. After two layers the change has arrived, through token 30;
# without a global token it has not.


# %%
def two_layers(x, allowed, layers):
    for _ in range(layers):
        x = x + patterns.matrix(x, x, allowed) @ x
    return x


x = np.random.default_rng(9).standard_normal((60, 8))
moved = x.copy()
moved[-1] += 1.0
for tokens, layers, arrives in (([30], 1, False), ([30], 2, True), ([], 2, False)):
    allowed = patterns.longformer(60, window=2, global_tokens=tokens)
    change = two_layers(moved, allowed, layers)[0] - two_layers(x, allowed, layers)[0]
    assert change.any() == arrives
    assert arrives == (pattern_graphs.steps(allowed)[0, -1] <= layers)
    print(f"global tokens {tokens}, {layers} layers: the first output moves by {abs(change).max():.1e}")

# %% [markdown]
# BigBird's authors prove what the star is good for in theory (their section 3). Let the inputs be bounded, and take the
# error in the mean. Then a sparse attention whose graph contains a star can come as near as one likes to any continuous
# function from sequences to sequences, as full attention can (Theorem 1). A sparse encoder and decoder can simulate any
# Turing machine, if numbers of arbitrary precision are assumed (section 3.3). The random blocks are not needed for
# either.
#
# How much arrives is another matter: all $N$ tokens share the $M$ numbers of the centre. The authors name the limit
# themselves (section 3.4). Their task is to find, for each of $N$ unit vectors, the one furthest from it. It takes
# one layer of full attention; for sparse attention with about $N$ pairs it takes about $N$ layers, if a widely
# believed conjecture holds (that of orthogonal vectors, Proposition 1). At $N$ layers of $N$ pairs nothing is saved.
#
# > **A break.** A pattern says which pairs count, and softmax over it has softmax's gradient. Windows and blocks see
# > what is near; a global token joins any two tokens in two steps. After the break come random blocks, causal patterns,
# > and what all of them cost.
#
# ## BigBird: blocks, random ones among them
#
# ![BigBird, drawn](../figures/schematic_bigbird.svg)
#
# BigBird cuts the sequence into blocks of $b$ tokens and works with whole blocks, because that suits memory and matrix
# units. A block of queries sees a window of $w$ blocks in all, $g$ global blocks and $r$ random blocks. They are drawn
# once: `random_blocks` is an argument.

# %%
chapter.source(bigbird.parts_of, bigbird.draw_random_blocks, doc=False)

# %%
q, k, v, d_out = draw_inputs(10, 62)  # longer than the sentence: eight blocks of 8, the last one of 6
drawn = bigbird.draw_random_blocks(8, 2, np.random.default_rng(11))
out, saved = bigbird.forward(q, k, v, block=8, random_blocks=drawn)
same(out, patterns.matrix(q, k, patterns.bigbird(62, block=8, random_blocks=drawn)) @ v)
for b, row in enumerate(drawn[1:-1], 1):  # the first and the last block are global and see all
    covered = {0, 7, b - 1, b, b + 1}
    assert len({*covered, *row}) == len(covered) + 2  # none of them already covered

report = gradcheck.check_directions(
    partial(bigbird.forward, block=8, random_blocks=drawn), bigbird.backward, q, k, v, rng=np.random.default_rng(12)
)
print(report)
report.assert_ok()

# %% [markdown]
# ### Rolling the keys
#
# The paper's appendix D has a trick for the window, for hardware that has only dense products. Put the key blocks into
# an array $(N/b,\, b,\, D)$, **roll** it by one block up, by none and by one down, and lay the three copies side by
# side. Row $n$ then holds the blocks $n - 1$, $n$ and $n + 1$, which is all that query block $n$ needs, in one dense
# array $(N/b,\, 3b,\, D)$. One batched product computes all scores of the window, without gathering and without a band.
# What was rolled around the end is not in the window and must be masked. The cell compares this with `bigbird.forward`
# for windows of one, three and five blocks:


# %%
def window_by_rolling(q, k, v, block, window_blocks):
    q_b, k_b, v_b = (x.reshape(-1, block, x.shape[1]) for x in (q, k, v))  # (blocks, b, D)
    half = window_blocks // 2
    shifts = range(half, -half - 1, -1)
    near_k, near_v = (np.concatenate([np.roll(x, shift, axis=0) for shift in shifts], axis=1) for x in (k_b, v_b))
    scores = q_b @ near_k.swapaxes(1, 2) / math.sqrt(q.shape[1])  # (blocks, b, w b)
    own = np.arange(len(k_b))
    there = np.stack([np.roll(own, shift) for shift in shifts], axis=1)  # (blocks, w), whose keys lie where
    inside = np.repeat(abs(there - own[:, None]) <= half, block, axis=1)  # (blocks, w b)
    weights = np.where(inside[:, None], np.exp(scores - scores.max(axis=-1, keepdims=True)), 0)
    out = weights / weights.sum(axis=-1, keepdims=True) @ near_v  # (blocks, b, M)
    return out.reshape(len(q), -1)


q, k, v, d_out = draw_inputs(13, 64)
for window_blocks in (1, 3, 5):
    kernel, _ = bigbird.forward(q, k, v, block=8, window_blocks=window_blocks, global_blocks=())
    same(window_by_rolling(q, k, v, 8, window_blocks), kernel)  # claim 35
    work = count(partial(window_by_rolling, block=8, window_blocks=window_blocks), q, k, v)
    assert work.multiply_adds == 64 * window_blocks * 8 * (4 + 3)  # N w b pairs, those rolled around among them
    print(f"{window_blocks} blocks: first output", kernel[0].round(3), f" {work.multiply_adds:,} multiply-adds")

# %% [markdown]
# The copies cost $w$ times the memory of keys and values, and the trick asks for whole blocks. Random blocks are
# gathered in the same layout, $r$ more blocks side by side.
#
# ### What are the random blocks good for?
#
# The idea comes from random graphs: if every node is joined to a few others at random, the shortest path between any
# two has about $\log N$ steps. It also comes from *small worlds* (Watts and Strogatz 1998): real networks have short
# paths *and* many triangles, my friends being friends of each other. A window has triangles and long paths, a random
# graph short paths and hardly any triangles. Put together they have short paths, and more triangles than chance alone.
# They have fewer triangles than the window, as most neighbours of a block are then random ones. The share of closed
# triangles is the *clustering coefficient*:

# %%
chapter.source(pattern_graphs.clustering, doc=False)

results = graph_figure.compute(rng=np.random.default_rng(14), blocks=(16, 32, 64, 128, 256), draws=3)
chapter.show(
    graph_figure.draw,
    results,
    alt="Layers until all see all: linear for a window, about logarithmic with random blocks, two with a global "
    "block. Clustering: high for a window, towards 0 for random blocks. Pairs: slopes 2, 1.5, 1.5, 1",
)

# %%
blocks = np.array(results.blocks)
layers = {name: np.median(graph.diameter, axis=1) for name, graph in results.graphs.items()}
assert (layers["window"] == np.ceil((blocks - 1) / 2)).all()
assert (layers["window + random"] <= 1 + np.log2(blocks)).all()
for name, parts_of_it in graph_figure.PARTS.items():
    assert (layers[name] == 2).all() == parts_of_it.whole  # claim 35: with a global block two, without more
clustered = {name: graph.clustering[-1][0] for name, graph in results.graphs.items()}
assert clustered["window"] > 0.5 > clustered["window + random"] > 3 * clustered["random"]
assert clustered["global"] == 0  # the centre's neighbours do not know each other
print("clustering:", {name: round(float(x), 2) for name, x in clustered.items()})

# %% [markdown]
# Note two more things. First, random blocks by themselves do *not* connect: query blocks choose which blocks they see,
# and nothing makes sure that each block is chosen. Each of the others misses a given block with probability $1 -
# \frac{r}{N/b - 1}$. All of them miss it with probability about $e^{-r}$, which for $r = 3$ is 5%. What is in such a
# block never gets out of it, however many layers there are. A window or a centre repairs that.

# %%
expected = math.exp(-graph_figure.RANDOM)
assert abs(np.mean(results.unseen) - expected) < 4 * math.sqrt(expected / (len(results.unseen) * blocks[-1]))
assert np.isinf(layers["random"][-1])
print(f"seen by no other block: {np.mean(results.unseen):.1%} measured, exp(-3) = {expected:.1%}")

# %% [markdown]
# Second, where there is a global block, the diameter is 2 with random blocks and without: as said above, the theorems
# do not need them. What they may be good for is that not everything has to pass through the centre.
#
# ## Sparse Transformer: two patterns, causal
#
# ![Sparse Transformer, drawn](../figures/schematic_sparse_transformer.svg)
#
# Child et al. (2019) looked for causal patterns in which every token reaches every *earlier* one in two steps, with
# as few pairs as possible. With $l$ the *stride* and $c$ the length of a *summary*, they use, among the keys $j \le
# i$:
#
# $$\text{strided:} \quad j > i - l \quad\text{or}\quad (i - j) \bmod l = 0$$
#
# $$\text{fixed:} \quad \lfloor j / l \rfloor = \lfloor i / l \rfloor \quad\text{or}\quad j \bmod l \ge l - c$$
#
# In a picture whose rows are $l$ pixels long, read row by row, strided is "the last $l$ pixels, and the column above"
# (the third row of the pictures). In a text there are no columns, and fixed lets the last $c$ places of each block
# stand for it. Lecture notes D of this course's [sources](README.md) print one condition of each, with $N$ for our $l$:
# the block, $\lfloor j / N \rfloor = \lfloor i / N \rfloor$, and the column, $(i - j) \bmod N = 0$.

# %%
chapter.source(patterns.sparse_transformer, sparse_transformer.parts_of, doc=False)

# %%
n, l = 49, 7
past = np.tri(n, dtype=bool)
for kind in ("strided", "fixed"):
    merged = patterns.sparse_transformer(n, kind=kind, stride=l)
    assert ((pattern_graphs.steps(merged) <= 2) == past).all()  # every earlier token, in two steps; no later one
block = patterns.block_local(n, block=l, causal=True)
column = patterns.sparse_transformer(n, kind="strided_only", stride=l)
nearby = patterns.sparse_transformer(n, kind="local_only", stride=l)
assert (nearby @ column == past).all()  # the two in turns: one step of each reaches everything

# Child et al. (2019), section 4.3, typed anew: which keys one query sees in the first head, and which in the second.
strided, fixed = (patterns.sparse_transformer(n, kind=kind, stride=l, summary=2) for kind in ("strided", "fixed"))
for i in range(n):
    earlier = range(i + 1)
    within = set(range(max(0, i - l), i + 1))
    above = {j for j in earlier if (i - j) % l == 0}
    same_block = {j for j in earlier if math.floor(j / l) == math.floor(i / l)}
    last_two = {j for j in earlier if j % l in (l - 2, l - 1)}
    assert set(np.flatnonzero(strided[i])) == within | above  # claim 42: the formulas
    assert set(np.flatnonzero(fixed[i])) == same_block | last_two
    assert set(np.flatnonzero(column[i])) == above
    assert set(np.flatnonzero(nearby[i])) == within - {i - l}  # one fewer than in the paper's first head
    assert set(np.flatnonzero(block[i])) == same_block
print("token 30 sees, strided:", *np.flatnonzero(strided[30]), " fixed:", *np.flatnonzero(fixed[30]))

# %% [markdown]
# Both conditions at once are one softmax over their union (`strided`, `fixed`). Or one is used in one head or layer and
# the other in the next (`local_only` and `strided_only`; `block_local` and `fixed_summary`). The union is the paper's;
# `local_only` by itself leaves out the key at distance $l$, which the column has. Alone, `fixed_summary` leaves the
# first $l - c$ tokens with nothing to see: their output is 0, by the convention of this package, and so is every
# gradient through them.

# %%
q, k, v, d_out = draw_inputs(15, 30)
for kind in patterns.KINDS:
    options = {"kind": kind, "stride": 5, "summary": 2}
    out, saved = sparse_transformer.forward(q, k, v, **options)
    same(out, sparse_transformer.matrix(q, k, **options) @ v)
    gradcheck.check_directions(
        partial(sparse_transformer.forward, **options),
        sparse_transformer.backward,
        q,
        k,
        v,
        rng=np.random.default_rng(16),
    ).assert_ok()
    unseeing = ~patterns.sparse_transformer(30, **options).any(axis=1)
    assert unseeing.sum() == (3 if kind == "fixed_summary" else 0)
    assert not out[unseeing].any()
    assert not sparse_transformer.backward(d_out, saved).q[unseeing].any()
    print(f"{kind}: gradients as finite differences; {unseeing.sum()} queries see nothing")

# %% [markdown]
# ### How many pairs?
#
# Count along a row. Let $i = \alpha l + \beta$ with $\beta < l$, counting from 0. The window has $\min(i + 1, l)$ keys.
# The column has $\alpha + 1$, and one of them is the query's own, which is in the window already. So the strided row
# has $l + \alpha$ keys, except in the first $l$ rows. As $\alpha$ runs from $0$ to $N / l$, all rows together have
# about
#
# $$N l + \frac{N^2}{2 l}$$
#
# The fixed row has $\beta + 1$ keys in its block and $\alpha c$ summaries: about $\frac{N l}{2} + \frac{c N^2}{2 l}$.
# With $l = \sqrt N$ (and $c = 1$) that is $\frac32 N^{1.5}$ and $N^{1.5}$.
#
# **The same notes put them under the heading "memory $O(N \log N)$". That is not what this pattern has.** With $l$
# fixed it is quadratic. With $l = \sqrt N$ it is $N^{1.5}$, as the paper says (section 4.2), and no $l$ lowers the
# exponent, as exercise 1 shows. We count without the matrix, up to lengths at which no matrix would fit into memory:

# %%
chapter.source(pattern_graphs.pairs_per_row, doc=False)

for kind in patterns.KINDS:
    dense = patterns.sparse_transformer(200, kind=kind, stride=14, summary=3)
    assert (pattern_graphs.pairs_per_row(200, kind=kind, stride=14, summary=3) == dense.sum(axis=1)).all()

lengths = [4**e for e in range(4, 11)]
rows = []
for kind, leading in (("strided", 1.5), ("fixed", 1.0)):
    counts = [pattern_graphs.pairs(n, kind=kind, stride=math.isqrt(n)) for n in lengths]
    fitted = growth(lengths, counts)
    assert abs(fitted.exponent - 1.5) < 0.005  # claim 42: N^1.5
    assert abs(counts[-1] / lengths[-1] ** 1.5 - leading) < 0.002
    assert counts[-1] > 50 * lengths[-1] * math.log2(lengths[-1])  # and not N log N, at a million tokens
    rows.append((f"{kind}, stride sqrt(N)", *counts[::2], fitted.exponent))
n_log_n = [round(n * math.log2(n)) for n in lengths]
assert growth(lengths, n_log_n).exponent < 1.1
rows.append(("N log N, to base 2", *n_log_n[::2], growth(lengths, n_log_n).exponent))
fixed_stride = [pattern_graphs.pairs(n, kind="strided", stride=32) for n in lengths]
rows.append(("strided, stride 32", *fixed_stride[::2], growth(lengths, fixed_stride).exponent))
assert rows[-1][-1] > 1.9
header = ("pairs", *(f"N = {n:,}" for n in lengths[::2]), "exponent, upper half")
chapter.table(header, rows)

# %% [markdown]
# ## What it costs, side by side
#
# The table has the pairs of each pattern at $N = 4096$. It also has the number of layers until every token can know of
# every other (or of every earlier one, if causal), from its graph at a sixteenth of the length.

# %%
n, small, rng = 4096, 256, np.random.default_rng(17)
drawn, drawn_small = bigbird.draw_random_blocks(64, 3, rng), bigbird.draw_random_blocks(64, 3, rng)
sets = {
    "all pairs": ((part.columns(n, n, np.arange(n)),), np.ones((small, small), bool)),
    "window of 256 on each side": (local.parts_of(n, n, window=256), patterns.local(small, window=16)),
    "the same and one global token": (
        longformer.parts_of(n, window=256, global_tokens=[0]),
        patterns.longformer(small, window=16, global_tokens=[0]),
    ),
    "blocks of 64": (block_local.parts_of(n, n, block=64), patterns.block_local(small, block=4)),
    "BigBird: block 64, w = 3, g = 2, r = 3": (
        bigbird.parts_of(n, block=64, random_blocks=drawn),
        patterns.bigbird(small, block=4, random_blocks=drawn_small),
    ),
    **{
        f"{kind}, stride sqrt(N), causal": (
            sparse_transformer.parts_of(n, n, kind=kind, stride=64),
            patterns.sparse_transformer(small, kind=kind, stride=16),
        )
        for kind in ("strided", "fixed")
    },
}
rows = []
for name, (allowed, graph) in sets.items():
    wanted = np.tri(small, dtype=bool) if "causal" in name else np.ones((small, small), bool)
    pairs, needed = part.count_pairs(allowed), pattern_graphs.steps(graph)[wanted].max()
    pairs += n if "token" in name else 0  # its row, which is not in the parts, sees all n
    rows.append((name, pairs, n * n / pairs, "never" if math.isinf(needed) else f"{needed:.0f}"))
chapter.table(("pattern", "pairs", "times fewer", "layers"), rows)
assert [row[-1] for row in rows] == ["1", "16", "2", "never", "2", "2", "2"]
assert rows[3][1] == n * 64  # claim 41: N b

# %% [markdown]
# Fewer pairs do not yet mean less time: large dense products run at the processor's full speed, a band does not.
# `linattn-ref bench patterns` measures both.
#
# ## Exercises
#
# **1. The best stride.** Which $l$ makes the strided pattern's number of pairs smallest, to leading order? Which
# $l$ does so for the fixed pattern? How many pairs are there then? Can any $l$ lead to $N \log N$?
#
# <details><summary>Solution</summary>
#
# $f(l) = N l + \frac{N^2}{2 l}$ has $f'(l) = N - \frac{N^2}{2 l^2} = 0$ at $l = \sqrt{N / 2}$, where window and column
# cost the same, and $f = \sqrt 2\, N^{1.5}$. It is the minimum: whatever the stride, this pattern has at least $\sqrt
# 2\, N^{1.5}$ pairs to leading order, more than any multiple of $N \log N$ in the end. For the fixed pattern
# $\frac{N l}{2} + \frac{c N^2}{2 l}$ is smallest at $l = \sqrt{c N}$, and there it is $\sqrt c\, N^{1.5}$.
#
# </details>

# %%
for n in (400, 4096, 20000):
    best = pattern_graphs.best_stride(n)
    assert abs(best - math.sqrt(n / 2)) < 2
fewest = pattern_graphs.pairs(n, kind="strided", stride=best)
assert abs(fewest / (math.sqrt(2) * n**1.5) - 1) < 0.02
assert fewest < pattern_graphs.pairs(n, kind="strided", stride=math.isqrt(n))
print(f"N = {n:,}: best stride {best}, the root of N / 2 is {math.sqrt(n / 2):.1f}")
for c in (1, 4):
    of_fixed = {l: pattern_graphs.pairs(n, kind="fixed", stride=l, summary=c) for l in range(50, 500)}
    best = min(of_fixed, key=of_fixed.get)
    assert abs(best / math.sqrt(c * n) - 1) < 0.01
    assert abs(of_fixed[best] / (math.sqrt(c) * n**1.5) - 1) < 0.01
    print(f"fixed, c = {c}: best stride {best}, the root of c N is {math.sqrt(c * n):.1f}")

# %% [markdown]
# **2. Dilation that doubles.** Let layer $t = 0, 1, 2, \dots$ have a window of $w$ keys on each side with dilation
# $2^t$. How far does a token see after $T$ layers? Are there gaps? How many pairs are there altogether in the layers
# that it takes to see everything?
#
# <details><summary>Solution</summary>
#
# The distances that can be covered are $\sum_t m_t 2^t$ with $|m_t| \le w$. For $w \ge 1$ these are all integers up to
# $w (2^T - 1)$ in absolute value: with $m_t \in \{0, 1\}$ every number below $2^T$ is written in binary, and a sum of
# $w$ such numbers has $m_t \le w$. So there are no gaps, and it takes $T = \lceil \log_2(1 + \frac{N - 1}{w}) \rceil$
# layers. With at most $(2 w + 1) N$ pairs each, that is $O(N \log N)$ pairs *in all layers together*. Here $N \log N$
# is right.
#
# </details>

# %%
n, w = 200, 2
seen = np.eye(n, dtype=bool)
for layer in range(math.ceil(math.log2(1 + (n - 1) / w))):
    assert not seen.all()
    seen = patterns.local(n, window=w, dilation=2**layer) @ seen
    reach = w * (2 ** (layer + 1) - 1)
    assert (seen == (abs(np.arange(n)[:, None] - np.arange(n)) <= reach)).all()  # no gaps
    print(f"{layer + 1} layers reach {reach} tokens", end="; ")
assert seen.all()

# %% [markdown]
# **3. Counted twice.** An implementation puts window and global keys side by side without leaving out the keys that
# are in both. What does it compute? Express the change as one of the scores. (A widely used BigBird draws no random
# blocks outside training, but keeps their places, filled with block 0: what does it compute, with $r = 3$?)
#
# <details><summary>Solution</summary>
#
# A key that is there $m$ times contributes $m e^{a} = e^{a + \log m}$ to numerator and denominator. This is softmax
# attention in which $\log m$ is added to its score; for a key that is there twice, $\log 2 \approx 0.69$. In the
# BigBird, block 0 is global and three times "random": $\log 4$ is added to the scores of all keys of block 0.
#
# </details>

# %%
q, k, v = vectors()
overlapping = (*local.parts_of(12, 12, window=2), part.columns(12, 12, [1, 7]))
twice, _ = pattern_softmax.forward(q, k, v, overlapping)
in_window = patterns.local(12, window=2)
bonus = np.where(in_window & np.isin(np.arange(12), [1, 7]), math.log(2), 0)
scores = 0.5 * q @ k.T + bonus
weights = np.where(in_window | np.isin(np.arange(12), [1, 7]), np.exp(scores), 0)
same(twice, weights / weights.sum(axis=1, keepdims=True) @ v)
disjoint = part.band(12, 12, -2, 2, without=[1, 7]), part.columns(12, 12, [1, 7])
right, _ = pattern_softmax.forward(q, k, v, disjoint)
assert abs(twice - right).max() > 0.01
print("output of 'the', counted twice:", twice[0].round(3), " once:", right[0].round(3))

# %% [markdown]
# **4. A causal star?** Make Longformer causal by dropping all pairs $j > i$. Is every earlier token still within two
# steps of every later one? Where should a global token be? What does Sparse Transformer's fixed pattern have instead?
#
# <details><summary>Solution</summary>
#
# No. The path $i \to g \to j$ needs $j \le g \le i$: a global token only joins what comes after it with what came
# before. Token 0, the usual choice, joins nothing: it is seen by all and sees only itself. For every pair $j < i$ to be
# joined, by a $g$ between them or by two steps of the window, there must be global tokens all along the sequence, one
# in every stretch of $2w + 2$ tokens. That is what the fixed pattern does: it has a summary at the end of every block,
# $N / l$ of them, and hence $N^{1.5}$ pairs instead of $N$. (A hierarchy needs fewer. Let the middle token be global
# for the whole sequence, the middle of each half for that half only, and so on. Two causal steps then take about $N
# \log_2 N$ pairs.)
#
# </details>

# %%
past = np.tri(60, dtype=bool)
for tokens, connected in (([0], False), ([30], False), (range(11, 60, 12), True), (range(11, 60, 13), False)):
    causal = patterns.longformer(60, window=5, global_tokens=tokens) & past
    assert ((pattern_graphs.steps(causal) <= 2) == past).all() == connected
    print("global tokens", *tokens, "causal: two steps suffice:", connected)
assert ((pattern_graphs.steps(patterns.sparse_transformer(60, kind="fixed", stride=6)) <= 2) == past).all()

# %% [markdown]
# ## What to remember
#
# - A sparse pattern is softmax attention over a set of pairs. Parts of the set are joined exactly by their log-sum-exp;
#   backward, every pair has its gradient by itself, given the whole row's output and log-sum-exp.
# - Windows and blocks cost $O(N w)$ and $O(N b)$, but distant tokens meet only after $N / w$ layers, or never.
# - With one global token, which all see and which sees all, two layers are enough. In a causal model there is no such
#   token.
# - Random edges shorten paths to about $\log N$; with a centre they are not needed for that.
# - Sparse Transformer's causal patterns reach every earlier token in two steps, with about $N^{1.5}$ pairs at a stride
#   of $\sqrt N$.
#
# **Sources.** Child et al. (2019), *Generating Long Sequences with Sparse Transformers*. Beltagy et al. (2020),
# *Longformer: The Long-Document Transformer*. Zaheer et al. (2020), *Big Bird: Transformers for Longer Sequences*.
# Watts and Strogatz (1998), *Collective dynamics of "small-world" networks*.
