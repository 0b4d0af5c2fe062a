# %% [markdown]
# # 18. Training, and what it costs
#
# We have a network and its gradient. How are its parameters moved, where do they start, what is done with sequences
# of different lengths, and where do the time and the memory of a step go?
#
# Chapter 17 took Adam, its warm-up, Glorot's numbers and windows of one length for granted. Here each is taken apart:
#
# 1. gradient descent with momentum, Adam, AdamW: what each makes of a gradient, in numbers that you can check;
# 2. RAdam: the variance that it is derived from, the derivation, and an experiment that contradicts it;
# 3. where to start: variance from layer to layer, predicted and measured in our network;
# 4. mixed lengths: padding, masks, buckets, packing, and how to weight the loss so that the gradient is the right one;
# 5. clipping;
# 6. the time of a step: products, attention, the rest;
# 7. its memory, counted by hand to the byte, and measured.
#
# You need chapter 17; chapter 7 helps. The letters are $p$ parameters, $g$ their gradient, $\eta$ the learning rate,
# $t$ the number of the step, from 1; $B$ sequences of $N$ tokens, width $E$, $H$ heads of $D = E/H$, $L$ blocks.
# Equations are numbered by chapter in the text and by file in the source that is shown.

# %% jupyter={"source_hidden": true}
import gc
import itertools
import math
import statistics
import time
import tracemalloc
from functools import partial

import numba
import numpy as np
from scipy.special import gammaln

from linattn_ref.attention import linear, online_softmax, softmax
from linattn_ref.data import fetch, text
from linattn_ref.experiments.measuring import counting
from linattn_ref.experiments.publishing import chapter, style
from linattn_ref.kernels import jit
from linattn_ref.models import causal, encoder
from linattn_ref.nested import leaves
from linattn_ref.nn import affine, cross_entropy, gelu, mechanism, post_norm, pre_norm
from linattn_ref.op.workspace import workspace
from linattn_ref.training import adam, clip, parameters, radam, schedule, sgd

numba.set_num_threads(1)
# Numbers of size 1 that have gone through some thousand roundings of 2.2e-16 each agree to this.
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-11)

# %% [markdown]
# ## The smallest example, by hand
#
# Take one parameter, $p = 1$, the gradient 5 twice, and the rate 0.1.
#
# | | first step | second step |
# | --- | --- | --- |
# | plain descent | $1 - 0.1 \cdot 5 = 0.5$ | $0.5 - 0.5 = 0$ |
# | momentum $\frac12$ | $1 - 0.5 = 0.5$ | $b = \frac12 \cdot 5 + 5 = 7.5$, $0.5 - 0.75 = -0.25$ |
# | Adam | $m = \sqrt v = 5$: $1 - 0.1 \cdot 5/5 = 0.9$ | 0.8 |
#
# With a gradient of 50, plain descent goes ten times as far, and Adam exactly as far as here.

# %%
for name, rule, options in (
    ("plain descent", sgd, {"momentum": 0.0}),
    ("momentum 1/2", sgd, {"momentum": 0.5}),
    ("Adam", adam, {}),
):
    for slope in (5.0, 50.0):
        p_small, moves = np.array([1.0]), []
        memory = rule.init_state(p_small)
        for _ in range(2):
            memory = rule.step(p_small, np.array([slope]), memory, learning_rate=0.1, **options)
            moves.append(round(p_small.item(), 6))
        print(f"{name}, gradient {slope:g}: {moves}")
assert moves == [0.9, 0.8]

# %% [markdown]
# ## Momentum
#
# Momentum is gradient descent with a memory of the direction in which it was going:
#
# $$b_t = \mu\, b_{t-1} + g_t, \qquad p_t = p_{t-1} - \eta\, b_t \qquad (1)$$
#
# If $g$ stays the same, $b$ grows to $g / (1 - \mu)$: with $\mu = 0.9$ steps become ten times as long. If $g$ changes
# its sign at each step, $b$ is $g / (1 + \mu)$, about half as long. So momentum is fast along a valley and slow across
# it. Across the valley, where the loss is $\tfrac12 \lambda p^2$ and $g = \lambda p$, eliminate $b$ from (1):
#
# $$p_{t+1} = (1 + \mu - \eta \lambda)\, p_t - \mu\, p_{t-1} \qquad (2)$$
#
# Solutions are powers $z^t$ with $z^2 - (1 + \mu - \eta\lambda) z + \mu = 0$. Both roots are inside the unit circle if
# and only if $\mu < 1$ and $|1 + \mu - \eta \lambda| < 1 + \mu$, i.e.
#
# $$\eta < \frac{2 (1 + \mu)}{\lambda} \qquad (3)$$
#
# The steepest direction of the loss limits the rate for all directions. (With `nesterov=True` the step below goes on to
# where momentum alone would lead next; (3) is not for that.) The check below starts at $p = 1$ with $\lambda = 4$ and
# takes 2000 steps, at rates one per cent below (3) and one per cent above:

# %%
chapter.source(sgd.step, doc=False)


# %%
def descend(rate, mu, curvature=4.0, steps=2000):
    p, state = np.ones(1), sgd.init_state(np.ones(1))
    for _ in range(steps):
        state = sgd.step(p, curvature * p, state, learning_rate=rate, momentum=mu)
    return abs(p[0])


rows = []
for mu in (0.0, 0.5, 0.9):
    limit = 2 * (1 + mu) / 4.0
    below, above = descend(0.99 * limit, mu), descend(1.01 * limit, mu)
    rows.append((f"momentum {mu}", limit, f"{below:.0e}", f"{above:.0e}"))
    assert below < 1e-3 < 1 < 1e3 < above  # (3)
chapter.table(("", "limit of the rate", "p after 2000 steps, 1 % below", "1 % above"), rows)

p, state = np.zeros(2), sgd.init_state(np.zeros(2))
for t in range(200):
    before = p.copy()
    state = sgd.step(p, np.array([1.0, (-1.0) ** t]), state, learning_rate=1.0, momentum=0.9)
same(abs(p - before), [1 / (1 - 0.9), 1 / (1 + 0.9)], atol=1e-7)
print("momentum 0.9, steps in rates: {:.2f} if the sign stays, {:.2f} if it changes".format(*abs(p - before)))

# %% [markdown]
# Take a valley, 25 times as steep across as along, and forty steps from the same place at the same rate. Without
# momentum the way along is slow. With too much momentum the path swings:


# %%
def panel(axes, mu):
    p, curvatures, rows = np.array([-8.0, 1.5]), np.array([0.04, 1.0]), []
    state = sgd.init_state(p)
    for _ in range(40):
        rows.append(p.copy())
        state = sgd.step(p, curvatures * p, state, learning_rate=0.8, momentum=float(mu))
    x, y = np.meshgrid(np.linspace(-9, 9, 60), np.linspace(-3, 3, 40))
    axes.contour(x, y, 0.02 * x**2 + 0.5 * y**2, levels=8, colors=style.GREY, linewidths=0.5)
    axes.plot(*np.transpose(rows), ".-", color=style.BLUE)
    axes.set(xlabel="along", ylabel="across")
    axes.label_outer()


