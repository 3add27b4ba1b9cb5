"""Crashes of a process that commits to a table: right behind a commit, before anybody knows of it."""

from collections.abc import Callable
from threading import get_ident
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.table import TableAlterer, TableMerger
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

from agent.sinks.delta.alter import creation, moving
from agent.sinks.delta.table.commits import LocalCommits, ObjectCommits

#: what makes a commit, or moves a table, and where it is called
_COMMITS: tuple[tuple[Any, str], ...] = (
    (DeltaTable, "create_write_transaction"),
    (TableAlterer, "set_table_description"),
    (TableAlterer, "add_columns"),
    (TableAlterer, "add_feature"),
    (TableMerger, "execute"),
    (creation, "create_table_with_add_actions"),
    (LocalCommits, "append"),
    (ObjectCommits, "append"),
    (moving, "move"),
    *(
        (catalog, name)
        for catalog in (SqlCatalog, RestCatalog)
        for name in ("create_table", "commit_table", "rename_table")
    ),
)


class Crash(BaseException):
    """No code of ours handles it."""


class Crashes:
    """Of this process, as far as its sinks are concerned."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._left = self._thread = 0
        for owner, name in _COMMITS:
            patch.setattr(owner, name, self._crashing(getattr(owner, name)))

    def during(self, work: Callable[[], object], commits: int) -> bool:
        """Do ``work``, but no more than ``commits`` commits of it; return whether it ended there."""
        self._left, self._thread = commits, get_ident()
        try:
            work()
        except Crash:
            return True
        finally:
            self._left = 0
        return False

    def _crashing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def commit(*args: Any, **named: Any) -> Any:
            done = original(*args, **named)
            if self._left and get_ident() == self._thread:  # a catalog's server may be in this process
                self._left -= 1
                if not self._left:
                    raise Crash
            return done

        return commit
