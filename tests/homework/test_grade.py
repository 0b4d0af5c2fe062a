"""``linattn-ref assignment`` and ``grade``: what they write and say, and what a submission cannot do."""

import json
import os
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from linattn_ref.cli import main
from linattn_ref.homework import grade, names, read, sheet, write
from linattn_ref.homework.apart import Apart, Failed, bubblewrap, protection
from linattn_ref.homework.checking import off, slope
from linattn_ref.homework.grading import general, larger
from linattn_ref.homework.handout import files
from linattn_ref.homework.pages import mistaken, texts
from linattn_ref.homework.rehearsal import Here
from linattn_ref.homework.results import Report
from linattn_ref.homework.values import decode, dumps, encode, within

SOFTMAX = read("softmax")
# What Gradescope publishes of results.json (gradescope-autograders.readthedocs.io, "Output format").
OF_RESULTS = {"score": float, "execution_time": float, "output": str, "output_format": str, "test_output_format": str}
OF_RESULTS |= {"test_name_format": str, "visibility": str, "stdout_visibility": str, "extra_data": dict}
OF_RESULTS |= {"tests": list, "leaderboard": list}
OF_A_TEST = {"score": float, "max_score": float, "status": str, "name": str, "name_format": str, "number": str}
OF_A_TEST |= {"output": str, "output_format": str, "tags": list, "visibility": str, "extra_data": dict}
VISIBILITY = {"visible", "hidden", "after_due_date", "after_published"}

HOSTILE = """
import json, os, sys
from pathlib import Path

def softmax(a):
    while True:
        pass

def forward(q, k, v, *, causal=False, scale=None):
    from linattn_ref.attention import softmax
    return softmax.forward(q, k, v, causal=causal, scale=scale)

def backward(d_out, saved):
    known = json.loads((Path(__file__).parent / "tests" / "expected.json").read_text())
    return [np.array(x["array"]) for name in ("queries", "keys", "values") for x in known[name]["yields"]]

def update(running, a, v):
    print("points", flush=True)
    os._exit(0)
"""


def apart(folder, one=SOFTMAX):
    return Apart(folder, one)


def submitted(folder, text, given=None):
    write(SOFTMAX, folder)
    (folder / "answer.py").write_text(text, encoding="utf-8")
    for name, file in (given or {}).items():
        (folder / "given" / f"{name}.py").write_text(file, encoding="utf-8")
    return folder


def test_a_submission_that_loops_imports_the_package_reads_the_tests_and_ends_the_process(tmp_path):
    """Each of its functions loses its own items, and what is right next to them has its points."""
    solution = texts(SOFTMAX, solved=True)
    folder = submitted(tmp_path / "work", solution.answer + HOSTILE, solution.given)
    few = [x for x in SOFTMAX.items if x.name in ("rows", "forward", "queries", "online", "tiles")]
    impatient = replace(SOFTMAX, seconds=0.3, items=few)
    with apart(folder, impatient) as submission:
        results = {x.item.name: x for x in grade(impatient, submission)}
    assert {name for name, x in results.items() if x.points} == {"tiles"}
    assert results["rows"].why == "too late: the time limit has passed"
    assert "No module named 'linattn_ref'" in results["forward"].why
    assert "expected shape" in results["queries"].why
    assert results["online"].why.startswith("the process ended")


def test_what_a_process_says_is_one_line_and_why_it_ended_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("linattn_ref.homework.apart.LONGEST", 1)
    text = r"""
import os, time

def softmax(a):
    os.write(0, b'{"error": "wrong\\n  5/5 rows \\ud800"}\n')  # the socket
    time.sleep(60)

def forward(a):
    return "x" * (1 << 21)

def update(a):
    os._exit(0)
"""
    whys = {"softmax": "wrong 5/5 rows ?", "forward": "the answer is longer than 1 MiB"}
    whys["update"] = "the process ended, perhaps at the limit of 2048 MiB of memory"
    with apart(submitted(tmp_path / "work", text)) as submission:
        for name, why in whys.items():
            with pytest.raises(Failed) as raised:
                submission.call(name, (1,), {})
            assert str(raised.value) == why
            submission.kill()


