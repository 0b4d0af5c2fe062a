# %% [markdown]
# # 2. Self-attention is low rank: what the singular values of P say, and what they do not
#
# The attention matrix $P$ of 512 tokens has 262,144 entries; how many numbers does it really hold?
#
# Linformer, the subject of chapter 4, rests on the answer "far fewer". Its paper gives two reasons: a measurement, the
# singular values of $P$ in a trained network, and a theorem (Wang et al. 2020, section 3). Chapter 3 is about the
# theorem. Here you will
#
# 1. repeat the measurement on a real network reading real text, and compare it with networks that have learned
#    nothing;
# 2. see which heads are low in rank and which are not, and how temperature and length change that;
# 3. know how exact computed singular values are;
# 4. differentiate them: the gradient of singular values, by hand, down to queries and keys.
#
# You need chapter 1 and the singular value decomposition. The letters are those of chapter 1; $k$ without an index is
# a rank, and $n$ stands for $N = L$. $\lVert \cdot \rVert_F$ is the Frobenius norm of a matrix, the root of the sum of
# all squares.

# %% jupyter={"source_hidden": true}
import math
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from matplotlib.colors import PowerNorm

from linattn_ref import gradcheck
from linattn_ref.attention import softmax
from linattn_ref.data import fetch, text
from linattn_ref.experiments.publishing import chapter, style
from linattn_ref.experiments.rank import spectrum as spectrum_figure
from linattn_ref.models import bert
from linattn_ref.theory import spectrum

# Float64 results of size 1 after some thousand roundings of 2.2e-16 each agree to this.
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-11)

# %% [markdown]
# ## The smallest example, by hand
#
# Take two tokens. The matrix
#
# $$P = \begin{pmatrix} 3/4 & 1/4 \\ 1/4 & 3/4 \end{pmatrix}$$
#
# takes $(1, 1)$ to itself and $(1, -1)$ to half of itself. It is symmetric, so its singular values are 1 and 1/2, and
# the first holds $1 / (1 + 1/2) = 2/3$ of their sum. If both queries look at both keys alike, all entries are 1/2,
# the singular values are 1 and 0, and the first holds everything. If each looks at its own key, both values are 1,
# and the first holds one half. The package returns the same numbers:

# %%
for name, weights in {
    "by hand": [[0.75, 0.25], [0.25, 0.75]],
    "alike": [[0.5, 0.5]] * 2,
    "own": [[1, 0], [0, 1]],
}.items():
    two = spectrum.singular_values(np.array(weights, float))
    print(f"{name:8} singular values {two.round(3)}, shares {spectrum.cumulative_share(two).round(3)}")
same(spectrum.cumulative_share(spectrum.singular_values(np.array([[0.75, 0.25], [0.25, 0.75]]))), [2 / 3, 1])

# %% [markdown]
# ## The formula
#
# Every matrix is a sum of rank-one matrices, its *singular triples*: with orthonormal $u_1, u_2, \dots$ and
# orthonormal $v_1, v_2, \dots$
#
# $$P = \sum_i \sigma_i\, u_i v_i^\top, \qquad \sigma_1 \ge \sigma_2 \ge \dots \ge 0$$
#
# A triple takes $N + L + 1$ numbers. If the first $k$ of them were all of $P$, then $k (N + L + 1)$ numbers would be
# enough. Figure 1 of Wang et al. (2020) shows how much of the sum of the singular values the first $k$ hold, the
# *normalised cumulative singular value*:
#
# $$c_k = \frac{\sigma_1 + \dots + \sigma_k}{\sigma_1 + \sigma_2 + \dots} \qquad (1)$$
#
# Here is the package's own source. The numbers at the lines are those of each module's docstring:

# %%
chapter.source(spectrum.cumulative_share, spectrum.rank_for_share, spectrum._values_by_svd, doc=False)

# %% [markdown]
# Keep two attention matrices in mind. If all queries attend to all keys alike, $P = \frac1n 1 1^\top$ is one triple,
# with $\sigma_1 = 1$ and $c_1 = 1$. If every query attends only to its own token, $P$ is the identity: all singular
# values are 1 and $c_k = k / n$. No curve rises more slowly, since the largest $k$ of $n$ numbers hold at least the
# share $k/n$ of their sum.
#
# Two facts hold for every square attention matrix. First, its rows sum to 1, so $P 1 = 1$, and $\sigma_1$ is the
# largest factor by which $P$ stretches a vector: $\sigma_1 \ge 1$. Second, a row of $n$ non-negative numbers with the
# sum 1 has a squared length between $1/n$ and 1, so $1 \le \lVert P \rVert_F^2 = \sum_i \sigma_i^2 \le n$.

# %%
n = 64
uniform, identity = np.full((n, n), 1 / n), np.eye(n)
same(spectrum.cumulative_share(spectrum.singular_values(uniform)), np.ones(n))
same(spectrum.cumulative_share(spectrum.singular_values(identity)), np.arange(1, n + 1) / n)
for P in (uniform, identity, softmax.matrix(*np.random.default_rng(0).standard_normal((2, n, 8)))):
    values = spectrum.singular_values(P)
    assert values[0] > 1 - 1e-12
    assert 1 - 1e-12 < (values**2).sum() < n + 1e-12
    same((P**2).sum(), (values**2).sum())
    print(f"sigma_1 = {values[0]:.3f}, sum of squares {(values**2).sum():.3f}")

# %% [markdown]
# ## One real matrix
#
# The network is all-MiniLM-L6-v2, a BERT of 6 layers with 12 heads of width 32; the text is a film review, cut to 512
# tokens. Both are fetched once (97 MB), by version and hash, and kept in the user's cache. The forward pass is the
# package's own, in NumPy and float32. (Wang et al. use RoBERTa-base and -large, on 10,000 sentences of Wikipedia and of
# the same collection of reviews. The statements below are about *one* network, at 512 tokens. Other networks have other
# numbers, and `linattn-ref spectrum --model DIR` draws yours.)

