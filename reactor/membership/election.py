"""Election: of all candidates under a prefix, the one whose key was created first is owner.

A candidate's key is named after its lease and dies with it. It waits only for the candidate right before it, so that
an owner's end wakes one capture and not all. The create revision of the owner's key is the *owner revision*: it grows
from owner to owner, is in every order the owner sends, and ``proof`` puts it into a transaction, which then
fails if the ownership is over.

No revision is won twice. A key that could not be deleted when its owner resigned is deleted before the same candidate
campaigns again: what carries the revision (orders, epochs of processors and workers) is never taken for an earlier
one's.
"""

import anyio
import structlog

from reactor.errors import CompactedError, EtcdError, NotOwnerError
from reactor.membership.session import Session
from reactor.store.port import Compare, EtcdClient, Put, Target

_RESIGN_TIMEOUT_S = 5.0
_RETRY_S = 0.2

_log = structlog.get_logger()


class Election:
    """One candidate under ``prefix``, for one session."""

    def __init__(self, client: EtcdClient, session: Session, *, prefix: str) -> None:
        self._client = client
        self._session = session
        self._prefix = prefix + "/"
        self.key = f"{self._prefix}{session.lease:x}"
        self._revision = 0
        #: the last one won
        self._spent = 0

    @property
    def revision(self) -> int:
        """The owner revision of this candidate.

        :raises NotOwnerError: it has not been elected, or has resigned.
        """
        if not self._revision:
            raise NotOwnerError("this capture is not the owner; ask the leader of the election")
        return self._revision

    def proof(self) -> Compare:
        """Holds in a transaction exactly while this candidate is the owner."""
        return Compare(self.key, Target.CREATE_REVISION, self.revision)

    async def campaign(self, value: str) -> None:
        """Campaign and wait until elected; given up (also by cancellation), the candidacy is withdrawn.

        :raises SessionDoneError: the session ended first.
        """
        try:
            self._revision = self._spent = await self._session.run(lambda: self._win(value))
        except BaseException:
            await self.resign()
            raise

    async def resign(self) -> None:
        """Step down, or withdraw the candidacy, with all the deadline that a cancelled task may have: until then nobody
        else is elected. What does not succeed here does before this candidate campaigns again, or with its lease."""
        self._revision = 0
        with anyio.move_on_after(_RESIGN_TIMEOUT_S, shield=True):
            await self.withdraw()
            return
        _log.warning("not resigned yet: etcd does not answer", key=self.key)

    async def withdraw(self) -> None:
        """Return when no candidacy of this session is there."""
        while not self._session.is_done:
            try:
                await self._client.delete(self.key)
                return
            except EtcdError as error:
                _log.warning("not resigned", key=self.key, error=str(error))
                await anyio.sleep(_RETRY_S)

    async def _win(self, value: str) -> int:
        """Create the key, then wait until no older candidate is left; the create revision."""
        revision = await self._stand(value)
        while True:
            snapshot = await self._client.get_prefix(self._prefix)
            if not any(item.key == self.key for item in snapshot.items):
                revision = await self._stand(value)  # somebody withdrew us by hand
                continue
            older = [item for item in snapshot.items if item.create_revision < revision]
            if not older:
                return revision
            last = max(older, key=lambda item: item.create_revision)
            await self._wait_change(last.key, snapshot.revision)

    async def _stand(self, value: str) -> int:
        """Put our key unless it exists, from an earlier call whose answer was lost."""
        absent = Compare(self.key, Target.CREATE_REVISION, 0)
        while True:
            await self._client.txn([absent], [Put(self.key, value.encode(), self._session.lease)])
            item = await self._client.get(self.key)
            if item is not None and item.create_revision > self._spent:
                return item.create_revision
            if item is not None:
                await self._client.delete(self.key)  # of the ownership before, which could not be given up

    async def _wait_change(self, prefix: str, revision: int) -> None:
        """Until something under ``prefix`` is newer than ``revision``."""
        try:
            async with self._client.watch_prefix(prefix, start_revision=revision + 1) as batches:
                async for batch in batches:
                    if batch.events:
                        return
        except CompactedError:
            return  # so much has happened that reading again is due
