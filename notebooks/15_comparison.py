# %% [markdown]
# # 15. The comparison: three families, one network, and when to use which
#
# Fifteen mechanisms avoid the $N \times N$ matrix, thirteen of them in fourteen chapters and two in chapter 19. Which
# come near softmax attention at an equal cost, what is left of a trained network when one is put in, and when should
# you use which?
#
# Here you will
#
# 1. sort the mechanisms into three families, and see all their matrices side by side;
# 2. derive one gradient that two of the families share, and the one of the third;
# 3. read what each of them costs, in a table that is made from the code and measured;
# 4. put each in the place of softmax attention in a pretrained network, at equal cost, and see how far heads are off;
# 5. see what the whole network still knows then, and what a little training brings back;
# 6. compare this with what a paper prints of trained networks, and make a choice.
#
# You need chapters 1, 4 and 5, and the beginnings of the others. How a network is fine-tuned is the subject of chapter
# 24; here we only read its results.

# %% jupyter={"source_hidden": true}
from functools import partial

import numpy as np

from linattn_ref.attention import bigbird, feature_maps, linear, linformer, local, nystromformer, patterns, softmax
from linattn_ref.data import reported
from linattn_ref.experiments.cost import comparison, comparison_calls
from linattn_ref.experiments.learned import every_mechanism, mechanism_time
from linattn_ref.experiments.measuring import heads
from linattn_ref.experiments.publishing import chapter, style, tables

# Numbers of size 1 that have gone through some hundred roundings of 2.2e-16 each agree to this.
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-12)

# %% [markdown]
# ## The smallest example, by hand
#
# Take four tokens with the values 1, 2, 3 and 6, and queries and keys of 0, so that no key is preferred. Softmax
# attention averages everything and returns 3 in each row. What does each family return?
#
# - *Low rank*: take Linformer with two mixtures by mean pooling. The mixed values are 1.5 and 4.5, and their mean is 3.
# - *A kernel*: take linear attention. All similarities are alike, so the output is 3.
# - *Pairs*: take a window of one key on either side. The outputs are means of what is near, $1.5,\ 2,\ 3\tfrac23,\
#   4.5$.
#
# So if nothing is preferred, only the pairs differ. (With other keys, a query of 0 still prefers no key in softmax
# attention. In linear attention it prefers the keys with larger features.) The chapter is about queries that prefer
# some keys.

# %%
no_scores, four_values = np.zeros((4, 2)), np.array([[1.0], [2.0], [3.0], [6.0]])
by_pairs = linformer.mean_pool(2, 4)
four_ways = {
    "softmax": softmax.forward(no_scores, no_scores, four_values)[0],
    "low rank": linformer.forward(no_scores, no_scores, four_values, by_pairs, by_pairs)[0],
    "kernel": linear.forward(no_scores, no_scores, four_values, eps=0.0)[0],
    "pairs": local.forward(no_scores, no_scores, four_values, window=1)[0],
}
for family, each in four_ways.items():
    print(f"{family:9}", each.ravel().round(3))
same(np.hstack(list(four_ways.values())[:3]), np.full((4, 3), 3.0))
same(four_ways["pairs"].ravel(), [1.5, 2, 11 / 3, 4.5])
other_keys = np.array([[0.0, 0.0], [2.0, 1.0], [-1.0, 3.0], [-2.0, -2.0]])
same(softmax.forward(no_scores, other_keys, four_values)[0], 3.0)
print("kernel, other keys:", linear.forward(no_scores, other_keys, four_values, eps=0.0)[0].ravel().round(3))

# %% [markdown]
# ## Three families
#
# A survey of linear transformers (B of this course's [sources](README.md)) ends in a table of eight methods. It says
# what each is built on, and what it puts in the place of softmax attention. Here it is, with the files that compute
# them.

# %%
EIGHT = {
    "linformer": ("low rank", "projections of keys and values, after Johnson and Lindenstrauss", "04_linformer"),
    "nystromformer": ("low rank", "the Nyström method", "11_nystromformer"),
    "longformer": ("local and global", "window + global tokens that the task names", "12_sparse_patterns"),
    "bigbird": ("local and global", "window + global + random blocks", "12_sparse_patterns"),
    "long_short": ("local and global", "window + projection that depends on the input", "13_long_short"),
    "linear": ("softmax as a kernel", "another kernel, elu + 1", "05_kernel_smoother"),
    "performer": ("softmax as a kernel", "FAVOR+: positive orthogonal random features", "09_performer"),
    "rfa": ("softmax as a kernel", "random features + a gate", "10_random_feature_attention"),
}
mechanisms = {row.name: row for row in tables.mechanisms()}
chapter.table(
    ("method", "family", "instead of softmax attention", "chapter"),
    [
        (
            f"[{mechanisms[name].title}](../{mechanisms[name].file})",
            family,
            instead,
            f"[{int(file[:2])}]({file}.ipynb)",
        )
        for name, (family, instead, file) in EIGHT.items()
    ],
)
others = sorted(set(mechanisms) - set(EIGHT))
after_2021 = ["delta", "gated_linear"]
before = ["block_local", "linformer_linear", "local", "reformer", "softmax", "sparse_transformer"]
assert others == sorted(after_2021 + before)

# %% [markdown]
# Four things are not in the survey's table. The first is softmax attention itself. The second is windows or blocks
# alone, Sparse Transformer and Reformer; they belong with the local ones, since they are exact over the pairs they
# keep. The third is the combination of Linformer with linear attention. The last is what came later, states that fade
# and correct themselves ([chapter 19](19_write_fade_erase.ipynb)).
#
# Each family has one formula. Write $w_{ij}$ for a weight that is not normalised yet.
#
# $$\text{pairs:}\quad o_i = \frac{\sum_{j \in S_i} w_{ij} v_j}{\sum_{j \in S_i} w_{ij}}, \quad
# w_{ij} = \exp(s\, q_i^\top k_j) \qquad\qquad
# \text{kernel:}\quad o_i = \frac{\sum_j w_{ij} v_j}{\sum_j w_{ij}}, \quad w_{ij} = \phi(q_i)^\top \phi(k_j)$$
#
# $$\text{low rank:}\quad O = A\, (B V), \qquad A \in \mathbb R^{N \times R}, \; B \in \mathbb R^{R \times L}$$
#
# Pairs keep the exponential and leave out most $j$. Kernels keep all $j$ and give up the exponential. Low rank gives up
# both, and keeps a softmax inside $A$ (Linformer), or inside $A$ and $B$ (Nyströmformer).
#
# ## The matrices
#
# All of them are linear in the values (the Long-Short Transformer, if its values have no norms, as here). So the matrix
# that a mechanism applies, although none of them forms it, is its output for the identity: $\tilde P =
# \mathrm{forward}(q, k, I)$. We take the same queries and keys for all. There are 160 tokens whose content changes
# slowly. The earlier ones look at the first three too, as heads often look at the first token (chapter 2):

