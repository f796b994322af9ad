"""Documents to a tokenizer and token streams."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tiny.tokenizer import train_tokenizer

HELD_OUT_EVERY = 40
_TOKENIZER_EVERY = 3  # the tokenizer reads every third training document
_BOS, _EOS = 0, 1


@dataclass(frozen=True, slots=True)
class TokenStream:
    """Documents end to end, each between BOS and EOS.

    Attributes:
        tokens: Token ids, uint16, shape [N].
        starts: First token of each document, int64, shape [D].
        sources: Number of the source of each document, shape [D].
        num_bytes: UTF-8 bytes of each document, shape [D].
        names: Names of the sources.
    """

    tokens: NDArray[np.uint16]
    starts: NDArray[np.int64]
    sources: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    names: tuple[str, ...]

    def save(self, path: Path) -> None:
        """Writes one compressed file."""
        np.savez_compressed(
            path,
            tokens=self.tokens,
            starts=self.starts,
            sources=self.sources,
            num_bytes=self.num_bytes,
            names=np.array(self.names),
        )

    @staticmethod
    def load(path: Path) -> TokenStream:
        """Reads what `save` wrote."""
        with np.load(path) as file:
            return TokenStream(
                file["tokens"],
                file["starts"],
                file["sources"],
                file["num_bytes"],
                tuple(str(name) for name in file["names"]),
            )

    def every(self, step: int) -> TokenStream:
        """A sample: one document in `step`."""
        ends = np.append(self.starts[1:], len(self.tokens))
        chosen = range(0, len(self.starts), step)
        lengths = (ends - self.starts)[::step]
        return TokenStream(
            np.concatenate([self.tokens[self.starts[i] : ends[i]] for i in chosen]),
            np.cumsum(lengths) - lengths,
            self.sources[::step],
            self.num_bytes[::step],
            self.names,
        )

    @staticmethod
    def encode(documents: list[tuple[str, str]], tokenizer: Tokenizer) -> TokenStream:
        """Encodes pairs of source name and text."""
        names = tuple(dict.fromkeys(name for name, _ in documents))
        encoded = tokenizer.encode_batch([text for _, text in documents], add_special_tokens=False)
        pieces = [np.array([_BOS, *item.ids, _EOS], dtype=np.uint16) for item in encoded]
        lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
        return TokenStream(
            np.concatenate(pieces),
            np.cumsum(lengths) - lengths,
            np.array([names.index(name) for name, _ in documents], dtype=np.int64),
            np.array([len(text.encode()) for _, text in documents], dtype=np.int64),
            names,
        )


def split_documents(
    documents: Iterable[tuple[str, str]],
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Training and held-out documents: of every source, one in `HELD_OUT_EVERY` is held out."""
    counts: dict[str, int] = defaultdict(int)
    train: list[tuple[str, str]] = []
    held_out: list[tuple[str, str]] = []
    for name, text in documents:
        counts[name] += 1
        chosen = held_out if counts[name] % HELD_OUT_EVERY == 0 else train
        chosen.append((name, text))
    return train, held_out


def prepare(documents: Iterable[tuple[str, str]], directory: Path, vocab_size: int) -> None:
    """Writes `tokenizer.json`, `train.npz`, `held_out.npz` and `data.json` into a directory."""
    train, held_out = split_documents(documents)
    tokenizer = train_tokenizer((text for _, text in train[::_TOKENIZER_EVERY]), vocab_size)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(tokenizer.to_str() + "\n", encoding="utf-8")
    summary = {}
    for part, chosen in (("train", train), ("held_out", held_out)):
        stream = TokenStream.encode(chosen, tokenizer)
        stream.save(directory / f"{part}.npz")
        ends = np.append(stream.starts[1:], len(stream.tokens))
        summary[part] = {
            name: {
                "documents": int((stream.sources == number).sum()),
                "bytes": int(stream.num_bytes[stream.sources == number].sum()),
                "tokens": int((ends - stream.starts)[stream.sources == number].sum()),
            }
            for number, name in enumerate(stream.names)
        }
    (directory / "data.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