chapter.explore(
    panel,
    (0.0, 0.7, 0.95),
    name="momentum",
    slider=(0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99),
    sharey=True,
    alt="Ways down a valley. Without momentum: straight into it, then slowly along. 0.7: along it to the bottom. 0.95: "
    "in wide swings around the bottom",
)

# %% [markdown]
# ## Adam, and AdamW
#
# A transformer has no single curvature. Adam assigns each parameter a rate of its own, from the size of its
# gradients:
#
# $$m_t = \beta_1 m_{t-1} + (1 - \beta_1)\, g_t, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2)\, g_t^2 \qquad (4)$$
# $$p_t = p_{t-1} - \eta\, \frac{m_t / (1 - \beta_1^t)}{\sqrt{v_t / (1 - \beta_2^t)} + \varepsilon} \qquad (5)$$
#
# Both means start from 0. If $\mathbb E\, g^2$ is the same at all steps, $\mathbb E\, v_t = (1 - \beta_2) \sum_{a <
# t} \beta_2^a\, \mathbb E\, g^2 = (1 - \beta_2^t)\, \mathbb E\, g^2$, which the division corrects. This has three
# consequences:
#
# - A gradient a thousand times as large makes the same step. Gradient descent makes one a thousand times as long.
# - The first step is $\eta$ for each parameter, up or down, however large its gradient: $m$ and $\sqrt v$ come from the
#   same single number.
# - If gradients are independent noise, $m_t / (1 - \beta_1^t)$ is a mean of some of them and has, in units of one
#   gradient, the variance
#
# $$\frac{(1 - \beta_1)(1 + \beta_1^t)}{(1 + \beta_1)(1 - \beta_1^t)} \;\to\; \frac{1 - \beta_1}{1 + \beta_1}
# \qquad (6)$$
#
# With $\beta_1 = 0.9$ steps on noise shrink from $\eta$ to $0.23\, \eta$: those at the beginning are the longest.

# %%
chapter.source(adam.step, doc=False)

# %%
rng = np.random.default_rng(0)
gradients = rng.standard_normal((300, 4000))  # of 4000 parameters, independent


def walk(optimiser, gradients, **options):
    p, moves = np.zeros(gradients.shape[1]), []
    state = optimiser.init_state(p)
    for g in gradients:
        before = p.copy()
        state = optimiser.step(p, g, state, **options)
        moves.append(p - before)
    return np.array(moves)


moves = walk(adam, gradients, learning_rate=1.0, eps=0.0)
same(walk(adam, 1000 * gradients, learning_rate=1.0, eps=0.0), moves)
same(walk(sgd, 1000 * gradients, learning_rate=1.0) / 1000, walk(sgd, gradients, learning_rate=1.0))
same(moves[0], -np.sign(gradients[0]))
same(moves[-1].std(), math.sqrt(0.1 / 1.9), atol=0.02)  # (6); v is a mean of 300 squares
print("root mean square of Adam's step 1, 2, 5, 20, 300:", *(f"{moves[t - 1].std():.2f}" for t in (1, 2, 5, 20, 300)))

# %% [markdown]
# **Weight decay** $\lambda$ draws all parameters towards 0, at the rate $\eta \lambda$. If $\lambda p$ is added to the
# gradient, it is divided by $\sqrt v$ together with it. Then a parameter whose gradients are ten times as large decays
# a tenth as fast. AdamW subtracts the decay separately, next to (5):
#
# $$p_t = (1 - \eta \lambda)\, p_{t-1} - \eta\, \frac{m_t / (1 - \beta_1^t)}{\sqrt{v_t / (1 - \beta_2^t)} + \varepsilon}
# \qquad (7)$$
#
# Take two groups of parameters that all start at 1, with gradients that are noise of size 1 and 10. With $\lambda =
# 0.1$ and a thousand steps of $\eta = 10^{-3}$, the decay should leave $e^{-0.1} = 0.905$ of each parameter in both
# groups:

# %%
sizes, rows = np.repeat([1.0, 10.0], 4000), []
for name, decoupled in (("Adam, decay in the gradient", False), ("AdamW", True)):
    p, rng = np.ones(8000), np.random.default_rng(1)
    state = adam.init_state(p)
    for _ in range(1000):
        noise = sizes * rng.standard_normal(8000)
        state = adam.step(p, noise, state, learning_rate=1e-3, weight_decay=0.1, decoupled=decoupled)
    rows.append((name, p[:4000].mean(), p[4000:].mean()))
chapter.table(("mean of p after 1000 steps", "gradients of size 1", "of size 10"), rows)
same(rows[0][1:], np.exp([-0.1, -0.01]), atol=0.01)
same(rows[1][1:], 2 * [(1 - 1e-4) ** 1000], atol=0.005)  # (7)

# %% [markdown]
# ## RAdam: why it warms up by itself
#
# Networks are trained with a warm-up: $\eta$ rises from 0 over some hundreds or thousands of steps. Liu et al. (2020)
# ask why, and answer: because of the *variance of $1/\sqrt v$*. At first $v$ is a mean of very few squares. They may be
# close to 0 by chance, and then $1/\sqrt v$, the rate of that parameter, is as large as you like.
#
# Let $\psi_t = \sqrt{(1 - \beta_2^t) / v_t}$, and let gradients be independent and normal, $g_i \sim N(0, \sigma^2)$,
# as at a random start. If $v_t / (1 - \beta_2^t)$ were a plain mean of $\rho$ squares, it would be $\sigma^2
# \chi^2_\rho / \rho$. The negative moments of $\chi^2$ are known: $\mathbb E (\chi^2_\rho)^{-s} = 2^{-s}\,
# \Gamma(\rho/2 - s) / \Gamma(\rho / 2)$ for $s < \rho/2$. With $s = 1$ and $s = 1/2$ (theorem 1 of the paper, section
# 3.2):
#
# $$\mathrm{Var}\, \psi = \mathbb E\, \psi^2 - (\mathbb E\, \psi)^2 = \frac{1}{\sigma^2} \left( \frac{\rho}{\rho - 2} -
# \frac{\rho}{2} \Big( \frac{\Gamma((\rho - 1)/2)}{\Gamma(\rho/2)} \Big)^2 \right) \qquad (8)$$
#
# For $\rho \le 2$ it is infinite: after one or two steps $\psi$ is unpredictable. (The step itself is not. Its
# numerator $m$ is made of the same gradients, and the first step is exactly $\eta$, as we saw.)
#
# **How many squares is $v$ a mean of?** It weights step $t - a$ with $(1 - \beta_2) \beta_2^a / (1 - \beta_2^t)$. The
# paper (section 4.1) takes as many squares as have the same *centre of mass*. The mean age of $\rho$ squares is
# $(\rho - 1) / 2$; that of the weights, a geometric series, is $\frac{\beta_2}{1 - \beta_2} - \frac{t \beta_2^t}{1 -
# \beta_2^t}$. Setting them equal:
#
# $$\rho_t = \rho_\infty - \frac{2 t \beta_2^t}{1 - \beta_2^t}, \qquad \rho_\infty = \frac{2}{1 - \beta_2} - 1
# \qquad (9)$$
#
# **And the rate?** Multiply the step by $r_t$ such that the variance of $r_t \psi_t$ is at all times what it is at the
# end: $r_t^2\, \mathrm{Var}\, \psi(\rho_t) = \mathrm{Var}\, \psi(\rho_\infty)$. Instead of (8), which is awkward, the
# paper takes the first order of the root (section 4.2): $\mathrm{Var}\, \psi \approx \mathrm{Var}(\psi^2) / (4\,
# \mathbb E\, \psi^2)$. As $\psi^2 \sigma^2 = \rho / \chi^2_\rho$ has the mean $\frac{\rho}{\rho - 2}$ and the variance
# $\frac{2 \rho^2}{(\rho - 2)^2 (\rho - 4)}$,
#
# $$\mathrm{Var}\, \psi \approx \frac{\rho}{2 (\rho - 2)(\rho - 4)\, \sigma^2}, \qquad
# r_t = \sqrt{\frac{(\rho_t - 4)(\rho_t - 2)\, \rho_\infty}{(\rho_\infty - 4)(\rho_\infty - 2)\, \rho_t}} \qquad (10)$$
#
# That is all of RAdam: Adam with the rate $r_t \eta$. As long as $\rho_t$ is small, (10) means nothing, and RAdam takes
# steps of momentum without $v$. The threshold for $\rho_t$ is 4 in the paper. It is 5 in its authors' code and in
# PyTorch, which leaves five such steps. (By default the authors' code takes none of the five: it waits.)