# %%
N, D = 160, 32
rng = np.random.default_rng(0)
walk = np.cumsum(rng.standard_normal((N, D)), axis=0) / 5
walk -= walk.mean(axis=0)
q, k = (walk + rng.standard_normal((2, N, D))).astype(np.float32)
q[:, 0], k[:, 0] = 3, 0
k[:3, 0] = 12  # which adds 36 / sqrt(32) to their scores; the other entries are against them for the later queries
v = rng.standard_normal((N, D)).astype(np.float32)

SIZES = {
    "linformer": 16,
    "nystromformer": 16,
    "performer": 64,
    "rfa": 64,
    "linear": 0,
    "local": 6,
    "longformer": 6,
    "bigbird": 1,
    "long_short": 16,
    "sparse_transformer": 13,
    "reformer": 2,
}
identity = np.eye(N, dtype=np.float32)
forwards = {name: way.make(SIZES[name], N, D, np.random.default_rng(1)) for name, way in comparison.WAYS.items()}
found = {"softmax": softmax.matrix(q, k)} | {name: forward(q, k, identity) for name, forward in forwards.items()}
on_the_first = found["softmax"][:, :3].sum(axis=1)
assert np.median(on_the_first[:60]) > 0.9
assert np.median(on_the_first[100:]) < 0.01
for name, forward in forwards.items():  # linear in the values, all of them: P v is the output
    np.testing.assert_allclose(found[name] @ v, forward(q, k, v), rtol=0, atol=2e-4)


titles = {"softmax": "softmax"} | {name: way.label.partition(",")[0] for name, way in comparison.WAYS.items()}


def show_matrix(axis, p):
    """The square root of every entry, with its sign, so that small ones are seen."""
    axis.spines[:].set_visible(False)
    axis.set(xticks=[], yticks=[])
    return axis.imshow(np.sqrt(abs(p)) * np.sign(p), cmap="RdBu_r", vmin=-0.7, vmax=0.7, interpolation="nearest")


def draw_matrices(matrices):
    figure, axes = style.figure(3, 4, height=0.85)
    for axis, (name, p) in zip(axes.flat, matrices.items(), strict=True):
        image = show_matrix(axis, p)
        axis.set_title(titles[name])
    entries = np.array([-0.4, -0.1, 0, 0.1, 0.4])
    bar = figure.colorbar(image, ax=axes, shrink=0.6, label="entry of the matrix")
    bar.set_ticks(np.sqrt(abs(entries)) * np.sign(entries), labels=[f"{entry:g}" for entry in entries])
    return figure


chapter.show(
    draw_matrices,
    found,
    alt="Twelve matrices of 160 by 160: softmax's has a band and, in its upper half, dark first columns; low rank ones "
    "are smeared in stripes, those over pairs are blank outside their pattern, the kernels' are smooth or noisy",
)

# %% [markdown]
# Red is positive, blue negative; the colour goes with the square root of the entry. It shows what the formulas say:

# %%
smallest = {name: float(p.min()) for name, p in found.items()}
row_sums = {name: float(abs(p.sum(axis=1) - 1).max()) for name, p in found.items()}
zeros = {name: float((p == 0).mean()) for name, p in found.items()}
ranks = {name: int(np.linalg.matrix_rank(p.astype(np.float64), rtol=1e-5)) for name, p in found.items()}
chapter.table(
    ("matrix", "smallest entry", "row sums off 1 by", "share of zeros", "rank"),
    [(titles[name], smallest[name], row_sums[name], zeros[name], ranks[name]) for name in found],
)
pairs = {"local", "longformer", "bigbird", "sparse_transformer", "reformer"}
kernels = {"performer", "rfa", "linear"}
assert all(zeros[name] > 0.2 for name in pairs)  # whoever leaves pairs out has zeros, the others none
assert all(zeros[name] == 0 for name in kernels | {"softmax", "linformer", "nystromformer"})
assert ranks["linformer"] <= 16  # a product of N x R and R x L
assert ranks["nystromformer"] <= 16
assert ranks["performer"] <= 64  # of N x C and C x L, rows divided
assert ranks["linear"] <= D
assert all(smallest[name] >= 0 for name in set(found) - {"nystromformer"})
assert smallest["nystromformer"] < 0  # nothing keeps a pseudo-inverse positive
assert all(row_sums[name] < 1e-4 for name in set(found) - {"nystromformer"})
few = comparison.WAYS["rfa"].make(4, N, D, np.random.default_rng(1))(q, k, identity)
assert few.min() < 0  # four directions: sines and cosines of either sign

# %% [markdown]
# Is the table of families more than three names? The formulas say how to tell from the matrix alone. Take one query and
# two keys next to it, and look at the ratio of their two weights. For pairs and for kernels each weight comes from its
# own query and key, and the ratio stays when a third key changes. For low rank it moves if the third key is in a
# mixture or a landmark with one of them. And for pairs the ratio is that of two exponentials, while for kernels it is
# not.
#
# One query is not enough. The two keys next to query 85 are in one segment of Linformer's mean pooling, as for eight of
# ten queries, so their weights are equal whichever third key changes. So take 150 queries, with a third key near each
# at random, and look at two numbers. One is how often the ratio moves by more than 5%. The other is how far the ratio
# is from that of the exponentials, in the median and in logarithms.


# %%
def log_ratio(p, i):
    """Of the weights of the two keys next to query i."""
    return float(np.log(abs(p[i, i - 1] / p[i, i + 1])))