# %%
model = bert.load(fetch.open_content(fetch.MODEL))
reviews = text.read_reviews(fetch.open_content(fetch.REVIEWS))
sentences = text.choose_sentences(
    reviews, model.tokenizer, count=2, length=512, rng=np.random.default_rng(0)
).tokens  # (2, N)
layers = list(bert.layers(model, sentences[0]))
Q, K, V, P = (np.stack([getattr(layer, name) for layer in layers]) for name in ("q", "k", "v", "p"))
N, D = Q.shape[-2:]
assert P.shape == (6, 12, 512, 512)
assert P.dtype == np.float32
assert abs(P.sum(axis=-1) - 1).max() < 1e-5  # rows sum to 1, to the rounding of 512 terms

values = spectrum.singular_values(P)  # (layers, H, N)
share = spectrum.cumulative_share(values)
layer, head = 3, 0  # an ordinary one


def draw_one():
    figure, (matrix, fall, sums) = style.figure(1, 3, height=0.34, width_ratios=(1, 1.1, 1.1))
    matrix.imshow(P[layer, head, :48, :48], norm=PowerNorm(0.5))
    matrix.grid(False)
    matrix.set(title=f"layer {layer}, head {head}: P", xlabel="key (first 48)", ylabel="query (first 48)")
    index = np.arange(1, N + 1)
    fall.semilogy(index, values[layer, head])
    fall.set(title="singular values", xlabel="index $i$", ylabel=r"$\sigma_i$")
    sums.plot(index, share[layer, head])
    sums.plot(index, index / N, "--", color=style.GREY, label="identity")
    sums.axvline(128, color=style.BLACK, linestyle=":", linewidth=0.8)
    sums.set(title=f"$c_{{128}}$ = {share[layer, head, 127]:.2f}", xlabel="index $k$", ylabel="$c_k$", ylim=(0, 1.01))
    sums.legend()
    return figure


chapter.show(draw_one, alt="A sparse matrix; its singular values fall by orders of magnitude; c_k bends far above k/N")
assert 0.8 < share[layer, head, 127] < 0.9

# %% [markdown]
# **Low rank is not meant literally.** The scores $A = s\,QK^\top$ have rank at most $D = 32$. But the exponential is
# taken of each entry, and that destroys the rank: all 512 singular values are different from 0. "Low rank" is a
# statement about *how small* the later ones are, and it always needs a number that defines what counts as small.

# %%
q, k_real = Q[layer, head].astype(np.float64), K[layer, head].astype(np.float64)
rounding = N * np.finfo(np.float64).eps  # relative to the largest: what rounding can make of an exact 0
scores_values = spectrum.singular_values(q @ k_real.T)
exact_values = spectrum.singular_values(softmax.matrix(q, k_real))
assert np.count_nonzero(scores_values > rounding * scores_values[0]) == D == 32
assert np.count_nonzero(exact_values > rounding * exact_values[0]) == N
print(f"smallest singular value of P over the largest: {exact_values[-1] / exact_values[0]:.1e}")

# %% [markdown]
# ## All matrices: the figure
#
# Averaged over sentences and heads, with one line per layer, this is figure 1 of Wang et al. (2020), with its heat
# map by layer and head. Here it is drawn from four sentences, to be quick; `linattn-ref spectrum` takes 32, and
# the figure on the first page of the repository has 128.
# What is averaged is $c_k$, the ratio, so that every matrix counts alike, however large its singular values are. The
# middle panel has two comparisons, and they are the more interesting part.

# %%
figure = spectrum_figure.compute(sentences=4, baselines=1, seed=0)
print(spectrum_figure.table(figure))
chapter.show(
    spectrum_figure.draw,
    figure,
    alt="c_k by layer rises to .7 to .98 at k = 128; untrained above .97; Gaussian .68; heat map from .36 to .99",
)

# %%
given, untrained, gaussian = (figure.curves[name] for name in ("given", "untrained", "gaussian"))
by_layer = given.mean[:, figure.k - 1]  # c_128
# Means over 4 sentences against those over 32. From one sentence to the next they vary by 0.004 to 0.009.
np.testing.assert_allclose(by_layer, [0.80, 0.70, 0.76, 0.86, 0.86, 0.98], atol=0.02)  # claim 2
assert abs(by_layer.mean() - 0.83) < 0.02
assert by_layer.argmax() == 5  # claim 3: the last layer is the lowest in rank,
assert (by_layer > gaussian.mean[:, 127]).all()  # every layer is lower than noise,
assert given.at_k.min() < 0.5  # but single heads are not
assert given.at_k.max() > 0.98
print(
    "c at 128 by layer:", by_layer.round(2), f" mean {by_layer.mean():.2f}; heads from {given.at_k.min():.2f}", end=" "
)
print(f"to {given.at_k.max():.2f}")
of_record = chapter.results("spectrum").curves["given"].mean[:, figure.k - 1].mean()
print(f"mean over the 128 sentences of the record: {of_record:.2f}")
for k in (figure.k, round(given.rank.mean())):  # the latter for 90%
    print(f"{k} triples, {k / N:.0%} of {N}: {k * (2 * N + 1):,} numbers, {k * (2 * N + 1) / N**2:.0%} of {N**2:,}")

# %% [markdown]
# This answers the question of the first line: a quarter of the triples is *half* of the numbers, and those that hold
# 90% of the sum are 65%. The factor of four is in the rank, and the rank is what Linformer uses.

# %% [markdown]
# ## Is that an achievement?
#
# *Random queries and keys* with independent normal entries have $c_{128} = .68$: the trained layers lie above. Readers
# of the figure usually have this comparison in mind. *The same network with random weights*, drawn as `transformers`
# draws BERT's, normal with standard deviation .02, has .97: five of the six trained layers lie **below** it. So a steep
# curve is not a sign of structure: the emptiest matrix, $\frac1n 1 1^\top$, has the steepest curve of all.

