"""Sink settings: what a changefeed makes of changes in its tables, and how these lie in the sink."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from reactor.records.base import Text, Texts, UserConfig

#: names and values of a format's own properties of a table
Properties = Annotated[dict[Text, Text], Field(max_length=1_000)]


class SinkMode(StrEnum):
    """``upsert``: the sink's table equals the source's. ``changelog``: every change is appended. ``history``: every
    version of a row is kept, with when it began and when it ended."""

    UPSERT = "upsert"
    CHANGELOG = "changelog"
    HISTORY = "history"

    @property
    def is_keyed(self) -> bool:
        """Whether rows are found by their key, which tables need then."""
        return self is not SinkMode.CHANGELOG


class TableLayout(UserConfig):
    """The layout of tables that ``matcher`` names; the first layout that names a table counts. It is used where a table
    is created or copied again; sinks say what they know of it (``agent.ports.sink.LaysOut``)."""

    matcher: Texts
    #: columns, or transforms of them: ``day(created_at)``, ``bucket(16, id)``
    partition_by: Texts = ()
    #: columns in whose order files are written: ``created_at desc``
    sort_by: Texts = ()
    #: columns by which the rows of a table without partitions are kept together
    cluster_by: Texts = ()
    properties: Properties = Field(default_factory=dict)
