"""The tables of docs/sinks.md: which readers read which kinds of tables, tried now.

    make readers     writes them, with today's date, and versions

Each reader is asked in a process of its own, which may end badly, for all rows of tables that have grown as those of a
changefeed do, and is held against what Weir itself reads. A reader that is not installed keeps its line, with the
versions and the day on which it was tried.
"""

import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog

from agent.sinks import open_table
from tests import reader_spark
from tests.contracts.sink_bed import COMBINATIONS, IMPLEMENTATIONS, TABLE, Bed
from tests.integration.agent.sinks.delta import readers as of_delta
from tests.integration.agent.sinks.grown import grown
from tests.integration.agent.sinks.iceberg import readers as of_iceberg
from tests.reader_spark import Job

PAGE: Final = Path(__file__).parents[2] / "docs" / "sinks.md"
_TIMEOUT_S: Final = 300
#: before each answer of a process that asks a reader
_MARK: Final = "answer: "
_ALL: Final = IMPLEMENTATIONS | COMBINATIONS
YES, WRONG, REFUSED = "yes", "**wrong rows**", "refused"


@dataclass(frozen=True)
class Asked:
    """``packages``: whose versions count. ``read``: rows of a table in the sink's directory; None: in a process of
    Spark's."""

    name: str
    packages: tuple[str, ...]
    read: Callable[[Path], pa.Table] | None = None


def _delta(read: Callable[[str], pa.Table]) -> Callable[[Path], pa.Table]:
    return lambda lake: read(str(lake / TABLE.path))


def _iceberg(read: Callable[[Any], pa.Table]) -> Callable[[Path], pa.Table]:
    def of_lake(lake: Path) -> pa.Table:
        return read(SqlCatalog("weir", uri=f"sqlite:///{lake}/catalog.db").load_table(tuple(TABLE.path.split("/"))))

    return of_lake


def _pandas(location: str) -> pa.Table:
    return pa.Table.from_pandas(import_module("deltalake").DeltaTable(location).to_pandas())


_OF_DELTA: Final = {reader.name: reader for reader in of_delta.READERS}
_OF_ICEBERG: Final = {reader.name: reader for reader in of_iceberg.READERS}


def _known(name: str, package: str) -> Asked:
    return Asked(name, (package,), _delta(_OF_DELTA[name if name != "chdb" else "clickhouse"].rows))


@dataclass(frozen=True)
class Kind:
    """A table of the docs. ``tables``: a column's title by the name of the implementation under contract."""

    format: str
    tables: Mapping[str, str]
    readers: Sequence[Asked]

    @property
    def begin(self) -> str:
        return f"<!-- readers of {self.format}: tests/architecture/render_readers.py -->"

    @property
    def end(self) -> str:
        return f"<!-- end of the readers of {self.format} -->"


KINDS: Final = (
    Kind(
        "Delta",
        {
            "delta-upsert": "upserted",
            "delta-vectors": "with deletion vectors",
            "delta-history": "history",
            "delta-changelog": "changelog",
            "delta-mapped": "with column mapping",
        },
        (
            _known("duckdb", "duckdb"),
            _known("delta-kernel", "delta-kernel-rust-sharing-wrapper"),
            _known("delta-rs", "deltalake"),
            Asked("pandas", ("deltalake", "pandas"), _delta(_pandas)),
            _known("polars", "polars"),
            _known("polars-deltalake", "polars-deltalake"),
            _known("chdb", "chdb"),
            Asked("spark", ()),
        ),
    ),
    Kind(
        "Iceberg",
        {
            "iceberg-upsert": "upserted",
            "iceberg-partitioned": "partitioned",
            "iceberg-history": "history",
            "iceberg-changelog": "changelog",
            "iceberg-v3": "version 3",
        },
        (
            *(Asked(name, (name,), _iceberg(reader.rows)) for name, reader in _OF_ICEBERG.items()),
            Asked("spark", ()),
        ),
    ),
)


def _lake(bed: Bed) -> Path:
    return Path(re.sub(r"\?.*|^.*?://", "", bed.uri))


def _versions(asked: Asked) -> str:
    """Return the versions of the packages; empty: it is not here."""
    if asked.read is None:
        return "" if reader_spark.why_not() else reader_spark.SPARK
    try:
        return ", ".join(version(name) for name in asked.packages)
    except ImportError:
        return ""


