"""Three captures with mutual TLS in network namespaces are attacked from a fourth one.

A changefeed flows meanwhile, every node's certificate is renewed, and the cluster's secret key is changed. Nothing is
adopted, nobody leaves, lag and memory stay within limits, and each attempt is named in the log once. A capture that is
started again afterwards is known by its new certificate, and opens what is sealed with the new key alone.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from capture.api.access import TokenAsked
from capture.api.client import Client
from capture.security.certificate_files import CertificateFiles
from capture.security.key_file import add_key
from capture.security.secrets import fingerprint_of
from reactor.errors import WeirError
from reactor.records.access import Role
from tests.acceptance import network
from tests.acceptance.bed import Bed, Process
from tests.acceptance.network import Host, Network

pytestmark = [
    pytest.mark.minutes(4),
    pytest.mark.acceptance,
    pytest.mark.matrix,
    pytest.mark.timeout(280),
    pytest.mark.skipif(bool(network.missing()), reason=network.missing()),
]

NAMES = ("capture-0", "capture-1", "capture-2")
MALLORY = "mallory"
ROOT = Path(__file__).parents[3]
MORE_BYTES_MAX = 64 << 20
LAG_S_MAX = 3.0
_FEED = "bank"

T = TypeVar("T")


class SecureBed(Bed):
    """Captures have certificates of one authority."""

    def __init__(self, directory: Path, net: Network) -> None:
        super().__init__(directory, captures=len(NAMES), network=net)
        self.ours, self.theirs = (CertificateFiles(directory / name) for name in ("ours", "theirs"))
        self.ours.init("default")
        self.theirs.init("default")
        for number in range(len(NAMES)):
            self.ours.issue(f"node-{number}", [net.hosts[NAMES[number]].address], days=365)
        self.ours.issue(MALLORY, [], days=365)
        self.theirs.issue("node-0", [], days=365)

    def interpreter(self, process: Process) -> list[str]:
        certificate, key = self.ours.files(f"node-{process.name[-1]}")
        files = {"CA": self.directory / "ours" / "ca.pem", "CERT": certificate, "KEY": key}
        variables = [f"WEIR_TLS_{name}_FILE={file}" for name, file in files.items()]
        return ["env", *variables, *super().interpreter(process)]

    def ask(self, question: Callable[[Client], T], *, timeout_s: float = 10.0) -> T:
        error: WeirError | None = None
        for process in self.processes:
            try:
                with self.client(process, timeout_s) as client:
                    return question(client)
            except WeirError as refused:
                error = refused
        assert error is not None
        raise error

    def client(self, process: Process, timeout_s: float = 10.0) -> Client:
        ca_file = str(self.directory / "ours" / "ca.pem")
        url = f"https://{process.address}"
        return Client(url, token=self.token_of(process), ca_file=ca_file, timeout_s=timeout_s)

    def refusals(self) -> list[dict[str, str]]:
        lines = [
            line for one in self.processes for line in (self.directory / f"{one.name}.log").read_text().split("\n")
        ]
        return [json.loads(line) for line in lines if '"connection refused"' in line]


@contextmanager
def ear(net: Network) -> Iterator[Callable[[], dict[str, str]]]:
    """Hears what members send to each other; returns what ``tests.acceptance.ear`` says."""
    command = [*net.inside, sys.executable, "-m", "tests.acceptance.ear"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hearing:
        assert hearing.stdout is not None
        assert hearing.stdout.readline() == "hears\n"
        try:
            yield lambda: json.loads(hearing.communicate(timeout=30)[0])
        finally:
            hearing.kill()


@contextmanager
def attack(host: Host, bed: SecureBed, loot: dict[str, str]) -> Iterator[dict[str, str]]:
    """It continues while the block does, and fills in what was answered at its end."""
    file = bed.directory / "loot.json"
    file.write_text(json.dumps(loot))
    command = [*host.inside, sys.executable, "-m", "tests.acceptance.attacker", str(file)]
    answers: dict[str, str] = {}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as attacking:
        try:
            yield answers
            output, _ = attacking.communicate(timeout=150)
        finally:
            attacking.kill()
    assert attacking.returncode == 0
    answers.update(json.loads(line) for line in output.splitlines())


@contextmanager
def lags(bed: SecureBed) -> Iterator[list[float]]:
    """Those of the changefeed while the block runs."""
    found: list[float] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.5):
            found.append(bed.query(_FEED).lag_seconds or 0.0)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        is_over.set()
        looking.join()


def change_keys(bed: SecureBed) -> str:
    """The certificates' and the cluster's; the fingerprint of the new one, which is the only one left."""
    for number in range(len(NAMES)):
        bed.ours.renew(f"node-{number}", days=365)
    file = bed.directory / "secret.key"
    new = add_key(file)
    bed.wait_for("the key is changed", lambda: bed.ask(lambda client: client.rotate_secret()).done)
    file.write_bytes(new)
    return fingerprint_of(new)


def test_nothing_of_an_attack_gets_in(tmp_path: Path) -> None:
    with Network((*NAMES, MALLORY)) as net, ear(net) as heard, SecureBed(tmp_path, net) as bed:
        members = {view.id: view for view in bed.captures()}
        owner = next(view for view in members.values() if view.is_owner)
        victim = next(view for view in members.values() if not view.is_owner)
        last = next(one for one in bed.processes if one.address not in (owner.address, victim.address))
        another = f"node-{last.name[-1]}"
        made = bed.ask(lambda client: client.create_token(TokenAsked(role=Role.ADMIN, name="revoked")))
        bed.ask(lambda client: client.revoke_token(made.id))
        loot = {
            "peer": victim.peer_address,
            "api": victim.address,
            "owner": owner.id,
            "receiver": victim.id,
            "another": another,
            "ours": str(tmp_path / "ours"),
            "theirs": str(tmp_path / "theirs"),
            "token": bed.token_of(bed.processes[0]),
            "revoked": made.token or "",
            "heard": heard()[victim.peer_address],
        }
        assert bytes.fromhex(loot["heard"])[:1] == b"\x16", "TLS begins so"
        bed.create_feed(_FEED)
        with bed.load(rate=20):
            bed.wait_for("it follows", lambda: (bed.query(_FEED).lag_seconds or 9.0) < 1.0)
            before = {one.name: psutil.Process(one.pid).memory_info().rss for one in bed.processes}
            with lags(bed) as seen, attack(net.hosts[MALLORY], bed, loot) as answers:
                key = change_keys(bed)
            assert max(seen) < LAG_S_MAX, seen
            for one in bed.processes:
                assert psutil.Process(one.pid).memory_info().rss - before[one.name] < MORE_BYTES_MAX
            assert {view.id for view in bed.captures()} == set(members), "nobody came, nobody went"
            assert next(view.id for view in bed.captures() if view.is_owner) == owner.id
            check_answers(answers)
            causes = [line["cause"] for line in bed.refusals()]
            for part in (*WRONG, f"its certificate is node {another}'s"):
                assert len([cause for cause in causes if part in cause]) == 1, (part, causes)
            check_new_keys(bed, key)


def check_new_keys(bed: SecureBed, fingerprint: str) -> None:
    """Old connections and old sealed URIs are no help to a capture that has just been started."""
    again = bed.by_id(bed.query(_FEED).worker)
    bed.kill(again)
    bed.start(again)
    bed.wait_for("it is a member again", lambda: len(bed.captures()) == len(NAMES))
    ts = bed.last_ts()
    bed.wait_for("the changefeed flows", lambda: bed.covers(_FEED, ts))
    log = (bed.directory / f"{again.name}.log").read_text()
    assert fingerprint in log, "keys are taken over"
    assert (bed.directory / "secret.key").read_bytes().count(b"=") == 1


def check_answers(answers: dict[str, str]) -> None:
    assert "Welcome" not in answers.values()
    assert answers["no_token"] == answers["revoked_token"] == "HTTP/1.1 401 Unauthorized"
    assert answers["rebound_name"].startswith("HTTP/1.1 403")
    assert answers["endless"] == "closed"
    assert answers["idle"] == "1000 of 1000 closed"
    assert answers["replayed_hello"] in ("closed", "ConnectionResetError", "BrokenPipeError")
    page = answers["page_in_a_browser"]
    assert page == "no browser" or set(page.split(", ")) <= {"blocked", "unreadable", "nothing happened"}, page


WRONG = (
    "it came without TLS",
    "its certificate is not of this cluster's authority",
    "its certificate is node mallory's",
    "too many connections do not say who they are",
)
