# %% [markdown]
# # 22. Hearing: labels without times
#
# A sound has hundreds of frames. What was said in it has a few dozen phonemes, and the data do not show which frame
# belongs to which phoneme. How can a network learn from that? And does attention without the matrix save time, or cost
# accuracy?
#
# 1. what CTC (connectionist temporal classification) sums over: all paths, first enumerated, and then without
#    enumeration;
# 2. its gradient, step by step, checked three times;
# 3. its effect on scores that are free to move: peaks;
# 4. from sound to features, on speech that is *synthesised* here;
# 5. why there is no causal mask;
# 6. four networks on synthesised speech, compared with the table that the paper prints for recordings (claim 31), and
#    what can be learned from that and what cannot.
#
# You need chapter 17; 7 and 14 for the mechanisms. The letters are $T$ frames, $V$ symbols of which symbol 0 is the
# *blank*, written –, scores $a_t \in \mathbb R^V$, and $S$ labels $l_1 \dots l_S$ from 1 to $V - 1$.

# %% jupyter={"source_hidden": true}
import itertools
import math
from importlib.util import find_spec

import numpy as np
from IPython.display import Audio, display

from linattn_ref.attention import linear, reformer, softmax
from linattn_ref.data import filterbank, reported
from linattn_ref.experiments.benches import bench_speech
from linattn_ref.experiments.learned import speech_curves, speech_utterance
from linattn_ref.experiments.learning import causal_attention, runs
from linattn_ref.experiments.publishing import chapter, style
from linattn_ref.gradcheck import check_elementwise
from linattn_ref.kernels import reference
from linattn_ref.models import speech
from linattn_ref.nn import ctc, ctc_decoding, mechanism

# Sums of a few hundred float64 products, each with a relative error of some 1e-16, agree to this.
same = np.testing.assert_allclose

# %% [markdown]
# ## The smallest example, by hand
#
# Take two frames, and one symbol `a` besides the blank. In the first frame the network assigns 0.4 to the blank and
# 0.6 to `a`, in the second 0.6 and 0.4. Three paths spell `a`:
#
# | path | probability |
# | --- | ---: |
# | `a a` | $0.6 \cdot 0.4 = 0.24$ |
# | `a –` | $0.6 \cdot 0.6 = 0.36$ |
# | `– a` | $0.4 \cdot 0.4 = 0.16$ |
#
# Together they have probability 0.76, and the fourth path, `– –`, has 0.24. The loss is $-\log 0.76$, and nobody had
# to say in which frame `a` is.

# %%
two_frames = np.log([[[0.4, 0.6], [0.6, 0.4]]])
loss_of_a, _ = ctc.forward(two_frames, np.array([[1]]))
print(f"p(a) by the page: {np.exp(-loss_of_a).item():.2f}")
same(np.exp(-loss_of_a), 0.76)

# %% [markdown]
# ## What a path spells
#
# In each frame the network outputs one symbol. What such a *path* spells is found in two steps: write a run of the
# same symbol once, then leave out the blanks. So `a a – b`, `– a b b` and `a – b –` all spell `a b`, and a blank
# between two `a` keeps them apart. With $y_t = \mathrm{softmax}(a_t)$, and frames that are independent of one another
# once the network has heard everything,
#
# $$p(l) = \sum_{\pi \text{ spells } l} \ \prod_{t=1}^T y_t(\pi_t), \qquad \text{loss} = -\log p(l) \qquad (1)$$
#
# Five frames and three symbols have 243 paths. Here are all of them, by brute force:


# %%
def said_by(path):
    return tuple(symbol for symbol, _ in itertools.groupby(path) if symbol != ctc.BLANK)


T, V = 5, 3
rng = np.random.default_rng(0)
scores = rng.standard_normal((T, V))
y = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
probability = {}
for path in itertools.product(range(V), repeat=T):
    label = said_by(path)
    probability[label] = probability.get(label, 0) + math.prod(y[t, symbol] for t, symbol in enumerate(path))

same(sum(probability.values()), 1, rtol=1e-12)  # each path says something
for label in [(), (1,), (1, 2), (1, 1), (2, 1, 2), (1, 2, 1, 2)]:
    loss, _ = ctc.forward(scores[None], np.array([label], int), lengths=np.array([len(label)]))
    same(loss * max(len(label), 1), -math.log(probability[label]), rtol=1e-12)  # the package's loss is per label
