"""Formats: the number that says which shapes of stored values a cluster uses, and what needs which number.

A cluster begins with the newest format that its captures know, and its owner raises it when all who are there know a
newer one: never back. Until then nothing is stored that an older capture cannot take; a capture that does not know the
cluster's format refuses to join. So two neighbouring versions may run side by side while a cluster is upgraded.

    1   v0.1.0, which stores no format: without the key it is this one
    2   held tables; settings of a changefeed that v0.1.0 does not know
    3   tables that are copied again
    4   changefeeds that take a new position
    5   tables that operators pause, add, or let leave out changes
    6   limits of how fast a source is read; comparisons by schedule
    7   subscriptions to changes
    8   signals from sources
    9   large values are packed (``reactor.division.packing``)
    10  large values are divided (``reactor.division.divided``)
    11  each changefeed has an owner of its own (``reactor.records.capture``)
    12  progress of all owners of a capture is one record (``reactor.membership.progress``)
    17  layouts of tables, and sink mode history
    18  column mapping of Delta tables: older captures would write files under the columns' names
    19  event filters that ignore the end of partitions

A field that was added later (``reactor.records.base.later``) says which format it needs where it is set; a new kind of
record, or a new word in an old one, is a ``Feature``; a new word in a user's setting is in its ``words``.
"""

from enum import IntEnum
from typing import Annotated

from pydantic import BaseModel, Field

from reactor.errors import FormatError
from reactor.records.base import COUNT_MAX, NEEDS, Record, UserConfig, later

FIRST, NEWEST = 1, 19
#: of a cluster that no capture of any version may join
HALTED = 1_000_000


class Feature(IntEnum):
    """The format that it needs."""

    HELD_TABLES = 2
    RESYNC = 3
    NEW_POSITION = 4
    TABLE_STEPS = 5
    READ_LIMITS = 6
    SUBSCRIPTIONS = 7
    SIGNALS = 8
    PACKED = 9
    DIVIDED = 10
    OWNERS = 11
    PROGRESS = 12
    HISTORY = 17
    COLUMN_MAPPING = 18


class ClusterFormat(Record):
    """The format of a cluster. Written by its owner, and by joining captures, which do not change the number.

    While the cluster is *halted*, ``number`` is ``HALTED``, so that older captures refuse to join, too.
    ``reactor.store.transfer`` halts clusters.
    """

    number: Annotated[int, Field(ge=FIRST, le=COUNT_MAX)] = FIRST
    #: why no capture may join, and the cure; empty: it is not halted
    halted: str = later("")
    #: the number that it has when it is not halted; 0: this store does not have the whole cluster
    halted_at: int = later(0)
    #: names the last transfer that halted or wrote it
    transfer: str = later("")

    def refuse_halted(self) -> None:
        """:raises FormatError: no capture may join."""
        if self.halted:
            raise FormatError(f"the cluster is halted: {self.halted}")


def refuse_unknown(number: int, *, newest: int = NEWEST) -> None:
    """:raises FormatError: this capture does not support the cluster's format."""
    if number > newest:
        raise FormatError(
            f"the cluster uses format {number}, and this version of Weir knows formats up to {newest}: "
            "start a version that is as new as the cluster's other captures"
        )


def refuse_early(what: str, needed: int, number: int) -> None:
    """:raises FormatError: some captures of the cluster do not support ``what`` yet."""
    if needed > number:
        raise FormatError(
            f"{what} needs format {needed}, and the cluster uses {number}: upgrade all captures "
            "(`weir capture list` shows their versions), then try again"
        )


def needed_by(record: BaseModel) -> dict[str, int]:
    """Return what is set in the record, at any depth, that needs a format: its name → the format."""
    found = record.words() if isinstance(record, UserConfig) else {}
    for name, field in type(record).model_fields.items():
        value = getattr(record, name)
        extra = field.json_schema_extra
        if isinstance(extra, dict) and NEEDS in extra and value != field.get_default(call_default_factory=True):
            found[name] = int(str(extra[NEEDS]))
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, BaseModel):
                found |= needed_by(inner)
    return found


def raised(number: int, known: list[int]) -> int:
    """Return the new format of a cluster that has format ``number``, with captures that support ``known``."""
    return max(number, min([*known, NEWEST])) if known else number
