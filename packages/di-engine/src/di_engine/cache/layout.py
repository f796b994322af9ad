"""Sizes and addresses of the caches, computable before anything is allocated.

Two kinds of memory:

* the *global cache*: compressed entries and index keys of the KV source layers. One contiguous
  record of `block_stride` elements per 128-token block, all source layers together, so that a block
  is one copy for a prefix store or a transfer. Inside a block, per source layer in layer order, an
  index section then a main section, each padded to 32 elements:

      index section   E x codes, then E x scales        (E = 128 / ratio entries)
      main section    E x record

* *per-request state*, addressed by state slot: a window ring per layer, and rows of the compressor
  for layers that pool several tokens.

With the release's sizes a block is 114,048 bytes and a window record 528 (layout facts:
DeepInfer 0.1.0 `cache_engine.py`). With `compute` storage a record is the unquantised vector and an
element is one number of the compute dtype; the addressing is the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from di_engine.config import ModelConfig

if TYPE_CHECKING:
    # The model imports the caches; at run time the caches import nothing of the model.
    from di_engine.model.numerics import GlobalFormat, Numerics

BLOCK_TOKENS = 128
"""Tokens of one block of the global cache, for every layer and ratio."""

_SECTION_ALIGNMENT = 32
_BLOCK_ALIGNMENT = 128
_FP8_GROUP = 32
_FP4_ENTRY_GROUP = 16
_FP4_INDEX_GROUP = 32


@dataclass(frozen=True, slots=True)
class GlobalSection:
    """Where one KV source layer lives inside every block (offsets and sizes in elements).

    Attributes:
        layer: Source layer.
        ratio: Tokens per entry.
        entries_per_block: Entries of this layer in one block.
        index_offset: Start of the index section.
        main_offset: Start of the main section.
    """

    layer: int
    ratio: int
    entries_per_block: int
    index_offset: int
    main_offset: int


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Everything about the caches that follows from configuration and numerics.

    Attributes:
        record_dtype: Element type of records: uint8 when packed, else the compute dtype.
        global_format: Format of a packed compressed entry.
        window_record: Elements of one window key.
        main_record: Elements of one compressed entry.
        index_codes: Elements of one index key without its scales.
        index_scales: Elements of the scales of one index key, 0 when unquantised.
        sections: One per KV source layer, in layer order.
        block_stride: Elements from one block to the next.
        num_window_layers: Layers with a window ring, drafter blocks behind the others.
        ring_len: Tokens of one ring.
        state_layers: Layers whose compressor pools several tokens.
        state_rows: Rows of compressor state per slot and layer.
        state_row: Numbers of one state row (gates and values).
        state_dtype: Dtype of compressor state.
    """

    record_dtype: torch.dtype
    global_format: GlobalFormat
    window_record: int
    main_record: int
    index_codes: int
    index_scales: int
    sections: tuple[GlobalSection, ...]
    block_stride: int
    num_window_layers: int
    ring_len: int
    state_layers: tuple[int, ...]
    state_rows: int
    state_row: int
    state_dtype: torch.dtype

    block_tokens = BLOCK_TOKENS

    @staticmethod
    def from_config(
        config: ModelConfig,
        numerics: Numerics,
        *,
        lookahead: int = 0,
        with_drafter: bool = False,
    ) -> CacheLayout:
        """Derives the layout.

        Args:
            config: The model.
            numerics: Storage and formats.
            lookahead: Most tokens of one request that may be taken back after a step (drafts of a
                speculative step). Rings keep that many tokens beyond the window.
            with_drafter: Whether the drafter's blocks have rings too.

        Raises:
            ValueError: `lookahead` is negative.
        """
        if lookahead < 0:
            raise ValueError(f"`lookahead` must be at least 0: {lookahead}")
        window, main, codes, scales = _record_sizes(config, numerics)
        sections: list[GlobalSection] = []
        end = 0
        for layer in config.kv_source_layer_ids:
            ratio = config.ratio(layer)
            entries = BLOCK_TOKENS // ratio
            index_offset = end
            main_offset = index_offset + _round_up(entries * (codes + scales), _SECTION_ALIGNMENT)
            end = main_offset + _round_up(entries * main, _SECTION_ALIGNMENT)
            sections.append(GlobalSection(layer, ratio, entries, index_offset, main_offset))
        # A stride that every record size divides makes a section a plain array of rows.
        stride_unit = math.lcm(_BLOCK_ALIGNMENT, main, codes, max(scales, 1))
        ratios = {section.layer: section.ratio for section in sections}
        return CacheLayout(
            record_dtype=torch.uint8 if numerics.is_packed else numerics.compute_dtype,
            global_format=numerics.global_format,
            window_record=window,
            main_record=main,
            index_codes=codes,
            index_scales=scales,
            sections=tuple(sections),
            block_stride=_round_up(end, stride_unit),
            num_window_layers=config.num_hidden_layers
            + (config.num_nextn_predict_layers if with_drafter else 0),
            ring_len=config.sliding_window + lookahead,
            state_layers=tuple(layer for layer, ratio in ratios.items() if ratio > 1),
            state_rows=max(ratios.values(), default=1) + lookahead,
            state_row=2 * config.head_dim,
            state_dtype=numerics.wide_dtype,
        )

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one 128-token block of the global cache."""
        return self.block_stride * self.record_dtype.itemsize

    @property
    def bytes_per_state_slot(self) -> int:
        """Bytes of window rings and compressor state of one request."""
        rings = self.num_window_layers * self.ring_len * self.window_record
        state = len(self.state_layers) * self.state_rows * self.state_row
        return rings * self.record_dtype.itemsize + state * self.state_dtype.itemsize

    def section(self, layer: int) -> GlobalSection:
        """The section of KV source layer `layer`."""
        for section in self.sections:
            if section.layer == layer:
                return section
        sources = [section.layer for section in self.sections]
        raise ValueError(f"layer {layer} is not a KV source: sources are {sources}")


def _record_sizes(config: ModelConfig, numerics: Numerics) -> tuple[int, int, int, int]:
    """Elements of a window record, a main record, index codes and index scales."""
    head, index = config.head_dim, config.index_head_dim
    if not numerics.is_packed:
        return head, head, index, 0
    mxfp8 = head + head // _FP8_GROUP
    fp4 = head // 2 + head // _FP4_ENTRY_GROUP
    main = fp4 if numerics.global_format == "fp4" else mxfp8
    return mxfp8, main, index // 2, index // _FP4_INDEX_GROUP


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
