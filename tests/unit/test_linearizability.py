"""The checker of histories, against all orders of small ones."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.linearizability import Call, Kind, is_linearizable

_VALUES = st.sampled_from([None, b"1", b"2", b"3"])


@st.composite
def _calls(draw: st.DrawFn) -> Call:
    began = draw(st.integers(0, 6))
    lasted = draw(st.none() | st.integers(0, 4))
    kind = draw(st.sampled_from(list(Kind)))
    returned = None if lasted is None else float(began + lasted)
    return Call(kind, float(began), returned, draw(_VALUES), draw(_VALUES), draw(st.booleans()))


@given(history=st.lists(_calls(), max_size=5))
def test_it_agrees_with_trying_all_orders(history: list[Call]) -> None:
    assert is_linearizable(history) == any(_fits(order) for order in _orders(history))


def _orders(history: list[Call]) -> list[tuple[Call, ...]]:
    """Also of all choices of calls whose answer was lost and that were never done."""
    lost = [index for index, call in enumerate(history) if call.returned is None]
    chosen = [
        [call for index, call in enumerate(history) if not (index in lost and dropped >> lost.index(index) & 1)]
        for dropped in range(1 << len(lost))
    ]
    return [order for some in chosen for order in permutations(some)]


def _fits(order: tuple[Call, ...]) -> bool:
    stored: bytes | None = None
    for index, call in enumerate(order):
        if any(later.returned is not None and later.returned < call.began for later in order[index + 1 :]):
            return False
        is_possible, stored = (
            call.after(stored) if call.kind is not Kind.GET or call.returned is not None else (True, stored)
        )
        if not is_possible:
            return False
    return True


def test_a_read_of_an_older_value_is_found() -> None:
    history = [
        Call(Kind.PUT, 0, 1, b"1"),
        Call(Kind.PUT, 2, 3, b"2"),
        Call(Kind.GET, 4, 5, b"1"),
    ]
    assert not is_linearizable(history)
    assert is_linearizable([*history[:1], Call(Kind.PUT, 2, 9, b"2"), history[2]]), "both were in progress"


def test_what_was_done_although_its_answer_was_lost_may_be_seen() -> None:
    lost = Call(Kind.PUT, 0, None, b"1")
    assert is_linearizable([lost, Call(Kind.GET, 5, 6, b"1")])
    assert is_linearizable([lost, Call(Kind.GET, 5, 6, None)])
    assert not is_linearizable([lost, Call(Kind.GET, 5, 6, b"1"), Call(Kind.GET, 7, 8, None)])
