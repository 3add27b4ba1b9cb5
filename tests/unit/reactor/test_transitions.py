"""The last steps of a machine, as an error tells them."""

from reactor.errors import InvalidTransitionError
from reactor.transitions import KEPT, History, described, noted


def test_an_error_names_machine_state_cause_and_the_way_there() -> None:
    history = History("changefeed orders")
    history.note("normal", "error SinkTimeout", "pending")
    history.note("pending", "wait over", "warning")
    error = history.invalid("warning", "wait over")
    assert isinstance(error, InvalidTransitionError)
    assert str(error) == (
        "changefeed orders is warning, which has no transition for wait over (a bug; "
        "normal -(error SinkTimeout)-> pending -(wait over)-> warning); report it"
    )


def test_a_machine_that_never_moved_reports_it() -> None:
    assert str(History("span")) == "nothing before"


def test_only_the_last_steps_are_kept() -> None:
    history = History("span")
    for number in range(KEPT + 3):
        history.note(str(number), "on", str(number + 1))
    assert [step[0] for step in history.steps] == [str(number) for number in range(3, KEPT + 3)]


def test_equal_steps_are_one_object() -> None:
    """There may be a machine for each of 100,000 spans."""
    first, second = noted((), "a", "x", "b"), noted((), "a", "x", "b")
    assert first[0] is second[0]


def test_a_gap_is_shown() -> None:
    assert described((("a", "x", "b"), ("c", "y", "d"))) == "a -(x)-> b … c -(y)-> d"
