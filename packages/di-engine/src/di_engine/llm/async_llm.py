"""`AsyncLLM`: many requests at once, streamed to coroutines, from an engine in its own thread."""

from __future__ import annotations

import asyncio
import os
import signal as signals
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

from di_engine.config import EngineConfig
from di_engine.core.assembly import EngineParts, LoadProgress, assemble
from di_engine.core.watchdog import Watchdog
from di_engine.errors import CapacityError
from di_engine.llm.engine_thread import EngineThread
from di_engine.llm.llm import ParamsLike, make_config, make_request_manager
from di_engine.llm.mailbox import Mailbox
from di_engine.llm.outputs import RequestOutput, StreamDelta
from di_engine.llm.prompts import Prompt

__all__ = ["AsyncLLM"]

_POLL_S = 0.02
_LAST_STEP_S = 10.0
"""Time for the step that runs when nobody waits for anything any more."""


class AsyncLLM:
    """Loads a model and serves it to coroutines of one event loop.

    ```python
    async with AsyncLLM(model="tiny") as llm:
        async for delta in llm.stream("Once upon", SamplingParams(max_tokens=8)):
            print(delta.text, end="")
    ```

    A request that cannot be served ends with an output that has `error`; it never raises and never
    harms another. Every accepted request gets a last delta, whatever happens to the engine.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | EngineConfig | None = None,
        *,
        max_unfinished: int = 1024,
        load_progress: LoadProgress | None = None,
        **config: Any,
    ) -> None:
        """Loads the model and starts the engine thread.

        Args:
            model: As for `LLM`.
            max_unfinished: Requests that may be waiting or running; more have to wait before they
                are accepted.
            load_progress: As for `LLM`.
            **config: As for `LLM`.

        Raises:
            ConfigError, CheckpointError, CapacityError, UnsupportedEnvironmentError: As for `LLM`.
        """
        if max_unfinished < 1:
            raise ValueError(f"`max_unfinished` must be at least 1: {max_unfinished}")
        parts: EngineParts = assemble(make_config(model, config), load_progress)
        self.config = parts.config
        """Configuration with every default filled in."""
        self.model_config = parts.model_config
        """What the checkpoint's `config.json` says."""
        self.tokenizer = parts.tokenizer
        """The checkpoint's tokenizer, or None if it has none."""
        self.metrics = parts.metrics
        """Counters, gauges and request times."""
        self._max_unfinished = max_unfinished
        self._num_accepted = 0
        self._room = asyncio.Condition()
        self._requests = make_request_manager(parts)
        self._thread = EngineThread(self._requests)
        engine = parts.engine
        self._watchdog = Watchdog(
            lambda: engine.activity,
            parts.config.observability.step_timeout_s,
            engine.timer.clock,
            self._thread.fail,
        )
        self._thread.start()
        self._watchdog.start()

    @property
    def num_unfinished(self) -> int:
        """Accepted requests whose stream has not ended."""
        return self._num_accepted

    @property
    def is_full(self) -> bool:
        """Whether another request would have to wait to be accepted."""
        return self._num_accepted >= self._max_unfinished

    async def stream(
        self, prompt: Prompt, sampling_params: ParamsLike = None, *, waits: bool = True
    ) -> AsyncIterator[StreamDelta]:
        """Generates for one prompt, giving out text as it is made.

        Leaving the iterator early, by `break`, an exception or cancellation, aborts the request. A
        consumer that falls behind gets fewer and longer deltas.

        Args:
            prompt: Text, token ids, or a mapping with `prompt` or `prompt_token_ids`.
            sampling_params: The defaults if None.
            waits: Whether to wait for room if the engine is full.

        Yields:
            What was added to a completion. The last delta has `ends_request`.

        Raises:
            CapacityError: If the engine is full and `waits` is False.
            EngineStoppedError: If the engine is shut down, or failed.
        """
        mailbox = await self._submit(prompt, sampling_params, waits)
        try:
            while deltas := await mailbox.take():
                for delta in deltas:
                    yield delta
        finally:
            await self._release(mailbox)

    async def generate(
        self, prompt: Prompt, sampling_params: ParamsLike = None, *, waits: bool = True
    ) -> RequestOutput:
        """Generates for one prompt and returns the whole output.

        Arguments and errors as for `stream`; cancelling the call aborts the request.
        """
        mailbox = await self._submit(prompt, sampling_params, waits)
        try:
            while await mailbox.take():
                pass
        finally:
            await self._release(mailbox)
        return mailbox.state.output()

    async def shutdown(self, grace_s: float = 0.0) -> None:
        """Takes no more requests, lets those that run finish, then ends the rest and the thread.

        Args:
            grace_s: Seconds for requests to finish by themselves. Those that have not get a last
                delta with `finish_reason` `abort` and an error that says why.
        """
        self._thread.refuse("the engine is shutting down")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        while self._thread.num_unfinished and loop.time() < deadline:
            await asyncio.sleep(_POLL_S)
        self._thread.stop("the engine was shut down before the request had finished")
        while not self._thread.join(0.0) and self._thread.num_unfinished:
            await asyncio.sleep(_POLL_S)
        await asyncio.to_thread(self._thread.join, _LAST_STEP_S)
        await asyncio.to_thread(self._requests.close)
        self._watchdog.stop()

    def shut_down_on(self, *signal_numbers: signals.Signals, grace_s: float = 30.0) -> None:
        """Makes signals of this process start `shutdown`; call it in the event loop's thread.

        Args:
            signal_numbers: Such as `signal.SIGTERM`.
            grace_s: As for `shutdown`. A second signal ends the wait.
        """
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []

        def begin() -> None:
            tasks.append(loop.create_task(self.shutdown(0.0 if tasks else grace_s)))

        for number in signal_numbers:
            loop.add_signal_handler(number, begin)

    async def __aenter__(self) -> AsyncLLM:
        """Returns the object itself."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Shuts down: at once after an exception, else after the requests have finished."""
        await self.shutdown(0.0 if exc_type is not None else float("inf"))

    async def _submit(self, prompt: Prompt, params: ParamsLike, waits: bool) -> Mailbox:
        async with self._room:
            if self.is_full and not waits:
                raise CapacityError(
                    f"the engine is full: {self._num_accepted} unfinished requests, "
                    f"`max_unfinished` is {self._max_unfinished}; try again later"
                )
            await self._room.wait_for(lambda: not self.is_full)
            self._num_accepted += 1
        try:
            # Long texts take a while to encode; the loop and the engine go on meanwhile.
            state = await asyncio.to_thread(self._requests.prepare, prompt, params, 0)
            mailbox = Mailbox(asyncio.get_running_loop(), state)
            if state.error is not None:
                mailbox.put(state.refusal())
            else:
                self._thread.submit(mailbox)
        except BaseException:
            await self._leave()
            raise
        return mailbox

    async def _release(self, mailbox: Mailbox) -> None:
        if not mailbox.has_ended:
            self._thread.abort(mailbox)
        await self._leave()

    async def _leave(self) -> None:
        async with self._room:
            self._num_accepted -= 1
            self._room.notify()
