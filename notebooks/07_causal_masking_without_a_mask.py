# %% [markdown]
# # 7. Causal masking without a mask: prefix sums, their gradient, and what not to do
#
# How does linear attention keep a token from seeing the future without a mask matrix, and how does its gradient get
# by without keeping one state for every token?
#
# In chapter 5 one bracket was moved and the matrix was gone. A causal mask sits on that matrix, entry by entry, and
# seems to need it back. At the end of this chapter you will have
#
# 1. the causal form as a running sum, and its cost counted;
# 2. its gradient, equations 13 to 15 of *Transformers are RNNs*, derived index by index, and Algorithm 1;
# 3. what plain automatic differentiation keeps for the same gradient, in bytes;
# 4. the same numbers one chunk at a time, with a gate, and cut into pieces with a state in between;
# 5. mistakes that look like savings: rewinding the state, one maximum for all keys, and an $\varepsilon$ together
#    with a stabiliser.
#
# You need chapters 5 and 6: feature maps $\phi$, and $\phi(Q) (\phi(K)^\top V)$. The letters are the same: $N$ tokens,
# keys of width $D$ and values of width $M$, $C$ features. Unless said otherwise there are as many keys as queries,
# $L = N$.

# %% jupyter={"source_hidden": true}
import importlib.util
import math
from functools import partial
from itertools import pairwise
from typing import NamedTuple
from unittest import mock

import numpy as np
from matplotlib.colors import ListedColormap

from linattn_ref import gradcheck
from linattn_ref.attention import chunked_delta, gated_linear, linear
from linattn_ref.attention import exponential as exponential_page
from linattn_ref.attention.feature_maps import elu_plus_one
from linattn_ref.attention.parts import masks
from linattn_ref.data.twelve_words import WORDS, vectors
from linattn_ref.experiments.measuring.counting import count, kept_bytes, peak_bytes
from linattn_ref.experiments.measuring.scaling import growth_exponent
from linattn_ref.experiments.publishing import chapter, style
from linattn_ref.experiments.recurrence import causal_cost, rewind
from linattn_ref.kernels import jit
from linattn_ref.kernels.jit.loops.linear import causal_product as jit_kernel
from linattn_ref.kernels.jit.loops.linear import causal_product_plain

# Numbers of size 1 that have gone through some hundred roundings of 2.2e-16 each agree to this.
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-13)
EPS_32 = np.finfo(np.float32).eps


def draw_inputs(seed, n, c, m, dtype=np.float64):
    """phi_q and phi_k with positive entries, v, and a gradient of the output."""
    rng = np.random.default_rng(seed)
    q, k, v, d_out = (rng.standard_normal((n, width)).astype(dtype) for width in (c, c, m, m))
    return elu_plus_one.forward(q)[0], elu_plus_one.forward(k)[0], v, d_out


# %% [markdown]
# ## The smallest example, by hand
#
# Take three tokens with the values 3, 6 and 9. All queries and keys are 0, whose feature is $\phi(0) = 1$, so all
# weights are alike. Token by token there are two running sums, and the output is their quotient:
#
# | token | sum of values | sum of weights | output |
# | ---: | ---: | ---: | ---: |
# | 1 | 3 | 1 | 3 |
# | 2 | $3 + 6 = 9$ | 2 | 4.5 |
# | 3 | $9 + 9 = 18$ | 3 | 6 |
#
# No token has seen a later one, and there was no mask. In the backward pass, let the loss be the sum of the outputs.
# The first value is in all three, with the weights $1, \tfrac12, \tfrac13$. The second is in the last two, and the
# third in the last. So the gradients are sums from the other end: $\tfrac{11}{6}, \tfrac56, \tfrac13$.

# %%
alike, three_values = np.zeros((3, 1)), np.array([[3.0], [6.0], [9.0]])
three_out, three_saved = linear.forward(alike, alike, three_values, causal=True, eps=0.0)
three_gradients = linear.backward(np.ones((3, 1)), three_saved).v
print("outputs:", three_out.ravel(), " gradients of the values:", three_gradients.ravel().round(4))
same(three_out.ravel(), [3, 4.5, 6])
same(three_gradients.ravel(), [11 / 6, 5 / 6, 1 / 3])

# %% [markdown]
# ## A running sum
#
# Take the numerator first; the denominator will turn out to be one extra column of it. Without a mask it is $\phi(Q)
# \phi(K)^\top V$, and the bracket may go left or right. Write $\triangle$ for the $N \times N$ lower triangle of
# ones, $\triangle_{ij} = 1$ if $j \le i$, and $*$ for the product entry by entry. With a causal mask the numerator is
#
# $$O = \big(\triangle * (\phi(Q)\, \phi(K)^\top)\big)\, V$$
#
# and the bracket cannot be moved: $*$ and the matrix product do not associate. The example up to the division is
# chapter 1's sentence, *the cat sat on the old mat and the dog slept too*, with the features $\mathrm{elu} + 1$ of its
# queries and keys.

# %%
q, k, v = vectors()
(N, C), M = q.shape, v.shape[1]
phi_q, phi_k = elu_plus_one.forward(q)[0], elu_plus_one.forward(k)[0]
d_out = np.random.default_rng(0).standard_normal((N, M))  # the gradient of some loss
triangle = np.tri(N)

same((phi_q @ phi_k.T) @ v, phi_q @ (phi_k.T @ v))  # claim 15
masked = (triangle * (phi_q @ phi_k.T)) @ v
assert abs(masked - phi_q @ (phi_k.T @ v)).max() > 1  # there is no such thing with the mask
print("third row ('sat'), with the mask:", masked[2].round(3), " bracket moved:", (phi_q @ (phi_k.T @ v))[2].round(3))

# %% [markdown]
# But look at one row. $\triangle_{ij}$ only determines where the sum over $j$ ends, and $\phi(q_i)$ does not depend
# on $j$:
#
# $$o_i = \sum_{j \le i} \big(\phi(q_i)^\top \phi(k_j)\big)\, v_j
# = \Big(\sum_{j \le i} \phi(k_j)\, v_j^\top\Big)^{\!\top} \phi(q_i) = S_i^\top \phi(q_i)$$
#
# The bracket is moved *within the row*, and what is left of the mask is the upper end of a sum. And the sum of one
# row is that of the row before plus one term (Katharopoulos et al. 2020, section 3.3, equations 10 to 12):
#
# $$S_i = S_{i-1} + \phi(k_i)\, v_i^\top, \qquad S_0 = 0 \qquad (4)$$
#
# $$o_i = S_i^\top \phi(q_i) \qquad (3)$$
#
# $S_i$ is a $C \times M$ matrix, the *state*. Going from one token to the next takes $C M$ multiply-adds for (4) and
# $C M$ for (3). This is the same for the first token and for the millionth. The numbers (1) to (9) are those of
# chapter 5 and of `linear.py`. Its forward pass is the loop in (4) and (3), one query per round. (The line marked (1),
# (2) adds the keys of one round, which is (4). It carries the denominator's sum, `z`, together with `s`; we come to
# that below.)

# %%
chapter.source(linear.forward, masks.first_seen, doc=False)

# %% [markdown]
# From here on we leave features and denominator out, and look at the loop alone:


# %%
def product_by_rows(phi_q, phi_k, v):
    s, out = np.zeros((phi_k.shape[-1], v.shape[-1])), np.empty(v.shape)
    for i in range(len(v)):
        s = s + phi_k[i, :, None] * v[i, None, :]  # (4)
        out[i] = phi_q[i] @ s  # (3), the numerator
    return out, s


by_row, last = product_by_rows(phi_q, phi_k, v)
same(by_row, masked)
same(last, phi_k.T @ v)  # the last token has seen everything

later_changed = phi_k.copy()
later_changed[4:] = 1e6  # all after "the cat sat on"
assert (product_by_rows(phi_q, later_changed, v)[0][:4] == by_row[:4]).all()  # not one bit moves
print(f"the row of {WORDS[2]!r}, row by row:", by_row[2].round(4), " with the mask:", masked[2].round(4))

# %% [markdown]
# ### Three ways to the same $S_i$, counted
#
# The next cell counts the multiply-adds for *all* $S_i$ together. Summing each from its beginning is quadratic. The
# running sum is linear, and if $S_i$ is read and then overwritten it takes the memory of one. A running sum that
# *stores* all $S_i$, `np.cumsum` for instance, has the same arithmetic and $N$ times the memory.


# %%
def from_the_beginning(phi_k, v):
    return np.stack([phi_k[: i + 1].T @ v[: i + 1] for i in range(len(v))])  # (N, C, M)


def all_at_once(phi_k, v):
    return np.cumsum(phi_k[:, :, None] * v[:, None, :], axis=0)  # (N, C, M)


def one_at_a_time(phi_k, v):
    s = np.zeros((phi_k.shape[1], v.shape[1]))
    for i in range(len(v)):
        s += phi_k[i, :, None] * v[i, None, :]  # (4); here (3) would read it
    return s


