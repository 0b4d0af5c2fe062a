"""A submission in a process of its own: limits of time and memory, no package on its path, and nothing to find there.

Under bubblewrap, where it is installed, the process sees Python, the installed packages but this one, and the
submission, all read-only, and no network. Without, it is a process of the user's, and the report says so.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from linattn_ref.homework import child, values

__all__ = ["Apart", "Failed", "bubblewrap", "protection"]

LONGEST = 1 << 24  # characters of an answer
IMPORTING = 30.0  # seconds that answer.py may take to be imported, beside the limit of an item
PATIENCE = 4  # on a busy machine a second of the processor takes longer
FILE = 1 << 20  # bytes of a file that a submission may write
SYSTEM = "/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives"  # what Python needs


class Failed(Exception):
    """A submission that raised an error, took too long, or ended."""


@functools.cache
def bubblewrap() -> str:
    """The program, where it is installed and may do its work; or nothing."""
    program = shutil.which("bwrap")
    works = (
        program
        and not subprocess.run([program, "--ro-bind", "/", "/", "--unshare-all", "true"], check=False).returncode
    )
    return str(program) if works else ""


def protection() -> str:
    """What the submission was kept from."""
    if bubblewrap():
        return "The submission ran under bubblewrap: without a network, and with nothing of this machine to write."
    return (
        "Bubblewrap (bwrap) is not installed, or may not run here. The submission ran in a process of its own, with"
        " limits of time and memory, but it could have read and changed this user's files, and used the network."
    )


class Apart:
    """Answers calls by asking the process, which is started again where it ended."""

    def __init__(self, folder: Path, *, seconds: float, memory: int, arrays: list[str]) -> None:
        self.folder, self.seconds, self.memory, self.arrays = folder.resolve(), seconds, memory, arrays
        self.process: subprocess.Popen[str] | None = None
        self.left, self.begins = PATIENCE * seconds, True  # seconds to wait; whether the next call is the first
        self.broken = ""  # why answer.py cannot be imported
        self.place = Path(tempfile.mkdtemp(prefix="homework-"))
        for module in (child, values):
            shutil.copy(str(module.__file__), self.place)
        packages = self.place / "packages"
        packages.mkdir()
        for path in Path(np.__file__).parents[1].iterdir():
            if path.suffix != ".pth" and not path.name.startswith(("linattn_ref", "__editable__")):
                (packages / path.name).symlink_to(path)

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.place, ignore_errors=True)

    def begin(self) -> None:
        """An item begins: from now on it has its seconds of the processor, for all that is asked."""
        self.left, self.begins = PATIENCE * self.seconds, True

    def call(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """What a function of the submission returns, as JSON has it."""
        if self.broken:
            raise Failed(self.broken)
        if self.process is None:
            self.start()
            self.begins = True
        request = {"call": name, **values.pack(args, options)}
        if self.begins:
            request["seconds"] = self.seconds
        self.begins, began = False, time.monotonic()
        try:
            return self.ask(json.dumps(request) + "\n", self.left)
        finally:
            self.left -= time.monotonic() - began

    def start(self) -> None:
        """Begin, and wait until the submission is imported."""
        asked = {
            "answer": str(self.folder / "answer.py"),
            "packages": str(self.place / "packages"),
            "memory": self.memory << 20,
            "seconds": int(10 * self.seconds + IMPORTING),
            "file": FILE,
            "arrays": self.arrays,
        }
        command = [*self.box(), sys.executable, "-I", "-S", "-B", "-c", START, str(self.place), json.dumps(asked)]
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")}
        self.process = subprocess.Popen(
            command,
            cwd=self.place,
            env={"PATH": os.defpath, "HOME": str(self.place), **threads},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            self.ask("", IMPORTING)
        except Failed as error:
            self.broken = f"answer.py could not be imported: {error}"
            raise Failed(self.broken) from None

    def box(self) -> list[str]:
        """The command of bubblewrap, or nothing."""
        if not bubblewrap():
            return []
        site, words = Path(np.__file__).parents[1], [bubblewrap(), "--unshare-all", "--die-with-parent"]
        words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]  # before what may lie in them
        for path in (*SYSTEM, sys.base_prefix, sys.prefix, str(site)):
            words += ["--ro-bind-try", path, path]
        for ours in site.glob("linattn_ref*"):
            words += ["--tmpfs", str(ours)] if ours.is_dir() else ["--ro-bind", os.devnull, str(ours)]
        for place in (self.place, self.folder):
            words += ["--ro-bind", str(place), str(place)]
        return [*words, "--chdir", str(self.place), "--"]

    def ask(self, line: str, seconds: float) -> Any:
        """Send a line and wait for one; a process that does not answer in time is ended."""
        process, answers = self.process, list[str]()
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        to, back = process.stdin, process.stdout

        def exchange() -> None:
            with contextlib.suppress(OSError, ValueError):
                to.write(line)
                to.flush()
                answers.append(back.readline(LONGEST))

        thread = threading.Thread(target=exchange, daemon=True)  # so that nothing that it does can hold this process
        thread.start()
        thread.join(max(seconds, 0.0))
        late = thread.is_alive()
        if late or not answers or not answers[0].endswith("\n"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0 if late else 1)
            self.kill()
            thread.join(1.0)
            if late or process.returncode in (-signal.SIGPROF, 128 + signal.SIGPROF):
                raise Failed("too late: the time limit has passed")
            raise Failed(f"the process ended (a limit of {self.memory} MiB of memory holds)")
        try:
            answer = dict(json.loads(answers[0]))
        except (ValueError, TypeError, RecursionError):
            raise Failed("what was answered is not JSON") from None
        if "value" not in answer:
            raise Failed(str(answer.get("error"))[:1000])
        return answer["value"]

    def kill(self) -> None:
        """End the process, and all that it started in its session."""
        process, self.process = self.process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError, ValueError):
                if stream is not None:
                    stream.close()


START = "import sys; sys.path.append(sys.argv[1]); import child; child.main(sys.argv[2])"
