# %% [markdown]
# # 20. Learning to copy: what attention without the softmax can learn, and what it looks at
#
# Can attention without the softmax learn to find one symbol among many? How long does it take? And where does it look
# once it can?
#
# Linear attention computes the same kind of answer as softmax attention, with another similarity. Nothing in its
# algebra shows whether gradient descent finds good queries and keys for it. So we train networks, on a task of which
# everything is known:
#
# 1. the task, and why two layers are enough for it;
# 2. a small network that learns it here, in seconds;
# 3. longer words: the loss against updates and against CPU time, compared with what the paper says; and the paper's
#    length;
# 4. what attention looks at in the networks that can copy: a sharp diagonal, or a blur, and what it makes of them;
# 5. why the width of a head matters: the rank of the similarities;
# 6. copying as a recurrent network, from a state of constant size;
# 7. time and memory of a whole training step against the length.
#
# You need chapters 5, 7 and 8; 3, 9, 12, 14, 17 and 18 help. The letters are a word of $n$ symbols, $S$ places, of
# which $p$ and $j$ are two, width $E$, and $H$ heads of $D = E / H$.

# %% jupyter={"source_hidden": true}
import tempfile
from pathlib import Path

import numba
import numpy as np

from linattn_ref.attention import patterns, reformer
from linattn_ref.data import duplication as words
from linattn_ref.experiments.cost import model_resources
from linattn_ref.experiments.learned import duplication_attention, duplication_curves
from linattn_ref.experiments.learning import causal_attention, duplication, learn, runs
from linattn_ref.experiments.publishing import chapter
from linattn_ref.models import causal
from linattn_ref.nn import positions

numba.set_num_threads(1)

# %% [markdown]
# ## The smallest example, by hand
#
# Take the word 9 7. What is read is the word, a separator 0, and the word again: 9 7 0 9 7. At each place the network
# predicts the next symbol, and three predictions count: 0 after the first 7, then 9, then 7. A model that guesses among
# ten symbols pays $\ln 10 = 2.30$ nats for each symbol. A model that can copy pays nothing. The 9 and the 7 stand in
# the first copy, two places before the place that has to predict them, and two is the length of the word.

# %%
shortest = words.draw(np.random.default_rng(0), count=1, length=8)
read, predict, which = shortest.read[0], shortest.told[0], shortest.counts[0]
print("read:   ", *read)
print("predict:", *np.where(which, predict.astype(str), "."))
word_length = int(which.sum()) - 1
copied = which.nonzero()[0][1:]  # the places that have to predict the copy
assert (predict[copied] == read[copied - word_length]).all()
print(f"a word of {word_length} symbols; guessing costs {np.log(10):.2f} nats per symbol")

# %% [markdown]
# ## The task
#
# A word is read, a separator, and the word again:
#
# $$w_1 \ldots w_n\; 0\; w_1 \ldots w_n\; 0\; 0 \ldots$$
#
# and at each place the network predicts what comes next. The first copy is random and cannot be predicted. Only the
# $n + 1$ targets from the separator on count. (In the code they are called `told`.) Each symbol of the second copy is
# in the first as well, exactly $n$ places before the query that has to find it, and $n$ differs from word to word.
#
# Kitaev et al. (2020, section 2.1) study Reformer on such a task. Katharopoulos et al. (2020, section 4.1.1) compare
# softmax, linear and lsh on theirs. Here the task is as in the latter authors' code
# (idiap/linear-transformer-experiments, `causal-copy/main.py`), which differs from that folder's README. There is no
# separator before the first copy, there are ten symbols, and $n$ goes from $S/4$ to $(S - 1)/2 - 1$.

# %%
chapter.source(words.draw, doc=False)

# %%
rng = np.random.default_rng(0)
S = 12
drawn = words.draw(rng, count=1000, length=S)
for row in range(3):
    print("read ", *drawn.read[row], "\ntold ", *np.where(drawn.counts[row], drawn.told[row].astype(str), "."))
