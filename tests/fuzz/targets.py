"""Fuzz targets: what reads bytes of peers, servers, files and users. A refusal is a ``WeirError``."""

import contextlib
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgpack
import pyarrow as pa

from agent.errors import DecodeError
from agent.filter import expressions
from agent.log import segment
from agent.log.salvage import whole_batches
from agent.ports.source import StreamRestart
from agent.rows.arena import Arena, ArenaPool
from agent.rows.schema import LOG_BATCH, Column, TableSchema
from agent.sources.mysql.binlog.stream import BinlogStream
from agent.sources.mysql.decode.decode import decode as decode_binlog
from agent.sources.mysql.decode.json import binary
from agent.sources.mysql.decode.table_map import parse_table_map
from agent.sources.mysql.inspect.report import read_events
from agent.sources.mysql.position.positions import BinlogPosition, first_epoch
from agent.sources.postgres.decode import types as postgres_types
from agent.sources.postgres.decode.decode import decode as decode_postgres
from capture.config import load_changefeed_config, load_server_settings
from capture.messaging import codec, frames
from reactor.errors import WeirError
from reactor.ids import CaptureId, ChangefeedId, TableSpan, Ts
from reactor.messages import Barrier, Header, Heartbeat, Message, RemoveSpan
from reactor.records.tables.schema_change import DdlRecord
from tests import binlog_files
from tests.binlog import Binlog, Line
from tests.unit.agent import log_build
from tests.unit.agent import stream_build as pg

LENGTH_MAX = 4096


@dataclass(frozen=True, slots=True)
class Target:
    """``seeds``: inputs that are good."""

    run: Callable[[bytes], object]
    seeds: Callable[[], Sequence[bytes]]


@cache
def scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="weir-fuzz-"))


def _file(data: bytes) -> Path:
    path = scratch() / "input"
    path.write_bytes(data)
    return path


# peers

_HEADER = Header(version="1", owner_revision=7, processor_epoch="e", changefeed_epoch=3)
_MESSAGES = [
    Message(CaptureId("a"), CaptureId("b"), ChangefeedId("shop"), _HEADER, body)
    for body in (RemoveSpan(TableSpan(7)), Heartbeat((TableSpan(7),), barrier=Barrier(Ts(9))))
]


