# %% [markdown]
# # 1. Softmax attention: what it computes, what it costs, and its gradient by hand
#
# What does softmax attention compute, why does its cost grow with the square of the length, and how does its
# gradient come out by hand?
#
# Every other mechanism in this course replaces softmax attention by something cheaper, so this is the yardstick.
# You need matrix products and the chain rule, nothing else. At the end you will have
#
# 1. the formula, in two forms that compute the same function: one that keeps an $N \times L$ matrix, one that does
#    not;
# 2. the backward pass, derived index by index and checked against finite differences;
# 3. the cost of both, counted while the code runs;
# 4. the key/value cache: softmax attention as a recurrent network whose state grows.
#
# The letters, throughout the course: $N$ queries and $L$ keys; a key has $D$ entries, a value $M$. So $Q$ is
# $(N, D)$, $K$ is $(L, D)$, $V$ is $(L, M)$ and the output $O$ is $(N, M)$. In front of these two axes there may be
# others, such as batch and heads: everything below then happens once for each of them.
#
# The course began with four lectures and notes on *Transformers are RNNs* and Linformer, and with a survey of linear
# transformers. [A table](README.md) lists these sources, what each claims and shows, and where it is checked. A comment
# such as `# claim 13` in a cell names the line of that table that the assertion next to it checks. Each
# cell shows what it found, and asserts what the text says of it. A cell whose assertion fails stops the chapter.

# %% jupyter={"source_hidden": true}
import math
from functools import partial

import numpy as np

from linattn_ref import gradcheck
from linattn_ref.attention import online_softmax, softmax
from linattn_ref.attention.parts import masks
from linattn_ref.data.twelve_words import WORDS, vectors
from linattn_ref.experiments.cost import attention_cost
from linattn_ref.experiments.measuring.counting import count, kept_bytes
from linattn_ref.experiments.measuring.scaling import growth_exponent
from linattn_ref.experiments.publishing import chapter
from linattn_ref.kernels import jit

# Numbers of size 1 that have gone through some hundred roundings of 2.2e-16 each agree to this.
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-13)


def draw_inputs(seed, n, n_keys, d, m, dtype=np.float64):
    """q, k, v and a gradient of the output, with independent normal entries."""
    rng = np.random.default_rng(seed)
    shapes = ((n, d), (n_keys, d), (n_keys, m), (n, m))
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


# %% [markdown]
# ## The smallest example, by hand
#
# Take one query, $q = 1$, and two keys, 0 and $\log 3$, so that everything has width 1. The scores are the products, 0
# and $\log 3$. Their exponentials are 1 and 3, which sum to 4, so the weights are $\frac14$ and $\frac34$. With the
# values 8 and 4 the output is
#
# $$\tfrac14 \cdot 8 + \tfrac34 \cdot 4 = 2 + 3 = 5$$
#
# Now let the loss be the output itself. A value counts as much as its weight, so the gradients of the values are
# $\frac14$ and $\frac34$. A score moves weight towards its own value and away from the average: weight times (value
# minus output) is $\frac14 (8 - 5) = \frac34$ for the first and $\frac34 (4 - 5) = -\frac34$ for the second. The key
# gets that times the query, so the gradients of the keys are $\frac34$ and $-\frac34$. The query gets it times the key,
# summed over both keys: $-\frac34 \log 3 = -0.824$. The page returns the same numbers. (A *page* is a file of the
# package that holds one mechanism.)

# %%
one_query, two_keys, two_values = np.ones((1, 1)), np.array([[0.0], [math.log(3)]]), np.array([[8.0], [4.0]])
small_out, small_saved = softmax.forward(one_query, two_keys, two_values)
small = softmax.backward(np.ones((1, 1)), small_saved)
print("weights:", softmax.matrix(one_query, two_keys).ravel().round(4), " output:", small_out.ravel().round(4))
print("gradients of q, k and v:", *(gradient.ravel().round(4) for gradient in small))
same(small_out, 5)
same(small.v.ravel(), [1 / 4, 3 / 4])
same(small.k.ravel(), [3 / 4, -3 / 4])
same(small.q, -3 / 4 * math.log(3))

# %% [markdown]
# ## The formula
#
# ![Softmax attention, drawn](../figures/schematic_softmax.svg)
#
# Token $i$ asks with its query $q_i$. Token $j$ offers a key $k_j$ to be found by and a value $v_j$ to be read. The
# *score* of the pair is a scaled inner product. The scores of one query are turned into weights that sum to 1. The
# output is the average of the values with these weights:
#
# $$A = s\, Q K^\top, \qquad s = \frac{1}{\sqrt D} \qquad (1)$$
#
# $$P_{ij} = \frac{e^{A_{ij}}}{\sum_l e^{A_{il}}} \qquad (2)$$
#
# $$O = P V \qquad (3)$$
#
# $P$ is called the *context mapping matrix*. The numbers (1) to (8) are those of the docstrings, and each stands on
# the line of code that computes it. Here is the package's own source, read from the files when this cell ran. (`shown`
# sets masked rows to 0, and `mix` is `@`; `state` and `earlier` belong to the last section.)

# %%
chapter.source(softmax.forward, softmax.softmax, masks.visible, doc=False)

# %% [markdown]
# Put (2) into (3) and write $\mathrm{sim}(q, k) = e^{q^\top k / \sqrt D}$ for the weight before it is normalised:
#
# $$o_i = \frac{\sum_j \mathrm{sim}(q_i, k_j)\, v_j}{\sum_j \mathrm{sim}(q_i, k_j)}$$
#
# This is the form that linear attention starts from, with another $\mathrm{sim}$ (Katharopoulos et al. 2020, equation
# 3). Two loops over it make a check that shares nothing with the code above.
#
# One sentence goes through the chapter: *the cat sat on the old mat and the dog slept too*. Its numbers are made up by
# hand. The four entries of a key say what a word is: a thing, something done, a place, or a small word. Those of a
# query say what the word looks for. The three entries of a value say who, what is done, and where. Take the first seven
# words as keys, and let the last five of them ask:

