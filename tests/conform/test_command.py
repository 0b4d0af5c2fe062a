"""``linattn-ref conform``: what it runs, says, writes and returns."""

import json
import multiprocessing
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from linattn_ref.attention import softmax
from linattn_ref.cli import main
from linattn_ref.conform import NotATarget, run
from linattn_ref.conform.target import load

KERNELS = """
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
import numpy as np
from linattn_ref.attention import softmax

def right(q, k, v, causal=False):
    return softmax.forward(q, k, v, causal=causal)[0]

def unscaled(query, k, v):
    return softmax.forward(query, k, v, scale=1.0)[0]

def transposed(q, k, v):
    return right(q, k, v).mT

def nothing(q, k, v):
    right(q, k, v)

def hangs(q, k, v):
    time.sleep(1000)

def raises(q, k, v):
    return find("such")

def find(kernel):
    raise RuntimeError("no " + kernel + " kernel")

def in_other_processes(q, k, v):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.starmap(right, [(q, k, v)])[0]

def leaves_a_process(q, k, v):
    global pool  # which nobody closes
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
    Path(__file__).with_name("left").write_text(str(pool.submit(os.getpid).result()))
    return right(q, k, v)

def ends(q, k, v):
    import os
    os._exit(9)

forward, backward = softmax.forward, softmax.backward
"""


