"""Monkey: the soak's writers, while an operator gives random commands to tables and changefeeds of three captures.

Before each comparison the operator undoes its requests about tables: what is paused is resumed, what was left out joins
again, what is held or had changes skipped is copied again. Then both ends are equal.

    python -m tests.soak.monkey --seconds 300 --seed 7
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from capture.api.client import Client, RemoteError
from capture.api.port import ChangefeedUpdate, RepairAsked
from reactor.errors import WeirError
from reactor.records.changefeed import ChangefeedConfig, FeedState, FilterConfig
from reactor.views import ChangefeedView, TableView
from tests.patience import patient
from tests.soak.bed import SoakBed
from tests.soak.story import Outcome, Story

SOURCES = ("postgres", "mariadb-full")
_CAPTURES = 3
_PAUSE_S = (0.1, 2.0)
_ANSWER_S = 60.0
_LONG_ANSWER_S = 240.0
_SETTLE_S = 240.0
#: HTTP status from which on another capture may have an answer
_UNAVAILABLE = 500
#: what an operator asks again while it settles
_ASK_AGAIN_S = 10.0
#: how often a held table is copied again before its reason counts
_CURES_MAX = 3


class Monkey(Story):
    """Commands from outside, one after the other from each of two operators. ``seed`` decides which."""

    def __init__(self, bed: SoakBed, seed: int, *, say: Callable[[str], None]) -> None:
        super().__init__(bed, seed, say=say)
        self.commands: Counter[str] = Counter()
        #: by changefeed, tables that lack changes by an operator's word
        self._skipped: dict[str, set[str]] = {}
        self._note_lock = threading.Lock()

    # Commands

    def _break_things(self, rng: random.Random, *, until: float) -> None:
        operators = [
            threading.Thread(target=self._operate, args=(random.Random(rng.random()), until)) for _ in range(2)
        ]
        for operator in operators:
            operator.start()
        while time.monotonic() < until:
            self._over.wait(min(rng.uniform(5.0, 20.0), max(0.0, until - time.monotonic())))
            if self._are_all_there():
                rng.choice([self._kill, self._kill, self._kill, self._freeze, self._restart_source])(rng)
                self.outcome.kills += 1
        for operator in operators:
            operator.join()
        self._bed.mend()

    def _are_all_there(self) -> bool:
        """Return whether who fell before is back: commands to nobody try nothing."""
        try:
            return len(self._bed.captures()) == _CAPTURES
        except WeirError:
            return False

    def _operate(self, rng: random.Random, until: float) -> None:
        feeds = list(self._feeds)
        while time.monotonic() < until and not self._over.is_set():
            feed = rng.choice(feeds)
            [command] = rng.choices(list(_COMMANDS), weights=[weight for _, weight in _COMMANDS.values()])
            try:
                view = self._bed.query(feed)
                tables = self._bed.ask(lambda client: client.tables(feed), timeout_s=_ANSWER_S)  # noqa: B023
            except (WeirError, StopIteration):
                self._over.wait(_PAUSE_S[0])
                continue  # nobody answers
            try:
                done = _COMMANDS[command][0](self, rng, view, tables)
            except (WeirError, StopIteration) as refused:
                done = f"refused: {str(refused)[:160]}"
            with self._note_lock:
                self.commands[f"{command}: {'refused' if done.startswith('refused') else 'done'}"] += 1
            self._say(f"{feed}: {command}: {done}")
            self._over.wait(rng.uniform(*_PAUSE_S))

    def _ask(self, question: Callable[[Client], object], timeout_s: float = _ANSWER_S) -> None:
        """Ask one capture after the other, until one does it or refuses it."""
        refusals: list[RemoteError] = []

        def ask(client: Client) -> None:
            try:
                question(client)
            except RemoteError as error:
                if error.status >= _UNAVAILABLE:
                    raise
                refusals.append(error)

        self._bed.ask(ask, timeout_s=timeout_s)
        if refusals:
            raise refusals[0]

    def table_step(self, rng: random.Random, view: ChangefeedView, tables: Sequence[TableView], what: str) -> str:
        """Ask one thing of one table."""
        names = [one.table for one in tables]
        if what in ("resume", "skip"):
            names = [one.table for one in view.held] or names
        name = rng.choice(names)
        match what:
            case "pause":
                self._ask(lambda client: client.pause_table(view.id, name))
            case "resume":
                self._ask(lambda client: client.resume_table(view.id, name))
            case "remove":
                self._ask(lambda client: client.remove_table(view.id, name))
            case "resync":
                limit = rng.choice([None, None, 100, 1_000])
                self._ask(lambda client: client.resync_table(view.id, name, rows_per_second=limit))
            case "cancel":
                name = rng.choice([one.table for one in view.resyncs] or names)
                self._ask(lambda client: client.cancel_resync(view.id, name))
            case "skip":
                with self._note_lock:
                    self._skipped.setdefault(view.id, set()).add(name)
                ts = rng.choice([view.checkpoint_ts, view.resolved_ts])
                self._ask(lambda client: client.skip_table(view.id, name, ts, confirmed=True))
            case "maintain":
                self._ask(lambda client: client.maintain_table(view.id, name))
            case "split":
                self._ask(lambda client: client.split(view.id, name, rng.choice([2, 3])))
            case "join":
                self._ask(lambda client: client.split(view.id, name, 1))
            case "move":
                to = rng.choice(self._bed.captures()).id
                self._ask(lambda client: client.move_table(view.id, name, to))
            case "repair":
                asked = RepairAsked(tables=(name,), dry_run=rng.random() < 0.3)
                self._ask(lambda client: client.repair(view.id, asked), _LONG_ANSWER_S)
        return name

    def add(self, rng: random.Random, view: ChangefeedView, tables: Sequence[TableView]) -> str:
        """Let a table of the source join."""
        source = next(one for one in self._bed.sources if view.id.startswith(one.name))
        known = {one.table for one in tables}
        names = [f"{source.database}.{one.name}" for one in source.tables()]
        name = rng.choice([one for one in names if one not in known] or names)
        self._ask(lambda client: client.add_table(view.id, name))
        return name

    def update(self, rng: random.Random, view: ChangefeedView, tables: Sequence[TableView]) -> str:
        """Another filter, which leaves some tables out."""
        left_out = rng.sample([one.table for one in tables], min(len(tables), rng.randint(0, 3)))
        self._set_rules(view.id, left_out)
        return f"without {left_out}"

    def _set_rules(self, feed: str, left_out: Sequence[str] = ()) -> None:
        config = ChangefeedConfig.model_validate(self._feeds[feed])
        rules = (
            *config.filter.rules,
            *(f'!"{schema}"."{name}"' for schema, name in (t.split(".", 1) for t in left_out)),
        )
        asked = ChangefeedUpdate(config=config.with_(filter=FilterConfig(rules=rules)))
        self._ask(lambda client: client.update(feed, asked))

    def feed_step(self, rng: random.Random, view: ChangefeedView, what: str) -> str:
        """Ask one thing of a changefeed."""
        match what:
            case "feed-pause":
                self._ask(lambda client: client.pause(view.id))
            case "feed-resume":
                self._ask(lambda client: client.resume(view.id))
            case "rewind":
                self._ask(lambda client: client.pause(view.id))
                self._bed.wait_for("it is stopped", lambda: self._bed.query(view.id).state is FeedState.STOPPED)
                self._ask(lambda client: client.rewind(view.id, view.checkpoint_ts - rng.randrange(1 << 16)))
            case "rebalance":
                self._ask(lambda client: client.rebalance(view.id))
            case "move-owner":
                to = rng.choice(self._bed.captures()).id
                self._ask(lambda client: client.move_owner(view.id, to))
            case "drain":
                to = rng.choice(self._bed.captures()).id
                self._ask(lambda client: client.drain(to))
            case "resign":
                self._ask(lambda client: client.resign_owner())
            case "diff":
                self._ask(lambda client: client.diff(view.id), _LONG_ANSWER_S)
            case "resume-resync":
                self._ask(lambda client: client.pause(view.id))
                self._bed.wait_for("it is stopped", lambda: self._bed.query(view.id).state is FeedState.STOPPED)
                self._ask(lambda client: client.resume(view.id, resync=True))
        return ""

    # Before a comparison

    def _settle_all(self) -> None:
        """Undo what was asked of all changefeeds, then wait for each."""
        with ThreadPoolExecutor(len(self._feeds)) as threads:
            list(threads.map(self._settle, self._feeds))

    def _settle(self, feed: str) -> None:
        """Until nothing joins, is copied or held, but for what cannot be cured."""
        end, asked, cures = time.monotonic() + patient(_SETTLE_S), 0.0, Counter[str]()
        is_filtered = False
        while True:
            last = ""
            try:
                view = self._bed.query(feed)
                if view.state in (FeedState.STOPPED, FeedState.FAILED):
                    if view.error and view.state is FeedState.FAILED:
                        self._note_problem(f"{feed} failed: {view.error.code}: {view.error.message}")
                        return
                    self._ask(lambda client: client.resume(feed))
                if not is_filtered:
                    self._let_all_join(feed)
                    is_filtered = True
                if time.monotonic() - asked > _ASK_AGAIN_S:
                    asked = time.monotonic()
                    self._cure(feed, view, cures)
                if self._is_settled(feed, view, cures):
                    return
                last = f"held {[(one.table, one.code, one.stage, one.message) for one in view.held]}, "
                last += f"joining {view.joining}, resyncs {view.resyncs}, lost {view.lost_tables}"
            except (WeirError, StopIteration) as error:
                last = str(error)
            if time.monotonic() > end:
                self._note_problem(f"{feed} does not settle: {last[:3000]}")
                return
            time.sleep(0.5)

    def _let_all_join(self, feed: str) -> None:
        """Tables that have lost their key since they were left out cannot join, and refuse the others that would."""
        try:
            self._set_rules(feed)
        except WeirError as refused:
            source = next(one for one in self._bed.sources if feed.startswith(one.name))
            keyless = [f"{source.database}.{table.name}" for table in source.tables() if not table.key]
            self._say(f"{feed}: without {keyless}: {refused}")
            self._set_rules(feed, keyless)

    def _is_settled(self, feed: str, view: ChangefeedView, cures: Counter[str]) -> bool:
        """What cannot be copied, as without a key, stays held, and is not compared."""
        failing = {one.table for one in view.resyncs if one.code and one.tries >= _CURES_MAX}
        held = {one.table for one in view.held if cures[one.table] < _CURES_MAX}
        waits = held - failing or {one.table for one in view.resyncs} - failing or view.lost_tables > len(failing)
        return not (waits or view.joining or self._skipped.get(feed))

    def _cure(self, feed: str, view: ChangefeedView, cures: Counter[str]) -> None:
        skipped = self._skipped.get(feed, set())
        copied = {one.table for one in view.resyncs}
        there = {one.table for one in view.tables} | {one.table for one in view.held}
        for name in sorted(skipped - there):
            skipped.discard(name)  # it has left, or another name, and was copied again
        for held in view.held:
            if held.table in copied or cures[held.table] >= _CURES_MAX:
                continue
            cures[held.table] += 1
            try:
                if held.origin == "pause" and held.table not in skipped:
                    self._ask(lambda client: client.resume_table(feed, held.table))  # noqa: B023
                else:
                    self._ask(lambda client: client.resync_table(feed, held.table))  # noqa: B023
                    skipped.discard(held.table)
            except WeirError as refused:
                self._say(f"{feed}: {held.table} ({held.code}) is not cured: {refused}")
        for name in sorted(skipped & there - copied):
            try:
                self._ask(lambda client: client.resync_table(feed, name))  # noqa: B023
                skipped.discard(name)
            except WeirError as refused:
                self._say(f"{feed}: {name} is not copied: {refused}")


def _of_table(what: str) -> Callable[[Monkey, random.Random, ChangefeedView, Sequence[TableView]], str]:
    return lambda monkey, rng, view, tables: monkey.table_step(rng, view, tables, what)


def _of_feed(what: str) -> Callable[[Monkey, random.Random, ChangefeedView, Sequence[TableView]], str]:
    return lambda monkey, rng, view, tables: monkey.feed_step(rng, view, what)


#: with how often each is given
_COMMANDS = {
    "add": (Monkey.add, 8),
    "update": (Monkey.update, 5),
    **{
        what: (_of_table(what), often)
        for what, often in (
            ("remove", 5),
            ("pause", 6),
            ("resume", 6),
            ("resync", 8),
            ("cancel", 2),
            ("skip", 2),
            ("maintain", 2),
            ("split", 5),
            ("join", 3),
            ("move", 5),
            ("repair", 5),
        )
    },
    **{
        what: (_of_feed(what), often)
        for what, often in (
            ("feed-pause", 3),
            ("feed-resume", 6),
            ("rewind", 2),
            ("rebalance", 2),
            ("move-owner", 2),
            ("drain", 1),
            ("resign", 1),
            ("diff", 3),
            ("resume-resync", 1),
        )
    },
}


def run(directory: Path, seed: int, *, seconds: float, round_s: float, say: Callable[[str], None]) -> Outcome:
    """Run one in ``directory``."""
    with SoakBed(directory, captures=_CAPTURES, sources=SOURCES) as bed:
        monkey = Monkey(bed, seed, say=say)
        outcome = monkey.tell(seconds=seconds, round_s=round_s)
    say(str(monkey.commands))
    return outcome


def main() -> int:
    """Run one seed; exit code 1 if the ends differ."""
    parser = argparse.ArgumentParser(description="random commands, schema changes, rows and kills")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--round-seconds", type=float, default=150.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    directory, started = Path(tempfile.mkdtemp(prefix=f"weir-monkey-{asked.seed}-")), time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"seed {asked.seed}, {time.monotonic() - started:4.0f} s: {text}\n")

    outcome = run(directory, asked.seed, seconds=asked.seconds, round_s=asked.round_seconds, say=say)
    sys.stdout.write(f"{directory}: {outcome}\n")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
