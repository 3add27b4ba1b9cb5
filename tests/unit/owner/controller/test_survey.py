"""Survey of the controller: it plans again when what it plans from has changed, not when the head of a log moves."""

from owner.controller.controller import Controller
from owner.controller.hearing import Heard
from owner.controller.survey import Survey
from reactor import keys
from reactor.effects import Log
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.records.capture import Assignment, CaptureInfo, OwnerState
from reactor.records.changefeed import ChangefeedInfo, SealedUri, Unit, UnitRecord, UnitStage
from reactor.records.formats import NEWEST, ClusterFormat, Feature
from reactor.records.log_head import LogHead
from reactor.records.tables.table import TableRecord
from reactor.state import ClusterState

PLACE = ("c", "default", ChangefeedId("one"))
URI = SealedUri(masked="x", sealed="y")


def _state() -> ClusterState:
    state = ClusterState("c")
    state.update(str(keys.InfoKey(*PLACE)), ChangefeedInfo(id=PLACE[2], source=URI, sink=URI).encode(), mod_revision=1)
    return state


def _unit(tables: int) -> bytes:
    known = tuple(TableRecord(table_id=n, schema_name="s", name=f"t{n}", start_ts=Ts(1)) for n in range(tables))
    return UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=known).encode()


def test_it_plans_once_and_again_after_each_change_that_matters() -> None:
    state, survey = _state(), Survey()
    assignment, unit, head = keys.AssignmentKey(*PLACE), keys.UnitKey(*PLACE, "main"), keys.LogKey(*PLACE, "main")
    assert [survey.look(state, "shared") for _ in range(2)] == [True, False]

    def after(key: keys.Key, value: bytes | None, revision: int) -> bool:
        state.update(str(key), value, mod_revision=revision, create_revision=revision)
        has_changed = survey.look(state, "shared")
        assert not survey.look(state, "shared")
        return has_changed

    launched = Assignment(capture=CaptureId("a"), state=OwnerState.LAUNCHED)
    assert after(assignment, launched.encode(), 2)
    assert after(assignment, launched.with_(state=OwnerState.REMOVING).encode(), 3)
    assert after(unit, _unit(2), 4), "tables weigh"
    assert not after(head, LogHead(resolved_ts=Ts(5)).encode(), 5)
    assert after(assignment, b"unreadable", 6)
    assert after(assignment, None, 7)
    assert after(keys.InfoKey("c", "default", ChangefeedId("two")), None, 8) is False, "there was none"


def test_what_is_no_changefeed_matters_too() -> None:
    state, survey = _state(), Survey()
    assert [survey.look(state, shared) for shared in ("a", "a", "b")] == [True, False, True]


def test_a_changefeed_that_is_gone_matters() -> None:
    state, survey = _state(), Survey()
    survey.look(state, "shared")
    state.update(str(keys.InfoKey(*PLACE)), None, mod_revision=2)
    assert [survey.look(state, "shared") for _ in range(2)] == [True, False]


def test_after_a_plan_there_is_another_since_it_may_not_have_been_stored() -> None:
    state, survey = _state(), Survey()
    survey.look(state, "shared")
    survey.forget()
    assert [survey.look(state, "shared") for _ in range(2)] == [True, False]


def test_a_capture_that_is_not_heard_again_and_again_keeps_no_others_from_being_evened_out() -> None:
    """One whose process is too busy to answer in time is such a capture."""
    state, controller = ClusterState("c", removal_grace_s=0.0), Controller(CaptureId("a"), 1)
    state.update(str(keys.FormatKey("c")), ClusterFormat(number=Feature.OWNERS).encode(), mod_revision=1)
    for name in "abc":
        info = CaptureInfo(
            id=CaptureId(name), address="", peer_address="", version="", cluster_id="c", started_at=0.0, format=NEWEST
        )
        state.update(str(keys.CaptureKey("c", info.id)), info.encode(), mod_revision=2)
    for number in range(10):
        id, capture = ChangefeedId(f"f{number}"), CaptureId("a" if number < 8 else "c")
        state.update(
            str(keys.InfoKey("c", "default", id)), ChangefeedInfo(id=id, source=URI, sink=URI).encode(), mod_revision=3
        )
        owned = Assignment(capture=capture).encode()
        state.update(str(keys.AssignmentKey("c", "default", id)), owned, mod_revision=4, create_revision=4)
    removed = set[object]()
    for second in range(20):
        state.begin_tick(float(second))
        silent = frozenset({CaptureId("c")} if second % 4 == 3 else ())
        heard = Heard(frozenset(map(CaptureId, "bc")) - silent, silent)
        logged = [dict(one.fields) for one in controller.tick(state, [heard], float(second)) if isinstance(one, Log)]
        removed |= {fields["owner"] for fields in logged if fields.get("state") is OwnerState.REMOVING}
    assert "a" in removed, "it has eight of ten, and b none"
