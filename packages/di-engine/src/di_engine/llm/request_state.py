"""One submitted prompt and its completions, from events of the core to deltas and outputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from di_engine.llm.outputs import (
    CompletionOutput,
    FinishReason,
    Logprob,
    RequestError,
    RequestMetrics,
    RequestOutput,
    StreamDelta,
    TokenLogprobs,
)
from di_engine.llm.prompts import PreparedPrompt
from di_engine.llm.sampling_params import SamplingParams, as_ids
from di_engine.llm.text_stream import Detokenizer, TextStream
from di_engine.runner.request import PositionLogprobs, RequestEvent

if TYPE_CHECKING:
    from di_structured import OutputSchema

__all__ = ["CompletionState", "DeltaSink", "Inbox", "RequestState"]


class CompletionState:
    """One completion while it is generated."""

    def __init__(self, index: int, params: SamplingParams, detokenizer: Detokenizer | None) -> None:
        """Starts an empty completion."""
        self.output = CompletionOutput(index)
        if params.logprobs is not None:
            self.output.logprobs = []
            self.output.cumulative_logprob = 0.0
        self._params = params
        self._text = TextStream(detokenizer, params)

    def push(self, token_ids: Sequence[int], reason: FinishReason | None) -> str:
        """Takes new tokens; returns the text they release.

        A stop string among them ends the completion here, whatever `reason` says; tokens after it
        are dropped. The caller learns it from `output.finish_reason`.
        """
        output = self.output
        ends_by_token = reason == "stop" and bool(token_ids)
        released = ""
        for position, token_id in enumerate(token_ids):
            output.token_ids.append(token_id)
            is_ending = ends_by_token and position == len(token_ids) - 1
            if is_ending and not self._params.include_stop_str_in_output:
                break
            piece = self._text.push(token_id)
            released += piece.text
            if piece.stop is not None:
                self._end("stop", piece.stop)
                break
        if not output.finished and reason is not None:
            piece = self._text.finish()
            released += piece.text
            if piece.stop is not None and reason in ("stop", "length"):
                self._end("stop", piece.stop)
            else:
                self._end(reason, self._stop_token(reason))
        output.text += released
        return released

    def add_logprobs(self, entries: Sequence[TokenLogprobs]) -> None:
        """Records log-probabilities of the newest tokens."""
        output = self.output
        if output.logprobs is None:
            return
        output.logprobs += entries
        tokens = output.token_ids[len(output.logprobs) - len(entries) :]
        added = sum(entry[token].logprob for entry, token in zip(entries, tokens, strict=True))
        output.cumulative_logprob = (output.cumulative_logprob or 0.0) + added

    def _end(self, reason: FinishReason, stop_reason: int | str | None) -> None:
        self.output.finish_reason = reason
        self.output.stop_reason = stop_reason

    def _stop_token(self, reason: FinishReason) -> int | None:
        if reason != "stop" or not self.output.token_ids:
            return None
        last = self.output.token_ids[-1]
        return last if last in as_ids(self._params.stop_token_ids) else None


class DeltaSink(Protocol):
    """Whoever reads the deltas of a request."""

    def put(self, delta: StreamDelta) -> None:
        """Takes the next delta."""


class Inbox:
    """Deltas of the requests of one caller, in order.

    Attributes:
        deltas: Not yet read.
        num_unfinished: Requests whose last delta has not come.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self.deltas: deque[StreamDelta] = deque()
        self.num_unfinished = 0

    def put(self, delta: StreamDelta) -> None:
        """Takes the next delta."""
        self.deltas.append(delta)
        self.num_unfinished -= delta.ends_request


