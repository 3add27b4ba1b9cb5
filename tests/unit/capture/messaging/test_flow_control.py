"""Windows: whatever the connection does, the inbox accepts each message once and in order, and the outbox forgets it
only when it was handled."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from capture.errors import FrameError
from capture.messaging.flow_control import Inbox, Outbox

WINDOW, WINDOW_BYTES = 5, 40


def outbox(count: int = 0) -> Outbox:
    box = Outbox("topic", window=WINDOW, window_bytes=WINDOW_BYTES)
    for _ in range(count):
        box.add(str(box.next_seq).encode())
    return box


def test_numbers_start_at_one_and_continue_after_acknowledgement() -> None:
    box = outbox(2)
    assert box.take(100) == [b"1", b"2"]
    assert box.acknowledge(2) == 2
    assert box.next_seq == 3


@pytest.mark.parametrize(("sizes", "has_room"), [([], True), ([1] * 4, True), ([1] * 5, False), ([1000], False)])
def test_room_is_counted_in_messages_and_bytes(sizes: list[int], has_room: bool) -> None:
    box = outbox()
    for size in sizes:
        box.add(b"x" * size)
    assert (box.has_room, box.bytes_kept) == (has_room, sum(sizes))
    box.take(10_000)
    box.acknowledge(len(sizes))
    assert (box.has_room, box.bytes_kept) == (True, 0)


def test_take_stops_near_its_limit_and_continues_from_there() -> None:
    box = outbox(5)
    assert box.take(2) == [b"1", b"2"]
    assert box.take(100) == [b"3", b"4", b"5"]
    assert box.take(100) == []


def test_take_never_sends_more_than_a_window_that_has_shrunk() -> None:
    box = outbox(5)
    box.window = 2
    assert box.take(100) == [b"1", b"2"]
    assert box.take(100) == []
    box.acknowledge(1)
    assert box.take(100) == [b"3"]


def test_rewind_sends_again_what_is_not_acknowledged() -> None:
    box = outbox(4)
    box.take(3)
    box.acknowledge(1)
    assert box.rewind() == 2
    assert box.take(100) == [b"2", b"3", b"4"]


def test_what_was_handled_on_the_last_connection_is_not_sent_again() -> None:
    box = outbox(3)
    box.take(100)
    box.rewind()
    assert box.acknowledge(2) == 2
    assert box.take(100) == [b"3"]


def test_an_old_acknowledgement_changes_nothing() -> None:
    box = outbox(3)
    box.take(100)
    box.acknowledge(2)
    assert box.acknowledge(1) == 0
    assert len(box) == 1


def test_an_acknowledgement_of_what_was_not_sent_is_refused() -> None:
    with pytest.raises(FrameError, match="never sent"):
        outbox(3).acknowledge(1)


def test_an_inbox_starts_anywhere_and_then_goes_in_order() -> None:
    box = Inbox("topic")
    assert box.accept(7)
    assert not box.accept(7)
    assert not box.accept(6)
    assert box.accept(8)
    with pytest.raises(FrameError, match="messages 9 to 10 of topic are missing"):
        box.accept(11)
    assert box.duplicates == 2
    box.handled()
    assert (box.waiting, box.unreported, box.report(), box.unreported) == (1, 1, 7, 0)


def test_what_is_taken_back_is_accepted_again() -> None:
    box = Inbox("topic")
    box.accept(1)
    box.accept(2)
    box.take_back()
    assert box.accept(2)


class Wire(RuleBasedStateMachine):
    """An outbox and an inbox with a wire between them that may break at any moment, in any direction."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox, self.inbox = outbox(), Inbox("topic")
        self.there: list[int] = []
        self.back: list[int] = []
        self.accepted: list[int] = []
        self.added = 0

    @precondition(lambda self: self.outbox.has_room)
    @rule()
    def add(self) -> None:
        self.added += 1
        assert self.outbox.next_seq == self.added
        self.outbox.add(str(self.added).encode())

    @rule(limit=st.integers(1, 10))
    def send(self, limit: int) -> None:
        self.there += map(int, self.outbox.take(limit))

    @rule(count=st.integers(1, 4))
    def receive(self, count: int) -> None:
        for seq in self.there[:count]:
            if self.inbox.accept(seq):
                self.accepted.append(seq)
        del self.there[:count]

    @precondition(lambda self: self.inbox.waiting)
    @rule()
    def handle(self) -> None:
        self.inbox.handled()

    @rule()
    def acknowledge(self) -> None:
        if self.inbox.unreported:
            self.back.append(self.inbox.report())

    @precondition(lambda self: self.back)
    @rule()
    def hear(self) -> None:
        self.outbox.acknowledge(self.back.pop(0))

    @rule()
    def reconnect(self) -> None:
        self.there.clear()
        self.back.clear()
        self.outbox.rewind()
        if self.accepted:
            self.back.append(self.inbox.report())

    @invariant()
    def nothing_is_lost_doubled_or_out_of_order(self) -> None:
        assert self.accepted == list(range(1, len(self.accepted) + 1))
        handled = len(self.accepted) - self.inbox.waiting
        assert self.added - len(self.outbox) <= handled
        assert self.inbox.waiting <= WINDOW


TestWire = Wire.TestCase
