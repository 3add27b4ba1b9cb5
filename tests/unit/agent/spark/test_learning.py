"""Learning of Spark's daemon from its workers, without Spark (see ``test_executor`` for the rest)."""

import os

from agent.spark import learning


def test_what_is_learned_starts_no_thread() -> None:
    """The daemon forks after it."""
    pid = os.fork()
    if pid == 0:
        before = _threads()
        for name in learning._learned():
            try:
                __import__(name)
            except ImportError:  # boto3 is not installed
                continue
        os._exit(0 if _threads() == before else 1)
    assert os.waitpid(pid, 0)[1] == 0


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))
