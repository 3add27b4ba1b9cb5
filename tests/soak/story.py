"""Soak run: writers and kills for some minutes, then quiet, then comparisons; repeated until the time is over.

Every source has a changefeed for each of the soak's sinks. A statement that the server refuses does
not count; what it accepts has to arrive. A table that Weir holds is excluded from the comparison, counted by its
reason, and dropped at the source, so that held tables do not accumulate.
"""

import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest.mock import patch

import structlog

from agent.ports.source import Scope
from agent.sources import open_source
from capture.api.access import TokenAsked
from capture.python import changes
from reactor.errors import WeirError
from reactor.records.access import Role
from reactor.records.changefeed import ChangefeedConfig, FeedState, SinkMode
from reactor.views import ChangefeedView
from tests.soak import compare, rows
from tests.soak.bed import SoakBed
from tests.soak.readers import Readers
from tests.soak.sinks import SINKS, USUAL_SINKS, Sink
from tests.soak.source import Source, StatementRefused

#: what runs where nothing else is asked for, and the others that can be
USUAL = ("postgres", "mariadb-full", "mariadb-no-log")
OTHERS = ("postgres-own", "mariadb-minimal", "mysql-full", "mysql-minimal")

_STATEMENT_PAUSE_S = 0.02
_SCHEMA_PAUSE_S = 1.5
_SETTLE_S = 400.0
#: tables that join, or are held for a moment, are compared if they flow by then
_JOIN_S = 60.0
_PASSING = ("CameWithRows", "PartitionRows", "TableHeld")
#: code of an error in a flush that has no class of its own
_UNFORESEEN = "Job"
_DIFF_TIMEOUT_S = 400.0
_DIFF_TRIES_S = 60.0

_log = structlog.get_logger()


