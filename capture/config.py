"""Configuration: reads a server's settings and a changefeed's file, and says in one line what is wrong in them.

A setting comes from the command line, else from ``WEIR_<NAME>``, else from the TOML file, else it has a default. In
files ``data-dir`` and ``data_dir`` are the same key. An unknown or mistyped key is a ``ConfigError`` of one line that
names the key, where it was found, and the nearest key there is.
"""

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from capture.address import DEFAULT_ADDRESS, split_address
from capture.errors import ConfigError
from reactor.errors import InvalidIdError
from reactor.ids import parse_cluster_id
from reactor.records.changefeed import ChangefeedConfig

M = TypeVar("M", bound=BaseModel)
_ENV_PREFIX = "WEIR_"
#: pydantic's kinds of errors that name types of Python, in TOML's words
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


def _optional_address(value: str) -> str:
    return _host_and_port(value) if value else value


def _cluster_id(value: str) -> str:
    try:
        return parse_cluster_id(value)
    except InvalidIdError as error:
        raise ValueError(str(error)) from error


Address = Annotated[str, AfterValidator(_host_and_port)]
#: NoDecode: in a variable it is ``a,b``, not JSON.
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]


class ServerSettings(BaseSettings):
    """One capture's settings; the same for ``server``, ``quickstart`` and notebooks."""

    model_config = SettingsConfigDict(
        env_prefix=_ENV_PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True, env_ignore_empty=True
    )

    #: etcd's client URLs; none: an embedded etcd below data_dir, for a cluster on one machine
    etcd: Names = ()
    etcd_user: str = ""
    #: may be a reference: env:NAME or file:/path
    etcd_password: str = Field(default="", repr=False)
    etcd_ca_file: Path | None = None
    etcd_cert_file: Path | None = None
    etcd_key_file: Path | None = None
    cluster_id: Annotated[str, AfterValidator(_cluster_id)] = "default"
    #: the HTTP API; ``advertise_addr`` is the address that others use, where it differs
    addr: Address = DEFAULT_ADDRESS
    advertise_addr: Annotated[str, AfterValidator(_optional_address)] = ""
    #: where other captures connect; empty: any free port of addr's host
    peer_addr: Annotated[str, AfterValidator(_optional_address)] = ""
    advertise_peer_addr: Annotated[str, AfterValidator(_optional_address)] = ""
    data_dir: Path = Path("weir-data")
    #: where segments go; empty: below data_dir. Every capture of a cluster needs the same storage
    log_storage: str = ""
    spark_master: str = "local[*]"
    spark: dict[str, str] = Field(default_factory=dict)
    #: opens what is sealed in etcd; empty: one of its own below data_dir
    secret_key_file: Path | None = None
    #: a capture that is silent this long has left the cluster
    session_ttl_seconds: Annotated[int, Field(ge=5, le=600)] = 10
    log_level: str = "info"
    log_file: Path | None = None

    @property
    def listen_peer_addr(self) -> str:
        """``peer_addr``, or any free port of the API's host."""
        return self.peer_addr or f"{self.addr.rpartition(':')[0]}:0"

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
        """Arguments and variables only: ``load_server_settings`` has put the file among the arguments."""
        return (init_settings, env_settings)


def load_server_settings(file: Path | None = None, /, **flags: object) -> ServerSettings:
    """Flags that are None were not given.

    :raises ConfigError: names the key, its place, and the cure.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    from_file = _read_toml(file) if file is not None else {}
    if file is not None:
        _check_keys(ServerSettings, from_file, where=str(file))
    overridden = {name for name in from_file if _variable(name) in os.environ}
    kept = {name: value for name, value in from_file.items() if name not in overridden}
    try:
        return ServerSettings(**{**kept, **given})
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        if key in given:
            where = f"--{key.replace('_', '-')}"
        else:
            where = _variable(key) if key in overridden or key not in kept else str(file)
        raise _readable(error, where=where) from None


def load_changefeed_config(file: Path) -> ChangefeedConfig:
    """:raises ConfigError: names the key, the file, and the cure."""
    data = _read_toml(file)
    _check_keys(ChangefeedConfig, data, where=str(file))
    try:
        return ChangefeedConfig.model_validate(data)
    except ValidationError as error:
        raise _readable(error, where=str(file)) from None


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return _underscored(tomllib.loads(file.read_text()))
    except OSError as error:
        raise ConfigError(f"cannot read {file} ({error.strerror}); give another --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error


def _underscored(data: Mapping[str, Any]) -> dict[str, Any]:
    # Spark's settings are a mapping with keys of its own.
    for key in data:
        if "-" in key and (other := key.replace("-", "_")) in data:
            raise ConfigError(f"{key!r} and {other!r} are the same key; keep one of them")
    return {key.replace("-", "_"): value if key == "spark" else _plain(value) for key, value in data.items()}


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
    """A key as files have it, with hyphens; Spark's settings are spelt by Spark."""
    return ".".join(path if path and path[0] == "spark" else (part.replace("_", "-") for part in path))


def _variable(name: str) -> str:
    return f"{_ENV_PREFIX}{name.upper()}"
