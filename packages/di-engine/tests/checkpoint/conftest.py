"""Small checkpoints to load and to spoil, the size table of the release, and a hub on 127.0.0.1."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import safetensors.torch
import torch

from di_engine import tiny
from di_engine.checkpoint import ALL_PARTS, dummy_source
from di_engine.config import ModelConfig

Tensors = dict[str, torch.Tensor]

# Group: tensors, bytes, logical parameters. Counted from the published headers of the release.
RELEASE_GROUPS = {
    "routed experts": (92_160, 288_777_830_400, 543_581_798_400),
    "Engram tables": (4, 202_758_032_400, 196_613_849_600),
    "attention linears, norms, sinks": (520, 5_069_721_600, 5_064_696_320),
    "indexer": (32, 45_130_752, 43_516_416),
    "compressor": (11, 36_704_256, 18_352_128),
    "shared experts": (240, 1_416_960_000, 1_415_577_600),
    "routers": (120, 157_409_280, 78_673_920),
    "hyper-connections": (240, 157_295_040, 39_323_760),
    "Engram projections and gate vectors": (8, 315_043_840, 314_654_720),
    "layer norms + final norm": (81, 829_440, 414_720),
    "embed": (1, 1_323_827_200, 661_913_600),
    "head": (1, 1_323_827_200, 661_913_600),
    "image delimiter vectors": (3, 30_720, 15_360),
    "vision tower": (259, 823_685_120, 411_842_560),
    "aligner": (4, 146_821_120, 73_410_560),
    "drafter routed experts": (2_304, 7_219_445_760, 13_589_544_960),
    "drafter attention": (39, 380_229_120, 379_852_224),
    "drafter shared experts": (18, 106_272_000, 106_168_320),
    "drafter routers, hyper-connections, norms": (33, 15_793_800, 4_946_850),
    "drafter projections, Markov and confidence heads": (7, 211_133_952, 144_850_176),
}


def small_values() -> dict[str, Any]:
    """Returns a valid configuration with few tensors and every mechanism."""
    values = json.loads((tiny.directory() / "config.json").read_text(encoding="utf-8"))
    values["text_config"].update(n_routed_experts=4, vocab_size=64, dspark_noise_token_id=3)
    values["text_config"].update(engram_compressed_vocab_size=60)
    values["image_token_id"] = 5
    return values


@pytest.fixture(scope="session")
def config() -> ModelConfig:
    """Configuration of the small checkpoint."""
    return ModelConfig.from_dict(small_values())


@pytest.fixture(scope="session")
def all_tensors(config: ModelConfig) -> Tensors:
    """Every tensor of the small checkpoint; do not change."""
    source = dummy_source(config, parts=ALL_PARTS)
    return {name: source.get(name) for name in source.names()}


@pytest.fixture
def tensors(all_tensors: Tensors) -> Tensors:
    """Every tensor by name, in a dictionary of the test's own."""
    return dict(all_tensors)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes tensors as a checkpoint of one or more shards, with an index if there are several."""

    def write_shards(*shards: Tensors, index: dict[str, str] | None = None) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(small_values()))
        names = [f"model-{number:05d}.safetensors" for number in range(len(shards))]
        for name, shard in zip(names, shards, strict=True):
            safetensors.torch.save_file(shard, tmp_path / name)
        if index is None and len(shards) > 1:
            index = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        if index is not None:
            text = json.dumps({"metadata": {}, "weight_map": index})
            (tmp_path / "model.safetensors.index.json").write_text(text)
        return tmp_path

    return write_shards


@pytest.fixture(scope="session")
def release_groups() -> dict[str, tuple[int, int, int]]:
    """Tensors, bytes and logical parameters of the release by group."""
    return RELEASE_GROUPS


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


@pytest.fixture
def hub() -> Iterator[HubStub]:
    """A hub with the built-in checkpoint as its only repository."""
    files = {file.name: file.read_bytes() for file in tiny.directory().iterdir()}
    files["README.md"] = b"not needed"
    with HubStub(files).serve() as stub:
        yield stub