# %%
assert 0.67 < gaussian.mean[0, 127] < 0.69
assert untrained.mean[:, 127].min() > 0.96
assert (by_layer[:5] < untrained.mean[:, 127].min()).all()
print(f"c at 128: Gaussian {gaussian.mean[0, 127]:.2f}, untrained {untrained.mean[:, 127].min():.2f} or more")

# %% [markdown]
# **That is a statement about the size of the weights, not about training.** BERT's .02 was made for a width of 768 or
# more. This network has width 384, where the same variance of the scores needs $.02 \sqrt 2 = .028$. Many other
# networks begin with the weights of Glorot and Bengio, "Xavier", whose variance is 2 over the sum of the widths of both
# sides: here their standard deviation is .051. Larger weights make larger scores, and larger scores make $P$ less even:

# %%
config = model.config


def c_by_layer(network, heads=2, first=6):
    """c at 128 of the ``first`` layers, each the mean over its first ``heads``, for the first review."""
    weights = (layer.p[:heads] for _, layer in zip(range(first), bert.layers(network, sentences[0]), strict=False))
    return np.array([spectrum.cumulative_share(spectrum.singular_values(p))[:, 127].mean() for p in weights])


def drawn_as(name, rng):
    """A network with random weights; Xavier's change those between the layers and not the embeddings."""
    if name != "Xavier":
        return bert.untrained(config._replace(initializer_range=name), rng)
    network = bert.untrained(config, rng)
    for key, w in network.parameters.items():
        if w.ndim == 2 and "embedding" not in key:
            w *= np.float32(math.sqrt(2 / sum(w.shape)) / config.initializer_range)
    return network


starts = {name: c_by_layer(drawn_as(name, np.random.default_rng(1))) for name in (0.02, 0.02 * math.sqrt(2), "Xavier")}
trained_c = c_by_layer(model)
chapter.table(
    ("c at 128", *(f"layer {i}" for i in range(6))),
    [
        ("trained", *trained_c),
        *((f"standard deviation {name:.3f}" if name != "Xavier" else name, *c) for name, c in starts.items()),
    ],
)
wide, scaled, xavier = starts.values()
assert wide.min() > 0.96
assert 0.9 < scaled.min() < scaled.max() < 0.96
assert xavier[0] < trained_c[0]  # the first layer is then below the trained one,
assert (xavier[1:] > trained_c[1:]).all()  # the others are not
draws = (drawn_as("Xavier", np.random.default_rng(seed)) for seed in (1, 2, 3, 4))
xavier_first = [c_by_layer(network, heads=12, first=1).item() for network in draws]
print(f"first layer, 12 heads: trained {c_by_layer(model, heads=12, first=1).item():.2f},", end=" ")
print("Xavier's", *(f"{c:.2f}" for c in xavier_first))

# %% [markdown]
# So whether learning makes $P$ less compressible depends on where it starts, and on the layer. With Xavier's weights
# the first layer begins below the trained one in these two heads. Over all twelve heads of this review there is no
# difference: Xavier's first layer has .79 to .81, depending on the draw, and the trained one .79. The other layers
# begin above their trained values.
#
# Why is the network that starts with a standard deviation of .02 so low in rank? Its scores are small. For small $a$,
# $e^a \approx 1 + a$, and a row of $P$ becomes
#
# $$P_{ij} = \frac{e^{A_{ij}}}{\sum_l e^{A_{il}}} \approx \frac{1 + A_{ij}}{n + \sum_l A_{il}}
# \approx \frac1n \Big(1 + A_{ij} - \frac1n \sum_l A_{il}\Big)$$
#
# where in the last step $\frac{1}{1 + x} \approx 1 - x$, and products of two scores are left out. The uniform matrix
# has rank 1, the scores have rank $D$, and taking the mean from each row is a product with $I - \frac1n 1 1^\top$
# from the right, which raises no rank. So to first order $P$ has rank $D + 1 = 33$, whatever $n$ is. What lies beyond
# index 33 is of second order: halve the scores, and the sum of these values falls to about a quarter (their share to a
# third at first, because the denominator falls too).

# %%
blank = bert.untrained(model.config, np.random.default_rng(1))
blank_layer = next(bert.layers(blank, sentences[0]))
q_blank, k_blank = blank_layer.q[0].astype(np.float64), blank_layer.k[0].astype(np.float64)
scores = q_blank @ k_blank.T / math.sqrt(D)
first_order = (1 + scores - scores.mean(axis=1, keepdims=True)) / N
assert np.linalg.matrix_rank(first_order) == D + 1

rows = []
for factor in (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16):
    P_small = softmax.matrix(q_blank, k_blank, scale=factor / math.sqrt(D))
    of_small = spectrum.singular_values(P_small)
    c = spectrum.cumulative_share(of_small)
    rows.append((factor, factor * scores.std(), c[0], c[D], of_small[D + 1 :].sum(), 1 - c[D]))
left_over = np.array([row[-1] for row in rows])
orders = np.log2(left_over[:-1] / left_over[1:])
assert (np.diff(orders) > 0).all()
assert 1.85 < orders[-1] < 2  # tends to 2: c_k is a ratio, and its denominator still changes to first order
chapter.table(("scores times", "their spread", "c at 1", "c at D + 1", "sum of what is left", "its share"), rows)

# %% [markdown]
# ### Temperature
#
# Between the empty matrix and noise lies one number: the size of the scores. As in chapter 1, divide them by a
# temperature $T$. For $T \to \infty$ every $P$ becomes uniform. For $T \to 0$ each row has a single 1 in it, and the
# rank is the number of keys that win at least one query (exercise 1). In a running notebook the cell has a slider.


# %%
noise = np.random.default_rng(2).standard_normal((2, 2, N, D), np.float32)  # q and k of two heads
SOURCES = {  # queries, keys, colour
    "trained, layer 1": (Q[1], K[1], style.BLUE),
    "trained, layer 5": (Q[5], K[5], style.SKY),
    "untrained": (blank_layer.q[:2], blank_layer.k[:2], style.GREEN),
    "Gaussian": (*noise, style.VERMILLION),
}


