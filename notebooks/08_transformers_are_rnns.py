# %% [markdown]
# # 8. Transformers are RNNs: two sums per head, constant memory per token, one sequence across many machines
#
# In what sense is a transformer with linear attention a recurrent neural network, and what follows for writing text
# token by token, for gradients, and for sharing one sequence among machines?
#
# Chapter 5 took the softmax out and moved a bracket; chapter 7 made it causal. Here the result is read as a recurrent
# network:
#
# 1. one head and many heads, the paper's equations as ten lines of code;
# 2. parallel, by chunks and recurrent: three orders of one sum;
# 3. infinitely many features: softmax attention is such a network too, and its state grows;
# 4. writing text with a state of constant size, compared with a key/value cache: bytes, operations, measured time;
# 5. back-propagation through time by hand, the gradient of a state and through a state;
# 6. one sequence on several processes, forward and backward;
# 7. a question left open by others: does it help to combine Linformer with linear attention?
#
# You need chapters 1, 5 and 6; 7 helps, and the last section needs 4. The letters: $N$ tokens, each a row $x_t$ of $E$
# numbers; queries and keys of width $D$, values of width $M$, $C$ features, $H$ heads. Equations (5) to (9) are those
# of chapter 5 and of the docstring of `linattn_ref.attention.linear`.

# %% jupyter={"source_hidden": true}
import math
from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from joblib import Parallel, delayed

from linattn_ref import gradcheck
from linattn_ref.attention import feature_maps, gated_linear, linear, linformer, linformer_linear, softmax
from linattn_ref.attention.feature_maps import elu_plus_one
from linattn_ref.data import reported
from linattn_ref.data.twelve_words import vectors
from linattn_ref.experiments.benches import bench_drawing
from linattn_ref.experiments.measuring.counting import count, kept_bytes
from linattn_ref.experiments.publishing import chapter, style
from linattn_ref.experiments.recurrence import decoding

# Numbers of size 1 that have gone through some hundred roundings of 2.2e-16 each agree to this.
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-13)


def phi(x):
    """elu + 1, the paper's feature map."""
    return elu_plus_one.forward(x)[0]


# %% [markdown]
# ## The smallest example, by hand
#
# Take one head of width 1, and three tokens. Queries are 0, with the feature $\phi(0) = 1$. The keys are 0, 1 and 3,
# with the features 1, 2 and 4, and the values 6, 3 and 4. The hidden state is two numbers, $s$ and $z$:
#
# | token | $s$ | $z$ | output $s / z$ |
# | ---: | ---: | ---: | ---: |
# | 1 | $1 \cdot 6 = 6$ | 1 | 6 |
# | 2 | $6 + 2 \cdot 3 = 12$ | $1 + 2 = 3$ | 4 |
# | 3 | $12 + 4 \cdot 4 = 28$ | $3 + 4 = 7$ | 4 |
#
# After the third token, only 28 and 7 are kept of the three. We compute it step by step, and all at once:

# %%
no_query, some_keys, some_values = np.zeros((3, 1)), np.array([[0.0], [1.0], [3.0]]), np.array([[6.0], [3.0], [4.0]])
hidden, by_steps = linear.init_state((), 1, 1), []
for one_query, one_key, one_value in zip(no_query, some_keys, some_values, strict=True):
    row, hidden = linear.step(one_query, one_key, one_value, hidden, eps=0.0)
    by_steps.append(row.item())
at_once, _ = linear.forward(no_query, some_keys, some_values, causal=True, eps=0.0)
print("steps:", by_steps, " at once:", at_once.ravel(), " last state:", *(each.ravel() for each in hidden[:2]))
same(by_steps, [6, 4, 4])
same(at_once.ravel(), by_steps)

# %% [markdown]
# ## One head
#
# ![Causal linear attention, unrolled, drawn](../figures/schematic_linear_recurrent.svg)
#
# A layer of a transformer takes rows $x_1 \dots x_N$. Each makes a query, a key and a value; attention reads the
# values; then every row goes through a feed-forward network $f_l$ on its own. With linear attention
# the layer is (Katharopoulos et al. 2020, section 3.4, equations 16 to 20; $x_t$ is a row, and $\phi(\cdot)$ and values
# are columns where they meet a transpose):
#
# $$\begin{aligned}
# s_0 &= 0, \quad z_0 = 0 \\
# s_t &= s_{t-1} + \phi(x_t W_K)\, (x_t W_V)^\top \\
# z_t &= z_{t-1} + \phi(x_t W_K) \\
# a_t &= \frac{\phi(x_t W_Q)^\top s_t}{\phi(x_t W_Q)^\top z_t} \\
# y_t &= f_l(a_t + x_t)
# \end{aligned}$$
#
# The two sums are $S_i$ and $Z_i$ of causal linear attention (chapter 7): the sums over keys, cut off at the query's
# own position. What used to be a truncation is now a *step*: $(s_t, z_t)$ is computed from $(s_{t-1}, z_{t-1})$ and
# $x_t$, and $y_t$ from $(s_t, z_t)$ and $x_t$. That is what a recurrent network is. It has two hidden states, $s$ of
# $C \times M$ and $z$ of $C$ numbers.
#
# For $f_l$ take the usual one, two matrices with $\max(\cdot, 0)$ in between and its input added:
# $f_l(u) = u + \max(u W_1, 0)\, W_2$. To add $a_t$ and $x_t$, $M = E$ in this section.
#
# The text is chapter 1's sentence, *the cat sat on the old mat and the dog slept too*. A word's row $x_t$ is its query,
# its key, its value and a 1, $E = 12$ numbers. $W_Q$, $W_K$ and $W_V$ cut the first three out; $W_1$ and $W_2$ are
# drawn.


# %%
class Weights(NamedTuple):
    w_q: np.ndarray  # (E, D)
    w_k: np.ndarray  # (E, D)
    w_v: np.ndarray  # (E, M)
    w_1: np.ndarray  # (E, 2 E), of the feed-forward network
    w_2: np.ndarray  # (2 E, E)


def feed_forward(u, w_1, w_2):
    return u + np.maximum(u @ w_1, 0) @ w_2


def recurrent_layer(x, w):
    s, z, y = np.zeros((w.w_k.shape[1], w.w_v.shape[1])), np.zeros(w.w_k.shape[1]), np.empty_like(x)
    for t, x_t in enumerate(x):
        phi_q, phi_k, v_t = phi(x_t @ w.w_q), phi(x_t @ w.w_k), x_t @ w.w_v
        s = s + np.outer(phi_k, v_t)
        z = z + phi_k
        a_t = phi_q @ s / (phi_q @ z)
        y[t] = feed_forward(a_t + x_t, w.w_1, w.w_2)
    return y


q, k, v = vectors()
N, D = q.shape
x = np.concatenate([q, k, v, np.ones((N, 1))], axis=1)
E, OF_VALUES, rng = x.shape[1], slice(8, 11), np.random.default_rng(0)
drawn = (rng.standard_normal(shape) / math.sqrt(shape[0]) for shape in ((E, 2 * E), (2 * E, E)))
w = Weights(np.eye(E)[:, :4], np.eye(E)[:, 4:8], np.diag(np.repeat([0.0, 1.0, 0.0], (8, 3, 1))), *drawn)
y = recurrent_layer(x, w)
print("the value numbers of 'too', before the layer:", x[-1, OF_VALUES], " after it:", y[-1, OF_VALUES].round(4))


# %% [markdown]
# Here is the same layer as it is usually computed, all rows at once with a matrix and a mask, and by the package,
# with neither. All three agree:


# %%
def masked_layer(x, w):
    similarity = np.tril(phi(x @ w.w_q) @ phi(x @ w.w_k).T)  # (N, N), nothing after the row's own position
    a = similarity @ (x @ w.w_v) / similarity.sum(axis=1, keepdims=True)
    return feed_forward(a + x, w.w_1, w.w_2)


def parallel_layer(x, w):
    a, _ = linear.forward(x @ w.w_q, x @ w.w_k, x @ w.w_v, causal=True, eps=0.0)
    return feed_forward(a + x, w.w_1, w.w_2)


same(y, masked_layer(x, w))  # claim 23: the transformer's layer is this recurrent network
same(y, parallel_layer(x, w))

for t in range(N):  # claim 20: the hidden states are the truncated sums
    state = linear.summarise(k[: t + 1], v[: t + 1])
    same(state.s, phi(k[: t + 1]).T @ v[: t + 1])
    same(state.z, phi(k[: t + 1]).sum(axis=0))

later = x.copy()
later[7:] += 100
np.testing.assert_array_equal(recurrent_layer(later, w)[:7], y[:7])  # causal without a mask, to the last bit
print("with a mask:    ", masked_layer(x, w)[-1, OF_VALUES].round(4))
print("by the package: ", parallel_layer(x, w)[-1, OF_VALUES].round(4))

# %% [markdown]
# A stack of such layers is a recurrent network as well, whose hidden state is that of all layers together. At step
# $t$, $y_t$ of one layer is $x_t$ of the next, and nothing waits for $t + 1$.
#
# ### The package's step
#
# The loop of `linear.forward` is the equations above. `linear.step` is that function for a single row, from a state. It
# returns a new state and does not change the one that is passed in. Beyond the ten lines above, it checks its
# arguments, takes any number of leading axes, and lets $s$ carry a scale for exponential feature maps. Its denominator
# has an $\varepsilon$, $10^{-6}$ unless another is given; the paper has none.

