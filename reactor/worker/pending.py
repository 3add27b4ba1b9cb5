"""Pending effects: patch groups of a tick that etcd has not confirmed yet, and the answers that wait for them.

An ``Answer`` reports to an operator that something *is done*, so it is sent only after every group of its tick has
committed, and reports the error if one that its job depends on cannot. Groups are evaluated again on fresh values after
a conflict. If the only group of a job cannot commit because a record has changed, nothing of the job is stored: its
answer has the code ``CONFLICT``, and it may be submitted again.
``Resign`` waits too: resigning ends the worker, and with it all that the tick still has to write and send.

A transaction whose answer was lost is *in doubt*: it may have been applied, may yet be applied, or not. Its groups stay
pending. Every transaction compares the revisions of all it writes, so retrying is safe: at most one of the two takes
effect. If the lost one did, the watch shows a revision with exactly its writes, and the groups are done.

Pure: the worker passes in results and events, and performs the effects that are returned.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from reactor.effects import CONFLICT, Answer, Resign
from reactor.errors import ConflictError, WeirError
from reactor.records.formats import FIRST
from reactor.store.port import Compare, Event, KeyValue
from reactor.txn import Plan, Seen, Txn, plan


class Pending:
    """The groups of one tick, in order, until all are committed or void."""

    def __init__(self, delete_count_key: str) -> None:
        self._delete_count_key = delete_count_key
        self._groups: tuple[Seen, ...] = ()
        self._last: tuple[Answer | Resign, ...] = ()
        #: of each job, its groups, and those that cannot commit
        self._groups_of: Counter[str] = Counter()
        self._errors: dict[str, list[WeirError]] = {}
        self._doubt: Plan | None = None

    def __bool__(self) -> bool:
        """Whether groups are pending: no tick until then."""
        return bool(self._groups)

    def begin(self, groups: Sequence[Seen], last: Sequence[Answer | Resign]) -> None:
        """Add the groups that a tick requested; those of the tick before are settled. ``last``: effects that wait for
        the groups."""
        assert not self._groups, "a tick while groups of the one before are pending"
        self._groups, self._last, self._errors = tuple(groups), tuple(last), {}
        self._groups_of = Counter(job for seen in groups for job in seen.jobs)

    def plan(self, base: Mapping[str, KeyValue], fences: Sequence[Compare], *, format: int = FIRST) -> Plan:
        """Return the next transaction on fresh values; groups that can never commit are dropped here."""
        planned = plan(self._groups, base, delete_count_key=self._delete_count_key, fences=fences, format=format)
        self._groups = planned.taken + planned.left
        for rejected in planned.rejected:
            for job in rejected.seen.jobs:
                self._errors.setdefault(job, []).append(rejected.error)
        if planned.txn.is_empty:
            self._groups = planned.left
        return planned

    def committed(self, planned: Plan) -> None:
        """Record that the transaction took effect, so one that was in doubt never can."""
        self._groups = planned.left
        self._doubt = None

    def lost(self, planned: Plan) -> None:
        """Record that there was no answer: the transaction is in doubt."""
        self._doubt = planned

    def observe(self, events: Sequence[Event]) -> bool:
        """Process events of the watch; return True if they show that the transaction in doubt took effect."""
        doubt = self._doubt
        if doubt is None:
            return False
        revisions = groupby(events, key=lambda event: event.mod_revision)
        shown = any({event.key: event.value for event in batch} == doubt.txn.writes for _, batch in revisions)
        return shown and self._resolve(doubt)

    def observe_snapshot(self, base: Mapping[str, KeyValue]) -> bool:
        """Like ``observe``, when the history is gone and only current values are known."""
        doubt = self._doubt
        return doubt is not None and _is_applied(doubt.txn, base) and self._resolve(doubt)

    def take_last(self) -> tuple[Answer | Resign, ...]:
        """Return the tick's answers and its resignation, once no group is pending. A job that a later tick would have
        answered is answered now, if what it needs for that cannot commit."""
        if self._groups:
            return ()
        last, self._last = self._last, ()
        answered = {effect.job_id for effect in last if isinstance(effect, Answer)}
        early = [Answer(job) for job in self._errors if job not in answered]
        found = tuple(self._after_errors(effect) for effect in (*early, *last))
        self._errors = {}
        return found

    def _after_errors(self, effect: Answer | Resign) -> Answer | Resign:
        if isinstance(effect, Resign) or not (errors := self._errors.get(effect.job_id)):
            return effect
        is_nothing_stored = len(errors) == self._groups_of[effect.job_id]
        is_conflict = is_nothing_stored and all(isinstance(error, ConflictError) for error in errors)
        return Answer(effect.job_id, effect.error or _reason(errors[0]), CONFLICT if is_conflict else None)

    def _resolve(self, doubt: Plan) -> bool:
        done = {id(seen) for seen in doubt.taken}
        self._groups = tuple(seen for seen in self._groups if id(seen) not in done)
        self._doubt = None
        return True


def _is_applied(txn: Txn, base: Mapping[str, KeyValue]) -> bool:
    """Return whether every write of the transaction is what its key holds, all at one revision."""
    items = {key: base.get(key) for key in txn.writes}
    revisions = {item.mod_revision for item in items.values() if item is not None}
    values_match = all(value == (item.value if (item := items[key]) else None) for key, value in txn.writes.items())
    return values_match and len(revisions) <= 1


def _reason(error: WeirError) -> str:
    return f"not done: {error}"
