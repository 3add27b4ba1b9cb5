"""Reach: restricts which hosts, sinks and secrets a changefeed may name, by the settings of its capture.

    source-hosts        host, *.domain, address or network, each optionally with :port; none: any host
    sink-prefixes       allowed beginnings of a sink's URI, up to a whole path component; none: any sink
    secret-references   env:NAME and file:/path, with * as a wildcard; none: env:WEIR_SECRET_* and the files in
                        ``secrets/`` below the data directory, which ``file:NAME`` means too

Always forbidden, regardless of the settings: the cluster's own keys and tokens, this server's settings in variables,
and files of the kernel. Violating new and changed changefeeds are rejected, with the setting's name. Existing ones
continue with a warning: tightening settings stops nothing that runs.
"""

import fnmatch
import os
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import structlog

from agent.references import FILE_OPTIONS, is_pem, reference_in
from capture.errors import CaptureFaultError, ConfigError
from reactor.files import read_bounded

SECRETS = "secrets"
_SECRET_VARIABLES = "WEIR_SECRET_"
#: files of the kernel: variables and memory of processes
_KERNELS = (Path("/proc"), Path("/sys"))
#: below the data directory, besides files that settings name
_OWN_FILES = ("secret.key", "api-token", "etcd")
#: parameters of source URIs that name where to connect, instead of the host
_PLACES = ("host", "hostaddr", "socket", "unix-socket")

#: options of sinks that name where to connect, besides the URI
_PLACE_OPTIONS = re.compile(r"endpoint|authority|proxy|connection.?string|(service|account).?host|ur[il]$", re.I)
#: options that become a part of a host's name: anything else in them would be another host's
_PART_OPTIONS = re.compile(r"region$|account.?name$", re.I)
_PART = re.compile(r"[A-Za-z0-9-]{1,64}")
#: options that name a host in other words, and the host
_ACCOUNT, _AZURE = re.compile(r"account.?name$", re.I), "https://{}.blob.core.windows.net"
_EMULATOR, _EMULATOR_AT = re.compile(r"use_emulator$", re.I), "http://127.0.0.1:10000"
#: in a key that a URI has inline: where Google's client connects
_BASE_URL = re.compile(r'"gcs_base_url"\s*:\s*"([^"]*)"')
#: storages whose URIs name a container as others name a user
_WITH_CONTAINER = ("abfs", "wasb", "adl")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ReachSettings:
    """``protected``, ``variables``: files and variables of the server's own."""

    data_dir: Path
    source_hosts: tuple[str, ...] = ()
    sink_prefixes: tuple[str, ...] = ()
    secret_references: tuple[str, ...] = ()
    protected: tuple[Path, ...] = ()
    variables: frozenset[str] = frozenset()