# %%
all_q, all_k, all_v = vectors()
q, k, v = all_q[2:7], all_k[:7], all_v[:7]
(N, D), (L, M) = q.shape, v.shape
d_out = np.random.default_rng(0).standard_normal((N, M))  # the gradient of some loss, for later
out, saved = softmax.forward(q, k, v)
chapter.table(
    ("word", "query", "key", "value"),
    [(WORDS[j], *(" ".join(f"{x:.1f}" for x in each[j]) for each in (all_q, k, v))) for j in range(L)],
)

by_loops = np.zeros((N, M))
for i in range(N):
    sim = [math.exp(q[i] @ k[j] / math.sqrt(D)) for j in range(L)]
    for j in range(L):
        by_loops[i] += sim[j] * v[j] / sum(sim)
same(out, by_loops)  # claim 13
print(f"the output of {WORDS[2]!r}, by loops:", by_loops[0].round(4), " by the page:", out[0].round(4))

# %% [markdown]
# Four facts about the formula that come up again and again:
#
# - the rows of $P$ are positive and sum to 1, so **an output is an average of values**: it never leaves their
#   range;
# - **only differences of scores count**: $e^{A_{ij} + c_i} = e^{c_i} e^{A_{ij}}$, and $e^{c_i}$ cancels in (2);
# - **the order of the keys does not matter**: (2) and (3) are sums over $j$. What a model knows about positions must
#   come from somewhere else;
# - a query of zeros attends to all keys alike.
#
# The cell shows the weights of *sat*. It looks for a thing that can sit, and over half of its weight is on *cat*.

# %%
P = softmax.matrix(q, k)
assert (P > 0).all()
same(P.sum(axis=1), np.ones(N))
assert (out >= v.min(axis=0)).all()
assert (out <= v.max(axis=0)).all()

a_constant = np.array([1.0, -2.0, 0.5, 3.0])  # added to every key, it adds q_i . a_constant to all scores of row i
same(softmax.matrix(q, k + a_constant), P)

order = np.random.default_rng(1).permutation(L)
same(softmax.forward(q, k[order], v[order])[0], out)

same(softmax.matrix(np.zeros((1, D)), k), np.full((1, L), 1 / L))
assert WORDS[P[0].argmax()] == "cat"
assert P[0].max() > 0.5
print("words:                             ", " ".join(f"{word:>5}" for word in WORDS[:L]))
print("weights of 'sat':                  ", P[0].round(3), " sum:", P[0].sum().round(3))
print("with a constant added to all keys: ", softmax.matrix(q, k + a_constant)[0].round(3))
print("of a query of zeros:               ", softmax.matrix(np.zeros((1, D)), k)[0].round(3))

# %% [markdown]
# ### Why divide by $\sqrt D$?
#
# Let the entries of $q$ and $k$ be independent with mean 0 and variance 1. Then $q^\top k = \sum_d q_d k_d$ is a sum
# of $D$ independent terms, each with mean 0 and variance $\mathbb E[q_d^2]\, \mathbb E[k_d^2] = 1$. Its variance is
# $D$, and its typical size is $\sqrt D$. Without the scale, a wide head has scores that lie far apart, and nearly all
# the weight falls on one key. With it the spread is 1 whatever $D$ is. We will see below that a row of $P$ with all its
# weight in one place also passes no gradient on to its scores. The table is for 256 queries and 256 keys.

# %%
rows = []
for D_wide in (16, 64, 256, 1024):
    q_wide, k_wide, _, _ = draw_inputs(2, 256, 256, D_wide, 1)
    spread = (q_wide @ k_wide.T).std()
    largest = [softmax.matrix(q_wide, k_wide, scale=s).max(axis=1).mean() for s in (1.0, None)]
    rows.append((D_wide, math.sqrt(D_wide), spread, *largest))
    assert abs(spread / math.sqrt(D_wide) - 1) < 0.05  # 256 rows and columns: a sampling error of about 1 %
unscaled, scaled = np.array(rows)[:, 3:].T
assert (np.diff(unscaled) > 0).all()
assert unscaled[-1] > 0.9
assert scaled.max() < 0.1
chapter.table(("D", "sqrt(D)", "spread of q·k", "mean largest weight, scale 1", "mean largest weight, 1/sqrt(D)"), rows)

# %% [markdown]
# ### Who may look at whom
#
# A language model must not see the future: with `causal=True`, query $i$ sees keys $j \le i + (L - N)$. The two
# sequences are aligned at their *ends*, so that a few new queries see all of an older cache. `key_mask` marks the
# keys that exist, where a batch holds sequences of different lengths. Both set scores to $-\infty$, so the weight is
# exactly 0:

# %%
P_causal = softmax.matrix(q, k, causal=True)
assert (P_causal[np.triu_indices(N, k=L - N + 1, m=L)] == 0).all()  # row i: nothing after column i + (L - N)
same(P_causal[-1], P[-1])  # the last query sees every key

exists = np.array([True, True, True, True, True, False, False])
padded, _ = softmax.forward(q, k, v, key_mask=exists)
truncated, _ = softmax.forward(q, k[:5], v[:5])
same(padded, truncated)
print(
    "five words ask seven, causal:", *(f"{p.round(2)} {w}" for w, p in zip(WORDS[2:7], P_causal, strict=True)), sep="\n"
)

# %% [markdown]
# ## Three numerical traps
#
# **Overflow.** The largest float32 is $3.4 \cdot 10^{38} = e^{88.7}$. A score of 100 overflows, and $\infty/\infty$
# is not a number. The cure follows from "only differences count": subtract the row's maximum first. The largest term
# is then $e^0 = 1$, and compared with it whatever underflows to 0 is too small to matter.

# %%
scores = np.array([[100.0, 99.0, 0.0]], np.float32)
with np.errstate(over="ignore", invalid="ignore"):
    naive = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
assert np.isnan(naive[0, :2]).all()
assert abs(math.log(np.finfo(np.float32).max) - 88.7) < 0.05

