"""Actors: a bounded mailbox, a reference to it, and the loop that passes one message at a time to plain code.

An actor is anything with ``async handle(message) -> reply``; ``on_start(context)`` and ``on_stop()`` are called if it
has them. The protocol is structural, so owner and agent satisfy it without importing this module.

    spawn ──► on_start ──► handle, handle, … ──► on_stop ──► every unread ask is answered with ActorDeadError
                 ▲              │ crash
                 └── restart ◄──┘   (only under capture.actors.supervised; mailbox and reference stay)

Guarantees:
- *Order*: messages of one sender are handled in the order they were sent, each at most once.
- *Backpressure*: ``tell`` waits for room, ``tell_nowait`` raises. Two actors that ``tell`` each other from their
  handlers can deadlock: one of the two must use ``tell_nowait``.
- *Errors*: a ``WeirError`` raised while answering an ask is the answer, and the actor continues. Anything else, and any
  error from a message sent by ``tell``, is a crash: it ends the actor and propagates to whoever runs it.
- *Lifetime*: timers and actors spawned by an actor end with it. A crashed child crashes its parent, unless it was
  started with ``spawn_supervised``.

Messages are passed by reference, so they should be frozen values.
"""

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, Protocol, TypeVar, cast

import anyio
import structlog
from anyio.abc import TaskGroup

from capture.actors.children import Children
from capture.actors.supervised import OnCrash, Supervised
from capture.errors import ActorDeadError, AskTimeoutError, MailboxFullError, root_cause
from reactor.errors import WeirError
from reactor.restarts import RestartPolicy

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)

MAILBOX_SIZE = 1024
#: messages handled before yielding to the event loop: enough to make task switches cheap, few enough to be fair
_BATCH = 256
_ON_STOP_TIMEOUT_S = 10.0
_POLICY = RestartPolicy()

_log = structlog.get_logger()


class Actor(Protocol[M_contra]):
    """Handles messages, one at a time."""

    async def handle(self, message: M_contra, /) -> object: ...


class Starts(Protocol):
    """An actor that receives its context (itself, timers, children) before the first message."""

    async def on_start(self, context: "Context", /) -> None: ...


class Stops(Protocol):
    """An actor that cleans up: after its last message and its children's end, after a crash, or after an immediate
    stop."""

    async def on_stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ActorStatistics:
    """``waiting``: unread messages. ``blocked``: senders waiting for room. ``starts``: 1 + restarts."""

    name: str
    waiting: int
    blocked: int
    mailbox_size: int
    handled: int
    starts: int
    is_dead: bool


class _Ask:
    """The envelope of a message that expects an answer."""

    __slots__ = ("answered", "error", "message", "value")

    def __init__(self, message: object) -> None:
        self.message = message
        self.answered = anyio.Event()
        self.value: object = None
        self.error: WeirError | None = None

    def succeed(self, value: object) -> None:
        self.value = value
        self.answered.set()

    def fail(self, error: WeirError) -> None:
        self.error = error
        self.answered.set()


class ActorRef(Generic[M]):
    """A reference to an actor. Remains valid across restarts; after the actor's end every use raises
    ``ActorDeadError``."""

    __slots__ = ("_cell", "_put", "name")

    def __init__(self, cell: "Cell[M]") -> None:
        self._cell = cell
        self._put = cell.outlet.send_nowait
        self.name = cell.name

    def tell_nowait(self, message: M) -> None:
        """Put the message into the mailbox, or raise.

        :raises MailboxFullError: the mailbox is full.
        :raises ActorDeadError: the actor has ended.
        """
        try:
            self._put(message)
        except anyio.WouldBlock:
            raise MailboxFullError(f"mailbox of {self.name} is full; slow down, or wait with tell") from None
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._cell.raise_dead()

    async def tell(self, message: M) -> None:
        """Put the message into the mailbox, waiting while it is full. Does not yield if there is room.

        :raises ActorDeadError: the actor has ended.
        """
        try:
            self._put(message)
        except anyio.WouldBlock:
            await self._wait_put(message)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._cell.raise_dead()

    async def ask(self, message: M, timeout_s: float) -> Any:
        """Send the message, and return what ``handle`` returns. The timeout includes waiting for room.

        :raises AskTimeoutError: no answer in time.
        :raises ActorDeadError: the actor ended before it answered.
        :raises WeirError: the actor's answer is this error.
        """
        envelope = _Ask(message)
        with anyio.move_on_after(timeout_s):
            await self._wait_put(envelope)
            await envelope.answered.wait()
        if not envelope.answered.is_set():
            raise AskTimeoutError(f"{self.name} did not answer within {timeout_s:g} s; it may still do what was asked")
        if envelope.error is not None:
            raise envelope.error
        return envelope.value

    def stop(self, *, drain: bool = True) -> None:
        """Stop the actor: after its unread messages, or (``drain=False``) at its next await."""
        self._cell.stop(drain=drain)

    async def wait_dead(self) -> None:
        await self._cell.gone.wait()

    def statistics(self) -> ActorStatistics:
        return self._cell.statistics()

    def __repr__(self) -> str:
        return f"<ActorRef {self.name}>"

    async def _wait_put(self, item: "M | _Ask") -> None:
        try:
            await self._cell.outlet.send(item)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._cell.raise_dead()


