"""Memory of a stream: what it has learnt from the log that no table's record says, as text for the next stream. Pure.

It belongs to a position of the log. Without it, a copy that is under way would be unknown to the next stream, and a
table that has made room for its copy would be taken for one that still has its name.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

from agent.rows.schema import TableSchema
from agent.sources.common.schema_diff import Columns
from agent.sources.mysql.ddl.copies.shadows import Shadow
from agent.sources.mysql.ddl.parser.cursor import Name
from reactor.ids import Ts

_BEGIN: Final = Ts(0)
_SETS: Final = ("filled", "left", "empty", "unread", "made", "stated", "assumed", "burnt")


class FileBegin(NamedTuple):
    """The beginning of a binlog file: ``time`` is when the server began it, in Unix seconds. A file of the same epoch
    and number that began at another time is another file: the binlog was reset, or the server was set back."""

    epoch: int
    number: int
    time: int


@dataclass(frozen=True, slots=True)
class Memory:
    """``copies`` and ``left``: see ``Copies``; ``filled``: copies that had rows. ``collations``: of databases, None if
    they are not known. ``empty``: ids of tables without rows; ``unread``: of those that had none since the server
    showed their key. ``gone``: names that tables have given up, with their ids; ``made``: first names of tables that
    others have now, which may not be replicated. ``asked_ts``, ``stated`` and ``assumed``: see ``Collations``;
    ``burnt``: see ``NewTables``. ``file``: the binlog's newest, None if it is not known."""

    copies: Mapping[Name, Shadow] = field(default_factory=dict)
    filled: frozenset[Name] = frozenset()
    left: frozenset[Name] = frozenset()
    collations: Mapping[str, int] | None = None
    empty: frozenset[int] = frozenset()
    unread: frozenset[int] = frozenset()
    gone: Mapping[Name, int] = field(default_factory=dict)
    made: frozenset[Name] = frozenset()
    asked_ts: Ts = _BEGIN
    stated: frozenset[str] = frozenset()
    assumed: frozenset[Name] = frozenset()
    burnt: frozenset[int] = frozenset()
    file: FileBegin | None = None

    def to_text(self) -> str:
        fields = {
            "copies": [{"name": name, **_stored(shadow)} for name, shadow in sorted(self.copies.items())],
            "collations": self.collations,
            "gone": sorted(self.gone.items()),
            "asked_ts": self.asked_ts,
            "file": self.file,
            **{name: sorted(getattr(self, name)) for name in _SETS},
        }
        return json.dumps(fields, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse the result of ``to_text``, also of a later version; nothing is known by an empty text."""
        fields: dict[str, Any] = json.loads(text) if text else {}
        return cls(
            copies={_name(one["name"]): _shadow(one) for one in fields.get("copies", ())},
            filled=frozenset(map(_name, fields.get("filled", ()))),
            left=frozenset(map(_name, fields.get("left", ()))),
            collations=fields.get("collations"),
            empty=frozenset(fields.get("empty", ())),
            unread=frozenset(fields.get("unread", ())),
            gone={_name(name): number for name, number in fields.get("gone", ())},
            made=frozenset(map(_name, fields.get("made", ()))),
            asked_ts=Ts(fields.get("asked_ts", 0)),
            stated=frozenset(fields.get("stated", ())),
            assumed=frozenset(map(_name, fields.get("assumed", ()))),
            burnt=frozenset(fields.get("burnt", ())),
            file=FileBegin(*file) if (file := fields.get("file")) else None,
        )


def _stored(shadow: Shadow) -> dict[str, object]:
    columns = asdict(shadow.columns)
    columns["required"] = sorted(columns["required"])
    return {
        "schema": shadow.schema.to_json(),
        "collation": shadow.schema.collation,
        "columns": columns,
        "unknown_fills": shadow.unknown_fills,
        "doubt": shadow.doubt,
    }


def _shadow(fields: Mapping[str, Any]) -> Shadow:
    columns = fields["columns"]
    return Shadow(
        replace(TableSchema.from_json(fields["schema"]), collation=fields["collation"]),
        Columns(columns["renames"], tuple(columns["added"]), columns["fills"], frozenset(columns["required"])),
        tuple(fields["unknown_fills"]),
        fields["doubt"],
    )


def _name(pair: list[str]) -> Name:
    schema_name, name = pair
    return schema_name, name
