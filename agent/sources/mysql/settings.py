"""MySQL settings: the keys below ``[source]`` in a changefeed's configuration."""

from typing import Literal

from pydantic import BaseModel, Field


class MysqlSettings(BaseModel):
    zero_dates: Literal["null", "strict", "string"] = Field(
        "null",
        description="dates that no calendar has (0000-00-00) become NULL, hold the table, or make the column a string",
    )
    unlogged_cascades: Literal["refuse", "accept"] = Field(
        "refuse",
        description="tables with rows that foreign keys change unlogged are refused (held, where they "
        "come later), or taken with such rows as they were",
    )
    partition_rows: Literal["copy", "hold"] = Field(
        "copy",
        description="partitioned tables are copied by themselves when partitions are dropped, emptied or exchanged, or "
        "held for an operator",
    )
