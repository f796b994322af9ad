"""Which tokens of a row may be drawn: temperature, top-k, top-p and min-p, as bits.

Tokens are ordered by descending logit, equal logits by ascending id. Token number i survives top-p
iff the mass of the tokens before it is at most `top_p` of the row's; top-k and top-p are taken on
that one order and on masses over the whole row, so that the two commute (DeepInfer 0.1.0
`sampler.py`). min-p keeps tokens at least that fraction as likely as the most likely. Each keeps a
prefix of the order, and at least one token. Masses are integers (`di_kernels.masses`).
"""

from __future__ import annotations

import torch

from di_kernels.checks import check_dtype, check_shape
from di_kernels.masses import (
    OK,
    allowed_logits,
    masses_of,
    num_mask_words,
    pack_bits,
    row_status,
    unpack_bits,
)
from di_kernels.ops.sampling import portable_log
from di_kernels.registry import Op

_LEAST_NORMAL = 2.0**-1022


def filter_tokens(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    *,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    min_p: torch.Tensor | None = None,
    mask_bits: torch.Tensor | None = None,
) -> torch.Tensor:
    """The tokens that the filters leave, in the layout of a grammar's mask.

    The result is the `mask_bits` of `draw_tokens` and `log_probs`. A row of temperature 0, one that
    no filter touches and one that cannot be drawn from (NaN, +infinity, nothing allowed) keep their
    mask; `draw_tokens` reports the last.

    Args:
        logits: Shape (num_rows, vocab_size), float32 or float64 (after penalties and biases).
        temperature: Shape (num_rows,), float64, at least 0.
        top_k: Most tokens of each row, shape (num_rows,), int64; below 1 keeps all.
        top_p: Shape (num_rows,), float64, in (0, 1]; 1 keeps all.
        min_p: Shape (num_rows,), float64, in [0, 1]; 0 keeps all.
        mask_bits: Allowed tokens, shape (num_rows, ceil(vocab_size / 32)), int32: bit t % 32 of
            word t // 32; None allows all.

    Returns:
        Shape (num_rows, ceil(vocab_size / 32)), int32; bits behind the vocabulary are 0.

    Raises:
        ValueError: The shapes do not match.
        TypeError: A dtype that is not served.
    """
    check_shape("logits", logits, (None, None))
    rows, vocab_size = logits.shape
    for name, tensor, dtype in (
        ("temperature", temperature, torch.float64),
        ("top_k", top_k, torch.int64),
        ("top_p", top_p, torch.float64),
        ("min_p", min_p, torch.float64),
    ):
        if tensor is not None:
            check_shape(name, tensor, (rows,))
            check_dtype(name, tensor, (dtype,))
    if mask_bits is not None:
        check_shape("mask_bits", mask_bits, (rows, num_mask_words(vocab_size)))
        check_dtype("mask_bits", mask_bits, (torch.int32,))
    run = _FILTER_TOKENS.select(logits, vocab_size=vocab_size)
    return run(logits, temperature, top_k, top_p, min_p, mask_bits)


# --- Reference ---


def _filter_tokens(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    mask_bits: torch.Tensor | None,
) -> torch.Tensor:
    """Sorts every row, sums its masses, keeps a prefix of the order."""
    vocab_size = logits.shape[1]
    allowed = allowed_logits(logits, mask_bits)
    is_filtered = torch.zeros_like(temperature, dtype=torch.bool)
    if top_k is not None:
        top_k = torch.where(top_k < 1, vocab_size, top_k)
        is_filtered = is_filtered | (top_k < vocab_size)
    if top_p is not None:
        is_filtered = is_filtered | (top_p < 1)
    if min_p is not None:
        is_filtered = is_filtered | (min_p > 0)
    is_filtered &= (row_status(logits, allowed) == OK) & (temperature > 0)
    # Rows without a filter get any finite logits; their result is replaced.
    known = allowed.masked_fill(~is_filtered.unsqueeze(1), 0)
    scale = temperature.masked_fill(~is_filtered, 1).unsqueeze(1)
    relative = (known - known.amax(1, keepdim=True)) / scale
    order = (known + 0.0).sort(dim=1, descending=True, stable=True).indices  # -0.0 is +0.0
    relative = relative.gather(1, order)
    is_kept = relative > -torch.inf
    if top_k is not None:
        is_kept &= torch.arange(vocab_size, device=logits.device) < top_k.unsqueeze(1)
    if top_p is not None:
        mass = masses_of(relative)
        before = (mass.cumsum(1) - mass).double() / mass.sum(1, keepdim=True).double()
        is_kept &= (before <= top_p.unsqueeze(1)) | (top_p >= 1).unsqueeze(1)
    if min_p is not None:
        floor = portable_log(min_p.clamp(min=_LEAST_NORMAL)).masked_fill(min_p == 0, -torch.inf)
        is_kept &= relative >= floor.unsqueeze(1)
    survives = torch.zeros_like(is_kept).scatter(1, order, is_kept)
    everything = torch.ones_like(survives)
    if mask_bits is not None:
        everything = unpack_bits(mask_bits, vocab_size)
    return pack_bits(torch.where(is_filtered.unsqueeze(1), survives, everything))


_FILTER_TOKENS = Op(
    "filter_tokens", _filter_tokens, dtypes=(torch.float32, torch.float64), is_differentiable=False
)
