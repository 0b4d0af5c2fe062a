"""Cells in the browser: their kernel, and the files it travels with. In a browser, `test_site_browser.py` runs them."""

import base64
import gzip
import io
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from linattn_ref import clone
from linattn_ref.data import fetch, npm, pyodide, text
from linattn_ref.lecture.run import build, fetched
from linattn_ref.lecture.run.kernel import Kernel, display_module
from linattn_ref.models import bert
from linattn_ref.models.bert import rounded

ROOT = Path(__file__).parents[2]
CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))


@pytest.fixture
def sent():
    return []


@pytest.fixture
def kernel(sent):
    return Kernel(lambda kind, content: sent.append((kind, content)))


def test_names_stay_from_cell_to_cell_and_the_last_line_is_shown(kernel, sent):
    assert kernel.run("x = 2\nprint('x is', x)", "cell 1")
    assert kernel.run("x *= 21\nx", "cell 2")
    assert "".join(content for _, content in sent) == "x is 2\n42\n"
    assert kernel.run("None", "cell 3")
    assert kernel.run("", "cell 4")
    assert {kind for kind, _ in sent} == {"text"}
    assert len(sent) < 6


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def f():\n    return 1 / 0\n\nf()", "ZeroDivisionError: division by zero\n"),
        ("import sys\nsys.exit(3)", "SystemExit: 3\n"),
        ("x = (", "SyntaxError: '(' was never closed\n"),
    ],
)
def test_an_error_is_told_as_python_prints_it(kernel, sent, code, told):
    assert not kernel.run(code, "cell 7")
    ((kind, text),) = sent
    assert kind == "error"
    assert text.endswith(told)
    assert "cell 7" in text
    assert "kernel.py" not in text
    if "f()" in code:
        assert text.startswith('Traceback (most recent call last):\n  File "<cell 7>", line 4, in <module>\n    f()\n')
    assert kernel.run("pass", "cell 8")


def test_what_ipython_displays_becomes_html(kernel, sent, monkeypatch):
    display = display_module(kernel.show)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    code = """from IPython.display import Image, Markdown, clear_output, display
clear_output(wait=True)
display(Markdown("| a | $n^2 < 1$ |\\n| --- | --- |\\n| *b* | 2 |"), metadata={})
display(Image(b"png", format="png", width=7, alt='"x"'))"""
    assert kernel.run(code, "cell 1")
    (_, table), (_, image) = sent
    assert "<td><em>b</em></td>" in table
    assert r'<span class="math inline">\(n^2 &lt; 1\)</span>' in table
    source = f"data:image/png;base64,{base64.b64encode(b'png').decode()}"
    assert image == f'<img src="{source}" width="7" alt="&quot;x&quot;">'


def test_a_slider_draws_where_it_is_moved_to(kernel, sent):
    kernel.slider([0.5, 1000], "rank", print)
    assert sent.pop() == ("slider", json.dumps({"number": 0, "name": "rank", "labels": ["0.5", "1,000"]}))
    assert kernel.move(0, 1)
    assert "".join(content for _, content in sent) == "1000\n"
    assert not kernel.move(0, 2)
    assert sent[-1][1].endswith("IndexError: list index out of range\n")


# In a process of its own, for it cannot be undone.
INSTALLED = """
import sys
from linattn_ref.lecture.run import kernel

sent = []
made = kernel.Kernel(lambda kind, content: sent.append(content))
kernel.install(made)
sys.meta_path.insert(0, sys.meta_path.pop())  # before what finds the real packages
for code in sys.argv[1:]:
    assert made.run(code, "cell"), sent[-1]
assert "def scan_plain" in sent[0]
"""
USED = """
import importlib.metadata, warnings
import numba, numpy as np, safetensors, tqdm
from numba import cuda
from tokenizers import Tokenizer
from linattn_ref.attention import softmax
from linattn_ref.experiments.publishing import chapter
from linattn_ref.kernels import jit
from linattn_ref.kernels.jit.loops.linear import causal_product
from linattn_ref.kernels.jit.loops.linear import causal_product_plain
chapter.source(causal_product_plain.scan_plain)
numba.set_num_threads(4)
assert numba.get_num_threads() == 1
q, k, v = np.random.default_rng(0).standard_normal((3, 5, 4))
assert (softmax.forward(q, k, v, kernels=jit)[0] == softmax.forward(q, k, v)[0]).all()
@cuda.jit
def decorated(x):
    return x

@numba.njit(parallel=True)
def decorated_too(x):
    return x

assert list(tqdm.tqdm("ab", unit="step")) == ["a", "b"]
assert importlib.metadata.version("numba") == "none" != importlib.metadata.version("numpy")
with warnings.catch_warnings(record=True) as told:
    warnings.warn("Error in function boost::math::gamma_p_inv", RuntimeWarning)
assert not told
for call in (numba.njit, causal_product.forward, Tokenizer.from_file, decorated, decorated_too, decorated.__getitem__):
    try:
        call(3)
    except ModuleNotFoundError as error:
        assert "is not available in the browser" in str(error)
    else:
        raise AssertionError(call)
"""


