"""Makes a checkpoint that has every header of a real one and none of its bytes.

    python tools/make_fake_checkpoint.py DIR                      of DeepSeek-V4.1-Flash
    python tools/make_fake_checkpoint.py DIR --config config.json of another configuration
    python tools/make_fake_checkpoint.py DIR --shards 48          number of shard files

Shards are sparse files: they have the right length and take a few megabytes of disk. Reading them
gives zeros. What can be tried on them is everything that happens before weights are read: names,
shapes, index, memory need, `di inspect`.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from pathlib import Path

from di_engine.checkpoint import TensorSpec, expected_tensors
from di_engine.checkpoint.shards import INDEX_FILE
from di_engine.config import ModelConfig, release_config


def write_fake(config: dict[str, object], directory: Path, num_shards: int) -> int:
    """Writes configuration, index and sparse shards; returns the payload bytes they stand for."""
    directory.mkdir(parents=True, exist_ok=True)
    specs = list(expected_tensors(ModelConfig.from_dict(config)).values())
    shards = [shard for shard in split(specs, num_shards) if shard]
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_shard(directory / name, shard)
        weight_map.update({spec.name: name for spec in shard})
    total = sum(spec.num_bytes for spec in specs)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / INDEX_FILE).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return total


def split(specs: list[TensorSpec], num_shards: int) -> list[list[TensorSpec]]:
    """Returns the tensors in shards: an Engram table with its scale in one, the rest by size."""
    tables = [spec for spec in specs if ".engram.embed." in spec.name]
    layers = sorted({spec.name.rsplit(".", 1)[0] for spec in tables})
    others = [spec for spec in specs if ".engram.embed." not in spec.name]
    num_others = max(1, num_shards - len(layers))
    limit = sum(spec.num_bytes for spec in others) / num_others
    shards: list[list[TensorSpec]] = [[]]
    filled = 0
    for spec in others:
        if filled >= limit and len(shards) < num_others:
            shards.append([])
            filled = 0
        shards[-1].append(spec)
        filled += spec.num_bytes
    return shards + [
        [spec for spec in tables if spec.name.rsplit(".", 1)[0] == layer] for layer in layers
    ]


def write_shard(path: Path, specs: list[TensorSpec]) -> None:
    """Writes a safetensors header and extends the file to the length of its tensors."""
    entries = {}
    offset = 0
    for spec in specs:
        end = offset + spec.num_bytes
        entries[spec.name] = {
            "dtype": spec.dtypes[0],
            "shape": list(spec.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + offset)


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="directory to write")
    parser.add_argument(
        "--config", type=Path, help="config.json to follow; the release's when absent"
    )
    parser.add_argument("--shards", type=int, default=48, help="number of shard files")
    arguments = parser.parse_args()
    config = release_config()
    if arguments.config:
        config = json.loads(arguments.config.read_text(encoding="utf-8"))
    total = write_fake(config, arguments.directory, arguments.shards)
    print(f"{arguments.directory}: stands for {total} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