# %%
chapter.source(radam.rectification, radam.step, doc=False)

# %%
BETA, STEPS, DRAWS = 0.999, 3000, 10_000
rho_inf = 2 / (1 - BETA) - 1


def rho(t):
    return rho_inf - 2 * t * BETA**t / (1 - BETA**t)  # (9)


def exact(rho):
    return rho / (rho - 2) - rho / 2 * np.exp(2 * (gammaln((rho - 1) / 2) - gammaln(rho / 2)))  # (8)


def first_order(rho):
    return rho / (2 * (rho - 2) * (rho - 4))  # (10)


for t in (1, 10, 1000):
    ages = np.arange(t)
    weights = (1 - BETA) * BETA**ages / (1 - BETA**t)
    same(weights @ ages, (rho(t) - 1) / 2)  # (9)
same(radam.rectification(1000, BETA), math.sqrt(first_order(rho_inf) / first_order(rho(1000))))  # (10)
assert radam.rectification(5, BETA) is None
assert radam.rectification(6, BETA) < 0.03 < 0.99 < radam.rectification(10_000, BETA)

v, rng, variances = np.zeros(DRAWS), np.random.default_rng(2), []
for t in range(1, STEPS + 1):
    v = BETA * v + (1 - BETA) * rng.standard_normal(DRAWS) ** 2
    variances.append(np.sqrt((1 - BETA**t) / v).var())
steps = np.arange(1, STEPS + 1)
np.testing.assert_allclose(variances[19:], exact(rho(steps[19:])), rtol=0.2)  # ages are not independence: exercise 1
print("first order over exact, at rho = 5, 10, 100:", *(f"{first_order(r) / exact(r):.2f}" for r in (5.0, 10.0, 100.0)))


# %%
def draw_variance():
    figure, (left, right) = style.figure(1, 2, height=0.42)
    late = steps[5:]
    left.loglog(steps, variances, color=style.SKY, label=f"{DRAWS:,} simulated")
    left.loglog(late, exact(rho(late)), "--", color=style.BLUE, label="(8) with (9)")
    left.loglog(late, first_order(rho(late)), ":", color=style.VERMILLION, label="(10), first order")
    left.set(xlabel="step", ylabel=r"variance of $\psi$", ylim=(1e-4, 1e3))
    left.legend()
    right.plot(late, [radam.rectification(t, BETA) for t in late], color=style.VERMILLION, label=r"RAdam, $r_t$")
    right.plot(late, np.sqrt(exact(rho_inf) / exact(rho(late))), "--", color=style.BLUE, label="by (8)")
    right.plot(late, late * (1 - BETA) / 2, ":", color=style.GREY, label=r"$t\,(1 - \beta_2)/2$")
    right.set(xlabel="step", ylabel="share of the rate", ylim=(0, 1))
    right.legend()
    return figure


chapter.show(
    draw_variance,
    alt="Left: the simulated variance falls from beyond a thousand at step 1 like one over the step, on the exact "
    "curve; the first order lies above it up to some thirty steps. Right: three warm-ups; RAdam's rises like a root",
)

# %% [markdown]
# So RAdam's warm-up is as long as $v$'s memory, and nobody has to choose it. It is most careful at the start: at
# $\rho = 5$ the first order overstates the variance more than threefold.
#
# ### Does a network need it?
#
# The data are sentences of film reviews, one character at a time. The network is one that is hard to train: four blocks
# of softmax attention whose norms come *after* each sum (`post_norm`), so that every path through the network is normed
# again and again. Here is one step, for all the runs that follow, and then Adam without a warm-up and with one:

# %%
ALPHABET = "\n abcdefghijklmnopqrstuvwxyz.,'-"
number = {character: i for i, character in enumerate(ALPHABET)}
reviews = text.read_reviews(fetch.open_content(fetch.REVIEWS), source="rotten_tomatoes").documents
sentences = [np.array([number[c] for c in f"\n{line.lower()}\n" if c in number]) for line in reviews]
stream = np.concatenate(sentences)
SIZES = {"tokens": len(ALPHABET), "places": 320, "width": 32, "hidden": 128, "layers": 4}
attention = mechanism.of(softmax, causal=True, kernels=jit)


def gradient_step(params, model, windows):
    """The loss of windows ``(B, N + 1)``, and its gradient."""
    scores, network = causal.forward(windows[:, :-1], params, model)
    loss, surprise = cross_entropy.forward(scores, windows[:, 1:], kernels=jit)
    del scores
    d_scores = cross_entropy.backward(1.0, surprise).scores
    del surprise
    return float(loss), causal.backward(d_scores, network).params


def train(optimiser, rate, *, steps=200, warmup=1, known=0, seed=0, batch=4, length=32):
    """Losses, and the root mean square of each step in units of the rate. First, `known` steps that change v alone."""
    model = causal.Model(attention, 4, block=post_norm)
    flat, params = parameters.flatten(causal.draw(np.random.default_rng(seed), **SIZES))
    rng, state, losses, moves = np.random.default_rng(seed + 6), optimiser.init_state(flat), [], []
    for t in range(-known, steps):
        starts = rng.integers(len(stream) - length, size=batch)
        loss, gradient = gradient_step(params, model, stream[starts[:, None] + np.arange(length + 1)])
        now = schedule.warm_up(t, peak=rate, warmup=warmup) if t >= 0 else 0.0
        if known and t >= 0:
            now /= 1 - 0.9 ** (t + 1)  # m starts here, and its correction with it
        before = flat.copy()
        state = optimiser.step(flat, parameters.flatten(gradient)[0], state, learning_rate=now, kernels=jit)
        if t < 0:
            state.m[:] = 0
        else:
            losses.append(loss)
            moves.append(float(np.sqrt(np.square(flat - before).mean())) / rate)
    return np.array(losses), np.array(moves)