def test_the_graders_own_time_is_not_the_submissions(tmp_path, monkeypatch):
    """Days pass between the questions of one item; while an answer is awaited, the clock stands still."""
    clock = SimpleNamespace(now=0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr("linattn_ref.homework.apart.time", clock)
    with apart(submitted(tmp_path / "work", "def softmax(a):\n    return a\n")) as submission:
        for clock.now in (0, 10**6, 2 * 10**6):
            assert submission.call("softmax", (1,), {}) == 1


def test_commands(tmp_path, capsys, monkeypatch):
    """With 10,000 rows, two tiles, where the sheet has 100,000."""
    fewer = [replace(x, check=x.check.replace("100_000", "10_000")) for x in SOFTMAX.items]
    assert main(["assignment", "--list"]) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == names()
    monkeypatch.setattr("linattn_ref.homework.read", lambda name: replace(read(name), items=fewer))
    for words in ([], ["--instructor"]):
        assert main(["assignment", "softmax", "--out", str(tmp_path / f"out{len(words)}"), *words]) == 0
    assert main(["assignment", "softmax", "--out", str(tmp_path / "out0")]) == 2
    assert "not an empty folder" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"out0", "out1"}
    assert {path.name for path in (tmp_path / "out1").iterdir()} == {
        "GRADING.md",
        "discussion.md",
        "grader",
        "solution",
        "theory.md",
    }
    asked = (tmp_path / "out0" / "theory.md").read_text(encoding="utf-8")
    assert "*Answer.*" not in asked
    record, page = tmp_path / "results.json", tmp_path / "page.html"
    words = ["grade", str(tmp_path / "out1" / "solution"), "--json", str(record), "--html", str(page)]
    assert main(words) == 0
    assert "100 of 100 points" in capsys.readouterr().out
    written = json.loads(record.read_text(encoding="utf-8"))
    assert written["score"] == 100
    assert [x["status"] for x in written["tests"]] == ["passed"] * len(SOFTMAX.items)
    assert "100 of 100 points" in page.read_text(encoding="utf-8")


def test_a_report_that_cannot_be_written_is_no_surprise_after_the_grading(tmp_path, monkeypatch, capsys):
    (tmp_path / "answer.py").write_text('SHEET = "softmax"')
    monkeypatch.setattr("linattn_ref.homework.Apart", None)  # nothing is run
    assert main(["grade", str(tmp_path), "--json", str(tmp_path / "answer.py" / "x.json")]) == 2
    assert "answer.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["assignment"], "expected NAME and --out DIR, NAME and --check, or --list"),
        (["assignment", "none", "--out", "x"], "expected one of softmax"),
        (["grade", "nowhere"], "expected a folder with answer.py"),
        (["grade", "."], 'expected a line SHEET = "name" with one of our sheets'),
        (["grade", ".", "--sheet", "mine.toml"], "expected one of softmax"),
    ],
)
def test_what_is_wrong_is_one_line(words, complaint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "answer.py").write_text('SHEET = "mine"\n1 +', encoding="utf-8")
    assert main(words) == 2
    assert complaint in capsys.readouterr().err


def test_the_same_submission_has_the_same_report():
    forgetful = next(x for x in SOFTMAX.mistakes if x.name == "row_sum_missing")
    reports = [Report(SOFTMAX, grade(SOFTMAX, Here(mistaken(SOFTMAX, forgetful)), seed=7), protection()) for _ in "ab"]
    assert reports[0].as_json() == reports[1].as_json()
    assert reports[0].as_html() == reports[1].as_html()
    assert "your gradient of q is right up to the row sum in (6)" in str(reports[0])
    assert reports[0].score == 80
    (lost,) = (x for x in json.loads(reports[0].as_json())["tests"] if x["status"] == "failed")
    assert lost["tags"] == ["row_sum_missing"]


