"""Cores are shared by the captures there are to be, and the reason is reported to one that gets none."""

import threading

import pytest

from agent.spark.standalone import Application, Standalone, await_cores, share


def test_each_capture_has_its_part_and_one_core_at_least() -> None:
    assert [share(8, captures) for captures in (1, 2, 3, 20)] == [8, 4, 2, 1]


class StartingCluster(threading.Event):
    """Nobody stops it. Its master answers, or does not, in this order, and repeats the last answer. Waiting takes no
    time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *cores: int | None) -> None:
        super().__init__()
        self.now, self._cores = 0.0, list(cores)
        monkeypatch.setattr("agent.spark.standalone.time.monotonic", lambda: self.now)

    def query(self) -> Standalone | None:
        cores = self._cores.pop(0) if len(self._cores) > 1 else self._cores[0]
        return None if cores is None else Standalone(cores, cores, 1024)

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += timeout
        return False


@pytest.mark.parametrize(
    ("answers", "expected", "cores", "seconds"),
    [
        ((8,), 0, 8, 0.0),  # a cluster that runs
        ((0, 0, 2), 0, 2, 1.0),  # its workers come after the master
        ((0, 2, 4, 8), 8, 8, 1.5),  # it had eight before it was started again
        ((4,), 8, 4, 30.0),  # half of it is lost
        ((0,), 0, 0, 30.0),
        ((None, 0, None, None, 4), 0, 4, 2.0),  # a busy master
        ((None,), 0, None, 1.0),
    ],
)
def test_an_application_begins_when_the_workers_have_come(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[int | None, ...], expected: int, cores: int | None, seconds: float
) -> None:
    cluster = StartingCluster(monkeypatch, *answers)
    reports: list[str] = []
    found = await_cores(cluster.query, expected=expected, stopping=cluster, report=reports.append)
    assert (found.cores if found else None, cluster.now) == (cores, seconds)
    assert len(reports) == seconds / 0.5


def test_what_an_application_lacks() -> None:
    first, ours = Application("app-1", "weir", 2), Application("app-2", "weir", 2)
    assert Standalone(0, 0, 0).explain_wait("app-2") == "no worker has registered with the master"
    assert Standalone(2, 2, 512, (first, ours)).explain_wait("app-2") == (
        "all 2 cores are taken (weir may have 2); stop one, or give it less (spark.cores.max)"
    )
    greedy = Application("app-1", "shell", 0)
    assert "all 4 cores are taken (shell may have all)" in Standalone(2, 4, 512, (greedy, ours)).explain_wait("app-2")
    assert "the largest has 512 MiB" in Standalone(2, 4, 512, (first, ours)).explain_wait("app-2")
