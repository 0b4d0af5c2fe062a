# %% [markdown]
# # 25. Kernels that lied: eleven mistakes, and the tests that passed them
#
# The same few formulas are written again for every GPU, compiler and phone. How does a wrong kernel pass its tests? And
# what would a test have to ask so that it does not?
#
# 1. a budget instead of a tolerance: what an honest implementation rounds off;
# 2. eleven mistakes, each with a few lines of code, the formula that it contradicts, how far off it is, a test that
#    passes it, and the check that fails it;
# 3. what is not a mistake: sums and keys in another order, tiles, more precision than asked for;
# 4. kernels that people use, before the judge, as `conform` is called here.
#
# You need chapters 1, 7 and 19. For each mistake we name where it was found, asked about, proposed or documented. The
# code is ours, written to make the same mistake in a few lines of NumPy.

# %% jupyter={"source_hidden": true}
import numpy as np

from linattn_ref import conform
from linattn_ref.attention import delta, delta_rule, gated_linear, linear, online_softmax, softmax
from linattn_ref.conform import budget
from linattn_ref.conform.questions import answer, ask
from linattn_ref.experiments.publishing import chapter

rng = np.random.default_rng(0)

# %% [markdown]
# ## The smallest example, by hand
#
# A softmax over $n$ equal scores assigns $1/n$ to each. For $n = 1000$ a right answer is $0.001$, and a kernel that
# does nothing answers $0$. The usual test asks whether $|{\rm got} - {\rm right}| \le 0.01 + 0.01\,|{\rm right}|$:
# $0.001 \le 0.01001$. It passes. (In KernelBench, zeros solve 4 of the 60 problems of level 1 that issue 165 scanned,
# in bfloat16.)

# %%
right_mean = softmax.matrix(np.zeros((1, 1)), np.zeros((1000, 1)))
zeros_pass = np.allclose(np.zeros_like(right_mean), right_mean, atol=1e-2, rtol=1e-2)
print(f"of {right_mean.size} scores; right: {right_mean[0, 0]:.3f}; zeros pass at 0.01: {zeros_pass}")
assert zeros_pass

# %% [markdown]
# ## A budget instead of a tolerance
#
# A tolerance is a number that somebody chose. A budget is measured. Compute the result in float64. Then compute it
# honestly in the precision of the kernel, several times, with sums in other orders and inputs off by a unit in the last
# place. We allow eight times the sum of two numbers. One is the largest of these errors. The other is one rounding of
# the largest number of the head, because sums in yet another order round differently. Where a head has one number per
# token, such as a gate, this second part is $\sqrt N$ times as large. For softmax it includes a rounding of the largest
# score. Fused kernels are honest too: they make $P$ again in the backward pass, and in 16 bits they round what they
# multiply.

# %%
chapter.source(budget.allowed, doc=False)

# %% [markdown]
# What float32 can do depends on the question. For gates from weak to very strong, the lines below show the size of the
# gradient of a gate, and the error that is allowed in it: one or two hundred-thousandths of its size. In the figure, a
# single tolerance either lets noise pass on the right or calls honest kernels wrong on the left.

# %%
log_gates = np.array([-0.01, -0.1, -1.0, -3.0, -6.0, -10.0, -15.0, -20.0])


def size_and_budget(log_gate):
    """Of the gradient of a gate, where all gates are the same: medians over the tokens but the first."""
    question = ask("gated_linear", np.random.default_rng(1), n=24)
    question = question.change(log_gate=np.full_like(question.inputs["log_gate"], np.float32(log_gate)))
    right = answer(question)
    allowed = budget.allowed(question, right, "float32")
    return [np.median(abs(x["d_log_gate"][..., 1:])) for x in (right, allowed)]


sizes, budgets = zip(*map(size_and_budget, log_gates), strict=True)
for log_gate, size, allowed in zip(log_gates, sizes, budgets, strict=True):
    print(f"log gate {log_gate:6}: size {size:.1e}, allowed {allowed:.1e}")
    assert 4e4 < size / allowed < 1.4e5


def gates_panel(axes, tolerance):
    """Size of the gate's gradient, what is allowed of it, and one tolerance for all."""
    axes.semilogy(-log_gates, sizes, "o-", label="the gradient")
    axes.semilogy(-log_gates, budgets, "s-", label="allowed in float32")
    axes.axhline(tolerance, color="black", linestyle=":", label="a tolerance")
    axes.set(xlabel="-log gate", ylim=(1e-17, 1e2))
    axes.legend(frameon=False, fontsize="small")