one, column = np.ones((1, 1), np.float32), scores.T.copy()  # q and k with exactly these scores
safe = softmax.matrix(one, column, scale=1.0)
np.testing.assert_allclose(safe[0, :2], [1 / (1 + math.exp(-1)), 1 / (1 + math.e)], rtol=4 * np.finfo(np.float32).eps)
assert safe.dtype == np.float32
print("without the maximum:", naive[0], "  with it:", safe[0])

# %% [markdown]
# **A large negative number is not minus infinity.** A widespread way to mask is to add $-10^9$ to the scores. It
# works as long as some key of the row is left. In a row where *every* key is masked the $-10^9$ is common to all,
# cancels, and the query attends to the padding. In float32 the scores are lost as well: around $10^9$, neighbouring
# floats are 64 apart.
#
# **A row that sees nothing.** With $-\infty$ the maximum of such a row is $-\infty$ too, and $-\infty - (-\infty)$ is
# not a number. One such row in a batch turns the whole loss into NaN. What *should* such a row return? A sum over no
# keys is 0. So the row of $P$, the output and all gradients through it are exactly 0. This rule holds in the whole
# package. In `softmax` above it takes two precautions: a maximum of $-\infty$ is replaced by the lowest finite number,
# and `divide` returns 0 where the sum is 0.

# %%
assert np.spacing(np.float32(1e9)) == 64
masked = np.float32(-1e9) + np.array([[3.0, -2.0, 1.0]], np.float32)
exp = np.exp(masked - masked.max())
same(exp / exp.sum(), np.full((1, 3), 1 / 3, np.float32), atol=1e-7)  # attends to padding, and the scores are gone

with np.errstate(invalid="ignore"):
    minus_infinity = np.full((1, 3), -np.inf)
    assert np.isnan(minus_infinity - minus_infinity.max()).all()

nothing = np.zeros(L, np.bool_)
for page in (softmax, online_softmax):
    blind, blind_saved = page.forward(q, k, v, key_mask=nothing)
    assert (blind == 0).all()
    assert all((gradient == 0).all() for gradient in page.backward(d_out, blind_saved))
print("-1e9 on every key, weights:", (exp / exp.sum())[0].round(3), " minus infinity on every key, output:", blind[0])

# %% [markdown]
# ## Temperature
#
# Dividing the scores by a *temperature* $T$ moves the weights between two extremes: all on the best key ($T \to 0$),
# and all alike ($T \to \infty$). The entropy $H = -\sum_j p_j \log p_j$ of a row says where in between it lies: 0 for
# one key, $\log L$ if all are alike.
#
# The entropy never falls as $T$ grows. Write $\beta = 1/T$ and $Z = \sum_j e^{\beta a_j}$, so that $p_j = e^{\beta a_j}
# / Z$ and $\log p_j = \beta a_j - \log Z$. Then
#
# $$H = -\sum_j p_j (\beta a_j - \log Z) = \log Z - \beta\, \mathbb E_p[a]$$
#
# Differentiate. The first term gives $\frac{d \log Z}{d\beta} = \frac1Z \sum_j a_j e^{\beta a_j} = \mathbb E_p[a]$.
# For the second, $\frac{d p_j}{d\beta} = p_j (a_j - \mathbb E_p[a])$, so
# $\frac{d}{d\beta} \mathbb E_p[a] = \sum_j p_j a_j (a_j - \mathbb E_p[a]) = \mathrm{Var}_p(a)$. Together
#
# $$\frac{dH}{d\beta} = \mathbb E_p[a] - \mathbb E_p[a] - \beta\, \mathrm{Var}_p(a) = -\beta\, \mathrm{Var}_p(a) \le 0$$
#
# The scale $1/\sqrt D$ is such a temperature: $T = \sqrt D$ for plain inner products. The next cell compares the
# derivative with a difference quotient, and checks both extremes.


# %%
def entropy(p):
    """Of each row, in nats."""
    return -(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1)


tokens = len(WORDS)


def weights_at(temperature):
    return softmax.matrix(all_q, all_k, scale=1 / (temperature * math.sqrt(D)))


beta, h = 0.7, 1e-5  # the derivative of the entropy, against a central difference in beta
p, a = weights_at(1 / beta), all_q @ all_k.T / math.sqrt(D)
variance = (p * a**2).sum(axis=1) - (p * a).sum(axis=1) ** 2
difference = (entropy(weights_at(1 / (beta + h))) - entropy(weights_at(1 / (beta - h)))) / (2 * h)
np.testing.assert_allclose(difference, -beta * variance, rtol=1e-6, atol=1e-9)  # error of the difference: about h^2

temperatures = np.geomspace(1e-4, 100, 61)
entropies = np.array([entropy(weights_at(t)) for t in temperatures])  # (61, N)
assert (np.diff(entropies, axis=0) > -1e-12).all()  # rises with T in every row
same(entropies[0], np.zeros(tokens), atol=1e-3)
same(entropies[-1], np.full(tokens, math.log(tokens)), atol=1e-3)
print(f"dH/dbeta of the first row, by a difference: {difference[0]:.6f}, -beta Var: {-beta * variance[0]:.6f}")
print(f"mean entropy at T = 1e-4: {entropies[0].mean():.3f}, at T = 100: {entropies[-1].mean():.3f}")

# %% [markdown]
# All twelve words of the sentence are shown at five temperatures, from weight 0 (dark) to 1 (yellow), with the mean
# entropy of the rows; the maximum is $\log 12 = 2.48$. In a running notebook the cell also shows a slider.


# %%
def panel(axes, temperature):
    p = weights_at(temperature)
    axes.imshow(p, vmin=0, vmax=1, aspect="equal")
    axes.grid(False)
    axes.set(xlabel=f"entropy {entropy(p).mean():.2f}", yticks=range(tokens), yticklabels=WORDS)
    axes.set_xticks(range(tokens), WORDS, rotation=90)
    axes.tick_params(labelsize=6, length=0)
    axes.label_outer()


