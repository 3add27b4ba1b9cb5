"""The metadata store's contract: the same cases on a real etcd, on the store in memory, and on databases."""

import itertools
import random
from pathlib import Path

import anyio
import pytest

from capture.embedded import EmbeddedEtcd
from reactor.errors import CompactedError, LeaseExpiredError, StoreError, TxnTooLargeError
from reactor.store.port import Compare, Delete, Event, MetaStore, Put, Target, WatchBatch
from tests.contracts.store_bed import OWN, Store, etcd_connect, memory_connect, sql_connect, sqlite_url
from tests.patience import HANG_S


async def collect(client: MetaStore, prefix: str, start_revision: int, *, until: int) -> list[WatchBatch]:
    """Batches with events until ``until`` events have come."""
    batches: list[WatchBatch] = []
    with anyio.fail_after(HANG_S):
        async with client.watch_prefix(prefix, start_revision=start_revision) as watch:
            async for batch in watch:
                if batch.events:
                    batches.append(batch)
                if sum(len(each.events) for each in batches) >= until:
                    break
    return batches


def flatten(batches: list[WatchBatch]) -> list[tuple[str, bytes | None]]:
    return [(event.key, event.value) for batch in batches for event in batch.events]


@pytest.mark.sample(0.2)
async def test_a_key_remembers_when_it_was_created_and_changed(store: Store) -> None:
    async with store.connect() as client:
        created = await client.put(store / "a", b"1")
        changed = await client.put(store / "a", b"2")
        item = await client.get(store / "a")
    assert item is not None
    assert (item.value, item.create_revision, item.mod_revision, item.lease) == (b"2", created, changed, 0)
    assert changed == created + 1


async def test_an_absent_key_is_none_and_deleting_it_changes_nothing(store: Store) -> None:
    async with store.connect() as client:
        before = await client.put(store / "other", b"")
        assert await client.get(store / "a") is None
        assert await client.delete(store / "a") is False
        assert (await client.get_prefix(store.prefix)).revision == before


async def test_a_deleted_key_starts_over(store: Store) -> None:
    async with store.connect() as client:
        await client.put(store / "a", b"1")
        assert await client.delete(store / "a") is True
        again = await client.put(store / "a", b"2")
        item = await client.get(store / "a")
    assert item is not None
    assert item.create_revision == again


async def test_a_prefix_reads_sorted_and_says_its_revision(store: Store) -> None:
    async with store.connect() as client:
        for name in ("b", "a", "c/d"):
            revision = await client.put(store / name, name.encode())
        snapshot = await client.get_prefix(store.prefix)
    assert [item.key for item in snapshot.items] == [store / "a", store / "b", store / "c/d"]
    assert snapshot.revision == revision


async def test_a_value_may_be_empty_or_binary(store: Store) -> None:
    async with store.connect() as client:
        await client.put(store / "a", b"")
        await client.put(store / "b", bytes(range(256)))
        snapshot = await client.get_prefix(store.prefix)
    assert [item.value for item in snapshot.items] == [b"", bytes(range(256))]


async def test_a_transaction_does_all_in_one_revision(store: Store) -> None:
    async with store.connect() as client:
        await client.put(store / "old", b"")
        absent = Compare(store / "new", Target.MOD_REVISION, 0)
        result = await client.txn([absent], [Put(store / "new", b"1"), Delete(store / "old")])
        snapshot = await client.get_prefix(store.prefix)
    assert result.succeeded
    assert [(item.key, item.mod_revision) for item in snapshot.items] == [(store / "new", result.revision)]


@pytest.mark.parametrize("target", list(Target))
async def test_a_transaction_whose_compare_fails_does_nothing(store: Store, target: Target) -> None:
    async with store.connect() as client:
        revision = await client.put(store / "a", b"1")
        held = await client.txn([Compare(store / "a", target, revision)], [Put(store / "b", b"")])
        assert held.succeeded
        failed = await client.txn([Compare(store / "a", target, 0)], [Put(store / "a", b"2")])
        item = await client.get(store / "a")
    assert not failed.succeeded
    assert failed.revision == held.revision
    assert item is not None
    assert item.value == b"1"