chapter.explore(
    gates_panel,
    (1e-2, 1e-4, 1e-6),
    name="tolerance",
    alt="The gradient of a gate falls from 24 to 1.5e-9 as the gate grows stronger. What is allowed stays one "
    "or two hundred-thousandths of it. A tolerance is a horizontal line, above the gradient itself on the right.",
)

# %% [markdown]
# ## Eleven mistakes
#
# Five mistakes are of shipped kernels (2, 3, 9, 10, 11), and two of shipped tests (1, 8). One is a formula as a paper
# prints it (5), one a patch that was not merged (6), one a question whose answer was that the code is right (4), and
# one a documented choice (7).
#
# For each mistake `SHIPPED` has the operation, the kernel, the check that finds it, the name of the diagnosis, and a
# typical test, which passes. `tell` prints what that test and the check find. The tests `pytest -m shipped_bugs` take
# the kernels from here.

# %% jupyter={"source_hidden": true}
SHIPPED = {}


def shipped(title, op, check, diagnosis, usual_test, **mapping):
    """Keep a kernel that has the mistake; ``usual_test`` says whether its own test would have passed."""

    def keep(kernel):
        SHIPPED[title] = op, kernel, check, diagnosis, usual_test, mapping
        return kernel

    return keep


def tell(title):
    """What its own test said, and what the judge says."""
    op, kernel, check, diagnosis, usual_test, mapping = SHIPPED[title]
    report = conform.check(kernel, op, only=(check,), mapping=conform.Mapping(**mapping))
    outcome = report[check]
    print(f"its own test: {'passed' if usual_test(kernel) else 'FAILED'}")
    print(f"{check}: {outcome.verdict}, {outcome.where}")
    for sentence in outcome.diagnosis:
        print(f"  agrees if {sentence}")
    assert usual_test(kernel)
    assert outcome.verdict == "FAILED"
    assert outcome.named[0] == diagnosis


def draw(*shape):
    return np.random.default_rng(2).standard_normal(shape).astype(np.float32)


# %% [markdown]
# **1. Gradients below the tolerance** (openfold-3, pull request 258). The loss was the *mean* of the output, so the
# gradients were all smaller than the tolerance with which they were compared, and any small gradients would have
# passed, even zeros. A random cotangent (the gradient `d_out` from which a backward pass starts) of size 1 keeps
# gradients at their scale.


# %%
def no_gradients(d_out, saved):
    return softmax.Gradients(*(0 * x for x in softmax.backward(d_out, saved)))


def mean_as_loss(pair):
    q, k, v = draw(3, 64, 64, 16)
    out, saved = pair[0](q, k, v)
    d_out = np.full_like(out, 1 / out.size)
    pairs = zip(pair[1](d_out, saved), softmax.backward(d_out, softmax.forward(q, k, v)[1]), strict=True)
    return all(np.allclose(x, y, atol=1e-3, rtol=1e-3) for x, y in pairs)


shipped("gradients below the tolerance", "softmax", "gradients", "gradients_zero", mean_as_loss)(
    (softmax.forward, no_gradients)
)
tell("gradients below the tolerance")

# %% [markdown]
# **2. A masked token still lets the state decay** (flash-linear-attention, issue 1272; and this package's own masks,
# until 2026). The value is set to 0, but the gate is not set to 1. By $S_i = g_i S_{i-1} + k_i^\top v_i$ (here $q$, $k$
# and $v$ are rows) the token then writes nothing, but fades what others wrote. A test that pads in front, from an empty
# state, cannot see this: nothing is there yet to fade.


# %%
@shipped(
    "a masked token that fades the state",
    "gated_linear",
    "masked_is_absent",
    "mask_lets_fade",
    lambda kernel: np.allclose(kernel(*padded, key_mask=seen)[:, 4:], kernel(*(x[:, 4:] for x in padded)), atol=1e-6),
)
def fades(q, k, v, log_gate, *, key_mask=None):
    v = v if key_mask is None else v * key_mask[..., None]
    return gated_linear.forward(q, k, v, log_gate)[0]


