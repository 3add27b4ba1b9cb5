"""No wake-up is lost between looking and waiting, and who waits first goes first."""

import anyio
import pytest

from capture.messaging.wakeups import Signal, Turnstile

pytestmark = pytest.mark.looptime


async def test_a_signal_given_while_nobody_waits_is_remembered_once() -> None:
    signal = Signal()
    signal.set()
    signal.set()
    with anyio.fail_after(1):
        await signal.wait()
    with anyio.move_on_after(1) as waited:
        await signal.wait()
    assert waited.cancelled_caught


async def test_room_made_between_looking_and_waiting_lets_through() -> None:
    """The moment in which a wake-up is lost: no room is seen, room is made, and only then somebody waits for it."""
    looks: list[bool] = []

    def has_room() -> bool:
        if looks:
            return True
        looks.append(True)
        gate.recheck()
        return False

    gate = Turnstile(has_room)
    with anyio.fail_after(1):
        await gate.pass_through()


async def test_who_came_first_goes_first() -> None:
    room, passed = [0], list[int]()
    gate = Turnstile(lambda: room[0] > 0)

    async def come(number: int) -> None:
        await gate.pass_through()
        room[0] -= 1
        passed.append(number)

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(come, number)
        for _ in range(5):
            await anyio.sleep(1)
            room[0] += 1
            gate.recheck()
    assert passed == [0, 1, 2, 3, 4]
