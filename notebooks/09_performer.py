# %% [markdown]
# # 9. Performer: softmax attention by random features
#
# Softmax's similarity needs infinitely many features. How good is a random sample of them, which sample is best, and
# how good is the attention that is computed with it?
#
# Chapter 6 briefly introduced random features. The *Performer* (Choromanski et al. 2021) is linear attention with
# them. Here you will
#
# 1. see where random features come from, and estimate four kernels with them (Bochner's theorem);
# 2. derive three unbiased estimators of the softmax kernel, and the mean squared error of each, exactly;
# 3. see why positive features are the ones for attention, and where they fail too;
# 4. derive what orthogonal directions gain, exactly, and how to draw them without a bias;
# 5. derive the gradient through each map, and see that the stabiliser cancels in it;
# 6. run it causally and token by token, and measure its error on a real network.
#
# You need chapters 5 to 7. There are new letters. The random directions $\omega_1 \dots \omega_m$ are the rows of
# $\omega$ $(m, D)$. Each makes one feature or two, so $C = m$ or $2m$.
#
# Equations with numbers are those of the docstring of `linattn_ref.theory.random_features`, whose code is shown with
# them; equations with letters are this chapter's. The code of other files has numbers of its own.

# %% jupyter={"source_hidden": true}
import math
from functools import partial

import numpy as np
import scipy.special

from linattn_ref import gradcheck
from linattn_ref.attention import exponential, feature_maps, feature_maps_random, linear, performer, softmax
from linattn_ref.data.twelve_words import WORDS, vectors
from linattn_ref.experiments.features import random_features, random_features_attention
from linattn_ref.experiments.measuring import heads, pretrained
from linattn_ref.experiments.measuring.counting import count, kept_bytes, peak_bytes
from linattn_ref.experiments.publishing import chapter, style
from linattn_ref.models import bert
from linattn_ref.theory import random_features as rf

# Numbers of size 1 that have gone through some hundred roundings of 2.2e-16 each agree to this.
same = partial(np.testing.assert_allclose, rtol=0, atol=1e-12)
SURE = 1 - 1e-4  # confidence of the intervals below: one in ten thousand misses the truth


def draw_inputs(seed, n, n_keys, d, m, size=0.5):
    """q, k, v and a gradient of the output."""
    rng = np.random.default_rng(seed)
    q, k, v, d_out = (rng.standard_normal(shape) for shape in ((n, d), (n_keys, d), (n_keys, m), (n, m)))
    return size * q, size * k, v, d_out


# %% [markdown]
# ## The smallest example, by hand
#
# In one dimension a positive random feature is $\phi(x) = e^{\omega x - x^2/2}$, with $\omega$ drawn from $N(0, 1)$.
# The product of two of them stands for $e^{q k}$.
#
# - Let $q = 1$ and $k = -1$: $e^{\omega - 1/2}\, e^{-\omega - 1/2} = e^{-1}$. That is exact, whatever $\omega$ is.
# - Let $q = k = 1$: $e^{\omega - 1/2}\, e^{\omega - 1/2} = e^{2 \omega - 1}$ stands for $e = 2.72$. With $\omega = 1$
#   it is 2.72, with $\omega = 0$ it is 0.37, with $\omega = 2$ it is 20.09. It is right on average, and far off in most
#   draws.
#
# So the estimate is good where $q + k$ is small, and bad where it is large:

# %%
for omega_drawn in (0.0, 1.0, 2.0):
    one_feature = feature_maps.favor_positive(np.array([[omega_drawn]]))
    plus, minus = (one_feature.forward(np.array([x]))[0].item() for x in (1.0, -1.0))
    print(f"omega = {omega_drawn:g}: for exp(-1) = 0.37 it has {plus * minus:.2f}, for exp(1) = 2.72 {plus * plus:.2f}")
    same(plus * minus, math.exp(-1))
    same(plus * plus, math.exp(2 * omega_drawn - 1))

# %% [markdown]
# ## Any kernel of $x - y$: Bochner's theorem
#
# Take a kernel that depends on the difference of its arguments only, $\kappa(x - y)$, continuous and with $\kappa(0) =
# 1$. Bochner's theorem (1932) says that it is positive semi-definite *if and only if* it is the Fourier transform of
# a probability distribution. As $\kappa$ is real, the sine part of the transform is 0, and
#
# $$\kappa(x - y) = \mathbb E_\omega \cos \omega^\top (x - y)
# = \mathbb E_\omega \big[\sin \omega^\top x\, \sin \omega^\top y + \cos \omega^\top x\, \cos \omega^\top y\big]
# \qquad (1)$$
#
# One direction is easy to see. $\cos$ of a difference is an inner product of two features, so each draw of $\omega$
# yields a semi-definite kernel, and so does an average of them. The other direction is the theorem: no semi-definite
# kernel of $x - y$ is anything else. And it is a recipe (Rahimi and Recht 2007): draw $m$ directions from that
# distribution, and average.
#
# How far off is the average? Let $\Delta = x - y$. As $\cos^2 u = \frac12 (1 + \cos 2u)$, we have $\mathbb E \cos^2
# \omega^\top \Delta = \frac12 (1 + \kappa(2\Delta))$. So the mean of $m$ independent cosines has the mean squared error
#
# $$\mathrm{MSE} = \frac1m \Big[\frac{1 + \kappa(2 \Delta)}{2} - \kappa(\Delta)^2\Big] \qquad (2)$$
#
# whatever the kernel and its distribution.

# %%
chapter.source(rf.fourier_features, rf.fourier_mse, doc=False)

# %% [markdown]
# Such *random Fourier features* approximate any shift-invariant kernel. The cell takes four of them. For the Gaussian
# kernel, the entries of $\omega$ are normal. For the Laplacian kernel they have a Cauchy distribution, and for the
# Cauchy kernel a Laplace distribution, since transforming twice leads back. The fourth is $\prod_d \sin(\Delta_d) /
# \Delta_d$, for which they are uniform in $[-1, 1]$. This last kernel takes *negative* values: semi-definite is not
# positive (chapter 5), and such a kernel could not yield weights.

# %%
rng = np.random.default_rng(0)
delta, m, trials = np.array([0.8, -0.5, 0.3]), 64, 4000
rows = []
for name, kernel in rf.KERNELS.items():
    x = rng.standard_normal(3)
    omega = kernel.draw(m, 3, rng)
    estimate = rf.fourier_features(x, omega) @ rf.fourier_features(x - delta, omega)
    same(estimate, np.cos(omega @ delta).mean())  # (1): whatever x is

    draws = kernel.draw(trials * m, 3, rng).reshape(trials, m, 3)
    averages = np.cos(draws @ delta).mean(axis=1)
    mean = rf.mean_of(averages, confidence=SURE)
    error = rf.mean_of((averages - kernel.kappa(delta)) ** 2, confidence=SURE)
    assert mean.low <= kernel.kappa(delta) <= mean.high  # claim 37: without bias
    assert error.low <= rf.fourier_mse(kernel, delta, m) <= error.high  # (2)
    rows.append((name, kernel.kappa(delta), mean.mean, rf.fourier_mse(kernel, delta, m), error.mean))
assert rf.KERNELS["sinc"].kappa(np.array([4.0])) < 0
chapter.table(("kernel", "value", "mean estimate", "MSE by (2)", "MSE, measured"), rows)

