"""Election, controller and owners on every store: what an implementation of TiCDC's cdcv2 metadata must keep.

Defects of the original, and the test that each of them fails:

- progress of a changefeed that moved, of any of two captures: ``test_of_two_captures_progress_the_furthest_counts``
- an owner that has ended stays Removing: ``test_a_move_takes_the_progress_along``
- a changefeed is cleaned up while it is owned: ``test_a_removed_changefeed_goes_with_its_assignment_and_another_of_its_
  name_is_new``; leftover progress: ``test_another_changefeed_of_the_same_name_begins_where_it_is_told``
- changes of the members are not seen, and a capture that dies under a running controller is never handled:
  ``test_owners_are_spread_move_when_a_capture_dies_and_are_evened_out``
- resuming clears neither error nor warning: ``test_resume_forgets_the_error`` (``tests/unit/owner/feed/test_state.py``)
- owners are compared by identity: ``test_each_cell`` (``tests/unit/owner/metadata/test_schedule.py``)
- the rest of the longer list is lost: ``test_what_is_left_of_the_longer_list_counts`` (as before)
- the owner of a dead capture's changefeed is not cleared, or its progress is lost if it has none:
  ``test_a_changefeed_of_a_dead_capture_is_launched_elsewhere_at_its_last_progress``
- polling misses late commits: ``test_a_watch_never_splits_a_transaction``; rows that were taken away:
  ``test_a_watch_tells_what_a_reader_needs_of_a_key`` (``tests/contracts/test_meta_store.py``), and
  ``test_a_capture_that_was_cut_off_past_its_lease_has_ended_before_its_changefeeds_are_owned_again``
"""

import anyio
import pytest

from owner import jobs
from owner.metadata.observations import OwnerObservation
from reactor import keys, patches
from reactor.effects import Commit
from reactor.errors import NotOwnerError, SessionDoneError
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.membership.election import Elector
from reactor.membership.session import open_session
from reactor.records.capture import Assignment, OwnerState
from reactor.records.changefeed import ChangefeedInfo, ChangefeedStatus
from reactor.state import ClusterState
from reactor.store.port import Compare, Delete, MetaStore, Put, Target
from reactor.txn import Seen, plan
from tests.contracts.metadata_bed import TTL_S, Line, cluster, until
from tests.contracts.store_bed import Store
from tests.patience import patient

#: many captures, and leases that have to end: daily on one store
pytestmark = pytest.mark.matrix


async def test_of_five_candidates_one_leads_and_it_moves(store: Store) -> None:
    """A sixth joins; who resigns comes last; who is cancelled is followed by the next."""
    led, scopes = list[str](), dict[str, anyio.CancelScope]()
    prefix, resigning = store / "election", dict[str, anyio.Event]()

    async with store.connect() as client, anyio.create_task_group() as tasks:

        async def stand(name: str) -> None:
            with anyio.CancelScope() as scopes[name]:
                async with open_session(client, ttl_s=TTL_S) as session:
                    election = Elector(client, session, prefix=prefix)
                    while True:
                        resigning[name] = anyio.Event()
                        await election.campaign(name)
                        assert (await client.txn([election.proof()], [Put(store / "led", name.encode())])).succeeded
                        led.append(name)
                        await resigning[name].wait()
                        await election.resign()

        async def candidates() -> list[str]:
            items = sorted((await client.get_prefix(prefix + "/")).items, key=lambda item: item.create_revision)
            return [item.value.decode() for item in items]

        async def until_candidates(*names: str) -> None:
            with anyio.fail_after(patient(30)):
                while await candidates() != list(names):  # noqa: ASYNC110 - of other processes
                    await anyio.sleep(0.05)

        names = list("abcde")
        for count, name in enumerate(names):
            tasks.start_soon(stand, name)
            await until_candidates(*names[: count + 1])
        tasks.start_soon(stand, "f")
        await until_candidates(*"abcdef")
        await until(lambda: led == ["a"])
        resigning["a"].set()
        await until(lambda: led == ["a", "b"])
        await until_candidates(*"bcdefa")
        scopes["b"].cancel()
        await until(lambda: led == ["a", "b", "c"])
        await until_candidates(*"cdefa")
        tasks.cancel_scope.cancel()