print(f"{V**T} paths say {len(probability)} different things")

# %% [markdown]
# **How many paths spell the same?** If no two neighbours of $S$ labels are alike, choose the $2 S$ places where a run
# of a label begins or ends, out of $T + S$. There are $\binom{T + S}{2 S}$ choices. We check this by counting, and then
# use it for an utterance of the paper's mean length, 800 frames, with 60 phonemes:

# %%
counted = {}
for path in itertools.product(range(V), repeat=T):
    counted[said_by(path)] = counted.get(said_by(path), 0) + 1
for label, count in counted.items():
    if all(a != b for a, b in itertools.pairwise(label)):
        assert count == math.comb(T + len(label), 2 * len(label))
paths = math.comb(800 + 60, 120)
print(f"800 frames, 60 labels: a number of {len(str(paths))} digits")
assert paths > 10**100

# %% [markdown]
# ## The sum without the enumeration
#
# A path that spells $l$ goes through the $2S + 1$ states $l' = –\, l_1\, –\, l_2 \dots l_S\, –$ in this order. It
# starts in one of the first two, and ends in one of the last two. In each frame it stays, goes on by one, or skips a
# blank between two labels that differ. Let $\alpha_t(s)$ be the sum over all beginnings of paths that are in state $s$
# at $t$, frame $t$ included. Let $\beta_t(s)$ be the sum over all continuations from there, after frame $t$. So
# $\alpha_1(s) = y_1(l'_s)$ for the first two states, $\beta_T(s) = 1$ for the last two, and both are 0 for all others.
# With $r \to s$ for an allowed step,
#
# $$\alpha_t(s) = y_t(l'_s) \sum_{r \to s} \alpha_{t-1}(r), \qquad
# \beta_t(s) = \sum_{s \to r} \beta_{t+1}(r)\, y_{t+1}(l'_r), \qquad
# p = \sum_s \alpha_t(s)\, \beta_t(s) \text{ at any } t \qquad (2)$$
#
# Every path is in exactly one state at $t$, which is why the last sum is $p$ at *any* $t$. This takes $T (2S + 1)$
# steps of at most three terms. All of it is done with logarithms: products of 800 probabilities are too small for
# floating-point numbers. The second cell below prints, for the labels 1 2, the share of the paths that are in each
# state (column) in each frame (row). (The files have numbers of their own: (1) to (3) of `ctc.py` are (1) here, (4) to
# (6) are (2), (7) is (3), and (8) is (4).)

# %%
chapter.source(ctc.sums, doc=False)

# %%
labels = np.array([1, 2])
states = np.array([0, 1, 0, 2, 0])
skip = np.where((np.arange(5) == 3), 0.0, -np.inf)  # from label 1 to label 2, and nowhere else
_, log_alpha = ctc.sums(np.log(y)[:, states], skip)
log_beta, _ = ctc.sums(np.log(y)[::-1, states[::-1]], np.roll(skip, -2)[::-1])
both = np.exp(log_alpha + log_beta[::-1, ::-1])  # (T, 2 S + 1)
same(both.sum(axis=1), [probability[1, 2]] * T, rtol=1e-12)  # (2), at every t

shares = np.zeros((T, 5))  # of the paths that say 1 2, by force: in which state each is, and how likely it is
for path in itertools.product(range(V), repeat=T):
    if said_by(path) == (1, 2):
        first, second = path.index(1), path.index(2)
        after_first = next(t for t in range(first, T) if path[t] != 1)
        after_second = next((t for t in range(second, T) if path[t] != 2), T)
        where = [0] * first + [1] * (after_first - first) + [2] * (second - after_first)
        where += [3] * (after_second - second) + [4] * (T - after_second)
        shares[np.arange(T), where] += math.prod(y[t, symbol] for t, symbol in enumerate(path))
same(both, shares, rtol=1e-12, atol=1e-15)
print((both / probability[1, 2]).round(3))