# %% [markdown]
# ## Three estimators of the softmax kernel
#
# Softmax attention's similarity is $\exp(q^\top k / \sqrt D)$. With the fourth root of $D$ on either side,
#
# $$x = q / D^{1/4}, \qquad y = k / D^{1/4}, \qquad \mathrm{SM}(x, y) = e^{x^\top y} \qquad (a)$$
#
# $\mathrm{SM}$ does not depend on $x - y$ alone, but it is almost a Gaussian kernel:
#
# $$e^{x^\top y} = e^{\frac12 \lVert x \rVert^2 + \frac12 \lVert y \rVert^2}\, e^{-\frac12 \lVert x - y \rVert^2}
# = e^{-\frac12 \lVert x \rVert^2 - \frac12 \lVert y \rVert^2}\, e^{\frac12 \lVert x + y \rVert^2}$$
#
# and both last factors are means over normal $\omega$. For one number $u \sim N(0, \sigma^2)$, complete the square in
# $\int e^{u} e^{-u^2 / 2 \sigma^2} du$ to find $\mathbb E\, e^u = e^{\sigma^2 / 2}$. With $iu$ in place of $u$ this
# becomes $\mathbb E \cos u = e^{-\sigma^2 / 2}$. As $\omega^\top s \sim N(0, \lVert s \rVert^2)$,
#
# $$\mathbb E \cos \omega^\top s = e^{-\frac12 \lVert s \rVert^2}, \qquad
# \mathbb E\, e^{\omega^\top s} = \mathbb E \cosh \omega^\top s = e^{\frac12 \lVert s \rVert^2} \qquad (3)$$
#
# which with $s = x - y$, or with $s = x + y$, makes three maps $\phi$ with
# $\mathbb E\, \phi(x)^\top \phi(y) = \mathrm{SM}(x, y)$:
#
# $$\text{trig:} \quad \frac{e^{\frac12 \lVert x \rVert^2}}{\sqrt m} \big[\sin \omega x,\ \cos \omega x\big] \qquad
# \text{positive:} \quad \frac{e^{-\frac12 \lVert x \rVert^2}}{\sqrt m}\, e^{\omega x} \qquad
# \text{hyperbolic:} \quad \frac{e^{-\frac12 \lVert x \rVert^2}}{\sqrt{2m}} \big[e^{\omega x},\ e^{-\omega x}\big]$$
#
# A fourth map estimates another similarity:
#
# $$\text{relu:} \quad \frac{1}{\sqrt m} \big(\max(\omega x, 0) + 10^{-3}\big)$$

# %%
chapter.source(feature_maps.favor_trig, feature_maps.favor_positive, doc=False)

# %%
x, y = np.array([0.5, 0.1, -0.3, 0.2]), np.array([-0.1, 0.4, 0.2, 0.3])
D, exact = 4, math.exp(x @ y)
directions = rf.draw_directions(16, D, 4000, np.random.default_rng(1))  # 4000 draws of 16
rows = []
for kind in rf.UNBIASED:
    found = rf.mean_of(rf.estimates(kind, x, y, directions), confidence=SURE)
    assert found.low <= exact <= found.high
    rows.append((kind, exact, found.mean, found.high - found.mean))
chapter.table(("kind", "exp(x.y)", "mean estimate", "give or take"), rows)

# %% [markdown]
# ### The mean squared errors
#
# Let $c$ be the factor in front, $e^{\pm\frac12 (\lVert x \rVert^2 + \lVert y \rVert^2)}$. With $m$ independent
# directions, the mean squared error is $\frac{c^2}{m}$ times the variance for one direction. By (3) at $2s$:
#
# $$\mathrm{Var} \cos \omega^\top s = \tfrac12 \big(1 + e^{-2 \lVert s \rVert^2}\big) - e^{-\lVert s \rVert^2}
# = \tfrac12 \big(1 - e^{-\lVert s \rVert^2}\big)^2$$
#
# $$\mathrm{Var}\, e^{\omega^\top s} = e^{2 \lVert s \rVert^2} - e^{\lVert s \rVert^2}
# = e^{2 \lVert s \rVert^2} \big(1 - e^{-\lVert s \rVert^2}\big)$$
#
# $$\mathrm{Var} \cosh \omega^\top s = \tfrac12 \big(1 + e^{2 \lVert s \rVert^2}\big) - e^{\lVert s \rVert^2}
# = \tfrac12 e^{2 \lVert s \rVert^2} \big(1 - e^{-\lVert s \rVert^2}\big)^2$$
#
# Now put $c$ in. For trig $c^2 = e^{\lVert x \rVert^2 + \lVert y \rVert^2} = e^{\lVert x + y \rVert^2}
# \mathrm{SM}^{-2}$, as $\lVert x + y \rVert^2 = \lVert x \rVert^2 + 2 x^\top y + \lVert y \rVert^2$. For the others
# $c^2 = e^{-\lVert x + y \rVert^2} \mathrm{SM}^2$:
#
# $$\mathrm{MSE}(\text{trig}) = \frac{1}{2m}\, e^{\lVert x + y \rVert^2}\, \mathrm{SM}^{-2}
# \big(1 - e^{-\lVert x - y \rVert^2}\big)^2 \qquad (4)$$
#
# $$\mathrm{MSE}(\text{positive}) = \frac1m\, e^{\lVert x + y \rVert^2}\, \mathrm{SM}^{2}
# \big(1 - e^{-\lVert x + y \rVert^2}\big) \qquad (5)$$
#
# $$\mathrm{MSE}(\text{hyperbolic}) = \tfrac12 \big(1 - e^{-\lVert x + y \rVert^2}\big)\,
# \mathrm{MSE}(\text{positive}) \qquad (6)$$
#
# Hyperbolic maps make two features per direction. To compare at equal cost, halve (5). They are still better, by the
# factor $1 - e^{-\lVert x + y \rVert^2}$: $\omega$ and $-\omega$ compensate for each other.

# %%
chapter.source(rf.relative_mse, rf.mse, doc=False)

# %%
rng, rows = np.random.default_rng(2), []
for kind in rf.UNBIASED:
    errors = rf.squared_errors(kind, x, y, 8, trials=20_000, rng=rng)
    found, stated = rf.mean_of(errors, confidence=SURE), rf.mse(kind, x, y, 8)
    assert found.low <= stated <= found.high
    assert found.high - found.low < 0.4 * stated  # so that the line above says something
    rows.append((kind, stated, found.mean, found.low, found.high))
np.testing.assert_allclose(rf.mse("hyperbolic", x, y, 8) / rf.mse("positive", x, y, 16), 1 - np.exp(-(x + y) @ (x + y)))
chapter.table(("kind", "MSE by formula", "measured", "from", "to"), rows)

# %% [markdown]
# ### Why positive
#
# What matters for attention is the error *relative* to the weight. Divide (4) and (5) by $\mathrm{SM}^2$:
#
# $$\text{trig:} \quad \frac{e^{\lVert x - y \rVert^2}}{2m} \big(1 - e^{-\lVert x - y \rVert^2}\big)^2, \qquad
# \text{positive:} \quad \frac{e^{\lVert x + y \rVert^2} - 1}{m} \qquad (b)$$
#
# The first is a function of $\lVert x - y \rVert$ alone, the second of $\lVert x + y \rVert$ alone. Trigonometric
# features are good for a query and a key that are near each other, and fail where they are far apart. For vectors of
# given lengths, that is where the kernel is smallest (Choromanski et al. 2021, section 2.3). Positive ones are just the
# other way round: at $y = -x$ they make no error at all, and they fail where both are long and point the same way.
#
# In attention, most weights are small. A row of a thousand keys adds up nine hundred errors of small weights. If each
# error is larger than its weight and may have either sign, then the denominator may come out near 0, or negative. The
# errors of the few large weights do less harm: such a weight is part of the denominator too, and the quotient never
# exceeds 1. So positive features are the lesser evil, and with them **no weight is ever negative**.

# %%
results = random_features.compute(trials=1000)
chapter.show(
    random_features.draw,
    results,
    alt="Four panels. Relative errors over the angle: trig rises, positive and hyperbolic fall. Over the length all "
    "rise, trig fastest. Orthogonal over independent errors: below 1, and near 1 for long vectors. Four kernels: "
    "errors fall along straight lines as 1 over m.",
)
trig, positive = (results.by_angle[kind].stated for kind in ("trig", "positive"))
assert (np.diff(trig) > 0).all()  # claim 37: the smaller the kernel, the larger its relative error
assert (np.diff(positive) < 0).all()
for name in rf.KERNELS:
    assert abs(random_features.slope(results, name) + 1) < 0.1

