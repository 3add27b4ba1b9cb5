"""Forked processes: children that tests kill, forked from one server, which has imported what they need.

A process has only one such server, and what it imports is settled when its first child starts: all tests share it.
"""

from multiprocessing import get_context

PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "agent.sinks.iceberg.sink",
        "tests.contracts.sink_bed",
        "tests.integration.agent.sinks.iceberg.lake",
        "tests.integration.agent.sinks.steps",
        "tests.integration.agent.units.test_dump",
    ]
)