# %% [markdown]
# ## The gradient, step by step
#
# **Step 1: towards $\log y$.** A path in state $s$ at $t$ has $y_t(l'_s)$ as a factor, once. So $\partial p / \partial
# \log y_t(c)$ is the part of $p$ that comes from paths with $c$ at $t$: $\sum_{s:\, l'_s = c} \alpha_t(s) \beta_t(s)$.
# Divided by $p$ it is their share,
#
# $$g_t(c) = \frac{1}{p} \sum_{s:\, l'_s = c} \alpha_t(s)\, \beta_t(s), \qquad \sum_c g_t(c) = 1, \qquad
# \frac{\partial (-\log p)}{\partial \log y_t(c)} = -g_t(c) \qquad (3)$$
#
# **Step 2: through the softmax.** $\log y_t(c) = a_t(c) - \log \sum_k e^{a_t(k)}$, so $\partial \log y_t(c) / \partial
# a_t(k) = [c = k] - y_t(k)$.
#
# **Step 3: together.** $-\sum_c g_t(c)\, ([c = k] - y_t(k)) = y_t(k) \sum_c g_t(c) - g_t(k)$, and the sum is 1:
#
# $$\frac{\partial\, \text{loss}}{\partial a_t(k)} = y_t(k) - g_t(k) \qquad (4)$$
#
# This is what is predicted minus what is meant, as in cross-entropy. The difference is that $g$ is not given: it is the
# network's own opinion, once it knows what was said. We check (4) against the shares of the enumeration and against
# finite differences. It sums to 0 over the symbols (columns) in each frame (row):

# %%
chapter.source(ctc.paths_of, ctc.backward, doc=False)

# %%
g = np.zeros((T, V))
for s, symbol in enumerate(states):
    g[:, symbol] += shares[:, s] / probability[1, 2]  # (3), by force
loss, saved = ctc.forward(scores[None], labels[None])
gradient = ctc.backward(1.0, saved).scores[0] * len(labels)
same(gradient, y - g, rtol=1e-10, atol=1e-14)  # (4)
same(gradient.sum(axis=1), np.zeros(T), atol=1e-14)


def forward(scores):
    return ctc.forward(scores[None], labels[None])


def backward(d_loss, saved):
    found = ctc.backward(float(d_loss), saved)
    return found._replace(scores=found.scores[0])


check_elementwise(forward, backward, scores, rng=0).assert_ok()
print((y - g).round(3))

# %% [markdown]
# ## Peaks
#
# Let the scores be free, start with all of them equal, and follow the gradient downhill for `a b c` in thirty frames.
# At first all alignments are equally likely, and the share $g_t$ of each label is a hill where most paths have it. The
# gradient (4) takes the hills for what is meant. First the blank rises in every frame. Then the first and the last
# label, which have the narrowest hills, rise out of it. In the end a few frames output the labels, and all others the
# blank. No particular frame is asked for. That is why a network trained in this way reports *that* a phoneme was said,
# and only *about* when.

# %%
MEANT = np.array([[1, 2, 3]])


def descended(steps):
    free = np.zeros((1, 30, 4))
    for _ in range(steps):
        _, saved = ctc.forward(free, MEANT)
        free -= 3.0 * ctc.backward(1.0, saved).scores
    return np.exp(free[0]) / np.exp(free[0]).sum(axis=1, keepdims=True)


def panel(axes, steps):
    found = descended(int(steps))
    for symbol, (name, colour) in enumerate(
        (("–", style.GREY), ("a", style.BLUE), ("b", style.VERMILLION), ("c", style.GREEN))
    ):
        axes.plot(found[:, symbol], color=colour, label=name)
    axes.set(xlabel="frame", ylabel="probability", ylim=(0, 1))
    axes.label_outer()
    if steps == 0:
        axes.legend()


chapter.explore(
    panel,
    (0, 30, 300),
    name="steps",
    slider=(0, 3, 10, 30, 100, 300, 1000),
    sharey=True,
    alt="Probability of the blank and of a, b and c in thirty frames. Without a step all are one quarter; after "
    "thirty a and c have a peak each and b a low hill between them; after three hundred all three have high peaks, and "
    "the blank fills what is between",
)
_, saved = ctc.forward(np.zeros((1, 30, 4)), MEANT)
hills = 1 / 4 - 3 * ctc.backward(1.0, saved).scores[0]  # g, by (4)
wide = (hills > hills.max(axis=0) / 2).sum(axis=0)
print(f"frames in which the hill of a label is over half its height: a {wide[1]}, b {wide[2]}, c {wide[3]}")
assert wide[1] == wide[3] < wide[2]
start, early, later = descended(0), descended(10), descended(300)
print(f"after 10 steps the blank has up to {early[:, 0].max():.2f}, and the labels up to {early[:, 1:].max():.2f}")
assert (early.argmax(axis=1) == ctc.BLANK).all()
assert later.max(axis=0).min() > 0.6 > start.max()
assert ctc_decoding.greedy(np.log(later)[None]) == [[1, 2, 3]]
assert (np.diff(later[:, 1:].argmax(axis=0)) > 0).all()  # in order