same(from_the_beginning(phi_k, v), all_at_once(phi_k, v))
same(one_at_a_time(phi_k, v), all_at_once(phi_k, v)[-1])

rows = []
for n in (256, 512, 1024):
    _, k_long, v_long, _ = draw_inputs(1, n, 32, 32)
    adds = [causal_cost.multiply_adds(way, k_long, v_long) for way in (from_the_beginning, all_at_once, one_at_a_time)]
    assert adds == [n * (n + 1) / 2 * 32 * 32, n * 32 * 32, n * 32 * 32]  # claims 20 and 21
    peaks = [peak_bytes(way, k_long, v_long) for way in (from_the_beginning, all_at_once, one_at_a_time)]
    assert min(peaks[:2]) >= n * 32 * 32 * 8
    assert peaks[2] < 200_000  # S, and NumPy's buffers for adding to it; no n in it
    names = ("each afresh", "cumsum", "running")
    rows += [(name, n, adds, round(peak / 1024)) for name, adds, peak in zip(names, adds, peaks, strict=True)]
chapter.table(("all S_i, C = M = 32, float64", "N", "multiply-adds", "KiB at the peak"), rows)

# %% [markdown]
# How much is "all $S_i$"? It is $N C M$ numbers. The keys are $N C$ numbers and the values $N M$: $M$ times the keys,
# $C$ times the values. The paper says that storing every $S_i$ costs $\max(D, M)$ times the memory (section 3.3.1,
# with $C = D$). That is right compared with the *smaller* of the two; compared with the larger it is $\min(D, M)$.
# Compared with everything that must be stored anyway, $\phi(Q)$, $\phi(K)$, $V$ and the output, it is $C M / (2 C + 2
# M)$, which for $C = M$ is a quarter of the width. We measure the memory of all $S_i$, as half of the most bytes in use
# while `np.cumsum` makes them. (The other half is the products that it adds up.)

# %%
rows = []
for n, c, m in ((1024, 32, 32), (1024, 64, 16), (1024, 16, 64)):
    _, k_long, v_long, _ = draw_inputs(2, n, c, m)
    peak = peak_bytes(all_at_once, k_long, v_long) / 2  # the outer products, and their running sums
    smaller, larger = sorted((n * c * 8, n * m * 8))  # bytes of keys and values
    assert abs(peak / smaller / max(c, m) - 1) < 0.02  # claim 21: max(D, M) times the smaller,
    assert abs(peak / larger / min(c, m) - 1) < 0.02  # min(D, M) times the larger
    rows.append((f"C = {c}, M = {m}", peak / smaller, peak / larger, peak / (2 * n * (c + m) * 8)))
chapter.table(
    ("bytes of all S_i, over those of", "the smaller of keys and values", "the larger", "phi(Q), phi(K), V, output"),
    rows,
)

# %% [markdown]
# ### The denominator is a column of ones
#
# Linear attention divides by $\sum_{j \le i} \phi(q_i)^\top \phi(k_j) = \phi(q_i)^\top Z_i$ with $Z_i = \sum_{j \le
# i} \phi(k_j)$. That is (4) and (3) once more, for values that are all 1. So append a column of ones to $V$: $\tilde
# v_j = (v_j, 1)$. Then
#
# $$\tilde S_i = \sum_{j \le i} \phi(k_j)\, \tilde v_j^\top = (S_i, Z_i), \qquad
# \tilde S_i^\top \phi(q_i) = (\text{numerator}, \text{denominator})$$
#
# Every equation below holds for $\tilde S$ as it stands, with $M + 1$ in place of $M$.

# %%
with_ones = np.concatenate([v, np.ones((N, 1))], axis=1)  # (N, M + 1)
states = all_at_once(phi_k, with_ones)  # (N, C, M + 1)
same(states[..., -1], np.cumsum(phi_k, axis=0))  # Z_i
both, _ = product_by_rows(phi_q, phi_k, with_ones)
for i in range(N):
    same(both[i, -1], phi_q[i] @ states[i, :, -1])
    same(both[i, :-1], states[i, :, :-1].T @ phi_q[i])
print("last row, numerator:", both[-1, :-1].round(3), f" denominator: {both[-1, -1]:.3f}")

# %% [markdown]
# The mechanism is `linear.forward(..., causal=True)`. We compare it with the masked, normalised matrix, and with one
# step at a time; a step costs the same at every position:

# %%
out, saved = linear.forward(q, k, v, causal=True)
P = linear.matrix(q, k, causal=True)
assert (P[np.triu_indices(N, k=1)] == 0).all()
same(out, P @ v)

state, costs = linear.init_state((), C, M), set()
for t in range(N):
    cost = count(partial(linear.step, state=state), q[t], k[t], v[t])
    costs.add((cost.multiply_adds, cost.exponentials, cost.elementwise))
    row, state = linear.step(q[t], k[t], v[t], state)
    same(row, out[t])
assert len(costs) == 1  # claim 20: constant cost per step
same(state.s, saved.state.s)
same(state.z, saved.state.z)
print(f"each of {N} steps: {cost.multiply_adds} multiply-adds, {cost.exponentials} exponentials")

# %% [markdown]
# ## The gradient, by hand
#
# $\phi$ acts on each token by itself, and its gradient belongs to the feature map (chapter 6). The division has its
# own step below. What is new is the causal product, $\phi(Q), \phi(K), V \to O$. Let $\ell$ be the loss and $G_{im} =
# \partial \ell / \partial O_{im}$. In indices,
#
# $$O_{im} = \sum_{j \le i} \sum_c \phi(q_i)_c\, \phi(k_j)_c\, V_{jm}$$
#
# For any input $X$, $d\ell = \sum_{im} G_{im}\, dO_{im}$: go through every place where $X$ occurs.
#
# ### Step 1: queries
#
# $\phi(q_i)_c$ occurs in row $i$ only, in $O_{im}$ for every $m$, with the factor
# $\sum_{j \le i} \phi(k_j)_c V_{jm}$. But this is $(S_i)_{cm}$:
#
# $$\frac{\partial \ell}{\partial \phi(q_i)_c} = \sum_m G_{im} \sum_{j \le i} \phi(k_j)_c V_{jm}
# = \sum_m (S_i)_{cm} G_{im}
# \quad\Longrightarrow\quad \nabla_{\phi(q_i)} \ell = S_i\, G_i \qquad (6)$$
#
# This is the paper's equation 13. It is a running sum from the first token on, as in the forward pass.
#
# ### Step 2: the swap
#
# A key is different: $\phi(k_j)$ occurs in the output of token $j$ *and of all later ones*. We have a sum over rows
# $i$ and, inside, over $j \le i$; for one key we need the sum over $i$ *inside*. Both go over the same pairs, the
# lower triangle: by rows, or by columns.
#
# $$\sum_{i=1}^{N} \sum_{j=1}^{i} x_{ij} = \sum_{j=1}^{N} \sum_{i=j}^{N} x_{ij}$$
#
# In row $i$ the columns $j$ run from $1$ to $i$. In column $j$ the rows $i$ run from $j$ to $N$. That is the whole
# trick of the backward pass: a sum over the past, read from the other side, is a sum over the future.

# %%
by_rows = [(i, j) for i in range(1, N + 1) for j in range(1, i + 1)]
by_columns = [(i, j) for j in range(1, N + 1) for i in range(j, N + 1)]
assert by_rows != by_columns
assert sorted(by_rows) == sorted(by_columns)
print("by rows:   ", *by_rows[:6], "...\nby columns:", *by_columns[:6], "...")

# %% [markdown]
# ### Step 3: keys and values
#
# Put $O_{im}$ into $\sum_{im} G_{im} O_{im}$, which is linear in each of the three inputs, and swap:
#
# $$\sum_i \sum_m G_{im} \sum_{j \le i} \sum_c \phi(q_i)_c\, \phi(k_j)_c\, V_{jm}
# = \sum_j \sum_c \sum_m \phi(k_j)_c\, V_{jm} \underbrace{\sum_{i \ge j} \phi(q_i)_c\, G_{im}}_{(A_j)_{cm}}$$
#
# The brace depends on $j$ only through where the sum begins. Call it $A_j$, a $C \times M$ matrix like $S_j$:
#
# $$A_j = \sum_{i \ge j} \phi(q_i)\, G_i^\top, \qquad\text{so}\qquad
# A_j = A_{j+1} + \phi(q_j)\, G_j^\top, \qquad A_{N+1} = 0 \qquad (7)$$
#
# It is a running sum too, from the last token backwards. Now the factor of $\phi(k_j)_c$, and that of $V_{jm}$, can
# be read off the right side:
#
# $$\nabla_{\phi(k_j)} \ell = A_j\, v_j \qquad (8)
# \qquad\qquad \nabla_{v_j} \ell = A_j^\top \phi(k_j) \qquad (9)$$
#
# the paper's equations 14 and 15. (The paper writes $\bar V$ for the numerator, and $G_i$ as a row.) At the same time,
# $A_j$ is the gradient of the *state*. In (4) and (3) $S_j$ is used by $o_j$, with the gradient $\phi(q_j) G_j^\top$,
# and by $S_{j+1}$, which passes $A_{j+1}$ on unchanged. That is (7) again, without any swap.
#
# With matrices and the mask it would be $d\phi(Q) = (\triangle * G V^\top)\, \phi(K)$, $d\phi(K) = (\triangle * G
# V^\top)^\top \phi(Q)$, $dV = (\triangle * \phi(Q) \phi(K)^\top)^\top G$. Transposing $\triangle$ turns "up to $i$"
# into "from $j$ on".

