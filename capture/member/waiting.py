"""Waiting: starts what a capture needs before it joins its cluster, and shows the cluster what it waits for."""

import os
import socket
import time
import uuid
from typing import Protocol

import anyio
import structlog

from capture.config import ServerSettings
from capture.version import installed_version
from reactor import keys
from reactor.errors import StoreError
from reactor.ids import CaptureId
from reactor.membership.session import Session, open_session
from reactor.records.waiting import WaitingCapture
from reactor.store.port import MetaStore, Put

_POLL_S = 0.5


class Startable(Protocol):
    """The part of ``capture.member.services.DataPlane`` that this uses."""

    @property
    def waits_for(self) -> str: ...

    async def start(self, client: MetaStore) -> None: ...


_log = structlog.get_logger()


async def start(data_plane: Startable, client: MetaStore, settings: ServerSettings) -> None:
    """Return when the data plane can move rows.

    :raises WeirError: it never will.
    """
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_show, data_plane, client, settings)
        try:
            await data_plane.start(client)
        except Exception as error:
            failure = error  # kept out of the task group, which would wrap it
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _show(data_plane: Startable, client: MetaStore, settings: ServerSettings) -> None:
    """Publish a record that lives as long as the wait."""
    capture = CaptureId(str(uuid.uuid4()))
    while True:
        await anyio.sleep(_POLL_S)
        if not data_plane.waits_for:
            continue
        try:
            async with open_session(client, ttl_s=settings.session_ttl_seconds) as session:
                await _keep_shown(data_plane, client, session, _record(capture, settings))
        except StoreError as error:
            _log.debug("nobody is shown that this capture waits", reason=str(error))


async def _keep_shown(data_plane: Startable, client: MetaStore, session: Session, record: WaitingCapture) -> None:
    key = str(keys.WaitingKey(record.cluster_id, record.id))
    shown = ""
    while data_plane.waits_for and not session.is_done:
        if data_plane.waits_for != shown:
            shown = data_plane.waits_for
            value = record.with_(waits_for=shown).encode()
            await client.txn([], [Put(key, value, lease=session.lease)])
        await anyio.sleep(_POLL_S)


def _record(capture: CaptureId, settings: ServerSettings) -> WaitingCapture:
    return WaitingCapture(
        id=capture,
        address=settings.advertise_addr or settings.addr,
        version=installed_version(),
        cluster_id=settings.cluster_id,
        waits_for="",
        started_at=time.time(),
        hostname=socket.gethostname(),
        pid=os.getpid(),
    )