scores = q @ k.T / np.sqrt(D)
third_of = np.random.default_rng(5)
moved, off = {name: [] for name in EIGHT}, {name: [] for name in EIGHT}
for i in range(5, 155):
    other_k = k.copy()
    other_k[third_of.choice([j for j in range(i - 5, i + 6) if abs(j - i) != 1])] *= -1
    for name in EIGHT:
        ratio = log_ratio(found[name], i)
        moved[name].append(abs(log_ratio(forwards[name](q, other_k, identity), i) - ratio) > 0.05)
        off[name].append(abs(ratio - float(scores[i, i - 1] - scores[i, i + 1])))
rows = []
for name, (family, *_) in EIGHT.items():
    share, distance = np.mean(moved[name]), np.median(off[name])
    seen = "low rank" if share > 0.1 else "local and global" if distance < 0.1 else "softmax as a kernel"
    rows.append((titles[name], family, f"{share:.0%}", f"{distance:.2g}", seen))
    assert seen == family  # claim 33
chapter.table(
    ("method", "family in the table", "the ratio moves", "off the exponentials', median", "family, seen"),
    rows,
)
assert log_ratio(found["linformer"], 85) == 0  # where no third key can matter
assert sum(log_ratio(found["linformer"], i) == 0 for i in range(5, 155)) == 0.8 * 150
assert max(max(off[name]) for name in ("longformer", "bigbird")) < 1e-4  # the rounding of float32
assert max(np.mean(moved[name]) for name, (family, *_) in EIGHT.items() if family != "low rank") < 0.03
assert np.mean(moved["linformer"]) < 0.5  # most triples do not tell

# %% [markdown]
# The matrices are sorted as the table is, but only by many triples: for Linformer most third keys change nothing.
# Long-Short has something of two families. It has a window, and mixtures of low rank that also contain its near keys.
# So its ratio is not exactly that of the exponentials, and now and then a third key moves it.
#
# There are two warnings in the table of the matrices. A Nyström approximation can have negative weights and rows that
# do not sum to 1, so its output is not an average of the values. And RFA's features, sines and cosines, estimate a
# positive kernel by numbers of either sign: with 64 directions no entry comes out negative here, with 4 some do.
#
# ## One gradient for two families
#
# Pairs and kernels are both $o_i = \sum_j w_{ij} v_j / z_i$ with $z_i = \sum_j w_{ij}$. Let $g_i$ be the gradient of
# a loss with respect to $o_i$. A change $\delta w_{ij}$ changes the numerator by $\delta w_{ij} v_j$ and the
# denominator by $\delta w_{ij}$:
#
# $$\delta o_i = \frac{\delta w_{ij}\, v_j}{z_i} - \frac{\sum_l w_{il} v_l}{z_i^2}\, \delta w_{ij}
# = \frac{v_j - o_i}{z_i}\, \delta w_{ij}$$
#
# so that
#
# $$\frac{\partial \ell}{\partial w_{ij}} = \frac{g_i^\top (v_j - o_i)}{z_i}, \qquad
# \frac{\partial \ell}{\partial v_j} = \sum_i \frac{w_{ij}}{z_i}\, g_i \qquad (\ast)$$
#
# In words: raise the weight of $j$ if its value, seen from where the output is now, lies in a direction that lowers the
# loss. From here the families part.
#
# **Pairs.** $w_{ij} = e^{a_{ij}}$, so $\partial \ell / \partial a_{ij} = w_{ij}\, \partial \ell / \partial w_{ij}
# = P_{ij}\, (g_i^\top v_j - g_i^\top o_i)$: the softmax gradient of chapter 1, and 0 for a pair that is left out.
#
# **Kernels.** $w_{ij} = \phi(q_i)^\top \phi(k_j)$, so
# $\partial \ell / \partial \phi(q_i) = \sum_j (\partial \ell / \partial w_{ij})\, \phi(k_j)$. With $(\ast)$, and the
# bracket moved,
#
# $$\frac{\partial \ell}{\partial \phi(q_i)} = \frac 1 {z_i} \Big( \sum_j \phi(k_j) v_j^\top \Big) g_i
# - \frac{g_i^\top o_i}{z_i} \sum_j \phi(k_j)$$
#
# which are the two sums of the forward pass again. There is nothing of size $N^2$ in either direction.
#
# The next cell forms $w$ and $(\ast)$ densely, in four lines, and checks the package's backward passes against it.


# %%
def dense_gradients(w, v, d_out):
    """The gradients of w and v, and the output: the formula above."""
    z = w.sum(axis=1, keepdims=True)
    out = w @ v / z
    return (d_out @ v.T - (d_out * out).sum(axis=1, keepdims=True)) / z, (w / z).T @ d_out, out


rng = np.random.default_rng(2)
Q, K, V, d_out = rng.standard_normal((4, 24, 8))
SCALE = 8**-0.5

# Pairs: everything, a window, blocks. The gradient of a pair that is left out is 0 because w is.
for allowed, module, options in (
    (np.ones((24, 24), bool), softmax, {}),
    (patterns.local(24, window=3), local, {"window": 3}),
    (patterns.bigbird(24, block=4), bigbird, {"block": 4}),
):
    w = np.where(allowed, np.exp(SCALE * Q @ K.T), 0)
    d_w, d_v, out = dense_gradients(w, V, d_out)
    d_scores = w * d_w
    got_out, saved = module.forward(Q, K, V, **options)
    got = module.backward(d_out, saved)
    same(got_out, out)
    same(got.q, SCALE * d_scores @ K)
    same(got.k, SCALE * d_scores.T @ Q)
    same(got.v, d_v)

# Kernels: elu + 1, and Performer's positive features of a draw.
omega = feature_maps.orthogonal_gaussian(32, 8, rng)
for phi, eps in ((feature_maps.elu_plus_one, 1e-300), (feature_maps.favor_positive(omega), 0.0)):
    (phi_q, saved_q), (phi_k, saved_k) = phi.forward(Q), phi.forward(K)
    d_w, d_v, out = dense_gradients(phi_q @ phi_k.T, V, d_out)
    got_out, saved = linear.forward(Q, K, V, feature_map=phi, eps=eps)
    got = linear.backward(d_out, saved)
    same(got_out, out)
    same(got.q, phi.backward(d_w @ phi_k, saved_q))
    same(got.k, phi.backward(d_w.T @ phi_q, saved_k))
    same(got.v, d_v)
    print(
        f"{phi.name}, first query's gradient:",
        phi.backward(d_w @ phi_k, saved_q)[0, :3].round(4),
        got.q[0, :3].round(4),
    )