chapter.explore(
    panel,
    (0.1, 0.3, 1, 3, 10),
    name="temperature T",
    slider=[float(f"{t:.2g}") for t in np.geomspace(0.05, 20, 27)],
    height=0.3,
    sharey=True,
    alt="Heat maps of 12 words by 12 words: one or two bright entries per row at T = 0.1, an even dark field at T = 10",
)

# %% [markdown]
# ## The gradient, by hand
#
# Let $\ell$ be a number computed from $O$, the loss. For any array $X$ write $dX$ for the array of the same shape
# with entries $dX_{ij} = \partial \ell / \partial X_{ij}$. We are given $dO$ and want $dQ$, $dK$ and $dV$. The chain
# rule says: to get $dX$, go through everything that uses $X$, and sum *gradient of the result × derivative of the
# result by $X$*.
#
# ### Step 1: through $O = PV$
#
# In indices, $O_{im} = \sum_j P_{ij} V_{jm}$. The entry $V_{jm}$ occurs in $O_{im}$ for every $i$, with the factor
# $P_{ij}$:
#
# $$dV_{jm} = \sum_i dO_{im} \frac{\partial O_{im}}{\partial V_{jm}} = \sum_i P_{ij}\, dO_{im}
# \quad\Longrightarrow\quad dV = P^\top dO \qquad (4)$$
#
# The entry $P_{ij}$ occurs in $O_{im}$ for every $m$, with the factor $V_{jm}$:
#
# $$dP_{ij} = \sum_m dO_{im} \frac{\partial O_{im}}{\partial P_{ij}} = \sum_m dO_{im} V_{jm}
# \quad\Longrightarrow\quad dP = dO\, V^\top \qquad (5)$$
#
# ### Step 2: through the softmax
#
# Rows do not mix, so take one row: scores $a_1 \dots a_L$, weights $p_j = e^{a_j} / Z$ with $Z = \sum_l e^{a_l}$.
# Every $p_j$ depends on every $a_l$, through $Z$. Since $\partial Z / \partial a_l = e^{a_l}$, the quotient rule
# gives
#
# - for $j = l$:
#   $\displaystyle \frac{\partial p_j}{\partial a_j} = \frac{e^{a_j} Z - e^{a_j} e^{a_j}}{Z^2} = p_j - p_j^2$,
# - for $j \ne l$:
#   $\displaystyle \frac{\partial p_j}{\partial a_l} = \frac{0 \cdot Z - e^{a_j} e^{a_l}}{Z^2} = -p_j p_l$.
#
# With $\delta_{jl} = 1$ if $j = l$ and 0 otherwise, both are one formula, the Jacobian of the softmax:
#
# $$J_{jl} = \frac{\partial p_j}{\partial a_l} = p_j (\delta_{jl} - p_l), \qquad J = \mathrm{diag}(p) - p p^\top$$
#
# Three things can be read off it. It is symmetric. Its rows sum to $p_j - p_j \sum_l p_l = 0$: a constant added to
# all scores changes nothing. Finally, $x^\top J x = \sum_j p_j x_j^2 - (\sum_j p_j x_j)^2 = \mathrm{Var}_p(x) \ge 0$.
# Where $p$ has all its weight on one key, $J = 0$ and no gradient reaches the scores.
#
# The chain rule now sums over $j$, and $\delta_{jl}$ picks one term of the sum:
#
# $$da_l = \sum_j dp_j\, p_j (\delta_{jl} - p_l) = dp_l\, p_l - p_l \sum_j dp_j\, p_j
# = p_l \Big(dp_l - \sum_j dp_j\, p_j\Big)$$
#
# For all rows at once, with $*$ the product entry by entry:
#
# $$dA = P * \big(dP - \mathrm{rowsum}(dP * P)\big) \qquad (6)$$
#
# The Jacobian has $L^2$ entries per row, but (6) needs only $O(L)$ work per row, so the Jacobian is never formed.
#
# ### Step 3: through $A = s\,QK^\top$
#
# $A_{ij} = s \sum_d Q_{id} K_{jd}$. The entry $Q_{id}$ occurs in row $i$ of $A$, for every $j$, with the factor $s
# K_{jd}$. The entry $K_{jd}$ occurs in column $j$, for every $i$, with the factor $s Q_{id}$:
#
# $$dQ_{id} = \sum_j dA_{ij}\, s K_{jd} \quad\Longrightarrow\quad dQ = s\, dA\, K \qquad (7)$$
#
# $$dK_{jd} = \sum_i dA_{ij}\, s Q_{id} \quad\Longrightarrow\quad dK = s\, dA^\top Q \qquad (8)$$
#
# Here are the five equations in code. (`np.where` leaves out pairs of weight 0, whose scores get no gradient.)

# %%
chapter.source(softmax.backward, doc=False)

# %% [markdown]
# The first check compares the Jacobian in full with what (6) does with it.

# %%
gradients = softmax.backward(d_out, saved)
d_P = d_out @ v.T  # (5)
for i in range(N):
    p = P[i]
    J = np.diag(p) - np.outer(p, p)
    same(J, J.T)
    same(J.sum(axis=1), np.zeros(L))
    assert np.linalg.eigvalsh(J).min() > -1e-15  # a variance is not negative; the zero eigenvalue is rounded
    same(J @ d_P[i], p * (d_P[i] - (d_P[i] * p).sum()))  # (6)

# As a constant added to all keys changes no output, no gradient points that way: the gradients of the keys sum to 0.
same(gradients.k.sum(axis=0), np.zeros(D))
print("scores' gradient, last query, by the Jacobian:", (J @ d_P[-1]).round(3))
print("                                       by (6):", (p * (d_P[-1] - (d_P[-1] * p).sum())).round(3))
print("sum of the keys' gradients, at most:", f"{abs(gradients.k.sum(axis=0)).max():.0e}")

