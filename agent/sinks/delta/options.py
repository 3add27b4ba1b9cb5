"""Delta options: the options of a Delta sink's URI, and the sink's capabilities."""

from typing import Any, Final, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from agent.errors import SinkUriError
from agent.ports.capabilities import Capabilities, Guarantee
from agent.sinks.common.readers import Format, parse_readers, without_vectors
from agent.sinks.common.row_marks import Marks
from reactor.records.changefeed import SinkMode

#: ten years
_RETENTION_MAX_S: Final = 315_360_000
_NOT_GIVEN: Final[Any] = ""


class DeltaOptions(BaseModel, extra="allow"):
    """Options not listed here are passed to the object store; a directory accepts none."""

    retention_seconds: int = Field(
        600, ge=0, le=_RETENTION_MAX_S, description="how long replaced files stay for readers"
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
    readers: str = Field("", description="who reads the tables: duckdb,trino,…; new tables use what all of them read")

    @field_validator("readers")
    @classmethod
    def _known(cls, text: str) -> str:
        parse_readers(text, Format.DELTA)
        return text

    @model_validator(mode="after")
    def _readable(self) -> Self:
        cannot = without_vectors(parse_readers(self.readers, Format.DELTA))
        if self.deletion_vectors == "true" and cannot:
            raise ValueError(f"{cannot[0]} does not read deletion vectors; leave deletion_vectors=true or it out")
        return self

    @property
    def takes_vectors(self) -> bool:
        """Whether new upserted tables take deletion vectors."""
        names = parse_readers(self.readers, Format.DELTA)
        is_readable = bool(names) and not without_vectors(names)
        return self.deletion_vectors == "true" if self.deletion_vectors else is_readable

    def refuse_history(self) -> None:
        """:raises SinkUriError: history tables, which take deletion vectors, are not readable for all readers."""
        cannot = without_vectors(parse_readers(self.readers, Format.DELTA))
        if cannot or self.deletion_vectors == "false":
            who = f"{cannot[0]} does not read" if cannot else "deletion_vectors=false refuses"
            raise SinkUriError(f"sink mode history needs deletion vectors, and {who} them; use upsert, or Iceberg")

    @property
    def marks(self) -> Marks:
        return Marks(self.soft_delete == "true", self.synced_at == "true")

    @property
    def storage(self) -> dict[str, str]:
        return dict(self.model_extra or {})

    def notices(self, mode: SinkMode) -> tuple[str, ...]:
        """Return what the readers cost, for who creates a changefeed."""
        names = parse_readers(self.readers, Format.DELTA)
        if not names or mode is not SinkMode.UPSERT:
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
