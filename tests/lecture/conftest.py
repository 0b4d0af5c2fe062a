"""The built site, for tests in browsers."""

import pytest


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    from built_site import built

    return built(tmp_path_factory)


@pytest.fixture(scope="session")
def running_site(tmp_path_factory):
    """With Python for the browser, a pretrained network and reviews, of which 175 MB have to be fetched once."""
    from built_site import built

    return built(tmp_path_factory, "--run", "--sentence")


@pytest.fixture(scope="session")
def few_that_run(site, tmp_path_factory):
    from built_site import with_few_that_run

    out = tmp_path_factory.mktemp("few") / "site"
    with_few_that_run(site, out)
    return out
