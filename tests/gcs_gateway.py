"""GCS gateway: Cloud Storage's XML API over ``fake-gcs-server``, a server of its JSON API.

The server answers reads, lists and deletes of the XML API itself. Writes, conditions, and lists from a name on, which
it lacks, are made here from what it has.
"""

import json
import re
import threading
from html import unescape
from urllib.parse import parse_qs, quote, unquote, urlsplit

from benchmarks.support.store_proxy import Answer, Request, StoreProxy

_CONDITION = "x-goog-if-generation-match"
_SOURCE = "x-goog-copy-source"
_LISTED = re.compile(rb"<Contents><Key>(.*?)</Key>.*?</Contents>", re.DOTALL)
_HOST = "127.0.0.1"


class GcsGateway(StoreProxy):
    """``keeps_conditions``: whether a write with a condition is refused if the condition is not met."""

    def __init__(self, server_port: int) -> None:
        super().__init__(server_port)
        self.keeps_conditions = True
        self._writing = threading.Lock()

    def forward(self, request: Request) -> Answer:
        if request.method == "PUT":
            return self._put(request)
        answer = super().forward(request)
        tag = answer.headers.get("Etag")
        if answer.status == 200 and tag is not None and request.header("If-None-Match") == tag:
            return Answer(304, {"Etag": tag})
        return _after(answer, parse_qs(urlsplit(request.path).query).get("start-after", [""])[0])

    def _put(self, request: Request) -> Answer:
        bucket, _, name = urlsplit(request.path).path.lstrip("/").partition("/")
        with self._writing:
            condition = request.header(_CONDITION)
            if condition is not None and self.keeps_conditions and self._generation(request.path) != condition:
                return Answer(412)
            answer = super().forward(self._write_of(request, bucket, quote(unquote(name), safe="")))
        if answer.status != 200:
            return answer
        stored = json.loads(answer.body)
        stored = stored.get("resource", stored)
        return Answer(200, {"ETag": f'"{stored["etag"]}"', "x-goog-generation": stored["generation"]})

    @staticmethod
    def _write_of(request: Request, bucket: str, name: str) -> Request:
        source = request.header(_SOURCE)
        headers = {"Host": _HOST, "Content-Length": str(len(request.body))}
        if source is None:
            path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
            return Request("POST", path, headers, request.body)
        origin, _, original = source.lstrip("/").partition("/")
        copied = quote(unquote(original), safe="")
        return Request("POST", f"/storage/v1/b/{origin}/o/{copied}/rewriteTo/b/{bucket}/o/{name}", headers)

    def _generation(self, path: str) -> str:
        found = super().forward(Request("GET", path, {"Host": _HOST}))
        return found.headers.get("X-Goog-Generation", "0") if found.status == 200 else "0"


def _after(answer: Answer, name: str) -> Answer:
    """Return a list without what comes before ``name``, and without that itself."""
    if not name:
        return answer
    kept = _LISTED.sub(lambda each: each[0] if unescape(each[1].decode()) > name else b"", answer.body)
    return Answer(answer.status, answer.headers, kept)
