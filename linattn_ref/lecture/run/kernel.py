"""The kernel of a chapter, in the browser: it runs cells, keeps their names, and sends what they show to the page.

A browser has no compiler, so Numba is missing, and `linattn_ref.kernels.jit` is the pages themselves there: the same
numbers, by NumPy. Other packages that are missing can be imported and not called.
"""

import ast
import base64
import builtins
import contextlib
import html
import importlib.abc
import importlib.metadata
import io
import json
import linecache
import sys
import traceback
import warnings
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType, TracebackType
from typing import Any

__all__ = ["Kernel", "display_module", "install"]

Send = Callable[[str, str], object]  # what kind of output, and its content

MISSING = ("_multiprocessing", "llvmlite", "numba", "tokenizers")
LOOPS = "linattn_ref.kernels.jit.loops"
FOLDERS = (LOOPS, *(f"{LOOPS}.{name}" for name in ("delta", "layers", "linear", "simd", "softmax", "sparse")))


class Kernel:
    """What one chapter's cells share; or what a page is checked by.

    ``send(kind, content)`` gets what a cell shows: ``"text"``, ``"html"``, ``"error"``, ``"slider"`` or ``"checked"``.
    """

    def __init__(self, send: Send) -> None:
        self.send = send
        self.names: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins}
        self.sliders: list[Callable[[int], object]] = []
        self.bench: Any = None

    def run(self, code: str, title: str) -> bool:
        """Run a cell, called ``title`` in error messages; whether it ran to its end."""
        file = f"<{title}>"
        linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
        return self._done(lambda: self._execute(ast.parse(code, file), file), file)

    def check(self, page: str, rows: str) -> bool:
        """Check the gradient of a module with other code in some rows of its page, JSON; whether that could be done."""
        from linattn_ref.lecture.run import check

        self.bench = self.bench or check.Workbench(page, self.send)
        bench, code = self.bench, {int(row): text for row, text in json.loads(rows).items()}
        return self._done(lambda: bench.check(code), bench.file)

    def _done(self, job: Callable[[], object], file: str) -> bool:
        """Whether it came to its end; if not, what went wrong in ``file`` is shown."""
        with contextlib.redirect_stdout(_Stream(self.send)), contextlib.redirect_stderr(_Stream(self.send)):
            try:
                job()
            except BaseException as error:  # SystemExit too: the interpreter has to go on
                self.send("error", _told(error, file))
                return False
        return True

    def _execute(self, tree: ast.Module, file: str) -> None:
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, file, "exec"), self.names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), file, "eval"), self.names)  # type: ignore[attr-defined]
            if value is not None:
                self.show(value)

    def show(self, *shown: Any, **options: Any) -> None:
        """Display objects, as IPython does: HTML if they have it, else their text."""
        for each in shown:
            as_html = getattr(each, "_repr_html_", None)
            self.send(*(("html", as_html()) if as_html else ("text", f"{each!r}\n")))

    def slider(self, values: Any, name: str, redraw: Callable[[Any], None]) -> None:
        """Show a slider that draws anew where it is moved to; what it draws first, the page asks for."""
        from linattn_ref.experiments.publishing import chapter

        self.sliders.append(lambda to: redraw(values[to]))
        labels = [chapter.cell_text(value) for value in values]
        self.send("slider", json.dumps({"number": len(self.sliders) - 1, "name": name, "labels": labels}))

    def move(self, slider: int, to: int) -> bool:
        """A reader has moved a slider; whether that could be drawn."""
        self.names["_move"] = lambda: self.sliders[slider](to)
        return self.run("_move()", "slider")


class _Stream(io.TextIOBase):
    def __init__(self, send: Send) -> None:
        self.send = send

    def write(self, text: str) -> int:
        if text:
            self.send("text", text)
        return len(text)


def _told(error: BaseException, file: str) -> str:
    """The traceback from the cell on: how this module called it is nobody's concern."""
    at: TracebackType | None = error.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename != file:
        at = at.tb_next
    return "".join(traceback.format_exception(type(error), error, at))


# --- What stands in for what a browser lacks --------------------------------------------------------------------------


