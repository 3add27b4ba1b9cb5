"""Candidacy: runs the controller's actor under supervision for one session, and passes it operators' jobs.

An actor that exhausts its restart budget ends the membership, so that others can be elected.
"""

from contextlib import suppress
from typing import Any

from capture.actors.actor import Cell
from capture.actors.supervised import Supervised
from capture.errors import ActorDeadError, MailboxFullError
from capture.member.ownership.controller_actor import ControllerActor, ControllerInput, Leave
from capture.member.ownership.job_desk import JobDesk
from capture.member.ownership.performer import OwnerSite
from owner.controller.hearing import Heard
from owner.jobs import Job
from reactor import keys
from reactor.errors import NotOwnerError
from reactor.membership.election import Elector
from reactor.messages import Message
from reactor.restarts import RestartPolicy
from reactor.worker.loop import ReactorWorker

#: in addition to the worker's inbox (``reactor.worker.loop.INBOX_SIZE``)
_MAILBOX_SIZE = 1024


class Candidacy:
    """One capture's candidacy, for one session."""

    def __init__(self, site: OwnerSite, *, policy: RestartPolicy | None = None) -> None:
        self._site = site
        self._election = Elector(site.client, site.session, prefix=keys.owner_prefix(site.cluster))
        self._actor: ControllerActor | None = None
        self._failure: Exception | None = None
        self._heard: Heard | None = None
        cell: Cell[ControllerInput] = Cell(self._build, "controller", mailbox_size=_MAILBOX_SIZE)
        self._ref = cell.ref
        self._desk = JobDesk(self._ref.tell_nowait)
        self._supervised = Supervised(cell, policy or RestartPolicy())

    @property
    def is_owner(self) -> bool:
        """Whether this capture is elected."""
        return self.worker is not None

    @property
    def worker(self) -> ReactorWorker | None:
        return self._actor.worker if self._actor is not None else None

    async def run(self) -> None:
        """Campaign and serve until asked to leave.

        :raises SessionDoneError: the session ended.
        """
        try:
            await self._supervised.run()
        finally:
            self._supervised.close()
            self._desk.dismiss()  # including those whose jobs were not read
        if self._failure is not None:
            raise self._failure

    def leave(self) -> None:
        """Never campaign again, and resign if elected. ``run`` returns."""
        try:
            self._ref.tell_nowait(Leave())
        except MailboxFullError:
            self._supervised.stop(drain=False)
        except ActorDeadError:
            pass  # it has left

    def resign(self) -> None:
        """Resign; campaign again in a second, unless leaving."""
        if self._actor is not None:
            self._actor.resign()

    def hear(self, heard: Heard) -> None:
        """Take in which captures this one hears."""
        self._heard = heard
        if self.worker is not None:
            self.worker.post(heard)

    async def on_message(self, message: Message) -> None:
        """Handle answers of agents to the owner of all changefeeds. If this capture is not elected, they are for an
        earlier one.

        Waits while the mailbox is full, which makes the sender wait.
        """
        if self.is_owner:
            with suppress(ActorDeadError):
                await self._ref.tell(message)

    async def submit(self, job: Job) -> Any:
        """Pass ``job`` to the controller and wait for its answer; see ``JobDesk.submit``.

        :raises NotOwnerError: this capture is not elected, or not any more.
        """
        if not self.is_owner:
            raise NotOwnerError("this capture is not the owner; ask the owner")
        return await self._desk.submit(job)

    def _build(self) -> ControllerActor:
        self._actor = ControllerActor(
            self._site, self._election, self._desk, heard=lambda: self._heard, fail=self._fail
        )
        return self._actor

    def _fail(self, error: Exception) -> None:
        self._failure = error
