"""New tokens of several requests: a list for each, or one array, each row with -1 from its end."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from di_spec._ngrams import HEAD

__all__ = ["NewTokens", "check_lengths", "columns", "padded"]

NewTokens = Sequence[Sequence[int]] | NDArray[np.int64]


def check_lengths(
    num_rows: int,
    token_ids: NewTokens,
    limits: int | Sequence[int],
) -> int:
    """Raises if arguments for some texts are not as many as the texts.

    Returns:
        Most tokens of a text, or the columns of an array.
    """
    if len(token_ids) != num_rows:
        raise ValueError(
            "`new_token_ids` must have one entry for each request: got "
            f"{len(token_ids)} for {num_rows}"
        )
    if not isinstance(limits, int) and len(limits) != num_rows:
        raise ValueError(
            f"`max_tokens` must have one entry for each request: got {len(limits)} for {num_rows}"
        )
    if isinstance(token_ids, np.ndarray):
        return int(token_ids.shape[1])
    return max(map(len, token_ids), default=0)


def columns(token_ids: NewTokens, first: int, end: int) -> NewTokens:
    """Some columns of new tokens."""
    if isinstance(token_ids, np.ndarray):
        return token_ids[:, first:end]
    return [row[first:end] for row in token_ids]


def padded(token_ids: NewTokens, longest: int) -> NDArray[np.int64]:
    """New tokens with `HEAD` at the end of each row, int64 [rows, longest + 1]."""
    tokens = np.empty((len(token_ids), longest + 1), np.int64)
    if isinstance(token_ids, np.ndarray):
        tokens[:, :-1] = token_ids
        tokens[:, -1] = HEAD
        return tokens
    tokens.fill(HEAD)
    counts = np.array(list(map(len, token_ids)))
    packed = np.array(list(chain.from_iterable(token_ids)), np.int64)
    tokens[np.arange(longest + 1) < counts[:, None]] = packed
    return tokens