# %%
S = all_at_once(phi_k, v)  # (N, C, M)
A = np.cumsum((phi_q[:, :, None] * d_out[:, None, :])[::-1], axis=0)[::-1]  # (7)  (N, C, M)
d_phi_q = np.stack([S[i] @ d_out[i] for i in range(N)])  # (6)
d_phi_k = np.stack([A[j] @ v[j] for j in range(N)])  # (8)
d_v = np.stack([A[j].T @ phi_k[j] for j in range(N)])  # (9)

same(d_phi_q, (triangle * (d_out @ v.T)) @ phi_k)
same(d_phi_k, (triangle * (d_out @ v.T)).T @ phi_q)
same(d_v, (triangle * (phi_q @ phi_k.T)).T @ d_out)
print(f"gradient of the value of {WORDS[2]!r}, by sums:", d_v[2].round(4), end="  ")
print("with the mask:", ((triangle * (phi_q @ phi_k.T)).T @ d_out)[2].round(4))

# %% [markdown]
# ### Algorithm 1
#
# (6) needs $S_i$ in forward order; (8) and (9) need $A_j$ in backward order. No position needs both. So there are two
# loops, and each holds *one* $C \times M$ matrix. $S$ is not read from memory: the first loop makes it again.

# %%
chapter.source(linear.backward, doc=False)

# %% [markdown]
# `d_n` and `d_d`, for a numerator and a denominator, belong to the section "The division" below. Without them,
# Algorithm 1 is `causal_cost.rows_backward`:

# %%
_, saved = causal_cost.rows_forward(phi_q, phi_k, v)
for ours, by_hand in zip(causal_cost.rows_backward(d_out, saved), (d_phi_q, d_phi_k, d_v), strict=True):
    same(ours, by_hand)

report = gradcheck.check_elementwise(
    causal_cost.rows_forward, causal_cost.rows_backward, phi_q, phi_k, v, rng=np.random.default_rng(4)
)
print(report)
report.assert_ok()

# %% [markdown]
# The typical mistake is the direction: a prefix sum where a suffix sum belongs. The check names the input, and the
# entry that is off by the most:


# %%
def wrong_way_round(d_out, saved):
    phi_q, _, v = saved
    d_phi_q, _, d_v = causal_cost.rows_backward(d_out, saved)
    a = np.cumsum(phi_q[:, :, None] * d_out[:, None, :], axis=0)  # the past, where (7) has the future
    return causal_cost.Gradients(d_phi_q, (a @ v[:, :, None])[..., 0], d_v)


report = gradcheck.check_elementwise(
    causal_cost.rows_forward, wrong_way_round, phi_q, phi_k, v, rng=np.random.default_rng(4)
)
print(report)
assert {entry.name for entry in report.worst_by_input if entry.excess > 1} == {"phi_k"}

# %% [markdown]
# ### The division
#
# With $o_i = n_i / d_i$ (numerator over denominator) the quotient rule gives
#
# $$dn_i = \frac{G_i}{d_i}, \qquad dd_i = -\frac{G_i^\top n_i}{d_i^2} = -dn_i^\top o_i \qquad (5)$$
#
# The denominator is the last column of the causal product of $\tilde v = (v, 1)$, so $(dn_i, dd_i)$ is what takes the
# place of $G_i$ in (6) to (9). Nothing flows into a column of ones, so the last column of $d\tilde V$ is not computed.

# %%
report = gradcheck.check_elementwise(
    partial(linear.forward, causal=True), linear.backward, q, k, v, rng=np.random.default_rng(5)
)
print(report)
report.assert_ok()

# %% [markdown]
# ## What automatic differentiation keeps
#
# A framework does not know about the two loops. It records every operation with whatever its derivative will need,
# and plays the record backwards. The derivative of $o_i = S_i^\top \phi(q_i)$ by $\phi(q_i)$ needs $S_i$. To the
# framework $S_1, S_2, \dots$ are $N$ different arrays, so all of them stay on the tape (section 3.3.1 of the paper: "a
# naive implementation ... requires storing all intermediate values"). Here is that tape, written out:

# %%
chapter.source(causal_cost.naive_forward, causal_cost.naive_backward)

# %% [markdown]
# It differs from Algorithm 1 in where $S_i$ comes from: here it comes from the tape, there from a second running sum.
# The gradients are the same. Here $N C M$ numbers are kept between the passes; there, nothing beyond the inputs.

# %%
sentence = phi_q, phi_k, v, d_out  # it comes back with the gate
phi_q, phi_k, v, d_out = draw_inputs(6, 150, 32, 24)
results = {}
for name, (forward, backward) in causal_cost.FORMS.items():
    out, saved = forward(phi_q, phi_k, v)
    results[name] = (out, *backward(d_out, saved))
    kept = kept_bytes(saved) - kept_bytes((phi_q, phi_k, v))
    assert kept == {"masked": 150 * 150, "naive": 150 * 32 * 24, "rows": 0, "chunks": 0}[name] * 8
for name in ("naive", "rows", "chunks"):
    for ours, expected in zip(results[name], results["masked"], strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-10)  # claim 22; sums of 150 * 32 terms
    apart = max(abs(a - b).max() for a, b in zip(results[name], results["masked"], strict=True))
    print(f"{name}: output and gradients differ from the masked form's by {apart:.0e} at most")

# %% [markdown]
# That tape is the project's own. Does a framework's agree? The next cell types the formula once more in PyTorch,
# running sums and all, and lets PyTorch differentiate it. Where PyTorch is not installed (it comes with the extra
# `peers`) the cell says so.

# %%
if importlib.util.find_spec("torch") is None:
    print("PyTorch is not installed here: not compared. With it: pip install -e '.[peers]'")
else:
    import torch

    leaves = [torch.tensor(x, requires_grad=True) for x in (phi_q, phi_k, v)]
    t_q, t_k, t_v = leaves
    running = torch.cumsum(t_k[:, :, None] * t_v[:, None, :], dim=0)  # (N, C, M), equation 10 of the paper
    t_out = torch.einsum("nc,ncm->nm", t_q, running)
    t_out.backward(torch.tensor(d_out))
    by_torch = (t_out.detach().numpy(), *(leaf.grad.numpy() for leaf in leaves))
    for ours, expected in zip(results["rows"], by_torch, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-10)  # claim 22: equals automatic differentiation
    print(f"PyTorch {torch.__version__} gives the same outputs and the same three gradients as Algorithm 1")

# %% [markdown]
# We count and measure with $C = M = 64$ in float32, forward and backward together. Points are what was counted, lines
# are the formulas in the module's docstring, and a slope of 2 is growth with the square.

# %%
cost = causal_cost.compute(rng=np.random.default_rng(7))
chapter.show(
    causal_cost.draw,
    cost,
    alt="Multiply-adds: slope 2 for the masked matrix, 1 for the others. Memory: slope 2 for the matrix; keeping every "
    "S has slope 1 but lies a factor of 16 above Algorithm 1 and chunks",
)
slope = partial(growth_exponent, cost.lengths)
assert slope(cost.masked.multiply_adds) == 2
assert slope(cost.naive.multiply_adds) == slope(cost.rows.multiply_adds) == 1  # claims 20 and 22: linear
assert 1.9 < slope(cost.masked.peak) < 2.1
assert max(slope(each.peak) for each in (cost.naive, cost.rows, cost.chunks)) < 1.01

# %%
longest = -1
ways = cost.masked, cost.naive, cost.rows, cost.chunks
chapter.table(
    (f"N = {cost.lengths[longest]}", "masked matrix", "every S kept", "Algorithm 1", "chunks"),
    [
        (label, *(round(getattr(each, field)[longest] / unit) for each in ways))
        for label, field, unit in (
            ("multiply-adds", "multiply_adds", 1),
            ("KiB kept between the passes", "kept", 1024),
            ("KiB at the peak", "peak", 1024),
        )
    ],
)
assert cost.rows.multiply_adds[longest] * 6 == cost.naive.multiply_adds[longest] * 7  # one running sum more
assert cost.naive.kept[longest] == 64 * 2048 * 64 * 4  # claim 21: M times the keys
assert cost.rows.kept[longest] == 0  # claim 22
assert cost.naive.kept[longest] / cost.masked.kept[longest] == 64 * 64 / 2048