@cache
def share_at(source, temperature):
    q_source, k_source, _ = SOURCES[source]
    P_source = softmax.matrix(q_source, k_source, scale=1 / (temperature * math.sqrt(D)))
    return spectrum.cumulative_share(spectrum.singular_values(P_source)).mean(axis=0)  # over heads


def temperature_panel(axes, temperature):
    for source, (_, _, colour) in SOURCES.items():
        axes.plot(np.arange(1, N + 1), share_at(source, temperature), color=colour, label=source)
    axes.set(xlabel="index $k$", ylabel="$c_k$", ylim=(0, 1.01), xticks=(0, 128, 256, 512))
    axes.label_outer()
    if temperature == 0.1:
        axes.legend(loc="lower right", borderpad=0)


chapter.explore(
    temperature_panel,
    (0.1, 0.5, 1, 2, 10),
    name="T",
    slider=(0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1, 1.4, 2, 3, 5, 10, 20),
    height=0.36,
    sharey=True,
    alt="Curves of four sources at five temperatures: all near 1 at T = 10, spread out at T = 1",
)
for source in SOURCES:
    assert share_at(source, 10)[127] > share_at(source, 2)[127] > share_at(source, 1)[127] - 0.01
    assert share_at(source, 10)[127] > 0.95

# %% [markdown]
# The curve does not simply fall as attention becomes sharper: between the two simple extremes there is a temperature
# at which $P$ is least compressible. A trained network runs at $T = 1$, and in all six layers that is close to the
# worst choice:


# %%
def c_at_128(q, k, temperature):
    P_heads = softmax.matrix(q, k, scale=1 / (temperature * math.sqrt(D)))  # (H, N, N)
    return spectrum.cumulative_share(spectrum.singular_values(P_heads))[:, 127].mean()


temperatures = (0.1, 0.25, 0.5, 0.7, 1, 1.4, 2, 4, 10)
some_heads = slice(None, None, 3)  # every third, for time
c_128 = np.array(
    [[c_at_128(Q[i, some_heads], K[i, some_heads], T) for T in temperatures] for i in range(len(P))]
)  # (layers, temperatures)
lowest = np.array(temperatures)[c_128.argmin(axis=1)]
assert ((lowest >= 0.5) & (lowest <= 1.4)).all()
assert (c_128[:, 4] - c_128.min(axis=1) < 0.03).all()
chapter.table(("c at 128", *(f"T = {T:g}" for T in temperatures)), [(f"layer {i}", *c) for i, c in enumerate(c_128)])

# %% [markdown]
# ### Which heads are not low rank?
#
# The heat map has dark cells. Recall the identity: a head whose queries each look at a *different* key has singular
# values that are all alike. Looking at the token before is such a pattern. The ones of its matrix lie just below the
# diagonal; $n - 1$ singular values are 1, and $c_k = k / (n - 1)$. So let us measure, for each head, how much weight
# lies at the one distance $j - i$ it likes best:

# %%
previous = np.eye(N, k=-1)
same(spectrum.singular_values(previous), np.r_[np.ones(N - 1), 0])

distances = np.arange(-8, 9)
weight = np.stack([np.trace(P, offset=d, axis1=-2, axis2=-1) / N for d in distances])  # (distances, layers, H)
best, favourite = weight.max(axis=0), distances[weight.argmax(axis=0)]
correlation = np.corrcoef(best.ravel(), share[..., 127].ravel())[0, 1]
assert correlation < -0.8
worst = np.unravel_index(share[..., 127].argmin(), share.shape[:2])
assert favourite[worst] == -1  # the head with the slowest curve of all looks at the token before
assert best[worst] > 0.75


def draw_heads():
    figure, (axes, *images) = style.figure(1, 3, height=0.36, width_ratios=(1.5, 1, 1))
    for i, colour in enumerate(style.sequence(len(P))):
        axes.plot(best[i], share[i, :, 127], "o", color=colour, label=f"layer {i}")
    axes.set(xlabel="weight at the favourite distance $j - i$", ylabel="$c_{128}$", title="72 heads")
    axes.legend(ncols=2)
    for image, (i, h) in zip(images, (worst, (5, 0)), strict=True):
        image.imshow(P[i, h, :48, :48], norm=PowerNorm(0.5))
        image.grid(False)
        image.set(title=f"layer {i}, head {h}: {share[i, h, 127]:.2f}", xlabel="key", ylabel="query")
    return figure


chapter.show(
    draw_heads, alt="c_128 falls as the weight at one distance grows; a matrix with a bright line beside the diagonal"
)
print(f"layer {worst[0]}, head {worst[1]}: {best[worst]:.0%} of its weight on the token before")

# %% [markdown]
# The simplest thing a head can do, to read its neighbour, is as far from low rank as a matrix can be. It is also as
# cheap as attention can be, but for a different reason: the matrix is *sparse*. (Chapter 12 is about such patterns.)
#
# ### What do all heads look at?
#
# A text begins with the token `[CLS]` and ends with `[SEP]`; neither stands for a word. How much of its weight does
# each of the 72 heads put on either, on average over all queries of eight reviews? In a uniform row each would have
# 1/512.

# %% native="It counts heads above a limit, and the network that this page loads is rounded."
texts = text.choose_sentences(
    reviews, model.tokenizer, count=8, length=N, rng=np.random.default_rng(0)
).tokens  # (S, N)
looks = {"[CLS], the first token": [], "[SEP], the last": [], "the first word": [], "the token before": []}
for tokens in texts:
    P_text = np.stack([each.p for each in bert.layers(model, tokens)])  # (layers, H, N, N)
    of_keys = P_text.mean(axis=-2)  # (layers, H, N)
    before = np.trace(P_text, offset=-1, axis1=-2, axis2=-1) / (N - 1)
    for name, weight in zip(looks, (of_keys[..., 0], of_keys[..., -1], of_keys[..., 1], before), strict=True):
        looks[name].append(weight)
looks = {name: np.stack(each) for name, each in looks.items()}  # (S, layers, H)
cls, sep, first_word, before = looks.values()


