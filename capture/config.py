"""Configuration: reads a server's settings and a changefeed's file, and reports errors in one line.

A setting comes from the command line, else from ``WEIR_<NAME>``, else from the TOML file, else it has a default. In
files ``data-dir`` and ``data_dir`` are the same key. An unknown or mistyped key is a ``ConfigError`` of one line that
names the key, where it was found, and the most similar valid key.
"""

import codecs
import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args
from urllib.parse import quote, unquote, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from agent.spark.masters import is_connect, is_here, is_master, shown, unprotected
from capture import variables
from capture.address import DEFAULT_ADDRESS, is_loopback, split_address
from capture.errors import ConfigError
from capture.security.reach import ReachSettings
from capture.variables import variable
from reactor.errors import InvalidIdError
from reactor.ids import parse_cluster_id
from reactor.records.changefeed import ChangefeedConfig

M = TypeVar("M", bound=BaseModel)
_FILE_BYTES_MAX = 4 * 1024 * 1024
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
#: of a key in an error
_KEY_SHOWN_MAX = 200
#: what ``store`` begins with; the rest is for the store itself to check
_ETCD: Final = ("http", "https")
_SQL: Final = ("sqlite", "postgresql", "postgres", "mysql", "mariadb")
_MAPPINGS: Final = ("spark", "properties")
_TLS_KEYS = ("tls-ca-file", "tls-cert-file", "tls-key-file")
#: pydantic's error kinds that name Python types, in TOML's terms
_WORDS: Final[Mapping[str, str]] = {
    "tuple_type": "must be a list",
    "model_type": "must be a table",
    "dict_type": "must be a table",
    "string_type": "must be a text in quotes",
}


def _listed(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _host_and_port(value: str) -> str:
    split_address(value)
    return value


def _store(value: str, info: ValidationInfo) -> str:
    kind = value.partition(":")[0]
    if value and kind not in (*_ETCD, *_SQL):
        raise ValueError(
            "must be sqlite, sqlite:///path/of/the/file, postgresql://…, mysql://…, mariadb://…, or URLs of etcd"
        )
    if value and info.data.get("etcd"):
        raise ValueError("is given, and etcd is given, too; a cluster has one store, so leave one of them out")
    return value


def _optional_address(value: str) -> str:
    return _host_and_port(value) if value else value


def _cluster_id(value: str) -> str:
    try:
        return parse_cluster_id(value)
    except InvalidIdError as error:
        raise ValueError(str(error)) from error


def _spark_master(value: str) -> str:
    if not is_master(value):
        raise ValueError(
            f"{shown(value)!r} is no Spark master; write local[*], spark://host:7077, yarn, k8s://… or sc://…"
        )
    return value


def _path(value: Any) -> Any:
    if value == "":
        raise ValueError("is empty; give a path, or leave it out")
    return value


Address = Annotated[str, AfterValidator(_host_and_port)]
Place = Annotated[Path, BeforeValidator(_path)]
#: NoDecode: in a variable it is ``a,b``, not JSON
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]


