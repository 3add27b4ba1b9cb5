"""Request models: their base, and the bounds of the values in them.

A value must have the type that the API's description gives: ``true`` is no number, and ``"5"`` is none either. Unknown
fields are refused, since a misspelt ``dry_run`` must not become a repair.
"""

import re
from typing import Annotated
from urllib.parse import unquote

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from reactor.ids import MAX_TS

#: a parser of URIs leaves out some of these, and others end a text in a server's protocol
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def _without_controls(uri: str) -> str:
    if _CONTROL.search(unquote(uri)):
        raise ValueError("it has a control character, written as it is or as %XX; leave it out")
    return uri


#: JSON has neither enums nor tuples: their texts and lists are converted, their elements are not
CONVERTED = Field(strict=False)

#: a Ts given by a user
PositionTs = Annotated[int, Field(ge=0, le=MAX_TS)]
#: schema.name; names have 64 characters in all sources of ours, and may be quoted
TableName = Annotated[str, Field(min_length=1, max_length=512)]
TableNames = Annotated[tuple[TableName, ...], Field(strict=False, max_length=20_000)]
#: of a changefeed, a capture or a reader's session; who knows them checks their form
Name = Annotated[str, Field(min_length=1, max_length=256)]
Uri = Annotated[str, Field(max_length=16_384), AfterValidator(_without_controls)]
Condition = Annotated[str, Field(max_length=65_536)]


class Asked(BaseModel):
    """The body of a request. ``hide_input_in_errors``: it may contain passwords."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)
