"""Table history: checks what others have committed to a Delta table since our last commit, and whether we may write.

Each commit of ours records its own number, as an application transaction ``weir/seen``: whoever made it had read all
before it. So only the commits after the last such number are checked: none where nobody else writes the
table. Harmless are those that leave rows and columns as they are: OPTIMIZE and REORG, which say that they
change no data; VACUUM; checkpoints; properties and comments. All else (DELETE, UPDATE, INSERT, MERGE, RESTORE, other
columns, CREATE OR REPLACE) holds the table, unless it was undone: then file by file and column by column all is as it
was. RESTORE does not take back application transactions, so after it our records say more than the table holds.

Tables that were written by versions of Weir without this number are followed from our first commit on.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from agent.errors import NEW_SNAPSHOT, TableForeignError
from agent.sinks.delta.table.errors import storage_errors
from agent.sinks.delta.table.place import OWNER, SEEN, TableOwner, TablePlace, arrow_schema

Action = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of a table's log: each action is its kind and its fields."""

    version: int
    actions: Sequence[Mapping[str, Any]]

    def of(self, *kinds: str) -> Iterable[tuple[str, Action]]:
        return ((kind, fields) for action in self.actions for kind, fields in action.items() if kind in kinds)

    @property
    def is_ours(self) -> bool:
        """Also if a version of before has made it."""
        if any(fields["appId"] == SEEN for _, fields in self.of("txn")):
            return any(fields["appId"] == SEEN and fields["version"] == self.version for _, fields in self.of("txn"))
        writers = {fields.get("engineInfo") for _, fields in self.of("commitInfo")}
        return "weir" in writers or (self.moves_records and self.operation in ("WRITE", "MERGE"))

    @property
    def operation(self) -> str:
        return next((str(fields.get("operation", "")) for _, fields in self.of("commitInfo")), "") or "a commit"

    @property
    def writer(self) -> str:
        """In parentheses, where it says who it is."""
        found = next((str(fields.get("engineInfo") or "") for _, fields in self.of("commitInfo")), "")
        return f" ({found[:60]})" if found.isprintable() and found else ""

    @property
    def moves_records(self) -> bool:
        return any(fields["appId"].startswith(f"{OWNER}/") for _, fields in self.of("txn"))

    @property
    def changes_data(self) -> bool:
        return any(fields.get("dataChange", True) for _, fields in self.of("add", "remove"))

    @property
    def may_change(self) -> bool:
        """Rows, columns, records or properties."""
        return self.changes_data or self.changes_metadata or self.moves_records

    @property
    def changes_metadata(self) -> bool:
        return any(True for _ in self.of("metaData"))


def follow(since: Sequence[Commit], commit: Commit) -> list[Commit]:
    """Others' commits since our last one, of those that matter; ``commit`` is the next one of the log."""
    if commit.is_ours:
        return []
    matters = commit.changes_metadata or commit.moves_records or any(True for _ in commit.of("add", "remove"))
    return [*since, commit] if matters else list(since)


def check(place: TablePlace, table: DeltaTable) -> None:
    """:raises TableForeignError: others have changed the table since our last commit."""
    seen, version = table.transaction_version(SEEN), table.version()
    if seen is None or seen >= version:
        return
    since: list[Commit] = []
    for number in range(seen + 1, version + 1):
        actions = _read(place, number)
        if actions is None:
            raise TableForeignError(
                f"others have written {place} since version {seen}, and commit {number} is not in its log any more: "
                f"what they did is not known; {NEW_SNAPSHOT}"
            )
        since = follow(since, Commit(number, actions))
    refuse_changes(place, since)


def refuse_changes(place: TablePlace, since: Sequence[Commit]) -> None:
    """``since``: see ``follow``.

    :raises TableForeignError: they have changed rows, columns or records, and not undone it.
    """
    changed = [commit for commit in since if commit.moves_records]
    if (commit := _first_bad(since)) is not None:
        changed.append(commit)
    metadata = [commit for commit in since if commit.changes_metadata]
    if metadata and not _has_same_columns(place, metadata[0].version - 1):
        changed.append(metadata[0])
    first = min(changed, key=lambda commit: commit.version, default=None)
    if first is not None:
        good = next(commit.version for commit in since if commit.may_change) - 1
        raise TableForeignError(
            f"{place} was changed by somebody else: {first.operation}{first.writer} made version {first.version}; "
            f"restore the table to version {good} (RESTORE TABLE … TO VERSION AS OF) and resume the "
            f"changefeed, or {NEW_SNAPSHOT}"
        )


def _first_bad(commits: Sequence[Commit]) -> Commit | None:
    """Since which commit the table has other rows than before them all; None where it has the same in the end.

    Its files say so: what it had by then, and whatever commits have made of that which say that they change no data.
    """
    files = _files_before(commits)
    good, bad = [dict(files)], None
    for commit in commits:
        for kind, fields in _in_order(commit):
            files[fields["path"]] = _rows(fields) if kind == "add" else None
        if files in good:
            bad = None
        elif bad is None and not commit.changes_data:
            good.append(dict(files))
        else:
            bad = bad or commit
    return bad


def _files_before(commits: Sequence[Commit]) -> dict[str, object]:
    """For each file that they name, which of its rows were deleted; None where the file was not there."""
    files: dict[str, object] = {}
    for commit in commits:
        for kind, fields in _in_order(commit):
            files.setdefault(fields["path"], _rows(fields) if kind == "remove" else None)
    return files


def _in_order(commit: Commit) -> list[tuple[str, Action]]:
    """A file that goes and comes in one commit has other rows taken out of it."""
    return sorted(commit.of("add", "remove"), key=lambda item: item[0] != "remove")


def _rows(fields: Action) -> object:
    """Which of a file's rows are deleted."""
    vector = fields.get("deletionVector") or {}
    return {name: value for name, value in vector.items() if value is not None}


def _has_same_columns(place: TablePlace, version: int) -> bool:
    now = place.opened()
    try:
        then = DeltaTable(place.location, version=version, storage_options=place.options or None)
    except DeltaError:
        return False
    is_same = then.metadata().id == now.metadata().id and TableOwner.of(then) == TableOwner.of(now)
    is_cut_alike = then.metadata().partition_columns == now.metadata().partition_columns
    return is_same and is_cut_alike and arrow_schema(then).equals(arrow_schema(now))


def _read(place: TablePlace, version: int) -> list[Action] | None:
    name = f"_delta_log/{version:020d}.json"
    with storage_errors(place, f"read commit {version} of"):
        try:
            if place.is_local:
                with open(os.path.join(place.location, name), "rb") as file:
                    text = file.read()
            else:
                with place.filesystem().open_input_stream(name) as stream:
                    text = stream.read()
        except FileNotFoundError:
            return None
    return [json.loads(line) for line in text.splitlines() if line.strip()]
