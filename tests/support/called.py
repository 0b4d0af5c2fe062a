"""Which public functions a run called: one statement more at the beginning of each, put in when its module is imported.

What the default tests leave out is found so: `conftest.py` lists what nothing called, and compiled kernels that nothing
compiled. Functions that Numba compiles stay as they are, and so does what kernels take from the folder above them.

Left out are CUDA kernels, which need a GPU or a simulator in another process, and :data:`LEFT_OUT`.
"""

import ast
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "linattn_ref"
# What times, weighs and trains whole networks does so in float32, whose kernels a default run does not compile: slow
# tests run it small, and default ones read its records. The others need a browser, a network that is fetched, an
# offline compiler of GPU code or Dask's scheduler and workers, or are called in a process of their own.
LEFT_OUT = (
    "experiments.benches.",
    "experiments.learned.",
    "experiments.learning.",
    "experiments.cost.cuda_occupancy.compute",
    "experiments.cost.layer_savings.compute",
    "experiments.measuring.memory.",
    "experiments.measuring.dask_workers.results",
    "homework.checking.Questions.",
    "homework.child.",
    "lecture.live.head.compute",
    "lecture.live.speed.measure",
    "lecture.run.kernel.install",
)
MARK = "__called__"
called: set[str] = set()


def public_functions(text):
    """The functions of a module's text that stand in its ``__all__``, and what is public in such a class."""
    module = ast.parse(text)
    public = {
        name
        for node in module.body
        if isinstance(node, ast.Assign | ast.AugAssign)
        and any(getattr(target, "id", None) == "__all__" for target in getattr(node, "targets", None) or [node.target])
        for name in (ast.literal_eval(node.value) if isinstance(node.value, ast.List | ast.Tuple) else ())
    }
    for node in module.body:
        if getattr(node, "name", None) not in public:
            continue
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef) and not any(
            getattr(base, "id", "") == "Protocol" for base in ast.walk(node)
        ):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
                    yield f"{node.name}.{inner.name}", inner


def is_compiled(function, path):
    """In the folder of loops, whatever has a decorator; whatever they take from the folder above."""
    words = [ast.unparse(each) for each in function.decorator_list]
    folders = Path(path).parts[:-1]
    return folders[-1] == "kernels" or any("jit" in word for word in words) or ("loops" in folders and words != [])


class Loader(SourceFileLoader):
    """Each public function of the module says that it was called."""

    def get_code(self, fullname):
        path = self.get_filename(fullname)
        text = self.get_data(path)
        module = ast.parse(text)
        functions = {
            (node.lineno, node.col_offset): name for name, node in public_functions(text) if not is_compiled(node, path)
        }
        for node in ast.walk(module):
            name = functions.get((getattr(node, "lineno", 0), getattr(node, "col_offset", 0)))
            if name and isinstance(node, ast.FunctionDef):
                has_docstring = ast.get_docstring(node) is not None
                call = ast.parse(f"{MARK}({fullname + '.' + name!r})").body[0]
                for part in ast.walk(call):
                    ast.copy_location(part, node.body[0])
                node.body.insert(has_docstring, call)
        return compile(module, path, "exec", dont_inherit=True)

    def exec_module(self, module):
        setattr(module, MARK, called.add)
        super().exec_module(module)


class Finder(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] != PACKAGE.name:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec and type(spec.loader) is SourceFileLoader:
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec


def watch():
    """From now on; before the package is imported."""
    assert PACKAGE.name not in sys.modules
    sys.meta_path.insert(0, Finder())


def all_functions(left_out=LEFT_OUT):
    """The names of all that a default run has to call."""
    for path in sorted(PACKAGE.rglob("*.py")):
        *folders, last = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if folders[1:3] == ["kernels", "cuda"]:
            continue
        module = ".".join(folders if last == "__init__" else [*folders, last])
        for name, node in public_functions(path.read_text(encoding="utf-8")):
            whole = f"{module}.{name}"
            if not is_compiled(node, path) and not whole.removeprefix(f"{PACKAGE.name}.").startswith(left_out):
                yield whole


def seen():
    """What this process called; its compiled kernels; those with a signature; and what it had to compile itself."""
    package = f"{PACKAGE.name}.kernels.jit.loops."
    kernels, signatures, anew = set(), set(), set()
    for name, module in list(sys.modules.items()):
        for title, value in vars(module).items() if name.startswith(package) else ():
            dispatcher = getattr(value, "task", value)
            if getattr(value, "__module__", None) != name or not hasattr(dispatcher, "_cache"):
                continue
            if getattr(dispatcher._cache, "cache_path", None):  # others are compiled into these
                title = f"{name.removeprefix(package)}.{title}".removesuffix("_32").removesuffix("_64")  # one text
                kernels.add(title)
                signatures |= {title} if dispatcher.signatures else set()
                anew |= {f"{title}{signature}" for signature in dispatcher.stats.cache_misses}
    return {"called": called, "kernels": kernels, "signatures": signatures, "anew": anew}
