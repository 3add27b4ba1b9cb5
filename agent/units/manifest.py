"""Manifest: a dump's plan and progress as small immutable files; read by later runs of the dump and by load.

- ``plan-{epoch}.json``: the tables, their schemas and chunk plans at the start of one run of the unit. The highest
  epoch wins.
- ``done-{epoch}-{number}.jsonl``: finished chunks, one per line, with the files that the sink staged.
- ``attempt-{epoch}-{number}.json``: which tables a run is reading; the highest number counts.
- ``begun-{epoch}.json``: without a dump, the tables' schemas where the stream begins.

No file is ever changed, and every name contains the epoch of its writer. So a crash leaves only whole files, and a
worker that has been replaced but still runs can neither overwrite a newer one's files nor supersede them. If both read
the same chunk, the newer one's files count; each wrote its own.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, BinaryIO, Final, Self

from agent.errors import LogError
from agent.log.storage import LogDirectory, open_input
from agent.ports.sink import StagedFile
from agent.ports.snapshot import DoneChunk, DoneChunks, Plan, TablePlan
from agent.rows.schema import TableSchema
from agent.sources.registry import read_chunks
from reactor.ids import Ts
from reactor.records.tables.table import TableRecord

# ten digits, and more once etcd's revision exceeds 100,000 (see ``owner.feed.workers.first_epoch``)
_PLAN: Final = re.compile(r"^plan-(\d{10,})\.json$")
_BEGUN: Final = re.compile(r"^begun-(\d{10,})\.json$")
_ATTEMPT: Final = re.compile(r"^attempt-(\d{10,})-(\d{6,})\.json$")
_DONE: Final = re.compile(r"^done-(\d{10,})-(\d{6,})\.jsonl$")


class Manifest:
    """The manifest of one changefeed's source. Blocking; ``uri`` is stored in ``UnitRecord.manifest``."""

    def __init__(self, directory: LogDirectory) -> None:
        self.directory = directory

    @classmethod
    def for_source(cls, log_uri: str, *, changefeed: str, source: str) -> Self:
        return cls(LogDirectory(log_uri, changefeed=changefeed, source=f"{source}-dump"))

    @classmethod
    def open(cls, uri: str) -> Self:
        root, changefeed, source = uri.rsplit("/", 2)
        return cls(LogDirectory(root, changefeed=changefeed, source=source))

    @property
    def uri(self) -> str:
        return str(self.directory)

    def read_plan(self) -> Plan | None:
        """Return the newest plan, or None if no dump has made one.

        :raises LogError: the storage refused.
        """
        plans = {int(match[1]): name for name in self.directory.names() if (match := _PLAN.match(name))}
        return _plan_from_json(self._read(plans[max(plans)])) if plans else None

    def require_plan(self) -> Plan:
        """:raises LogError: there is no dump."""
        if (plan := self.read_plan()) is None:
            raise LogError(f"there is no dump at {self.uri}; is the log storage shared by all captures?")
        return plan

    def staged(self, plan: Plan) -> Iterator[tuple[TableRecord, TableSchema, list[StagedFile]]]:
        """Yield what the dump has staged, table by table, without the tables that could not be copied.

        :raises LogError: it is not finished.
        """
        done = self.read_done(plan)
        for table in plan.tables:
            numbers = range(table.chunks.count)
            if missing := sum((table.record.table_id, number) not in done for number in numbers):
                raise LogError(
                    f"{missing} chunks of {table.schema.qualified_name} are not in the dump at {self.uri}; run it again"
                )
            if any(done[table.record.table_id, number].refused for number in numbers):
                continue
            files = [file for number in numbers for file in done[table.record.table_id, number].files]
            yield table.record, table.schema, files

    def write_plan(self, plan: Plan) -> None:
        """:raises LogError: the storage refused."""
        self._write(f"plan-{plan.epoch:010d}.json", _plan_to_json(plan))

    def read_done(self, plan: Plan) -> DoneChunks:
        """Return the finished chunks that are valid under ``plan``.

        :raises LogError: the storage refused.
        """
        generations = {table.record.table_id: table.generation for table in plan.tables}
        done: DoneChunks = {}
        for name in sorted(name for name in self.directory.names() if _DONE.match(name)):
            for line in self._read(name).splitlines():
                chunk = _chunk_from_json(line)
                if generations.get(chunk.table_id) == chunk.generation:
                    done[chunk.table_id, chunk.number] = chunk
        return done

    def read_refused(self) -> dict[int, str]:
        """Return the tables that could not be copied, with the reasons.

        :raises LogError: the storage refused.
        """
        plan = self.read_plan()
        done = self.read_done(plan) if plan else {}
        return {chunk.table_id: chunk.refused for chunk in done.values() if chunk.refused}

    def write_done(self, epoch: int, number: int, chunks: Iterable[DoneChunk]) -> None:
        """:raises LogError: the storage refused."""
        self._write(f"done-{epoch:010d}-{number:06d}.jsonl", "".join(f"{_chunk_to_json(chunk)}\n" for chunk in chunks))

    def read_attempts(self) -> list[tuple[tuple[int, ...], bool]]:
        """Return for each run the tables of its last note, and whether it was of a suspect alone.

        :raises LogError: the storage refused.
        """
        last: dict[int, str] = {}
        for name in sorted(self.directory.names(), key=lambda name: (len(name), name)):
            if match := _ATTEMPT.match(name):
                last[int(match[1])] = name
        notes = (json.loads(self._read(name)) for name in last.values())
        return [(tuple(note["tables"]), note["is_trial"]) for note in notes]

    def write_attempt(self, epoch: int, number: int, tables: Iterable[int], *, is_trial: bool) -> None:
        """:raises LogError: the storage refused."""
        note = {"tables": sorted(tables), "is_trial": is_trial}
        self._write(f"attempt-{epoch:010d}-{number:06d}.json", json.dumps(note))

    def remove_attempts(self, epoch: int) -> None:
        """:raises LogError: the storage refused."""
        matches = map(_ATTEMPT.match, self.directory.names())
        self.directory.remove([match[0] for match in matches if match and int(match[1]) == epoch])

    def write_begun(self, epoch: int, schemas: Iterable[TableSchema]) -> None:
        """:raises LogError: the storage refused."""
        self._write(f"begun-{epoch:010d}.json", json.dumps([schema.to_json() for schema in schemas]))

    def read_schemas(self) -> dict[int, TableSchema]:
        """Return the tables' schemas where the stream begins.

        :raises LogError: the storage refused.
        """
        begun = {int(match[1]): name for name in self.directory.names() if (match := _BEGUN.match(name))}
        if begun:
            schemas = [TableSchema.from_json(text) for text in json.loads(self._read(begun[max(begun)]))]
            return {schema.table_id: schema for schema in schemas}
        plan = self.read_plan()
        return {table.schema.table_id: table.schema for table in plan.tables} if plan else {}

    def _read(self, name: str) -> bytes:
        with open_input(self.directory.path_of(name)) as file:
            return bytes(file.read())

    def _write(self, name: str, text: str) -> None:
        def fill(file: BinaryIO) -> None:
            file.write(text.encode())

        self.directory.write(name, fill)


