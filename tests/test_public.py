"""What is public: each module says so in ``__all__``."""

import importlib
import pkgutil
from types import ModuleType

import called
import pytest

import linattn_ref
from linattn_ref import data, experiments, models, theory

WORKSHOPS = ("linattn_ref.kernels.jit.", "linattn_ref.kernels.cuda")  # their files are for the room alone
MODULES = [
    module.name
    for module in pkgutil.walk_packages(linattn_ref.__path__, "linattn_ref.")
    if not module.name.startswith(WORKSHOPS) and module.name != "linattn_ref.__main__"
]
FOLDERS = [
    importlib.import_module(f"{experiments.__name__}.{folder.name}")
    for folder in pkgutil.iter_modules(experiments.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_is_public_and_has_it(name):
    module = importlib.import_module(name)
    public = module.__all__
    assert len(set(public)) == len(public)
    for each in public:
        if (name, each) != ("linattn_ref.kernels", "cuda"):  # needs numba-cuda
            assert hasattr(module, each), each


@pytest.mark.parametrize("package", [data, experiments, models, theory, *FOLDERS], ids=lambda package: package.__name__)
def test_all_modules_of_a_package_are_there_when_they_are_named(package):
    assert package.__all__ == sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    for name in package.__all__:
        assert isinstance(getattr(package, name), ModuleType)


def test_what_no_default_run_calls_is_there():
    names = [name.partition(".")[2] for name in called.all_functions(left_out=())]
    assert [each for each in called.LEFT_OUT if not any(name.startswith(each) for name in names)] == []