def test_the_json_is_gradescopes():
    """Names and types of fields are those that it publishes, and the points add up."""
    forgetful = next(x for x in SOFTMAX.mistakes if x.name == "row_sum_missing")
    results = json.loads(Report(SOFTMAX, grade(SOFTMAX, Here(mistaken(SOFTMAX, forgetful))), "apart").as_json())
    for found, fields in ((results, OF_RESULTS), *((x, OF_A_TEST) for x in results["tests"])):
        types = {name: float if type(x) is int else type(x) for name, x in found.items()}
        assert types.items() <= fields.items()
        assert found.get("visibility", "visible") in VISIBILITY
    assert results["score"] == sum(x["score"] for x in results["tests"])
    assert all({x["status"]} <= {"passed", "failed"} and 0 <= x["score"] <= x["max_score"] for x in results["tests"])
    assert all(isinstance(tag, str) for x in results["tests"] for tag in x["tags"])


def test_what_follows_from_a_wrong_function_is_paid_for_once():
    """A softmax of another base is no known mistake; attention with it is right, given that."""
    text = texts(SOFTMAX, solved=True, alone=False).answer
    other = "def softmax(a):\n    a = np.maximum(a, -1e9)\n    p = np.exp2(a - a.max(-1, keepdims=True))\n"
    other += "    return p / p.sum(-1, keepdims=True)\n"
    other += "\n\n_update = update\n\n\ndef update(running, a, v):\n    return _update(running, a, 3 * v)\n"
    results = {x.item.name: x for x in grade(SOFTMAX, Here(f"{text}\n\n{other}"))}
    assert [name for name, x in results.items() if not x.points] == ["rows", "stable", "online"]
    assert results["forward"].why == "right, given your softmax, where points are lost already"
    assert results["memory"].why == "right, given your update, where points are lost already"


@pytest.mark.parametrize(
    ("number", "attention"), [("np.nan", "np.nan"), ("1 / 7", "v.sum(axis=-2, keepdims=True) / 7")]
)
def test_from_one_number_everywhere_nothing_follows(number, attention):
    """NaN is not right because an earlier function is NaN as well, nor a mean of the values that knows no scores."""
    text = texts(SOFTMAX, solved=True, alone=False).answer
    text += f"\n\ndef softmax(a):\n    return np.full(a.shape, {number})\n\n\ndef forward(q, k, v, **_):\n"
    text += f"    return np.zeros((*q.shape[:-1], v.shape[-1])) + {attention}, None\n"
    results = grade(SOFTMAX, Here(text))
    assert {x.item.name for x in results if not x.points} >= {"rows", "stable", "forward", "causal"}


def test_what_is_held_is_not_known_where_nobody_counts():
    text = texts(SOFTMAX, solved=True, alone=False).answer
    text += "\n\n_tiles = attention_by_tiles\n\n\ndef attention_by_tiles(*args, **options):\n"
    text += "    import tracemalloc\n    tracemalloc.stop()\n    return _tiles(*args, **options)\n"
    results = {x.item.name: x for x in grade(SOFTMAX, Here(text))}
    assert not results["memory"].points
    assert "stopped tracemalloc" in results["memory"].why


def test_the_judge_asks_for_gradients_behind_the_solutions_forward_pass():
    linear = read("linear")
    item = next(x for x in linear.items if x.name == "causal_gradient")
    alone = replace(linear, items=[replace(item, check="yield 1.0")])
    mistake = next(x for x in linear.mistakes if x.name == "denominator_as_constant")
    (lost,) = grade(alone, Here(mistaken(linear, mistake)))
    assert (lost.points, lost.named) == (0, ("denominator_as_constant",))
    assert lost.says == ("the denominator is taken for a constant",)


@pytest.mark.parametrize(
    "answer",
    [
        "10**400",
        "'abc'",
        "[[1.0], [2.0, 3.0]]",
        "np.zeros((0, 3))",
        "{'array': [1], 'dtype': 'O', 'shape': [7]}",
        "print",
        "functools.reduce(lambda x, _: [x], range(600), 0.0)",
        "type('Saved', (tuple,), {'_fields': ('m', 's', 'o'), 'm': 1, 's': 'x', 'o': None})()",
    ],
)
def test_no_answer_stops_the_grader(answer):
    text = texts(SOFTMAX, solved=False, alone=False).answer + "\nimport functools\n"
    text += "".join(f"\n{name} = lambda *args, **options: {answer}" for name in SOFTMAX.functions)
    results = grade(SOFTMAX, Here(text))
    assert [x.points for x in results] == [0] * len(SOFTMAX.items)
    assert all(x.why for x in results)


