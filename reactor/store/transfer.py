"""Transfer: takes the state of a stopped cluster out of a store, and writes it to another one.

A store's revisions are used outside it: orders, names of files in log storage and the fences of units are numbered by
them. So a target first passes the revision of the store that the state is from; every revision from then on is larger
than any that the cluster has used. No value contains a revision that is compared with a key's.

At every moment at most one store has a cluster that captures can join. A store that must not be joined has a *halted*
format (``reactor.records.formats``), which captures compare in the transaction that they join by:

    source   usable ──────────────────────────────────────────► halted: moved away
    target   empty ──► halted: unfinished ──► all keys, verified ───────► usable

Halting the source compares that no capture has joined since it was read. If a transfer ends in between, the same
command begins it again; its name, which both sides keep, says whether the target is the one that the source was moved
to.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from reactor import keys
from reactor.errors import TransferError
from reactor.records.formats import FIRST, HALTED, ClusterFormat
from reactor.store.image import Image
from reactor.store.port import LAST, Compare, Delete, KeyValue, MetaStore, Put, Target

#: of one transaction, with the comparison of the marker
_OPERATIONS = 100
_BYTES = 1024 * 1024
_PASSING = "__meta__/meta/passing"
_UNFINISHED = "a transfer into this store has not ended; begin it again, or remove it with `weir store remove`"


@dataclass(frozen=True, slots=True)
class Place:
    """One cluster in a store. ``name``: of the store, without secrets."""

    client: MetaStore
    cluster: str
    name: str

    @property
    def prefix(self) -> str:
        return keys.cluster_prefix(self.cluster)

    @property
    def format_key(self) -> str:
        return str(keys.FormatKey(self.cluster))


@dataclass(frozen=True, slots=True)
class _State:
    """The contents of a place. ``format``: None if it is empty."""

    items: tuple[KeyValue, ...]
    revision: int
    format: ClusterFormat | None
    format_revision: int

    @property
    def image(self) -> dict[str, bytes]:
        return {item.key: item.value for item in self.items}


async def export(source: Place) -> tuple[Image, str]:
    """Return the state, and why the cluster is halted, if it is.

    :raises TransferError: there is no such cluster, or it is not stopped.
    """
    state = await _read_whole(source)
    assert state.format is not None, "a whole cluster has a format"
    return _image(source, state), state.format.halted


async def load(image: Image, target: Place) -> None:
    """Write an image to a place that is empty, or has an unfinished transfer.

    :raises TransferError: the place is in use, or somebody else writes to it.
    """
    transfer = secrets.token_hex(8)
    marker = await _fill(image, target, transfer)
    await _finish(image, target, marker, transfer)


async def move(source: Place, target: Place) -> Image:
    """Write the state of ``source`` to ``target``, and halt the cluster at ``source``. May be begun again at any time,
    and does nothing if it was done.

    :raises TransferError: the cluster is not stopped, was moved elsewhere, or the target is in use.
    """
    state = await _read_whole(source)
    assert state.format is not None, "a whole cluster has a format"
    image, transfer = _image(source, state), secrets.token_hex(8)
    if state.format.halted:
        transfer = state.format.transfer
        there = await _read(target)
        if there.format is None or there.format.transfer != transfer:
            raise TransferError(
                f"cluster {source.cluster} in {source.name} is halted: {state.format.halted}; its state can be exported"
            )
        if not there.format.halted:
            return image
    marker = await _fill(image, target, transfer)
    if not state.format.halted:
        await _halt_moved(source, state, target, transfer)
    await _finish(image, target, marker, transfer)
    return image


async def remove(place: Place, *, usable: bool = False) -> int:
    """Remove all keys of a stopped cluster; return how many. ``usable``: also if the cluster is not halted.

    :raises TransferError: there is no such cluster, it is not stopped, or usable.
    """
    state = await _read(place)
    if not state.items:
        raise TransferError(f"{place.name} has no cluster {place.cluster}; see the cluster id")
    _refuse_live(place, state)
    if not usable and (state.format is None or not state.format.halted):
        raise TransferError(f"{place.cluster} can be used in {place.name}; give --usable if nobody needs it")
    marker = await _mark(place, state, secrets.token_hex(8))
    await _clear(place, marker)
    if not (await place.client.txn([_unchanged(place, marker)], [Delete(place.format_key)])).succeeded:
        raise _other_writer(place)
    return len(state.items)


async def _read(place: Place) -> _State:
    snapshot = await place.client.get_prefix(place.prefix)
    stored = next((item for item in snapshot.items if item.key == place.format_key), None)
    decoded = ClusterFormat.decode(stored.value, key=stored.key) if stored else None
    return _State(snapshot.items, snapshot.revision, decoded, stored.mod_revision if stored else 0)


async def _read_whole(place: Place) -> _State:
    """:raises TransferError: there is no stopped cluster with all its keys."""
    state = await _read(place)
    if not state.items:
        raise TransferError(f"{place.name} has no cluster {place.cluster}; see the cluster id")
    _refuse_live(place, state)
    found = state.format
    if found is not None and found.halted and not found.halted_at:
        raise TransferError(f"in {place.name} {place.cluster} is not whole: {found.halted}")
    if found is None or found.number == FIRST:
        raise TransferError(f"{place.cluster} was last used by v0.1.0; start and stop a capture of this version first")
    return state


def _image(place: Place, state: _State) -> Image:
    assert state.format is not None, "a whole cluster has a format"
    items = state.image
    if state.format.halted:
        number = state.format.halted_at
        whole = state.format.with_(number=number, halted="", halted_at=0)
        items[place.format_key] = whole.encode()
    return Image(place.cluster, state.revision, items)


def _refuse_live(place: Place, state: _State) -> None:
    """:raises TransferError: a capture is there, or has been until a moment ago."""
    members = keys.capture_prefix(place.cluster)
    leased = [item.key for item in state.items if item.lease]
    if leased:
        names = ", ".join(key.removeprefix(members) for key in leased if key.startswith(members)) or leased[0]
        raise TransferError(
            f"{place.cluster} is in use in {place.name} (captures: {names}); stop all captures, and if they were "
            "killed, wait until their leases are over"
        )


async def _fill(image: Image, target: Place, transfer: str) -> int:
    """Write all keys but the format, and read them back; return the marker's revision.

    :raises TransferError: the place is in use, or somebody else writes to it.
    """
    state = await _read(target)
    _refuse_live(target, state)
    if state.items and (state.format is None or not state.format.halted or state.format.halted_at):
        raise TransferError(
            f"{target.name} has a cluster {target.cluster} already; choose an empty place, or remove that one with "
            "`weir store remove`"
        )
    marker = await _mark(target, state, transfer)
    await _clear(target, marker)
    await target.client.pass_revision(image.revision, key=f"{target.prefix}{_PASSING}")
    for group in _groups(target, image):
        absent = [Compare(put.key, Target.CREATE_REVISION, 0) for put in group]
        if not (await target.client.txn([_unchanged(target, marker), *absent], group)).succeeded:
            raise _other_writer(target)
    written = await _read(target)
    wanted = {**image.items, target.format_key: written.image.get(target.format_key, b"")}
    news = [item.create_revision for item in written.items if item.key != target.format_key]
    if written.image != wanted or written.format_revision != marker or any(item.lease for item in written.items):
        raise _other_writer(target)
    assert all(revision > image.revision for revision in news), "fences hold: every revision is new"
    return marker


async def _finish(image: Image, target: Place, marker: int, transfer: str) -> None:
    """Let captures join."""
    key = target.format_key
    done = ClusterFormat.decode(image.items[key], key=key).with_(transfer=transfer)
    everything = [Put(key, done.encode())]
    if not (await target.client.txn([_unchanged(target, marker)], everything)).succeeded:
        raise _other_writer(target)


async def _mark(place: Place, state: _State, transfer: str) -> int:
    """Halt the cluster and mark it as incomplete; return the marker's revision."""
    marker = ClusterFormat(number=HALTED, halted=_UNFINISHED, transfer=transfer)
    if state.items:
        unchanged = [Compare(place.format_key, Target.MOD_REVISION, state.format_revision), _no_member(place)]
    else:
        unchanged = [Compare(place.prefix, Target.CREATE_REVISION, 0, last=f"{place.prefix}{LAST}")]
    done = await place.client.txn(unchanged, [Put(place.format_key, marker.encode())])
    if not done.succeeded:
        raise _other_writer(place)
    return done.revision


