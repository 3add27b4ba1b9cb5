"""A network of our own: every host a namespace, joined by a bridge, with cables that can be cut in one direction.

    this process ──(etcd's, PostgreSQL's and our address)── bridge ── capture-0
                                                              ├────── capture-1 …

What a host sends to an address is lost when its neighbour entry there names a card that nobody has: no error comes
back, as with a cable that is cut. What comes the other way is not touched. Namespaces are held by child processes that
die with us, and everything in them goes with them.
"""

import os
import random
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Self

from capture.embedded import children

_NOWHERE = "02:00:00:00:00:01"
_TOOLS = ("ip", "nsenter", "unshare")
#: root's own programs are not on everybody's PATH
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_READY = b"ready\n"
#: the kernel takes a moment to remove what the network before has left
_numbers = count()


def missing() -> str:
    """Why there can be no such network here; empty if there can."""
    lacking = [tool for tool in _TOOLS if shutil.which(tool, path=_PATH) is None]
    if lacking:
        return f"{lacking[0]} is not installed (Debian: apt-get install iproute2 util-linux)"
    if os.geteuid() != 0 or subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode != 0:
        return "network namespaces need root"
    return ""


@dataclass(frozen=True, slots=True)
class Host:
    """``inside``: what a command starts with to run there."""

    name: str
    address: str
    holder: children.Child

    @property
    def inside(self) -> list[str]:
        return _inside(self.holder)

    def lose(self, addresses: Iterable[str]) -> None:
        """What is sent from here to one of ``addresses`` does not arrive."""
        for address in addresses:
            _lose(address, self.name, self.inside)

    def heal(self) -> None:
        _heal(self.name, self.inside)


class Network:
    """A context manager. ``etcd``, ``postgres`` and ``here`` are addresses of this process's own namespace."""

    def __init__(self, names: Iterable[str]) -> None:
        self._subnet = f"10.{random.randrange(200, 250)}.{random.randrange(1, 255)}"
        self._names = tuple(names)
        self._hub: children.Child | None = None
        self._device = f"weir{os.getpid()}n{next(_numbers)}"
        self.here, self.etcd, self.postgres = (f"{self._subnet}.{last}" for last in (1, 2, 3))
        self.hosts: dict[str, Host] = {}

    def __enter__(self) -> Self:
        try:
            self._hub = _hold_namespace()
            _run(*_inside(self._hub), "ip", "link", "add", "bridge", "type", "bridge", "forward_delay", "0")
            _run(*_inside(self._hub), "ip", "link", "set", "bridge", "up")
            self._join_here(self._hub)
            for number, name in enumerate(self._names):
                self._join(self._hub, name, f"{self._subnet}.{10 + number}")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        holders = [host.holder for host in self.hosts.values()]
        for holder in [*holders, *([self._hub] if self._hub else [])]:
            children.stop(holder)
        self.hosts, self._hub = {}, None

    @property
    def inside(self) -> list[str]:
        """What a command starts with to run where all cables meet."""
        assert self._hub is not None, "it is entered"
        return _inside(self._hub)

    def cut_from_etcd(self, host: Host) -> None:
        """Its words do not reach etcd, and so it gets no answers."""
        host.lose([self.etcd])

    def cut_from_peers(self, host: Host) -> None:
        """Both ways."""
        for peer in self._peers_of(host):
            host.lose([peer.address])
            peer.lose([host.address])

    def mute(self, host: Host) -> None:
        """One way: nothing that it sends arrives anywhere, and it still hears."""
        host.lose([self.here, self.etcd, self.postgres, *(peer.address for peer in self._peers_of(host))])

    def isolate(self, host: Host) -> None:
        """From everything, both ways."""
        self.mute(host)
        self.cut_from_peers(host)
        _lose(host.address, self._device, [])

    def heal(self) -> None:
        """All that was cut."""
        _heal(self._device, [])
        for host in self.hosts.values():
            host.heal()

    def _peers_of(self, host: Host) -> list[Host]:
        return [other for other in self.hosts.values() if other is not host]

    def _join_here(self, hub: children.Child) -> None:
        device = self._device
        _run("ip", "link", "add", device, "type", "veth", "peer", "name", "here", "netns", str(hub.pid))
        for address in (self.here, self.etcd, self.postgres):
            _run("ip", "address", "add", f"{address}/24", "dev", device)
        _run("ip", "link", "set", device, "up")
        _run(*_inside(hub), "ip", "link", "set", "here", "master", "bridge", "up")

    def _join(self, hub: children.Child, name: str, address: str) -> None:
        host = self.hosts[name] = Host(name, address, _hold_namespace())
        there = ["peer", "name", name, "netns", str(host.holder.pid)]
        _run(*_inside(hub), "ip", "link", "add", name, "type", "veth", *there)
        _run(*_inside(hub), "ip", "link", "set", name, "master", "bridge", "up")
        _run(*host.inside, "ip", "link", "set", "lo", "up")
        _run(*host.inside, "ip", "address", "add", f"{address}/24", "dev", name)
        _run(*host.inside, "ip", "link", "set", name, "up")


def _hold_namespace() -> children.Child:
    """A process in a new network namespace, which is there when this returns."""
    reading, writing = os.pipe()
    with open(reading, "rb") as ready, open(writing, "wb") as output:
        command = ["unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity"]
        child = children.spawn(command, output=subprocess.DEVNULL, stdout=output)
        output.close()
        assert ready.readline() == _READY, "no network namespace was made"
    return child


def _inside(holder: children.Child) -> list[str]:
    return ["nsenter", f"--net=/proc/{holder.pid}/ns/net", "--"]


def _lose(address: str, device: str, inside: list[str]) -> None:
    _run(*inside, "ip", "neigh", "replace", address, "lladdr", _NOWHERE, "dev", device, "nud", "permanent")


def _heal(device: str, inside: list[str]) -> None:
    _run(*inside, "ip", "neigh", "flush", "dev", device, "nud", "permanent")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | {"PATH": _PATH})