# %% [markdown]
# The second check, **finite differences**, is independent of all the algebra. Move one entry of one input by $\pm h$
# and see how the loss changes,
#
# $$\frac{\partial \ell}{\partial x} = \frac{\ell(x + h) - \ell(x - h)}{2h} + O(h^2)$$
#
# `linattn_ref.gradcheck` does this for every entry of every input, with a random $dO$, and reports the entry of each
# input that is off by the most. In float64 with $h \approx 10^{-5}$, about ten decimals agree. The complex step
# needs no difference at all, $\partial f / \partial x = \mathrm{Im} f(x + i h) / h + O(h^2)$ with $h = 10^{-30}$:
# nothing cancels, so all digits agree. It needs a formula that takes complex numbers, which the package's functions
# refuse, so we write (1)-(3) once more.


# %%
def formula(q, k, v):
    exp = np.exp(q @ k.T / math.sqrt(q.shape[-1]))  # no maximum: it is not analytic, and scores here are small
    return exp / exp.sum(axis=1, keepdims=True) @ v


report = gradcheck.check_elementwise(softmax.forward, softmax.backward, q, k, v, rng=np.random.default_rng(4))
print(report)
report.assert_ok()

exact = gradcheck.check_complex_step(formula, softmax.forward, softmax.backward, q, k, v, rng=np.random.default_rng(5))
print(exact)
exact.assert_ok()
assert exact.worst.absolute < 1e-13

# %% [markdown]
# A check that cannot fail is worth nothing. Forget the row sum in (6), the most common mistake, and look at the
# report:


# %%
def forgetful_backward(d_out, saved):
    q, k, v, p, scale, *_ = saved
    d_scores = p * (d_out @ v.T)  # where is the row sum?
    return softmax.Gradients(scale * d_scores @ k, scale * d_scores.T @ q, p.T @ d_out)


report = gradcheck.check_elementwise(softmax.forward, forgetful_backward, q, k, v, rng=np.random.default_rng(4))
print(report)
assert not report.ok
wrong = {entry.name for entry in report.worst_by_input if entry.excess > 1}
assert wrong == {"q", "k"}  # the gradient of v does not go through (6)

# %% [markdown]
# ## What it costs
#
# A product of an $(N, D)$ with a $(D, L)$ matrix takes $N D L$ multiply-adds. Forward, (1) is one such product and
# (3) takes $N L M$: together $N L (D + M)$. Backward, (4) and (5) take $N L M$ each, (7) and (8) $N L D$ each:
# twice as much again. With $N = L$ both passes take $O(N^2 \max(D, M))$. The memory is $O(N^2)$, as $P$ has to be kept
# for (4) and (6) (Katharopoulos et al. 2020, section 3.2.1, for time; section 3.2 for memory).
#
# The package need not be trusted on this: `count` runs a function on arrays that count the operations done with them.
# For 5 queries, 7 keys and widths 4 and 3 we expect $5 \cdot 7 \cdot 7 = 245$ forward and 490 backward.

# %%
forward_cost = count(softmax.forward, q, k, v).multiply_adds
backward_cost = count(lambda d_out: softmax.backward(d_out, saved), d_out).multiply_adds
assert forward_cost == N * L * (D + M)  # claim 1, time
assert backward_cost == 2 * N * L * (D + M)
assert kept_bytes(saved) == (N * D + L * D + L * M + N * L) * 8  # claim 1, space: q, k, v and P, in float64
print(f"multiply-adds: {forward_cost} forward, {backward_cost} backward; kept {kept_bytes(saved)} bytes")

# %% [markdown]
# To get a feel for the size: at $N = 4096$ in float32, one head of width 64 keeps 64 MiB of $P$, and BERT-base has 144
# heads.

# %%
heads, length = 12 * 12, 4096
assert length**2 * 4 == 64 * 2**20
print(f"{heads} heads, {length} tokens: {heads * length**2 * 4 / 2**30:.0f} GiB of P for one sequence")

# %% [markdown]
# ## The same function without the matrix
#
# To compute one output row we need all its weights, but not all at once. Read the keys tile by tile and carry, for
# each query, three things about the set $T$ of keys seen so far ($T$ is no temperature here):
#
# $$m_T = \max_{j \in T} a_j, \qquad s_T = \sum_{j \in T} e^{a_j - m_T}, \qquad
# o_T = \sum_{j \in T} e^{a_j - m_T}\, v_j$$
#
# At the end $o_T / s_T$ is the output: $e^{-m_T}$ cancels. Now let a tile $U$ of new keys come in, and let
# $m' = \max(m_T, \max_{j \in U} a_j)$. We want the same sums over $T \cup U$, relative to $m'$. For the old keys
#
# $$\sum_{j \in T} e^{a_j - m'} = \sum_{j \in T} e^{a_j - m_T}\, e^{m_T - m'} = e^{m_T - m'} s_T$$
#
# and in the same way for $o_T$. One common factor corrects all old terms at once, however many there are, and without
# looking at them again:
#
# $$s_{T \cup U} = e^{m_T - m'} s_T + \sum_{j \in U} e^{a_j - m'}, \qquad
# o_{T \cup U} = e^{m_T - m'} o_T + \sum_{j \in U} e^{a_j - m'} v_j$$
#
# Nothing was approximated: rescaling is exact, and by induction over the tiles so is the result. In floating point
# each tile adds a few roundings. As the factor is at most 1 and the terms of $s$ are all positive, none of them is
# ever magnified.
#
# Here is one row of seven keys in tiles of three, step by step:

# %%
a, rows = (q @ k.T / math.sqrt(D))[0], []
m, s, o = -math.inf, 0.0, np.zeros(M)
for start in range(0, L, 3):
    tile = slice(start, start + 3)
    new_m = max(m, a[tile].max())
    decay, weights = math.exp(m - new_m), np.exp(a[tile] - new_m)  # exp(-inf) = 0 for the first tile
    m, s, o = new_m, decay * s + weights.sum(), decay * o + weights @ v[tile]
    rows.append((", ".join(f"{x:.2f}" for x in a[tile]), m, decay, s, *o))
same(o / s, out[0])
assert m == a.max()
chapter.table(("scores of the tile", "m", "decay", "s", "o (1)", "o (2)", "o (3)"), rows)

