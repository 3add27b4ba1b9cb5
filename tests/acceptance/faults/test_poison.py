"""A table that ends whoever works on it: it is held alone, and captures stay. A change that ends whoever reads the
source stops its changefeed.

The test is what ends them, as the kernel would: it reads in etcd what each capture has noted to be at, and kills the
one that is at the table.
"""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from reactor.ids import ChangefeedId
from reactor.records.attempts import Attempt, StreamAttempt
from reactor.records.changefeed import FeedState, SinkMode
from reactor.records.tables.held import CAPTURE_ENDED
from tests.acceptance.bed import Bed, Process
from tests.acceptance.checks import CHANGELOG, UPSERT, check_upsert

pytestmark = [
    pytest.mark.minutes(2.5),
    pytest.mark.acceptance,
    pytest.mark.spark,
    pytest.mark.matrix,
    pytest.mark.timeout(450),
]

SESSION_TTL_S = 5
_POLL_S = 0.02


class Poison:
    """``ended``: the processes it has killed. ``kind``: of the notes in etcd."""

    def __init__(self, bed: Bed, table_id: int, kind: str = "attempt") -> None:
        self.ended: list[Process] = []
        self._bed = bed
        self._table_id = table_id
        self._kind = kind
        self._http = httpx.Client(base_url=f"{bed.etcd.url}/v3/kv", timeout=5.0, trust_env=False)
        self._addresses: dict[str, str] = {}
        #: captures, whose notes stay until their leases are over
        self._struck: set[str] = set()

    @contextmanager
    def working(self) -> Iterator[None]:
        over = threading.Event()

        def work() -> None:
            while not over.wait(_POLL_S):
                self._strike()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def close(self) -> None:
        self._http.close()

    def at_work(self) -> list[str]:
        """The captures that are at the table."""
        notes = self._read(f"/default/{self._kind}/").items()
        return [key.rpartition("/")[2] for key, note in notes if self._table_id in Attempt.decode(note, key=key).tables]

    def _strike(self) -> None:
        captures = self._read("/__meta__/capture/")
        self._addresses |= {key: json.loads(value)["address"] for key, value in captures.items()}
        for capture in self.at_work():
            process = next((one for one in self._bed.processes if one.address == self._addresses.get(capture)), None)
            is_present = capture in captures and capture not in self._struck
            if is_present and process is not None and process.is_running:
                self._struck.add(capture)
                self._bed.kill(process)
                self.ended.append(process)

    def _read(self, part: str) -> dict[str, bytes]:
        """By key, or by capture."""
        first, last = (base64.b64encode(at).decode() for at in (b"/weir/", b"/weir0"))
        answer = self._http.post("range", json={"key": first, "range_end": last}).raise_for_status().json()
        pairs = ((base64.b64decode(item["key"]).decode(), item.get("value", "")) for item in answer.get("kvs", []))
        found = {key: base64.b64decode(value) for key, value in pairs if part in key}
        return {key.rpartition("/")[2] if "capture" in part else key: value for key, value in found.items()}


class StreamPoison(Poison):
    """Ends those who read the source for a changefeed before their log has moved; the first one at any time. They are
    started again."""

    def __init__(self, bed: Bed, feed: str) -> None:
        super().__init__(bed, 0, "stream-attempt")
        self._feed = feed

    def at_work(self) -> list[str]:
        notes = self._read(f"/default/{self._kind}/{self._feed}/").items()
        found = [StreamAttempt.decode(note, key=key) for key, note in notes]
        return [note.capture for note in found if not (note.is_settled and self.ended)]

    def _strike(self) -> None:
        super()._strike()
        for process in self._bed.processes:
            if not process.is_running:
                self._bed.start(process)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    directory: Path = tmp_path_factory.mktemp("bed")
    with Bed(directory, captures=4, session_ttl_s=SESSION_TTL_S) as bed:
        bed.create_feed(UPSERT)
        yield bed


def test_a_table_that_ends_captures_is_held_alone(bed: Bed) -> None:
    [[table_id]] = bed.execute("SELECT 'audit'::regclass::oid::int8")
    assert isinstance(table_id, int)
    with closing(Poison(bed, table_id)) as poison, bed.load():
        with poison.working():
            bed.wait_for("a capture is ended", lambda: bool(poison.ended), timeout_s=60)
            bed.wait_for("it is held", lambda: bool(bed.query(UPSERT).held), timeout_s=60)
            (held,) = bed.query(UPSERT).held
            assert (held.table, held.code, held.retry_at) == ("public.audit", CAPTURE_ENDED, 0.0)
            ended = len(poison.ended)
            assert 2 <= ended <= 3
            ts = bed.last_ts()
            bed.wait_for("the others flow", lambda: bed.covers(UPSERT, ts), timeout_s=60)
            assert len(poison.ended) == ended, "nobody works on it any more"
        assert bed.query(UPSERT).state is FeedState.WARNING
        bed.mend()
        bed.ask(lambda client: client.resume(UPSERT))
        bed.wait_for("it flows again", lambda: not bed.query(UPSERT).held, timeout_s=60)
    ts = bed.last_ts()
    bed.wait_for("all is there", lambda: bed.covers(UPSERT, ts), timeout_s=60)
    check_upsert(bed)


def test_a_table_whose_schema_change_ends_captures_is_held_alone(bed: Bed) -> None:
    [[table_id]] = bed.execute("SELECT 'audit'::regclass::oid::int8")
    assert isinstance(table_id, int)
    with closing(Poison(bed, table_id, "schema-attempt")) as poison, bed.load():
        with poison.working():
            bed.execute("ALTER TABLE audit ADD COLUMN extra int DEFAULT 7")
            bed.wait_for("it is held", lambda: bool(bed.query(UPSERT).held), timeout_s=120)
            (held,) = bed.query(UPSERT).held
            assert (held.table, held.code) == ("public.audit", CAPTURE_ENDED)
            ended = len(poison.ended)
            assert ended == 2
            ts = bed.last_ts()
            bed.wait_for("the others flow", lambda: bed.covers(UPSERT, ts), timeout_s=60)
            assert len(poison.ended) == ended, "nobody changes it any more"
        bed.mend()
        bed.ask(lambda client: client.resume(UPSERT))
        bed.wait_for("it flows again", lambda: not bed.query(UPSERT).held, timeout_s=60)
    ts = bed.last_ts()
    bed.wait_for("all is there", lambda: bed.covers(UPSERT, ts), timeout_s=60)
    check_upsert(bed)


def test_a_change_that_ends_whoever_reads_the_source_stops_its_changefeed_alone(bed: Bed) -> None:
    bed.create_feed(CHANGELOG, SinkMode.CHANGELOG)
    with closing(StreamPoison(bed, UPSERT)) as poison:
        with poison.working():
            bed.wait_for("it has stopped", lambda: bed.query(UPSERT).state is FeedState.FAILED, timeout_s=300)
            error = bed.query(UPSERT).error
            assert error is not None
            assert error.code == "StreamEndsCaptures"
            assert len(poison.ended) == 4, "one that was settled, and three"
            bed.execute("UPDATE account SET note = 'after' WHERE id = 1")
            ts = bed.last_ts()
            bed.wait_for("the other flows", lambda: bed.covers(CHANGELOG, ts), timeout_s=60)
            assert len(poison.ended) == 4, "no worker reads it"
        bed.mend()
        bed.ask(lambda client: client.resume(ChangefeedId(UPSERT)))
    bed.wait_for("all is there", lambda: bed.covers(UPSERT, ts), timeout_s=60)
    check_upsert(bed)
