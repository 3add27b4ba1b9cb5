"""A progress record is read entry by entry: what it was is not validated again, and a damaged one changes nothing."""

import json
from typing import Any

import pytest

from reactor.errors import InvalidRecordError
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.membership.progress import CaptureProgress, OwnedProgress, ProgressReader

A, B, C = (ChangefeedId(name) for name in "abc")
ONE = CaptureId("one")
KEY = "/weir/c/default/progress/one"


def entry(ts: int) -> OwnedProgress:
    return OwnedProgress(checkpoint_ts=Ts(ts), resolved_ts=Ts(ts), incarnation="i")


def value(**entries: int) -> bytes:
    return CaptureProgress(changefeeds={ChangefeedId(id): entry(ts) for id, ts in entries.items()}).encode()


def test_only_entries_that_changed_are_reported_and_validated() -> None:
    reader = ProgressReader()
    assert set(reader.read(ONE, value(a=1, b=1), key=KEY)) == {A, B}
    kept = reader.records[ONE].changefeeds[A]
    assert set(reader.read(ONE, value(a=1, b=2, c=1), key=KEY)) == {B, C}
    assert reader.records[ONE] == CaptureProgress.decode(value(a=1, b=2, c=1), key=KEY)
    assert reader.records[ONE].changefeeds[A] is kept
    assert set(reader.read(ONE, value(a=1, c=1), key=KEY)) == {B}
    assert set(reader.read(ONE, None, key=KEY)) == {A, C}
    assert reader.records == {}


def test_unknown_fields_are_kept_at_both_depths() -> None:
    stored: dict[str, Any] = json.loads(value(a=1, b=1))
    stored |= {"later": [1], "changefeeds": {id: one | {"new": 2.5} for id, one in stored["changefeeds"].items()}}
    reader = ProgressReader()
    reader.read(ONE, json.dumps(stored).encode(), key=KEY)
    stored["changefeeds"]["b"]["new"] = 3
    assert reader.read(ONE, json.dumps(stored).encode(), key=KEY) == [B]
    assert json.loads(reader.records[ONE].encode()) == stored


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"[]",
        b"7",
        b'{"changefeeds": 7}',
        b'{"changefeeds": ["a"]}',
        b'{"changefeeds": {"a": 7}}',
        b'{"changefeeds": {"a": {"checkpoint_ts": -1}}}',
        b'{"changefeeds": {"a": {"checkpoint_ts": NaN}}}',
        b'{"changefeeds": {"a": {}}, "later": NaN}',
        value(a=1)[:-1],
        b'{"changefeeds": {"a": ' + b"[" * 100_000,
    ],
)
def test_a_damaged_value_changes_nothing(damaged: bytes) -> None:
    reader = ProgressReader()
    reader.read(ONE, value(a=1, b=1), key=KEY)
    before = reader.records[ONE]
    with pytest.raises(InvalidRecordError, match=KEY):
        reader.read(ONE, damaged, key=KEY)
    assert reader.records[ONE] is before
    assert reader.read(ONE, value(a=1, b=2), key=KEY) == [B]