def _frames(data: bytes) -> None:
    decoder = frames.Decoder(bytes_max=1 << 16)
    for part in (data[: len(data) // 2], data[len(data) // 2 :]):
        decoder.feed(part)


def _frame_seeds() -> list[bytes]:
    a, b = CaptureId("a"), CaptureId("b")
    sent: list[frames.Frame] = [
        frames.Hello(a, b, 1, 2, nonce=bytes(32), key_id=bytes(8)),
        frames.Challenge(bytes(32), bytes(32)),
    ]
    sent += [frames.Proof(bytes(32)), frames.Welcome(64), frames.Refuse(frames.Reason.UNPROVED, "no")]
    sent += [frames.Ack("agent", 3), frames.Ping(), frames.Pong()]
    sent += [frames.Data("agent", 5, message) for message in _MESSAGES]
    encoded = [frames.encode(frame) for frame in sent]
    return [*encoded, b"".join(encoded)]


def _codec(data: bytes) -> None:
    try:
        row = msgpack.unpackb(data, strict_map_key=False)
    except Exception:
        return  # frames' own matter
    codec.message_of(row)


def _codec_seeds() -> list[bytes]:
    return [msgpack.packb(codec.message_row(message)) for message in _MESSAGES]


# MySQL


def _binlog_file(data: bytes) -> None:
    for _ in read_events(_file(data)):
        pass


def _binlog_file_seeds() -> list[bytes]:
    return [sample.data for sample in binlog_files.samples().values()]


def _binlog_stream(data: bytes) -> None:
    line = Line(is_mariadb=False)
    with contextlib.closing(line):
        line.far.sendall(Binlog(checksum=False).begin().data + data)
        line.far.shutdown(1)
        stream = BinlogStream(
            line,
            Arena(1 << 16),
            position=first_epoch("s", BinlogPosition("binlog.000001")),
            is_wanted=lambda schema_name, name: True,
            describe=lambda body: parse_table_map(body, is_mariadb=False).schema,
            interpret=lambda event: DdlRecord(ts=event.ts, statement=event.statement),
            pause_s=0,
        )
        with contextlib.suppress(StreamRestart):
            while True:
                while stream.is_full or stream.complete_rows:
                    for part in stream.take_chunk(Arena(1 << 16)).batches():
                        with contextlib.suppress(DecodeError):
                            decode_binlog(part.schema, part.batch)
                stream.read(timeout_s=5)


def _binlog_stream_seeds() -> list[bytes]:
    from agent.sources.mysql.decode import wire
    from tests.binlog_files import number, rows, table_map

    head = len(Binlog(checksum=False).begin().data)
    log = Binlog(checksum=False).begin()
    log.add(wire.TABLE_MAP, table_map()).add(wire.WRITE_V2, rows(number(7)))
    return [log.data[head:]]


def _document(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        binary.to_text(data)


def _document_seeds() -> list[bytes]:
    return [b"\x02\x01\0\x08\0\x04\0\x05\0\0", b"\x0c\x03abc", b"\x05\x07\0", b"\x00\0\0\x04\0"]


# PostgreSQL


def _pgoutput_stream(data: bytes) -> None:
    wire = pg.Wire()
    try:
        wire.server.sendall(data)
        wire.server.shutdown(1)
        pool = ArenaPool(2, 1 << 14)
        stream = pg.stream_on(wire, pool)
        while True:
            stream.read(timeout_s=1.0)
            while stream.is_full or stream.complete_rows:
                cut = stream.take_chunk(pg.taken(pool))
                pg.events_of(cut)
                if cut.arena is not None:
                    pool.give(cut.arena)
    finally:
        wire.close()


def _pgoutput_seeds() -> list[bytes]:
    known = pg.begin(100) + pg.relation(7) + pg.row(7, b"N\0\1b\0\0\0\4\0\0\0\7") + pg.commit(100)
    return [known, known + pg.keepalive(200, reply=True), pg.message(pg.truncate_body(7))]


_ALL_TYPES = TableSchema(
    7, "public", "t", tuple(Column(f"c{oid}", oid, -1) for oid in sorted(postgres_types.KNOWN_OIDS))
)


def _pgoutput_rows(data: bytes) -> None:
    columns = [pa.array([100], pa.int64()), pa.array([0], pa.int64()), pa.array([data], pa.large_binary())]
    decode_postgres(_ALL_TYPES, pa.record_batch(columns, schema=LOG_BATCH))


def _pgoutput_row_seeds() -> list[bytes]:
    count = len(_ALL_TYPES.columns)
    head = b"I" + struct.pack("!i", 7) + b"N" + struct.pack("!h", count)
    texts = [b"1", b"2024-01-31 12:34:56.789", b"-12.50", b"t", b"{1,2}", b"00:00:01", b"\\xab"]
    found = [head + (b"t" + struct.pack("!i", len(text)) + text) * count for text in texts]
    return [*found, head + b"n" * count, *(head + (b"b" + struct.pack("!i", n) + bytes(n)) * count for n in (4, 8))]


# the change log


def _segments(data: bytes) -> None:
    path = str(_file(data))
    for read in (segment.read_batches, whole_batches):
        with contextlib.suppress(WeirError):
            for _ in read(path):
                pass


def _segment_seeds() -> list[bytes]:
    place = log_build.directory(scratch() / "log")
    put = log_build.put(place, log_build.name(1, first=5, last=9), log_build.batch(7, (5, 0), (6, 0)))
    return [Path(put.path).read_bytes()]


# users


def _toml(data: bytes) -> None:
    for load in (load_changefeed_config, load_server_settings):
        with contextlib.suppress(WeirError):
            load(_file(data))


def _toml_seeds() -> list[bytes]:
    filters = b"[[filter.event-filters]]\nmatcher = ['a.*', '!a.b']\nignore-event = ['delete']\nignore-sql = ['x']\n"
    return [
        b"force-replicate = true\ndump-chunk-rows = 5000\nlog-retention-seconds = 60\n[source]\nslot = 'x'\n",
        b"[filter]\nrules = ['*.*', '/a/.b']\n" + filters,
        b"[[filter.column-selectors]]\nmatcher = ['*.*']\ncolumns = ['*', '!b']\n",
        b"addr = '127.0.0.1:1'\netcd = ['http://h:1']\numask = '077'\n[spark]\n'spark.x' = '1'\n",
    ]


_ROWS = pa.record_batch(
    {"a": pa.array([1, None], pa.int64()), "b": pa.array(["x", None]), "c": pa.array([1.5, 2.0]), "d": [True, False]}
)


def _expressions(data: bytes) -> None:
    expressions.parse(data.decode("utf-8", "replace")).matches(_ROWS)


def _expression_seeds() -> list[bytes]:
    texts = ["a = 1 AND b LIKE 'x%'", "NOT (a IN (1, 2) OR c BETWEEN 1 AND 2)", "coalesce(b, 'y') <=> NULL"]
    return [
        text.encode() for text in [*texts, "length(lower(b)) % 2 = -1", "d IS TRUE", "b REGEXP '^x+$'", "abs(a)*c>3"]
    ]


TARGETS = {
    "frames": Target(_frames, _frame_seeds),
    "codec": Target(_codec, _codec_seeds),
    "binlog-file": Target(_binlog_file, _binlog_file_seeds),
    "binlog-stream": Target(_binlog_stream, _binlog_stream_seeds),
    "document": Target(_document, _document_seeds),
    "pgoutput-stream": Target(_pgoutput_stream, _pgoutput_seeds),
    "pgoutput-rows": Target(_pgoutput_rows, _pgoutput_row_seeds),
    "segment": Target(_segments, _segment_seeds),
    "toml": Target(_toml, _toml_seeds),
    "expression": Target(_expressions, _expression_seeds),
}


def run(name: str, data: bytes) -> None:
    """Anything but a refusal is raised."""
    with contextlib.suppress(WeirError):
        TARGETS[name].run(data)
