"""Commits on an object store: what a flush asks first is asked at once, and what is answered decides together."""

import threading
from typing import cast

import pytest

from agent.object_store import StoredObject
from agent.sinks.delta.table.commits import ObjectCommits
from agent.sinks.delta.table.place import TablePlace
from tests.patience import HANG_S

_NEXT = StoredObject(b'{"txn":{"appId":"a","version":1}}\n', "tag of 4")


class Store:
    """Has commit 3, if ``is_same``, and perhaps ``next``. Neither question is answered before both are asked."""

    def __init__(self, *, is_same: bool, next: StoredObject | OSError | None) -> None:
        self._is_same = is_same
        self._next = next
        self._both = threading.Barrier(2)
        self.asked: list[str] = []

    def is_unchanged(self, name: str, tag: str) -> bool:
        self.asked.append(f"{name[-6:]} {tag}")
        self._both.wait(HANG_S)
        return self._is_same

    def find(self, name: str) -> StoredObject:
        self._both.wait(HANG_S)
        if self._next is None:
            raise FileNotFoundError(name)
        if isinstance(self._next, OSError):
            raise self._next
        return self._next


def commits_on(store: Store) -> ObjectCommits:
    class Place:
        pass

    place = Place()
    place.store = store  # type: ignore[attr-defined]
    commits = ObjectCommits(cast("TablePlace", place))
    commits.mark = "tag of 3"
    return commits


@pytest.mark.parametrize("next", [None, _NEXT])
def test_both_are_asked_at_once(next: StoredObject | None) -> None:
    commits = commits_on(store := Store(is_same=True, next=next))
    is_same, actions = commits.follow(3)
    assert is_same
    assert store.asked == ["3.json tag of 3"]
    assert (actions is None, commits.mark) == ((True, "tag of 3") if next is None else (False, "tag of 4"))


@pytest.mark.parametrize("next", [None, _NEXT, OSError("503 SlowDown")])
def test_another_table_at_the_place_is_not_followed(next: StoredObject | OSError | None) -> None:
    commits = commits_on(Store(is_same=False, next=next))
    assert commits.follow(3) == (False, None)
    assert commits.mark == "tag of 3"


def test_a_request_that_fails_is_no_end_of_the_log() -> None:
    with pytest.raises(OSError, match="SlowDown"):
        commits_on(Store(is_same=True, next=OSError("503 SlowDown"))).follow(3)


def test_what_was_never_read_is_read_from_the_beginning() -> None:
    commits = commits_on(Store(is_same=True, next=_NEXT))
    commits.mark = ""
    assert commits.follow(3) == (False, None)
