"""Store of a capture: the client of the metadata store that its settings name, and the embedded etcd where they name
none."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio import to_thread

from capture.config import ServerSettings
from capture.embedded import EmbeddedEtcd
from capture.security.reach import look_up_freely
from capture.security.secrets import mask, resolve
from reactor.settings import TlsFiles
from reactor.store import sql
from reactor.store.etcd import connect
from reactor.store.port import EtcdClient


async def connect_store(settings: ServerSettings) -> EtcdClient:
    """:raises WeirError: the store does not answer, refuses, or a reference to a secret cannot be resolved."""
    if settings.sql_store:
        return await sql.connect(resolve(settings.sql_store))
    tls = None
    if settings.etcd_ca_file is not None:
        cert, key = settings.etcd_cert_file, settings.etcd_key_file
        tls = TlsFiles(str(settings.etcd_ca_file), str(cert) if cert else None, str(key) if key else None)
    password = look_up_freely(settings.etcd_password)
    return await connect(settings.etcd_urls, tls=tls, user=settings.etcd_user or None, password=password or None)


def store_name(settings: ServerSettings) -> str:
    """Return how people call the store, without secrets."""
    if settings.sql_store:
        return mask(settings.sql_store)
    if settings.etcd_urls:
        return f"etcd at {mask(','.join(settings.etcd_urls))}"
    return f"the embedded etcd below {settings.data_dir.absolute()}"


@asynccontextmanager
async def with_etcd(settings: ServerSettings) -> AsyncIterator[ServerSettings]:
    """Run the embedded etcd if no store is given, and yield the settings with its URL."""
    if settings.etcd_urls or settings.sql_store:
        yield settings
        return
    part = EmbeddedEtcd(settings.data_dir / "etcd")
    try:
        await to_thread.run_sync(part.start)
        yield settings.model_copy(update={"etcd": (part.url,)})
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(part.stop)
