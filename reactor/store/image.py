"""Image: all keys of one cluster as of one revision, and its file.

The file is JSON, one key per line of ``items``; ``digest`` is SHA-256 over all, so that a file that was cut or edited
is refused. Values are stored as they are: secrets that are sealed stay sealed, references stay references.
"""

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from reactor import keys
from reactor.errors import InvalidIdError, TransferError
from reactor.ids import parse_cluster_id
from reactor.records.base import Count

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
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise _no_export(name) from None
        if found.get("kind") != _KIND or _digest(found, items) != digest:
            raise TransferError(f"{name} was changed since it was exported; take a file of `weir store export`")
        if found.get("version") != _VERSION:
            raise TransferError(f"{name} was written by a newer version of Weir; use that one")
        try:
            head = _Head.model_validate(found)
            image = cls(_cluster(head.cluster), head.revision, dict(map(_item, items)))
        except (ValueError, TypeError):
            raise _no_export(name) from None
        if len(image.items) < len(items):
            raise _no_export(name)
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


class _Head(BaseModel):
    """The head of an export, about its store. Its digest shows damage, not who wrote it."""

    model_config = ConfigDict(strict=True)

    version: int
    cluster: str
    revision: Count


def _item(row: Any) -> tuple[str, bytes]:
    """:raises ValueError, TypeError: it is no key with a value."""
    if not isinstance(row, list) or not all(isinstance(part, str) for part in row):
        raise TypeError("no list of texts")
    key, text, *form = row
    if form not in ([], ["base64"]):
        raise ValueError("no form of ours")
    key.encode()
    return key, base64.b64decode(text, validate=True) if form else text.encode()


def _no_export(name: str) -> TransferError:
    return TransferError(f"{name} is no whole export of a cluster; take a file of `weir store export`")


def _cluster(text: str) -> str:
    try:
        return parse_cluster_id(text)
    except InvalidIdError as error:
        raise TransferError(str(error)) from None


def _digest(head: dict[str, Any], items: list[Any]) -> str:
    return hashlib.sha256(json.dumps([head, items], sort_keys=True).encode()).hexdigest()
