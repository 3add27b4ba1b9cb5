"""Processes that write spans of one table at the same time, into the embedded catalog."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from agent.ports.sink import SpanRepartition, Splits
from owner.scheduler.spans import even_spans
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode
from tests.contracts.sink_bed import SPAN, TABLE, Bed
from tests.unit.agent.changes_build import insert, update

_TURNS = 12
_KEYS = 40


def _write(uri: str, mode: SinkMode, span: TableSpan) -> list[str]:
    """Each key is written in each turn, and a stale writer of the turn before comes behind."""
    bed, errors = Bed(uri, mode), []
    for turn in range(_TURNS):
        at = 100 + turn * 10
        some = [update(key, f"t{turn}", "x", ts=at + 1) for key in range(_KEYS)]
        result = bed.flush(at, at + 10, [*some, insert(1000 + turn, "new", "x", ts=at + 2)], span=span)
        errors += [result.error] if result.error else []
        errors += [] if bed.flush(at, at + 10, some, span=span).committed else ["not recognised as done"]
    return errors


@pytest.mark.matrix
@pytest.mark.parametrize("mode", SinkMode)
def test_every_span_gets_its_changes_once(tmp_path: Path, mode: SinkMode) -> None:
    bed = Bed(f"iceberg+file://{tmp_path}/lake", mode)
    bed.load(*((key, "a", "x") for key in range(_KEYS)))
    sink, spans = bed.open(), even_spans(SPAN.table_id, 3)
    assert isinstance(sink, Splits)
    sink.repartition(TABLE, SpanRepartition((SPAN,), spans, Ts(100), 1))
    with ProcessPoolExecutor(len(spans), mp_context=get_context("spawn")) as pool:
        found = list(pool.map(_write, [bed.uri] * 3, [mode] * 3, spans))
    assert found == [[], [], []]
    for span in spans:
        bed.assert_at(100 + _TURNS * 10, span)
    rows = [(key, f"t{_TURNS - 1}", "x") for key in range(_KEYS)]
    bed.assert_holds(*rows, *((1000 + turn, "new", "x") for turn in range(_TURNS)))