@dataclass(slots=True)
class Outcome:
    """``problems``: violations found. ``held``: reasons of held tables and their counts."""

    statements: int = 0
    schema_changes: int = 0
    refused: int = 0
    kills: int = 0
    comparisons: int = 0
    tables_compared: int = 0
    held: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class Story:
    """``seed`` decides what is written and broken, but not when: threads and processes are not deterministic."""

    def __init__(
        self,
        bed: SoakBed,
        seed: int,
        *,
        say: Callable[[str], None],
        sinks: Collection[str] = USUAL_SINKS,
        with_readers: bool = False,
    ) -> None:
        self._bed = bed
        self._sinks = [SINKS[name] for name in sinks]
        self._seed = seed
        self._say = say
        self._names = iter(range(1, 1_000_000))
        self._go = threading.Event()
        self._over = threading.Event()
        self._quiet = threading.Semaphore(0)
        self._lock = threading.Lock()
        #: configuration of each changefeed
        self._feeds: dict[str, Mapping[str, object]] = {}
        self._with_readers = with_readers
        self._readers: dict[str, Readers] = {}
        self.outcome = Outcome()

    def tell(self, *, seconds: float, round_s: float) -> Outcome:
        """Write, break and compare until ``seconds`` are over."""
        bed, rng, end = self._bed, random.Random(self._seed), time.monotonic() + seconds
        for source in bed.sources:
            self._prepare(source)
        for source in bed.sources:
            for sink in self._sinks:
                self._create(source, sink)
        with self._writers(), self._following():
            while not self.outcome.problems:
                self._break_things(rng, until=min(end, time.monotonic() + round_s))
                self._compare_all()
                if time.monotonic() >= end:
                    break
        return self.outcome

    # Writers

    def _prepare(self, source: Source) -> None:
        rng = random.Random(f"{self._seed} {source.name}")
        with source.session(rng) as session:
            while len(source.tables()) < 5:
                self._try(session.execute, source.schema_change(rng, (), self._name()))
            for _ in range(100):
                self._try(session.execute, rows.statement(rng, source, rng.choice(source.tables())))

    @contextmanager
    def _writers(self) -> Iterator[None]:
        threads = [
            threading.Thread(
                target=self._work, args=(source, what, random.Random(f"{self._seed} {source.name} {what}"))
            )
            for source in self._bed.sources
            for what in ("rows", "more rows", "schema")
        ]
        self._go.set()
        for thread in threads:
            thread.start()
        self._threads = len(threads)
        try:
            yield
        finally:
            self._over.set()
            self._go.set()
            for thread in threads:
                thread.join()

    @contextmanager
    def _following(self) -> Iterator[None]:
        """Readers follow all tables of each changelog."""
        bed = self._bed
        servers = ",".join(f"http://{process.address}" for process in bed.processes)
        feeds = [_feed(source, sink) for source in bed.sources for sink in self._sinks if _is_read(sink)]
        for feed in feeds if self._with_readers else []:
            # a server's own is another one after a restart
            made = bed.ask(lambda client: client.create_token(TokenAsked(role=Role.OPERATOR)))
            assert made.token is not None
            self._readers[feed] = Readers(servers, made.token, partial(bed.query, feed), feed, self._seed)
            self._readers[feed].start()
        try:
            # tables are read one after the other, and one that the source has dropped cannot be opened
            with patch.object(changes, "_RETRY_S", 1.0):
                yield
        finally:
            for readers in self._readers.values():
                readers.stop()

    def _work(self, source: Source, what: str, rng: random.Random) -> None:
        pause_s = _SCHEMA_PAUSE_S if what == "schema" else _STATEMENT_PAUSE_S
        while not self._over.is_set():
            try:
                with source.session(rng) as session:
                    for _ in range(40):
                        if not self._go.is_set():
                            break
                        self._write(source, what, rng, session)
                        self._over.wait(pause_s)
            except Exception as error:  # the server may be down: open a new session
                _log.debug("a writer lost its session", source=source.name, error=str(error))
                self._over.wait(0.5)
            if not self._go.is_set():
                self._quiet.release()
                self._go.wait()

    def _write(self, source: Source, what: str, rng: random.Random, session: object) -> None:
        tables = source.tables()
        if what == "schema":
            statement = source.schema_change(rng, tables, self._name())
            with self._lock:
                self.outcome.schema_changes += 1
            self._try(session.execute, statement)  # type: ignore[attr-defined]
            return
        if not tables:
            return
        many = rng.choice([1, 1, 1, 3, 10])
        if many > 1:
            session.begin()  # type: ignore[attr-defined]
        for _ in range(many):
            self._try(session.execute, rows.statement(rng, source, rng.choice(tables)))  # type: ignore[attr-defined]
        if many > 1:
            session.end(commit=rng.random() < 0.85)  # type: ignore[attr-defined]

    def _try(self, execute: Callable[[str], None], statement: str) -> None:
        with self._lock:
            self.outcome.statements += 1
        try:
            execute(statement)
        except StatementRefused:
            with self._lock:
                self.outcome.refused += 1

    def _name(self) -> str:
        with self._lock:
            return f"t{next(self._names)}"

    # Faults

    def _break_things(self, rng: random.Random, *, until: float) -> None:
        while time.monotonic() < until:
            self._over.wait(min(rng.uniform(8.0, 25.0), max(0.0, until - time.monotonic())))
            if time.monotonic() >= until:
                break
            fault = rng.choice([self._kill, self._kill, self._freeze, self._restart_source])
            fault(rng)
            self.outcome.kills += 1
        self._bed.mend()

    def _kill(self, rng: random.Random) -> None:
        process = rng.choice(self._bed.processes)
        self._say(f"kill -9 of {process.name}")
        self._bed.kill(process)
        self._over.wait(rng.uniform(0.0, 4.0))
        self._bed.start(process)

    def _freeze(self, rng: random.Random) -> None:
        process = rng.choice(self._bed.processes)
        self._say(f"SIGSTOP of {process.name}")
        self._bed.pause(process)
        self._over.wait(rng.uniform(1.0, 14.0))
        self._bed.proceed(process)

    def _restart_source(self, rng: random.Random) -> None:
        source = rng.choice(self._bed.sources)
        self._say(f"restart of {source.name}")
        source.restart()

    # Comparisons

    def _compare_all(self) -> None:
        self._go.clear()
        for _ in range(self._threads):
            self._quiet.acquire()
        try:
            self._settle_all()
            for source in self._bed.sources:
                keyed = [table for table in source.tables() if table.key]
                undeclared = {f"{source.database}.{table.name}" for table in keyed if not source.touch(table)}
                self._drop(source, set().union(*(self._compare(source, sink, undeclared) for sink in self._sinks)))
            self.outcome.comparisons += 1
        finally:
            self._go.set()

    def _settle_all(self) -> None:
        """What is to be done before a comparison, while nobody writes."""

    def _drop(self, source: Source, names: Collection[str]) -> None:
        with source.session(random.Random(self._seed)) as session:
            for name in sorted(names):
                self._try(session.execute, f"DROP TABLE {source.quote(name.partition('.')[2])}")

    def _compare(self, source: Source, sink: Sink, undeclared: Collection[str]) -> set[str]:
        """Return the tables that are held. ``undeclared``: tables whose last schema change the log may not have, which
        ``diff`` says."""
        feed = _feed(source, sink)
        if not self._has_caught_up(source, feed):
            return set()
        view = self._bed.query(feed)
        self._count_held(view)
        held_ids, held_at_sink = ({one.table_id for one in view.held}, {one.table for one in view.held})
        held = {one.renamed_to or one.table for one in view.held} | {*view.joining}
        held |= {f"{source.database}.{table.name}" for table in source.tables() if table.id in held_ids}
        self._diff(
            feed,
            {*held, *held_at_sink, *undeclared}
            | {f"{source.database}.{table.name}" for table in source.tables() if not table.key},
        )
        # a table gets another directory where a held one still has that of its name
        known = {table.table: table.location for table in sorted(view.tables, key=lambda table: table.held is None)}
        compared = 0
        for table in source.tables():
            name = f"{source.database}.{table.name}"
            if not table.key or name in held or (sink.mode is SinkMode.CHANGELOG and name not in known):
                continue
            compared += 1
            location = known.get(name) or name.replace(".", "/")
            if difference := compare.difference(source, table, sink, self._bed.lake(feed), location):
                self._note_problem(f"{feed}: {difference}")
        self.outcome.tables_compared += compared
        if feed in self._readers:
            self._compare_readers(feed, view, sink, held)
        self._say(f"{feed}: {compared} tables compared, {len(held)} held")
        return held

    def _compare_readers(self, feed: str, view: ChangefeedView, sink: Sink, held: Collection[str]) -> None:
        readers = self._readers[feed]
        if not readers.catch_up(_SETTLE_S):
            self._note_problem(f"{feed}: readers wait")
        for table in view.tables:
            stored = sink.stored(self._bed.lake(feed), table.location)
            if table.table in held or table.held is not None or stored is None:
                continue
            if difference := readers.difference(table.table_id, stored.rows(), view.checkpoint_ts):
                self._note_problem(f"{feed}: {table.table}: {difference}")
        self._say(f"{feed}: {readers.compared} changes of readers compared")

    def _diff(self, feed: str, held: Collection[str]) -> None:
        """Compare with Weir's own ``diff``. On a machine under load, a capture may be no member for a moment."""
        end = time.monotonic() + _DIFF_TRIES_S
        while True:
            try:
                diffs = self._bed.ask(lambda client: client.diff(feed), timeout_s=_DIFF_TIMEOUT_S)
                break
            except WeirError as error:
                if time.monotonic() > end:
                    self._note_problem(f"{feed}: diff failed: {error}")
                    return
                time.sleep(0.2)
        for diff in diffs:
            if not diff.equal and diff.table not in held:
                self._note_problem(f"{feed}: diff says {diff}")

    def _has_caught_up(self, source: Source, feed: str) -> bool:
        """Return whether everything committed is in the sink, and no table is held for a moment only."""
        ts = open_source(source.uri, Scope("soak", "soak", SinkMode.UPSERT, ChangefeedConfig())).current_ts()
        end = time.monotonic() + _SETTLE_S
        while True:
            try:
                view = self._bed.query(feed)
                if view.state is FeedState.FAILED:
                    break
                passes = bool(view.joining) or any(one.code in _PASSING for one in view.held)
                if view.checkpoint_ts >= ts and (not passes or time.monotonic() > end - _SETTLE_S + _JOIN_S):
                    return True
            except (WeirError, StopIteration):
                view = None
            if time.monotonic() > end:
                break
            time.sleep(0.2)
        self._note_problem(f"{feed} does not come to {ts}: {_state(view)}")
        return False

    def _note_problem(self, text: str) -> None:
        self.outcome.problems.append(text)
        self._say(text)

    def _count_held(self, view: ChangefeedView) -> None:
        for one in view.held:
            self.outcome.held[f"{one.code}: {one.message}"] += 1
            if one.code == _UNFORESEEN:
                self._note_problem(f"{view.id}: {one.message}")

    def _create(self, source: Source, sink: Sink) -> None:
        feed = _feed(source, sink)
        self._feeds[feed] = source.config(feed)
        config = ChangefeedConfig.model_validate(self._feeds[feed])
        self._bed.create_feed(
            feed, sink.mode, source_uri=source.uri, sink_uri=sink.uri(self._bed.lake(feed)), config=config
        )


def run(
    directory: Path,
    seed: int,
    *,
    seconds: float,
    round_s: float,
    say: Callable[[str], None],
    sources: Collection[str] = USUAL,
    sinks: Collection[str] = USUAL_SINKS,
    with_readers: bool = False,
) -> Outcome:
    """Run one soak in ``directory``, which is removed if nothing was wrong."""
    with SoakBed(directory, captures=2, sources=sources) as bed:
        outcome = Story(bed, seed, say=say, sinks=sinks, with_readers=with_readers).tell(
            seconds=seconds, round_s=round_s
        )
    if not outcome.problems:
        shutil.rmtree(directory, ignore_errors=True)
    return outcome


def _feed(source: Source, sink: Sink) -> str:
    return f"{source.name}-{sink.name}"


def _is_read(sink: Sink) -> bool:
    return sink.mode is SinkMode.CHANGELOG


def _state(view: ChangefeedView | None) -> str:
    if view is None:
        return "nobody answers"
    return (
        f"{view.state} at {view.checkpoint_ts} of {view.resolved_ts}: {view.error or view.warning or view.blocked_by}"
    )