# %% [markdown]
# The table shows two things. For one more running sum, a sixth more arithmetic, the memory of the states is gone. And
# the naive form keeps *more* than the masked matrix that it was meant to replace, until $N$ reaches $C M = 4096$:
# linear growth does not help if the constant is that large.
#
# "Constant memory" means: beyond the outputs, which every form has to write. Here it is measured at four lengths:

# %%
beyond = []
for n in (100, 400, 1600, 6400):
    phi_q, phi_k, v, d_out = draw_inputs(8, n, 16, 16, np.float32)
    outputs = sum(x.nbytes for x in (phi_q, phi_k, v))  # the gradients have these shapes
    peaks = [peak_bytes(causal_cost.rows_backward, d_out, (phi_q, phi_k, v)) for _ in range(3)]
    beyond.append(min(peaks) - outputs)  # the least: other threads of the notebook's kernel allocate too
assert max(beyond) - min(beyond) < 1000  # claim 22: bytes of Python's own small objects, and no state more
kib = [round(each / 1024) for each in beyond]  # a state has 16 * 16 * 4 bytes, 1 KiB
print("KiB that the backward pass needs beyond its outputs, at N = 100, 400, 1600, 6400:", kib)

# %% [markdown]
# ## Chunks
#
# A rank-1 update $S + \phi(k_i) v_i^\top$ reads and writes all of $S$ for only two operations per number. Processors
# are fast at matrix products, where a number that was loaded is used many times. So take $T$ rows at once. Let $S$ be
# the state before them. Row $i$ of the chunk sees the keys before the chunk, all of them through $S$, and those of
# the chunk up to its own, through a small triangle:
#
# $$O_{\text{chunk}} = \underbrace{\big(\mathrm{tril}(\phi_Q \phi_K^\top)\big) V}_{\text{within the chunk}}
# + \underbrace{\phi_Q\, S}_{\text{everything before}} \qquad (10)$$
#
# $$S' = S + \phi_K^\top V \qquad (11)$$
#
# Both are exact: a sum over $j \le i$ was cut in two. With $T = 1$ this form is Algorithm 1 up to the order of two
# steps (and $C + M$ multiply-adds more per row). $T = N$ is the masked matrix, and anything between them returns the
# same numbers. The backward pass is the transpose of these two lines, with $A$ from the other end.

# %%
chapter.source(causal_cost.chunks_forward, doc=False)

# %% [markdown]
# The page `chunked_linear.py` does this with the denominator, an initial state, and its gradient. The picture shows
# the $24 \times 24$ pairs. Those within a chunk (dark) cost $T$ per row; those through the state (light) cost the
# same however many they are. The count is what the function above takes per row, with its constant `CHUNK` set to $T$
# and $C = M = 4$:

# %%
shown, small = 24, draw_inputs(9, 24, 4, 4)[:3]


def multiply_adds_in_chunks(length):
    with mock.patch.object(causal_cost, "CHUNK", length):
        return count(causal_cost.chunks_forward, *small).multiply_adds


