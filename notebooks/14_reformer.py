# %% [markdown]
# # 14. Reformer: attend to what a hash function puts next to you
#
# Most attention weights are tiny. If only the keys with large scores matter, can we find them without computing all
# scores?
#
# The keys with the largest scores are those in the direction of the query: finding them is a *nearest neighbour
# search*. Reformer (Kitaev et al. 2020) does it by **locality-sensitive hashing**: a random function that puts similar
# vectors into the same bucket more often than others. In this chapter you will
#
# 1. derive how often two vectors at an angle share a bucket, and measure it;
# 2. turn buckets of any size into chunks of one size, by sorting;
# 3. see that several rounds of hashing are *one* softmax, if each pair counts once;
# 4. derive the gradient, and meet a backward pass that is right with one round and wrong with several;
# 5. measure how many of the true nearest keys are found, and at what cost.
#
# You need chapter 1; chapter 12 has the other sparse patterns, which do not look at the data. The letters are the same.
# The example is chapter 1's sentence, *the cat sat on the old mat and the dog slept too*. The shared vectors are its
# keys, which say what a word is.

# %% jupyter={"source_hidden": true}
import math
from functools import partial

import numpy as np

from linattn_ref import gradcheck
from linattn_ref.attention import lsh_hashing, reformer, softmax
from linattn_ref.data import reported
from linattn_ref.data.twelve_words import WORDS, vectors
from linattn_ref.experiments.cost import resource_methods, resources
from linattn_ref.experiments.measuring import heads
from linattn_ref.experiments.publishing import chapter, style
from linattn_ref.experiments.sparse import lsh_recall
from linattn_ref.theory import lsh_collision

# Numbers of size 1 that have gone through some hundred roundings of 2.2e-16 each agree to this.
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-12)

# %% [markdown]
# ## The smallest example, by hand
#
# Take four tokens with the values 1, 2, 4 and 8, all scores equal, and the buckets A, B, A, B. Sorted by bucket they
# are 1, 4 | 2, 8, in two chunks of two. A token meets its own chunk and the chunk before, but not itself:
#
# | token's value | bucket | meets | output |
# | ---: | --- | --- | ---: |
# | 1 | A | 4 | 4 |
# | 2 | B | 8, and 1, 4 | $13 / 3$ |
# | 4 | A | 1 | 1 |
# | 8 | B | 2, and 1, 4 | $7 / 3$ |
#
# The first chunk has no chunk before it. Hashing decides into which bucket a vector falls. In two dimensions, with four
# buckets and no rotation, the bucket is the side on which the vector lies. So (3, 1) lies to the right, (1, 3) above,
# and (-3, 1) to the left.

# %%
alike, four_values = np.ones((4, 2)), np.array([[1.0], [2.0], [4.0], [8.0]])
met, _ = reformer.forward(alike, four_values, chunk=2, buckets=np.array([[0, 1, 0, 1]]))
print("by the page:", met.ravel().round(3))
same(met.ravel(), [4, 13 / 3, 1, 7 / 3])

# %% [markdown]
# ## The formula
#
# Queries and keys are the same vectors $x_i$ ("shared QK"), but a key has length 1:
#
# $$q_i = x_i, \qquad k_j = \frac{x_j}{\lVert x_j \rVert} \qquad (1)$$
#
# Then a score is $s\, q_i^\top k_j = s \lVert x_i \rVert \cos \angle(x_i, x_j)$, with $s = 1 / \sqrt D$: for a given
# query the order of the keys is the order of the *angles*. In each of several rounds the tokens are hashed, sorted and
# cut into chunks. Let $P_r(i)$ be the tokens that token $i$ meets in round $r$. The output is softmax attention to all
# tokens that it meets in any round:
#
# $$o_i = \sum_{j \in P(i)} e^{s\, q_i^\top k_j - z_i}\, v_j, \qquad P(i) = \bigcup_r P_r(i), \qquad
# z_i = \log \sum_{j \in P(i)} e^{s\, q_i^\top k_j} \qquad (6)$$
#
# The code hashes and sorts, and then goes over the rounds and their chunks. Equations have the numbers of the docstring
# of `reformer`; those that are not in it have letters. (Two other files below have numbers of their own. In
# `lsh_hashing`, (1) is (a) here and (2) to (4) make (c); in `lsh_collision`, (2) is (b).)

# %%
chapter.source(reformer.forward, reformer.find_order, doc=False)

# %% [markdown]
# ## The hash
#
# Draw a matrix $R$ ($D \times B/2$) of independent standard normal numbers, and take as the bucket of $x$ the axis of
# $xR$ along which it is longest, with its sign:
#
# $$h(x) = \operatorname{argmax}\big([xR\,;\,-xR]\big) \in \{0, \dots, B - 1\} \qquad (a)$$

# %%
chapter.source(lsh_hashing.buckets, doc=False)

# %% [markdown]
# The length of $x$ does not matter, only its direction, and the opposite direction gets the opposite bucket. Below the
# figure are the words' buckets of one round. In the plane each bucket is the set of directions that are nearest to one
# random arrow (where a longer arrow counts as nearer):

# %%
directions = np.linspace(0, 2 * np.pi, 721)[:-1]
circle = np.stack([np.cos(directions), np.sin(directions)], axis=1)  # (720, 2)