turned = np.array([1.5, 0, 0, 0]), np.array([-1.5, 0, 0, 0])  # SM = exp(-2.25) = 0.11
directions = rf.draw_directions(64, D, 2000, np.random.default_rng(3))
negative = {kind: float((rf.estimates(kind, *turned, directions) < 0).mean()) for kind in rf.UNBIASED}
assert 0.4 < negative["trig"] < 0.5
assert negative["positive"] == negative["hyperbolic"] == 0  # claim 38
print(f"a similarity of {math.exp(-2.25):.2f}, 64 directions:", end=" ")
print(f"{negative['trig']:.0%} of its trig estimates are negative")

# %% [markdown]
# The lower left panel belongs to the next section. What do these errors do to a denominator? Take sixty queries and
# keys, make them longer and longer, and use 128 directions. The points are the estimated denominators over the true
# ones. (With long vectors, the estimates from positive features are mostly too low and rarely much too high, as
# averages with heavy tails are. They are never below 0.)


# %%
def draw_denominators(axes, size):
    q, k, _, _ = draw_inputs(4, 60, 60, 16, 4, size)
    x, y = q / 2, k / 2  # 2 = D^(1/4)
    truth = np.exp(x @ y.T).sum(axis=1)
    omega = feature_maps.gaussian(128, 16, np.random.default_rng(5))
    for kind, (colour, marker) in random_features.LOOKS.items():
        phi = performer.KINDS[kind](omega)
        estimate = phi.forward(x)[0] @ phi.forward(y)[0].sum(axis=0)
        axes.plot((estimate / truth)[np.argsort(truth)], marker, color=colour, markersize=3, label=kind)
    axes.axhline(1, color=style.GREY, linewidth=0.8)
    axes.set(xlabel="queries, least denominator first", ylim=(-4, 8))
    axes.legend(loc="upper left")


chapter.explore(
    draw_denominators,
    (0.5, 1.0, 1.4),
    slider=(0.2, 0.3, 0.5, 0.7, 1.0, 1.2, 1.4, 1.7, 2.0),
    name="size of q, k",
    alt="Estimated over true denominators: near 1 for short queries; for long ones trig scatters on both sides of 0",
    sharey=True,
)

# %% [markdown]
# ## Orthogonal directions
#
# Directions that are independent may happen to point the same way, and then one of them is wasted. Draw them
# orthogonal to each other instead, in blocks of $D$, each one alone still from $N(0, I)$: take a random orthogonal
# matrix and give its rows the lengths of normal vectors. Then (3) holds for each row as before, and no estimate is
# biased. But two rows of a block are no longer independent, and the errors change by their covariance.
#
# ### What it gains, exactly
#
# Let $\omega_1, \omega_2$ be two rows of one block: $\omega_i = \ell_i u_i$. The lengths $\ell_i$ are independent
# $\chi$ variables with $D$ degrees of freedom, and $u_1, u_2$ are orthonormal and uniformly distributed. Take a *fixed*
# vector $s = \lVert s \rVert \hat s$ with a unit vector $\hat s$, and look at $u_1^\top \hat s$ and $u_2^\top \hat s$.
# Turning the frame instead of the vector, these are two entries of a uniform unit vector $g / \lVert g \rVert$, $g$
# normal. As the length and the direction of $g$ are independent, $\mathbb E\, g_1^a g_2^b = \mathbb E \lVert g
# \rVert^{a + b}\, \mathbb E\, (u_1^\top \hat s)^a (u_2^\top \hat s)^b$, so
#
# $$\mathbb E\, (\omega_1^\top s)^a (\omega_2^\top s)^b = \lVert s \rVert^{a+b}\,
# \frac{\mathbb E \ell^a\, \mathbb E \ell^b}{\mathbb E \ell^{a+b}}\; \mathbb E\, g_1^a\, \mathbb E\, g_2^b$$
#
# For independent rows the fraction is absent. The expectation is 0 if $a$ or $b$ is odd. For even powers, $\mathbb E\,
# \ell^{2i} = 2^i (D/2)_i$ with $(a)_i = a (a + 1) \cdots (a + i - 1)$, and $\mathbb E\, g_1^{2i} / (2i)! = 1 / (2^i\,
# i!)$. Expand both exponentials, write $t = \lVert s \rVert^2 / 2$, and collect the terms with $i + j = n$. The inner
# sum is Vandermonde's:
#
# $$\mathbb E\, e^{\omega_1^\top s} e^{\omega_2^\top s}
# = \sum_n \frac{t^n}{(D/2)_n} \sum_{i + j = n} \frac{(D/2)_i\, (D/2)_j}{i!\, j!}
# = \sum_n \frac{(D)_n}{(D/2)_n} \frac{t^n}{n!} = {}_1F_1\big(D; \tfrac D2; t\big) \qquad (7)$$
#
# Independent rows have $e^{2t} = \sum_n 2^n t^n / n!$. Since $(D)_n / (D/2)_n = \prod_{i<n} \frac{D + i}{D/2 + i} \le
# 2^n$, term by term, the product is smaller: **the covariance is negative**, and for $m \le D$
#
# $$\mathrm{MSE}(\text{orthogonal}) = \mathrm{MSE}(\text{independent}) - c^2 \Big(1 - \frac1m\Big)
# \big[e^{2t} - {}_1F_1\big(D; \tfrac D2; t\big)\big] \qquad (8)$$
#
# for positive features and for hyperbolic ones, as only even powers count. With more than $D$ directions, only pairs in
# the same block gain. At multiples of $D$ the gain then falls as $1/m$, as the error does, so their ratio stays the
# same. The paper's Theorem 2 is a lower bound of the gain; equation (8) is exact. For trig features, put $-t$ in place
# of $t$: the signs of the sum alternate. The error is then smaller where $\lVert x - y \rVert$ is small, but not
# always.

# %%
t = (x + y) @ (x + y) / 2
terms = [scipy.special.poch(D, n) / scipy.special.poch(D / 2, n) * t**n / math.factorial(n) for n in range(30)]
np.testing.assert_allclose(sum(terms), rf.product_of_orthogonal(t, D), rtol=1e-13)  # (7)
assert all(term <= (2 * t) ** n / math.factorial(n) for n, term in enumerate(terms))

rng, rows = np.random.default_rng(6), []
for kind in rf.UNBIASED:
    errors = rf.squared_errors(kind, x, y, D, trials=6000, rng=rng, orthogonal=True)
    found, stated = rf.mean_of(errors, confidence=SURE), rf.mse(kind, x, y, D, orthogonal=True)
    independent = rf.mse(kind, x, y, D)
    assert found.low <= stated <= found.high  # (8)
    assert stated < independent  # claim 38: orthogonal features lower the variance
    if kind != "positive":  # whose gain here is smaller than what 6000 draws can tell
        assert found.high < independent
    rows.append((kind, independent, stated, found.mean, stated / independent))

both = (x @ x + y @ y) / 2
theorem_2 = 2 * (D - 1) / (D * (D + 2)) * (exact - math.exp(-both)) ** 2
assert rf.mse("positive", x, y, D) - rf.mse("positive", x, y, D, orthogonal=True) > theorem_2 > 0
for s in np.linspace(0.0, 4.0, 81)[:, None] * np.eye(512)[:1]:  # x + y
    independent, orthogonal = (rf.mse("positive", s, 0 * s, 512, orthogonal=each) for each in (False, True))
    assert 2 / 3 * independent <= orthogonal <= independent
far = np.array([2.0, 0, 0, 0]), np.array([-2.0, 0, 0, 0])
assert rf.mse("trig", *far, D, orthogonal=True) > rf.mse("trig", *far, D)  # not always
chapter.table(("kind", "independent", "orthogonal, by (8)", "measured", "ratio"), rows)

# %% [markdown]
# The gain is large for hyperbolic and trig features of short vectors: in the figure above, a twentieth of the error is
# left for $m = D = 64$. For positive features it is modest, at most a third, and largest for $\lVert x + y \rVert$ a
# little above 1. For long vectors, where help is needed most, it fades: both sides of (8) are then dominated by the
# rare draw that is parallel to $s$.
#
# ### How to draw them
#
# The Q of the QR decomposition of a normal matrix is orthogonal. It is *not* uniformly distributed: a decomposition is
# unique only up to signs, and LAPACK chooses those that suit its Householder reflections. Multiply each column of Q by
# the sign of R's diagonal entry (Mezzadri 2007), and Q becomes uniform.

