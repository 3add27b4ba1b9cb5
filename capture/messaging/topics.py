"""Topics: delivers each incoming message to its topic's handler, and queues messages without one.

Each topic is a queue with at most one handler, which gets one message at a time, in order. A message counts as handled
when the handler returns, and only then may its sender drop it (``Source.handled``). So a handler that waits, for
example for room in a mailbox, delays only its own topic and the senders of that topic.

Without a handler messages wait; whoever accepts them limits their number. Topics are declared beforehand, so that no
message waits for a handler that never comes. If a handler fails, the failure is logged and its message counts as
handled. A handler whose actor is dead is removed, and its message waits for the next one.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

import structlog
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from capture.errors import ActorDeadError, TopicTakenError
from reactor.messages import Message

Handler = Callable[[Message], Awaitable[None]]

#: messages handled before yielding to the event loop
_BATCH = 256

_log = structlog.get_logger()


class Source(Protocol):
    """The place that messages come from; informed when one is handled."""

    def handled(self, topic: str) -> None:
        """Note that the oldest message of this source waiting on ``topic`` is handled."""
        ...


class _Topic:
    __slots__ = ("handler", "is_running", "name", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.handler: Handler | None = None
        self.is_running = False
        #: None: a message of a newer version, which only keeps its position
        self.waiting: deque[tuple[Message | None, Source]] = deque()


class Topics:
    """All topics of one capture. Handlers run in ``tasks``, one task per active topic.

    ``names``: the declared topics; None: any, for tests.
    """

    def __init__(self, tasks: TaskGroup, names: Collection[str] | None = None) -> None:
        self._tasks = tasks
        self._names = names
        self._topics: dict[str, _Topic] = {}

    def register(self, name: str, handler: Handler) -> None:
        """Deliver waiting and new messages to ``handler``.

        :raises TopicTakenError: there is a handler already.
        """
        topic = self._topic(name)
        if topic.handler is not None:
            raise TopicTakenError(f"topic {name} already has a handler; unregister it first")
        topic.handler = handler
        self._start(topic)

    def unregister(self, name: str, *, discard: bool) -> None:
        """Deliver no further messages to the handler; it finishes the current one."""
        topic = self._topic(name)
        topic.handler = None
        if discard:
            while topic.waiting:
                topic.waiting.popleft()[1].handled(name)
        self._forget_if_idle(topic)

    def is_known(self, name: str) -> bool:
        return self._names is None or name in self._names

    def put(self, name: str, message: Message | None, source: Source) -> None:
        topic = self._topics.get(name) or self._topic(name)
        topic.waiting.append((message, source))
        if not topic.is_running:
            self._start(topic)

    def drop(self, source: Source) -> int:
        """Drop the waiting messages of a source that is gone; return their number."""
        dropped = 0
        for topic in list(self._topics.values()):
            kept = [entry for entry in topic.waiting if entry[1] is not source]
            dropped += len(topic.waiting) - len(kept)
            topic.waiting = deque(kept)
            self._forget_if_idle(topic)
        return dropped

    def waiting(self) -> dict[str, int]:
        return {topic.name: len(topic.waiting) for topic in self._topics.values()}

    def _topic(self, name: str) -> _Topic:
        return self._topics.setdefault(name, _Topic(name))

    def _forget_if_idle(self, topic: _Topic) -> None:
        if not (topic.handler or topic.waiting or topic.is_running):
            self._topics.pop(topic.name, None)

    def _start(self, topic: _Topic) -> None:
        if topic.handler is not None and topic.waiting and not topic.is_running:
            topic.is_running = True
            self._tasks.start_soon(self._run, topic, name=f"topic {topic.name}")

    async def _run(self, topic: _Topic) -> None:
        turn = 0
        while topic.waiting and topic.handler is not None:
            message, source = topic.waiting.popleft()
            if message is not None and not await self._give(topic, topic.handler, message):
                topic.waiting.appendleft((message, source))
                continue
            source.handled(topic.name)
            turn += 1
            if turn % _BATCH == 0:
                await checkpoint()
        topic.is_running = False
        self._forget_if_idle(topic)

    async def _give(self, topic: _Topic, handler: Handler, message: Message) -> bool:
        try:
            await handler(message)
        except ActorDeadError as error:
            _log.info("topic lost its handler", topic=topic.name, cause=str(error))
            if topic.handler is handler:
                topic.handler = None
            return False
        except Exception as error:
            _log.error("handler failed, message dropped", topic=topic.name, cause=str(error), exc_info=error)
        return True
