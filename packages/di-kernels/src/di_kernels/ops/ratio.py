"""Verification of drafts by the ratio test: the target's law whatever the drafts.

With p the target's and q the draft's distribution, a draft is accepted with probability
min(1, p / q); at the first that is not, a token is drawn from max(p - q, 0) (Leviathan et al.,
arXiv 2211.17192; Chen et al., arXiv 2302.01318). Where that sums to less than 1e-7, p equals q but
for rounding: the draft is accepted after all if p allows it, and otherwise the row's own token is
taken, which changes the law by less than that.

Random bits are those of `draw_tokens`: uniform numbers from purpose 2, 53 bits of words 0 and 1 of
token 0, residual draws from purpose 3, both at the draft's offset in its block.
"""

from __future__ import annotations

import torch

from di_kernels.checks import check_dtype, check_shape
from di_kernels.masses import OK, allowed_logits, log_of_mass, masses_of, num_mask_words
from di_kernels.ops.sampling import gumbel_tokens, random_words
from di_kernels.ops.verification import VerifiedDrafts
from di_kernels.registry import Op

_ACCEPT, _RESIDUAL = 2 << 24, 3 << 24
_FLOOR = 1e-7


def verify_drafts_by_ratio(
    token_ids: torch.Tensor,
    status: torch.Tensor,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
    draft_token_ids: torch.Tensor,
    row_offsets: torch.Tensor,
    *,
    width: int,
    mask_bits: torch.Tensor | None = None,
    q_log_probs: torch.Tensor | None = None,
    q_token_ids: torch.Tensor | None = None,
) -> VerifiedDrafts:
    """Accepts drafts of every request by the ratio test; requests of temperature 0 by equality.

    Args:
        token_ids: Token of every row as `draw_tokens` drew it, shape (num_rows,), int64.
        status: 0 where the row has a token, shape (num_rows,), uint8.
        logits: What those were drawn from, shape (num_rows, vocab_size), float32 or float64.
        temperature: Shape (num_rows,), float64, equal in the rows of a request.
        seed: Shape (num_rows,), int64.
        position: Shape (num_rows,), int64.
        draft_token_ids: Draft behind every row, shape (num_rows,), int64; ids outside the
            vocabulary are drafts that the target does not have. Not read for the last row of a
            request.
        row_offsets: First row of each request and the number of rows, shape (num_requests + 1,),
            int64; a request has 1 to `width` rows.
        width: Columns of the result: most rows of a request.
        mask_bits: `mask_bits` of the draw, shape (num_rows, ceil(vocab_size / 32)), int32.
        q_log_probs: Log-probabilities that drafts were drawn from, shape
            (num_requests, num_drafts, size), float32 or float64; None where drafts are certain.
        q_token_ids: Tokens of its columns, shape of `q_log_probs`, int64, no token twice, negative
            where there is none; None where column t is token t.

    Raises:
        ValueError: The shapes do not match, `width` is below 1, or there are `q_token_ids` without
            `q_log_probs`.
        TypeError: A dtype that is not served.
    """
    check_shape("logits", logits, (None, None))
    rows, vocab_size = logits.shape
    for name, tensor, dtype in (
        ("token_ids", token_ids, torch.int64),
        ("status", status, torch.uint8),
        ("temperature", temperature, torch.float64),
        ("seed", seed, torch.int64),
        ("position", position, torch.int64),
        ("draft_token_ids", draft_token_ids, torch.int64),
    ):
        check_shape(name, tensor, (rows,))
        check_dtype(name, tensor, (dtype,))
    check_shape("row_offsets", row_offsets, (None,))
    check_dtype("row_offsets", row_offsets, (torch.int64,))
    if mask_bits is not None:
        check_shape("mask_bits", mask_bits, (rows, num_mask_words(vocab_size)))
        check_dtype("mask_bits", mask_bits, (torch.int32,))
    if width < 1 or row_offsets.shape[0] < 1:
        raise ValueError(
            f"expected `width` of at least 1 and a first offset, got: {width} and "
            f"{row_offsets.shape[0]} offsets"
        )
    if q_log_probs is not None:
        check_shape("q_log_probs", q_log_probs, (row_offsets.shape[0] - 1, None, None))
        check_dtype("q_log_probs", q_log_probs, (torch.float32, torch.float64))
    if q_token_ids is not None:
        if q_log_probs is None:
            raise ValueError("expected `q_log_probs` beside `q_token_ids`, got: None")
        check_shape("q_token_ids", q_token_ids, tuple(q_log_probs.shape))
        check_dtype("q_token_ids", q_token_ids, (torch.int64,))
    run = _VERIFY_BY_RATIO.select(logits, vocab_size=vocab_size)
    return run(
        token_ids, status, logits, temperature, seed, position, draft_token_ids, row_offsets,
        width, mask_bits, q_log_probs, q_token_ids,
    )  # fmt: skip


# --- Reference ---


