"""On a GPU each process compiles its own kernels: what needs the same ones goes to the same process."""

import pytest


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("gpu"):
            chosen = getattr(getattr(item, "callspec", None), "params", {})
            mechanism = str(chosen.get("case", item.originalname)).partition(" ")[0]
            numbers = getattr(chosen.get("dtype"), "__name__", chosen.get("numbers", ""))
            item.add_marker(pytest.mark.xdist_group(f"{mechanism} {numbers}"))