# %% [markdown]
# **Low rank.** Let $g$ be the matrix with the rows $g_i^\top$. $O = A\, (B V)$ needs nothing but the product rule:
# $\partial \ell / \partial A = g\, (B V)^\top$ and $\partial \ell / \partial (B V) = A^\top g$. From the latter,
# $\partial \ell / \partial B = (A^\top g)\, V^\top$ and $\partial \ell / \partial V = B^\top A^\top g$. Then each of
# $A$ and $B$ passes on what it gets. For Linformer $A = \mathrm{softmax}(s\, Q (E K)^\top)$ is a softmax over $R$
# columns, and $B = F$ is a parameter.

# %%
E, F = rng.standard_normal((2, 5, 24)) / 5**0.5
a = softmax.matrix(Q, E @ K)  # (N, R)
d_a, d_b = d_out @ (F @ V).T, a.T @ d_out @ V.T
d_scores = a * (d_a - (d_a * a).sum(axis=1, keepdims=True))
got_out, saved = linformer.forward(Q, K, V, E, F)
got = linformer.backward(d_out, saved)
same(got_out, a @ (F @ V))
same(got.f, d_b)
same(got.v, F.T @ a.T @ d_out)
same(got.q, SCALE * d_scores @ (E @ K))
same(got.e, SCALE * d_scores.T @ Q @ K.T)

chapter.source(nystromformer.backward, doc=False)  # three softmaxes and a pseudo-inverse, by the same rule

# %% [markdown]
# ## What each costs
#
# One table has all mechanisms, made from the code. The orders of time and memory, and whether the result is softmax
# attention's, are in the docstring of each file and are tested. The rest is measured in a call of both passes, compiled
# where the page has a compiled form (so softmax attention keeps no matrix here), with $N = 4096$ tokens, $H = 8$ heads
# of width 64, in float32. "Learned" and "drawn" count the numbers in arrays beyond those that a layer makes from its
# tokens. "Kept" counts the bytes, beyond all inputs, that the forward pass passes to the backward pass.

# %% native="It counts what compiled kernels keep, and the pages in NumPy keep whole matrices instead."
chapter.source(comparison_calls.cost, doc=False)

measured = {name: comparison_calls.cost(name) for name in comparison_calls.NAMES}
chapter.table(
    ("mechanism", "time", "memory", "causal", "exact", "recurrent", "learned", "drawn", "kept, MB"),
    [
        (
            mechanisms[name].title,
            *(mechanisms[name].fields[field].replace("``", "`") for field in ("Time", "Memory", "Causal", "Exact")),
            "yes" if mechanisms[name].recurrent else "no",
            cost.learned,
            cost.drawn,
            cost.saved / 1e6,
        )
        for name, cost in measured.items()
    ],
)
assert set(measured) == set(mechanisms)
matrix_bytes = 8 * 4096 * 4096 * 4
assert all(cost.saved < 0.35 * matrix_bytes for cost in measured.values())
# Twice the length keeps twice the bytes, or a little less where part of it does not grow: nobody keeps a matrix.
longer = {name: comparison_calls.cost(name, comparison_calls.Sizes(n=8192)).saved for name in ("linear", "reformer")}
assert all(1.9 < longer[name] / measured[name].saved < 2.01 for name in longer)

# %% [markdown]
# The table shows three things.
#
# - Softmax attention keeps its output and two numbers per row, because the scores are computed again in the backward
#   pass (chapter 1). Only gated linear attention and the delta rule keep less, by one of the two: they have neither
#   features nor a denominator. What the others save is time. The memory of the matrix is saved by not keeping it.
# - Random features keep $C$ numbers per token for queries and for keys, and $C$ is several times the width.
# - Only six have a recurrent form; of these only softmax attention's state grows (chapter 8).

# %% native="It tells of what compiled kernels keep, from the cell above."
least = min(cost.saved for cost in measured.values())
assert measured["gated_linear"].saved == measured["delta"].saved == least
assert measured["softmax"].saved == least + 8 * 4096 * 4 == sorted({cost.saved for cost in measured.values()})[1]
assert measured["rfa"].saved > 10 * least
assert [name for name, row in mechanisms.items() if row.recurrent] == [
    *("softmax", "delta", "gated_linear", "linear", "performer", "rfa")
]
print(f"kept by RFA: {measured['rfa'].saved / least:.0f} times the least")

# %% [markdown]
# > **A break.** There are three families: keep few pairs, keep few keys, or replace the exponential by features. Their
# > matrices can be told apart by the ratio of two weights, and by changing a third key. Pairs and kernels share one
# > gradient. What they save is time, since softmax attention without its matrix already saves the memory. After the
# > break we measure which of them come near softmax attention, and what a trained network keeps.

# %% [markdown]
# ## At equal cost, which is near softmax attention?
#
# Now the experiment. The queries, keys and values are those of a pretrained 6-layer encoder reading film reviews of 512
# tokens; its weights stay as they are and nothing is fitted. It is **one network** (all-MiniLM-L6-v2), all its **72
# heads**, and **eight reviews**: 576 matrices in all. Heads differ widely, so each median has the middle 80% of heads
# and texts next to it. Where one method is called the best, we say in how many layers and texts it is the best. Each
# mechanism replaces softmax attention at several sizes. Its cost is counted: multiply-adds in the matrix products of
# its own code, over those of softmax attention.

# %%
chapter.source(comparison.measure)

results = chapter.results("comparison")
chapter.show(
    comparison.draw,
    results,
    alt="Relative error of the output and of the matrix over the counted cost, one line per mechanism: "
    "windows and blocks fall steeply, low rank methods slowly, random features hardly; dashed across, truncated SVDs "
    "of rank 8 and 32, the first reached only by the most expensive",
)

# %%
costs = {name: curve.cost for name, curve in results.ways.items()}


def error_at(name, cost, part):
    """A part of the errors of the output at a cost, between the measured sizes: by layer, by text, or of all."""
    errors = getattr(results.ways[name].output, part)
    by_size = np.log(errors).reshape(len(errors), -1).T  # (layers or texts or 1, sizes)
    return np.exp([np.interp(np.log(cost), np.log(costs[name]), each) for each in by_size])


