"""A small language model with drafters, good and bad, and a loop that speculates with them."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from di_spec.drafting import NO_DRAFT, Proposal, QKind
from di_spec.sampling import (
    SamplerBatch,
    SampleRequest,
    SamplingParams,
    Stream,
    TokenHistory,
    draw,
    sample,
)
from di_spec.verify import Noise, Verified, VerifyMode, verify

__all__ = ["DraftLaw", "ToyModel", "draft_block", "generate", "plain", "speculate_step"]

DraftLaw = Callable[[Sequence[int]], NDArray[np.float64]]
"""Draft log-probabilities [V] of the token after a prefix."""

MaskOf = Callable[[Sequence[int]], NDArray[np.int32]]
"""Grammar mask words [ceil(V / 32)] of the token after a prefix."""


class ToyModel:
    """Logits from a table that the last two tokens index.

    Args:
        vocab_size: Number of tokens.
        seed: Fills the table.
        sharpness: Standard deviation of the logits.
    """

    def __init__(self, vocab_size: int, seed: int, sharpness: float = 1.5) -> None:
        self.vocab_size = vocab_size
        table = np.random.default_rng(seed).normal(size=(vocab_size, vocab_size, vocab_size))
        self._table = (table * sharpness).astype(np.float32)

    def logits(self, prefix: Sequence[int]) -> NDArray[np.float32]:
        """Logits [V] of the token after `prefix` (at least two tokens)."""
        row: NDArray[np.float32] = self._table[prefix[-2], prefix[-1]]
        return row

    def log_probs(self, prefix: Sequence[int]) -> NDArray[np.float64]:
        """Log-softmax of `logits`."""
        row = self.logits(prefix).astype(np.float64)
        return np.asarray(row - row.max() - np.log(np.exp(row - row.max()).sum()))

    def drafter(self, kind: str) -> DraftLaw:
        """A draft law by name.

        `same`, `uniform`, `contrary` (likes what the model dislikes), `certain` (always token 0),
        `disjoint` (only the least likely token) or `half` (between model and uniform).
        """

        def law(prefix: Sequence[int]) -> NDArray[np.float64]:
            p = np.exp(self.log_probs(prefix))
            if kind == "same":
                q = p
            elif kind == "uniform":
                q = np.full(self.vocab_size, 1 / self.vocab_size)
            elif kind == "contrary":
                q = (1 - p) / (1 - p).sum()
            elif kind == "certain":
                q = np.eye(self.vocab_size)[0]
            elif kind == "disjoint":
                q = np.eye(self.vocab_size)[int(p.argmin())]
            elif kind == "half":
                q = (p + 1 / self.vocab_size) / 2
            else:
                raise ValueError(f"unknown drafter: {kind!r}")
            with np.errstate(divide="ignore"):
                return np.log(q)

        return law


def draft_block(
    law: DraftLaw,
    history: TokenHistory,
    prefix: Sequence[int],
    seed: int,
    length: int,
    mode: VerifyMode,
) -> tuple[list[int], NDArray[np.float64]]:
    """Draws a block of drafts.

    For `coupled` and `greedy` with the noise that the target will use; else with noise keyed by
    index and offset, so that an index drafted again gets another draw.

    Returns:
        Drafts, and the log-probabilities they were drawn from, [length, V].
    """
    drafts: list[int] = []
    laws = []
    key = np.array([seed], np.uint64)
    for offset in range(length):
        log_q = law([*prefix, *drafts])
        position = np.array([history.num_tokens + offset], np.uint64)
        if mode in ("coupled", "greedy"):
            token_id = draw(log_q[None], key, position)
        else:
            token_id = draw(log_q[None], key, position, stream=Stream.DRAFT, offset=offset)
        drafts.append(int(token_id[0]))
        laws.append(log_q)
    return drafts, np.array(laws)


def speculate_step(
    model: ToyModel,
    requests: Sequence[tuple[SamplingParams, TokenHistory, list[int]]],
    blocks: Sequence[tuple[list[int], NDArray[np.float64]]],
    mode: VerifyMode,
    mask_of: MaskOf | None = None,
    rng: Noise | None = None,
) -> Verified:
    """Verifies one block for each request; histories are not changed.

    Args:
        model: The target.
        requests: Parameters, history and whole prefix (prompt and output) of each request.
        blocks: Admitted drafts of each request with the laws of the whole block.
        mode: Rule of acceptance.
        mask_of: Grammar, if any.
        rng: Noise of `verify`.
    """
    width = max(1, max(len(drafts) for drafts, _ in blocks))
    token_ids = np.full((len(blocks), width), NO_DRAFT, np.int64)
    q_logprobs = np.full((len(blocks), width, model.vocab_size), -np.inf)
    rows, masks = [], []
    for i, ((drafts, laws), (_, _, prefix)) in enumerate(zip(blocks, requests, strict=True)):
        token_ids[i, : len(drafts)] = drafts
        if len(drafts):
            q_logprobs[i, : len(drafts)] = laws[: len(drafts)]
        for j in range(len(drafts) + 1):
            rows.append(model.logits([*prefix, *drafts[:j]]))
            if mask_of:
                masks.append(mask_of([*prefix, *drafts[:j]]))
    proposal = Proposal(
        token_ids,
        np.array([len(drafts) for drafts, _ in blocks], np.int64),
        QKind.DENSE,
        q_logprobs,
    )
    batch = SamplerBatch.build(
        [
            SampleRequest(params, history, drafts)
            for (params, history, _), (drafts, _) in zip(requests, blocks, strict=True)
        ],
        model.vocab_size,
    )
    mask_bits = np.array(masks, np.int32) if mask_of else None
    return verify(np.array(rows), proposal, batch, rng, mode=mode, mask_bits=mask_bits)


def plain(
    model: ToyModel,
    prompt: Sequence[int],
    params: SamplingParams,
    num_tokens: int,
    mask_of: MaskOf | None = None,
) -> list[int]:
    """Tokens without speculation."""
    history, prefix = TokenHistory(list(prompt)), list(prompt)
    for _ in range(num_tokens):
        batch = SamplerBatch.build([SampleRequest(params, history)], model.vocab_size)
        mask_bits = mask_of(prefix)[None] if mask_of else None
        token_id = int(sample(model.logits(prefix)[None], batch, mask_bits).token_ids[0])
        history.append(token_id)
        prefix.append(token_id)
    return history.output_ids


def generate(
    model: ToyModel,
    law: DraftLaw,
    prompt: Sequence[int],
    params: SamplingParams,
    num_tokens: int,
    mode: VerifyMode,
    length_of: Callable[[int], int],
    mask_of: MaskOf | None = None,
) -> list[int]:
    """Tokens of one request with speculation.

    Args:
        model: The target.
        law: The drafter.
        prompt: At least two tokens.
        params: Sampling parameters with a seed.
        num_tokens: Tokens to return.
        mode: Rule of acceptance.
        length_of: Number of drafts to verify in each step, from the step's number.
        mask_of: Grammar, if any.
    """
    history, prefix = TokenHistory(list(prompt)), list(prompt)
    step = 0
    assert params.seed is not None, "set when the parameters were made"
    while history.num_output_tokens < num_tokens:
        block = draft_block(law, history, prefix, params.seed, length_of(step), mode)
        verified = speculate_step(model, [(params, history, prefix)], [block], mode, mask_of)
        new = verified.token_ids[0, : verified.num_emitted[0]].tolist()
        history.extend(new)
        prefix += new
        step += 1
    return history.output_ids[:num_tokens]
