"""Questions of the owner: once at a time, each answered once, by the deadline at the latest."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import anyio
import pytest
from anyio import wait_all_tasks_blocked

from capture.errors import GoneError
from capture.member.asking import Asking
from reactor.ids import ChangefeedId
from reactor.questions import A, Answered, Ask, Question
from reactor.records.changefeed import ChangefeedConfig, ChangefeedInfo, FilterConfig, SealedUri

pytestmark = pytest.mark.looptime

FEED, OTHER = ChangefeedId("feed"), ChangefeedId("other")


@dataclass(frozen=True, slots=True)
class Double(Question[int]):
    deadline_s: ClassVar[float] = 60.0
    number: int

    @property
    def subject(self) -> Hashable:
        return self.number % 10


@dataclass(frozen=True, slots=True)
class Joined(Double):
    """The same answer to all who ask meanwhile. ``detail``: does not matter."""

    joins: ClassVar[bool] = True
    detail: str = field(default="", compare=False)


class Slow:
    """Answers when it is let go."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.go = anyio.Event()
        self.error: Exception | None = None

    async def answer(self, ask: Ask[A]) -> A:
        assert isinstance(ask.question, Double)
        self.asked.append(ask.question.number)
        await self.go.wait()
        if self.error is not None:
            raise self.error
        answer: Any = 2 * ask.question.number
        return answer  # type: ignore[no-any-return]


def ask(number: int, changefeed: ChangefeedId = FEED, created_at: float = 1.0) -> Ask[int]:
    uri = SealedUri(masked="x://", sealed="x")
    return Ask(changefeed, ChangefeedInfo(id=changefeed, source=uri, sink=uri, created_at=created_at), Double(number))


async def test_of_one_subject_one_question_is_under_way() -> None:
    data_plane, posted = Slow(), list[Answered[int]]()
    async with anyio.create_task_group() as tasks:
        asking = Asking(data_plane, tasks)
        for asked in (ask(1), ask(11), ask(2), ask(1, OTHER), ask(1, created_at=2.0)):
            asking.ask(asked, posted.append)
        await wait_all_tasks_blocked()
        assert data_plane.asked == [1, 2, 1, 1], "another subject, another changefeed, and one of the same name"
        (refused,) = posted
        assert refused.error is not None
        assert (refused.question, refused.error.code) == (Double(11), "StillRunning")
        data_plane.go.set()
    assert [(answer.changefeed, answer.answer) for answer in posted[1:]] == [
        (FEED, 2),
        (FEED, 4),
        (OTHER, 2),
        (FEED, 2),
    ]


async def test_what_hangs_is_an_error_at_the_deadline_and_is_not_asked_twice() -> None:
    data_plane, posted = Slow(), list[Answered[int]]()
    async with anyio.create_task_group() as tasks:
        asking = Asking(data_plane, tasks)
        asking.ask(ask(1), posted.append)
        await anyio.sleep(61)
        asking.ask(ask(1), posted.append)
        assert [answer.error.code for answer in posted if answer.error] == ["StillRunning"] * 2
        assert data_plane.asked == [1]
        data_plane.go.set()
        await wait_all_tasks_blocked()
        assert len(posted) == 2, "each question has one answer"
        asking.ask(ask(1), posted.append)
    assert (data_plane.asked, posted[2].answer) == ([1, 1], 2)


@pytest.mark.parametrize("is_wrong", [False, True])
async def test_work_under_way_answers_all_who_ask_the_same(is_wrong: bool) -> None:
    """A part of the owner that begins again asks again: what it waits for is not begun again, nor asked for later."""
    data_plane, posted = Slow(), list[Answered[int]]()
    data_plane.error = GoneError("it is gone") if is_wrong else None
    first = replace(ask(1), question=Joined(1))
    other_rules = ChangefeedConfig(filter=FilterConfig(rules=("a.b",)))
    again = replace(
        first, question=Joined(1, "more"), info=first.info.with_(epoch=7, state="warning", config=other_rules)
    )
    other_work = replace(first, info=first.info.with_(config=ChangefeedConfig(force_replicate=True)))
    async with anyio.create_task_group() as tasks:
        asking = Asking(data_plane, tasks)
        for asked in (first, again, replace(first, question=Joined(11)), other_work):
            asking.ask(asked, posted.append)
        await wait_all_tasks_blocked()
        assert data_plane.asked == [1]
        assert [answer.error.code for answer in posted if answer.error] == ["StillRunning"] * 2
        data_plane.go.set()
        await wait_all_tasks_blocked()
        asking.ask(first, posted.append)
    told = posted[2:]
    assert [answer.answer for answer in told] == [None if is_wrong else 2] * 3
    assert [answer.error.code if answer.error else "" for answer in told] == ["Gone" if is_wrong else ""] * 3
    assert data_plane.asked == [1, 1], "what has ended is done again"


async def test_what_has_joined_hanging_work_is_an_error_at_the_deadline() -> None:
    data_plane, posted = Slow(), list[Answered[int]]()
    async with anyio.create_task_group() as tasks:
        asking = Asking(data_plane, tasks)
        for _ in range(2):
            asking.ask(replace(ask(1), question=Joined(1)), posted.append)
        await anyio.sleep(61)
        asking.ask(replace(ask(1), question=Joined(1)), posted.append)
        assert [answer.error.code for answer in posted if answer.error] == ["StillRunning"] * 3
        data_plane.go.set()
    assert (data_plane.asked, len(posted)) == ([1], 3)


async def test_an_error_is_an_answer() -> None:
    posted = list[Answered[int]]()
    for error in (GoneError("it is gone"), ZeroDivisionError("a bug at postgresql://u:secret@h/d")):
        data_plane = Slow()
        data_plane.error = error
        data_plane.go.set()
        async with anyio.create_task_group() as tasks:
            Asking(data_plane, tasks).ask(ask(1), posted.append)
    errors = [answer.error for answer in posted if answer.error]
    assert [error.code for error in errors] == ["Gone", "Internal"]
    assert [error.retryable for error in errors] == [True, True]
    assert "secret" not in errors[1].message
