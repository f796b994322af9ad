"""`LLM`: offline generation in the calling thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from di_engine.config import EngineConfig
from di_engine.core.assembly import EngineParts, LoadProgress, assemble
from di_engine.core.engine import Engine
from di_engine.errors import ConfigError, EngineStoppedError, InvalidRequestError
from di_engine.llm.chat import (
    ChatEncoder,
    ChatOptions,
    ChatPrompt,
    Conversation,
    EncodedChat,
    split_conversations,
)
from di_engine.llm.grammars import Grammars
from di_engine.llm.interrupts import deferred_interrupt
from di_engine.llm.output_schema import import_structured
from di_engine.llm.outputs import RequestOutput, StreamDelta
from di_engine.llm.prompts import Prompt, split_prompts
from di_engine.llm.request_manager import RequestManager
from di_engine.llm.request_state import Inbox, RequestState
from di_engine.llm.sampling_params import SamplingParams

__all__ = ["LLM", "BatchProgress", "ParamsLike", "make_config", "make_request_manager"]

ParamsLike = SamplingParams | Mapping[str, Any] | None
"""Sampling parameters of one request: an object, a mapping of its fields, or None for defaults."""

REASONING_MARKS = ("<think>", "</think>")
"""Begin and end of a reasoning section in the V4.1 prompt format."""

_GRAMMAR_POLL_S = 0.05
"""Time after which a wait for a grammar looks for an interrupt."""

BatchProgress = Callable[[int, int, int], None]
"""Called with (finished requests, all requests, generated tokens) as results come in."""


class LLM:
    """Loads a model and generates from it, in the calling thread.

    ```python
    with LLM(model="tiny") as llm:
        for output in llm.generate(["Once upon", [0, 17, 4]], SamplingParams(max_tokens=8)):
            print(output.text)
    ```

    A request that cannot be served comes back at its own index as an output with `error`; it never
    raises and never harms another. Not safe for use by several threads at once, except `interrupt`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | EngineConfig | None = None,
        *,
        load_progress: LoadProgress | None = None,
        **config: Any,
    ) -> None:
        """Loads the model.

        Args:
            model: A checkpoint directory, a hub id, `tiny` for the built-in checkpoint, or a whole
                `EngineConfig`.
            load_progress: Called with (bytes done, bytes in all, what) while weights are read.
            **config: Fields of `EngineConfig` by their leaf name, such as `max_running=8`. They
                come before `DI_*` environment variables, which come before the defaults.

        Raises:
            ConfigError: If a field is unknown or wrong.
            CheckpointError: If the checkpoint is missing, damaged or does not match.
            CapacityError: If the model does not fit into memory.
            UnsupportedEnvironmentError: If the device cannot run it.
        """
        parts = assemble(make_config(model, config), load_progress)
        self.config = parts.config
        """Configuration with every default filled in."""
        self.model_config = parts.model_config
        """What the checkpoint's `config.json` says."""
        self.tokenizer = parts.tokenizer
        """The checkpoint's tokenizer, or None if it has none."""
        self.metrics = parts.metrics
        """Counters, gauges and request times."""
        self._engine: Engine | None = parts.engine
        self._requests = make_request_manager(parts)
        self._chat_encoder: ChatEncoder | None = None
        self._interrupted = threading.Event()

    @property
    def engine(self) -> Engine:
        """The engine core, for statistics and step times.

        Raises:
            EngineStoppedError: If the object was closed.
        """
        if self._engine is None:
            raise EngineStoppedError("this `LLM` is closed: make another one")
        return self._engine

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: ParamsLike | Sequence[ParamsLike] = None,
        *,
        progress: BatchProgress | None = None,
    ) -> list[RequestOutput]:
        """Generates for one prompt or a batch and returns one output per prompt, in order.

        Args:
            prompts: Text, token ids, a mapping with `prompt` or `prompt_token_ids`, or a batch of
                such, mixed as you like.
            sampling_params: For all prompts, or one per prompt.
            progress: Called as results come in.

        Raises:
            InvalidRequestError: If the number of parameters differs from that of the prompts.
            KeyboardInterrupt: After every request of this object was ended.
        """
        return self._finish(*self._submit(prompts, sampling_params), progress)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation | ChatPrompt],
        tools: Sequence[Mapping[str, Any]] | None = None,
        sampling_params: ParamsLike | Sequence[ParamsLike] = None,
        *,
        options: ChatOptions | None = None,
        progress: BatchProgress | None = None,
    ) -> list[RequestOutput]:
        """Generates the assistant's next message for one conversation or a batch of them.

        Needs the package `deepseek-recipe`, which knows the prompt format. Each completion has its
        `message`: answer, reasoning and tool calls, parsed from its token ids.

        Args:
            messages: Messages as in OpenAI's Chat Completions, or a list of such conversations; a
                `ChatPrompt` in that list has tools and options of its own.
            tools: Tool definitions as in OpenAI's Chat Completions, for all other conversations.
            sampling_params: For all conversations, or one per conversation.
            options: Thinking, effort, tool choice and response format; the defaults if None.
            progress: Called as results come in.

        Raises:
            UnsupportedEnvironmentError: If `deepseek-recipe` is not installed.
            InvalidRequestError: As in `generate`, or `messages` is neither a conversation nor a
                batch. What is wrong within a conversation becomes the `error` of its output.
        """
        if self._chat_encoder is None:
            self._chat_encoder = self._make_chat_encoder()
        encoder = self._chat_encoder
        chats: list[EncodedChat | InvalidRequestError] = []
        for conversation in split_conversations(messages):
            if isinstance(conversation, InvalidRequestError):  # fails in its place
                chats.append(conversation)
                continue
            if not isinstance(conversation, ChatPrompt):
                conversation = ChatPrompt(conversation, tools, options or ChatOptions())
            try:
                chats.append(encoder.encode(conversation))
            except InvalidRequestError as error:
                chats.append(error)
        prompts: list[Any] = [
            chat.token_ids if isinstance(chat, EncodedChat) else chat for chat in chats
        ]
        states, inbox = self._submit(prompts, sampling_params)
        outputs = self._finish(states, inbox, progress)
        for chat, state, output in zip(chats, states, outputs, strict=True):
            if isinstance(chat, EncodedChat):
                for completion in output.outputs:
                    completion.message = encoder.parse(chat, completion, state.params)
        return outputs

    def stream(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: ParamsLike | Sequence[ParamsLike] = None,
    ) -> Iterator[StreamDelta]:
        """Generates like `generate`, giving out text as it is made.

        The requests are submitted at once and stepped while the iterator is read; leaving it early
        aborts them. Several streams may be read in turns.

        Yields:
            What a step added to a completion. The last delta of each has `finish_reason`.
        """
        return self._run(*self._submit(prompts, sampling_params))

    def interrupt(self) -> None:
        """Ends every request after the step that is running, each with a terminal output.

        May be called from a signal handler or another thread.
        """
        self._interrupted.set()

    def close(self) -> None:
        """Ends every request and lets go of the model."""
        if self._engine is None:
            return
        self._requests.abort_all()
        while self._requests.has_unfinished:
            self._step()
        self._engine = None
        self._requests.close()

    def __enter__(self) -> LLM:
        """Returns the object itself."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the object."""
        self.close()

    def _submit(
        self, prompts: Prompt | Iterable[Prompt], sampling_params: Any
    ) -> tuple[list[RequestState], Inbox]:
        if self._engine is None:
            raise EngineStoppedError("this `LLM` is closed: make another one")
        members = split_prompts(prompts)
        each = _params_per_prompt(sampling_params, len(members))
        self._interrupted.clear()
        inbox = Inbox()
        states = []
        for index, (prompt, params) in enumerate(zip(members, each, strict=True)):
            state = self._requests.submit(prompt, params, index)
            state.inbox = inbox
            inbox.num_unfinished += 1
            if state.error is not None:
                inbox.put(state.refusal())
            states.append(state)
        return states, inbox

    def _make_chat_encoder(self) -> ChatEncoder:
        if self.tokenizer is None:
            raise InvalidRequestError(
                "chat needs a tokenizer and this model has none", param="messages"
            )
        return ChatEncoder(self.tokenizer.backend.to_str(), [self.model_config.eos_token_id])

    def _finish(
        self, states: list[RequestState], inbox: Inbox, progress: BatchProgress | None
    ) -> list[RequestOutput]:
        """Steps until every one of `states` has ended; returns their outputs."""
        num_tokens = num_finished = 0
        for delta in self._run(states, inbox):
            num_tokens += len(delta.token_ids)
            num_finished += delta.ends_request
            if progress is not None:
                progress(num_finished, len(states), num_tokens)
        return [state.output() for state in states]

    def _run(self, states: list[RequestState], inbox: Inbox) -> Iterator[StreamDelta]:
        """Steps until every one of `states` has ended; gives out their deltas."""
        try:
            while True:
                while inbox.deltas:
                    yield inbox.deltas.popleft()
                if inbox.num_unfinished == 0:
                    return
                self._step()
        except KeyboardInterrupt:
            self._requests.abort_all()
            while self._requests.has_unfinished:
                self._step()
            raise
        finally:
            self._requests.abort(state for state in states if not state.finished)

    def _step(self) -> None:
        if self._interrupted.is_set():
            self._requests.abort_all()
            self._interrupted.clear()
        if not self._requests.has_work:
            self._requests.wait_for_grammar(_GRAMMAR_POLL_S)
        with deferred_interrupt():
            deltas = self._requests.step()
        for state, delta in deltas:
            if state.inbox is not None:
                state.inbox.put(delta)


