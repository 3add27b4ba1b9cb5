"""Stream reader: when its thread makes a chunk, waits, reports and gives up; the test is the sync unit."""

import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from agent.errors import SourceError, SourceUnreachableError
from agent.rows.arena import ArenaPool, LogChunk
from agent.settings import SyncSettings
from agent.units.stream_reader import StreamReader
from reactor.ids import Ts
from tests.patience import HANG_S
from tests.unit.agent.stream_build import Wire, begin, commit, keepalive, relation, row, stream_on


@dataclass
class Bench:
    """An stream_reader in its thread. ``cuts`` grows as they are delivered."""

    wire: Wire
    pool: ArenaPool
    stream_reader: StreamReader
    cuts: list[LogChunk] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    error: SourceError | None = None
    settled: int = 0

    def deliver(self, cut: LogChunk) -> None:
        with self.changed:
            self.cuts.append(cut)
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, HANG_S)

    def settle(self, cut: LogChunk) -> None:
        if cut.arena is not None:
            self.pool.give(cut.arena)
        self.stream_reader.settled(cut.resolved_ts)

    def next_cut(self) -> LogChunk:
        """The cut after those that are settled, settled as well: until then there is no other without rows."""
        self.wait(lambda: len(self.cuts) > self.settled)
        self.settled += 1
        self.settle(self.cuts[self.settled - 1])
        return self.cuts[self.settled - 1]

    def feed(self, *messages: bytes) -> None:
        self.wire.server.sendall(b"".join(messages))

    def next_report(self) -> tuple[int, bool]:
        """(flushed, reply wanted) of the next status update."""
        data = b""
        while len(data) < 39:
            data += self.wire.server.recv(39 - len(data))
        return int.from_bytes(data[14:22], "big"), data[38] == 1


@contextmanager
def running(
    settings: SyncSettings, *, next_quiet_at: Callable[[float, float], float] = operator.add
) -> Iterator[Bench]:
    wire = Wire()
    wire.server.settimeout(HANG_S)
    pool = ArenaPool(settings.arenas, settings.segment_bytes)
    stream = stream_on(wire, pool, resolved=50)
    stream_reader = StreamReader(
        stream,
        pool,
        durable_ts=Ts(50),
        deliver=lambda cut: bench.deliver(cut),
        settings=settings,
        next_quiet_at=next_quiet_at,
    )
    bench = Bench(wire, pool, stream_reader)

    def run() -> None:
        try:
            stream_reader.run()
        except SourceError as error:
            with bench.changed:
                bench.error = error
                bench.changed.notify_all()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield bench
    finally:
        stream_reader.stop()
        wire.abort()
        thread.join(HANG_S)
        wire.close()
        assert not thread.is_alive()


def transaction(ts: int, data: bytes = b"x") -> bytes:
    return begin(ts) + relation(1) + row(1, data) + commit(ts)


def settings(**changes: float) -> SyncSettings:
    plain: dict[str, float] = {"segment_bytes": 4096, "segment_age_s": 0.01, "progress_s": 0.02}
    return SyncSettings(**{**plain, **changes})  # type: ignore[arg-type]


def test_an_event_is_cut_when_it_has_waited_long_enough() -> None:
    with running(settings(progress_s=60.0)) as bench:
        bench.feed(transaction(100))
        bench.wait(lambda: len(bench.cuts) == 1)
        assert bench.cuts[0].resolved_ts == 109


def test_what_comes_while_a_cut_is_on_its_way_is_one_cut_afterwards() -> None:
    with running(settings(progress_s=60.0)) as bench:
        bench.feed(transaction(100))
        bench.wait(lambda: len(bench.cuts) == 1)
        for ts in (200, 300, 400):
            bench.feed(transaction(ts))
        with bench.changed:
            assert not bench.changed.wait_for(lambda: len(bench.cuts) > 1, 0.05)
        bench.settle(bench.cuts[0])
        bench.wait(lambda: len(bench.cuts) == 2)
        assert (bench.cuts[1].first_ts, bench.cuts[1].last_ts) == (200, 400)


def test_when_no_arena_is_free_it_stops_reading_and_continues_reporting() -> None:
    with running(settings(arenas=2)) as bench:
        bench.feed(transaction(100, b"x" * 3900), transaction(200, b"y" * 3900), transaction(300, b"z" * 3900))
        bench.wait(lambda: len(bench.cuts) == 1)
        for _ in range(5):
            assert bench.next_report()[0] == 51
        assert len(bench.cuts) == 1
        bench.settle(bench.cuts[0])
        bench.wait(lambda: len(bench.cuts) == 2)
        bench.settle(bench.cuts[1])
        bench.wait(lambda: len(bench.cuts) == 3)
        while bench.next_report()[0] != 210:
            pass


def test_a_quiet_stream_is_asked_and_its_position_passed_on() -> None:
    with running(settings()) as bench:
        assert bench.next_report() == (51, True)
        bench.feed(keepalive(1000, clock=5))
        while bench.next_cut().resolved_ts != 999:
            pass  # of a position before
        while bench.next_report()[0] != 1000:
            pass
        assert all(cut.arena is None for cut in bench.cuts)


def test_a_quiet_stream_waits_for_its_turn_and_what_was_committed_does_not() -> None:
    with running(settings(), next_quiet_at=lambda moved_at, _: moved_at + 60.0) as bench:
        for _ in range(5):
            bench.next_report()
        assert not bench.cuts
        bench.feed(transaction(100))
        bench.wait(lambda: len(bench.cuts) == 1)
        assert bench.cuts[0].resolved_ts == 109


def test_a_quiet_stream_does_not_miss_its_turn() -> None:
    with running(settings(progress_s=60.0), next_quiet_at=lambda moved_at, _: moved_at + 0.05) as bench:
        bench.feed(keepalive(1000, clock=5))
        while bench.next_cut().resolved_ts != 999:
            pass


def test_a_server_that_asks_is_answered_at_once() -> None:
    with running(settings(progress_s=60.0)) as bench:
        assert bench.next_report() == (51, True)
        bench.feed(keepalive(40, reply=True))
        assert bench.next_report() == (51, False)


def test_a_silent_server_is_given_up() -> None:
    with running(settings(silence_s=0.05)) as bench:
        bench.wait(lambda: bench.error is not None)
        assert isinstance(bench.error, SourceUnreachableError)
        assert "silent" in str(bench.error)
