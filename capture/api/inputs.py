"""Inputs from Python: turns a caller's words into the models of the cluster port."""

import math
import operator
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from capture.api.port import ChangefeedSpec
from capture.config import changefeed_config, load_changefeed_config
from capture.errors import ConfigError
from reactor.records.changefeed import ChangefeedConfig, Mode, SinkMode

#: a model, a mapping with the keys of a TOML file, or the path of one
Config = ChangefeedConfig | Mapping[str, Any] | Path | str | None

E = TypeVar("E", bound=StrEnum)
M = TypeVar("M", bound=BaseModel)


def spec_of(
    changefeed_id: str,
    source: str,
    sink: str,
    *,
    mode: Mode | str = Mode.ALL,
    sink_mode: SinkMode | str = SinkMode.UPSERT,
    start_ts: int | None = None,
    target_ts: int | None = None,
    config: Config = None,
) -> ChangefeedSpec:
    """:raises ConfigError: one of the values is wrong."""
    try:
        return ChangefeedSpec(
            changefeed_id=changefeed_id,
            source_uri=source,
            sink_uri=sink,
            mode=one_of(Mode, mode, "mode"),
            sink_mode=one_of(SinkMode, sink_mode, "sink_mode"),
            start_ts=start_ts,
            target_ts=target_ts,
            config=config_of(config),
        )
    except ValidationError as error:
        raise _wrong(error) from None


def model_of(kind: type[M], **fields: object) -> M:
    """:raises ConfigError: one of the fields is wrong."""
    try:
        return kind(**fields)
    except ValidationError as error:
        raise _wrong(error) from None


def config_of(config: Config) -> ChangefeedConfig:
    """:raises ConfigError: the file or the mapping is wrong."""
    if config is None:
        return ChangefeedConfig()
    if isinstance(config, ChangefeedConfig):
        return config
    if isinstance(config, (str, Path)):
        return load_changefeed_config(Path(config))
    return changefeed_config(config, where="config")


def one_of(kind: type[E], value: E | str, name: str) -> E:
    """:raises ConfigError: ``kind`` has no such member."""
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{name} is {value!r}; use one of {', '.join(kind)}") from None


def whole_of(value: object, name: str) -> int:
    """:raises ConfigError: it is no whole number."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{name} is a whole number, not {value!r}") from None


def seconds_of(value: object, name: str) -> float:
    """:raises ConfigError: it is no number."""
    if isinstance(value, (int, float)) and not math.isnan(value):
        return float(value)
    raise ConfigError(f"{name} is a number of seconds, not {value!r}")


def _wrong(error: ValidationError) -> ConfigError:
    wrong = error.errors(include_input=False, include_url=False)[0]
    text = wrong["msg"].removeprefix("Value error, ")
    return ConfigError(f"{'.'.join(map(str, wrong['loc']))} is wrong: {text}{'' if ';' in text else '; correct it'}")
