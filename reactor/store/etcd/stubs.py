"""aioetcd3 stubs: made importable on today's Python and protobuf; the only module that imports aioetcd3.

Its generated ``*_pb2`` modules build descriptors in a way that protobuf no longer allows. Their embedded serialized
descriptors are valid, so the message classes are rebuilt from those, and modules holding them replace the generated
ones before aioetcd3 is imported. The pool is private: the files are called ``kv.proto``, ``rpc.proto`` and
``auth.proto``, and could clash with others in the default pool.

Used from it: the call mixins (``KV``, ``Lease``, ``Auth``) and the generated service stubs. Its ``Watch`` and
``client()`` need an event loop argument that Python 3.10 removed, so they are not used.
"""

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

from google.protobuf import descriptor_pool, message_factory

_LITERAL = re.compile(r"^ *serialized_pb=_b\((?P<literal>'.*')\)", re.MULTILINE)
#: in the order of their dependencies
_FILES = ("kv", "auth", "rpc")


def _package_directory() -> Path:
    spec = importlib.util.find_spec("aioetcd3")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("aioetcd3 is not installed; install weir-cdc with its dependencies")
    return Path(spec.submodule_search_locations[0])


def _serialized_descriptor(source: str) -> bytes:
    found = _LITERAL.search(source)
    if found is None:
        raise ImportError("this aioetcd3 embeds no serialized descriptors; Weir knows version 1.13")
    literal: str = ast.literal_eval(found["literal"])
    return literal.encode("latin1")


def _module(name: str, pool: descriptor_pool.DescriptorPool) -> ModuleType:
    """Return the messages and enum values of one file, under the names of the generated module."""
    file = pool.FindFileByName(f"{name}.proto")
    module = ModuleType(f"aioetcd3._etcdv3.{name}_pb2", f"Messages of {name}.proto, rebuilt.")
    for message_name, message in file.message_types_by_name.items():
        setattr(module, message_name, message_factory.GetMessageClass(message))
    for enum in file.enum_types_by_name.values():
        for value in enum.values:
            setattr(module, value.name, value.number)
    return module


def _replace_generated_modules() -> None:
    directory = _package_directory() / "_etcdv3"
    pool = descriptor_pool.DescriptorPool()
    for name in _FILES:
        source = (directory / f"{name}_pb2.py").read_text(encoding="utf-8")
        pool.AddSerializedFile(_serialized_descriptor(source))
        module = _module(name, pool)
        sys.modules[module.__name__] = module


_replace_generated_modules()

from aioetcd3._etcdv3 import rpc_pb2 as rpc  # noqa: E402
from aioetcd3._etcdv3.rpc_pb2_grpc import WatchStub  # noqa: E402
from aioetcd3.auth import Auth  # noqa: E402
from aioetcd3.kv import KV  # noqa: E402
from aioetcd3.lease import Lease  # noqa: E402
from aioetcd3.utils import increment_last_byte  # noqa: E402

#: requests a progress notification: newer than aioetcd3's rpc.proto, so sent as an unknown field (number 3, empty
#: message)
PROGRESS_REQUEST = rpc.WatchRequest.FromString(b"\x1a\x00")

__all__ = ["KV", "PROGRESS_REQUEST", "Auth", "Lease", "WatchStub", "increment_last_byte", "rpc"]
