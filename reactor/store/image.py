"""Image: all keys of one cluster as of one revision, and its file.

The file is JSON, one key per line of ``items``; ``digest`` is SHA-256 over all, so that a file that was cut or edited
is refused. Values are stored as they are: secrets that are sealed stay sealed, references stay references.
"""

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from reactor import keys
from reactor.errors import InvalidIdError, TransferError
from reactor.ids import parse_cluster_id

_KIND, _VERSION = "weir cluster state", 1


@dataclass(frozen=True, slots=True)
class Image:
    """``items``: key → value, sorted. ``revision``: of the whole store, so no revision that the cluster has used is
    larger."""

    cluster: str
    revision: int
    items: dict[str, bytes]

    def encode(self) -> str:
        items = [[key, *_text(value)] for key, value in self.items.items()]
        head = {"kind": _KIND, "version": _VERSION, "cluster": self.cluster, "revision": self.revision}
        digest = _digest(head, items)
        lines = ",\n".join(json.dumps(item) for item in items)
        return f'{json.dumps({**head, "digest": digest})[:-1]}, "items": [\n{lines}\n]}}\n'

    @classmethod
    def decode(cls, text: str, *, name: str) -> "Image":
        """:raises TransferError: the file is none of ours, or damaged."""
        try:
            found = json.loads(text)
            digest, items = found.pop("digest"), found.pop("items")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise TransferError(f"{name} is no whole export of a cluster; take a file of `weir store export`") from None
        if found.get("kind") != _KIND or _digest(found, items) != digest:
            raise TransferError(f"{name} was changed since it was exported; take a file of `weir store export`")
        if found["version"] != _VERSION:
            raise TransferError(f"{name} was written by a newer version of Weir; use that one")
        image = cls(_cluster(found["cluster"]), found["revision"], {key: _bytes(*value) for key, *value in items})
        prefix = keys.cluster_prefix(image.cluster)
        needed = str(keys.FormatKey(image.cluster))
        if needed not in image.items or any(not key.startswith(prefix) for key in image.items):
            raise TransferError(f"{name} does not have one whole cluster; take a file of `weir store export`")
        return image


def _text(value: bytes) -> list[str]:
    try:
        return [value.decode()]
    except UnicodeDecodeError:
        return [base64.b64encode(value).decode(), "base64"]


def _bytes(text: str, form: str = "") -> bytes:
    return base64.b64decode(text) if form == "base64" else text.encode()


def _cluster(text: str) -> str:
    try:
        return parse_cluster_id(text)
    except InvalidIdError as error:
        raise TransferError(str(error)) from None


def _digest(head: dict[str, Any], items: list[Any]) -> str:
    return hashlib.sha256(json.dumps([head, items], sort_keys=True).encode()).hexdigest()