# %%
chapter.source(feature_maps.orthogonal_gaussian, doc=False)

# %% [markdown]
# Compare with and without the signs, for $x = e_1$ and $y = 0$, where $\mathrm{SM} = 1$. Popular code leaves them
# out.

# %%
rng = np.random.default_rng(7)
lengths = np.sqrt(rng.chisquare(D, (20_000, D, 1)))
q_factor, r_factor = np.linalg.qr(rng.standard_normal((20_000, D, D)))
signs = np.sign(np.diagonal(r_factor, axis1=1, axis2=2))[:, None, :]
unit, zero = np.eye(D)[0], np.zeros(D)
with_signs = rf.mean_of(rf.estimates("positive", unit, zero, lengths * q_factor * signs), confidence=SURE)
without = rf.mean_of(rf.estimates("positive", unit, zero, lengths * q_factor), confidence=SURE)
print(f"mean estimate of 1: {with_signs.mean:.3f} with the signs, {without.mean:.3f} without")
assert with_signs.low <= 1 <= with_signs.high
assert abs(without.mean - 1) > 0.15
assert not without.low <= 1 <= without.high

# %% [markdown]
# There is a second rule for the lengths: all are $\sqrt D$ (`regular=True`). Then $\ell$ is not a $\chi$ variable, (3)
# no longer holds, and the mean is ${}_0F_1(; \frac D2; \frac D4 \lVert s \rVert^2) < e^{\lVert s \rVert^2 / 2}$. This
# is a bias of the order $1/D$. In return the estimates spread less, as no direction is long. Attention divides by an
# estimate of the same kind, so that part of the bias cancels; below, on a real network, these are the best of the
# positive ones.

# %%
regular = rf.draw_directions(D, D, 6000, np.random.default_rng(8), orthogonal=True, regular=True)
found = rf.mean_of(rf.estimates("hyperbolic", x, y, regular), confidence=SURE)
assert found.low <= rf.regular_mean(x, y) <= found.high < exact

orthogonal = rf.draw_directions(D, D, 6000, np.random.default_rng(8), orthogonal=True)
rows = []
for name, directions in (("chi-distributed", orthogonal), ("all the root of D", regular)):
    positive = rf.estimates("positive", x, y, directions)
    rows.append((name, exact, exact if directions is orthogonal else rf.regular_mean(x, y), positive.std()))
assert rows[1][3] < rows[0][3]
chapter.table(("lengths", "exp(x.y)", "mean estimate, by formula", "spread of positive estimates"), rows)

# %% [markdown]
# > **A break.** A random feature map estimates the softmax kernel without bias. Trig features err with
# > $\lVert x - y \rVert$, positive ones with $\lVert x + y \rVert$, both exponentially in its square, and positive ones
# > never yield a negative weight. Orthogonal directions lower the error: a little for positive features, and much for
# > the other two where vectors are short. After the break this becomes attention: its range, its gradient, its cost,
# > and its error on a real network.

# %% [markdown]
# ## The mechanism
#
# ![Performer, drawn](../figures/schematic_performer.svg)
#
# Performer attention is linear attention (chapter 5) with one of these maps, applied to $x_i = q_i / D^{1/4}$ and $y_j
# = k_j / D^{1/4}$:
#
# $$o_i = \frac{S^\top \phi(x_i)}{Z^\top \phi(x_i)}, \qquad S = \sum_j \phi(y_j)\, v_j^\top, \qquad
# Z = \sum_j \phi(y_j) \qquad (c)$$

# %%
chapter.source(performer.forward, performer.feature_map, doc=False)

# From here on, the example is chapter 1's sentence, *the cat sat on the old mat and the dog slept too*. Its queries and
# keys are cut to half their length, as random features are good for short vectors only.

# %%
q, k, v = vectors()
q, k = q / 2, k / 2
(N, D), (L, M), m = q.shape, v.shape, 32
d_out = np.random.default_rng(9).standard_normal((N, M))  # the gradient of some loss, for later
omega = feature_maps.orthogonal_gaussian(m, D, np.random.default_rng(10))
out, saved = performer.forward(q, k, v, omega)

by_loops = np.zeros((N, M))
for i in range(N):
    weights = np.zeros(L)
    for j in range(L):
        xi, yj = q[i] / D**0.25, k[j] / D**0.25
        weights[j] = np.mean([math.exp(w @ (xi + yj) - xi @ xi / 2 - yj @ yj / 2) for w in omega])
    by_loops[i] = weights @ v / weights.sum()
same(out, by_loops)
same(performer.matrix(q, k, omega) @ v, out)

target, _ = softmax.forward(q, k, v)
omegas = [feature_maps.gaussian(m, D, np.random.default_rng(11)) for m in (100, 10_000, 1_000_000)]
errors = [abs(performer.forward(q, k, v, omega)[0] - target).max() for omega in omegas]
assert errors[0] > errors[1] > errors[2]
assert errors[2] < 0.01  # softmax attention in the limit
print(f"output of {WORDS[2]!r}, 32 directions:", out[2].round(3), " softmax attention:", target[2].round(3))
print("largest error with 100, 10,000 and 1,000,000 directions:", *(f"{error:.4f}" for error in errors))

# %% [markdown]
# A quotient of two unbiased estimates is *not* unbiased. (c) tends to softmax's output as $m$ grows, but for finite $m$
# it is off even on average, by an amount of the order $1/m$ (exercise 3).
#
# `omega` is an argument. The same directions always lead to the same output, and anyone who wants others draws them
# (`performer.redraw`). In training that happens every so many steps, so that the network does not learn one draw by
# heart; in evaluation it never happens. The output of a function that drew them in secret could not be reproduced, nor
# its gradient checked by finite differences.
#
# **ReLU** features (ReLU in place of the exponential) are positive too, have no exponent to keep in range, and
# estimate the *arc-cosine* kernel, which is not softmax. For a network that is trained with it, it is as legitimate
# as $\mathrm{elu} + 1$ of chapter 6; on protein sequences the Performer's authors had their best results with it
# (section 4.4). That is a statement about training, not about approximation, and is not checked here. Two things are
# checked:

# %%
many = feature_maps.gaussian(100_000, D, np.random.default_rng(12))
assert performer.matrix(q, k, many, kind="relu").min() > 0  # claim 38: positive
x_unit, y_unit = x / np.linalg.norm(x), y / np.linalg.norm(y)
angle = math.acos(x_unit @ y_unit)
arc_cosine = (math.sin(angle) + (math.pi - angle) * math.cos(angle)) / (2 * math.pi)
relu = rf.estimates("relu", x_unit, y_unit, many[None])[0]
assert abs(relu - arc_cosine) < 0.01  # 100,000 draws with a standard deviation of about 0.5, and the 1e-3
print(
    f"unit vectors at {math.degrees(angle):.0f} degrees: ReLU features {relu:.3f}, arc-cosine kernel {arc_cosine:.3f}"
)

# %% [markdown]
# ## Keeping exponentials in range
#
# The exponent $\omega x - \frac12 \lVert x \rVert^2$ is at most $\frac12 \lVert \omega \rVert^2$, but for long $x$ it
# easily falls below $-104$, where float32's exponential is 0. A key whose features are all 0 is lost, and a query whose
# features are all 0 comes to $0 / 0$. (The factor of trig features, $e^{\lVert x \rVert^2 / 2}$, overflows instead,
# beyond $e^{88}$.) In the quotient (c) one factor per query and one factor per *feature* cancel. Let $a_c$ be the
# exponent of feature $c$. Chapter 6 derived what the package does ($r$, $t$ and $c$ are now those of chapter 6). It
# takes keys relative to $r_c$, the largest $a_c$ among the keys so far, and each query relative to its own $t_i =
# \max_c (a_c(x_i) + r_c)$. Other implementations make one of three mistakes:
#
# - subtracting the maximum of $\omega x$ alone, without $-\frac12 \lVert x \rVert^2$: long keys then underflow;
# - taking one maximum for all keys, future ones included (chapter 7);
# - adding $\varepsilon$ to the features after the stabiliser, so that it does not cancel (chapter 7).
#
# We take keys twenty times as long as usual, in float32, and compare with float64:

