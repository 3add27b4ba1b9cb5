"""Delta options: the options of a Delta sink's URI, and the sink's capabilities."""

from typing import Any, Final, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from agent.errors import SinkUriError
from agent.ports.capabilities import Capabilities, Guarantee
from agent.sinks.common.readers import Format, parse_readers, without_mapping, without_vectors
from reactor.records.base import NEEDS
from reactor.records.changefeed import SinkMode
from reactor.records.formats import Feature

#: ten years
_RETENTION_MAX_S: Final = 315_360_000
#: of tables with a Change Data Feed
_FEED_RETENTION_S: Final = 86_400
_NOT_GIVEN: Final[Any] = ""


class DeltaOptions(BaseModel, extra="allow"):
    """Options not listed here are passed to the object store; a directory accepts none."""

    retention_seconds: int = Field(
        600,
        ge=0,
        le=_RETENTION_MAX_S,
        description="how long replaced files stay for readers, and changes in a Change Data Feed; with one 86400",
    )
    deletion_vectors: Literal["true", "false"] = Field(
        _NOT_GIVEN,
        description="whether new upserted tables take deletion vectors; if not given: if all readers read them",
    )
    soft_delete: Literal["true", "false"] = Field(
        "false", description="upsert: deleted rows stay, with _weir_deleted = true in a column of their own"
    )
    synced_at: Literal["true", "false"] = Field(
        "false", description="upsert: a column _weir_synced_at, when a row was last written"
    )
    change_data_feed: Literal["true", "false"] = Field(
        "false", description="upsert: new tables have a Change Data Feed, so a flush writes changed rows once more"
    )
    column_mapping: Literal["none", "name"] = Field(
        "none",
        description="name: a renamed or dropped column costs no rewriting; new tables map names of columns to those in "
        "files, others from their first such change on",
        json_schema_extra={NEEDS: int(Feature.COLUMN_MAPPING)},
    )
    readers: str = Field("", description="who reads the tables: duckdb,trino,…; new tables use what all of them read")

    @field_validator("readers")
    @classmethod
    def _known(cls, text: str) -> str:
        parse_readers(text, Format.DELTA)
        return text

    @model_validator(mode="after")
    def _readable(self) -> Self:
        readers = parse_readers(self.readers, Format.DELTA)
        cannot = without_vectors(readers)
        if self.deletion_vectors == "true" and cannot:
            raise ValueError(f"{cannot[0]} does not read deletion vectors; leave deletion_vectors=true or it out")
        if self.maps_columns and (cannot := without_mapping(readers)):
            raise ValueError(f"{cannot[0]} is not known to read column mapping; leave column_mapping=name or it out")
        if self.maps_columns and self.has_feed:
            raise ValueError(
                "readers of a Change Data Feed do not see that a mapped column has another name, or is gone; leave "
                "column_mapping=name or change_data_feed=true out"
            )
        return self

    @property
    def takes_vectors(self) -> bool:
        """Whether new upserted tables take deletion vectors."""
        names = parse_readers(self.readers, Format.DELTA)
        is_readable = bool(names) and not without_vectors(names)
        return self.deletion_vectors == "true" if self.deletion_vectors else is_readable

    @property
    def maps_columns(self) -> bool:
        """Whether tables may have names of columns that differ from those in their files."""
        return self.column_mapping == "name"

    @property
    def retention_s(self) -> int:
        is_given = "retention_seconds" in self.model_fields_set
        return self.retention_seconds if is_given or not self.has_feed else _FEED_RETENTION_S

    @property
    def has_feed(self) -> bool:
        """Whether new tables have a Change Data Feed."""
        return self.change_data_feed == "true"

    def refuse_feed(self, mode: SinkMode) -> None:
        """:raises SinkUriError: tables of this mode cannot have the Change Data Feed that is wanted."""
        if self.has_feed and mode is not SinkMode.UPSERT:
            raise SinkUriError(
                f"option change_data_feed=true is one of upserted tables, and a table of mode {mode} has its changes "
                "as rows; leave it out, or use sink mode upsert"
            )

    def refuse_history(self) -> None:
        """:raises SinkUriError: history tables, which take deletion vectors, are not readable for all readers."""
        cannot = without_vectors(parse_readers(self.readers, Format.DELTA))
        if cannot or self.deletion_vectors == "false":
            who = f"{cannot[0]} does not read" if cannot else "deletion_vectors=false refuses"
            raise SinkUriError(f"sink mode history needs deletion vectors, and {who} them; use upsert, or Iceberg")

    @property
    def storage(self) -> dict[str, str]:
        return dict(self.model_extra or {})

    def notices(self, mode: SinkMode) -> tuple[str, ...]:
        """Return what the readers cost, for who creates a changefeed."""
        mapping = (
            "new tables map their columns (column_mapping=name): pandas, polars and other readers without that feature "
            "refuse them",
        )
        mapped = mapping if self.maps_columns else ()
        if mode is not SinkMode.UPSERT:
            return mapped
        feed = (
            "new tables have a Change Data Feed: a flush reads the rows that it replaces and writes all changed ones "
            f"once more; they can be read for {self.retention_s} s (retention_seconds)",
        )
        return (*self._reader_notices(), *(feed if self.has_feed else ()), *mapped)

    def _reader_notices(self) -> tuple[str, ...]:
        names = parse_readers(self.readers, Format.DELTA)
        if not names:
            return ()
        if self.takes_vectors:
            return (f"{', '.join(names)} read deletion vectors: new tables use them, so a flush costs what changes",)
        who = ", ".join(without_vectors(names)) or "deletion_vectors=false"
        return (
            f"new tables are without deletion vectors, because of {who}: an update or a delete rewrites the files that "
            "hold its rows, so a flush of few changes of a large table costs much more",
        )


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
