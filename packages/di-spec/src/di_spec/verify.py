"""Verification of drafts against the target's logits: reference on numpy arrays.

A request with `n` admitted drafts has `n + 1` rows: row `j` gives the target distribution `p` of
the token after the first `j` drafts; the last row is fresh. Every step emits the accepted drafts
and one token more. Four rules:

* `coupled`: the target token of every row is drawn as `di_spec.sampling.sample` draws it, and a
draft
  is accepted if it equals it. The output is, token for token, the one without speculation with the
  same seed, for every drafter, number of drafts and batch, wherever a row's logits do not depend on
  the other rows. A draft is accepted with probability `sum_v p(v) q(v)` if it was drawn with noise
  of its own, and with that of `coupled_agreement`, at least `(1 - TV) / (1 + TV)`, if the drafter
  drew it with the target's noise. The ratio test accepts `1 - TV`, but its tokens depend on where
  blocks end.
* `greedy`: accept while a draft is the largest logit. Requests of temperature 0 are always verified
  so, in every mode.
* `ratio`: accept with probability `min(1, p / q)`, else draw from `max(p - q, 0)` (Leviathan et
al.,
  arXiv 2211.17192; Chen et al., arXiv 2302.01318). Same law as without speculation, other tokens.
* `block`: joint acceptance of prefixes (arXiv 2403.10444): the same law, and never fewer tokens in
  expectation than `ratio`.

Randomness of `ratio` and `block` is keyed by (seed, index of the token, offset in the block), in
streams of their own: an index that is drafted again uses other bits, so that budgets made from
earlier steps are independent of the drafts they cut. Keying by index alone biases the output.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from di_spec.drafting import Proposal
from di_spec.errors import InvalidProposalError
from di_spec.sampling import (
    RowStatus,
    SamplerBatch,
    Samples,
    Stream,
    draw,
    process,
    sample,
    uniform53,
)

__all__ = [
    "RESIDUAL_FLOOR",
    "Noise",
    "PhiloxNoise",
    "Verified",
    "VerifyMode",
    "check_drafts",
    "coupled_agreement",
    "verify",
]

VerifyMode = Literal["coupled", "greedy", "ratio", "block"]

RESIDUAL_FLOOR = 1e-7
"""Residuals of less mass than this are rounding: `p` equals `q`. A rejected draft is then accepted
after all if the target allows it; this changes the law by less than the floor."""

Row = NDArray[np.float64]


class Noise(Protocol):
    """Random numbers of verification, a pure function of what they are for."""

    def uniform(self, seed: int, position: int, offset: int) -> float:
        """Accept test of the draft at `position`, the `offset`-th of its block; in [0, 1)."""

    def draw(self, log_weights: Row, seed: int, position: int, offset: int, stream: Stream) -> int:
        """A token of unnormalised log-weights [V], for `Stream.TARGET` or `Stream.RESIDUAL`."""


class PhiloxNoise:
    """The noise of `di_spec.sampling`."""

    def uniform(self, seed: int, position: int, offset: int) -> float:
        """See `Noise.uniform`."""
        return float(uniform53(np.uint64(seed), Stream.ACCEPT, np.uint64(position), offset))

    def draw(self, log_weights: Row, seed: int, position: int, offset: int, stream: Stream) -> int:
        """See `Noise.draw`."""
        keys = np.array([seed], np.uint64), np.array([position], np.uint64)
        return int(draw(log_weights[None], *keys, stream=stream, offset=offset)[0])


@dataclass(frozen=True, slots=True)
class Verified:
    """Outcome of one verification step.

    Attributes:
        token_ids: Emitted tokens, int64 [requests, longest + 1]: accepted drafts, then one token
            from the target or the residual; -1 beyond. After a stop token the caller drops the
            rest.
        num_accepted: Accepted drafts, int64 [requests].
        num_emitted: Emitted tokens, int64 [requests]: one more than accepted, or just the accepted
            ones if the row after them cannot be drawn from.
        status: `RowStatus` code of the row after the accepted drafts, uint8 [requests].
    """

    token_ids: NDArray[np.int64]
    num_accepted: NDArray[np.int64]
    num_emitted: NDArray[np.int64]
    status: NDArray[np.uint8]


def verify(
    target_logits: NDArray[np.floating[Any]],
    drafts: Proposal,
    params: SamplerBatch,
    rng: Noise | None = None,
    *,
    mode: VerifyMode = "coupled",
    mask_bits: NDArray[np.int32] | None = None,
) -> Verified:
    """Verifies the drafts of a batch of requests.

    Args:
        target_logits: Logits of all rows, float [rows, V]; rows of a request together, in order.
        drafts: The admitted drafts (`Proposal.cut`).
        params: Parameters of the rows, built from requests with these drafts, so that penalties,
            `min_tokens` and bad words of each row see the drafts before it.
        rng: Noise of `ratio` and `block`; Philox by default.
        mode: Rule of acceptance.
        mask_bits: Grammar masks of the rows; see `di_spec.sampling.process`.

    Raises:
        InvalidProposalError: If drafts and rows contradict each other.
        InvalidSamplingError: If shapes of logits, parameters and masks do.
        ValueError: If `mode` is unknown.
    """
    check_drafts(drafts, params)
    if mode in ("coupled", "greedy"):
        return _verify_equality(target_logits, params, mask_bits, mode)
    if mode not in ("ratio", "block"):
        raise ValueError(f"`mode` must be coupled, greedy, ratio or block: got {mode!r}")
    rng = rng or PhiloxNoise()
    rule = _ratio_request if mode == "ratio" else _block_request
    processed = process(target_logits, params, mask_bits)
    greedy_ids = as_greedy(target_logits, params, mask_bits).token_ids
    emitted, status = [], []
    for request, (first, end) in enumerate(
        zip(params.row_offsets[:-1].tolist(), params.row_offsets[1:].tolist(), strict=True)
    ):
        block = _Block(
            p=np.exp(processed.log_probs[first:end]),
            log_p=processed.log_probs[first:end],
            drafts=params.draft_token_ids[first : end - 1].tolist(),
            q=[drafts.q_row(request, j, params.vocab_size) for j in range(end - first - 1)],
            seed=int(params.seed[first]),
            position=int(params.position[first]),
            status=processed.status[first:end],
            rng=rng,
        )
        if params.temperature[first] == 0:
            token_ids, code = _accept_equal(block.drafts, greedy_ids[first:end], block.status)
        else:
            token_ids, code = rule(block)
        emitted.append(token_ids)
        status.append(code)
    return _collect(emitted, status, params)


def check_drafts(drafts: Proposal, params: SamplerBatch) -> None:
    """Checks that a proposal and the rows of a batch are about the same drafts.

    Raises:
        InvalidProposalError: If not.
    """
    drafts.check()
    num_drafts = np.diff(params.row_offsets) - 1
    if not np.array_equal(num_drafts, drafts.lengths):
        raise InvalidProposalError(
            "`params` must be built from the drafts that are verified: rows for "
            f"{num_drafts.tolist()} drafts, proposal of {drafts.lengths.tolist()}"
        )
    is_draft = np.arange(drafts.token_ids.shape[1]) < drafts.lengths[:, None]
    has_next = np.ones(params.num_rows, np.bool_)
    has_next[params.row_offsets[1:] - 1] = False
    if not np.array_equal(drafts.token_ids[is_draft], params.draft_token_ids[has_next]):
        raise InvalidProposalError("`params` was built from other draft token ids than `drafts`")


def coupled_agreement(p: Row, q: Row) -> float:
    """Probability that draws from `p` and `q` with the same Gumbel noise agree.

    `sum_i 1 / sum_j max(p_j / p_i, q_j / q_i)` over tokens with both positive: token i wins both
    races of exponential clocks iff every other clock exceeds clock i times the larger ratio.
    Sorting by `p / q` splits each inner sum in two.

    Args:
        p: Distribution of the target, [V].
        q: Distribution of the drafter, [V].
    """
    is_common = (p > 0) & (q > 0)
    if not is_common.any():
        return 0.0
    with np.errstate(divide="ignore"):
        ratio = np.where(q > 0, p / np.where(q > 0, q, 1), np.inf)
    order = np.argsort(ratio, kind="stable")
    q_below = np.cumsum(q[order]) - q[order]
    p_from = np.cumsum(p[order][::-1])[::-1]
    chosen = is_common[order]
    p, q = p[order][chosen], q[order][chosen]
    return float((1 / (p_from[chosen] / p + q_below[chosen] / q)).sum())


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows and drafts of one request under verification."""

    p: NDArray[np.float64]
    log_p: NDArray[np.float64]
    drafts: list[int]
    q: list[Row]
    seed: int
    position: int
    status: NDArray[np.uint8]
    rng: Noise

    @property
    def num_usable(self) -> int:
        """Number of drafts before the first row that cannot be drawn from."""
        bad = np.flatnonzero(self.status != RowStatus.OK)
        return min(len(self.drafts), int(bad[0])) if len(bad) else len(self.drafts)

    def probability(self, distribution: Row, draft: int) -> float:
        """Probability of a draft; 0 for ids outside the vocabulary."""
        return float(distribution[draft]) if 0 <= draft < len(distribution) else 0.0

    def uniform(self, j: int) -> float:
        """Accept test of draft j."""
        return self.rng.uniform(self.seed, self.position + j, j)

    def fresh(self, j: int) -> int:
        """A token of row j, as plain sampling draws it."""
        return self.rng.draw(self.log_p[j], self.seed, self.position + j, 0, Stream.TARGET)

    def residual(self, weights: Row, j: int) -> int:
        """A token of a residual at row j."""
        with np.errstate(divide="ignore"):
            log_weights = np.log(weights)
        return self.rng.draw(log_weights, self.seed, self.position + j, j, Stream.RESIDUAL)


