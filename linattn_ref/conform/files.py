"""Cases as files, for kernels in any language: ``--write DIR`` writes questions, ``--read DIR`` judges the answers.

Every case is ``NAME.safetensors``: inputs, expected outputs and gradients in float64, and under ``budget.float64.OUT``
and ``budget.float32.OUT`` how far off each entry, or each row, may be in that precision. An answer of 16 bits may be
off by twice its own rounding in addition to float32's budget. All four dtypes can hold the inputs. The operation and
the options are in ``manifest.json``; the options are in the file's metadata too, as JSON. A program writes what it
computes, under the names of the expected arrays (``out`` for ``expected.out``) and in its own dtype, to
``NAME.answer.safetensors``; what it leaves out is not offered, and an array of any other name is an error.
"""

import contextlib
import importlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from linattn_ref import atomic
from linattn_ref.conform.arrays import DTYPES
from linattn_ref.conform.budget import allowed, rounding
from linattn_ref.conform.checks import CHECKS
from linattn_ref.conform.judge import Judge, Trial, compare
from linattn_ref.conform.questions import OPS, Question, answer
from linattn_ref.conform.report import FAILED, NOT_OFFERED, PASSED, Outcome, Report
from linattn_ref.conform.run import told
from linattn_ref.conform.target import Answer, Mapping, NotATarget, Target

__all__ = ["VERSION", "read", "write"]

VERSION = 2  # in those of 1, sees_nothing held the mask of another case


class Recorder(Judge):
    """Asks nobody: the questions are what is wanted, and the right answer is taken for the target's."""

    dtype = "all"

    def ask(self, **options: Any) -> Question:
        leading = (1, 4) if "groups" in options else (2, 2)
        return super().ask(**{"leading": leading, **options})

    def trial(self, note: str, question: Question, only: tuple[str, ...] | None = None) -> Trial:
        right = {name: x for name, x in answer(question).items() if only is None or name in only}
        return Trial(note, question, Answer(right), right, [])


def cases(op: str, full: bool) -> dict[str, tuple[str, Question, dict[str, np.ndarray]]]:
    """The cases of an operation by name: the check, the question and the right answer."""
    page = OPS[op].page
    target = Target.of(page, op, "float64", Mapping(declares=OPS[op].options))
    found = {}
    for name, each in CHECKS.items():
        if op not in each.ops or each.called or any(not target.offers(need) for need in each.needs):
            continue
        for count, trial in enumerate(each.run(Recorder(target, full=full))):
            found[f"{op}.{name}.{count}"] = f"{name}: {trial.note}", trial.question, trial.right
    return found


def write(folder: Path, ops: tuple[str, ...] = tuple(OPS), full: bool = False) -> list[Path]:
    """Write all cases of these operations; the same bytes each time."""
    from safetensors.numpy import save

    atomic.check_writable(folder / "manifest.json")  # before the minutes that all cases take
    writers: dict[Path, Any] = {}
    manifest: list[dict[str, Any]] = []
    for op in ops:
        for name, (note, question, right) in cases(op, full).items():
            tensors = {**question.inputs, "d_out": question.d_out}
            options = {key: x for key, x in question.options.items() if not isinstance(x, np.ndarray)}
            tensors |= {key: x for key, x in question.options.items() if isinstance(x, np.ndarray)}
            for prefix, state in (("state.", question.state), ("d_state.", question.d_state)):
                tensors |= {prefix + key: x for key, x in zip(OPS[op].state, state or (), strict=False)}
            tensors |= {f"expected.{key}": x for key, x in right.items()}
            for dtype in DTYPES[:2]:
                budget = allowed(question, right, dtype)
                tensors |= {f"budget.{dtype}.{key}": by_row(x).astype(dtype) for key, x in budget.items()}
            whole = {key: np.ascontiguousarray(x) for key, x in sorted(tensors.items())}
            writers[folder / f"{name}.safetensors"] = save(whole, {"options": json.dumps(options)})
            manifest.append({"name": name, "op": op, "note": note, "options": options, "expected": sorted(right)})
    about = {"version": VERSION, "size": "full" if full else "quick", "cases": manifest}
    writers[folder / "manifest.json"] = json.dumps(about, indent=1) + "\n"
    return atomic.write_all(writers)


