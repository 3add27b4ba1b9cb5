"""Transaction plan: packs patch groups into one optimistic transaction.

``plan`` evaluates groups in order on a base of raw values and packs as many as fit into one transaction. Each group is
evaluated on its own overlay (a ``ChainMap``) that is merged only when the group is accepted, so a group that does not
fit, or fails, has no effect on the values that later groups see. A group is never split.

A large value is stored in several keys (``reactor.division``). If a group does not fit because of them, its parts are
written in transactions of their own before (``Txn.early``).

The transaction compares the modification revision of every key that a group with changes touches or requires. It also
always compares the delete counter, and increments it when it deletes a key: a key deleted meanwhile looks like one that
never existed (both have revision 0), and the counter distinguishes the two.

etcd counts compares like operations. If there are too many, keys that must be absent are compared as ranges that must
be empty; and if every key must exist, the counter is omitted: a deletion then shows by itself.

Pure. The worker sends the transaction, and evaluates the groups again on fresh values if a compare did not hold.
"""

from bisect import bisect_left
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from reactor.errors import ConflictError, IgnorePatchError, PatchFailedError, TxnTooLargeError, WeirError
from reactor.patches import Patch, PatchGroup
from reactor.records.formats import FIRST
from reactor.store import writes as division
from reactor.store.port import Compare, Delete, Event, KeyValue, Operation, Put, Target

#: etcd's default limits of one transaction (--max-txn-ops; --max-request-bytes with room for the envelope)
OPERATIONS_MAX = 128
BYTES_MAX = 1024 * (1024 + 256)


@dataclass(frozen=True, slots=True)
class Seen:
    """A group as a tick requested it, with the revisions its required keys had in that tick. ``jobs``: whose answers
    depend on it."""

    group: PatchGroup
    required: Mapping[str, int] = field(default_factory=dict)
    jobs: tuple[str, ...] = ()

    @classmethod
    def of(cls, group: PatchGroup, base: Mapping[str, KeyValue], jobs: tuple[str, ...] = ()) -> "Seen":
        return cls(group, {key: mod_revision(base, key) for key in group.requires}, jobs)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A group that can never commit, and why; a ``ConflictError`` asks for a new decision, the rest are faults."""

    seen: Seen
    error: WeirError


@dataclass(frozen=True, slots=True)
class Txn:
    """One transaction, ready to send. ``reactor.store.writes``: every key it changes; None deletes.

    ``early``: puts to send before, each tuple in a transaction of its own, which the first one's revision fences: then
    ``fenced`` have it as modification revision, or the transaction must not commit.
    """

    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]
    writes: Mapping[str, bytes | None]
    early: tuple[tuple[Put, ...], ...] = ()
    fenced: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.operations

    def events(self, base: Mapping[str, KeyValue], revision: int) -> tuple[Event, ...]:
        """Return the transaction's events as the watch would deliver them, applied at ``revision`` to ``base``."""
        return tuple(_event(base.get(key), key, value, revision) for key, value in self.writes.items())


@dataclass(frozen=True, slots=True)
class Plan:
    """``taken``: the groups the transaction commits (some may change nothing); ``left``: what did not fit."""

    txn: Txn
    taken: tuple[Seen, ...]
    left: tuple[Seen, ...]
    rejected: tuple[Rejected, ...]


def mod_revision(base: Mapping[str, KeyValue], key: str) -> int:
    """Return the key's modification revision; 0 for an absent key, as in etcd."""
    item = base.get(key)
    return item.mod_revision if item else 0


def plan(
    groups: Sequence[Seen],
    base: Mapping[str, KeyValue],
    *,
    delete_count_key: str,
    fences: Sequence[Compare] = (),
    format: int = FIRST,
) -> Plan:
    """Return the next transaction for ``groups``, evaluated on ``base``; it also compares ``fences``. ``format``: the
    cluster's, which says how large values are stored.

    ``base`` holds every key that lies between any two of the groups' keys.
    """
    packer = _Packer(base, delete_count_key, fences, format=format)
    taken: list[Seen] = []
    rejected: list[Rejected] = []
    for index, seen in enumerate(groups):
        try:
            fits = packer.add(seen)
        except WeirError as error:
            rejected.append(Rejected(seen, error))
            continue
        except Exception as error:  # a bug in one patch, or a value it cannot handle: the other groups are not void
            rejected.append(Rejected(seen, PatchFailedError(f"{type(error).__name__}: {error}")))
            continue
        if not fits:
            return Plan(packer.txn(), tuple(taken), tuple(groups[index:]), tuple(rejected))
        taken.append(seen)
    return Plan(packer.txn(), tuple(taken), (), tuple(rejected))