# %% [markdown]
# The package's second page, `online_softmax`, does this for all queries at once. After the last tile it keeps two
# numbers per row, $m_i$ and $s_i$. Together they determine the log-sum-exp $\lambda_i = \log \sum_l e^{A_{il}} = m_i +
# \log s_i$. (Its equations have their own numbers, in its docstring.)

# %%
chapter.source(online_softmax.forward, online_softmax.tile_of_scores, doc=False)

# %% [markdown]
# ### Backward, without the matrix either
#
# Equations (4) to (8) use $P$ and the row sum $\mathrm{rowsum}(dP * P)$. Neither has to be stored.
#
# *The weights come back from one number per row:* $e^{A_{ij} - \lambda_i} = e^{A_{ij}} / \sum_l e^{A_{il}} = P_{ij}$.
# So (1) is computed again, tile by tile. (In floating point $e^{A_{ij} - m_i} / s_i$ is the better form: with large
# scores $\lambda_i$ itself is rounded.)
#
# *The row sum runs over all keys,* so a single tile does not know it. But put (5) into it and exchange the two
# sums:
#
# $$\sum_j dP_{ij} P_{ij} = \sum_j \Big(\sum_m dO_{im} V_{jm}\Big) P_{ij}
# = \sum_m dO_{im} \sum_j P_{ij} V_{jm} = \sum_m dO_{im}\, O_{im}$$
#
# The right side needs only the output, $\mathrm{rowsum}(dP * P) = \mathrm{rowsum}(dO * O)$, so it is known before the
# first tile.

# %%
same((d_P * P).sum(axis=1), (d_out * out).sum(axis=1))

online_out, online_saved = online_softmax.forward(q, k, v)
scores = q @ k.T / math.sqrt(D)
same(np.exp(scores - online_saved.lse), P)

chapter.source(online_softmax.backward, doc=False)

# %% [markdown]
# What is kept between the passes is `Saved`: the inputs, the output, $m$ and $s$.

# %%
chapter.source(online_softmax.Saved, doc=False)
assert kept_bytes(online_saved) == (N * D + L * D + L * M + N * M + 2 * N) * 8  # no N L in it

# %% [markdown]
# Both forms are the same function, with the same gradients. We check this here with three tiles of keys, the last one
# ragged, with two axes in front, and with both masks. The gradient is checked against finite differences once more, now
# in random directions $w$, as the arrays are larger. With $J$ the derivative of the output by the input, $\langle dO, J
# w \rangle = \langle J^\top dO, w \rangle$.

# %%
rng = np.random.default_rng(6)
big_n, big_l = 200, 2 * online_softmax.TILE + 37
big_q, big_k, big_v, big_d_out = (
    rng.standard_normal((2, 3, *shape)) for shape in ((big_n, 16), (big_l, 16), (big_l, 8), (big_n, 8))
)
options = {"causal": True, "key_mask": rng.random((2, 3, big_l)) < 0.8}

dense_out, dense_saved = softmax.forward(big_q, big_k, big_v, **options)
online_out, online_saved = online_softmax.forward(big_q, big_k, big_v, **options)
same(online_out, dense_out)
for online, dense in zip(
    online_softmax.backward(big_d_out, online_saved), softmax.backward(big_d_out, dense_saved), strict=True
):
    same(online, dense)

forward = partial(online_softmax.forward, **options)
report = gradcheck.check_directions(forward, online_softmax.backward, big_q, big_k, big_v, rng=np.random.default_rng(7))
print(report)
report.assert_ok()

# %% [markdown]
# ### Counted and measured
#
# On the left are the multiply-adds. Both forms grow with the square. The online one computes (1) twice, so it takes
# $3NL(D + M) + NLD$ in all instead of $3NL(D + M)$. In the middle are the bytes that the forward pass keeps beyond its
# inputs: $NL$ numbers against $N(M + 2)$. On the right is the most memory in use at any time during the two passes.
# Points are counted or measured, and lines are the formulas. On these logarithmic axes, a slope of 2 is growth with the
# square.

# %%
cost = attention_cost.compute(rng=np.random.default_rng(8))  # one head, D = M = 64, float32
chapter.show(
    attention_cost.draw,
    cost,
    alt="Multiply-adds grow with slope 2 in both forms; bytes with slope 2 in the dense, slope 1 in the online form",
)
for form in (cost.dense, cost.online):
    assert (form.multiply_adds == form.multiply_adds_formula).all()
    assert (form.kept == form.kept_formula).all()
slope = partial(growth_exponent, cost.lengths)
assert slope(cost.dense.multiply_adds) == slope(cost.online.multiply_adds) == 2
assert slope(cost.dense.kept) == 2
assert slope(cost.online.kept) == 1
assert 1.9 < slope(cost.dense.peak) < 2.1  # beside the square there is a linear part
assert 0.95 < slope(cost.online.peak) < 1.05

# %%
last = -1  # the longest
chapter.table(
    (f"N = L = {cost.lengths[last]}", "dense", "online", "ratio"),
    [
        (name, getattr(cost.dense, field)[last], getattr(cost.online, field)[last], ratio)
        for name, field in (("multiply-adds", "multiply_adds"), ("bytes kept", "kept"), ("bytes at the peak", "peak"))
        for ratio in [getattr(cost.online, field)[last] / getattr(cost.dense, field)[last]]
    ],
)
assert cost.online.multiply_adds[last] * 6 == cost.dense.multiply_adds[last] * 7  # (3 (D + M) + D) / (3 (D + M)), D = M

# %% [markdown]
# A sixth more arithmetic, and the memory of the square is gone. The *time* of the square remains, and the other
# chapters are about that.
#
# Is the online form less accurate? Compare both, in float32, with the dense form in float64:

