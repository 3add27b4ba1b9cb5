"""Logging: structlog to stderr (readable on a terminal, JSON lines elsewhere) or to a file; stdout is for results.

Every text value is masked, so that a URI in a driver's error does not reveal its password. Libraries that use
``logging`` are handled in the same way, from WARNING up. What a terminal would interpret is escaped on one: names and
errors come from sources, sinks and callers.
"""

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

import structlog

from capture.errors import ConfigError
from capture.security.secrets import mask

LEVELS: Mapping[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_LIBRARY_LEVEL_MIN = logging.WARNING
#: control characters, ends of lines, and marks that turn the direction of text
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def configure(level: str = "info", *, file: Path | None = None, libraries: bool = True) -> None:
    """Configure logging; call once per process, at its start. ``libraries`` False: what uses ``logging`` is left alone,
    in a process that is not ours.

    :raises ConfigError: the level is unknown, or the file cannot be written.
    """
    if level not in LEVELS:
        raise ConfigError(f"unknown log level {level!r}; use one of {', '.join(LEVELS)}")
    handler: logging.StreamHandler[Any] = logging.StreamHandler(sys.stderr) if file is None else _file_handler(file)
    stream = handler.stream
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # a traceback is made to text before passwords are masked: the console would do it afterwards
    last: list[structlog.typing.Processor] = [structlog.processors.format_exc_info, mask_values]
    if stream.isatty():
        last += [escape_controls, structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    else:
        last.append(structlog.processors.JSONRenderer(default=str))
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,  # a notebook may configure again
    )
    if not libraries:
        return
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(processors=[_without_bookkeeping, *last], foreign_pre_chain=shared)
    )
    logging.basicConfig(level=max(LEVELS[level], _LIBRARY_LEVEL_MIN), handlers=[handler], force=True)
    logging.captureWarnings(True)


def mask_values(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Mask passwords of URIs in all fields (a structlog processor)."""
    return {key: _masked(value) for key, value in event.items()}


def escape_controls(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape what a terminal would interpret in all texts (a structlog processor); only tracebacks have lines."""
    return {key: _shown(key, value) if isinstance(value, str) else value for key, value in event.items()}


def _shown(key: str, text: str) -> str:
    return "\n".join(map(_escaped, text.split("\n"))) if key == "exception" else _escaped(text)


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {key: _masked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item) for item in value]
    return mask(str(value)) if isinstance(value, BaseException) else value


def _without_bookkeeping(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return structlog.stdlib.ProcessorFormatter.remove_processors_meta(None, "", event)


def _file_handler(file: Path) -> logging.FileHandler:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return logging.FileHandler(file)
    except OSError as error:
        raise ConfigError(f"cannot write the log file {file} ({error.strerror}); give another --log-file") from error