async def test_a_transaction_that_changes_nothing_uses_no_revision(store: Store) -> None:
    async with store.connect() as client:
        before = await client.put(store / "a", b"")
        result = await client.txn([], [Delete(store / "b")])
    assert result.succeeded
    assert result.revision == before


async def test_a_transaction_takes_128_operations_and_compares(store: Store) -> None:
    async with store.connect() as client:
        compares = [Compare(store / f"{number:03}", Target.MOD_REVISION, 0) for number in range(128)]
        puts = [Put(store / f"{number:03}", b"") for number in range(128)]
        assert (await client.txn(compares, puts)).succeeded
        with pytest.raises(TxnTooLargeError):
            await client.txn([*compares, Compare(store / "x", Target.MOD_REVISION, 0)], puts)


async def test_a_range_may_be_compared_to_be_empty(store: Store) -> None:
    async with store.connect() as client:
        await client.put(store / "c", b"")
        beside = Compare(store / "d", Target.CREATE_REVISION, 0, last=store / "f")
        assert (await client.txn([beside], [Put(store / "f", b"")])).succeeded
        assert not (await client.txn([beside], [Put(store / "f", b"")])).succeeded
        around = Compare(store / "a", Target.CREATE_REVISION, 0, last=store / "c")
        assert not (await client.txn([around], [Put(store / "a", b"")])).succeeded
        assert [item.key for item in (await client.get_prefix(store.prefix)).items] == [store / "c", store / "f"]


async def test_a_transaction_over_the_limits_is_refused(store: Store) -> None:
    async with store.connect() as client:
        with pytest.raises(TxnTooLargeError):
            await client.txn([], [Put(store / str(number), b"") for number in range(129)])
        with pytest.raises(TxnTooLargeError):
            await client.txn([], [Put(store / "a", bytes(1600 * 1024))])
        assert (await client.get_prefix(store.prefix)).items == ()


async def test_a_key_may_be_written_once_per_transaction(store: Store) -> None:
    async with store.connect() as client:
        with pytest.raises(StoreError, match="duplicate key"):
            await client.txn([], [Put(store / "a", b"1"), Put(store / "a", b"2")])


@pytest.mark.sample(0.2)
async def test_a_lease_runs_out_with_its_keys_unless_it_is_kept_alive(store: Store) -> None:
    async with store.connect() as client:
        lease, kept = await client.grant(4), await client.grant(4)
        revision = await client.put(store / "leased", b"", lease=lease)
        await client.put(store / "free", b"")
        await client.put(store / "kept", b"", lease=kept)
        left = await client.time_to_live(lease)
        assert left is not None
        assert 0 < left <= 4
        for _ in range(3):
            await anyio.sleep(1.5)  # and a busy machine
            assert await client.keep_alive(kept) == 4
        batches = await collect(client, store / "leased", revision + 1, until=1)
        assert flatten(batches) == [(store / "leased", None)]
        assert await client.time_to_live(lease) is None
        with pytest.raises(LeaseExpiredError):
            await client.keep_alive(lease)
        assert await client.keep_alive(kept) == 4
        items = {item.key: item.lease for item in (await client.get_prefix(store.prefix)).items}
        assert items == {store / "free": 0, store / "kept": kept}
        await client.revoke(kept)


async def test_a_revoked_lease_takes_only_the_keys_it_still_has(store: Store) -> None:
    async with store.connect() as client:
        first, second = await client.grant(60), await client.grant(60)
        for name in ("a", "b", "c"):
            await client.put(store / name, b"", lease=first)
        await client.put(store / "b", b"", lease=second)
        await client.put(store / "c", b"")
        await client.revoke(first)
        assert [item.key for item in (await client.get_prefix(store.prefix)).items] == [store / "b", store / "c"]
        await client.revoke(first)
        await client.revoke(second)


async def test_a_put_under_a_dead_lease_is_refused(store: Store) -> None:
    async with store.connect() as client:
        lease = await client.grant(60)
        await client.revoke(lease)
        with pytest.raises(LeaseExpiredError):
            await client.put(store / "a", b"", lease=lease)
        with pytest.raises(LeaseExpiredError):
            await client.txn([], [Put(store / "a", b"", lease)])
        assert await client.get(store / "a") is None