class RequestState:
    """A prompt with all its completions."""

    def __init__(
        self,
        request_index: int,
        request_id: str,
        prompt: PreparedPrompt,
        params: SamplingParams,
        detokenizer: Detokenizer | None,
        metrics: RequestMetrics,
    ) -> None:
        """Starts with nothing generated."""
        self.request_index = request_index
        self.request_id = request_id
        self.params = params
        self.metrics = metrics
        self.error: RequestError | None = None
        self.seed = 0
        """Seed of the first completion; the others count on from it."""
        self.schema: OutputSchema | None = None
        """What the output must obey."""
        self.inbox: DeltaSink | None = None
        """Where deltas of this request go; set by whoever reads them."""
        self._prompt = prompt
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None
        self._detokenizer = detokenizer if params.detokenize else None
        self.completions = [CompletionState(i, params, detokenizer) for i in range(params.n)]

    def refuse(self, error: RequestError) -> None:
        """Ends a request that did not enter the engine."""
        self.completions = []
        self.error = error

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt's token ids."""
        return self._prompt.token_ids

    @property
    def core_ids(self) -> list[str]:
        """Names of the completions in the engine core."""
        if len(self.completions) < 2:
            return [self.request_id for _ in self.completions]
        return [f"{self.request_id}.{i}" for i in range(len(self.completions))]

    @property
    def unfinished_core_ids(self) -> list[str]:
        """Names of the completions that still run."""
        return [
            core_id
            for core_id, completion in zip(self.core_ids, self.completions, strict=True)
            if not completion.output.finished
        ]

    @property
    def finished(self) -> bool:
        """Whether every completion has ended."""
        return all(completion.output.finished for completion in self.completions)

    def apply(self, index: int, event: RequestEvent) -> StreamDelta | None:
        """Takes what a step changed for completion `index`.

        Returns:
            What to tell a streaming caller; None for an event after the completion's end.
        """
        completion = self.completions[index]
        if completion.output.finished:
            return None
        before = len(completion.output.token_ids)
        reason, error = _verdict(event)
        text = completion.push(event.token_ids, reason)
        if error is not None:
            self.error = self.error or error
        token_ids = completion.output.token_ids[before:]
        logprobs = None
        if event.logprobs is not None:
            logprobs = [self._name(entry) for entry in event.logprobs[: len(token_ids)]]
            completion.add_logprobs(logprobs)
        prompt_logprobs = None
        if event.prompt_logprobs is not None and self._prompt_logprobs is None:
            prompt_logprobs = [None, *map(self._name, event.prompt_logprobs)]
            self._prompt_logprobs = prompt_logprobs
        return StreamDelta(
            request_index=self.request_index,
            request_id=self.request_id,
            index=index,
            text=text,
            token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            finish_reason=completion.output.finish_reason,
            stop_reason=completion.output.stop_reason,
            ends_request=self.finished,
            error=error,
        )

    def refusal(self) -> StreamDelta:
        """What a streaming caller is told of a request that ends without the engine."""
        return StreamDelta(
            self.request_index,
            self.request_id,
            index=0,
            text="",
            token_ids=[],
            finish_reason="error",
            ends_request=True,
            error=self.error,
        )

    def output(self) -> RequestOutput:
        """The request as its caller gets it."""
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt.text,
            prompt_token_ids=self._prompt.token_ids,
            outputs=[completion.output for completion in self.completions],
            metrics=self.metrics,
            prompt_logprobs=self._prompt_logprobs,
            error=self.error,
        )

    def _name(self, entry: PositionLogprobs) -> TokenLogprobs:
        """Adds ranks and token texts; the token itself comes first."""
        listed = {
            token_id: Logprob(logprob, rank, self._text_of(token_id))
            for rank, (token_id, logprob) in enumerate(
                zip(entry.top_ids, entry.top_logprobs, strict=True), start=1
            )
        }
        own = listed.pop(entry.token_id, None)
        if own is None:
            own = Logprob(entry.logprob, None, self._text_of(entry.token_id))
        return {entry.token_id: own, **listed}

    def _text_of(self, token_id: int) -> str | None:
        if self._detokenizer is None:
            return None
        return self._detokenizer.decode([token_id], skip_special_tokens=False)


def _verdict(event: RequestEvent) -> tuple[FinishReason | None, RequestError | None]:
    match event.finish_reason:
        case None:
            return None, None
        case "stop" | "length":
            return event.finish_reason, None
        case "abort":
            return "abort", RequestError("stopped", event.message) if event.message else None
        case "insufficient_system_resource":
            message = event.message or "the cache is exhausted and the request was not recomputed"
            return "error", RequestError("capacity", message)
        case "error":
            return "error", RequestError("model", event.message or "the model failed")
        case other:
            message = f"the scheduler ended the request: {other} {event.message}".rstrip()
            return "error", RequestError("internal", message)
