"""Run the chapters: from each NN_name.py here, an executed NN_name.ipynb beside it. Nothing else writes those.

    python notebooks/execute.py                 all chapters
    python notebooks/execute.py 01 03           those whose names start so
    python notebooks/execute.py --text 01 03    where only text has changed: take it over, and keep the outputs
    python notebooks/execute.py --check         run nothing; say which .ipynb is not what its .py would give

A cell that fails, takes too long or writes to standard error ends the run of its chapter with exit status 1 and leaves
the .ipynb as it was. A chapter that prints no times gives the same bytes when it is executed again on the same machine:
no date and no path of the machine is kept, and no slider, which needs a running Python to do anything.
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import jupytext
import nbformat
from jupyter_client.kernelspec import NoSuchKernel
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal
from nbformat import NotebookNode

from linattn_ref.atomic import write_all
from linattn_ref.experiments.publishing import chapter
from linattn_ref.lecture import elsewhere

FOLDER = Path(__file__).resolve().parent
TIMEOUT = 120  # seconds a cell
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # sums in the same order on any machine
SLIDER = "application/vnd.jupyter.widget-view+json"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# An absolute path of two parts or more (not in a URL, a fraction or an HTML tag), or an object's address.
MACHINE = re.compile(r"""(?<![\w.)\]}<>:/$*`-])/[\w.+-]+(?:/[\w.+-]+)+|\b[A-Z]:\\\w|\bat 0x[0-9a-f]{6,}""")
SOUND = re.compile(r"data:audio/wav;base64,[\w+/=]+")  # in which slashes mean nothing


class ChapterError(Exception):
    """A chapter that could not be executed; the message says which cell and why."""


# --- From .py to .ipynb ---------------------------------------------------------------------------------------------


def read(source: Path) -> NotebookNode:
    """The notebook that the chapter's source describes, not executed.

    Where pyproject.toml gives the repository's address, below the title stands a cell that sets the package up.
    """
    notebook = jupytext.read(source, fmt="py:percent")
    set_up = elsewhere.set_up_cell(elsewhere.repository(FOLDER.parent))
    if set_up:
        notebook.cells.insert(1, nbformat.v4.new_code_cell(set_up))
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells, 1):
        cell.id = f"cell-{number:02d}"  # jupytext draws random ones
    return notebook


def execute(source: Path, target: Path, *, timeout: float = TIMEOUT) -> NotebookNode:
    """Run the chapter ``source`` in a fresh kernel and write the notebook ``target``.

    Raises
    ------
    ChapterError
        A cell failed, took longer than ``timeout`` seconds or wrote to standard error, the output names a path of this
        machine, or there is no kernel to run it. ``target`` is then as it was.
    """
    notebook = read(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(target.parent)}},
        extra_arguments=["--IPKernelApp.log_level=40"],  # errors only: it warns of any kernel that is not encrypted
    )
    try:
        client.execute()
    except (CellControlSignal, NoSuchKernel, RuntimeError) as error:  # a cell's exception or timeout; a dead kernel
        raise ChapterError(f"{source.name}: {str(error).rstrip()}") from error
    clean(notebook)
    found = list(output_problems(notebook))
    if found:
        raise ChapterError(f"{source.name}: {'; '.join(found)}")
    write(notebook, target)
    return notebook


def take_text(source: Path, target: Path) -> NotebookNode:
    """Write the text of the chapter ``source`` into its executed notebook ``target``; code cells keep their outputs.

    Raises
    ------
    ChapterError
        A code cell is not as it was executed, or shows source that has changed since: the chapter has to be executed.
    """
    notebook, executed = read(source), nbformat.read(target, as_version=4)
    before = code_cells(executed)
    if [cell.source for cell in before] != [cell.source for cell in code_cells(notebook)]:
        raise ChapterError(f"{source.name}: its code has changed, so it has to be executed")
    for cell, done in zip(code_cells(notebook), before, strict=True):
        cell.outputs, cell.execution_count = done.outputs, done.execution_count
    found = [*output_problems(notebook), *stale_sources(notebook)]
    if found:
        raise ChapterError(f"{source.name}: {'; '.join(found)}")
    write(notebook, target)
    return notebook


def write(notebook: NotebookNode, target: Path) -> None:
    """Write a notebook, or leave the file as it was."""
    text = nbformat.writes(notebook)
    write_all({target: lambda path: path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")})


def clean(notebook: NotebookNode) -> None:
    """Take out what differs from run to run: widgets, metadata of the execution, where prints were cut."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in code_cells(notebook):
        cell.metadata.pop("execution", None)
        cell.outputs = joined(output for output in cell.outputs if SLIDER not in output.get("data", {}))


def joined(outputs: Iterable[NotebookNode]) -> list[NotebookNode]:
    """What was printed in one go arrives in pieces, cut anywhere: each output with the pieces that follow it."""
    whole: list[NotebookNode] = []
    for output in outputs:
        last = whole[-1] if whole else nbformat.NotebookNode()
        if output.output_type == "stream" and output.name == last.get("name"):
            last.text += output.text
        else:
            whole.append(output)
    return whole


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


# --- Is the .ipynb what its .py would give? -------------------------------------------------------------------------


def problems(source: Path, target: Path) -> list[str]:
    """What is wrong with the executed notebook, nothing being executed; empty where all is well."""
    if not target.exists():
        return ["it is not there"]
    notebook = nbformat.read(target, as_version=4)
    kinds_and_sources = [(cell.cell_type, cell.source) for cell in notebook.cells]
    if kinds_and_sources != [(cell.cell_type, cell.source) for cell in read(source).cells]:
        return [f"its cells are not those of {source.name}"]
    counts = [cell.execution_count for cell in code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        return [f"its code cells were not each executed once, in order: {counts}"]
    return [*output_problems(notebook), *stale_sources(notebook)]


def output_problems(notebook: NotebookNode) -> Iterator[str]:
    """Outputs that do not belong in a committed notebook."""
    for number, cell in enumerate(code_cells(notebook), 1):
        for output in cell.outputs:
            if output.output_type == "error":
                yield f"code cell {number} failed: {output.ename}: {output.evalue}"
            elif output.output_type == "stream" and output.name == "stderr":
                yield f"code cell {number} wrote to standard error: {output.text.strip()}"
            elif SLIDER in output.get("data", {}):
                yield f"code cell {number} holds a slider"
            for text in texts(output):
                for match in MACHINE.finditer(SOUND.sub("", text)):
                    yield f"code cell {number} shows {match.group()!r}, which only this machine has"


def texts(output: NotebookNode) -> Iterator[str]:
    """The readable parts of an output."""
    yield output.get("text", "")
    for kind, data in output.get("data", {}).items():
        if kind.startswith("text/") and isinstance(data, str):
            yield data


def stale_sources(notebook: NotebookNode) -> Iterator[str]:
    """Package source that is shown as it once was."""
    for number, cell in enumerate(code_cells(notebook), 1):
        for output in cell.outputs:
            shown = output.get("metadata", {}).get(chapter.SOURCE_OF)
            if shown and output.data["text/markdown"] != _source_now(shown):
                yield f"code cell {number} shows {', '.join(shown['names'])} as it was, not as it is"


def _source_now(shown: NotebookNode) -> str | None:
    """None if what was shown is no longer there."""
    try:
        return chapter.source_text(shown["names"], doc=shown["doc"])
    except (ValueError, OSError):
        return None


# --- The command ----------------------------------------------------------------------------------------------------


def sources(prefixes: Sequence[str] = (), folder: Path = FOLDER) -> list[Path]:
    """The chapters whose names start with one of ``prefixes``; all of them unless given.

    Raises
    ------
    ValueError
        A prefix fits no chapter.
    """
    chapters = sorted(folder.glob("[0-9][0-9]_*.py"))
    for prefix in prefixes:
        if not any(path.stem.startswith(prefix) for path in chapters):
            raise ValueError(f"no chapter {prefix!r}; there are {', '.join(path.stem for path in chapters) or 'none'}")
    return [path for path in chapters if path.stem.startswith(tuple(prefixes) or "")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Execute the chapters into notebooks.")
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help="how the chapter's name starts, as 01")
    parser.add_argument("--check", action="store_true", help="run nothing, say which notebooks are out of date")
    parser.add_argument("--text", action="store_true", help="run nothing, take over text where no code has changed")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds a cell may take (%(default)s)")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the notebooks (beside their sources)")
    options = parser.parse_args(arguments)
    try:
        chosen = sources(options.chapters)
    except ValueError as error:
        parser.error(str(error))
    status = 0
    for source in chosen:
        target = options.out / source.with_suffix(".ipynb").name
        start = time.perf_counter()
        try:
            found = problems(source, target) if options.check else []
            if options.text:
                take_text(source, target)
                print(f"{target.name}: its text")
            elif not options.check:
                notebook = execute(source, target, timeout=options.timeout)
                print(f"{target.name}: {len(code_cells(notebook))} code cells, {time.perf_counter() - start:.0f} s")
        except (ChapterError, OSError) as error:
            found = [str(error)]
        for problem in found:
            print(f"{target.name}: {problem}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    for name in ONE_THREAD:
        os.environ.setdefault(name, "1")
    sys.exit(main())
