"""A submission in a process of its own: limits of time and memory, without this package on its path.

Under bubblewrap, where it is installed, the process sees Python, the installed packages but this one, and the
submission, all read-only, and no network. Without it, the process may do what the user may, and the report says so.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from linattn_ref.homework import child, values
from linattn_ref.homework.sheet import Sheet

__all__ = ["Apart", "Failed", "bubblewrap", "protection"]

LONGEST = 16  # MiB of an answer
ALL = 55.0  # seconds of the processor for each process
IMPORTING = 30.0  # and for importing answer.py, beside the limit of an item
PATIENCE = 8  # we wait at most this many times as long; a submission may sleep, and the machine may be busy
TICK = 1e-3
FILE = 1 << 20  # bytes of a file that a submission may write, under bubblewrap of all files
SYSTEM = "/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives"  # what Python needs
LATE = "too late: the time limit has passed"
TIMERS = {code for x in (signal.SIGPROF, signal.SIGXCPU) for code in (-x, 128 + x)}  # how a process ends by one
ENVIRONMENT = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")} | {"TRITON_INTERPRET": "1"}
START = "import sys; sys.path.append(sys.argv[1]); import child; child.main(sys.argv[2])"


class Failed(Exception):
    """A submission that raised an error, took too long, or ended."""


def one_line(words: Any) -> str:
    """What a submission says, as one line of valid UTF-8."""
    return " ".join(str(words).split())[:1000].encode("utf-8", "replace").decode()


@functools.cache
def bubblewrap() -> str:
    """The program, where it is installed and may do its work; or nothing."""
    program = shutil.which("bwrap") or ""
    tried = [program, "--ro-bind", "/", "/", "--size", "1", "--tmpfs", "/tmp", "--unshare-all", "true"]
    return program if program and not subprocess.run(tried, check=False, capture_output=True).returncode else ""


def protection() -> str:
    """What the submission was kept from."""
    if bubblewrap():
        return "The submission ran under bubblewrap: without a network, and with nothing of this machine to write."
    return (
        "Bubblewrap (bwrap) is not installed, or may not run here. The submission ran in a process of its own, with"
        " limits of time and memory, but it could have read and changed this user's files, this package among them,"
        " used the network, and left processes behind."
    )


class Apart:
    """Answers calls by asking the process, which is started again where it ended."""

    def __init__(self, folder: Path, sheet: Sheet) -> None:
        self.folder, self.sheet = folder.resolve(), sheet
        self.process: subprocess.Popen[bytes] | None = None
        self.broken = ""  # why answer.py cannot be imported
        self.all_left = PATIENCE * ALL  # seconds that we still wait for answers
        self.begin()
        self.place = Path(tempfile.mkdtemp(prefix="homework-"))
        for module in (child, values):
            shutil.copy(str(module.__file__), self.place)
        (self.place / "packages").mkdir()
        for path in Path(np.__file__).parents[1].iterdir():
            if path.suffix != ".pth" and not path.name.startswith(("linattn_ref", "__editable__")):
                (self.place / "packages" / path.name).symlink_to(path)

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.place, ignore_errors=True)

    def begin(self, peak: float = 0.0) -> None:
        """An item begins: from now on it has its seconds of the processor, for all that is asked."""
        self.peak, self.timer, self.item_left = peak, self.sheet.seconds, PATIENCE * self.sheet.seconds

    def call(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """What a function of the submission returns, as JSON has it."""
        if self.broken or self.all_left <= 0:
            raise Failed(self.broken or LATE)
        if self.process is None:
            self.start()
            self.begin(self.peak)  # a new process has a new timer
        request = values.pack(name, args, options, self.peak) | {"seconds": self.timer}
        self.timer = 0.0  # it is running
        return self.ask(values.dumps(request) + "\n", self.item_left)

    def start(self) -> None:
        """Begin, and wait until the submission is imported."""
        limits = self.sheet.memory << 20, int(ALL), IMPORTING, FILE
        said = json.dumps([str(self.folder), str(self.place / "packages"), self.sheet.arrays, *limits])
        self.wire, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [*self.box(), sys.executable, "-I", "-S", "-B", "-c", START, str(self.place), said],
            cwd=self.place,
            env={"PATH": os.defpath, "HOME": str(self.place), **ENVIRONMENT},
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        try:
            self.ask("", PATIENCE * IMPORTING)
        except Failed as error:
            self.broken = f"answer.py could not be imported: {error}"
            raise Failed(self.broken) from None

    def box(self) -> list[str]:
        """The command of bubblewrap, or nothing."""
        if not bubblewrap():
            return []
        site, words = Path(np.__file__).parents[1], [bubblewrap(), "--unshare-all", "--die-with-parent"]
        words += ["--proc", "/proc", "--dev", "/dev", "--size", str(FILE), "--tmpfs", "/tmp"]  # first
        for path in (*SYSTEM, sys.base_prefix, sys.prefix, str(site)):
            words += ["--ro-bind-try", path, path]
        for ours in site.glob("linattn_ref*"):
            words += ["--tmpfs", str(ours)] if ours.is_dir() else ["--ro-bind", os.devnull, str(ours)]
        for place in (str(self.place), str(self.folder)):
            words += ["--ro-bind", place, place]
        return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(self.place), "--"]

    def ask(self, line: str, left: float) -> Any:
        """Send a line and wait for one; a process that does not answer in time is ended."""
        process, answer, late, begun = self.process, bytearray(), False, time.monotonic()
        assert process is not None
        ends = begun + min(left, self.all_left)
        try:
            self.wire.settimeout(max(ends - time.monotonic(), TICK))
            self.wire.sendall(line.encode())
            while not answer.endswith(b"\n") and len(answer) < LONGEST << 20:
                self.wire.settimeout(max(ends - time.monotonic(), TICK))
                if not (more := self.wire.recv(1 << 16)):
                    break
                answer += more
        except OSError as error:
            late = isinstance(error, TimeoutError)
        waited = time.monotonic() - begun
        self.item_left, self.all_left = self.item_left - waited, self.all_left - waited
        if late or not answer.endswith(b"\n"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0 if late else 1)
            self.kill()
            if late or process.returncode in TIMERS:
                raise Failed(LATE)
            if len(answer) >= LONGEST << 20:
                raise Failed(f"the answer is longer than {LONGEST} MiB")
            raise Failed(f"the process ended, perhaps at the limit of {self.sheet.memory} MiB of memory")
        try:
            found = dict(json.loads(answer))
        except (ValueError, TypeError, RecursionError):
            raise Failed("what was answered is not JSON") from None
        if "value" not in found:
            raise Failed(one_line(found.get("error")))
        return found["value"]

    def kill(self) -> None:
        """End the process, and all that it started in its session."""
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self.wire.close()
