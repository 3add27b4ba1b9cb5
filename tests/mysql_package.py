"""MySQL's own server for tests: Debian's package, unpacked into the user's cache, with the libraries it needs.

    python -m tests.mysql_package

No release of Debian that is in use has MySQL; the unstable one has the newest. Packages are taken through apt with
lists and a status of their own, so signatures are checked and the machine's packages stay as they are; root is not
needed. Older servers are used where somebody has unpacked one below the cache (``root-8.0``, say);
``TEST_MYSQL`` names the one that ordinary tests run on. Where a server cannot be had, the tests that need it are
skipped with the reason.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weir" / "mysql"
NEWEST: Final = "9.7"
VERSION: Final = os.environ.get("TEST_MYSQL", NEWEST)

_DEBIAN: Final = "http://deb.debian.org/debian"
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_REASON = CACHE / "why-not"
#: only its scripts need them
_NOT_NEEDED = ("perl", "libperl")


#: versions that tests know how to start, beside the newest
OLDER: Final = ("8.4", "8.0", "5.7")


def root(version: str = VERSION) -> Path:
    return CACHE / ("root" if version == NEWEST else f"root-{version}")


def why_not(version: str = VERSION) -> str | None:
    """Why there is no MySQL here; None where there is one."""
    if root(version).is_dir():
        return None
    if version != NEWEST:
        return f"no MySQL {version}: unpack its server into {root(version)}"
    return f"no MySQL {version}: {_REASON.read_text() if _REASON.exists() else 'run make mysql, which fetches one'}"


def command(version: str = VERSION) -> list[str | Path]:
    """The server, started by the loader of its own release."""
    top = root(version)
    usr = top / "usr"
    [loader] = {path.resolve() for place in (usr, top) for path in place.glob("lib/*-linux-gnu*/ld-linux*.so.*")}
    libraries = [usr / "lib" / loader.parent.name, top / "lib" / loader.parent.name]
    return [loader, "--library-path", ":".join(map(str, libraries)), usr / "sbin" / "mysqld"]


def fetch() -> None:
    """:raises OSError, subprocess.CalledProcessError: it cannot be had."""
    if not _KEYS.exists():
        raise FileNotFoundError(f"no {_KEYS}: only a Debian with its keys fetches it")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="new-", dir=CACHE) as work:
        _unpack(Path(work) / "server")
        if not root(NEWEST).is_dir():  # of two at once the first counts
            (Path(work) / "server" / "root").rename(root(NEWEST))


def _unpack(work: Path) -> None:
    """The server and what it depends on, into ``work / "root"``."""
    for directory in ("state/lists/partial", "cache/archives/partial", "root"):
        (work / directory).mkdir(parents=True)
    (work / "sources.list").write_text(f"deb [signed-by={_KEYS}] {_DEBIAN} sid main\n")
    (work / "status").touch()
    _apt(work, "update")
    _apt(work, "install", "--yes", "--download-only", "mysql-server-core")
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


def main() -> None:
    if root(NEWEST).is_dir():
        return
    if platform.system() != "Linux" or shutil.which("apt-get") is None:
        reason = "its package is Debian's, and apt-get is not here"
    else:
        sys.stderr.write(f"fetching MySQL's server for the tests into {CACHE} (apt-get, 60 MB)\n")
        reason = _try()
    if reason:
        CACHE.mkdir(parents=True, exist_ok=True)
        _REASON.write_text(reason)
        sys.stderr.write(f"no MySQL, tests on it are skipped: {reason}\n")


def _try() -> str:
    try:
        fetch()
    except subprocess.CalledProcessError as error:
        said = str(error.stderr).strip().splitlines()
        return f"{error.cmd[0]} failed: {said[0] if said else f'code {error.returncode}'}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
