"""The image's entry point: a command of Weir, or the process that a driver on Kubernetes has asked a pod for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from capture.embedded import places
from tests.patience import patient

ENTRYPOINT = Path(__file__).parents[4] / "deploy" / "entrypoint.sh"
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": PATH, **variables}
    command = [str(ENTRYPOINT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patient(60.0))


@pytest.mark.matrix
@pytest.mark.spark
def test_a_pod_of_spark_runs_its_executor() -> None:
    """As far as the driver, which is not there."""
    port = places.free_port()
    ended = run(
        "executor",
        SPARK_DRIVER_URL=f"spark://CoarseGrainedScheduler@127.0.0.1:{port}",
        SPARK_EXECUTOR_ID="1",
        SPARK_EXECUTOR_CORES="1",
        SPARK_EXECUTOR_MEMORY="128m",
        SPARK_APPLICATION_ID="spark-test",
        SPARK_EXECUTOR_POD_IP="127.0.0.1",
        SPARK_EXECUTOR_POD_NAME="pod",
        SPARK_RESOURCE_PROFILE_ID="0",
        SPARK_JAVA_OPT_0="-Dtest.text=two words",
        SPARK_JAVA_OPT_1="--add-opens=java.base/java.lang=ALL-UNNAMED",
    )
    assert ended.returncode != 0
    assert "KubernetesExecutorBackend" in ended.stderr
    assert f"Connection refused: /127.0.0.1:{port}" in ended.stderr


def test_an_executor_without_a_driver_is_refused() -> None:
    ended = run("executor")
    assert ended.returncode != 0
    assert "SPARK_DRIVER_URL: is set by the driver of a capture" in ended.stderr


def test_everything_else_is_a_command() -> None:
    ended = run("capture", "list", "--server", "http://127.0.0.1:1")
    assert ended.returncode == 1
    assert "127.0.0.1:1" in ended.stderr