async def test_a_watch_brings_the_past_and_then_the_present(store: Store) -> None:
    async with store.connect() as client, store.connect() as writer:
        start = await writer.put(store / "a", b"1")
        await writer.put(store / "a", b"2")

        async def write_on() -> None:
            await anyio.sleep(0.05)
            await writer.put(store / "b", b"3")
            await writer.delete(store / "a")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write_on)
            batches = await collect(client, store.prefix, start, until=4)
    assert flatten(batches) == [
        (store / "a", b"1"),
        (store / "a", b"2"),
        (store / "b", b"3"),
        (store / "a", None),
    ]
    revisions = [event.mod_revision for batch in batches for event in batch.events]
    assert revisions == [start, start + 1, start + 2, start + 3]
    assert all(batch.revision == batch.events[-1].mod_revision for batch in batches)


async def test_a_watch_never_splits_a_transaction(store: Store) -> None:
    async with store.connect() as client:
        start = (await client.get_prefix(store.prefix)).revision + 1
        for number in range(20):
            await client.txn([], [Put(store / name, b"%d" % number) for name in ("a", "b", "c")])
        batches = await collect(client, store.prefix, start, until=60)
    for batch in batches:
        for _, events in itertools.groupby(batch.events, key=lambda event: event.mod_revision):
            assert len(list(events)) == 3


async def test_a_watch_tells_what_a_reader_needs_of_a_key(store: Store) -> None:
    async with store.connect() as client:
        lease = await client.grant(60)
        created = await client.put(store / "a", b"1", lease=lease)
        changed = await client.put(store / "a", b"2", lease=lease)
        batches = await collect(client, store.prefix, changed, until=1)
        await client.revoke(lease)
    assert batches[0].events == (Event(store / "a", b"2", changed, created, lease),)


async def test_a_watch_sees_only_its_prefix(store: Store) -> None:
    async with store.connect() as client:
        start = await client.put(store / "x/1", b"")
        await client.put(store / "y/1", b"")
        await client.put(store / "x/2", b"")
        batches = await collect(client, store / "x/", start, until=2)
    assert [key for key, _ in flatten(batches)] == [store / "x/1", store / "x/2"]


async def test_a_watch_from_a_compacted_revision_reports_it(store: Store) -> None:
    async with store.connect() as client:
        start = await client.put(store / "a", b"1")
        last = await client.put(store / "a", b"2")
        await client.compact(last)
        with pytest.raises(CompactedError), anyio.fail_after(HANG_S):
            await collect(client, store.prefix, start, until=1)
        assert flatten(await collect(client, store.prefix, last, until=1)) == [(store / "a", b"2")]


async def test_compacting_twice_or_ahead_is_refused(store: Store) -> None:
    async with store.connect() as client:
        revision = await client.put(store / "a", b"1")
        await client.compact(revision)
        with pytest.raises(CompactedError):
            await client.compact(revision)
        with pytest.raises(StoreError):
            await client.compact(revision + 1000)


async def test_revisions_can_be_passed(store: Store) -> None:
    async with store.connect() as client:
        before = await client.put(store / "a", b"1")
        await client.pass_revision(before + 700, key=store / "passing")
        after = await client.put(store / "b", b"2")
        assert after > before + 700
        snapshot = await client.get_prefix(store.prefix)
        assert [(item.key, item.create_revision) for item in snapshot.items] == [
            (store / "a", before),
            (store / "b", after),
        ]
        await client.pass_revision(before, key=store / "passing")
        assert await client.put(store / "c", b"3") == after + 1, "it was passed long ago"
        assert flatten(await collect(client, store.prefix, after, until=2)) == [
            (store / "b", b"2"),
            (store / "c", b"3"),
        ]


@pytest.mark.parametrize("name", ["memory", "sqlite"])
async def test_a_watch_does_not_wait_for_revisions_that_were_passed(name: str, tmp_path: Path) -> None:
    store = Store(memory_connect() if name == "memory" else sql_connect(sqlite_url(tmp_path)))
    async with store.connect() as client:
        revision = await client.put(store / "a", b"1")
        async with client.watch_prefix(store.prefix, start_revision=revision + 1) as watch:
            await client.pass_revision(revision + 12_345, key=store / "passing")
            with pytest.raises(CompactedError), anyio.fail_after(HANG_S):
                await anext(aiter(watch))


