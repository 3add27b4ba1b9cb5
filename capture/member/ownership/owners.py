"""Owners: runs the owners of the changefeeds that are assigned to this capture, for one session, under supervision.

They share one worker, so that what all of them write in a tick is few transactions, each part of which is fenced by its
changefeed's own assignment; all of it is fenced by this capture's record, which goes with its lease. An owner that
crashes begins again alone (``owner.feed.crashes``). If the worker's reactor itself crashes, the next one hands all
assignments back, since it does not know which orders were given under them.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from capture.actors.actor import Cell, Context
from capture.actors.supervised import Supervised
from capture.errors import ActorDeadError
from capture.member.ownership.job_desk import JobDesk, Submitted
from capture.member.ownership.performer import OwnerSite, Performer, owner_settings
from owner.jobs import FeedJob, List
from owner.metadata.observations import CaptureObservation
from owner.owner import Owner
from reactor.errors import SessionDoneError, StoreError
from reactor.ids import ChangefeedId
from reactor.messages import Message
from reactor.restarts import RestartPolicy
from reactor.state import ClusterState
from reactor.worker.loop import ReactorWorker

_MAILBOX_SIZE = 1024

OwnersInput = Message | Submitted


class Owners:
    """One capture's owners."""

    def __init__(self, site: OwnerSite, *, policy: RestartPolicy | None = None) -> None:
        self._site = site
        self._actor: OwnersActor | None = None
        self._failure: Exception | None = None
        #: ownerships that ended with a crash, by the revision of their assignment
        self._spent: dict[ChangefeedId, int] = {}
        cell: Cell[OwnersInput] = Cell(self._build, "owners", mailbox_size=_MAILBOX_SIZE)
        self._ref = cell.ref
        self._desk = JobDesk(self._ref.tell_nowait)
        self._supervised = Supervised(cell, policy or RestartPolicy())

    @property
    def worker(self) -> ReactorWorker | None:
        return self._actor.worker if self._actor is not None else None

    async def run(self) -> None:
        """:raises SessionDoneError: the session ended."""
        try:
            await self._supervised.run()
        finally:
            self._supervised.close()
            self._desk.dismiss()
        if self._failure is not None:
            raise self._failure

    async def on_message(self, message: Message) -> None:
        """Handle answers of agents. Waits while the mailbox is full, which makes the sender wait."""
        with suppress(ActorDeadError):
            await self._ref.tell(message)

    async def submit(self, job: FeedJob | List) -> Any:
        """Pass ``job`` to the changefeed's owner here; see ``JobDesk.submit``."""
        return await self._desk.submit(job)

    def _build(self) -> "OwnersActor":
        if self._actor is not None:
            self._spent |= {id: part.site.owner_revision for id, part in self._actor.owner.changefeeds.items()}
        self._actor = OwnersActor(self._site, self._desk, self._spent, fail=self._fail)
        return self._actor

    def _fail(self, error: Exception) -> None:
        self._failure = error


class OwnersActor:
    """One instance of the actor. ``fail`` gets errors that end the membership, since a restart would not help."""

    def __init__(
        self, site: OwnerSite, desk: JobDesk, spent: dict[ChangefeedId, int], *, fail: Callable[[Exception], None]
    ) -> None:
        observation = CaptureObservation(site.capture, spent)
        self.owner = Owner(site.capture, observation, settings=owner_settings(), seed=site.capture)
        self._desk = desk
        self._fail = fail
        self._context: Context | None = None
        performer = Performer(site, answer=desk.answer, post=lambda answer: self.worker.post(answer))
        self.worker = ReactorWorker(
            site.client,
            self.owner,
            state=ClusterState(site.cluster, removal_grace_s=site.settings.capture_removal_grace_s),
            session=site.session,
            perform=performer.perform,
            fences=[site.registered],
            is_owner=True,
            interval_s=site.settings.tick_interval_s,
            idle_interval_s=site.settings.idle_interval_s,
        )

    async def on_start(self, context: Context) -> None:
        self._context = context
        context.start(self._serve, "owners' worker")

    async def handle(self, message: OwnersInput) -> None:
        match message:
            case Message():
                await self.worker.take(message)
            case Submitted(job, waiting):
                if not waiting.done.is_set():
                    await self.worker.take(job)

    async def _serve(self) -> None:
        assert self._context is not None
        try:
            await self.worker.run()
        except (SessionDoneError, StoreError) as error:
            self._fail(error)
        finally:
            self._desk.dismiss()
        self._context.stop()