def by_row(x: np.ndarray) -> np.ndarray:
    """One number for each row, where all channels have the same."""
    return x[..., :1] if (x == x[..., :1]).all() else x


def read(folder: Path) -> Report:
    """Judge the answers that lie beside the cases."""
    from safetensors.numpy import load_file

    path = folder / "manifest.json"
    if not path.is_file():
        raise NotATarget(f"read: no manifest.json in {folder}: `linattn-ref conform --write {folder}` writes cases")
    with undamaged(path):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version = manifest.get("version") if isinstance(manifest, dict) else None
        if version != VERSION:
            raise NotATarget(f"read: expected cases of version {VERSION}, got {version!r}")
        ops = sorted({case["op"] for case in manifest["cases"]})
        cases = [(case["name"], case["note"], [*case["expected"]]) for case in manifest["cases"]]
    with contextlib.suppress(ImportError):
        importlib.import_module("ml_dtypes")  # gives NumPy, and so safetensors, bfloat16
    outcomes, dtypes = [], set()
    for name, note, expected in cases:
        path, outcome = folder / f"{name}.answer.safetensors", partial(Outcome, name, note)
        if not path.is_file():
            outcomes.append(outcome(NOT_OFFERED, where=f"no {path.name}"))
            continue
        try:
            given = {key: np.asarray(x) for key, x in load_file(path).items()}
        except Exception as error:
            if "bfloat16" in str(error):
                words = "has bfloat16, which needs ml_dtypes: pip install 'linattn-ref[half]'"
                raise NotATarget(f"read: {path.name} {words}") from None
            outcomes.append(outcome(FAILED, np.inf, f"{path.name}: {told(error)}"))
            continue
        dtypes |= {str(x.dtype) for x in given.values()}
        case = folder / f"{name}.safetensors"
        with undamaged(case):
            outcomes.append(outcome(*judged(expected, load_file(case), given)))
    if not dtypes and not any(x.verdict == FAILED for x in outcomes):
        raise NotATarget(f"read: no answers in {folder}: a program writes NAME.answer.safetensors beside each case")
    return Report(str(folder), ", ".join(ops), ", ".join(sorted(dtypes)) or "no answers", tuple(outcomes))


@contextlib.contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """Read a file of :func:`write` within it: an error means that the file is damaged."""
    from safetensors import SafetensorError

    try:
        yield
    except NotATarget:
        raise
    except (KeyError, TypeError, ValueError, SafetensorError) as error:
        raise NotATarget(f"read: {path}: damaged, write the cases again ({error})") from None


def judged(expected: list[str], tensors: dict[str, np.ndarray], given: dict[str, np.ndarray]) -> tuple[str, float, str]:
    """The verdict on one case with its answer, the worst error and where it is."""
    if unknown := sorted({*given} - {*expected}):
        return FAILED, np.inf, f"expected {', '.join(expected)}, got {', '.join(unknown)}"
    places = []
    for key in (key for key in expected if key in given):
        got, right, dtype = given[key], tensors[f"expected.{key}"], str(given[key].dtype)
        if dtype not in DTYPES or got.shape != right.shape:
            what = f"{key}: expected {', '.join(DTYPES)} and shape {right.shape}, got {dtype} and {got.shape}"
            return FAILED, np.inf, what
        budget = tensors[f"budget.{'float64' if dtype == 'float64' else 'float32'}.{key}"] + rounding(right, dtype)
        places.append(compare("", key, got.astype(float), right, budget, dtype=dtype))
    if not places:
        return NOT_OFFERED, 0.0, "none of the arrays that are expected"
    worst = max(places, key=lambda place: place.worst)
    wrong = [place for place in places if not place.ok]
    return FAILED if wrong else PASSED, worst.worst, str(wrong[0]) if wrong else worst.array