def test_chapters_import_what_they_need_without_a_compiler():
    firsts = []
    for path in CHAPTERS[0], CHAPTERS[4], CHAPTERS[6]:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        firsts.append("".join(next(cell for cell in cells if cell["cell_type"] == "code")["source"]))
    command = [sys.executable, "-c", INSTALLED, USED, *firsts]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_files_are_beside_the_pages_and_the_same_every_time(tmp_path, monkeypatch):
    wheel = tmp_path / "numpy.whl"
    wheel.write_bytes(b"wheel")
    entry = {"file_name": "numpy.whl", "sha256": "", "depends": []}
    lock = json.dumps({"info": {"version": "1"}, "packages": {"numpy": entry}}).encode()
    monkeypatch.setattr(npm, "read", lambda package, name: lock if name.endswith("lock.json") else name.encode())
    monkeypatch.setattr(pyodide, "locked", lambda wanted: {"numpy": entry})
    monkeypatch.setattr(pyodide, "packages", lambda files, progress: [wheel])
    monkeypatch.setattr(build, "sources", lambda root: b"zip")
    monkeypatch.setattr(build, "_network", lambda say: b"weights")
    monkeypatch.setattr(build, "_reviews", lambda say: b"reviews")
    monkeypatch.setattr(build, "CHAPTERS", ("02", "05", "17"))
    for name in ("one", "two"):
        build.make(ROOT, tmp_path / name, sentence=True)
    written = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert written == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    assert {"cells.js", "cells.css", "numpy.whl.js", "pyodide.asm.wasm.js", "lock.json.js"} <= set(written)
    about = about_of(written["about.js"])
    assert {f"{name}.js" for name in about["files"]} < set(written)
    needs = {kind: {*about["needs"][kind]["files"]} for kind in ("cells", "network", "pages", "reviews", "sentence")}
    assert set.union(*needs.values()) == {*about["files"]}
    assert needs["sentence"] - needs["cells"] == {build.WEIGHTS}
    assert needs["network"] - needs["cells"] == {build.WEIGHTS, build.TEXTS}
    assert needs["reviews"] - needs["cells"] == {build.TEXTS}
    for name, content in (("numpy.whl", b"wheel"), (build.SOURCES, b"zip")):
        assert about["files"][name] == len(written[f"{name}.js"])
        assert content_of(name, written[f"{name}.js"]) == content
    build.make(ROOT, tmp_path / "alone", cells=False, sentence=True)
    alone = {path.name: path.read_bytes() for path in (tmp_path / "alone").iterdir()}
    assert set(written) - set(alone) == {"cells.js", "check.js", "cells.css", f"{build.TEXTS}.js"}
    assert list(about_of(alone["about.js"])["needs"]) == ["sentence"]
    monkeypatch.setattr(build, "CHAPTERS", ("05",))  # which reads no network
    build.make(ROOT, tmp_path / "cells")
    assert list(about_of((tmp_path / "cells" / "about.js").read_bytes())["needs"]) == ["cells", "pages"]
    assert not (tmp_path / "cells" / f"{build.WEIGHTS}.js").exists()


def about_of(script):
    return json.loads(script.decode().removeprefix("const ABOUT = ").rstrip(";\n"))


def content_of(name, script):
    """The bytes that a script holds, 15 bits in a letter, read as the page reads them."""
    text = script.decode("utf-16")  # which takes off the mark at the beginning
    count, letters = re.fullmatch(rf'given\("{re.escape(name)}", (\d+), "([\u3400-\ub3ff]*)"\);\n', text).groups()
    bits = "".join(f"{ord(letter) - 0x3400:015b}" for letter in letters)
    return gzip.decompress(bytes(int(bits[8 * i : 8 * i + 8], 2) for i in range(int(count))))


def test_the_page_of_ones_own_sentence_loads_what_is_there():
    assert set(re.findall(r'(?:src|href)="([^"]+)"', build.page())) == {
        f"{build.FOLDER}/{name}" for name in ("about.js", "kernel.js", "sentence.js", "sentence.css")
    }


