"""What the scheduler asks of others; an engine, or a test, implements these protocols."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from di_scheduler.hit import ExternalHit
from di_scheduler.request import Int32Array, Int64Array


class RowBudget(Protocol):
    """Chooses how many rows each decoding request gets in a step.

    Attributes:
        splits_on_device: Whether the device may redistribute the rows of a step among its requests
            after planning, each getting between 1 and its `max_rows`. Blocks are then reserved
            for `max_rows`.
    """

    splits_on_device: bool

    def rows(self, slots: Int64Array, max_rows: Int64Array) -> Int64Array | Int32Array:
        """Returns the rows of each request.

        Args:
            slots: State slots of the decoding requests, shape (D,), int64.
            max_rows: 1 plus the drafts that are there and may be of use, shape (D,), int64.

        Returns:
            Shape (D,), integers between 1 and `max_rows`.
        """
        ...


class AllRows:
    """The default budget: every draft is verified."""

    splits_on_device = False

    def rows(self, slots: Int64Array, max_rows: Int64Array) -> Int64Array:
        """Returns `max_rows`."""
        return max_rows


class Vote(Protocol):
    """Lets ranks that share collectives agree on the kind of a step.

    Attributes:
        world_size: Ranks that take part; 1 means that nothing is exchanged.
    """

    world_size: int

    def reduce_min(self, values: Sequence[int]) -> list[int]:
        """Returns the element-wise minimum over all ranks; every rank calls it equally often."""
        ...


class SingleRank:
    """The default vote: this rank decides alone."""

    world_size = 1

    def reduce_min(self, values: Sequence[int]) -> list[int]:
        """Returns `values`."""
        return list(values)


class MetricsSink(Protocol):
    """Takes the scheduler's figures; prometheus-client fits behind it with ten lines."""

    def count(self, name: str, amount: int) -> None:
        """Adds to the monotonic counter `name`."""
        ...

    def gauge(self, name: str, value: float) -> None:
        """Sets the gauge `name`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """Blocks and the state slot of one request that a connector fills or reads.

    Attributes:
        request_id: The caller's name for the request.
        uid: Unique number of the request on this rank.
        slot: State slot.
        block_ids: The request's blocks from `first_block` on, in order, int32.
        first_block: Index of the first of them in the request's block table.
        num_tokens: Positions, counted from 0, whose KV the blocks and the slot hold (or will).
        block_hashes: Hash chain of the request's full blocks, for stores that are keyed by it.
        has_state: Whether the state slot travels too.
    """

    request_id: str
    uid: int
    slot: int
    block_ids: Int32Array
    first_block: int
    num_tokens: int
    block_hashes: tuple[bytes, ...]
    has_state: bool


@dataclass(frozen=True, slots=True)
class TransferReport:
    """Transfers that ended since the last report, by unique number of the request.

    Attributes:
        loaded: Loads that are complete.
        failed: Loads that failed; the request is computed instead, or fails on a decode rank.
        sent: Sends whose source may be released.
    """

    loaded: Sequence[int] = ()
    failed: Sequence[int] = ()
    sent: Sequence[int] = ()


class KVConnector(Protocol):
    """Moves blocks and state between this rank and somewhere else.

    Calls never block. The scheduler keeps the blocks and the slot of a transfer until `poll`
    reports its end.
    """

    def lookup(
        self, request_id: str, token_ids: Int32Array, block_hashes: Sequence[bytes]
    ) -> ExternalHit | None:
        """Returns what the store holds of a prompt, None if nothing.

        It is asked once per admission. A decode rank ends the request with an error on None, so
        announce a transfer that is under way; `load` may take its time.
        """
        ...

    def load(self, transfer: Transfer) -> None:
        """Starts to fill blocks and slot."""
        ...

    def send(self, transfer: Transfer) -> None:
        """Starts to read blocks and slot of a request whose prompt is computed."""
        ...

    def cancel(self, uid: int) -> None:
        """The request was aborted: end its transfer soon; `poll` still reports it."""
        ...

    def poll(self) -> TransferReport:
        """Returns what ended since the last call."""
        ...


def as_row_counts(rows: Int64Array | Int32Array, max_rows: Int64Array) -> Int64Array:
    """Returns a budget's answer as int64 after checking it against what was allowed.

    Raises:
        ValueError: The answer has another shape or leaves `1 .. max_rows`.
    """
    counts = np.asarray(rows).astype(np.int64, copy=False)
    if counts.shape != max_rows.shape or ((counts < 1) | (counts > max_rows)).any():
        raise ValueError(
            "the row budget must return between 1 and `max_rows` rows for each of "
            f"{max_rows.shape[0]} requests, got {counts.tolist()} for {max_rows.tolist()}"
        )
    return counts
