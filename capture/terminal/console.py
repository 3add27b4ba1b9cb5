"""Console: writes results to stdout (a table, or one JSON document) and everything else to stderr.

An error is one line, ``error: cause; cure``. Tracebacks are shown on request (``WEIR_DEBUG=1``).
"""

import json
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from capture.security.secrets import mask
from reactor.errors import WeirError

#: width of a table in a file or a pipe
_FILE_WIDTH = 200
#: what a terminal interprets: control characters, ends of lines, and marks that turn the direction of text
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
#: fields that are a Unix time, beside those whose names end so
_MOMENTS = ("time", "since", "retry_at")
_FAULT = "it is a fault in Weir: run again with WEIR_DEBUG=1 and report the traceback"


def print_json(value: object) -> None:
    """Print the one JSON document on stdout, never coloured or wrapped."""
    sys.stdout.write(json.dumps(_plain(value), indent=2) + "\n")
    sys.stdout.flush()


def print_json_list(fields: Mapping[str, object], name: str, items: Iterable[object]) -> None:
    """Print one document of ``fields`` and a list, item by item. If the iteration ends with an error, the document
    contains it too, and it is raised."""
    write = sys.stdout.write
    write("{\n" + "".join(f"  {json.dumps(key)}: {json.dumps(_plain(value))},\n" for key, value in fields.items()))
    write(f"  {json.dumps(name)}: [")
    separator, failure = "\n", None
    try:
        for item in items:
            write(separator + textwrap.indent(json.dumps(_plain(item), indent=2), "    "))
            separator = ",\n"
    except WeirError as error:
        failure = error
    write("]" if separator == "\n" else "\n  ]")
    if failure is not None:
        write(f',\n  "error": {json.dumps(describe(failure))}')
    write("\n}\n")
    sys.stdout.flush()
    if failure is not None:
        raise failure


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
    # long values are folded, not cut off, so that names and positions can be copied
    table = Table(
        *(Column(_plain_text(name), overflow="fold") for name in columns),
        title=_plain_text(title, style="table.title") if title else None,
        title_justify="left",
    )
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    is_terminal = sys.stdout.isatty()
    Console(soft_wrap=not is_terminal, width=None if is_terminal else _FILE_WIDTH).print(table)


def print_line(text: str) -> None:
    sys.stdout.write(printable(text) + "\n")


def print_fields(view: BaseModel) -> None:
    """Print one object, field by field, without empty fields."""
    rows = [(name, value) for name, value in view if value not in (None, "", (), 0.0)]
    table = Table(show_header=False, box=None)
    for name, value in rows:
        table.add_row(name, _cell(value, name))
    Console(soft_wrap=True).print(table)


def print_warning(text: str) -> None:
    sys.stderr.write(f"warning: {one_line(text)}\n")


def print_error(error: BaseException) -> None:
    sys.stderr.write(f"error: {describe(error)}\n")


def describe(error: BaseException) -> str:
    """Return the error as one line, without passwords."""
    root = root_of(error)
    text = str(root) if isinstance(root, WeirError) else f"{type(root).__name__}: {root}; {_FAULT}"
    return mask(one_line(text))


def one_line(text: str) -> str:
    """Return the text in one line, as ``printable``."""
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    r"""Return the text with what a terminal would interpret escaped (``\x1b``, ``\u202e``)."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def root_of(error: BaseException) -> BaseException:
    """Return the one error of a group to show: one that was raised on purpose, if there is any."""
    leaves = list(_leaves(error))
    return next((leaf for leaf in leaves if isinstance(leaf, WeirError)), leaves[0])


def is_debugging() -> bool:
    return os.environ.get("WEIR_DEBUG", "") not in ("", "0")


@contextmanager
def waiting(text: str, *, interrupted: str = "") -> Iterator[Callable[[str], None]]:
    """Show a spinner on stderr if that is a terminal. Yields a function that changes its text.

    ``interrupted``: a line for a user who interrupts it, that says what is done and how to continue.
    """
    try:
        with Console(stderr=True).status(_plain_text(text)) as status:
            yield lambda news: status.update(_plain_text(news))
    except BaseException as error:
        if interrupted and isinstance(root_of(error), KeyboardInterrupt):
            print_warning(f"interrupted; {interrupted}")
        raise


def when(seconds: float) -> str:
    """Format a Unix time for people; empty for 0, which means unknown."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else ""


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _plain_text(text: str, *, style: str = "") -> Text:
    """Names and errors that have brackets are not markup."""
    return Text(printable(text), style=style)


def _cell(value: object, name: str = "") -> Text:
    is_list = isinstance(value, tuple | list)
    return Text("\n").join(map(_cell, value)) if is_list else _plain_text(_shown(value, name))  # type: ignore[call-overload]


def _shown(value: object, name: str = "") -> str:
    """``name``: of the field whose value it is."""
    if isinstance(value, BaseModel | Mapping):
        items = dict(value).items()
        return ", ".join(f"{key}={_shown(item, str(key))}" for key, item in items if item not in (None, "", ()))
    if isinstance(value, tuple | list):
        return ", ".join(map(_shown, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        is_moment = name in _MOMENTS or name.endswith(("_time", "_since"))
        return when(value) if is_moment else f"{value:.3f}"
    return str(value) if value is not None else ""