# %% [markdown]
# **Decoding.** *Greedy* decoding takes the likeliest path, one maximum per frame, and returns what it spells. The
# likeliest *labels* are another matter. In two frames with 0.6 for the blank, the likeliest path spells nothing (0.36),
# but the three paths `a a`, `a –` and `– a` together spell `a` (0.64). A *beam* keeps the likeliest beginnings and adds
# up paths. In this example, with 1 for `a`:

# %%
flat = np.log([[0.6, 0.4], [0.6, 0.4]])
likeliest_path = ctc_decoding.greedy(flat)
found = ctc_decoding.prefix_beam(flat)[0][0]
print(f"greedy: {likeliest_path[0]}; beam: {found.labels}, probability {math.exp(found.log_probability):.2f}")
assert likeliest_path == [[]]
assert found.labels == [1]
same(math.exp(found.log_probability), 0.64)

# %% [markdown]
# ## Sound, and what becomes of it
#
# The collections of speech that papers use are licensed or large. So the speech here is *synthesised*, by eSpeak NG
# (GPL-3.0-or-later, a formant synthesiser that comes as the small package `espeakng-loader`, extra `speech`). It speaks
# a sentence and reports at which sample each phoneme begins. The program spoke the following. A filter and noise, both
# drawn at random, were added:

# %% native="It lets eSpeak NG speak, a compiled library that a browser does not have."
SENTENCE = "The plot was thin, but what a film"
if find_spec("espeakng_loader"):
    from linattn_ref.data import espeak
    from linattn_ref.data.speech import RATE, through_a_microphone

    spoken = espeak.speak([SENTENCE], espeak.Voice("en-gb-x-rp", "f2"))[0]
    heard = through_a_microphone(spoken.samples, np.random.default_rng(1))
    print(f"{SENTENCE!r}, synthesised: {' '.join(spoken.phonemes)}; {len(heard) / RATE:.2f} s")
    display(Audio(heard, rate=RATE))
    features = filterbank.log_mel(heard, RATE)
    assert features.shape[1] == filterbank.CHANNELS
    assert 0 <= spoken.starts[0] <= spoken.starts[-1] < len(spoken.samples)
    assert len(espeak.VARIANTS) == 13  # the mouths of all voices
else:
    print("Nothing to hear here: `pip install 'linattn-ref[speech]'` brings eSpeak NG")

# %% [markdown]
# A network does not read the sound's 16,000 numbers per second. It reads 40 numbers every 10 ms: logarithms of energies
# in windows of 25 ms, in bands whose widths follow the ear's. Each speaker's channels are then brought to mean 0 and
# variance 1.

# %%
chapter.source(filterbank.log_mel, doc=False)

# %% [markdown]
# The corpus of `linattn-ref train speech` has 24,000 sentences of film reviews by 960 such voices, 15 hours in all.
# Validation and test have 300 sentences each, by 12 other voices. Accent, speed and pitch are drawn for each voice,
# filter and noise for each sentence. The test part's variants of the voice and its sentences are in no other part.
# Around every third frame, seven frames are stacked into one input of the networks, so a second has 33 inputs.
#
# ## Why no causal mask
#
# Chapter 7's mask keeps a token from seeing what it is to predict. Here nothing is predicted ahead: the whole utterance
# is there before a phoneme of it is output, and what comes after a phoneme helps to identify it. Without the mask
# linear attention has *one* state per head for the whole utterance, $\sum_j \phi(k_j) v_j^\top$, made once and read by
# all frames, and no running sum. Only padding is masked. The price is that nothing can be output before the utterance
# ends: a recogniser that answers while it listens needs the mask, or a window. The cell checks that the first frame
# depends on the last, and that no frame depends on the padding:

# %%
frames = np.random.default_rng(2).standard_normal((1, 12, 4))
params = speech.draw(np.random.default_rng(3), inputs=4, labels=5, width=8, hidden=16, layers=2)
for inside in (softmax, linear):
    model = speech.Model(mechanism.of(inside), heads=2, kernels=reference)
    before, _ = speech.forward(frames, params, model)
    changed = frames.copy()
    changed[:, -1] += 1
    after, _ = speech.forward(changed, params, model)
    assert np.abs(after - before)[0, 0].max() > 1e-6  # the first frame has heard the last
    padded = np.concatenate([frames, 1e3 * np.ones((1, 3, 4))], axis=1)
    masked, _ = speech.forward(padded, params, model, lengths=np.array([12]))
    same(masked[:, :12], before, rtol=1e-9, atol=1e-12)  # and nobody hears the padding
chapter.source(speech.forward, doc=False)

# %% [markdown]
# ## Four networks, on synthesised speech
#
# We train a stack of three bidirectional LSTM layers of 128 units, and transformers of four layers of width 128 with
# softmax, LSH (four rounds) and linear attention. All learn from *synthesised* speech for the same number of updates,
# each by
#
#     linattn-ref train speech --attention linear --out out/speech/linear-0
#
# (the LSTMs with `--peak 3e-3`), with two seeds. `linattn-ref gather out/speech figures/records/speech.json` makes one
# record of all. They learn as the paper's networks do (section 4.3). RAdam trains the transformers, and Adam the LSTMs.
# The rate is halved when the error of the validation part has stopped falling (the paper says halved for its
# transformers, reduced for its LSTMs). The first rate is 0.002, and for the LSTMs 0.003. Each was the better of two
# that were tried for 450 updates, with linear attention and with LSTMs. The paper begins with $10^{-4}$ for
# transformers of 9 layers of 6 heads, and with $10^{-3}$ for three LSTM layers of 320 units. Its data are 80 hours of
# recordings, the Wall Street Journal collection. It prints (table 3; its error rates are of the validation part, and
# ours below of a test part):

# %%
rows = [
    (name, f"{printed.phoneme_error_rate:.2f}", printed.seconds_per_epoch)
    for name, printed in reported.SPEECH.items()  # claim 31
]
chapter.table(("recordings, as printed", "validation phoneme error rate, %", "s per epoch, GPU"), rows)
paper = reported.SPEECH["softmax"].seconds_per_epoch / reported.SPEECH["linear"].seconds_per_epoch
print(f"softmax takes {paper:.2f} times as long per epoch as linear attention, in the paper")

# %% [markdown]
# The next cells show how this package's runs do on synthesised speech, as recorded. First an utterance of the test
# part:

# %%
RUNS = runs.RECORDS / "speech.json"
if RUNS.is_file():
    utterance = speech_utterance.compute(record=RUNS)
    chapter.show(
        speech_utterance.draw,
        utterance,
        alt="A filterbank with the phonemes of a synthesised sentence above it; below, for three networks, the blank's "
        "probability over time with dips, in the dips peaks named by phonemes, and the phonemes recognised",
    )
    print("synthesised:", " ".join(utterance.symbols))
    near = []  # of each frame and network in which a phoneme is likely: whether one of that name begins within 0.07 s
    for heard in utterance.networks.values():
        for symbol in sorted(set(heard.likely) & set(utterance.symbols)):
            begins = utterance.starts[[each == symbol for each in utterance.symbols]]
            for t in np.flatnonzero(heard.likely[symbol] > 0.5):
                near.append(np.abs(begins - heard.seconds * t).min() < 0.07)
    print(f"in {sum(near)} of {len(near)} frames of {len(utterance.networks)} networks in which a phoneme is likely,")
    print("one of that name begins within 0.07 s;")
    print(f"{len(utterance.symbols)} phonemes, which begin {np.diff(utterance.starts).mean():.2f} s apart on average")
    assert np.mean(near) > 0.95
else:
    print("No run is recorded in figures/records/speech.json: there is no error rate on synthesised speech to show.")