def test_what_a_sheet_asks_wrongly_is_not_the_students_fault():
    wrong = replace(SOFTMAX, items=[replace(SOFTMAX.items[0], check="yield softmax(draw(N, unknown))")])
    with pytest.raises(ValueError, match=r"softmax\.toml, rows: NameError: name 'unknown' is not defined"):
        grade(wrong, Here(texts(SOFTMAX, solved=True, alone=False).answer))


def test_values_cross_as_json():
    class Pair(tuple):
        __slots__ = ()

    x = {"a": np.array([[1.5, -np.inf]], np.float32), "b": (None, True, 3, "c"), "n": np.empty((0, 2))}
    back = decode(json.loads(dumps(encode(x))), lambda name: None)
    assert back["a"].dtype == np.float32
    assert back["n"].shape == (0, 2)
    np.testing.assert_array_equal(back["a"], x["a"])
    assert back["b"] == x["b"]
    assert decode(encode(print), lambda name: None) is None
    with pytest.raises(ValueError, match="expected an array of one of"):
        decode({"array": [1], "dtype": "O", "shape": [1]}, lambda name: None)
    for dtype, other in ((np.float16, "float64"), (np.longdouble, "float64"), (">f4", "float64"), (np.uint8, "int64")):
        assert json.loads(dumps(encode(np.ones(2, dtype)))) == {"array": [1, 1], "dtype": other, "shape": [2]}
    assert json.loads(dumps(encode(np.full(1, 2**63 - 1, np.uint64))))["array"] == [2**63 - 1]
    with pytest.raises(TypeError, match="got a larger one in uint64"):
        encode(np.full(1, 2**63, np.uint64))
    for unreal in (1j, np.ones(2, np.complex64)):
        with pytest.raises(TypeError, match="expected an array of real numbers, got one of complex"):
            encode(unreal)


def test_what_is_said_of_any_numbers():
    x = np.array([1.0, 2.0])
    for factor, says in (
        (0, "it is 0 everywhere"),
        (-1, "it has the wrong sign"),
        (3, "it is 3 times what it should be"),
    ):
        assert general([factor * x], [x]) == (says,)
    nearly = "it is right to about three digits: something small is missing, or it is computed with too few"
    assert general([x + np.array([0, 5e-4])], [x]) == (nearly,)
    large = 1000 * np.ones(3)
    assert general([large, 1.05 * x], [large, x]) == ()  # what is wrong is small beside what is right
    assert general([x[::-1]], [x]) == ()
    for other in (x[None], x.tolist()):  # of another form: of its digits nothing is said
        assert general([other], [x]) == ()


def test_a_bubblewrap_that_may_not_run_is_silent(tmp_path, monkeypatch, capfd):
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho no namespaces here >&2\nexit 1\n", encoding="utf-8")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bubblewrap.__wrapped__() == ""
    assert capfd.readouterr().err == ""


def test_comparing_and_slopes():
    x = np.array([1.0, 2.0])
    assert off(x, x, 1e-4) == ""
    assert "expected shape (2,), got (1,)" in off(x[:1], x, 1e-4)
    assert "at [1] expected 2, got nan" in off(np.array([1.0, np.nan]), x, 1e-4)
    assert "no array of numbers" in off("abc", x, 1e-4)
    np.testing.assert_allclose(slope(np.square, x, np.ones(2)), 2 * x, rtol=1e-8)