padded, seen = (*draw(3, 2, 12, 8), -abs(draw(2, 12))), np.broadcast_to(np.arange(12) >= 4, (2, 12))
tell("a masked token that fades the state")

# %% [markdown]
# **3. Padding in the denominator** (flash-linear-attention, issue 1263). The values of padding are set to 0, so the
# numerator is right, but the denominator counts padding. Setting its keys to 0 too, as our code does, does not help,
# since $\phi(0) = 1$ is not 0: mask *after* $\phi$.


# %%
@shipped(
    "padding in the denominator",
    "linear",
    "masked_is_absent",
    "mask_zeroes_keys",
    lambda kernel: np.allclose(kernel(*draw(3, 2, 12, 8)), linear.forward(*draw(3, 2, 12, 8))[0], atol=1e-5),  # no mask
)
def counts_padding(q, k, v, *, causal=False, key_mask=None):
    if key_mask is not None:
        k, v = k * key_mask[..., None], v * key_mask[..., None]
    return linear.forward(q, k, v, causal=causal)[0]


tell("padding in the denominator")

# %% [markdown]
# **4. What is to be erased, read before it decays** (flash-linear-attention, issue 885, where somebody expected this;
# the answer was that the code is right). Gated DeltaNet decays first: $u_i = v_i - e_i\,(g_i S_{i-1})$. With gates near
# 1, as in a test that avoids surprises, the two agree to about three digits.


# %%
@shipped(
    "erased before it decays",
    "gated_delta",
    "output",
    "erase_before_decay",
    lambda kernel: np.allclose(kernel(*weak), delta.forward(*weak, normalise=False)[0], atol=1e-2, rtol=1e-2),
    fixed={"normalise": False},
)
def erases_first(q, k, v, beta, log_gate):
    s, out = np.zeros((*k.shape[:-2], k.shape[-1], v.shape[-1]), k.dtype), np.empty_like(v)
    for i in range(q.shape[-2]):
        row = np.s_[..., i : i + 1, :]
        u = beta[..., i, None, None] * (v[row] - k[row] @ s)
        s = np.exp(log_gate[..., i, None, None]) * s + k[row].mT @ u
        out[row] = k.shape[-1] ** -0.5 * q[row] @ s
    return out


unit = draw(2, 2, 12, 8) / np.linalg.norm(draw(2, 2, 12, 8), axis=-1, keepdims=True)
weak = *unit, draw(2, 12, 8), np.full((2, 12), 0.5, np.float32), np.full((2, 12), -1e-3, np.float32)
tell("erased before it decays")

# %% [markdown]
# **5. The paper's own mask** (GatedDeltaNet, issues 13 and 15). The paper prints the output within a chunk with a plain
# causal mask, $(Q K^\top \odot M)\,U$. By (4) of `delta_rule`, what token $j$ wrote has decayed by $g_{j+1} \cdots g_i$
# when token $i$ reads it, so the mask must contain the decays, as it does in the code that issue 13 quotes. For one
# token, and for gates of 1, the two agree.


# %%
@shipped(
    "a chunk without its decay",
    "gated_delta",
    "output",
    "decay_missing_within_chunk",
    lambda kernel: np.allclose(kernel(*still), delta.forward(*still, normalise=False)[0], atol=1e-5),  # gates of 1
    fixed={"normalise": False},
)
def plain_mask(q, k, v, beta, log_gate):
    scaled, b = q * k.dtype.type(k.shape[-1] ** -0.5), beta[..., None]
    _, saved = delta_rule.forward(scaled, k, b * v, b * k, log_gate)
    return np.tril(scaled @ k.mT) @ saved.u


still = *weak[:4], np.zeros((2, 12), np.float32)
tell("a chunk without its decay")

# %% [markdown]
# **6. Who applies the scale** (mlx-lm, pull request 1799, not merged: it would have scaled twice, as its author says in
# 1823). Is it $1/\sqrt C$, with the width of the keys, or $1/\sqrt M$, with that of the values? Is it applied inside
# the kernel or before it? A test in which keys and values are equally wide cannot distinguish the first two.


