"""What the GPU comparison says and draws of numbers made up here; measuring them takes a GPU."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from linattn_ref import cli
from linattn_ref.experiments.benches import bench_cuda
from linattn_ref.experiments.benches.bench_cuda import BOTH, FORWARD
from linattn_ref.experiments.publishing import style
from linattn_ref.experiments.publishing.restore import Results


@pytest.fixture
def results():
    rows = tuple(
        Results(task=task, length=n, kernel=name, median_ms=n / 1000, min_ms=n / 1100, rounds=3, mib=n / 64)
        for task in (FORWARD, BOTH)
        for n in (1024, 2048)
        for name in ("linear", "softmax", "SDPA")
        if (n, name) != (2048, "SDPA")
    )
    speeds = {"copy_gb_s": 1000.0, "matrix_tflops": 10.0, "bfloat16_tflops": 100.0}
    sizes = {"device": "some GPU", "batch": 1, "heads": 8, "width": 64, "repeats": 3}
    return Results(**sizes, **speeds, versions={"PyTorch": "2"}, rows=rows)


def test_without_a_gpu_it_refuses(monkeypatch, capsys, tmp_path):
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert cli.main(["bench", "cuda", "--out", str(tmp_path)]) == 2
    assert "no NVIDIA GPU" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_pytorch_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert cli.main(["bench", "cuda"]) == 2
    assert "torch" in capsys.readouterr().err


class Torch:
    """A stand-in for PyTorch: its arrays are NumPy's, and each event comes ``ms`` after the one before."""

    float32, bfloat16, __version__ = np.float32, np.float16, "0"
    OutOfMemoryError = MemoryError

    def __init__(self):
        self.ms, self.clock, self.cuda = 1.0, 0.0, self
        self.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=True)))

    def __getattr__(self, name):
        return lambda *_, **__: 1

    def randn(self, shape, device):
        return np.ones(shape).view(Tensor)

    def empty(self, size, dtype, device):
        return Tensor((1,))

    def empty_like(self, x):
        return SimpleNamespace(copy_=lambda y: y)

    def matmul(self, a, b):
        return a

    def get_device_name(self):
        return "stand-in"

    def Event(self, enable_timing):
        torch = self

        class Event:
            def record(self):
                torch.clock += torch.ms
                self.time = torch.clock

            def synchronize(self):
                pass

            def elapsed_time(self, end):
                return end.time - self.time

        return Event()


class Tensor(np.ndarray):
    def numel(self):
        return 2**28

    def to(self, dtype):
        return self

    def bfloat16(self):
        return self


def test_a_slow_kernel_is_not_tried_at_greater_lengths_and_parts_are_kept(monkeypatch, tmp_path):
    torch, called = Torch(), []

    def kernel(name):
        def call(inputs, both):
            called.append((name, inputs.q.shape[-2]))
            if name == "SDPA" and inputs.q.shape[-2] > 64:
                raise MemoryError
            torch.ms = 400.0 if name == "softmax" and inputs.q.shape[-2] == 256 else 1.0
            return inputs[: 4 if both else 1]

        return call

    calls = {name: kernel(name) for name in ("linear", "softmax", "SDPA")}
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(bench_cuda, "kernels", lambda *_: (calls, {"PyTorch": "0"}))
    options = {"lengths": (64, 256, 1024), "heads": 1, "width": 4, "repeats": 4, "patience": 0.3, "parts": tmp_path}
    results = bench_cuda.compute(**options)
    rounds = {(row.kernel, row.length, row.task): row.rounds for row in results.rows}
    assert rounds == {
        **{("linear", n, task): 4 for n in (64, 256, 1024) for task in (FORWARD, BOTH)},
        **{(name, 64, task): 4 for name in ("softmax", "SDPA") for task in (FORWARD, BOTH)},
        ("softmax", 256, FORWARD): 1,
    }
    assert results.copy_gb_s == pytest.approx(2**31 / 1e6)  # in a millisecond
    called.clear()
    assert bench_cuda.compute(**options, resume=True) == results
    assert not called


def test_kernels_that_disagree_are_told(monkeypatch):
    calls = {"softmax": lambda inputs, _: inputs, "SDPA": lambda inputs, _: [2 * x for x in inputs]}
    monkeypatch.setitem(sys.modules, "torch", Torch())
    monkeypatch.setattr(bench_cuda, "kernels", lambda *_: (calls, {}))
    with pytest.raises(RuntimeError, match="SDPA and softmax differ in out"):
        bench_cuda.compute(lengths=(64,), heads=1, width=4)


def test_table(results):
    lines = bench_cuda.table(results).splitlines()
    assert lines[0] == "| task | N | linear | softmax | SDPA | limit of linear | limit of linear bfloat16 |"
    assert lines[1].count("---") == 7
    assert lines[2].startswith("| forward | 1024 | 1.02 | 1.02 | 1.02 | ")
    assert lines[3].startswith("| forward | 2048 | 2.05 | 2.05 |  | ")
    assert "Not compared here: flash-linear-attention, fast-transformers." in lines[-1]


def test_limit(results):
    """8 heads of 1024 rows of 64 numbers: 4 arrays of 2 MiB at 1000 GB/s, or 2 * 64^2 multiply-adds at 10 TFLOP/s."""
    moved, arithmetic = 4 * 2**21 / 1e9, 8 * 1024 * 2 * 64**2 * 2 / 1e10
    assert bench_cuda.limit_ms(results, FORWARD, 1024) == pytest.approx(max(moved, arithmetic))
    faster = Results({**results, "matrix_tflops": 1e6})
    assert bench_cuda.limit_ms(faster, FORWARD, 1024) == pytest.approx(moved)
    half = bench_cuda.limit_ms(results, FORWARD, 1024, "limit of linear bfloat16")
    assert half == pytest.approx(max(moved / 2, arithmetic / 10))


def test_figure(results):
    with style.use():
        axes = bench_cuda.draw(results).axes
    assert [axis.get_title(loc="left") for axis in axes] == [FORWARD, BOTH, BOTH]
    lines = {line.get_label(): line for line in axes[0].get_lines()}
    assert lines.keys() == {"linear", "softmax", "SDPA", *bench_cuda.LIMITS}
    assert list(lines["SDPA"].get_xdata()) == [1024]
