"""Requests between their caller and the engine core: judged, submitted, routed, ended.

Used by one thread, except `prepare`. Nothing in here waits; `step` runs one step of the core.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from di_engine.core.metrics import EngineMetrics
from di_engine.errors import CapacityError, EngineError, InvalidRequestError
from di_engine.llm.grammars import CompilingRequests, Grammars, start_session
from di_engine.llm.outputs import RequestError, RequestMetrics, StreamDelta
from di_engine.llm.prompts import Encoder, PreparedPrompt, prepare_prompt
from di_engine.llm.request_state import RequestState
from di_engine.llm.sampling_params import SamplingParams, as_ids
from di_engine.llm.text_stream import Detokenizer
from di_engine.runner.request import EngineRequest, LogprobsSpec, RequestEvent
from di_spec.sampling import SamplingParams as SamplerParams
from di_spec.sampling import seed_bits

if TYPE_CHECKING:
    from di_structured import CompiledGrammar

__all__ = ["RequestManager", "StepEngine", "TextCodec"]


class StepEngine(Protocol):
    """The part of the engine core that requests need; `di_engine.core.engine.Engine` is one."""

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""

    def add(self, request: EngineRequest) -> None:
        """Accepts a request or raises an `EngineError`."""

    def abort(self, request_ids: Iterable[str]) -> None:
        """Ends requests at the next step."""

    def finish(self, request_id: str, reason: str, message: str = "") -> None:
        """Ends one request for a reason found outside the core."""

    def step(self) -> list[RequestEvent]:
        """Runs one step."""


class TextCodec(Encoder, Detokenizer, Protocol):
    """A tokenizer: text to token ids and back."""


class RequestManager:
    """Owns the state of every unfinished request."""

    def __init__(
        self,
        engine: StepEngine,
        tokenizer: TextCodec | None,
        *,
        vocab_size: int,
        max_model_len: int,
        eos_token_ids: Iterable[int],
        base_seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        metrics: EngineMetrics | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        """Joins an engine core with a tokenizer.

        Args:
            engine: Runs the requests.
            tokenizer: Makes token ids of text and text of token ids; None serves token ids only.
            vocab_size: Token ids must be below this.
            max_model_len: Most tokens of prompt and output together.
            eos_token_ids: Ids that end a text.
            base_seed: The seeds of requests that bring none follow from it and their number.
            clock: Seconds, for the times of requests.
            metrics: Takes the times of finished requests.
            grammars: Compiles what requests ask of their output; None for an engine without.
        """
        self._engine = engine
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._eos_token_ids = tuple(eos_token_ids)
        self._base_seed = base_seed
        self._clock = clock
        self._metrics = metrics or EngineMetrics()
        self._numbers = itertools.count()
        self._running: dict[str, tuple[RequestState, int]] = {}
        self.grammars = grammars or Grammars(None)
        """Compiles what requests ask of their output."""
        self._compiling = CompilingRequests(self.grammars)
        self._ended: list[tuple[RequestState, StreamDelta]] = []
        """Deltas of requests that ended before they entered the core."""

    @property
    def has_unfinished(self) -> bool:
        """Whether any request still compiles or runs, or has an event to deliver."""
        return self.has_work or len(self._compiling) > 0

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do now; requests whose grammar compiles have not."""
        return self._engine.has_work or bool(self._ended) or self._compiling.any_ready

    @property
    def num_compiling(self) -> int:
        """Requests that wait for their grammar."""
        return len(self._compiling)

    def start_grammars(self) -> None:
        """Starts what compiles grammars ahead of the first request that needs it."""
        self.grammars.start()

    def on_grammar_ready(self, call: Callable[[], None]) -> None:
        """Has `call` called, in any thread, when a grammar is ready and `step` has work again."""
        self._compiling.on_ready = call

    def wait_for_grammar(self, timeout_s: float) -> None:
        """Waits until the next grammar is ready, or the time is over."""
        self._compiling.wait(timeout_s)

    def close(self) -> None:
        """Ends the processes that compile; the last thing to call."""
        self.grammars.close()

    def submit(
        self, prompt: Any, params: SamplingParams | Mapping[str, Any] | None, request_index: int
    ) -> RequestState:
        """Takes one prompt. A request that cannot be served comes back with `error` set.

        Args:
            prompt: One prompt in any form of `di_engine.llm.prompts.Prompt`, or the error that kept
                it from becoming one.
            params: Sampling parameters, or a mapping of their fields, or None for the defaults.
            request_index: Position in the caller's list.
        """
        state = self.prepare(prompt, params, request_index)
        if state.error is None:
            self.admit(state)
        return state

    def prepare(
        self, prompt: Any, params: SamplingParams | Mapping[str, Any] | None, request_index: int
    ) -> RequestState:
        """Judges and encodes one prompt; arguments and result as for `submit`.

        Does not touch the engine core: may be called by any thread.
        """
        number = next(self._numbers)
        request_id = str(number)
        metrics = RequestMetrics(arrival_s=self._clock())
        prepared = PreparedPrompt(prompt if isinstance(prompt, str) else None, [])
        try:
            if isinstance(prompt, EngineError):
                raise prompt
            prepared = prepare_prompt(prompt, self._tokenizer, self._vocab_size)
            self._check_length(len(prepared.token_ids))
            checked = _checked(params, self._vocab_size)
            if checked.stop_strings and self._tokenizer is None:
                raise InvalidRequestError(
                    "`stop` strings need a tokenizer and this model has none: use `stop_token_ids`",
                    param="stop",
                )
            schema = None
            if checked.output_schema is not None:
                schema = self.grammars.schema(checked.output_schema, prepared.token_ids)
        except EngineError as error:
            state = RequestState(
                request_index, request_id, prepared, SamplingParams(), None, metrics
            )
            state.refuse(_as_request_error(error))
            return state
        state = RequestState(request_index, request_id, prepared, checked, self._tokenizer, metrics)
        seed = checked.seed if checked.seed is not None else self._seed_of(number)
        state.seed = seed_bits(int(seed))
        state.schema = schema
        return state

    def admit(self, state: RequestState) -> None:
        """Hands a prepared request to the engine core, or sets its `error`.

        A request with an output schema enters the core in the step that finds its grammar ready.
        """
        if state.schema is None:
            self._enter(state, None)
        else:
            self._compiling.add(state)

    def step(self) -> list[tuple[RequestState, StreamDelta]]:
        """Runs one step; returns what it added, with the request it belongs to."""
        self._take_compiled()
        deltas, self._ended = self._ended, []
        for event in self._engine.step():
            entry = self._running.get(event.request_id)
            if entry is None:
                continue
            state, index = entry
            delta = state.apply(index, event)
            self._note_progress(state, event)
            if delta is not None:
                if delta.finish_reason is not None and event.finish_reason is None:
                    self._engine.finish(event.request_id, "stop")
                deltas.append((state, delta))
            if event.finish_reason is not None:
                del self._running[event.request_id]
        return deltas

    def abort(self, states: Iterable[RequestState]) -> None:
        """Ends requests; their terminal deltas come with the next steps."""
        states = list(states)
        for state in self._compiling.cancel(states):
            self._end_before_core(state, "")
        self._engine.abort([i for state in states for i in state.unfinished_core_ids])

    def abort_all(self, message: str = "") -> None:
        """Ends every request; `message` says why, if it was not the caller's wish."""
        for state in self._compiling.cancel_all():
            self._end_before_core(state, message)
        for core_id in list(self._running):
            self._engine.finish(core_id, "abort", message)

    def _check_length(self, prompt_len: int) -> None:
        if prompt_len >= self._max_model_len:
            raise InvalidRequestError(
                f"the prompt is too long: {prompt_len} tokens, at most {self._max_model_len - 1} "
                f"leave room for output (`model.max_model_len` is {self._max_model_len}); shorten "
                "it or raise `model.max_model_len`",
                param="prompt",
            )

    def _seed_of(self, number: int) -> int:
        """Seed of an unseeded request: unlike those of all others, the same in every run."""
        return int(
            np.random.SeedSequence([self._base_seed, number]).generate_state(1, np.uint64)[0]
        )

    def _take_compiled(self) -> None:
        """Lets requests whose grammar is ready into the core, and ends those that have none."""
        for state, outcome in self._compiling.take():
            if isinstance(outcome, EngineError):
                state.refuse(_as_request_error(outcome))
            else:
                state.metrics.grammar_ready_s = self._clock()
                self._enter(state, outcome)
            if state.error is not None:
                self._ended.append((state, state.refusal()))

    def _enter(self, state: RequestState, grammar: CompiledGrammar | None) -> None:
        try:
            self._add_to_core(state, grammar)
        except EngineError as error:
            state.refuse(_as_request_error(error))

    def _end_before_core(self, state: RequestState, message: str) -> None:
        """Aborts a request that the core does not know."""
        for index, core_id in enumerate(state.core_ids):
            event = RequestEvent(core_id, [], finish_reason="abort", message=message)
            delta = state.apply(index, event)
            self._note_progress(state, event)
            if delta is not None:
                self._ended.append((state, delta))

    def _add_to_core(self, state: RequestState, grammar: CompiledGrammar | None) -> None:
        params = state.params
        stop_token_ids = as_ids(params.stop_token_ids)
        prompt_ids = np.asarray(state.prompt_token_ids, dtype=np.int32)
        added: list[str] = []
        try:
            for index, core_id in enumerate(state.core_ids):
                self._engine.add(
                    EngineRequest(
                        request_id=core_id,
                        prompt_ids=prompt_ids,
                        sampling=self._sampler_params(params, (state.seed + index) % 2**64),
                        max_tokens=int(params.max_tokens),
                        min_tokens=int(params.min_tokens),
                        stop_token_ids=stop_token_ids,
                        ignore_eos=params.ignore_eos,
                        priority=int(params.priority),
                        cache_salt=params.cache_salt.encode(),
                        logprobs=LogprobsSpec(
                            params.logprobs,
                            params.prompt_logprobs if index == 0 else None,
                            params.logprobs_mode,
                        ),
                        grammar=start_session(grammar, state.schema, core_id, stop_token_ids),
                    )
                )
                added.append(core_id)
        except EngineError:
            self._engine.abort(added)
            raise
        for index, core_id in enumerate(added):
            self._running[core_id] = (state, index)

    def _sampler_params(self, params: SamplingParams, seed: int) -> SamplerParams:
        suppressed = set(as_ids(params.stop_token_ids))
        if not params.ignore_eos:
            suppressed.update(self._eos_token_ids)
        allowed = params.allowed_token_ids
        return SamplerParams(
            temperature=float(params.temperature),
            top_k=int(params.top_k) or -1,
            top_p=float(params.top_p),
            min_p=float(params.min_p),
            repetition_penalty=float(params.repetition_penalty),
            frequency_penalty=float(params.frequency_penalty),
            presence_penalty=float(params.presence_penalty),
            logit_bias={int(k): float(v) for k, v in (params.logit_bias or {}).items()},
            allowed_token_ids=None if allowed is None else as_ids(allowed),
            banned_token_ids=as_ids(params.banned_token_ids),
            min_tokens=int(params.min_tokens),
            stop_token_ids=tuple(sorted(suppressed)),
            seed=seed,
        )

    def _note_progress(self, state: RequestState, event: RequestEvent) -> None:
        metrics = state.metrics
        if metrics.started_s is None:
            metrics.started_s = event.started_s
        metrics.num_cached_tokens = max(metrics.num_cached_tokens, event.num_cached_tokens)
        if event.token_ids and metrics.first_token_s is None:
            metrics.first_token_s = self._clock()
        if state.finished and metrics.finished_s is None:
            metrics.finished_s = self._clock()
            metrics.num_output_tokens = sum(len(c.output.token_ids) for c in state.completions)
            observe = self._metrics.observe
            observe("compile", metrics.compile_s)
            observe("queue", metrics.queue_s)
            observe("prefill", metrics.prefill_s)
            observe("time_to_first_token", metrics.time_to_first_token_s)
            observe("time_per_output_token", metrics.time_per_output_token_s)


def _checked(params: object, vocab_size: int) -> SamplingParams:
    if params is None:
        return SamplingParams()
    if isinstance(params, Mapping):
        params = SamplingParams.from_dict(params)
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError(
            "sampling parameters are `SamplingParams` or a mapping of its fields: got "
            f"{type(params).__name__}",
            param="sampling_params",
        )
    params.validate(vocab_size)
    return params


def _as_request_error(error: EngineError) -> RequestError:
    if isinstance(error, InvalidRequestError):
        return RequestError("invalid_request", str(error), error.param)
    if isinstance(error, CapacityError):
        return RequestError("capacity", str(error))
    return RequestError("internal", str(error))
