"""The program that runs a submission: it reads requests, a line each, and writes answers. Needs NumPy alone.

It knows none of the expected values. Limits are set before the first line of the submission runs. The submission
cannot lift them, except for the timer of an item, and for that `apart` has a limit of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from typing import Any

__all__ = ["main"]


def told(error: BaseException, path: str) -> str:
    """An error, and the line of the submission that it comes from."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    where = f" (answer.py, line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {str(error)[:500]}{where}"


def main(said: str) -> None:
    """Answer until nothing more is asked."""
    import resource

    folder, packages, arrays, memory, seconds, importing, file = json.loads(said)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a submission prints goes nowhere
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_AS, (4 * memory, 4 * memory))  # libraries are mapped, which costs no memory
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))  # the first sends a signal that has a name
    resource.setrlimit(resource.RLIMIT_FSIZE, (file, file))
    sys.path.append(packages)
    from values import arrays_of, call, dumps, finder  # type: ignore[import-not-found]

    def say(answer: dict[str, Any]) -> None:
        answers.write(dumps(answer) + "\n")
        answers.flush()

    signal.setitimer(signal.ITIMER_PROF, importing)  # of the processor, until a signal ends the process
    sys.path.insert(0, folder)  # as the tests of the handout do
    path = os.path.join(folder, "answer.py")
    try:
        module = importlib.import_module("answer")
        array = arrays_of(module, arrays)
    except BaseException as error:
        say({"error": told(error, path)})
        return
    say({"value": None})

    find = finder(lambda: [module, *(x for title, x in sys.modules.items() if title.startswith("given."))])
    for line in sys.stdin:
        try:
            request = json.loads(line)
            if request["seconds"]:
                signal.setitimer(signal.ITIMER_PROF, request["seconds"])
            say({"value": call(module, request, find, array)})
        except BaseException as error:
            say({"error": told(error, path)})