def panel(axes, n_buckets):
    rotation = reformer.draw_rotations(1, 2, n_buckets, np.random.default_rng(1))
    found = reformer.buckets(circle, rotation)[0]
    axes.scatter(*circle.T, c=found, cmap="tab20", s=8)
    arrows = np.concatenate([rotation[0], -rotation[0]], axis=1).T
    for bucket in np.unique(found):
        axes.plot(*(np.array([[0, 0], arrows[bucket] / np.linalg.norm(arrows[bucket])]).T), color=style.GREY, lw=0.8)
    axes.set(aspect="equal", xticks=[], yticks=[], xlabel=f"{len(np.unique(found))} buckets in use")


chapter.explore(
    panel,
    (2, 4, 8, 16),
    name="B",
    slider=[2, 4, 6, 8, 12, 16, 32],
    height=0.3,
    alt="A circle of directions, coloured by the bucket they fall into, for 2, 4, 8 and 16 buckets: arcs that become "
    "shorter, and each arc's opposite has another colour",
)
_, x, v = vectors()
(N, D), M = x.shape, v.shape[1]
rotations = reformer.draw_rotations(4, D, 8, np.random.default_rng(8))  # four rounds, eight buckets
hashed = reformer.buckets(x, rotations)
np.testing.assert_array_equal(reformer.buckets(5 * x, rotations), hashed)
np.testing.assert_array_equal(reformer.buckets(-x, rotations), (hashed + 4) % 8)
print(*(f"{word} {bucket}" for word, bucket in zip(WORDS, hashed[0], strict=True)), sep=", ")

# %% [markdown]
# ### How often do two vectors collide?
#
# Let $x$ and $y$ have length 1 and the angle $\theta$ between them, and let $\rho = \cos \theta$. A column $g$ of $R$
# yields two numbers $(x^\top g, y^\top g)$, both standard normal, with covariance $x^\top y = \rho$. The columns are
# independent. So the width $D$ drops out, and only $\rho$ and $B$ count.
#
# Both vectors are in bucket 0 if two things hold. Column 0 makes two numbers $u, t > 0$, and each of the $B/2 - 1$
# other columns makes two numbers that are smaller in size: for $x$ smaller than $u$, for $y$ smaller than $t$. By
# symmetry all $B$ buckets are alike:
#
# $$p(\rho) = B \int_0^\infty \!\! \int_0^\infty \phi_\rho(u, t)\, G(u, t)^{B/2 - 1}\, du\, dt, \qquad
# G(u, t) = \Pr(|U| < u, |T| < t) \qquad (b)$$
#
# with $\phi_\rho$ the density of two normal numbers with correlation $\rho$. With $B = 2$ there is no other column,
# and $p = 2 \Pr(U, T > 0) = 1 - \theta / \pi$: a random hyperplane separates two vectors with a probability
# proportional to their angle. With $\rho = 0$ the hashes are independent, and $p = 1 / B$. We compare the integral,
# as a sum over a grid, with hashes drawn at random:

# %%
chapter.source(lsh_collision.collision_probability, doc=False)
rows = []
for degrees in (10, 30, 60, 90, 120):
    rho = math.cos(math.radians(degrees))
    row = [f"{degrees}°"]
    for n_buckets in (2, 16, 64):
        p = lsh_collision.collision_probability(rho, n_buckets)
        drawn = lsh_collision.measured_collisions(rho, n_buckets, 32, 4000, np.random.default_rng(2))
        assert abs(drawn - p) < 4 * math.sqrt(p * (1 - p) / 4000) + 2e-4  # four standard errors, and the grid's error
        row += [p, drawn]
    assert abs(row[1] - (1 - degrees / 180)) < 2e-4  # the hyperplane
    rows.append(row)
np.testing.assert_allclose([rows[3][i] for i in (1, 3, 5)], [1 / 2, 1 / 16, 1 / 64], rtol=1e-3)  # at a right angle
chapter.table(("angle", "B = 2: (b)", "drawn", "B = 16: (b)", "drawn", "B = 64: (b)", "drawn"), rows)

# %% [markdown]
# For many buckets $p(\rho) = B^{-(1 - \rho)/(1 + \rho) + o(1)}$ (Andoni et al. 2015): doubling $B$ costs near vectors
# little and far ones much. That is what makes the hash *locality-sensitive*. And one round is a gamble: neighbours at
# 30° share one of 64 buckets less than half of the time. With $n$ independent rounds they share a bucket at least once
# with probability $1 - (1 - p)^n$:

# %%
p_near, p_far = (lsh_collision.collision_probability(math.cos(math.radians(a)), 64) for a in (30, 90))
rows = [(n, 1 - (1 - p_near) ** n, 1 - (1 - p_far) ** n) for n in (1, 2, 4, 8, 16)]
assert p_near < 0.5
assert rows[3][1] > 0.97
assert rows[3][2] < 0.12
chapter.table(("rounds", "a bucket in common at 30°", "at 90°"), rows)

# %% [markdown]
# ## From buckets to chunks
#
# ![Reformer, drawn](../figures/schematic_reformer.svg)
#
# Buckets have all sizes, which suits no processor. So the tokens are sorted by (bucket, position) and the sorted list
# is cut into chunks of $C$. A chunk attends to itself and to the chunk before, since a bucket may begin in one and
# end in the next:
#
# $$\text{$i$ meets $j$ in round $r$} \iff \mathrm{chunk}_r(i) - \mathrm{chunk}_r(j) \in \{0, 1\} \qquad (c)$$
#
# whatever their buckets, for $j \ne i$. It is the *chunks* that decide; the buckets only determine the order. The last
# chunk may be shorter. Here we depart from the paper, which in addition hides tokens of another bucket. We let a token
# attend to all that it meets, as does fast-transformers, the code of *Transformers are RNNs*.

# %%
chapter.source(lsh_hashing.order_by_bucket, lsh_hashing.chunk_of_token, lsh_hashing.pattern_of, doc=False)