def _ratio_request(block: _Block) -> tuple[list[int], int]:
    token_ids: list[int] = []
    for j in range(block.num_usable):
        draft, p, q = block.drafts[j], block.p[j], block.q[j]
        p_draft = block.probability(p, draft)
        if block.uniform(j) * block.probability(q, draft) < p_draft:
            token_ids.append(draft)
            continue
        residual = np.maximum(p - q, 0)
        if residual.sum() >= RESIDUAL_FLOOR:
            return [*token_ids, block.residual(residual, j)], RowStatus.OK
        if p_draft == 0:
            return [*token_ids, block.fresh(j)], RowStatus.OK
        token_ids.append(draft)
    return _end(block, token_ids)


def _block_request(block: _Block) -> tuple[list[int], int]:
    usable = block.num_usable
    joint = [1.0]
    for j in range(usable):
        draft = block.drafts[j]
        q_draft = block.probability(block.q[j], draft)
        p_draft = block.probability(block.p[j], draft)
        ratio = p_draft / q_draft if q_draft > 0 else 0.0
        joint.append(min(joint[j] * ratio, 1.0))
    accepted = 0
    for i in range(1, usable + 1):
        chance = joint[i]
        if i < usable:
            excess = float(np.maximum(joint[i] * block.p[i] - block.q[i], 0).sum())
            total = excess + 1 - joint[i]
            chance = excess / total if total > 0 else 1.0
        if block.uniform(i - 1) < chance:
            accepted = i
    token_ids = block.drafts[:accepted]
    if accepted == usable:
        return _end(block, token_ids)
    residual = np.maximum(joint[accepted] * block.p[accepted] - block.q[accepted], 0)
    if residual.sum() < RESIDUAL_FLOOR:
        return [*token_ids, block.fresh(accepted)], RowStatus.OK
    return [*token_ids, block.residual(residual, accepted)], RowStatus.OK


