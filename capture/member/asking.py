"""Asking: lets the data plane answer the owner's questions, and gives the owner one ``Answered`` for each ``Ask``.

Implements what all questions share: one question of a type is in progress per subject; every failure is an answer,
never a crash of the membership; and the owner gets an answer by the deadline, even if a source or a sink hangs. A
question past its deadline counts as in progress until it ends, so it holds one thread, and not one more each time it is
repeated. Its result is dropped: the owner asks again, and every question is idempotent. A long piece of work does not
end with the part of the owner that asked for it: whoever asks the same meanwhile gets its answer (``Question.joins``).
"""

from collections.abc import Callable, Hashable
from typing import Any, Protocol

import anyio
import structlog
from anyio.abc import TaskGroup

from agent.running_error import running_error
from capture.errors import StillRunningError
from capture.security.secrets import mask
from reactor.errors import WeirError
from reactor.questions import A, Answered, Ask
from reactor.records.changefeed import ChangefeedInfo, RunningError

Post = Callable[[Answered[Any]], None]

_log = structlog.get_logger()


def is_same_work(one: ChangefeedInfo, other: ChangefeedInfo) -> bool:
    """Return whether tables are read and written alike; states and errors do not count, nor which tables are wanted."""

    def terms(info: ChangefeedInfo) -> tuple[object, ...]:
        filter = info.config.filter.with_(rules=())
        return info.source, info.sink, info.sink_mode, info.incarnation, info.config.with_(filter=filter)

    return terms(one) == terms(other)


class Answers(Protocol):
    """The data plane as the owner uses it."""

    async def answer(self, ask: Ask[A]) -> A:
        """:raises Exception: any failure; the owner decides what follows."""
        ...


class Asking:
    """For one membership, whose ``tasks`` answer the questions."""

    def __init__(self, data_plane: Answers, tasks: TaskGroup) -> None:
        self._data_plane = data_plane
        self._tasks = tasks
        self._under_way: dict[Hashable, _Pending] = {}

    def ask(self, ask: Ask[Any], post: Post) -> None:
        """Answer to ``post``, later."""
        subject = ask.changefeed, ask.info.created_at, type(ask.question), ask.question.subject
        pending = _Pending(ask, post)
        if (under_way := self._under_way.get(subject)) is not None:
            if not under_way.join(pending):
                pending.fail(StillRunningError("it has not answered the last time yet; it is asked again"))
            return
        self._under_way[subject] = pending
        self._tasks.start_soon(self._answer, pending, subject, name=f"question {type(ask.question).__name__}")
        self._tasks.start_soon(pending.watch, name="deadline of a question")

    async def _answer(self, pending: "_Pending", subject: Hashable) -> None:
        try:
            pending.succeed(await self._data_plane.answer(pending.ask))
        except Exception as error:  # the owner asks again, whatever it was
            pending.fail(error)
        finally:
            del self._under_way[subject]
            pending.ended.set()


class _Pending:
    """One question until the owner has its answer."""

    def __init__(self, ask: Ask[Any], post: Post) -> None:
        self.ask = ask
        self.ended = anyio.Event()
        self._post: Post | None = post
        self._joined: list[_Pending] = []

    def join(self, other: "_Pending") -> bool:
        """Give ``other`` the same answer; return False if it asks something else, or the deadline is over."""
        is_same = other.ask.question == self.ask.question and is_same_work(other.ask.info, self.ask.info)
        if not self.ask.question.joins or not is_same or self._post is None:
            return False
        self._joined.append(other)
        return True

    async def watch(self) -> None:
        deadline_s = self.ask.question.deadline_s
        with anyio.move_on_after(deadline_s):
            await self.ended.wait()
        if not self.ended.is_set():
            self.fail(StillRunningError(f"it has not answered for {deadline_s:.0f} s; it is asked again"))

    def succeed(self, answer: object) -> None:
        self._say(answer=answer)

    def fail(self, error: Exception) -> None:
        self._say(error=_running_error(error, self.ask))

    def _say(self, *, answer: object = None, error: RunningError | None = None) -> None:
        post, self._post = self._post, None
        if post is not None:
            post(Answered(self.ask.changefeed, self.ask.question, answer, error))
        for other in self._joined:
            other._say(answer=answer, error=error)
        self._joined.clear()


def _running_error(error: Exception, ask: Ask[Any]) -> RunningError:
    """An exception that we did not raise ourselves is a bug: log it with its traceback."""
    question = type(ask.question).__name__
    if isinstance(error, WeirError):
        _log.warning("a question is not answered", changefeed=ask.changefeed, question=question, error=str(error))
        return running_error(error)
    _log.error("a question is not answered", changefeed=ask.changefeed, question=question, exc_info=error)
    return RunningError(code="Internal", message=f"{type(error).__name__}: {mask(str(error))}")
