"""Performer: carries out the effects that decisions of controller and owners request, except those of the worker."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import structlog

from capture.errors import MessagingError
from capture.member.processor_host import AGENT_TOPIC, Peers
from owner.settings import OwnerSettings
from reactor.effects import Answer, Effect, Log, Resign, Send
from reactor.ids import CaptureId
from reactor.membership.session import Session
from reactor.messages import Message
from reactor.questions import Answered, Ask
from reactor.settings import ReactorSettings
from reactor.store.port import Compare, MetaStore

#: starts answering a question; the answer is passed to the callback (``capture.member.asking``)
AskLater = Callable[[Ask[Any], Callable[[Answered[Any]], None]], object]

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class OwnerSite:
    """The state that survives a crash: the capture, its cluster, session and peers. ``registered`` holds while the
    capture is a member."""

    capture: CaptureId
    cluster: str
    client: MetaStore
    session: Session
    registered: Compare
    peers: Peers
    settings: ReactorSettings
    ask: AskLater


class Performer:
    """``answer`` gets the answers of jobs, ``post`` those of questions; ``resign`` gives up the election."""

    def __init__(
        self,
        site: OwnerSite,
        *,
        answer: Callable[[Answer], None],
        post: Callable[[Answered[Any]], None],
        resign: Callable[[], None] = lambda: None,
    ) -> None:
        self._site = site
        self._answer = answer
        self._post = post
        self._resign = resign

    def perform(self, effect: Effect) -> None:
        match effect:
            case Send(message):
                self._send(message)
            case Answer():
                self._answer(effect)
            case Ask():
                self._site.ask(effect, self._post)
            case Resign():
                self._resign()
            case Log(level, event, fields):
                getattr(_log, level)(event, **dict(fields))

    def _send(self, message: Message) -> None:
        try:
            self._site.peers.send_nowait(AGENT_TOPIC, message)
        except MessagingError as error:
            _log.debug("an order was not sent; it is sent again", receiver=message.receiver, error=str(error))
        except Exception as error:  # a message that cannot be encoded must not end the ownership
            _log.exception("an order cannot be sent", changefeed=message.changefeed, exc_info=error)


def owner_settings() -> OwnerSettings:
    """Ticks get the loop's clock, people see Unix time."""
    return OwnerSettings(wall_offset_s=time.time() - anyio.current_time())
