"""What all layers of one step share: slots, window lists, rotary rows, selections.

Everything here depends on lengths and positions alone and is computed once per step, before the
first layer. Only the selection fields change while the layers run.

The rows of one request see each other causally. A row's window keys come from two places: the ring
(tokens of earlier steps) and this step. When the ring is long enough for the step, the new keys are
written first and all are read from the ring. A longer prompt chunk would overwrite keys that its
own first rows need; then the ring's history is read first and laid beside the new keys in a table.
Which way is taken changes no bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from di_engine.cache import Cache
from di_engine.model.batch import StepBatch, upload
from di_kernels import ops
from di_kernels.ops import RecordPool, RopeRotation


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """Where window keys are stored and read.

    Attributes:
        store_slots: Ring slot of each row's key; -1 for rows that a later row of the same chunk
            would overwrite, shape [T]. None for draft rows, which are not kept.
        history_slots: Ring slots of the `window - 1` tokens before each request's first row, -1
            where there is none, shape [R * (window - 1)]; None when keys are read from the ring.
        read_slots: Keys of each row in ascending position, -1 for none, shape [T, window]. Ring
            slots, or rows of the table [history | new keys].
        is_valid: Which of `read_slots` are keys, shape [T, window].
    """

    store_slots: Tensor | None
    history_slots: Tensor | None
    read_slots: Tensor
    is_valid: Tensor


@dataclass(frozen=True, slots=True)
class PoolingPlan:
    """Groups of several tokens, some of which came in earlier steps.

    Attributes:
        groups: Members of each completed group, rows of [state history | this step], shape
            [G, ratio].
        history_slots: State slots of the `ratio - 1` tokens before each request's first row, shape
            [R * (ratio - 1)].
        store_slots: State slot of each row, -1 for rows not kept, shape [T].
    """

    groups: Tensor
    history_slots: Tensor
    store_slots: Tensor


@dataclass(frozen=True, slots=True)
class EntryPlan:
    """Compressed entries of one ratio: which this step completes, which each row sees.

    G is the number of groups whose last token is in this step, or the most there can be of them.

    Attributes:
        ratio: Tokens per entry.
        num_visible: Entries visible to each row, its own group included, shape [T].
        max_visible: Upper bound of `num_visible`.
        slots: Slot of each completed entry, -1 for entries that must not be written and for
            places without one, shape [G].
        rotation: Rotation of each completed entry: the position of its group's first token.
        pooling: How rows become groups; None when every row is a group of its own.
    """

    ratio: int
    num_visible: Tensor
    max_visible: int
    slots: Tensor
    rotation: RopeRotation
    pooling: PoolingPlan | None


class Selection:
    """Entries that an index source chose, for itself and the layers that reuse its choice.

    Args:
        pool: Entries of the KV source.
        slots: Chosen entries of each row, -1 padded, shape [T, k].
        window_valid: Which window keys are keys, shape [T, window].
    """

    def __init__(self, pool: RecordPool, slots: Tensor, window_valid: Tensor) -> None:
        self.pool = pool
        self.slots = slots
        self._window_valid = window_valid
        self._keys: Tensor | None = None
        self._is_valid: Tensor | None = None

    @property
    def is_valid(self) -> Tensor:
        """Which of the window keys and the chosen entries are keys, shape [T, window + k]."""
        if self._is_valid is None:
            self._is_valid = torch.cat([self._window_valid, self.slots >= 0], dim=1)
        return self._is_valid

    def read(self, dtype: torch.dtype) -> Tensor:
        """The chosen entries, read from the pool the first time, shape [T, k, head_dim]."""
        if self._keys is None:
            self._keys = ops.read_records(self.pool, self.slots, dtype)
        return self._keys


class Rotations(NamedTuple):
    """Rotation of each row at its own position, and the rotation back."""

    forward: RopeRotation
    inverse: RopeRotation


@dataclass(slots=True)
class Step:
    """One step: the batch, the caches, what follows from the positions, the current selection.

    Attributes:
        batch: Rows of the step.
        cache: Caches that the layers read and write.
        row_request: Request of each row, shape [T].
        window: Window keys.
        entries: Per ratio of the model's compressed layers.
        window_rotations: For layers without compressed entries.
        compressed_rotations: For layers with compressed entries.
        engram_rows: Table rows of each Engram layer, shape [T, Engram layers, columns].
        selection: Entries chosen by the latest index source.
        candidate_blocks: Candidate blocks chosen by the candidate source, -1 padded, ascending.
        draft_features: Receives the streams that enter the drafter's target layers when not None.
        writes_entries: Whether KV sources write; False where the entries are there already.
        taps: Receives named intermediate tensors when not None.
    """

    batch: StepBatch
    cache: Cache
    row_request: Tensor
    window: WindowPlan
    entries: dict[int, EntryPlan]
    window_rotations: Rotations
    compressed_rotations: Rotations
    engram_rows: Tensor | None = None
    selection: Selection | None = None
    candidate_blocks: Tensor | None = None
    draft_features: list[Tensor] | None = None
    writes_entries: bool = True
    taps: dict[str, Tensor] | None = None

    def tap(self, prefix: str, **tensors: Tensor) -> None:
        """Hands tensors, named ``prefix.keyword``, to whoever watches this step."""
        if self.taps is not None:
            self.taps |= {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


@dataclass(frozen=True, slots=True)
class StepPlanner:
    """Turns batches into steps.

    Attributes:
        window: Window length, the row's own token included.
        window_offsets: Places of the window's keys relative to the row, ``1 - window`` to 0.
        ratios: Distinct ratios of the compressed layers.
        window_frequencies: Rotary frequencies of layers without compressed entries.
        compressed_frequencies: Rotary frequencies of the others.
        rotation_dtype: Dtype of rotations.
    """

    window: int
    window_offsets: Tensor
    ratios: tuple[int, ...]
    window_frequencies: Tensor
    compressed_frequencies: Tensor
    rotation_dtype: torch.dtype

    def plan(self, batch: StepBatch, cache: Cache) -> Step:
        """Everything of the step that does not depend on weights."""
        rows = _RowIndex.of(batch)
        compressed = self._rotations(batch.positions, self.compressed_frequencies)
        return Step(
            batch=batch,
            cache=cache,
            row_request=rows.request,
            window=self._plan_window(batch, rows, cache.layout.ring_len),
            entries={
                ratio: self._plan_entries(batch, rows, cache, ratio, compressed.forward)
                for ratio in self.ratios
            },
            window_rotations=self._rotations(batch.positions, self.window_frequencies),
            compressed_rotations=compressed,
        )

    def _rotations(self, positions: Tensor, frequencies: Tensor) -> Rotations:
        forward = self._rotation(positions, frequencies)
        return Rotations(forward, forward.inverse())

    def _rotation(self, positions: Tensor, frequencies: Tensor) -> RopeRotation:
        return ops.rope_rotation(positions, frequencies, self.rotation_dtype)

    def _plan_window(self, batch: StepBatch, rows: _RowIndex, ring_len: int) -> WindowPlan:
        window = self.window
        ring_start = batch.state_slots * ring_len
        offsets = self.window_offsets
        positions = batch.positions[:, None] + offsets
        is_valid = positions >= batch.window_starts[rows.request][:, None]
        store_slots = rows.tail_slots(ring_start, ring_len)
        if batch.max_query_len + window - 1 <= ring_len:
            slots = ring_start[rows.request][:, None] + positions % ring_len
            return WindowPlan(store_slots, None, torch.where(is_valid, slots, -1), is_valid)

        history = rows.first_position[:, None] + offsets[:-1] - offsets[-1]
        history_slots = torch.where(
            history >= batch.window_starts[:, None], ring_start[:, None] + history % ring_len, -1
        )
        # Row offset within the request: negative ones lie in the history part of the table.
        relative = rows.offset[:, None] + offsets
        in_history = rows.request[:, None] * (window - 1) + relative + (window - 1)
        in_step = batch.num_requests * (window - 1) + rows.number[:, None] + offsets
        read_slots = torch.where(relative < 0, in_history, in_step)
        read_slots = torch.where(is_valid, read_slots, -1)
        return WindowPlan(store_slots, history_slots.flatten(), read_slots, is_valid)

    def _plan_entries(
        self,
        batch: StepBatch,
        rows: _RowIndex,
        cache: Cache,
        ratio: int,
        row_rotation: RopeRotation,
    ) -> EntryPlan:
        entries_per_block = cache.layout.block_tokens // ratio
        end = batch.positions + 1
        num_visible = end // ratio
        last, request, rotation, pooling = batch.positions, rows.request, row_rotation, None
        is_there = None
        if ratio > 1:
            closing, is_there = rows.closing(batch, ratio)
            last, request = last[closing], request[closing]
            rotation = self._rotation(last + 1 - ratio, self.compressed_frequencies)
            pooling = self._plan_pooling(batch, rows, closing, ratio, cache.layout.state_rows)
        slots = ops.entries_to_slots(
            (last // ratio)[:, None], batch.block_tables, request, entries_per_block
        ).squeeze(1)
        is_new = last >= batch.write_floors[request]
        if is_there is not None:
            is_new &= is_there
        return EntryPlan(
            ratio=ratio,
            num_visible=num_visible,
            max_visible=batch.max_context_len // ratio,
            slots=torch.where(is_new, slots, -1),
            rotation=rotation,
            pooling=pooling,
        )

    @staticmethod
    def _plan_pooling(
        batch: StepBatch, rows: _RowIndex, closing: Tensor, ratio: int, state_rows: int
    ) -> PoolingPlan:
        state_start = batch.state_slots * state_rows
        back = torch.arange(1 - ratio, 1, device=closing.device)
        # Members before the start of a request belong to no group: any slot serves.
        history = (rows.first_position[:, None] + back[:-1]) % state_rows
        relative = rows.offset[closing][:, None] + back
        in_history = rows.request[closing][:, None] * (ratio - 1) + relative + (ratio - 1)
        in_step = batch.num_requests * (ratio - 1) + closing[:, None] + back
        return PoolingPlan(
            groups=torch.where(relative < 0, in_history, in_step),
            history_slots=(state_start[:, None] + history).flatten(),
            store_slots=rows.tail_slots(state_start, state_rows),
        )


@dataclass(frozen=True, slots=True)
class _RowIndex:
    """Where each row stands.

    Attributes:
        number: 0..T-1, shape [T].
        request: Request of each row, shape [T].
        offset: Place of each row among its request's rows, shape [T].
        remaining: Rows of the same request behind each row, shape [T].
        first_position: Position of each request's first row, shape [R].
        positions: Position of each row, shape [T].
    """

    number: Tensor
    request: Tensor
    offset: Tensor
    remaining: Tensor
    first_position: Tensor
    positions: Tensor

    @staticmethod
    def of(batch: StepBatch) -> _RowIndex:
        device = batch.positions.device
        number = torch.arange(batch.num_rows, device=device)
        request = torch.repeat_interleave(batch.query_lens, output_size=batch.num_rows)
        first_position = batch.context_lens - batch.query_lens
        offset = batch.positions - first_position[request]
        remaining = batch.query_lens[request] - 1 - offset
        return _RowIndex(number, request, offset, remaining, first_position, batch.positions)

    def closing(self, batch: StepBatch, ratio: int) -> tuple[Tensor, Tensor | None]:
        """Rows that are the last of a group of `ratio` tokens, ascending.

        Returns:
            Where the host knows the positions, the rows, shape [G], and None. Where it does not, as
            many places as there can be such rows, so that nobody has to wait for their number, and
            which of the places hold one, shape [G].
        """
        device = self.number.device
        if batch.host_positions is not None:
            is_last = (batch.host_positions + 1) % ratio == 0
            return upload(np.flatnonzero(is_last), device), None
        num_requests = batch.num_requests
        most = min(batch.num_rows, (batch.num_rows + num_requests * (ratio - 1)) // ratio)
        place = torch.arange(most, device=device)
        counts = batch.context_lens // ratio - self.first_position // ratio
        ends = counts.cumsum(0)
        request = torch.searchsorted(ends, place, right=True).clamp(max=num_requests - 1)
        within = place - (ends - counts)[request]
        first_row = batch.query_lens.cumsum(0) - batch.query_lens
        row = (first_row + ratio - 1 - self.first_position % ratio)[request] + within * ratio
        is_there = place < ends[-1]
        return torch.where(is_there, row, 0), is_there

    def tail_slots(self, starts: Tensor, length: int) -> Tensor:
        """Slots of rows in a ring of `length`; -1 for rows that the same step overwrites."""
        slots = starts[self.request] + self.positions % length
        return torch.where(self.remaining < length, slots, -1)
