"""A real standalone cluster: another user and Python, no checkout; cores; what is reported while there is no room."""

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from pyspark import cloudpickle

from agent.errors import JobError
from agent.spark.executor import SparkExecutor
from capture.embedded import EmbeddedSpark, children
from reactor.errors import WeirError
from tests.patience import patient

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

_WAIT_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def by_value() -> Iterator[None]:
    """Executors do not have this module."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Python of the same version with our dependencies and without our checkout, which any user may run."""
    found = shutil.which(f"python{sys.version_info[0]}.{sys.version_info[1]}", path="/usr/bin:/usr/local/bin")
    if children.unprivileged_user() is not None and found is None:
        pytest.skip("no Python of this version that another user may run")
    place = Path(f"/tmp/weir-test-python-{os.getpid()}")
    try:
        subprocess.run([found or sys.executable, "-m", "venv", "--without-pip", place], check=True)
        numba = find_spec("numba")
        assert numba is not None
        assert numba.origin is not None
        [site] = place.glob("lib/python*/site-packages")
        (site / "dependencies.pth").write_text(str(Path(numba.origin).parents[1]))
        yield place / "bin" / "python"
    finally:
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedSpark]:
    place = Path(f"/tmp/weir-test-spark-{os.getpid()}")
    try:
        with EmbeddedSpark(place, user=children.unprivileged_user()) as spark:
            yield spark
    finally:
        shutil.rmtree(place, ignore_errors=True)


def look(_: int) -> tuple[str, int, str, int, str]:
    """Where and who it is; kernels that had to be compiled; what forked it."""
    import agent
    from agent.sources.mysql.decode import decode

    assert decode
    named = [vars(module) for name, module in sys.modules.items() if name.startswith("agent.")]
    kernels = {id(one): one for names in named for one in names.values() if hasattr(one, "nopython_signatures")}
    misses = sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels.values())
    parent = Path(f"/proc/{os.getppid()}/cmdline").read_text()
    assert len(kernels) > 50
    return agent.__file__, os.getuid(), sys.executable, misses, parent


def refuse(_: int) -> None:
    os._exit(7)


@pytest.fixture(scope="module")
def executor(cluster: EmbeddedSpark, python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkExecutor]:
    settings = {"spark.pyspark.python": str(python), "spark.executor.memory": "512m"}
    executor = SparkExecutor(cluster.url, settings=settings, work_dir=tmp_path_factory.mktemp("spark"))
    executor.start()
    yield executor
    executor.stop()


@pytest.mark.matrix
def test_executors_run_what_is_sent_and_compile_nothing(executor: SparkExecutor, python: Path) -> None:
    for where, user, interpreter, misses, parent in executor.map(look, [0, 1, 2, 3], description="look"):
        assert "weir-packages-" in where
        assert user == (65534 if children.unprivileged_user() else os.getuid())
        assert interpreter == str(python)
        assert misses == 0
        assert "agent.spark.daemon" in parent


@pytest.mark.matrix
def test_what_kills_an_executor_s_worker_is_said(executor: SparkExecutor) -> None:
    with pytest.raises(JobError, match="Python worker exited unexpectedly") as caught:
        executor.map(refuse, [0], description="refusing")
    assert "collectToPython" not in str(caught.value)


@pytest.mark.matrix
def test_a_second_application_waits_and_says_for_what(cluster: EmbeddedSpark, executor: SparkExecutor) -> None:
    """The first one has all cores (it knew of no other capture)."""
    assert executor.map(abs, [-1], description="the first one works") == [1]
    texts: list[str] = []
    second = _Second(cluster.url, texts)
    second.until(lambda: any("all 2 cores are taken (weir may have 2)" in text for text in texts))
    began = time.monotonic()
    second.stop()
    assert time.monotonic() - began < patient(15)


