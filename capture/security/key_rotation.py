"""Key rotation: seals every stored secret again under the newest key, while the cluster runs.

    key files      every member has the new key beside the old one, and has registered it
    mark           has both: new secrets are sealed with the new key, joining requires both
    re-seal        changefeed by changefeed, each in a transaction of its own
    mark           has the new key; secrets sealed with the old one meanwhile are sealed again

A crash may leave one of these steps half done; every secret then opens with one of two keys that every member has, and
repeating the rotation continues it.
"""

from dataclasses import dataclass

import structlog

from capture.errors import ConfigError
from capture.security.key_mark import KeyMark, as_read, changefeeds_of, mark_key, read_mark
from capture.security.secrets import Keeper
from reactor import keys
from reactor.errors import InvalidIdError, InvalidKeyError, InvalidRecordError
from reactor.records.capture import CaptureInfo
from reactor.store.port import Compare, KeyValue, MetaStore, Put, Target

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Rotation:
    """The progress. ``lacking``: members without the key ``fingerprint``; ``resealed``: changefeeds."""

    fingerprint: str
    lacking: tuple[str, ...] = ()
    resealed: int = 0
    done: bool = False


async def rotate(client: MetaStore, cluster: str, keeper: Keeper) -> Rotation:
    """Rotate as far as possible now: if ``lacking`` names members without the new key, nothing else is done.

    :raises ConfigError: there is no newer key, or this capture lacks the one of a rotation in progress.
    :raises CaptureFaultError: a secret opens with none of the keys.
    :raises StoreError: etcd refused or cannot be reached; ask again.
    """
    mark, unchanged = await read_mark(client, cluster)
    keeper.read_again(mark.needed)
    target = mark.next or keeper.fingerprints[-1]
    if target not in keeper.fingerprints:
        raise ConfigError(f"the change to key {target} has begun, and this capture lacks it; put it into its key file")
    if not mark.next and target == mark.current and len(keeper.fingerprints) == 1:
        raise ConfigError(
            "the key file holds no newer key; `weir secret new-key` adds one, give the file to every capture"
        )
    if lacking := await _lacking(client, cluster, target):
        return Rotation(fingerprint=target, lacking=lacking)
    if target != mark.current and not mark.next:
        begun = KeyMark(mark.current, target)
        if not (await client.txn([unchanged], [Put(mark_key(cluster), begun.encode())])).succeeded:
            return Rotation(fingerprint=target)  # another rotation is in progress
        _log.info("secret key is being changed", before=mark.current, after=target)
        if lacking := await _lacking(client, cluster, target):  # a capture joined a moment before
            return Rotation(fingerprint=target, lacking=lacking)
    keeper.use(target)
    resealed = await _reseal(client, cluster, keeper)
    if target != mark.current:
        await _finish(client, cluster, target)
        resealed += await _reseal(client, cluster, keeper)
    return Rotation(fingerprint=target, resealed=resealed, done=True)


async def _finish(client: MetaStore, cluster: str, target: str) -> None:
    item = await client.get(mark_key(cluster))
    if KeyMark.decode(item).next == target:
        await client.txn([as_read(cluster, item)], [Put(mark_key(cluster), KeyMark(target).encode())])
        _log.info("secret key is changed", after=target)


async def _lacking(client: MetaStore, cluster: str, target: str) -> tuple[str, ...]:
    """Return the members that have not registered the key, named for people."""
    snapshot = await client.get_prefix(keys.cluster_prefix(cluster))
    members = filter(None, map(_member, snapshot.items))
    return tuple(f"{one.id} at {one.address}" for one in members if target not in one.secret_keys)


def _member(item: KeyValue) -> CaptureInfo | None:
    try:
        is_member = isinstance(keys.parse(item.key), keys.CaptureKey)
        return CaptureInfo.decode(item.value, key=item.key) if is_member else None
    except (InvalidIdError, InvalidKeyError, InvalidRecordError):
        return None  # of a later version, or foreign


async def _reseal(client: MetaStore, cluster: str, keeper: Keeper) -> int:
    """Return how many changefeeds had secrets under other keys; none has afterwards."""
    count = 0
    while True:
        snapshot = await client.get_prefix(keys.cluster_prefix(cluster))
        changed = 0
        for item, info in changefeeds_of(snapshot.items):
            source, sink = keeper.sealed_again(info.source), keeper.sealed_again(info.sink)
            if source is None and sink is None:
                continue
            changed += 1
            again = info.with_(source=source or info.source, sink=sink or info.sink)
            unchanged = Compare(item.key, Target.MOD_REVISION, item.mod_revision)
            count += (await client.txn([unchanged], [Put(item.key, again.encode())])).succeeded
        if not changed:
            return count
