"""Spark readers of a soak: the Spark source, driven as Spark's engine drives it, with ends at any step.

The engine (``MicroBatchExecution``) stores a batch's end offset before it plans the batch, and marks the batch as done
after it has written the output. A restarted query repeats a batch that is not done. If that is the first batch, the
engine asks the source for its begin again. The output of a repeated batch replaces the earlier one.
"""

import random
from dataclasses import dataclass, field
from typing import cast

import pyarrow as pa
import structlog
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from agent.errors import DecodeError
from capture.api.connection import Connection, may_pass
from capture.errors import PositionGoneError, SubscriptionNotFoundError, TableNotFoundError
from capture.python.spark_source import Offset, SparkSource, _StreamReader
from reactor.errors import WeirError
from tests.soak.read_range import ReadRange

_PART_BYTES = 256 << 10
_BATCHES_MAX = 50

_log = structlog.get_logger()


class _Ended(Exception):
    """The query's driver has died."""


@dataclass(slots=True)
class _Checkpoint:
    """What Spark stores of a query: the end of each batch, and how many are done. ``outputs``: by number."""

    name: str
    begins: str = "earliest"
    ends: list[Offset] = field(default_factory=list)
    done: int = 0
    outputs: dict[int, list[pa.Table]] = field(default_factory=dict)

    @property
    def begin(self) -> int:
        return int(min(self.ends[0]["began"].values()))

    @property
    def reached(self) -> int:
        return int(self.ends[self.done - 1]["ts"])


class SparkReader:
    """Follows one table by its number, by queries whose drivers die."""

    def __init__(self, connection: Connection, token: str, feed: str, table_id: int) -> None:
        self._connection = connection
        self._token = token
        self._feed = feed
        self._table_id = table_id
        self._source: _StreamReader | None = None
        #: whether the query ends when it has read what there is (``availableNow``)
        self._ends = False
        #: whether the query was started again because of the columns of its next batch
        self._is_refused = False
        self._checkpoints = [_Checkpoint(f"soak-spark-{table_id}")]

    @property
    def ranges(self) -> list[ReadRange]:
        """Return what each query has. Columns that a restart has added, or left out, are none of the changelog's."""
        return [
            ReadRange(one.begin, one.reached, [rows for at in range(one.done) for rows in one.outputs[at]], False)
            for one in self._checkpoints
            if one.done
        ]

    @property
    def follows(self) -> bool:
        return self._source is not None

    def read_on(self, table: str, rng: random.Random) -> None:
        """Run the next batches, if there is anything to read. ``table``: its name now."""
        try:
            for _ in range(_BATCHES_MAX):
                if not self._run_batch(table, rng):
                    break
        except _Ended:
            self._source = None
        except DecodeError as error:  # the table was changed: with its new columns, the batch may be read
            _log.info("a Spark reader of the soak starts again", feed=self._feed, table=table, error=str(error))
            if self._is_refused:
                self._begin_again("latest")
            else:
                self._source, self._is_refused = None, True
        except PositionGoneError as error:
            _log.info("a Spark reader of the soak begins again", feed=self._feed, table=table, error=str(error))
            self._begin_again("earliest")
        except TableNotFoundError:
            self._begin_again("earliest")
        except SubscriptionNotFoundError:
            self._source = None
        except WeirError as error:
            if not may_pass(error):
                raise
            _log.info("a Spark reader of the soak waits", feed=self._feed, table=table, error=str(error))
            self._source = None

    def _run_batch(self, table: str, rng: random.Random) -> bool:
        """Return whether there was one to run."""
        query = self._checkpoints[-1]
        source = self._source = self._source or self._start(query, table, rng)
        number = query.done
        if len(query.ends) == number:
            start = query.ends[-1] if query.ends else source.initialOffset()
            end = source.latestOffset(start, rng.choice([ReadAllAvailable(), source.getDefaultReadLimit()]))
            if end == start and query.ends:
                if self._ends:
                    self._source = None
                return False
            if end["tables"][table] != self._table_id:  # two have exchanged their names
                raise TableNotFoundError(table)
            self._may_end(rng)
            query.ends.append(end)
            self._may_end(rng)
            if number:
                source.commit(query.ends[number - 1])
        start = query.ends[number - 1] if number else source.initialOffset()
        parts = source.partitions(start, query.ends[number])
        self._may_end(rng)
        query.outputs[number] = [rows for part in parts for rows in _read(source, part)]
        self._may_end(rng)
        query.done, self._is_refused = number + 1, False
        self._may_end(rng)
        return True

    def _start(self, query: _Checkpoint, table: str, rng: random.Random) -> _StreamReader:
        options = {
            "server": self._connection.server,
            "token": self._token,
            "changefeed": self._feed,
            "table": table,
            "startingTs": query.begins,
            "name": query.name,
            "mergeSchema": "true",
        }
        if rng.random() < 0.5:
            options["maxBytesPerTrigger"] = str(_PART_BYTES)
        elif rng.random() < 0.5:
            options["maxRowsPerTrigger"] = "100"
        source = SparkSource(options)
        made = cast("_StreamReader", source.streamReader(source.schema()))
        self._ends = rng.random() < 0.3
        if self._ends:
            made.prepareForTriggerAvailableNow()
        return made

    def _may_end(self, rng: random.Random) -> None:
        if rng.random() < 0.03:
            raise _Ended

    def _begin_again(self, begins: str) -> None:
        """Start another query, with another checkpoint."""
        last, name = self._checkpoints[-1], f"soak-spark-{self._table_id}-{len(self._checkpoints)}"
        self._connection.call(lambda client: client.close_subscription(self._feed, last.name))
        self._checkpoints.append(_Checkpoint(name, begins))
        self._source, self._is_refused = None, False


def _read(source: _StreamReader, part: InputPartition) -> list[pa.Table]:
    return [pa.Table.from_batches([batch]) for batch in source.read(part)]
