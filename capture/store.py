"""Store of a capture: the client of the metadata store that its settings name, and the embedded etcd where they name
none."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import anyio
from anyio import to_thread

from agent.errors import LogStorageMismatchError
from agent.log.storage import claim
from capture.address import is_loopback
from capture.config import ServerSettings
from capture.embedded import EmbeddedEtcd
from capture.errors import ConfigError
from capture.security.certificate_files import own_certificate
from capture.security.reach import look_up_freely
from capture.security.secrets import mask, resolve
from reactor import keys
from reactor.records.log_mark import mark_of
from reactor.settings import TlsFiles
from reactor.store import sql
from reactor.store.etcd import connect
from reactor.store.etcd.connection import normalize
from reactor.store.port import Compare, MetaStore, Put, Target


async def connect_store(settings: ServerSettings) -> MetaStore:
    """:raises WeirError: the store does not answer, refuses, or a reference to a secret cannot be resolved."""
    if settings.sql_store:
        return await sql.connect(resolve(settings.sql_store))
    tls = etcd_tls(settings)
    password = look_up_freely(settings.etcd_password)
    return await connect(settings.etcd_urls, tls=tls, user=settings.etcd_user or None, password=password or None)


def etcd_tls(settings: ServerSettings) -> TlsFiles | None:
    """Return the files for TLS with etcd, if there are any.

    :raises ConfigError: they are incomplete or would not be used, or a password would be sent in clear.
    """
    ca, cert, key = settings.etcd_ca_file, settings.etcd_cert_file, settings.etcd_key_file
    if (cert is None) != (key is None):
        raise ConfigError("etcd-cert-file and etcd-key-file belong together; give both")
    if cert is not None and ca is None:
        raise ConfigError("etcd-cert-file needs the authority of etcd's own certificate; give etcd-ca-file")
    for url in (normalize(each, is_tls=ca is not None) for each in settings.etcd_urls):
        parts = urlsplit(url)
        if parts.scheme == "https":
            continue
        if ca is not None:
            raise ConfigError(f"etcd-ca-file is given, and {url} is without TLS; write https://")
        if settings.etcd_password and not settings.insecure and not is_loopback(parts.hostname or ""):
            raise ConfigError(f"the password of etcd would be sent to {url} in clear; use https://, or --insecure")
    return TlsFiles(str(ca), str(cert) if cert else None, str(key) if key else None) if ca is not None else None


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
    tls = await to_thread.run_sync(own_certificate, settings.data_dir / "etcd" / "tls")
    part = EmbeddedEtcd(settings.data_dir / "etcd", tls=tls)
    try:
        await to_thread.run_sync(part.start)
        files = {"etcd_ca_file": tls.ca, "etcd_cert_file": tls.cert, "etcd_key_file": tls.key}
        paths = {name: Path(str(file)) for name, file in files.items()}
        yield settings.model_copy(update={"etcd": (part.url,), "etcd_user": "", "etcd_password": "", **paths})
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(part.stop)


async def claim_log_storage(client: MetaStore, settings: ServerSettings) -> None:
    """The first capture of a cluster marks its log storage, and records the mark in etcd.

    :raises LogStorageMismatchError: this storage does not hold the cluster's log.
    """
    key = str(keys.LogStorageKey(settings.cluster_id))
    stored = await client.get(key)
    expected = mark_of(stored.value) if stored else None
    uri = settings.log_storage_uri
    run = partial(claim, uri, cluster_id=settings.cluster_id, expected=expected)
    found = await to_thread.run_sync(run)
    if stored is None:
        absent = Compare(key, Target.CREATE_REVISION, 0)
        if not (await client.txn([absent], [Put(key, found.encode())])).succeeded:
            other = await client.get(key)
            if other is None or mark_of(other.value) != found:
                raise LogStorageMismatchError(
                    f"two captures began this cluster at once on different log storage ({uri} is one of them); "
                    "give all of them the same --log-storage"
                )
