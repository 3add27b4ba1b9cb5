"""Transactions that wait at the same time are committed together, and answered as if each had been alone."""

import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import pytest

from reactor.errors import LeaseExpiredError, StoreError, StoreUnreachableError
from reactor.store.memory import MemoryEtcd
from reactor.store.port import Compare, Delete, Operation, Put, Target
from reactor.store.sql.client import SqlClient
from reactor.store.sql.database import Query
from reactor.store.sql.logic import Change, Seen
from reactor.store.sql.sqlite import SqliteDatabase
from tests.patience import patient


class Counted(SqliteDatabase):
    """Counts commits. ``faults``: of the next ones, raised in their places."""

    commits = 0
    faults: ClassVar[list[Exception | None]] = []

    @contextmanager
    def writing(self, is_given_up: Callable[[], bool]) -> Iterator[Any]:
        with super().writing(is_given_up) as statements:
            yield statements
            if self.faults and (fault := self.faults.pop(0)):
                raise fault
        type(self).commits += 1


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[SqlClient]:
    Counted.commits, Counted.faults = 0, []
    found = SqlClient(lambda: Counted(tmp_path / "store.db", busy_s=20), name="store", timeout_s=patient(20))
    await found.put("/first", b"")
    yield found
    await found.close()


class Together:
    """Runs calls that all wait behind one that cannot commit before the block ends."""

    def __init__(self, client: SqlClient, path: Path) -> None:
        self.client, self.path = client, path

    async def run(
        self, *calls: Callable[[], Awaitable[object]], when_all_wait: Callable[[], None] = lambda: None
    ) -> list[Any]:
        outcomes: list[Any] = [None] * len(calls)

        async def call(number: int) -> None:
            try:
                outcomes[number] = await calls[number]()
            except (StoreError, RuntimeError) as error:
                outcomes[number] = error

        with closing(sqlite3.connect(self.path / "store.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.client.put, "/blocked", b"")
                while not self._is_taken():  # noqa: ASYNC110 - a thread takes it
                    await anyio.sleep(0.005)
                for number in range(len(calls)):
                    tasks.start_soon(call, number)
                while len(self.client._group._waiting) < len(calls):  # noqa: ASYNC110 - all of them wait
                    await anyio.sleep(0.005)
                when_all_wait()
                await anyio.lowlevel.checkpoint()  # whoever was cancelled leaves
                await anyio.lowlevel.checkpoint()
                other.execute("ROLLBACK")
        return outcomes

    def _is_taken(self) -> bool:
        return self.client._writes._lock.locked() and not self.client._group._waiting


@pytest.fixture
def together(client: SqlClient, tmp_path: Path) -> Together:
    return Together(client, tmp_path)


async def test_what_waits_is_committed_at_once_under_revisions_of_its_own(
    client: SqlClient, together: Together
) -> None:
    before = await client.put("/a", b"")
    Counted.commits = 0
    answers = await together.run(*(lambda n=n: client.put(f"/k{n}", b"x") for n in range(20)))
    assert sorted(answers) == list(range(before + 2, before + 22))
    assert Counted.commits == 2, "the one that blocked, and all others"
    items = {item.key: item.mod_revision for item in (await client.get_prefix("/k")).items}
    assert [items[f"/k{n}"] for n in range(20)] == answers
    async with client.watch_prefix("/k", start_revision=before + 1) as watch:
        with anyio.fail_after(patient(5)):
            batch = await anext(aiter(watch))
    assert [event.mod_revision for event in batch.events] == sorted(answers)


async def test_each_sees_what_the_ones_before_it_have_done(client: SqlClient, together: Together) -> None:
    revision = await client.put("/a", b"")
    as_read = Compare("/a", Target.MOD_REVISION, revision)
    answers = await together.run(*(lambda: client.txn([as_read], [Put("/a", b"1")]) for _ in range(10)))
    assert [answer.succeeded for answer in answers] == [True] + [False] * 9
    assert {answer.revision for answer in answers} == {revision + 2}


async def test_leases_and_ranges_are_looked_at_alone(client: SqlClient, together: Together) -> None:
    lease = await client.grant(60)
    dead = await client.grant(60)
    await client.revoke(dead)
    empty = Compare("/r/", Target.CREATE_REVISION, 0, last="/r/z")
    answers = await together.run(
        lambda: client.put("/x", b"", lease=dead),
        lambda: client.put("/r/a", b""),
        lambda: client.txn([empty], [Put("/r/b", b"")]),
        lambda: client.put("/l", b"", lease=lease),
        lambda: client.delete("/r/a"),
        lambda: client.txn([empty], [Put("/r/c", b"")]),
    )
    assert isinstance(answers[0], LeaseExpiredError)
    assert [answer.succeeded for answer in (answers[2], answers[5])] == [False, True]
    assert answers[4] is True
    assert [item.key for item in (await client.get_prefix("/")).items] == ["/blocked", "/first", "/l", "/r/c"]


async def test_whose_caller_has_gone_is_left_out_and_the_others_are_not(client: SqlClient, together: Together) -> None:
    """It goes when all wait."""
    gone = anyio.CancelScope()

    async def leave() -> None:
        with gone:
            await client.put("/gone", b"")

    await together.run(
        lambda: client.put("/a", b""), leave, lambda: client.put("/b", b""), when_all_wait=lambda: gone.cancel()
    )
    assert gone.cancelled_caught
    assert [item.key for item in (await client.get_prefix("/")).items] == ["/a", "/b", "/blocked", "/first"]


async def test_what_fails_for_one_fails_for_all_that_were_with_it(client: SqlClient, together: Together) -> None:
    def arm() -> None:
        Counted.faults = [None, StoreUnreachableError("the disk hangs")]

    answers = await together.run(
        *(lambda n=n: client.put(f"/k{n}", b"") for n in range(4)),
        when_all_wait=arm,
    )
    assert [str(answer) for answer in answers] == ["the disk hangs"] * 4
    assert len({id(answer) for answer in answers}) == 4, "each has its own traceback"
    assert [item.key for item in (await client.get_prefix("/")).items] == ["/blocked", "/first"]
    await client.put("/after", b"")


async def test_nobody_waits_for_ever_when_a_bug_ends_a_commit(client: SqlClient, together: Together) -> None:
    def arm() -> None:
        Counted.faults = [None, RuntimeError("a bug")]

    answers = await together.run(
        *(lambda n=n: client.put(f"/k{n}", b"") for n in range(4)),
        when_all_wait=arm,
    )
    assert [type(answer) for answer in answers] == [RuntimeError, StoreError, StoreError, StoreError]
    await client.put("/after", b"")


def _random(chance: random.Random) -> tuple[list[Compare], list[Operation]]:
    names = chance.sample("abcdef", chance.randint(1, 3))
    guess = chance.choice([0, chance.randint(1, 30)])
    compares = [Compare(chance.choice("abcdef"), chance.choice(list(Target)), guess)] if chance.random() < 0.7 else []
    return compares, [Put(name, b"%d" % guess) if chance.random() < 0.7 else Delete(name) for name in names]


@pytest.mark.sample(0.2)
@pytest.mark.looptime
@pytest.mark.parametrize("seed", range(20))
async def test_groups_end_as_the_same_transactions_one_by_one(tmp_path: Path, seed: int) -> None:
    chance, twin = random.Random(seed), MemoryEtcd()
    with closing(SqliteDatabase(tmp_path / "store.db", busy_s=5)) as database:
        for _ in range(30):
            requests = [_random(chance) for _ in range(chance.randint(1, 12))]
            with database.writing(lambda: False) as statements:
                change = Change(statements)
                answers = change.txns(requests, Seen())
                assert change.finish().revision == answers[-1][0].revision  # type: ignore[index]
            assert [answer[0] for answer in answers] == [twin.txn(*request) for request in requests]  # type: ignore[index]
        with database.reading() as statements:
            keys, changes = statements.read(
                Query("SELECT name, value, created, modified FROM weir_key ORDER BY name"),
                Query("SELECT name, value, revision, created FROM weir_change ORDER BY revision, place"),
            )
        items = twin.get_prefix("").items
        assert keys == [(i.key, i.value, i.create_revision, i.mod_revision) for i in items]
        found = twin.events_from("", 1)
        assert found is not None
        assert changes == [(e.key, e.value, e.mod_revision, e.create_revision) for e in found.events]
