"""Router: which capture answers a request: a changefeed's owner what concerns it, the elected controller all else."""

from typing import Any, Protocol

import anyio

from capture.errors import ChangefeedNotFoundError
from owner import jobs
from reactor.errors import NotOwnerError, OwnerNotFoundError
from reactor.ids import CaptureId, ChangefeedId
from reactor.records.capture import CaptureInfo
from reactor.state import ClusterState

#: how long a request waits for the owner of a changefeed that is just being launched or moved
_WAIT_S = 5.0


class PresentCandidacy(Protocol):
    """The candidacy of this capture, elected or not."""

    @property
    def is_owner(self) -> bool: ...

    async def submit(self, job: jobs.Job) -> Any: ...


class PresentOwners(Protocol):
    """The owners of changefeeds on this capture."""

    async def submit(self, job: jobs.FeedJob | jobs.List) -> Any: ...


class Member(Protocol):
    """The part of a membership that says who answers."""

    @property
    def info(self) -> CaptureInfo: ...

    @property
    def state(self) -> ClusterState: ...

    async def wait_change(self) -> bool:
        """Return when ``state`` may have changed; False: the membership has ended, and it never will."""
        ...

    @property
    def candidacy(self) -> PresentCandidacy: ...

    @property
    def owners(self) -> PresentOwners: ...


def answers(member: Member, changefeed: str = "") -> bool:
    """Return whether this capture answers requests about a changefeed, or about the cluster.

    The controller answers for a changefeed that does not exist, or has no owner at the moment.
    """
    owner = _owner(member.state, changefeed)
    return member.candidacy.is_owner if owner is None else owner == member.info.id


def answering(member: Member, changefeed: str = "") -> CaptureInfo:
    """Return the capture that answers.

    :raises OwnerNotFoundError: there is none at the moment.
    """
    state = member.state
    owner = _owner(state, changefeed) or (state.owner.capture if state.owner else None)
    info = state.captures.get(owner) if owner else None
    if info is None:
        what = f"changefeed {changefeed} has no owner" if changefeed else "no capture is owner"
        raise OwnerNotFoundError(f"{what} at the moment; try again in a few seconds")
    return info


async def wait_for_owner(member: Member, changefeed: str) -> None:
    """Return when the changefeed has an owner that is present, does not exist, or waiting takes too long.

    :raises OwnerNotFoundError: this capture is no longer a member.
    """
    with anyio.move_on_after(_WAIT_S):
        while _is_between_owners(member.state, changefeed):
            if not await member.wait_change():
                raise OwnerNotFoundError(
                    "this capture has lost its session and starts again; try again in a few seconds"
                )


async def ask(member: Member, job: jobs.Job) -> Any:
    """Pass a job to its owner on this capture; see ``JobDesk.submit``.

    :raises NotOwnerError: the owner is on another capture.
    :raises OwnerNotFoundError: the changefeed has no owner at the moment.
    """
    if not member.state.has_owners or isinstance(job, jobs.DrainCapture | jobs.ResignOwner | jobs.MoveOwner):
        return await member.candidacy.submit(job)
    if isinstance(job, jobs.List):
        return await member.owners.submit(job)
    await wait_for_owner(member, job.changefeed)
    state = member.state
    owner = _owner(state, job.changefeed)
    if owner == member.info.id:
        return await member.owners.submit(job)
    if owner is not None:
        raise NotOwnerError(f"capture {owner} is the owner of changefeed {job.changefeed}; ask there")
    if job.changefeed not in state.changefeeds:
        raise ChangefeedNotFoundError(f"no changefeed {job.changefeed}; `weir changefeed list` shows which there are")
    raise OwnerNotFoundError(f"changefeed {job.changefeed} has no owner at the moment; try again in a few seconds")


def _owner(state: ClusterState, changefeed: str) -> CaptureId | None:
    """Return the capture that owns a changefeed; None: ask the controller."""
    if not changefeed or not state.has_owners:
        return None
    owner = state.owner_of(ChangefeedId(changefeed))
    return owner.capture if owner else None


def _is_between_owners(state: ClusterState, changefeed: str) -> bool:
    feed = state.changefeeds.get(ChangefeedId(changefeed)) if state.has_owners else None
    if feed is None or not feed.has_records:
        return False
    return not feed.is_launched or feed.owner is None or feed.owner.capture not in state.captures
