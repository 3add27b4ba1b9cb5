"""Addresses, apart and together."""

import pytest

from capture.address import join_address, split_address


@pytest.mark.parametrize(("address", "parts"), [("h:1", ("h", 1)), ("[::1]:80", ("::1", 80)), ("a.b:80", ("a.b", 80))])
def test_apart_and_together(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts
    assert join_address(*parts) == address


@pytest.mark.parametrize("wrong", ["", "h", ":1", "h:", "h:x", "h:-1", "h:70000", "::1:80", "[]:1"])
def test_what_is_no_address(wrong: str) -> None:
    with pytest.raises(ValueError, match="not host:port"):
        split_address(wrong)
