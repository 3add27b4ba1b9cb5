"""Log head record: the end of the change log, and which files are part of it."""

from typing import Self

from pydantic import model_validator

from reactor.ids import CaptureId, Ts
from reactor.records.base import Count, Record, StoredTs, later


class Era(Record):
    """From segment ``first_seq`` on, only files written under ``epoch`` are part of the log."""

    epoch: Count
    first_seq: Count


class LogHead(Record):
    """The change log's head; moved only by transactions that compare its revision, under the writer's epoch.

    A segment with number ``seq`` is part of the log iff ``first_seq <= seq <= last_seq`` and its file carries the
    epoch of the last era that starts at or before ``seq``. A transaction may spread over several segments:
    ``complete_seq`` is the last one after which no transaction is open; a new writer continues behind it, and
    what an interrupted writer left after it is overwritten by the new era.
    """

    epoch: Count = 0
    writer: CaptureId | None = None
    first_seq: Count = 1
    last_seq: Count = 0
    complete_seq: Count = 0
    resolved_ts: StoredTs = Ts(0)
    #: commit time at resolved_ts, Unix seconds; 0 when not known
    resolved_time: float = 0.0
    eras: tuple[Era, ...] = ()
    #: events at or below it may have been removed from the log (segments before ``first_seq``)
    removed_ts: StoredTs = Ts(0)
    #: what else the source needs to resume at ``resolved_ts`` (MySQL: GTIDs); opaque to others
    position: str = ""
    #: the file beside the segments with the rest of it (PostgreSQL: the catalog's proof; MySQL: what the stream
    #: remembers); empty if there is none
    attachment: str = later("")
    #: names of the latest segments, if listing the storage costs a request
    recent: tuple[str, ...] = later(())
    #: the last segment when ``written_ts`` was set: no event up to it is behind that. An older writer leaves both as
    #: they are, so they count only while it is the log's last one
    written_seq: Count = later(0)
    written_ts: StoredTs = later(Ts(0))

    @property
    def is_complete(self) -> bool:
        """Whether no transaction is open at the log's end."""
        return self.complete_seq == self.last_seq

    def ends_at(self, ts: Ts) -> bool:
        """Return whether the log has no event behind ``ts``, and all that it had up to there."""
        is_known = self.is_complete and self.written_seq == self.last_seq
        return is_known and ts >= max(self.written_ts, self.removed_ts)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        assert self.first_seq <= self.last_seq + 1, "the log begins behind its end"
        assert self.complete_seq <= self.last_seq, "a transaction ends behind the log's end"
        starts = [era.first_seq for era in self.eras]
        assert starts == sorted(starts), "the eras are not in order"
        return self