def test_sheets_that_cannot_be_read(tmp_path):
    text = (sheet.FOLDER / "01_softmax.toml").read_text(encoding="utf-8")
    for number, (old, new, complaint) in enumerate(
        (
            ("title =", "titel =", "titel"),
            ("[[theory]]", "[[teory]]", "teory"),
            ("question =", "queston =", "queston"),
            ('item = "rows"', 'item = "rosw"', "there is no item 'rosw'"),
            ("[sizes]", "[sizes", r"4_softmax.toml: .*at line"),
            ("points = 20", 'points = "20"', r"5_softmax.toml: queries: points: expected float, got '20'"),
            ("points = 20", "points = inf", "item queries: expected .* finite points above 0, got 3 and inf"),
            ("peak = 720.0", "peak = -1.0", "item memory: peak: expected a finite number of at least 0, got -1.0"),
            ("hours =", "seconds = 0\nhours =", "seconds: expected a finite number above 0, got 0"),
            ("hours =", "memory = 0\nhours =", "memory: expected a finite number above 0, got 0"),
            ('name = "memory"', 'name = "tiles"', "item tiles: expected one of this name, got 2"),
            ('name = "overflow"', 'name = "columns"', "mistake columns: expected one of this name, got 2"),
            (
                "trials = 1",
                "trials = 0",
                "12_softmax.toml, item memory: expected trials of at least 1 and finite points",
            ),
            ('functions = ["update"]', 'functions = "update"', r"online: functions: expected list\[str\]"),
            (
                'functions = ["update"]',
                'functions = ["updat"]',
                "item online: functions: expected one of .*, got 'updat'",
            ),
            ('functions = ["update"]', "functions = []", "item online: functions: expected one of .*, got ''"),
            ('judge = "softmax"', 'judge = "softmx"', "item forward: judge: expected one of .*, got 'softmx'"),
            ('"output", "scale"', '"state"', "item forward: checks: expected one of .*, got 'state'"),
            ('title = "The causal mask"', 'behind = "back"\ntitle = ""', "item causal: behind: .*, got 'back'"),
        )
    ):
        (tmp_path / f"{number}_softmax.toml").write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(ValueError, match=complaint):
            sheet.read(str(tmp_path / f"{number}_softmax.toml"))
    (tmp_path / "99_softmax.toml").write_bytes(text.encode("utf-16"))
    with pytest.raises(ValueError, match=r"99_softmax\.toml: 'utf-8' codec can't decode"):
        sheet.read(str(tmp_path / "99_softmax.toml"))
    wrong = replace(SOFTMAX.mistakes[0], line="# (99)")
    with pytest.raises(ValueError, match=r"no line of softmax has '# \(99\)'"):
        mistaken(SOFTMAX, wrong)