# %%
inputs = draw_inputs(9, 512, 1000, 64, 64)
truth, _ = softmax.forward(*inputs[:3])
short = [x.astype(np.float32) for x in inputs[:3]]
dense_32, online_32 = softmax.forward(*short)[0], online_softmax.forward(*short)[0]
assert dense_32.dtype == online_32.dtype == np.float32
errors = [float(abs(x - truth).max()) for x in (dense_32, online_32)]
assert max(errors) < 16 * np.finfo(np.float32).eps  # a few roundings of numbers of size 1, most of them in the scores
chapter.table(("float32", "largest error"), zip(("dense", "online"), errors, strict=True))

# %% [markdown]
# ### Compiled
#
# The package has the online form once more, compiled by Numba, with tiles that fit a processor's registers.
# `softmax.forward` runs it for a caller who passes `kernels=jit`. The numbers are the same, to the rounding of sums
# taken in another order and of another $\exp$:

# %%
for dtype in (np.float64, np.float32):
    arrays = [x.astype(dtype) for x in (big_q, big_k, big_v, big_d_out)]
    results = []
    for page, kernels in ((online_softmax, {}), (softmax, {"kernels": jit})):
        page_out, page_saved = page.forward(*arrays[:3], **options, **kernels)
        results.append((page_out, *page.backward(arrays[3], page_saved)))
    for name, by_numpy, by_numba in zip(("out", "q", "k", "v"), *results, strict=True):
        assert by_numba.dtype == dtype
        same(by_numba, by_numpy, atol=64 * np.finfo(dtype).eps, err_msg=name)  # numbers of size 1
    apart = max(abs(a - b).max() for a, b in zip(*results, strict=True))
    print(f"{np.dtype(dtype).name}: output and gradients differ by {apart / np.finfo(dtype).eps:.0f} eps at most")

# %% [markdown]
# ## The key/value cache: a recurrent network whose state grows
#
# A language model writes one token at a time. Query $t$ needs the keys and values of all tokens up to $t$. They have
# been computed before, so keep them. With the *state* $S_t = (k_1 \dots k_t,\; v_1 \dots v_t)$ softmax attention is a
# recurrent network,
#
# $$S_t = \mathrm{append}(S_{t-1}, k_t, v_t), \qquad o_t = \mathrm{softmax}(s\, q_t K_t^\top)\, V_t$$
#
# Katharopoulos et al. (2020, appendix C.1) call it *stateful softmax*. Unlike the state of an ordinary recurrent
# network, this one grows, by $D + M$ numbers per token. So does the work of a step.

# %%
chapter.source(softmax.State, softmax.append, doc=False)

# %% [markdown]
# A step, `softmax.step`, is the forward pass (1)-(3) for one query, over the keys of the state and its own. Word by
# word, the outputs are those of one causal pass. They are the same again if the first seven words come as a prompt, in
# one pass (*prefill*), and the other five step by step.

# %%
T = len(WORDS)
one_pass, _ = softmax.forward(all_q, all_k, all_v, causal=True)

state, total = softmax.init_state((), D, M), 0
for t in range(T):
    work = count(partial(softmax.step, state=state), all_q[t], all_k[t], all_v[t]).multiply_adds
    assert work == (t + 1) * (D + M)  # O(t): a step looks at everything before it
    total += work
    row, state = softmax.step(all_q[t], all_k[t], all_v[t], state)
    same(row, one_pass[t])
assert total == T * (T + 1) // 2 * (D + M)

prompt = 7
state = softmax.init_state((), D, M)
begun, begun_saved = softmax.forward(all_q[:prompt], all_k[:prompt], all_v[:prompt], causal=True, state=state)
same(begun, one_pass[:prompt])
state = begun_saved.state
for t in range(prompt, T):
    row, state = softmax.step(all_q[t], all_k[t], all_v[t], state)
    same(row, one_pass[t])
assert state.k.shape == (T, D)
print(f"{T} steps: {total:,} multiply-adds, the last one {work}; the cache holds {kept_bytes(state)} bytes at the end")

# %% [markdown]
# For $T$ tokens all steps together take $\sum_t t (D + M) = \frac{T (T + 1)}{2} (D + M)$ multiply-adds: still the
# square of the length. Without the cache, computing everything afresh at every step would take time that grows with
# the cube.
#
# ### Why must the state grow?
#
# Any transformer with a causal mask is a recurrent network in this sense (Katharopoulos et al. 2020, section 3.4, "in
# theory even the ones using softmax attention"). For similarities $\phi(q)^\top \phi(k)$ with $C$ features the sums
# $\sum_j \phi(k_j) v_j^\top$ and $\sum_j \phi(k_j)$ are a state of fixed size, $C \times M + C$. The exponential is
# such a similarity too, but its $\phi$ has infinitely many entries (chapter 6 writes them out, chapter 8 runs the
# network with more and more of them). The cache is that infinite state, written down in another way: it holds the terms
# of its sums. Cut off where it comes close to softmax attention, this series makes a fixed state much larger than the
# cache of a text of ordinary length. For keys and values of width 8, there are already 495 features up to order 4. The
# state of $495 \cdot 9$ numbers is more than four times the cache of 64 tokens. At width 64 there are $\binom{68}{4} =
# 814385$ of them, and the state is as large as the cache of some 414,000 tokens.

# %%
features = math.comb(8 + 4, 4)  # monomials of degree up to 4 in 8 variables
cache = 64 * (8 + 8)  # keys and values
assert features == 495
assert 4 < features * (8 + 1) / cache < 5  # claim 25
print(f"width 8, up to order 4: {features} features; state {features * (8 + 1)} numbers, cache of 64 tokens {cache}")

# %% [markdown]
# ## Exercises
#
# A sheet of homework goes further: `linattn-ref assignment softmax --out DIR` (see [the course](README.md)).
#
# **1. The gradient of the scale.** Suppose $s$ in (1) is learned. Derive $\partial \ell / \partial s$ from $dA$. Then
# show that it can be obtained from the results of `backward` alone, without looking at $dA$ again.
#
# <details><summary>Solution</summary>
#
# $A_{ij} = s\,(QK^\top)_{ij}$, so $\partial A_{ij} / \partial s = (QK^\top)_{ij}$, and $s$ occurs in all entries:
#
# $$\frac{\partial \ell}{\partial s} = \sum_{ij} dA_{ij}\, (Q K^\top)_{ij} = \sum_{ij} dA_{ij} \sum_d Q_{id} K_{jd}$$
#
# Sum over $j$ first: by (7), $\sum_j dA_{ij} K_{jd} = dQ_{id} / s$. Hence
# $\partial \ell / \partial s = \frac1s \sum_{id} Q_{id}\, dQ_{id}$: making $s$ larger is the same as making $Q$
# longer.
#
# </details>


