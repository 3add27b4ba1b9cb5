"""Election: of all candidates under a prefix, the one whose key was created first is owner.

A candidate's key is named after its lease and expires with it. A candidate waits only for the one right before it, so
that an owner's end wakes one capture and not all. The create revision of the owner's key is the *owner revision*: it
grows from owner to owner, is in every order the owner sends (a fencing token), and ``proof`` adds it to a transaction,
which then fails if the ownership has ended.

No revision is won twice. A key that could not be deleted when its owner resigned is deleted before the same candidate
campaigns again, so nothing that carries the revision (orders, epochs of processors and workers) is taken for an earlier
one's.
"""

import anyio
import structlog

from reactor.errors import CompactedError, NotOwnerError, StoreError
from reactor.membership.session import Session
from reactor.store.port import Compare, MetaStore, Put, Target

_RESIGN_TIMEOUT_S = 5.0
_RETRY_S = 0.2

_log = structlog.get_logger()


class Elector:
    """One candidate under ``prefix``, for one session."""

    def __init__(self, client: MetaStore, session: Session, *, prefix: str) -> None:
        self._client = client
        self._session = session
        self._prefix = prefix + "/"
        self.key = f"{self._prefix}{session.lease:x}"
        self._revision = 0
        #: the last revision won
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
        """Return a compare that holds in a transaction exactly while this candidate is the owner."""
        return Compare(self.key, Target.CREATE_REVISION, self.revision)

    async def campaign(self, value: str) -> None:
        """Campaign and wait until elected; when abandoned (also by cancellation), the candidacy is withdrawn.

        :raises SessionDoneError: the session ended first.
        """
        try:
            self._revision = self._spent = await self._session.run(lambda: self._win(value))
        except BaseException:
            await self.resign()
            raise

    async def resign(self) -> None:
        """Step down, or withdraw the candidacy, shielded from cancellation within a time limit: until then no other
        candidate is elected. If it fails, it is repeated before this candidate campaigns again, or happens when its
        lease expires."""
        self._revision = 0
        with anyio.move_on_after(_RESIGN_TIMEOUT_S, shield=True):
            await self.withdraw()
            return
        _log.warning("not resigned yet: etcd does not answer", key=self.key)

    async def withdraw(self) -> None:
        """Return when this session has no candidacy."""
        while not self._session.is_done:
            try:
                await self._client.delete(self.key)
                return
            except StoreError as error:
                _log.warning("not resigned", key=self.key, error=str(error))
                await anyio.sleep(_RETRY_S)

    async def _win(self, value: str) -> int:
        """Create the key, then wait until no older candidate is left; return the create revision."""
        revision = await self._put_candidacy(value)
        while True:
            snapshot = await self._client.get_prefix(self._prefix)
            if not any(item.key == self.key for item in snapshot.items):
                revision = await self._put_candidacy(value)  # somebody deleted our key by hand
                continue
            older = [item for item in snapshot.items if item.create_revision < revision]
            if not older:
                return revision
            last = max(older, key=lambda item: item.create_revision)
            await self._wait_change(last.key, snapshot.revision)

    async def _put_candidacy(self, value: str) -> int:
        """Put our key unless it exists from an earlier call whose answer was lost."""
        absent = Compare(self.key, Target.CREATE_REVISION, 0)
        while True:
            await self._client.txn([absent], [Put(self.key, value.encode(), self._session.lease)])
            item = await self._client.get(self.key)
            if item is not None and item.create_revision > self._spent:
                return item.create_revision
            if item is not None:
                await self._client.delete(self.key)  # of the previous ownership, whose key could not be deleted

    async def _wait_change(self, prefix: str, revision: int) -> None:
        """Wait for a change under ``prefix`` newer than ``revision``."""
        try:
            async with self._client.watch_prefix(prefix, start_revision=revision + 1) as batches:
                async for batch in batches:
                    if batch.events:
                        return
        except CompactedError:
            return  # compacted: so much has changed that it must be read again
