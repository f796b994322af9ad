"""Images: source checks and quota in every build; pixels and network with the feature `images`."""

from __future__ import annotations

import base64
import struct
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

import deepseek_recipe as recipe


def png(width: int, height: int) -> bytes:
    """A grey PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = b"".join(b"\0" + b"\x80" * width for _ in range(height))
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def has_feature() -> bool:
    """Whether this build decodes images."""
    options = recipe.PreprocessOptions("high", 8192, 512)
    try:
        recipe.OpenCvImagePreprocessor().preprocess(png(20, 20), options)
    except recipe.ImageError:
        return False
    return True


with_images = pytest.mark.skipif(not has_feature(), reason="this build lacks the feature `images`")


@pytest.mark.skipif(has_feature(), reason="this build has the feature `images`")
def test_a_build_without_the_feature_says_so_in_one_line() -> None:
    options = recipe.PreprocessOptions("high", 8192, 512)
    for work in (
        lambda: recipe.OpenCvImagePreprocessor().preprocess(png(20, 20), options),
        lambda: recipe.ReqwestImageFetcher().fetch("https://a.b/c"),
    ):
        with pytest.raises(recipe.ImageError, match=r"^[^\n]*--features images[^\n]*$") as caught:
            work()
        assert caught.value.kind == "Client"


class Preprocessor:
    """Stands in for a preprocessor of the caller's."""

    def preprocess(self, data: bytes, options: recipe.PreprocessOptions) -> recipe.ImageInfo:
        return recipe.ImageInfo(data[:4], 640, 480 if options.detail == "high" else 100)


class Fetcher:
    def fetch(self, url: str) -> bytes:
        return png(3, 3)


def resolver() -> recipe.ImageResolver:
    return recipe.ImageResolver(Fetcher(), Preprocessor())


def test_resolving_with_parts_of_ones_own() -> None:
    data = png(2, 2)
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    quota = recipe.ImageQuota()
    sources = [
        recipe.BytesImageSource(data),
        recipe.DataUrlImageSource(url, "low"),
        recipe.UrlImageSource("https://a.b/c"),
    ]
    resolved = resolver().resolve(sources, quota)
    assert [(one.width, one.height) for one in resolved.images] == [
        (640, 480),
        (640, 100),
        (640, 480),
    ]
    assert quota.image_count() == 3
    assert quota.byte_size() == 2 * len(data) + len(png(3, 3))


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (recipe.BytesImageSource(b"", path="messages[0]"), "EmptyImage"),
        (recipe.BytesImageSource(b"%PDF-1.7 ...", path="messages[0]"), "UnsupportedMediaType"),
        (
            recipe.DataUrlImageSource("data:image/png;base64,%%%", path="messages[0]"),
            "InvalidDataUrl",
        ),
        (
            recipe.BytesImageSource(b"\x89PNG\r\n\x1a\n" + bytes(34_000_000), path="messages[0]"),
            "ImageTooLarge",
        ),
    ],
)
def test_refused_sources_name_their_place(source: recipe.ImageSource, kind: str) -> None:
    with pytest.raises(recipe.ImageError, match=r"^messages\[0\]\.image\[0\]: ") as caught:
        resolver().resolve([source], recipe.ImageQuota())
    assert caught.value.kind == kind
    assert not caught.value.is_retryable


def test_too_many_images() -> None:
    with pytest.raises(recipe.ImageError) as caught:
        resolver().resolve([recipe.BytesImageSource(png(1, 1))] * 601, recipe.ImageQuota())
    assert caught.value.kind == "TooManyImages"


@with_images
@pytest.mark.parametrize(
    ("detail", "size", "expected"),
    [
        ("low", (1920, 1080), (728, 420)),
        ("low", (4000, 3000), (630, 476)),
        ("high", (1920, 1080), (1708, 966)),
        ("auto", (640, 480), (644, 490)),
        ("original", (5, 5), (546, 546)),
    ],
)
def test_sizes_of_preprocessed_images(
    detail: str, size: tuple[int, int], expected: tuple[int, int]
) -> None:
    options = recipe.PreprocessOptions(detail, 8192, 512)
    done = recipe.OpenCvImagePreprocessor().preprocess(png(*size), options)
    assert (done.width, done.height) == expected
    assert (done.data[:4], done.data[8:12]) == (b"RIFF", b"WEBP")


@with_images
def test_undecodable_images() -> None:
    with pytest.raises(recipe.ImageError) as caught:
        recipe.OpenCvImagePreprocessor().preprocess(
            png(20, 20)[:60], recipe.PreprocessOptions("high", 8192, 512)
        )
    assert caught.value.kind == "Decode"


@pytest.fixture
def server() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = int(self.path[1:]) if self.path[1:].isdigit() else 200
            self.send_response(status)
            self.end_headers()
            self.wfile.write(png(3, 3))

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    httpd = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@with_images
def test_fetching(server: str) -> None:
    fetcher = recipe.ReqwestImageFetcher()
    assert fetcher.fetch(f"{server}/a") == png(3, 3)
    for path, retryable in (("404", False), ("503", True)):
        with pytest.raises(recipe.ImageError) as caught:
            fetcher.fetch(f"{server}/{path}")
        assert (caught.value.kind, caught.value.is_retryable) == ("FetchStatus", retryable)
    with pytest.raises(recipe.ImageError) as caught:
        recipe.ReqwestImageFetcher.with_max_bytes(10).fetch(f"{server}/a")
    assert caught.value.kind == "ImageTooLarge"
    for url, kind in (("ftp://a/b", "InvalidUrl"), ("http://127.0.0.1:1/", "Fetch")):
        with pytest.raises(recipe.ImageError) as caught:
            fetcher.fetch(url)
        assert caught.value.kind == kind


@with_images
def test_destinations_can_be_refused(server: str) -> None:
    asked: list[tuple[str, str]] = []

    def refuse(host: str, address: str) -> bool:
        asked.append((host, address))
        return False

    fetcher = recipe.ReqwestImageFetcher().with_destination_filter(refuse)
    with pytest.raises(recipe.ImageError) as caught:
        fetcher.fetch(f"{server}/a")
    assert caught.value.kind == "DestinationRejected"
    assert asked == [("127.0.0.1", "127.0.0.1")]

    def broken(host: str, address: str) -> bool:
        raise KeyError(host)

    with pytest.raises(KeyError):
        recipe.ReqwestImageFetcher().with_destination_filter(broken).fetch(f"{server}/a")