def _verify_by_ratio(
    token_ids: torch.Tensor,
    status: torch.Tensor,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
    draft_token_ids: torch.Tensor,
    row_offsets: torch.Tensor,
    width: int,
    mask_bits: torch.Tensor | None,
    q_log_probs: torch.Tensor | None,
    q_token_ids: torch.Tensor | None,
) -> VerifiedDrafts:
    """Every draft is tested and a residual token drawn behind it; then the first refusal counts."""
    first, num_drafts = row_offsets[:-1], row_offsets.diff() - 1
    places = torch.arange(width, device=logits.device)
    rows = first[:, None] + places.minimum(num_drafts[:, None])
    drafts, codes = draft_token_ids[rows], status[rows]
    is_usable = (places < num_drafts[:, None]) & (codes == OK).cumprod(1).bool()
    accepted = torch.zeros_like(first)
    final = torch.full_like(first, -1)
    is_open = torch.ones_like(first, dtype=torch.bool)
    has_rest = torch.zeros_like(is_open)
    for place in range(width - 1):
        row, draft = rows[:, place], drafts[:, place]
        p = _target_law(logits[row], temperature[row], status[row], mask_bits, row)
        q = _draft_law(draft, place, logits.shape[1], q_log_probs, q_token_ids)
        rest = (p - q).clamp(min=0)
        is_rounding = rest.sum(1) < _FLOOR
        p_draft, q_draft = _at(p, draft), _at(q, draft)
        uniform = _uniform(seed[row], position[row], _ACCEPT | place)
        passes = (uniform * q_draft < p_draft) | (is_rounding & (p_draft > 0))
        passes = torch.where(temperature[row] == 0, token_ids[row] == draft, passes)
        is_tested = is_open & is_usable[:, place]
        refused = is_tested & ~passes
        drawn = gumbel_tokens(rest.log(), seed[row], position[row], _RESIDUAL | place)
        is_drawn = refused & ~is_rounding & (temperature[row] > 0)
        final = torch.where(is_drawn, drawn, final)
        has_rest |= is_drawn
        accepted += is_tested & passes
        is_open = is_tested & passes
    last = accepted.unsqueeze(1)
    code = codes.gather(1, last).squeeze(1)
    emitted = accepted + (code == OK)
    own = token_ids[rows.gather(1, last).squeeze(1)]
    out = torch.where(places == last, torch.where(has_rest, final, own).unsqueeze(1), drafts)
    return VerifiedDrafts(
        out.masked_fill(places >= emitted.unsqueeze(1), -1), accepted, emitted, code
    )


def _target_law(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    status: torch.Tensor,
    mask_bits: torch.Tensor | None,
    row: torch.Tensor,
) -> torch.Tensor:
    """Probabilities of rows, float64; of any logits where a row is bad or greedy."""
    allowed = allowed_logits(logits, None if mask_bits is None else mask_bits[row])
    is_other = (status != OK) | (temperature == 0)
    known = allowed.masked_fill(is_other.unsqueeze(1), 0)
    scale = temperature.masked_fill(is_other, 1).unsqueeze(1)
    relative = (known - known.amax(1, keepdim=True)) / scale
    return (relative - log_of_mass(masses_of(relative).sum(1, keepdim=True))).exp()


def _draft_law(
    draft: torch.Tensor,
    place: int,
    vocab_size: int,
    log_probs: torch.Tensor | None,
    token_ids: torch.Tensor | None,
) -> torch.Tensor:
    """Probabilities that the drafts at a place were drawn from, float64."""
    law = torch.zeros(draft.shape[0], vocab_size, dtype=torch.float64, device=draft.device)
    if log_probs is None:
        is_known = (draft >= 0) & (draft < vocab_size)
        return law.scatter_add(
            1, draft.clamp(0, vocab_size - 1).unsqueeze(1), is_known.double().unsqueeze(1)
        )
    if place >= log_probs.shape[1]:
        return law
    weights = log_probs[:, place].double().exp()
    if token_ids is None:
        columns = min(vocab_size, weights.shape[1])
        law[:, :columns] = weights[:, :columns]
        return law
    columns_of = token_ids[:, place]
    is_known = (columns_of >= 0) & (columns_of < vocab_size)
    return law.scatter_add(
        1, columns_of.clamp(0, vocab_size - 1), weights.masked_fill(~is_known, 0)
    )


def _at(law: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """Probability of one token per row; 0 outside the vocabulary."""
    is_known = (draft >= 0) & (draft < law.shape[1])
    return law.gather(1, draft.clamp(0, law.shape[1] - 1).unsqueeze(1)).squeeze(1) * is_known


def _uniform(seed: torch.Tensor, position: torch.Tensor, purpose: int) -> torch.Tensor:
    """Numbers in [0, 1) with 53 random bits."""
    words = random_words(seed, position, purpose, 2)
    return (words[:, 0] << 21 | words[:, 1] >> 11).double() * 2.0**-53


_VERIFY_BY_RATIO = Op(
    "verify_drafts_by_ratio",
    _verify_by_ratio,
    dtypes=(torch.float32, torch.float64),
    is_differentiable=False,
)