lengths = drawn.counts.sum(axis=1) - 1
assert set(lengths) == set(range(S // 4, (S - 1) // 2))
for read, told, counts, n in zip(drawn.read, drawn.told, drawn.counts, lengths, strict=True):
    rows = np.flatnonzero(counts)
    assert told[rows[0]] == 0  # the separator: the only target of all that is 0, so it costs nothing
    np.testing.assert_array_equal(told[rows[1:]], read[rows[1:] - n])  # n places back

# %% [markdown]
# **Two layers are enough.** Place $p$ has the sinusoids $\sin p\omega$ and $\cos p\omega$, for many $\omega$, in
# columns of its own next to the embedding. A query at place $p$ needs the key at $p - n$:
#
# $$\sin (p - n)\omega = \sin p\omega \cos n\omega - \cos p\omega \sin n\omega \qquad (1)$$
# $$\cos (p - n)\omega = \cos p\omega \cos n\omega + \sin p\omega \sin n\omega \qquad (2)$$
#
# The query knows its own $p$. The separator stands at place $n$, so its sinusoids are those of $n$: *the first layer
# has to find the separator and fetch its position*. The feed-forward layer can make the products of (1) and (2), and
# *the second layer looks $n$ places back*. The product of such a query and a key at place $j$ is $\sum_\omega \cos (p -
# n - j)\omega$, which is largest at $j = p - n$. How sharp this peak becomes depends on the mechanism.

# %%
table = positions.sinusoidal(64, 32)
sine, cosine = table[:, 0::2], table[:, 1::2]
p, n = 40, 23
there = np.stack([sine[p] * cosine[n] - cosine[p] * sine[n], cosine[p] * cosine[n] + sine[p] * sine[n]], axis=1)
np.testing.assert_allclose(there.reshape(-1), table[p - n], atol=1e-12)  # (1), (2)
peaks = table @ there.reshape(-1)
assert peaks.argmax() == p - n
seen = peaks[: p + 1]  # nothing of the future
softened = np.exp(seen - seen.max()) / np.exp(seen - seen.max()).sum()
print(
    f"weight on the right key: {seen[p - n] / seen.clip(0).sum():.1%} in proportion, {softened[p - n]:.1%} by softmax"
)

# %% [markdown]
# ## A network that learns it here
#
# Take words of three and four symbols, and two layers of width 32. As in the authors' code, there are sinusoids next to
# the embedding, blocks with their norms last, ReLU, and RAdam with decoupled decay .01. The gradient of *each array by
# itself* is clipped at norm 1 (their `radam.py` calls `clip_grad_norm_` on one parameter after the other). Some things
# differ from theirs. The network is smaller and reads fewer sequences per update (they have 64). It is initialised by
# this package's rules and not by PyTorch's, and there is no dropout (they have .1). The rate, .001, is divided by ten
# after eight tenths of the updates, while theirs is after 3000 of 10,000. We measure below what this difference
# changes. And hashing sorts into two buckets at $S = 68$ and four at $S = 128$, where theirs has 64 at any length.

# %%
chapter.source(duplication.task)

# %%
SMALL = duplication.Shape(width=32, heads=2, layers=2, length=S, batch=16)
rows = []
for name in ("softmax", "linear"):
    with tempfile.TemporaryDirectory() as folder:
        learned = learn.run(duplication.begin, Path(folder), attention=name, steps=1500, shape=SMALL).run
    loss, right = learned.curves["loss"], learned.curves["accuracy"]
    rows.append((name, loss[0], loss[-1], f"{right[-1]:.1%}"))
    assert loss[-1] < 0.05 * np.log(10) < loss[0]
    assert right[-1] > 0.97
chapter.table(("", f"loss after {learned.steps[0]} updates", f"after {learned.steps[-1]}", "symbols predicted"), rows)

# %% [markdown]
# Both learn, from the gradients that chapters 1 and 7 derive. Guessing costs $\ln 10 = 2.30$ nats.
#
# ## Longer words
#
# At $S = 68$, words have 17 to 32 symbols. There are two layers of width 64, two heads, and 32 sequences per update. We
# compare softmax and linear attention, LSH with one round and with four, random features (64 per head, drawn anew in
# each update), and a window of 16 places back. Such a run takes two to ten CPU minutes, so what follows comes from a
# record of `linattn-ref train duplication`. Every update reads new sequences, hashed anew and with new features, so its
# loss is a loss on words never seen. The loss at the end is the mean over the last tenth of the updates. The share of
# symbols predicted correctly is over 512 sequences that are the same each time, of which every 32 share a draw of
# hashes or of features. The table has this share for seed 0.

# %%
curves = chapter.results("duplication_curves")
chapter.show(
    duplication_curves.draw,
    curves,
    alt="The loss falls first for softmax attention, then for the window, then for linear attention and lsh with four "
    "rounds, which end near a hundredth of a nat; lsh with one round and random features stay far above. "
    "Linear attention with four heads of width 16 ends where two of 32 do, with eight of width 8 three times as high. "
    "At S = 128 softmax falls as low as before, linear attention nearly as low within an hour, most of it in a step "
    "where the rate comes down, and the window stays at guessing",
)  # claim 27

# %%
rows = []
for name, curve in curves.mechanisms.items():
    final, seconds = curve.at_the_end(), curve.cpu_seconds[:, -1]
    spread = f"{final.min():.2g} to {final.max():.2g}" if len(final) > 1 else f"{final[0]:.2g}"
    family = curve.processor.partition("family ")[2].partition(",")[0]
    took = f"{np.median(seconds):.0f} ({family})"
    rows.append((name, len(final), curve.steps[-1], took, spread, f"{curve.accuracy[0, -1]:.2%}"))
head = ("", "seeds", "updates", "CPU seconds (processor's family)", "loss at the end, nats", "predicted (seed 0)")
chapter.table(head, rows)

softmax, linear, lsh_4, performer, local = (
    curves.mechanisms[name] for name in ("softmax", "linear", "lsh-4", "performer", "local")
)
assert softmax.at_the_end().max() < 0.01
assert linear.at_the_end().max() < 0.05
assert max(softmax.cpu_seconds.max(), linear.cpu_seconds.max()) < 360  # six minutes
shared = np.flatnonzero(np.isin(linear.steps, softmax.steps))
assert 50 * softmax.at_the_end().max() < linear.loss[:, shared[-1]].min()  # after as many updates
lsh_1 = curves.mechanisms["lsh-1"].at_the_end()
assert lsh_1.min() > 10 * linear.at_the_end().max()
assert 1 < np.median(lsh_4.at_the_end()) / np.median(linear.at_the_end()) < 1.5
assert 0.37 < performer.at_the_end().min() < performer.at_the_end().max() < 0.39
assert local.at_the_end().max() < 0.01

earlier, of_hashes = np.tri(68, k=-1, dtype=bool), np.random.default_rng(0)
meets = {}
for rounds in (1, 4):
    shares = []
    for _ in range(100):
        x, rotations = of_hashes.standard_normal((68, 32)), reformer.draw_rotations(rounds, 32, 2, of_hashes)
        shares.append(reformer.pattern(x, rotations=rotations, chunk=32, causal=True)[earlier].mean())
    meets[rounds] = np.mean(shares)
    print(f"random vectors, rounds of hashing: {rounds}; a query meets {meets[rounds]:.0%} of the keys before it")
assert meets[1] < 0.8 < 0.985 < meets[4]

# %% [markdown]
# **The paper** says of its Figure 2 (section 4.1.1; $S = 128$, 4 layers, 8 heads, 64 sequences per update, the loss
# over 10,000 updates): "linear converges smoothly and reaches a lower loss than lsh due to the lack of noise introduced
# by hashing. In particular, it reaches the same loss as softmax."
#
# Here, at a quarter of the width and half of the length and depth, linear attention does learn to copy, to about a
# hundredth of a nat, in every run. It does *not* learn as fast as softmax attention, neither by updates nor, at this
# length, by time. After 4000 updates its loss is more than fifty times that of softmax attention (which has had its
# lower rate by then). Nor do its curves end where those of softmax attention end. That is no contradiction: their
# network is larger in every respect, with 32 heads in all where this one has 4. We did not measure which of these
# differences matters. The authors' own README warns: the task "requires very sparse random attention and is a hard task
# for dense attentions like linear attention".
#
# **Hashing.** With one round the loss ends at more than ten times that of linear attention, for each seed. In the
# paper, too, it ends above. A query meets the keys of its own chunk and of the one before. Whenever the hash, drawn
# anew in each update, puts the wanted key into another, there is nothing to copy. With four rounds it is enough if one
# of them brings the two together, and the loss ends close to that of linear attention. But at $S = 68$ and chunks of 32
# four rounds let nearly all pairs meet, 99 % of them with random vectors. So lsh-4 is all but softmax attention whose
# queries are its keys, and the effect of hashing on long sequences cannot be seen here.
#
# **Random features** estimate the softmax, and their loss stays at three eighths of a nat, whatever the seed. The
# likely reason is that sharp weights need large exponents, which random features estimate worst (chapter 9). The errors
# also differ from update to update. The features of linear attention estimate nothing, and there is no noise in them.
#
# **A window** of 16 places back ends lower than softmax attention, but after 10,000 updates in place of 4,000; after
# 4,000 its loss was still .04 nats. Yet no word has its first copy inside the window. Two layers reach 32 places: one
# passes on what the other needs (exercise 4). Within its window, attention can point as sharply as it likes.
#
# **The paper's rate** is divided by ten after 3000 of 10,000 updates. With that, one seed each:

# %%
rows = []
for name, curve in curves.early.items():
    (at_3000,), (final,) = curve.loss[:, curve.steps == 3000][0], curve.at_the_end()
    rows.append((name, curve.steps[-1], f"{at_3000:.2g}", f"{final:.2g}", f"{curve.accuracy[0, -1]:.2%}"))
head = ("rate divided after 3,000 updates", "updates", "loss at 3,000", "loss at the end, nats", "symbols predicted")
chapter.table(head, rows)
early = {name: curve.at_the_end()[0] for name, curve in curves.early.items()}
assert early["softmax"] < 0.001
assert early["linear"] > 10 * linear.at_the_end().max()

# %% [markdown]
# Softmax attention has learned by then, and a tenth of the rate only takes away the noise. Linear attention is still in
# the middle of learning. It goes on at a tenth of the pace, and ends with more than ten times the loss that it
# reaches if the rate stays high for longer. The paper's network may have learned more by 3000 updates; ours needs the
# time.
#
# ## The paper's length
#
# At $S = 128$, words have 32 to 62 symbols, and everything else is as before, with one seed each.

# %%
rows = []
for name, curve in curves.longer.items():
    minutes, loss, right = curve.cpu_seconds[0, -1] / 60, curve.at_the_end()[0], curve.accuracy[0, -1]
    rows.append((name, curve.steps[-1], f"{minutes:.0f}", f"{loss:.2g}", f"{right:.1%}"))
chapter.table(("S = 128", "updates", "CPU minutes", "loss at the end, nats", "symbols predicted"), rows)
longer = {name: curve.at_the_end()[0] for name, curve in curves.longer.items()}
assert longer["softmax"] < 0.002
line = curves.longer["linear"]
minutes = line.cpu_seconds[0] / 60
assert 0.9 < np.interp(15, minutes, line.accuracy[0]) < 0.93
assert 0.03 < np.interp(45, minutes, line.loss[0]) < 0.05
assert longer["linear"] < 0.005 < 10 * longer["linear"] < np.interp(45, minutes, line.loss[0])
assert 3 < longer["linear"] / longer["softmax"] < 5
assert longer["linear"] < linear.at_the_end().min()
n = words.draw(np.random.default_rng([2020, 128]), count=512, length=128).counts.sum(axis=1) - 1
guessed = np.log(10) * n.sum() / (n + 1).sum()  # the separator costs nothing
assert abs(longer["local"] / guessed - 1) < 0.005
print(f"to predict the separator and guess the rest costs {guessed:.3f} nats")

# %% [markdown]
# Softmax attention copies these as well as the shorter ones, after eight minutes. For linear attention, heads that are
# as wide as before have to tell twice as many places apart, and it takes an hour. After a quarter of an hour it
# predicts nine symbols of ten. Later its loss stays near .04 nats for as long as the rate stays. Where the rate falls
# to a tenth, the loss falls to less than a tenth. It ends at four times the loss of softmax attention, and *below* what
# linear attention reached on the shorter words with a sixth of the updates. So what it lacks on the shorter words may
# be time rather than capacity. These two single runs do not reach "the same loss", as the paper puts it.
#
# The window fails here, as it must: two windows reach 32 places, and only the shortest words here are that short. All
# that the network learns is to predict the separator and to guess.
#
# **What would count, said before.** The paper's claim gets runs of its own: $S = 128$, twice the width, four heads that
# are as wide as the paper's (32), and the authors' rate. The plan (`experiments/learning/papers.toml`) says what would
# count as yes and as no. It was written into the folder of each run before the run began. One run of softmax attention,
# with seed 0, had been seen when the limit of .002 nats was chosen, and smaller runs of the others. So the seeds begin
# at 1.

# %%
asked = runs.read_all(runs.RECORDS / "papers")
for answer in ("yes", "no"):
    print(f"{answer}: {asked['copying-linear-1'].facts['plan'][answer]}")
ends, before, rows = {}, {}, []
for name in ("softmax", "linear", "lsh-1"):
    for seed in (1, 2):
        run = asked[f"copying-{name}-{seed}"]
        losses = run.curves["training_loss"]
        ends[name, seed] = losses[run.steps > 0.9 * run.steps[-1]].mean()
        (before[name, seed],) = losses[run.steps == 3000]
        minutes, right = run.cpu_seconds[-1] / 60, run.curves["accuracy"][-1]
        end = f"{ends[name, seed]:.2g}"
        rows.append((name, seed, run.steps[-1], f"{minutes:.0f}", f"{before[name, seed]:.2g}", end, f"{right:.1%}"))
head = (
    "width 128, S = 128",
    "seed",
    "updates",
    "CPU minutes",
    "loss at 3,000",
    "loss at the end, nats",
    "symbols predicted",
)
chapter.table(head, rows)
assert all(ends["linear", seed] > ends["softmax", seed] + 0.002 for seed in (1, 2))  # so the answer is no
assert all(ends["lsh-1", seed] > 1.2 * ends["linear", seed] for seed in (1, 2))
assert all(before["lsh-1", seed] < before["linear", seed] for seed in (1, 2))

# %% [markdown]
# The answer is **no**, with both seeds. LSH with one round does end highest, as the paper says, although after 3,000
# updates it was ahead of linear attention. But linear attention ends .2 nats above softmax attention. The table also
# says why that is no verdict on what it can hold. When the rate comes down, after 3,000 updates, its loss is still
# about .6 nats, and from then on it learns at a tenth of the pace.
# The narrower network above, with the full rate for 48,000 updates, ended below .005.
# The paper's network has twice the width, depth and heads, and reads twice as many sequences per update. So whether
# linear attention reaches the same loss *in 10,000 updates* may depend on the size of the network.
#
# ## What it looks at
#
# The last networks of seed 0, softmax and linear, come with this chapter (200 kB each). Their attention, computed now:

# %%
chapter.source(duplication_attention.weights_of, duplication_attention._matrix)

# %%
looked = duplication_attention.compute(count=128)
chapter.show(
    duplication_attention.draw,
    looked,
    alt="Softmax attention: in layer 1 a head looks at the separator from all later places, in layer 2 one looks at a "
    "sharp diagonal. Linear attention: a weak column at the separator in layer 1; in layer 2 pale blots along the "
    "diagonal, and much of the weight on the second copy",
)
for name, network in looked.networks.items():
    print(f"{name}: {network.symbols:.1%} of symbols, {network.words:.0%} of words from the first symbol to the last")

# %% [markdown]
# Softmax attention has the two layers that we designed on paper. In layer 1 one head looks at the separator, from every
# place after it. In layer 2 one head looks exactly $n$ places back. (We did not examine whether the feed-forward layer
# between them makes the products of (1) and (2).)
#
# Linear attention has a column at the separator in layer 1, too. In layer 2 it has a blur along the diagonal. On
# average over the rows, about two fifths of the weight or more are not even on the first copy but on the second, the
# one being written:

# %%
soft, line = looked.networks["softmax"], looked.networks["linear"]
assert soft.on_separator[0].max() > 0.7
assert soft.on_copied[1].max() > 0.8
assert line.on_copied[1].max() < 0.1
assert min(soft.symbols, line.symbols) > 0.98


def reading(name, n, count, seed):
    """Words (count, n), their scores, and what was saved, as a network reads each of them twice."""
    params, model = duplication_attention.learned(name)
    word = np.random.default_rng(seed).integers(1, 11, (count, n))
    read = np.zeros((count, 68), int)
    read[:, :n] = read[:, n + 1 : 2 * n + 1] = word
    return word, *causal.forward(read, params, model)


rows, n = [], 20
for name in ("softmax", "linear"):
    _, _, saved = reading(name, n, 100, seed=1)
    weights = duplication_attention.weights_of(saved)[:, 1, :, n : 2 * n]  # of layer 2: (words, heads, n, S)
    largest = weights.argmax(axis=-1) == np.arange(n)
    for head, (its, largest_there) in enumerate(zip(weights.swapaxes(0, 1), largest.swapaxes(0, 1), strict=True)):
        parts = np.trace(its, axis1=1, axis2=2) / n, its[..., :n].sum(-1), its[..., n], its[..., n + 1 :].sum(-1)
        rows.append((f"{name}, head {head + 1}", *(f"{x.mean():.0%}" for x in (*parts, largest_there))))
where = ("on the symbol to be predicted", "on all of the first copy", "on the separator", "on the second copy")
chapter.table(("weight of a row of layer 2, words of 20", *where, "largest on that symbol"), rows)
assert largest.mean(axis=(0, 2)).max() < 0.1  # linear attention's
assert weights[..., n + 1 :].sum(-1).mean(axis=(0, 2)).min() > 0.39


# %% [markdown]
# The symbol to be predicted gets less than a tenth of the weight of its row, and hardly ever the most. Yet it is
# predicted. So look at what the weights *make*. From the values, layer 2 makes a sum of 64 numbers per row. For each of
# the 20 rows, fit one linear map from these numbers to a symbol, by least squares over 3,000 words, and let it read 500
# others. Can the wanted symbol be read from these sums, and what else can? Can it also be read from what layer 2 reads,
# from the part of the sum that comes from the first copy, or from the part that comes from the second? (A guess is
# right in 10 % of cases.)


# %%
def summed(name, n, count, seed, usual):
    """Words (count, n), and what is read off: (count, n, columns) each, the last column 1."""
    word, _, saved = reading(name, n, count, seed)
    layer = saved.blocks[1].attention
    v, rows = layer.attention.v, duplication_attention.weights_of(saved)[:, 1, :, n : 2 * n]
    found = {
        "what layer 2 reads": layer.inner.x[:, None, n : 2 * n],
        "its sum over the first copy": rows[..., :n] @ v[:, :, :n],
        "its sum over the second copy": rows[..., n + 1 :] @ v[:, :, n + 1 :],
        "its whole sum": rows @ v,
        "its whole sum, the weights a mean over words": usual @ v,
    }
    one = np.ones((count, n, 1))
    return word, {what: np.concatenate([*x.swapaxes(0, 1), one], axis=-1) for what, x in found.items()}


def read_off(word, x, others, y, ahead, n=20):
    """The share of symbols so many places from the wanted one that linear maps tell, one map per row."""
    right = []
    for row in range(max(0, -ahead), min(n, n - ahead)):
        fit = np.linalg.lstsq(x[:, row], np.eye(11)[word[:, row + ahead]])[0]
        right.append(((y[:, row] @ fit).argmax(axis=-1) == others[:, row + ahead]).mean())
    return float(np.mean(right))


read_by = {}
for name in ("softmax", "linear"):
    _, _, saved = reading(name, 20, 1000, seed=4)
    usual = duplication_attention.weights_of(saved)[:, 1, :, 20:40].mean(axis=0)  # (heads, n, S)
    (word, fitted), (others, read) = summed(name, 20, 3000, 2, usual), summed(name, 20, 500, 3, usual)
    for what, x in fitted.items():
        read_by[name, what] = [read_off(word, x, others, read[what], ahead) for ahead in (-1, 0, 1, 2)]
symbols = ("the one just read", "the wanted one", "the one after it", "the next")
chapter.table(
    ("symbols read off by linear maps", *symbols),
    [(f"{name}: {what}", *(f"{share:.0%}" for share in shares)) for (name, what), shares in read_by.items()],
)
wanted = {what: shares[1] for what, shares in read_by.items()}
whole = "its whole sum"
assert min(wanted[name, whole] for name in ("softmax", "linear")) > 0.99
assert wanted["linear", "its whole sum, the weights a mean over words"] > 0.99
assert wanted["linear", "what layer 2 reads"] < 0.3
assert (
    wanted["linear", "its sum over the second copy"] < 0.4 < 0.7 < wanted["linear", "its sum over the first copy"] < 0.8
)
assert wanted["softmax", "its sum over the first copy"] > 0.99
assert min(read_by["linear", whole][2:]) > 0.7 > 0.4 > max(read_by["softmax", whole][2:])

# %% [markdown]
# With linear attention the wanted symbol can nearly always be read from the whole sum, but from neither part of it
# alone. The blur on the first copy covers the wanted symbol and its neighbours alike. From that part of the sum the
# maps read the wanted symbol in three of four cases, and the ones after it as often. The weight on the second copy is
# not lost either. There we find the symbols that have been written already. From that part alone the wanted one is read
# in one of three cases, and from both together nearly always. One way to see it: one part holds the symbols nearby, the
# other those already copied. We did not examine how the later layers take the symbol out of the sum. But a picture of
# the weights does not show what a network knows.
#
# And the weights need not depend on the word. Give every word the same weights, namely their mean over a thousand other
# words: the maps still read the wanted symbol nearly always.


# %%
def copies(name, n, count=100):
    """The share of symbols predicted, and layer 2's weights (heads, n, n) from the second copy to the first."""
    word, scores, saved = reading(name, n, count, seed=n)
    weights = duplication_attention.weights_of(saved)[:, 1, :, n : 2 * n, :n]
    return (scores.argmax(axis=-1)[:, n : 2 * n] == word).mean(), weights[0]


def panel(axes, n):
    for axis, name in zip(axes, ("softmax", "linear"), strict=True):
        right, weights = copies(name, n, count=20)
        sharpest = max(weights, key=np.trace)
        axis.imshow(sharpest, cmap="magma_r", vmin=0, extent=(0.5, n + 0.5, n + 0.5, 0.5))
        axis.grid(False)
        axis.text(0.97, 0.95, f"{name}: {right:.0%}", transform=axis.transAxes, ha="right", va="top")
    axes[1].set_xlabel("symbol looked at")


chapter.explore(
    panel,
    (10, 17, 24, 32),
    name="n",
    slider=(5, 10, 14, 16, 17, 20, 24, 28, 32, 33),
    rows=2,
    height=0.62,
    alt="Layer 2 from the second copy to the first, for words of 10, 17, 24 and 32 symbols; softmax above: a column at "
    "10, sharp diagonals at the others; linear below: one blot at 10, blots along the diagonal at the others",
)

# %% [markdown]
# At $n = 10$ neither network copies: no word of fewer than 17 symbols was ever in training. Both have learned a rule
# for the lengths in training, not "look back to the same place in the word before".

# %%
told = {name: {n: copies(name, n)[0] for n in (10, 14, 20, 28)} for name in ("softmax", "linear")}
chapter.table(
    ("symbols predicted, words of", *(str(n) for n in told["linear"])),
    [(name, *(f"{right:.0%}" for right in of.values())) for name, of in told.items()],
)
for of in told.values():
    assert max(of[10], of[14]) < 0.8 < 0.98 < min(of[20], of[28])

# %% [markdown]
# ## The width of a head
#
# Take the $n$ rows that predict the copy and the $n$ keys of the first copy. With the softmax the matrix $P$ of their
# weights can be as near to the identity as one likes. Those of linear attention are $\phi(Q) \phi(K)^\top$, a product
# of $n \times D$ and $D \times n$, with each row divided by a number of its own:
#
# $$\operatorname{rank} P \le D \qquad (3)$$
#
# The identity has rank $n$. By Eckart and Young (chapter 3) no matrix of rank $D$ is closer to it than $\sqrt{n - D}$
# in the Frobenius norm, where the identity itself has $\sqrt n$. Heads of width 8 would have to distinguish 32 places
# by 8 numbers. And what is to be copied has to fit into the state, which has $H D^2 = E D$ numbers. How many directions
# do our heads of width 32 use? With $\sigma_i$ the singular values of $P$, count $(\sum_i \sigma_i^2)^2 / \sum_i
# \sigma_i^4$, which is $r$ if $r$ of them are equal and the others 0:

# %%
ranks = {name: np.linalg.svd(copies(name, 32)[1].astype(float), compute_uv=False) for name in ("softmax", "linear")}
effective = {name: (of**2).sum(axis=-1) ** 2 / (of**4).sum(axis=-1) for name, of in ranks.items()}
for name, of in effective.items():
    print(f"{name}: the weights of 32 queries on 32 keys count as {of.max():.1f} directions in the sharper head")
assert effective["softmax"].max() > 20 > 10 > effective["linear"].max()
above = {name: (of > 0.01 * of[:, :1]).sum(axis=-1) for name, of in ranks.items()}
for name, of in above.items():
    print(f"{name}: {of[0]} and {of[1]} singular values are above a hundredth of the largest")
both = np.linalg.svd(np.hstack(copies("linear", 32)[1].astype(float)), compute_uv=False)
together = int((both > 0.01 * both[0]).sum())
print(f"linear: {together} with the weights of the two heads side by side")
assert above["softmax"].max() == 32 > together > above["linear"].max()
params, model = duplication_attention.learned("linear")
_, saved = causal.forward(np.ones((1, 68), int), params, model)
weights = duplication_attention.weights_of(saved)[0, 1, 0, 34:, :34]
assert np.linalg.matrix_rank(weights, tol=1e-5 * np.linalg.norm(weights)) <= 32  # (3)

# %% [markdown]
# A direction with a tenth of the largest singular value hardly adds to the first count, but it can be useful all the
# same: the later layers may weigh it anew. The second count includes those too. By either count, linear attention
# predicts nearly all symbols with fewer directions than there are places. Its two heads use different directions,
# together more than either. And all that has to be predicted for a place is which of ten symbols is there.
#
# What is lost with heads of width 16 and 8? The lower left panel of the curves above has four and eight heads instead
# of two, so that there are as many features and parameters as before (one seed each):

# %%
for width, curve in curves.widths.items():
    loss, right = np.median(curve.at_the_end()), np.median(curve.accuracy[:, -1])
    print(f"linear, D = {width}: {loss:.2g} nats, {right:.1%} predicted")
wide, narrower, narrowest = (np.median(curve.at_the_end()) for curve in curves.widths.values())
assert narrower < 2 * wide < narrowest < 4 * wide

# %% [markdown]
# Less is lost than (3) suggests: (3) holds for one head, and eight heads of width 8 have 64 directions together, as two
# of 32 have. Width 16 ends where width 32 does. Only at 8 is the loss some three times as high, and still nearly all
# symbols are predicted.
#
# ## Copying as a recurrent network
#
# The same parameters now run one symbol at a time (chapter 8). The network reads the word and the separator, and from
# there on it reads its own predictions. Greedy copying gets the whole word right if and only if every symbol is
# predicted right when the true ones are read: up to the first error both have read the same.

# %%
params, model = duplication_attention.learned("linear")
word = np.random.default_rng(1).integers(1, 11, (50, 20))
state = causal.init_state(50, params, model)
for symbols in (*word.T, np.zeros(50, int)):
    scores, state = causal.step(symbols, params, state, model)
said = []
for _ in range(20):
    said.append(scores.argmax(axis=-1))
    scores, state = causal.step(said[-1], params, state, model)
alone = (np.stack(said, axis=1) == word).all(axis=1)

read = np.concatenate([word, np.zeros((50, 1), int), word], axis=1)
at_once = (causal.forward(read, params, model)[0].argmax(axis=-1)[:, 20:40] == word).all(axis=1)
np.testing.assert_array_equal(alone, at_once)
print(f"copied from a state of {2 * 64 * 33:,} numbers: {alone.mean():.0%} of 50 words of 20 symbols")
assert alone.mean() > 0.8

# %% [markdown]
# ## Time and memory of the whole step
#
# Chapter 14 shows the paper's Figure 1, attention alone. In a network attention is one part among products, norms and
# activations, which cost the same per token whatever the attention:

# %%
resources = chapter.results("model_resources")
chapter.show(
    model_resources.draw,
    resources,
    alt="Time of a training step over the length: softmax bends upwards from 1024 on, linear and lsh with one round "
    "stay straight, lsh with four bends a little. Memory over the length is level for all four",
)  # claim 26
softmax, linear = (resources.curves[name] for name in ("softmax", "linear"))
assert softmax.time_growth.exponent > 1.3 > linear.time_growth.exponent
assert (
    linear.seconds[0]
    < softmax.seconds[0]
    < 1.3 * linear.seconds[0]
    < resources.curves["lsh-4"].seconds[0]
    < 1.5 * linear.seconds[0]
)
for peaks in zip(*(curve.peak for curve in resources.curves.values()), strict=False):  # at one length
    assert max(peaks) < 1.12 * min(peaks)
for curve in resources.curves.values():
    assert 0.9 < curve.memory_growth.exponent < 1.1
chapter.table(
    ("a step of N tokens, CPU ms", *(f"{n:,}" for n in linear.lengths)),
    [
        (name, *(f"{1e3 * s:.0f}" for s in curve.seconds), *[""] * (len(linear.lengths) - len(curve.lengths)))
        for name, curve in resources.curves.items()
    ],
)

# %% [markdown]
# The paper's figure has quadratic memory for softmax because its matrix is kept. The online kernel keeps no matrix.
# Then memory is linear in the length with any of the four, and differs by about a tenth at most. Only the time
# distinguishes them. At 512 tokens a step with softmax attention takes 15% longer than one with linear attention, and a
# step with four rounds of hashing takes 40% longer.
#
# ## Exercises
#
# A sheet of homework goes further: `linattn-ref assignment transformer --out DIR` (see [the course](README.md)).
#
# **1.** The separator is among the $n + 1$ targets that count. What can a network lose there, and why is it so little?
#
# <details><summary>Solution</summary>
#
# At place $n - 1$, the last symbol of the first copy is read, and 0 should be predicted. But no place before it counts,
# and no place after it that counts has the target 0: a target that counts is 0 if and only if nothing but symbols has
# been read so far. One head that asks whether there is a separator, as layer 1 does anyway, is enough to predict it.
# (The authors divide by the number of targets, so the mean over $n + 1$ is a little below the mean over the $n$ that
# cost something.)
#
# </details>
#
# **2.** What is the loss if a word is copied but for the last symbol, which is guessed? With $n = 24$, compare it with
# the table.
#
# <details><summary>Solution</summary>
#
# $\ln 10 / (n + 1) = 2.30 / 25 = 0.092$ nats. A loss of .01 is one symbol guessed in nine words of that length.
#
# </details>
#
# **3.** With three features $1, \cos \omega p, \sin \omega p$, all similarities of linear attention are sums of one
# cosine and a constant. Which of (1) to (3) limits how well it distinguishes $n$ places? How many features does it
# take to have a peak whose height above its neighbours does not shrink with $n$?
#
# <details><summary>Solution</summary>
#
# (3): $P$ has rank 3. The neighbour's weight differs from the peak's by $1 - \cos \omega \approx \omega^2 / 2$, and
# $\omega \le 2 \pi / n$ so that there is no second peak among the $n$ places. So it shrinks like $1 / n^2$. For peaks
# that stay apart, frequencies up to a fixed one are needed, in steps of at most $2 \pi / n$, so that they do not
# repeat. That is a number of features proportional to $n$, in agreement with (3).
#
# </details>
#
# **4.** `linattn-ref train duplication --attention local --length 20`: how long are the words, and can attention that
# sees only 16 places back copy them? And with the default length, 68, in one layer, in two?
#
# <details><summary>Solution</summary>
#
# With $S = 20$, $n$ goes from 5 to 8: the key stands inside the window, and local attention can do whatever softmax
# attention does here. With $S = 68$ it stands 17 to 32 places back, outside of it, and one layer cannot copy. Two
# layers reach $2 \cdot 16 = 32$ places, just far enough for the longest word: a place in between has to pass the symbol
# on. It need not know for whom. If in layer 1 each place takes along the symbol 16 places before it, a row finds in
# layer 2 what it needs $n - 16$ places back. But $n$ is harder to know: only rows at most 16 places behind the
# separator see it in layer 1. For the others the *key* sees it, and can mark the row for which it has something. So the
# window does not forbid copying at this length, and the record shows that training finds a way. The cell checks which
# places the layers reach, for every length of word.
#
# </details>

# %% jupyter={"source_hidden": true}
length, window = duplication.Shape().length, causal_attention.WINDOW
one_layer = patterns.local(length, window=window, causal=True)
two_layers = one_layer @ one_layer
assert duplication.Shape().layers == 2
for n in range(length // 4, (length - 1) // 2):
    rows = np.arange(n, 2 * n)  # from the separator on, each has to find the symbol n places back
    assert not one_layer[rows, rows - n].any()
    assert two_layers[rows, rows - n].all()
    between = rows - n + window
    assert (one_layer[rows, n] | one_layer[between, n]).all()  # the row sees the separator, or the key does
assert n == 2 * window
assert not two_layers[length - 1, length - 1 - (n + 1)]

# %% [markdown]
# ## What to remember
#
# - Two layers are enough to copy: one finds the separator, the other looks $n$ places back.
# - Linear attention learns to copy, but needs more updates than softmax attention. By the plan of the longer runs, it
#   does not reach the same loss in 10,000 updates.
# - A picture of the weights does not show what a network knows: from a blur the wanted symbol can still be read.
# - A head of linear attention of width $D$ has weights of rank $D$ at most. Several such heads together lose less than
#   that suggests.
#
# **Sources.** Katharopoulos et al. (2020), *Transformers are RNNs*, section 4.1. Kitaev, Kaiser and Levskaya (2020),
# *Reformer: the efficient transformer*. Eckart and Young (1936), *The approximation of one matrix by another of lower
# rank*.
