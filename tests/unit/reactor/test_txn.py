"""Packing: groups are whole, each applied exactly once, and every decision is compared."""

import hypothesis
import pytest
from hypothesis import strategies as st

from reactor.errors import ConflictError, IgnorePatchError, InvalidRecordError, TxnTooLargeError
from reactor.patches import Patch, PatchGroup
from reactor.store.port import Compare, Delete, KeyValue, Put, Target
from reactor.txn import BYTES_MAX, OPERATIONS_MAX, Plan, Seen, plan

COUNTER = "/w/delete-count"


def base_of(**values: bytes) -> dict[str, KeyValue]:
    """Keys at revisions 1, 2, …"""
    return {key: KeyValue(key, value, n, n) for n, (key, value) in enumerate(values.items(), 1)}


def put(key: str, value: bytes = b"x") -> Patch:
    return Patch(key, lambda _old: value)


def delete(key: str) -> Patch:
    return Patch(key, lambda _old: None)


def add_one(key: str) -> Patch:
    return Patch(key, lambda old: b"%d" % (int(old or b"0") + 1))


def fail(error: Exception) -> Patch:
    def function(_old: bytes | None) -> bytes | None:
        raise error

    return Patch("failing", function)


def plan_of(base: dict[str, KeyValue], *groups: list[Patch], fences: tuple[Compare, ...] = ()) -> Plan:
    seen = [Seen.of(PatchGroup(tuple(patches)), base) for patches in groups]
    return plan(seen, base, delete_count_key=COUNTER, fences=fences)


def compared(planned: Plan) -> dict[str, int]:
    return {compare.key: compare.revision for compare in planned.txn.compares}


def commit(base: dict[str, KeyValue], planned: Plan, revision: int) -> None:
    """What etcd would do."""
    assert len(planned.txn.operations) <= OPERATIONS_MAX
    assert len(planned.txn.compares) <= OPERATIONS_MAX
    for operation in planned.txn.operations:
        match operation:
            case Put(key, value):
                base[key] = KeyValue(key, value, revision, revision)
            case Delete(key):
                del base[key]


def run_all(base: dict[str, KeyValue], groups: list[list[Patch]]) -> int:
    """Commit until nothing is left; the number of transactions."""
    left = tuple(Seen.of(PatchGroup(tuple(patches)), base) for patches in groups)
    rounds = 0
    while left:
        rounds += 1
        assert rounds <= len(groups), "no progress"
        planned = plan(left, base, delete_count_key=COUNTER)
        assert planned.taken
        commit(base, planned, 1000 + rounds)
        left = planned.left
    return rounds


def test_every_touched_key_and_the_counter_are_compared() -> None:
    planned = plan_of(base_of(a=b"1", b=b"2"), [put("a"), put("new")])
    assert compared(planned) == {"a": 1, "new": 0, COUNTER: 0}
    assert set(planned.txn.operations) == {Put("a", b"x"), Put("new", b"x")}


def test_a_patch_that_changes_nothing_is_not_written_but_compared_with_its_group() -> None:
    planned = plan_of(base_of(a=b"x", b=b"2"), [put("a"), put("b")])
    assert planned.txn.writes == {"b": b"x"}
    assert compared(planned) == {"a": 1, "b": 2, COUNTER: 0}


def test_groups_without_changes_need_no_transaction() -> None:
    planned = plan_of(base_of(a=b"x"), [put("a")], [delete("absent")], [])
    assert planned.txn.is_empty
    assert len(planned.taken) == 3
    assert not planned.left


def test_a_delete_raises_the_counter() -> None:
    base = base_of(a=b"1") | {COUNTER: KeyValue(COUNTER, b"41", 7, 9)}
    planned = plan_of(base, [delete("a")])
    assert planned.txn.operations == (Delete("a"), Put(COUNTER, b"42"))
    assert compared(planned) == {"a": 1, COUNTER: 9}


def test_the_first_delete_makes_the_counter() -> None:
    planned = plan_of(base_of(a=b"1"), [delete("a")])
    assert Put(COUNTER, b"1") in planned.txn.operations


def test_an_empty_value_is_not_a_deleted_key() -> None:
    planned = plan_of(base_of(a=b"1"), [put("a", b"")])
    assert planned.txn.operations == (Put("a", b""),)


def test_a_group_sees_what_the_groups_before_it_wrote() -> None:
    planned = plan_of({}, [add_one("n"), add_one("n")], [add_one("n")])
    assert planned.txn.operations == (Put("n", b"3"),)


def test_what_a_later_group_undoes_is_not_written() -> None:
    planned = plan_of(base_of(a=b"1"), [put("a", b"2")], [put("a", b"1")])
    assert planned.txn.is_empty