# %%
def forward_of_scale(scale):
    return softmax.forward(q, k, v, scale=float(scale[0]))


def backward_of_scale(d_out, saved):
    return np.array([(saved.q * softmax.backward(d_out, saved).q).sum() / saved.scale])


report = gradcheck.check_elementwise(
    forward_of_scale, backward_of_scale, np.array([0.8]), rng=np.random.default_rng(12)
)
print(report)
report.assert_ok()

# %% [markdown]
# **2. Keys on two machines.** Each of two machines has half of the keys and values and computes, for all queries,
# its output $O$ and log-sum-exp $\lambda$. How do we get the output over all keys from $(O_1, \lambda_1)$ and $(O_2,
# \lambda_2)$? Must the halves be sent in order?
#
# <details><summary>Solution</summary>
#
# $e^{\lambda_1}$ is the sum of $e^{a_j}$ over the first half, and $e^{\lambda_1} o_1$ the sum of $e^{a_j} v_j$.
# Sums over both halves are sums of these:
#
# $$\lambda = \log(e^{\lambda_1} + e^{\lambda_2}), \qquad
# o = \frac{e^{\lambda_1} o_1 + e^{\lambda_2} o_2}{e^{\lambda_1} + e^{\lambda_2}}
# = e^{\lambda_1 - \lambda} o_1 + e^{\lambda_2 - \lambda} o_2$$
#
# Addition does not care about order or grouping, so neither does this (up to rounding): any number of machines can
# merge in any order, as a tree. It is the online rule once more, with a whole half as the tile. `np.logaddexp`
# subtracts the maximum for us.
#
# </details>


# %%
def merge(first, second):
    (out_1, lse_1), (out_2, lse_2) = first, second
    lse = np.logaddexp(lse_1, lse_2)  # (N,)
    return np.exp(lse_1 - lse)[:, None] * out_1 + np.exp(lse_2 - lse)[:, None] * out_2, lse


def part(keys):
    part_out, part_saved = online_softmax.forward(q, k[keys], v[keys])
    return part_out, part_saved.lse[:, 0]


a_part, b_part, c_part = part(slice(0, 2)), part(slice(2, 6)), part(slice(6, 7))
whole = part(slice(0, 7))
for merged in (merge(merge(a_part, b_part), c_part), merge(c_part, merge(b_part, a_part))):
    same(merged[0], whole[0])
    same(merged[1], whole[1])
    print("merged, the output of 'sat':", merged[0][0].round(4), " at once:", whole[0][0].round(4))

# %% [markdown]
# **3. A gradient of the log-sum-exp.** After exercise 2 a gradient $d\lambda$ may arrive together with $dO$. Show that
# $\partial \lambda_i / \partial A_{ij} = P_{ij}$, and find the one place where the backward pass changes. Can
# `online_softmax.backward` be used as it is?
#
# <details><summary>Solution</summary>
#
# From $\lambda_i = \log \sum_l e^{A_{il}}$ comes $\partial \lambda_i / \partial A_{ij} = e^{A_{ij}} / \sum_l
# e^{A_{il}} = P_{ij}$. The gradient of the scores has one more term, $P_{ij}\, d\lambda_i$:
#
# $$dA = P * \big(dP - \mathrm{rowsum}(dO * O) + d\lambda\big)$$
#
# Only the row sum changes, by $-d\lambda_i$. The code computes it as $\mathrm{rowsum}(dO * O)$. So pass it, in place of
# $O$, an $O'$ with $\mathrm{rowsum}(dO * O') = \mathrm{rowsum}(dO * O) - d\lambda$. Where $dO_i \ne 0$, this one will
# do:
#
# $$O'_i = O_i - d\lambda_i\, \frac{dO_i}{\lVert dO_i \rVert^2}$$
#
# $O$ is used for nothing else in `backward`.
#
# </details>


# %%
def forward_with_lse(q, k, v):
    out, saved = online_softmax.forward(q, k, v)
    return np.concatenate([out, saved.lse], axis=1), saved  # (N, M + 1)


def backward_with_lse(d_both, saved):
    d_out, d_lse = d_both[:, :-1], d_both[:, -1:]
    shifted = saved.out - d_lse * d_out / (d_out**2).sum(axis=1, keepdims=True)  # (N, M)
    return online_softmax.backward(d_out, saved._replace(out=shifted))


report = gradcheck.check_elementwise(forward_with_lse, backward_with_lse, q, k, v, rng=np.random.default_rng(13))
print(report)
report.assert_ok()

# %% [markdown]
# ## What to remember
#
# - $O = \mathrm{softmax}(s\,QK^\top) V$: averages of values. Only differences of scores count, so subtract the
#   maximum.
# - $dA = P * (dP - \mathrm{rowsum}(dP * P))$, from $J = \mathrm{diag}(p) - pp^\top$; and
#   $\mathrm{rowsum}(dP * P) = \mathrm{rowsum}(dO * O)$.
# - Time is $O(N^2 \max(D, M))$ in every form. Memory is $O(N^2)$ only if $P$ is kept: the online form keeps $O$ and
#   two numbers per row.
# - As a recurrent network it has a state that grows with every token, because its feature map has infinitely many
#   entries.
#
# **Sources.** Vaswani et al. (2017), *Attention is all you need*. Milakov and Gimelshein (2018), *Online normalizer
# calculation for softmax*. Rabe and Staats (2021), *Self-attention does not need O(n²) memory*. Dao et al. (2022),
# *FlashAttention*. Katharopoulos et al. (2020), *Transformers are RNNs*.
