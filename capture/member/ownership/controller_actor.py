"""Controller actor: campaigns, and while it is elected passes its mailbox on to the controller's reactor.

    campaign ──elected──► controller's worker ──not elected any more──► campaign …
       └── leaving: never campaign again; resign if elected

A crash of the reactor ends the election: it resigns, and the restarted actor campaigns again; the new election's
revision fences all that this one would write. The data plane's answers bypass the mailbox: they must not be lost, and
are limited by the number of questions.
"""

from collections.abc import Callable
from typing import Any

import anyio
import structlog

from capture.actors.actor import Context
from capture.member.ownership.job_desk import JobDesk, Submitted
from capture.member.ownership.performer import OwnerSite, Performer, owner_settings
from owner.controller.controller import Controller
from owner.controller.hearing import Heard
from reactor.errors import NotOwnerError, OwnerNotFoundError, SessionDoneError, StoreError
from reactor.membership.election import Elector
from reactor.messages import Message
from reactor.questions import Answered
from reactor.state import ClusterState
from reactor.worker.loop import ReactorWorker

#: at most one candidacy per second
_CAMPAIGN_INTERVAL_S = 1.0

_log = structlog.get_logger()


class Leave:
    """Never campaign again, and resign if elected; the actor ends."""


ControllerInput = Message | Submitted | Leave


class ControllerActor:
    """One instance of the actor. ``fail`` gets errors that end the membership, since a restart would not help.
    ``heard``: which captures this one hears."""

    def __init__(
        self,
        site: OwnerSite,
        election: Elector,
        desk: JobDesk,
        *,
        heard: Callable[[], Heard | None],
        fail: Callable[[Exception], None],
    ) -> None:
        self.worker: ReactorWorker | None = None
        self._site = site
        self._election = election
        self._desk = desk
        self._heard = heard
        self._fail = fail
        self._is_leaving = False
        self._scope: anyio.CancelScope | None = None
        self._context: Context | None = None
        self._performer = Performer(site, answer=desk.answer, post=self._post, resign=self.resign)

    async def on_start(self, context: Context) -> None:
        self._context = context
        context.start(self._campaign, "campaign")

    async def handle(self, message: ControllerInput) -> None:
        match message:
            case Message():
                if self.worker is not None:
                    await self.worker.take(message)
            case Submitted(job, waiting):
                if self.worker is None:
                    waiting.done.set()
                elif not waiting.done.is_set():  # the election has ended, and its callers were answered
                    await self.worker.take(job)
            case Leave():
                self._is_leaving = True
                self.resign()

    def resign(self) -> None:
        """Resign; campaign again in a second, unless leaving."""
        if self._scope is not None:
            self._scope.cancel()

    async def _campaign(self) -> None:
        assert self._context is not None
        try:
            while not self._is_leaving:
                started = anyio.current_time()
                with anyio.CancelScope() as self._scope:
                    await self._campaign_and_serve()
                await anyio.sleep(max(0.0, started + _CAMPAIGN_INTERVAL_S - anyio.current_time()))
            await self._election.withdraw()
        except (SessionDoneError, StoreError) as error:
            self._fail(error)
        self._context.stop()

    async def _campaign_and_serve(self) -> None:
        try:
            await self._election.campaign(self._site.capture)
            await self._serve()
        except (NotOwnerError, OwnerNotFoundError) as error:
            _log.info("election lost", reason=str(error))
        except SessionDoneError:
            raise
        except StoreError as error:
            if not error.retryable:
                raise
            _log.warning("election given up", reason=str(error))
        finally:
            self.worker = None
            self._desk.dismiss()
            await self._election.resign()

    async def _serve(self) -> None:
        site, settings, election = self._site, self._site.settings, self._election
        _log.info("elected", capture=site.capture, revision=election.revision)
        self.worker = ReactorWorker(
            site.client,
            Controller(site.capture, election.revision, settings=owner_settings(), seed=site.capture),
            state=ClusterState(site.cluster, removal_grace_s=settings.capture_removal_grace_s),
            session=site.session,
            perform=self._performer.perform,
            owner_key=election.key,
            fences=[election.proof()],
            interval_s=settings.tick_interval_s,
            idle_interval_s=settings.idle_interval_s,
        )
        if (heard := self._heard()) is not None:
            self.worker.post(heard)
        await self.worker.run()

    def _post(self, answer: Answered[Any]) -> None:
        if self.worker is not None:
            self.worker.post(answer)