# %%
@shipped(
    "the scale of the values",
    "gated_delta",
    "output",
    "scale_of_values",
    lambda kernel: np.allclose(kernel(*weak), delta.forward(*weak, normalise=False)[0], atol=1e-5),  # as wide
    fixed={"normalise": False},
)
def scales_by_values(q, k, v, beta, log_gate):
    return delta.forward(q, k, v, beta, log_gate, normalise=False, scale=v.shape[-1] ** -0.5)[0]


tell("the scale of the values")

# %% [markdown]
# **7. Fewer queries than keys** (PyTorch's `is_causal`, as its documentation says). A block of new queries after a
# cache sees the whole cache: the two sequences end together. If the mask is the lower triangle from the upper left
# corner, they begin together. With equally many queries and keys nobody notices.


# %%
@shipped(
    "aligned at the start",
    "softmax",
    "fewer_queries",
    "aligned_at_the_start",
    lambda kernel: np.allclose(
        kernel(*draw(3, 2, 12, 8), causal=True), softmax.forward(*draw(3, 2, 12, 8), causal=True)[0], atol=1e-5
    ),
)
def begins_together(q, k, v, *, causal=False):
    n = q.shape[-2]
    if not causal:
        return softmax.forward(q, k, v)[0]
    return softmax.forward(q, k[..., :n, :], v[..., :n, :], causal=True)[0]


tell("aligned at the start")

# %% [markdown]
# **8. Nothing at all** (KernelBench, issue 165): the smallest example above, as a kernel.


# %%
@shipped(
    "zeros",
    "softmax",
    "output",
    "outputs_zero",
    lambda kernel: np.allclose(kernel(*long), softmax.forward(*long)[0], atol=1e-2, rtol=1e-2),
)
def nothing(q, k, v):
    return 0 * q[..., :1] + 0 * v[..., :1, :]


long = 0.1 * draw(1, 2, 8), draw(1, 200_000, 8), draw(1, 200_000, 8)[:, ::-1]
tell("zeros")

# %% [markdown]
# **9. A gate's gradient that is noise** (this package until 2026; flash-linear-attention's chunk kernels today; and
# transformers', where differentiating $\exp(c_i - c_j)$ of mistake 10 comes to the same). Identity (g) of chapter 19,
# $d\log g_i = \sum_{j \ge i} (q_j\,dq_j + e_j\,de_j - k_j\,dk_j)$, needs no states. It is exact, but a small difference
# of large numbers: at a log gate of $-16$ the terms are of size 1 and their sum of size $10^{-7}$. A test that divides
# the error by the *largest* gradient in the batch sees six right digits.


# %%
def by_identity(d_out, saved):
    grads = gated_linear.backward(d_out, saved)
    q, k = saved.rule.q, saved.rule.k
    rows = (q * grads.q / np.float32(saved.scale) - k * grads.k).sum(axis=-1)
    return grads._replace(log_gate=np.cumsum(rows[..., ::-1], axis=-1)[..., ::-1])


def relative_to_the_largest(pair):
    q, k, v = draw(3, 2, 12, 8)
    gate = np.concatenate([np.full((2, 6), -0.1), np.full((2, 6), -12.0)], axis=-1).astype(np.float32)
    (_, saved), d_out = pair[0](q, k, v, gate), draw(2, 12, 8)
    right = gated_linear.backward(d_out, gated_linear.forward(q, k, v, gate)[1]).log_gate
    return abs(pair[1](d_out, saved).log_gate - right).max() / abs(right).max() < 1e-5


shipped("a gate's gradient that is noise", "gated_linear", "gates", "gate_by_cancellation", relative_to_the_largest)(
    (gated_linear.forward, by_identity)
)
tell("a gate's gradient that is noise")

# %% [markdown]
# **10. Gates that are summed up** (flash-linear-attention's and transformers' chunk kernels, found by the judge). The
# decay from token $j$ to token $i$ is $\exp(c_i - c_j)$, with $c$ the running sum of the log gates. A gate of 0 resets
# the state. Its logarithm is $-\infty$, and $-\infty - (-\infty)$ is not a number. Products of gates need no such
# difference.


# %%
@shipped(
    "gates that are summed up",
    "gated_linear",
    "resets",
    "gates_summed_up",
    lambda kernel: np.allclose(kernel(*padded), gated_linear.forward(*padded)[0], atol=1e-4),
)
def sums_gates(q, k, v, log_gate):
    c = np.cumsum(log_gate, axis=-1)
    with np.errstate(invalid="ignore", over="ignore"):
        ratio = np.tril(np.exp(c[..., :, None] - c[..., None, :]))
    return (q @ k.mT * k.dtype.type(k.shape[-1] ** -0.5) * ratio) @ v