# %%
if RUNS.is_file():
    curves = speech_curves.compute(record=RUNS)
    chapter.show(
        speech_curves.draw,
        curves,
        alt="Share of phonemes of the validation part that is wrong, against updates and against CPU time, by network",
    )
    print(
        f"training: {curves.hours:.1f} h, {curves.corpus}; {curves.epochs:.1f} epochs each; "
        f"test: {curves.utterances} utterances, {curves.phonemes} phonemes"
    )
    chapter.table(
        ("synthesised speech, here", "test PER %, likeliest path", "test PER %, beam of 8", "CPU s per epoch"),
        speech_curves.table_rows(curves),
    )
    wrong = {name: one.greedy for name, one in curves.networks.items()}
    others = [wrong[name] for name in ("softmax", "lsh-4", "linear")]
    assert wrong["lstm"].max() < min(each.min() for each in others)
    apart = [abs(a.mean() - b.mean()) for a, b in itertools.combinations(others, 2)]
    assert max(apart) < max(np.ptp(each) for each in others)  # mechanisms are no further apart than seeds

# %% [markdown]
# An utterance here is short, some 75 stacked frames, so attention is a small part of a layer. And hashing leaves almost
# nothing out. The cell counts which pairs of 75 random vectors meet in the four rounds of lsh-4, with its chunks of 32:

# %%
draws = np.random.default_rng(4)
hashing = causal_attention.draw("lsh-4", draws, width=32, length=75, causal=False).options
vectors = draws.standard_normal((100, 75, 32))
meet = reformer.pattern(vectors, rotations=hashing["rotations"], chunk=hashing["chunk"])
print(f"lsh-4 at 75 frames: {meet.sum() / (100 * 75 * 74):.0%} of all pairs meet")

# %% [markdown]
# A ratio like the paper's needs its lengths, 800 frames on average and 2,400 at most. The next figure and the lines
# below it show the same networks on random numbers instead of synthesised speech, on frames of 10 ms that are not
# stacked. The figure has the CPU seconds that an epoch of the 15 hours would take if all its utterances were so long.
# (LSTMs run the loop as it is now, which was made faster after the runs above.)

# %%
bench = chapter.results("bench_speech")
chapter.show(bench_speech.draw, bench, alt="CPU seconds per epoch against frames per utterance, for four networks")
seconds = {(each.network, each.length): each.seconds for each in bench.epochs}
for length in sorted({each.length for each in bench.epochs}):
    times = ", ".join(
        f"{name} {seconds[name, length] / seconds['linear', length]:.2f}" for name in bench_speech.NETWORKS
    )
    print(f"{length:4} frames, times linear attention's: {times}")
assert seconds["softmax", 2400] > 2 * seconds["softmax", 100]  # a row of its matrix is 24 times as long
assert seconds["linear", 2400] < 1.2 * seconds["linear", 100]  # its state is not

# %% [markdown]
# **What synthesised speech shows.** Loss, gradient, layers, decoding and training work together. No network learned
# from labels with times, or heard one of these voices before, and each gets all but three or four in a hundred phonemes
# right. The three transformers are in no order: a seed makes as much of a difference as softmax, hashing or linear
# attention do. This is no test of hashing, since nearly all pairs meet: here lsh-4 is nearly softmax attention whose
# queries are its keys. The LSTMs come first, while in the paper they come last. A likely reason is that a sentence here
# takes two seconds, and neighbouring frames identify a frame's phoneme: an LSTM has them in its state, but attention
# has to find them.
#
# **What it does not.** eSpeak NG makes a phoneme by tables and rules, nearly the same each time; people do not. It has
# thirteen mouths, and it never mumbles, hesitates or speaks in a room. An error rate on it says nothing about people.
# And the paper's recordings are over three times as long, so that what is far away may count. New options of
# `linattn-ref train speech` (`--joined 4 --unstacked`) make 66 hours of speech in utterances of some ten seconds, whose
# frames are not stacked; such runs are planned in `linattn_ref/experiments/learning/papers.toml`, and have not been
# made yet. Fifteen hours of speech and twenty minutes of training say little about large collections and long training,
# and first rates were hardly searched for. Anyone who has recordings can make a table of their own: `linattn-ref train
# speech --data DIR` reads the layouts of TIMIT and LibriSpeech.
#
# ## Exercises
#
# **1.** Which labels are impossible in $T$ frames? What is the least $T$ for `b o o k`?
#
# <details><summary>Solution</summary>
#
# Each label needs a frame, and two neighbours that are the same need a blank between them. So $T$ must be at least $S$
# plus the number of such pairs. `b o o k` needs five frames. With fewer there is no path, $p = 0$, and the loss is
# infinite.
#
# </details>

