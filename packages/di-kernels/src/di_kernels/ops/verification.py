"""Verification of drafts against tokens that were drawn from the target, row by row.

A request with n drafts has n + 1 neighbouring rows; row j draws the token after its first j drafts.
Drafts are accepted while they equal the token of their row. With tokens of `draw_tokens` this is
coupled verification: the output is, token for token, the one without drafts. With largest logits
(temperature 0) it is greedy verification.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from di_kernels.checks import check_dtype, check_shape
from di_kernels.masses import OK
from di_kernels.registry import Op


class VerifiedDrafts(NamedTuple):
    """Outcome of a step.

    Args:
        token_ids: Accepted drafts, then one token of the target, -1 behind; shape
            (num_requests, width), int64.
        num_accepted: Shape (num_requests,), int64.
        num_emitted: One more, or as many where the row behind the accepted drafts has no token,
            shape (num_requests,), int64.
        status: `DrawnTokens.status` of that row, shape (num_requests,), uint8.
    """

    token_ids: torch.Tensor
    num_accepted: torch.Tensor
    num_emitted: torch.Tensor
    status: torch.Tensor


def verify_drafts(
    token_ids: torch.Tensor,
    status: torch.Tensor,
    draft_token_ids: torch.Tensor,
    row_offsets: torch.Tensor,
    *,
    width: int,
) -> VerifiedDrafts:
    """Accepts the drafts of every request while they equal the target's tokens.

    Args:
        token_ids: The target's token of every row, shape (num_rows,), int64.
        status: 0 where the row has a token, shape (num_rows,), uint8 (`DrawnTokens.status`).
        draft_token_ids: Draft behind every row, shape (num_rows,), int64; not read for the last row
            of a request.
        row_offsets: First row of each request and the number of rows, shape (num_requests + 1,),
            int64; a request has 1 to `width` rows.
        width: Columns of the result: most rows of a request.

    Raises:
        ValueError: The shapes do not match or `width` is below 1.
        TypeError: A dtype that is not served.
    """
    check_shape("token_ids", token_ids, (None,))
    check_shape("status", status, (token_ids.shape[0],))
    check_shape("draft_token_ids", draft_token_ids, (token_ids.shape[0],))
    check_shape("row_offsets", row_offsets, (None,))
    check_dtype("status", status, (torch.uint8,))
    for name, tensor in (
        ("token_ids", token_ids), ("draft_token_ids", draft_token_ids), ("row_offsets", row_offsets)
    ):  # fmt: skip
        check_dtype(name, tensor, (torch.int64,))
    if width < 1 or row_offsets.shape[0] < 1:
        raise ValueError(
            f"expected `width` of at least 1 and a first offset, got: {width} and "
            f"{row_offsets.shape[0]} offsets"
        )
    run = _VERIFY_DRAFTS.select(token_ids, width=width)
    return run(token_ids, status, draft_token_ids, row_offsets, width)


# --- Reference ---


def _verify_drafts(
    token_ids: torch.Tensor,
    status: torch.Tensor,
    draft_token_ids: torch.Tensor,
    row_offsets: torch.Tensor,
    width: int,
) -> VerifiedDrafts:
    """Gathers the rows of every request side by side and counts the equal ones in front."""
    num_drafts = row_offsets.diff() - 1
    places = torch.arange(width, device=token_ids.device)
    rows = row_offsets[:-1, None] + places.minimum(num_drafts[:, None])
    drafts, codes = draft_token_ids[rows], status[rows]
    is_draft = places < num_drafts[:, None]
    is_equal = is_draft & (token_ids[rows] == drafts) & (codes == OK)
    accepted = is_equal.long().cumprod(1).sum(1)
    last = accepted.unsqueeze(1)
    code = codes.gather(1, last).squeeze(1)
    emitted = accepted + (code == OK)
    out = torch.where(places == last, token_ids[rows].gather(1, last), drafts)
    out = out.masked_fill(places >= emitted.unsqueeze(1), -1)
    return VerifiedDrafts(out, accepted, emitted, code)


_VERIFY_DRAFTS = Op("verify_drafts", _verify_drafts, dtypes=(torch.int64,), is_differentiable=False)
