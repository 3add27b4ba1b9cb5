"""Epochs of files: the newest one that a log directory has files of."""

from agent.log import attachments
from agent.log.segment import SegmentName
from agent.log.storage import LogDirectory, finished_name


def newest_epoch(directory: LogDirectory) -> int:
    """Return the newest epoch of all files, finished or not; 0 if there are none. Blocking.

    :raises LogError: the storage refused.
    """
    return max(map(_epoch, directory.names()), default=0)


def _epoch(name: str) -> int:
    finished = finished_name(name)
    segment = SegmentName.parse(finished)
    return segment.epoch if segment else attachments.epoch_of(finished) or 0
