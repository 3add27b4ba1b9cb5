"""Docs name what exists: links, files, tests, commands with their options, make targets, and keys of TOML files."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from capture.cli.main import app
from capture.config import ServerSettings, load_changefeed_config, load_server_settings

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")))
PATHS = ("agent", "capture", "owner", "reactor", "tests", "benchmarks", "examples", "docs")
COMMAND: Any = typer.main.get_command(app)

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(rf"(?<![\w/.])(?:{'|'.join(PATHS)})/[\w./{{}},*<>-]*")
_TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def texts_of_code(page: Path) -> Iterator[str]:
    """Every line of code blocks but SQL and TOML, every span of inline code."""
    text = page.read_text()
    for language, block in _FENCE.findall(text):
        if language not in {"sql", "toml"}:
            yield from block.replace("\\\n", " ").splitlines()
    for block in re.findall(r"(?:^    \S.*\n)+", text, re.MULTILINE):
        yield from (line.strip() for line in block.splitlines())
    yield from _CODE.findall(_FENCE.sub("", text))


def anchors_of(page: Path) -> set[str]:
    """The anchors that a heading gets where Markdown is shown as on GitHub."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        assert found.exists(), target
        assert not anchor or anchor in anchors_of(found), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_and_tests_that_are_named_exist(page: Path) -> None:
    for text in texts_of_code(page):
        for path in _PATH.findall(text):
            if not re.search(r"[*<>{]", path):
                assert (ROOT / path.rstrip(".,")).exists(), path
        for file, test in _TEST.findall(text):
            assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE), test


def tokens_of(line: str) -> list[str]:
    """The words of a command, up to its comment, pipe or `&`."""
    lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;()")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    for word in lexer:
        if word[0] in "|&;":
            break
        words.append(word)
    return words


def commands_in(page: Path) -> Iterator[list[str]]:
    """What follows ``weir``, or ``python -m capture``, in each line of code; the latter may be left out of prose."""
    for text in texts_of_code(page):
        if text.startswith(("changefeed ", "log inspect")):
            yield tokens_of(text)
        for start in re.finditer(r"(?:^|(?<=[\s;&|(]))(?:weir|\S*python -m capture)(?: |$)", text):
            yield tokens_of(text[start.end() :])


def check_command(words: list[str]) -> None:
    """Follow the words down the command line's tree: commands exist, and so do options.

    ``create, list, query`` are three commands.
    """
    command: click.Command = COMMAND
    while isinstance(command, click.Group | typer.core.TyperGroup) and words:
        first, words = words[0], words[1:]
        if first in {"…", "...", "--help"}:
            return
        for name in (first, *words) if first.endswith(",") else (first,):
            assert name.rstrip(",") in command.commands, f"no command {name}"
        if first.endswith(","):
            return
        command = command.commands[first]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word.startswith("-") and word not in {"-", "--help"}:
            assert word.partition("=")[0] in options, f"{command.name} has no option {word}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_their_options_exist(page: Path) -> None:
    for words in commands_in(page):
        check_command(words)


def test_a_command_that_is_gone_would_be_found() -> None:
    for words in (["changefeed", "begin"], ["diff", "--at"], ["changefeed", "list,", "show"]):
        with pytest.raises(AssertionError):
            check_command(words)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for text in texts_of_code(page):
        for start in re.finditer(r"(?:^|[\s$])make ([a-z ]+)", text):
            assert start[1].split()[0] in targets, text


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_configuration_files_are_read(page: Path, tmp_path: Path) -> None:
    """A block of TOML is a server's or a changefeed's configuration; `pyproject.toml`'s is neither."""
    for language, block in _FENCE.findall(page.read_text()):
        if language != "toml" or "project" in (content := tomllib.loads(block)):
            continue
        file = tmp_path / "example.toml"
        file.write_text(block)
        if {key.replace("-", "_") for key in content} & ServerSettings.model_fields.keys():
            load_server_settings(file)
        else:
            load_changefeed_config(file)