def make_config(
    model: str | os.PathLike[str] | EngineConfig | None, fields: Mapping[str, Any]
) -> EngineConfig:
    """The configuration that constructor arguments of `LLM` stand for.

    Raises:
        ConfigError: If both a whole configuration and fields are given, or a field is wrong.
    """
    if isinstance(model, EngineConfig):
        if fields:
            raise ConfigError(
                "give either an `EngineConfig` or its fields, not both: got "
                f"{', '.join(f'`{name}`' for name in fields)} beside an `EngineConfig`"
            )
        return model
    chosen = {} if model is None else {"model": os.fspath(model)}
    return EngineConfig.load(overrides=chosen | dict(fields), override_origin="argument")


def make_request_manager(parts: EngineParts) -> RequestManager:
    """What handles the requests of an assembled engine.

    Raises:
        UnsupportedEnvironmentError: If the compile process is to be preloaded and `di-structured`
            is not installed.
    """
    requests = RequestManager(
        parts.engine,
        parts.tokenizer,
        vocab_size=parts.model_config.vocab_size,
        max_model_len=_model_len(parts.config),
        eos_token_ids=[parts.model_config.eos_token_id],
        base_seed=parts.config.seed,
        metrics=parts.metrics,
        grammars=_make_grammars(parts),
    )
    if parts.config.structured.preload_compiler:
        requests.start_grammars()
    return requests