@pytest.mark.matrix
def test_a_python_that_is_not_there_is_named(cluster: EmbeddedSpark, executor: SparkExecutor) -> None:
    executor.stop()
    code = _START.format(
        url=cluster.url, settings={"spark.pyspark.python": "/no/python", "spark.executor.memory": "512m"}
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert 'Cannot run program "/no/python"' in ran.stdout
    assert "spark.pyspark.python" in ran.stdout.splitlines()[-1]


@pytest.mark.matrix  # daily by a capture, in tests/acceptance/one_capture/test_bad_input.py
def test_a_master_that_is_not_there_is_reported_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        texts: list[str] = []
        began = time.monotonic()
        second = _Second(f"spark://127.0.0.1:{taken.getsockname()[1]}", texts)
        second.until(lambda: bool(texts))
        assert "no master answers at spark://127.0.0.1" in texts[0]
        second.stop()
        assert time.monotonic() - began < patient(20)


@pytest.mark.matrix  # a cluster of its own
def test_a_protected_cluster_takes_who_knows_its_secret_and_shows_it_to_nobody() -> None:
    place = Path(f"/tmp/weir-test-protected-{os.getpid()}")
    protected = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
    try:
        with EmbeddedSpark(place / "spark", workers=1, secret="geheim-1") as spark:
            for secret, answers in (("geheim-2", False), ("geheim-1", True)):
                settings = protected | {"spark.authenticate.secret": secret, "spark.driver.host": "127.0.0.1"}
                executor = SparkExecutor(spark.url, settings=settings, work_dir=place / f"work-{answers}")
                texts: list[str] = []
                started = threading.Thread(target=start_quietly, args=(executor, texts))
                started.start()
                if answers:
                    started.join(patient(_WAIT_S))
                    assert executor.map(abs, [-1], description="the first one works") == [1]
                    assert "geheim" not in commands_below()
                    ask_to_end_applications(spark, place / "spark")
                    assert executor.map(abs, [-2], description="it still works") == [2]
                else:
                    until_some(texts)
                    assert "geheim" not in " ".join(texts)
                executor.stop()
                started.join(patient(_WAIT_S))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def ask_to_end_applications(spark: EmbeddedSpark, directory: Path) -> None:
    """Ask the master's page, as any user of this machine can."""
    page = json.loads((directory / "master" / "state.json").read_text())["page"]
    running = [each["id"] for each in spark.master.view()["activeapps"]]
    assert running
    for id in running:
        for method in ("POST", "GET"):
            with closing(http.client.HTTPConnection("127.0.0.1", page, timeout=10)) as connection:
                connection.request(method, f"/app/kill/?id={id}&terminate=true")
                connection.getresponse().read()
    assert [each["id"] for each in spark.master.view()["activeapps"]] == running


def commands_below() -> str:
    """What others see of the processes that this one has started."""
    lines = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            lines.append(" ".join(child.cmdline()))
    assert any("java" in line for line in lines)
    return "\n".join(lines)


def start_quietly(executor: SparkExecutor, texts: list[str]) -> None:
    try:
        executor.start(texts.append)
    except WeirError as error:
        texts.append(str(error))


def until_some(texts: list[str]) -> None:
    deadline = time.monotonic() + patient(_WAIT_S)
    while not texts:
        assert time.monotonic() < deadline
        time.sleep(0.05)


_START = """
from agent.spark.executor import SparkExecutor
executor = SparkExecutor("{url}", settings={settings})
try:
    executor.start(lambda text: print(text, flush=True))
except Exception as error:
    print(error, flush=True)
finally:
    executor.stop()
"""


class _Second:
    """Another process that starts Spark, and what it reports."""

    def __init__(self, url: str, texts: list[str]) -> None:
        code = f"import signal, threading\n{_START.format(url=url, settings={'spark.executor.memory': '512m'})}"
        code = code.replace(
            "try:\n", "signal.signal(15, lambda *_: threading.Thread(target=executor.stop).start())\ntry:\n"
        )
        self._child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        self._texts = texts
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._texts.append(line)

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + patient(_WAIT_S)
        while not holds():
            assert time.monotonic() < deadline, self._texts
            assert self._child.poll() is None, self._texts
            time.sleep(0.05)

    def stop(self) -> None:
        self._child.terminate()
        self._child.wait(30)
        self._reader.join()
        assert self._child.stdout is not None
        self._child.stdout.close()
