"""The one line that people get of a Spark failure is its innermost cause, and where it was."""

import pytest

from agent.spark.causes import cause_of


class Gone(Exception):
    """As py4j gives it when the JVM has ended: its text is asked from there."""

    java_exception = object()

    def __str__(self) -> str:
        raise ConnectionRefusedError(111, "Connection refused")


def test_a_jvm_that_has_ended_says_nothing_more() -> None:
    assert cause_of(Gone()) == "its JVM has ended"


class Thrown(Exception):
    """As py4j gives it."""

    java_exception = object()


_ABORTED = (
    "An error occurred while calling o82.collectToPython.\n: org.apache.spark.SparkException: Job aborted due to stage "
    "failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 in stage 0.0 (TID 3) "
    "(10.0.0.7 executor 1): {}\nDriver stacktrace:\n"
    "\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)\n"
)


@pytest.mark.parametrize(
    ("thrown", "line"),
    [
        (
            'java.io.IOException: Cannot run program "/no/python": error=2, No such file or directory\n'
            "\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)\n"
            "Caused by: java.io.IOException: error=2, No such file or directory\n\t... 23 more",
            'IOException: Cannot run program "/no/python": error=2, No such file or directory (on 10.0.0.7 executor 1)'
            "; name the executors' Python with spark.pyspark.python",
        ),
        (
            "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n\tat a.b.C(C.scala:1)\n"
            "Caused by: java.io.EOFException\n\t... 20 more",
            "Python worker exited unexpectedly (crashed) (on 10.0.0.7 executor 1)",
        ),
        (
            "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
            '  File "worker.py", line 1, in main\n'
            "ModuleNotFoundError: No module named 'pyarrow'\n\tat x.Y(Y.scala:1)\n",
            "ModuleNotFoundError: No module named 'pyarrow' (on 10.0.0.7 executor 1); install Weir's dependencies "
            "in the executors' Python",
        ),
        (
            "java.lang.RuntimeException: Stream '/files/x.zip' was not found.\n\tat x.Y(Y.scala:1)",
            "Stream '/files/x.zip' was not found. (on 10.0.0.7 executor 1)",
        ),
        (
            "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: worker lost",
            "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: worker lost "
            "(on 10.0.0.7 executor 1)",
        ),
    ],
)
def test_cause_of_an_aborted_stage(thrown: str, line: str) -> None:
    assert cause_of(Thrown(_ABORTED.format(thrown))) == line


def test_cause_of_a_driver_that_failed() -> None:
    text = (
        "An error occurred while calling o1.x.\n: java.lang.IllegalStateException: Cannot call methods on a stopped "
        "SparkContext.\n\tat a.B(C.scala:1)\n"
    )
    assert cause_of(Thrown(text)) == "IllegalStateException: Cannot call methods on a stopped SparkContext."


def test_cause_of_a_package_that_spark_connect_lacks() -> None:
    text = "[PACKAGE_NOT_INSTALLED] grpcio-status >= 1.76.0 must be installed; however, it was not found."
    assert cause_of(ImportError(text)) == f"{text}; pip install 'weir-cdc[connect]'"


def test_cause_of_anything_else() -> None:
    assert cause_of(ConnectionRefusedError("refused\nsecond line")) == "refused"
    assert cause_of(ValueError()) == "ValueError"
