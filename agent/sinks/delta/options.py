"""Delta options: the options of a Delta sink's URI, and the sink's capabilities."""

from typing import Final, Literal

from pydantic import BaseModel, Field

from agent.ports.capabilities import Capabilities, Guarantee

#: ten years
_RETENTION_MAX_S: Final = 315_360_000


class DeltaOptions(BaseModel, extra="allow"):
    """Options not listed here are passed to the object store; a directory accepts none."""

    retention_seconds: int = Field(
        600, ge=0, le=_RETENTION_MAX_S, description="how long replaced files stay for readers"
    )
    deletion_vectors: Literal["true", "false"] = Field(
        "false", description="whether new upserted tables take deletion vectors"
    )

    @property
    def storage(self) -> dict[str, str]:
        return dict(self.model_extra or {})


CAPABILITIES = Capabilities(
    guarantee=Guarantee.EXACTLY_ONCE, alters=True, splits=True, reads_back=True, replaces=True, maintains=True
)
