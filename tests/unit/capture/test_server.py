"""A server's process: it leaves when a signal asks it to, and its modules are left out of garbage collections."""

import gc
import os
import signal
from pathlib import Path

import anyio

from capture.config import load_server_settings
from capture.server import serve
from tests.patience import HANG_S
from tests.unit.capture.fakes import MemoryMember


async def test_a_signal_asks_it_to_leave_and_what_it_started_with_is_no_garbage(tmp_path: Path) -> None:
    members, frozen = list[MemoryMember](), gc.get_freeze_count()
    settings = load_server_settings(etcd="http://127.0.0.1:1", addr="127.0.0.1:0", data_dir=tmp_path)

    def member(given: object) -> MemoryMember:
        members.append(MemoryMember(settings))
        return members[0]

    async def stop() -> None:
        while gc.get_freeze_count() <= frozen:  # noqa: ASYNC110 - it is ready then
            await anyio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            assert await serve(settings, member) == 0
    assert members[0].events == ["run", "leave", "ran"]
