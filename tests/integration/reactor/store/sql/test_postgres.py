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


@pytest.mark.matrix
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


@pytest.mark.matrix
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


@pytest.mark.matrix
async def test_functions_and_operators_of_others_are_not_called(server: EmbeddedPostgres) -> None:
    """Before PostgreSQL 15, every role may create them in ``public``."""
    server.create_database("open")
    for statement in (
        "CREATE TABLE caught (who text)",
        "GRANT CREATE ON SCHEMA public TO PUBLIC; GRANT INSERT ON caught TO PUBLIC",
        "CREATE FUNCTION product(numeric, integer) RETURNS numeric LANGUAGE sql AS"
        " 'INSERT INTO public.caught VALUES (current_user); SELECT pg_catalog.numeric_mul($1, $2)'",
        "CREATE OPERATOR * (LEFTARG = numeric, RIGHTARG = integer, FUNCTION = product)",
    ):
        server.execute(statement, database="open")
    client = await sql.connect(server.uri("open"))
    await client.put("/n", b"1")
    assert await client.get("/n") is not None
    await client.close()
    assert server.execute("SELECT * FROM caught", database="open") == []
    server.execute("SELECT 2.0 * 3", database="open")
    assert server.execute("SELECT * FROM caught", database="open") == [["postgres"]]


@pytest.mark.matrix
async def test_the_store_is_in_the_schema_that_the_user_s_search_path_names(server: EmbeddedPostgres) -> None:
    server.create_database("several")
    server.execute('CREATE SCHEMA "Weir?"; CREATE SCHEMA other; CREATE SCHEMA "100%"', database="several")
    path = server.uri("several") + "?options=-csearch_path%3D"
    first = await sql.connect(path + "%22Weir?%22,other")
    await first.put("/n", b"1")
    second = await sql.connect(path + "nowhere,other,%22Weir?%22")  # where it is, not where it could be
    found = await second.get("/n")
    assert found is not None
    assert found.value == b"1"
    await first.close()
    await second.close()
    for schema, text in (("nowhere", "create one, or set search_path"), ("%22100%25%22", "without % in its name")):
        with pytest.raises(StoreError, match=text):
            await sql.connect(path + schema)
