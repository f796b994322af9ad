"""Bits per byte of held-out documents, and what the router does with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tiny.prepare import TokenStream

NextLosses = Callable[[Tensor], Tensor]
"""Negative log-likelihood of every token but the first: int64 [B, N] to [B, N - 1], in nats."""


@dataclass(frozen=True, slots=True)
class Window:
    """Part of a document that is scored with what stands before it as context.

    Attributes:
        source: Number of the document's source.
        tokens: Context and scored tokens, at most one window.
        scored: How many at the end are scored.
    """

    source: int
    tokens: NDArray[np.int64]
    scored: int


def windows_of(stream: TokenStream, length: int, context: int, limit: int) -> Iterator[Window]:
    """Cuts documents into windows of `length` tokens that overlap by `context`.

    Args:
        stream: Held-out documents.
        length: Tokens per window.
        context: Tokens of the window before that a window starts with.
        limit: Most tokens of one document that are scored.
    """
    ends = np.append(stream.starts[1:], len(stream.tokens))
    for begin, end, source in zip(stream.starts, ends, stream.sources, strict=True):
        tokens = stream.tokens[begin : min(end, begin + limit)].astype(np.int64)
        done = 1  # the first token is given
        while done < len(tokens):
            start = max(0, done - context) if done > 1 else 0
            stop = min(len(tokens), start + length)
            yield Window(int(source), tokens[start:stop], stop - done)
            done = stop


def bits_per_byte(
    losses_of: NextLosses,
    stream: TokenStream,
    *,
    length: int,
    context: int,
    batch: int,
    device: torch.device,
    multiple: int = 32,
    limit: int = 1 << 30,
) -> dict[str, float]:
    """Bits per byte by source and over all (``all``), end-of-sequence tokens included.

    Args:
        losses_of: The model.
        stream: Held-out documents.
        length: Tokens per window, a multiple of `multiple`.
        context: Overlap of windows.
        batch: Windows per call.
        device: Where the model runs.
        multiple: Windows are padded to a multiple of it.
        limit: Most tokens of one document that are scored; bytes are then taken by tokens.
    """
    nats = np.zeros(len(stream.names))
    windows = list(windows_of(stream, length, context, limit))
    windows.sort(key=lambda window: len(window.tokens))
    for first in range(0, len(windows), batch):
        group = windows[first : first + batch]
        width = -(-max(len(window.tokens) for window in group) // multiple) * multiple
        tokens = torch.zeros(len(group), width, dtype=torch.int64)
        for row, window in enumerate(group):
            tokens[row, : len(window.tokens)] = torch.from_numpy(window.tokens)
        losses = losses_of(tokens.to(device)).double().cpu().numpy()
        for row, window in enumerate(group):
            stop = len(window.tokens) - 1
            nats[window.source] += losses[row, stop - window.scored : stop].sum()
    counts = scored_bytes(stream, limit)
    found = {
        name: float(nats[number] / math.log(2) / counts[number])
        for number, name in enumerate(stream.names)
        if counts[number]
    }
    found["all"] = float(nats.sum() / math.log(2) / counts.sum())
    return found


def scored_bytes(stream: TokenStream, limit: int = 1 << 30) -> NDArray[np.float64]:
    """Bytes of each source that are scored."""
    lengths = np.append(stream.starts[1:], len(stream.tokens)) - stream.starts
    shares = np.minimum(limit, lengths) / lengths
    counts = np.zeros(len(stream.names))
    np.add.at(counts, stream.sources, stream.num_bytes * shares)
    return counts


def balance_of(loads: Tensor) -> dict[str, float]:
    """Smallest and largest load of any expert, relative to the mean of its layer.

    Args:
        loads: Share of tokens of every expert, shape [layers, E].
    """
    relative = loads / loads.mean(-1, keepdim=True)
    return {"smallest": float(relative.min()), "largest": float(relative.max())}