softmax_like = [name for name, way in comparison.WAYS.items() if way.target == "softmax" and name != "linear"]


def all_at(cost, part):
    """`error_at` of each mechanism that was measured at such costs."""
    return {name: error_at(name, cost, part) for name in softmax_like if costs[name][0] <= cost <= costs[name][-1]}


def best_at(cost, part):
    """The way with the least error, layer by layer or text by text."""
    ways = all_at(cost, part)
    return [list(ways)[i] for i in np.argmin(list(ways.values()), axis=0)]


def with_spread(name, cost):
    low, median, high = (float(error_at(name, cost, part)[0]) for part in ("low", "median", "high"))
    return f"{median:.2f} ({low:.2f} to {high:.2f})"


cheap, dear = ({name: float(x[0]) for name, x in all_at(cost, "median").items()} for cost in (0.1, 0.4))
chapter.table(
    ("error: median (from tenth to tenth)", "at a tenth of the cost", "at 0.4 of the cost"),
    [
        (
            comparison.WAYS[name].label,
            *(with_spread(name, cost) if name in at else "–" for cost, at in ((0.1, cheap), (0.4, dear))),
        )
        for name in softmax_like
    ],
)
for cost in (0.1, 0.4):
    print(f"least at {cost} of the cost, layer by layer:", *best_at(cost, "by_layer"))
# At a tenth of the cost none comes below the truncated SVD of rank 8, which needs P.
assert min(cheap.values()) > results.svd.output.median[0]
assert min(curve.output.median.min() for curve in results.ways.values()) > results.svd.output.median[2]  # rank 32
# Cheap: low rank. At 0.4 of the cost: blocks and windows with global tokens.
assert min(cheap, key=cheap.get) == "nystromformer"
assert set(best_at(0.1, "by_sentence")) == {"nystromformer"}
assert [best_at(0.1, "by_layer").count(name) for name in ("nystromformer", "longformer")] == [4, 2]
assert set(sorted(dear, key=dear.get)[:2]) == {"bigbird", "longformer"}
assert abs(dear["bigbird"] / dear["longformer"] - 1) < 0.01
assert set(best_at(0.4, "by_sentence")) == {"bigbird"}
assert [best_at(0.4, "by_layer").count(name) for name in ("bigbird", "nystromformer")] == [5, 1]
# Two global tokens are worth their price.
assert (error_at("longformer", 0.2, "by_layer") < error_at("local", 0.2, "by_layer")).all()
# Heads differ as much as mechanisms do: the middle 80% of the best one's errors, and all the medians.
for cost, medians, best in ((0.1, cheap, "nystromformer"), (0.4, dear, "bigbird")):
    low, high = (float(error_at(best, cost, part)[0]) for part in ("low", "high"))
    of_heads, of_mechanisms = high / low, max(medians.values()) / min(medians.values())
    print(f"at {cost} of the cost: {best}'s heads span a factor of {of_heads:.1f}, the medians {of_mechanisms:.1f}")
    assert of_heads > of_mechanisms > 2
    by_text = all_at(cost, "by_sentence")[best]
    assert by_text.max() / by_text.min() < 1.2  # texts differ less

# %% native="It reads with the pretrained network, which this page does not load." jupyter={"source_hidden": true}
# The record holds what this code computes: the errors of two mechanisms on the first of the eight reviews, once more.
first_review, _ = heads.read_heads(sentences=1, length=512, seed=results.settings["seed"])
for name in ("nystromformer", "longformer"):  # which draw nothing
    again = comparison.measure(comparison.WAYS[name], first_review, np.random.default_rng(0), quick=False)
    kept = results.ways[name]
    np.testing.assert_allclose(again.cost, kept.cost, rtol=1e-12)
    np.testing.assert_allclose(again.output.by_sentence[:, 0], kept.output.by_sentence[:, 0], rtol=1e-3)
    np.testing.assert_allclose(again.matrix.by_sentence[:, 0], kept.matrix.by_sentence[:, 0], rtol=1e-3)

# %% [markdown]
# Here is what the figure shows, and what it does not:
#
# - **Pairs** get better steadily, since in the end they keep all pairs. At 0.4 of the cost BigBird and Longformer are
#   the best, with the same median. On average over the heads BigBird is best, in each text and in five of six layers.
#   Global tokens help much, since real heads look at the first token, `[CLS]`, far more than at any other. (This is
#   measured in chapter 2; `[SEP]` is nothing special there.)
# - **Low rank** is best where little may be spent: Nyström attention is best in the median, in each text and in four of
#   six layers (Longformer in the others). Mean pooling is Linformer without training; fitted projections do a little
#   better (chapter 4). Truncated at rank 32, the SVD is below all, so the matrices *are* near low rank; what is
#   missing is a cheap way to find the subspace.
# - **Kernels** gain hardly anything from more features here. Linear attention does not try to be softmax attention. For
#   Performer the scores of a trained network are too large: the square of the relative error of positive features grows
#   as $e^{\lVert q + k \rVert^2 / \sqrt D}$ (chapter 9).
# - **Heads differ as much as mechanisms do**, texts less. At equal cost the errors of the best mechanism span a factor
#   of 2.6 to 2.8 from head to head (the middle 80%), and the medians of all mechanisms span 2.2 to 2.8. What a
#   mechanism does to a network depends on what its heads do. And this is one network at one length; with another the
#   order may differ.
# - None of this is about networks *trained* with a mechanism, and nothing was trained here. The papers train theirs
#   with it, from the start or for some time more, and report results near those of softmax attention on their tasks.
#
# ## One network, every mechanism
#
# The error of a head's output is not what a network is for. The same pretrained network learned to tell praise from
# blame in film reviews, with softmax attention. Then each mechanism took its place in all six layers, with the
# projections that were trained for softmax attention. How many test texts does the network still get right? And how
# many after a few more updates of all its parameters, the same number for each, on the same batches, at one rate?
#
# Each mechanism has the same price: a query looks at $k$ keys, mixtures or landmarks, or is described by $k$ features,
# with $k$ a quarter of the length. Linear attention has no choice: it has as many features as a head is wide. BigBird
# gets less on sentences, where a query sees 8 keys with $k = 12$, as its blocks are an eighth of $k$, rounded down. The
# runs are recorded (`experiments/learning/every_mechanism.toml` is their plan); nothing is trained in this chapter.
# Everything was done with three seeds, the first training included, and all test texts were read.