def draw_looks():
    figure, axes = style.figure(height=0.36)
    colours = (style.VERMILLION, style.BLUE, style.GREEN, style.GREY)
    for shift, (name, weight), colour in zip((-0.3, -0.1, 0.1, 0.3), looks.items(), colours, strict=True):
        for i in range(len(P)):
            x = i + shift + 0.01 * (np.arange(12) - 5.5)
            low, mean, high = weight[:, i].min(axis=0), weight[:, i].mean(axis=0), weight[:, i].max(axis=0)
            axes.vlines(x, low, high, color=colour, linewidth=0.8)
            axes.plot(x, mean, ".", color=colour, label=name if i == 0 else None)
    axes.axhline(1 / N, color=style.BLACK, linestyle=":", linewidth=0.8)
    axes.set(xlabel="layer", ylabel="share of a head's weight", yscale="log", ylim=(1e-5, 30))
    axes.legend(ncols=2, loc="upper left")
    return figure


chapter.show(
    draw_looks,
    alt="Share of the weight by layer, a point per head, bars over eight texts: [CLS] up to 30 per cent from "
    "layer 1 on, [SEP] and the first word below 2 per cent, the token before from 0.1 to 80 per cent",
)
by_head = cls.mean(axis=0)  # (layers, H)
assert 0.09 < cls.mean() < 0.11
assert (by_head > 0.1).sum() == 29
assert by_head.max() < 0.31
for weight in (sep, first_word):
    assert weight.mean(axis=(0, 2)).max() < 2 / N
    assert weight.mean(axis=0).max() < 8 / N
assert cls.std(axis=0).max() < 0.06  # from text to text
chapter.table(
    ("share of the weight", *(f"layer {i}" for i in range(len(P))), "largest head"),
    [(name, *weight.mean(axis=(0, 2)), weight.mean(axis=0).max()) for name, weight in looks.items()],
)

# %% [markdown]
# The first token, which is `[CLS]`, gets a tenth of all the weight, fifty times its even share. It gets 7% to 16% in
# every layer but the lowest, and 0.4% there. `[SEP]` and the first word get at most twice their even share on average
# over a layer, and less than eight times in any head. (Other networks favour `[SEP]` too, Clark et al. 2019; this one
# does not.) One column with a tenth of the weight adds one long direction to $P$ and shortens the others by a tenth:
# exercise 2.
#
# ### Length
#
# What a fixed $k$ is worth depends on how the rank grows with $n$: if 90% of the spectrum always took the same number
# of triples, long texts would be nearly free. Cut two reviews to $n$ tokens and look. The horizontal axis is $k/n$. If
# rank grew in proportion to $n$, the four panels would be alike.


# %%
@cache
def spectra_of_length(n):
    """Singular values of all P at length n: of the network, of the untrained one (layers, H, n), of noise (H, n)."""

    def of(network, tokens):
        tokens = np.r_[tokens[: n - 1], tokens[-1]]  # ends in the special token, as every text does
        return np.stack([spectrum.singular_values(layer.p) for layer in bert.layers(network, tokens)])

    q, k = np.random.default_rng(n).standard_normal((2, 4, n, D), np.float32)
    trained = np.stack([of(model, tokens) for tokens in sentences])  # (S, layers, H, n)
    return {
        "trained": trained.reshape(-1, n),
        "untrained": of(blank, sentences[0]).reshape(-1, n),
        "Gaussian": spectrum.singular_values(softmax.matrix(q, k)),
    }


def length_panel(axes, n):
    for (source, of_source), colour in zip(
        spectra_of_length(n).items(), (style.BLACK, style.GREEN, style.VERMILLION), strict=True
    ):
        axes.plot(
            np.arange(1, n + 1) / n, spectrum.cumulative_share(of_source).mean(axis=0), color=colour, label=source
        )
    axes.set(xlabel="$k / n$", ylabel="$c_k$", ylim=(0, 1.01))
    axes.label_outer()
    if n == 64:
        axes.legend(loc="lower right")


chapter.explore(
    length_panel,
    (64, 128, 256, 512),
    name="n",
    height=0.36,
    sharey=True,
    alt="c_k over k/n at four lengths: the trained and the Gaussian curves stay, the untrained one steepens",
)

# %%
lengths = (64, 128, 256, 512)
ranks = {
    source: [spectrum.rank_for_share(spectra_of_length(n)[source], 0.9).mean() for n in lengths]
    for source in spectra_of_length(64)
}
exponent = {source: np.polyfit(np.log(lengths), np.log(rank), 1)[0] for source, rank in ranks.items()}
assert 0.9 < exponent["trained"] < 1.1
assert all(0.3 < rank / n < 0.35 for n, rank in zip(lengths, ranks["trained"], strict=True))
assert 0.9 < exponent["Gaussian"] < 1.1
assert exponent["untrained"] < 0.4
chapter.table(
    ("rank for 90%", *(f"n = {n}" for n in lengths), "grows as n to the power"),
    [(source, *rank, exponent[source]) for source, rank in ranks.items()],
)

# %% [markdown]
# In this network, from 64 to 512 tokens, the rank that holds 90% is a third of $n$, at every length: not a logarithm,
# not a constant. Only in the untrained network with standard deviation .02 does the rank grow as slowly as one would
# hope. So the figure shows that attention matrices can be compressed by a factor; it does not show that the factor
# grows with $n$. Compare Theorem 1 of the next chapter, which speaks of $\log n$.
#
# ## How exact are the singular values?
#
# $P$ comes in float32, with a relative rounding of $\varepsilon = 1.2 \cdot 10^{-7}$ in each entry. Two ways lead to
# its singular values.
#
# *The SVD* computes them with an error of at most some $\varepsilon \sigma_1$ each.
#
# *The Gram matrix* $P^\top P = \sum_i \sigma_i^2\, v_i v_i^\top$ has the eigenvalues $\lambda_i = \sigma_i^2$; finding
# them takes less time than the SVD. But its entries are rounded, so $\lambda_i$ is off by up to some $\varepsilon
# \lambda_1 = \varepsilon \sigma_1^2$. What does that mean for $\sigma_i = \sqrt{\lambda_i}$? As $d\sigma = d\lambda /
# 2\sigma$,
#
# $$|\delta \sigma_i| \lesssim \frac{\varepsilon \sigma_1^2}{2 \sigma_i}
# = \varepsilon\sigma_1 \cdot \frac{\sigma_1}{2\sigma_i}$$
#
# This is worse than the SVD by the factor $\sigma_1 / 2 \sigma_i$. And where $\sigma_i^2$ is smaller than the error of
# $\lambda_i$, nothing is left but noise: at worst below $\sqrt\varepsilon\, \sigma_1 = 3.5 \cdot 10^{-4} \sigma_1$.
# Squaring a matrix halves the number of digits.

