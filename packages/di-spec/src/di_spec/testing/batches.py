"""Short ways to write sampling batches in tests."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from di_spec.sampling import SamplerBatch, SampleRequest, SamplingParams, TokenHistory

__all__ = ["grammar_mask", "rows_batch"]


def rows_batch(
    vocab_size: int,
    rows: Iterable[SamplingParams | tuple[SamplingParams, TokenHistory]],
    prompt: Iterable[int] = (0,),
) -> SamplerBatch:
    """A batch of one row per item.

    Args:
        vocab_size: Width of the logits.
        rows: Parameters, with a history where the row needs one of its own.
        prompt: Prompt of the rows without a history.
    """
    default = TokenHistory(list(prompt))
    pairs = [row if isinstance(row, tuple) else (row, default) for row in rows]
    return SamplerBatch.build([SampleRequest(*pair) for pair in pairs], vocab_size)


def grammar_mask(vocab_size: int, allowed: Iterable[Iterable[int] | None]) -> NDArray[np.int32]:
    """Mask words, int32 [rows, ceil(vocab_size / 32)], from allowed ids; None allows all."""
    rows = list(allowed)
    mask = np.zeros((len(rows), (vocab_size + 31) // 32), np.uint32)
    for row, token_ids in enumerate(rows):
        if token_ids is None:
            mask[row] = 0xFFFFFFFF
            continue
        for token_id in token_ids:
            mask[row, token_id // 32] |= np.uint32(1 << (token_id % 32))
    return mask.view(np.int32)