def _make_grammars(parts: EngineParts) -> Grammars:
    """Compiles for the model's tokens; reads them only when a request needs it."""
    settings, tokenizer = parts.config.structured, parts.tokenizer

    def make_vocabulary() -> Any:
        assert tokenizer is not None, "no vocabulary is asked for"
        return import_structured().Vocabulary.from_tokenizer_json(
            tokenizer.backend.to_str(),
            vocab_size=parts.model_config.vocab_size,
            stop_token_ids=[parts.model_config.eos_token_id],
        )

    begin, end = REASONING_MARKS
    begin_id = None if tokenizer is None else tokenizer.token_id(begin)
    end_id = None if tokenizer is None else tokenizer.token_id(end)
    return Grammars(
        None if tokenizer is None else make_vocabulary,
        None if begin_id is None or end_id is None else (begin_id, end_id),
        workers=settings.compile_workers,
        timeout_s=settings.compile_timeout_s,
        memory_limit_bytes=settings.compile_memory_bytes,
        cache_bytes=settings.grammar_cache_bytes,
    )


def _model_len(config: EngineConfig) -> int:
    length = config.model.max_model_len
    assert length is not None, "filled by `assemble`"
    return length


def _params_per_prompt(sampling_params: Any, num_prompts: int) -> list[Any]:
    if isinstance(sampling_params, list | tuple):
        if len(sampling_params) != num_prompts:
            raise InvalidRequestError(
                f"give one `sampling_params` for all prompts or one per prompt: got "
                f"{len(sampling_params)} for {num_prompts} prompts",
                param="sampling_params",
            )
        return list(sampling_params)
    return [sampling_params] * num_prompts
