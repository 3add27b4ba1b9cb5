"""Binlog progress: how far a binlog has been read, as the file, position and GTID set that the server understands.

The kernels count GTIDs in a small table; it is converted to a set on request or when it is full. Tagged GTIDs (MySQL
8.4), which the kernels do not read, are added when their transaction ends.
"""

from dataclasses import replace
from uuid import UUID

import numpy as np

from agent.kernels.jit import Ints
from agent.sources.mysql.binlog import txn
from agent.sources.mysql.binlog.events import TaggedGtid
from agent.sources.mysql.binlog.prepared import Prepared
from agent.sources.mysql.ddl.copies.memory import FileBegin
from agent.sources.mysql.position.gtid import GtidSet, MariaGtidSet, MysqlGtidSet, parse_gtid_set
from agent.sources.mysql.position.positions import BinlogPosition, Epoch, SourcePosition, split_file_name, unpack
from reactor.ids import Ts

_LINES = 64
_HALF = (1 << 64) - 1


class Progress:
    """Continues from ``begun``; ``state`` is the kernels' state array."""

    def __init__(self, begun: SourcePosition, state: Ints, *, is_mariadb: bool) -> None:
        self._position = begun
        self._state = state
        self._read: GtidSet = parse_gtid_set(begun.gtid, is_mariadb=is_mariadb)
        self._open: tuple[TaggedGtid, int] | None = None
        self.prepared = Prepared(begun.prepared)
        #: the kernels' table: see ``txn.GTID_CELLS``
        self.gtids: Ints = np.zeros((_LINES, txn.GTID_CELLS), np.int64)
        self._set_file(begun.file_number)

    def position(self) -> SourcePosition:
        """Return the position after the last transaction that has been read."""
        self.drain()
        self._settle_tagged()
        self.prepared.settle(Ts(int(self._state[txn.RESOLVED])))
        _, number, position = unpack(int(self._state[txn.RESOLVED]) + 1)  # type: ignore[arg-type]
        return replace(
            self._position,
            file_number=number,
            position=position,
            gtid=str(self._read),
            prepared=self.prepared.entries,
        )

    def rotate(self, to: BinlogPosition) -> None:
        """Continue at ``to``, where the next event is. A file of another name or with a smaller number begins an
        epoch."""
        base, number = split_file_name(to.file)
        epoch = self._position.epoch
        if base != epoch.base or number < self._position.file_number:
            self.drain()
            later = Epoch(epoch.number + 1, epoch.server, base, str(self._read))
            self._position = replace(self._position, epochs=(*self._position.epochs, later))
        self._position = replace(self._position, file_number=number, digits=len(to.file) - len(base) - 1)
        self._set_file(number)
        self._state[txn.POSITION] = to.position
        if self._state[txn.IN_TXN] == txn.CLOSED:
            txn.resolve(to.position, int(self._state[txn.COMMIT_TIME]), self._state)

    def file_begun_at(self, time: int) -> FileBegin:
        """Return the file that is read, with its time."""
        return FileBegin(self._position.epoch.number, self._position.file_number, time)

    def open_tagged(self, gtid: TaggedGtid) -> None:
        """Note the tagged GTID of the transaction that has just begun."""
        self._settle_tagged()
        self._open = gtid, int(self._state[txn.TXNS])

    def drain(self) -> None:
        """Empty the kernels' table."""
        lines = self.gtids[: int(self._state[txn.GTIDS])].tolist()
        self._state[txn.GTIDS] = 0
        for a, b, first, last in lines:
            if isinstance(self._read, MariaGtidSet):
                self._read = self._read.add(a, b, first)
            else:
                self._read = self._read.add(str(UUID(int=(a & _HALF) << 64 | b & _HALF)), first, last)

    def _settle_tagged(self) -> None:
        if self._open is None:
            return
        gtid, opened = self._open
        if self._state[txn.TXNS] != opened or self._state[txn.IN_TXN] == txn.CLOSED:
            assert isinstance(self._read, MysqlGtidSet)
            self._read = self._read.add(gtid.source, gtid.number, gtid.number)
            self._open = None

    def _set_file(self, number: int) -> None:
        self._state[txn.FILE] = self._position.epoch.number << 24 | number
