"""A version in which calls made here are gone is told, and so is one in which they are not there yet."""

import pytest
import tokenizers

from linattn_ref.versions import check_tokenizers


@pytest.mark.parametrize(
    ("version", "fits"),
    [("0.13.3", False), ("0.19.1", False), ("0.20.0", True), ("0.22.0rc0", True), ("1.0rc1", False)],
)
def test_tokenizers_is_of_0_20_to_below_1(version, fits, monkeypatch):
    monkeypatch.setattr(tokenizers, "__version__", version)
    if fits:
        return check_tokenizers()
    with pytest.raises(
        ImportError, match=rf"^tokenizers: expected a version from 0\.20 to below 1, got {version}: pip"
    ):
        check_tokenizers()