# %%
chapter.source(spectrum._values_by_gram, doc=False)

P_low = P[5, 0]  # its smallest singular values are far below the largest
truth = spectrum.singular_values(P_low.astype(np.float64))
by_method = {method: spectrum.singular_values(P_low, method=method) for method in spectrum.METHODS}
eps_32 = np.finfo(np.float32).eps


def draw_errors():
    figure, (left, right) = style.figure(1, 2, height=0.36)
    index = np.arange(1, N + 1)
    left.semilogy(index, truth / truth[0], color=style.BLACK, label="float64")
    for (method, found), colour in zip(by_method.items(), (style.BLUE, style.VERMILLION), strict=True):
        left.semilogy(index, np.maximum(found, 1e-9) / truth[0], "--", color=colour, label=f"float32, {method}")
        right.loglog(truth / truth[0], abs(found - truth) / truth[0], ".", color=colour, markersize=3, label=method)
    scale = np.geomspace(math.sqrt(eps_32), 1)
    right.loglog(scale, eps_32 / (2 * scale), color=style.VERMILLION, label=r"$\varepsilon \sigma_1 / 2 \sigma_i$")
    right.axhline(eps_32, color=style.BLUE, label=r"$\varepsilon$")
    left.set(title="singular values of layer 5, head 0", xlabel="index $i$", ylabel=r"$\sigma_i / \sigma_1$")
    right.set(title="error in float32", xlabel=r"$\sigma_i / \sigma_1$", ylabel=r"error / $\sigma_1$")
    for axes in (left, right):
        axes.legend()
    return figure


chapter.show(draw_errors, alt="The Gram method's error grows as 1/sigma; below 2e-6 of the largest it finds 0")

# %%
error = {method: abs(found - truth) for method, found in by_method.items()}
assert error["svd"].max() < 4 * eps_32 * truth[0]
assert (error["gram"] * truth).max() < eps_32 * truth[0] ** 2
small = truth < 1e-5 * truth[0]
assert small.sum() > 50
assert np.median(error["svd"][small] / truth[small]) < 0.01
assert np.median(error["gram"][small] / truth[small]) >= 0.99  # nothing is left
curve_error = {
    method: abs(spectrum.cumulative_share(found) - spectrum.cumulative_share(truth)).max()
    for method, found in by_method.items()
}
assert curve_error["svd"] < 1e-5
assert curve_error["svd"] < curve_error["gram"] < 2e-3  # less than a line of the figure is thick

P_double = softmax.matrix(Q[5, 0].astype(np.float64), K[5, 0].astype(np.float64))
float32_rank, float64_rank = np.linalg.matrix_rank(P_low), np.linalg.matrix_rank(P_double)
assert float32_rank < float64_rank == N
chapter.table(
    ("largest error of", "svd", "gram"),
    [
        ("a singular value, over the largest", *(float(e.max() / truth[0]) for e in error.values())),
        ("the curve", *map(float, curve_error.values())),
    ],
)
print(f"numpy.linalg.matrix_rank of the same head: {float32_rank} in float32, {float64_rank} in float64")

# %% [markdown]
# Most values are far more accurate than their bounds, as rounding errors of either sign average out. The shape is as
# derived: first $1/\sigma$, then noise, and then zeros, where rounding made the eigenvalue negative and the error is
# the value itself. The curve is off by less than a thousandth, because small values hardly count in (1). The last
# line shows a well-known fact: a numerical rank is a count of singular values above a threshold, and the threshold
# comes from the dtype. The package takes the SVD unless told otherwise; `linattn-ref spectrum --method gram` reports
# what it lost.
#
# ## The gradient of singular values
#
# Suppose you want to *train* for a low rank, with $c_k$ in the loss. You need $\partial c_k / \partial P$. The whole
# derivation rests on one line, the change of a singular value when $P$ changes.
#
# ### Step 1: one singular value
#
# Take a triple with $\sigma_i > 0$ that no other singular value equals. Multiply $P = \sum_j \sigma_j u_j v_j^\top$
# by $u_i^\top$ from the left and by $v_i$ from the right. The vectors are orthonormal, so one term is left:
#
# $$\sigma_i = u_i^\top P\, v_i$$
#
# Now let $P$ change by $dP$ (a small matrix here, a differential). All three factors change:
#
# $$d\sigma_i = du_i^\top\, P v_i + u_i^\top\, dP\, v_i + u_i^\top P\, dv_i$$
#
# In the first term put $P v_i = \sigma_i u_i$, in the last $u_i^\top P = \sigma_i v_i^\top$:
#
# $$d\sigma_i = \sigma_i\, du_i^\top u_i + u_i^\top\, dP\, v_i + \sigma_i\, v_i^\top dv_i$$
#
# But $u_i$ stays of length 1: from $u_i^\top u_i = 1$ follows $2\, du_i^\top u_i = 0$, and $v_i^\top dv_i = 0$ in the
# same way. How the singular vectors change does not matter:
#
# $$d\sigma_i = u_i^\top\, dP\, v_i, \qquad
# \frac{\partial \sigma_i}{\partial P_{ab}} = (u_i)_a (v_i)_b \qquad (2)$$
#
# ### Step 2: the share
#
# With $S_k = \sigma_1 + \dots + \sigma_k$ and $S$ the sum of all, $c_k = S_k / S$. The value $\sigma_i$ is in $S$
# always, in $S_k$ if $i \le k$; write $[i \le k]$ for 1 or 0. By the quotient rule
#
# $$\frac{\partial c_k}{\partial \sigma_i} = \frac{[i \le k]\, S - S_k}{S^2} = \frac{[i \le k] - c_k}{S} \qquad (3)$$
#
# The derivative is positive for the first $k$ values and negative for the rest.
#
# ### Step 3: together
#
# Given $\partial \ell / \partial c_k$, the chain rule sums over all singular values. Let $w_i$ be (3):
#
# $$\frac{\partial \ell}{\partial P} = \frac{\partial \ell}{\partial c_k} \sum_i w_i\, u_i v_i^\top
# = \frac{\partial \ell}{\partial c_k}\; U\, \mathrm{diag}(w)\, V^\top \qquad (4)$$