WAYS = {
    "Adam": (adam, {}),
    "Adam, 100 steps of warm-up": (adam, {"warmup": 100}),
    "RAdam": (radam, {}),
    "Adam, v known first": (adam, {"known": 200}),
}
SEEDS = range(3)
runs, middle = {}, {}  # losses and moves; the median of the starts' last losses: a rate this large is near chaos


def run(*names):
    """Train from each start in each of these ways, and show how far steps go and where losses end."""
    rows = []
    for name in names:
        optimiser, options = WAYS[name]
        found = runs[name] = [train(optimiser, 1e-2, seed=seed, **options) for seed in SEEDS]
        moved = np.mean([moves for _, moves in found], axis=0)
        ends = [losses[-20:].mean() for losses, _ in found]
        middle[name] = np.median(ends)
        rows.append((name, *(f"{moved[t - 1]:.3f}" for t in (1, 5, 20, 100)), *(f"{loss:.2f}" for loss in ends)))
    header = [f"moved in step {t}" for t in (1, 5, 20, 100)] + [f"loss, start {i}" for i in SEEDS]
    chapter.table(("rate 0.01", *header), rows)


run("Adam", "Adam, 100 steps of warm-up")
counts = np.bincount(stream) / len(stream)
alone = -(counts[counts > 0] * np.log(counts[counts > 0])).sum()
gentle = train(adam, 1e-3)[0][-20:].mean()
print(f"characters alone, without any context: {alone:.2f}; Adam at a rate of 0.001: {gentle:.2f}")
assert gentle < alone - 0.25  # at 0.001 there was nothing to mend
assert abs(middle["Adam"] - alone) < 0.15  # at 0.01 it learns how often each character occurs, and no more
assert middle["Adam, 100 steps of warm-up"] < alone - 0.25

# %% [markdown]
# Without a warm-up the network falls, within some twenty steps, into a state in which it predicts the same whatever it
# reads, and stays there. Now RAdam, and the paper's own test of its explanation (section 3.1, "Adam-2k"), on a small
# scale: Adam without a warm-up, but first $v$ sees 200 batches before anything is moved, more than the whole warm-up
# above.

# %%
run("RAdam", "Adam, v known first")
assert middle["RAdam"] < alone - 0.25  # it mends it too
assert abs(middle["Adam, v known first"] - alone) < 0.15  # to know v does not


# %%
def draw_runs():
    figure, axes = style.figure(1, 2, height=0.42)
    colours = (style.VERMILLION, style.BLUE, style.GREEN, style.ORANGE)
    for (name, found), colour in zip(runs.items(), colours, strict=True):
        for i, (losses, _) in enumerate(found):
            smooth = np.convolve(losses, np.ones(10) / 10, "valid")
            axes[0].plot(np.arange(10, 201), smooth, "-", color=colour, label=name if i == 0 else None, alpha=0.8)
        axes[1].semilogy(np.arange(1, 201), np.mean([moves for _, moves in found], axis=0), "-", color=colour)
    axes[0].axhline(alone, linestyle="--", color=style.GREY)
    axes[0].set(xlabel="step", ylabel="loss, nats per character", ylim=(2.3, 3.8))
    axes[0].legend()
    axes[1].set(xlabel="step", ylabel="moved, in rates")
    return figure


chapter.show(
    draw_runs,
    alt="Left: losses of three runs each; Adam falls to the loss of characters alone and stays there, with v known "
    "first too; with a warm-up or as RAdam it stays there for a while and then falls below. Right: Adam's steps are "
    "one rate long at first; RAdam's and those of a warm-up begin small",
)

# %% [markdown]
# RAdam does not get lost, and nobody had to choose for how long it takes small steps.
#
# But is the *variance* the reason? In the paper it helped to know $v$ first. Here it does not: the run is lost as
# before. Ma and Yarats (2021) reject the variance as the reason for warm-ups, and name the *size of the steps*. Adam's
# first step is a whole rate for each parameter that has a gradient, and as long as gradients agree from step to step,
# so are the next steps. A warm-up makes these steps small, whatever $1/\sqrt v$ does. They also report that Adam with a
# linear warm-up over $2 / (1 - \beta_2)$ steps, the grey line in the figure of $r_t$, trains almost exactly like RAdam.
# (We did not repeat that.) So RAdam warms up by itself, and that is useful. The reason that it was derived from need
# not be the reason why it works.
#
# > **A break.** Momentum is fast along a valley and slow across it. Adam takes steps of the rate's size, whatever the
# > size of the gradient, and AdamW lets parameters decay separately. RAdam's warm-up follows from $\beta_2$ alone, and
# > it works. Whether it works for the reason from which it was derived is doubtful. After the break come starting
# > values, mixed lengths, clipping, and the time and memory of a step.
#
# ## Where to start
#
# Take an affine layer $y = x W$ of $E$ inputs and $F$ outputs, with entries of $W$ that are independent, with mean 0:
#
# $$\mathbb E\, y_j^2 = E\; \mathrm{Var}\, w\; \overline{x^2}, \qquad
# \mathbb E\, (d x)_i^2 = F\; \mathrm{Var}\, w\; \overline{(d y)^2} \qquad (11)$$
#
# Forward, nothing grows or shrinks with $\mathrm{Var}\, w = 1/E$; backward, with $1/F$. Glorot and Bengio (2010) take
# the compromise $2 / (E + F)$. Numbers that are uniform in $[-a, a]$ have the variance $a^2/3$, so $a = \sqrt{6 / (E +
# F)}$. Twenty layers show what a wrong factor costs:

# %%
chapter.source(affine.draw, doc=False)

# %%
rng, rows = np.random.default_rng(3), []
for factor in (0.5, 1.0, 2.0):
    x, layers = rng.standard_normal((64, 512)), []
    for _ in range(20):
        w, b = affine.draw(512, 512, rng)
        x, saved = affine.forward(x, affine.Params(factor * w, b))
        layers.append(saved)
    d_x = rng.standard_normal((64, 512))
    for saved in reversed(layers):
        d_x = affine.backward(d_x, saved).x
    rows.append((f"{factor} of Glorot's", x.var(), d_x.var(), factor**40))
    np.testing.assert_allclose(
        np.log(rows[-1][1:3]), 40 * math.log(factor), rtol=0, atol=1.0
    )  # (11); 20 random factors
chapter.table(("20 layers of 512", "variance forward", "backward", "by (11)"), rows)

# %% [markdown]
# In a transformer the norms hide this: what a layer reads has variance 1 anyway. But what it *adds* is not normed. With
# norms first, the feed-forward layer reads $\overline{x^2} = 1$, its hidden units have the variance $E \cdot
# \frac{2}{5E} = 0.4$ by (11), and what it adds has
#
# $$4E \cdot \frac{2}{5E} \cdot \mathbb E\, \mathrm{gelu}(\sqrt{0.4}\, z)^2, \qquad z \sim N(0, 1) \qquad (12)$$
#
# whatever the layer. Attention's matrices are square, so (11) leaves a variance of 1. But attention averages, which
# divides the variance by $n$ where it looks at $n$ independent rows, and by 1 where the rows agree. At the bottom the
# rows are independent. Further up they share what the layers below have averaged into all of them. Contributions are
# nearly independent of each other, so variances add up:

