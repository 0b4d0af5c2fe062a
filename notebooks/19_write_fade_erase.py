# %% [markdown]
# # 19. Write, fade, erase: what a state can hold
#
# Linear attention only ever adds to its state. What becomes of it when the state may also fade, and correct itself?
#
# The course's sources end in 2021. From 2023 on linear attention came back, in RetNet, Mamba-2, DeltaNet, Gated
# DeltaNet and Kimi Delta Attention. All of them use one or both of two ideas about the state $S$ of $C \times M$
# numbers: it *fades*, and it is *corrected* where it is wrong. In this chapter you will
#
# 1. compute how many keys a sum can hold, and see what a sum gets wrong;
# 2. derive the delta rule as least squares, one equation at a time;
# 3. measure what the delta rule buys and what it does not: with small steps it holds as many keys as a sum, with full
#    steps fewer;
# 4. let the state fade, and start a new document in the middle of a sequence;
# 5. derive the backward pass, and find the delta rule in it again, running backward in time;
# 6. replace the loop over rows by a triangular system of equations for each chunk;
# 7. compute the gradient of the gate from numbers that are available anyway.
#
# You need chapters 7 (the causal product, its gradient, chunks) and 10 (gates). Nothing is trained. Equations with
# letters are this chapter's. Those with numbers are `delta_rule`'s and, from (12) on, `chunked_delta`'s.

# %% jupyter={"source_hidden": true}
import math
from functools import partial

import numpy as np

from linattn_ref import gradcheck
from linattn_ref.attention import chunked_delta, delta, delta_rule, feature_maps, gated_linear, linear
from linattn_ref.attention.parts import decay_gate
from linattn_ref.experiments.measuring.counting import kept_bytes
from linattn_ref.experiments.publishing import chapter
from linattn_ref.experiments.recurrence import write_fade_erase
from linattn_ref.kernels import jit

# Numbers of size 1 that have gone through some hundred roundings of 2.2e-16 each agree to this.
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-12)
rng = np.random.default_rng(0)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


# %% [markdown]
# ## The smallest example, by hand
#
# Take one channel, so that a state is a single number. The key is 1, three times, and the values are 1, 5 and 3.
# After each token the key is read.
#
# | value | sum | fading by one half | delta rule, $\beta = 1$ | delta rule, $\beta = 1/2$ |
# | ---: | ---: | ---: | ---: | ---: |
# | 1 | $0 + 1 = 1$ | $0 + 1 = 1$ | $0 + (1 - 0) = 1$ | $0 + (1 - 0)/2 = 0.5$ |
# | 5 | $1 + 5 = 6$ | $0.5 + 5 = 5.5$ | $1 + (5 - 1) = 5$ | $0.5 + (5 - 0.5)/2 = 2.75$ |
# | 3 | $6 + 3 = 9$ | $2.75 + 3 = 5.75$ | $5 + (3 - 5) = 3$ | $2.75 + (3 - 2.75)/2 = 2.875$ |
#
# In the sum, nothing shows which value was the last. The delta rule with $\beta = 1$ keeps nothing but the last. The
# code agrees:

# %%
key, value = np.ones((3, 1)), np.array([[1.0], [5.0], [3.0]])
by_hand = {
    "sum": gated_linear.forward(key, key, value, np.zeros(3))[0],
    "fading by one half": gated_linear.forward(key, key, value, np.full(3, np.log(0.5)))[0],
    "delta rule, beta = 1": delta.forward(key, key, value, np.ones(3), normalise=False)[0],
    "delta rule, beta = 1/2": delta.forward(key, key, value, np.full(3, 0.5), normalise=False)[0],
}
for rule, found in by_hand.items():
    print(f"{rule:22}", found[:, 0])
same(np.hstack(list(by_hand.values())), [[1, 1, 1, 0.5], [6, 5.5, 5, 2.75], [9, 5.75, 3, 2.875]])

# %% [markdown]
# ## Writing
#
# Take linear attention without its feature map and its denominator: what is left is a memory.
#
# $$S_i = S_{i-1} + k_i v_i^\top, \qquad o_i = S_i^\top q_i \qquad (a)$$
#
# Each token *writes* the value $v_i$ at the key $k_i$; a query *reads* at $q_i$. Read at a key of length 1, after $n$
# tokens:
#
# $$S^\top k_i = v_i + \sum_{j \ne i} (k_j^\top k_i)\, v_j \qquad (b)$$
#
# Orthogonal keys do not disturb each other, but there are only $C$ of them. Random keys of length 1 have $\mathbb E
# (k_j^\top k_i)^2 = 1/C$, so that with values of length 1 the squared error of (b) is $(n - 1)/C$. At $n = C$ the noise
# is as long as the answer.

# %%
C, n = 64, 64
k, v = unit(rng.standard_normal((2, 400, n, C)))
s = k.swapaxes(-1, -2) @ v
error = ((k @ s - v) ** 2).sum(axis=-1).mean()
print(f"squared error of a sum of {n} keys in {C} channels: {error:.3f}; (n - 1) / C = {(n - 1) / C:.3f}")
assert abs(error / ((n - 1) / C) - 1) < 0.02  # (b)

# %% [markdown]
# A sum fails worse when a key *comes back*. If $x = 3$ is followed by $x = 5$, the sum returns 8 for $x$. No query can
# find out which value was last.
#
# ## Erasing: least squares, one equation at a time
#
# What should $S$ satisfy? $S^\top k_i = v_i$ for each token. These are linear equations, $M$ per token, for $C \times
# M$ unknowns. Measure how wrong the state is about token $i$, and in which direction that grows:
#
# $$\ell_i(S) = \tfrac12 \lVert v_i - S^\top k_i \rVert^2, \qquad
# \frac{\partial \ell_i}{\partial S} = -k_i\, (v_i - S^\top k_i)^\top \qquad (c)$$
#
# One step of gradient descent of length $\beta_i$, on the token that has just come in, is the **delta rule**:
#
# $$S_i = S_{i-1} + \beta_i\, k_i\, (v_i - S_{i-1}^\top k_i)^\top \qquad (d)$$
#
# Look first, then write what is missing. With a unit key and $\beta = 1$ the state then returns $v_i$ at $k_i$:
# $S_i^\top k_i = S_{i-1}^\top k_i + (v_i - S_{i-1}^\top k_i)\, k_i^\top k_i = v_i$. And nothing changes at right angles
# to $k_i$. Of all states that satisfy the equation, this one is the nearest to $S_{i-1}$: (d) is a projection. Kaczmarz
# solved systems of equations in this way in 1937, one equation after the other, round and round. Widrow and Hoff's
# filter of 1960 takes the same step.
#
# ![The delta rule, drawn](../figures/schematic_delta.svg)

# %%
before, key, value = rng.standard_normal((C, 3)), unit(rng.standard_normal(C)), rng.standard_normal(3)
_, after = delta.step(key, key, value, delta.State(before), np.array(1.0), normalise=False)
same(after.s.T @ key, value)  # (d): the equation of this token holds
across = np.eye(C) - np.outer(key, key)
same(across @ after.s, across @ before)  # and nothing else has moved
for _ in range(20):  # any other state that satisfies it is further away
    other = after.s + across @ rng.standard_normal((C, 3))
    same(other.T @ key, value)
    assert np.linalg.norm(other - before) > np.linalg.norm(after.s - before)