class Reach:
    def __init__(self, settings: ReachSettings) -> None:
        self._settings = settings
        self._secrets = (settings.data_dir / SECRETS).absolute()
        own = (f"env:{_SECRET_VARIABLES}*", f"file:{self._secrets}/*")
        self._references = settings.secret_references or own
        self._warned: set[str] = set()

    def check(self, *, source: str | None = None, sink: str | None = None) -> None:
        """Check a user's request.

        :raises ConfigError: the settings do not allow it; the text names the setting.
        """
        if problem := next(self._problems(source, sink), ""):
            raise ConfigError(problem)

    def note(self, changefeed: str, *, source: str, sink: str) -> None:
        """Warn once for each thing that an existing changefeed uses and a new one might not."""
        for problem in self._problems(source, sink):
            if f"{changefeed} {problem}" not in self._warned:
                self._warned.add(f"{changefeed} {problem}")
                _log.warning("a changefeed uses what a new one may not", changefeed=changefeed, cause=problem)

    def look_up(self, value: str) -> str:
        """Return ``value``, or what it refers to.

        :raises ConfigError: a reference cannot be resolved here, or is forbidden.
        """
        kind, name = reference_in(value)
        if not kind:
            return value
        if problem := self._forbidden(kind, name):
            raise ConfigError(problem)
        found = _variable(name) if kind == "env" else _content(self._path(name))
        if reference_in(found)[0]:
            raise ConfigError(f"what {kind}:{name} names is a reference again; name the secret itself")
        return found

    def _problems(self, source: str | None, sink: str | None) -> Iterator[str]:
        for uri, check in ((source, self._source_problems), (sink, self._sink_problems)):
            if uri is not None:
                parts = _split(uri)
                yield from self._reference_problems(parts)
                yield from check(parts)

    def _reference_problems(self, parts: SplitResult) -> Iterator[str]:
        for _, value in parse_qsl(parts.query, keep_blank_values=True):
            kind, name = reference_in(value)
            if not kind:
                continue
            if problem := self._forbidden(kind, name):
                yield problem
            elif not self._is_allowed(kind, name):
                yield self._not_allowed(kind, name)

    def _not_allowed(self, kind: str, name: str) -> str:
        shown = ", ".join(self._references)
        return f"the reference {kind}:{name} is not allowed (setting secret-references: {shown}); use such a one"

    def _file_problems(self, parts: SplitResult) -> Iterator[str]:
        """A file that an option names is read like one that a reference names."""
        for option, value in parse_qsl(parts.query, keep_blank_values=True):
            if not FILE_OPTIONS.search(option) or reference_in(value)[0] or is_pem(value):
                continue
            name = str(Path(value).absolute())
            if problem := self._forbidden("file", name):
                yield problem
            elif not self._is_allowed("file", name):
                yield self._not_allowed("file", name)

    def _forbidden(self, kind: str, name: str) -> str:
        """Return why it is always forbidden; empty if the settings decide."""
        if kind == "env":
            is_own = name in self._settings.variables
            return f"the variable {name} is the server's own; name a secret {_SECRET_VARIABLES}…" if is_own else ""
        path = _real(self._path(name))
        own = (self._settings.data_dir / one for one in _OWN_FILES)
        protected = (*self._settings.protected, *own, *_KERNELS)
        if any(path.is_relative_to(_real(one)) for one in protected):
            return f"the file {name} is the server's own; put secrets of changefeeds into {self._secrets}"
        return ""

    def _is_allowed(self, kind: str, name: str) -> bool:
        if kind == "env":
            return any(fnmatch.fnmatchcase(f"env:{name}", pattern) for pattern in self._references)
        path = _real(self._path(name))
        patterns = (Path(one.removeprefix("file:")) for one in self._references if one.startswith("file:"))
        return any(fnmatch.fnmatchcase(str(path), str(_real(one.parent) / one.name)) for one in patterns)

    def _path(self, name: str) -> Path:
        """A bare name means a file in ``secrets/``."""
        return self._secrets / name

    def _source_problems(self, parts: SplitResult) -> Iterator[str]:
        yield from self._file_problems(parts)
        allowed = self._settings.source_hosts
        if not allowed:
            return
        for host, port in _places(parts):
            if not any(_matches(pattern, host, port) for pattern in allowed):
                yield (
                    f"the source's host {host} is not allowed (setting source-hosts: {', '.join(allowed)}); "
                    "use one of these, or let the server's operator add it"
                )

    def _sink_problems(self, parts: SplitResult) -> Iterator[str]:
        yield from self._file_problems(parts)
        options = parse_qsl(parts.query, keep_blank_values=True)
        for name, value in options:
            if _PART_OPTIONS.search(name) and not (_PART.fullmatch(value) or reference_in(value)[0]):
                yield f"the option {name} of the sink's URI has letters, digits and hyphens only; correct it"
        allowed = self._settings.sink_prefixes
        if not allowed:
            return
        places = [_place(parts)]
        places += [_place(_split(value)) for name, value in options if _PLACE_OPTIONS.search(name)]
        places += [_place(_split(url)) for name, value in options if name == "warehouse" for url in _warehouse(value)]
        places += [_place(_split(url)) for _, value in options for url in _BASE_URL.findall(value)]
        places += [_AZURE.format(value.lower()) for name, value in options if _ACCOUNT.search(name)]
        places += [_EMULATOR_AT for name, value in options if _EMULATOR.search(name) and value.lower() != "false"]
        prefixes = [_place(_split(prefix)) for prefix in allowed]
        for place in places:
            if not any(place == one or place.startswith(one.rstrip("/") + "/") for one in prefixes):
                yield (
                    f"the sink {place} is not allowed (setting sink-prefixes: {', '.join(allowed)}); "
                    "use one of these, or let the server's operator add it"
                )


