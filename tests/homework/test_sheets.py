"""Every sheet: the solution has all points, nothing has none, and each mistake costs its item and is named."""

import importlib
import re
import shutil
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from homework_ways import OTHER_WAYS

from linattn_ref.experiments.measuring import pretrained
from linattn_ref.homework import grade, names, write
from linattn_ref.homework import sheet as sheets
from linattn_ref.homework.handout import files
from linattn_ref.homework.pages import mistaken, texts
from linattn_ref.homework.rehearsal import Here
from linattn_ref.models import bert


@cache
def read(name, size="full", judge=True):
    """The sheet; a quick one has few tokens, one trial of each item, and no training, the last item of its sheet."""
    sheet = sheets.read(name)
    if size == "full":
        return sheet
    items = [replace(x, trials=1, judge=x.judge * judge) for x in sheet.items if x.name != "learn" or size == "learn"]
    sizes = {letter: min(n, 10) for letter, n in sheet.sizes.items()}
    return replace(sheet, items=[fewer(x) for x in items], sizes=sizes)


def fewer(item):
    """An item about memory with a quarter of 1024 tokens and of their memory, or with a tenth of 100,000: two tiles."""
    peak = item.peak / 4 if "1024" in item.check else item.peak
    return replace(item, check=item.check.replace("1024", "256").replace("100_000", "10_000"), peak=peak)


SIZES = ["quick", pytest.param("full", marks=pytest.mark.slow)]
LOADED = {"answer", "checking", "given", "test_answer", "values"}  # a handout's modules
MISTAKES = [(name, x) for name in names() for x in read(name).mistakes]


def graded(sheet, text):
    return grade(sheet, Here(text))


@cache
def solved(name):
    return texts(read(name), solved=True, alone=False).answer


def ending_with(name, function):
    """The solution with other functions of the same names behind it."""
    return solved(name) + "".join(f"\n\n{x} = {function}" for x in read(name).functions)


@pytest.mark.parametrize("name", names())
def test_the_solution_has_all_points_and_the_skeleton_none(name):
    sheet = replace(read(name), sizes={letter: min(n, 200) for letter, n in read(name).sizes.items()}, mistakes=[])
    assert [x.why for x in graded(sheet, solved(name))] == [""] * len(sheet.items)
    for x in graded(sheet, texts(sheet, solved=False, alone=False).answer):
        assert not x.points
        assert "is yours to write" in x.why


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", names())
def test_zeros_and_the_input_have_no_points(name, size):
    zeros = "(lambda *args, **_: [np.zeros_like(np.asarray(x, float)) for x in args if isinstance(x, np.ndarray)])"
    for function in ("(lambda *args, **_: args[0])", "(lambda *args, **_: 0.0 * np.asarray(args[0], float))", zeros):
        results = graded(read(name, size, judge=size == "full"), ending_with(name, function))
        assert [x.item.name for x in results if x.points] == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "mistake"), MISTAKES, ids=[f"{name}-{x.name}" for name, x in MISTAKES])
def test_a_mistake_loses_its_item_and_is_named(name, mistake, size):
    """In full, one that keeps a network from learning does not cost that item as well."""
    size = "learn" if mistake.item == "learn" and size == "quick" else size
    results = graded(read(name, size, judge=not mistake.says), mistaken(read(name), mistake))
    assert [x.item.name for x in results if not x.points] == [mistake.item]
    (lost,) = (x for x in results if not x.points)
    assert mistake.name in lost.named
    assert lost.says


@pytest.mark.parametrize("name", names())
def test_at_least_eight_mistakes_and_theory(name):
    sheet = read(name)
    assert len(sheet.mistakes) >= 8
    assert len({x.name for x in sheet.mistakes}) == len(sheet.mistakes)
    assert len(sheet.theory) >= 4
    assert sheet.points == 100
    assert len(sheet.items) * sheet.seconds <= 50  # all items too late: a minute


@pytest.mark.parametrize(("name", "way"), [(name, way) for name in names() for way in OTHER_WAYS[name]])
def test_solutions_written_in_other_ways_lose_nothing(name, way):
    results = graded(read(name, "quick"), f"{solved(name)}\n\n{OTHER_WAYS[name][way]}")
    assert [(x.item.name, x.why) for x in results if x.why] == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", names())
def test_solutions_in_float32_lose_nothing(name, size):
    submission = Here(solved(name))
    submission.array = lambda x: x.astype(np.float32) if x.dtype == np.float64 else x
    assert [(x.item.name, x.why) for x in grade(read(name, size), submission) if x.why] == []


