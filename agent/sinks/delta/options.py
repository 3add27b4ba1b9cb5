"""Delta options: what a Delta sink's URI may say behind the question mark."""

from typing import Literal

from pydantic import BaseModel, Field


class DeltaOptions(BaseModel, extra="allow"):
    """What is not listed here goes to the storage; a directory takes no such option."""

    retention_seconds: int = Field(600, description="how long replaced files stay for readers")
    deletion_vectors: Literal["true", "false"] = Field(
        "false", description="whether new upserted tables take deletion vectors; directories only"
    )

    @property
    def storage(self) -> dict[str, str]:
        return dict(self.model_extra or {})
