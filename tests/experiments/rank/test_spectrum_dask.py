"""`linattn-ref spectrum --dask` with a real scheduler and real workers on the loopback address, which are killed."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from linattn_ref.experiments.rank.spectrum import compute

pytest.importorskip("distributed")


def spectrum(*options):
    return subprocess.Popen(
        [sys.executable, "-m", "linattn_ref", "spectrum", *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(job):
    out, err = job.communicate(timeout=120)
    return job.returncode, out, err


def done(out):
    return {path.name: np.load(path) for path in (out / "spectrum-parts").glob("*.npy")}


def same(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def stop_after_a_result(job, out, worker):
    """Stop the only worker, with work in hand."""
    while not list((out / "spectrum-parts").glob("*.npy")):
        assert job.poll() is None, job.communicate()
        time.sleep(0.01)
    worker.send_signal(signal.SIGSTOP)


@pytest.mark.slow
def test_a_worker_that_is_killed_changes_no_number(cluster, long_model, long_text, tmp_path):
    """The first worker alone has the model when the second one comes; then it is killed with all that it has."""
    given = ("--model", long_model, "--text", long_text, "--sentences", 30, "--length", 128)
    first = cluster.start_worker()
    out = tmp_path / "out"
    job = spectrum(*given, "--dask", cluster.address, "--out", out)
    stop_after_a_result(job, out, first)
    cluster.wait_for_worker(cluster.start_worker())
    first.kill()
    first.wait()
    assert len(done(out)) < 30  # there was work left
    status, _, err = finish(job)
    assert (status, err) == (0, "")
    whole = tmp_path / "whole" / "spectrum-parts"
    compute(model=long_model, text=long_text, sentences=30, length=128, parts=whole)
    assert same(done(out), done(whole.parent))


@pytest.mark.slow
def test_a_scheduler_that_goes_away_is_one_line_and_what_is_done_is_kept(cluster, tmp_path):
    rng = np.random.default_rng(0)
    p = rng.random((30, 2, 3, 128, 128), np.float32)
    np.savez(tmp_path / "p.npz", p=p / p.sum(axis=-1, keepdims=True))
    given = ("--arrays", tmp_path / "p.npz", "--out", tmp_path / "out")
    worker = cluster.start_worker()
    job = spectrum(*given, "--dask", cluster.address)
    stop_after_a_result(job, tmp_path / "out", worker)
    cluster.scheduler.kill()
    status, out, err = finish(job)
    assert (status, out) == (2, "")
    assert err == (
        f"linattn-ref: error: the Dask scheduler at {cluster.address} went away; what is done is kept: "
        "the same command with --resume goes on from there\n"
    )
    kept = done(tmp_path / "out")
    assert len(kept) < 32
    compute(arrays=tmp_path / "p.npz", parts=tmp_path / "out" / "spectrum-parts", resume=True)
    assert len(done(tmp_path / "out")) == 32
    assert same(kept, {name: done(tmp_path / "out")[name] for name in kept})
