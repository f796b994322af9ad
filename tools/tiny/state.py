"""Trained tensors on disk, in pieces small enough for a machine that returns small files only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

PIECE_BYTES = 15 * 2**20


def save_state(directory: Path, name: str, tensors: dict[str, Tensor], facts: Any) -> None:
    """Writes ``name-0.safetensors``, ... and then ``name.json``, each whole or not at all.

    Args:
        directory: Where to write.
        name: Stage.
        tensors: Parameters by name; a single one must fit into a piece.
        facts: Anything JSON holds: what was measured, how long it took.
    """
    directory.mkdir(parents=True, exist_ok=True)
    pieces: list[dict[str, Tensor]] = []
    size = 0
    for key, value in tensors.items():
        if not pieces or size + value.nbytes > PIECE_BYTES:
            pieces.append({})
            size = 0
        pieces[-1][key] = value.detach().cpu().contiguous()
        size += value.nbytes
    for number, piece in enumerate(pieces):
        _replace(directory / f"{name}-{number}.safetensors", safetensors.torch.save(piece))
    text = json.dumps({"pieces": len(pieces), "facts": facts}, indent=2) + "\n"
    _replace(directory / f"{name}.json", text.encode())


def load_state(directory: Path, name: str, device: torch.device) -> tuple[dict[str, Tensor], Any]:
    """Reads what `save_state` wrote: tensors and facts.

    Raises:
        FileNotFoundError: The stage has not been run.
    """
    index = directory / f"{name}.json"
    if not index.is_file():
        raise FileNotFoundError(f"{index} is not there: run the stage `{name}` first")
    described = json.loads(index.read_text())
    tensors: dict[str, Tensor] = {}
    for number in range(described["pieces"]):
        path = directory / f"{name}-{number}.safetensors"
        tensors |= safetensors.torch.load_file(path, device=str(device))
    return tensors, described["facts"]


def has_state(directory: Path, name: str) -> bool:
    """Whether the stage has written its result."""
    return (directory / f"{name}.json").is_file()


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.replace(path)


def load_facts(directory: Path, name: str) -> Any:
    """Facts of a stage, None if it has not been run."""
    index = directory / f"{name}.json"
    return json.loads(index.read_text())["facts"] if index.is_file() else None


def add_facts(directory: Path, name: str, facts: dict[str, Any]) -> None:
    """Adds facts to those of a stage."""
    index = directory / f"{name}.json"
    described = json.loads(index.read_text())
    described["facts"] |= facts
    _replace(index, (json.dumps(described, indent=2) + "\n").encode())
