"""A page whose text was changed: what is checked, and which lines are suspected. `test_site_browser.py` opens pages."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from linattn_ref.attention import long_short, softmax
from linattn_ref.lecture.run import build, check, examples, suspects
from linattn_ref.lecture.run.kernel import Kernel
from linattn_ref.lecture.site import beside

ROOT = Path(__file__).parents[2]
PAGES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("attention", "attention/sparse")
    for path in sorted((ROOT / "linattn_ref" / folder).glob("*.py"))
    if path.stem != "__init__" and "forward" in path.read_text(encoding="utf-8")
]
PAGE = '''"""A product.

    y = q k                                                  (1)
    dq = k dy                                                (2)
    dk = q dy                                                (3)
"""

from __future__ import annotations

from typing import NamedTuple

from linattn_ref.op import Array, Float, op


class Saved(NamedTuple):
    """Both."""

    q: Float[Array, "... N D"]
    k: Float[Array, "... N D"]


class Gradients(NamedTuple):
    q: Float[Array, "... N D"]
    k: Float[Array, "... N D"]


@op
def forward(
    q: Float[Array, "... N D"],
    k: Float[Array, "... N D"],
) -> tuple[Array, Saved]:
    """Equation (1)."""
    return q * k, Saved(q, k)  # (1)


@op
def backward(d_out: Float[Array, "... N D"], saved: Saved) -> Gradients:
    """Equations (2), (3)."""
    q, k = saved
    d_q = k * d_out  # (2)
    d_k = q * d_out  # (3)
    return Gradients(d_q, d_k)
'''
LINES = {text: number for number, text in enumerate(PAGE.splitlines(), 1)}
D_K, RETURN = LINES["    d_k = q * d_out  # (3)"], LINES["    return q * k, Saved(q, k)  # (1)"]


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """What it sends is in ``kernel.sent``."""
    (tmp_path / "a_page.py").write_text(PAGE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "a_page", raising=False)
    sent = []
    made = Kernel(lambda kind, content: sent.append((kind, content)))
    made.sent = sent
    yield made
    sys.modules.pop("a_page", None)


def checked(kernel, rows):
    assert kernel.check("a_page", json.dumps(rows))
    ((kind, content),) = kernel.sent
    kernel.sent.clear()
    assert kind == "checked"
    return json.loads(content)


def test_a_gradient_that_is_wrong_is_named_with_its_entry_and_its_line(kernel):
    assert checked(kernel, {})["ok"]
    found = checked(kernel, {D_K: "    d_k = -q * d_out  # (3)"})
    assert not found["ok"]
    assert found["rows"] == [D_K]
    wrong, right = found["said"]
    assert wrong.startswith("The gradient of k is wrong. At k[")
    assert right == "Right: the gradient of q."
    assert "WRONG in 15 of 30" in found["report"]
    assert checked(kernel, {})["said"] == [
        "The gradient is right: 30 entries, of q and k, agree with differences of forward."
    ]


def test_a_forward_pass_that_computes_something_else_is_noticed(kernel):
    twice = checked(kernel, {RETURN: "    return 2 * q * k, Saved(2 * q, 2 * k)  # (1)"})
    assert twice["rows"] == [RETURN]
    moved, right = twice["said"]
    assert moved.startswith("forward computes something else: out[")
    assert right.startswith("The gradient is right")
    assert not twice["ok"]


def test_an_error_is_told_as_python_prints_it_and_the_page_comes_back(kernel):
    assert not kernel.check("a_page", json.dumps({D_K: "    d_k = nothing"}))
    kind, told = kernel.sent.pop()
    assert kind == "error"
    assert told.startswith("Traceback (most recent call last):\n")
    assert told.endswith(
        "in backward\n    d_k = nothing\n          ^^^^^^^\nNameError: name 'nothing' is not defined\n"
    )
    assert f'File "a_page.py", line {D_K}, in backward' in told
    assert not kernel.check("a_page", json.dumps({D_K: "    d_k = ("}))
    assert "SyntaxError: '(' was never closed" in kernel.sent.pop()[1]
    assert checked(kernel, {})["ok"]


def test_docstrings_stay_where_they_were():
    head = PAGE.splitlines().index("@op") + 1  # of the first of two
    text = check.changed(PAGE, {head: "@op\ndef forward(q, k):  # shorter"})
    assert '@op\ndef forward(q, k):  # shorter\n    """Equation (1)."""\n    return q * k' in text.source
    assert len(text.rows) == len(text.source.splitlines()) == len(PAGE.splitlines()) - 3


@pytest.mark.parametrize("module", PAGES)
def test_text_that_was_not_changed_is_put_back_as_it_was(module):
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    lines = source.splitlines()
    rows = {
        part.lines[0]: "\n".join(lines[number - 1] for number in part.lines).strip("\n")
        for part in beside.segments(source)
    }
    assert check.changed(source, rows).source == source


def test_suspected_is_what_all_wrong_gradients_need_and_no_right_one():
    source = Path(str(softmax.__file__)).read_text(encoding="utf-8")
    tags, fields = beside.tags(source), softmax.Gradients._fields

    def told(*wrong):
        lines = suspects.suspects(source, fields, {*wrong})
        return sorted(number for line in lines for number in tags.get(line, ()))

    assert told("q") == ["7"]
    assert told("k") == ["8"]
    assert told("v") == ["4"]
    assert told("q", "k") == ["5", "6"]
    assert told() == []
    assert suspects.slices("backward = another.backward", "q") == {"q": {1}}


def test_a_page_is_called_causal_and_not_and_with_what_its_signature_does_not_say():
    assert [call.options["causal"] for call in examples.calls(softmax)] == [False, True]
    (call, _) = examples.calls(long_short)
    assert [*map(len, call.arrays)] == [5, 5, 5, 3, 2, 2]


def test_every_page_with_a_gradient_can_be_checked_and_says_so():
    can = [module for module in PAGES if build.is_checked(module)]
    assert len(can) == 22
    assert not build.is_checked("linattn_ref.nn.affine")
    foot = build.page_foot("linattn_ref.attention.softmax")
    assert '<script type="application/json" id="run-data">"linattn_ref.attention.softmax"</script>' in foot
    assert "../_static/run/check.js" in foot


# A sign for each page, and the gradients that are then wrong; in a process of its own, whose modules are replaced.
MISTAKES = {
    "softmax": ("d_p -= ", "d_p += ", "q k"),
    "online_softmax": ("d_q += scale", "d_q -= scale", "q"),
    "linear": ("d_phi_k[keys] = v[keys] @ d_s.mT +", "d_phi_k[keys] = v[keys] @ d_s.mT -", "k"),
    "chunked_linear": ("phi_k[keys] @ d_s  # (16)", "-phi_k[keys] @ d_s  # (16)", "v"),
    "exponential": ("d_q = feature_map", "d_q = -feature_map", "q"),
    "gated_linear": ("Gradients(saved", "Gradients(-saved", "q"),
    "delta": ("(v * d_value).sum(axis=-1) +", "(v * d_value).sum(axis=-1) -", "beta"),
    "delta_rule": ("d_e[row] = -d_v", "d_e[row] = d_v", "erase"),
    "chunked_delta": ("d_q[rows] = gs +", "d_q[rows] = gs -", "q"),
    "linformer": ("product_for(f.shape, d_mixed_v", "product_for(f.shape, -d_mixed_v", "f"),
    "linformer_linear": ("d_phi_q = d_n @ s.mT +", "d_phi_q = d_n @ s.mT -", "q"),
    "performer": ("backward = linear.backward", "backward = lambda d, saved: linear.backward(-d, saved)", "q k v"),
    "rfa": ("d_gate = d_log_gate / gate -", "d_gate = d_log_gate / gate +", "gate"),
    "nystromformer": ("d_k = d_k + segment", "d_k = d_k - segment", "k"),
    "long_short": ("d_v + by_mixing", "d_v - by_mixing", "v"),
    "reformer": ("d_q + unit_backward(d_k", "d_q - unit_backward(d_k", "qk"),
    "sparse.pattern_softmax": ("d_k[j] += ", "d_k[j] -= ", "k"),
    "sparse.longformer": ("Gradients(d_q, d_k, d_v, d_q_global", "Gradients(d_q, d_k, d_v, -d_q_global", "q_global"),
    **{
        f"sparse.{name}": (
            "backward = pattern",
            "backward = lambda d, saved: pattern_softmax.backward(-d, saved) #",
            "q k v",
        )
        for name in ("bigbird", "block_local", "local", "sparse_transformer")
    },
}
ALL = """
import json, sys
from linattn_ref.lecture.run.check import Workbench
from linattn_ref.lecture.site import beside

