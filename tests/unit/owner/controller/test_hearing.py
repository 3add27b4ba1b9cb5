"""Hearing of captures: those that one hears, and isolation."""

from dataclasses import dataclass

from owner.controller.hearing import Heard, Hearing
from reactor.ids import CaptureId

A, B = CaptureId("a"), CaptureId("b")


@dataclass
class Answers:
    since: float = 0.0
    heard_at: float | None = None


def look(hearing: Hearing, contacts: dict[CaptureId, Answers], *, since: float, until: float) -> bool:
    """Look twice a second; return whether the result has changed with the last look."""
    count = int((until - since) / 0.5)
    return [hearing.look(contacts, since + 0.5 * number) for number in range(1, count + 1)][-1]


def test_a_capture_is_heard_from_its_first_answer_on_until_a_silence() -> None:
    hearing, a, b = Hearing(silence_s=5), Answers(), Answers()
    contacts = {A: a, B: b}
    assert not hearing.look(contacts, 0.0), "both have just joined"
    a.heard_at = 0.1
    assert hearing.look(contacts, 0.5)
    assert hearing.heard == Heard(frozenset({A}))
    assert look(hearing, contacts, since=0.5, until=2.0)
    assert hearing.heard == Heard(frozenset({A}), frozenset({B})), "it had time enough to answer"
    a.heard_at = b.heard_at = 3.0
    look(hearing, contacts, since=2.0, until=3.0)
    assert hearing.heard == Heard(frozenset({A, B}))
    a.heard_at = 8.0
    assert not look(hearing, contacts, since=3.0, until=8.0), "one look says nothing"
    assert hearing.look(contacts, 8.5)
    assert hearing.heard == Heard(frozenset({A}), frozenset({B}))
    b.heard_at = 8.6
    assert hearing.look(contacts, 9.0)
    assert hearing.heard == Heard(frozenset({A, B}))


def test_a_process_that_was_suspended_gives_all_others_the_whole_time_again() -> None:
    """It has read no answers, and its connections have ended."""
    hearing, contacts = Hearing(silence_s=5), {A: Answers(heard_at=0.0), B: Answers(heard_at=0.0)}
    hearing.look(contacts, 0.0)
    before = hearing.heard
    hearing.look(contacts, 60.0)
    look(hearing, contacts, since=60.0, until=65.0)
    assert hearing.heard == before
    hearing.look(contacts, 65.5)
    assert hearing.heard == Heard(silent=frozenset({A, B}), is_isolated=True)


def test_who_hears_nobody_for_a_while_is_isolated() -> None:
    hearing, contacts = Hearing(silence_s=5), {A: Answers(heard_at=0.0), B: Answers()}
    hearing.look(contacts, 0.0)
    look(hearing, contacts, since=0.0, until=5.0)
    assert not hearing.heard.is_isolated
    hearing.look(contacts, 5.5)
    assert hearing.heard == Heard(silent=frozenset({A, B}), is_isolated=True)
    hearing.look({}, 6.0)
    assert hearing.heard == Heard(), "it is alone: nobody is missing"
