"""Layout records: how a changefeed's tables lie in the sink: their partitions, their order, their properties."""

from typing import Annotated

from pydantic import Field

from reactor.records.base import Text, Texts, UserConfig

#: names and values of a format's own properties of a table
Properties = Annotated[dict[Text, Text], Field(max_length=1_000)]


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