# %%
trained = chapter.results("every_mechanism")
chapter.show(
    every_mechanism.draw,
    trained,
    alt="Test accuracy of one network with each mechanism, before and after further training, with intervals",
)
for source in trained.values():
    print(
        f"{source.name}: {source.length} tokens; {source.first_steps} updates with softmax attention, then "
        f"{source.steps} with each mechanism; {source.batch} texts per update, rate {source.peak:g}; "
        f"{source.texts} test texts"
    )
    chapter.table(
        ("mechanism", "right before training", "right after", "points above softmax's, by seed", "CPU s per update"),
        every_mechanism.table_rows(source),
    )

# %% [markdown]
# Here is what the two tables show:
#
# - **Longformer** is near softmax attention at once, on both data sets: that accuracy is within its interval. On
#   reviews so is BigBird. Both keep the exponential, and attend to the keys near by and at a few fixed places. Nyström
#   attention, whose landmarks are made from the text, loses two percentage points on reviews and four on sentences.
#   There BigBird, whose blocks are single tokens then, loses six. (All mechanisms read the same texts, so differences
#   are known better than these intervals say.)
# - **A window alone** loses four points on sentences, where a quarter of the length covers much of what there is to
#   see, and ten on reviews. Longformer and BigBird, which add some tokens that every query sees, lose about one there
#   or less.
# - **Far from softmax attention**, on both, are the three kernels, Linformer with mixtures by position, which nobody
#   has trained, and Reformer. They lose seven points or more. Reformer has one projection for queries and keys, and the
#   network was trained with two. Long-Short is further still, and hardly better than guessing: its mixtures are drawn,
#   and its norms are new.
# - **A little training** recovers much on the reviews, where most was lost: ten percentage points or more for
#   Linformer, linear attention, Reformer and Long-Short, five or more for the window and RFA. On sentences the same
#   number of updates raises no accuracy by as much as two points, except that of Long-Short. Performers recover little
#   on either.
# - **Further updates are not harmless.** On sentences softmax attention itself, in which nothing was exchanged, loses
#   three points by them, and on reviews one. "After" must be compared with softmax attention's row after the same
#   updates: by that measure most mechanisms come three to five points nearer on sentences too.
# - **Seed by seed**: after those updates the six that were far, and BigBird, are below softmax attention with each of
#   the three seeds, on both data sets, though BigBird by a single review with one of them. Longformer and Nyström
#   attention are above it with one seed and below it with another, on both. So is the window on sentences; on reviews
#   it is below with each. The plan for reviews, written after the runs on sentences, predicted the same for them; for
#   the window that was wrong.

# %%
far = ("linear", "performer", "rfa", "linformer", "reformer", "long-short")
gained = {}
for key, near in (("rt", {"longformer"}), ("imdb", {"longformer", "bigbird"})):
    rows = every_mechanism.ordered(trained[key])
    before = {name: one.before for name, one in rows.items()}
    gained[key] = {name: one.after.accuracy - one.before.accuracy for name, one in rows.items()}
    reference = before.pop("softmax").accuracy
    for name, found in before.items():
        assert (found.high > reference) == (name in near)
    assert min(before[name].accuracy for name in near) > 0.03 + max(before[name].accuracy for name in far)
    assert reference - max(before[name].accuracy for name in far) > 0.07
    assert before["long-short"].low < 0.55 < rows["long-short"].after.low
    print(f"{key}: accuracy lost at once,", end=" ")
    print(", ".join(f"{name} {reference - found.accuracy:.3f}" for name, found in before.items()))
    seeds = {name: np.array(one.after.by_seed) for name, one in rows.items()}
    for name, right in seeds.items():
        above = right - seeds["softmax"]
        if name in (*far, "bigbird", *(["local"] if key == "imdb" else [])):
            assert max(above) < 0
        elif name != "softmax":
            assert min(above) < 0 < max(above)
assert {name for name, x in gained["imdb"].items() if x > 0.05} == {*far, "local"} - {"performer"}
assert {name for name, x in gained["imdb"].items() if x > 0.1} == {*far} - {"performer", "rfa"}
assert max(abs(x) for name, x in gained["rt"].items() if name != "long-short") < 0.04 < gained["rt"]["long-short"]
assert max(gained[key]["performer"] for key in gained) < 0.05
nearer = {name: x - gained["rt"]["softmax"] for name, x in gained["rt"].items()}
assert sum(0.029 < x < 0.05 for name, x in nearer.items()) == 7
assert gained["rt"]["softmax"] < -0.03 < gained["imdb"]["softmax"] < -0.01
for key, each in gained.items():
    print(f"{key}: accuracy gained,", ", ".join(f"{name} {x:+.2f}" for name, x in each.items()))

# %% [markdown]
# ### And what it costs
#
# The figure shows the time of both passes of a whole network of that size, at the 128 tokens of the reviews, and at
# 2,048 tokens with $k = 128$: a sixteenth of the length, not a quarter. The time is divided by the time with softmax
# attention that keeps no matrix. The table has the milliseconds. At 128 tokens attention is a twentieth of a layer's
# multiply-adds (chapter 24 counts them), and almost nothing can be saved; the more complicated mechanisms only cost
# more. At 2,048 tokens the order changes.

# %%
of_network = chapter.results("mechanism_time")
chapter.show(
    mechanism_time.draw,
    of_network,
    alt="Bars: time of both passes over softmax attention's, by mechanism, at 128 and at 2,048 tokens",
)
chapter.table(
    ("mechanism", *(f"ms per sequence of {point.length}, k = {point.k}" for point in of_network.points)),
    [
        (every_mechanism.TITLES[name], *(f"{1e3 * seconds:.0f}" for seconds in of_network.seconds[name]))
        for name in every_mechanism.TITLES
    ],
)
short, long = ({name: ratio[i] for name, ratio in of_network.ratio.items() if name != "softmax"} for i in range(2))
print(f"128 tokens: {sum(x < 0.95 for x in short.values())} of {len(short)} save more than 5 % of the time;", end=" ")
print(f"2,048 tokens: {sum(x < 0.95 for x in long.values())}, from {1 - max(long.values()):.0%}", end=" ")
print(f"to {1 - min(long.values()):.0%}")
assert max(long.values()) < 1  # at 2,048 tokens all are faster,
assert min(short.values()) > 0.9  # at 128 none by much
assert min(long, key=long.get) == "linear"

