"""etcd's history, and its compaction to the newest revision."""

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx

_EVERY_S = 0.1
_WRITES = 10
#: outside of any cluster's keys: only the revision is of interest
_KEY = base64.b64encode(b"/elsewhere").decode()


class History:
    """Of one etcd, over its HTTP gateway."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=f"{url}/v3/kv", timeout=5.0, trust_env=False)
        # etcd refuses to forget what it has forgotten: of two at once, the one that wrote first may come last
        self._one_at_a_time = threading.Lock()

    def forget(self) -> None:
        """Write a little, then forget everything before: a watch that is not connected now cannot continue."""
        with self._one_at_a_time:
            for _ in range(_WRITES):
                newest = self._ask("put", {"key": _KEY, "value": _KEY})["header"]["revision"]
            self._ask("compaction", {"revision": newest})

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """Again and again, for as long as the block takes; while etcd is away there is nothing to forget."""
        over = threading.Event()

        def work() -> None:
            while not over.wait(_EVERY_S):
                with suppress(httpx.HTTPError):
                    self.forget()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def close(self) -> None:
        self._http.close()

    def _ask(self, call: str, body: dict[str, str]) -> dict[str, dict[str, str]]:
        answer = self._http.post(call, json=body).raise_for_status()
        found: dict[str, dict[str, str]] = answer.json()
        return found