# %% native="It looks into what compiled kernels keep, and a browser has no compiler."
SHAPE = {"tokens": 500, "places": 128, "width": 128, "hidden": 512, "layers": 8}
nodes, weights = np.polynomial.hermite_e.hermegauss(80)
bent, _ = gelu.forward(math.sqrt(0.4) * nodes)
stated = 1.6 * (weights @ bent**2) / weights.sum()  # (12)
print(f"stated by (12): {stated:.3f}")


def passes(block):
    """Of a fresh network: what its forward pass keeps, and its gradients."""
    params = causal.draw(np.random.default_rng(4), **SHAPE)
    model = causal.Model(mechanism.of(linear, causal=True, kernels=jit), 4, block=block)
    windows = np.random.default_rng(5).integers(500, size=(4, 129))
    scores, network = causal.forward(windows[:, :-1], params, model)
    _, surprise = cross_entropy.forward(scores, windows[:, 1:])
    gradients = causal.backward(cross_entropy.backward(1.0, surprise).scores, network).params
    return network, gradients


network, gradients = passes(pre_norm)
sums = [x for one in network.blocks for x in (one.norm_1.x, one.norm_2.x)] + [network.norm.x]
added = np.array([(after - before).var() for before, after in itertools.pairwise(sums)])
by_attention, by_feed = added[::2], added[1::2]
np.testing.assert_allclose(by_feed, stated, rtol=0.35)  # (12), in each of eight layers; 128 random columns
assert by_attention[0] < 0.1 < 0.4 < by_attention[1:].min() < by_attention.max() < 1.2
np.testing.assert_allclose(sums[-1].var(), added.sum(), rtol=0.15)
print("added by attention:   ", *(f"{x:.3f}" for x in by_attention))
print("by feed-forward:      ", *(f"{x:.3f}" for x in by_feed))
print(f"from {sums[0].var():.4f} at the bottom to {sums[-1].var():.2f} at the top")
norms = {name: float(np.linalg.norm(x)) for name, x in leaves(gradients)}
longest = max(norms, key=norms.get)
print(f"the longest gradient is that of {longest}: {norms[longest]:.2f}; of the last layer {norms['head.w']:.2f}")
assert longest == "embedding.table"

# %% [markdown]
# Note the bottom layer: embeddings have size 0.02, and a norm stretches them to 1. In the backward pass, it stretches
# their gradient by as much: the table's is the longest of all. That does not matter to Adam, but it does to gradient
# descent and clipping.
#
# ## Mixed lengths
#
# A batch is one array, and sentences are not of one length. There are three ways:
#
# - **Padding**: fill up to the longest. Of $B \max_s n_s$ places, $\sum_s n_s$ are used.
# - **Buckets**: sort by length first, so that sentences of a batch are alike, and shuffle the batches.
# - **Packing**: one sentence after the other in rows of fixed length. Hardly any place is lost, but a sentence must not
#   read the one before. Softmax attention needs a mask of blocks for that; a state has to be thrown away (chapter 19
#   does it by a gate of 0).
#
# What is wasted depends on the attention: linear attention and all matrix products pay for places, softmax attention
# for pairs of places.

# %%
lengths = np.array([len(sentence) - 1 for sentence in sentences])


