"""Logs go to stderr or a file, as JSON where nobody looks at a terminal, and without passwords."""

import io
import json
import logging
import re
from pathlib import Path

import pytest
import structlog

from capture import logs
from capture.errors import ConfigError

pytestmark = pytest.mark.usefixtures("restored_logging")


def test_lines_are_json_and_masked(tmp_path: Path) -> None:
    logs.configure(file=tmp_path / "new" / "weir.log")
    structlog.get_logger().info("connected", uri="pg://u:geheim@h/d", nested={"x": ["pg://u:geheim@h"]}, n=1)
    logging.getLogger("driver").warning("lost %s", "pg://u:geheim@h/d")
    try:
        raise OSError("pg://u:geheim@h refused")
    except OSError as error:
        structlog.get_logger().exception("failed", error=error)
    text = (tmp_path / "new" / "weir.log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert "geheim" not in text
    assert [line["event"] for line in lines] == ["connected", "lost pg://u:***@h/d", "failed"]
    assert lines[0]["n"] == 1
    assert "OSError" in lines[2]["exception"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


#: clears the screen, changes the title, ends the line, turns the direction of what follows
HOSTILE = "t\x1b[2J\x1b]0;x\x07\r\n2026 [info] all is well\u202e\x9b2J"


def test_a_terminal_is_shown_no_passwords_and_nothing_that_it_would_interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of tables, and errors of drivers and callers, are others' texts; a traceback's lines contain them."""
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    logs.configure()
    for name in ("event", "table"):
        structlog.get_logger().info(HOSTILE if name == "event" else "x", table=HOSTILE, uri="pg://u:geheim@h/d")
    logging.getLogger("driver").warning("lost %s %s", "pg://u:geheim@h/d", HOSTILE)
    try:
        raise OSError(f"pg://u:geheim@h refused {HOSTILE}")
    except OSError as error:
        structlog.get_logger().exception("failed", error=error)
        logging.getLogger("driver").exception("failed")
    text = re.sub("\x1b\\[[0-9;]*m", "", terminal.getvalue())  # its own colours
    assert "geheim" not in text
    assert not re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "\n2026 [info] all is well" not in text.split("Traceback")[0]
    assert text.count("Traceback (most recent call last)") == 2


def test_the_level_is_kept(tmp_path: Path) -> None:
    logs.configure("warning", file=tmp_path / "log")
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud")
    assert "quiet" not in (tmp_path / "log").read_text()
    assert "loud" in (tmp_path / "log").read_text()


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown log level 'loud'; use one of debug"):
        logs.configure("loud")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write the log file"):
        logs.configure(file=tmp_path / "file" / "log")