def test_first_steps_in_float32_lose_nothing():
    """With seed 4 a gradient near 0 is rounded, and Adam's first step divides it by its own size."""
    sheet, submission = read("transformer"), Here(solved("transformer"))
    submission.array = lambda x: x.astype(np.float32) if x.dtype == np.float64 else x
    *others, learn = sheet.items
    others = [replace(x, check="yield 1.0", judge="") for x in others]
    first = replace(learn, check=learn.check.partition("found =")[0])
    results = grade(replace(sheet, items=[*others, first], mistakes=[]), submission, seed=4)
    assert [x.why for x in results if x.why] == []


@pytest.mark.parametrize("name", names())
def test_the_handouts_tests_pass_for_the_solution_and_fail_for_the_skeleton(name, tmp_path, monkeypatch):
    write(read(name, "quick"), tmp_path / "work")
    monkeypatch.syspath_prepend(tmp_path / "work")
    monkeypatch.syspath_prepend(tmp_path / "work" / "tests")
    for title in [x for x in sys.modules if x.partition(".")[0] in LOADED]:
        monkeypatch.delitem(sys.modules, title)
    importlib.invalidate_caches()
    tests = importlib.import_module("test_answer")
    for title in (title for title in vars(tests) if title.startswith("test_")):
        with pytest.raises(NotImplementedError):
            getattr(tests, title)()
    write(read(name, "quick"), tmp_path / "all", instructor=True)
    shutil.copytree(tmp_path / "all" / "solution", tmp_path / "work", dirs_exist_ok=True)
    for title in [x for x in sys.modules if x.partition(".")[0] in LOADED - {"values"}]:
        del sys.modules[title]
    importlib.invalidate_caches()
    tests = importlib.import_module("test_answer")
    for title in (title for title in vars(tests) if title.startswith("test_")):
        getattr(tests, title)()
    for title in [x for x in sys.modules if x.partition(".")[0] in LOADED]:
        del sys.modules[title]


@pytest.mark.parametrize("name", names())
def test_no_line_of_the_solution_is_in_the_handout(name):
    """Of what is removed: any line that computes."""
    sheet = read(name)
    handed = b"\n".join(files(read(name, "quick")).values()).decode(errors="replace")
    kept = {x.strip() for x in texts(sheet, solved=False).answer.splitlines()}
    for line in texts(sheet, solved=True).answer.splitlines():
        code = line.partition("  # (")[0].strip()
        if line.strip() not in kept and re.search(r"# \(\d+\)", line) and len(code) > 12:
            assert code not in handed, code
    assert "linattn_ref" not in handed


@pytest.mark.parametrize(
    ("words", "complaint"),
    [({"rename": {"gone": ""}}, "attention.softmax to change, got 'gone'"), ({"drop": ["gone"]}, "got 'gone: '")],
)
def test_what_is_to_change_has_to_be_there(words, complaint):
    sheet = read("softmax")
    with pytest.raises(ValueError, match=complaint):
        texts(replace(sheet, parts=[replace(sheet.parts[0], **words)]), solved=True)


def test_handouts_name_every_equation_of_a_comment_and_no_other_page():
    text = texts(read("softmax"), solved=False).answer
    assert "attention_by_tiles is yours to write: (9)-(11), (13)" in text
    assert "online_softmax" not in text
    assert "delta.py" not in texts(read("delta"), solved=False).answer


@pytest.mark.network
def test_the_spectrum_is_that_of_a_real_network():
    """What `attention.npy` is: two heads of each layer of the pinned network, on the pinned film reviews."""
    model, tokens, _ = pretrained.read(None, None, sentences=1, length=64, seed=0)
    heads = np.stack([layer.p[:2] for layer in bert.layers(model, tokens[0])])
    sheet = read("low_rank")
    np.testing.assert_allclose(np.load(sheet.file.with_name(sheet.data)), heads, rtol=1e-3, atol=1e-6)