# %% [markdown]
# Take the sentence in chunks of two. Three words are things, two are done, and five are small words; *on* and *old* are
# of other kinds. The left panel shows who meets whom in one round, in the order of the hash: chunks along the diagonal.
# The middle shows the same in the order of the text. The right panel shows it after four rounds; pairs of one kind that
# are not met are grey.

# %%
CHUNK = 2
kind = np.array([2, 0, 1, 3, 2, 4, 0, 2, 2, 0, 1, 2])  # 0 a thing, 1 done, 2 a small word, and "on" and "old"
patterns = [reformer.pattern(x, rotations=rotations[:r], chunk=CHUNK) for r in (1, 4)]
order = lsh_hashing.order_by_bucket(hashed[:1])[0]
together = (kind[:, None] == kind) & ~np.eye(N, dtype=bool)


def draw_patterns():
    figure, axes = style.figure(1, 3, height=0.42)
    pictures = (patterns[0][np.ix_(order, order)], patterns[0], patterns[1])
    titles = ("one round, sorted", "one round", "four rounds")
    orders = (order, np.arange(N), np.arange(N))
    for axis, picture, title, places in zip(axes, pictures, titles, orders, strict=True):
        shade = np.where(picture, 1.0, np.where(together[np.ix_(places, places)], 0.25, 0.0))
        axis.imshow(shade, cmap="Greys", vmin=0, vmax=1.2)
        axis.set_title(title)
        axis.set_xticks(range(N), [WORDS[i] for i in places], rotation=90)
        axis.set_yticks(range(N), [WORDS[i] for i in places])
        axis.tick_params(labelsize=6, length=0)
        axis.grid(False)
    return figure


chapter.show(
    draw_patterns,
    alt="Three matrices of 12 by 12 words. Sorted, the pairs that meet are blocks along the diagonal, each with the "
    "block before it. In the order of the text they are scattered. After four rounds most pairs of one kind are met",
)
found = [(p & together).sum() / together.sum() for p in patterns]
met = [p.sum() / (N * (N - 1)) for p in patterns]
print(f"pairs of one kind that meet: {found[0]:.2f} in one round, {found[1]:.2f} in four")
print(f"all pairs that meet:         {met[0]:.2f} in one round, {met[1]:.2f} in four")
assert found[0] > 1.5 * met[0]
assert found[1] > 0.75 > met[1]

# %% [markdown]
# Meeting is one-sided: a token meets those of the chunk before, and they do not meet it. And a chunk is not a bucket.
# Two tokens with a common bucket may meet from one side only, or be more than a chunk apart, and two without one may
# meet. In this example all of this happens. (Below, $(i, j)$ and $(j, i)$ are two pairs.)

# %%
common = (hashed[0][:, None] == hashed[0]) & ~np.eye(N, dtype=bool)
missed = common & ~patterns[0]
one_sided = missed & patterns[0].T  # j meets i
assert 0 < one_sided.sum() < missed.sum()
assert (patterns[0] & ~common).any()
print(f"{common.sum()} pairs share a bucket, {patterns[0].sum()} meet; {(common & patterns[0]).sum()} do both")
print(f"{missed.sum()} share a bucket and do not meet: {one_sided.sum()} of them meet the other way round")

# %% [markdown]
# ## Several rounds are one softmax
#
# A kernel works round by round. From what token $i$ meets in round $r$ alone, it can compute
#
# $$z_{ri} = \log \sum_{j \in P_r(i)} \frac{e^{s\,q_i^\top k_j}}{c_{ij}}, \qquad
# o_{ri} = \sum_{j \in P_r(i)} \frac{e^{s\,q_i^\top k_j - z_{ri}}}{c_{ij}}\, v_j \qquad (3), (4)$$
#
# with weights $1 / c_{ij}$ still to be chosen, and then put the rounds together by their log-sum-exps:
#
# $$z_i = \log \sum_r e^{z_{ri}}, \qquad o_i = \sum_r e^{z_{ri} - z_i}\, o_{ri} \qquad (5)$$
#
# Put (4) into (5): the $z_{ri}$ cancel, and
#
# $$o_i = \sum_r \sum_{j \in P_r(i)} \frac{e^{s\,q_i^\top k_j - z_i}}{c_{ij}}\, v_j
# = \sum_{j \in P(i)} \Big( \sum_{r:\, j \in P_r(i)} \frac1{c_{ij}} \Big)\, e^{s\,q_i^\top k_j - z_i}\, v_j$$
#
# The bracket is 1 for every pair, and this is (6), exactly if $c_{ij}$ is **the number of rounds in which $i$ meets
# $j$** (2). Without the correction, with $c_{ij} = 1$, a pair that meets in every round weighs as much as several.
# The more similar two vectors are, the more often they meet, so an accident of the hash would sharpen the attention.
# The kernel needs no $N \times N$ array for the count: for the pairs in a chunk it compares the numbers of the chunks
# in which the two tokens lie in the other rounds.
#
# (fast-transformers has no log-sum-exps: it averages the outputs of the rounds, all with the same weight. By default a
# token attends to itself there as well.)

# %%
three = rotations[:3]
d_out = np.random.default_rng(4).standard_normal((N, M))  # the gradient of some loss, for later
out, saved = reformer.forward(x, v, rotations=three, chunk=CHUNK)

s, k = 1 / math.sqrt(D), x / np.linalg.norm(x, axis=1, keepdims=True)
by_round = np.stack([reformer.pattern(x, rotations=three[r : r + 1], chunk=CHUNK) for r in range(3)])  # (rounds, N, N)
assert not np.einsum("rii->ri", by_round).any()  # everybody meets somebody here
count = by_round.sum(axis=0)  # (N, N), c
assert set(np.unique(count)) == {0, 1, 2, 3}


