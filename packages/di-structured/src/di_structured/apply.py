"""Writes masks into logits. The only module of the package that needs torch by itself."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["apply_token_mask"]

XGRAMMAR_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def apply_token_mask(
    logits: torch.Tensor,
    masks: "torch.Tensor | npt.NDArray[np.int32]",
    *,
    vocab_size: int | None = None,
    rows: "Sequence[int] | npt.NDArray[np.int64] | None" = None,
) -> torch.Tensor:
    """Sets the logits of forbidden tokens to minus infinity, in place.

    Args:
        logits: Shape (num_rows, width), floating, on any device. Modified.
        masks: Shape (n, words), int32, as `GrammarSession.fill_masks` writes them; moved to the
            logits' device if it is elsewhere.
        vocab_size: Number of ids that the masks cover, at most `32 * words`. Columns from there on
            are padding: they are set to minus infinity in the masked rows. Defaults to the smaller
            of `width` and `32 * words`. Mask bits from `vocab_size` on are not looked at.
        rows: Row of `logits` for each mask; None if mask i belongs to row i. Other rows are left
            alone.

    Returns:
        `logits`.

    Raises:
        ValueError: A shape, dtype or index does not fit.
    """
    bits = torch.from_numpy(masks) if isinstance(masks, np.ndarray) else masks
    _check(logits, bits)
    width, covered = logits.shape[1], 32 * bits.shape[1]
    vocab_size = min(width, covered) if vocab_size is None else vocab_size
    if not 0 < vocab_size <= min(width, covered):
        raise ValueError(
            f"`vocab_size` must be from 1 to {min(width, covered)} for {width} logits and masks "
            f"of {covered} bits, "
            f"got {vocab_size}"
        )
    count = bits.shape[0]
    targets = list(range(count)) if rows is None else [int(row) for row in rows]
    if len(targets) != count:
        raise ValueError(f"`rows` has {len(targets)} entries for {count} masks")
    if any(not 0 <= row < logits.shape[0] for row in targets) or len(set(targets)) != count:
        raise ValueError(
            f"`rows` must be different rows of the {logits.shape[0]} rows of logits, got "
            f"{targets[:20]}"
        )
    if not targets:
        return logits
    bits = bits.to(logits.device, non_blocking=True)
    index = torch.tensor(targets, device=logits.device)
    if vocab_size < width:
        logits[:, vocab_size:].index_fill_(0, index, -torch.inf)
    if logits.dtype in XGRAMMAR_DTYPES and logits.device.type == "cuda":
        _apply_with_xgrammar(logits, bits, vocab_size, targets)
    else:
        _apply_with_torch(logits, bits, vocab_size, index)
    return logits


def _check(logits: torch.Tensor, bits: torch.Tensor) -> None:
    if logits.ndim != 2 or not logits.is_floating_point():
        raise ValueError(
            f"`logits` must be floating, of shape (rows, width), got {logits.dtype} "
            f"{tuple(logits.shape)}"
        )
    if bits.ndim != 2 or bits.dtype != torch.int32:
        raise ValueError(
            f"`masks` must be int32, of shape (n, words), got {bits.dtype} {tuple(bits.shape)}"
        )


def _apply_with_xgrammar(
    logits: torch.Tensor, bits: torch.Tensor, vocab_size: int, targets: list[int]
) -> None:
    """Xgrammar's kernel wants mask i in row i of the logits that it names."""
    import xgrammar

    spread = bits
    if targets != list(range(len(targets))):
        spread = bits.new_zeros((max(targets) + 1, bits.shape[1]))
        spread[targets] = bits
    xgrammar.apply_token_bitmask_inplace(logits, spread, vocab_size=vocab_size, indices=targets)


def _apply_with_torch(
    logits: torch.Tensor, bits: torch.Tensor, vocab_size: int, index: torch.Tensor
) -> None:
    """Any dtype and device; the unpacked mask takes a byte for each logit, and more on the way."""
    shifts = torch.arange(32, device=bits.device, dtype=torch.int32)
    allowed = ((bits.unsqueeze(-1) >> shifts) & 1).view(bits.shape[0], -1)[:, :vocab_size].bool()
    covered = logits[:, :vocab_size]
    covered[index] = covered[index].masked_fill_(~allowed, -torch.inf)
