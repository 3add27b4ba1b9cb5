"""Transactions of two million rows: the capture's memory holds, and what a savepoint took back leaves nothing.

``python -m benchmarks large-transaction`` does the same with ten million.
"""

import pytest

from benchmarks.rows import large_transaction
from benchmarks.support.bed import bed
from benchmarks.support.servers import MariaServer
from reactor.records.changefeed import SinkMode

pytestmark = [pytest.mark.acceptance, pytest.mark.matrix, pytest.mark.spark, pytest.mark.timeout(600)]

ROWS = 2_000_000
#: of all Python processes together, whose shared pages count once; 680 at most in a quiet run, whatever the rows
PYTHON_MB_MAX = 750


def test_one_transaction_of_two_million_rows() -> None:
    with bed(MariaServer) as found:
        for mode in (SinkMode.UPSERT, SinkMode.CHANGELOG):
            figures = large_transaction.measure(found, mode, ROWS)
            assert figures[f"{mode.value}_rows_in_delta"] == ROWS
            peaks = [value for name, value in figures.items() if name.endswith("_python_peak_mb")]
            assert max(peaks) <= PYTHON_MB_MAX
            assert all(value for name, value in figures.items() if name.endswith("_equal"))
