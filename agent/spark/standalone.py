"""Standalone cluster: queries its master for workers and applications through our JVM, as Spark's own pages do.

Spark has no public API for this (the master's web page uses another port, and may be disabled), so the answer is
optional: it is used to share cores, and to explain what a capture waits for.
"""

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog
from py4j.protocol import Py4JError

from agent.errors import OwnFaultError
from agent.spark.masters import addresses

_ANSWER_S: Final = 5
#: workers register within seconds of a master's start; on a busy machine it may take half a minute
_WORKERS_S: Final = 30.0
_POLL_S: Final = 0.5
#: queries to a master that does not answer
_ATTEMPTS: Final = 3
#: of a master that closes the connection during the handshake: Spark reports no more than that
_REFUSAL: Final = re.compile(r"Expected SaslMessage|Outbox is stopped|Connection from \S+ closed")
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Application:
    """An application of the cluster. ``cores``: its maximum, 0 if unlimited; the master does not publish how many it
    has."""

    id: str
    name: str
    cores: int


@dataclass(frozen=True, slots=True)
class Standalone:
    """The cluster's state. ``worker_memory_mib``: memory of the largest worker."""

    workers: int
    cores: int
    worker_memory_mib: int
    applications: tuple[Application, ...] = ()

    def explain_wait(self, application: str) -> str:
        """Return why ``application`` gets no executor, as far as known."""
        if not self.workers:
            return "no worker has registered with the master"
        others = [other for other in self.applications if other.id != application]
        if sum(other.cores or self.cores for other in others) >= self.cores:
            holders = ", ".join(f"{other.name} may have {other.cores or 'all'}" for other in others)
            return f"all {self.cores} cores are taken ({holders}); stop one, or give it less (spark.cores.max)"
        return (
            f"no worker has room for an executor (the largest has {self.worker_memory_mib} MiB); wait for another "
            "application's end, or set spark.executor.memory"
        )


def share(cores: int, captures: int) -> int:
    """Return each capture's share; one core at least."""
    return max(1, cores // max(captures, 1))


def await_cores(
    query: Callable[[], Standalone | None],
    *,
    expected: int,
    stopping: threading.Event,
    report: Callable[[str], None],
) -> Standalone | None:
    """Return the cluster's state when its workers have ``expected`` cores, at least one; after half a minute, or when
    ``stopping``, as it is then. ``report`` receives what is being waited for. None if no master answers.

    A share of fewer cores, as while a cluster starts, would stay one; and an application that starts before all
    workers, without a share, would take every core of theirs.

    :raises OwnFaultError: see ``query``.
    """
    ends, unanswered = time.monotonic() + _WORKERS_S, 0
    while True:
        found = query()
        unanswered = 0 if found else unanswered + 1
        if found is not None and found.cores >= max(1, expected):
            return found
        if unanswered == _ATTEMPTS or time.monotonic() >= ends:
            return found
        cores = found.cores if found else "an unknown number of"
        report(f"waits for workers of the Spark cluster, which have {cores} cores")
        if stopping.wait(_POLL_S):
            return found


def query(jvm: Any, master: str, settings: Mapping[str, str]) -> Standalone | None:
    """Return the state published by the cluster's leading master; None if none answers.

    :raises OwnFaultError: a master closes the connection, which it does if the settings differ from its own.
    """
    conf = jvm.org.apache.spark.SparkConf(False)
    for key, value in settings.items():
        if key.startswith(("spark.authenticate", "spark.network", "spark.ssl", "spark.rpc")):
            conf.set(key, value)
    conf.set("spark.rpc.lookupTimeout", f"{_ANSWER_S}s").set("spark.rpc.askTimeout", f"{_ANSWER_S}s")
    try:
        security = jvm.org.apache.spark.SecurityManager(conf, jvm.scala.Option.empty(), None)
        client = jvm.org.apache.spark.rpc.RpcEnv.create("weir", "127.0.0.1", 0, conf, security, True)
    except Py4JError as error:  # a Spark version with another API
        _log.info("the standalone cluster cannot be asked", reason=str(error).splitlines()[:1])
        return None
    try:
        for host, port in addresses(master):
            if (found := _query_one(jvm, client, host, port)) is not None:
                return found
    finally:
        client.shutdown()
    return None


def _query_one(jvm: Any, client: Any, host: str, port: int) -> Standalone | None:
    try:
        reference = client.setupEndpointRef(jvm.org.apache.spark.rpc.RpcAddress(host, port), "Master")
        question = getattr(getattr(jvm.org.apache.spark.deploy, "DeployMessages$RequestMasterState$"), "MODULE$")
        answer = reference.askSync(question, jvm.scala.reflect.ClassTag.Any())
        if answer.status().toString() != "ALIVE":
            return None  # not the leader
        workers = list(answer.workers())
        return Standalone(
            workers=len(workers),
            cores=sum(worker.cores() for worker in workers),
            worker_memory_mib=max((worker.memory() for worker in workers), default=0),
            applications=tuple(_application(app) for app in answer.activeApps()),
        )
    except Py4JError as error:
        text = str(error)
        if _REFUSAL.search(text):
            raise OwnFaultError(
                f"the Spark master at {host}:{port} closes the connection; give [spark] the cluster's settings: "
                "spark.authenticate, spark.authenticate.secret, spark.network.crypto.enabled"
            ) from error
        _log.debug("a master does not answer", host=host, port=port, reason=text.splitlines()[:1])
        return None


def _application(app: Any) -> Application:
    wanted = app.desc().maxCores()
    return Application(app.id(), app.desc().name(), int(wanted.get()) if wanted.isDefined() else 0)