# %% [markdown]
# ### What training made of three of them
#
# Here are the numbers of one paper. The authors of linear attention trained four networks to recognise speech on the
# Wall Street Journal data (Katharopoulos et al. 2020, section 4.3 and table 3). An utterance has 800 frames on average
# and at most 2,400. Softmax attention made the fewest errors, and linear attention fewer than LSH, in the shortest
# epochs. None of this is repeated here. What we can compare is time. Theirs is the time of an epoch, divided by that of
# linear attention. Ours, from chapter 14's record, is the time of both passes of attention alone, divided in the same
# way. Softmax attention keeps its matrix in this table; without it, it takes about half as long.

# %%
curves = chapter.results("resources").curves
HERE = {"softmax": "dense", "lsh-4": "lsh_4", "linear": "linear"}


def times_linear(name, n):
    seconds = [curves[each].seconds[list(curves[each].lengths).index(n)] for each in (name, "linear")]
    return seconds[0] / seconds[1]


rows = []
for name, printed in reported.SPEECH.items():  # claim 31
    epoch = printed.seconds_per_epoch / reported.SPEECH["linear"].seconds_per_epoch
    here = (f"{times_linear(HERE[name], n):.1f}" if name in HERE else "–" for n in (512, 1024, 2048))
    rows.append((name, f"{printed.phoneme_error_rate:.2f} %", printed.seconds_per_epoch, f"{epoch:.1f}", *here))
chapter.table(
    (
        "",
        "phoneme errors, printed",
        "s per epoch, printed",
        "times linear, printed",
        *(f"here, N = {n}" for n in (512, 1024, 2048)),
    ),
    rows,
)
for n in (512, 1024, 2048):  # the order of the epochs, at each length
    without_matrix = times_linear("online", n)
    assert times_linear("dense", n) > without_matrix > times_linear("lsh_4", n) > 1
    assert 0.4 < without_matrix / times_linear("dense", n) < 0.6
    print(f"N = {n}: softmax that keeps no matrix, over linear: {without_matrix:.1f}")

# %% [markdown]
# The order is the same: linear attention, LSH, softmax attention, with its matrix or without. Their ratios are smaller
# than ours at 1,024 tokens, since an epoch is more than attention. And theirs are from a GPU, ours from one thread of a
# processor.
#
# ## When to use which
#
# What this course has measured comes down to a few questions, to be asked in this order.
#
# 1. **Does attention dominate the cost?** Its share grows with the length over the width. At 128 tokens and width 384
#    no mechanism saves more than a few per cent, and a softmax attention that keeps no matrix (chapter 1) is the
#    answer: it is exact. In narrower networks others pay earlier. In chapter 20 a step with softmax attention takes
#    15% longer than one with linear attention at 512 tokens; in chapter 22 it takes 1.2 times as long at 300 frames
#    and 1.5 times at 800.
# 2. **Are tokens generated one after the other?** Then what counts is the state. Linear attention, with a gate or
#    without, Performer, RFA and the delta rule have one of fixed size (chapters 7 to 10 and 19); what is given up is
#    pointing at one token far back (chapter 20).
# 3. **Was the network trained already?** Then stay near what it was trained with: the table above. Mechanisms that
#    keep the exponential and the pairs that matter, or that choose their landmarks from the text, need the least
#    repair. Another kernel needs training.
# 4. **Is it trained from the start?** Then the errors of this chapter say little, for a network learns what its
#    attention can do. Take what fits the data. Use windows and blocks where neighbours matter (chapter 12), with global
#    tokens where every token may need every other. Use mixtures where the length is fixed (chapter 4), or mixtures that
#    depend on the text where it is not (11 and 13). Use hashing where few keys matter and it is not known beforehand
#    which (14).
# 5. **What can be measured?** One length, one network and one thread are three choices. You can add a mechanism of your
#    own: enter its options in the table of `measuring.mechanisms`, and its name, title and sizes in that of
#    `encoder_attention`. The same commands then accept it for `--attention`, and the same figures show it.
#
# ### What the table cannot say
#
# - It is **one network**, of 22.6 million parameters, which others pretrained to measure how similar sentences are. And
#   it is **one task** that asks for little: whether a review is praise can be seen from many words, each by itself. A
#   task that needs one token found among thousands would punish other mechanisms.
# - The texts are **short**. A window of a quarter of 128 tokens sees much; at 4,000 tokens the same number of keys is
#   next to nothing.
# - **Each was trained briefly**, three times, at a rate that was chosen for softmax attention. More training, or a rate
#   of its own, would bring some of them nearer. The intervals cover only the choice of test texts; how far seeds differ
#   is seen in their ticks.
# - Equal $k$ is not equal time, and time is that of **one processor**. Chapter 16 has other kernels.
# - It says nothing about networks that are *pretrained* with a mechanism, which is what the papers do.
#
# The slider shows how the matrices of Nyström attention, of the Performer and of a window fill in with size.


# %%
def panel(axes, size):
    for axis, name, scaled in zip(axes, ("nystromformer", "performer", "local"), (size, 8 * size, size), strict=True):
        p = comparison.WAYS[name].make(scaled, N, D, np.random.default_rng(1))(q, k, identity)
        show_matrix(axis, p)
        axis.set_ylabel(f"{titles[name]}\n{comparison.WAYS[name].size} = {scaled}")


chapter.explore(
    panel,
    (4, 16, 48),
    slider=(2, 4, 8, 16, 32, 48),
    name="size",
    rows=3,
    height=0.9,
    alt="The matrices of Nyström attention, of a Performer and of a window at three sizes each, nearer to softmax's as "
    "the size grows",
)

# %% [markdown]
# ## Exercises
#
# **1. Looking at oneself.** A head that copies has $P = I$. Which family can do that, and at what size? What is the
# least error of a matrix of rank $R$?
#
# <details><summary>Solution</summary>
#
# A window of any width can: every pair on the diagonal is kept. For low rank, the identity is the worst matrix that
# there is. All its singular values are 1, and by Eckart, Young and Mirsky the best approximation of rank $R$ is off by
# $\sqrt{N - R}$, a relative error of $\sqrt{1 - R/N}$. Kernels with $C$ features have rank at most $C$, so the same
# bound holds with $C$ for $R$.
#
# </details>

