"""Compaction plans: few files that are large enough, no byte rewritten too often, and no row lost while files move."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agent.sinks.common.compaction import Candidate, Plan, moved

_files = st.lists(
    st.builds(
        lambda at, size, rows, share: Candidate(str(at), size, rows, int(rows * share)),
        st.uuids(),
        st.integers(1, 400),
        st.integers(1, 100),
        st.floats(0, 1),
    ),
    max_size=60,
)


@given(_files)
def test_a_thorough_plan_leaves_few_files(files: list[Candidate]) -> None:
    plan = Plan(100).thorough()
    groups = list(plan.groups(files))
    chosen = [item.path for group in groups for item in group]
    assert len(set(chosen)) == len(chosen)
    left = [item for item in files if item.path not in set(chosen)]
    sizes = [item.live_bytes for item in left] + [sum(item.live_bytes for item in group) for group in groups]
    assert sum(size < 75 for size in sizes) <= 1, "but for the last one, files are large enough"
    assert all(item.lost_share < 0.02 for item in left)
    assert all(sum(item.live_bytes for item in group[:-1]) < 100 for group in groups)


@given(_files)
def test_a_plan_keeps_to_its_budget(files: list[Candidate]) -> None:
    groups = list(Plan(100, budget_bytes=500).groups(files))
    assert sum(item.bytes for group in groups[:-1] for item in group) <= 500 + 400 * 60
    assert all(
        len(group) >= 8 or sum(i.live_bytes for i in group) >= 100 or any(i.deleted for i in group) for group in groups
    )


def test_a_large_file_is_not_rewritten_for_a_few_small_ones() -> None:
    small = [Candidate(f"s{at}", 1, 10, 0) for at in range(9)]
    assert list(Plan(100).groups([Candidate("l", 60, 100, 0), *small])) == [small]
    assert next(Plan(100).groups([Candidate("l", 60, 100, 20), *small]))[0].path == "l"
    assert [len(group) for group in Plan(100).thorough().groups([Candidate("l", 60, 100, 0), *small])] == [10]


_sets = st.lists(st.tuples(st.sets(st.integers(0, 19)), st.sets(st.integers(0, 19))), min_size=1, max_size=4)


@given(_sets)
def test_rows_that_go_meanwhile_are_found_in_the_new_file(files: list[tuple[set[int], set[int]]]) -> None:
    """Against a list of all rows."""
    new_file = [(at, row) for at, (before, _) in enumerate(files) for row in range(20) if row not in before]
    rewritten = [(20, np.array(sorted(before), np.int64)) for before, _ in files]
    now = [np.array(sorted(before | meanwhile), np.int64) for before, meanwhile in files]
    gone = {new_file[place] for place in moved(rewritten, now).tolist()}
    assert gone == {(at, row) for at, (before, meanwhile) in enumerate(files) for row in meanwhile - before}