# %%
big_q, big_k, values, _ = (z.astype(np.float32) for z in draw_inputs(13, 40, 40, D, M, size=10))
omega_32 = omega.astype(np.float32)
exponents_of_keys = performer.feature_map(omega_32).split(big_k)[0]
with np.errstate(over="ignore"):
    naive = np.exp(exponents_of_keys)
in_32, saved_32 = performer.forward(big_q, big_k, values, omega_32)
in_64 = performer.matrix(big_q.astype(np.float64), big_k.astype(np.float64), omega) @ values
assert in_32.dtype == np.float32
assert (naive.sum(axis=1) == 0).any()  # keys that have lost all their features
rounding = 16 * np.finfo(np.float32).eps * abs(exponents_of_keys).max()
np.testing.assert_allclose(in_32, in_64, atol=rounding * abs(values).max())
assert saved_32.d.min() > 0.5
lost = int((naive.sum(axis=1) == 0).sum())
print(f"exponents from {exponents_of_keys.min():.0f} to {exponents_of_keys.max():.0f}; "
      f"{lost} of 40 keys without a stabiliser are all 0")  # fmt: skip

# %% [markdown]
# ## The gradient, by hand
#
# Linear attention's backward pass (chapter 5, and causally chapter 7) ends with $d\phi(x_i)$ and $d\phi(y_j)$. What is
# left is the step through $\phi$. Let $p = \omega x$, and write $d\phi$ for a row's gradient.
#
# **Positive.** $\phi_c = e^{a_c}$ with $a_c = p_c - \frac12 \lVert x \rVert^2$ plus a constant. So $da_c = d\phi_c\,
# \phi_c$, and $a_c$ depends on $x$ through $p_c$, with the gradient $\omega_c$, and through the square, with $-x$:
#
# $$dp = d\phi * \phi, \qquad dx = \omega^\top dp - x \sum_c dp_c \qquad (d)$$
#
# **Hyperbolic.** Two halves with the exponents $\pm p - \frac12 \lVert x \rVert^2$:
#
# $$dp = d\phi_+ * \phi_+ - d\phi_- * \phi_-, \qquad dx = \omega^\top dp - x\, (d\phi^\top \phi) \qquad (e)$$
#
# **Trig.** Sine and cosine become each other, $d\sin = \cos dp$ and $d\cos = -\sin dp$. The common factor $e^{\frac12
# \lVert x \rVert^2}$ has the gradient $+x$ times itself:
#
# $$dp = d\phi_{\sin} * \phi_{\cos} - d\phi_{\cos} * \phi_{\sin}, \qquad
# dx = \omega^\top dp + x\, (d\phi^\top \phi) \qquad (f)$$
#
# **ReLU.** $dp = d\phi * [p > 0] / \sqrt m$ and $dx = \omega^\top dp$.
#
# **The fourth root.** $x = q / D^{1/4}$, so $dq = dx / D^{1/4}$, and the same for $k$. $\omega$ is a constant: it was
# drawn, not learned.

# %%
chapter.source(feature_maps.favor_hyperbolic, feature_maps_random.sine_cosine_backward, doc=False)

# %% [markdown]
# ### The stabiliser cancels
#
# The code calls (d)-(f) with *scaled* features, $\tilde\phi_c = e^{a_c - r_c}$ for keys and
# $e^{a_c + r_c - t_i}$ for queries, although $r_c$ and $t_i$ are maxima and thus functions of $q$ and $k$. Why is no
# gradient lost? The output (c) is the same function for any $r$ and $t$:
#
# $$\sum_c \tilde\phi_c(x_i)\, \tilde\phi_c(y_j) = e^{-t_i} \sum_c e^{a_c(x_i) + r_c}\, e^{a_c(y_j) - r_c}
# = e^{-t_i} \sum_c \phi_c(x_i)\, \phi_c(y_j)$$
#
# and $e^{-t_i}$ divides out. So $\partial o / \partial r_c = 0$ and $\partial o / \partial t_i = 0$, and by the chain
# rule what would come through them is 0 times something: they may be treated as constants. Two consequences can be
# measured. First, the gradient with the scale is the gradient of the formula without any. Second, the gradient *of* the
# scale is 0 for every feature $c$; for $r_c$ it is $\sum_i d\tilde\phi_c(x_i)\, \tilde\phi_c(x_i) - \sum_j
# d\tilde\phi_c(y_j)\, \tilde\phi_c(y_j)$.

# %%
chapter.source(exponential.forward, doc=False)


# %%
def features_as_printed(x, kind):
    p, square = x @ omega.T, (x**2).sum(axis=-1, keepdims=True) / 2
    if kind == "trig":
        return np.exp(square) * np.concatenate([np.sin(p), np.cos(p)], axis=-1)
    return np.exp(np.concatenate([p, -p], axis=-1) - square) if kind == "hyperbolic" else np.exp(p - square)


def formula(q, k, v, kind):
    """Nothing subtracted anywhere; complex numbers go through."""
    weights = features_as_printed(q / D**0.25, kind) @ features_as_printed(k / D**0.25, kind).T
    return weights / weights.sum(axis=1, keepdims=True) @ v


rows = []
for kind in ("trig", "positive", "hyperbolic"):

    def forward(q, k, v, kind=kind):
        return performer.forward(q, k, v, omega, kind=kind)

    report = gradcheck.check_complex_step(
        partial(formula, kind=kind), forward, performer.backward, q, k, v, rng=np.random.default_rng(14)
    )
    report.assert_ok()

    _, kept = forward(q, k, v)
    d_n = d_out / kept.d
    d_d = -(d_n * kept.out).sum(axis=1, keepdims=True)
    d_phi_q = d_n @ kept.state.s.T + d_d * kept.state.z  # chapter 5: (5), and then (6) and (8)
    d_phi_k = v @ (kept.w.T @ d_n).T + (kept.w * d_d).sum(axis=0)
    of_key_scale, of_query_scale = (d_phi_k * kept.phi).sum(axis=0), (d_phi_q * kept.w).sum(axis=0)
    if kind == "trig":  # one exponent for all features, and so one r
        of_key_scale, of_query_scale = of_key_scale.sum(), of_query_scale.sum()
    same(of_query_scale, of_key_scale)  # r_c: what a feature of all keys loses, the same feature of the queries gains
    same((d_phi_q * kept.w).sum(axis=1), np.zeros(N))  # t_i
    rows.append((kind, report.worst.absolute, abs(of_query_scale - of_key_scale).max()))
chapter.table(("kind", "worst difference from the complex step", "gradient of r"), rows)

# %% [markdown]
# Now we check all four maps by finite differences, with all keys and causally. ReLU's arguments lie on both sides of
# its kink:

# %%
rows = []
for kind in performer.KINDS:
    for causal in (False, True):
        forward = partial(performer.forward, kind=kind, causal=causal)
        rng = np.random.default_rng(15)
        report = gradcheck.check_directions(
            forward, performer.backward, q, k, v, omega, rng=rng, step=3e-7, rtol=1e-6
        )  # a small step crosses few kinks
        report.assert_ok()
        rows.append((kind, causal, report.worst.absolute))
chapter.table(("kind", "causal", "worst difference"), rows)

# %% [markdown]
# A check that cannot fail is worth nothing. Forget the square in (d), and it fails, for the keys. Only for them: a
# query's features can be multiplied by any number without effect, so that $\phi^\top d\phi = 0$ (exercise 1 of
# chapter 5), and the square of a query has no gradient.


# %%
class Forgetful(type(performer.feature_map(omega))):
    """The positive features, with a gradient that forgets the square."""

    def backward(self, d_phi, saved):
        _, phi = saved
        return (d_phi * phi) @ self.omega * self.scale


report = gradcheck.check_directions(
    lambda q, k, v: linear.forward(q, k, v, feature_map=Forgetful(*performer.feature_map(omega)), eps=0.0),
    linear.backward,
    q,
    k,
    v,
    rng=np.random.default_rng(16),
)
assert not report.ok
assert {entry.name for entry in report.worst_by_input if entry.excess > 1} == {"k"}
print(report)

