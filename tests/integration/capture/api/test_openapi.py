"""The HTTP API as its own description says: requests that schemathesis makes from it, good and bad ones."""

import subprocess
import sys
from pathlib import Path

import pytest
from anyio import to_thread

from tests.unit.capture.api.test_forwarding import served
from tests.unit.capture.fakes import MemoryCluster

pytestmark = [pytest.mark.minutes(2), pytest.mark.matrix, pytest.mark.timeout(400)]

#: an answer outside the description, or an error of ours, is a finding
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.parametrize("token", ["secret", ""], ids=["admin", "without a token"])
async def test_no_request_breaks_the_api(token: str, tmp_path: Path) -> None:
    async with served(MemoryCluster()) as address:
        program = str(Path(sys.executable).with_name("schemathesis"))
        command = [program, "run", f"http://{address}/openapi.json"]
        options = ["--checks", CHECKS, "--max-examples", "20", "--seed", "1", "--no-color"]
        options += ["--header", f"Authorization: Bearer {token}"] if token else []
        done = await to_thread.run_sync(
            lambda: subprocess.run([*command, *options], capture_output=True, text=True, cwd=tmp_path)
        )
    assert done.returncode == 0, done.stdout[:6000]
