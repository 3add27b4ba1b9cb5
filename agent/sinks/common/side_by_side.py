"""Side by side: makes one call for each of several tables, some at a time."""

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Final, TypeVar

from reactor.records.tables.table import TableRecord

#: concurrent calls
_AT_A_TIME: Final = 4

T = TypeVar("T")


def side_by_side(call: Callable[[TableRecord], T], tables: Sequence[TableRecord]) -> list[T]:
    """Commits mostly wait for storage, so they run concurrently. The threads are daemons: a hanging one must not keep
    the process alive."""
    done, errors = dict[TableRecord, T](), list[BaseException]()
    waiting: SimpleQueue[TableRecord | None] = SimpleQueue()
    for item in (*tables, *[None] * _AT_A_TIME):
        waiting.put(item)

    def work() -> None:
        try:
            for table in iter(waiting.get_nowait, None):
                done[table] = call(table)
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=work, name="sink-commit", daemon=True) for _ in tables[:_AT_A_TIME]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [done[table] for table in tables]
