"""Three etcd members: the one in use dies, and nobody loses or doubles anything."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from capture.embedded import etcd as embedded
from capture.embedded import places
from reactor import keys
from reactor.effects import Commit, Effect
from reactor.membership.session import open_session
from reactor.patches import Patch, PatchGroup
from reactor.state import ClusterState
from reactor.store.etcd import connect
from reactor.worker.loop import ReactorWorker
from tests.patience import HANG_S

KEY = f"{keys.cluster_prefix('c')}test/n"

Members = dict[str, "subprocess.Popen[bytes]"]


@contextmanager
def three_members(directory: Path) -> Iterator[Members]:
    """Running members by client URL."""
    urls = [(_url(), _url()) for _ in range(3)]
    cluster = ",".join(f"m{number}={peer}" for number, (_, peer) in enumerate(urls))
    members: Members = {}
    try:
        for number, (client, peer) in enumerate(urls):
            command: list[str | Path] = [embedded.binary(), "--name", f"m{number}", "--initial-cluster", cluster]
            command += ["--data-dir", directory / f"m{number}", "--unsafe-no-fsync", "--log-level", "error"]
            command += ["--listen-client-urls", client, "--advertise-client-urls", client]
            command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            members[client] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        yield members
    finally:
        for process in members.values():
            process.kill()
            process.wait()


def _url() -> str:
    return f"http://127.0.0.1:{places.free_port()}"


class Counter:
    """Adds one per tick; sets ``reached`` when the count is at ``goal``."""

    def __init__(self) -> None:
        self.goal, self.reached, self.ticks = 0, anyio.Event(), 0

    def aim(self, more: int) -> anyio.Event:
        self.goal, self.reached = self.ticks + more, anyio.Event()
        return self.reached

    def tick(self, state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
        seen = int(state.raw[KEY].value) if KEY in state.raw else 0
        assert seen == self.ticks, "an increment was lost or done twice"
        if seen >= self.goal:
            self.reached.set()
        self.ticks += 1
        return [Commit(PatchGroup((Patch(KEY, lambda old: b"%d" % (int(old or b"0") + 1)),)))]


@pytest.mark.timeout(120)
async def test_work_continues_when_the_member_in_use_dies(tmp_path: Path) -> None:
    with three_members(tmp_path) as members:
        client = await connect(list(members), timeout_s=30)
        counter = Counter()
        try:
            async with open_session(client, ttl_s=30) as session, anyio.create_task_group() as tasks:
                state = ClusterState("c")
                worker = ReactorWorker(
                    client, counter, state=state, session=session, perform=lambda _effect: None, interval_s=0.002
                )
                tasks.start_soon(worker.run)
                with anyio.fail_after(HANG_S):
                    await counter.aim(50).wait()
                in_use = client._endpoints._connections[client._endpoints._current].endpoint
                members[in_use].kill()
                with anyio.fail_after(HANG_S):
                    await counter.aim(50).wait()
                assert client._endpoints._connections[client._endpoints._current].endpoint != in_use
                session.check()
                tasks.cancel_scope.cancel()
        finally:
            await client.close()
