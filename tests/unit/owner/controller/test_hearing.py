"""Which captures one hears, and when it is isolated."""

from dataclasses import dataclass

from owner.controller.hearing import Heard, Hearing
from reactor.ids import CaptureId

A, B = CaptureId("a"), CaptureId("b")


@dataclass
class Answers:
    since: float = 0.0
    heard_at: float | None = None


def test_a_capture_is_heard_from_its_first_answer_on_until_a_silence() -> None:
    hearing, a, b = Hearing(silence_s=5), Answers(), Answers()
    contacts = {A: a, B: b}
    assert not hearing.look(contacts, 0.0), "both have just joined"
    a.heard_at = 0.1
    assert hearing.look(contacts, 0.5)
    assert hearing.heard == Heard(frozenset({A}))
    assert hearing.look(contacts, 2.0)
    assert hearing.heard == Heard(frozenset({A}), frozenset({B})), "it had time enough to answer"
    a.heard_at = b.heard_at = 3.0
    assert hearing.look(contacts, 3.0)
    assert hearing.heard == Heard(frozenset({A, B}))
    a.heard_at = 8.0
    assert not hearing.look(contacts, 8.5), "one look says nothing"
    assert hearing.look(contacts, 9.0)
    assert hearing.heard == Heard(frozenset({A}), frozenset({B}))
    b.heard_at = 9.1
    assert hearing.look(contacts, 9.5)
    assert hearing.heard == Heard(frozenset({A, B}))


def test_a_process_that_was_suspended_hears_all_again() -> None:
    hearing, a, b = Hearing(silence_s=5), Answers(heard_at=0.0), Answers(heard_at=0.0)
    assert hearing.look({A: a, B: b}, 0.0)
    assert not hearing.look({A: a, B: b}, 60.0)
    a.heard_at = b.heard_at = 60.1
    assert not hearing.look({A: a, B: b}, 60.5)


def test_who_hears_nobody_for_a_while_is_isolated() -> None:
    hearing, a, b = Hearing(silence_s=5), Answers(heard_at=0.0), Answers()
    for at in (0.0, 4.9, 5.0):
        hearing.look({A: a, B: b}, at)
        assert not hearing.heard.is_isolated
    hearing.look({A: a, B: b}, 5.5)
    assert hearing.heard == Heard(silent=frozenset({A, B}), is_isolated=True)
    hearing.look({}, 6.0)
    assert hearing.heard == Heard(), "it is alone: nobody is missing"
