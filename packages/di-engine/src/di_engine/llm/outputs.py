"""What comes back from a request: whole outputs and, while streaming, deltas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "ChatMessage",
    "CompletionOutput",
    "FinishReason",
    "Logprob",
    "RequestError",
    "RequestMetrics",
    "RequestOutput",
    "StreamDelta",
    "TokenLogprobs",
]

FinishReason = Literal["stop", "length", "abort", "error"]
"""`stop`: end-of-sequence, stop token or stop string. `length`: `max_tokens` or the model's limit.
`abort`: the caller ended it. `error`: see the output's `error`."""


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of one token at one position.

    Attributes:
        logprob: Natural logarithm; minus infinity for a token that a filter removed.
        rank: 1 for the most likely token, equal values by ascending id; None for a token that is
            not among the alternatives asked for.
        decoded_token: The token's own text; a lone part of a character reads as U+FFFD. None when
            the request does not make text.
    """

    logprob: float
    rank: int | None
    decoded_token: str | None = None


TokenLogprobs = dict[int, Logprob]
"""Token id to log-probability: the token itself first, then the most likely ones."""


@dataclass(frozen=True, slots=True)
class RequestError:
    """Why a request failed.

    Attributes:
        kind: `invalid_request` (the request can never work), `capacity` (a limit of this engine),
            `model` (the model failed on it), `stopped` (the engine was shut down while it ran) or
            `internal` (the engine failed while it ran).
        message: What was given, what is allowed, what to do.
        param: The offending parameter, if it is one.
    """

    kind: Literal["invalid_request", "capacity", "model", "stopped", "internal"]
    message: str
    param: str | None = None

    def __str__(self) -> str:
        return self.message


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else end - begin


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request in seconds of the engine's clock; None until they are known.

    Attributes:
        arrival_s: When the request was submitted.
        grammar_ready_s: When the grammar of its output was compiled; None without one.
        started_s: When the first step that computes it was launched.
        first_token_s: When its first token was known on the host.
        finished_s: When it ended.
        num_cached_tokens: Prompt tokens that came from the prefix cache.
        num_output_tokens: Generated tokens of all completions, once it has ended.
    """

    arrival_s: float
    grammar_ready_s: float | None = None
    started_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    num_cached_tokens: int = 0
    num_output_tokens: int = 0

    @property
    def compile_s(self) -> float | None:
        """Seconds that it waited for its grammar."""
        return _between(self.arrival_s, self.grammar_ready_s)

    @property
    def queue_s(self) -> float | None:
        """Seconds before its first step was launched, those of its grammar included."""
        return _between(self.arrival_s, self.started_s)

    @property
    def prefill_s(self) -> float | None:
        """Seconds from there to its first token."""
        return _between(self.started_s, self.first_token_s)

    @property
    def time_to_first_token_s(self) -> float | None:
        """Seconds from submission to its first token."""
        return _between(self.arrival_s, self.first_token_s)

    @property
    def time_per_output_token_s(self) -> float | None:
        """Mean seconds of each token after the first; None with fewer than two."""
        decode_s = _between(self.first_token_s, self.finished_s)
        if decode_s is None or self.num_output_tokens < 2:
            return None
        return decode_s / (self.num_output_tokens - 1)


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """An assistant's message, parsed from generated tokens.

    Attributes:
        content: The answer; empty if there is none.
        reasoning_content: What the model thought; None if it was not asked to think.
        tool_calls: Well-formed calls as in Chat Completions: `id`, `type` and `function` with its
            `name` and, as JSON text, `arguments`.
        malformed_tool_calls: Calls that must not be run: `index`, `name` and `reason`.
    """

    content: str
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    malformed_tool_calls: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The message as in Chat Completions, to be put behind the conversation it answers."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning_content is not None:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        return message


@dataclass(slots=True)
class CompletionOutput:
    """One completion of a prompt.

    Attributes:
        index: Number of the completion, 0 to `n - 1`.
        text: Generated text; empty without `detokenize`.
        token_ids: Generated token ids, the ending token included.
        cumulative_logprob: Sum of the tokens' log-probabilities; None without `logprobs`.
        logprobs: One entry per token id; None without `logprobs`.
        finish_reason: None while it runs.
        stop_reason: The stop string or stop token id that ended it; None for end-of-sequence and
            every other reason.
        message: The text as a message; None unless `LLM.chat` made it.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    message: ChatMessage | None = None

    @property
    def finished(self) -> bool:
        """Whether the completion has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """Everything about one finished request.

    Attributes:
        request_id: The engine's name for the request.
        prompt: The prompt's text; None when token ids were given.
        prompt_token_ids: The prompt's token ids; empty if they could not be made.
        prompt_logprobs: One entry per prompt token, None for the first; None without
            `prompt_logprobs`.
        outputs: The completions; empty if the request was refused.
        error: Why it failed, or None. A request that failed on the way keeps what it generated.
        metrics: Its times.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    error: RequestError | None = None

    @property
    def finished(self) -> bool:
        """Whether the request has ended; a returned output always has."""
        return self.error is not None or all(output.finished for output in self.outputs)

    @property
    def text(self) -> str:
        """Text of the first completion; empty if there is none."""
        return self.outputs[0].text if self.outputs else ""


@dataclass(frozen=True, slots=True)
class StreamDelta:
    """What one step added to one completion.

    Attributes:
        request_index: Position of the prompt in the call, from 0.
        request_id: The engine's name for the request.
        index: Number of the completion.
        text: New text. It may lag behind `token_ids` while a character or a possible stop string
            is incomplete.
        token_ids: New token ids.
        logprobs: One entry per new token id; None without `logprobs`.
        prompt_logprobs: As in `RequestOutput`, on the first delta of a request that asked for it.
        finish_reason: Set on the last delta of the completion, and only there.
        stop_reason: As in `CompletionOutput`.
        ends_request: Whether this is the last delta of the whole request.
        error: Why the completion failed, on its last delta.
    """

    request_index: int
    request_id: str
    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    ends_request: bool = False
    error: RequestError | None = None