async def _clear(place: Place, marker: int) -> None:
    items = _others(place, (await place.client.get_prefix(place.prefix)).items)
    while items:
        doomed, items = items[:_OPERATIONS], items[_OPERATIONS:]
        gone = await place.client.txn([_unchanged(place, marker)], [Delete(item.key) for item in doomed])
        if not gone.succeeded:
            raise _other_writer(place)


async def _halt_moved(source: Place, state: _State, target: Place, transfer: str) -> None:
    """:raises TransferError: the source has changed since it was read; it stays as it is."""
    assert state.format is not None, "a whole cluster has a format"
    text = f"it was moved to {target.name}; start captures with that store"
    halted = state.format.with_(number=HALTED, halted=text, halted_at=state.format.number, transfer=transfer)
    compares = [Compare(source.format_key, Target.MOD_REVISION, state.format_revision), _no_member(source)]
    done = await source.client.txn(compares, [Put(source.format_key, halted.encode())])
    if not done.succeeded:
        raise _other_writer(source)
    now = (await source.client.get_prefix(source.prefix)).items
    if _others(source, now) != _others(source, state.items):
        unchanged = Compare(source.format_key, Target.MOD_REVISION, done.revision)
        await source.client.txn([unchanged], [Put(source.format_key, state.format.encode())])
        raise _other_writer(source)


def _others(place: Place, items: Sequence[KeyValue]) -> list[KeyValue]:
    return [item for item in items if item.key != place.format_key]


def _groups(target: Place, image: Image) -> list[list[Put]]:
    groups: list[list[Put]] = []
    size = _BYTES
    for key, value in image.items.items():
        if key == target.format_key:
            continue
        size += len(key.encode()) + len(value)
        if size > _BYTES or len(groups[-1]) >= _OPERATIONS:
            groups.append([])
            size = len(key.encode()) + len(value)
        groups[-1].append(Put(key, value))
    return groups


def _unchanged(place: Place, marker: int) -> Compare:
    return Compare(place.format_key, Target.MOD_REVISION, marker)


def _no_member(place: Place) -> Compare:
    members = keys.capture_prefix(place.cluster)
    return Compare(members, Target.CREATE_REVISION, 0, last=f"{members}{LAST}")


def _other_writer(place: Place) -> TransferError:
    return TransferError(f"somebody else writes {place.cluster} in {place.name}; stop all captures, and begin again")