class ServerSettings(BaseSettings):
    """One capture's settings; the same for ``server``, ``quickstart`` and notebooks."""

    model_config = SettingsConfigDict(
        env_prefix=variables.PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True, env_ignore_empty=True
    )

    #: etcd's client URLs; none, and no other store: an embedded etcd below data_dir, for a cluster on one machine
    etcd: Names = ()
    #: instead of etcd: ``sqlite`` (below data_dir), ``sqlite:///path/of/the/file``, ``postgresql://…``, ``mysql://…``
    #: or ``mariadb://…``, whose password may be a reference (``?password=env:NAME``). etcd's URLs are accepted, too
    store: Annotated[str, AfterValidator(_store)] = Field(default="", repr=False)
    etcd_user: str = ""
    #: may be a reference: env:NAME or file:/path
    etcd_password: str = Field(default="", repr=False)
    etcd_ca_file: Place | None = None
    etcd_cert_file: Place | None = None
    etcd_key_file: Place | None = None
    cluster_id: Annotated[str, AfterValidator(_cluster_id)] = "default"
    #: the HTTP API; ``advertise_addr``: the address for others, if it differs
    addr: Address = DEFAULT_ADDRESS
    advertise_addr: Annotated[str, AfterValidator(_optional_address)] = ""
    #: where other captures connect; empty: any free port of addr's host
    peer_addr: Annotated[str, AfterValidator(_optional_address)] = ""
    advertise_peer_addr: Annotated[str, AfterValidator(_optional_address)] = ""
    #: this node's certificate and the authority of the cluster's nodes (``weir certs``), for peers and for the API
    tls_ca_file: Place | None = None
    tls_cert_file: Place | None = None
    tls_key_file: Place | None = None
    #: names by which the API may be addressed, besides addresses, this machine's name and those in ``addr``
    api_hosts: Names = ()
    #: what changefeeds may name (``capture.security.reach``); none: any host, any sink, and secrets created for them
    source_hosts: Names = ()
    sink_prefixes: Names = ()
    secret_references: Names = ()
    #: listen on addresses that other machines can reach, without TLS
    insecure: bool = False
    #: require: captures prove that they hold the cluster's key; accept: captures of v0.1.0 may connect without, during
    #: a cluster's upgrade
    peer_auth: Literal["require", "accept"] = "require"
    data_dir: Place = Path("weir-data")
    #: octal permissions that files and directories of this capture do not get, including log and lake
    umask: Annotated[str, Field(pattern=r"^0?0[0-7]{2}$")] = "077"
    #: location of segments; empty: below data_dir. Every capture of a cluster needs the same storage
    log_storage: str = ""
    spark_master: Annotated[str, AfterValidator(_spark_master)] = "local[*]"
    #: Spark's own settings; those that are secrets may be references: env:NAME or file:/path
    spark: dict[str, str] = Field(default_factory=dict, repr=False)
    #: use a Spark cluster over a network without authentication and encryption
    insecure_spark: bool = False
    #: how remote executors get Weir: sent by the capture, or installed in their Python
    spark_packages: Literal["sent", "installed"] = "sent"
    #: number of captures that share a standalone cluster: each takes its share of the cores, unless spark.cores.max is
    #: set
    spark_captures: Annotated[int, Field(ge=1, le=1000)] = 2
    #: opens what is sealed in etcd; empty: one of its own below data_dir
    secret_key_file: Place | None = None
    #: a capture that is silent for this long has left the cluster
    session_ttl_seconds: Annotated[int, Field(ge=5, le=600)] = 10
    log_level: str = "info"
    log_file: Place | None = None

    @field_validator("*")
    @classmethod
    def _refuse_controls(cls, value: Any) -> Any:
        """None has a use in an address, a path or a name; NUL breaks whatever opens it, later."""
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, (str, Path)) and _CONTROL.search(str(text)):
                raise ValueError("has a control character; leave it out")
        return value

    @property
    def etcd_urls(self) -> tuple[str, ...]:
        """Return etcd's client URLs, by whichever setting; none if another store is used, or the embedded etcd."""
        return self.etcd or (tuple(_listed(self.store)) if self.store.startswith(_ETCD) else ())

    @property
    def sql_store(self) -> str:
        """Return the URL of the SQL store; empty if etcd is the store."""
        if self.store == "sqlite":
            return f"sqlite://{quote(str((self.data_dir / 'store.db').absolute()))}"
        return self.store if self.store.startswith(_SQL) else ""

    @property
    def listen_peer_addr(self) -> str:
        """Return ``peer_addr``, or any free port of the API's host."""
        return self.peer_addr or f"{self.addr.rpartition(':')[0]}:0"

    @property
    def reach(self) -> ReachSettings:
        own = (
            *self.secret_files,
            self.tls_ca_file and self.tls_ca_file.with_suffix(".key"),
            *self._store_files,
        )
        return ReachSettings(
            data_dir=self.data_dir,
            source_hosts=self.source_hosts,
            sink_prefixes=self.sink_prefixes,
            secret_references=self.secret_references,
            protected=tuple(file for file in own if file is not None),
            variables=frozenset((*map(variable, type(self).model_fields), "WEIR_TOKEN")),
        )

    @property
    def secret_files(self) -> tuple[Path | None, ...]:
        """Return the files that only this capture's user should be able to read."""
        return self.secret_key_file, self.tls_key_file, self.etcd_key_file

    @property
    def _store_files(self) -> tuple[Path, ...]:
        file = unquote(urlsplit(self.sql_store).path) if self.sql_store.startswith("sqlite") else ""
        return tuple(Path(f"{file}{suffix}") for suffix in ("", "-wal", "-shm")) if file else ()

    @property
    def has_tls(self) -> bool:
        return self.tls_cert_file is not None

    def check_reach(self) -> None:
        """:raises ConfigError: TLS is configured incompletely, or traffic that other machines can reach is not
        encrypted."""
        files = {
            "tls-ca-file": self.tls_ca_file,
            "tls-cert-file": self.tls_cert_file,
            "tls-key-file": self.tls_key_file,
        }
        missing = [name for name, file in files.items() if file is None]
        if missing and len(missing) < len(files):
            raise ConfigError(f"TLS needs {', '.join(files)} together; give {' and '.join(missing)} too")
        if self.has_tls or self.insecure:
            return
        for name, address in (("addr", self.addr), ("peer-addr", self.listen_peer_addr)):
            if not is_loopback(split_address(address)[0]):
                raise ConfigError(
                    f"{name} {address} can be reached from other machines, and nothing that goes there is encrypted; "
                    "give tls-ca-file, tls-cert-file and tls-key-file (see `weir certs`), or --insecure"
                )

    def check_spark(self) -> None:
        """:raises ConfigError: rows and credentials would go to Spark unprotected, or anybody could give it orders."""
        lacking = "" if self.insecure_spark else unprotected(self.spark_master, self.spark)
        if lacking:
            where = "in spark-master" if is_connect(self.spark_master) else "below [spark], and the same on the cluster"
            risk = (
                "does not ask who speaks to it, and other users of this machine reach its drivers and executors"
                if is_here(self.spark_master)
                else "is reached over a network, and rows and credentials go there"
            )
            raise ConfigError(f"{shown(self.spark_master)} {risk}; give {lacking} {where}, or --insecure-spark")

    @property
    def log_storage_uri(self) -> str:
        return self.log_storage or str((self.data_dir / "log").absolute())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments and variables only: ``load_server_settings`` passes the file's values as arguments."""
        return (init_settings, env_settings)