# %%
chapter.source(linear.forward, doc=False)

# %%
state, rows = linear.init_state((), D, E), []
for t, x_t in enumerate(x):
    work = count(partial(linear.step, state=state), q[t], k[t], x_t @ w.w_v)
    a_t, state = linear.step(q[t], k[t], x_t @ w.w_v, state, eps=0.0)
    same(feed_forward(a_t + x_t, w.w_1, w.w_2), y[t])
    rows.append((work.multiply_adds, work.elementwise, kept_bytes(state)))
assert len(set(rows)) == 1  # claims 20 and 23: operations and bytes are the same at every step
assert kept_bytes(state) == (D * E + D) * 8
print(f"each of {N} steps: {rows[0][0]} multiply-adds, {rows[0][1]} other operations, {rows[0][2]} bytes of state")

# %% [markdown]
# ### What is unusual about this network
#
# In an ordinary recurrent network, $h_t = \tanh(h_{t-1} A + x_t B)$, the new state is a nonlinear function of the old
# one. To know $h_t$, you must first compute $h_{t-1}$: training walks through the sequence, $N$ steps one after the
# other. Here the new state is the old one *plus something that does not depend on it*:
#
# - the steps commute and associate, so they can be taken in any grouping, even all at once;
# - nothing is ever forgotten, and nothing has to be protected from fading: the derivative of $s_t$ by $s_0$ is the
#   identity, at any distance. So a gradient neither fades nor explodes on its way through the state. (The weights of an
#   output sum to 1, so on average each of $t$ tokens has the weight $1/t$.)
#
# All nonlinearity is *outside* the state's recurrence: in $\phi$, in the quotient, in $f_l$.
#
# ## Parallel, by chunks, recurrent
#
# Because the state is a sum, it may be added up in any grouping. One row at a time is the recurrent network. All rows
# at once, with the $(N, N)$ matrix and its mask, is the parallel form. Chunks of $T$ rows are everything in between,
# with a matrix inside the chunk and the state for what came before it. Chapter 7 has the equations and the picture,
# and counts $T (C + M) + 2 C M$ multiply-adds per row. The recurrent form needs the fewest operations and leaves a
# machine the least to do at once: $N$ steps one after the other. Chunks of about $C$ rows cost twice as much and turn
# all work into products of matrices, $N / T$ of them in a row.
#
# Whoever uses the network has the same freedom. A prompt, here *the cat sat on the old mat*, can be read in one pass
# (*prefill*), followed by single steps. Or a text can be read in blocks, each continuing from the state of the one
# before. From here on we leave out the layer around attention:

# %%
M = v.shape[1]  # 3: without the layer, the values need not be as wide as its input
expected, _ = linear.forward(q, k, v, causal=True, eps=0.0)
for cuts in ([0, 12], [0, 7, *range(8, 13)], [0, 1, 5, 6, 12], range(13)):
    state, outs = linear.init_state((), D, M), []
    for start, stop in pairwise(cuts):
        block = slice(start, stop)
        out, saved = linear.forward(q[block], k[block], v[block], causal=True, eps=0.0, state=state)
        outs.append(out)
        state = saved.state
    same(np.concatenate(outs), expected)  # claim 23: prefill and steps = blocks = one pass

state = linear.forward(q[:7], k[:7], v[:7], causal=True, eps=0.0)[1].state
for t in range(7, N):
    out_t, state = linear.step(q[t], k[t], v[t], state, eps=0.0)
    same(out_t, expected[t])
print("output of 'too', seven words at once and five steps:", out_t.round(4), " in one pass:", expected[-1].round(4))

# %% [markdown]
# ## Many heads: $2H$ hidden states
#
# Each head $h = 1 \dots H$ has its own matrices and a width of $M = E / H$. The heads' outputs are put side by side
# and mixed by a matrix $W_O$ of $E \times E$ (Merali 2020, "Multi-head linear attention as an RNN"; not in the
# paper):
#
# $$\begin{aligned}
# s^h_t &= s^h_{t-1} + \phi(x_t W_K^h)\, (x_t W_V^h)^\top, \qquad z^h_t = z^h_{t-1} + \phi(x_t W_K^h) \\
# a^h_t &= \frac{\phi(x_t W_Q^h)^\top s^h_t}{\phi(x_t W_Q^h)^\top z^h_t} \\
# y_t &= f_l\big(\mathrm{Concat}(a^1_t, \dots, a^H_t)\, W_O + x_t\big)
# \end{aligned}$$
#
# "Concat and multiply" is a sum over heads. Cut $W_O$ into $H$ pieces of rows, and $\mathrm{Concat}(a^1, \dots,
# a^H)\, W_O = \sum_h a^h W_O^h$. The hidden states do not meet: one head is one recurrent network, and a layer has
# $H$ of them, so $2H$ hidden states.
#
# The cell takes $H = 4$ and random weights. It shows that these $2H$ arrays are all that is remembered of *the cat sat
# on the old*, and that each is needed: with any one of another text in its place, the rest of the sentence comes out
# differently.


# %%
class HeadWeights(NamedTuple):
    w_q: np.ndarray  # (H, E, D)
    w_k: np.ndarray  # (H, E, D)
    w_v: np.ndarray  # (H, E, M)
    w_o: np.ndarray  # (H, M, E)
    w_1: np.ndarray  # (E, 2 E)
    w_2: np.ndarray  # (2 E, E)


def draw_head_weights(heads, width, rng):
    """A layer of the given width E, its heads of width E / H."""
    each = width // heads
    shapes = (*3 * ((heads, width, each),), (heads, each, width), (width, 2 * width), (2 * width, width))
    return HeadWeights(*(rng.standard_normal(shape) / math.sqrt(width) for shape in shapes))


def multi_head_step(x_t, hidden, w):
    """One token: a list with (s, z) of every head goes in and out."""
    after, mixed = [], 0
    for (s, z), w_q, w_k, w_v, w_o in zip(hidden, w.w_q, w.w_k, w.w_v, w.w_o, strict=True):
        phi_q, phi_k, v_t = phi(x_t @ w_q), phi(x_t @ w_k), x_t @ w_v
        s, z = s + np.outer(phi_k, v_t), z + phi_k
        mixed = mixed + (phi_q @ s / (phi_q @ z)) @ w_o
        after.append((s, z))
    return feed_forward(mixed + x_t, w.w_1, w.w_2), after


def multi_head_parallel(x, w):
    """The same for all tokens: heads are a leading axis."""
    heads, _ = linear.forward(x @ w.w_q, x @ w.w_k, x @ w.w_v, causal=True, eps=0.0)  # (H, N, M)
    side_by_side = np.concatenate(list(heads), axis=1)  # (N, H M) = (N, E)
    return feed_forward(side_by_side @ np.concatenate(list(w.w_o)) + x, w.w_1, w.w_2)


def read(tokens, hidden):
    """The outputs, and the hidden states after them."""
    outs = []
    for x_t in tokens:
        y_t, hidden = multi_head_step(x_t, hidden, w_heads)
        outs.append(y_t)
    return np.stack(outs), hidden