def install(kernel: Kernel) -> None:
    """Before a cell is run: the stand-ins, and sliders that the page shows. It cannot be undone."""
    sys.meta_path.append(_Missing())
    sys.modules["IPython"] = ModuleType("IPython")
    vars(sys.modules["IPython"])["get_ipython"] = lambda: None  # matplotlib asks
    sys.modules["IPython.display"] = display_module(kernel.show)
    with warnings.catch_warnings(action="ignore"):  # that there is one process
        importlib.import_module("joblib")
    from linattn_ref import kernels
    from linattn_ref.data import fetch
    from linattn_ref.experiments.publishing import chapter
    from linattn_ref.kernels import reference
    from linattn_ref.lecture.run import fetched
    from linattn_ref.models import bert

    known = importlib.metadata.version
    vars(importlib.metadata)["version"] = lambda name: "none" if name in MISSING else known(name)
    warnings.filterwarnings("ignore", "Error in function boost")  # SciPy's, of a quantile's last digit, here alone
    sys.modules.update(fetched.safetensors_modules())
    sys.modules["tqdm"] = ModuleType("tqdm")
    vars(sys.modules["tqdm"])["tqdm"] = _NoBar
    sys.modules["linattn_ref.kernels.jit"] = reference
    vars(kernels)["jit"] = reference
    vars(reference)["__path__"] = []  # of its modules, the loops can be imported
    chapter._slider = kernel.slider
    vars(fetch)["open_content"], vars(bert)["load"] = fetched.open_content, fetched.read_network


class _NoBar(contextlib.AbstractContextManager[Any]):
    """A progress bar that nobody sees."""

    def __init__(self, steps: Any = (), **options: Any) -> None:
        self.steps = steps

    def __exit__(self, *error: object) -> None:
        pass

    def __iter__(self) -> Any:
        return iter(self.steps)

    def update(self, count: int = 1) -> None:
        pass


class _Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds packages that are not there, which can be imported and not called."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        missing = name.partition(".")[0] in MISSING or f"{name}.".startswith(f"{LOOPS}.")
        return ModuleSpec(name, self, is_package=True) if missing else None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ not in FOLDERS:  # which have nothing but modules
            vars(module)["__getattr__"] = _Absent(module.__name__, "").__getattr__
        if module.__name__ == "numba":  # one thread, whatever is asked for
            vars(module).update({"get_num_threads": lambda: 1, "set_num_threads": lambda count: None})


class _Absent:
    """Anything of a package that is missing: it can be named, decorate, and its source be shown, but not be called."""

    def __init__(self, module: str, name: str) -> None:
        self.__module__, self.__qualname__ = module, name

    def __getattr__(self, name: str) -> "_Absent":
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name == "py_func" else _Absent(self.__module__, f"{self.__qualname__}.{name}".lstrip("."))

    def __call__(self, *given: Any, **options: Any) -> Any:
        if len(given) == 1 and isinstance(given[0], FunctionType):  # a decorator
            return _Absent(given[0].__module__, given[0].__qualname__)
        if not given and (options or self.__qualname__.endswith("jit")):  # a decorator's options
            return self
        return self[given]

    def __getitem__(self, given: Any) -> Any:
        from linattn_ref.lecture.run.fetched import WHY

        top = self.__module__.partition(".")[0]
        package = top if top in MISSING else "numba"
        raise ModuleNotFoundError(WHY.format(package), name=package)


class _Shown(str):
    """HTML, as IPython's objects have it."""

    def _repr_html_(self) -> str:
        return str(self)


def _markdown(text: str) -> _Shown:
    from markdown_it import MarkdownIt
    from mdit_py_plugins.dollarmath import dollarmath_plugin

    def typeset(tex: str, options: dict[str, bool]) -> str:
        return (r"\[{}\]" if options["display_mode"] else r"\({}\)").format(html.escape(tex, quote=False))

    return _Shown(MarkdownIt("commonmark").enable("table").use(dollarmath_plugin, renderer=typeset).render(text))


def _image(data: bytes, format: str = "png", width: int | None = None, alt: str = "") -> _Shown:
    size = f' width="{width}"' if width else ""
    source = f"data:image/{format};base64,{base64.b64encode(data).decode()}"
    return _Shown(f'<img src="{source}"{size} alt="{html.escape(alt)}">')


def display_module(show: Callable[..., None]) -> ModuleType:
    """What chapters use of ``IPython.display``, each object as HTML."""
    module = ModuleType("IPython.display")
    vars(module).update(display=show, clear_output=lambda wait=False: None)
    silent = _Shown("<p><em>Sound is not played here.</em></p>")
    vars(module).update(Markdown=_markdown, Image=_image, HTML=_Shown, Audio=lambda *given, **options: silent)
    return module
