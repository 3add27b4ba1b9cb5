"""Topics: hand each incoming message to its topic's handler, and keep those that wait for one.

Each topic is a queue with at most one handler, which gets one message at a time, in the order they came. A message
counts as handled when the handler returns, and only then its sender may forget it (``Source.handled``). So a handler
that waits, for room in a mailbox say, holds up its own topic and the senders of that topic, and nobody else.

Without a handler messages wait; how many is bounded by whoever lets them in. A handler that fails has had its message:
the failure is logged and the next message comes. A handler whose actor is dead is taken off, and its message waits for
the next one.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from capture.errors import ActorDeadError, TopicTakenError
from reactor.messages import Message

Handler = Callable[[Message], Awaitable[None]]

#: messages handled between two looks at the event loop
_BATCH = 256

_log = structlog.get_logger()


class Source(Protocol):
    """Where messages come from, and who wants to know that one is done with."""

    def handled(self, topic: str) -> None:
        """The oldest message of this source that waited on ``topic`` is done with."""
        ...


class _Topic:
    __slots__ = ("handler", "is_running", "name", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.handler: Handler | None = None
        self.is_running = False
        #: no message: it came from a newer version, and only keeps its place
        self.waiting: deque[tuple[Message | None, Source]] = deque()


class Topics:
    """All topics of one capture. Handlers run in ``tasks``, one task per topic that has something to do."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._topics: dict[str, _Topic] = {}

    def register(self, name: str, handler: Handler) -> None:
        """Give ``handler`` what waits and what comes.

        :raises TopicTakenError: there is a handler already.
        """
        topic = self._topic(name)
        if topic.handler is not None:
            raise TopicTakenError(f"topic {name} already has a handler; unregister it first")
        topic.handler = handler
        self._start(topic)

    def unregister(self, name: str, *, discard: bool) -> None:
        """No further messages to the handler; the one it has, it finishes."""
        topic = self._topic(name)
        topic.handler = None
        if discard:
            while topic.waiting:
                topic.waiting.popleft()[1].handled(name)
        self._forget_if_idle(topic)

    def put(self, name: str, message: Message | None, source: Source) -> None:
        topic = self._topics.get(name) or self._topic(name)
        topic.waiting.append((message, source))
        if not topic.is_running:
            self._start(topic)

    def drop(self, source: Source) -> int:
        """Forget what a source that is gone has waiting; returns how many messages that were."""
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