# %%
class ShareSaved(NamedTuple):
    u: np.ndarray  # (N, N)
    sigma: np.ndarray  # (N,)
    v_t: np.ndarray  # (N, N)
    k: int


class ShareGradients(NamedTuple):
    p: np.ndarray  # (N, N)


def share_forward(p, k):
    """c_k of one matrix, by (1)."""
    u, sigma, v_t = np.linalg.svd(p, full_matrices=False)
    return sigma[:k].sum() / sigma.sum(), ShareSaved(u, sigma, v_t, k)  # (1)


def share_backward(d_share, saved):
    u, sigma, v_t, k = saved
    inside = np.arange(len(sigma)) < k
    d_sigma = d_share * (inside - sigma[:k].sum() / sigma.sum()) / sigma.sum()  # (3)
    return ShareGradients((u * d_sigma) @ v_t)  # (4)


rng = np.random.default_rng(3)
P_check = softmax.matrix(*rng.standard_normal((2, 9, 4)))
report = gradcheck.check_elementwise(partial(share_forward, k=3), share_backward, P_check, rng=rng)
print(report)
report.assert_ok()

# A multiple of P has the same share, so the gradient has no component along P: sum_i w_i sigma_i = 0.
same((share_backward(1.0, share_forward(P_check, 3)[1]).p * P_check).sum(), 0)

# %% [markdown]
# ### Step 4: down to queries and keys
#
# $P$ is the output of softmax attention whose values are the identity: $P I = P$. So the backward pass of chapter 1
# does the rest, with $dO = dP$.


# %%
class QueryKeyGradients(NamedTuple):
    q: np.ndarray  # (N, D)
    k: np.ndarray  # (L, D)


def attention_share_forward(q, k, rank):
    p, attention = softmax.forward(q, k, np.eye(len(k)))  # (N, L)
    out, saved = share_forward(p, rank)
    return out, (attention, saved)


def attention_share_backward(d_share, saved):
    attention, share_saved = saved
    gradients = softmax.backward(share_backward(d_share, share_saved).p, attention)
    return QueryKeyGradients(gradients.q, gradients.k)


report = gradcheck.check_elementwise(
    partial(attention_share_forward, rank=3), attention_share_backward, *rng.standard_normal((2, 9, 4)), rng=rng
)
print(report)
report.assert_ok()

# %% [markdown]
# On a real head the gradient answers a question of the temperature section: is it true that $T = 1$ is near the worst
# choice? Scores are $\beta\, q_i^\top k_j / \sqrt D$ with $\beta = 1/T$. Making $\beta$ larger is the same as making
# all queries longer, so $\partial c_k / \partial \beta = \sum_{id} Q_{id}\, dQ_{id}$ at $\beta = 1$. It should be
# small, and agree with the difference between slightly sharper and slightly flatter attention:

# %%
q, k_real = Q[1, 3].astype(np.float64), K[1, 3].astype(np.float64)
_, saved = attention_share_forward(q, k_real, 128)
gradients = attention_share_backward(1.0, saved)
by_beta = (gradients.q * q).sum()
h = 1e-4
difference = (
    attention_share_forward((1 + h) * q, k_real, 128)[0] - attention_share_forward((1 - h) * q, k_real, 128)[0]
) / (2 * h)
np.testing.assert_allclose(by_beta, difference, rtol=1e-5)  # the difference is off by about h^2
assert abs(by_beta) < 0.05
print(f"layer 1, head 3: the derivative of c_128 by beta is {by_beta:.4f}")

# %% [markdown]
# **Where it fails.** Where two singular values meet, they have no derivative: the *larger of the two* has a kink, as
# $\max(x, y)$ has at $x = y$. For $c_k$ this matters in two cases: if $\sigma_k = \sigma_{k+1}$, or if some $\sigma_i$
# is 0, as $|x|$ has a kink at 0. Any other tie does no harm.
#
# The identity is an example of the first case. Stretch it along one axis: $\mathrm{diag}(1 + h, 1)$ has
# $c_1 = (1 + h)/(2 + h)$ for $h > 0$ and $1/(2 + h)$ for $h < 0$. The slopes at 0 are $+\frac14$ and $-\frac14$, and
# what (4) returns depends on the singular vectors that the SVD routine happens to choose. The uniform matrix is an
# example of the second: move its rows apart, and $c_1$ falls on either side.

# %%
slopes = [(share_forward(np.diag([1 + h, 1.0]), 1)[0] - 1 / 2) / h for h in (1e-6, -1e-6)]
same(slopes, [1 / 4, -1 / 4], atol=1e-6)
claimed = share_backward(1.0, share_forward(np.eye(2), 1)[1]).p[0, 0]
assert abs(claimed) <= 1 / 4 + 1e-12  # one of the two, or something between
print("slopes on either side:", np.round(slopes, 4), f" by (4): {claimed:.4f}")
slopes = [(share_forward(np.array([[0.5 + h, 0.5 - h], [0.5 - h, 0.5 + h]]), 1)[0] - 1) / h for h in (1e-6, -1e-6)]
same(slopes, [-2, 2], atol=1e-5)
print("at the uniform matrix:", np.round(slopes, 4))