found = []
for module, (was, now, _) in json.loads(sys.argv[1]).items():
    bench = Workbench(f"linattn_ref.attention.{module}", lambda kind, content: found.append(json.loads(content)))
    lines = bench.source.splitlines()
    parts = beside.segments(bench.source)
    texts = {part.lines[0]: "\\n".join(lines[n - 1] for n in part.lines).strip("\\n") for part in parts}
    (row,) = (row for row in texts if was in texts[row])
    bench.check({row: texts[row].replace(was, now)})
    found[-1]["row"] = row
    bench.check({})
print(json.dumps(found))
"""


FEW = ("softmax", "linear", "delta", "sparse.longformer")


def test_every_page_has_its_mistake():
    assert {f"linattn_ref.attention.{name}" for name in MISTAKES} == {name for name in PAGES if build.is_checked(name)}


@pytest.mark.parametrize(
    "names", [FEW, pytest.param(sorted(MISTAKES.keys() - FEW), marks=pytest.mark.slow)], ids=["few", "the others"]
)
def test_a_wrong_sign_is_found_and_the_page_as_it_is_is_right(names):
    mistakes = {name: MISTAKES[name] for name in names}
    command = [sys.executable, "-c", ALL, json.dumps(mistakes)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = iter(json.loads(done.stdout))
    for name, (*_, wrong) in mistakes.items():
        mistaken, restored = next(found), next(found)
        assert restored["ok"], name
        said = [line.split()[3] for line in mistaken["said"] if line.startswith("The gradient of ")]
        assert said == wrong.split(), name
        assert mistaken["row"] in mistaken["rows"], name
