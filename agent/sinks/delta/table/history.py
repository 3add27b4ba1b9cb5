"""Table history: checks what other writers have committed to a Delta table since our last commit.

Each of our commits records its own number, as an application transaction ``weir/seen``: its writer had read everything
before it. So only commits after the last such number are checked, which is none if there are no other writers. Commits
that leave rows and columns unchanged are harmless: OPTIMIZE and REORG, which declare that they change no data; VACUUM;
checkpoints; properties and comments. Everything else (DELETE, UPDATE, INSERT, MERGE, RESTORE, other columns, CREATE OR
REPLACE) holds the table, unless it was undone, so that every file and column is as before. RESTORE does not revert
application transactions, so after it our records claim more than the table contains.

Tables written by versions of Weir without this number are checked from our first new commit on.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from agent.errors import RESYNC, TableForeignError, TableHeldError
from agent.sinks.delta.table.commits import actions_in
from agent.sinks.delta.table.errors import storage_errors
from agent.sinks.delta.table.place import OWNER, SEEN, TableOwner, TablePlace, arrow_schema, layout

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
        """Includes commits of earlier versions of Weir."""
        if any(fields["appId"] == SEEN for _, fields in self.of("txn")):
            return any(fields["appId"] == SEEN and fields["version"] == self.version for _, fields in self.of("txn"))
        writers = {fields.get("engineInfo") for _, fields in self.of("commitInfo")}
        return "weir" in writers or (self.moves_records and self.operation in ("WRITE", "MERGE"))

    @property
    def operation(self) -> str:
        return next((str(fields.get("operation", "")) for _, fields in self.of("commitInfo")), "") or "a commit"

    @property
    def writer(self) -> str:
        """The writer in parentheses, if the commit names it."""
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
        """Whether it changes rows, columns, records or properties."""
        return self.changes_data or self.changes_metadata or self.moves_records

    @property
    def changes_metadata(self) -> bool:
        return any(True for _ in self.of("metaData"))


def follow(since: Sequence[Commit], commit: Commit) -> list[Commit]:
    """Return others' relevant commits since our last one; ``commit`` is the next one of the log."""
    if commit.is_ours:
        return []
    matters = commit.changes_metadata or commit.moves_records or any(True for _ in commit.of("add", "remove"))
    return [*since, commit] if matters else list(since)


def check(place: TablePlace, table: DeltaTable) -> None:
    """:raises TableForeignError: other writers have changed the table since our last commit."""
    seen, version = table.transaction_version(SEEN), table.version()
    if seen is None or seen >= version:
        return
    since: list[Commit] = []
    for number in range(seen + 1, version + 1):
        actions = _read(place, number)
        if actions is None:
            raise TableForeignError(
                f"others have written {place} since version {seen}, and commit {number} is not in its log any more: "
                f"what they did is not known; {RESYNC}"
            )
        since = follow(since, Commit(number, actions))
    refuse_changes(place, since)


def refuse_changes(place: TablePlace, since: Sequence[Commit]) -> None:
    """``since``: see ``follow``.

    :raises TableForeignError: they changed rows, columns or records, and did not undo it.
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
            f"{place} was changed by another writer: {first.operation}{first.writer} made version {first.version}; "
            f"restore the table to version {good} (RESTORE TABLE … TO VERSION AS OF) and resume the "
            f"changefeed, or {RESYNC}"
        )


def _first_bad(commits: Sequence[Commit]) -> Commit | None:
    """Return the first commit after which the table has other rows than before all of them; None if its rows are the
    same in the end.

    Compares the files: those from before, and what commits that declare no data change have made of them.
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
    """Return, for each file that the commits name, its deleted rows before them; None if the file did not exist."""
    files: dict[str, object] = {}
    for commit in commits:
        for kind, fields in _in_order(commit):
            files.setdefault(fields["path"], _rows(fields) if kind == "remove" else None)
    return files


def _in_order(commit: Commit) -> list[tuple[str, Action]]:
    """Order a commit's actions: a file that is removed and added in one commit has other rows deleted."""
    return sorted(commit.of("add", "remove"), key=lambda item: item[0] != "remove")


def _rows(fields: Action) -> object:
    """Return the identity of a file's deleted rows."""
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
    is_named_alike = _stored_names(then) == _stored_names(now)
    return is_same and is_cut_alike and is_named_alike and arrow_schema(then).equals(arrow_schema(now))


def _stored_names(table: DeltaTable) -> list[str]:
    """Return the names of the table's columns in its files."""
    return [layout(table).names.physical(name) for name in arrow_schema(table).names]


def _read(place: TablePlace, version: int) -> Sequence[Action] | None:
    name = f"_delta_log/{version:020d}.json"
    with storage_errors(place, f"read commit {version} of"):
        try:
            if place.is_local:
                with open(os.path.join(place.location, name), "rb") as file:
                    text = file.read()
            else:
                text = place.store.read(name)
        except FileNotFoundError:
            return None
    try:
        return actions_in(text, version)
    except ValueError as error:
        raise TableHeldError(
            f"commit {version} of {place} cannot be read ({error}); bring it back, then resume the changefeed"
        ) from None