# %%
n = 64
sharp = 100 * np.eye(n)  # q = k: each query finds its own key
same(local.forward(sharp, sharp, np.eye(n), window=1)[0], np.eye(n))
for r in (4, 16, 32):
    error = np.linalg.norm(np.eye(n) - nystromformer.matrix(sharp, sharp, landmarks=r)) / np.sqrt(n)
    assert error >= np.sqrt(1 - r / n)
phi = linear.matrix(sharp, sharp)  # C = 64 features of elu + 1 could do it; those of other keys are not 0 but 1
assert np.linalg.norm(np.eye(n) - phi) / np.sqrt(n) > 0.1
print(f"error for the identity: a window of one key on each side 0, 32 landmarks {error:.2f}, elu + 1", end=" ")
print(f"{np.linalg.norm(np.eye(n) - phi) / np.sqrt(n):.2f}")

# %% [markdown]
# **2. Looking at everybody.** Now take a head that averages all tokens, $P_{ij} = 1/N$. Which family can do it, and
# what do the others do, given $q = k = 0$?
#
# <details><summary>Solution</summary>
#
# This matrix has rank 1: low rank and kernels can do it at their smallest size. Over pairs $S_i$ a query with $q = 0$
# averages its $S_i$, which is all tokens only for a global one. The error of a window of $s$ keys is, row by row,
# $\sqrt{s (1/s - 1/N)^2 + (N - s)/N^2} = \sqrt{1/s - 1/N}$; the row itself has the norm $\sqrt{1/N}$.
#
# </details>

# %%
nothing, uniform = np.zeros((n, 4)), np.full((n, n), 1 / n)
pool = linformer.mean_pool(1, n)
same(linformer.forward(nothing, nothing, np.eye(n), pool, pool)[0], uniform)
same(nystromformer.matrix(nothing, nothing, landmarks=1), uniform)
np.testing.assert_allclose(linear.matrix(nothing, nothing), uniform, rtol=1e-6)  # its eps is 1e-6
window = local.forward(nothing, nothing, np.eye(n), window=5)[0]
same(((window - uniform) ** 2).sum(axis=1)[5:-5], 1 / 11 - 1 / n)
print(
    f"squared error of a row for the mean of all: {((window - uniform) ** 2).sum(axis=1)[n // 2]:.4f} by a window of 11"
)

# %% [markdown]
# **3. Two layers.** A window leaves out most pairs, and so does Longformer with one global token. With which of them
# can every token influence every other after two layers? How many layers does the other one take?
#
# <details><summary>Solution</summary>
#
# Layers multiply: token $j$ reaches $i$ in two layers if there is an $l$ such that $i$ sees $l$ and $l$ sees $j$. This
# is an entry of the pattern's square. Longformer's global token is such an $l$ for every pair. A window of $w$ reaches
# $w$ further in each layer, so it takes $\lceil (N - 1) / w \rceil$ layers.
#
# </details>


# %%
def layers_needed(pattern):
    """Layers until every token can influence every other."""
    reached, layers = pattern, 1
    while not reached.all():
        reached, layers = reached.astype(int) @ pattern > 0, layers + 1
    return layers


assert layers_needed(patterns.longformer(n, window=3, global_tokens=(0,))) == 2
assert layers_needed(patterns.local(n, window=3)) == -(-(n - 1) // 3)
print(f"{n} tokens, window 3: {layers_needed(patterns.local(n, window=3))} layers; with one global token 2")

# %% [markdown]
# **4. Where does linear begin to pay?** Softmax attention takes $N^2 (D + M)$ multiply-adds, linear attention $2 N C
# M$, a Performer with $m$ features $2 N m (D + M)$ with its projections. From which $N$ on is each of the two cheaper
# than softmax attention, for $D = M = C = 64$ and $m = 256$?
#
# <details><summary>Solution</summary>
#
# $N^2 (D + M) = 2 N C M$ at $N = 2 C M / (D + M) = C = 64$, and $N = 2 m = 512$ for the Performer. That is counted, not
# timed: exponentials cost time too, and small products run at a lower rate than large ones. For linear attention the
# resource figure of chapter 14 measures the length.
#
# </details>

# %%
D_, M_, C_, m_ = 64, 64, 64, 256
lengths = np.arange(1, 2000)
assert lengths[lengths**2 * (D_ + M_) >= 2 * lengths * C_ * M_][0] == C_
assert lengths[lengths**2 * (D_ + M_) >= 2 * lengths * m_ * (D_ + M_)][0] == 2 * m_
print(f"as many multiply-adds as softmax: {C_} features at N = {C_}, {m_} random directions at N = {2 * m_}")

# %% [markdown]
# ## What to remember
#
# - Three families: keep few pairs, keep few keys, or put features in the place of the exponential. All are linear in
#   the values, if Long-Short's have no norms, and the first and the last share one gradient.
# - What they save is time. Memory is saved already by softmax attention that does not keep its matrix.
# - In place of softmax attention in a network trained with it, every mechanism changes what the heads return. At a
#   tenth of the cost Nyström attention is nearest, at 0.4 BigBird, on average over the heads of the one network
#   measured here.
# - Truncated at rank 32, the SVD is below all of them. That the matrices are near low rank does not show us how to
#   find the subspace.
# - Put into a trained network, Longformer loses little. BigBird and landmarks made from the text lose little on
#   reviews, and four to six points on sentences. Other kernels, mixtures by position, and hashing lose seven or more.
#   How much training brings back differs from task to task.
# - At the lengths of sentences there is nothing to save; at 2,048 tokens, with $k$ a sixteenth of the length, the
#   mechanisms save from 5% to a third of the network's time.
# - None of this shows how well a network does if it is *pretrained* with a mechanism.
#
# **Sources.** Each mechanism's are at the end of its chapter. Katharopoulos et al. (2020), *Transformers are RNNs*,
# table 3. Tay et al. (2020), *Efficient transformers: a survey*, has the families in more detail, and Tay et al.
# (2021), *Long Range Arena*, networks trained with many of them.