# %% [markdown]
# ## Causal, and token by token
#
# Nothing new is needed: the sums become prefix sums, the kernel is chapter 7's causal product, and the state of the
# recurrent network is $S$, $Z$ and the running $r$. A state is a sum of features, so it belongs to its $\omega$: do not
# draw again in the middle of a sequence. The second cell checks that whole, in steps and in two parts the outputs are
# the same, and that after another draw they are not:

# %%
chapter.source(performer.step, doc=False)

# %%
q, k = 2 * q, 2 * k  # at full length again
then = 7  # words read at once, "the cat sat on the old mat"; the other five come after
for kind in performer.KINDS:
    whole, saved = performer.forward(q, k, v, omega, kind=kind, causal=True)
    state, steps = performer.init_state((), D, M, omega, kind=kind), []
    for q_t, k_t, v_t in zip(q, k, v, strict=True):
        out_t, state = performer.step(q_t, k_t, v_t, state, omega, kind=kind)
        steps.append(out_t)
    np.testing.assert_allclose(steps, whole, rtol=1e-8, atol=1e-8)  # trig: a denominator near 0 costs digits

    _, prefilled = performer.forward(q[:then], k[:then], v[:then], omega, kind=kind, causal=True)
    rest, _ = performer.forward(q[then:], k[then:], v[then:], omega, kind=kind, causal=True, state=prefilled.state)
    np.testing.assert_allclose(rest, whole[then:], rtol=1e-8, atol=1e-8)

_, other = performer.forward(
    q[:then], k[:then], v[:then], performer.redraw(omega, np.random.default_rng(18)), causal=True
)
mixed, _ = performer.forward(q[then:], k[then:], v[then:], omega, causal=True, state=other.state)
whole, _ = performer.forward(q, k, v, omega, causal=True)
assert abs(mixed - whole[then:]).max() > 0.1  # another draw in the middle: nonsense, and no error
print(f"output of {WORDS[then]!r}, one draw:", whole[then].round(3), " another draw in the middle:", mixed[0].round(3))

# %% [markdown]
# ### What it costs
#
# $\omega x$ and $\omega y$ take $(N + L)\, m (D + 1)$ multiply-adds: $-\lVert x \rVert^2 / 2$ is one more column.
# Writing and reading the sums takes $(N + L)\, C M + N C$. The features, values and outputs are kept, and in the causal
# case the factors by which each key rescales the sums. All of these are rows, one per token. There is no $N \times L$
# matrix, and there are no states for every position, which would be $N C M$ numbers. (The causal form of
# performer-pytorch on a CPU keeps all of them when it is trained.)

# %%
n, width = 1024, 32
q_long, k_long, v_long, d_long = draw_inputs(19, n, n, width, width)
directions = feature_maps.orthogonal_gaussian(64, width, np.random.default_rng(20))
multiply_adds = count(performer.forward, q_long, k_long, v_long, directions).multiply_adds
assert multiply_adds == 2 * n * 64 * (width + 1) + 2 * n * 64 * width + n * 64


def both_passes(q, k, v, omega):
    out, saved = performer.forward(q, k, v, omega, causal=True)
    performer.backward(out, saved)


_, saved = performer.forward(q_long, k_long, v_long, directions, causal=True)
given = q_long, k_long, v_long
kept = (kept_bytes((*given, saved)) - kept_bytes(given)) / 8
peak = peak_bytes(both_passes, *given, directions) / 8
assert kept == n * (3 * 64 + width + 1) + 64 * (2 * width + 2)  # rows; omega, S, Z and r
assert peak < n * 64 * width / 2  # far from one state per position
chapter.table(
    ("numbers", "kept", "at the peak, both passes", "one state per position", "the matrix"),
    [("N = 1024, m = 64, D = M = 32", kept, peak, n * 64 * width, n * n)],
)

# %% [markdown]
# ## How good is it?
#
# The figure shows the error of the output and of the matrix against $m$. On the left are short queries and keys, nearly
# as short as in a network before it has learned anything. On the right are those of the pretrained network of chapter
# 2, whose weights were learned with softmax and stay as they are. We take 12 of its heads, on one text of 256 tokens.
# The lines are medians over heads and draws.
#
# The second table compares at an equal number of features $C$, which is what costs. Exponential features (positive) and
# ReLU features have $C = m$, sines and cosines have $C = 2m$. We expect exponential ones to improve with $C$ on both
# sides. ReLU features estimate another similarity, so their error should stop falling. With few features they are
# still the better ones: they vary less. They are overtaken at $C = 256$ on the pretrained network, and at 1,024 on
# short vectors.

# %%
record = chapter.record("random_features_attention")
results = chapter.results("random_features_attention")
chapter.show(
    random_features_attention.draw,
    results,
    alt="Errors against m from 16 to 1024. Short queries: all fall, trig lowest, to 0.06. Pretrained: trig near 40, "
    "off the scale, positive and hyperbolic from 1 to about 0.6, equal lengths to 0.45, ReLU flat at 0.74.",
)
short, real = results.panels["short"].output, results.panels["pretrained"].output
chapter.table(
    (f"error of the output at m = {results.directions[-1]}, short", "independent", "orthogonal"),
    [
        (kind, *(short[f"{kind}, {drawn}"][-1] for drawn in ("independent", "orthogonal")))
        for kind in random_features.LOOKS
    ],
)


