"""Iceberg options: the options of an Iceberg sink's URI, and the sink's capabilities."""

from typing import Final, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from agent.ports.capabilities import Capabilities, Guarantee
from agent.sinks.common.readers import Format, parse_readers, without_version_3
from reactor.records.changefeed import SinkMode

#: ten years
_RETENTION_MAX_S: Final = 315_360_000


class IcebergOptions(BaseModel, extra="allow"):
    """Options not listed here are passed to the catalog and the object store; ``iceberg+file`` accepts none."""

    retention_seconds: int = Field(
        300, ge=0, le=_RETENTION_MAX_S, description="how long old snapshots and their files stay for readers"
    )
    readers: str = Field("", description="who reads the tables: duckdb,trino,…; all known ones can read version 2")
    format_version: Literal["2", "3"] = Field(
        "2", description="of new tables: 2 deletes rows by position deletes, 3 by deletion vectors"
    )
    soft_delete: Literal["true", "false"] = Field(
        "false", description="upsert: deleted rows stay, with _weir_deleted = true in a column of their own"
    )
    synced_at: Literal["true", "false"] = Field(
        "false", description="upsert: a column _weir_synced_at, when a row was last written"
    )
    warehouse: str = Field(
        "", description="iceberg+sql: /directory or s3://bucket/prefix; iceberg+rest: the catalog's name of it"
    )
    dialect: str = Field("postgresql+pg8000", description="iceberg+sql: the database and its driver, as SQLAlchemy's")
    user: str = Field("", description="iceberg+sql: user of the database")
    password: str = Field("", description="iceberg+sql: the user's password, for instance env:NAME")
    tls: Literal["true", "false"] = Field("true", description="iceberg+rest: https, or http")
    catalog: str = Field("weir", description="iceberg+sql: the catalog's name in its database")

    @field_validator("readers")
    @classmethod
    def _known(cls, text: str) -> str:
        parse_readers(text, Format.ICEBERG)
        return text

    @model_validator(mode="after")
    def _read_by_all(self) -> Self:
        missing = without_version_3(parse_readers(self.readers, Format.ICEBERG))
        if self.format_version == "3" and missing:
            raise ValueError(
                f"{missing[0]!r} of readers is not known to read format_version=3; leave one of the two options out"
            )
        return self

    @property
    def rest(self) -> dict[str, str]:
        return dict(self.model_extra or {})


CAPABILITIES = Capabilities(
    guarantee=Guarantee.EXACTLY_ONCE,
    modes=frozenset(SinkMode),
    alters=True,
    splits=True,
    reads_back=True,
    replaces=True,
    maintains=True,
    lays_out=True,
    loads_at_once=8,
)