def look_up_freely(value: str) -> str:
    """Like ``Reach.look_up``, for the server's own settings: its operator may name anything.

    :raises ConfigError: a reference cannot be resolved here.
    """
    kind, name = reference_in(value)
    if not kind:
        return value
    return _variable(name) if kind == "env" else _content(Path(name))


LookUp = Callable[[str], str]


def _variable(name: str) -> str:
    if name not in os.environ:
        raise CaptureFaultError(f"the variable {name} is not set; set it for every capture, or name another (env:NAME)")
    return os.environ[name]


def _content(path: Path) -> str:
    try:
        return read_bounded(path).decode().rstrip("\r\n")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", "") or "no text"
        raise CaptureFaultError(f"cannot read the secret file {path} ({why}); it must exist on every capture") from None


def _split(uri: str) -> SplitResult:
    try:
        return urlsplit(uri)
    except ValueError:
        raise ConfigError("a URI is malformed; write scheme://user:password@host:port/…, an IPv6 host in [ ]") from None


def _real(path: Path) -> Path:
    """Resolve links and dots. An impossible file name matches nothing."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError):
        raise ConfigError(f"{str(path)[:200]!r} cannot be a file; name another") from None


def _places(parts: SplitResult) -> Iterator[tuple[str, int | None]]:
    """Yield all addresses that a source may connect to. libpq allows several, with a port for each or one for all."""
    options = [(name.replace("_", "-").lower(), value) for name, value in parse_qsl(parts.query)]
    _, _, netloc = parts.netloc.rpartition("@")
    in_front = [_host_and_port(one) for one in netloc.split(",")]
    listed = [value.split(",") for name, value in options if name == "port"]
    ports = listed[-1] if listed else [port for _, port in in_front]
    named = [value.split(",") for name, value in options if name in _PLACES]
    if not named or netloc:
        named.append([unquote(host) or "localhost" for host, _ in in_front])
    for hosts in named:
        for number, host in enumerate(hosts):
            port = ports[0] if len(ports) == 1 else "".join(ports[number : number + 1])
            yield host, int(port) if port.isdecimal() else None


def _host_and_port(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return host, port.removeprefix(":")
    host, _, port = text.partition(":")
    return host, port


def _matches(pattern: str, host: str, port: int | None) -> bool:
    wanted, wanted_port = pattern, ""
    if (not _is_address(pattern) and "/" not in pattern) or pattern.startswith("["):
        wanted, wanted_port = _host_and_port(pattern)
    if wanted_port and wanted_port != str(port):
        return False
    if _is_address(host) and (wanted == host or ("/" in wanted and _is_in(host, wanted))):
        return True
    return not _is_address(host) and fnmatch.fnmatchcase(host.lower().rstrip("."), wanted.lower())


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return text.startswith("[")
    return True


def _is_in(host: str, network: str) -> bool:
    try:
        return ip_address(host) in ip_network(network, strict=False)
    except ValueError:
        return False


def _warehouse(value: str) -> Iterator[str]:
    """Yield the URL where the tables of a catalog go; a name that the catalog knows is none."""
    if value.startswith("/"):
        yield f"file://{value}"
    elif "://" in value:
        yield value


def _place(parts: SplitResult) -> str:
    """Return scheme, host and path, without user and options, with dots and escapes resolved."""
    container, at, host = parts.netloc.rpartition("@")
    if at and parts.scheme.rpartition("+")[2].startswith(_WITH_CONTAINER):
        host = f"{container}@{host}"
    path = posixpath.normpath(unquote(parts.path)) if parts.path else ""
    if parts.scheme.rpartition("+")[2] == "file" and path.startswith("/"):
        path = str(_real(Path(path)))
    return f"{parts.scheme}://{host.lower()}{'/' + path.lstrip('/') if path else ''}"
