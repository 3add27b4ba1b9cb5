"""Kept values: what was read of data files, in the memory of a process, up to a number of bytes."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """A value whose size in memory is known."""

    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


class KeptByBytes(Generic[T]):
    """Values by name, least recently used ones evicted. Thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._values: OrderedDict[Hashable, T] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, name: Hashable, read: Callable[[], T]) -> T:
        """Return the value of this name; ``read`` makes one that is not kept, outside of the lock."""
        with self._lock:
            known = self._values.get(name)
            if known is not None:
                self._values.move_to_end(name)
                return known
        known = read()
        with self._lock:
            if name not in self._values:  # another thread may have read it meanwhile
                self._values[name] = known
                self._bytes += known.nbytes
            while self._bytes > self._bytes_max:
                _, oldest = self._values.popitem(last=False)
                self._bytes -= oldest.nbytes
        return known
