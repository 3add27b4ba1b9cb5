"""Names and errors of others are shown as they are: they are no markup, and a terminal interprets nothing of them."""

import io
import sys
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capture.terminal import console
from capture.terminal.progress import Reporter
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