async def test_a_leader_whose_store_fails_has_ended_before_another_leads(store: Store) -> None:
    """And nobody leads earlier than one lease after its last renewal."""
    async with store.connect() as far, store.connect() as near, anyio.create_task_group() as tasks:
        line = Line(far)
        ended_at = cut_at = 0.0
        is_leading = anyio.Event()

        async def lead() -> None:
            nonlocal ended_at
            try:
                async with open_session(line, ttl_s=TTL_S) as session:
                    election = Elector(line, session, prefix=store / "election")
                    await election.campaign("far")
                    is_leading.set()
                    await session.run(anyio.sleep_forever)
            except SessionDoneError:
                ended_at = anyio.current_time()

        tasks.start_soon(lead)
        await is_leading.wait()
        async with open_session(near, ttl_s=TTL_S) as session:
            line.is_cut, cut_at = True, anyio.current_time()
            await Elector(near, session, prefix=store / "election").campaign("near")
            led_at = anyio.current_time()
        assert 0 < ended_at <= led_at, "the deposed one's work has ended"
        # it was renewed at most a third of the lease before the cut
        assert led_at - cut_at > TTL_S * 2 / 3 - 0.5
        tasks.cancel_scope.cancel()


async def test_two_that_begin_at_once_create_one_record_and_an_old_version_is_refused(store: Store) -> None:
    async with store.connect() as one, store.connect() as other:
        key, answers = store / "record", list[bool]()

        async def create(client: MetaStore) -> None:
            absent = Compare(key, Target.CREATE_REVISION, 0)
            answers.append((await client.txn([absent], [Put(key, b"1")])).succeeded)

        async with anyio.create_task_group() as tasks:
            for client in (one, other, one, other):
                tasks.start_soon(create, client)
        assert sorted(answers) == [False, False, False, True]
        item = await one.get(key)
        assert item is not None
        seen = Compare(key, Target.MOD_REVISION, item.mod_revision)
        assert (await other.txn([seen], [Put(key, b"2")])).succeeded
        assert not (await one.txn([seen], [Put(key, b"3")])).succeeded


async def test_a_deposed_leader_and_a_removed_owner_write_nothing(store: Store) -> None:
    """Also if they are deposed between their reading and their writing; an owner still writes while it is removed."""
    async with store.connect() as client, open_session(client, ttl_s=60) as session:
        election = Elector(client, session, prefix=store / "election")
        await election.campaign("a")
        proof = election.proof()
        assert (await client.txn([proof], [Put(store / "x", b"1")])).succeeded
        await election.resign()
        assert not (await client.txn([proof], [Put(store / "x", b"2")])).succeeded
        with pytest.raises(NotOwnerError):
            election.proof()

    async with cluster(store, []) as one:
        await one.create("f")
        id = ChangefeedId("f")

        async def read() -> ClusterState:
            state = ClusterState(one.id)
            state.load(await one.client.get_prefix(state.prefix))
            return state

        async def write(state: ClusterState, ts: int) -> bool:
            feed = state.changefeeds[id]
            status = ChangefeedStatus(checkpoint_ts=Ts(ts))
            key = keys.StatusKey(one.id, state.namespace, id)
            (fenced,) = OwnerObservation(feed, state).fenced([Commit(patches.group([patches.put_record(key, status)]))])
            assert isinstance(fenced, Commit)
            planned = plan(
                [Seen.of(fenced.group, state.raw)], state.raw, delete_count_key=str(keys.DeleteCountKey(one.id))
            )
            return (await one.client.txn(planned.txn.compares, planned.txn.operations)).succeeded

        owner = one.owner_key(id)
        await one.client.put(owner, Assignment(capture=CaptureId("a")).encode())
        assert await write(await read(), 6)
        await one.client.put(owner, Assignment(capture=CaptureId("a"), state=OwnerState.REMOVING).encode())
        assert await write(await read(), 7)
        before = await read()
        await one.client.txn([], [Delete(owner)])
        assert not await write(before, 8)
        await one.client.put(owner, Assignment(capture=CaptureId("b")).encode())
        assert not await write(before, 9)
        item = await one.client.get(one.status_key(id))
        assert item is not None
        assert b'"checkpoint_ts":7' in item.value


