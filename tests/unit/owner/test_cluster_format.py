"""A cluster's format: raised when all know it, never back, and nothing new is stored before."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owner import cluster_format, jobs
from owner.settings import OwnerSettings
from reactor import keys
from reactor.effects import Commit
from reactor.errors import ConflictError, FormatError
from reactor.ids import CaptureId
from reactor.records import formats
from reactor.records.base import later
from reactor.records.capture import CaptureInfo
from reactor.records.changefeed import ChangefeedConfig, EventFilter, FilterConfig
from reactor.records.formats import ClusterFormat
from reactor.state import ClusterState
from reactor.store.port import Event
from reactor.txn import Seen, plan
from tests.unit.owner.owner_build import FEED, A, B, C, info
from tests.unit.owner.small_cluster import CLUSTER, SmallCluster

MARK = str(keys.LogStorageKey(CLUSTER))
KEY = keys.FormatKey(CLUSTER)


def member(cluster: SmallCluster, capture: CaptureId, number: int) -> None:
    found = CaptureInfo(
        id=capture, address="h:1", peer_address="h:2", version="x", cluster_id=CLUSTER, started_at=0.0, format=number
    )
    cluster.put(keys.CaptureKey(CLUSTER, capture), found)


def test_it_is_raised_when_the_last_old_capture_has_left() -> None:
    cluster = SmallCluster(A, B, settings=OwnerSettings())
    cluster.put_raw(MARK, b"test:0123")
    member(cluster, A, 2)
    cluster.step(4)
    assert cluster.state.format == 1, "B is of v0.1.0"
    assert cluster.state.raw[MARK].value == b"test:0123"
    cluster.leave(B)
    cluster.step(2)
    assert cluster.state.format == 2
    assert cluster.state.raw[MARK].value == b"format-2 test:0123", (
        "what a capture of v0.1.0 compares, and does not find"
    )
    revision = cluster.state.revision
    cluster.step(4)
    assert cluster.state.revision == revision, "once"


def test_nothing_is_given_to_a_capture_that_does_not_know_the_format() -> None:
    cluster = SmallCluster(A, B, settings=OwnerSettings())
    for capture in (A, B):
        member(cluster, capture, 2)
    cluster.step(1)
    cluster.join(C)  # of v0.1.0: it does not look
    cluster.create()
    for _ in range(2):
        cluster.step(4)
        cluster.finish_unit()
    cluster.step(12)
    assert cluster.state.format == 2
    assert {capture for holders in cluster.writers().values() for capture in holders} == {A, B}


@given(number=st.integers(1, formats.NEWEST), known=st.lists(st.integers(1, formats.NEWEST + 2), max_size=4))
def test_it_never_goes_back_nor_past_what_anybody_knows(number: int, known: list[int]) -> None:
    after = formats.raised(number, known)
    assert after >= number
    assert after == number or (after <= formats.NEWEST and all(after <= one for one in known))


def commits_of(state: ClusterState) -> Sequence[Commit]:
    return [effect for effect in cluster_format.tick(state) if isinstance(effect, Commit)]


def test_a_capture_that_joins_or_leaves_meanwhile_makes_the_raise_fail() -> None:
    cluster = SmallCluster(A, settings=OwnerSettings())
    member(cluster, A, 2)
    cluster.state.begin_tick(0.0)
    [raise_] = commits_of(cluster.state)
    seen = Seen.of(raise_.group, cluster.state.raw)
    before = {
        compare.key: compare.revision for compare in plan([seen], cluster.state.raw, delete_count_key="d").txn.compares
    }
    assert before[str(KEY)] == 0, "who joins writes this key"
    member(cluster, A, 1)
    [rejected] = plan([seen], cluster.state.raw, delete_count_key="d").rejected
    assert isinstance(rejected.error, ConflictError)


def test_a_format_that_cannot_be_read_is_not_written_over() -> None:
    cluster = SmallCluster(A, settings=OwnerSettings())
    cluster.put_raw(str(KEY), b"garbage")
    member(cluster, A, 2)
    cluster.step(2)
    assert cluster.state.raw[str(KEY)].value == b"garbage"
    cluster.state.apply([Event(str(KEY), ClusterFormat(number=2).encode(), 99, 99)])
    assert cluster.state.format == 2


class NextFilter(FilterConfig):
    """With what a later version may have added."""

    colour: str = later("", format=3)


class NextConfig(ChangefeedConfig):
    filter: FilterConfig = NextFilter()
    deadline: int = later(5)


def test_a_setting_that_older_captures_refuse_waits_for_the_format() -> None:
    assert formats.needed_by(NextConfig()) == {}
    assert formats.needed_by(NextConfig(deadline=6)) == {"deadline": 2}
    assert formats.needed_by(NextConfig(filter=NextFilter(colour="red"))) == {"colour": 3}
    assert formats.needed_by(ChangefeedConfig(filter=FilterConfig(event_filters=(EventFilter(),)))) == {}
    events = EventFilter(ignore_event=("delete", "Drop table  partition"))
    assert formats.needed_by(ChangefeedConfig(filter=FilterConfig(event_filters=(events,)))) == {
        "ignore-event 'drop table partition'": 19
    }
    assert b"deadline" not in NextConfig().encode(), "what has its default is not written"
    with pytest.raises(FormatError, match=r"deadline needs format 2, and the cluster uses 1: upgrade all captures"):
        formats.refuse_early("deadline", 2, 1)


def test_an_update_that_older_captures_could_not_read_is_refused() -> None:
    cluster = SmallCluster(A, settings=OwnerSettings())
    cluster.create(info())
    cluster.step(2)
    cluster.jobs.append(jobs.Pause("p", FEED))
    cluster.step(2)
    cluster.jobs.append(jobs.Update("u", FEED, config=NextConfig(deadline=6)))
    cluster.step(2)
    assert "deadline needs format 2" in cluster.answers["u"].error
    cluster.jobs.append(jobs.Update("w", FEED, needs=(("column_mapping", 18),)))
    cluster.step(2)
    assert "option column_mapping of the sink needs format 18" in cluster.answers["w"].error
    member(cluster, A, 2)
    cluster.step(2)
    cluster.jobs.append(jobs.Update("v", FEED, config=NextConfig(deadline=6)))
    cluster.step(2)
    assert cluster.answers["v"].error == ""