# %%
book = np.array([[1, 2, 2, 3]])
losses = [ctc.forward(np.zeros((1, n, 4)), book)[0] for n in (4, 5)]
assert np.isinf(losses[0])
same(4 * losses[1], 5 * math.log(4))  # one path: b o – o k
print(f"loss in 4 frames: {losses[0]}; in 5: {losses[1]:.4f}, which is 5 log 4 / 4 = {5 * math.log(4) / 4:.4f}")

# %% [markdown]
# **2.** All scores are 0. What is $p(l)$ for $S$ labels of which no neighbours are alike, and where are $g_t(c)$ and
# the gradient largest for one label in three frames?
#
# <details><summary>Solution</summary>
#
# Each path has probability $V^{-T}$, and there are $\binom{T + S}{2S}$ paths, so $p(l) = \binom{T + S}{2S} V^{-T}$. One
# label in three frames has the six paths `a – –`, `a a –`, `a a a`, `– a a`, `– – a`, `– a –`. Four of them have the
# label in the middle, and three have it at either end: $g_2(a) = 4/6$ is the largest, and the gradient for `a` is
# largest in size there too. The cell checks $p$ and the three shares.
#
# </details>

# %%
loss, saved = ctc.forward(np.zeros((1, 3, 3)), np.array([[1]]))
same(math.exp(-loss), math.comb(4, 2) / 3**3)
share = 1 / 3 - ctc.backward(1.0, saved).scores[0, :, 1]  # g, by (4)
same(share, [3 / 6, 4 / 6, 3 / 6])
print(f"p = {math.exp(-loss):.4f} = 6 / 27; shares of the label in the three frames:", share.round(4))

# %% [markdown]
# **3.** Take a network that outputs the same in each frame, whatever it hears: probability $y$ for the blank, and $(1 -
# y)/K$ for each of $K \ge 2$ labels. An utterance of $T$ frames has one label, which may be any of them. Which $y$ is
# best for large $T$? What does that tell us about the first minutes of training, in which networks output nothing but
# blanks?
#
# <details><summary>Solution</summary>
#
# A path with one run of $m$ frames has the probability $y^{T-m} ((1-y)/K)^m$. There are $T - m + 1$ of them, so $p =
# \sum_m (T - m + 1)\, y^{T-m} ((1-y)/K)^m$. For large $T$ the run of one frame dominates, $T y^{T-1} (1-y)/K$, which is
# largest at $y = 1 - 1/T$, whatever $K$ is: nearly all blank. A network that has not learned to hear does best to
# output blanks, and the likeliest path spells nothing: an error rate of 100 %, until it hears something.
# (With $K = 1$ there is a better answer, $y = 0$: output the label in every frame.)
#
# </details>

# %%
T_long, K, blank = 200, 2, np.linspace(0, 0.9999, 10000)
m = np.arange(1, T_long + 1)[:, None]
p = ((T_long - m + 1) * blank ** (T_long - m) * ((1 - blank) / K) ** m).sum(axis=0)
best = blank[p.argmax()]
print(f"the best y is {best:.4f}")
same(best, 1 - 1 / T_long, atol=1e-3)
scores = np.log(np.tile([best, *[(1 - best) / K] * K], (1, T_long, 1)))
same(-ctc.forward(scores, np.array([[1]]))[0], np.log(p.max()), rtol=1e-10)

# %% [markdown]
# ## What to remember
#
# - CTC's loss is the logarithm of a sum over all paths that spell the labels, exponentially many, in $T (2S + 1)$
#   steps.
# - Its gradient is what is predicted minus what is meant, $y_t - g_t$. What is meant is the share of paths, computed
#   from the network's own scores.
# - Trained in this way, a network emits labels in peaks, in order, and blanks between them.
# - What is heard as a whole needs no causal mask, and linear attention then has one state for all frames.
# - The error rates here are those of synthesised speech: they compare these networks on it, and nothing else.
#
# **Sources.** Graves, Fernández, Gomez and Schmidhuber (2006), *Connectionist temporal classification*. Graves and
# Schmidhuber (2005), *Framewise phoneme classification with bidirectional LSTM*. Katharopoulos, Vyas, Pappas and
# Fleuret (2020), *Transformers are RNNs*, section 4.3. eSpeak NG 1.52, <https://github.com/espeak-ng/espeak-ng>.