def test_a_group_of_exactly_128_operations_commits() -> None:
    base: dict[str, KeyValue] = {}
    planned = plan_of(base, [put(f"k{number:03}") for number in range(128)])
    commit(base, planned, 7)
    assert len(base) == 128
    again = plan_of(base, [put(f"k{number:03}", b"y") for number in range(128)])
    assert len(again.txn.operations) == 128
    assert compared(again) == {f"k{number:03}": 7 for number in range(128)}


def test_a_group_of_exactly_the_largest_size_commits() -> None:
    planned = plan_of({}, [put("k", bytes(BYTES_MAX - 2))])
    assert not planned.rejected
    assert len(planned.txn.operations) == 1


@pytest.mark.parametrize(
    "patches",
    [
        [put(str(number)) for number in range(129)],
        [put("k", bytes(BYTES_MAX - 1))],
    ],
)
def test_a_group_over_a_limit_is_rejected_alone(patches: list[Patch]) -> None:
    planned = plan_of({}, [put("before")], patches, [put("after")])
    first = planned if planned.rejected else plan(planned.left, {}, delete_count_key=COUNTER)
    assert [type(rejected.error) for rejected in first.rejected] == [TxnTooLargeError]
    assert first.txn.writes.keys() >= {"after"}


def test_a_group_that_does_not_fit_is_applied_exactly_once() -> None:
    """The overflowing group must not have touched the values it is evaluated on later."""
    base: dict[str, KeyValue] = {}
    big = [put(f"big{number}") for number in range(100)]
    overflow = [add_one("n"), put("once"), *(put(f"more{number}") for number in range(60))]
    assert run_all(base, [big, overflow, [add_one("n")]]) == 2
    assert base["n"].value == b"2"
    assert base["once"].value == b"x"


def test_order_is_kept_when_a_small_group_follows_one_that_does_not_fit() -> None:
    planned = plan_of({}, [put(f"a{n}") for n in range(100)], [put(f"b{n}") for n in range(100)], [put("c")])
    assert [len(seen.group.patches) for seen in planned.taken] == [100]
    assert [len(seen.group.patches) for seen in planned.left] == [100, 1]


def test_a_required_key_is_compared_as_the_tick_saw_it() -> None:
    base = base_of(a=b"1", guard=b"2")
    seen = Seen.of(PatchGroup((put("a"),), requires=("guard", "absent")), base)
    planned = plan([seen], base, delete_count_key=COUNTER)
    assert compared(planned) == {"a": 1, "guard": 2, "absent": 0, COUNTER: 0}
    base["guard"] = KeyValue("guard", b"3", 2, 10)
    again = plan([seen], base, delete_count_key=COUNTER)
    assert [type(rejected.error) for rejected in again.rejected] == [ConflictError]
    assert again.txn.is_empty


def test_an_ignored_patch_leaves_the_rest_of_its_group() -> None:
    planned = plan_of({}, [put("a"), fail(IgnorePatchError("not now")), put("b")])
    assert planned.txn.writes == {"a": b"x", "b": b"x"}


@pytest.mark.parametrize("error", [ConflictError("moved"), InvalidRecordError("broken")])
def test_a_failing_group_leaves_no_trace_on_the_others(error: Exception) -> None:
    planned = plan_of({}, [add_one("n")], [add_one("n"), fail(error)], [add_one("n")])
    assert planned.txn.operations == (Put("n", b"2"),)
    assert [rejected.error for rejected in planned.rejected] == [error]


def test_fences_are_in_every_transaction_and_count() -> None:
    fence = Compare("owner", Target.CREATE_REVISION, 3)
    planned = plan_of({}, [put(f"k{number:03}") for number in range(128)], fences=(fence,))
    assert fence in planned.txn.compares
    assert len(planned.txn.compares) <= OPERATIONS_MAX


def test_folded_compares_leave_known_keys_out() -> None:
    base = base_of(k050=b"")
    keys = [f"k{number:03}" for number in range(129) if number != 50]
    planned = plan_of(base, [put(key) for key in keys])
    ranges = [(compare.key, compare.last) for compare in planned.txn.compares if compare.last]
    assert ranges == [(COUNTER, "k049"), ("k051", "k128")]
    assert all(not key <= "k050" <= last for key, last in ranges)


@hypothesis.given(
    groups=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=60), max_size=30),
    deletions=st.sets(st.integers(0, 40)),
)
def test_any_groups_come_to_what_one_after_the_other_would(groups: list[list[int]], deletions: set[int]) -> None:
    expected: dict[str, int] = {}
    patches: list[list[Patch]] = []
    for numbers in groups:
        patches.append([])
        for number in numbers:
            key = f"k{number}"
            if number in deletions and key in expected:
                del expected[key]
                patches[-1].append(delete(key))
            else:
                expected[key] = expected.get(key, 0) + 1
                patches[-1].append(add_one(key))
    base: dict[str, KeyValue] = {}
    run_all(base, patches)
    base.pop(COUNTER, None)
    assert {key: int(item.value) for key, item in base.items()} == expected
