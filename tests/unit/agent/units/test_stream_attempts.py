"""Stream attempts: what ends whoever reads a source ends two captures, then the changefeed stops; nothing else does."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from agent.errors import StreamEndsCapturesError
from agent.units.stream_attempts import StreamAttempts
from owner.feed.state import is_fatal
from reactor import keys
from reactor.errors import StoreUnreachableError
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.records.attempts import StreamAttempt
from reactor.records.capture import CaptureInfo
from reactor.records.changefeed import RunningError
from reactor.records.log_head import LogHead
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Compare, Operation, Target, TxnResult

FEED = ChangefeedId("f")
KEY = keys.StreamAttemptKey("c", "default", FEED, "main")
AT = LogHead(resolved_ts=Ts(10), position="0/A")


class Client(MemoryClient):
    lost_answers = 0

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        done = await super().txn(compares, operations)
        if self.lost_answers:
            self.lost_answers -= 1
            raise StoreUnreachableError("no answer in time; try again")
        return done


class Cluster:
    def __init__(self) -> None:
        self.client = Client(MemoryEtcd())

    async def join(self, name: str, *, process: str = "") -> None:
        info = CaptureInfo(
            id=CaptureId(name),
            address="h:1",
            peer_address="h:2",
            version="1",
            cluster_id="c",
            started_at=0.0,
            process=process or f"process of {name}",
        )
        await self.client.put(str(keys.CaptureKey("c", CaptureId(name))), info.encode())

    async def end(self, name: str) -> None:
        await self.client.delete(str(keys.CaptureKey("c", CaptureId(name))))

    async def begin(self, name: str, *, at: LogHead = AT, epoch: int = 1) -> StreamAttempts:
        guard = Compare("/info", Target.CREATE_REVISION, 0)
        attempts = StreamAttempts(self.client, KEY, CaptureId(name), epoch, guard)
        await attempts.begin(at)
        return attempts

    async def begin_and_end(self, name: str, *, at: LogHead = AT, epoch: int = 1, is_quiet: bool = False) -> None:
        """A process that is killed while it reads."""
        await self.join(name)
        attempts = await self.begin(name, at=at, epoch=epoch)
        if is_quiet:
            await attempts.note_alive(at, is_quiet=True)
        await self.end(name)

    async def noted(self) -> StreamAttempt | None:
        item = await self.client.get(str(KEY))
        return StreamAttempt.decode(item.value, key=item.key) if item else None

    @asynccontextmanager
    async def refused(self) -> AsyncIterator[None]:
        with pytest.raises(StreamEndsCapturesError) as refused:
            yield
        text = str(refused.value)
        assert "0/A" in text
        assert "resume" in text
        assert "\n" not in text
        error = RunningError(code=refused.value.code, message=text, retryable=refused.value.retryable)
        assert is_fatal(error)


async def test_a_fourth_capture_does_not_read_where_three_have_ended() -> None:
    cluster = Cluster()
    for name in "abc":
        await cluster.begin_and_end(name)
    await cluster.join("d")
    async with cluster.refused():
        await cluster.begin("d")
    async with cluster.refused():
        await cluster.begin("d")  # any worker, until the owner has read the error


async def test_the_end_of_one_that_had_settled_is_not_counted() -> None:
    cluster = Cluster()
    for names in ("abc", "def"):
        await cluster.begin_and_end(names[0], is_quiet=True)
        await cluster.begin_and_end(names[1])
        await cluster.begin_and_end(names[2])
        await cluster.begin_and_end("x", is_quiet=True)


async def test_ends_of_captures_that_found_the_source_quiet_are_no_evidence() -> None:
    cluster = Cluster()
    for name in "abcdef":
        await cluster.begin_and_end(name, is_quiet=True)
    await cluster.join("g")
    await cluster.begin("g")


async def test_progress_between_two_ends_clears_the_first() -> None:
    cluster = Cluster()
    await cluster.begin_and_end("a")
    await cluster.join("b")
    attempts = await cluster.begin("b")
    further = LogHead(resolved_ts=Ts(20), position="0/B")
    await attempts.note_alive(further, is_quiet=False)
    await cluster.end("b")
    await cluster.begin_and_end("c", at=further)
    noted = await cluster.noted()
    assert noted is not None
    assert noted.ended == ()


async def test_a_worker_that_is_moved_or_fails_is_no_end_and_does_not_hide_one() -> None:
    cluster = Cluster()
    await cluster.begin_and_end("a")
    await cluster.join("b")
    for _ in range(3):
        await (await cluster.begin("b")).close()
    await cluster.begin_and_end("c")
    await cluster.begin_and_end("d")
    async with cluster.refused():
        await cluster.begin("b")


async def test_a_process_that_lost_its_session_has_not_ended() -> None:
    cluster = Cluster()
    for name in ("a", "b", "c", "d"):
        await cluster.join(name, process="one")
        await cluster.begin(name)
        await cluster.end(name)


async def test_after_a_resume_it_is_tried_again() -> None:
    cluster = Cluster()
    for epoch in (1, 2):
        for name in "abc":
            await cluster.begin_and_end(name, epoch=epoch)
        await cluster.join("d")
        async with cluster.refused():
            await cluster.begin("d", epoch=epoch)


async def test_a_lost_answer_is_no_end() -> None:
    cluster = Cluster()
    await cluster.join("a")
    cluster.client.lost_answers = 3
    await cluster.begin("a")
    noted = await cluster.noted()
    assert noted is not None
    assert (noted.capture, noted.ended) == ("a", ())
