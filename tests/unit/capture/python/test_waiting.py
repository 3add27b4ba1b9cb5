"""Waiting for a changefeed: what is reached, what ends the waiting."""

from typing import Any

import pytest

from capture.api.client import RemoteError
from capture.errors import ConfigError
from capture.python import waiting
from capture.python.waiting import Goal
from reactor.errors import OwnerNotFoundError, WeirError
from reactor.records.changefeed import FeedState, Unit
from reactor.views import ChangefeedView


def view(state: FeedState = FeedState.NORMAL, *, ts: int = 5, unit: Unit | None = Unit.SYNC) -> ChangefeedView:
    return ChangefeedView(id="shop", state=state, checkpoint_ts=ts, unit=unit, blocked_by="it starts")


@pytest.mark.parametrize(
    ("state", "ts", "seen", "is_reached"),
    [
        (None, None, view(), True),
        (None, None, view(unit=Unit.DUMP), False),
        (None, None, view(ts=0), False),
        (None, 5, view(), True),
        (None, 6, view(), False),
        ("normal", None, view(unit=None), True),
        ("stopped", None, view(), False),
        ("stopped", None, view(FeedState.STOPPED), True),
        ("stopped", 6, view(FeedState.STOPPED), False),
        (None, 5, view(FeedState.FINISHED), True),
        ("finished", None, view(FeedState.FINISHED), True),
    ],
)
def test_what_is_reached(state: str | None, ts: int | None, seen: ChangefeedView, is_reached: bool) -> None:
    assert Goal.of("shop", state, ts, None).is_reached(seen) is is_reached


@pytest.mark.parametrize("ended", [FeedState.FAILED, FeedState.STOPPED, FeedState.FINISHED, FeedState.REMOVED])
def test_a_changefeed_that_has_ended_is_not_waited_for(ended: FeedState) -> None:
    with pytest.raises(WeirError, match=f"shop is {ended}"):
        Goal.of("shop", "normal", None, None).is_reached(view(ended))


def test_the_timeout_names_what_blocks() -> None:
    with pytest.raises(TimeoutError, match=r"normal at 5, because it starts after 0 s"):
        Goal.of("shop", None, 6, 0.0).refuse_timeout(view())
    Goal.of("shop", None, 6, None).refuse_timeout(view())


@pytest.mark.parametrize(
    ("ts", "timeout", "text"),
    [
        ("5", None, "ts is a whole number, not '5'"),
        (5.0, None, "ts is a whole number, not 5.0"),
        (None, "60", "timeout is a number of seconds, not '60'"),
        (None, float("nan"), "timeout is a number of seconds, not nan"),
    ],
)
def test_what_is_no_number_is_refused_in_one_line(ts: Any, timeout: Any, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        Goal.of("shop", None, ts, timeout)
    assert str(error.value) == text


def test_an_owner_that_does_not_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "POLL_S", 0.0)
    away = [OwnerNotFoundError("none is elected"), RemoteError("it does not answer", code="Owner", status=503)]

    def ask() -> ChangefeedView:
        if away:
            raise away.pop()
        return view()

    assert waiting.wait(Goal.of("shop", None, 5, 60.0), ask) == view()
    assert away == []


@pytest.mark.parametrize(
    ("error", "timeout"),
    [
        (OwnerNotFoundError("none is elected"), 0.0),
        (RemoteError("no such changefeed", code="ChangefeedNotFound", status=404), 60.0),
    ],
)
def test_what_does_not_pass_in_time_is_raised(error: WeirError, timeout: float) -> None:
    def ask() -> ChangefeedView:
        raise error

    with pytest.raises(type(error)):
        waiting.wait(Goal.of("shop", None, 5, timeout), ask)


def test_nobody_is_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    goal = Goal.of("shop", None, 5, None)
    goal.wait_out(OwnerNotFoundError("none is elected"))
    monkeypatch.setattr(waiting, "_OUTAGE_S", 0.0)
    with pytest.raises(OwnerNotFoundError):
        goal.wait_out(OwnerNotFoundError("none is elected"))


def test_an_unknown_state_is_refused() -> None:
    with pytest.raises(ConfigError, match="state is 'odd'; use one of normal"):
        Goal.of("shop", "odd", None, None)