@pytest.fixture
def kernels(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS, encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def imported_before(monkeypatch):
    """Each process of the judge comes from one that has imported it already; tests of the process itself undo this."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload([run.__name__])
        monkeypatch.setattr(run, "multiprocessing", SimpleNamespace(get_context=lambda method: server))


def conform(*words):
    return main(["conform", *map(str, words)])


def test_a_kernel_that_is_right(kernels, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run, "multiprocessing", multiprocessing)
    page, record = tmp_path / "report.html", tmp_path / "report.json"
    assert (
        conform(
            f"{kernels}:right",
            "--op",
            "softmax",
            "--only",
            "output",
            "lengths",
            "scale",
            "--html",
            page,
            "--json",
            record,
        )
        == 0
    )
    assert "2 passed, 0 failed, 1 not offered" in capsys.readouterr().out
    report = json.loads(record.read_text(encoding="utf-8"))
    assert report["ok"]
    assert "-inf" not in page.read_text(encoding="utf-8")
    assert [x["verdict"] for x in report["outcomes"]] == ["passed", "not offered", "passed"]
    assert "<svg" in page.read_text(encoding="utf-8")


def test_a_kernel_that_is_wrong_is_told_why(kernels, capsys):
    assert conform(f"{kernels}:unscaled", "--op", "softmax", "--only", "output", "--map", "q=query") == 1
    assert "agrees if no scale is applied" in capsys.readouterr().out


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_a_kernel_may_have_processes_of_its_own(kernels):
    assert conform(f"{kernels}:in_other_processes", "--op", "softmax", "--only", "output") == 0


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for the process in /proc")
def test_processes_of_a_kernel_end_with_it(kernels):
    assert conform(f"{kernels}:leaves_a_process", "--op", "softmax", "--only", "output") == 0
    stat = Path("/proc", kernels.with_name("left").read_text(), "stat")
    for _ in range(100):  # of a process that was killed
        if not is_alive(stat):
            break
        time.sleep(0.05)
    assert not is_alive(stat)


def is_alive(stat):
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_mapping_beside_the_file(kernels, capsys):
    kernels.with_name("conform.toml").write_text('[unscaled]\nnames = {q = "query"}\nfixed = {scale = 1.0}\n')
    assert conform(f"{kernels}:unscaled", "--op", "softmax", "--only", "output") == 0
    kernels.with_name("conform.toml").write_text("[pair_forward]\nlayout = 3\n")  # the first of a pair
    assert conform(f"{kernels}:pair_forward,pair_backward", "--op", "softmax", "--only", "output") == 2
    assert capsys.readouterr().err.endswith("layout: expected a word, got 3\n")
    named = kernels.with_name("named.toml")
    named.write_text("[unscalde]\nfixed = {scale = 1.0}\n")
    assert conform(f"{kernels}:unscaled", "--op", "softmax", "--toml", named) == 2
    assert capsys.readouterr().err.endswith("named.toml: expected a table [unscaled], got unscalde\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"declares = 3", "declares: expected a list, got 3"),
        (b"names = 3", "names: expected a table of words, got 3"),
        (b"names = {q = 1}", "names: expected a table of words, got {'q': 1}"),
        (b"[right]\ngiven = []", "given: expected a table, got []"),
        (b"fixed = true", "fixed: expected a table, got True"),
        (b"device = 1", "device: expected a word, got 1"),
        (b"right = 3", "expected names, "),
        (b"device = '\xff'", "'utf-8' codec can't decode"),
    ],
)
def test_a_mapping_that_is_none_is_told_with_file_and_field(kernels, text, says, capsys):
    path = kernels.with_name("conform.toml")
    path.write_bytes(text)
    assert conform(f"{kernels}:right", "--op", "softmax", "--only", "output") == 2
    assert capsys.readouterr().err.startswith(f"linattn-ref: error: {path}: {says}")


@pytest.mark.parametrize("option", ["--json", "--html", "--write", "--confusion"])
def test_what_cannot_be_written_is_told_before_the_work(kernels, option, capsys, monkeypatch):
    for each in ("files.cases", "faults.confusion", "run.run_apart"):
        monkeypatch.setattr(f"linattn_ref.conform.{each}", lambda *_, **__: pytest.fail("begun"))
    judged = (f"{kernels}:right", "--op", "softmax") if option in ("--json", "--html") else ()
    target = kernels if option == "--write" else kernels / ("report.html" if option == "--html" else "report.json")
    assert conform(*judged, option, target) == 2
    assert "cannot write: " in capsys.readouterr().err


def test_nothing_that_could_be_run(kernels, capsys):
    assert conform(f"{kernels}:right", "--op", "softmax", "--only", "scale") == 2
    assert "0 passed, 0 failed, 1 not offered" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--json", "--html", "--confusion"])
def test_what_is_judged_is_not_written_over(kernels, option, capsys):
    with pytest.raises(SystemExit):
        conform(f"{kernels}:right", "--op", "softmax", option, kernels)
    assert f"argument {option}: expected a file name that ends in " in capsys.readouterr().err


def test_a_report_is_written_in_both_forms(kernels, tmp_path):
    page, record = tmp_path / "report.htm", tmp_path / "report.html.json"
    asked = f"{kernels}:right", "--op", "softmax", "--only", "output"
    assert conform(*asked, "--html", page, "--json", record) == 0
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert json.loads(record.read_text(encoding="utf-8"))["ok"]


@pytest.mark.parametrize("word", ["inf", "nan", "-1", "0", "soon"])
def test_a_time_limit_that_is_none(word, capsys):
    with pytest.raises(SystemExit):
        conform("math:sqrt", "--op", "softmax", "--timeout", word)
    assert f"expected a finite number above 0, got '{word}'" in capsys.readouterr().err


def test_a_time_limit_beyond_what_a_pipe_can_wait(kernels):
    assert conform(f"{kernels}:right", "--op", "softmax", "--only", "output", "--timeout", "1e9") == 0


def test_what_a_name_loads(kernels):
    assert load(f"{kernels}:right").__name__ == "right"
    assert load("linattn_ref.attention.softmax") is softmax
    assert load("linattn_ref.attention.softmax:forward,backward") == (softmax.forward, softmax.backward)
    with pytest.raises(NotATarget, match="no such file"):
        load("nowhere.py:f")


def test_a_pair_and_a_module():
    assert conform("linattn_ref.attention.linear:forward,backward", "--op", "linear", "--only", "gradients") == 0
    assert conform("linattn_ref.attention.linear", "--op", "linear", "--only", "gradients") == 0
    assert conform("linattn_ref.attention.nothing", "--op", "linear") == 2


def test_a_module_is_given_by_its_name(capsys):
    asked = "linattn_ref.attention.linear", "--op", "linear", "--only", "output"
    assert conform(*asked, "--give", "kernels=@linattn_ref.kernels.reference") == 0
    for wrong in ("@linattn_ref.kernels:none", "@nowhere", "@"):
        assert conform(*asked, "--give", f"kernels={wrong}") == 2
        assert f"kernels: expected what '{wrong}' names" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("function", "verdict", "says"),
    [
        ("hangs", "HUNG", "no answer after 1 s (--timeout)"),
        ("raises", "RAISED", "RuntimeError: no such kernel"),
        ("ends", "RAISED", "exit status 9"),
        ("transposed", "RAISED", "ValueError: out: expected shape (2, 4, 20, 6), got (2, 4, 6, 20)"),
        ("nothing", "RAISED", "expected an array, or an array and what is kept, got NoneType"),
    ],
)
def test_a_kernel_that_does_not_answer(kernels, function, verdict, says, capsys, monkeypatch):
    if function in ("hangs", "ends"):
        monkeypatch.setattr(run, "multiprocessing", multiprocessing)
    checks, seconds = (("output",), 1) if function == "hangs" else (("output", "same_twice"), 1000)
    assert conform(f"{kernels}:{function}", "--op", "softmax", "--only", *checks, "--timeout", seconds) == 1
    out = capsys.readouterr().out
    assert out.count(verdict) == len(checks)  # where a process ended, the second check in one of its own
    assert says in out


def test_a_target_that_does_not_come_to_be_imported(tmp_path, capsys, monkeypatch):
    (tmp_path / "sleeps.py").write_text("import time\n\ntime.sleep(1000)\n")
    monkeypatch.setattr(run, "IMPORTING", 1.0)
    assert conform(f"{tmp_path / 'sleeps.py'}:forward", "--op", "softmax", "--timeout", 1) == 2
    assert "target: no answer after 1 s while it was imported" in capsys.readouterr().err


def test_the_traceback_of_a_kernel_is_shown_and_ours_is_not(kernels, capsys):
    assert conform(f"{kernels}:raises", "--op", "softmax", "--only", "output", "zeros") == 1
    out = capsys.readouterr().out
    assert out.count("in raises") == out.count("in find") == 1  # of the second check it says that it is the same
    assert "linattn_ref" not in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "expected TARGET and --op"),
        (("math:sqrt", "--op", "softmax", "--arrays", "cupy"), "cupy"),  # not installed, or no GPU
        (("math:sqrt", "--op", "softmax", "--device", "cuda"), "device: numpy has no arrays on 'cuda' here"),
        (("math:sqrt", "--op", "softmax", "--dtype", "int8"), "dtype: expected one of float64, float32, float16, "),
        (("nowhere.py:f", "--op", "softmax"), "no such file"),
        (("nowhere:f", "--op", "softmax"), "nowhere"),
        (("linattn_ref.attention.softmax:nothing", "--op", "softmax"), "nothing"),
        (("linattn_ref.attention.softmax:forward", "--op", "delta", "--only", "scales"), "expected checks of delta"),
        (("linattn_ref.attention.softmax:forward", "--op", "gated_linear"), "no argument 'log_gate'"),
        (("math:sqrt", "--op", "softmax", "--declare", "window"), "expected an option that a page has"),
        (("--read", "nowhere"), "no manifest.json"),
    ],
)
def test_what_cannot_be_run(words, says, capsys):
    assert conform(*words) == 2
    assert says in capsys.readouterr().err


def test_the_error_by_gate_is_drawn_also_behind_one_that_fails(tmp_path):
    page = tmp_path / "report.html"
    (tmp_path / "kernels.py").write_text(
        "from linattn_ref.attention import gated_linear\n"
        "def strong_gates_ignored(q, k, v, log_gate):\n"
        "    return gated_linear.forward(q, k, v, log_gate * ((log_gate > -2) | (log_gate < -10)))[0]\n"
    )
    asked = f"{tmp_path / 'kernels.py'}:strong_gates_ignored", "--op", "gated_linear", "--only", "gates"
    assert conform(*asked, "--html", page) == 1
    text = page.read_text(encoding="utf-8")
    assert [text.count(f">{gate}</text>") for gate in ("0", "-0.001", "-5", "-20", "-inf")] == [1] * 5
    assert text.count("8 times the error of an honest implementation") == 1


def test_nothing_is_imported_that_a_target_does_not_need(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "multiprocessing", multiprocessing)
    (tmp_path / "kernels.py").write_text(
        "import sys\n"
        "from linattn_ref.attention.softmax import forward\n"
        "def attention(q, k, v):\n"
        "    roots = {name.partition('.')[0] for name in sys.modules}\n"
        "    found = roots & {'numba', 'scipy', 'torch', 'jax', 'cupy', 'ml_dtypes', 'safetensors', 'matplotlib'}\n"
        "    assert not found, found\n"
        "    return forward(q, k, v)[0]\n"
    )
    assert conform(f"{tmp_path / 'kernels.py'}:attention", "--op", "softmax") == 0


def test_the_list(capsys):
    assert conform("--list") == 0
    assert "masked_is_absent: A masked key is as if it were not there" in capsys.readouterr().out
