"""Survivors: rows that nobody has changed since the source gave their columns another type, as the source has them.

``ALTER COLUMN … TYPE … USING`` may make anything of a value, and no log says what. A sink that
converts its old values compares them with these rows before it commits the change.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True, eq=False)
class Survivors:
    """``rows``: the ``key`` and the retyped ``columns``, by their new names, in the source's types. ``is_key_kept``: no
    column of the key has another type, so a row that the sink lacks was never there."""

    rows: pa.Table
    key: tuple[str, ...]
    columns: tuple[str, ...]
    is_key_kept: bool = True

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys((*self.key, *self.columns)))


#: asks the source; None where no column's values can have been made by an expression. Raises ``TableHeldError`` where
#: nobody can say
AskSurvivors = Callable[[], Survivors | None]
