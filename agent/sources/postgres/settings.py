"""PostgreSQL settings: the keys below ``[source]`` in a changefeed's configuration."""

from typing import Literal

from pydantic import BaseModel, Field


class PostgresSettings(BaseModel):
    """An empty name is weir_{cluster}_{changefeed}_…, which Weir makes and drops."""

    slot: str = Field("", description="name of the replication slot; empty: one that Weir makes")
    publication: str = Field("", description="name of an existing publication; empty: one that Weir makes")
    partition_rows: Literal["copy", "hold"] = Field(
        "copy",
        description="partitioned tables are copied by themselves when partitions come, go or are emptied with rows, or "
        "held for an operator",
    )