def test_checkpoints_are_those_of_safetensors(tmp_path):
    theirs = pytest.importorskip("safetensors.numpy")
    rng = np.random.default_rng(0)
    arrays = {"a": rng.standard_normal((2, 3)), "b": np.float32([1, 2]), "c": np.array(7), "d": np.zeros((0, 2), bool)}
    content = fetched.to_bytes(arrays, {"facts": "x"})
    for name, expected in theirs.load(content).items():
        assert expected.dtype == arrays[name].dtype
        np.testing.assert_array_equal(expected, arrays[name])
    (tmp_path / "kept").write_bytes(theirs.save(arrays, {"facts": "x"}))
    with fetched.Opened(tmp_path / "kept") as opened:
        assert opened.metadata() == {"facts": "x"}
        assert set(opened.keys()) == set(arrays)
        for name, expected in arrays.items():
            np.testing.assert_array_equal(opened.get_tensor(name), expected)
            assert opened.get_tensor(name).dtype == expected.dtype
    assert set(fetched.safetensors_modules()) == {"safetensors", "safetensors.numpy"}


def test_network_and_reviews_are_read_where_they_would_be_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(clone, "ROOT", tmp_path)
    for package in (fetch.MODEL, fetch.REVIEWS, fetch.DIGITS):
        with pytest.raises(fetch.FetchError, match=f"{package.name} .* is not available in the browser"):
            fetched.open_content(package)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "so", "##me", "film", "!"]
    config = bert.Config("bert", 1, 2, 64, 64, len(pieces), 8, 0, 2, "gelu", 1e-12, 0.02)
    model = bert.untrained(config, np.random.default_rng(0))
    network = tmp_path / fetched.NETWORK
    network.parent.mkdir()
    network.write_bytes(rounded.pack(model, pieces))
    held = [("some film", 1, "imdb"), ("so", 0, "rotten_tomatoes"), ('long\n"film"', 0, "imdb"), ("film", 1, "imdb")]
    (tmp_path / fetched.REVIEWS).write_bytes(fetched.only(lambda source, i: (source, i) == ("imdb", 1), held))
    reviews = text.read_reviews(fetched.open_content(fetch.REVIEWS))
    assert reviews.documents == ["", held[2][0], ""]
    found = fetched.read_network(fetched.open_content(fetch.MODEL))
    assert found.config == config
    assert found.tokenizer.encode("Some films!").ids == [2, 4, 5, 1, 7, 3]
    assert len(found.tokenizer.numbers) == found.tokenizer.num_special_tokens_to_add(is_pair=False) + 6
    chosen = text.choose_sentences(reviews, found.tokenizer, count=1, length=4, rng=np.random.default_rng(0))
    assert chosen.tokens.tolist() == [[2, 1, 1, 3]]
    assert chosen.documents.tolist() == [1]


def test_the_package_travels_whole_and_its_records_with_it():
    archive = zipfile.ZipFile(io.BytesIO(build.sources(ROOT)))
    names = set(archive.namelist())
    assert {"linattn_ref/__init__.py", "figures/spectrum.json", "markdown_it/__init__.py", "mdurl/__init__.py"} <= names
    assert "linattn_ref/experiments/publishing/paper.mplstyle" in names
    assert {"figures/records/duplication-linear-0.safetensors", "linattn_ref/data/digits_linear.safetensors"} <= names
    assert not [name for name in names if name.endswith((".pyc", "digits_softmax.safetensors")) or ".." in name]
    assert {entry.date_time for entry in archive.infolist()} == {build.DATE}


def test_a_page_is_told_which_cells_do_not_run():
    cells = [
        {"cell_type": "markdown", "metadata": {}},
        {"cell_type": "code", "metadata": {}},
        {"cell_type": "code", "metadata": {build.NATIVE: "</script> is too much."}},
    ]
    foot = build.foot("05_kernel_smoother", cells)
    assert '{"kind": "cells", "reasons": ["", "\\u003c/script> is too much."]}' in foot
    assert "../_static/run/cells.js" in foot
    assert '{"kind": "network",' in build.foot("02_self_attention_is_low_rank", cells)
    assert '{"kind": "reviews",' in build.foot("17_transformer_by_hand", cells)


def test_why_a_cell_does_not_run_stands_in_the_notebook_as_in_its_source():
    for path in CHAPTERS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        marked = [cell["metadata"][build.NATIVE] for cell in cells if build.NATIVE in cell["metadata"]]
        assert marked == re.findall(
            rf'^# %% {build.NATIVE}="([^"]+)"', path.with_suffix(".py").read_text(encoding="utf-8"), re.MULTILINE
        )
        assert all(re.fullmatch(r"[A-Z].*\.", reason) for reason in marked)


COSTLY = ("16", "18", "20", "21", "22", "23", "24")  # chapters on the GPU and on training


@pytest.mark.parametrize("path", [path for path in CHAPTERS if path.name[:2] in build.CHAPTERS], ids=lambda p: p.stem)
def test_few_cells_do_not_run(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    shown = [cell for cell in cells if cell.get("outputs")]
    native = [cell for cell in shown if build.NATIVE in cell["metadata"]]
    assert len(native) <= len(shown) / (3 if path.name[:2] in COSTLY else 10)