async def test_a_changefeed_of_a_dead_capture_is_launched_elsewhere_at_its_last_progress(store: Store) -> None:
    """It died while it was handing one over."""
    async with cluster(store, "ab") as one:
        await one.create("f", "g", checkpoint_ts=77)
        await one.until_owners({"a": 1, "b": 1})
        (id,) = [id for id, at in (await one.assignments()).items() if at.capture == "b"]
        dead = one.members.pop("b")
        dead.scope.cancel()
        key = one.owner_key(ChangefeedId(id))
        await one.client.put(key, Assignment(capture=CaptureId("b"), state=OwnerState.REMOVING).encode())
        before = await one.revision(id)
        await one.until_owners({"a": 2}, within_s=TTL_S + 5)
        assert (await one.assignments())[id] == Assignment(capture=CaptureId("a"))
        assert await one.revision(id) > before
        status = await one.client.get(one.status_key(ChangefeedId(id)))
        assert status is not None
        assert ChangefeedStatus.decode(status.value, key=status.key).checkpoint_ts == 77


async def test_a_capture_that_was_cut_off_past_its_lease_has_ended_before_its_changefeeds_are_owned_again(
    store: Store,
) -> None:
    async with cluster(store, "abc") as one:
        await one.create("f", "g", "h")
        await one.until_owners({"a": 1, "b": 1, "c": 1})
        controller = await one.controller()
        away = next(member for member in one.members.values() if member is not controller)
        away.line.is_cut = True
        rest = [name for name in "abc" if name != away.name]
        with anyio.fail_after(patient(TTL_S + 10)):
            while away.name in await one.owners():
                assert not away.ended_at or anyio.current_time() - away.ended_at < patient(10)
                await anyio.sleep(0.02)
        assert away.ended_at, "its session ended before its changefeeds were given away"
        away.line.is_cut = False
        await one.until_owned(3, rest)


async def test_owners_are_spread_move_when_a_capture_dies_and_are_evened_out(store: Store) -> None:
    feeds = [f"feed{number:03}" for number in range(100)]
    async with cluster(store, "abcde") as one:
        await one.create(*feeds)
        await one.until_owners(dict.fromkeys("abcde", 20))
        controller = await one.controller()
        victim = next(name for name, member in one.members.items() if member is not controller)
        one.members.pop(victim).scope.cancel()
        rest = [name for name in "abcde" if name != victim]
        await one.until_owners(dict.fromkeys(rest, 25), within_s=TTL_S + 5)
        before = {id: await one.revision(id) for id in feeds}
        await one.start("f")
        await one.until_owners(dict.fromkeys([*rest, "f"], 20), within_s=60)
        moved = [id for id in feeds if await one.revision(id) != before[id]]
        owners = await one.assignments()
        assert {owners[id].capture for id in moved} == {"f"}
        assert len(moved) == 20


async def test_a_changefeed_of_the_same_name_is_another_one(store: Store) -> None:
    async with cluster(store, "ab") as one:
        await one.create("f")
        await one.until_owners({"a": 1})
        key = str(keys.InfoKey(one.id, keys.DEFAULT_NAMESPACE, ChangefeedId("f")))
        first = await one.client.get(key)
        owner = one.members[(await one.assignments())["f"].capture]
        before = await one.revision("f")
        await owner.owners.submit(jobs.Remove("", ChangefeedId("f"), force=True))
        await one.until_gone("f")
        await one.create("f")
        await one.until_owners({"a": 1})
        second = await one.client.get(key)
        assert first is not None
        assert second is not None
        ids = [ChangefeedInfo.decode(item.value, key=key).incarnation for item in (first, second)]
        assert ids[0] != ids[1]
        assert await one.revision("f") > before


async def test_a_move_takes_the_progress_along(store: Store) -> None:
    async with cluster(store, "ab") as one:
        await one.create("f", checkpoint_ts=500)
        here = await one.until_launched("f")
        there = CaptureId("b" if here == "a" else "a")
        controller = await one.controller()
        await controller.candidacy.submit(jobs.MoveOwner("", ChangefeedId("f"), there))
        await one.until_owners({there: 1})
        status = await one.client.get(one.status_key(ChangefeedId("f")))
        assert status is not None
        assert ChangefeedStatus.decode(status.value, key=status.key).checkpoint_ts == 500
