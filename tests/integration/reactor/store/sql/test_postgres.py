"""PostgreSQL store: how soon others see a commit, and refused servers. See also ``test_servers``."""

import time
from collections.abc import Iterator

import pytest

from capture.embedded import EmbeddedPostgres
from reactor.errors import StoreAuthError, StoreError, StoreUnreachableError
from reactor.store import sql
from tests.patience import patient


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """One that tests may change."""
    with EmbeddedPostgres(tmp_path_factory.mktemp("store"), wal_level="replica") as part:
        yield part


async def test_other_clients_hear_of_a_commit_at_once(server: EmbeddedPostgres) -> None:
    writing, reading = await sql.connect(server.uri()), await sql.connect(server.uri())
    start, delays = await writing.put("/n", b""), list[float]()
    async with reading.watch_prefix("/n", start_revision=start) as watch:
        await anext(watch)
        for number in range(50):
            sent = time.monotonic()
            await writing.put("/n", b"%d" % number)
            await anext(watch)
            delays.append(time.monotonic() - sent)
    assert sorted(delays)[25] < patient(0.05)
    await writing.close()
    await reading.close()


async def test_what_the_server_refuses_is_explained_in_one_line_without_secrets(server: EmbeddedPostgres) -> None:
    server.execute("CREATE ROLE poor LOGIN PASSWORD 'geheim'")
    server.create_database("empty")
    server.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC", database="empty")
    place = f"127.0.0.1:{server.port}"
    for url, kind, text in (
        (f"postgresql://postgres:geheim@{place}/postgres", StoreAuthError, "password"),
        (f"postgresql://poor:geheim@{place}/empty", StoreAuthError, "let it create"),
        (server.uri("nowhere"), StoreError, "no such database"),
        ("postgresql://weir:geheim@127.0.0.1:1/db", StoreUnreachableError, "does not answer"),
        ("postgresql://weir:geheim@h:x:y/db?geheim", StoreError, "malformed"),
    ):
        with pytest.raises(kind, match=text) as caught:
            await sql.connect(url)
        assert "\n" not in str(caught.value)
        assert "geheim" not in str(caught.value)
