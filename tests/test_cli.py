import contextlib
import errno
import inspect
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from functools import partial
from importlib import metadata

import numpy as np
import pytest
from matplotlib.figure import Figure

from linattn_ref import cli
from linattn_ref.cli import options
from linattn_ref.experiments.learning.tasks import TASKS
from linattn_ref.experiments.publishing import catalogue, gallery
from linattn_ref.experiments.publishing.registry import BENCHES


@pytest.fixture(autouse=True, scope="module")
def _one_format():
    """Figures are drawn as SVG alone: `test_new_figure` has all."""
    print_to = Figure.savefig

    def savefig(self, path, *, format, **how):
        print_to(self, path, format=format, **how) if format == "svg" else path.touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", savefig)
        yield


def save_matrices(folder):
    p = np.random.default_rng(0).random((3, 2, 4, 16, 16), np.float32)
    np.savez(folder / "p.npz", p=p / p.sum(axis=-1, keepdims=True))
    return folder / "p.npz"


@pytest.fixture
def own_matrices(tmp_path):
    return save_matrices(tmp_path)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def spectrum(*options):
    return cli.main(["spectrum", "--workers", "1", *map(str, options)])


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def one_run(tmp_path_factory):
    """The options of a run, its folder, the bytes there, and what was printed."""
    folder = tmp_path_factory.mktemp("run")
    options = ("--arrays", save_matrices(folder), "--out", folder / "out", "--seed", 3)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert spectrum(*options) == 0
    return options, folder / "out", snapshot(folder / "out"), printed.getvalue()


@pytest.fixture
def earlier(one_run):
    """The same, as the run left it."""
    _, out, files, _ = one_run
    shutil.rmtree(out)
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return one_run


def test_spectrum_writes_figure_and_numbers_and_prints_a_table(earlier):
    options, out, _, printed = earlier
    names = {path.name for path in out.iterdir()}
    assert names == {"spectrum.svg", "spectrum.png", "spectrum.pdf", "spectrum.json", "spectrum-parts"}
    record = json.loads((out / "spectrum.json").read_text(encoding="utf-8"))
    assert record["command"] == " ".join(map(str, ("linattn-ref spectrum --workers 1", *options)))
    assert record["seed"] == 3
    assert np.shape(record["results"]["curves"]["given"]["at_k"]) == (2, 4)
    assert np.shape(record["results"]["curves"]["given"]["mean"]) == (2, 16)
    assert len(record["results"]["settings"]["arrays_sha256"]) == 64
    assert "p.npz: 3 sentences x 2 layers x 4 heads, matrices 16 x 16" in printed
    assert re.search(r"wall \d+\.\d s, CPU \d+\.\d s, 1 workers\nwrote .*spectrum\.svg .*spectrum\.json\n$", printed)


def test_interrupted_then_resumed_is_the_same_bytes_as_one_run(earlier, capsys, monkeypatch):
    from linattn_ref.experiments.measuring import measurements

    options, out, whole, _ = earlier
    store, stored = measurements.store, []

    def store_two(folder, name, values):
        if len(stored) == 2:
            raise KeyboardInterrupt
        stored.append(name)
        store(folder, name, values)

    monkeypatch.setattr(measurements, "store", store_two)
    assert spectrum(*options) == 130
    said = capsys.readouterr().err.strip()
    assert said == ("linattn-ref: interrupted; what is done is kept: the same command with --resume goes on from there")
    assert len(list((out / "spectrum-parts").glob("*.npy"))) == 2
    monkeypatch.setattr(measurements, "store", store)
    assert spectrum(*options, "--resume") == 0
    assert snapshot(out) == whole


def fails(capsys, *options, status=2):
    """The one line of an error, without its beginning."""
    assert spectrum(*options) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("linattn-ref: error: ")
    return printed.err.removeprefix("linattn-ref: error: ").strip()


def test_bad_input_is_one_line_and_status_2_and_nothing_written(tmp_path, out, own_matrices, capsys):
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    integers = tmp_path / "integers.npz"
    np.savez(integers, p=np.eye(3, dtype=int))
    to_out = ("--out", out)
    assert fails(capsys, "--model", tmp_path / "none", *to_out) == f"model: no such directory: {tmp_path / 'none'}"
    assert "p must be float32 or float64" in fails(capsys, "--arrays", integers, *to_out)
    for file in (empty, tmp_path / "code.py"):
        file.write_text("print()\n")
        said = fails(capsys, "--arrays", file, *to_out)
        assert said == f"arrays: {file} is no .npz file of numbers, or damaged (File is not a zip file)"
    assert "no such file" in fails(capsys, "--arrays", tmp_path / "none.npz", *to_out)
    assert "leave out model and text" in fails(capsys, "--arrays", own_matrices, "--text", empty, *to_out)
    assert not out.exists()


