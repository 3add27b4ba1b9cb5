"""The command line against a real HTTP server over a cluster in memory: what is printed, where, and the exit code."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from capture.api.port import KeyRepair, TableDiff, TableRepair, TableResyncView
from capture.cli import secrets, tables
from capture.cli.main import main
from capture.config import ServerSettings, load_server_settings
from capture.embedded.places import free_port
from capture.errors import ConfigError, JobRefusedError
from capture.security.key_file import make_file, read_keys
from capture.security.secrets import Keeper
from capture.server import running
from capture.terminal import console
from reactor import failpoints
from reactor.errors import StoreUnreachableError
from reactor.records.changefeed import FeedState, RunningError
from reactor.views import ChangefeedView, HeldView, ResyncView, TableView
from tests.unit.capture.fakes import MemoryCluster, MemoryMember

URIS = ["--source-uri", "postgresql://u:geheim@h/d", "--sink-uri", "delta+file:///lake"]


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemoryMember]:
    """A server in a thread with a loop of its own."""
    with anyio.from_thread.start_blocking_portal() as portal:
        directory = tmp_path_factory.mktemp("server")
        settings = load_server_settings(etcd="http://127.0.0.1:1", addr="127.0.0.1:0", data_dir=directory)
        member = MemoryMember(settings)

        def new(settings: ServerSettings) -> MemoryMember:
            member.settings = settings
            return member

        with portal.wrap_async_context_manager(running(settings, new_member=new)):
            yield member


@pytest.fixture(autouse=True)
def _quiet_server() -> Iterator[None]:
    """It runs in this process, and must not log between what commands print."""
    with capture_logs():
        yield


@pytest.fixture(autouse=True)
def cluster(member: MemoryMember, monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    monkeypatch.setenv("WEIR_SERVER", f"http://{member.settings.addr}")
    monkeypatch.delenv("WEIR_DEBUG", raising=False)
    member.cluster.__init__()  # type: ignore[misc]
    return member.cluster


def test_a_changefeed_from_creation_to_removal(capsys: pytest.CaptureFixture[str], cluster: MemoryCluster) -> None:
    assert main(["changefeed", "create", "-c", "feed", *URIS]) == 0
    assert capsys.readouterr().out == "changefeed feed is created: postgresql://u:***@h/d → delta+file:///lake\n"
    assert main(["changefeed", "pause", "-c", "feed"]) == 0
    assert main(["changefeed", "resume", "-c", "feed", "--overwrite-checkpoint-ts", "9"]) == 0
    assert main(["changefeed", "pause", "-c", "feed"]) == 0
    assert main(["changefeed", "resume", "-c", "feed", "--resync", "--wait"]) == 0
    assert main(["changefeed", "query", "-c", "feed"]) == 0
    assert "checkpoint_ts  9" in capsys.readouterr().out
    assert main(["changefeed", "list"]) == 0
    assert "feed" in capsys.readouterr().out
    assert main(["changefeed", "remove", "-c", "feed"]) == 0
    assert cluster.feeds == {}


@pytest.mark.sample(0.2)
@pytest.mark.parametrize(
    "command",
    [
        ["changefeed", "create", "-c", "new", *URIS],
        ["changefeed", "list"],
        ["changefeed", "query", "-c", "feed"],
        ["changefeed", "pause", "-c", "feed"],
        ["changefeed", "remove", "-c", "feed"],
        ["changefeed", "update", "-c", "stopped", "--sink-uri", "delta+file:///new"],
        ["changefeed", "rewind", "-c", "stopped", "--ts", "7"],
        ["changefeed", "move-table", "-c", "feed", "--table", "public.t", "--capture", "capture-1"],
        ["changefeed", "split", "-c", "feed", "--table", "public.t"],
        ["table", "resync", "-c", "feed", "--table", "public.t"],
        ["changefeed", "join", "-c", "feed", "--table", "public.t"],
        ["changefeed", "rebalance", "-c", "feed"],
        ["capture", "list"],
        ["capture", "drain", "capture-1"],
        ["capture", "drain", "capture-1", "--timeout", "0"],
        ["owner", "resign"],
        ["tables", "-c", "feed"],
        ["changefeed", "sync-points", "-c", "feed"],
        ["diff", "-c", "feed"],
        ["repair", "-c", "feed"],
        ["version"],
    ],
    ids=lambda command: "-".join(command[:2]),
)
def test_json_is_one_document_on_stdout(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["changefeed", "create", "-c", "feed", *URIS]) == 0
    assert main(["changefeed", "create", "-c", "stopped", *URIS]) == 0
    assert main(["changefeed", "pause", "-c", "stopped"]) == 0
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert captured.err == ""
    assert "geheim" not in captured.out


def test_a_changefeed_that_runs_is_paused_to_be_changed_and_continues(
    capsys: pytest.CaptureFixture[str], cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["changefeed", "create", "-c", "feed", *URIS]) == 0
    change = ["changefeed", "update", "-c", "feed", "--sink-uri", "delta+file:///new", "--restart"]
    assert main(change) == 0
    assert "changefeed feed is changed\n" in capsys.readouterr().out
    assert state_of(cluster) == "normal"
    with monkeypatch.context() as patched:
        patched.setattr(MemoryCluster, "update", refused)
        assert main(change) == 1
    assert state_of(cluster) == "normal"
    assert main(["changefeed", "pause", "-c", "feed"]) == 0
    assert state_of(cluster) == "stopped"


async def refused(*_: object) -> None:
    raise JobRefusedError("the sink does not answer; try again")


def state_of(cluster: MemoryCluster) -> str:
    return cluster.feeds["feed"].state.value


def test_a_table_that_is_copied_again_is_waited_for(
    capsys: pytest.CaptureFixture[str], cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["changefeed", "create", "-c", "feed", *URIS]) == 0
    resync = ["table", "resync", "-c", "feed", "--table", "public.t"]
    copying = ResyncView(table="public.t", table_id=1, stage="copying", rows_done=5, rows_total=9, seconds_left=2.0)
    held = HeldView(table="public.t", table_id=1, stage="held", code="TableHeld")
    feed = cluster.feeds["feed"]
    for last, code, said in ((), 0, "flows"), ((held,), 1, "is held; `weir tables` shows why"):
        answers = iter([{"resyncs": (copying,)}, {"resyncs": (copying,), "held": (held,)}, {"held": last}])

        async def query(_: MemoryCluster, id: str, *, tables: bool = True, answers: Any = answers) -> ChangefeedView:
            return feed.model_copy(update=next(answers))

        with monkeypatch.context() as patched:
            patched.setattr(MemoryCluster, "query", query)
            patched.setattr(tables, "_POLL_S", 0.0)
            patched.setattr(MemoryCluster, "resync_table", resynced)
            capsys.readouterr()
            assert main([*resync, "--wait"]) == code
        assert capsys.readouterr().out == f"public.t {said}\n"
    assert main(resync) == 0
    assert "public.t is copied again; `weir changefeed query -c feed`" in capsys.readouterr().out
    assert main([*resync, "--cancel"]) == 0
    assert capsys.readouterr().out == "public.t is left as it is\n"
    assert main([*resync, "--rows-per-second", "500"]) == 0
    assert cluster.limits == [None, 500]
    assert main([*resync, "--rows-per-second", "5"]) == 2, "a server would not wait so long"


def test_a_table_that_is_gone_before_it_joins_is_not_waited_for(
    capsys: pytest.CaptureFixture[str], cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["changefeed", "create", "-c", "feed", *URIS]) == 0
    feed = cluster.feeds["feed"]
    answers = iter([{"joining": ("public.t",)}, {}])

    async def query(_: MemoryCluster, id: str, *, tables: bool = True) -> ChangefeedView:
        return feed if tables else feed.model_copy(update=next(answers))

    with monkeypatch.context() as patched:
        patched.setattr(MemoryCluster, "query", query)
        patched.setattr(tables, "_POLL_S", 0.0)
        patched.setattr(MemoryCluster, "resync_table", resynced)
        assert main(["table", "resync", "-c", "feed", "--table", "public.t", "--wait"]) == 1
    assert "public.t is gone from the source of changefeed feed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "waiting", [{"joining": ("public.t",)}, {"resyncs": (ResyncView(table="public.t", table_id=1, stage="asked"),)}]
)
@pytest.mark.parametrize(
    ("state", "error", "cure"),
    [
        (FeedState.STOPPED, None, "`weir changefeed resume -c feed` continues it"),
        (FeedState.FAILED, "the slot is gone; `weir changefeed resume --resync` takes a new position", "--resync"),
    ],
)
def test_a_table_of_a_changefeed_that_stands_still_is_not_waited_for(
    capsys: pytest.CaptureFixture[str],
    cluster: MemoryCluster,
    monkeypatch: pytest.MonkeyPatch,
    waiting: dict[str, Any],
    state: FeedState,
    error: str | None,
    cure: str,
) -> None:
    """The command waited for ever after the position was lost."""
    assert main(["changefeed", "create", "-c", "feed", *URIS]) == 0
    shown = RunningError(time=0.0, code="PositionLost", message=error) if error else None
    feed = cluster.feeds["feed"].model_copy(update={**waiting, "state": state, "error": shown})

    async def query(_: MemoryCluster, id: str, *, tables: bool = True) -> ChangefeedView:
        return feed

    monkeypatch.setattr(MemoryCluster, "query", query)
    monkeypatch.setattr(MemoryCluster, "resync_table", resynced)
    assert main(["table", "resync", "-c", "feed", "--table", "public.t", "--wait"]) == 1
    said = capsys.readouterr().err
    assert f"changefeed feed is {state}, and copies tables when it runs again" in said
    assert cure in said


def test_how_far_a_copy_is(capsys: pytest.CaptureFixture[str], cluster: MemoryCluster) -> None:
    assert main(["changefeed", "create", "-c", "feed", *URIS]) == 0
    copying = ResyncView(
        table="public.t",
        table_id=1,
        stage="copying",
        rows_done=5_000,
        rows_total=9_000,
        seconds_left=2.0,
        rows_per_second=2_000.0,
        code="SourceUnreachable",
        message="it was away",
    )
    feed = cluster.feeds["feed"]
    cluster.feeds["feed"] = feed.model_copy(
        update={"tables": (TableView(table="public.t", table_id=1, resync=copying),), "resyncs": (copying,)}
    )
    said = "copying, 5,000 of 9,000 rows, 2,000 rows/s, 2 s left; SourceUnreachable: it was away"
    assert tables.progress(copying) == said
    capsys.readouterr()
    assert main(["tables", "-c", "feed"]) == 0
    assert said in capsys.readouterr().out
    assert main(["tables", "-c", "feed", "--json"]) == 0
    [shown] = json.loads(capsys.readouterr().out)
    assert (shown["resync"]["rows_per_second"], shown["resync"]["rows_total"]) == (2_000.0, 9_000)
    assert main(["tables", "-c", "feed", "--table", "public.t", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [shown]
    assert main(["tables", "-c", "feed", "--table", "public.u"]) == 1
    assert capsys.readouterr().err == "error: changefeed feed has no table public.u; `weir tables` shows which it has\n"


def test_some_rows_of_a_table_are_copied_again(capsys: pytest.CaptureFixture[str], cluster: MemoryCluster) -> None:
    assert main(["changefeed", "create", "-c", "feed", *URIS]) == 0
    keys = (KeyRepair(key={"id": "7"}, what="updated", columns=("note",)),)
    cluster.repairs = [TableRepair(table="a.t", ts=5, keys=keys), TableRepair(table="a.u", ts=5)]
    some = ["table", "resync", "-c", "feed", "--table", "a.t", "--where", "note LIKE 'x%'"]
    capsys.readouterr()
    assert main([*some, "--rows-per-second", "500"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "rows repaired: 1"
    assert main(["repair", "-c", "feed", "--table", "a.t", "--where", "id = 7", "--dry-run"]) == 1
    assert (cluster.conditions, cluster.limits) == (["note LIKE 'x%'", "id = 7"], [500, None])
    assert main([*some, "--cancel"]) == 1
    assert "cannot be cancelled" in capsys.readouterr().err


def test_a_part_of_each_table_is_compared(capsys: pytest.CaptureFixture[str], cluster: MemoryCluster) -> None:
    assert main(["changefeed", "create", "-c", "feed", *URIS]) == 0
    cluster.diffs = [TableDiff(table="a.t", equal=True)]
    capsys.readouterr()
    assert main(["diff", "-c", "feed", "--sample", "0.25", "--rows-per-second", "1000"]) == 0
    assert "a.t compared in part: 25.0% of the ranges of its key" in capsys.readouterr().out
    assert cluster.limits == [1000]
    assert main(["diff", "-c", "feed", "--sample", "0"]) == 1
    assert "sample is wrong" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["diff"], "`weir diff -c feed --continue` compares what is left"),
        (["repair"], "tables that have been repaired stay so; for the others run it again"),
        (["repair", "--dry-run"], "nothing was changed"),
    ],
)
def test_ctrl_c_during_a_comparison_says_how_to_continue(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("capture.api.client.Client._call", interrupted)
    assert main([*arguments, "-c", "feed"]) == 130
    assert capsys.readouterr().err == f"warning: interrupted; {line}\n"


def test_a_table_is_paused_resumed_and_skips_what_was_confirmed(
    capsys: pytest.CaptureFixture[str], cluster: MemoryCluster
) -> None:
    assert main(["changefeed", "create", "-c", "feed", *URIS]) == 0
    of_table = ["-c", "feed", "--table", "public.t"]
    capsys.readouterr()
    assert main(["table", "pause", *of_table]) == 0
    assert capsys.readouterr().out == "public.t is paused at 7; `weir table resume` continues it\n"
    assert main(["table", "resume", *of_table]) == 0
    assert "public.t continues from 7" in capsys.readouterr().out
    assert main(["table", "files", *of_table]) == 0
    assert "25 (12.5%)" in capsys.readouterr().out
    assert main(["table", "add", *of_table]) == 0
    assert "public.t joins, and is copied" in capsys.readouterr().out
    assert main(["table", "add", *of_table, "--wait"]) == 0
    assert capsys.readouterr().out == "public.t flows\n"
    assert main(["table", "remove", *of_table]) == 0
    assert capsys.readouterr().out == "public.t is no longer replicated; the sink's table stays as it is\n"
    assert main(["table", "skip", *of_table, "--ts", "9"]) == 1
    assert capsys.readouterr().err == "error: confirm that\n"
    assert main(["table", "skip", *of_table, "--ts", "9", "--yes"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "public.t continues behind 9\n"
    assert "warning: changes are left out\n" in shown.err
    assert main(["table", "skip", *of_table, "--ts", "9", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notices"] == ["changes are left out"]


async def resynced(
    _: MemoryCluster, changefeed_id: str, table: str, *, rows_per_second: int | None = None
) -> TableResyncView:
    return TableResyncView(changefeed_id=changefeed_id, table=table)


def test_operators_commands_say_what_they_did(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cluster: MemoryCluster
) -> None:
    assert main(["changefeed", "create", "-c", "feed", *URIS]) == 0
    assert main(["changefeed", "update", "-c", "feed", "--target-ts", "9"]) == 1
    assert capsys.readouterr().err == "error: changefeed feed is running; pause it first\n"
    assert main(["changefeed", "pause", "-c", "feed"]) == 0
    (tmp_path / "feed.toml").write_text("gc-ttl-seconds = 60\n")
    config = ["--config", str(tmp_path / "feed.toml")]
    assert main(["changefeed", "update", "-c", "feed", "--sink-uri", "delta+file:///new", *config]) == 0
    assert cluster.updates[0].config is not None
    assert cluster.updates[0].config.gc_ttl_seconds == 60
    assert "changefeed feed is changed; resume it" in capsys.readouterr().out
    assert main(["changefeed", "update", "-c", "feed"]) == 0
    assert capsys.readouterr().out == "changefeed feed has these settings already\n"
    assert main(["changefeed", "rewind", "-c", "feed", "--ts", "5"]) == 0
    assert "changefeed feed is at 5; resume it" in capsys.readouterr().out
    assert main(["changefeed", "split", "-c", "feed", "--table", "public.t", "--spans", "4"]) == 0
    assert capsys.readouterr().out == "public.t: 1 table spans become 4\n"
    assert main(["changefeed", "join", "-c", "feed", "--table", "public.t"]) == 0
    assert capsys.readouterr().out == "public.t has 1 table spans already\n"
    assert main(["owner", "resign"]) == 0
    assert capsys.readouterr().out == "capture capture-1 has resigned; the owner is capture-2\n"


def test_drain_waits_until_the_capture_is_empty(
    capsys: pytest.CaptureFixture[str], cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capture.cli.members._POLL_S", 0.001)
    assert main(["capture", "drain", "capture-1"]) == 0
    assert (capsys.readouterr().out, cluster.load) == ("capture capture-1 is empty: stop or restart it\n", 0)
    cluster.load = 1_000
    assert main(["capture", "drain", "capture-1", "--timeout", "0.001"]) == 1
    assert capsys.readouterr().err.startswith("error: capture capture-1 still has 9")


def test_secrets_come_on_standard_input(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    create = ["changefeed", "create", "-c", "feed", "--sink-uri", "-", "--source-uri"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("a b@/c\ndelta+file:///lake\n"))
    assert main([*create, "postgresql://u@h/d", "--ask-password"]) == 0
    spec = cluster.specs["feed"]
    assert (spec.source_uri, spec.sink_uri) == ("postgresql://u:a%20b%40%2Fc@h/d", "delta+file:///lake")
    monkeypatch.setattr(sys, "stdin", io.StringIO("postgresql://u:p@h/d\ndelta+file:///lake\n"))
    assert main(["changefeed", "update", "-c", "feed", "--source-uri", "-", "--dry-run"]) == 1  # it runs
    cluster.feeds.clear()
    monkeypatch.setattr(sys, "stdin", io.StringIO("postgresql://u:p@h/d\ndelta+file:///lake\n"))
    assert main([*create, "-"]) == 0
    assert cluster.specs["feed"].source_uri == "postgresql://u:p@h/d"


@pytest.mark.parametrize(
    ("given", "typed", "reason"),
    [
        (["--source-uri", "-"], "", "no source URI was given"),
        (["--source-uri", "postgresql://u@h/d", "--ask-password"], "\n", "no password of the source's user was given"),
        (["--source-uri", "postgresql://u:p@h/d", "--ask-password"], "x\n", "no password beside the one"),
        (["--source-uri", "postgresql://h/d", "--ask-password"], "x\n", "must name a user"),
    ],
)
def test_secrets_that_do_not_come(
    given: list[str],
    typed: str,
    reason: str,
    cluster: MemoryCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert main(["changefeed", "create", "-c", "feed", "--sink-uri", "delta+file:///lake", *given]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert reason in shown
    assert shown.count("\n") == 1
    assert cluster.specs == {}


def test_a_key_is_added_and_the_change_waits_for_captures(
    cluster: MemoryCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "_POLL_S", 0.0)
    file = tmp_path / "secret.key"
    make_file(file)
    assert main(["secret", "new-key", str(file)]) == 0
    assert read_keys(file)[-1].decode() not in capsys.readouterr().out
    assert len(Keeper.from_file(file).fingerprints) == 2
    cluster.lacking = ("capture-1", "capture-2", "capture-3")
    assert main(["secret", "rotate", "--timeout", "0"]) == 1
    assert "is not at every capture; give it to: capture-2; capture-3" in capsys.readouterr().err
    assert main(["secret", "rotate"]) == 0
    assert "(2 changefeeds sealed again)" in capsys.readouterr().out
    assert main(["secret", "new-key", str(tmp_path / "none")]) == 1
    assert "cannot read the secret key file" in capsys.readouterr().err


def test_a_check_creates_nothing(capsys: pytest.CaptureFixture[str], cluster: MemoryCluster) -> None:
    cluster.notices = ("mind the gap",)
    assert main(["changefeed", "create", "-c", "feed", *URIS, "--check"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "changefeed feed can be created: postgresql://u:***@h/d → delta+file:///lake\n"
    assert shown.err == "warning: mind the gap\n"
    assert main(["changefeed", "create", "-c", "feed", *URIS, "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notices"] == ["mind the gap"]
    assert cluster.feeds == {}
    assert main(["changefeed", "create", "-c", "feed", *URIS]) == 0
    assert main(["changefeed", "create", "-c", "feed", *URIS, "--check"]) == 1
    assert "feed exists" in capsys.readouterr().err


def test_what_create_has_found_out_is_a_warning(capsys: pytest.CaptureFixture[str], cluster: MemoryCluster) -> None:
    cluster.notices = ("this table will be held: table a... cannot be a directory",)
    assert main(["changefeed", "create", "-c", "feed", *URIS]) == 0
    shown = capsys.readouterr()
    assert shown.err == "warning: this table will be held: table a... cannot be a directory\n"
    assert shown.out.startswith("changefeed feed is created")
    assert main(["changefeed", "create", "-c", "other", *URIS, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notices"] == [*cluster.notices]


def test_differences_are_not_success(capsys: pytest.CaptureFixture[str], cluster: MemoryCluster) -> None:
    assert main(["changefeed", "create", "-c", "feed", *URIS]) == 0
    cluster.diffs = [TableDiff(table="a.t", equal=True), TableDiff(table="a.u", equal=False, differences=("id=7",))]
    assert main(["diff", "-c", "feed"]) == 1
    assert "id=7" in capsys.readouterr().out
    assert main(["diff", "-c", "feed", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["equal"], document["waiting"], document["tables"][1]["table"]) == (False, 0, "a.u")


def test_rows_that_would_be_repaired_are_shown_and_written(
    capsys: pytest.CaptureFixture[str], cluster: MemoryCluster, tmp_path: Path
) -> None:
    assert main(["changefeed", "create", "-c", "feed", *URIS]) == 0
    keys = (KeyRepair(key={"id": "7"}, what="updated", columns=("note",)), KeyRepair(key={"id": "9"}, what="deleted"))
    cluster.repairs = [TableRepair(table="a.t", ts=5, keys=keys), TableRepair(table="a.u", refused="it has no key")]
    file = tmp_path / "rows.parquet"
    capsys.readouterr()
    assert main(["repair", "-c", "feed", "--table", "a.t", "--dry-run", "--parquet", str(file)]) == 1
    shown = capsys.readouterr().out
    assert "id=7" in shown
    assert shown.splitlines()[-1] == "rows that differ: 2"
    assert pq.read_table(file).to_pylist() == [
        {"table": "a.t", "ts": 5, "key": [("id", "7")], "what": "updated", "columns": ["note"]},
        {"table": "a.t", "ts": 5, "key": [("id", "9")], "what": "deleted", "columns": []},
    ]
    assert main(["repair", "-c", "feed", "--table", "a.t"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "rows repaired: 2"
    assert main(["repair", "-c", "feed"]) == 1
    assert "a.u is left as it is: it has no key" in capsys.readouterr().out
    cluster.conditions.clear()
    assert main(["repair", "-c", "feed", "--parquet", str(tmp_path / "none" / "x")]) == 1
    assert "no such directory; choose another file" in capsys.readouterr().err
    assert main(["repair", "-c", "feed", "--parquet", str(tmp_path)]) == 1
    assert "it is a directory" in capsys.readouterr().err
    assert cluster.conditions == [], "nothing was repaired"


def test_tables_that_wait_are_not_success(capsys: pytest.CaptureFixture[str], cluster: MemoryCluster) -> None:
    assert main(["changefeed", "create", "-c", "feed", *URIS]) == 0
    why = "at 7, not yet at 9: schema change at 8 is not in the sink yet"
    cluster.diffs = [TableDiff(table="a.t", equal=True, ts=9), TableDiff(table="a.u", equal=False, waiting=why)]
    capsys.readouterr()
    assert main(["diff", "-c", "feed"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any("a.u" in line and "waiting" in line and why in line for line in lines)
    assert lines[-1] == "1 of 2 tables not compared: waiting"
    assert main(["diff", "-c", "feed", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["equal"], document["waiting"], document["tables"][1]["waiting"]) == (False, 1, why)


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["changefeed", "query", "-c", "none"], 1, "error: no changefeed none; see `weir changefeed list`"),
        (["changefeed", "query", "-c", "a/../b"], 1, "error: changefeed id 'a/../b' is malformed"),
        (["changefeed", "create", "-c", "a_b", *URIS], 1, "error: changefeed id 'a_b' is malformed"),
        (
            ["changefeed", "create", "-c", "a", *URIS, "--mode", "some"],
            2,
            "error: invalid value for '--mode': 'some' is not one of",
        ),
        (["changefeed", "create", "-c", "a", *URIS, "--config", "/none"], 1, "error: cannot read /none (No such file"),
        (["changefeed", "query"], 2, "error: missing option '--changefeed-id'"),
        (["changefeed", "rewind", "-c", "a"], 2, "error: missing option '--ts'"),
        (["capture", "drain", "none"], 1, "error: no capture none; see `weir capture list`"),
        (["changefeed", "qery"], 2, "error: no such command 'qery'"),
        (["tables", "-c", "a", "--server", "127.0.0.1:1"], 1, "error: no Weir server at http://127.0.0.1:1"),
        (["server", "--config", "/none.toml"], 1, "error: cannot read /none.toml"),
        (["server", "--addr", "x"], 1, "error: 'addr' in --addr: 'x' is not host:port"),
        (
            ["changefeed", "create", "-c", "a", *URIS, "--start-ts", "9" * 40],
            2,
            "error: invalid value for '--start-ts'",
        ),
        (["changefeed", "split", "-c", "a", "--table", "b.c", "--spans", "0"], 2, "error: invalid value for '--spans'"),
        (["changefeed", "query", "-c", "\x1b[31m"], 1, "error: changefeed id '\\x1b[31m' is malformed"),
        (["capture", "drain", "a\x1b[31m\nb"], 1, "error: the path has a character that cannot be shown;"),
        (
            ["changefeed", "list", "--server", "http://u:geheim@127.0.0.1:1"],
            1,
            "error: no Weir server at http://u:***@",
        ),
        (["changefeed", "list", "--server", "http://[::1"], 1, "error: no Weir server at http://[::1"),
        (["log", "inspect", "s9://bucket/file"], 1, "error: segment s9://bucket/file cannot be opened (Protocol not"),
        (["log", "inspect", "/proc/none"], 1, "error: there is no file /proc/none; check its name"),
        (["quickstart", "--dir", "/dev/null"], 1, "error: cannot write to /dev/null (File exists); choose another"),
        (["server", "--data-dir", "/dev/null/a"], 1, "error: cannot write to /dev/null/a (Not a directory); choose"),
        (
            ["server", "--log-level", "loud"],
            1,
            "error: unknown log level 'loud'; use one of debug, info, warning, error",
        ),
    ],
)
def test_an_error_is_one_line_on_stderr(
    command: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize("command", [[], ["changefeed"], ["log"]])
def test_a_group_alone_shows_its_help_and_no_error(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 2
    captured = capsys.readouterr()
    assert captured.out.lstrip().startswith("Usage: weir")
    assert captured.err == ""


def test_unknown_fail_points_are_named_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_FAILPOINTS", "flush-before-commit=kill;flush=stop")
    failpoints.armed.cache_clear()
    log = str(tmp_path / "log")
    assert main(["server", "--data-dir", str(tmp_path / "data"), "--log-file", log, "--addr", "127.0.0.1:0"]) == 1
    failpoints.armed.cache_clear()
    error = capsys.readouterr().err
    assert error.startswith("error: WEIR_FAILPOINTS: no fail-point is called 'flush'; there are owner-before-commit, ")
    assert error.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_a_config_file_reaches_the_server(tmp_path: Path, cluster: MemoryCluster) -> None:
    (tmp_path / "feed.toml").write_text('force-replicate = true\n[filter]\nrules = ["public.*"]\n')
    assert main(["changefeed", "create", "-c", "feed", *URIS, "--config", str(tmp_path / "feed.toml")]) == 0
    assert cluster.specs["feed"].config.filter.rules == ("public.*",)


def test_faults_of_ours_have_no_traceback_unless_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("capture.api.client.Client.list", broken)
    assert main(["changefeed", "list"]) == 1
    assert capsys.readouterr().err.startswith(
        "error: KeyError: 'lost'; it is a fault in Weir: run again with WEIR_DEBUG=1"
    )
    monkeypatch.setenv("WEIR_DEBUG", "1")
    with pytest.raises(KeyError):
        main(["changefeed", "list"])


def test_of_a_group_the_meant_error_is_shown() -> None:
    group = ExceptionGroup("x", [ValueError("a"), ExceptionGroup("y", [ConfigError("pg://u:geheim@h is\nwrong")])])
    assert console.describe(group) == "pg://u:***@h is wrong"


@pytest.mark.usefixtures("restored_logging")
def test_the_port_in_use_is_named(member: MemoryMember, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--etcd", "http://127.0.0.1:1", "--data-dir", str(tmp_path)]
    assert main(["server", "--addr", member.settings.addr, *options]) == 1
    line = capsys.readouterr().err
    assert line.startswith(f"error: cannot listen on {member.settings.addr} (Address already in use); stop what")


async def test_a_member_that_cannot_start_ends_the_server(tmp_path: Path) -> None:
    settings = load_server_settings(etcd="x", addr=f"127.0.0.1:{free_port()}", data_dir=tmp_path)
    member = MemoryMember(settings)
    member.fails_with = StoreUnreachableError("etcd at x does not answer; is it running?")
    with pytest.raises(BaseExceptionGroup) as caught:
        async with running(settings, new_member=lambda _: member):
            pytest.fail("it never was ready")
    assert console.describe(caught.value).startswith("etcd at x does not answer")


async def test_a_member_leaves_when_the_block_ends(tmp_path: Path) -> None:
    settings = load_server_settings(etcd="x", addr="127.0.0.1:0", data_dir=tmp_path)
    member = MemoryMember(settings)
    async with running(settings, new_member=lambda _: member):
        assert member.events == ["run"]
    assert member.events == ["run", "leave", "ran"]


def test_help_is_quick_and_heavy_things_stay_out() -> None:
    program = (
        "import sys, capture.cli; print([m for m in ('pyspark', 'pyarrow', 'numba', 'httpx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_module_run_is_the_same_command() -> None:
    environment = {**os.environ, "COLUMNS": "80"}
    command = [sys.executable, "-m", "capture", "changefeed", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


#: each turns, hides or moves what a terminal shows
_INTERPRETED = ["\x1b]0;title\x07", "\x1b[2J", "\r", "\n", "\x00", "\x9b2J", "\u202e", "\u2066", "\u2028", "\u200f"]


@pytest.mark.parametrize("text", _INTERPRETED, ids=ascii)
def test_what_is_shown_reaches_a_terminal_as_text_only(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"public.a{text}b"
    console.print_table(("table",), [(name,), ((name,),)], title=name)
    console.print_line(name)
    shown = capsys.readouterr().out
    escaped = f"public.a{text.encode('unicode_escape').decode()}b"
    assert shown.count(escaped) == 4, "a title, two cells and a line"
    assert shown.replace("\n", "").isprintable()
    assert "b" not in {line.strip(" │|") for line in shown.splitlines()}, "no text begins a line of its own"
