"""Key mark: the fingerprint of the cluster's secret key, in the metadata store; a capture with another key does not
join.

Such a capture would accept work that it cannot do. The mark is written by the first capture of a cluster, or, if v0.1.0
has stored secrets, by the first that can open them. An obsolete mark (no changefeed, no other member) is replaced.
During a rotation (``capture.security.key_rotation``) it has two fingerprints, and joining requires both keys.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from capture.errors import ConfigError
from capture.security.secrets import Keeper
from reactor import keys
from reactor.errors import InvalidIdError, InvalidKeyError, InvalidRecordError
from reactor.records.changefeed import ChangefeedInfo, SealedUri
from reactor.store.port import Compare, KeyValue, MetaStore, Put, Target

_MARK = re.compile(r"([0-9a-f]{16})(?: ([0-9a-f]{16}))?")


@dataclass(frozen=True, slots=True)
class KeyMark:
    """``current`` is empty if there is no mark, or an unreadable one. ``next``: of the key that replaces it; empty
    outside a rotation."""

    current: str = ""
    next: str = ""

    @property
    def sealing(self) -> str:
        """The fingerprint of the key that seals."""
        return self.next or self.current

    @property
    def needed(self) -> tuple[str, ...]:
        return tuple(name for name in (self.current, self.next) if name)

    def encode(self) -> bytes:
        return " ".join(self.needed).encode()

    @classmethod
    def decode(cls, item: KeyValue | None) -> "KeyMark":
        found = _MARK.fullmatch(item.value.decode(errors="replace")) if item else None
        return cls(found[1], found[2] or "") if found else cls()


def mark_key(cluster: str) -> str:
    return str(keys.SecretKeyKey(cluster))


def as_read(cluster: str, item: KeyValue | None) -> Compare:
    """Return a compare that holds while the mark is as read."""
    return Compare(mark_key(cluster), Target.MOD_REVISION, item.mod_revision if item else 0)


async def read_mark(client: MetaStore, cluster: str) -> tuple[KeyMark, Compare]:
    """Return the mark, and a compare that holds while it does not change."""
    item = await client.get(mark_key(cluster))
    return KeyMark.decode(item), as_read(cluster, item)


def refuse_lacking(mark: KeyMark, fingerprints: Collection[str]) -> None:
    """:raises ConfigError: this capture lacks one of the cluster's keys."""
    lacking = [name for name in mark.needed if name not in fingerprints]
    if lacking and mark.next:
        raise ConfigError(
            f"the cluster's secret key is being changed, and this capture lacks {lacking[0]}; give it the key file "
            "of the others (--secret-key-file)"
        )
    if lacking:
        raise _other_key(lacking[0], fingerprints)


async def claim_key(client: MetaStore, cluster: str, keeper: Keeper) -> None:
    """Compare the keys with the cluster's, seal with its current one, and write the mark if there is none.

    :raises ConfigError: the cluster has another key.
    :raises StoreError: etcd refused or cannot be reached.
    """
    while True:
        snapshot = await client.get_prefix(keys.cluster_prefix(cluster))
        item = next((item for item in snapshot.items if item.key == mark_key(cluster)), None)
        mark = KeyMark.decode(item)
        sealed = [uri for _, info in changefeeds_of(snapshot.items) for uri in (info.source, info.sink)]
        if mark.current and (sealed or mark.current in keeper.fingerprints or _has_members(snapshot.items)):
            refuse_lacking(mark, keeper.fingerprints)
            keeper.use(mark.sealing)
            return
        if not mark.current and sealed:
            opening = next(
                (name for name in keeper.fingerprints if any(_opens(keeper, name, uri) for uri in sealed)), ""
            )
            if not opening:
                raise _other_key("", keeper.fingerprints)
            keeper.use(opening)
        left = [Put(mark_key(cluster), KeyMark(keeper.fingerprint).encode())]
        if (await client.txn([as_read(cluster, item)], left)).succeeded:
            return


def changefeeds_of(items: Iterable[KeyValue]) -> list[tuple[KeyValue, ChangefeedInfo]]:
    """Return all readable changefeeds of every namespace."""
    found = []
    for item in items:
        try:
            if isinstance(keys.parse(item.key), keys.InfoKey):
                found.append((item, ChangefeedInfo.decode(item.value, key=item.key)))
        except (InvalidIdError, InvalidKeyError, InvalidRecordError):
            continue  # unreadable, which its changefeed reports itself
    return found


def _has_members(items: tuple[KeyValue, ...]) -> bool:
    return any("/__meta__/capture/" in item.key for item in items)


def _opens(keeper: Keeper, fingerprint: str, uri: SealedUri) -> bool:
    keeper.use(fingerprint)
    try:
        return keeper.sealed_again(uri) is None
    except ConfigError:
        return False


def _other_key(known: str, ours: Collection[str]) -> ConfigError:
    theirs = f" ({known})" if known else ""
    return ConfigError(
        f"the cluster's secret key{theirs} is another than this capture's ({', '.join(ours)}); give every capture "
        "the same --secret-key-file, the secret.key of the data directory of the capture that came first"
    )
