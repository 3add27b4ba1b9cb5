"""The fence: what passes, what is refused, and when the epoch is new."""

import pytest

from agent.control.gate import Gate, Owner
from reactor.ids import CaptureId, ChangefeedId, TableSpan
from reactor.messages import Body, Header, Heartbeat, Message, RemoveSpan, StopWorker

A, B = CaptureId("a"), CaptureId("b")


def _gate(run: str = "run", owner: Owner | None = None) -> Gate:
    return Gate(run, 3, version="0.1.0", owner=owner or Owner(A, 5))


def _message(
    body: Body, *, sender: CaptureId = A, revision: int = 5, epoch: str = "run.5", feed_epoch: int = 3
) -> Message:
    return Message(sender, B, ChangefeedId("f"), Header("0.1.0", revision, epoch, feed_epoch), body)


def test_epoch_is_new_for_each_run_and_each_owner() -> None:
    gate = _gate()
    before = gate.processor_epoch
    assert before
    assert _gate(run="another").processor_epoch != before
    assert gate.elect(Owner(B, 6))
    assert gate.admit(_message(Heartbeat(), sender=B, revision=6)) == ""
    assert gate.processor_epoch != before


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (_message(Heartbeat()), ""),
        (_message(Heartbeat(), epoch=""), ""),
        (_message(Heartbeat(), feed_epoch=2), "another changefeed epoch"),
        (_message(Heartbeat(), revision=9, feed_epoch=4), "another changefeed epoch"),
        (_message(Heartbeat(), revision=4), "from an older owner"),
        (_message(Heartbeat(), sender=B), "from a capture that is not the owner"),
        (_message(RemoveSpan(TableSpan(1))), ""),
        (_message(RemoveSpan(TableSpan(1)), epoch=""), "for another run of this processor"),
        (_message(RemoveSpan(TableSpan(1)), epoch="run.4"), "for another run of this processor"),
        (_message(StopWorker("main", 1), epoch="old.5"), "for another run of this processor"),
    ],
)
def test_what_passes(message: Message, reason: str) -> None:
    assert _gate().admit(message) == reason


def test_a_refused_message_of_another_epoch_makes_no_owner() -> None:
    gate = _gate()
    gate.admit(_message(Heartbeat(), sender=B, revision=9, feed_epoch=4))
    assert gate.owner == Owner(A, 5)


def test_orders_of_the_owner_before_are_refused_after_a_change_of_owner() -> None:
    gate = _gate()
    order = RemoveSpan(TableSpan(1))
    assert gate.elect(Owner(B, 6))
    assert gate.admit(_message(Heartbeat(), sender=B, revision=6, epoch="")) == ""
    assert gate.admit(_message(order)) == "from an older owner"
    assert gate.admit(_message(order, sender=B, revision=6)) == "for another run of this processor"
    assert gate.admit(_message(order, sender=B, revision=6, epoch=gate.processor_epoch)) == ""


def test_claiming_ownership_is_not_enough() -> None:
    gate = _gate(owner=Owner())
    assert gate.admit(_message(Heartbeat(), revision=1, epoch="")) == "from an owner that etcd does not show yet"
    assert gate.owner == Owner()
    assert gate.elect(Owner(A, 5))
    assert gate.admit(_message(Heartbeat(), sender=B, revision=9)) == "from an owner that etcd does not show yet"
    assert gate.admit(_message(Heartbeat(), sender=B)) == "from a capture that is not the owner"
    assert gate.admit(_message(Heartbeat())) == ""


def test_what_etcd_has_shown_never_goes_back() -> None:
    gate = _gate()
    assert not gate.elect(Owner(B, 4))
    assert not gate.elect(Owner(A, 5))
    assert gate.owner == Owner(A, 5)
