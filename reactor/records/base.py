"""Stored record: the base of all values under the keys: frozen pydantic models, stored as JSON.

All values are read and written through ``Record.encode`` and ``Record.decode``, so that a damaged value becomes an
``InvalidRecordError`` that names its key, and never a traceback deep inside a tick. Numbers are bounded: a value that
was read can be compared, added to and sent to others.

A cluster may run two adjacent versions at once. So unknown fields are kept on reading, at every depth, and written back
(``null`` is the same as absent); only what users write is validated strictly (``UserConfig``). A field that was added
after v0.1.0 is a ``later`` one: it is omitted while it has its default, since captures of v0.1.0 refuse a changefeed's
configuration with an unknown key. What older captures must not read at all waits for the cluster's format
(``reactor.records.formats``).
"""

import json
from typing import Annotated, Any, NoReturn, Self, TypeVar

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from reactor.division import packing
from reactor.division.divided import Divided, Divisible, is_pointer
from reactor.errors import InvalidRecordError
from reactor.ids import MAX_TS, Ts

T = TypeVar("T")

#: numbers counted up from a stored one still fit into 63 bits
COUNT_MAX = 1 << 62
StoredTs = Annotated[Ts, Field(ge=0, le=MAX_TS)]
#: of a commit: something precedes it
CommitTs = Annotated[Ts, Field(ge=1, le=MAX_TS)]
Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]
#: PostgreSQL: the relation's oid; MySQL: a hash of the name
TableId = Annotated[int, Field(ge=0, le=MAX_TS)]
#: -1 for a source that has never counted
Estimate = Annotated[int, Field(ge=-COUNT_MAX, le=COUNT_MAX)]
#: a limit of reading; with a lower one, a server would take a reader that waits for its turn for dead
RowsPerSecond = Annotated[int, Field(ge=100, le=COUNT_MAX)]
#: a number of spans that is processed at once
SpanCount = Annotated[int, Field(ge=1, le=1_000)]

#: JSON schema key: the format that introduced the field
NEEDS = "x-weir-format"
#: tells ``UserConfig`` that the value is stored, not written by a user
_STORED = {"stored": True}


def later(default: T, *, format: int = 2, **bounds: Any) -> T:
    """Declare a field added after v0.1.0: it is omitted while it has its default, so that older captures read the
    record.

    ``format``: what the cluster must use before it may be set, if older captures refuse it
    (``reactor.records.formats``).
    """
    extra: Any = {"json_schema_extra": {NEEDS: format}}
    field: T = Field(default=default, exclude_if=lambda value: value == default, **extra, **bounds)
    return field


class Record(Divisible):
    """A value in etcd. Compare two with ``==``; derive a new one with ``with_``, which keeps the unknown fields too."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    @classmethod
    def decode(cls, value: bytes, *, key: str) -> Self:
        """:raises InvalidRecordError: the value is not a record of this kind; the text names the key, not the value."""
        try:
            if isinstance(value, Divided):
                return value.read(cls)
            if is_pointer(value):
                raise InvalidRecordError(f"{key} does not hold a {cls.__name__}: parts of it are missing")
            value = packing.unpacked(value)
            _refuse_constants(value)
            return cls.model_validate_json(value, context=_STORED)
        except ValidationError as error:
            fields = ", ".join(sorted({".".join(str(part) for part in item["loc"]) for item in error.errors()}))
            raise InvalidRecordError(f"{key} does not hold a {cls.__name__} (wrong: {fields or 'JSON'})") from None
        except ValueError:
            raise InvalidRecordError(f"{key} does not hold a {cls.__name__} (wrong: JSON)") from None

    def keeping(self, seen: Self) -> Self:
        """Return this record with the unknown fields of ``seen``, which it replaces."""
        return self.with_(**(seen.model_extra | (self.model_extra or {}))) if seen.model_extra else self


#: texts that a user lists; more than that is no list that somebody has written
Text = Annotated[str, Field(max_length=65_536)]
Texts = Annotated[tuple[Text, ...], Field(strict=False, max_length=20_000)]


class UserConfig(Record):
    """A record that users write: unknown keys are refused, with their names, except in stored values. Values must have
    their own type: ``true`` is no number, nor is ``"5"``."""

    model_config = ConfigDict(strict=True)

    def words(self) -> dict[str, int]:
        """Return the words in its values that older captures refuse: what they are → the format that they need."""
        return {}

    @model_validator(mode="after")
    def _refuse_unknown(self, info: ValidationInfo) -> Self:
        if self.model_extra and not (isinstance(info.context, dict) and info.context.get("stored")):
            names, known = ", ".join(sorted(self.model_extra)), ", ".join(sorted(type(self).model_fields))
            raise PydanticCustomError(
                "unknown_key", "unknown key {names}; known keys: {known}", {"names": names, "known": known}
            )
        return self


def _refuse_constants(value: bytes) -> None:
    """JSON has no NaN, and a record with one would not equal itself.

    :raises ValueError: there is one.
    """
    if b"NaN" in value or b"Infinity" in value:
        json.loads(value, parse_constant=_no_constant)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