def at_equal_features(panel, kind, of_width, counts=(32, 128, 512, 1024)):
    errors = dict(zip(results.directions, panel[f"{kind}, orthogonal"], strict=True))
    return [errors[c // of_width] for c in counts]


chapter.table(
    ("error of the output with C features", *(f"C = {c}" for c in (32, 128, 512, 1024))),
    [
        (f"{name}, {kind}", *at_equal_features(panel, kind, of_width))
        for name, panel in (("short", short), ("pretrained", real))
        for kind, of_width in (("positive", 1), ("relu", 1), ("trig", 2))
    ],
)
assert short["trig, orthogonal"][-1] == min(errors[-1] for errors in short.values())  # short: trig is best
assert short["trig, orthogonal"][-1] < short["trig, independent"][-1]  # claim 38
assert short["hyperbolic, orthogonal"][-1] < short["hyperbolic, independent"][-1]  # claim 38
assert real["trig, orthogonal"].min() > 10  # claim 37: useless where weights are small
for way in ("positive, orthogonal", "hyperbolic, orthogonal", "positive, regular"):
    assert real[way][-1] < results.panels["pretrained"].mean_of_values  # claim 38: positive features mend it, a little
    assert real[way][-1] > 0.3
assert real["relu, orthogonal"][-1] > 0.95 * real["relu, orthogonal"][1]  # another similarity: it does not converge
for panel, overtaken in ((short, 1024), (real, 256)):  # exponential features are the better ones from here on
    better = panel["positive, orthogonal"] < panel["relu, orthogonal"]
    assert (better == (np.array(results.directions) >= overtaken)).all()

# %% [markdown]
# We compute the smallest $m$ of the record once more, every kind in both panels, without the package's Performer. The
# directions are the same, drawn again from the record's seed. Each $e^{x^\top y}$ is estimated by its formula, in
# float64, as a whole matrix that is divided by its row sums.


# %% native="It reads with the pretrained network, and for this one cell the page does not load it."
def estimates(kind, x, y, omega):
    """Of ``exp(x . y)`` for all pairs of rows, up to a factor: ``(..., N, D)``, twice, to ``(..., N, N)``."""
    functions, sign = {  # the mean of f(omega . x) f(omega . y), summed over f, times exp(sign (|x|^2 + |y|^2) / 2)
        "trig": ((np.cos, np.sin), 1),
        "positive": ((np.exp,), -1),
        "hyperbolic": ((np.exp, lambda z: np.exp(-z)), -1),
        "relu": ((lambda z: np.maximum(z, 0) + 1e-3,), 0),
    }[kind]
    squares = ((x**2).sum(axis=-1)[..., :, None] + (y**2).sum(axis=-1)[..., None, :]) / 2
    return np.exp(sign * squares) * sum(f(x @ omega.T) @ f(y @ omega.T).swapaxes(-1, -2) for f in functions)


def rows_of(weights):
    return weights / weights.sum(axis=-1, keepdims=True)


def relative_error(mine, truth):
    return np.linalg.norm(mine - truth, axis=(-2, -1)) / np.linalg.norm(truth, axis=(-2, -1))


read, _sources = heads.read_heads(sentences=1, length=256, every=6, seed=record["seed"])
rng, off = np.random.default_rng(record["seed"]), []
normal = rng.standard_normal((3, *read.q.shape), np.float32)
for panel, given in (("short", (0.5 * normal[0], 0.5 * normal[1], normal[2])), ("pretrained", read[:3])):
    found = results.panels[panel]
    scaled_q, scaled_k, values = (
        part[0] * np.float64(scale) for part, scale in zip(given, (32**-0.25, 32**-0.25, 1), strict=True)
    )
    p = rows_of(np.exp(scaled_q @ scaled_k.swapaxes(-1, -2)))  # (layers, heads, N, N)
    np.testing.assert_allclose(np.log(p).std(axis=-1).mean(), found.score_deviation, rtol=1e-5)
    if panel == "pretrained":
        lengths = (scaled_q**2).sum(axis=-1)[..., :, None] + (scaled_k**2).sum(axis=-1)[..., None, :]
        squares = lengths + 2 * scaled_q @ scaled_k.swapaxes(-1, -2)  # |x + y|^2
        weighted = (p * squares).sum(axis=-1).mean(axis=(-2, -1))  # (layers,), each pair by its weight
        print(f"|x + y|^2 where the weights are: {weighted.min():.0f} to {weighted.max():.0f} by layer")
    mean_of_values = np.broadcast_to(values.mean(axis=-2, keepdims=True), values.shape)
    np.testing.assert_allclose(np.median(relative_error(mean_of_values, p @ values)), found.mean_of_values, rtol=1e-5)
    for i, m in enumerate(results.directions):
        for way in found.output:
            kind, drawn = way.split(", ")
            draw = feature_maps.gaussian if drawn == "independent" else feature_maps.orthogonal_gaussian
            regular = {"regular": True} if drawn == "regular" else {}
            omegas = [draw(m, 32, rng, dtype=np.float32, **regular).astype(float) for _ in range(5)]
            if i == 0:  # the others are drawn only to come to the second panel's
                mine = [rows_of(estimates(kind, scaled_q, scaled_k, omega)) for omega in omegas]
                errors = [(relative_error(w @ values, p @ values), relative_error(w, p)) for w in mine]
                again = np.median(np.array(errors), axis=(0, 2, 3))
                off.append((panel, kind, abs(again / [found.output[way][0], found.matrix[way][0]] - 1).max()))
for panel, kind, error in off:  # the record is of float32, and trig's row sums may be near 0, where that shows
    assert error < (0.02 if (panel, kind) == ("pretrained", "trig") else 1e-5), (panel, kind)
print(f"{len(off)} lines of the record, computed again: {np.median([error for *_, error in off]):.0e} off")
short = results.panels["short"]
for way, fewest in (("positive, orthogonal", 256), ("positive, independent", 512)):
    assert (np.array(results.directions)[np.array(short.output[way]) < short.mean_of_values]).min() == fewest

# %% [markdown]
# On the left every error falls. From 128 directions on the estimators are in the order that the formulas predict: trig
# first, then hyperbolic, then positive, and orthogonal directions are better than independent ones. (The grey line is
# the mean of the values, which ignores the query. Its error is 0.25: with fewer than 64 directions no map does better,
# orthogonal positive features need 256, and independent ones 512.) On the right the scores spread by $\pm 1.8$ within a
# row, and the formulas predict what follows. $\lVert x + y \rVert^2$ is 9 to 36, from layer to layer, for the pairs
# that matter, and (b) has it in the exponent. There the mean of the values has an error of 0.82. A thousand orthogonal
# positive features have one of 0.61, and with equal lengths 0.45. The error of trig features is about thirty times as
# large as what they estimate, or more.
#
# So a Performer does not *replace* softmax attention in a network that was trained with it. Its authors fine-tune such
# networks (section 4.3), or train them with it from the start: then the network learns queries and keys that its
# features can tell apart. What is then computed is simply linear attention with a positive map. That it would be
# softmax attention with enormously many directions does not matter.
#
# How many features would it take? For a relative error $\eta$ of one weight, (b) requires $m = (e^{\lVert x + y
# \rVert^2} - 1) / \eta^2$:

# %%
rows = []
for square in (0.5, 1, 2, 5, 10, 20):
    pair = np.zeros((2, D))
    pair[0, 0] = math.sqrt(square)  # x; y = 0
    needed = math.ceil(rf.relative_mse("positive", *pair, 1) / 0.1**2)
    assert rf.relative_mse("positive", *pair, needed) <= 0.1**2 * (1 + 1e-12)
    rows.append((square, needed, needed > 512**2))
chapter.table(("|x + y|^2", "m for a relative error of 0.1", "more than the entries of a 512 x 512 matrix?"), rows)
assert rows[-1][2]

# %% [markdown]
# Before training, a network has short queries and keys. We draw random weights for the pretrained network, as
# `transformers` draws BERT's, let it read the same text, and put the mean of $\lVert x + y \rVert^2$ into the formula:

# %% native="It reads with the pretrained network's tokens, and the page does not load them."
known, (tokens,), *_ = pretrained.read(None, None, sentences=1, length=256, seed=record["seed"])
untrained = bert.layers(bert.untrained(known.config, np.random.default_rng(1)), tokens)
squares = []  # the mean of |x + y|^2, one per layer
for layer in untrained:
    x_all, y_all = layer.q.astype(float) / 32**0.25, layer.k.astype(float) / 32**0.25  # (heads, N, D)
    lengths = (x_all**2).sum(axis=-1)[..., :, None] + (y_all**2).sum(axis=-1)[..., None, :]
    squares.append((lengths + 2 * x_all @ y_all.swapaxes(-1, -2)).mean())
assert 1.6 < min(squares) < max(squares) < 1.8
needed = math.expm1(np.mean(squares)) / 0.1**2
print(f"before training |x + y|^2 is {np.mean(squares):.1f} on average,", end=" ")
print(f"which takes some {round(needed, -1):.0f} features")

# %% [markdown]
# ## Exercises
#
# A sheet of homework goes further: `linattn-ref assignment random_features --out DIR` (see [the course](README.md)).
#
# **1. A draw for the Matérn kernel.** Which distribution of $\omega$ belongs to $\kappa(\Delta) =
# e^{-\lVert \Delta \rVert_2}$, with the Euclidean length in place of the sum of absolute values? Hint: in one
# dimension it is Cauchy's, and a Cauchy variable is a normal one over the root of a gamma variable.
#
# <details><summary>Solution</summary>
#
# If $\omega = g / \sqrt{\tau}$ with normal $g$, then given $\tau$ the mean of $\cos \omega^\top \Delta$ is $e^{-\lVert
# \Delta \rVert^2 / 2 \tau}$: any such scale mixture gives a kernel of $\lVert \Delta \rVert$ alone. In one dimension $g
# / \lvert g' \rvert$, $g'$ another normal variable, is Cauchy's, so that $\mathbb E\, e^{-\Delta^2 / 2 g'^2} =
# e^{-\lvert \Delta \rvert}$. This depends on $\Delta$ through its length only. So it holds in any dimension if all
# entries of $g$ share *one* $g'$: this is the multivariate Cauchy distribution. (With one $g'$ per entry, the kernel is
# the Laplacian one above.)
#
# </details>

# %%
rng = np.random.default_rng(21)
draws = rng.standard_normal((200_000, 3)) / abs(rng.standard_normal((200_000, 1)))
for delta in (np.array([0.3, -0.2, 0.1]), np.array([1.0, 0.5, -2.0])):
    found = rf.mean_of(np.cos(draws @ delta), confidence=SURE)
    assert found.low <= math.exp(-np.linalg.norm(delta)) <= found.high
    assert not found.low <= math.exp(-abs(delta).sum()) <= found.high
    print(f"mean {found.mean:.4f}; exp(-length) = {math.exp(-np.linalg.norm(delta)):.4f}", end=", ")
    print(f"exp(-sum of the entries) = {math.exp(-abs(delta).sum()):.4f}")

# %% [markdown]
# **2. Between trig and positive.** $\mathbb E\, e^{\omega^\top z} = e^{\frac12 z^\top z}$ holds for complex $z$ too.
# Take $z = \alpha (x + y) + i \beta (x - y)$ with real $\alpha$ and $\beta$. For which of them is the mean
# $\mathrm{SM}(x, y)$, times a function of $x$, times a function of $y$? Which do you know already, and which has the
# least error?
#
# <details><summary>Solution</summary>
#
# $z^\top z = \alpha^2 \lVert x + y \rVert^2 - \beta^2 \lVert x - y \rVert^2 + 2 i \alpha \beta\, (x + y)^\top (x - y)$
# and $(x + y)^\top (x - y) = \lVert x \rVert^2 - \lVert y \rVert^2$. So
#
# $$\tfrac12 z^\top z = (\alpha^2 + \beta^2)\, x^\top y + \tfrac12 (\alpha^2 - \beta^2) \big(\lVert x \rVert^2 +
# \lVert y \rVert^2\big) + i \alpha \beta \big(\lVert x \rVert^2 - \lVert y \rVert^2\big)$$
#
# The mixed term has the factor $\alpha^2 + \beta^2$, which must be 1: $\alpha = \cos \theta$, $\beta = \sin \theta$.
# The rest is a function of $x$ plus one of $y$, which goes into the features. $\theta = 0$ is the positive map,
# $\theta = \frac{\pi}{2}$ the trigonometric one, and there is one for every angle in between, with complex features
# and the real part taken at the end. Which has the least error depends on the pair; below it is the trigonometric one,
# as $x$ and $y$ are short.
#
# </details>

# %%
draws = np.random.default_rng(22).standard_normal((400_000, D))
rows = []
for degrees in (0, 30, 60, 90):
    alpha, beta = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    z = alpha * (x + y) + 1j * beta * (x - y)
    rest = (alpha**2 - beta**2) / 2 * (x @ x + y @ y) + 1j * alpha * beta * (x @ x - y @ y)
    found = rf.mean_of((np.exp(draws @ z - rest)).real, confidence=SURE)
    assert found.low <= exact <= found.high
    rows.append((degrees, found.mean, (found.high - found.mean) * 100))
chapter.table(("angle", "mean estimate", "100 times the interval's half"), rows)
stated = math.sqrt(rf.mse("positive", x, y, 1) / rf.mse("trig", x, y, 1))
np.testing.assert_allclose(rows[0][2] / rows[3][2], stated, rtol=0.05)
assert rows[3][2] == min(row[2] for row in rows)

# %% [markdown]
# **3. The bias of the quotient.** Each weight's numerator and denominator are unbiased, but the output is not. Let
# $n = \bar n + \delta n$ and $d = \bar d + \delta d$ with errors of the order $m^{-1/2}$. Expand $n / d$ to second
# order and show that the bias is $\frac{1}{\bar d^2} \big(\frac{\bar n}{\bar d} \mathrm{Var}\, d - \mathrm{Cov}(n,
# d)\big)$, of the order $1/m$. Measure the exponent.
#
# <details><summary>Solution</summary>
#
# $\frac{n}{d} = \frac{\bar n + \delta n}{\bar d} \big(1 - \frac{\delta d}{\bar d} + \frac{\delta d^2}{\bar d^2} -
# \dots\big)$. On average the first-order terms vanish, and the second-order terms that remain are $-\frac{\mathbb E\,
# \delta n\, \delta d}{\bar d^2} + \frac{\bar n\, \mathbb E\, \delta d^2}{\bar d^3}$. Variances and covariances of means
# over $m$ directions are $1/m$ of those of one. So halving the *error* takes four times as many directions, halving the
# *bias* twice as many: for large $m$ the bias is the smaller part. (Below the exponent is not quite $-1$: with few
# directions, higher orders still show.)
#
# </details>

# %%
q, k, v, _ = draw_inputs(25, 1, 8, D, 1, size=0.4)
truth = softmax.forward(q, k, v)[0][0, 0]
xq, yk = q / D**0.25, k / D**0.25
scales = np.exp(-(xq**2).sum(axis=1)[:, None] / 2 - (yk**2).sum(axis=1) / 2)[0]  # (8,)
rng, biases, counts = np.random.default_rng(24), [], (16, 64)
for m in counts:
    draws = rng.standard_normal((1_600_000 // m, m, D))
    weights = np.exp(draws @ (xq + yk).T).mean(axis=1) * scales  # (draws, 8)
    found = rf.mean_of(weights @ v[:, 0] / weights.sum(axis=1) - truth, confidence=SURE)
    biases.append(found)
    assert not found.low <= 0 <= found.high  # there is a bias
exponent = math.log(biases[1].mean / biases[0].mean) / math.log(counts[1] / counts[0])
print(f"bias {biases[0].mean:.4f} with 16 directions, {biases[1].mean:.4f} with 64: m to the power of {exponent:.2f}")
assert -1.4 < exponent < -0.6

# %% [markdown]
# **4. Redrawing as a policy.** Write a training loop's skeleton that draws again every 100 steps and evaluates with
# the directions of the last step. It must produce the same numbers whenever it is run from the same seed.
#
# <details><summary>Solution</summary>
#
# The directions are a variable of the loop. Their generator is separate, so that redrawing more or less often does
# not shift the other random numbers (data, dropout).
#
# </details>


# %%
def losses(seed, every, steps=300):
    data, drawing = (np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(2))
    omega, found = feature_maps.orthogonal_gaussian(16, D, drawing), []
    for step in range(steps):
        if step and step % every == 0:
            omega = performer.redraw(omega, drawing)
        q, k, v = data.standard_normal((3, 5, D))
        found.append(performer.forward(q, k, v, omega)[0].mean())  # a step of training in its place
    return np.array(found), omega


first, omega_end = losses(0, every=100)
again, omega_again = losses(0, every=100)
never, _ = losses(0, every=1000)
np.testing.assert_array_equal(first, again)
np.testing.assert_array_equal(omega_end, omega_again)  # what evaluation uses
np.testing.assert_array_equal(first[:100], never[:100])
assert (first[100:] != never[100:]).all()
print("means of the outputs at steps 98 to 101, redrawn at 100:", first[98:102].round(3))
print("                                          never redrawn:", never[98:102].round(3))

# %% [markdown]
# ## What to remember
#
# - Every continuous semi-definite kernel of $x - y$ is, up to a factor, the mean of a cosine over random directions.
#   The softmax kernel is, up to known factors, the mean of a cosine, an exponential or a hyperbolic cosine over normal
#   ones. The errors of the estimates are known exactly.
# - Relative to the weight, trig features err with $\lVert x - y \rVert$, positive ones with $\lVert x + y \rVert$,
#   both exponentially in its square. Attention has many small weights, so it needs positive features, whose
#   denominators are positive.
# - With orthogonal directions the error of positive and hyperbolic features is never larger, by (8). It is a little
#   smaller for positive ones, and much smaller for hyperbolic ones of short vectors. Draw the directions with the signs
#   of R's diagonal.
# - The backward pass may use the scaled features, because the scale cancels. Use no $\varepsilon$ with it.
# - $\omega$ is an argument. When to draw again is the caller's policy. A state belongs to its $\omega$.
# - In a network trained with softmax the approximation is poor. A Performer must be trained as one.
#
# **Sources.** Choromanski et al. (2021), *Rethinking attention with Performers*. Rahimi and Recht (2007), *Random
# features for large-scale kernel machines*. Bochner (1932), *Vorlesungen über Fouriersche Integrale*. Yu et al. (2016),
# *Orthogonal random features*. Mezzadri (2007), *How to generate random matrices from the classical compact groups*.