def _answer(kind: Kind, asked: Asked, beds: Mapping[str, Bed]) -> list[str]:
    """Return what becomes of each table. A process that ends at one is followed by another for the rest."""
    if asked.read is None:
        return _of_spark(kind, beds)
    found, uris = list[str](), [beds[name].uri for name in kind.tables]
    while len(found) < len(uris):
        arguments = [sys.executable, "-m", __spec__.name if __spec__ else "", kind.format, asked.name]
        try:
            rest = uris[len(found) :]
            done = subprocess.run([*arguments, *rest], stdout=subprocess.PIPE, timeout=_TIMEOUT_S)
            output, ended = done.stdout, REFUSED
        except subprocess.TimeoutExpired as error:
            output, ended = error.stdout or b"", "does not end"
        lines = output.decode().splitlines()
        found += [line.removeprefix(_MARK) for line in lines if line.startswith(_MARK)]
        found += [ended] * (len(found) < len(uris))
    return found


def _of_spark(kind: Kind, beds: Mapping[str, Bed]) -> list[str]:
    jobs = {}
    for name in kind.tables:
        lake, table = _lake(beds[name]), TABLE.path if kind.format == "Delta" else TABLE.path.replace("/", ".")
        jobs[name] = Job("read", kind.format.lower(), str(lake), table, f"{lake}-read")
    errors = reader_spark.run(list(jobs.values()))
    return [
        REFUSED if job.out in errors else _judged(pq.read_table(job.out), beds[name].uri) for name, job in jobs.items()
    ]


def _ask(format: str, name: str, uri: str) -> str:
    [kind] = [kind for kind in KINDS if kind.format == format]
    [asked] = [asked for asked in kind.readers if asked.name == name]
    assert asked.read is not None
    try:
        rows = asked.read(_lake(Bed(uri, _ALL["delta-upsert"].mode)))
    except Exception as error:  # whatever others raise
        sys.stderr.write(f"{name}: {error}\n")
        return REFUSED
    return _judged(rows, uri)


def _judged(rows: pa.Table, uri: str) -> str:
    return YES if plain(rows) == plain(open_table(uri, TABLE.path).scan().read_all()) else WRONG


def plain(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Return rows in an order and in values that do not depend on the reader: some have no NULL for a list, or for a
    number, and some moments in other units."""
    names = sorted(rows.column_names)
    columns = [[_plain(value) for value in _column(rows.column(name)).to_pylist()] for name in names]
    return sorted(zip(*columns, strict=True), key=repr)


def _column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return column


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value) or None
    if isinstance(value, float | Decimal):
        return None if math.isnan(value) else float(value)
    return value


def rendered(kind: Kind, lines: Mapping[str, Sequence[str]]) -> str:
    """Return the table. ``lines``: by reader, its versions, the day, and a word for each kind of table."""
    head = ["reader", "version", "tried", *kind.tables.values()]
    rows = [head, ["---"] * len(head), *([name, *cells] for name, cells in lines.items())]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def stored(page: str, kind: Kind) -> dict[str, list[str]]:
    """Return the lines that the page has."""
    inside = page.partition(kind.begin)[2].partition(kind.end)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in inside.splitlines() if line]
    return {name: cells for name, *cells in rows[2:]}


def written(page: str, kind: Kind, lines: Mapping[str, Sequence[str]]) -> str:
    before, _, rest = page.partition(kind.begin)
    _, _, after = rest.partition(kind.end)
    return f"{before}{kind.begin}\n\n{rendered(kind, lines)}\n\n{kind.end}{after}"


def _tried(kind: Kind, beds: Mapping[str, Bed], known: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, list[str]]]:
    today = datetime.now(UTC).date().isoformat()
    for asked in kind.readers:
        if versions := _versions(asked):
            yield asked.name, [versions, today, *_answer(kind, asked, beds)]
        elif asked.name in known:
            yield asked.name, list(known[asked.name])
        else:
            yield asked.name, ["", "not tried", *[""] * len(kind.tables)]


def main() -> None:
    if len(sys.argv) > 1:
        format, name, *uris = sys.argv[1:]
        for uri in uris:
            sys.stdout.write(f"{_MARK}{_ask(format, name, uri)}\n")
            sys.stdout.flush()
        return
    page = PAGE.read_text()
    for kind in KINDS:
        with tempfile.TemporaryDirectory(prefix="weir-readers-") as directory:
            beds = {name: Bed.of(_ALL[name], Path(directory) / name) for name in kind.tables}
            for bed in beds.values():
                _lake(bed).parent.mkdir(parents=True)
                grown(bed)
            lines = dict(_tried(kind, beds, stored(page, kind)))
        page = written(page, kind, lines)
        sys.stdout.write(f"{rendered(kind, lines)}\n\n")
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
