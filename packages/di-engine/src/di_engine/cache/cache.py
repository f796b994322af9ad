"""Device memory of the caches, as record pools that the ops read and write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from di_engine.cache.layout import CacheLayout
from di_engine.config import ModelConfig
from di_kernels.ops import RecordFormat, RecordPool

if TYPE_CHECKING:
    from di_engine.model.numerics import Numerics


@dataclass(frozen=True, slots=True)
class Cache:
    """Global cache blocks and per-request state of one rank.

    Blocks and state slots need no clearing between requests: lengths decide what is read.

    Attributes:
        layout: Sizes and addresses.
        blocks: Global cache, shape [num_blocks, block_stride], `layout.record_dtype`.
        rings: Window keys, shape [layers, num_state_slots * ring_len, window_record].
        states: Compressor rows, shape [state layers, num_state_slots * state_rows, state_row].
    """

    layout: CacheLayout
    blocks: Tensor
    rings: Tensor
    states: Tensor
    _windows: tuple[RecordPool, ...]
    _entries: dict[int, RecordPool]
    _index_keys: dict[int, RecordPool]
    _compressor_states: dict[int, RecordPool]

    @staticmethod
    def allocate(
        config: ModelConfig,
        numerics: Numerics,
        *,
        num_blocks: int,
        num_state_slots: int,
        device: torch.device | str = "cpu",
        lookahead: int = 0,
        with_drafter: bool = False,
    ) -> Cache:
        """Allocates zeroed caches.

        Args:
            config: The model.
            numerics: Storage and formats; the same as the backbone's.
            num_blocks: 128-token blocks of the global cache.
            num_state_slots: Requests that may have state at the same time.
            device: Where the model runs.
            lookahead: Most tokens of one request that may be taken back after a step.
            with_drafter: Whether the drafter's blocks have rings too.

        Raises:
            ValueError: A count is below 1 or `lookahead` is negative.
        """
        if num_blocks < 1 or num_state_slots < 1:
            raise ValueError(
                "`num_blocks` and `num_state_slots` must be at least 1: "
                f"{num_blocks} and {num_state_slots}"
            )
        layout = CacheLayout.from_config(
            config, numerics, lookahead=lookahead, with_drafter=with_drafter
        )

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        record = layout.record_dtype
        blocks = zeros(num_blocks, layout.block_stride, dtype=record)
        ring_rows = num_state_slots * layout.ring_len
        rings = zeros(layout.num_window_layers, ring_rows, layout.window_record, dtype=record)
        state_rows = num_state_slots * layout.state_rows
        num_states = len(layout.state_layers)
        states = zeros(num_states, state_rows, layout.state_row, dtype=layout.state_dtype)

        window_format, entry_format, index_format = _formats(layout, numerics)
        entries, index_keys = {}, {}
        for section in layout.sections:
            count, layer = section.entries_per_block, section.layer
            entries[layer] = _section_pool(
                blocks, entry_format, config.head_dim, count, section.main_offset
            )
            index_keys[layer] = _section_pool(
                blocks, index_format, config.index_head_dim, count, section.index_offset
            )
        return Cache(
            layout=layout,
            blocks=blocks,
            rings=rings,
            states=states,
            _windows=tuple(RecordPool(ring, window_format, config.head_dim) for ring in rings),
            _entries=entries,
            _index_keys=index_keys,
            _compressor_states={
                layer: RecordPool(state, "plain", layout.state_row)
                for layer, state in zip(layout.state_layers, states, strict=True)
            },
        )

    @property
    def num_blocks(self) -> int:
        """Blocks of the global cache."""
        return self.blocks.shape[0]

    @property
    def num_state_slots(self) -> int:
        """State slots."""
        return self.rings.shape[1] // self.layout.ring_len

    @property
    def num_bytes(self) -> int:
        """Bytes of all caches."""
        return self.blocks.nbytes + self.rings.nbytes + self.states.nbytes

    def window(self, layer: int) -> RecordPool:
        """Ring of `layer`; slot = state slot * ring_len + position modulo ring_len."""
        return self._windows[layer]

    def entries(self, source: int) -> RecordPool:
        """Compressed entries of KV source layer `source`; slot = block * E + entry in the block."""
        return self._entries[source]

    def index_keys(self, source: int) -> RecordPool:
        """Index keys of KV source layer `source`, addressed like its entries."""
        return self._index_keys[source]

    def compressor_state(self, source: int) -> RecordPool:
        """State rows of a pooling source; slot = state slot * state_rows + position modulo it."""
        return self._compressor_states[source]


def _formats(
    layout: CacheLayout, numerics: Numerics
) -> tuple[RecordFormat, RecordFormat, RecordFormat]:
    """Record formats of window keys, compressed entries and index keys."""
    if not numerics.is_packed:
        return "plain", "plain", "plain"
    return "mxfp8", "nvfp4" if layout.global_format == "fp4" else "mxfp8", "index_mxfp4"


def _section_pool(
    blocks: Tensor, record_format: RecordFormat, head_dim: int, count: int, offset: int
) -> RecordPool:
    if record_format == "plain":
        entries = blocks[:, offset : offset + count * head_dim].unflatten(1, (count, head_dim))
        return RecordPool(entries, record_format, head_dim, count)
    return RecordPool(blocks, record_format, head_dim, count, offset)