WRONG = {
    ("softmax", "causal"): """
def forward(q, k, v, *, causal=False, scale=None):
    a = scores(q, k, q.shape[-1] ** -0.5)
    a = np.where(visible(q, k, causal, None), a, -np.inf)
    w = np.exp(a - a.max(axis=-1, keepdims=True))  # NaN where no key is seen
    return w @ v / w.sum(axis=-1, keepdims=True), None
""",
    ("softmax", "values"): """
def backward(d_out, saved):
    return 0, 0, saved.p.T @ d_out  # no axes in front
""",
    ("softmax", "queries"): """
def backward(d_out, saved):
    q, k, v, p, scale = saved.q, saved.k, saved.v, saved.p, saved.q.shape[-1] ** -0.5
    d_a = p * (d_out @ v.mT - (p * (d_out @ v.mT)).sum(axis=-1, keepdims=True))
    return scale * d_a @ k, 0, 0
""",
    ("softmax", "online"): """
def update(running, a, v):
    m = np.maximum(running.m, a.max(axis=-1, keepdims=True))
    decay, weights = np.exp(running.m) / np.exp(m), np.exp(a) / np.exp(m)
    return Running(m, decay * running.s + weights.sum(axis=-1, keepdims=True), decay * running.o + weights @ v)
""",
    ("softmax", "memory"): """
def attention_by_tiles(q, k, v, tile):
    return np.concatenate([forward(q[i : i + 1], k, v)[0] for i in range(len(q))])
""",
    ("low_rank", "rank"): """
def rank_for(p, share):
    return int(1 + np.argmax(shares(p) > share))
""",
    ("low_rank", "sketch"): """
def times_sketch(p, z, v):
    return p @ (z.T @ z / len(z)) @ v
""",
    ("low_rank", "forward"): """
def linformer(q, k, v, e, f, *, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    w = np.exp(scale * q @ (e @ k).T)
    return w @ (f @ v) / w.sum(axis=-1, keepdims=True), None
""",
    ("linear", "long"): """
def forward(q, k, v, *, causal=False, eps=1e-6):
    w = features(q.astype(np.float32)) @ features(k.astype(np.float32)).T
    return w @ v.astype(np.float32) / (w.sum(axis=-1, keepdims=True) + eps), None
""",
    ("linear", "memory"): """
def backward(d_out, saved):
    phi_q, phi_k, v, d_n = (x.astype(np.float32) for x in (saved.phi_q, saved.phi_k, saved.v, d_out / saved.d))
    d_w = np.tril(d_n @ v.T - (d_n * saved.out).sum(axis=-1, keepdims=True).astype(np.float32))
    d_q, d_k, d_v = d_w @ phi_k, d_w.T @ phi_q, np.tril(phi_q @ phi_k.T).T @ d_n
    return features_backward(d_q, phi_q), features_backward(d_k, phi_k), d_v
""",
    ("random_features", "orthogonal"): """
def orthogonal(z, lengths):
    first = np.linalg.qr(z[:1].T)[0][:, 0]
    return lengths[:, None] * np.linalg.qr(np.stack([first, *z[:0:-1]]).T)[0].T  # the others from the last on
""",
    ("delta", "unit"): """
def unit(x):
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
""",
    ("delta", "solve"): """
def solve(a, x):
    return np.linalg.solve(np.eye(len(a)) + a, x)
""",
    ("transformer", "loss"): """
def cross_entropy(scores, targets, *, label_smoothing=0.0):
    a = scores - scores.max(axis=-1, keepdims=True)
    log_p = a - np.log(np.exp(a).sum(axis=-1, keepdims=True))
    return -np.take_along_axis(log_p, targets[..., None], axis=-1).mean(), None
""",
    ("transformer", "learn"): """
def learn(params, batches, rate):
    p, m, v = dict(params), *({name: np.zeros_like(x) for name, x in params.items()} for _ in range(2))
    for tokens in batches:
        for name, g in gradients(tokens, p)[1].items():
            p[name], m[name], v[name] = adam(p[name], g, m[name], v[name], 1, rate)  # always the first step
    return p
""",
}


@pytest.mark.parametrize(("name", "item"), WRONG)
def test_what_only_looks_right_loses_its_item(name, item):
    """Without axes in front, in another order of sums, with whole rows, for ordinary numbers alone."""
    sheet = read(name)
    sizes = {letter: min(n, 4000) for letter, n in sheet.sizes.items()}  # the square of 20,000 is 2 GB
    items = [replace(x, trials=1) for x in sheet.items if x.name == item]
    sheet = replace(sheet, items=items, sizes=sizes, mistakes=[])
    (result,) = graded(sheet, f"{solved(name)}\n\n{WRONG[name, item]}")
    assert not result.points
    assert "Error" not in result.why or result.item.peak or item in ("values", "forward")