def test_the_sheet_in_contributing_is_one(tmp_path, capsys):
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (tmp_path / "07_layer_norm.toml").write_text(
        re.search(r"```toml\n(title = .*?)```", text, re.DOTALL).group(1), encoding="utf-8"
    )
    file = str(tmp_path / "07_layer_norm.toml")
    assert main(["assignment", file, "--check"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ok  the solution has all points",
        "ok  the handout has none",
        "ok  the handout's tests accept the solution",
        "ok  the solution keeps to the limits",
        "ok  deviation_as_constant costs backward and is named",
    ]
    assert read(file).name == "layer_norm"


def test_a_sheet_that_does_not_keep_its_promises(tmp_path, capsys):
    text = (sheet.FOLDER / "01_softmax.toml").read_text(encoding="utf-8")
    text = re.sub(r"^(judge|checks) = .*\n", "", text, flags=re.MULTILINE)  # which takes the longest
    text = text.replace("hours =", "memory = 1\nhours =", 1).replace("100_000", "100")
    some = "columns|not_normalised|scale_missing|scale_of_value_gradient|scale_of_queries|sum_not_rescaled"
    text = re.sub(rf'\[\[mistakes\]\]\nitem = .*\nname = "(?!({some})").*\n(?:[^\[\n].*\n|\n)*', "", text)
    text = text.replace('new = "p = p / 1"', 'new = "p = p / p.sum(axis=-1, keepdims=True)"', 1)
    text = text.replace('line = "scale = q.shape"', 'line = "(99)"', 1)
    text = text.replace('item = "values"', 'item = "keys"', 1)
    text = text.replace("x, k, v)[0], q, d)", "x, k, v)[0], q, 2 * d)", 1).replace("\nd_q = mix(d_a, k)\n", "\n(\n", 1)
    (tmp_path / "08_softmax.toml").write_text(text, encoding="utf-8")
    assert main(["assignment", str(tmp_path / "08_softmax.toml"), "--check"]) == 1
    wrong = [line for line in capsys.readouterr().out.splitlines() if line.startswith("NO")]
    for expected, line in zip(
        (
            "no line of forward has '(99)'",
            "scale_of_queries: SyntaxError: '(' was never closed",
            "the handout's tests accept the solution: AssertionError: against finite differences",
            "the solution keeps to the limits: rows: answer.py could not be imported",
            "not_normalised costs rows and is named: it costs nothing",
            "scale_of_value_gradient costs keys and is named: it costs values",
        ),
        wrong,
        strict=True,
    ):
        assert expected in line
    text = text.replace("yield softmax(draw(N, L))", "yield 1 / 0")
    (tmp_path / "09_softmax.toml").write_text(text, encoding="utf-8")
    assert main(["assignment", str(tmp_path / "09_softmax.toml"), "--check"]) == 1
    told = "09_softmax.toml, rows: ZeroDivisionError: division by zero\n"
    assert (found := capsys.readouterr().out).endswith(told)
    assert "NO  the solution and the checks run: " in found
    assert main(["assignment", str(tmp_path / "09_softmax.toml"), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.endswith(told)


def test_sizes_are_larger_and_no_two_equal():
    for sizes in (dict.fromkeys("ABCDEFGH", 4), {"A": 3, "B": 4, "C": 4, "tile": 2}):
        found = larger(sizes, np.random.default_rng(0))
        assert found.keys() == {name for name in sizes if name.isupper()}
        assert len({*found.values()}) == len(found)
        assert all(n > sizes[name] for name, n in found.items())


def test_the_autograder_takes_the_upper_answer_or_says_that_there_is_none(tmp_path):
    """Its ``python3`` is one that writes down what it is asked."""
    odd = tmp_path / "my sheet's.toml"
    odd.write_bytes(SOFTMAX.file.read_bytes())
    scripts = [files(read(str(odd)), instructor=True)["grader/run_autograder"].decode() for _ in range(2)]
    assert scripts[0] != scripts[1]  # the seed
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    (tmp_path / "bin" / "python3").chmod(0o755)
    for name in ("source", "results", "submission/a b/c", "submission/tests/answer.py"):
        (tmp_path / name).mkdir(parents=True)
    words = ["bash", "-c", scripts[0].replace("/autograder", str(tmp_path))]

    def run():
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(words, env={"PATH": path}, capture_output=True, text=True, check=True).stdout.splitlines()

    assert run() == []
    found = json.loads((tmp_path / "results" / "results.json").read_text(encoding="utf-8"))
    assert (found["score"], found["output"]) == (0, "There is no file answer.py in what was handed in.")
    for name in ("a b/c", "a b"):
        (tmp_path / "submission" / name / "answer.py").touch()
    asked = run()
    assert asked[asked.index("grade") + 1] == str(tmp_path / "submission" / "a b")
    assert asked[asked.index("--sheet") + 1] == odd.name
    assert int(asked[asked.index("--seed") + 1]) >= 1


# --- With a process each --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_the_solution_in_a_process_of_its_own(name, tmp_path):
    write(read(name), tmp_path / "out", instructor=True)
    with apart(tmp_path / "out" / "solution", read(name)) as submission:
        assert [x.why for x in grade(read(name), submission) if x.why] == []


@pytest.mark.slow
def test_the_whole_matrix_of_twenty_thousand_tokens_is_too_large(tmp_path):
    """It is right for few tokens, and loses the item on many."""
    linear, solution = read("linear"), texts(read("linear"), solved=True)
    write(linear, tmp_path / "work", instructor=True)
    text = "\n\n_forward = forward\n\n\ndef forward(q, k, v, **options):\n    q @ k.mT\n"
    text = f"{solution.answer}{text}    return _forward(q, k, v, **options)\n"
    (tmp_path / "work" / "solution" / "answer.py").write_text(text, encoding="utf-8")
    with apart(tmp_path / "work" / "solution", linear) as submission:
        (lost,) = (x for x in grade(linear, submission) if not x.points)
    assert lost.item.name == "long"
    assert "MemoryError: Unable to allocate" in lost.why


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import time\ntime.sleep(1000)", "too late"),
        ("raise SystemExit", "SystemExit"),
        ("x = bytearray(1 << 40)", "MemoryError"),
        ("def softmax(a", "SyntaxError"),
        ("import os\nos.fork() or os.setsid()\nwhile True:\n    pass", "too late"),
        ("import sys\nsys.stdout.write('{}')\nsys.__stdout__.flush()\nimport os\nos.kill(os.getpid(), 9)", "ended"),
    ],
)
def test_submissions_that_cannot_be_imported(text, why, tmp_path, monkeypatch):
    monkeypatch.setattr("linattn_ref.homework.apart.IMPORTING", 2.0)
    monkeypatch.setattr("linattn_ref.homework.apart.PATIENCE", 3)
    with apart(submitted(tmp_path / "work", text), replace(SOFTMAX, seconds=0.3)) as submission:
        results = grade(SOFTMAX, submission)
    assert not any(x.points for x in results)
    assert all(x.why.startswith("answer.py could not be imported") and why in x.why for x in results)


@pytest.mark.slow
@pytest.mark.parametrize("box", [True, False])
def test_who_sleeps_behind_an_open_pipe_holds_nobody(box, tmp_path, monkeypatch):
    """Its child has left the session and keeps the socket: without bubblewrap nothing can end it."""
    if not box:
        monkeypatch.setattr("linattn_ref.homework.apart.bubblewrap", lambda: "")
    monkeypatch.setattr("linattn_ref.homework.apart.ALL", 3.0)
    monkeypatch.setattr("linattn_ref.homework.apart.PATIENCE", 3)
    text = "import os\nimport time\n\ndef softmax(a):\n    os.fork() or os.setsid()\n    time.sleep(40)\n"
    begun = time.monotonic()
    with apart(submitted(tmp_path / "work", text)) as submission:
        results = grade(SOFTMAX, submission)
    assert time.monotonic() - begun < 35
    assert {x.why for x in results} == {"too late: the time limit has passed"}


@pytest.mark.slow
def test_memory_and_files_have_a_limit(tmp_path):
    text = "import numpy as np\n\ndef softmax(a):\n    return np.ones(1 << 30)\n\ndef update(running, a, v):\n"
    text += "    open('large', 'wb').write(bytes(1 << 24))\n"
    with apart(submitted(tmp_path / "work", text)) as submission:
        for name in ("softmax", "update"):
            with pytest.raises(Failed, match=r"MemoryError|OSError|ended"):
                submission.call(name, (1, 2, 3)[: 1 + 2 * (name == "update")], {})


@pytest.mark.slow
@pytest.mark.skipif(not bubblewrap(), reason="needs bubblewrap")
def test_under_bubblewrap_there_is_nothing_to_find(tmp_path):
    text = f"import os\n\ndef softmax(a):\n    return [os.path.exists(x) for x in ({__file__!r}, '/etc/passwd')]\n"
    with apart(submitted(tmp_path / "work", text)) as submission:
        assert decode(submission.call("softmax", (1,), {}), None) == (False, False)
    assert "under bubblewrap" in protection()


def test_what_a_first_call_imports_is_not_the_submissions_memory():
    kept = []

    def attention(size):
        kept.append(np.ones(2**15 if kept == [] else 1))  # as a library does that is asked for the first time
        return np.ones(size).sum()

    assert within(100, attention)(8) == 8
    with pytest.raises(MemoryError, match=r"attention held .* KiB at once; the limit is 100 KiB"):
        within(100, attention)(2**15)