def read_manifest(uri: str) -> Iterator[tuple[TableRecord, TableSchema, list[StagedFile]]]:
    """Yield what a finished dump has staged, table by table, for ``load``; without the tables that could not be copied.

    :raises LogError: there is no dump, or it is not finished.
    """
    manifest = Manifest.open(uri)
    yield from manifest.staged(manifest.require_plan())


def _plan_to_json(plan: Plan) -> str:
    fields = {"epoch": plan.epoch, "start_ts": plan.start_ts, "position": plan.position, "timeline": plan.timeline}
    return json.dumps({**fields, "tables": [_table_to_fields(table) for table in plan.tables]})


def _plan_from_json(text: bytes) -> Plan:
    fields = json.loads(text)
    tables = tuple(_table_from_fields(table) for table in fields["tables"])
    timeline = fields.get("timeline", 0)  # earlier versions did not note it
    return Plan(fields["epoch"], Ts(fields["start_ts"]), tables, fields["position"], timeline)


def _table_to_fields(table: TablePlan) -> dict[str, Any]:
    return {
        "record": json.loads(table.record.encode()),
        "schema": json.loads(table.schema.to_json()),
        "chunks": table.chunks.to_fields(),
        "generation": table.generation,
    }


def _table_from_fields(fields: dict[str, Any]) -> TablePlan:
    schema = TableSchema.from_json(json.dumps(fields["schema"]))
    return TablePlan(
        TableRecord.model_validate(fields["record"]),
        schema,
        read_chunks(schema, fields["chunks"]),
        fields["generation"],
    )


def _chunk_to_json(chunk: DoneChunk) -> str:
    fields = asdict(chunk)
    if not chunk.refused:  # earlier versions do not know the field
        del fields["refused"]
    return json.dumps(fields, separators=(",", ":"))


def _chunk_from_json(text: bytes) -> DoneChunk:
    fields = json.loads(text)
    files = tuple(StagedFile(**file) for file in fields.pop("files"))
    return DoneChunk(files=files, **fields)
