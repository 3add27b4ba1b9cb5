"""MySQL positions: a Ts made of the server's epoch, the binlog file's number and the position in it.

    server epoch (7 bits) | file number (24) | position of the GTID event (32)

A Ts orders commits like the server, is known from a transaction's first event, and increases over any number of files.
The *epoch* increases when the source continues on another server by GTID: positions of two servers are not comparable.
``ts - 1`` of the place where the next transaction may begin is resolved: everything at or below it has been read.

``SourcePosition`` is the same place with everything needed to resume there: it is stored with the Ts as opaque text.
"""

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Final

from agent.errors import SourceConfigError, SourceError
from agent.ports.source import Identity
from reactor.ids import Ts

#: the first event of every file follows four magic bytes
FIRST_POSITION: Final = 4
_FILE_BITS, _POSITION_BITS = 24, 32
_EPOCHS_MAX: Final = 127


def pack(epoch: int, file_number: int, position: int) -> Ts:
    """Return the Ts.

    :raises SourceError: a number exceeds its bits.
    """
    if not (0 <= epoch <= _EPOCHS_MAX and 0 <= file_number < 1 << _FILE_BITS and 0 <= position <= 1 << _POSITION_BITS):
        raise SourceError(f"server epoch {epoch}, binlog file {file_number}, position {position} do not fit into a Ts")
    return Ts((epoch << (_FILE_BITS + _POSITION_BITS)) + (file_number << _POSITION_BITS) + position)


def unpack(ts: Ts) -> tuple[int, int, int]:
    """Return epoch, file number and position."""
    file = ts >> _POSITION_BITS
    return file >> _FILE_BITS, file & ((1 << _FILE_BITS) - 1), ts & ((1 << _POSITION_BITS) - 1)


def behind_in_file(ts: Ts, end: int) -> Ts:
    """Return the Ts of the place ``end`` in the file of ``ts``; ``ts`` if that is not behind it (it has 32 bits)."""
    return max(ts, Ts((ts >> _POSITION_BITS << _POSITION_BITS) + end))


@dataclass(frozen=True, slots=True)
class BinlogPosition:
    """A place in one server's binlog."""

    file: str
    position: int = FIRST_POSITION

    def __str__(self) -> str:
        return f"{self.file}:{self.position}"


def split_file_name(name: str) -> tuple[str, int]:
    """Split ``mysql-bin.000012`` into the base name of all files, and this one's number.

    :raises SourceConfigError: not the name of a binlog file.
    """
    found = re.fullmatch(r"(.+)\.(\d+)", name, re.DOTALL)
    if found is None:
        raise SourceConfigError(f"{name[:80]!r} is no binlog file; SHOW BINARY LOGS lists them")
    return found[1], int(found[2])


@dataclass(frozen=True, slots=True)
class Epoch:
    """Period of reading from one server: ``server`` identifies it, ``base`` is its binlog's name without the number,
    and ``gtid`` the set that had been read at the start."""

    number: int
    server: str
    base: str
    gtid: str = ""


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """A place before which everything has been read, including ``gtid``; the newest of ``epochs`` has its binlog."""

    epochs: tuple[Epoch, ...]
    file_number: int
    #: number of digits in the file's name
    digits: int
    position: int
    gtid: str = ""
    #: distributed transactions waiting for their decision: see ``prepared``
    prepared: tuple[tuple[str, int], ...] = ()

    @property
    def identity(self) -> Identity:
        """The server, with a timeline for each that has taken another's place."""
        return Identity(self.epoch.server, self.epoch.number + 1)

    @property
    def epoch(self) -> Epoch:
        return self.epochs[-1]

    @property
    def ts(self) -> Ts:
        """The Ts of a transaction that begins exactly here: no later one has a smaller Ts."""
        return pack(self.epoch.number, self.file_number, self.position)

    @property
    def resolved(self) -> Ts:
        return Ts(self.ts - 1)

    @property
    def binlog(self) -> BinlogPosition:
        """Where to resume. A position with all 32 bits set is the end of an overlong file: the next one follows."""
        return self.place(self.ts)

    def place(self, ts: Ts) -> BinlogPosition:
        """Return where the transaction of ``ts`` begins, in the binlog of its epoch."""
        epoch, number, position = unpack(ts)
        return BinlogPosition(f"{self.epochs[epoch].base}.{number:0{self.digits}d}", max(position, FIRST_POSITION))

    @property
    def needed(self) -> BinlogPosition:
        """The oldest place that may be read again: that of the oldest transaction that is only prepared."""
        return self.place(Ts(min([self.ts, *(ts for _, ts in self.prepared if ts)])))

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "SourcePosition":
        """Parse the result of ``to_json``.

        :raises SourceError: malformed.
        """
        try:
            fields = json.loads(text)
            epochs = tuple(Epoch(**epoch) for epoch in fields.pop("epochs"))
            prepared = tuple((str(name), int(ts)) for name, ts in fields.pop("prepared", ()))
            return cls(epochs=epochs, prepared=prepared, **fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SourceError("the recorded position of the binlog is damaged; create the changefeed again") from error


def first_epoch(server: str, binlog: BinlogPosition, gtid: str = "") -> SourcePosition:
    """Return the position at which a changefeed begins."""
    return _at(binlog, (), Epoch(0, server, split_file_name(binlog.file)[0], gtid), gtid)


def next_epoch(before: SourcePosition, server: str, binlog: BinlogPosition) -> SourcePosition:
    """Return the position of the same set of transactions in the binlog of another server.

    :raises SourceError: no epoch is left.
    """
    epoch = Epoch(before.epoch.number + 1, server, split_file_name(binlog.file)[0], before.gtid)
    begun = _at(binlog, before.epochs, epoch, before.gtid)
    # their places on the other server are searched when they are committed: no transaction begins at a file's start
    prepared = tuple((name, ts and int(begun.ts)) for name, ts in before.prepared)
    return replace(begun, prepared=prepared)


def behind(lost: SourcePosition, now: SourcePosition) -> SourcePosition:
    """``now``, to which no log leads from ``lost``, as a later position: in the same epoch where its file and offset
    say so, else in the next one.

    :raises SourceError: no epoch is left.
    """
    is_same = (now.epoch.server, now.epoch.base) == (lost.epoch.server, lost.epoch.base)
    if is_same and (now.file_number, now.position) > (lost.file_number, lost.position):
        return replace(now, epochs=lost.epochs)
    epoch = replace(now.epoch, number=lost.epoch.number + 1)
    pack(epoch.number, 0, 0)
    return replace(now, epochs=(*lost.epochs, epoch))


def _at(binlog: BinlogPosition, earlier: tuple[Epoch, ...], epoch: Epoch, gtid: str) -> SourcePosition:
    pack(epoch.number, 0, 0)
    number = split_file_name(binlog.file)[1]
    digits = len(binlog.file) - len(epoch.base) - 1
    return SourcePosition((*earlier, epoch), number, digits, binlog.position, gtid)
