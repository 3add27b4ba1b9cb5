"""Tokens at two captures: a forwarded request keeps name and role, and a revoked token is refused by both."""

import httpx
import pytest

from tests.acceptance.bed import Bed, Process

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(200)]

PAUSE = "/api/v2/changefeeds/nobody/pause"


def ask(process: Process, token: str, method: str, path: str, **json: object) -> httpx.Response:
    url = f"http://{process.address}{path}"
    return httpx.request(method, url, json=json or None, headers={"authorization": f"Bearer {token}"}, timeout=30)


@pytest.mark.matrix
def test_a_token_is_the_same_person_at_every_capture(bed: Bed) -> None:
    first, second = bed.processes
    own = bed.token_of(first)
    assert ask(second, own, "GET", "/api/v2/tokens").status_code == 200, "a server's own token, at another server"
    made = ask(first, own, "POST", "/api/v2/tokens", role="operator", name="olga").json()
    token = made["token"]
    assert {ask(one, token, "POST", PAUSE).status_code for one in bed.processes} == {404}
    assert {ask(one, token, "GET", "/api/v2/audit").status_code for one in bed.processes} == {403}
    trail = [one for one in ask(first, own, "GET", "/api/v2/audit?limit=100").json() if one["path"] == PAUSE]
    assert [(one["name"], one["role"], one["token"], one["status"]) for one in trail] == [
        ("olga", "operator", made["id"], 404)
    ] * 2
    assert sorted(one["source"] for one in trail) == ["127.0.0.1", "127.0.0.1 by 127.0.0.1"], "one was forwarded"
    assert ask(second, own, "DELETE", f"/api/v2/tokens/{made['id']}").status_code == 200
    bed.wait_for("refused", lambda: {ask(one, token, "POST", PAUSE).status_code for one in bed.processes} == {401})