def panel(axes, length):
    i, j = np.indices((shown, shown))
    kind = np.where(j > i, 0, np.where(i // length == j // length, 2, 1))
    axes.imshow(kind, cmap=ListedColormap(["white", style.SKY, style.BLUE]), vmin=0, vmax=2)
    axes.grid(False)
    axes.set(xlabel=f"key j\n{multiply_adds_in_chunks(length) / shown:.0f} multiply-adds", ylabel="query i")
    axes.label_outer()


expected, _ = product_by_rows(*small)
for length in (1, 3, 5, 8, 24):
    with mock.patch.object(causal_cost, "CHUNK", length):
        same(causal_cost.chunks_forward(*small)[0], expected)
    if shown % length == 0:  # no ragged chunk at the end
        assert multiply_adds_in_chunks(length) == shown * (length * (4 + 4) + 2 * 4 * 4)
chapter.explore(
    panel,
    (1, 3, 8, 24),
    name="chunk length T",
    slider=range(1, shown + 1),
    height=0.34,
    sharey=True,
    alt="Lower triangles of 24 by 24 pairs. T = 1: all but the diagonal go through the state. T = 24: none does",
)

# %% [markdown]
# Forward, a row costs $T (C + M) + 2 C M$ multiply-adds, against $2 C M$ by Algorithm 1. With $T \approx C$ that is a
# factor of about 2, which matrix products win back. The next cell compares chunks with the masked matrix, on more heads
# and a ragged length, in both passes. It checks the gradient once more by finite differences, in random directions, as
# there are many entries:

# %%
rng = np.random.default_rng(10)
n = 2 * causal_cost.CHUNK + 37
phi_q, phi_k, v, d_out = (abs(rng.standard_normal((2, 3, n, width))) for width in (16, 16, 8, 8))
scores = np.tril(phi_q @ phi_k.swapaxes(-1, -2))
d_scores = np.tril(d_out @ v.swapaxes(-1, -2))
by_matrix = (scores @ v, d_scores @ phi_k, d_scores.swapaxes(-1, -2) @ phi_q, scores.swapaxes(-1, -2) @ d_out)
out, saved = causal_cost.chunks_forward(phi_q, phi_k, v)
for x, expected in zip((out, *causal_cost.chunks_backward(d_out, saved)), by_matrix, strict=True):
    np.testing.assert_allclose(x, expected, rtol=1e-12)  # sums of positive terms lose nothing to cancellation

report = gradcheck.check_directions(
    causal_cost.chunks_forward, causal_cost.chunks_backward, phi_q[0, 0], phi_k[0, 0], v[0, 0], rng=rng
)
print(report)
report.assert_ok()

# %% [markdown]
# ### Compiled
#
# In a compiled language Algorithm 1 needs no matrix product to be fast: the loop as it stands will do. Here it is for
# one head in Numba, forward and backward: the gradients are the same loop with the arrays in other places (exercise 1).

# %%
chapter.source(causal_product_plain.scan_plain, causal_product_plain.backward_by_row, doc=False)

# %% [markdown]
# `kernels.jit` has, in addition to this plain form, one with the processor's vectors spelled out. These two and the
# chunks in NumPy agree to the rounding of sums taken in another order:

# %% native="It runs compiled loops, and a browser has no compiler for them."
for dtype in (np.float64, np.float32):
    arrays = [x.astype(dtype) for x in (phi_q, phi_k, v, d_out)]
    out, saved = causal_cost.chunks_forward(*arrays[:3])
    in_chunks = out, *causal_cost.chunks_backward(arrays[3], saved)
    out, _ = jit_kernel.forward(*arrays[:3], None)
    by_vectors = out, *jit_kernel.backward(arrays[3], None, *arrays[:3], None)[:3]
    out, _ = causal_product_plain.forward_by_row(*arrays[:3], None)
    plain = out, *causal_product_plain.backward_by_row(arrays[3], None, *arrays[:3], None)[:3]
    for compiled in (by_vectors, plain):
        for ours, expected in zip(compiled, in_chunks, strict=True):
            assert ours.dtype == dtype
            # Sums of up to n positive terms; their errors are relative, and partly cancel.
            np.testing.assert_allclose(ours, expected, rtol=math.sqrt(n) * 8 * np.finfo(dtype).eps)
    apart = max(abs(a / b - 1).max() for a, b in zip(by_vectors, in_chunks, strict=True))
    print(f"{np.dtype(dtype).name}: compiled and NumPy differ by {apart / np.finfo(dtype).eps:.0f} eps at most")

# %% [markdown]
# > **A break.** A causal mask on $\phi(Q) \phi(K)^\top$ is a running sum $S_i$, and the denominator is one more column
# > of it. The gradient is two running sums, one from each end, and Algorithm 1 keeps neither. Chunks compute the same
# > numbers with matrix products. After the break the state fades by a gate, sequences are cut into pieces, and
# > exponential features set traps.

# %% [markdown]
# ## A gate, and why the state is not rewound
#
# A plain sum never forgets. Many later mechanisms, random feature attention for one, let the state fade by a gate
# $g_i$ between 0 and 1, and weight new tokens by $w_i$:
#
# $$S_i = g_i S_{i-1} + w_i\, \phi(k_i)\, v_i^\top
# \quad\Longrightarrow\quad S_i = \sum_{j \le i} (g_{j+1} \cdots g_i)\, w_j\, \phi(k_j)\, v_j^\top \qquad (4')$$
#
# The gradient needs no new idea. $S_i$ is used by $o_i$ and, with the factor $g_{i+1}$, by $S_{i+1}$:
#
# $$A_i = \phi(q_i)\, G_i^\top + g_{i+1} A_{i+1} \qquad (7')$$
#
# (6) stays, (8) and (9) get the factor $w_i$. And $S_i$ is linear in $w_i$ and in $g_i$. So the gradient of each is its
# factor in ($4'$), times $A_i$ entry by entry, and summed:
#
# $$\frac{\partial \ell}{\partial w_i} = \sum_{cm} (A_i)_{cm}\, \phi(k_i)_c\, V_{im}
# = \phi(k_i)^\top A_i\, v_i \qquad (12)$$
#
# $$\frac{\partial \ell}{\partial g_i} = \sum_{cm} (A_i)_{cm} (S_{i-1})_{cm} = \langle A_i, S_{i-1} \rangle
# \qquad (13)$$
#
# Here are all of them, with every $S_i$ kept for now, checked by finite differences on the sentence. The gate of *and*
# is 0: it forgets the cat before the dog comes. Gates of 1 (forget nothing) are among them too, and so are the state
# before the first word and, as part of the output, the state after the last:


# %%
def gated_forward(phi_q, phi_k, v, gate, weight, state):
    states, out = [state], np.empty_like(v)
    for i in range(len(v)):
        states.append(gate[i] * states[i] + weight[i] * phi_k[i, :, None] * v[i, None, :])  # (4')
        out[i] = phi_q[i] @ states[i + 1]
    return np.concatenate([out, states[-1]]), (phi_q, phi_k, v, gate, weight, states)  # (N + C, M)


def gated_backward(d_both, saved):
    phi_q, phi_k, v, gate, weight, states = saved
    d_phi_q, d_phi_k, d_v, d_gate, d_weight = (np.empty_like(x) for x in saved[:5])
    d_out, a = d_both[: len(v)], d_both[len(v) :]
    for i in reversed(range(len(v))):
        a = phi_q[i, :, None] * d_out[i, None, :] + a  # (7'), whose gate the row after has multiplied by
        d_phi_q[i] = states[i + 1] @ d_out[i]  # (6)
        d_phi_k[i] = weight[i] * (a @ v[i])  # (8)
        d_v[i] = weight[i] * (phi_k[i] @ a)  # (9)
        d_weight[i] = phi_k[i] @ a @ v[i]  # (12)
        d_gate[i] = (a * states[i]).sum()  # (13)
        a = gate[i] * a
    return GatedGradients(d_phi_q, d_phi_k, d_v, d_gate, d_weight, a)


class GatedGradients(NamedTuple):
    phi_q: np.ndarray  # (N, C)
    phi_k: np.ndarray  # (N, C)
    v: np.ndarray  # (N, M)
    gate: np.ndarray  # (N,)
    weight: np.ndarray  # (N,)
    state: np.ndarray  # (C, M)


phi_q, phi_k, v, d_out = sentence
rng = np.random.default_rng(12)
gate = np.array([0.5, 1.0, 0.9, 1.0, 1 - 1e-7, 0.8, 0.7, 0.0, 1.0, 1e-30, 1.0, 0.2])  # "and" has 0
weight, before = rng.uniform(0.1, 2, N), rng.standard_normal((C, M))
report = gradcheck.check_elementwise(gated_forward, gated_backward, phi_q, phi_k, v, gate, weight, before, rng=rng)
print(report)
report.assert_ok()
fading = gated_forward(phi_q, phi_k, v, gate, weight, before)[1][-1]
start = [np.linalg.norm(fading[i]) for i in (7, 8, 12)]
print(f"size of the state after 'mat': {start[0]:.2f}, after 'and': {start[1]:.2f}, at the end: {start[2]:.2f}")

# %% [markdown]
# The package's page with a gate is `gated_linear.py`. It has no weight, since a weight may as well be a factor of
# $V$. It takes $\log g_i$, whose gradient is $g_i\, \partial \ell / \partial g_i$:


# %%
def gated_page(phi_q, phi_k, v, gate):
    return gated_linear.forward(phi_q, phi_k, v, np.log(gate), scale=1.0)


def gate_gradient_of_page(d_out, phi_q, phi_k, v, gate):
    """For gates above 0."""
    return gated_linear.backward(d_out, gated_page(phi_q, phi_k, v, gate)[1]).log_gate / gate


def gate_gradient_by_formulas(d_out, phi_q, phi_k, v, gate):
    state = np.zeros((phi_k.shape[1], v.shape[1]), v.dtype)
    _, saved = gated_forward(phi_q, phi_k, v, gate, np.ones_like(gate), state)
    return gated_backward(np.concatenate([d_out, state]), saved).gate


no_resets = np.maximum(gate, 0.1)
by_formulas = gate_gradient_by_formulas(d_out, phi_q, phi_k, weight[:, None] * v, no_resets)
same(gate_gradient_of_page(d_out, phi_q, phi_k, weight[:, None] * v, no_resets), by_formulas, atol=1e-11)
print("gradients of the first gates by (13):", by_formulas[:4].round(4), " by the page:", end=" ")
print(gate_gradient_of_page(d_out, phi_q, phi_k, weight[:, None] * v, no_resets)[:4].round(4))

# %% [markdown]
# Now the difficulty. (13) is the first equation that needs $S$ and $A$ *at one position*, and $S$ comes from the
# front, $A$ from the back. Keeping every $S_i$ is what we wanted to avoid. It is tempting to solve ($4'$) for the
# state before and to run it backwards along with $A$, with no memory at all:
#
# $$S_{i-1} = \frac{S_i - w_i\, \phi(k_i)\, v_i^\top}{g_i}$$
#
# In exact arithmetic that is right. In floating point $S_N$ no longer holds the information. One token that is large
# compared with the others is enough, and a gate of 0 has no inverse:

# %%
small_one, large_one = np.float32(1), np.float32(2**25)
assert small_one + large_one - large_one == 0  # S_1 was 1
print("1 + 2^25 - 2^25 in float32:", small_one + large_one - large_one)

# %% [markdown]
# How bad is it for ordinary inputs? Both ways run in float32, on the same keys and values, and are compared with
# float64:

# %%
chapter.source(rewind.forward_states, rewind.rewound_states, doc=False)

# %%
lost = rewind.compute()
chapter.show(
    rewind.draw,
    lost,
    alt="Relative error of the state in float32. Computed again it stays near 1e-6. Rewound without a gate it rises "
    "towards the first positions, to 1e-3 for Z; with gates it grows exponentially with the steps back and passes 1",
)
assert lost.worst_recomputed.max() < 40 * EPS_32
assert (lost.worst_rewound[0] > 5 * lost.worst_recomputed[0]).all()  # no gate
assert lost.rewound_z[0, 0] > 1e-4  # Z_1 out of Z_16384: of seven digits three are left
assert (lost.worst_rewound[2:, -1] > rewind.NOTHING_LEFT).all()  # g = 0.999, 0.99, 0.9: nothing is left

# %% [markdown]
# *Without a gate* (left) the error in $S_N$ stays as large as it is while the state shrinks on the way back, so the
# first states lose most. $Z$, a sum of positive numbers, grows as $N$ and loses more than $S$, whose values cancel.
#
# *With a gate* (middle) the state soon stops growing, but each step back divides the error by $g$: after $n$ steps it
# is about $g^{-n}$ times as large (dotted). At the first tokens, where the state is still small, it is more. The seven
# digits of float32 are gone after $n = \log 10^7 / \log \frac1g$ steps:

# %%
rows = []
for g, worst in zip(lost.gates, lost.worst_rewound, strict=True):
    n = math.inf if g == 1 else math.log(1e7) / -math.log(float(f"{g:.4g}"))  # the gate that float32 rounded
    digits = [max(0.0, -math.log10(each)) for each in worst[[0, 4, 8]]]
    rows.append((f"{g:.4g}", "never" if g == 1 else f"{n:,.0f}", *(f"{each:.1f}" for each in digits)))
digits_at = [f"digits of S, N = {lost.lengths[i]}" for i in (0, 4, 8)]
chapter.table(("gate", "steps for 10^7 times the error", *digits_at), rows)

# %% [markdown]
# The same happens to what we wanted, the gradient of the gates (13), with gates drawn between 0.8 and 1:


# %%
def gate_gradient_by_rewinding(d_out, phi_q, phi_k, v, gate):
    s = gated_page(phi_q, phi_k, v, gate)[1].state.s
    a, d_gate = np.zeros_like(s), np.empty_like(gate)
    for i in reversed(range(len(v))):
        s = (s - phi_k[i, :, None] * v[i, None, :]) / gate[i]
        a = phi_q[i, :, None] * d_out[i, None, :] + (a * gate[i + 1] if i + 1 < len(v) else 0)  # (7')
        d_gate[i] = (a * s).sum()  # (13)
    return d_gate


rows = []
for n in (32, 128, 512):
    arrays = (*draw_inputs(13, n, 16, 16), np.random.default_rng(14).uniform(0.8, 1, n))
    phi_q, phi_k, v, d_out, gate = (x.astype(np.float32) for x in arrays)
    wide = [x.astype(np.float64) for x in (d_out, phi_q, phi_k, v, gate)]
    truth = gate_gradient_by_formulas(*wide)
    with np.errstate(over="ignore", invalid="ignore"):
        rewound = gate_gradient_by_rewinding(d_out, phi_q, phi_k, v, gate)
    page = gate_gradient_of_page(d_out, phi_q, phi_k, v, gate)
    assert page.dtype == rewound.dtype == np.float32
    error_page, error_rewound = (np.linalg.norm(x - truth) / np.linalg.norm(truth) for x in (page, rewound))
    assert error_page < 8 * EPS_32
    rows.append((n, error_page, error_rewound))
assert all(rewound > page for _, page, rewound in rows)
assert rows[1][-1] > 1e-3
assert rows[2][-1] > 1e6
chapter.table(("N", "relative error of the gates' gradient, the page", "by rewinding"), rows)

# %% [markdown]
# What does the page do instead? Its forward pass stores every $C$-th state, together $N M$ numbers, as many as $V$
# has. The backward pass computes the others again, forwards, $C$ of them at a time. (`gated_linear.py` leaves that to
# `delta_rule.py`, of which it is a case.)

# %%
for n in (512, 2048):
    phi_q, phi_k, v, d_out = draw_inputs(23, n, 32, 16)
    rule = gated_page(phi_q, phi_k, v, np.random.default_rng(24).uniform(0, 1, n))[1].rule
    assert kept_bytes(rule.noted) == v.nbytes
    print(f"N = {n}: {len(rule.noted)} states noted, {kept_bytes(rule.noted) // 1024} KiB, as much as V")

# %% [markdown]
# ### Nor by division
#
# Within a chunk of $T$ rows one needs $g_{j+1} \cdots g_i$ for all pairs $j \le i$. It is tempting to take one
# cumulative product $c_i = g_1 \cdots g_i$ and divide: $c_i / c_j$. But $c$ leaves the range of float32 soon, and
# $0/0$ is not a number. Multiplying from $j$ on, for every $j$, costs $T^2 / 2$ products per chunk and has no such
# case. So the page `chunked_delta.py` does it, with a gate per channel or one for all:

# %%
chapter.source(chunked_delta.products, doc=False)

rows, length = [], 64
for g in (0.99, 0.5, 0.2, 0.1, 0.0):
    gate = np.full(length, g, np.float32)
    product = chunked_delta.products(gate[:, None], np.ones((length, 1), np.float32))[1][..., 0]
    c = np.cumprod(gate)
    with np.errstate(all="ignore"):
        quotient = np.tril(c[:, None] / c[None, :])
    i, j = np.indices((length, length))
    truth = np.tril(np.float64(gate[0]) ** np.maximum(i - j, 0))
    np.testing.assert_allclose(product, truth, rtol=length * EPS_32, atol=1e-37)  # below that float32 has few digits
    wrong = ~np.isclose(quotient, truth, rtol=1e-2, atol=1e-37)[np.tril_indices(length)]
    rows.append((g, c[-1], f"{wrong.mean():.0%}"))
assert [row[-1] for row in rows[:2]] == ["0%", "0%"]
assert all(row[-1] != "0%" for row in rows[3:])
chapter.table(("gate", f"product of {length} gates, float32", "pairs that c_i / c_j gets wrong"), rows)

# %% [markdown]
# ## A state comes in, a state goes out
#
# All that later tokens need from earlier ones is $S$ (and $Z$). So a sequence may be cut: the state that comes out of
# one piece goes into the next, and the outputs are those of the whole. The backward pass does the same with $A$. Each
# piece passes the gradient of the state it started from, $g_1 A_1$, to the piece before. There it takes the place of
# $g_{N+1} A_{N+1} = 0$. (In a plain sum all $g$ are 1.)

# %%
rng = np.random.default_rng(15)
N = 90
q, k, v, d_out = (rng.standard_normal((N, width)) for width in (8, 8, 5, 5))
out, saved = linear.forward(q, k, v, causal=True)
whole = linear.backward(d_out, saved)
pieces = [slice(0, 20), slice(20, 55), slice(55, 90)]


def in_pieces(truncate):
    state, tape = linear.init_state((), 8, 5), []
    for rows in pieces:
        part, saved = linear.forward(q[rows], k[rows], v[rows], causal=True, state=state)
        same(part, out[rows])
        tape.append((rows, saved))
        state = saved.state
    d_state, grads = None, []
    for rows, saved in reversed(tape):
        grads.append(linear.backward(d_out[rows], saved, d_state=d_state))
        d_state = None if truncate else grads[-1].state
    return [np.concatenate([getattr(each, name) for each in reversed(grads)]) for name in "qkv"]


for ours, expected in zip(in_pieces(truncate=False), whole[:3], strict=True):
    same(ours, expected)
print("gradient of the first key in three pieces:", in_pieces(truncate=False)[1][0, :4].round(4), end="  ")
print("in one:", whole.k[0, :4].round(4))

# %% [markdown]
# If the gradient is *not* passed back, we have **truncated back-propagation**: the forward pass still sees the whole
# past, but no piece learns what it did for the pieces after it. What exactly is lost can be read off (6) to (9). The
# gradient of a query needs $S$ only: it is exact. Those of keys and values lack the part of $A$ that comes from later
# pieces; in the last piece nothing is missing.

# %%
rows = []
truncated = in_pieces(truncate=True)
for number, piece in enumerate(pieces, 1):
    both = [(x[piece], y[piece]) for x, y in zip(truncated, whole[:3], strict=True)]
    missing = [f"{np.linalg.norm(x - y) / np.linalg.norm(y):.0%}" for x, y in both]
    rows.append((f"{number}: tokens {piece.start + 1}-{piece.stop}", *missing))
same(truncated[0], whole.q)
same(truncated[1][pieces[-1]], whole.k[pieces[-1]])
same(truncated[2][pieces[-1]], whole.v[pieces[-1]])
assert abs(truncated[1][pieces[0]] - whole.k[pieces[0]]).max() > 1e-2
chapter.table(("piece", "missing in dQ", "in dK", "in dV"), rows)

# %% [markdown]
# ## Traps with exponential features
#
# Chapter 6 kept exponential features, $\phi(x) = e^{a(x)}$, in range by a constant that cancels: with $r$ for the
# keys, $e^{a(k_j) - r}$ in the numerator and in the denominator alike. Causally that is easy to get wrong. Performer's
# published code (`fast_attention.py` in `google-research/performer`) makes the features of keys
#
# $$\tilde\phi(k_j) = \frac{1}{\sqrt m} \Big(e^{a(k_j) - r} + \varepsilon\Big), \qquad
# r = \text{one maximum over all features of all keys}$$
#
# for causal attention too; $m$ is the number of random directions $\omega$ (chapter 9). For the features of a query,
# $r$ is that query's own maximum. In both, $\varepsilon = 10^{-4}$ in that function's signature and $10^{-6}$ where a
# layer is built; `performer-pytorch` has $10^{-4}$. (The $r$ of either is the maximum of $\omega^\top k$ alone, without
# the square.) A feature map for small numbers, $\phi(x) = e^x$ entry by entry, is enough to see what that does:


# %%
class Exponential(NamedTuple):
    """phi(x) = exp(x), entry by entry: a custom feature map, kept in range by the package."""

    name: str = "exp"
    positive: bool = True

    def width(self, d):
        return d

    def split(self, x):
        return x, None  # exponent, factor

    def forward(self, x):
        return np.exp(x), (x, np.exp(x))

    def backward(self, d_phi, saved):
        return d_phi * saved[1]


exponential = Exponential()


def one_maximum(q, k, v, on_features=0.0, on_denominator=0.0):
    """One r for all keys, future ones too; and an eps on every feature, or in the denominator."""
    phi_q = np.exp(q - q.max(axis=1, keepdims=True)) + np.float32(on_features)
    phi_k = np.exp(k - k.max()) + np.float32(on_features)
    return by_matrix_of(phi_q, phi_k, v, np.float32(on_denominator))


def by_matrix_of(phi_q, phi_k, v, eps):
    """Causal linear attention from its features, with the masked matrix."""
    similarity = np.tril(phi_q @ phi_k.T)
    return masks.divide(similarity @ v, similarity.sum(axis=1, keepdims=True) + eps)


q, k, v = np.random.default_rng(20).standard_normal((3, 4, 2))
by_page, _ = linear.forward(q, k, v, feature_map=exponential, causal=True, eps=0.0)
same(one_maximum(q, k, v), by_page)
print("numbers of size 1, one maximum:", one_maximum(q, k, v)[-1].round(4), " by the page:", by_page[-1].round(4))


# %% [markdown]
# **First trap: one maximum over all keys.** With $r = \max_j a(k_j)$ over the whole sequence nothing overflows. But
# $r$ depends on the future. Let a late key have the exponent 100. Every earlier feature becomes $e^{a - 100}$, which
# float32 holds with few digits ($e^{-87}$ is the smallest number with all of them). For late exponents beyond 104 it
# does not hold it at all. The rows before then divide 0 by 0.
#
# **Second trap: a constant on every feature.** It is meant to prevent the first trap: features of $\varepsilon$ are
# not 0. But once a late key has pushed $e^{a(k_j) - r}$ below $\varepsilon$ for all earlier $j$, *all earlier keys
# have the same features*, $\varepsilon$ in every entry, and with them the same weight. The first output does not move,
# whatever $\varepsilon$ is: it has one key to average over. All others before the late key drift to the plain mean of
# the values so far:
#
# $$o_i = \frac{\sum_{j \le i} \tilde\phi(q_i)^\top \tilde\phi(k_j)\, v_j}
# {\sum_{j \le i} \tilde\phi(q_i)^\top \tilde\phi(k_j)}
# \;\longrightarrow\; \frac1i \sum_{j \le i} v_j$$
#
# **Third trap: a constant in the denominator.** Numerator and denominator are both multiplied by $e^{-r}$, but an
# $\varepsilon$ that is added afterwards is not:
#
# $$\frac{e^{-r} n_i}{e^{-r} d_i + \varepsilon} = \frac{n_i}{d_i + \varepsilon\, e^{r}}$$
#
# The scale no longer cancels. It leaks into the output as an $\varepsilon$ that is $e^r$ times as large: a late key of
# exponent 15, nothing special, multiplies $\varepsilon = 10^{-6}$ by $3 \cdot 10^6$, and all outputs before it shrink.
#
# Take five tokens. Only the *last key* changes from line to line. Neither the first output nor the fourth may change:

# %%
rng = np.random.default_rng(16)
q, k, v = (rng.standard_normal((5, 2)).astype(np.float32) for _ in range(3))
alone = v[0]  # the first token sees itself only: its output is its value
mean_so_far = v[:4].mean(axis=0)
right = linear.forward(q[:4], k[:4], v[:4], feature_map=exponential, causal=True, eps=0)[0][3]
assert round(math.log(np.finfo(np.float32).smallest_normal)) == -87
assert round(math.log(float(np.finfo(np.float32).smallest_subnormal) / 2)) == -104  # what is smaller is rounded to 0

rows, drift = [], []
for late in (0, 5, 10, 15, 20, 50, 90, 100, 103, 110):
    k[-1] = late
    trap_1, trap_2 = one_maximum(q, k, v), one_maximum(q, k, v, on_features=1e-4)
    trap_3 = one_maximum(q, k, v, on_denominator=1e-6)
    ours, _ = linear.forward(q, k, v, feature_map=exponential, causal=True, eps=0)
    np.testing.assert_allclose(ours[0], alone, rtol=4 * EPS_32)
    np.testing.assert_allclose(ours[3], right, rtol=64 * EPS_32)
    np.testing.assert_allclose(trap_2[0], alone, rtol=4 * EPS_32)  # the first output does not move,
    drift.append(np.linalg.norm(trap_2[3] - mean_so_far) / np.linalg.norm(right - mean_so_far))
    rows.append((late, *(f"{x[0]:.4f}" for x in (trap_1[0], trap_2[0], trap_3[0], ours[0]))))
    rows[-1] += tuple(f"{x[0]:.4f}" for x in (trap_1[3], trap_2[3], trap_3[3], ours[3]))
    if late == 100:
        assert abs(trap_1[0] / alone - 1).max() > 1e-3
    if late == 110:
        assert (trap_1[:4] == 0).all()
    if late >= 10:
        assert abs(trap_3[0] / alone - 1).min() > 0.01
assert drift[0] > 0.9  # the fourth does: from its own value
assert max(drift[4:]) < 0.01  # to the mean of the values so far
assert all(later <= earlier + 1e-3 for earlier, later in pairwise(drift))
which = ("1: one maximum", "2: and 1e-4 on features", "3: and 1e-6 below the line", "`linear.forward`")
header = ("exponent of the last key", *(f"first, {x}" for x in which), *(f"fourth, {x}" for x in which))
chapter.table(header, rows)
print(f"mean of the first four values: {mean_so_far[0]:.4f}")

# %% [markdown]
# The first trap springs late, completely, and silently: a denominator of 0 is taken for a query that has seen
# nothing, and the output is 0. The second and the third spring for ordinary keys, at exponents of 10 to 15. With an
# $\varepsilon$ inside, the output depends on how the stabiliser was chosen, so a pass over the whole sequence, chunks
# and single steps would all have to choose it alike. Without an $\varepsilon$ the choice does not matter.
#
# ### What the package does
#
# With an exponential map $\varepsilon$ must be 0, and the scale keeps the denominator away from 0 instead:

# %%
try:
    linear.forward(q, k, v, feature_map=exponential, causal=True, eps=1e-6)
except ValueError as error:
    print(error)
else:
    raise AssertionError("an eps beside a stabiliser was let through")

# %% [markdown]
# And $r$ follows the *running* maximum, as in online softmax (chapter 1). When a key rises above it, $S$ and $Z$ are
# multiplied by $e^{r_{\text{old}} - r_{\text{new}}}$, a factor below 1 that is the same in numerator and denominator.
# This factor is in fact a gate. (Its equations have their own numbers, in the docstring of `exponential.py`.)

# %%
chapter.source(exponential_page.forward, exponential_page.add, doc=False)

# %% [markdown]
# The compiled loops do less: rescaling for every new maximum would cost time, and a key a little above $r$ does no
# harm, because $e^{40} = 2 \cdot 10^{17}$ is far inside the range of float32. There $r$ rises when a key is more than
# 40 above it, and then to that key. Between two rises the causal product is the ordinary one.

# %% [markdown]
# The first exponent of twelve keys climbs by 15 per token, to 165, far beyond float32's 88. The queries' first
# exponent falls as fast, so that no feature drowns the others. Float64 still holds $e^{165}$ and needs no stabiliser,
# so it tells us the true values:


# %%
def draw_steep(seed, n):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((n, width)) for width in (3, 3, 2))
    k[:, 0] += 15.0 * np.arange(n)
    q[:, 0] -= 15.0 * np.arange(n)
    return q, k, v


steep = partial(linear.forward, feature_map=exponential, causal=True, eps=0)
short = [x.astype(np.float32) for x in draw_steep(17, 12)]
q, k, v = (x.astype(np.float64) for x in short)
truth = by_matrix_of(np.exp(q), np.exp(k), v, 0.0)

out, saved = steep(*short)
assert out.dtype == np.float32
same(out, truth, atol=64 * EPS_32)  # exponents between -64 and 64 are rounded by up to 2^-19, 16 eps
state = linear.init_state((), 3, 2, feature_map=exponential, dtype=np.float32)
for t, (q_t, k_t, v_t) in enumerate(zip(*short, strict=True)):
    row, state = linear.step(q_t, k_t, v_t, state, feature_map=exponential, eps=0)
    same(row, truth[t], atol=64 * EPS_32)

same(steep(*short, kernels=jit)[0], truth, atol=64 * EPS_32)

rows = []
for token, (f, r) in enumerate(zip(saved.f, np.maximum.accumulate(k), strict=True), 1):
    rows.append((token, f"{r[0]:.1f}", "none before" if token == 1 else f"{float(f[0]):.1e}"))
assert all(f[0] < 1e-3 for f in saved.f)  # the first feature's r rises with every key
chapter.table(("token", "r of the first feature", "its factor on S and Z before the token"), rows)

# %% [markdown]
# In the backward pass $r$ is a constant: the output does not depend on it. The gradient of a state is multiplied by
# the same factor on its way back, as with a gate.

# %%
assert all(f[0] < 1e-3 for f in steep(*draw_steep(18, 7))[1].f)
report = gradcheck.check_elementwise(steep, linear.backward, *draw_steep(18, 7), rng=np.random.default_rng(19))
print(report)
report.assert_ok()

# %% [markdown]
# ## Exercises
#
# A sheet of homework goes further: `linattn-ref assignment linear --out DIR` (see [the course](README.md)).
#
# **1. The gradient is three causal products.** Write $\mathcal C(X, Y, W)_i = \sum_{j \le i} (x_i^\top y_j)\, w_j$
# for the causal product, so that $O = \mathcal C(\phi(Q), \phi(K), V)$, and $\mathcal R$ for the same with $j \ge i$.
# Express the three gradients by $\mathcal C$ and $\mathcal R$, so that a machine that can only do $\mathcal C$ (and
# turn sequences around) can train.
#
# <details><summary>Solution</summary>
#
# (6) written out is $\nabla_{\phi(q_i)} \ell = \sum_{j \le i} \phi(k_j)\, (v_j^\top G_i)$: the roles are $x = G$,
# $y = V$, $w = \phi(K)$. Likewise (8) is $\sum_{i \ge j} \phi(q_i)\, (G_i^\top v_j)$ and (9) is
# $\sum_{i \ge j} G_i\, (\phi(q_i)^\top \phi(k_j))$. So
#
# $$\nabla_{\phi(Q)} \ell = \mathcal C(G, V, \phi(K)), \qquad \nabla_{\phi(K)} \ell = \mathcal R(V, G, \phi(Q)), \qquad
# \nabla_V \ell = \mathcal R(\phi(K), \phi(Q), G)$$
#
# and $\mathcal R$ is $\mathcal C$ applied to the reversed sequences, then reversed. It costs $6 C M$ multiply-adds per
# row, where Algorithm 1 takes $5 C M$, because both (8) and (9) make $A$.
#
# </details>


# %%
def causal(x, y, w):
    return causal_cost.rows_forward(x, y, w)[0]


def reverse(x, y, w):
    return causal(x[::-1], y[::-1], w[::-1])[::-1]


phi_q, phi_k, v, d_out = draw_inputs(19, 30, 5, 3)
_, saved = causal_cost.rows_forward(phi_q, phi_k, v)
by_algorithm_1 = causal_cost.rows_backward(d_out, saved)
same(causal(d_out, v, phi_k), by_algorithm_1.phi_q)
same(reverse(v, d_out, phi_q), by_algorithm_1.phi_k)
same(reverse(phi_k, phi_q, d_out), by_algorithm_1.v)

costs = [
    causal_cost.multiply_adds(causal, d_out, v, phi_k),
    causal_cost.multiply_adds(reverse, v, d_out, phi_q),
    causal_cost.multiply_adds(reverse, phi_k, phi_q, d_out),
]
assert sum(costs) == 6 * 30 * 5 * 3
assert causal_cost.multiply_adds(lambda *x: causal_cost.rows_backward(x[0], x[1:]), d_out, *saved) == 5 * 30 * 5 * 3
print(f"multiply-adds: {sum(costs)} by three calls, {5 * 30 * 5 * 3} by Algorithm 1")

# %% [markdown]
# **2. The gates' gradient for nothing?** Let $e_i = g_i\, \partial \ell / \partial g_i$ be the gradient with respect
# to $\log g_i$. Show that
#
# $$e_i = e_{i+1} + \phi(q_i)^\top \nabla_{\phi(q_i)} \ell - \phi(k_i)^\top \nabla_{\phi(k_i)} \ell$$
#
# so that, after (6) and (8), a running sum from the end gives all of (13) with no state at all. Yang et al. (2024,
# section 4.3) train their gates this way. When would you not?
#
# <details><summary>Solution</summary>
#
# By (13) and then ($4'$),
# $e_i = \langle A_i, g_i S_{i-1} \rangle = \langle A_i, S_i \rangle - \langle A_i, w_i \phi(k_i) v_i^\top \rangle$.
# The last term is $\phi(k_i)^\top (w_i A_i v_i) = \phi(k_i)^\top \nabla_{\phi(k_i)} \ell$, by (8). In the first, by
# ($7'$),
#
# $$\langle A_i, S_i \rangle = \langle \phi(q_i) G_i^\top, S_i \rangle + \langle g_{i+1} A_{i+1}, S_i \rangle
# = \phi(q_i)^\top S_i G_i + e_{i+1} = \phi(q_i)^\top \nabla_{\phi(q_i)} \ell + e_{i+1}$$
#
# At the end $e_{N+1} = \langle dS_N, S_N \rangle$ with the gradient of the last state, 0 if nothing continued from
# it.
#
# The price: it is $\log g$ that gets its gradient, so $g = 0$ needs another way. And a small number is computed as a
# difference of numbers that are not small. With gates near 0, $e_i$ is of the size of $g_i$. But the sum carries the
# rounding errors of all terms from $i$ to $N$, and these do not fade as the state does. The table below shows it: gates
# of 0.99 lose little, gates of 0.9 one digit, gates of 0.1 two, gates of 0.001 four.
#
# </details>

# %% native="Which of two rounding errors is the larger depends on the order of sums, which is another in a browser."
rows = []
for g in (0.99, 0.9, 0.1, 0.01, 0.001):
    n, gate = 400, np.full(400, g)
    phi_q, phi_k, v, d_out = draw_inputs(20, n, 16, 16)
    errors = []
    for dtype in (np.float64, np.float32):
        arrays = [x.astype(dtype) for x in (d_out, phi_q, phi_k, v, gate)]
        *others, applied = (x.astype(np.float64) for x in (*arrays[:4], np.exp(np.log(arrays[4]))))
        truth = applied * gate_gradient_by_formulas(*others, applied)  # for the numbers that the page works with
        by_page = gated_linear.backward(arrays[0], gated_page(*arrays[1:])[1])
        terms = (arrays[1] * by_page.q).sum(axis=1) - (arrays[2] * by_page.k).sum(axis=1)  # (N,)
        for_nothing = np.cumsum(terms[::-1])[::-1]
        errors += [np.linalg.norm(x[1:] - truth[1:]) / np.linalg.norm(truth) for x in (for_nothing, by_page.log_gate)]
    assert errors[0] < 1e-9  # the formula is right
    rows.append((g, *errors[2:]))
assert rows[0][1] < 2 * rows[0][2]
assert rows[1][1] > 5 * rows[1][2]
assert rows[2][1] > 50 * rows[2][2]
assert rows[4][1] > 5000 * rows[4][2]
chapter.table(("gate", "relative error in float32, by the running sum", "the page"), rows)

# %% [markdown]
# **3. Checkpoints.** A mechanism needs $S_{i-1}$ and $A_i$ at the same position, as (13) does. Noting every $C$-th
# state holds $N / C + C$ of them at most. Find a way that holds about $2 \sqrt N$ whatever $C$ is, and computes every
# $S_i$ at most twice.
#
# <details><summary>Solution</summary>
#
# Run forward and keep $S$ at the start of every block of $B$ rows: $N / B$ states. Then take the blocks from the last
# to the first. In each, run forward again from its start and keep all states of the block, $B$ of them; then go back
# through it with $A$. At most $N / B + B$ states are held, least for $B = \sqrt N$, which makes $2 \sqrt N$.
#
# That is *gradient checkpointing*. It rewinds nothing: every state is computed in the forward direction.
#
# </details>


# %%
def gate_gradient(d_out, phi_q, phi_k, v, gate, block):
    def after(s, i):
        return gate[i] * s + phi_k[i, :, None] * v[i, None, :]  # (4')

    n, s = len(v), np.zeros((phi_k.shape[1], v.shape[1]))
    starts = []
    for i in range(n):
        if i % block == 0:
            starts.append(s)
        s = after(s, i)
    a, d_gate = np.zeros_like(s), np.empty(n)
    for start in reversed(range(0, n, block)):
        rows = range(start, min(start + block, n))
        befores = [starts.pop()]  # S_{i-1} for the rows i of the block
        for i in rows[:-1]:
            befores.append(after(befores[-1], i))
        for i in reversed(rows):
            a = phi_q[i, :, None] * d_out[i, None, :] + (gate[i + 1] * a if i + 1 < n else 0)  # (7')
            d_gate[i] = (a * befores.pop()).sum()  # (13)
    return d_gate


n = 1024
gate = np.random.default_rng(21).uniform(0, 1, n)
phi_q, phi_k, v, d_out = draw_inputs(22, n, 32, 32)
expected = gate_gradient_by_formulas(d_out, phi_q, phi_k, v, gate)
rows, one_state = [], 32 * 32 * 8
for block in (1, 8, 32, 128, 1024):
    np.testing.assert_allclose(gate_gradient(d_out, phi_q, phi_k, v, gate, block), expected, rtol=1e-9, atol=1e-9)
    states_held = n // block + block
    peak = peak_bytes(gate_gradient, d_out, phi_q, phi_k, v, gate, block) / one_state
    np.testing.assert_allclose(peak, states_held, rtol=0.05, atol=12)  # A, the result, parts of sums, array headers
    rows.append((block, states_held, round(peak)))
assert min(rows, key=lambda row: row[2])[0] == 32 == math.isqrt(n)
chapter.table(("block B", "states held, N / B + B", "peak, in states, measured"), rows)

# %% [markdown]
# ## What to remember
#
# - A causal mask on $\phi(Q) \phi(K)^\top$ is a running sum: $S_i = S_{i-1} + \phi(k_i) v_i^\top$,
#   $o_i = S_i^\top \phi(q_i)$. The cost per token is constant. The denominator is just one extra
#   column.
# - $\sum_i \sum_{j \le i} = \sum_j \sum_{i \ge j}$: the gradient of a sum over the past is a sum over the future. $S$
#   runs forward for the queries, $A$ backward for keys and values; neither is kept.
# - Plain automatic differentiation keeps every $S_i$: $C M$ numbers per token, more than the matrix itself for
#   sequences of ordinary length.
# - Algorithm 1, chunks, the masked matrix and steps return the same numbers.
# - Do not rewind and do not divide by gates: compute again. Do not take a maximum over the future, and use no
#   $\varepsilon$ together with a stabiliser, neither on the features nor in the denominator.
#
# **Sources.** Katharopoulos et al. (2020), *Transformers are RNNs*, sections 3.3 and 3.4 and Algorithm 1. Choromanski
# et al. (2021), *Rethinking attention with Performers*, and its code, google-research/performer/fast_attention. Peng et
# al. (2021), *Random feature attention*. Yang et al. (2024), *Gated linear attention transformers with
# hardware-efficient training*. Milakov and Gimelshein (2018), *Online normalizer calculation for softmax*. Griewank and
# Walther (2000), *Revolve: an implementation of checkpointing*.
