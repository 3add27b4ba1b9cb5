"""The file of a cluster's state: what somebody else has written is refused in one line, whatever its digest says."""

import json
from typing import Any

import pytest

from reactor import keys
from reactor.errors import TransferError
from reactor.store import image
from reactor.store.image import Image

FORMAT = str(keys.FormatKey("c"))
GOOD = [[FORMAT, "1"]]


def written(items: Any, **head: Any) -> str:
    """An export with a digest that is right."""
    whole = {"kind": "weir cluster state", "version": 1, "cluster": "c", "revision": 5} | head
    return json.dumps(whole | {"digest": image._digest(whole, items), "items": items})


def test_a_good_one_is_read() -> None:
    items = [*GOOD, [f"{keys.cluster_prefix('c')}x", "//8=", "base64"]]
    assert Image.decode(written(items), name="f").items == {FORMAT: b"1", items[1][0]: b"\xff\xff"}


@pytest.mark.parametrize("field", ["cluster", "revision", "version", "kind"])
@pytest.mark.parametrize("value", ["5", True, -1, 2**70, 5.5, float("nan"), None, [], {}, "\ud800"], ids=ascii)
def test_what_it_says_of_the_store(field: str, value: Any) -> None:
    refused(written(GOOD, **{field: value}) if (field, value) != ("cluster", "5") else "")


@pytest.mark.parametrize(
    "items",
    [
        *(
            [1],
            [{}],
            [[]],
            [[FORMAT]],
            [[FORMAT, "a", "base64", "x"]],
            [[FORMAT, "!!!", "base64"]],
            [[FORMAT, "1", "gzip"]],
        ),
        *(
            [[FORMAT, 1]],
            [[FORMAT, None]],
            [[1, "x"], *GOOD],
            [*GOOD, *GOOD],
            [[FORMAT, "\ud800"]],
            "x",
            {FORMAT: "1"},
            None,
        ),
        *([*GOOD, [f"{keys.cluster_prefix('c')}\ud800", "1"]], [*GOOD, ["/other/x", "1"]], [], 7, [[FORMAT, ["1"]]]),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_items_that_are_none(items: Any) -> None:
    refused(written(items))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "", "{}", "[]", "9" * 5_000, '{"digest": 1, "items": 1}', "\x00", "NaN"], ids=ascii
)
def test_texts_that_are_no_export(text: str) -> None:
    refused(text)


def refused(text: str) -> None:
    with pytest.raises(TransferError) as found:
        Image.decode(text, name="backup.json")
    assert "backup.json" in str(found.value) or "cluster id" in str(found.value)
    assert ";" in str(found.value) or "malformed" in str(found.value)
