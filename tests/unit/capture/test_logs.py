"""Logs go to stderr or a file, as JSON where nobody looks at a terminal, and without passwords."""

import json
import logging
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