def combine(count):
    """Equations (3) to (5) with dense arrays."""
    shares = np.where(by_round, np.exp(s * x @ k.T) / np.maximum(count, 1), 0)  # (rounds, N, N)
    totals = shares.sum(axis=-1, keepdims=True)  # exp z_r
    rounds = shares / totals @ v  # o_r
    return (totals * rounds).sum(axis=0) / totals.sum(axis=0), totals, rounds


def by_definition(x, v, rotations, chunk):
    """Equations (1), (6), (a) and (c), token by token, with lists and sets; nothing of the package's."""
    n, scale = len(x), 1 / math.sqrt(x.shape[1])
    met = [set() for _ in range(n)]
    for rotation in rotations:
        along = [[*(row @ rotation), *(-row @ rotation)] for row in x]
        bucket = [each.index(max(each)) for each in along]  # (a)
        order = [token for _, token in sorted(zip(bucket, range(n), strict=True))]
        number = {token: place // chunk for place, token in enumerate(order)}
        for i in range(n):
            met[i] |= {j for j in range(n) if j != i and number[i] - number[j] in (0, 1)}  # (c)
    rows = []
    for i in range(n):
        weights = {j: math.exp(scale * x[i] @ x[j] / np.linalg.norm(x[j])) for j in met[i]}  # (1)
        rows.append(sum(weight * v[j] for j, weight in weights.items()) / sum(weights.values()))  # (6)
    return np.array(rows)


same(by_definition(x, v, three, CHUNK), out)  # claim 43
same(combine(count)[0], out)
same(reformer.matrix(x, rotations=three, chunk=CHUNK) @ v, out)
same(reformer.matrix(x, rotations=three, chunk=CHUNK).sum(axis=1), np.ones(N))
uncorrected = combine(np.ones_like(count))[0]
assert abs(uncorrected - out).max() > 0.1
print(f"without the correction the output is off by up to {abs(uncorrected - out).max():.2f}")

# %% [markdown]
# Repeating the same round changes nothing, as it should. (Then the cell shows what is kept.)

# %%
once = reformer.forward(x, v, rotations=three[:1], chunk=CHUNK)[0]
often = reformer.forward(x, v, rotations=np.repeat(three[:1], 5, axis=0), chunk=CHUNK)[0]
same(once, often)
chapter.source(reformer.Saved, doc=False)

# %% [markdown]
# ### Itself, the future, and padding
#
# - **Itself.** Since $q_i = x_i$, and keys have length 1, no score of a token exceeds that with itself. So the token is
#   left out, unless it meets nobody else in any round. Then it attends to itself alone, and $o_i = v_i$ (7). In causal
#   order that is the case for the first token.
# - **The future.** With `causal=True` a token meets earlier ones only. Still, the future has some influence: a later
#   token that falls into another bucket shifts the chunks' boundaries, and with them *which* earlier tokens are met. No
#   weight falls on the future, but a choice does depend on it. When text is generated token by token, a token may
#   therefore meet other tokens than it did in training.
# - **Padding.** A masked token is sorted last and takes no part, neither as a key nor as a query.

# %%
causal, _ = reformer.forward(x, v, rotations=three, chunk=CHUNK, causal=True)
same(causal[0], v[0])

six, values = x[:6], v[:6]
attend = partial(reformer.forward, six, values, chunk=2, causal=True)
before, after = np.array([[1, 1, 1, 1, 1, 2]]), np.array([[1, 1, 1, 1, 1, 0]])  # the last token changes its bucket
for held in (before, after):
    assert not np.triu(reformer.pattern(six, chunk=2, causal=True, buckets=held), 1).any()
assert abs(attend(buckets=before)[0][4] - attend(buckets=after)[0][4]).max() > 0.01  # and token 4 meets others

changed = six.copy()
changed[5] *= -100  # with the buckets held fixed, the last token changes nothing
np.testing.assert_array_equal(
    reformer.forward(changed, values, chunk=2, causal=True, buckets=before)[0][:5], attend(buckets=before)[0][:5]
)
print("second 'the' before 'old' changes its bucket:", attend(buckets=before)[0][4].round(3), end=" ")
print("and after:", attend(buckets=after)[0][4].round(3))

# %% [markdown]
# ## The gradient, by hand
#
# The hash is constant except where it jumps: its derivative is 0 wherever it has one. So we hold fixed who meets whom.
# What is left is (6), a softmax over $P(i)$. With $P_{ij} = e^{s\,q_i^\top k_j - z_i}$ for $j \in P(i)$, else 0,
# chapter 1 gives
#
# $$dV = P^\top dO, \qquad dA_{ij} = P_{ij}\, \big(dO_i^\top v_j - dO_i^\top o_i\big) \qquad (8), (9)$$
#
# $$dQ_i = s \sum_j dA_{ij}\, k_j, \qquad dK_j = s \sum_i dA_{ij}\, q_i \qquad (10)$$
#
# **Round by round.** A pair's term in these sums is split into $c_{ij}$ equal shares, one in each round where it
# meets: $P_{ij} / c_{ij} = e^{s\,q_i^\top k_j - z_i} / c_{ij}$. All that a round needs to know about the others is
# $z_i$ and $o_i$, a few numbers per row. Each share is added where it arises; no $P$ is kept.
#
# **The key's length.** From $k = x / \lVert x \rVert$, with $d\lVert x \rVert = x^\top dx / \lVert x \rVert = k^\top
# dx$,
#
# $$dk = \frac{dx}{\lVert x \rVert} - \frac{x\, (k^\top dx)}{\lVert x \rVert^2}
# = \frac{(I - k k^\top)\, dx}{\lVert x \rVert}$$
#
# The matrix is symmetric, so the backward pass is
#
# $$dX_i = dQ_i + \frac{dK_i - k_i\, (k_i^\top dK_i)}{\lVert x_i \rVert} \qquad (11)$$
#
# The part along the key is lost: its length is always 1. A zero vector has no direction; its key is 0 and passes
# nothing on. A token that is alone, $o_i = v_i$, adds $dO_i$ to $dV_i$ and nothing else.

# %%
chapter.source(reformer.backward, doc=False)
fixed = reformer.buckets(x, three)
report = gradcheck.check_elementwise(
    partial(reformer.forward, chunk=CHUNK, buckets=fixed), reformer.backward, x, v, rng=np.random.default_rng(5)
)
print(report)
report.assert_ok()

# %% [markdown]
# ### Right with one round, wrong with several
#
# Here is a tempting mistake. "Each round is a softmax with output $o_{ri}$ and the shares $P^{(r)}_{ij}$. The output is
# the average of the $o_{ri}$ with the weights $w_{ri} = e^{z_{ri} - z_i}$. So the gradient is the average of the
# rounds' gradients":
#
# $$dA_{ij} \overset{?}{=} \sum_r w_{ri}\, P^{(r)}_{ij} \big(dO_i^\top v_j - dO_i^\top o_{ri}\big)$$
#
# This forgets that $w_{ri}$ depends on the scores too: $\partial w_{ri} / \partial z_{ri} = w_{ri} (1 - w_{ri})$. The
# right formula has $o_i$ in place of $o_{ri}$. With one round the two are the same, and a test with one round cannot
# see the mistake.

# %%
_, totals, rounds = combine(count)
shares = np.where(by_round, np.exp(s * x @ k.T) / np.maximum(count, 1), 0) / totals.sum(
    axis=0
)  # w_r P_r, (rounds, N, N)
d_p = d_out @ v.T  # (N, N)
right = (shares * (d_p - (d_out * out).sum(axis=1, keepdims=True))).sum(axis=0)
wrong = (shares * (d_p - (d_out * rounds).sum(axis=-1, keepdims=True))).sum(axis=0)


def d_qk_of(d_scores):
    d_k = s * d_scores.T @ x
    across = d_k - k * (k * d_k).sum(axis=1, keepdims=True)
    return s * d_scores @ k + across / np.linalg.norm(x, axis=1, keepdims=True)  # (10), (11)


gradients = reformer.backward(d_out, saved)
same(d_qk_of(right), gradients.qk)
error = np.linalg.norm(d_qk_of(wrong) - gradients.qk) / np.linalg.norm(gradients.qk)
assert error > 0.05
print(f"the mistaken gradient is off by {error:.0%}")

one_out, one_saved = reformer.forward(x, v, rotations=three[:1], chunk=CHUNK)
p_one = reformer.matrix(x, rotations=three[:1], chunk=CHUNK)
mistaken = p_one * (d_p - (d_out * one_out).sum(axis=1, keepdims=True))  # o_r = o
same(d_qk_of(mistaken), reformer.backward(d_out, one_saved).qk)

# %% [markdown]
# ## Does it find the right keys?
#
# For each token of real text, we take its ten most similar keys in the heads of a pretrained network, and count how
# many of them it meets. (The network was not trained with shared QK; its keys stand in for the shared vectors.
# `linattn-ref figures --only lsh_recall` draws this figure again.)

# %%
record = chapter.record("lsh_recall")
measured = chapter.results("lsh_recall")
chapter.show(
    lsh_recall.draw,
    measured,
    alt="Left: probability of a common bucket falling with the angle, the faster the more buckets. Middle: recall of "
    "the ten most similar keys rising with the rounds, far above the share of tokens met. Right: recall over that "
    "share, higher for small chunks",
)
rows = []
for each in measured.by_chunk:
    assert (np.array(each.recall) > np.array(each.met)).all()  # better than chance, in every way
    assert (np.diff(each.recall) > 0).all()  # more rounds find more
    for r, recall, met, weight in zip(measured.rounds, each.recall, each.met, each.weight, strict=True):
        if r in (1, 4, 16):
            rows.append((each.chunk, r, recall, met, weight))
chapter.table(
    ("chunk", "rounds", "recall of the top 10", "share of tokens met", "share of the softmax weight met"), rows
)

# %% [markdown]
# The next cell computes the record's first rounds once more, for every chunk and number of buckets, by sorting and
# ranks alone. It uses nothing from the package except the draw of the rotations.


# %% native="It reads with the pretrained network, and for this one cell the page does not load it."
def recall_by_ranks(x, rotations, chunk, top):
    """Of keys ``x (N, D)``: the share of the ``top`` nearest met, and of all others, after 1, 2, ... rounds."""
    tokens, met, found = np.arange(len(x)), np.eye(len(x), dtype=bool), []
    cosines = x @ x.T / np.linalg.norm(x, axis=1)  # (N, N), times |x_i|
    np.fill_diagonal(cosines, -np.inf)
    nearest = np.argsort(np.argsort(-cosines, axis=1), axis=1) < top  # ranks
    for rotation in rotations:
        along = x @ rotation
        bucket = np.where(along.max(axis=1) >= -along.min(axis=1), along.argmax(axis=1), along.argmin(axis=1) + 1000)
        number = np.argsort(np.lexsort((tokens, bucket))) // chunk  # of the chunk that a token is in
        met |= (number[:, None] == number) | (number[:, None] == number + 1)
        found.append((met[nearest].mean(), (met.sum() - len(x)) / (len(x) * (len(x) - 1))))
    return found


read, _sources = heads.read_heads(sentences=4, length=512, every=4, seed=record["seed"])
rng, FIRST = np.random.default_rng(record["seed"]), 4
for each in (*measured.by_buckets, *measured.by_chunk):
    rotations = reformer.draw_rotations(max(measured.rounds), 32, each.n_buckets, rng, np.float32)[:FIRST]
    every_head = [recall_by_ranks(x, rotations, each.chunk, measured.top) for x in read.k.reshape(-1, 512, 32)]
    for r, again in enumerate(np.mean(every_head, axis=0), 1):
        if r in measured.rounds:
            i = list(measured.rounds).index(r)
            np.testing.assert_allclose(again, (each.recall[i], each.met[i]), rtol=1e-4)  # float32: a tie may fall anew
print(f"recall and cost of up to {FIRST} rounds in {len(read.k.reshape(-1, 512, 32))} heads: as in the record")

# %% [markdown]
# One round of small chunks finds less than half of the ten keys; several rounds find most. More rounds also meet more
# tokens that do not matter: the dotted line is what random chunks find. Look at the last column of the table too. Where
# attention is spread over many keys, as here, the nearest ten hold little of the weight. There LSH attention, which
# renormalises over what it meets, is far from softmax attention.
#
# ### How near does it come to full attention?
#
# The paper says (section 5) that LSH attention approximates full attention better the more rounds there are, and that
# with eight it nearly matches it. It compares networks that were *trained* with LSH attention or with full attention.
# That can hold only where attention is sharp, as a network trained with LSH can learn to make it. (A small one that was
# trained with full attention, and then run with eight rounds, gets 95% of a copying task right instead of all: section
# 2.1, table 2.) We try both cases without training: 512 tokens in 64 groups of eight neighbours. With a large scale a
# token puts three quarters of its weight on its seven neighbours, with a small one it attends to all nearly alike.

# %%
rng, ROUNDS = np.random.default_rng(20), (1, 2, 4, 8, 16)
centres = rng.standard_normal((64, 16))
centres /= np.linalg.norm(centres, axis=1, keepdims=True)
grouped = rng.permutation(np.repeat(centres, 8, axis=0) + 0.1 * rng.standard_normal((512, 16)))
values, rows = rng.standard_normal((512, 16)), []
group = (grouped @ centres.T).argmax(axis=1)
neighbours = (group[:, None] == group) & ~np.eye(512, dtype=bool)
assert (neighbours.sum(axis=1) == 7).all()
for name, scale in (("sharp", 8.0), ("spread", 0.25)):
    everyone = {"rotations": reformer.draw_rotations(1, 16, 2, rng), "chunk": 512}  # one chunk: full attention
    full, _ = reformer.forward(grouped, values, **everyone, scale=scale)
    weights = reformer.matrix(grouped, **everyone, scale=scale)  # (512, 512)
    print(f"{name}: {(weights * neighbours).sum(axis=1).mean():.0%} of a token's weight is on its neighbours")
    by_rounds = []
    for rounds in ROUNDS:
        drawn = [reformer.draw_rotations(rounds, 16, 32, rng) for _ in range(4)]
        outs = (reformer.forward(grouped, values, rotations=x, chunk=32, scale=scale)[0] for x in drawn)
        seen = np.array([reformer.pattern(grouped, rotations=x, chunk=32) for x in drawn])  # (4, 512, 512)
        error = np.mean([np.linalg.norm(out - full) / np.linalg.norm(full) for out in outs])
        by_rounds.append((error, seen.sum() / (4 * 512 * 511), (weights * seen).sum() / (4 * 512)))
    errors, tokens_met, weight_met = zip(*by_rounds, strict=True)
    rows += [(f"{name}: error", *errors), (f"{name}: share of tokens met", *tokens_met)]
    rows.append((f"{name}: share of the weight met", *weight_met))
    assert (np.diff(errors) < 0).all()  # the more rounds, the nearer
    eight = ROUNDS.index(8)
    assert errors[eight] < 0.25 if name == "sharp" else errors[eight] > 0.5
    assert weight_met[eight] > 0.9 if name == "sharp" else weight_met[eight] < 0.65
    assert 0.55 < tokens_met[eight] < 0.65
chapter.table(("attention", *(f"{r} round{'s' * (r > 1)}" for r in ROUNDS)), rows)

# %% [markdown]
# More rounds help in both cases. Where attention is sharp, eight rounds come close, as the paper says. But by then a
# token meets three fifths of all others here, and these hold nine tenths of its weight. Where attention is spread out,
# three fifths of the tokens hold only about three fifths of the weight, and the error is five times as large.
#
# ## What it costs
#
# Each round takes $N \cdot 2C$ pairs, where softmax attention takes $N^2$, and its hash takes $N D B / 2$
# multiply-adds. With $C$ and $B$ fixed everything but sorting is linear in $N$, and sorting takes at most about $N \log
# N$ comparisons. Kept for the backward pass, in addition to the inputs, are the output, a length and the two numbers
# $m$ and $s$ of the log-sum-exp per row, and a permutation per round: $N (M + 3 + \mathrm{rounds})$ numbers.
#
# Here it is counted at two lengths, for softmax attention (`dense` keeps the matrix, `online` does not) and linear
# attention too, with $B = 64$ and $C = 32$:

# %% native="It compares bytes that compiled kernels keep with formulas for them, and a browser has no compiler."
setting, rows = resource_methods.Setting(heads=2, width=16), []
for name in ("dense", "online", "lsh_1", "lsh_4", "lsh_8", "linear"):
    method = resource_methods.METHODS[name]
    kept = [resource_methods.run(method, resource_methods.draw_inputs(method, n, setting, seed=0)) for n in (512, 1024)]
    assert kept == [4 * method.kept(n, setting) for n in (512, 1024)]
    rows.append((name.replace("_", "-"), *kept, kept[1] / kept[0]))
    assert kept[1] <= 2 * kept[0] or name == "dense"
assert rows[0][3] == 4
assert [row[3] for row in rows[2:5]] == [2, 2, 2]  # linear in N, whatever the number of rounds
chapter.table(("method", "bytes kept at N = 512", "at N = 1024", "ratio"), rows)

# %% [markdown]
# Figure 1 of *Transformers are RNNs* (Katharopoulos et al. 2020) shows time and memory of softmax attention, of
# Reformer with one, four and eight rounds (`lsh-1`, `lsh-4`, `lsh-8`) and of linear attention. Here is that figure for
# this package: both passes, 8 heads of width 64. The paper draws the memory of one whole sequence. Here it is divided
# by the length, so that linear memory is level, and the table has both.

# %%
measured = chapter.results("resources")
chapter.show(
    resources.draw,
    measured,
    alt="CPU time and memory over the length. Time: softmax attention rises with the square and crosses the others, "
    "which rise in proportion to the length, lsh-8 last. Memory: all lie close together but softmax with its matrix, "
    "which rises with the square",
)
curves = measured.curves
faster = {(pair.high, pair.low): pair.faster.length for pair in measured.pairs}


def exponent(lengths, numbers):
    """The slope in logarithms from a quarter of the longest length on: not the record's own fit, but its points."""
    chosen = [i for i, n in enumerate(lengths) if n >= max(lengths) / 4]
    return np.polyfit(np.log([lengths[i] for i in chosen]), np.log([numbers[i] for i in chosen]), 1)[0]


for name, curve in curves.items():  # claim 26
    assert abs(exponent(curve.lengths, curve.seconds) - (2 if "softmax" in resources.LOOK[name][0] else 1)) < 0.2
    assert abs(exponent(curve.memory_lengths, curve.peak) - (2 if name == "dense" else 1)) < 0.1
at_4096 = {name: curve.seconds[list(curve.lengths).index(4096)] for name, curve in curves.items()}
assert at_4096["linear"] < at_4096["lsh_1"] < at_4096["lsh_4"] < at_4096["lsh_8"] < at_4096["online"] < at_4096["dense"]
crossings = {name: faster["online", name] for name in ("linear", "lsh_1", "lsh_4", "lsh_8")}
assert list(crossings.values()) == sorted(crossings.values())
for name, length in crossings.items():
    print(f"{name.replace('_', '-')} is faster than softmax attention online from N = {length:.0f} on")
peaks = {name: dict(zip(curve.memory_lengths, curve.peak, strict=True)) for name, curve in curves.items()}
chapter.table(
    (
        "memory at the peak",
        "N = 1024: MiB per sequence",
        "KiB per token",
        "N = 4096: MiB per sequence",
        "KiB per token",
    ),
    [
        (name.replace("_", "-"), *(x for n in (1024, 4096) for x in (at[n] / 2**20, at[n] / 2**10 / n)))
        for name, at in peaks.items()
    ],
)

# %% native="It measures what compiled kernels keep, and a browser has none." jupyter={"source_hidden": true}
for name in curves:  # what is kept between the passes, counted now in the record's setting
    method = resource_methods.METHODS[name]
    kept = resource_methods.run(method, resource_methods.draw_inputs(method, 512, measured.setting, seed=0))
    assert kept == 4 * method.kept(512, measured.setting)

# %% [markdown]
# - Softmax attention's time grows with the square of the length, everything else's in proportion to it. The rings show
#   from which length on that pays: the more rounds of hashing, the later. Linear attention is the fastest from there
#   on.
# - **Memory is quadratic only where the matrix is kept**, as it was in the paper. Softmax attention online needs the
#   least memory of all, and the number of rounds hardly shows.
#
# The paper says how long a sequence may be for both passes to fit into the 11 GB of its GPU (section 4.1.2). The
# table also shows how far 11 GB would take one layer of this package's attention, if its memory went on to grow as it
# does at the end of the curves:

# %%
reach, rows = {}, []
for name, curve in curves.items():
    longest, peak = curve.memory_lengths[-1], curve.peak[-1]
    reach[name] = longest * (11e9 / peak) ** (1 / exponent(curve.memory_lengths, curve.peak))
for name, printed in (("dense", "softmax"), ("online", ""), ("lsh_4", "lsh-4"), ("lsh_8", "lsh-8"), ("linear", "")):
    printed_length = f"{reported.LONGEST[printed]:,}" if printed else "-"
    rows.append((name.replace("_", "-"), printed_length, f"{reach[name]:,.0f}", f"{reach[name] / reach['dense']:.0f}"))
chapter.table(("11 GB hold", "printed: N", "here, continued: N", "here, over dense"), rows)
assert reach["lsh_4"] > 4 * reach["dense"]  # claim 26
assert min(reach, key=reach.get) == "dense"
assert max(reach, key=reach.get).startswith("online")

# %% [markdown]
# The lengths themselves cannot be compared: there it is PyTorch on a GPU, here kernels that keep little between the
# passes. What can be compared is the order. In both, softmax attention with its matrix is the first to run out of
# memory. The paper's LSH attention got four times as far. Here it would get more than a hundred times as far, and
# softmax attention without the matrix further still. And in the paper linear attention needs the least memory of all at
# every length. Here it is the fastest but does not need the least memory, as it keeps the features of queries and keys.
#
# ## Exercises
#
# **1. How many rounds?** Two vectors have an angle of 45°. How many rounds with 16 buckets are needed so that they
# share a bucket at least once with probability 0.99? And how often do two orthogonal vectors share one in as many
# rounds?
#
# <details><summary>Solution</summary>
#
# $1 - (1 - p)^n \ge 0.99$ means $n \ge \log 0.01 / \log(1 - p)$. Orthogonal vectors have $p = 1/16$ in each round. The
# cell puts in the numbers.
#
# </details>

# %%
p_45 = lsh_collision.collision_probability(math.cos(math.pi / 4), 16)
needed = math.ceil(math.log(0.01) / math.log(1 - p_45))
orthogonal = 1 - (1 - 1 / 16) ** needed
assert 1 - (1 - p_45) ** needed >= 0.99 > 1 - (1 - p_45) ** (needed - 1)
print(f"p = {p_45:.3f}: {needed} rounds; orthogonal vectors share a bucket in {orthogonal:.2f} of the cases")

# %% [markdown]
# **2. Count once, or count shares?** The page counts a pair with the share $1 / c_{ij}$ in each of its rounds. The
# compiled kernel counts it fully in the *first* round where it meets and not at all in later ones. Why is that the
# same, and what does it save?
#
# <details><summary>Solution</summary>
#
# In the derivation the bracket has to be 1 for every pair: any weights $a^{(r)}_{ij} \ge 0$ with $\sum_r a^{(r)}_{ij} =
# 1$ will do. $1/c$ in each round is one choice, 1 in the first round another. For the second, round $r$ has to be
# compared only with the rounds before it, which saves half of the comparisons. And a pair is hidden instead of weighed,
# so there is no division. The $z_{ri}$ of a single round are then different numbers, but no $z_{ri}$ is left at the
# end.
#
# </details>

# %%
first = by_round & (np.cumsum(by_round, axis=0) == 1)  # (rounds, N, N)
np.testing.assert_array_equal(first.sum(axis=0), count > 0)
first_shares = np.where(first, np.exp(s * x @ k.T), 0)
same((first_shares @ v).sum(axis=0) / first_shares.sum(axis=(0, 2))[:, None], out)
counted_once = (first_shares @ v).sum(axis=0) / first_shares.sum(axis=(0, 2))[:, None]
print("first output, counted once:", counted_once[0].round(4), " by shares:", out[0].round(4))

# %% [markdown]
# **3. Why shared?** With queries and keys of their own, what goes wrong with sorting and chunks? Think of a bucket that
# holds many queries and no keys.
#
# <details><summary>Solution</summary>
#
# The sorted list would hold queries and keys, and a chunk might hold only queries, which then see nothing. With shared
# vectors every chunk has as many keys as queries. And a network that was trained without sharing has keys whose length
# matters. A long key far from the query in angle can have a larger score than a short one close by, but the hash sees
# only the angle. Hence keys of length 1. The cell takes the sentence's own queries, and its keys as long as they are:
# for five of the twelve words the largest score is not at the smallest angle.
#
# </details>

# %%
queries, keys, _ = vectors()
by_score, by_angle = (queries @ keys.T).argmax(axis=1), (queries @ k.T).argmax(axis=1)  # k has the keys of length 1
assert (by_score == by_angle).sum() == 7
print("at the largest score:  ", *(f"{word} {WORDS[j]}," for word, j in zip(WORDS, by_score, strict=True)))
print("at the smallest angle: ", *(f"{word} {WORDS[j]}," for word, j in zip(WORDS, by_angle, strict=True)))

# %% [markdown]
# **4. One chunk.** What is LSH attention with $C \ge N$? Check it against `softmax.forward`.
#
# <details><summary>Solution</summary>
#
# Everybody meets everybody. It is softmax attention with keys of length 1 and without the diagonal, whatever the hash
# and the number of rounds.
#
# </details>

# %%
everybody = reformer.forward(x, v, rotations=three, chunk=N)[0]
for i in range(N):
    others = np.arange(N) != i
    same(everybody[i : i + 1], softmax.forward(x[i : i + 1], k[others], v[others])[0])
print("last output, one chunk:", everybody[-1].round(4), " softmax over the others:", end=" ")
print(softmax.forward(x[-1:], k[others], v[others])[0][0].round(4))

# %% [markdown]
# ## What to remember
#
# - With keys of one length, the largest scores are at the smallest angles, and finding them is a search for neighbours.
#   A random hash finds most of them in several rounds, at a cost that is linear in $N$ for fixed chunks, but for the
#   sorting.
# - Buckets determine the order, and chunks decide who meets whom.
# - Rounds combine by their log-sum-exp. With each pair's weight divided by the number of its rounds, they are one
#   softmax.
# - The gradient takes $z_i$ and $o_i$ of all rounds together. Test with several rounds.
# - The hash is not differentiated, and finite differences have to hold it fixed.
#
# **Sources.** Kitaev, Kaiser and Levskaya (2020), *Reformer: the efficient transformer*. Andoni, Indyk, Laarhoven,
# Razenshteyn and Schmidt (2015), *Practical and optimal LSH for angular distance*. Charikar (2002), *Similarity
# estimation techniques from rounding algorithms*. Katharopoulos et al. (2020), *Transformers are RNNs* (lsh-1, lsh-4).