def shares(rows):
    """Used places, and pairs, of those computed, in batches of 16 padded sentences."""
    batches = rows[: len(rows) // 16 * 16].reshape(-1, 16)
    longest = batches.max(axis=1)
    return batches.sum() / (16 * longest).sum(), (batches**2).sum() / (16 * longest**2).sum()


def pack(rows, size):
    """First fit, the longest first: how full each row is."""
    full = np.zeros(len(rows), int)
    for n in np.sort(rows)[::-1]:
        full[np.argmax(full + n <= size)] += n
    return full[full > 0]


mixed, alike = shares(lengths), shares(np.sort(lengths))
packed = pack(lengths[:2000], 320)
of_pairs = (lengths[:2000] ** 2).sum() / (len(packed) * 320**2)
chapter.table(
    ("used, of what is computed", "places", "pairs"),
    [
        ("padded, in random order", *mixed),
        ("in buckets", *alike),
        ("packed in rows of 320", packed.mean() / 320, of_pairs),
    ],
)
assert mixed[1] < mixed[0] < 0.7 < 0.97 < alike[1] < alike[0]
assert packed.mean() / 320 > 0.97
assert of_pairs < 0.5  # packed, softmax attention needs kernels that skip what the mask forbids

# %% [markdown]
# **What a mask does, and what it costs.** A causal network needs no mask: padding stands at the end, and no query looks
# ahead. Whatever is put there, no score of the sentence changes. (LSH attention is the exception: later keys move those
# before them into other chunks, chapter 14.) A bidirectional network needs `key_mask`. The mask saves nothing: the
# products are computed all the same.

# %%
rng = np.random.default_rng(7)
params = causal.draw(rng, **SIZES)
model = causal.Model(mechanism.of(linear, causal=True), 4, kernels="linattn_ref.kernels.reference")
two = rng.integers(32, size=(2, 20))
two[1, :12] = two[0, :12]  # the same sentence of 12 characters, and after it something else
scores, _ = causal.forward(two, params, model)
same(scores[0, :12], scores[1, :12])

both_ways = encoder.Model(mechanism.of(softmax), 4, kernels="linattn_ref.kernels.reference")
below = encoder.draw(rng, tokens=32, places=20, width=32, hidden=128, layers=2)
mask = np.arange(20) < np.array([[12], [12]])
alone_in_array, _ = encoder.forward(two[:1, :12], below, both_ways)
with_mask, _ = encoder.forward(two, below, both_ways, key_mask=mask)
without, _ = encoder.forward(two, below, both_ways)
same(with_mask[:, :12], np.repeat(alone_in_array, 2, axis=0))
print(f"without the mask off by up to {abs(without[:, :12] - alone_in_array).max():.2f}")
assert abs(without[:, :12] - alone_in_array).max() > 0.1
q, k, v = rng.standard_normal((3, 2, 20, 8))
for module in (linear, softmax):
    costs = [counting.count(partial(module.forward, key_mask=m), q, k, v).multiply_adds for m in (None, mask)]
    assert costs[0] == costs[1]

# %% [markdown]
# **The weights of the loss.** Padded targets have weight 0. The rest is a choice. It may be the mean over all $n$
# tokens, in which a long sentence counts more, or the mean of the sentences' means. But it must not depend on how the
# batch was cut. Suppose that micro-batches of $n_a$ tokens are computed one after the other, and their gradients added
# up. (This is *accumulation*: a large batch in the memory of a small one.) Then
#
# $$\ell = \frac1n \sum_i \ell_i = \sum_a \frac{n_a}{n}\, \ell_a, \qquad \ell_a = \frac{1}{n_a} \sum_{i \in a} \ell_i
# \qquad (13)$$
#
# so the loss of each part gets the share $n_a / n$. With equal shares, one over the number of parts, tokens of short
# sentences count more. The transformers library did that until October 2024 (pull request 34191). The loop of this
# package takes equal shares, which is right for windows of one length, unless a task says what its batches weigh.

# %%
chapter.source(cross_entropy.forward, doc=False)


# %%
def accumulated(parts, share_of):
    """The gradient of several padded batches, each with its share."""
    total, places = parameters.zeros_like(params), 0
    for part in parts:
        longest = max(len(x) for x in part)
        tokens = np.array([np.pad(x, (0, longest - len(x)), constant_values=cross_entropy.IGNORE) for x in part])
        scores, network = causal.forward(np.maximum(tokens[:, :-1], 0), params, model)
        _, surprise = cross_entropy.forward(scores, tokens[:, 1:])
        d_scores = cross_entropy.backward(share_of(part), surprise).scores
        total = parameters.add(total, causal.backward(d_scores, network).params)
        places += tokens[:, 1:].size
    return parameters.flatten(total)[0], places


def tokens_in(part):
    return sum(len(x) - 1 for x in part)


batch = sorted(sentences[:16], key=len)
parts = [batch[i : i + 4] for i in range(0, 16, 4)]
whole, places = accumulated([batch], lambda part: 1.0)
in_parts, fewer = accumulated(parts, lambda part: tokens_in(part) / tokens_in(batch))
mistaken, _ = accumulated(parts, lambda part: 1 / len(parts))
same(in_parts, whole)  # (13)
off = np.linalg.norm(mistaken - whole) / np.linalg.norm(whole)
print(f"{places:,} places in one batch, {fewer:,} in four, the same gradient; with equal shares off by {off:.0%}")
assert fewer < 0.8 * places
assert off > 0.05

# %% [markdown]
# ## Clipping
#
# A gradient that is too long is made shorter, its direction kept:
#
# $$g \leftarrow g\; \min\Big(1, \frac{c}{\lVert g \rVert}\Big) \qquad (14)$$
#
# Adam does not care how long gradients are, so why clip at all? Because Adam remembers. One gradient 100 times as long
# as the others fills $m$ for ten steps, and $v$ for a thousand:

# %%
chapter.source(clip.by_global_norm, doc=False)

# %%
rng = np.random.default_rng(8)
gradients = rng.standard_normal((600, 2000))
gradients[300] *= 100
clipped = gradients.copy()
for g in clipped:
    clip.by_global_norm(g, 1.1 * math.sqrt(2000))
np.testing.assert_allclose(clipped[300] / np.linalg.norm(clipped[300]), gradients[300] / np.linalg.norm(gradients[300]))
sizes = {}
for name, found in (("as it is", gradients), ("clipped", clipped)):
    sizes[name] = walk(adam, found, learning_rate=1.0).std(axis=1)
chosen = (299, 300, 305, 320, 400, 599)
chapter.table(
    ("root mean square of a step, in rates", *(f"step {t + 1}" for t in chosen)),
    [(name, *(float(found[t]) for t in chosen)) for name, found in sizes.items()],
)
assert sizes["as it is"][300] > 5 * sizes["clipped"][300]  # a jump
assert sizes["as it is"][599] < 0.6 * sizes["clipped"][599]  # and then, for long, half a move

# %% [markdown]
# ## The time of a step
#
# Each entry of a matrix is used once per token forward and twice backward, (5) of chapter 17. So with $P$ entries in
# all matrices,
#
# $$\text{multiply-adds of the products} = 3\, P\, B N, \qquad P = 12\, L E^2 + E V \qquad (15)$$
#
# for $V$ scores, and a feed-forward layer that is $4E$ wide. Softmax attention adds two products of $N \times N$ by $D$
# forward and five backward, $7 B L N^2 E$ together, half of which a causal kernel skips. From $N = 72 E / 7 \approx 10
# E$ on, that half is as much as the blocks' $36\, B N L E^2$. Linear attention's multiply-adds per token do not grow
# with $N$ at all. Here multiply-adds are counted while the package's own code runs:

# %%
SMALL = {"tokens": 31, "places": 64, "width": 32, "hidden": 128, "layers": 3}


def counted(module):
    """Multiply-adds of one step, forward and backward, 2 sequences of 64 tokens."""
    counts = counting.Counts()
    flat, params = parameters.flatten(causal.draw(np.random.default_rng(0), **SMALL))
    params = parameters.views(counting.CountedArray.wrap(flat, counts), params)
    model = causal.Model(mechanism.of(module, causal=True), 4, kernels="linattn_ref.kernels.reference")
    windows = np.random.default_rng(1).integers(31, size=(2, 65))
    scores, network = causal.forward(windows[:, :-1], params, model)
    _, surprise = cross_entropy.forward(scores, windows[:, 1:])
    causal.backward(cross_entropy.backward(1.0, surprise).scores, network)
    return counts.multiply_adds


products = 3 * (12 * 3 * 32**2 + 32 * 31) * 2 * 64  # (15)
assert counted(online_softmax) == products + 7 * 2 * 3 * 64**2 * 32  # the page makes the whole matrix
print(f"products {products:,}, softmax attention {counted(online_softmax) - products:,}")

# %% [markdown]
# Counting is not timing: a norm, GELU and Adam have next to no multiply-adds, but they go over all of their memory.
# Here is one step of four blocks of 128 on two sequences of 784 tokens, with its products alone and its attention alone
# for comparison, in CPU time on one thread. The rest is norms, GELU, residuals, cross-entropy, Adam and Python.

# %% native="It times compiled kernels, and a browser has no compiler."
E, N, LAYERS, V = 128, 784, 4, 256
windows = np.random.default_rng(9).integers(V, size=(2, N + 1))


def step_of(module):
    params = causal.draw(
        np.random.default_rng(0), tokens=V, places=N, width=E, hidden=4 * E, layers=LAYERS, dtype=np.float32
    )
    model, state = causal.Model(mechanism.of(module, causal=True, kernels=jit), 4), adam.init_state(params)

    def step():
        nonlocal state
        _, gradient = gradient_step(params, model, windows)
        state = adam.step(params, gradient, state, learning_rate=1e-3, kernels=jit)

    return step


def products_alone():
    shapes = [(E, 3 * E), (E, E), (E, 4 * E), (4 * E, E)] * LAYERS + [(E, V)]
    rows, out = ({n: np.ones((2 * N, n), np.float32) for shape in shapes for n in shape} for _ in range(2))
    matrices = [(np.ones(shape, np.float32), np.empty(shape, np.float32)) for shape in shapes]

    def call():
        for w, d_w in matrices:
            a, b = w.shape
            np.matmul(rows[a], w, out=out[b])
            np.matmul(rows[b], w.T, out=out[a])
            np.matmul(rows[a].T, rows[b], out=d_w)

    return call


def attention_alone(module):
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 4, N, E // 4), np.float32)

    def call():
        for _ in range(LAYERS):
            out, saved = module.forward(q, k, v, causal=True, kernels=jit)
            module.backward(out, saved)

    return call


calls = {"products": products_alone()}
for name, module in (("linear", linear), ("softmax", softmax)):
    calls |= {name: step_of(module), f"{name}, attention": attention_alone(module)}
seconds = {name: [] for name in calls}
for _ in range(6):  # in turn; the first round compiles
    for name, call in calls.items():
        begun = time.process_time()
        call()
        seconds[name].append(time.process_time() - begun)
took = {name: 1e3 * statistics.median(found[1:]) for name, found in seconds.items()}
rows = []
for name in ("linear", "softmax"):
    inside = took["products"], took[f"{name}, attention"]
    rows.append((name, *(f"{x:.0f}" for x in (took[name], *inside, took[name] - sum(inside)))))
chapter.table(("ms", "step", "its products", "its attention", "the rest"), rows)

# %% [markdown]
# How does it compare with PyTorch? The bench takes the same step on both, after the losses of three steps have
# agreed:

# %%
bench = chapter.record("bench_training")["results"]
found = {(row["layers"], row["attention"], row["kernel"]): row for row in bench["rows"]}
rows, of_steps = [], {}
for layers, name in dict.fromkeys(key[:2] for key in found):
    of_step = {kernel: row["ratio_median"] for (*setting, kernel), row in found.items() if setting == [layers, name]}
    of_steps[layers, name] = of_step
    theirs = {kernel: ratio for kernel, ratio in of_step.items() if kernel.startswith("pytorch")}
    best = min(theirs, key=theirs.get)
    milliseconds = found[layers, name, "jit"]["median_ms"]
    products = of_step["its products"], of_step["PyTorch's products"]
    rows.append((f"{layers} layers, {name}", milliseconds, *products, f"{theirs[best]:.2f} ({best})"))
    assert 0.5 < of_step["its products"] < 1 < theirs[best]
    assert of_step["PyTorch's products"] / of_step["its products"] < 1.25
chapter.table(("step", "jit, ms", "its products, of it", "PyTorch's products, of it", "PyTorch's best, times it"), rows)

# %% [markdown]
# Most of a step is products, which nobody can avoid, and PyTorch's products take 14 to 19% longer. Most of what PyTorch
# loses is lost in the rest, where each small operation goes over the memory once more.
#
# ## The memory of a step
#
# Four rows of $P$ numbers are permanent: parameters, gradients, $m$ and $v$. A step adds what the forward pass keeps
# for the backward pass. Count it from the `Saved` of each layer, in numbers per token and block:
#
# | kept | numbers |
# | --- | --- |
# | the sum before each norm, its mean and $s$ | $2E + 4$ |
# | $q, k, v$; linear: $\phi(q)$, $\phi(k)$ and $v$ | $3E$ |
# | what attention outputs, which is also its last layer's input | $E$ |
# | linear: one denominator per head; softmax: largest score and share per head | $H$; $2H$ |
# | what GELU reads | $4E$ |
#
# $$10 E + H + 4 \ \text{ with linear attention, and }\ 10 E + 2 H + 4 \ \text{ with softmax attention} \qquad (16)$$
#
# What costs little to compute again is not kept. Attention and the feed-forward layer read the output of a norm, $2E$:
# that takes one more pass over the sums that are kept. GELU's result and its slope, $8E$, take one more pass of GELU. A
# framework that keeps what each operation needs by itself keeps the outputs of the norms and GELU's result too, $6E$
# more: $16 E$ for softmax. The largest part of what is left, $4E$, belongs to the feed-forward layer. To compute it
# again would take a product, a ninth of all products of the block's step. Chen et al. (2016) compute such things again
# too, in whole networks.
#
# Linear attention also keeps $2 (D^2 + D)$ numbers per head and sequence, two states. (It no longer needs $q$ and
# $k$, and they are freed.) The last norm keeps $E + 2$ per token, the last layer $E$.

# %% native="It looks into what compiled kernels keep, and a browser has no compiler."
B, N, E, H, LAYERS, V = 4, 256, 64, 4, 4, 31
SHAPE = {"tokens": V, "places": N, "width": E, "hidden": 4 * E, "layers": LAYERS}
windows = np.random.default_rng(10).integers(V, size=(B, N + 1))


def by_hand(module):
    """Bytes of Saved, (16), in float32; beside them, the tokens as they came, in int64."""
    heads = H if module is linear else 2 * H
    a_token = LAYERS * (10 * E + heads + 4) + 2 * E + 2
    states = LAYERS * B * 2 * H * ((E // H) ** 2 + E // H) if module is linear else 0
    return 4 * (B * N * a_token + states)


def owner(x):
    """The array whose memory this is a view of."""
    return owner(x.base) if isinstance(x.base, np.ndarray) else x


def arrays_in(saved):
    if isinstance(saved, np.ndarray):
        yield saved
    elif isinstance(saved, tuple):
        for part in saved:
            yield from arrays_in(part)


rows = []
for name, module in (("linear", linear), ("softmax", softmax)):
    model = causal.Model(mechanism.of(module, causal=True, kernels=jit), H)
    flat, params = parameters.flatten(causal.draw(np.random.default_rng(0), **SHAPE, dtype=np.float32))
    causal.forward(windows[:, :-1], params, model)  # compiles
    gc.collect()
    tracemalloc.start()
    scores, network = causal.forward(windows[:, :-1], params, model)
    traced = tracemalloc.get_traced_memory()[0] - scores.nbytes
    tracemalloc.stop()
    owners = {id(x): x for x in map(owner, arrays_in(network))}.values()
    kept = sum(x.nbytes for x in owners if x is not flat and x.dtype == np.float32)
    counted_bytes = by_hand(module)
    rows.append((name, 4 * flat.nbytes, counted_bytes, kept, traced))
    assert kept == counted_bytes  # (16), to the byte
    assert 0 < traced - kept < 60_000  # Python's own objects
header = ("bytes", "parameters, gradients, m, v", "Saved by hand", "its arrays", "tracemalloc")
chapter.table(header, rows)

# %% [markdown]
# The peak of a step is higher. It consists of what the forward pass keeps, scores, their gradient, and what the
# backward pass needs on top, such as the hidden units of one block and their slope, $8E$. Gradients inside a block are
# of no use to the block before, and gradients of parameters arrive as what was kept is freed. The memory of a new array
# is first set to zero by the system, which took an eighth of a step when it was measured. So within a `workspace` the C
# library keeps what is freed:

# %% native="It looks into what compiled kernels keep, and a browser has no compiler."
chapter.source(workspace)
sizes = {}
for batch in (B, B // 2):
    tracemalloc.start()
    gradient_step(params, model, windows[:batch])
    sizes[batch] = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
beyond = sizes[B] - by_hand(softmax)
print(f"at its peak a step takes {sizes[B]:,} bytes, {beyond:,} more than Saved; for half a batch {sizes[B // 2]:,}")
assert 0 < beyond < 2.5 * by_hand(softmax) / LAYERS  # scores and backward pass: about two blocks more
assert abs(sizes[B // 2] / sizes[B] - 0.5) < 0.06  # accumulation: half the batch, half the memory

# %% [markdown]
# How does it compare with PyTorch? The bench measures the most that a process has in memory, beyond what it had before
# the network was built. PyTorch keeps more per token. In both, gradients of parameters arrive in the backward pass,
# while what was kept is freed.

# %%
peak = {(each["attention"], each["kernel"]): each["megabytes"] for each in bench["memory"]}
rows, ratio = [], {}
for name in ("linear", "softmax"):
    theirs = min(mb for (attention, kernel), mb in peak.items() if attention == name and kernel.startswith("pytorch"))
    of_step, ratio[name] = of_steps[8, name], peak[name, "jit"] / theirs
    times = of_step["jit"] / min(t for kernel, t in of_step.items() if kernel.startswith("pytorch"))
    rows.append(
        (f"8 layers, {name}", f"{peak[name, 'jit']:.0f}", f"{theirs:.0f}", f"{ratio[name]:.2f}", f"{times:.2f}")
    )
chapter.table(("step", "MB", "PyTorch's best, MB", "memory over it", "time over PyTorch's best"), rows)
assert ratio["linear"] < 0.8 < ratio["softmax"] < 1

# %% [markdown]
# With softmax attention we need more than nine tenths of PyTorch's memory, in spite of (16). Nearly two fifths of this
# network's memory are the four rows of $P$, which both programs need.
#
# ## Two threads
#
# Products, norms, GELU, attention and Adam are cut into tasks, and the bits do not depend on which thread has which
# task. On a shared machine two threads do not do twice as much, even if their work has nothing in common. So the bench
# also measures that limit: it runs the products of the step once on one thread, and once on each of two at the same
# time.

# %%
rows = [
    (
        f"8 layers, {each['attention']}",
        *(f"{x:.2f}" for x in (each["ratio"], each["limit"], each["ratio"] / each["limit"])),
    )
    for each in bench["threads"]
]
chapter.table(("step", "two threads, times one", "at best", "share"), rows)

# %% [markdown]
# ## Exercises
#
# A sheet of homework goes further: `linattn-ref assignment transformer --out DIR` (see [the course](README.md)).
#
# **1. How many squares?** Equal mean age is one way to say how many squares $v$ is a mean of. Another is equal
# *variance*: a mean of $\rho$ independent squares has $2\sigma^4/\rho$. Which $\rho_t$ follows, what is its limit, and
# which of the two is nearer to the simulation?
#
# <details><summary>Solution</summary>
#
# With weights $w_a$ that sum to 1 the variance is $2 \sigma^4 \sum w_a^2$, so $\rho = 1 / \sum_a w_a^2 = \frac{(1 +
# \beta_2)(1 - \beta_2^t)}{(1 - \beta_2)(1 + \beta_2^t)}$, by two geometric series. The limit is $\frac{1 + \beta_2}{1 -
# \beta_2} = \rho_\infty$, the same. In between this $\rho_t$ is up to 12 per cent larger, and nearer to the simulation.
#
# </details>

# %%
late = steps[99:]
by_variance = rho_inf * (1 - BETA**late) / (1 + BETA**late)
errors = [np.abs(np.array(variances[99:]) / exact(found) - 1).mean() for found in (rho(late), by_variance)]
print(f"off from the simulation: equal age {errors[0]:.1%}, equal variance {errors[1]:.1%}")
assert errors[1] < errors[0] / 2
same(rho_inf, (1 + BETA) / (1 - BETA), atol=1e-9)

# %% [markdown]
# **2. Always clipped.** Every gradient is longer than $c$, and all are clipped to it. What does that change for Adam
# with $c = 1$ against $c = 10^{-3}$, and what for gradient descent?
#
# <details><summary>Solution</summary>
#
# For Adam only the influence of $\varepsilon$ changes: all gradients are a thousandth of what they were, and the steps
# are the same. Gradient descent takes steps of length $\eta c$ for any gradient: $c$ is another name for the rate.
# The cell checks both.
#
# </details>

# %%
ways = []
for limit in (1.0, 1e-3):
    short = 100 * np.random.default_rng(11).standard_normal((50, 300))
    for g in short:
        clip.by_global_norm(g, limit)
    ways.append([walk(adam, short, learning_rate=1.0, eps=0.0), walk(sgd, short, learning_rate=1.0) / limit])
np.testing.assert_allclose(ways[0], ways[1], rtol=1e-6)  # 1e-6 stands in clip's denominator
for limit, (by_adam, by_descent) in zip(("1", "0.001"), ways, strict=True):
    sizes = f"Adam {by_adam[-1].std():.4f}, gradient descent over c {by_descent[-1].std():.4f}"
    print(f"c = {limit}, root mean square of the last step: {sizes}")

# %% [markdown]
# **3. Parameters or tokens.** By (16), how many tokens of a batch make what is kept as large as what stays, $16 P$
# bytes? Take $E = 256$ and softmax attention, and leave out all that is not a block's.
#
# <details><summary>Solution</summary>
#
# A block has $12 E^2$ entries, 16 bytes each with gradient, $m$ and $v$: $192 E^2$. A token keeps about $40 E$ bytes
# per block. So from $4.8 E = 1229$ tokens on, what is kept takes more memory than what stays. Two images of 784 pixels
# are enough. The cell checks the count with a block of the package.
#
# </details>

# %%
block = causal.draw(np.random.default_rng(0), tokens=2, places=2, width=256, hidden=1024, layers=1).blocks[0]
stays = 16 * sum(x.size for _, x in leaves(block))
tokens = stays / (4 * (10 * 256 + 2 * 8 + 4))
print(f"by the block's own arrays {tokens:.0f} tokens; 4.8 E = {4.8 * 256:.0f}")
assert abs(tokens / (4.8 * 256) - 1) < 0.02

# %% [markdown]
# ## What to remember
#
# - Momentum: $\eta < 2 (1 + \mu) / \lambda$. Adam: steps have the rate's size, whatever the gradient's; the decay is
#   separate.
# - RAdam's warm-up follows from $\beta_2$ alone. It works, but a warm-up does more than its derivation says. If a claim
#   can be run, run it.
# - Variance $2/(E + F)$ keeps numbers at their size in both directions; where widths differ it is a compromise.
# - Sort by length; weight parts of a batch by their tokens; a mask costs as much as what it hides.
# - A step takes $3 P B N$ multiply-adds; a block keeps 10 numbers per token and channel, 4 of them the feed-forward
#   layer's.
#
# **Sources.** Kingma and Ba (2015), *Adam*, Algorithm 1. Loshchilov and Hutter (2019), *Decoupled weight decay
# regularization*, Algorithm 2. Liu et al. (2020), *On the variance of the adaptive learning rate and beyond*, sections
# 3.1, 3.2, 4.1 and 4.2. Ma and Yarats (2021), *On the adequacy of untuned warmup for adaptive optimization*, abstract.
# Chen et al. (2016), *Training deep nets with sublinear memory cost*.
# Glorot and Bengio (2010), *Understanding the difficulty of training deep feedforward neural networks*. Hugging Face
# transformers, pull request 34191 (2024), *Fix gradient accumulation issue*.
