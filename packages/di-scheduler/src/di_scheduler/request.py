"""What a caller asks for, and the record the scheduler keeps of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from di_scheduler.config import SchedulerConfig
from di_scheduler.errors import CapacityError, InvalidRequestError
from di_scheduler.hit import ExternalHit

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

STOP = "stop"
LENGTH = "length"
ABORT = "abort"
ERROR = "error"
NO_RESOURCES = "insufficient_system_resource"
PREFILLED = "prefilled"


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One prompt and the rules for ending its output.

    Field names and meanings follow vLLM's `SamplingParams` and `Request`.

    Attributes:
        request_id: Unique among unfinished requests.
        prompt_ids: Token ids of the prompt, one-dimensional, not empty.
        max_tokens: Most output tokens; None allows as many as `max_model_len` leaves.
        min_tokens: Output tokens before a stop id may end the request. The sampler is expected
            to mask stop ids until then; the scheduler does not stop at them.
        stop_token_ids: Token ids that end this request in addition to the end-of-text ids.
        ignore_eos: Whether the end-of-text ids of the configuration do not end this request.
        priority: Lower runs first.
        cache_salt: Requests share cached prefixes only with requests of the same salt.
        skip_reading_prefix_cache: Whether every prompt token is computed, for example because its
            log-probability is wanted.
        needs_all_rows: Whether all layers run every prompt token in spite of
            `SchedulerConfig.keep_tokens`. Such a request computes its whole prompt.
        output_ids: Output tokens that were produced elsewhere, for example by a prefill rank. The
            request continues after them; they count as output and are not emitted again.
    """

    request_id: str
    prompt_ids: Sequence[int] | Int32Array | Int64Array
    max_tokens: int | None = None
    min_tokens: int = 0
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    priority: int = 0
    cache_salt: bytes = b""
    skip_reading_prefix_cache: bool = False
    needs_all_rows: bool = False
    output_ids: Sequence[int] = ()


class Status(IntEnum):
    """Where a request, or the state slot it holds, stands."""

    FREE = 0
    WAITING = 1
    RUNNING = 2
    ZOMBIE = 3  # finished; a step in flight still touches its slot and blocks
    LOADING = 4  # holds blocks and a slot that a connector is filling
    SENDING = 5  # finished here; a connector still reads its slot and blocks
    FINISHED = 6


# What the int8 column of the request table is compared with: comparing with an enum member is slow.
RUNNING = np.int8(Status.RUNNING)

FINAL_STATUSES = (Status.ZOMBIE, Status.SENDING, Status.FINISHED)


@dataclass(slots=True, eq=False)
class Record:
    """What the scheduler knows about one accepted request.

    `token_ids` is current only while the request waits; a running request's tokens are in the
    request table, keyed by its slot.
    """

    request: Request
    request_id: str
    uid: int
    sort_key: tuple[float, int]
    token_ids: Int32Array
    prompt_len: int
    len_limit: int
    stop_ids: tuple[int, ...]
    status: Status = Status.WAITING
    slot: int = -1
    chain_root: bytes = b""
    block_hashes: list[bytes] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    branch_point: int = -1
    snapshots: list[bytes] = field(default_factory=list)
    is_looked_up: bool = False
    external: ExternalHit | None = None


def checked_prompt(request: Request, config: SchedulerConfig) -> Int32Array:
    """Returns prompt and given output of `request`, int32, after checking the whole request.

    Args:
        request: What the caller asks for.
        config: The limits it must meet.

    Raises:
        InvalidRequestError: A field is wrong by itself.
        CapacityError: The request can never fit `config`.
    """
    name: object = request.request_id
    if not isinstance(name, str) or not name:
        raise InvalidRequestError(f"`request_id` must be a non-empty string: {name!r}")
    prompt = _as_token_ids(request)
    prompt = np.concatenate((prompt, np.array(_checked_output(request, config), np.int64)))
    if config.vocab_size is not None:
        wrong = (prompt < 0) | (prompt >= config.vocab_size)
        allowed = f"0 .. {config.vocab_size - 1}"
    else:
        wrong = (prompt < 0) | (prompt > np.iinfo(np.int32).max)
        allowed = f"0 .. {np.iinfo(np.int32).max}"
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise InvalidRequestError(
            f"request {name!r}: token id {int(prompt[at])} at prompt position {at} is outside "
            f"{allowed}; check that prompt and model use the same tokenizer"
        )
    _check_stop_rules(request)
    _check_capacity(request, len(prompt) - len(request.output_ids), config)
    return prompt.astype(np.int32)


def _checked_output(request: Request, config: SchedulerConfig) -> list[int]:
    name, given = request.request_id, list(request.output_ids)
    for token_id in given:
        if isinstance(token_id, bool) or not isinstance(token_id, int | np.integer):
            raise InvalidRequestError(
                f"request {name!r}: `output_ids` must be integers: {token_id!r}"
            )
    if config.role == "decode" and not given:
        raise InvalidRequestError(
            f"request {name!r}: a decode rank continues what a prefill rank began; give the tokens "
            f"sampled there as `output_ids`"
        )
    return given