# %% [markdown]
# ## Exercises
#
# A sheet of homework goes further: `linattn-ref assignment low_rank --out DIR` (see [the course](README.md)).
#
# **1. The coldest attention.** As $T \to 0$, row $i$ of $P$ becomes a row with a single 1, at the key that wins query
# $i$. Let $m_j$ be the number of queries that key $j$ wins. What are the singular values of $P$? What is its rank?
# When does $c_k$ rise as slowly as it can, and when is $c_1 = 1$?
#
# <details><summary>Solution</summary>
#
# $(P^\top P)_{jl} = \sum_i P_{ij} P_{il}$. In a row with a single 1 the product is 0 unless $j = l$. So
# $P^\top P = \mathrm{diag}(m_1, \dots, m_L)$: the singular values are the $\sqrt{m_j}$, and the rank is the number of
# keys that win a query. If every key wins one query (a permutation), all are 1 and $c_k = k / n$. If one key wins
# them all, $P = 1 e_j^\top$ has rank 1, with $\sigma_1 = \sqrt n$, the largest possible.
#
# </details>

# %%
q_cold, k_cold = np.random.default_rng(11).standard_normal((2, 200, 16))
winners = (q_cold @ k_cold.T).argmax(axis=1)
wins = np.bincount(winners, minlength=200)
cold = softmax.matrix(q_cold, k_cold, scale=1e6)
same(cold.max(axis=1), np.ones(200))
same(spectrum.singular_values(cold), np.sort(np.sqrt(wins))[::-1])
assert np.linalg.matrix_rank(cold) == np.count_nonzero(wins)
shuffled = np.eye(200)[np.random.default_rng(12).permutation(200)]
same(spectrum.cumulative_share(spectrum.singular_values(shuffled)), np.arange(1, 201) / 200)
print(f"{np.count_nonzero(wins)} of 200 keys win a query")

# %% [markdown]
# **2. A head that rests.** Many heads put a share $\alpha$ of every row on the first token. Let each token look at
# itself otherwise: $P = \beta I + \alpha\, 1 e_1^\top$ with $\beta = 1 - \alpha$ and $e_1 = (1, 0, \dots, 0)^\top$.
# What are the singular values? Which share must the first token have, at $n = 512$, for $c_{128} = 0.9$?
#
# <details><summary>Solution</summary>
#
# A vector that is orthogonal to $1$ and to $e_1$ is only multiplied by $\beta$, by $P$ and by $P^\top$ alike: that is
# $\sigma = \beta$, $n - 2$ times. For the other two, $x$ and $y$: $P$ is triangular if $e_1$ comes first, with the
# diagonal $1, \beta, \dots, \beta$, so that $\lvert\det P\rvert = \beta^{n-1}$, and $x y = \beta$. The sum of all
# squares is $\lVert P \rVert_F^2 = 1 + (n - 1)(\alpha^2 + \beta^2)$, so that $x^2 + y^2 = 1 + \beta^2 + (n-1)\alpha^2$.
# Hence $x + y = \sqrt{(1 + \beta)^2 + (n - 1)\alpha^2}$ and $x - y = \sqrt{(1 - \beta)^2 + (n-1) \alpha^2} =
# \alpha \sqrt n$.
#
# For $1 \le k < n$ the first $k$ values are $x$ and $k - 1$ times $\beta$ (as $y \le \beta$), and all of them are $x +
# y$ and $n - 2$ times $\beta$. At $\alpha = \frac12$ that is $c_{128} = 0.28$, a little more than the identity's
# $\frac14$: one long direction weighs little compared with 510 short ones. It takes a share of 99% for $c_{128} =
# 0.9$. A head that puts half of its weight on one token is not low rank for that reason; what it does with the other
# half decides.
#
# </details>


# %%
def share_of_resting(alpha, n, k):
    beta = 1 - alpha
    both = math.sqrt((1 + beta) ** 2 + (n - 1) * alpha**2)
    largest = (both + alpha * math.sqrt(n)) / 2
    return (largest + (k - 1) * beta) / (both + (n - 2) * beta)


for alpha in (0.1, 0.5, 0.9):
    resting = (1 - alpha) * np.eye(60)
    resting[:, 0] += alpha
    c = spectrum.cumulative_share(spectrum.singular_values(resting))
    same([share_of_resting(alpha, 60, k) for k in range(1, 60)], c[:-1])

assert 0.27 < share_of_resting(0.5, 512, 128) < 0.29
needed = next(alpha for alpha in np.arange(0, 1, 0.001) if share_of_resting(alpha, 512, 128) >= 0.9)
assert 0.99 < needed < 1
print(f"share of the first token for c_128 = 0.9 at n = 512: {needed:.3f}")

# %% [markdown]
# ## What to remember
#
# - $P$ has full rank, but its singular values fall. In the network measured, a quarter of them hold some 83% of their
#   sum. A quarter of the triples is half of the numbers.
# - That alone is no achievement: a network with BERT's random weights (standard deviation .02) has 97%, because $P$ is
#   nearly uniform plus a matrix of rank $D$. With larger weights it has less: 80% in the first layer by Xavier's. And
#   the rank for a given share grew in proportion to the length.
# - A head that looks at the neighbouring token is as far from low rank as can be. The first token gets a tenth of all
#   the weight, the last nothing special.
# - The SVD finds singular values to $\varepsilon \sigma_1$; the Gram matrix halves the number of digits.
# - $d\sigma_i = u_i^\top dP\, v_i$.
#
# **Sources.** Wang et al. (2020), *Linformer: self-attention with linear complexity*, section 3 and figure 1. Clark et
# al. (2019), *What does BERT look at? An analysis of BERT's attention*. Model:
# all-MiniLM-L6-v2. Text: Maas et al. (2011), *Learning word vectors for sentiment analysis*.
