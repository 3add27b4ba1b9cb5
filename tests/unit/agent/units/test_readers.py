"""Numbers of readers: one for each, the same when asked again, and gone only with whom it belongs to."""

from collections.abc import Sequence

from agent.units import readers
from agent.units.readers import claim, release
from reactor.keys import ReaderKey
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Compare, Operation, TxnResult


async def test_everybody_has_a_number_of_their_own_and_keeps_it() -> None:
    client = MemoryClient(MemoryEtcd())
    numbers = [await claim(client, "c", f"default/f{i}/1") for i in range(50)]
    assert len(set(numbers)) == 50
    assert [await claim(client, "c", f"default/f{i}/1") for i in range(50)] == numbers
    await release(client, "c", "default/f7/1")
    await release(client, "c", "default/f7/1")
    assert await client.get(str(ReaderKey("c", numbers[7]))) is None
    assert [await claim(client, "c", f"default/f{i}/1") for i in range(50)] == numbers


async def test_who_has_it_is_never_the_next_one_of_the_name() -> None:
    client = MemoryClient(MemoryEtcd())
    number = await claim(client, "c", "default/f/2")
    await release(client, "c", "default/f/1")
    assert await client.get(str(ReaderKey("c", number))) is not None


class Overtaken(MemoryClient):
    """Between the look and what is done about it somebody else gives the number back, and a third one takes it."""

    other = ""

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        if self.other:
            other, self.other = self.other, ""
            await self.delete(compares[0].key)
            await self.put(compares[0].key, other.encode())
        return await super().txn(compares, operations)


async def test_a_number_that_has_changed_hands_meanwhile_stays() -> None:
    client = Overtaken(MemoryEtcd())
    number = await claim(client, "c", "default/f/1")
    client.other = "default/g/1"
    await release(client, "c", "default/f/1")
    item = await client.get(str(ReaderKey("c", number)))
    assert item is not None
    assert item.value == b"default/g/1"
    assert await claim(client, "c", "default/f/1") == readers._next(number)