def test_out_of_memory(tmp_path, out, capsys):
    """A header that promises more numbers than any machine holds."""
    huge = tmp_path / "huge.npz"
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000, 10000000), }\n"
    with zipfile.ZipFile(huge, "w") as file:
        file.writestr("p.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    assert fails(capsys, "--arrays", huge, "--out", out).startswith("out of memory")
    assert not out.exists()


def test_resume_with_other_settings_is_refused(earlier, capsys):
    options, out, before, _ = earlier
    said = fails(capsys, *options[:-1], 1, "--resume", "--method", "gram")
    assert said.endswith("were made with other settings: seed was 3, is 1; method was svd, is gram")
    assert snapshot(out) == before


@pytest.mark.skipif(sys.platform != "linux", reason="file names of any bytes")
def test_file_names_that_are_no_mathematics_and_no_text(own_matrices, out, capfd):
    """After all the work, matplotlib took what is between two dollar signs for a formula, and refused it.

    Here with an escape sequence, and a byte that is not UTF-8.
    """
    name = "a$b_{x$\x1b[2J\udcff.npz"
    matrices = own_matrices.rename(own_matrices.with_name(name))
    assert spectrum("--arrays", matrices, "--out", out, "--baselines", 0) == 0
    printed = capfd.readouterr()
    shown = name.replace("\x1b", "\\x1b").replace("\udcff", "\\udcff")
    assert f"{shown}: 3 sentences x 2 layers" in printed.out
    assert "\x1b" not in printed.out + printed.err
    assert json.loads((out / "spectrum.json").read_text(encoding="utf-8"))["results"]["settings"]["arrays"] == name


def test_full_disk(own_matrices, out, capsys, monkeypatch):
    def full(self, path, **options):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    assert spectrum("--arrays", own_matrices, "--out", out) == 2
    printed = capsys.readouterr()
    assert "matrices 16 x 16" in printed.out  # what was found is not lost
    assert printed.err == f"linattn-ref: error: {out / 'spectrum.svg'}: cannot write: No space left on device\n"
    assert [path.name for path in out.iterdir()] == ["spectrum-parts"]


def test_a_folder_that_is_a_file(own_matrices, tmp_path, capsys):
    said = fails(capsys, "--arrays", own_matrices, "--out", own_matrices)
    assert str(own_matrices) in said
    assert "Not a directory" in said


def test_a_download_that_is_not_the_pinned_file(out, capsys, monkeypatch):
    from linattn_ref.data import fetch

    def altered(package, **_):
        raise fetch.FetchError(f"{package.filename} as downloaded is not\nthe pinned file")

    monkeypatch.setattr(fetch, "fetch", altered)
    assert fails(capsys, "--out", out).endswith("as downloaded is not the pinned file")
    assert not out.exists()


def test_debug_shows_where(tmp_path):
    with pytest.raises(FileNotFoundError):
        spectrum("--model", tmp_path / "none", "--debug")


def test_debug_may_stand_before_the_task():
    with pytest.raises(ValueError, match=r"--list: belongs to a plan"):
        cli.main(["train", "--debug", "--list", "characters"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("train --plan p.toml characters", "--plan: belongs to a plan; leave out characters, or the option"),
        ("train --workers 2 images", "--workers: belongs to a plan"),
        ("train --dask a:1 images", "--dask: belongs to a plan"),
        ("train --only a images", "--only: belongs to a plan"),
        ("train --workers 2", "train: what? Give a task"),
        ("conform --write d --seed 0", "--write: leave out what it would ignore: --seed"),
        ("conform --write d --op softmax --dtype float32", "--write: "),
        ("conform m:f --write d", "--write: leave out what it would ignore: TARGET"),
        ("conform --list --map a=b --give c=1", "--list: leave out what it would ignore: --give, --map"),
        ("conform --read d --op softmax", "--read: leave out what it would ignore: --op"),
        ("conform --read d --only output", "--read: "),
        ("conform --read d --json d/manifest.json", "--json: d/manifest.json is the manifest of the cases"),
        ("conform --list --write d", "--list: leave out what it would ignore: --write"),
        ("assignment --list --out d", "--list: leave out what it would ignore: --out"),
        ("assignment --list softmax", "--list: leave out what it would ignore: NAME"),
        ("assignment softmax --check --out d --instructor", "--check: leave out what it would ignore: --instructor,"),
        ("live --networks a b --head", "--networks: --head and --draw use none"),
        ("live --networks a b --draw 02", "--networks: --head and --draw use none"),
        ("live --out d --speed", "--out: with --head, --draw or --speed no page is written"),
        ("ship run notes.txt", "target: expected a file name that ends in .safetensors, got notes.txt"),
        ("gather runs a.safetensors", "target: expected a file name that ends in .json, got a.safetensors"),
    ],
)
def test_options_that_would_be_ignored_and_files_of_another_kind(words, complaint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words.split()) == 2
    assert capsys.readouterr().err.startswith(f"linattn-ref: error: {complaint}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_where_nobody_reads_on_it_ends_without_a_word(unbuffered):
    """As by ``| head``."""
    command = [sys.executable, "-m", "linattn_ref", "conform", "--list"]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as done:
        done.stdout.close()
        assert done.wait() == 141
        assert done.stderr.read() == b""


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["spectrum", "--sentences", "0"], "--sentences: expected a whole number, at least 1; got '0'"),
        (["spectrum", "--length", "2"], "--length: expected a whole number, at least 3; got '2'"),
        (["spectrum", "--workers", "-1"], "--workers: expected a whole number, at least 1; got '-1'"),
        (["spectrum", "--seed", "x"], "--seed: expected a whole number, at least 0; got 'x'"),
        (["spectrum", "--method", "qr"], "--method: invalid choice"),
        (["figures", "--style", "poster"], "--style: invalid choice"),
        (["bench", "softmax", "--heads", "0"], "--heads: expected a whole number, at least 1; got '0'"),
        (["bench", "softmax", "--dtype", "int8"], "--dtype: invalid choice"),
        (["paint"], "invalid choice: 'paint'"),
        ([], "COMMAND"),
        (["bench"], "WHAT"),
    ],
)
def test_wrong_options_are_status_2(words, complaint, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"linattn-ref {metadata.version('linattn-ref')}\n"


@pytest.mark.parametrize("name", BENCHES)
def test_the_options_of_a_bench_are_the_arguments_of_its_compute(name, capsys):
    from linattn_ref.experiments.publishing import catalogue

    bench = BENCHES[name]
    taken = inspect.signature(catalogue.module_of(bench.figure(name)).compute).parameters
    parser = cli.parser()
    found = vars(parser.parse_args(["bench", name]))
    options = found.keys() - {"debug", "run", "if_interrupted", "out", "style", "resume", "peer"}
    assert options == taken.keys() - {"setting", "sizes", "patience", "where"}
    assert ("resume" in found) == ("where" in taken)
    given = {option: taken[option].default for option in options} | dict(bench.defaults)
    assert all(found[option] in (given[option], None) for option in options)
    with pytest.raises(SystemExit):
        parser.parse_args(["bench", name, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert all(f"--{option.replace('_', '-')}" in said for option in options - {"compile"})
    assert (f"bout {bench.minutes:g} minute" in said) == (bench.minutes >= 1)
    assert "on one core" not in said
    constants = [each for each in vars(catalogue.module_of(bench.figure(name))) if each.isupper()]
    assert not [each for each in constants if each.lower() not in options and re.search(rf"\b{each}\b", said)]


@pytest.mark.parametrize("bench", ["linear", "cuda"])
def test_help_names_the_packages_compared_with(bench, capsys):
    with pytest.raises(SystemExit):
        cli.main(["bench", bench, "--help"])
    said = " ".join(capsys.readouterr().out.replace("-\n", "-").split())
    assert "PyTorch" in said
    assert "fast-transformers" in said
    assert "flash-linear-attention" in said


def test_peers_are_listed_installed_or_not(capsys, monkeypatch):
    def version(package):
        if package != "torch":
            raise metadata.PackageNotFoundError
        return "2.0"

    monkeypatch.setattr(metadata, "version", version)
    assert cli.main(["bench", "softmax", "--peer"]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "torch: 2.0"
    assert "openvino: not installed (pip install openvino)" in others


def test_figures_unknown_name(tmp_path, capsys):
    assert cli.main(["figures", "--only", "mona_lisa", "--out", str(tmp_path)]) == 2
    assert "no figure named mona_lisa; there are schematic_softmax," in capsys.readouterr().err


def test_figures_elsewhere_stop_before_the_first_is_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gallery, "draw", lambda *_, **__: pytest.fail("drawn"))
    for words in ([], ["--only", "tables"], ["--only", "eckart_young", "tables", "--quick"]):
        assert cli.main(["figures", "--workers", "1", *words]) == 2
        said = capsys.readouterr().err
        assert said == f"linattn-ref: error: no README.md in {tmp_path}: run this in the repository's root\n"
    assert not list(tmp_path.iterdir())


def test_figures_quick_goes_beside_the_committed_ones(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Figure, "savefig", lambda _, path, **__: path.touch())
    monkeypatch.chdir(tmp_path)
    assert cli.main(["figures", "--only", "eckart_young", "--quick", "--workers", "1"]) == 0
    assert (tmp_path / "out" / "figures" / "eckart_young.svg").exists()
    assert "eckart_young: out/figures/eckart_young.svg" in capsys.readouterr().out.replace("\\", "/")


@pytest.mark.usefixtures("float32_in_numpy")
def test_bench_softmax_prints_a_table_and_draws(out, capsys, monkeypatch):
    monkeypatch.setattr("linattn_ref.experiments.benches.bench_softmax.multiply_adds", lambda *_: ())
    words = ["bench", "softmax", "--lengths", "8", "16", "--heads", "1", "--width", "4", "--repeats", "1"]
    assert cli.main([*words, "--out", str(out)]) == 0
    assert {path.suffix for path in out.iterdir()} == {".svg", ".png", ".pdf", ".json"}
    assert "| 16 | yes | forward + backward |" in capsys.readouterr().out


def test_a_bench_that_cannot_write_does_not_measure(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(catalogue.module_of("bench_softmax"), "compute", lambda **_: pytest.fail("measured"))
    (tmp_path / "file").touch()
    assert cli.main(["bench", "softmax", "--out", str(tmp_path / "file")]) == 2
    assert "cannot write: " in capsys.readouterr().err


@pytest.mark.usefixtures("float32_in_numpy")
def test_bench_patterns_prints_a_table_and_draws(out, capsys, monkeypatch):
    monkeypatch.setattr("linattn_ref.experiments.benches.engine.find", lambda name: None)
    monkeypatch.setattr(Figure, "savefig", lambda _, path, **__: path.touch())
    sizes = ["--lengths", "32", "--heads", "1", "--width", "4", "--window", "4", "--block", "4", "--drawn", "1"]
    assert cli.main(["bench", "patterns", *sizes, "--repeats", "1", "--out", str(out)]) == 0
    assert {path.suffix for path in out.iterdir()} == {".svg", ".png", ".pdf", ".json"}
    text = capsys.readouterr().out
    assert all(f"| {mechanism} | 32 |" in text for mechanism in ("local", "longformer", "bigbird"))


@pytest.fixture
def sample(monkeypatch, tmp_path):
    """``train characters`` after a second of training, of which nothing is run; called with what it then says."""
    from linattn_ref.experiments.learning import learn

    def run(text, encoding="utf-8"):
        ready = learn.Ready(None, None, None, {}, lambda run, params: ["before", f"\n{text}\n"])
        monkeypatch.setattr(learn, "run", lambda *_, **__: learn.Learned(None, None, ready))
        written = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", written)
        assert cli.main(["train", "characters", "--quick", "--out", str(tmp_path / "run")]) == 0
        written.flush()
        return written.buffer.getvalue().decode(encoding)

    return run


def test_a_sample_that_the_encoding_of_the_terminal_has_no_letters_for(sample):
    """``PYTHONIOENCODING=cp1252``: it was status 2, after the training."""
    assert "\n\na film of \\u4e16\\u754c, à voir\n\n" in sample("a film of 世界, à voir", "cp1252")
    assert "\n\na film of 世界, à voir\n\n" in sample("a film of 世界, à voir")


def test_escape_sequences_of_a_text_do_not_reach_the_terminal(sample, own_matrices, out, capsys):
    written = sample("a\x1b[2J\x9b31m\r\x07\ttab\nline\x7f")
    assert "a\\x1b[2J\\x9b31m\\r\\x07\ttab\nline\\x7f" in written
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", written)
    told = fails(capsys, "--model", "no\x1b[2Jmodel")
    assert told == r"model: no such directory: no\x1b[2Jmodel"
    with pytest.raises(SystemExit):
        cli.main(["spectrum", "no\x1b[2J"])
    assert capsys.readouterr().err.endswith("unrecognized arguments: no\\x1b[2J\n")


def test_training_names_the_files_that_it_wrote_and_no_others(tmp_path, monkeypatch, capsys):
    from linattn_ref.experiments.learning import learn

    def run(begin, out, **how):
        for name in ("record.jsonl", "last.safetensors"):
            (out / name).write_text("new", encoding="utf-8")
        return learn.Learned(None, None, learn.Ready(None, None, None, {}, lambda run, params: ["learned"]))

    monkeypatch.setattr(learn, "run", run)
    for name in ("notes.txt", "record.jsonl"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    assert cli.main(["train", "characters", "--quick", "--out", str(tmp_path)]) == 0
    wrote = [str(tmp_path / name) for name in ("last.safetensors", "record.jsonl")]
    assert capsys.readouterr().out == f"learned\nwrote {' '.join(wrote)}\n"


def test_training_says_how_long_it_takes_and_shows_the_loss_beside_the_nearest_yardstick(monkeypatch, capsys):
    from linattn_ref.cli import train
    from linattn_ref.experiments.learning import learn

    yardsticks = {"characters alone": 3.1, "pairs": 2.4}
    watch = train.watch(
        learn.Ready(None, None, learn.settings(100, 0, None, every=1), {"yardsticks": yardsticks}, None)
    )
    clock = iter(range(0, 10**6, 10))
    monkeypatch.setattr(options.time, "monotonic", lambda: next(clock))
    watch.takes(1000.0)
    for step in watch.steps(range(100)):
        watch.found({"loss": 5.0 - step / 50})
    first, _, second, *_ = capsys.readouterr().err.splitlines()
    assert first == "100 steps: about 17 minutes on this machine"
    assert second == "step 8 of 100: about 15 minutes left, loss 4.860 (pairs: 2.400) █▇▆▅▄▃▂▁"


def test_what_is_long_says_how_long_is_left(monkeypatch, capsys):
    """A step takes ten seconds, but the first, which compiles, an hour; of what is short nothing is said."""
    clock = iter([0, 1, 2, 3, 4, 0, *range(3600, 10**5, 10)])
    monkeypatch.setattr(options.time, "monotonic", lambda: next(clock))
    assert list(options.watched(range(5))) == [*range(5)]
    assert capsys.readouterr().err == ""
    list(options.watched(range(100)))
    told = [line.split(": ") for line in capsys.readouterr().err.splitlines()]
    assert [int(step.split()[1]) for step, _ in told] == [2, 8, 15, 29, 57]
    assert told[0] == ["step 2 of 100", "about 16 minutes left"]


def test_missing_extra_says_what_to_install():
    def say(module):
        return cli.one_line(ModuleNotFoundError(f"No module named {module!r}", name=module))

    assert say("tokenizers") == "this needs tokenizers, which is not installed: pip install 'linattn-ref[spectrum]'"
    assert say("distributed.client").endswith("distributed, which is not installed: pip install 'linattn-ref[dask]'")
    assert say("ml_dtypes").endswith("pip install 'linattn-ref[half]'")
    assert say("linattn_ref.nonsense") == "No module named 'linattn_ref.nonsense'"
    assert {"spectrum", *cli.EXTRAS.values()} <= set(metadata.metadata("linattn-ref").get_all("Provides-Extra"))


def python(code, *arguments, **options):
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, **options)


def test_without_the_extra_help_works_and_a_command_says_what_is_missing():
    blocked = "import sys; sys.modules['matplotlib'] = sys.modules['scipy'] = sys.modules['joblib'] = None\n"
    run = "from linattn_ref.cli import main; sys.exit(main(sys.argv[1:]))"
    assert python(blocked + run, "spectrum", "--help").returncode == 0
    done = python(blocked + run, "spectrum")
    assert done.returncode == 2
    assert re.fullmatch(
        r"linattn-ref: error: this needs \w+, which is not installed: pip install 'linattn-ref\[spectrum\]'\n",
        done.stderr,
    )


def test_tasks_of_training_have_their_help_without_the_extras():
    absent = "scipy matplotlib safetensors tokenizers joblib tqdm platformdirs rapidfuzz espeakng_loader soundfile"
    code = f"""if True:
        import sys
        sys.modules.update(dict.fromkeys({absent!r}.split()))
        from linattn_ref import cli
        from linattn_ref.experiments.learning.tasks import TASKS
        for task in TASKS:
            try:
                cli.main(["train", task, "--help"])
            except SystemExit as ended:
                assert ended.code == 0
    """
    done = python(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("usage: ") == len(TASKS)


def test_importing_the_command_line_is_light():
    heavy = "numba scipy matplotlib joblib tokenizers safetensors tqdm threadpoolctl platformdirs distributed torch"
    code = f"import sys, linattn_ref.cli; print(*sorted(set(sys.modules) & set({heavy!r}.split())))"
    assert python(code).stdout.strip() == ""


def test_python_m_is_the_same_command():
    done = subprocess.run([sys.executable, "-m", "linattn_ref", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: linattn-ref ")
    assert all(command in done.stdout for command in ("spectrum", "figures", "bench"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to a process group")
def test_ctrl_c_with_workers_then_resume(tmp_path, own_matrices):
    q = np.random.default_rng(0).standard_normal((60, 2, 4, 256, 16), np.float32)
    np.savez(own_matrices, q=q, k=q[..., ::-1])
    command = [sys.executable, "-m", "linattn_ref", "spectrum", "--workers", "2", "--arrays", str(own_matrices)]
    cut = [*command, "--out", str(tmp_path / "cut")]
    # The tests may run in the background of a shell script, where SIGINT is ignored, also by what they start.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(cut, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heed)
    while len(list((tmp_path / "cut").glob("*/*.npy"))) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    told = process.communicate()[1]  # a worker may say first that it was interrupted
    assert "linattn-ref: interrupted; what is done is kept" in told
    assert process.returncode == 130
    assert len(list((tmp_path / "cut").glob("*/*.npy"))) < 62
    subprocess.run([*cut, "--resume"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*command, "--out", str(tmp_path / "whole")], check=True, stdout=subprocess.DEVNULL)
    for path in (tmp_path / "whole").rglob("*.*"):
        if path.name != "spectrum.json":  # it holds --out
            assert path.read_bytes() == (tmp_path / "cut" / path.relative_to(tmp_path / "whole")).read_bytes(), path


@pytest.mark.network
def test_the_main_command_on_the_real_model_and_reviews(out, capsys):
    assert spectrum("--sentences", 4, "--baselines", 1, "--out", out) == 0
    results = json.loads((out / "spectrum.json").read_text(encoding="utf-8"))["results"]
    given = results["curves"]["given"]
    assert results["k"] == 128
    assert given["sentences"] == 4
    # Over many reviews .80 .70 .76 .86 .86 .98, .83 in all; single reviews scatter by .01 to .02 around it.
    layers = np.array(given["at_k"]).mean(axis=1)
    assert layers == pytest.approx([0.80, 0.70, 0.76, 0.86, 0.86, 0.98], abs=0.02)
    assert layers.mean() == pytest.approx(0.83, abs=0.01)
    sources = results["settings"]
    assert sources["model"] == "all-MiniLM-L6-v2"
    assert len(sources["model_sha256"]) == len(sources["text_sha256"]) == 64


@pytest.mark.network
def test_more_tokens_than_the_real_model_has_positions(out, capsys):
    assert fails(capsys, "--length", 513, "--out", out) == "length: the model has positions for 512 tokens, got 513"
    assert not out.exists()


def test_a_price_that_is_not_asked_for_fits_the_length():
    from linattn_ref.experiments.learning.encoder_attention import price

    assert [price(k, length) for k, length in ((0, 512), (0, 16), (5, 512))] == [128, 8, 5]


@pytest.mark.parametrize(
    ("command", "function", "of_the_command"),
    [
        ("spectrum", catalogue.module_of("spectrum").compute, {"out", "style", "resume", "dask"}),
        ("figures", gallery.make, {"style"}),
    ],
)
def test_every_option_reaches_what_the_command_runs(command, function, of_the_command):
    """They are passed on by name, and a name that the function does not have would be passed over."""
    taken = inspect.signature(function).parameters
    commands = next(each for each in cli.parser()._actions if each.choices)
    options = {each.dest for each in commands.choices[command]._actions} - {"help", "debug", *of_the_command}
    assert options
    assert options <= set(taken)
