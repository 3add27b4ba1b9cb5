"""Names and errors of others are shown as they are: they are no markup, and a terminal interprets nothing of them."""

import io
import sys
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capture.terminal import console
from capture.terminal.progress import Reporter
from reactor.records.schedules import LastDiff
from reactor.views import HeldView

#: brackets that markup would take for styles, for links, or for a fault in it; and what a terminal interprets
HOSTILE = st.text(alphabet="[]/\\=a red:@link\x1b\u202e\n", max_size=20)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(print_it: Callable[[], None]) -> str:
    before, sys.stdout = sys.stdout, io.StringIO()
    try:
        print_it()
        return sys.stdout.getvalue()
    finally:
        sys.stdout = before


@given(HOSTILE)
@example("[/]")
@example("x[/red]")
@example("[red]x")
@example("a\\[b]")
@example("ends with \\")
def test_names_are_shown_as_they_are(name: str) -> None:
    view = HeldView(table=name, table_id=1, stage="held")
    escaped = " ".join(console.printable(name).split())
    for print_it in (
        lambda: console.print_table(("a",), [(name,)]),
        lambda: console.print_table(("a",), [((name,),)]),
        lambda: console.print_table((name,), [("a",)]),
        lambda: console.print_table(("a" * 40,), [], title=name),
        lambda: console.print_fields(view),
    ):
        text = shown(print_it)
        assert escaped in " ".join(text.split()), text
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_fields_are_shown_for_people() -> None:
    """Times as times, and nothing in the spelling of Python."""
    at, last = 1_700_000_000.25, LastDiff(ts=5, time=1_700_000_000.5, compared=3, differ=1, differing=("a.b", "a.c"))
    view = HeldView(table="public.t", table_id=1, stage="held", since=at)
    lines = shown(lambda: console.print_fields(view)).splitlines()
    assert [line.split(None, 1)[1].strip() for line in lines if " since " in line] == [console.when(at)]
    text = shown(lambda: console.print_table(("a",), [({"source": 2.7043, "kept": False},), (last,)]))
    assert "source=2.704, kept=no" in text
    assert f"time={console.when(last.time)}" in text
    assert "differing=a.b, a.c" in text


@pytest.mark.parametrize("text", ["[/]", "copying [/a/b], [red]", "cannot read [/tmp/x]"])
def test_progress_that_has_brackets(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with console.waiting(text) as show:
        show(text + "!")
    assert text + "!" in console.printable(terminal.getvalue())
    with Reporter() as reporter:
        reporter.step(text)
        reporter.show(1, 2, text)
        reporter.finish(text)