tell("gates that are summed up")

# %% [markdown]
# **11. The state that is ignored** (sparkinfer, pull request 1071). A prompt read in two pieces must have the same
# result as one pass. There, in prompts of more than 32,768 tokens, each piece after the first began from zeros. A
# kernel that takes a state and begins anew all the same passes every test of one call from an empty state.


# %%
@shipped(
    "a state that is ignored",
    "gated_linear",
    "from_a_state",
    "state_ignored",
    lambda kernel: np.allclose(kernel(*padded)[0], gated_linear.forward(*padded)[0], atol=1e-6),
)
def begins_anew(q, k, v, log_gate, *, state=None):
    out, saved = gated_linear.forward(q, k, v, log_gate)
    return out, saved.state.s


tell("a state that is ignored")

# %% [markdown]
# ## What is not a mistake
#
# A judge that cries wolf is switched off. Each of these kernels computes the right thing in another way, and all checks
# pass.

# %%
RIGHT = {
    "sums in another order": lambda q, k, v: softmax.forward(q[..., ::-1], k[..., ::-1], v)[0],
    "keys in another order": lambda q, k, v: softmax.forward(q, k[..., ::-1, :], v[..., ::-1, :])[0],
    "a tile at a time": lambda q, k, v: online_softmax.forward(q, k, v)[0],
    "seven queries at a time": lambda q, k, v: np.concatenate(
        [softmax.forward(q[..., i : i + 7, :], k, v)[0] for i in range(0, q.shape[-2], 7)], axis=-2
    ),
    "more precisely than asked": lambda q, k, v: softmax.forward(*(x.astype(np.float64) for x in (q, k, v)))[0].astype(
        np.float32
    ),
}
alarms = {name: not conform.check(kernel, "softmax").ok for name, kernel in RIGHT.items()}
print(f"{sum(alarms.values())} false alarms in {len(RIGHT)} kernels")
assert not any(alarms.values())

# %% [markdown]
# ## Public kernels before the judge
#
# The tests in `tests/peers/judged` put public kernels before the judge. They need other packages (extra `peers`). This
# is what they reported in float32, unless a row says otherwise, on a CPU (with Triton's kernels in its interpreter).
# The numbers under "fails" are those of the mistakes above:
#
# | kernel | passes | fails |
# | --- | --- | --- |
# | PyTorch 2.14, `scaled_dot_product_attention`, masks given | all that it offers, shared heads too | |
# | the same, the fused kernel alone, from float64 to 16 bits | all that it offers | |
# | the same with `is_causal` | | fewer queries than keys: 7 |
# | ONNX Runtime 1.32, `LinearAttention`, three rules | all that it offers: outputs, states, shared heads, resets | |
# | the reference of this operator in `onnx` 1.23 | the same | |
# | transformers 5.24, Qwen3-Next's recurrent rule | all that it offers | in float64: it computes in float32 |
# | the same, by chunks | ordinary and weak gates, states | strong gates: 9; resets: 10; float64 as above |
# | flash-linear-attention 0.6, chunked gated delta rule | the same, and packed sequences | 9 and 10 |
# | the same package, KDA, GLA and simple GLA | ordinary and weak gates, states | 9 and 10 |
# | fast-transformers 0.4, causal linear attention | all else that it offers, masks too | fewer queries than keys: 7 |
#
# The smallest cases are small indeed:
#
# - 7: one query and two keys. The query sees only the first key. (With two queries and one key, fast-transformers reads
#   memory behind the only value. If a NaN lies there, the second output is NaN.)
# - 9: two tokens with log gates of $-16$. In simple GLA the gradients of the two gates are $6.0 \cdot 10^{-8}$ and
#   $2.1 \cdot 10^{-7}$, where $0$ and $1.8 \cdot 10^{-7}$ are right.
# - 10: one token with a log gate of $-\infty$. All five functions by chunks return NaN.
#
# On an NVIDIA H200 (PyTorch 2.11, Triton 3.6) the chunked gated delta rule refuses its backward pass, because this
# Triton computes it wrongly there. Its output is off by a thousandth of its size, because its products are TF32's, of
# 10 bits.
#
# None of this means that a model that uses these kernels is wrong: gates of 0 and of $e^{-16}$ are rare where a network
# chooses them. It means that outputs or gradients of the kernels are meaningless there, and that their tests do not
# show it.
#
# How many mistakes can the judge name?

