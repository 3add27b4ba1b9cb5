"""Random histories of two tables at every sink that follows schema changes: rows, columns, copies, stale writers."""

from random import Random

import pytest

from tests.contracts.crashes import Crashes
from tests.contracts.sink_bed import Bed, needs
from tests.contracts.sink_histories import History

pytestmark = pytest.mark.sample(0.05)  # each is played on every implementation

_STEPS = 14


@pytest.mark.parametrize("seed", range(4))
def test_a_random_history(bed: Bed, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    needs(bed.can.alters and bed.can.keeps_record, "schema changes")
    history = History(bed, Random(f"{seed} {bed.uri.partition('?')[2]} {bed.mode}"), Crashes(monkeypatch))
    try:
        for _ in range(_STEPS):
            history.step()
    except BaseException as error:
        error.add_note("\n".join(history.trail))
        raise
