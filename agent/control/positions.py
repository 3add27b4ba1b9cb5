"""Positions: where the spans of a flusher are. Most of them are together, and cost nothing while nothing changes.

After a flush, nearly all spans are at its target: they are *together*. Of tens of thousands of tables only some have
changes in the next flush, so it moves the position that the others share, and works on single spans only: on those
whose tables have changes, and on those that are *apart*. These have a limit of their own, have failed, have more
changes than one flush takes, or have joined since.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

from agent.control.runtime import SpanFlushed, SpanPosition, Together
from reactor.ids import TableSpan, Ts
from reactor.records.tables.table import TableRecord

#: suspects are flushed in at most this many jobs, one after the other: after a kill all tables wait for them. Among
#: more suspects, the cause is found in several steps
_TRIALS_MAX = 8


class Positions:
    """Positions of all spans: each is either in ``apart`` or in ``together``."""

    def __init__(self) -> None:
        self.apart: dict[TableSpan, SpanPosition] = {}
        self.together = Together()
        #: what spans have done last since ``take_changes``: joined those together, or left them
        self._joined: dict[TableSpan, None] = {}
        self._left: dict[TableSpan, None] = {}

    def __len__(self) -> int:
        return len(self.apart) + len(self.together)

    def __iter__(self) -> Iterator[TableSpan]:
        yield from self.apart
        yield from self.together

    def __contains__(self, span: TableSpan) -> bool:
        return span in self.apart or span in self.together

    def put(self, position: SpanPosition) -> None:
        """Set a span's own position: it is apart."""
        self._leave(position.span)
        self.apart[position.span] = position

    def pop(self, span: TableSpan) -> SpanPosition | None:
        """Remove a span; return its position."""
        return self.apart.pop(span, None) or self._leave(span)

    def part(self, tables: Collection[int]) -> None:
        """Set these tables apart: they do not move with the others."""
        if tables and self.together:
            for position in self.together.of(tables):
                self.put(position)

    def part_all(self) -> list[SpanPosition]:
        """Set all apart; return those that were not."""
        before = self.together.of(self.together.tables)
        for position in before:
            self.put(position)
        return before

    def move(self, spans: Iterable[SpanFlushed], together_ts: Ts) -> bool:
        """Take over a flush that has moved ``spans``, and to ``together_ts`` all others that are together; return
        whether there are any. Of the former, those that have arrived there join them."""
        spans = tuple(spans)
        for flushed in spans:
            before, after = self.pop(flushed.position.span), flushed.position
            assert before is not None, f"span {after.span} was flushed, and is not here"
            assert after.checkpoint_ts >= before.checkpoint_ts, f"span {after.span} moved back in a flush"
            self.apart[after.span] = after
        moved = self.together.move(together_ts)
        for flushed in spans:
            if flushed.is_settled and flushed.position.checkpoint_ts == together_ts:
                self._join(self.apart.pop(flushed.position.span))
        return moved

    @property
    def has_changes(self) -> bool:
        """Whether spans have joined those together or left them since ``take_changes``."""
        return bool(self._joined or self._left)

    def take_changes(self) -> tuple[tuple[TableSpan, ...], tuple[TableSpan, ...]]:
        """Return who has joined those together since the last call, and is there, and who has left them, and is not."""
        changes = tuple(self._joined), tuple(self._left)
        self._joined, self._left = {}, {}
        return changes

    def _join(self, position: SpanPosition) -> None:
        self.together.add(position)
        self._left.pop(position.span, None)
        self._joined[position.span] = None

    def _leave(self, span: TableSpan) -> SpanPosition | None:
        position = self.together.remove(span)
        if position is not None:
            self._joined.pop(span, None)
            self._left[span] = None
        return position

    def renew(self, spans: Iterable[TableSpan] | None, newest: Callable[[TableRecord], TableRecord]) -> None:
        """Take over the newest records of the tables of ``spans`` (None: of all)."""
        if spans is None:
            self.part([id for id, known in self.together.records() if newest(known) is not known])
            spans = list(self.apart)
        for span in spans:
            position = self.apart.get(span)
            if position is not None and (table := newest(position.table)) is not position.table:
                self.apart[span] = replace(position, table=table)


def jobs_of(due: list[SpanPosition], suspects: frozenset[int]) -> list[list[SpanPosition]]:
    """Divide the spans into jobs. The first has all that are not suspects; these form a limited number of groups."""
    tables = sorted({at.table.table_id for at in due} & suspects) if suspects else []
    size = max(1, -(-len(tables) // _TRIALS_MAX))
    group = {table: 1 + number // size for number, table in enumerate(tables)}
    groups: dict[int, list[SpanPosition]] = {0: []}
    for position in due:
        groups.setdefault(group.get(position.table.table_id, 0), []).append(position)
    return [groups[number] for number in sorted(groups)]
