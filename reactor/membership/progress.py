"""Progress records: how far the changefeeds are that one capture owns, in one value. So writes of progress grow with
the number of captures, not of changefeeds (after TiCDC's cdcv2 metadata).

An entry is newer than the stored status of its changefeed, and counts only for that one: each write of a status that
has an entry raises the status's ``generation``, and so makes the entry void. A status is written when a changefeed is
launched, handed over, changed by an operator, or has reached something that other records depend on.
"""

from collections.abc import Iterable

from pydantic import Field

from reactor.ids import CaptureId, ChangefeedId
from reactor.keys import StatusKey
from reactor.records.base import Record
from reactor.records.changefeed import ChangefeedInfo, ChangefeedStatus


class OwnedProgress(ChangefeedStatus):
    """``incarnation``: of the changefeed, since another one may get its name; ``generation``: of the stored status."""

    incarnation: str = ""


class CaptureProgress(Record):
    """Written by the owners of one capture; deleted by the controller when the capture is gone and nothing counts."""

    changefeeds: dict[ChangefeedId, OwnedProgress] = Field(default_factory=dict)


#: by capture
ProgressByCapture = dict[CaptureId, CaptureProgress]


def incarnation(info: ChangefeedInfo) -> str:
    """Return what tells a changefeed from others of its name; those of v0.1.0 have their time of creation only."""
    return info.incarnation or repr(info.created_at)


def counts(entry: OwnedProgress, info: ChangefeedInfo | None, stored: ChangefeedStatus | None) -> bool:
    """Return whether ``entry`` is newer than the ``stored`` status."""
    if info is None or stored is None:
        return False
    return (entry.incarnation, entry.generation) == (incarnation(info), stored.generation)


def newest(
    records: Iterable[CaptureProgress], info: ChangefeedInfo | None, stored: ChangefeedStatus | None
) -> ChangefeedStatus | None:
    """Return a changefeed's newest status. Between two owners, both may have an entry that counts: all that they say
    has been reached."""
    entries = (record.changefeeds.get(info.id) for record in records) if info else ()
    known = [one for one in entries if one is not None and counts(one, info, stored)]
    found = max(known, key=lambda one: (one.checkpoint_ts, one.resolved_ts), default=None)
    return _with(stored, found) if stored is not None and found is not None else stored


def furthest(stored: ChangefeedStatus | None, latest: ChangefeedStatus | None) -> ChangefeedStatus | None:
    """Return ``latest``, which a run has reached and shown, unless it is stored by now: that may have a greater
    generation. No entry counts for what is returned: an earlier one may be on its way."""
    if stored is None or latest is None or latest.checkpoint_ts <= stored.checkpoint_ts:
        return stored
    return latest.with_(generation=stored.generation + 1)


def replacing(stored: ChangefeedStatus | None, status: ChangefeedStatus) -> ChangefeedStatus:
    """Return ``status`` as it is to be stored so that no entry counts for it."""
    return _with(stored, status, generation=stored.generation + 1) if stored is not None else status


def _with(stored: ChangefeedStatus, status: ChangefeedStatus, **changes: int) -> ChangefeedStatus:
    return stored.with_(**({name: getattr(status, name) for name in ChangefeedStatus.model_fields} | changes))


def entry_of(info: ChangefeedInfo, status: ChangefeedStatus) -> OwnedProgress:
    values = {name: getattr(status, name) for name in ChangefeedStatus.model_fields}
    return OwnedProgress(**values, incarnation=incarnation(info))


def holds_progress(key: str) -> bool:
    """Return whether an owner's progress is stored under ``key``."""
    return f"/{StatusKey.KIND}/" in key or "/progress/" in key