def _end(block: _Block, token_ids: list[int]) -> tuple[list[int], int]:
    """All usable drafts were accepted: one token of the next row, unless that row is bad."""
    j = len(token_ids)
    if block.status[j] != RowStatus.OK:
        return token_ids, int(block.status[j])
    return [*token_ids, block.fresh(j)], RowStatus.OK


def _verify_equality(
    target_logits: NDArray[np.floating[Any]],
    params: SamplerBatch,
    mask_bits: NDArray[np.int32] | None,
    mode: VerifyMode,
) -> Verified:
    draw_rows = as_greedy if mode == "greedy" else sample
    samples = draw_rows(target_logits, params, mask_bits)
    target_ids, codes = samples.token_ids, samples.status
    emitted, status = [], []
    for first, end in zip(
        params.row_offsets[:-1].tolist(), params.row_offsets[1:].tolist(), strict=True
    ):
        drafts = params.draft_token_ids[first : end - 1].tolist()
        token_ids, code = _accept_equal(drafts, target_ids[first:end], codes[first:end])
        emitted.append(token_ids)
        status.append(code)
    return _collect(emitted, status, params)


def _accept_equal(
    drafts: list[int], target_ids: NDArray[np.int64], status: NDArray[np.uint8]
) -> tuple[list[int], int]:
    """Target tokens up to and including the first that no draft foresaw."""
    token_ids: list[int] = []
    for target_id, code, draft in zip(
        target_ids.tolist(), status.tolist(), [*drafts, None], strict=True
    ):
        if code != RowStatus.OK:
            return token_ids, code
        token_ids.append(target_id)
        if target_id != draft:
            break
    return token_ids, RowStatus.OK


def as_greedy(
    target_logits: NDArray[np.floating[Any]],
    params: SamplerBatch,
    mask_bits: NDArray[np.int32] | None,
) -> Samples:
    """The largest edited logit of every row, whatever its temperature."""
    greedy = replace(params, temperature=np.zeros(params.num_rows))
    return sample(target_logits, greedy, mask_bits)


def _collect(emitted: list[list[int]], status: list[int], params: SamplerBatch) -> Verified:
    num_requests = len(emitted)
    longest = int(np.diff(params.row_offsets).max(initial=1))
    token_ids = np.full((num_requests, longest), -1, np.int64)
    for request, ids in enumerate(emitted):
        token_ids[request, : len(ids)] = ids
    codes = np.array(status, np.uint8)
    num_emitted = np.array([len(ids) for ids in emitted], np.int64)
    return Verified(token_ids, num_emitted - (codes == RowStatus.OK), num_emitted, codes)