class _Packer:
    """The transaction so far: its writes, and the revisions it depends on."""

    def __init__(
        self, base: Mapping[str, KeyValue], delete_count_key: str, fences: Sequence[Compare], *, format: int
    ) -> None:
        self._base = base
        self._format = format
        self._delete_count_key = delete_count_key
        self._fences = tuple(fences)
        self._writes: dict[str, bytes | None] = {}
        self._is_early = False
        self._compared: dict[str, int] = {delete_count_key: mod_revision(base, delete_count_key)}

    def add(self, seen: Seen) -> bool:
        """Merge the group if the transaction still fits with it; False leaves everything as it was.

        :raises TxnTooLargeError: the group would not fit into an empty transaction either.
        :raises WeirError: the group is void: a required key has changed, or one of its patches failed.
        """
        overlay: dict[str, bytes | None] = {}
        _check_required(seen, self._base)
        _evaluate(seen.group.patches, ChainMap(overlay, self._writes), self._base)
        changed = _without_noops(overlay, self._writes, self._base)
        if not changed:
            return True
        changed = {key: value and division.stored_form(key, value, self._format) for key, value in changed.items()}
        touched = {patch.key: mod_revision(self._base, patch.key) for patch in seen.group.patches}
        writes, compared = self._writes | changed, self._compared | touched | dict(seen.required)
        if self._is_early:
            return False
        if not self._fits(writes, compared):
            if self._writes:
                return False
            if not self._fits(writes, compared, is_early=True):
                raise _too_large(self._flat(writes))
            self._is_early = True
        self._writes, self._compared = writes, compared
        return True

    def txn(self) -> Txn:
        """Return the packed transaction; empty if no group changes anything."""
        values = {key: value for key, value in self._writes.items() if value != _value(self._base, key)}
        if any(value is None for value in values.values()):
            values[self._delete_count_key] = _next_count(_value(self._base, self._delete_count_key))
        writes = self._flat(values)
        puts, fenced = division.early(writes, values) if self._is_early else ([], [])
        if self._is_early:
            writes = {**{key: writes[key] for key in fenced}, **values}
        return Txn(
            compares=self._compares(self._compared),
            operations=tuple(_operation(key, value) for key, value in writes.items()),
            writes=writes,
            early=division.batches(puts),
            fenced=tuple(fenced),
        )

    def _flat(self, values: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
        return division.flat(values, {key: _value(self._base, key) for key in values})

    def _fits(self, values: Mapping[str, bytes | None], compared: Mapping[str, int], *, is_early: bool = False) -> bool:
        """``is_early``: new parts are written before, except that the first ones are written again, and compared."""
        writes = self._flat(values)
        fenced: list[str] = []
        if is_early:
            _puts, fenced = division.early(writes, values)
            writes = {**{key: writes[key] for key in fenced}, **values}
        is_small = _operations(writes) <= OPERATIONS_MAX and _size(writes) <= BYTES_MAX
        is_small = is_small and (is_early or division.come_together(writes, values))
        return is_small and self._are_few({**compared, **dict.fromkeys(fenced, 1)})

    def _are_few(self, compared: Mapping[str, int]) -> bool:
        """Return whether the compares fit into a transaction."""
        return len(compared) + len(self._fences) <= OPERATIONS_MAX or len(self._compares(compared)) <= OPERATIONS_MAX

    def _compares(self, compared: Mapping[str, int]) -> tuple[Compare, ...]:
        if len(compared) + len(self._fences) <= OPERATIONS_MAX:
            return (*_compares(compared), *self._fences)
        others = {key: revision for key, revision in compared.items() if key != self._delete_count_key}
        if all(others.values()):
            return (*_compares(others), *self._fences)
        present = {key: revision for key, revision in compared.items() if revision}
        absent = _absent_ranges(compared.keys() - present.keys(), sorted(self._base))
        return (*_compares(present), *absent, *self._fences)


def _compares(compared: Mapping[str, int]) -> Iterable[Compare]:
    return (Compare(key, Target.MOD_REVISION, revision) for key, revision in sorted(compared.items()))


def _absent_ranges(absent: Iterable[str], known: Sequence[str]) -> Iterable[Compare]:
    """Return the fewest ranges that contain all the absent keys and none of the known ones."""
    for _, group in groupby(sorted(absent), key=lambda key: bisect_left(known, key)):
        keys = list(group)
        yield Compare(keys[0], Target.CREATE_REVISION, 0, last=keys[-1])


def _check_required(seen: Seen, base: Mapping[str, KeyValue]) -> None:
    moved = [key for key, revision in seen.required.items() if mod_revision(base, key) != revision]
    if moved:
        raise ConflictError(f"{', '.join(sorted(moved))} changed after the decision that relied on it; decide again")


def _evaluate(patches: Iterable[Patch], values: ChainMap[str, bytes | None], base: Mapping[str, KeyValue]) -> None:
    for patch in patches:
        old = values[patch.key] if patch.key in values else _value(base, patch.key)
        try:
            values[patch.key] = patch.function(old)
        except IgnorePatchError:
            continue


def _without_noops(
    overlay: Mapping[str, bytes | None], writes: Mapping[str, bytes | None], base: Mapping[str, KeyValue]
) -> dict[str, bytes | None]:
    """Return what the group really changes relative to the values before it."""
    before = {key: writes[key] if key in writes else _value(base, key) for key in overlay}
    return {key: value for key, value in overlay.items() if value != before[key]}


def _too_large(writes: Mapping[str, bytes | None]) -> TxnTooLargeError:
    return TxnTooLargeError(
        f"one group of {_operations(writes)} operations and {_size(writes)} bytes is over etcd's limits "
        f"({OPERATIONS_MAX} operations, {BYTES_MAX} bytes); change fewer keys at once"
    )


def _operations(writes: Mapping[str, bytes | None]) -> int:
    """Count operations, including the put of the delete counter."""
    return len(writes) + any(value is None for value in writes.values())


def _size(writes: Mapping[str, bytes | None]) -> int:
    """Return the size in bytes. A key counts twice: it is in the compare as well."""
    return sum(2 * len(key.encode()) + len(value or b"") for key, value in writes.items())


def _value(base: Mapping[str, KeyValue], key: str) -> bytes | None:
    item = base.get(key)
    return item.value if item else None


def _next_count(value: bytes | None) -> bytes:
    """Only the counter's revision is ever compared, so an unreadable count starts over."""
    return b"%d" % (int(value) + 1 if value is not None and value.isdigit() else 1)


def _event(before: KeyValue | None, key: str, value: bytes | None, revision: int) -> Event:
    if value is None:
        return Event(key, None, revision)
    return Event(key, value, revision, before.create_revision if before else revision)


def _operation(key: str, value: bytes | None) -> Operation:
    return Delete(key) if value is None else Put(key, bytes(value))