def _as_token_ids(request: Request) -> Int64Array:
    name = request.request_id
    try:
        prompt = np.asarray(request.prompt_ids)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequestError(
            f"request {name!r}: `prompt_ids` must be a flat sequence of integers: {error}"
        ) from error
    if prompt.ndim == 1 and prompt.size == 0:
        raise InvalidRequestError(
            f"request {name!r}: the prompt is empty; give at least one token id"
        )
    if prompt.ndim != 1 or prompt.dtype.kind not in "iu":
        raise InvalidRequestError(
            f"request {name!r}: `prompt_ids` must be a flat sequence of integers, got shape "
            f"{prompt.shape} of {prompt.dtype}"
        )
    return prompt.astype(np.int64)


def _check_stop_rules(request: Request) -> None:
    name = request.request_id
    for field_name in ("max_tokens", "min_tokens", "priority"):
        value = getattr(request, field_name)
        optional = field_name == "max_tokens" and value is None
        if not optional and (isinstance(value, bool) or not isinstance(value, int | np.integer)):
            raise InvalidRequestError(
                f"request {name!r}: `{field_name}` must be an integer: {value!r}"
            )
    if request.max_tokens is not None and request.max_tokens < 1:
        raise InvalidRequestError(
            f"request {name!r}: `max_tokens` must be at least 1: {request.max_tokens}"
        )
    most = request.max_tokens
    if request.min_tokens < 0 or (most is not None and request.min_tokens > most):
        raise InvalidRequestError(
            f"request {name!r}: `min_tokens` must be between 0 and `max_tokens` = {most}: "
            f"{request.min_tokens}"
        )
    if most is not None and len(request.output_ids) >= most:
        raise InvalidRequestError(
            f"request {name!r}: {len(request.output_ids)} `output_ids` leave nothing to generate "
            f"within `max_tokens` = {most}"
        )
    stop_ids: Sequence[object] = request.stop_token_ids
    for token_id in stop_ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int | np.integer) or token_id < 0:
            raise InvalidRequestError(
                f"request {name!r}: `stop_token_ids` must be non-negative integers: {token_id!r}"
            )
    if not isinstance(request.cache_salt, bytes):
        raise InvalidRequestError(
            f"request {name!r}: `cache_salt` must be bytes: {request.cache_salt!r}"
        )


def _check_capacity(request: Request, prompt_len: int, config: SchedulerConfig) -> None:
    name = request.request_id
    if prompt_len >= config.max_model_len:
        raise CapacityError(
            f"request {name!r}: a prompt of {prompt_len} tokens leaves no room for output within "
            f"`max_model_len` = {config.max_model_len}; shorten the prompt to "
            f"{config.max_model_len - 1} tokens or raise the limit",
            needed=prompt_len + 1,
            available=config.max_model_len,
        )
    if prompt_len + request.min_tokens > config.max_model_len:
        raise CapacityError(
            f"request {name!r}: {prompt_len} prompt tokens and `min_tokens` = "
            f"{request.min_tokens} exceed `max_model_len` = {config.max_model_len}; lower one of "
            f"them or raise the limit",
            needed=prompt_len + request.min_tokens,
            available=config.max_model_len,
        )
    given = len(request.output_ids)
    if prompt_len + given >= config.max_model_len:
        raise CapacityError(
            f"request {name!r}: {prompt_len} prompt tokens and {given} `output_ids` leave no room "
            f"within `max_model_len` = {config.max_model_len}; raise the limit",
            needed=prompt_len + given + 1,
            available=config.max_model_len,
        )
    # The newest token has no KV yet, hence one position less than tokens.
    output = max(certain_output(request, prompt_len, config), given + 1)
    certain = prompt_len + output - 1
    needed = config.blocks_for(certain)
    if needed > config.usable_blocks:
        raise CapacityError(
            f"request {name!r}: {certain} tokens need {needed} blocks of {config.block_size} "
            f"tokens, the pool has {config.usable_blocks}; shorten the request or enlarge the pool "
            f"to `num_blocks` = {needed + 1}",
            needed=needed,
            available=config.usable_blocks,
        )


def certain_output(request: Request, prompt_len: int, config: SchedulerConfig) -> int:
    """Returns the number of output tokens that the request produces in any case."""
    room = config.max_model_len - prompt_len
    most = room if request.max_tokens is None else min(request.max_tokens, room)
    has_stop_id = bool(request.stop_token_ids) or (
        bool(config.eos_token_ids) and not request.ignore_eos
    )
    return most if request.ignore_eos and not has_stop_id else max(1, request.min_tokens)