def load_server_settings(file: Path | None = None, /, **flags: object) -> ServerSettings:
    """Load settings. Flags that are None were not given.

    :raises ConfigError: names the key, where it was found, and the cure.
    """
    _check_variables()
    given = {name: value for name, value in flags.items() if value is not None}
    from_file = _read_toml(file) if file is not None else {}
    if file is not None:
        _check_keys(ServerSettings, from_file, where=str(file))
    overridden = {name for name in from_file if variable(name) in os.environ}
    kept = {name: value for name, value in from_file.items() if name not in overridden}
    try:
        return ServerSettings(**{**kept, **given})
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        if key in given:
            where = f"--{key.replace('_', '-')}"
        else:
            where = variable(key) if key in overridden or key not in kept else str(file)
        raise _readable(error, where=where) from None


def _check_variables() -> None:
    """:raises ConfigError: a variable looks like a setting, but is not."""
    for name in variables.unknown(ServerSettings.model_fields):
        meant = variables.meant(name, ServerSettings.model_fields)
        cure = f"did you mean {meant}?" if meant else "unset it; `weir server --help` shows the settings"
        raise ConfigError(f"unknown variable {name}; {cure}")


def load_changefeed_config(file: Path) -> ChangefeedConfig:
    """:raises ConfigError: names the key, the file, and the cure."""
    return _changefeed_config(_read_toml(file), where=str(file))


def changefeed_config(data: Mapping[str, Any], *, where: str) -> ChangefeedConfig:
    """``where``: what the data came from. :raises ConfigError: names the key, ``where``, and the cure."""
    return _changefeed_config(_underscored(data), where=where)


def _changefeed_config(data: dict[str, Any], *, where: str) -> ChangefeedConfig:
    _check_keys(ChangefeedConfig, data, where=where)
    try:
        return ChangefeedConfig.model_validate(data)
    except ValidationError as error:
        raise _readable(error, where=where) from None


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as content:
            text = content.read(_FILE_BYTES_MAX + 1)  # /dev/zero has no end
    except (OSError, ValueError) as error:  # a name with NUL is no name
        why = getattr(error, "strerror", None) or "no file has such a name"
        raise ConfigError(f"cannot read {file} ({why}); give another --config") from error
    if len(text) > _FILE_BYTES_MAX:
        raise ConfigError(f"{file} has more than {_FILE_BYTES_MAX} bytes; give the file that is meant")
    if text.startswith(codecs.BOM_UTF8):
        raise ConfigError(f"{file} begins with a byte order mark, which TOML does not have; save it as UTF-8 without")
    try:
        return _underscored(tomllib.loads(text.decode()))
    except RecursionError:
        raise ConfigError(f"{file} is nested too deep; no setting has so many levels") from None
    except ValueError as error:  # also a number of thousands of digits
        raise ConfigError(f"{file} is not TOML ({error}); correct it") from error


def _underscored(data: Mapping[str, Any]) -> dict[str, Any]:
    # Spark's settings, and a table's properties, are mappings with keys of their own
    for key in data:
        if "-" in key and (other := key.replace("-", "_")) in data:
            raise ConfigError(f"{key!r} and {other!r} are the same key; keep one of them")
    return {key.replace("-", "_"): value if key in _MAPPINGS else _plain(value) for key, value in data.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return _underscored(value) if isinstance(value, dict) else value


def _check_keys(model: type[BaseModel], data: Mapping[str, Any], *, where: str) -> None:
    for path, names in _unknown_keys(model, data):
        name, known = _written(path[-1:]), [_written((known,)) for known in names]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        cure = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
        raise ConfigError(f"unknown key {_written(path)!r} in {where}; {cure}")


def _unknown_keys(model: type[BaseModel], data: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    for key, value in data.items():
        field = model.model_fields.get(key)
        if field is None:
            yield (key,), list(model.model_fields)
            continue
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                tables = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict)]
                yield from (((key, *path), known) for item in tables for path, known in _unknown_keys(inner, item))


def _readable(error: ValidationError, *, where: str) -> ConfigError:
    first = error.errors(include_input=False, include_url=False)[0]
    key = _written([str(part) for part in first["loc"]])
    subject = f"{key!r} in {where}" if key else where
    text = _WORDS.get(str(first["type"]), str(first["msg"]).removeprefix("Value error, "))
    cure = "" if ";" in text else "; correct its value"
    return ConfigError(f"{subject}: {text[:1].lower() + text[1:]}{cure}")


def _written(path: Sequence[str]) -> str:
    """Return a key as written in files, with hyphens; Spark's settings as Spark spells them."""
    text = ".".join(path if path and path[0] == "spark" else (part.replace("_", "-") for part in path))
    return text if len(text) <= _KEY_SHOWN_MAX else f"{text[:_KEY_SHOWN_MAX]}…"
