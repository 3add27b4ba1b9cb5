"""MySQL's own server for tests: Debian's package, unpacked into the user's cache, with the libraries of its release.

    python -m tests.mysql_package

No release of Debian that is in use has MySQL; the unstable one has. Its packages are taken through apt with lists and a
status of their own, so signatures are checked and the machine's packages stay as they are; root is not needed. Where it
cannot be had, the reason is kept, and the tests that need it are skipped with it.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weir" / "mysql"
ROOT = CACHE / "root"

_PACKAGE = "mysql-server-core"
_SOURCE = "deb [signed-by={keys}] http://deb.debian.org/debian sid main\n"
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: only its scripts need them
_NOT_NEEDED = ("perl", "libperl")
_WHY_NOT = CACHE / "why-not"


def why_not() -> str | None:
    """Why there is no MySQL here; None where there is one."""
    if ROOT.is_dir():
        return None
    return f"no MySQL server: {_WHY_NOT.read_text() if _WHY_NOT.exists() else 'run make mysql, which fetches one'}"


def command() -> list[str | Path]:
    """The server, started by the loader of its own release."""
    [loader] = (ROOT / "usr" / "lib").glob("*-linux-gnu*/ld-linux*.so.*")
    return [loader, "--library-path", loader.parent, ROOT / "usr" / "sbin" / "mysqld"]


def fetch() -> None:
    """:raises OSError, subprocess.CalledProcessError: it cannot be had."""
    if not _KEYS.exists():
        raise FileNotFoundError(f"no {_KEYS}: only a Debian with its keys fetches it")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="new-", dir=CACHE) as work:
        _fetch_into(Path(work))


def _fetch_into(work: Path) -> None:
    for directory in ("state/lists/partial", "cache/archives/partial", "root"):
        (work / directory).mkdir(parents=True)
    (work / "sources.list").write_text(_SOURCE.format(keys=_KEYS))
    (work / "status").touch()
    _apt(work, "update")
    _apt(work, "install", "--yes", "--download-only", _PACKAGE)
    for package in sorted((work / "cache" / "archives").glob("*.deb")):
        if not package.name.startswith(_NOT_NEEDED):
            _run(["dpkg-deb", "--extract", package, work / "root"])
    if not ROOT.is_dir():  # of two at once the first counts
        (work / "root").rename(ROOT)


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
    if ROOT.is_dir():
        return
    if platform.system() != "Linux" or shutil.which("apt-get") is None:
        reason = "its package is Debian's, and apt-get is not here"
    else:
        sys.stderr.write(f"fetching MySQL's server for the tests into {CACHE} (apt-get, 60 MB)\n")
        reason = _try()
    if reason:
        CACHE.mkdir(parents=True, exist_ok=True)
        _WHY_NOT.write_text(reason)
        sys.stderr.write(f"no MySQL server, tests on it are skipped: {reason}\n")


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
