"""Survivors: current rows of the source that have not changed since their columns got another type.

``ALTER COLUMN … TYPE … USING`` may compute any value, and no log contains the result. A sink that converts its stored
values compares them with these rows before it commits the change.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True, eq=False)
class Survivors:
    """``rows``: the ``key`` and the retyped ``columns``, by their new names, in the source's types. ``is_key_kept``: no
    key column changed its type, so a row that the sink lacks never existed there. ``moves_key``: one did, and there may
    be no ``rows``; ``all_keys``: the keys of all rows that such a table has by now, None if it is too large for that.
    """

    rows: pa.Table
    key: tuple[str, ...]
    columns: tuple[str, ...]
    is_key_kept: bool = True
    moves_key: bool = False
    all_keys: pa.Table | None = None

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys((*self.key, *self.columns)))


#: queries the source; returns None if no column's values can come from an expression. Raises ``TableHeldError`` if the
#: values cannot be determined
AskSurvivors = Callable[[], Survivors | None]
