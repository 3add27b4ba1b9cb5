"""Renewal: loads a changed certificate and changed secret keys while the capture runs, and registers them; also
whether it is well, and whether it leaves.

The certificate's previous key stays registered beside the new one, since connections made with it may still be in
flight. The store's mark decides which of the secret keys seals, and is proved to peers first
(``capture.security.key_mark``).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import anyio
import structlog

from agent.health.health import Health
from capture.errors import ConfigError
from capture.messaging.admission import Admission
from capture.messaging.tls import NodeTls
from capture.security.key_mark import KeyMark
from capture.security.peer_key import PeerKey
from capture.security.secrets import Keeper
from reactor.errors import StoreError
from reactor.records.capture import CaptureInfo
from reactor.store.port import Compare, MetaStore, Put

_POLL_S = 2.0
_DAY_S = 86_400.0
#: warn once a day of a certificate that expires within this time
_SOON_S = 14 * _DAY_S

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Keys:
    """``mark``: of the cluster's key, as the store shows it."""

    keeper: Keeper
    mark: Callable[[], KeyMark]
    admission: Admission
    cluster: str

    @property
    def fingerprints(self) -> tuple[str, ...]:
        return self.keeper.fingerprints

    def read_again(self) -> None:
        """:raises ConfigError: the file cannot be used, or lacks the cluster's key."""
        mark, before = self.mark(), self.keeper.keys
        try:
            self.keeper.read_again(mark.needed)
        finally:
            self.keeper.use(mark.sealing)
            if self.keeper.keys != before:
                _log.info("secret keys taken over", keys=self.keeper.fingerprints, sealing=self.keeper.fingerprint)
                self.admission.key = PeerKey(self.keeper.keys, cluster=self.cluster)


class Renewal:
    """For one membership: ``registered`` holds while the capture is a member."""

    def __init__(
        self, tls: NodeTls | None, client: MetaStore, info: CaptureInfo, *, lease: int, registered: Compare
    ) -> None:
        self._tls = tls
        self._keys: _Keys | None = None
        self._health = Health()
        self._is_isolated = False
        self._news = anyio.Event()
        self._is_leaving: Callable[[], bool] = lambda: False
        self._client = client
        self._info = info
        self._lease = lease
        self._registered = registered
        self._problems: dict[str, str] = {}
        self._warned_at = 0.0

    def watch_keys(self, keeper: Keeper, mark: Callable[[], KeyMark], admission: Admission) -> None:
        """Take over what the file of secret keys holds, too."""
        self._keys = _Keys(keeper, mark, admission, self._info.cluster_id)

    def watch_health(self, health: Health) -> None:
        """Register why the capture takes no work, too."""
        self._health = health

    def watch_leaving(self, is_leaving: Callable[[], bool]) -> None:
        """Register that the capture hands over its work, too."""
        self._is_leaving = is_leaving

    def note_isolated(self, is_isolated: bool) -> None:
        """Register whether the capture hears no other one, too."""
        self._is_isolated = is_isolated
        self._news.set()

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow_health)
            while True:
                self._news = anyio.Event()
                await self.look()
                with anyio.move_on_after(_POLL_S):
                    await self._news.wait()

    async def _follow_health(self) -> None:
        while True:
            await self._health.changed()
            self._news.set()

    async def look(self) -> None:
        if self._tls is not None:
            self._try("certificate not renewed", partial(_renew, self._tls))
            self._warn(self._tls, time.time())
        if self._keys is not None:
            self._try("secret keys not taken over", self._keys.read_again)
        await self._register()

    def _try(self, what: str, renew: Callable[[], None]) -> None:
        """A problem is in the log once."""
        problem = ""
        try:
            renew()
        except ConfigError as error:
            problem = str(error)
            if problem != self._problems.get(what):
                _log.warning(what, cause=problem)
        self._problems[what] = problem

    async def _register(self) -> None:
        """Until it is known to all."""
        info = changed = self._info
        if self._tls is not None:
            certificate = self._tls.certificate
            if certificate.key != info.peer_keys[0] or certificate.node != info.node:
                changed = changed.with_(node=certificate.node, peer_keys=(certificate.key, info.peer_keys[0]))
        if self._keys is not None:
            changed = changed.with_(secret_keys=self._keys.fingerprints)
        changed = changed.with_(fault=self._health.cause, is_leaving=self._is_leaving())
        changed = changed.with_(is_isolated=self._is_isolated)
        if changed == info:
            return
        try:
            put = Put(self._registered.key, changed.encode(), self._lease)
            if (await self._client.txn([self._registered], [put])).succeeded:
                self._info = changed
        except StoreError as error:
            _log.warning("a change of this capture's record is not registered yet", cause=str(error))

    def _warn(self, tls: NodeTls, now: float) -> None:
        left_s = tls.certificate.ends_at - now
        if left_s < _SOON_S and now - self._warned_at >= _DAY_S:
            self._warned_at = now
            text = f"`weir certs renew {tls.certificate.node}` makes another"
            _log.warning("certificate ends soon", days=round(left_s / _DAY_S, 1), cure=text)


def _renew(tls: NodeTls) -> None:
    """:raises ConfigError: the new files cannot be used."""
    if tls.renew():
        _log.info("certificate renewed", node=tls.certificate.node, key=tls.certificate.key[:16])