# Round and round over C/4 equations: Kaczmarz's method finds the solution.
k, v = unit(rng.standard_normal((C // 4, C))), rng.standard_normal((C // 4, 3))
state, distances = delta.init_state((), C, 3), []
for _ in range(40):
    _, saved = delta.forward(k, k, v, np.ones(C // 4), normalise=False, state=state)
    state = saved.state
    distances.append(float(abs(k @ state.s - v).max()))
print("largest error after 1, 10, 20, 40 rounds:", *(f"{distances[r - 1]:.0e}" for r in (1, 10, 20, 40)))
assert distances[-1] < 1e-5 < 0.1 < distances[0]

# %% [markdown]
# What does the delta rule do to the matrix that is applied to the values? Take 40 tokens with only five keys, at right
# angles, which come back again and again; each token asks for the key of the token before it. With $\beta = 1$ every
# row after the first has one entry, at the last token with that key. With a smaller $\beta$, earlier entries fade
# geometrically, each with the number of times that its own key has come back. Move the slider:

# %%
turns = np.random.default_rng(3).integers(5, size=40)
five = np.eye(5)[turns]
asked = np.roll(five, 1, axis=0)  # a query asks for the key of the token before


def panel(axes, step):
    p = delta.matrix(asked, five, np.full(40, float(step)), normalise=False, scale=1.0)
    axes.imshow(p, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
    axes.grid(False)
    axes.set(xlabel="key j", ylabel="query i")
    axes.label_outer()


chapter.explore(
    panel,
    (0.1, 0.5, 1.0, 1.8),
    name="beta",
    slider=(0.05, 0.1, 0.2, 0.5, 0.8, 1.0, 1.2, 1.5, 1.8, 2.0),
    height=0.34,
    sharey=True,
    alt="Lower triangles of weights. beta = 0.1: many faint entries in each row. beta = 1: one entry per row, near the "
    "diagonal. beta = 1.8: entries of both signs",
)
last_only = delta.matrix(asked, five, np.ones(40), normalise=False, scale=1.0)
for i in range(1, 40):
    (seen,) = np.flatnonzero(turns[: i + 1] == turns[i - 1])[-1:]
    same(last_only[i], np.eye(40)[seen])

# %% [markdown]
# Written for $S$ alone, (d) is
#
# $$S_i = (I - \beta_i k_i k_i^\top)\, S_{i-1} + \beta_i k_i v_i^\top \qquad (e)$$
#
# For a key of length 1, the first factor has the eigenvalue $1 - \beta_i$ along the key and 1 across it. For $\beta$ in
# $[0, 2]$ neither is larger than 1 in size: no token magnifies what the state held before. What is *written* can still
# add up, at most $\beta \lVert v \rVert$ per token, so a state grows in proportion to the length at worst. It does so
# with $\beta = 2$ and a single key whose values alternate, 1, -1, 1 and so on: each token flips the state's sign and
# adds 2 to its size. With $\beta = 1$, take keys that are each at right angles to what the state holds. Then its
# squared length grows by $\lVert v \rVert^2$ per token.

# %%
n = 50
along, alternating = np.ones((n, 1)), (-1.0) ** np.arange(n)[:, None]
_, grown = delta.forward(along, along, alternating, np.full(n, 2.0), normalise=False)
print(f"beta = 2, {n} alternating values: the state is {grown.state.s[0, 0]:.0f}")
same(abs(grown.state.s[0, 0]), 2 * n)

state = delta.init_state((), 2, 1)
for _ in range(n):  # a key at right angles to the state, and the value 1
    across_it = np.array([-state.s[1, 0], state.s[0, 0]]) if state.s.any() else np.array([1.0, 0.0])
    _, state = delta.step(across_it, unit(across_it), np.ones(1), state, np.array(1.0), normalise=False)
print(f"beta = 1, {n} keys at right angles to the state: its length is {np.linalg.norm(state.s):.3f}, sqrt({n})")
same(np.linalg.norm(state.s), math.sqrt(n))

# %% [markdown]
# Above $\beta = 1$ one eigenvalue is negative, and a negative number is what it takes to count modulo two. (Grazzi et
# al. 2025 prove that in finite precision positive eigenvalues alone cannot.) Flip the sign for every 1, and leave it
# for every 0. With $\beta = 2$ times the bit, and nothing written, the state is the parity: 1 after an even number of
# ones, $-1$ after an odd number. The cell checks this for 50 random bits:

# %%
bits = rng.integers(2, size=50)
ones = np.ones((50, 1))
start = delta.State(np.ones((1, 1)))
signs, _ = delta.forward(ones, ones, 0 * ones, 2.0 * bits, normalise=False, scale=1.0, state=start)
same(signs[:, 0], (-1.0) ** np.cumsum(bits))
print("bits: ", *(f"{bit:2}" for bit in bits[:12]))
print("state:", *(f"{sign:2.0f}" for sign in signs[:12, 0]))

# %% [markdown]
# ## What does a state hold?
#
# The usual claim is that the delta rule stores more. Let us check. We take random unit keys, $C = M = 64$, and a list
# of 512 values. After everything is written, each key is read. The *error* is squared and relative. The *recall* is the
# share of answers whose nearest value among the 512 is the right one. We compare the sum and the delta rule, first with
# $\beta = 1$, with a sum that fades by $g = 31/32$ per token. (The source below has numbers of its own: (1) is the sum
# (a), (2) the sum that fades, and (3) the delta rule (d).)

# %%
chapter.source(write_fade_erase.answers, doc=False)
held = write_fade_erase.compute()
chapter.table(
    ("error / recall", "add", "fade", "delta rule, beta = 1", "softmax attention"),
    [
        (task, *(f"{x.error:.2f} / {x.recall:.2f}" for x in found.values()), *["–"] * (4 - len(found)))
        for task, found in held.tasks.items()
    ],
)
chapter.show(
    write_fade_erase.draw,
    held,
    alt="Above, left: recall falls with the number of keys, for the sum last, for the delta rule and fading sooner. "
    "Above, right: with a small beta the delta rule's recall is the sum's, with a larger one it falls; the last of "
    "three values is found from beta = 0.3 on. Below, left: 8 keys are kept by the delta rule however often 8 others "
    "are written again, lost by a sum that fades, slowly lost by the sum. Below, right: error against age in a long "
    "stream; the delta rule's rises from 0, the sum's is 16 throughout",
)
once_64, once_128, three_values, others_again, stream = held.tasks.values()
assert three_values["delta"].recall > 0.97
assert three_values["fade"].recall > 0.97
assert abs(three_values["add"].recall - 1 / 3) < 0.05
assert abs(three_values["softmax"].recall - 1 / 3) < 0.05
assert others_again["delta"].recall == 1
assert others_again["fade"].recall < 0.02
assert others_again["add"].recall < 0.75

# %% [markdown]
# **What is written once.** With $\beta = 1$ the delta rule finds *fewer* keys than the sum. It erases a part of old
# keys with each new one that is not orthogonal to them. The sum answers with a vector that is too long, but it still
# points in the right direction for all of them.
#
# Both results need a second look. First, the smaller *error* of the delta rule only shows that the sum is too long.
# Multiply every answer of the sum by one number, the best one, and it errs less than the delta rule with $\beta = 1$:
# with 64 keys $\min_a \mathbb E \lVert a\, S^\top k - v \rVert^2 = 1 - C / (C + n - 1)$, about one half. Second, the
# smaller *recall* comes from $\beta = 1$. With a small $\beta$ hardly anything is erased, (d) is nearly $\beta$ times
# the sum, and its recall is the sum's, or a point more:

# %%
assert once_64["add"].recall > 0.99 > 0.95 > once_64["delta"].recall > 0.8
assert once_128["add"].recall > 0.95 > 0.6 > once_128["delta"].recall
assert once_64["delta"].error < once_64["add"].error
assert all(held.once["add"] >= held.once["delta"])  # at every number of keys

written = write_fade_erase.tokens(np.random.default_rng(7), 64, C, [(64, 1)])
rows = []
for rule in ("add", "delta"):
    answer = write_fade_erase.answers(rule, written.k, written.v, written.k)
    best = (answer * written.v).sum() / (answer**2).sum()
    errors = [write_fade_erase.errors(scale * answer, written.v).mean() for scale in (1, best)]
    rows.append((write_fade_erase.RULES[rule], errors[0], best, errors[1]))
chapter.table(("64 keys once", "error", "best multiple of the answers", "error of that multiple"), rows)
assert rows[0][1] > rows[1][1]  # as they are, the sum has the larger error,
assert rows[0][3] < rows[1][3]  # each with its best scale, the smaller one
assert abs(rows[0][3] - (1 - C / (C + 63))) < 0.01

chapter.table(
    ("recall", "sum", *(f"beta = {beta:g}" for beta in held.betas)),
    [
        *((f"{n} keys once", f"{held.sums[n]:.3f}", *(f"{x:.3f}" for x in held.by_beta[n])) for n in held.by_beta),
        ("32 keys, the last of three values", "–", *(f"{x:.3f}" for x in held.last)),
    ],
)
small = held.betas <= 0.1
for keys, recall in held.by_beta.items():
    assert all(abs(recall[small] - held.sums[keys]) < 0.02)  # as many as the sum
    assert recall[-1] < recall[small].min()  # beta = 1: fewer
(balanced,) = np.flatnonzero(held.betas == 0.3)
assert held.last[balanced] > 0.97 > 0.75 > held.last[small].max()

# %% [markdown]
# So $\beta$ is a choice. A small one keeps as many keys as the sum, and for a key that comes back it returns nearly a
# multiple of the sum of its values. A large one keeps the last value, and fewer keys.
#
# **What is written again.** There are 32 keys with three values each, of which the last counts. A sum answers with the
# sum of the three. Softmax attention without positions answers with the mean, since equal keys have equal weights. Both
# can only guess one of three. The delta rule with $\beta = 1$ answers with the last (the table's last row has the other
# $\beta$). But so does a sum that fades, because here what counts is also what is recent. The two differ when something
# must be *kept* while something else changes: 8 keys are written once, and then 8 others 32 times. Fading forgets by
# the clock. The delta rule erases by the key: the figure shows that it finds the first 8 keys however often the others
# are rewritten.
#
# **A long stream.** After 1024 keys the sum is noise: its squared error is 16 times the square of an answer. The delta
# rule's state reached its limit long ago and stays there. Let $\gamma = 1 - 1/C$, and let $\varepsilon_a$ be the
# squared error at a key $k$ after $a$ others. One more key $k'$ changes the answer by $(k'^\top k)(v' - S^\top k')$. In
# the mean over $k'$, where $k' k'^\top$ is $I/C$, with $\lVert v \rVert = 1$ and a state whose $\lVert S^\top k'
# \rVert^2$ has come to rest at 1 for random keys (and up to terms of $1/C^2$),
#
# $$\mathbb E\, v^\top S^\top k = \gamma^a, \qquad
# \varepsilon_{a+1} = \big(1 - \tfrac2C\big)\, \varepsilon_a + \tfrac1C \big(2 + 2 (1 - \gamma^a)\big), \qquad
# \varepsilon_0 = 0 \qquad (f)$$
#
# whose solution is $\varepsilon_a = 2 (1 - \gamma^a)$, as you can check by putting it in. So the last keys are held
# almost exactly. With $C = 64$ the error passes 1, the error of answering 0, after $C \log 2 = 44$ keys. The next cell
# checks (f), and the curves of the figure against it and the like for the other two rules:

# %%
e = 0.0
for a in range(200):
    same(e, 2 * (1 - (1 - 1 / C) ** a))  # the solution of (f)
    e = (1 - 2 / C) * e + (2 + 2 * (1 - (1 - 1 / C) ** a)) / C
assert stream["delta"].recall == 1
assert stream["add"].recall < 0.2
assert stream["delta"].error < stream["fade"].error < 0.35
for rule, errors in held.stream.items():  # measured, against (f) and its like for the other two
    expected = write_fade_erase.expected_error(rule, held.ages, held.length, held.width)
    np.testing.assert_allclose(errors, expected, rtol=0.2, atol=0.02)
ages = [int(np.argmin(abs(held.ages - age))) for age in (1, 10, 44, 200)]
measured, by_f = held.stream["delta"], write_fade_erase.expected_error("delta", held.ages, held.length, held.width)
chapter.table(
    ("delta rule, keys since", *held.ages[ages]),
    [("squared error", *(f"{measured[i]:.2f}" for i in ages)), ("by (f)", *(f"{by_f[i]:.2f}" for i in ages))],
)

# %% [markdown]
# So **of what is written once, the delta rule holds hardly more than the sum, with any $\beta$: a point with a small
# one, less with a large one. It wins where something is rewritten, and against a sum also on long streams**. A sum that
# fades does as well there: it errs more on the last dozen keys, and less on older ones.
#
# ## Fading
#
# The rest of the chapter puts both ideas together. Take a gate $g_i = \exp(\texttt{log\_gate}_i)$ from 0 to 1, one
# number per token or one for each of the $C$ channels:
#
# $$\tilde S_i = \mathrm{diag}(g_i)\, S_{i-1} \qquad (1)$$
# $$u_i = v_i - \tilde S_i^\top e_i \qquad (2)$$
# $$S_i = \tilde S_i + k_i u_i^\top \qquad (3)$$
# $$o_i = S_i^\top q_i \qquad (4)$$
#
# Fade, look at $e_i$, write, read. Each member of the family fills in $g$, $e$ and $v$. (In Mamba-2, $\Delta$ is a step
# in time made from the token, and $a$ a learned number per head.)
#
# | member | gate | erase $e$ | value |
# | --- | --- | --- | --- |
# | RetNet (Sun et al. 2023), retention alone | $1 - 2^{-5-h}$ for head $h$, fixed | – | $v$ |
# | Mamba-2 (Dao and Gu 2024) | $\exp(-\exp(a)\, \Delta)$, one per head | – | $\Delta v$ |
# | Gated linear attention (Yang et al. 2024) | one per channel | – | $v$ |
# | DeltaNet (Schlag et al. 2021, Yang et al. 2024) | – | $\beta k$ | $\beta v$ |
# | Gated DeltaNet (Yang et al. 2025) | one per head | $\beta k$ | $\beta v$ |
# | Kimi Delta Attention (Kimi Team 2025) | one per channel | $\beta k$ | $\beta v$ |
#
# Two conventions differ from paper to paper, and anyone who compares two implementations has to ask about both.
#
# - *Is the state read before or after it decays?* Here the correction (2) reads $\tilde S_i$, the state after the
#   decay. Gated DeltaNet and Kimi Delta Attention define it so: $I - \beta_t k_t k_t^\top$ multiplies the state that
#   $\alpha_t$ has already multiplied. RWKV-7 (exercise 1) reads $S_{i-1}$. The outputs (4) are those after the write.
# - *Which mask stands in the chunk's output?* Section 3.3 of Gated DeltaNet prints $Q K^\top * M$ with $M$ the causal
#   mask of zeros and ones. It must be the mask that includes the decay, with the ratios $\rho_{ij}$ of (12) below.
#   Readers have asked about both ([mask](https://github.com/NVlabs/GatedDeltaNet/issues/15),
#   [order](https://github.com/fla-org/flash-linear-attention/issues/885)).
#
# There is no denominator. A state that fades needs no mean, and networks that use it normalise the output afterwards.
# Queries and keys of the delta rule are divided by their lengths, and queries by $\sqrt C$ as well. `gated_linear` is
# the first half of the table and `delta` the second. Both run one loop, `delta_rule`. The numbers (1) to (11) are those
# of its docstring. (Two other sources below have numbers of their own. In `delta`, (1) divides queries and keys by
# their lengths, and (2) is this rule, (1) to (4), with the table's $e$ and value. In `decay_gate`, (1) makes a gate
# from the token, and (2) is its gradient.)

# %%
chapter.source(delta_rule.forward, doc=False)
chapter.source(delta.forward, doc=False)

N, C, M = 40, 6, 4
q, k, v, d_out = (rng.standard_normal((N, width)) for width in (C, C, M, M))
beta, log_gate = rng.uniform(0, 1, N), np.log(rng.uniform(0.5, 1, (N, C)))
out, _ = delta.forward(q, k, v, beta, log_gate)
s = np.zeros((C, M))
for i in range(N):
    k_i, q_i = k[i] / np.sqrt(k[i] @ k[i] + 1e-6), q[i] / np.sqrt(q[i] @ q[i] + 1e-6) / math.sqrt(C)
    faded = np.diag(np.exp(log_gate[i])) @ s  # (1)
    u_i = beta[i] * v[i] - faded.T @ (beta[i] * k_i)  # (2)
    s = faded + np.outer(k_i, u_i)  # (3)
    same(out[i], s.T @ q_i)  # (4)
same(out, delta.matrix(q, k, beta, log_gate) @ v)

# The first convention matters: corrected by the state before its decay, the outputs are others.
s, before_decay = np.zeros((C, M)), []
for i in range(N):
    k_i, q_i = k[i] / np.sqrt(k[i] @ k[i] + 1e-6), q[i] / np.sqrt(q[i] @ q[i] + 1e-6) / math.sqrt(C)
    s = np.diag(np.exp(log_gate[i])) @ s + np.outer(k_i, beta[i] * (v[i] - s.T @ k_i))
    before_decay.append(s.T @ q_i)
print(f"the other convention changes outputs by up to {abs(out - before_decay).max():.2f}")
assert abs(out - before_decay).max() > 0.05

# RetNet's gates are numbers; nearly all others are made from the token by a softplus, a step in time, and a rate.
same(np.exp(gated_linear.retention_gate(3))[:, 0], [1 - 1 / 32, 1 - 1 / 64, 1 - 1 / 128])
chapter.source(decay_gate.forward, decay_gate.backward, doc=False)
report = gradcheck.check_elementwise(
    decay_gate.forward, decay_gate.backward, rng.standard_normal((2, 5)), np.array([[0.3]]), np.array([[-0.5]]), rng=1
)
report.assert_ok()

# %% [markdown]
# ### Two documents, one sequence
#
# Training packs documents into sequences of one length, and the second document should not read the first. Softmax
# attention needs a mask for that. Here a gate of 0 does it, `log_gate = -inf` at the first token of a document: the
# state is thrown away. Nothing flows back across such a gate, so each document gets the same gradients as it would
# alone. The gate's own gradient is 0 there:

# %%
packed = log_gate.copy()
packed[25] = -np.inf
out, saved = delta.forward(q, k, v, beta, packed)
gradients = delta.backward(d_out, saved)
for document in (slice(0, 25), slice(25, N)):
    alone, kept = delta.forward(*(x[document] for x in (q, k, v, beta, log_gate)))
    same(out[document], alone)
    for whole, part in zip(gradients[:4], delta.backward(d_out[document], kept)[:4], strict=True):
        same(whole[document], part)
assert not gradients.log_gate[25].any()  # throwing away is not a matter of degree
assert all(np.isfinite(x).all() for x in gradients[:5])
print("first output of the second document, in the sequence:", out[25].round(3), " alone:", alone[0].round(3))
print("largest gradient of the gates at tokens 24, 25 and 26:", *abs(gradients.log_gate[24:27]).max(axis=1).round(3))

# %% [markdown]
# A reset leaves one state, the last document's. Sometimes each document comes with a state and leaves one, for example
# because long documents are read in pieces. Then pass the places where documents begin. `offsets` runs from 0 to $N$,
# and states get a first axis, with one entry per document. Softmax attention, linear attention and this chapter's two
# mechanisms take it.

# %%
offsets = np.array([0, 25, N])
out, saved = delta.forward(q, k, v, beta, log_gate, offsets=offsets)
print("states:", saved.state.s.shape)
for p in range(2):
    document = slice(offsets[p], offsets[p + 1])
    alone, kept = delta.forward(*(x[document] for x in (q, k, v, beta, log_gate)))
    same(out[document], alone)
    same(saved.state.s[p], kept.state.s)

# %% [markdown]
# > **A break.** A state that only adds keeps the sum of all values of a key. The delta rule reads before it writes, so
# > that a key has its latest value, and a gate lets what is old fade. A gate of 0 begins a new document. After the
# > break come the gradients, the chunks that make this as fast as matrix products, states on several machines, and what
# > a token costs.

# %% [markdown]
# ## The backward pass is a delta rule
#
# Let $G_i$ be the gradient of a loss with respect to $o_i$, and $A_i$, $\tilde A_i$, $r_i$ those with respect to
# $S_i$, $\tilde S_i$ and $u_i$. Go through (4) to (1) from the end. $S_i$ is read by the query, and it is what row
# $i + 1$ lets fade:
#
# $$A_i = q_i G_i^\top + \mathrm{diag}(g_{i+1})\, \tilde A_{i+1} \qquad (5)$$
#
# In (3), $u_i$ is written at $k_i$. A change $\delta u$ changes $S_i$ by $k_i \delta u^\top$, and the loss by
# $\langle A_i, k_i \delta u^\top \rangle = (A_i^\top k_i)^\top \delta u$. In (2), $v_i$ enters as it is:
#
# $$r_i = A_i^\top k_i = \frac{\partial \ell}{\partial v_i} \qquad (6)$$
#
# $\tilde S_i$ is used twice, in (3) as it is, and in (2) with $-\tilde S_i^\top e_i$, where a change
# $\delta \tilde S$ costs $-r_i^\top \delta \tilde S^\top e_i = -\langle e_i r_i^\top, \delta \tilde S \rangle$:
#
# $$\tilde A_i = A_i - e_i r_i^\top \qquad (7)$$
#
# Read (6) and (7) again. *Look* at $k_i$, then *erase* along $e_i$ what was found. This is (2) and (3) with $k$ and $e$
# exchanged and time running backward. All that is written is the $q_i G_i^\top$ of (5). What corrects on the way
# forward corrects on the way back. For the same reason no row magnifies the gradient that passes it, as long as $e_i =
# \beta_i k_i$ with a key of length 1 and $0 \le \beta_i \le 2$.

# %%
chapter.source(delta_rule.backward, delta_rule.decayed_states, doc=False)

e = rng.uniform(0, 1, (N, 1)) * unit(k)
inputs = {"q": q, "k": unit(k), "v": v, "erase": e, "log_gate": log_gate}
out, saved = delta_rule.forward(**inputs)
d_v = delta_rule.backward(d_out, saved).v

# The forward pass of the delta rule computes (5)-(7): two rows per token, the last token first. The first row of each
# writes G at q, after the gate of the token behind it; the second looks at k and erases along e.
zeros = np.zeros((N, C))
gate_behind = np.concatenate([np.zeros((1, C)), log_gate[:0:-1]])  # log g_{i+1}, from the end
rows = {
    "q": np.zeros((2 * N, C)),
    "k": np.stack([q[::-1], e[::-1]], axis=1).reshape(2 * N, C),
    "v": np.stack([d_out[::-1], 0 * d_out], axis=1).reshape(2 * N, M),
    "erase": np.stack([zeros, unit(k)[::-1]], axis=1).reshape(2 * N, C),
    "log_gate": np.stack([gate_behind, zeros], axis=1).reshape(2 * N, C),
}
found = delta_rule.forward(**rows)[1].u
same(-found[1::2][::-1], d_v)  # r_i is what the erasing rows find, with its sign turned
print("gradient of the last value, by the rule:", d_v[-1].round(3), " found backward in time:", -found[1].round(3))

# %% [markdown]
# The other three gradients follow from (3), (2) and (4) in the same way. Each takes a state or its gradient:
#
# $$\frac{\partial \ell}{\partial k_i} = A_i u_i \quad (8) \qquad
# \frac{\partial \ell}{\partial e_i} = -\tilde S_i r_i \quad (9) \qquad
# \frac{\partial \ell}{\partial q_i} = S_i G_i \quad (10)$$
#
# The first needs $A$, which runs backward, and $u$; the others need $S$, which runs forward, and $r$. So keep $u$, an
# $N \times M$ array, from the forward pass, and every $C$-th state, together as many numbers. The backward pass
# computes the states between two of these again, $C$ at a time. No state is kept for every row, and none is rewound by
# dividing by a gate.

# %%
_, saved = delta.forward(q, k, v, beta, log_gate)
beyond = kept_bytes(((q, k, v, beta, log_gate), saved)) - kept_bytes((q, k, v, beta, log_gate))
states = len(saved.rule.noted) + 1  # S_0, S_C, ..., and the last
of_states = 8 * states * C * M
print(f"kept beyond the inputs: {states} states of {N}, {of_states} bytes, and rows, {beyond - of_states} bytes")
assert states == math.ceil(N / C) + 1
assert beyond - of_states <= 8 * N * (4 * C + 2 * M)  # q, k, e, v and u as the rule has them, and gates
report = gradcheck.check_elementwise(delta.forward, delta.backward, q, k, v, beta, log_gate, rng=2)
print(report)
report.assert_ok()

# %% [markdown]
# ### The gradient of the gate
#
# By (1), $\partial \ell / \partial g_i$ is the inner product of $\tilde A_i$ and $S_{i-1}$, channel by channel, and
# for the logarithm
#
# $$d_i := \frac{\partial \ell}{\partial \log g_i} = \mathrm{rowsum}(\tilde A_i * \tilde S_i) \qquad (11)$$
#
# ($\mathrm{rowsum}$ leaves one number per channel.) This needs $A$ and $S$ of the same row, and $A$ runs backward. (The
# code has the states anyway, for (9) and (10).) There is a shorter way. Put in (7), then (3):
#
# $$d_i = \mathrm{rowsum}(A_i * \tilde S_i) - e_i * (\tilde S_i r_i)
# = \mathrm{rowsum}(A_i * S_i) - k_i * (A_i u_i) - e_i * (\tilde S_i r_i)$$
#
# The last two terms contain (8) and (9). By (5), the first is $q_i * (S_i G_i)$ plus
# $\mathrm{rowsum}(\mathrm{diag}(g_{i+1})\, \tilde A_{i+1} * S_i)$. Move the gate to $S_i$, which makes the latter
# $\mathrm{rowsum}(\tilde A_{i+1} * \tilde S_{i+1}) = d_{i+1}$:
#
# $$d_i = d_{i+1} + q_i * \frac{\partial \ell}{\partial q_i} + e_i * \frac{\partial \ell}{\partial e_i}
# - k_i * \frac{\partial \ell}{\partial k_i} \qquad (g)$$
#
# The gradient of every gate is a running sum of products that are available anyway. The code does not use it, because
# with strong gates the sum is a small difference of large numbers: at $\log g = -20$ no digit of it is right in
# float32. The identity has a reason. From row $i$ on, multiply one channel of $q$ and $e$ by $t$, and the same channel
# of $k$ by $1/t$. That only changes the scale in which this channel of the state is kept. But what the state held
# before row $i$ is then read $t$ times as large, as if a gate of $t$ stood at row $i$. The cell checks (g), and then
# this reason:

# %%
_, saved = delta_rule.forward(**inputs)
d_q, d_k, _, d_e, d_log_gate, _ = delta_rule.backward(d_out, saved)
own = q * d_q + e * d_e - unit(k) * d_k
same(d_log_gate, np.cumsum(own[::-1], axis=0)[::-1])  # (g)
i, t = 17, 0.8
print(f"gradient of the gates of token {i}:", d_log_gate[i].round(3), " by (g):", own[i:].sum(axis=0).round(3))

# The reason, in numbers.
moved = {name: x.copy() for name, x in inputs.items()}
moved["q"][i:, 2] *= t
moved["erase"][i:, 2] *= t
moved["k"][i:, 2] /= t
gated = {**inputs, "log_gate": log_gate.copy()}
gated["log_gate"][i, 2] += math.log(t)
rescaled, with_gate = (delta_rule.forward(**x)[0] for x in (moved, gated))
same(rescaled, with_gate)
print(f"output {i}, rescaled by {t}:", rescaled[i].round(3), f" with a gate of {t}:", with_gate[i].round(3))

# %% [markdown]
# ## A chunk: a triangular system
#
# Row by row is slow: each row is a product with a vector. Chapter 7 took chunks of $T$ rows and made products of
# matrices. Here row $i$ needs what the rows before it have written, $u_j$, and these are unknown too. Let $S$ be the
# state before the chunk. Within the chunk, let $\rho_{ij} = g_{j+1} * \cdots * g_i$ and $c_i = g_1 * \cdots * g_i$.
# Unroll (1) and (3):
#
# $$\tilde S_i = \mathrm{diag}(c_i)\, S + \sum_{j < i} (\rho_{ij} * k_j)\, u_j^\top$$
#
# and put it into (2). From here on let $A$ hold what row $i$ finds of earlier keys at $e_i$, and $P$ what it finds at
# $q_i$, with 0 elsewhere:
#
# $$A_{ij} = e_i^\top (\rho_{ij} * k_j) \ \text{ for } j < i, \qquad
# P_{ij} = q_i^\top (\rho_{ij} * k_j) \ \text{ for } j \le i \qquad (12)$$
#
# Then, with rows stacked,
#
# $$u_i = v_i - S^\top (c_i * e_i) - \sum_{j < i} A_{ij} u_j \qquad \Longleftrightarrow \qquad
# (I + A)\, U = V - (c * E)\, S \qquad (13)$$
#
# It is a lower triangular system with ones on the diagonal, so it can always be solved, from the first row to the last.
# Once $U$ is known, the rest is linear attention's chunk:
#
# $$O = (c * Q)\, S + P U \quad (14) \qquad S' = c_T * S + (\rho_T * K)^\top U \quad (15)$$
#
# The backward pass is the transpose of each line, in reverse order. That of the system is $(I + A)^\top R = \ldots$,
# solved from the last row to the first. The docstring of `chunked_delta` derives all of it.

# %%
chapter.source(chunked_delta.forward, chunked_delta.solve, doc=False)


def both_passes(page):
    out, saved = page.forward(**inputs)
    gradients = page.backward(d_out, saved, d_state=saved.state)  # a gradient of the last state too
    return (out, saved.u, saved.state.s, *gradients[:5])


for found, expected in zip(both_passes(chunked_delta), both_passes(delta_rule), strict=True):
    same(found, expected)
# rows e_i, keys k_j, gates between: A and its diagonal
faded_keys = gated_linear.matrix(e, unit(k), log_gate, scale=1.0)
system = np.eye(N) + np.tril(faded_keys, -1)
same(system @ saved.u, v)  # (13), the whole sequence as one chunk, from S = 0
same(gated_linear.matrix(q, unit(k), log_gate, scale=1.0) @ saved.u, out)  # (14) with the ratios of gates,
causal = np.tril(q @ unit(k).T) @ saved.u  # and with a mask of zeros and ones, as section 3.3 prints it
print(f"with a mask that does not know of the decay, outputs are off by up to {abs(causal - out).max():.1f}")
assert abs(causal - out).max() > 0.5

# %% [markdown]
# Two backends have the rule compiled, both by chunks. `kernels.jit` is for a CPU. It takes 32 rows per chunk, with
# products and triangular solve in the processor's registers. With one gate for all channels $c_i$ and $\rho_{Ti}$ are
# factors of rows, so nothing of a chunk is copied. `kernels.cuda` is for a GPU, in chunks of 64 rows. Pairs, outputs
# and gradients of all chunks are computed at once. Only (13) and the state of (15) go from chunk to chunk, with one
# block for each 64 columns of a head. (Chapter 16 explains how such kernels are tested without a GPU.) `delta` and
# `gated_linear` are composed of `delta_rule`, so `kernels=jit` reaches them too.
#
# The table below compares the rule with gated linear attention, in which nothing is erased, and with the multiply-adds
# alone. From a record:

# %%
out, saved = delta.forward(q, k, v, beta, log_gate)
fast, kept = delta.forward(q, k, v, beta, log_gate, kernels=jit)
same(fast, out)
for found, expected in zip(delta.backward(d_out, kept)[:5], delta.backward(d_out, saved)[:5], strict=True):
    same(found, expected)

# Compared with gated linear attention, a gate per head: one thread, eight heads of 64, 4096 tokens, float32, kept.
SHOWN = "jit", "gated product", "multiply-adds alone"
rows = [row for row in chapter.record("bench_delta")["results"]["rows"] if row["size"] == 4096]
milliseconds = {(row["task"], row["passes"], row["kernel"]): row["median_ms"] for row in rows}
shown = []
for task in ("delta", "gated delta", "channels"):
    forward, both = ({k: milliseconds[task, p, k] for k in SHOWN} for p in ("forward", "forward + backward"))
    ratios = [forward["jit"] / forward["gated product"]]
    ratios += [(both["jit"] - forward["jit"]) / (both["gated product"] - forward["gated product"])]
    shares = (x["multiply-adds alone"] / x["jit"] for x in (forward, both))
    shown.append((task, *(f"{x:.2f}" for x in ratios), *(f"{x:.0%}" for x in shares)))
chapter.table(("times the gated product", "forward", "backward", "of the limit, forward", "both passes"), shown)

# %% [markdown]
# There are two traps. **Ratios are products.** It looks cheaper to compute $\rho_{ij}$ as $c_i / c_j$, or as the
# exponential of a difference of summed logarithms. But after a gate of 0 both are undefined ($0/0$ and $\infty -
# \infty$), and after a few small gates $c_j$ rounds to 0 in float32 all the same. **No pivots.** A general solver may
# exchange rows. Then a later row, if it is large, takes part in an earlier one. The result is right only up to the
# rounding errors *of the larger row*, and causality is lost.

# %%
gates = np.full(16, 1e-6, np.float32)
c = np.cumprod(gates)
assert c[-1] == 0
with np.errstate(invalid="ignore", divide="ignore"):
    assert np.isnan(c[-1] / c[-2])  # 0/0; the ratio is 1e-6

large = {name: x[:12].copy() for name, x in inputs.items()}
for name in ("k", "erase"):
    large[name][8:] *= 1e12
expected = chunked_delta.forward(**{name: x[:8] for name, x in large.items()})[1].u
np.testing.assert_array_equal(chunked_delta.forward(**large)[1].u[:8], expected)  # not a bit has moved
a = np.tril(gated_linear.matrix(large["erase"], large["k"], large["log_gate"], scale=1.0), -1)
general = np.linalg.solve(np.eye(12) + a, large["v"])
off = abs(general[:8] - expected).max()  # how far depends on the machine
print("first rows by a solver with pivots: off by more than 1e-9:", off > 1e-9)
assert off > 1e-9

# %% [markdown]
# ## States do not add
#
# Linear attention's states are sums, so machines can share a sequence and add up their states (chapter 8). This is not
# possible here: the second piece fades and erases what the first has written. What a piece does to a state is an affine
# map,
#
# $$S' = W S + B, \qquad W_{ab} = W_b W_a, \quad B_{ab} = W_b B_a + B_b \qquad (h)$$
#
# and maps compose, in any grouping. $W$ is what the state $I$ becomes when nothing is written, and $B$ what the state 0
# becomes. The same rule computes both at once, as columns of one state. Backward, a gradient goes through $W^\top$. The
# cell cuts the sequence after token 15 and checks (h), and then the rule token by token:

# %%
tokens = k, v, beta, log_gate
first, second = (delta.summarise(*(x[rows] for x in tokens)) for rows in (slice(0, 15), slice(15, N)))
whole = delta.summarise(*tokens)
for found, expected in zip(delta.combine(first, second), whole, strict=True):
    same(found, expected)  # (h)
print(f"composed, the pieces are the whole; added up, B is off by up to {abs(first.b + second.b - whole.b).max():.2f}")
assert abs(first.b + second.b - whole.b).max() > 0.1  # they do not add
_, saved = delta.forward(q, k, v, beta, log_gate)
same(delta.apply(whole, delta.init_state((), C, M)).s, saved.state.s)
assert np.linalg.svd(whole.w, compute_uv=False).max() < 1  # what was held before does not grow

# Token by token it is a recurrent network of one hidden state per head.
state = delta.init_state((), C, M)
for i in range(N):
    row, state = delta.step(q[i], k[i], v[i], state, beta[i], log_gate[i])
    same(row, delta.forward(q, k, v, beta, log_gate)[0][i])

# %% [markdown]
# ## A step, taken apart
#
# During generation a token brings one row per head, and nearly all the memory that has to be moved is the state: $C M$
# numbers against $3 C + 2 M$. Equations (1)-(4) make $4 C M$ multiply-adds in any order. Each number of the state takes
# one to fade, one to be read at $e$, one to be written, one to be read at $q$. What an order can save is *passes* over
# the state. The equations as they stand make eight, because (1) writes a faded copy and (3) an outer product. Without
# copies there are six. Two rearrangements save more:
#
# $$u = v - S^\top (g * e) \quad (i) \qquad S'^\top q = S^\top (g * q) + (k^\top q)\, u \quad (j)$$
#
# with $S$ the state before the token and $S'$ the one after it. By $(i)$ the decay becomes part of the reading and of
# the writing, and costs no pass. By $(j)$ both readings are of the state *before* the token, so that they share one
# sweep. A second sweep reads and writes. If it follows soon, what it reads is still in the nearest cache.


# %%
def as_written(s, q, k, e, v, g):
    faded = g[:, None] * s  # 1 read, 1 write
    u = v - e @ faded  # 1 read
    after = faded + np.outer(k, u)  # the outer product: 1 write, 1 read; and 1 read, 1 write
    return q @ after, after  # 1 read


def in_place(s, q, k, e, v, g):
    s = s.copy()  # not counted: here the caller's state stays as it was
    s *= g[:, None]  # 1 read, 1 write
    u = v - e @ s  # 1 read
    for row, k_c in zip(s, k, strict=True):
        row += k_c * u  # 1 read, 1 write
    return q @ s, s  # 1 read


def faded_by_the_way(s, q, k, e, v, g):
    u = v - (g * e) @ s  # (i): 1 read
    after = np.array([g_c * row + k_c * u for g_c, k_c, row in zip(g, k, s, strict=True)])  # 1 read, 1 write
    return q @ after, after  # 1 read


def in_two_sweeps(s, q, k, e, v, g):
    at_e, at_q = np.stack([g * e, g * q]) @ s  # (i) and (j): 1 read
    u = v - at_e
    return at_q + (k @ q) * u, np.array([g_c * row + k_c * u for g_c, k_c, row in zip(g, k, s, strict=True)])  # 1, 1


WAYS = {as_written: (5, 3), in_place: (4, 2), faded_by_the_way: (3, 1), in_two_sweeps: (2, 1)}  # reads, writes
draws = np.random.default_rng(0)
token = [draws.standard_normal(size) for size in ((C, M), C, C, C, M)] + [draws.random(C)]
for way in WAYS:
    for found, expected in zip(way(*token), as_written(*token), strict=True):
        same(found, expected)
assert [sum(passes) for passes in WAYS.values()] == [8, 6, 4, 3]

# Kept: eight heads of 128, batch size 16, one thread, float32. The least is to read and write 64 KB per head.
HEAD = 4 * 128 * 128 / 1e3
chapter.table(
    ("order", "reads", "writes", "KB per head", "multiply-adds per number of the state"),
    [(way.__name__.replace("_", " "), *WAYS[way], f"{sum(WAYS[way]) * HEAD:.0f}", 4) for way in WAYS],
)
rows = chapter.record("bench_steps")["results"]["rows"]
rows = [x for x in rows if (x["task"], x["size"], x.get("batch")) == ("gated delta", 128, 16)]
chapter.table(
    ("gated delta, one token", "called as", "µs", "GB of state read and written per second"),
    [
        (x["kernel"], x["what"], f"{1e3 * x['median_ms']:.0f}", f"{2 * 16 * 8 * HEAD / x['median_ms'] / 1e3:.0f}")
        for x in sorted(rows, key=lambda x: -x["median_ms"])
    ],
)

# %% [markdown]
# ## Exercises
#
# A sheet of homework goes further: `linattn-ref assignment delta --out DIR` (see [the course](README.md)).
#
# Here are four more members of the family. `delta_rule` takes any $e$, so that three of them are a call of it.
#
# **1. RWKV-7** (Peng et al. 2025) has the transition $\mathrm{diag}(w) + b\, \alpha^\top$. Here $\alpha$ is a
# normalised key with its sign turned, and $b$ is that key times a rate for each channel (the paper's equation 17). Take
# any two vectors: $S_i = \mathrm{diag}(w_i) S_{i-1} + b_i\, (S_{i-1}^\top \alpha_i)^\top + k_i v_i^\top$. RWKV-7 looks
# at the state *before* it fades. Write this as (1)-(4). How many rows per token does it take?
#
# <details><summary>Solution</summary>
#
# It takes two, as it adds two products of vectors. The first row fades by $w_i$, looks and corrects: key $b_i$, value
# 0, erase $-\alpha_i / w_i$, since $\tilde S^\top (\alpha / w) = S^\top \alpha$. The second writes: key $k_i$, value
# $v_i$, gate 1. The output is that of every second row. The cell compares it with the formula above.
#
# </details>

# %%
w, alpha, b = rng.uniform(0.5, 1, (N, C)), 0.3 * rng.standard_normal((N, C)), 0.3 * rng.standard_normal((N, C))
s, expected = np.zeros((C, M)), []
for i in range(N):
    s = np.diag(w[i]) @ s + np.outer(b[i], s.T @ alpha[i]) + np.outer(k[i], v[i])
    expected.append(s.T @ q[i])


def in_turn(x, y):
    return np.stack([x, y], axis=1).reshape(2 * N, -1)


two_rows = delta_rule.forward(
    q=in_turn(0 * q, q),
    k=in_turn(b, k),
    v=in_turn(0 * v, v),
    erase=in_turn(-alpha / w, 0 * w),
    log_gate=in_turn(np.log(w), 0 * w),
)[0]
np.testing.assert_allclose(two_rows[1::2], expected, rtol=1e-9, atol=1e-9)
print("last output by two rows:", two_rows[-1].round(3), " by the formula:", expected[-1].round(3))

# %% [markdown]
# **2. Gated DeltaNet 2** (Hatamizadeh et al. 2026) has one gate $b_i$ per channel for what is erased and one, $w_i$,
# for what is written: $S_i = (I - k_i (b_i * k_i)^\top)\, \mathrm{diag}(g_i) S_{i-1} + k_i (w_i * v_i)^\top$. Which
# $e$ and which value? When is it Kimi Delta Attention?
#
# <details><summary>Solution</summary>
#
# $e_i = b_i * k_i$ and the value $w_i * v_i$. With $b_i = w_i = \beta_i$ in all channels it is Kimi Delta Attention.
# The cell checks both.
#
# </details>

# %%
erase_gate, write_gate = rng.uniform(size=(N, C)), rng.uniform(size=(N, M))
s, expected = np.zeros((C, M)), []
for i in range(N):
    k_i = unit(k[i])
    s = (np.eye(C) - np.outer(k_i, erase_gate[i] * k_i)) @ np.diag(np.exp(log_gate[i])) @ s
    s += np.outer(k_i, write_gate[i] * v[i])
    expected.append(s.T @ q[i])
two_gates, _ = delta_rule.forward(q, unit(k), write_gate * v, erase_gate * unit(k), log_gate)
one_gate, _ = delta_rule.forward(q, unit(k), beta[:, None] * v, beta[:, None] * unit(k), log_gate)
kimi, _ = delta.forward(q, unit(k), v, beta, log_gate, normalise=False, scale=1.0)
same(two_gates, expected)
same(one_gate, kimi)
print("last output by the rule:", two_gates[-1].round(3), " by the formula:", expected[-1].round(3))
print("both gates equal:", one_gate[-1].round(3), " Kimi Delta Attention:", kimi[-1].round(3))

# %% [markdown]
# **3. Comba** (Hu et al. 2025) looks at the state along a vector $p_i$ of its own, and before the state fades, $u_i =
# \beta_i (v_i - S_{i-1}^\top p_i)$. In flash-linear-attention's layer it is a learned part of the key, $p_i = d\, k_i$
# with one $d$ from 0 to 1 per head. (A multiple of $p_i$ is also subtracted from the query. That changes what is read,
# not the state.) Take no gate. Which eigenvalue does the transition have along the key? What happens for $d = 1/2$ if a
# key is written again and again with the same value?
#
# <details><summary>Solution</summary>
#
# $e_i = \beta_i p_i$ (with a gate, divided by it), and the eigenvalue along $k$ is $1 - \beta d$. With $x = S^\top k$
# the repeated write is $x \leftarrow x + \beta (v - d x)$, which comes to rest at $v / d$: twice the value for $d =
# 1/2$. Comba erases less than it writes, somewhere between the delta rule ($d = 1$) and the sum ($d = 0$). The cell
# checks the case $d = 1/2$.
#
# </details>

# %%
key, value = unit(rng.standard_normal((1, C))).repeat(60, axis=0), rng.standard_normal((1, M)).repeat(60, axis=0)
repeated, _ = delta_rule.forward(key, key, 0.8 * value, 0.8 * 0.5 * key)
same(repeated[-1], 2 * value[0])
print("what is read, in values, after 1, 2, 5 and 60 writes:", *(repeated[[0, 1, 4, 59], 0] / value[0, 0]).round(3))

# %% [markdown]
# **4. Based** (Arora et al. 2024) uses sums, and takes the first terms of the exponential's series as its similarity,
# $1 + q^\top k / \sqrt D + (q^\top k)^2 / 2 D$, together with a small window of softmax attention. Which feature map
# of chapter 6 is that, and how large is the state for $D = 16$? What is gained over a state of $16 \times M$, if the
# entries of keys are drawn from a standard normal distribution, so that keys are about $\sqrt D$ long? And if the same
# keys are divided by their lengths?
#
# <details><summary>Solution</summary>
#
# It is `linear` with `taylor_exp(2)`, where $q$ and $k$ are scaled by $D^{-1/4}$ each. The state has $C = 1 + D + D^2 =
# 273$ channels (or 153, with each pair once). If features are divided by their lengths, the error of (b) is $n - 1$
# times the mean square of $\phi(k_i)^\top \phi(k_j)$. For random directions in 273 channels that would be $1/273$, but
# all features share the constant 1. For keys about $\sqrt D$ long the mean square is about $1/40$. That is less than
# the $1/16$ of the keys themselves, so more keys are held. For keys of length 1 all features are nearly alike, and
# nothing is gained: the error is ten times that of the keys themselves. So there is another answer to a full state than
# to manage it, as the delta rule does. Take a larger one, but do not expect all of its channels to count.
#
# </details>

# %%
D = 16
q_16, k_16 = rng.standard_normal((2, N, D))
phi = feature_maps.taylor_exp(2)
similarity = phi.forward(q_16 / D**0.25)[0] @ phi.forward(k_16 / D**0.25)[0].T
score = q_16 @ k_16.T / math.sqrt(D)
same(similarity, 1 + score + score**2 / 2)
print(f"taylor_exp(2) of width {D}: C = {phi.width(D)}")
weights = np.tril(1 + score + score**2 / 2)
based, _ = linear.forward(q_16 / D**0.25, k_16 / D**0.25, v, feature_map=phi, causal=True)
np.testing.assert_allclose(based, weights @ v / (weights.sum(axis=1, keepdims=True) + 1e-6), atol=1e-9)

n, rows = 64, []
keys, values = rng.standard_normal((200, n, D)), unit(rng.standard_normal((200, n, 64)))
for name, x in {
    "keys": keys,
    "features of keys": phi.forward(keys / D**0.25)[0],
    "features of keys of length 1": phi.forward(unit(keys) / D**0.25)[0],
}.items():
    products = unit(x) @ unit(x).swapaxes(-1, -2)
    square = (products[:, ~np.eye(n, dtype=bool)] ** 2).mean()
    error = ((products @ values - values) ** 2).sum(axis=-1).mean()
    assert abs(error / ((n - 1) * square) - 1) < 0.02  # (b)
    rows.append((name, x.shape[-1], 1 / square, error))
chapter.table((f"{n} keys in a sum", "channels", "channels that count: 1 / mean square", "squared error of (b)"), rows)
of_keys, of_features, of_short = (row[-1] for row in rows)
assert of_features < of_keys / 2 < of_short / 10

# %% [markdown]
# ## What to remember
#
# - A sum of $n$ random keys of length 1 in $C$ channels has the squared error $(n - 1)/C$, and for a key that comes
#   back it returns the sum.
# - The delta rule is one step of least squares on the newest token. With a small $\beta$ it holds as many keys as the
#   sum. With a large one it holds fewer, but the *last* value of each, and the recent keys on a stream of any length.
#   Old keys are erased by new keys that are similar.
# - A gate forgets by the clock, the delta rule by the key. Together they are Gated DeltaNet and Kimi Delta Attention.
# - Backward in time the delta rule is a delta rule with $k$ and $e$ exchanged; keep $u$, and no state per row.
# - Within a chunk it is a triangular system. Ratios of gates are products; the solver must not pivot.
# - The gate's gradient is a running sum of $q * dq + e * de - k * dk$.
# - States of this family compose as affine maps; they do not add.
#
# **Sources.** Kaczmarz (1937), *Angenäherte Auflösung von Systemen linearer Gleichungen*. Widrow and Hoff (1960),
# *Adaptive switching circuits*. Schlag, Irie and Schmidhuber (2021), *Linear transformers are secretly fast weight
# programmers*. Sun et al. (2023), *Retentive network*. Dao and Gu (2024), *Transformers are SSMs*. Yang et al.
# (2024), *Gated linear attention transformers with hardware-efficient training*. Yang et al. (2024), *Parallelizing
# linear transformers with the delta rule over sequence length*. Arora et al. (2024), *Simple linear attention
# language models balance the recall-throughput tradeoff*. Yang, Kautz and Hatamizadeh (2025), *Gated delta networks:
# improving Mamba2 with delta rule*. Grazzi et al. (2025), *Unlocking state-tracking in linear RNNs through negative
# eigenvalues*. Peng et al. (2025), *RWKV-7 "Goose" with expressive dynamic state evolution*. Hu et al. (2025),
# *Improving bilinear RNNs with closed-loop control*. Kimi Team (2025), *Kimi Linear: an expressive, efficient
# attention architecture*. Hatamizadeh, Choi and Kautz (2026), *Gated DeltaNet-2: decoupling erase and write in linear
# attention*.
