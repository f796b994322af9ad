"""Download of one file of a hub repository that an interrupted run can take up again.

`huggingface_hub` takes up a broken connection, but since its version 2 a process that ends leaves
nothing of an unfinished file behind. Shards are large, so here the bytes are written to a partial
file beside the cache's blobs, continued by a range request on the next run, and handed to the
cache once complete (its layout is documented: a blob is named by its entity tag, and
`hf_hub_download` links a blob that exists). Transfers through Xet storage keep the library's way,
where the unit that survives is a whole file.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import filelock
import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # no `__all__`

__all__ = ["download_file", "partial_bytes"]

_PARTIAL = ".partial"


def download_file(
    repository: str,
    file: str,
    revision: str,
    *,
    cache_dir: str | Path | None,
    endpoint: str | None,
    bar: Any,
) -> Path:
    """Returns the path of a file in the cache, downloading what is missing of it.

    Args:
        repository: Hub id.
        file: Name of the file in the repository.
        revision: Commit.
        cache_dir: Hub cache; the library's default when None.
        endpoint: Address of the hub; the library's default when None.
        bar: Class with the part of the tqdm interface that the library uses.

    Raises:
        Exception: Whatever `huggingface_hub` raises; partial bytes are kept.
    """
    url = huggingface_hub.hf_hub_url(repository, file, revision=revision, endpoint=endpoint)
    metadata = huggingface_hub.get_hf_file_metadata(url)
    has_xet = not constants.HF_HUB_DISABLE_XET and find_spec("hf_xet") is not None
    is_xet = has_xet and metadata.xet_file_data is not None
    if metadata.etag is not None and metadata.size is not None and not is_xet:
        blobs = _blobs(repository, cache_dir)
        blobs.mkdir(parents=True, exist_ok=True)
        blob = blobs / metadata.etag
        # Two processes must not append to one partial file.
        with filelock.FileLock(blobs / f"{metadata.etag}.lock"):
            if not blob.exists():
                _fetch_blob(blob, metadata.location, url, metadata.size, bar)
    return Path(
        huggingface_hub.hf_hub_download(
            repository,
            file,
            revision=revision,
            cache_dir=cache_dir,
            endpoint=endpoint,
            tqdm_class=bar,
        )
    )


def partial_bytes(repository: str, cache_dir: str | Path | None) -> int:
    """Returns the bytes of unfinished files of a repository in the cache."""
    partials = _blobs(repository, cache_dir).glob(f"*{_PARTIAL}")
    return sum(partial.stat().st_size for partial in partials)


def _blobs(repository: str, cache_dir: str | Path | None) -> Path:
    root = Path(cache_dir or constants.HF_HUB_CACHE).expanduser()
    return root / f"models--{repository.replace('/', '--')}" / "blobs"


def _fetch_blob(blob: Path, location: str, url: str, size: int, bar: Any) -> None:
    partial = blob.with_name(blob.name + _PARTIAL)
    headers = build_hf_headers()
    if urlsplit(location).netloc != urlsplit(url).netloc:
        headers.pop("authorization", None)  # a signed address of another host needs no token
    with partial.open("ab") as output:
        present = output.tell()
        if present > size:
            output.truncate(0)
            present = 0
        http_get(
            location,
            output,
            resume_size=present,
            headers=headers,
            expected_size=size,
            tqdm_class=bar,
        )
    partial.replace(blob)
