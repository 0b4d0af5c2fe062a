"""The program that runs a submission: it reads requests, a line each, and writes answers. Needs NumPy alone.

It knows no expected value. Limits are set before a line of the submission runs, and cannot be lifted again.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

__all__ = ["load", "main"]


def load(path: Path) -> Any:
    """Import ``answer.py``."""
    sys.path.append(str(path.parent))  # for what it was given; behind everything else
    spec = importlib.util.spec_from_file_location("answer", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules["answer"] = module
    spec.loader.exec_module(module)
    return module


def told(error: BaseException, path: Path) -> str:
    """An error, and the line of the submission that it comes from."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f" ({path.name}, line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}{where}"


def main(said: str) -> None:
    """Answer until nothing more is asked."""
    import resource

    asked = json.loads(said)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a submission prints goes nowhere
    for limit, most in (
        (resource.RLIMIT_AS, asked["memory"]),
        (resource.RLIMIT_CPU, asked["seconds"]),
        (resource.RLIMIT_FSIZE, asked["file"]),
    ):
        resource.setrlimit(limit, (most, most))
    sys.path.append(asked["packages"])
    from values import arrays_of, call, finder  # type: ignore[import-not-found]

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    path = Path(asked["answer"])
    try:
        module = load(path)
        array = arrays_of(module, asked["arrays"])
    except BaseException as error:
        say({"error": told(error, path)})
        return
    say({"value": None})

    find = finder(lambda: [module, *(x for title, x in sys.modules.items() if title.startswith("given."))])
    for line in sys.stdin:
        try:
            request = json.loads(line)
            if "seconds" in request:  # of the processor, until a signal ends the process
                signal.setitimer(signal.ITIMER_PROF, request["seconds"])
            say({"value": call(module, request, find, array)})
        except BaseException as error:
            say({"error": told(error, path)})


if __name__ == "__main__":
    main(sys.argv[1])