# %%
of_outputs = sum(each.of == "output" for each in conform.HYPOTHESES.values())
print(f"{of_outputs} of outputs, {len(conform.HYPOTHESES) - of_outputs} of gradients")
assert len(conform.HYPOTHESES) >= 25

# %% [markdown]
# ## Exercises
#
# **1.** A kernel is tested at $N = 4096$ tokens with values from $N(0, 1)$, softmax over scores near 0, and a tolerance
# of 0.01 plus 1 %. Up to which standard deviation of its error does one number of a wrong answer pass nearly always?
# And how often does a zero?
#
# <details><summary>Solution</summary>
#
# The right answer is a mean of 4096 numbers, so its standard deviation is $1 / \sqrt{4096} = 1/64 \approx 0.016$. The
# tolerance is 0.01: with a standard deviation of a third of that, 0.0033, or a fifth of the answer's size, one number
# passes nearly always; with 0.0018 an answer of 4096 numbers passes as a whole. A zero passes where the answer is below
# 0.01 in size, at $P(|z| < 0.64) = 48\,\%$ of the entries. From $N = 10^5$ on it passes nearly everywhere.
#
# </details>

# %%
answers = np.random.default_rng(3).standard_normal((4000, 4096)).mean(axis=1)
print(f"answers: {answers.std():.4f}; zeros pass for {np.mean(abs(answers) <= 0.01 + 0.01 * abs(answers)):.0%}")
assert abs(answers.std() - 1 / 64) < 1e-3
noise = np.random.default_rng(4).standard_normal((200, 4096))
for size, whole in ((0.0033, False), (0.0018, True)):
    passes = abs(size * noise) <= 0.01
    print(f"standard deviation {size}: {passes.mean():.1%} of numbers, {passes.all(axis=1).mean():.0%} of all answers")
    assert passes.mean() > 0.99
    assert (passes.all(axis=1).mean() > 0.99) == whole

# %% [markdown]
# **2.** The identity of mistake 9 is exact. At a constant log gate of $-a$ with $a$ large, how many of float32's seven
# digits are left of the gate's gradient?
#
# <details><summary>Solution</summary>
#
# The terms $q\,dq$ and $k\,dk$ are of size 1, each rounded at $6 \cdot 10^{-8}$, and their sum is of size $g = e^{-a}$.
# So the relative error is at least near $6 \cdot 10^{-8}\, e^{a}$: at $a = 5$ at most five digits are left, at $a = 10$
# three, at $a = 16.6$ none. The measured error is some ten times that, because each gradient is a sum of many such
# terms.
#
# </details>

# %%
for a in (5.0, 10.0, 16.6):
    question = ask("gated_linear", np.random.default_rng(4), n=16)
    question = question.change(log_gate=np.full_like(question.inputs["log_gate"], np.float32(-a)))
    x = [y.astype(np.float32) for y in question.inputs.values()]
    noisy = by_identity(question.d_out.astype(np.float32), gated_linear.forward(*x)[1]).log_gate
    exact = answer(question)["d_log_gate"]
    lost = np.median(abs(noisy - exact)[..., 1:] / abs(exact)[..., 1:])
    print(f"a = {a}: relative error {lost:.0e}, estimated {6e-8 * np.exp(a):.0e}")
    assert 0.03 < lost / (6e-8 * np.exp(a)) < 30

# %% [markdown]
# ## What to remember
#
# - Ask with a random cotangent of size 1, widths that differ, lengths that are no multiple of a chunk, and masks in the
#   middle.
# - Judge a number by its own size, and by what its precision allows: a budget, not a tolerance.
# - One pass, two pieces and single steps are three tests, not one.
# - A formula can be exact and useless: look where it subtracts.
#
# **Sources.** Yang et al. (2025), *Gated delta networks*, section 3.3. Higham (2002), *Accuracy and stability of
# numerical algorithms*, sections 1.7 and 3.1. The threads named above, on github.com.
