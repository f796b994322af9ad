"""What the engine core knows of a request, and what it reports about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from di_engine.runner.grammar import Grammar
from di_spec.sampling import SamplingParams

__all__ = ["EngineRequest", "LogprobsSpec", "PositionLogprobs", "RequestEvent"]


@dataclass(frozen=True, slots=True)
class LogprobsSpec:
    """Which log-probabilities a request wants.

    Attributes:
        num_output: Alternatives per generated token; None returns none, 0 the token's own.
        num_prompt: The same for prompt tokens.
        mode: Whether those of generated tokens are taken before (`raw`) or after (`processed`) the
            sampling parameters act. Those of prompt tokens are always raw.
    """

    num_output: int | None = None
    num_prompt: int | None = None
    mode: Literal["raw", "processed"] = "raw"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to generate: checked values only.

    Attributes:
        request_id: Unique among unfinished requests.
        prompt_ids: Prompt token ids, shape (prompt_len,), int32, on the host.
        sampling: Parameters of the sampler, seed included.
        max_tokens: Most tokens to generate.
        min_tokens: Stop ids before this many tokens do not count.
        stop_token_ids: Ids that end the request besides end-of-sequence.
        ignore_eos: Whether end-of-sequence is an ordinary token.
        logprobs: Log-probabilities to return.
        priority: Lower runs first.
        cache_salt: Cached prefixes are shared among requests of the same salt.
        reads_prefix_cache: Whether cached prefixes are used. Requests that want log-probabilities
            of their prompt compute all of it in any case.
        grammar: What the output must obey, at its start; None for nothing. It is this request's
            own and moves with its tokens.
    """

    request_id: str
    prompt_ids: npt.NDArray[np.int32]
    sampling: SamplingParams
    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: LogprobsSpec = field(default_factory=LogprobsSpec)
    priority: int = 0
    cache_salt: bytes = b""
    reads_prefix_cache: bool = True
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """Log-probabilities at one position.

    Attributes:
        token_id: The token that is there.
        logprob: Its natural log-probability.
        top_ids: The most likely tokens, best first, ties by ascending id.
        top_logprobs: Their natural log-probabilities.
    """

    token_id: int
    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """What one step changed for one request.

    Attributes:
        request_id: The request.
        token_ids: New tokens, in order.
        logprobs: One entry per new token, or None if not wanted.
        prompt_logprobs: One entry per prompt token after the first, with the first new token of a
            request that wants them.
        finish_reason: The scheduler's reason, on the last event of a request and only there.
        message: What happened, for a reason that is a failure.
        num_cached_tokens: Prompt tokens that were not computed because the prefix cache had them.
        started_s: When the first step that contains the request was launched, in seconds of
            the runner's clock; None if there was none.
    """

    request_id: str
    token_ids: list[int]
    logprobs: list[PositionLogprobs] | None = None
    prompt_logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    message: str = ""
    num_cached_tokens: int = 0
    started_s: float | None = None
