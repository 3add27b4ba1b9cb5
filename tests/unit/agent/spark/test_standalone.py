"""Cores are shared by the captures there are to be, and the reason is reported to one that gets none."""

from agent.spark.standalone import Application, Standalone


def test_each_capture_has_its_part_and_one_core_at_least() -> None:
    cluster = Standalone(workers=2, cores=8, worker_memory_mib=1024)
    assert [cluster.shared(captures) for captures in (1, 2, 3, 20)] == [8, 4, 2, 1]


def test_what_an_application_lacks() -> None:
    first, ours = Application("app-1", "weir", 2), Application("app-2", "weir", 2)
    assert Standalone(0, 0, 0).explain_wait("app-2") == "no worker has registered with the master"
    assert Standalone(2, 2, 512, (first, ours)).explain_wait("app-2") == (
        "all 2 cores are taken (weir may have 2); stop one, or give it less (spark.cores.max)"
    )
    greedy = Application("app-1", "shell", 0)
    assert "all 4 cores are taken (shell may have all)" in Standalone(2, 4, 512, (greedy, ours)).explain_wait("app-2")
    assert "the largest has 512 MiB" in Standalone(2, 4, 512, (first, ours)).explain_wait("app-2")