async def test_etcd_says_what_to_do_where_it_would_have_to_write_for_too_long(own_etcd: EmbeddedEtcd) -> None:
    store = Store(etcd_connect(own_etcd.url))
    async with store.connect() as client:
        before = await client.put(store / "a", b"1")
        with pytest.raises(StoreError, match=r"2000000 writes .*--bump-revision 2000000"):
            await client.pass_revision(before + 2_000_000, key=store / "passing")
        assert await client.put(store / "a", b"2") == before + 1


async def test_what_one_client_wrote_another_reads_at_once(store: Store) -> None:
    async with store.connect() as writer, store.connect() as reader:
        for number in range(20):
            await writer.put(store / "a", b"%d" % number)
            item = await reader.get(store / "a")
            assert item is not None
            assert item.value == b"%d" % number


async def test_of_many_transactions_on_one_revision_one_wins(store: Store) -> None:
    async with store.connect() as client:
        revision = await client.put(store / "a", b"")
        winners: list[int] = []

        async def compete(number: int) -> None:
            held = Compare(store / "a", Target.MOD_REVISION, revision)
            if (await client.txn([held], [Put(store / "a", b"%d" % number)])).succeeded:
                winners.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(compete, number)
        item = await client.get(store / "a")
    assert item is not None
    assert [b"%d" % number for number in winners] == [item.value]


async def _random_history(store: Store, seed: int) -> list[object]:
    """What 300 random writes answered, what was left, and what a watch brought; revisions counted from the start."""
    chance, history = random.Random(seed), list[object]()
    async with store.connect() as client:
        start = (await client.get_prefix(store.prefix)).revision
        for _ in range(300):
            names = chance.sample("abcdef", chance.randint(1, 3))
            operations = [
                Put(store / name, name.encode()) if chance.random() < 0.7 else Delete(store / name) for name in names
            ]
            target, guess = chance.choice(list(Target)), chance.choice([0, chance.randint(1, 40)])
            known = await client.get(store / chance.choice("abcdef"))
            compare = Compare(store / "a", target, guess + start if guess else 0)
            if known is not None and chance.random() < 0.6:
                compare = Compare(known.key, Target.MOD_REVISION, known.mod_revision)
            result = await client.txn([compare], operations)
            history.append((result.succeeded, result.revision - start))
        items = (await client.get_prefix(store.prefix)).items
        history += [(i.key[-1], i.value, i.create_revision - start, i.mod_revision - start) for i in items]
        # the same revision may come in any number of batches' company, but always in order
        last = await client.put(store / "end", b"")
        history += await _events_until(client, store.prefix, start, last)
    return history


async def _events_until(client: MetaStore, prefix: str, start: int, last: int) -> list[object]:
    events: list[object] = []
    with anyio.fail_after(HANG_S):
        async with client.watch_prefix(prefix, start_revision=start + 1) as watch:
            async for batch in watch:
                events += [(event.key[-1], event.value, event.mod_revision - start) for event in batch.events]
                if batch.events and batch.revision == last:
                    break
    return events


@pytest.mark.parametrize("seed", range(3))
async def test_the_twin_in_memory_answers_as_etcd_does(own_etcd: EmbeddedEtcd, seed: int) -> None:
    real = await _random_history(Store(etcd_connect(own_etcd.url)), seed)
    assert await _random_history(Store(memory_connect()), seed) == real


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("seed", range(3))
async def test_a_database_answers_as_etcd_does(tmp_path: Path, own_database: str, seed: int) -> None:
    twin = await _random_history(Store(memory_connect()), seed)
    assert await _random_history(Store(sql_connect(sqlite_url(tmp_path))), seed) == twin
    assert await _random_history(Store(sql_connect(own_database)), seed) == twin


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["mariadb", "mysql"])
@pytest.mark.parametrize("seed", range(3))
async def test_mariadb_and_mysql_answer_as_etcd_does(request: pytest.FixtureRequest, name: str, seed: int) -> None:
    twin = await _random_history(Store(memory_connect()), seed)
    assert await _random_history(Store(sql_connect(request.getfixturevalue(OWN[name]))), seed) == twin
