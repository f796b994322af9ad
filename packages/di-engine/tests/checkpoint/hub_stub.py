"""A hub on 127.0.0.1: the few addresses that a pinned download asks for."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

REPOSITORY = "someone/tiny-v41"
REVISION = "0123456789abcdef0123456789abcdef01234567"


class HubStub:
    """Serves files of one repository and records the requests.

    Attributes:
        files: Content by file name.
        requests: `METHOD path range` of every request.
        cut_after: Bytes after which the next transfer of a file breaks off, by file name.
        is_down: Whether every transfer is refused with status 500.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.requests: list[str] = []
        self.cut_after: dict[str, int] = {}
        self.is_down = False
        self.url = ""

    @contextmanager
    def serve(self) -> Iterator[HubStub]:
        """Runs the server on a free port."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self.answer(has_body=False)

            def do_GET(self) -> None:
                self.answer(has_body=True)

            def answer(self, has_body: bool) -> None:
                path = urlsplit(self.path).path
                stub.requests.append(f"{self.command} {path} {self.headers.get('Range', '')}")
                if path == f"/api/models/{REPOSITORY}/tree/{REVISION}":
                    self.send_listing()
                elif path.startswith(f"/{REPOSITORY}/resolve/{REVISION}/"):
                    self.send_file(path.rsplit("/", 1)[1], has_body)
                else:
                    self.send_bytes(404, b"{}", {"X-Error-Code": "RepoNotFound"}, has_body)

            def send_listing(self) -> None:
                entries = [
                    {"type": "file", "path": name, "size": len(data), "oid": etag(data)}
                    for name, data in stub.files.items()
                ]
                body = json.dumps(entries).encode()
                self.send_bytes(200, body, {"Content-Type": "application/json"}, True)

            def send_file(self, name: str, has_body: bool) -> None:
                if stub.is_down and has_body:
                    self.send_bytes(500, b"", {}, True)
                    return
                data = stub.files.get(name)
                if data is None:
                    self.send_bytes(404, b"", {"X-Error-Code": "EntryNotFound"}, has_body)
                    return
                headers = {"ETag": f'"{etag(data)}"', "X-Repo-Commit": REVISION}
                start = 0
                if "Range" in self.headers:
                    start = int(self.headers["Range"].removeprefix("bytes=").split("-")[0])
                    headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
                self.send_bytes(206 if start else 200, data[start:], headers, has_body, name)

            def send_bytes(
                self,
                status: int,
                body: bytes,
                headers: dict[str, str],
                has_body: bool,
                name: str = "",
            ) -> None:
                self.send_response(status)
                for key, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(key, value)
                self.end_headers()
                if not has_body:
                    return
                cut = stub.cut_after.pop(name, None)
                self.wfile.write(body if cut is None else body[:cut])
                if cut is not None:
                    stub.is_down = True
                    self.close_connection = True

        return Handler


def etag(data: bytes) -> str:
    """Returns an entity tag of a content."""
    return hashlib.sha1(data).hexdigest()