H = 4
w_heads = draw_head_weights(H, E, np.random.default_rng(2))
empty = [(np.zeros((E // H, E // H)), np.zeros(E // H)) for _ in range(H)]
expected, hidden = read(x, empty)
same(expected, multi_head_parallel(x, w_heads))

(_, of_first), (_, of_other) = read(x[:6], empty), read(x[6:], empty)
same(read(x[6:], of_first)[0], expected[6:])  # these states are enough
for head, which in np.ndindex(H, 2):  # claim 24: and each of the 2 H is needed
    states = [list(pair) for pair in of_first]
    states[head][which] = of_other[head][which]
    assert abs(read(x[6:], states)[0] - expected[6:]).max() > 1e-3
assert kept_bytes(hidden) == H * (E // H * (E // H) + E // H) * 8 == (E * E // H + E) * 8
print(f"{sum(map(len, hidden))} hidden states, {kept_bytes(hidden)} bytes")

# %% [markdown]
# The package keeps the $2H$ states as two arrays with a leading axis of $H$. The sum of sizes,
#
# $$H \left( \frac{E}{H} \cdot \frac{E}{H} + \frac{E}{H} \right) = \frac{E^2}{H} + E \quad (C = D = M = E/H)$$
#
# *falls* with the number of heads, while a key/value cache has $2E$ numbers per token whatever $H$ is. If we write the
# states of all heads into one matrix of $E \times E$, they are its diagonal blocks:

# %%
state = linear.summarise(x @ w_heads.w_k, x @ w_heads.w_v)
assert state.s.shape == (H, E // H, E // H)
assert state.z.shape == (H, E // H)
assert kept_bytes(state) == kept_bytes(hidden)
for h, (s, z) in enumerate(hidden):
    same(state.s[h], s)
    same(state.z[h], z)
print(f"shapes: {state.s.shape} and {state.z.shape}; {kept_bytes(state)} bytes")


# %%
def draw_heads(axes, heads):
    w = draw_head_weights(heads, E, np.random.default_rng(2))
    state = linear.summarise(x @ w.w_k, x @ w.w_v)
    picture, each = np.full((E, E), np.nan), E // heads
    for h, s in enumerate(state.s):
        picture[h * each : (h + 1) * each, h * each : (h + 1) * each] = s
    axes.set_facecolor("#E4E4E4")
    axes.grid(False)
    axes.imshow(picture, cmap="PuOr", vmin=-10, vmax=10)
    axes.set(xticks=[], yticks=[], xlabel=f"value entries\n{kept_bytes(state) // 8} numbers", ylabel="features")
    axes.label_outer()


sizes = [kept_bytes(linear.init_state((heads,), E // heads, E // heads)) // 8 for heads in (1, 2, 3, 4, 6)]
assert sizes == [E * E // heads + E for heads in (1, 2, 3, 4, 6)]
chapter.explore(
    draw_heads,
    (1, 2, 3, 4, 6),
    name="heads H",
    height=0.3,
    sharey=True,
    alt="The states s of a layer of width 12 after twelve words, as diagonal blocks of a square: one block of 12 by 12 "
    "for one head, six of 2 by 2 for six heads",
)

# %% [markdown]
# ## Infinitely many features: softmax is such a network too
#
# Nothing above depends on how many features there are. "Our theoretical analysis holds for all transformers even when
# using infinite dimensional feature maps", say the authors' slides (Katharopoulos et al. 2020, slide 26). Softmax
# attention is the case $\phi(q)^\top \phi(k) = e^{q^\top k}$, with all monomials as features (chapter 6). Its
# recurrent network has the state $s_t = \sum_{j \le t} \phi(k_j) v_j^\top$ of infinitely many rows.
#
# We can watch how it gets there. `taylor_exp(p)` is the exponential's feature map with all terms up to order $p$. Run
# the recurrent network with it, step by step, and let $p$ grow. The outputs go to those of softmax, at the price of a
# state that grows like $D^p$.

# %%
cache, by_softmax = softmax.init_state((), D, M, capacity=N), []
for t in range(N):
    out_t, cache = softmax.step(q[t], k[t], v[t], cache)
    by_softmax.append(out_t)

rows = []
for order in (0, 1, 2, 4, 6, 8):
    feature_map = feature_maps.taylor_exp(order)
    state, worst = linear.init_state((), D, M, feature_map=feature_map), 0.0
    for t in range(N):  # softmax's scale is put into the query
        out_t, state = linear.step(q[t] / math.sqrt(D), k[t], v[t], state, feature_map=feature_map, eps=0.0)
        worst = max(worst, abs(out_t - by_softmax[t]).max())
    assert state.s.shape[0] == sum(D**p for p in range(order + 1))
    rows.append((order, state.s.shape[0], kept_bytes(state) // 8, worst))
even = [worst for order, _, _, worst in rows if order % 2 == 0]  # of odd order the similarity may be negative
assert all(later < earlier for earlier, later in pairwise(even))  # claim 25: softmax is the limit
assert even[-1] < 1e-3
assert cache.k.size + cache.v.size == 84
chapter.table(("order p", "features C", "numbers in the state", "largest error to softmax"), rows)

# %% [markdown]
# No finite state would do. $N$ different keys, and as many queries, can have a matrix $e^{q_i^\top k_j}$ of rank $N$.
# That is what infinitely many features mean, as $C$ features allow a rank of $C$ at most. But the infinite sums need
# not be written out. They are known as soon as the terms are: $(k_1, v_1), \dots, (k_t, v_t)$, the **key/value cache**,
# of $t\,(D + M)$ numbers. That is the "kernel trick": the cache is the infinite state written down without loss, and it
# grows.

# %%
rows = []
for words in (4, 8, 12):
    similarities = np.exp(q[:words] @ k[:words].T), phi(q[:words]) @ phi(k[:words]).T
    ranks = [np.linalg.matrix_rank(similarity) for similarity in similarities]
    assert ranks == [words, 4]
    rows.append((words, *ranks))
chapter.table(("words", "rank of exp(q·k)", "rank with elu + 1, four features"), rows)

# %% [markdown]
# ### What a state of constant size cannot hold
#
# This has another side. Store $N$ pairs $(k_j, v_j)$, then ask for each with $q = k_j$, and see whether the answer is
# nearest to the right value. The cache has all pairs. A state of $C \times M$ numbers has them added up: its matrix of
# weights has rank $C$, so beyond $C$ pairs it cannot be the identity, whatever $\phi$ is. We try it with more pairs
# than a sentence has: random keys of length 1, values of random signs, and $\phi(q)^\top \phi(k) = (q^\top k)^2$ for
# keys of three widths. Softmax is run on the widest keys, with the scale 16, which makes it sharp.


# %%
def recall(weights, values):
    """The share of the rows whose output is nearest to their own value."""
    outputs = weights @ values
    return float(((outputs @ values.T).argmax(axis=1) == np.arange(len(values))).mean())


PAIRS = (4, 8, 16, 32, 64, 128, 256, 512)
square, recalled, recalled_by_softmax = feature_maps.quadratic(0.0), {}, []
rng = np.random.default_rng(5)
values = np.sign(rng.standard_normal((PAIRS[-1], 128)))
for d in (4, 8, 16):
    keys = rng.standard_normal((PAIRS[-1], d))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    features = d * (d + 1) // 2  # of the square; the constant and the linear ones of this map are 0 here
    weights = [linear.matrix(keys[:n], keys[:n], feature_map=square, eps=0.0) for n in PAIRS]
    assert all(np.linalg.matrix_rank(p) <= features for p in weights)
    recalled[features] = [recall(p, values[:n]) for p, n in zip(weights, PAIRS, strict=True)]
    assert recalled[features][0] == 1
    assert recalled[features][-1] < 0.8
recalled_by_softmax = [recall(softmax.matrix(keys[:n], keys[:n], scale=16.0), values[:n]) for n in PAIRS]
assert recalled_by_softmax == [1.0] * len(PAIRS)
usual = [recall(softmax.matrix(keys[:n], keys[:n]), values[:n]) for n in PAIRS]  # the scale 1 / sqrt(16)
assert all(blurred < share for blurred, share in zip(usual, recalled[136], strict=True))
shares = ", ".join(f"{share:.2f} of {n}" for n, share in zip(PAIRS, usual, strict=True))
print("softmax at the scale 1/4 recalls", shares)
for features, share in recalled.items():
    print(f"C = {features} recalls", ", ".join(f"{one:.2f} of {n}" for n, one in zip(PAIRS, share, strict=True)))


def draw_recall():
    figure, axes = style.figure(height=0.34)
    axes.plot(PAIRS, recalled_by_softmax, "o-", color=style.VERMILLION, label="softmax, D = 16, scale 16")
    for (features, share), colour in zip(recalled.items(), style.sequence(3), strict=True):
        axes.plot(PAIRS, share, "s-", color=colour, label=f"linear, C = {features}")
        axes.axvline(features, color=colour, linestyle=":", linewidth=1)
    axes.set(xscale="log", xlabel="pairs stored N", ylabel="share recalled", ylim=(0, 1.05))
    axes.set_xticks(PAIRS, [str(n) for n in PAIRS])
    axes.minorticks_off()
    axes.legend(loc="lower left")
    return figure


chapter.show(
    draw_recall,
    alt="Share of pairs recalled over the number stored: softmax, sharp, stays at 1, linear attention falls from 1 "
    "somewhere beyond C pairs, for C = 10, 36 and 136 (dotted lines)",
)

# %% [markdown]
# "The nearest value" forgives some noise, so recall holds out up to about $C$ pairs or a little longer. With $C = 136$
# it is still .97 at 256 pairs; with $C = 10$ it is .81 at 16. Then it falls, which is the price of a state of constant
# size. More features move the point where the fall begins, and cost in proportion. The cache holds all pairs at any
# scale. But at the usual one, $1/\sqrt D$, softmax hardly tells keys of length 1 apart, and it recalls fewer than the
# state of $C = 136$ does.
#
# ## Writing text: constant state against growing cache
#
# A language model writes token by token: the output at $t$ decides what token $t + 1$ is. So during generation both
# kinds of attention run as recurrent networks, and a token costs
#
# | | state, in numbers | multiply-adds per token |
# | --- | --- | --- |
# | linear | $H C (M + 1)$ | about $2 H C M$ |
# | softmax with its cache | $H t\,(D + M)$ | about $H t\,(D + M)$ |
#
# The table below has the bytes of the actual arrays, and the operations counted while one step runs, at a few
# positions $t$. Where do the two cross? For $C = D = M = 64$ they cross in memory at $t = (M + 1)/2 = 32.5$, and in
# operations just above $t = M = 64$. So for short texts a cache takes less memory and fewer operations. By the clock
# linear attention is ahead from the first measured position, 16.

# %%
HEADS, WIDTH = 8, 64
rows = []
for t in (1, 32, 33, 64, 1024, 4096):
    ready = decoding.setup(t, HEADS, WIDTH, np.float32, np.random.default_rng(6))
    after = (decoding.make(each, *each.arrays)[1] for each in (ready.linear, ready.softmax))
    state_bytes, cache_bytes = map(kept_bytes, after)
    assert state_bytes == HEADS * WIDTH * (WIDTH + 1) * 4
    assert cache_bytes == HEADS * t * 2 * WIDTH * 4
    assert (state_bytes < cache_bytes) == (t > (WIDTH + 1) / 2)
    work = [count(partial(decoding.make, each), *each.arrays).multiply_adds for each in (ready.linear, ready.softmax)]
    assert (work[0] < work[1]) == (t > 64)
    rows.append((t, state_bytes, cache_bytes, *work))
assert len({row[1] for row in rows}) == len({row[3] for row in rows}) == 1  # claim 23: constant memory, constant cost
chapter.table(
    ("position t", "bytes, linear", "bytes, cache", "multiply-adds, linear", "multiply-adds, cache"),
    rows,
)

# %% [markdown]
# The figure goes on to $t = 16384$ and adds the measured time of one step, for both networks on one thread of the
# compiled kernels.

# %%
chapter.source(decoding.setup)

measured = chapter.results("decoding")
assert measured.positions[0] == 16
assert (measured.ratio > 1).all()  # by the clock, linear attention is ahead everywhere
for t, in_record in zip(measured.positions, measured.softmax.state, strict=True):
    assert in_record == HEADS * t * 2 * WIDTH * 4
for row in rows:  # what was counted above is what the record says
    for network, held, work in ((measured.linear, row[1], row[3]), (measured.softmax, row[2], row[4])):
        at = np.flatnonzero(measured.positions == row[0])
        assert network.state[at].tolist() == [held] * len(at)
        assert network.multiply_adds[at].tolist() == [work] * len(at)
chapter.show(
    decoding.draw,
    measured,
    alt="Bytes of the state, multiply-adds and CPU time of one token over its position: constant for linear attention, "
    "proportional to the position for the key/value cache; per token, a pass over all at once is cheaper from 32 on",
)

# %%
one_pass = measured.at_once / measured.linear.seconds  # over the time of as many steps
counted = measured.softmax.multiply_adds / measured.linear.multiply_adds
compared = measured.softmax.state / measured.linear.state, counted, measured.ratio, 1 / one_pass
chapter.table(
    ("position t", "cache over linear: bytes", "multiply-adds", "measured time", "one step over a share of one pass"),
    list(zip(measured.positions.tolist(), *(x.tolist() for x in compared), strict=True)),
)
assert one_pass[0] > 1 > one_pass[1]
assert max(one_pass[measured.positions >= 64]) < 1 / 2
assert max(one_pass[measured.positions >= 128]) < 1 / 3

# %% [markdown]
# ### The bottleneck is still the loop
#
# While writing, the sequential loop remains, but linear attention makes it much faster.
#
# *Much faster*: summed over a text of $N$ tokens, it is $2 N H C M$ multiply-adds against $\sum_t H t (D + M) = H
# \frac{N (N + 1)}{2} (D + M)$. In the right panel the time of a step stays where it was, while with the cache it
# grows with $t$.
#
# *The loop remains*: see the last column of the table, and the dashed line. If all $t$ tokens are known beforehand, one
# pass over them (chunks, matrix products) can replace as many single steps. From 64 tokens on it takes less than half
# of their time, and from 128 on less than a third, though it does *more* arithmetic. (16 tokens are too few: the steps
# are faster.) When writing, the tokens are not known: $x_{t+1}$ is made from $y_t$. So a text can be *checked* in one
# parallel pass, but not written in one. Here is a layer that feeds itself, starting from the word *the*, and the same
# text checked afterwards:


# %%
def write(first, tokens, w):
    """Each token is the layer's own output, scaled to its first length; H heads in recurrent form."""
    heads, _, each = w.w_k.shape
    state, written, read = linear.init_state((heads,), each, each), [first], []
    for _ in range(tokens):
        x_t = written[-1]
        a_t, state = linear.step(x_t @ w.w_q, x_t @ w.w_k, x_t @ w.w_v, state, eps=0.0)  # (H, M)
        y_t = feed_forward(a_t.reshape(-1) @ w.w_o.reshape(-1, len(x_t)) + x_t, w.w_1, w.w_2)
        read.append(y_t)
        written.append(y_t * np.linalg.norm(first) / np.linalg.norm(y_t))
    return np.stack(written[:-1]), np.stack(read)


text, outputs = write(x[0], 50, w_heads)
same(multi_head_parallel(text, w_heads), outputs, atol=1e-10)  # checked at once; roundings are fed back 50 times

other = x[0].copy()
other[0] += 1e-3
moved = abs(write(other, 50, w_heads)[0] - text).max(axis=1)
assert (moved > 0).all()  # claim 44: every later input waits for, and depends on, what was written first
print(f"{len(text)} tokens; a first token moved by 0.001 moves the last one by {moved[-1]:.1e}")

# %% [markdown]
# How much faster? By the clock, at position 16384 of the record, as much as the count of multiply-adds suggests. But
# that is a coincidence of two deviations. A step of linear attention is so small that the call itself is a good part of
# it: at 4096 it gains less than half of what the count suggests. And 64 MiB of keys and values are more than the
# processor's own caches hold, so that at 16384 they have to come from memory.

# %%
faster = measured.ratio
assert measured.positions[-1] == 16384
assert faster[-1] > 30  # claim 44: measured
assert faster[measured.positions == 4096] < counted[measured.positions == 4096] / 2
assert 0.9 < faster[-1] / counted[-1] < 1.1
constant = measured.linear.seconds.max() / measured.linear.seconds.min()
assert constant < 1.5  # from 16 to 16384 tokens: the same time per step
for at in (-3, -1):
    print(f"at {measured.positions[at]}: {faster[at]:.0f} times measured, {counted[at]:.0f} times counted")
print(f"from 16 to 16384 tokens the linear step's time varies by a factor of {constant:.2f}")

# %% [markdown]
# How does this compare with what is printed? Katharopoulos et al. (2020) generate images pixel by pixel: 784 tokens
# for MNIST, 3072 for CIFAR-10, with networks of 8 and 16 layers that were trained for the purpose. Here there is one
# layer of attention alone, and nothing is trained. What can be compared is *how many times longer* a whole text takes
# with the cache. Here we add up measured steps. The paper has two cases: batch size 1 on a CPU, which is most like
# ours, and a GPU at the largest batch that fits. There the linear network's small state lets it write up to 10,000
# images at once (section 4.2.1).


# %%
def written(network, tokens):
    """Seconds to write so many tokens: the measured steps, interpolated between positions and added up."""
    return float(np.interp(np.arange(1, tokens + 1), measured.positions, network.seconds).sum())


rows = []
for name, tokens, throughput, latency in (
    ("MNIST", 784, reported.MNIST, reported.MNIST_SECONDS),
    ("CIFAR-10", 3072, reported.CIFAR_10, reported.CIFAR_10_SECONDS),
):
    here = written(measured.softmax, tokens) / written(measured.linear, tokens)
    one_image = latency["stateful-softmax"].cpu / latency["linear"].cpu
    many = throughput["linear"].images_per_second / throughput["stateful-softmax"].images_per_second
    no_cache = throughput["linear"].times_faster
    rows.append((f"{name}, {tokens} tokens", here, one_image, many, no_cache))
assert rows[1][1] > 2 * rows[0][1]  # claims 28 and 29: the longer, the more; so it is in print
assert rows[1][1] > rows[1][2]  # attention alone gains more than a network of which it is a part
assert all(later > earlier for earlier, later in zip(rows[0][2:], rows[1][2:], strict=True))
chapter.table(
    (
        "linear against a key/value cache, times faster",
        "here, attention alone, CPU",
        "printed, one image, CPU (table 5)",
        "printed, GPU, images per second (table 4)",
        "printed, against softmax without a cache",
    ),
    rows,
)
chapter.table(
    (
        "printed in the paper",
        *("MNIST: bits/dim", "images/s", "s per image, CPU", "GPU"),
        *("CIFAR-10: bits/dim", "images/s", "s per image, CPU", "GPU"),
    ),
    [
        (
            name,
            *(reported.MNIST[name][:2] + reported.MNIST_SECONDS[name]),
            *(reported.CIFAR_10[name][:2] + reported.CIFAR_10_SECONDS[name]),
        )
        for name in reported.MNIST
    ],
)
# Claim 30: in print, linear attention writes one image faster on a CPU than on a GPU, as one token of one image is too
# little work for a GPU. Nothing here computes that.

# %% [markdown]
# The "317 times" and "4462 times" that are often quoted compare with a softmax network that computes everything afresh
# for every pixel. Compared with one that keeps its keys and values, linear attention draws 19 and 56 times as many
# images per second on a GPU. A single image on a CPU is 1.3 and 1.6 times faster. There attention is so cheap that "the
# main computational bottleneck becomes the inevitable outer loop over the sequence" (appendix C.2).
#
# Networks of the paper's sizes were timed with this package too, in all five ways of its tables (chapter 21). How
# many times longer than with linear attention does one image take, on one thread of a CPU?

# %%
drawn = chapter.results("bench_drawing")
rows = []
for name, seconds in (("MNIST", reported.MNIST_SECONDS), ("CIFAR-10", reported.CIFAR_10_SECONDS)):
    for way in ("softmax", "stateful-softmax"):
        _, here, *_ = bench_drawing.told(drawn, name, way, bench_drawing.OURS)
        rows.append((f"{name}, {way}", here, seconds[way].cpu / seconds["linear"].cpu))
        assert here > rows[-1][2]  # claim 30
chapter.table(("one image, over linear, CPU", "here, the record", "in print (table 5)"), rows)

# %% [markdown]
# > **A break.** Causal linear attention is a recurrent network: two sums per head, to which each token adds. The same
# > sums can be computed in parallel, by chunks, or step by step. Softmax attention is such a network too, with
# > infinitely many features, and its cache is that infinite state. A state of constant size makes long texts cheap, and
# > keeps about $C$ things apart. After the break gradients go back through the state, machines share a sequence, and
# > Linformer meets linear attention.

# %% [markdown]
# ## Back-propagation through time
#
# The gradient of the layer can be obtained from the parallel form, by the formulas of chapters 5 and 7. A recurrent
# network is usually differentiated in its own way, by *back-propagation through time*. Both must agree.
#
# Write $dX$ for the gradient of the loss by $X$. We are given $dy_1 \dots dy_N$. Here is one step of the network,
# with every intermediate result named:
#
# $$n_t = s_t^\top \phi(q_t), \quad d_t = z_t^\top \phi(q_t), \quad a_t = n_t / d_t, \quad u_t = a_t + x_t, \quad
# h_t = \max(u_t W_1, 0), \quad y_t = u_t + h_t W_2$$
#
# **Down to $a_t$.** These lines do not depend on other positions. Let $p_t = u_t W_1$, so that
# $h_t = \max(p_t, 0)$; $dp_t$ is `d_h` in the code. From $y_t = u_t + h_t W_2$,
#
# $$dp_t = dy_t W_2^\top \text{ where } p_t > 0, \text{ else } 0; \qquad du_t = dy_t + dp_t W_1^\top; \qquad
# da_t = du_t; \qquad dx_t \text{ gets } du_t$$
#
# **Through the quotient.** $a_{tm} = n_{tm} / d_t$, so $\partial a_{tm} / \partial n_{tm} = 1 / d_t$ and
# $\partial a_{tm} / \partial d_t = -n_{tm} / d_t^2 = -a_{tm} / d_t$:
#
# $$dn_t = da_t / d_t, \qquad dd_t = -\sum_m \frac{da_{tm}\, a_{tm}}{d_t} = -dn_t \cdot a_t \qquad (5)$$
#
# **Through the reading.** $n_{tm} = \sum_c s_{t,cm}\, \phi_c(q_t)$ and $d_t = \sum_c z_{t,c}\, \phi_c(q_t)$:
#
# $$d\phi(q_t) = s_t\, dn_t + z_t\, dd_t \qquad (6)$$
#
# **Through the state.** $s_t$ is used twice: it is read at $t$, and it is passed on to
# $s_{t+1} = s_t + \phi(k_{t+1}) v_{t+1}^\top$, where its factor is 1. The chain rule adds both. With $\sigma_t = ds_t$
# and $\zeta_t = dz_t$, called the *adjoint state*,
#
# $$\sigma_t = \sigma_{t+1} + \phi(q_t)\, dn_t^\top, \qquad \zeta_t = \zeta_{t+1} + \phi(q_t)\, dd_t \qquad (7)$$
#
# starting from $\sigma_{N+1} = 0$, $\zeta_{N+1} = 0$, or from the gradient of the last state, if it is used. It is
# the same network once more, running backwards: queries in the place of keys, $dn$ in the place of values.
#
# **Through the writing.** $\phi(k_t) v_t^\top$ was added to $s_t$, and $\phi(k_t)$ to $z_t$:
#
# $$d\phi(k_t) = \sigma_t v_t + \zeta_t \qquad (8)$$
#
# $$dv_t = \sigma_t^\top \phi(k_t) \qquad (9)$$
#
# **Down to the input.** $\phi$ acts entry by entry with the slope $\phi'(x) = 1$ for $x > 0$, else $e^x$. So
# $dq_t = d\phi(q_t) * \phi'(q_t)$, $dk_t$ likewise; and $x_t$ was used for $q_t$, $k_t$, $v_t$ and $u_t$:
#
# $$dx_t = du_t + dq_t W_Q^\top + dk_t W_K^\top + dv_t W_V^\top, \qquad dW_Q = \sum_t x_t^\top dq_t, \ \dots$$


# %%
class Gradients(NamedTuple):
    x: np.ndarray
    w_q: np.ndarray
    w_k: np.ndarray
    w_v: np.ndarray
    w_1: np.ndarray
    w_2: np.ndarray


def slope(x):
    """The derivative of elu + 1."""
    return np.where(x > 0, 1.0, np.exp(np.minimum(x, 0)))


def through_time_forward(x, w_q, w_k, w_v, w_1, w_2):
    """The recurrent layer, keeping every intermediate result."""
    s, z, y, kept = np.zeros((w_k.shape[1], w_v.shape[1])), np.zeros(w_k.shape[1]), np.empty_like(x), []
    for t, x_t in enumerate(x):
        q, k, v = x_t @ w_q, x_t @ w_k, x_t @ w_v
        s, z = s + np.outer(phi(k), v), z + phi(k)
        d = phi(q) @ z
        a = phi(q) @ s / d
        h = np.maximum((a + x_t) @ w_1, 0)
        y[t] = a + x_t + h @ w_2
        kept.append((x_t, q, k, v, s, z, d, a, h))
    return y, (kept, Weights(w_q, w_k, w_v, w_1, w_2))


def through_time_backward(d_y, saved):
    kept, w = saved
    d_x, d_w = np.empty_like(d_y), Weights(*(np.zeros_like(each) for each in w))
    sigma, zeta = np.zeros_like(kept[0][4]), np.zeros_like(kept[0][5])
    for t in reversed(range(len(kept))):
        x_t, q, k, v, s, z, d, a, h = kept[t]
        d_h = (d_y[t] @ w.w_2.T) * (h > 0)
        d_u = d_y[t] + d_h @ w.w_1.T
        d_n, d_d = d_u / d, -(d_u / d) @ a  # (5)
        d_q = (s @ d_n + z * d_d) * slope(q)  # (6)
        sigma, zeta = sigma + np.outer(phi(q), d_n), zeta + phi(q) * d_d  # (7)
        d_k = (sigma @ v + zeta) * slope(k)  # (8)
        d_v = phi(k) @ sigma  # (9)
        d_x[t] = d_u + d_q @ w.w_q.T + d_k @ w.w_k.T + d_v @ w.w_v.T
        uses = ((x_t, d_q), (x_t, d_k), (x_t, d_v), (a + x_t, d_h), (h, d_y[t]))
        for total, (given, gradient) in zip(d_w, uses, strict=True):
            total += np.outer(given, gradient)
    return Gradients(d_x, *d_w)


report = gradcheck.check_elementwise(through_time_forward, through_time_backward, x, *w, rng=np.random.default_rng(7))
print(report)
report.assert_ok()

# %% [markdown]
# Now the parallel form, all rows at once, with `linear.backward` in the middle, returns the same gradient of the
# input and of every weight.


# %%
def parallel_gradients(x, w, d_y):
    a, saved = linear.forward(x @ w.w_q, x @ w.w_k, x @ w.w_v, causal=True, eps=0.0)
    u = a + x
    h = np.maximum(u @ w.w_1, 0)
    d_h = (d_y @ w.w_2.T) * (h > 0)
    d_u = d_y + d_h @ w.w_1.T
    d = linear.backward(d_u, saved)
    d_x = d_u + d.q @ w.w_q.T + d.k @ w.w_k.T + d.v @ w.w_v.T
    return Gradients(d_x, x.T @ d.q, x.T @ d.k, x.T @ d.v, u.T @ d_h, h.T @ d_y)


d_y = np.random.default_rng(8).standard_normal(x.shape)
_, saved = through_time_forward(x, *w)
for by_steps, at_once in zip(through_time_backward(d_y, saved), parallel_gradients(x, w, d_y), strict=True):
    same(by_steps, at_once)  # claim 23: one function, one gradient
print("gradient of the last weights, through time:", by_steps[0, :3].round(4), " at once:", at_once[0, :3].round(4))

# %% [markdown]
# (7) is a prefix sum from the other end, so everything said about the forward pass holds again: rows, chunks or all
# at once, and in parallel. `through_time` keeps every $s_t$, as automatic differentiation would, $N C M$ numbers.
# Chapter 7 showed that this is not needed. One mistake leaves no trace in the forward pass: to forget that $s_t$ is
# passed on, $\sigma_t = \phi(q_t)\, dn_t^\top$. The check finds it, in $W_K$, $W_V$ and the input:


# %%
def forgetful_backward(d_y, saved):
    kept, w = saved
    grads = [through_time_backward(d_y[t : t + 1], ([step], w)) for t, step in enumerate(kept)]  # each step alone
    return Gradients(np.concatenate([each.x for each in grads]), *(sum(each[i] for each in grads) for i in range(1, 6)))


report = gradcheck.check_elementwise(through_time_forward, forgetful_backward, x, *w, rng=np.random.default_rng(7))
assert not report.ok
assert {entry.name for entry in report.worst_by_input if entry.excess > 1} == {"x", "w_k", "w_v"}
print(report)

# %% [markdown]
# ### The gradient of a state, and through a state
#
# A long text is often trained in blocks, each starting from the state that the last one left. Then the state is an
# input of the second block, with a gradient, and an output of the first, with one too. In the package,
# `forward(state=...)` has gradients with a field `state`, and `backward(..., d_state=...)` takes the gradient of
# `saved.state`. By (7) the gradient of the state from which a block starts is $(\sigma_1, \zeta_1)$, and
# $(\sigma_{N+1}, \zeta_{N+1})$ is what a later block passes back. We check both for the last five words, which start
# from the state of the first seven.

# %%
chapter.source(linear.backward, doc=False)


# %%
class StateGradients(NamedTuple):
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    s: np.ndarray
    z: np.ndarray


def forward_from(q, k, v, s, z):
    """From a state to the outputs and the state after them, in one vector."""
    out, saved = linear.forward(q, k, v, causal=True, eps=0.0, state=linear.State(s, z, None))
    return np.concatenate([out.ravel(), saved.state.s.ravel(), saved.state.z]), saved


def backward_from(d_all, saved):
    d_out, d_s, d_z = np.split(d_all, [saved.out.size, saved.out.size + saved.state.s.size])
    d_state = linear.State(d_s.reshape(saved.state.s.shape), d_z, None)
    grads = linear.backward(d_out.reshape(saved.out.shape), saved, d_state=d_state)
    return StateGradients(*grads[:3], *grads.state[:2])


s, z, _ = linear.summarise(k[:7], v[:7])
rng = np.random.default_rng(9)
report = gradcheck.check_elementwise(forward_from, backward_from, q[7:], k[7:], v[7:], s, z, rng=rng)
print(report)
report.assert_ok()

# %% [markdown]
# All blocks, forward from left to right, backward from right to left, are one pass. Leaving out `d_state` is
# *truncated* back-propagation: the state's numbers are passed on, but its gradient is not passed back. How much of the
# gradient is then missing? None is missing for queries, and none in the last block. For keys and values, here, most of
# it is missing if blocks are short:


# %%
def gradients_in_blocks(q, k, v, d_out, length, truncated=False):
    state, passes = linear.init_state((), k.shape[1], v.shape[1]), []
    blocks = [slice(start, start + length) for start in range(0, len(q), length)]
    for block in blocks:
        _, saved = linear.forward(q[block], k[block], v[block], causal=True, eps=0.0, state=state)
        state = saved.state
        passes.append(saved)
    d_state, parts = None, []
    for block, saved in zip(reversed(blocks), reversed(passes), strict=True):
        grads = linear.backward(d_out[block], saved, d_state=None if truncated else d_state)
        d_state = grads.state
        parts.append(grads[:3])
    return [np.concatenate(each[::-1]) for each in zip(*parts, strict=True)]


d_out = np.random.default_rng(10).standard_normal((N, M))  # the gradient of some loss
_, saved = linear.forward(q, k, v, causal=True, eps=0.0)
whole = linear.backward(d_out, saved)
rows = []
for length in (1, 2, 6, 12):
    for by_blocks, expected in zip(gradients_in_blocks(q, k, v, d_out, length), whole[:3], strict=True):
        same(by_blocks, expected)
    d_q, d_k, d_v = gradients_in_blocks(q, k, v, d_out, length, truncated=True)
    same(d_q, whole.q)  # (6): no gradient of a query comes through the future
    same(d_k[-length:], whole.k[-length:])
    missing = [np.linalg.norm(each - full) / np.linalg.norm(full) for each, full in ((d_k, whole.k), (d_v, whole.v))]
    rows.append((length, *missing))
assert all(later[1] < earlier[1] and later[2] < earlier[2] for earlier, later in pairwise(rows))
assert rows[-1][1:] == (0, 0)
chapter.table(("block length", "missing of the keys' gradient", "missing of the values' gradient"), rows)

# %% [markdown]
# ## One identity: network, chunks, machines
#
# Let $\Sigma(A)$ be the state after the tokens of a piece $A$: the two sums over them. If $B$ follows $A$,
#
# $$\Sigma(AB) = \Sigma(A) \oplus \Sigma(B), \qquad (s_A, z_A) \oplus (s_B, z_B) = (s_A + s_B,\; z_A + z_B)$$
#
# and $\oplus$ is **associative**, $(\Sigma_A \oplus \Sigma_B) \oplus \Sigma_C = \Sigma_A \oplus (\Sigma_B \oplus
# \Sigma_C)$, with the empty state as its neutral element. Everything in this chapter is that one line, read in
# different groupings:
#
# - token by token from the left, $((\Sigma_1 \oplus \Sigma_2) \oplus \Sigma_3) \oplus \dots$: **the recurrent
#   network**;
# - tokens grouped by $T$: **chunks**;
# - pieces summed up where they are, and only the sums sent around: **machines**;
# - in a tree: all prefixes of $p$ pieces in $\lceil \log_2 p \rceil$ rounds.
#
# With an exponential feature map a state carries a scale, $S = e^r s$, and $\oplus$ first brings both to the larger
# $r$. That is the merging of log-sum-exps of chapter 1 (exercise 2), and it is just as associative.

# %%
chapter.source(linear.summarise, linear.combine, doc=False)


# %%
def scan(states):
    """All prefixes' states in rounds: in round r each takes in the state 2^r places to its left."""
    rounds = 0
    while 2**rounds < len(states):
        reach = 2**rounds
        states = [linear.combine(states[i - reach], states[i]) if i >= reach else states[i] for i in range(len(states))]
        rounds += 1
    return states, rounds


def prefix_states(k, v, length, feature_map):
    pieces = [slice(start, start + length) for start in range(0, len(k), length)]
    return [linear.summarise(k[piece], v[piece], feature_map=feature_map) for piece in pieces]


def sums(state):
    """s and z without their scale."""
    factor = 1.0 if state.log_scale is None else np.exp(state.log_scale)
    return np.concatenate([(factor * state.z)[:, None], np.reshape(factor, (-1, 1)) * state.s], axis=1)


omega = feature_maps.orthogonal_gaussian(32, D, np.random.default_rng(11))
close = partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-11)  # sums of terms of either sign, up to 100
for feature_map in (elu_plus_one, feature_maps.favor_positive(omega)):
    a, b, c = (linear.summarise(k[i], v[i], feature_map=feature_map) for i in np.split(np.arange(N), [4, 5]))
    close(sums(linear.combine(linear.combine(a, b), c)), sums(linear.combine(a, linear.combine(b, c))))

    words_apart = prefix_states(k, v, 1, feature_map)
    one_by_one = list(accumulate(words_apart, linear.combine))  # the recurrent network
    by_chunks = list(accumulate(prefix_states(k, v, 4, feature_map), linear.combine))
    in_rounds, rounds = scan(words_apart)
    assert rounds == math.ceil(math.log2(N)) == 4  # instead of 11 steps in a row
    for t in range(N):
        close(sums(in_rounds[t]), sums(one_by_one[t]))
    for i, state in enumerate(by_chunks):
        close(sums(state), sums(one_by_one[4 * i + 3]))
    print(f"{feature_map.name}: {rounds} rounds, or {len(by_chunks) - 1} steps from chunk to chunk, for {N - 1} steps")

# %% [markdown]
# ### A sequence shared by processes
#
# Cut a sequence into pieces, one per process. The forward pass takes two rounds. First every process sums up its keys
# and values. The states before each piece are the prefixes of these sums, and then every process reads with its own
# queries.
#
# The backward pass is the mirror image. The queries of a piece add a gradient to the state from which they started,
# which we call what the piece *asks for*. By (7) it is $\sum_t \phi(q_t)\, dn_t^\top$ and $\sum_t \phi(q_t)\, dd_t$.
# The gradient of the state that a piece passes on is the sum of what all *later* pieces ask for, a suffix sum;
# `combine_gradients` adds two of them. So in the second round every process also sends back what it asks for, and in a
# third it computes the gradient of its own keys and values.
#
# Here it is with `joblib`, on two processes and five pieces, with the same numbers as in one process, forward and
# backward.

# %%
chapter.source(linear.combine_gradients, doc=False)


# %%
def read_piece(q, k, v, d_out, state):
    """Second round, on one process: the outputs, and what its queries ask of the state before the piece."""
    out, saved = linear.forward(q, k, v, causal=True, eps=0.0, state=state)
    return out, linear.backward(d_out, saved).state


def gradients_of_piece(q, k, v, d_out, state, d_state):
    """Third round: its gradients, given the gradient of the state that it passed on."""
    _, saved = linear.forward(q, k, v, causal=True, eps=0.0, state=state)
    return linear.backward(d_out, saved, d_state=d_state)[:3]


def shared(q, k, v, d_out, cuts, processes):
    """Outputs and gradients of a causal pass, the pieces between the cuts on different processes."""
    pieces = [[each[start:stop] for each in (q, k, v, d_out)] for start, stop in pairwise(cuts)]
    empty = linear.init_state((), k.shape[1], v.shape[1])
    with Parallel(n_jobs=processes) as parallel:
        own = parallel(delayed(linear.summarise)(k, v) for _, k, v, _ in pieces)
        before = list(accumulate(own[:-1], linear.combine, initial=empty))  # prefixes: the pieces to the left
        work = (delayed(read_piece)(*piece, state) for piece, state in zip(pieces, before, strict=True))
        outs, asked = zip(*parallel(work), strict=True)
        after = list(accumulate(reversed(asked[1:]), linear.combine_gradients, initial=empty))[::-1]  # suffixes
        jobs = zip(pieces, before, after, strict=True)
        grads = parallel(delayed(gradients_of_piece)(*piece, state, d_state) for piece, state, d_state in jobs)
    return np.concatenate(outs), [np.concatenate(each) for each in zip(*grads, strict=True)]


cuts = [0, 3, 4, 7, 10, 12]  # of any lengths
out, grads = shared(q, k, v, d_out, cuts, processes=2)
same(out, linear.forward(q, k, v, causal=True, eps=0.0)[0])
for by_pieces, expected in zip(grads, whole[:3], strict=True):
    same(by_pieces, expected)
print("gradient of the value of 'cat', two processes:", grads[2][1].round(4), " one pass:", whole[2][1].round(4))

# %% [markdown]
# A process sends one state of $C (M + 1)$ numbers forward and one back, **whatever the length of its piece**. Softmax
# attention on several machines has to send keys and values around, $n (D + M)$ numbers per piece of $n$ tokens. And
# with $p$ machines nobody waits for another one to finish its $N / p$ tokens. Only $p$ additions of states come one
# after the other, or $\log_2 p$ in a tree.

# %%
rows = []
for tokens in (16, 1024, 65536):
    k_piece, v_piece = np.zeros((2, tokens, 64), np.float32)
    rows.append((tokens, kept_bytes(linear.summarise(k_piece, v_piece)), kept_bytes((k_piece, v_piece))))
assert [row[1] for row in rows] == [64 * 65 * 4] * 3
assert [row[2] for row in rows] == [tokens * 128 * 4 for tokens, _, _ in rows]
chapter.table(("tokens in the piece", "bytes of its state", "bytes of its keys and values"), rows)

# %% [markdown]
# ## Linformer and linear attention together?
#
# ![Linformer and linear attention together, drawn](../figures/schematic_linformer_linear.svg)
#
# Merali (2020) ends with a question. Linformer mixes $L$ keys and values into $R$ before attention (chapter 4); linear
# attention takes sums over keys. Can we do both?
#
# $$\tilde K = E\, \phi(K), \quad \tilde V = F V \qquad
# o_i = \frac{\phi(q_i)^\top \tilde K^\top \tilde V}{\phi(q_i)^\top \sum_r \tilde K_r}$$
#
# ($E$ and $F$ of $R \times L$; $E$ is not the model's width in this section.) His answer: we can, but the similarity
# is no longer positive, and nothing is gained in time or space. Two remarks on how it is written there:
#
# - the lecture writes $\mathrm{sim}(q, k) = \phi(q)^\top E\, \phi(k)$. $E$ acts on positions, so the similarity is that
#   of a query and a *mixed* key, $\phi(q_i)^\top \big(E \phi(K)\big)_r$;
# - it leaves $E$ out of the denominator. Then the denominator stays positive, but the weights of an output no longer
#   add up to 1: not even values that are all alike come out as they were. The package mixes the keys of the denominator
#   too, and then they do, if the rows of $F$ sum to 1.
#
# The lecture says that the similarity is no longer "positive definite". But that is not what matters: an output is an
# average if the similarities are **not negative** (chapter 5). We draw $E$ and $F$ for the sentence, 40 times for each
# $R$, and count how often something is negative:

# %%
chapter.source(linformer_linear.forward, linformer_linear.negative_similarity_fraction, doc=False)

# %%
rng = np.random.default_rng(12)
e, f = rng.standard_normal((2, 4, N))
f_averages, ones = f / f.sum(axis=1, keepdims=True), np.ones((N, 1))
same_values, _ = linformer_linear.forward(q, k, ones, e, f_averages, eps=0.0)
np.testing.assert_allclose(same_values, 1, rtol=1e-9)  # roundings, over a denominator that may be small
denominator = phi(q) @ phi(k).sum(axis=0)[:, None]  # the lecture's
by_lecture = phi(q) @ ((e @ phi(k)).T @ (f_averages @ ones)) / denominator
assert (denominator > 0).all()
assert abs(by_lecture - 1).min() > 0.1


def mixed(e, f):
    """What becomes of similarities, denominators and outputs."""
    out, saved = linformer_linear.forward(q, k, v, e, f, eps=0.0)
    ordinary = (phi(q) @ phi(k).T @ abs(e).T).sum(axis=1)  # the denominators, if no entry of E were negative
    return (
        linformer_linear.negative_similarity_fraction(q, k, e),
        (saved.d < 0).mean(),
        abs(saved.d[:, 0] / ordinary).min(),
        abs(out).max() / abs(v).max(),
    )


rows, draws = [], 40
for R in (1, 2, 4, 12):
    pool = linformer.mean_pool(R, N)
    e_draws, f_draws = rng.standard_normal((2, draws, R, N)) / math.sqrt(R)
    of_either_sign = [mixed(e, f) for e, f in zip(e_draws, f_draws, strict=True)]
    not_negative = [mixed(abs(e), f) for e, f in zip(e_draws, f_draws, strict=True)]
    for name, found in (
        ("normal", of_either_sign),
        ("abs(normal)", not_negative),
        ("mean pooling", [mixed(pool, pool)]),
    ):
        similarities, denominators, least, largest = np.array(found).T
        rows.append((R, name, similarities.mean(), denominators.mean(), least.min(), largest.max()))
    assert 0.3 < rows[-3][2] < 0.7  # claim 32: about half of them
    assert 0.3 < rows[-3][3] < 0.7
    assert rows[-3][4] < 0.01  # of some draws and queries hardly anything is left
    for row in rows[-2:]:  # an E that is not negative keeps similarities positive
        assert row[2:4] == (0, 0)
        assert row[4] > 0.99
    pooled, _ = linformer_linear.forward(q, k, v, pool, pool, eps=0.0)
    assert (pooled <= v.max(axis=0)).all()  # non-negative, and rows that sum to 1: averages of averages
    assert (pooled >= v.min(axis=0)).all()
unmixed, _ = linformer_linear.forward(q, k, v, np.eye(N), np.eye(N), eps=0.0)
same(unmixed, linear.forward(q, k, v, eps=0.0)[0])  # R = L and nothing mixed: linear attention
chapter.table(
    (
        "R",
        "E",
        "negative similarities",
        "negative denominators",
        "least denominator over that of abs(E)",
        "largest output over largest value",
    ),
    rows,
)

# %% [markdown]
# How bad can an output get? Draw $E$ with independent normal entries. Then the entries of $\sum_r (E\phi(K))_r$ are
# sums of normal numbers. For one query, so is the denominator $d$: it is normal with mean 0. Its density at 0 is a
# positive number $p_0$, hence $\Pr(|d| < \delta) \approx 2 p_0 \delta$ for small $\delta$. If $R \ge 2$, an output is a
# numerator of ordinary size over $d$. So it exceeds $x$ when $|d|$ is below about $1/x$:
#
# $$\Pr(|o| > x) \approx \frac{\mathrm{const}}{x}$$
#
# Ten times the size occurs a tenth as often. So heavy a tail means that the output has *no expectation*, just as the
# Cauchy distribution has none. A larger $R$ does not help. (With $R = 1$ there is only one similarity, which cancels,
# and every output is $F V$.) Here are twenty thousand draws for each $R$, of the word *sat* and its first value number:

# %%
DRAWS, THRESHOLDS = 20_000, np.geomspace(0.1, 1000, 41)
largest_value = abs(v[:, 0]).max()


def share_above(out):
    return (abs(out).reshape(-1, 1) > THRESHOLDS).mean(axis=0)


def tails(reduced):
    """For each kind of E, the share of outputs above each threshold."""
    e, f = np.random.default_rng(14).standard_normal((2, DRAWS, reduced, N)) / math.sqrt(reduced)
    words = [np.broadcast_to(each, (DRAWS, *each.shape)) for each in (q[2:3], k, v[:, :1])]
    averaging = abs(f) / abs(f).sum(axis=-1, keepdims=True)  # non-negative, rows sum to 1
    return {
        "E, F normal": share_above(linformer_linear.forward(*words, e, f, eps=0.0)[0]),
        "E not negative": share_above(linformer_linear.forward(*words, abs(e), f, eps=0.0)[0]),
        "and F averages": share_above(linformer_linear.forward(*words, abs(e), averaging, eps=0.0)[0]),
    }


def draw_tails(axes, reduced):
    for (name, share), colour in zip(tails(reduced).items(), (style.VERMILLION, style.ORANGE, style.BLUE), strict=True):
        axes.plot(THRESHOLDS, np.where(share > 0, share, np.nan), color=colour, label=name)
    axes.plot(THRESHOLDS[16:], 0.6 / THRESHOLDS[16:], ":", color=style.GREY, label="slope −1")
    axes.axvline(largest_value, color=style.GREY, linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="x", ylim=(1e-4, 1.5))
    axes.set_ylabel("share of |outputs| above x")
    axes.label_outer()
    if axes.get_subplotspec().is_last_col():
        axes.legend(loc="upper right", fontsize=6)


chapter.explore(
    draw_tails,
    (2, 4, 12),
    name="R",
    slider=(1, 2, 3, 4, 6, 12),
    height=0.4,
    sharey=True,
    alt="Share of outputs above x: with normal E a straight line of slope -1 to beyond 1000, with non-negative E it "
    "drops off near the largest value (grey line), with averaging F before it",
)
for reduced in (2, 4, 12):
    each = tails(reduced)
    ten, hundred = (np.searchsorted(THRESHOLDS, x * 0.999) for x in (10, 100))
    heavy = each["E, F normal"]
    assert 7 < heavy[ten] / heavy[hundred] < 14  # claim 32: 1/x; some 80 to 130 of the draws are above 100
    assert each["E not negative"][hundred] == 0
    beyond = np.searchsorted(THRESHOLDS, largest_value)
    assert each["and F averages"][beyond] == 0  # stays in the values' range

# %% [markdown]
# So with $E$ of either sign, what was an average becomes a quotient of two random numbers. A *non-negative* $E$ keeps
# all similarities positive, and outputs are averages of the rows of $F V$. If $F$ averages too, as mean pooling does,
# they never leave the range of the values (grey line). That is linear attention over pooled keys, and it is harmless.
# A learned $E$, though, is of either sign unless it is constrained.
#
# ### And what would it be good for?
#
# Linformer's mixing turns $N L$ into $N R$. Linear attention has no such product left. We count
#
# $$\underbrace{L C M}_{S} + \underbrace{N C (M + 1)}_{\text{reading}} \quad\text{against}\quad
# \underbrace{R L (C + M)}_{\text{mixing}} + \underbrace{R C M}_{S} + \underbrace{N C (M + 1)}_{\text{reading}}$$
#
# Both are linear in the length. The reading is the same, so with $N = L$ at best half of the cost could be saved. And
# the mixing alone costs more than the $S$ it replaces, unless $R < C M / (C + M)$: 32 rows for $C = M = 64$, a handful
# for smaller heads. What is kept for the backward pass grows, by $E$, $F$ and the mixed rows. We count with 256 and
# 512 random tokens:

# %%
rows, L, width = [], 256, 16
for R in (1, 4, 8, 16, 64):
    costs = []
    for length in (L, 2 * L):
        tokens = np.random.default_rng(15).standard_normal((3, length, width))
        matrices = np.random.default_rng(16).standard_normal((2, R, length))
        ways = ((linear.forward, tokens), (linformer_linear.forward, (*tokens, *matrices)))
        alone, together = (count(forward, *arrays).multiply_adds for forward, arrays in ways)
        assert alone == length * width * width + length * width * (width + 1)
        assert together == R * length * 2 * width + R * width * width + length * width * (width + 1)
        kept = [kept_bytes(forward(*arrays)[1]) for forward, arrays in ways]
        costs.append((alone, together, *kept))
    assert costs[1][0] == 2 * costs[0][0]  # linear alone ...
    assert 1.8 < costs[1][1] / costs[0][1] <= 2  # ... and linear together: claim 32, no gain in the order
    assert (together < alone) == (R in (1, 4))  # below C M / (C + M) = 8
    assert together > alone / 2  # at best
    assert kept[1] > kept[0]  # claim 32: nor in space
    rows.append((R, *costs[0][:2], costs[0][1] / costs[0][0], *costs[0][2:]))
chapter.table(
    (
        f"R (N = L = {L}, C = M = {width})",
        "multiply-adds, linear",
        "together",
        "ratio",
        "bytes kept, linear",
        "together",
    ),
    rows,
)

# %% [markdown]
# The lecture's conclusion stands: there is no gain in the order of time or space, and there are new problems. In
# self-attention the possible gain is a factor below two, for a handful of mixed rows. Then the rank of $S$ is at most
# that handful.
#
# ## Exercises
#
# A sheet of homework goes further: `linattn-ref assignment linear --out DIR` (see [the course](README.md)).
#
# **1. A network that forgets.** Let $S_t = g_t S_{t-1} + \phi(k_t) v_t^\top$ with a *gate* $g_t \in (0, 1)$, a bias
# towards recent tokens. $S_t$ is no plain sum any more. What must a piece of the sequence report, so that pieces
# still combine associatively?
#
# <details><summary>Solution</summary>
#
# A piece $A$ turns any $S$ before it into $g_A S + S_A$: its gates multiply to $g_A$, and $S_A$ is what it leaves if it
# starts from 0. After $A$ comes $B$: $g_B (g_A S + S_A) + S_B = (g_B g_A)\, S + (g_B S_A + S_B)$. So
#
# $$(g_A, S_A) \oplus (g_B, S_B) = (g_B g_A,\; g_B S_A + S_B)$$
#
# the composition of affine maps, which is associative as any composition is (but not commutative: order counts now).
# The same trick would work for $S_t = G_t S_{t-1} + \dots$ with matrices $G_t$, at the price of sending a $C \times
# C$ matrix. With $\tanh$ around it a piece has no short description. That is why ordinary recurrent networks do not
# run in parallel.
#
# </details>


# %%
def combine_gated(first, second):
    (g_a, s_a), (g_b, s_b) = first, second
    return g_b * g_a, g_b * s_a + s_b


gate = np.linspace(0.5, 0.95, N)
by_page = gated_linear.forward(phi(q), phi(k), v, np.log(gate))[1].state.s


def gated_piece(start, stop):
    _, saved = gated_linear.forward(*(each[start:stop] for each in (phi(q), phi(k), v, np.log(gate))))
    return gate[start:stop].prod(), saved.state.s


a, b, c = gated_piece(0, 4), gated_piece(4, 5), gated_piece(5, N)
for combined in (combine_gated(combine_gated(a, b), c), combine_gated(a, combine_gated(b, c))):
    same(combined[0], gate.prod())
    same(combined[1], by_page)
assert abs(combine_gated(c, combine_gated(b, a))[1] - by_page).max() > 1  # not commutative
print("first row of the state, combined:", combined[1][0].round(4), " by the page:", by_page[0].round(4))
print("in the wrong order:", combine_gated(c, combine_gated(b, a))[1][0].round(4))

# %% [markdown]
# **2. Everybody but me.** A model that fills gaps lets token $i$ see all *other* tokens, before and after it. The
# obvious way is $S_N - \phi(k_i) v_i^\top$, and the same for $Z$. Why is that a bad idea in floating point, and how do
# we get all $N$ outputs in linear time without any subtraction?
#
# <details><summary>Solution</summary>
#
# If one key's features are much larger than all others', $S_N$ is about $\phi(k_i) v_i^\top$, and the difference is
# rounding. (Chapter 7 meets the same in the idea of rewinding the state.) Combine instead. Take the states of all
# prefixes in one pass from the left, those of all suffixes in one from the right, and then $\Sigma(1 \dots i{-}1)
# \oplus \Sigma(i{+}1 \dots N)$ for each $i$. In the cell *mat* is the loud key.
#
# </details>

# %%
loud, k_loud, v_32 = 6, k.astype(np.float32), v.astype(np.float32)
k_loud[loud] += 1e7  # the features of "mat" drown the others
each_token = prefix_states(k_loud, v_32, 1, elu_plus_one)
empty = linear.init_state((), D, M, dtype=np.float32)
prefixes = list(accumulate(each_token, linear.combine, initial=empty))[:-1]
suffixes = list(accumulate(reversed(each_token), linear.combine, initial=empty))[-2::-1]

phi_exact = phi(k_loud.astype(np.float64))
others, phi_q = np.arange(N) != loud, phi(q[loud])
truth = phi_q @ (phi_exact[others].T @ v_32[others]) / (phi_q @ phi_exact[others].sum(axis=0))
combined = linear.combine(prefixes[loud], suffixes[loud])
all_tokens = linear.summarise(k_loud, v_32)
subtracted = linear.State(all_tokens.s - each_token[loud].s, all_tokens.z - each_token[loud].z, None)
errors = []
for state in (combined, subtracted):
    phi_q = phi_q.astype(np.float32)
    errors.append(abs(phi_q @ state.s / (phi_q @ state.z) - truth).max())
assert errors[0] < 1e-5  # float32: some ten roundings of 6e-8 in numbers of size 1
assert errors[1] > 1e-2
chapter.table(("'mat' sees all others", "largest error, float32"), zip(("combined", "subtracted"), errors, strict=True))

# %% [markdown]
# **3. From which length on?** Take a model of 12 layers, width $E = 768$, 12 heads. From how many tokens on is the
# state of linear attention smaller than the key/value cache, for $\mathrm{elu} + 1$ and for the quadratic map? How do
# the number of layers, the batch and the precision enter?
#
# <details><summary>Solution</summary>
#
# Per head the cache has $t (D + M)$ numbers and the state $C (M + 1)$, so from $t > C (M + 1) / (D + M)$ on. Layers,
# heads, batch and bytes per number multiply both sides and cancel. With $D = M = 64$, $C = 64$ means $t > 32.5$, so
# 33 tokens. The quadratic map with $C = 1 + 64 + 64 \cdot 65 / 2 = 2145$ means $t > 1089.3$, so 1090 tokens.
#
# </details>


# %%
def cheaper_from(feature_map, heads=12, width=64):
    """The first length at which the cache's arrays are larger, found by making them."""
    state = linear.init_state((heads,), width, width, feature_map=feature_map, dtype=np.float32)
    held = kept_bytes(state)
    t = 1
    while kept_bytes(softmax.State(*np.zeros((2, heads, t, width), np.float32))) <= held:
        t += 1
    return t


assert cheaper_from(elu_plus_one) == 33
assert cheaper_from(feature_maps.quadratic()) == math.floor(2145 * 65 / 128) + 1 == 1090
print(f"elu + 1: the cache is larger from {cheaper_from(elu_plus_one)} tokens on; quadratic: from 1,090 on")

# %% [markdown]
# ## What to remember
#
# - Causal linear attention is a recurrent network whose state is *added to*: two sums per head, $2H$ hidden states
#   per layer, the same size and cost at every step.
# - Because addition is associative, the network also runs in parallel, by chunks, as a tree, and across machines that
#   exchange one state each. So does its gradient, whose adjoint state is the same kind of sum from the other end.
# - Softmax attention is the same network with infinitely many features. Its state, written finitely, is the cache.
#   A state of constant size is smaller from 33 tokens on, for heads of width 64 and as many features. It cannot keep
#   many more than $C$ things apart.
# - Writing remains a loop; linear attention makes each turn of it cheap, and equally cheap at every position.
# - Linformer has nothing to add to linear attention: there is no square left to remove, and with an $E$ of either
#   sign outputs are no longer averages.
#
# **Sources.** Katharopoulos et al. (2020), *Transformers are RNNs*. Merali (2020), *Linearizing Transformers* (the
# multi-head form and the last question). Blelloch (1990), *Prefix sums and their applications*. Schlag et al. (2021),
# *Linear transformers are secretly fast weight programmers* (what such a state can hold). Wang et al. (2020),
# *Linformer*.