class Timer:
    """A scheduled message; ``cancel`` is safe at any time."""

    def __init__(self) -> None:
        self._scope = anyio.CancelScope()

    def cancel(self) -> None:
        self._scope.cancel()

    async def run(self, after_s: float, ref: ActorRef[Any], message: object) -> None:
        with self._scope:
            await anyio.sleep(after_s)
            await ref.tell(message)


class Context:
    """An actor's timers, tasks and children. Everything started here ends with the actor."""

    def __init__(self, cell: "Cell[Any]", tasks: TaskGroup) -> None:
        self.me: ActorRef[Any] = cell.ref
        self.name = cell.name
        self._tasks = tasks
        self._children = Children(tasks)
        self._timers: list[Timer] = []

    def schedule(self, after_s: float, message: object) -> Timer:
        """Send ``message`` to the actor itself after ``after_s`` seconds, unless it ends or restarts before."""
        timer = Timer()
        self._timers.append(timer)
        self._tasks.start_soon(self._run_timer, timer, after_s, message, name=f"{self.name} timer")
        return timer

    def spawn(self, actor: Actor[M], name: str, *, mailbox_size: int = MAILBOX_SIZE) -> ActorRef[M]:
        """Start a child actor; its crash crashes this actor."""
        return self._children.adopt(Cell(lambda: actor, f"{self.name}/{name}", mailbox_size=mailbox_size)).ref

    def spawn_supervised(
        self,
        factory: Callable[[], Actor[M]],
        name: str,
        *,
        on_crash: OnCrash,
        mailbox_size: int = MAILBOX_SIZE,
        policy: RestartPolicy = _POLICY,
    ) -> ActorRef[M]:
        """Start a child actor that ``factory`` creates now and after every crash; see ``capture.actors.supervised``."""
        cell = Cell(factory, f"{self.name}/{name}", mailbox_size=mailbox_size)
        self._children.adopt(Supervised(cell, policy, on_crash))
        return cell.ref

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Run a task beside the mailbox; its crash crashes the actor."""
        self._tasks.start_soon(work, name=f"{self.name} {name}")

    def stop(self, *, drain: bool = True) -> None:
        self.me.stop(drain=drain)

    def wind_down(self) -> None:
        """Cancel timers, and let the children handle their unread messages."""
        for timer in self._timers:
            timer.cancel()
        self._children.stop()

    async def _run_timer(self, timer: Timer, after_s: float, message: object) -> None:
        try:
            await timer.run(after_s, self.me, message)
        except ActorDeadError:
            pass  # the actor is stopping, so the timer no longer matters
        finally:
            self._timers.remove(timer)


class Cell(Generic[M]):
    """One actor's mailbox and loop. The mailbox survives a crash; ``close`` ends both for good."""

    def __init__(self, factory: Callable[[], Actor[M]], name: str, *, mailbox_size: int = MAILBOX_SIZE) -> None:
        self._factory = factory
        self._name = name
        self.outlet, self._inlet = anyio.create_memory_object_stream[object](mailbox_size)
        self.ref: ActorRef[M] = ActorRef(self)
        self.gone = anyio.Event()
        #: the running instance; None between two
        self.actor: Actor[M] | None = None
        self._scope: anyio.CancelScope | None = None
        self._is_cancelled = False
        self._reason = "has stopped"
        self._handled = 0
        self._starts = 0

    @property
    def name(self) -> str:
        return self._name

    async def run(self) -> None:
        """Run one instance of the actor until it is stopped; raise what it crashed with."""
        self._starts += 1
        try:
            self.actor = self._factory()
            await self._live(self.actor)
        except Exception as error:
            cause = root_cause(error)
            self._reason = f"crashed: {type(cause).__name__}"
            if not hasattr(
                cause, "__notes__"
            ):  # logged once; parents that the crash passes through only add their names
                _log.error("actor crashed", actor=self.name, error=str(cause), exc_info=cause)
            cause.add_note(f"in actor {self.name}")
            raise cause from None
        finally:
            self.actor = None

    def stop(self, *, drain: bool = True) -> None:
        """Accept no new messages; handle unread ones first if ``drain``."""
        self.outlet.close()
        if not drain:
            self._is_cancelled = True
            if self._scope is not None:
                self._scope.cancel()

    def close(self) -> None:
        """End for good: answer every unread ask with an error, and reject waiting senders."""
        self.outlet.close()
        while True:
            try:
                item = self._inlet.receive_nowait()
            except (anyio.EndOfStream, anyio.ClosedResourceError):
                break
            if isinstance(item, _Ask):
                item.fail(self._dead())
        self._inlet.close()
        self.gone.set()

    def raise_dead(self) -> NoReturn:
        raise self._dead() from None

    def statistics(self) -> ActorStatistics:
        mailbox = self._inlet.statistics()
        return ActorStatistics(
            name=self.name,
            waiting=mailbox.current_buffer_used,
            blocked=mailbox.tasks_waiting_send,
            mailbox_size=int(mailbox.max_buffer_size),
            handled=self._handled,
            starts=self._starts,
            is_dead=self.gone.is_set(),
        )

    def _dead(self) -> ActorDeadError:
        return ActorDeadError(f"actor {self.name} {self._reason}; the message was not handled")

    async def _live(self, actor: Actor[M]) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                self._scope = tasks.cancel_scope
                if self._is_cancelled:
                    self._scope.cancel()
                context = Context(self, tasks)
                if hasattr(actor, "on_start"):  # isinstance of a protocol takes longer than all else here
                    await cast("Starts", actor).on_start(context)
                await self._serve(actor)
                context.wind_down()
        finally:
            self._scope = None
            if hasattr(actor, "on_stop"):
                with anyio.move_on_after(_ON_STOP_TIMEOUT_S, shield=True) as cleaning:
                    await cast("Stops", actor).on_stop()
                if cleaning.cancelled_caught:
                    _log.warning("actor did not clean up in time", actor=self.name, limit_s=_ON_STOP_TIMEOUT_S)

    async def _serve(self, actor: Actor[M]) -> None:
        """Pass every message to the actor until the mailbox is closed and empty.

        Waiting for a message costs a task switch, taking an available one does not: so take up to a batch, then yield
        to the event loop.
        """
        handle: Callable[[Any], Awaitable[object]] = actor.handle
        take_nowait, left = self._inlet.receive_nowait, 0
        while True:
            try:
                item = take_nowait() if left else await self._inlet.receive()
            except anyio.WouldBlock:
                left = 0
                continue
            except anyio.EndOfStream:
                return
            left = left - 1 if left else _BATCH
            self._handled += 1
            if type(item) is _Ask:
                await self._answer(handle, item)
            else:
                await handle(item)

    async def _answer(self, handle: Callable[[Any], Awaitable[object]], ask: _Ask) -> None:
        try:
            ask.succeed(await handle(ask.message))
        except WeirError as error:
            ask.fail(error)
        except BaseException as error:
            cause = f"crashed ({type(error).__name__})" if isinstance(error, Exception) else "ended"
            ask.fail(ActorDeadError(f"actor {self.name} {cause} while it answered; what was asked may be half done"))
            raise
