"""MySQL's own server for tests: a distribution's package, unpacked into the user's cache, with the libraries it needs.

    python -m tests.mysql_package [VERSION …]

No release of Debian that is in use has MySQL; the unstable one has the newest, and Ubuntu has older ones: tests run on
one of those where ``WEIR_MYSQL`` names it. Packages are taken through apt with lists and a status of their own, so
signatures are checked and the machine's packages stay as they are; root is not needed. Ubuntu's keys come as a package
of Debian. Where a server cannot be had, the reason is kept, and the tests that need it are skipped with it.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weir" / "mysql"
NEWEST: Final = "9.7"
VERSION: Final = os.environ.get("WEIR_MYSQL", NEWEST)

_DEBIAN: Final = "http://deb.debian.org/debian"
_UBUNTU: Final = "http://archive.ubuntu.com/ubuntu"
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_UBUNTU_KEYS = Path("usr/share/keyrings/ubuntu-archive-keyring.gpg")
#: only its scripts need them
_NOT_NEEDED = ("perl", "libperl")


@dataclass(frozen=True)
class _Release:
    """Where a version's package is."""

    package: str
    archive: str
    suites: tuple[str, ...]


RELEASES: Final[Mapping[str, _Release]] = {
    NEWEST: _Release("mysql-server-core", _DEBIAN, ("sid",)),
    "8.4": _Release("mysql-server-core", _UBUNTU, ("questing", "questing-updates")),
    "8.0": _Release("mysql-server-core-8.0", _UBUNTU, ("noble", "noble-updates")),
    "5.7": _Release("mysql-server-core-5.7", _UBUNTU, ("bionic", "bionic-updates")),
}


def root(version: str = VERSION) -> Path:
    return CACHE / ("root" if version == NEWEST else f"root-{version}")


def why_not(version: str = VERSION) -> str | None:
    """Why there is no MySQL here; None where there is one."""
    if root(version).is_dir():
        return None
    reason = _reason_file(version)
    return f"no MySQL {version}: {reason.read_text() if reason.exists() else 'run make mysql, which fetches one'}"


def command(version: str = VERSION) -> list[str | Path]:
    """The server, started by the loader of its own release."""
    top = root(version)
    usr = top / "usr"
    [loader] = {path.resolve() for place in (usr, top) for path in place.glob("lib/*-linux-gnu*/ld-linux*.so.*")}
    libraries = [usr / "lib" / loader.parent.name, top / "lib" / loader.parent.name]
    return [loader, "--library-path", ":".join(map(str, libraries)), usr / "sbin" / "mysqld"]


def fetch(version: str) -> None:
    """:raises OSError, subprocess.CalledProcessError: it cannot be had."""
    if not _KEYS.exists():
        raise FileNotFoundError(f"no {_KEYS}: only a Debian with its keys fetches it")
    CACHE.mkdir(parents=True, exist_ok=True)
    release = RELEASES[version]
    with tempfile.TemporaryDirectory(prefix="new-", dir=CACHE) as work:
        keys = _KEYS
        if release.archive == _UBUNTU:
            _unpack(Path(work) / "keys", "ubuntu-keyring", _DEBIAN, ("sid",), _KEYS)
            keys = Path(work) / "keys" / "root" / _UBUNTU_KEYS
        _unpack(Path(work) / "server", release.package, release.archive, release.suites, keys)
        if not root(version).is_dir():  # of two at once the first counts
            (Path(work) / "server" / "root").rename(root(version))


def _unpack(work: Path, package: str, archive: str, suites: tuple[str, ...], keys: Path) -> None:
    """A package and what it depends on, into ``work / "root"``."""
    for directory in ("state/lists/partial", "cache/archives/partial", "root"):
        (work / directory).mkdir(parents=True)
    lines = [f"deb [signed-by={keys}] {archive} {suite} main\n" for suite in suites]
    (work / "sources.list").write_text("".join(lines))
    (work / "status").touch()
    _apt(work, "update")
    _apt(work, "install", "--yes", "--download-only", package)
    for file in sorted((work / "cache" / "archives").glob("*.deb")):
        if not file.name.startswith(_NOT_NEEDED):
            _run(["dpkg-deb", "--extract", file, work / "root"])


def _apt(work: Path, *arguments: str) -> None:
    options = {
        "Dir::State": work / "state",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "APT::Install-Recommends": "false",
        "APT::Update::Error-Mode": "any",
        # the cache of root is closed to apt's own user
        "APT::Sandbox::User": "root",
    }
    _run(["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items()), *arguments])


def _run(argv: list[str | Path]) -> None:
    subprocess.run(argv, check=True, capture_output=True, text=True, timeout=600)


def _reason_file(version: str) -> Path:
    return CACHE / ("why-not" if version == NEWEST else f"why-not-{version}")


def main() -> None:
    for version in sys.argv[1:] or [VERSION]:
        if not root(version).is_dir():
            _provide(version)


def _provide(version: str) -> None:
    if platform.system() != "Linux" or shutil.which("apt-get") is None:
        reason = "its package is Debian's or Ubuntu's, and apt-get is not here"
    else:
        sys.stderr.write(f"fetching MySQL's server {version} for the tests into {CACHE} (apt-get, 60 MB)\n")
        reason = _try(version)
    if reason:
        CACHE.mkdir(parents=True, exist_ok=True)
        _reason_file(version).write_text(reason)
        sys.stderr.write(f"no MySQL {version}, tests on it are skipped: {reason}\n")


def _try(version: str) -> str:
    try:
        fetch(version)
    except subprocess.CalledProcessError as error:
        said = str(error.stderr).strip().splitlines()
        return f"{error.cmd[0]} failed: {said[0] if said else f'code {error.returncode}'}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
