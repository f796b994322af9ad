"""Window rings that outlive their request, for prefix-cache hits that start at a block boundary.

A ring is copied whole. Read back at position `p`, its rows for `p - window` to `p - 1` are those
that the saved request wrote; later ones are overwritten before they are read. Compressor state is
not kept: at a block boundary every group of tokens is complete.
"""

from __future__ import annotations

import torch
from torch import Tensor

from di_engine.cache.cache import Cache
from di_engine.cache.layout import CacheLayout

__all__ = ["RingSnapshots"]


class RingSnapshots:
    """Room for saved window rings.

    Args:
        layout: Sizes of a ring.
        num_slots: How many snapshots fit.
        device: Where the caches are.
        num_layers: How many layers from the first on are kept; None for all.
    """

    def __init__(
        self,
        layout: CacheLayout,
        num_slots: int,
        device: torch.device | str = "cpu",
        num_layers: int | None = None,
    ) -> None:
        self._num_layers = layout.num_window_layers if num_layers is None else num_layers
        self._rings = torch.zeros(
            (num_slots, self._num_layers, layout.ring_len, layout.window_record),
            dtype=layout.record_dtype,
            device=device,
        )

    @staticmethod
    def bytes_per_slot(layout: CacheLayout, num_layers: int | None = None) -> int:
        """Bytes of one snapshot: the window rings of the first `num_layers` layers, or of all."""
        layers = layout.num_window_layers if num_layers is None else num_layers
        records = layers * layout.ring_len
        return records * layout.window_record * layout.record_dtype.itemsize

    @property
    def num_bytes(self) -> int:
        """Bytes of all snapshots."""
        return self._rings.nbytes

    def save(self, cache: Cache, slots: Tensor, snapshot_ids: Tensor) -> None:
        """Copies the rings of state slots, int64 [S], to snapshots, int64 [S]."""
        self._rings[snapshot_ids] = self._by_slot(cache)[:, slots].transpose(0, 1)

    def restore(self, cache: Cache, slots: Tensor, snapshot_ids: Tensor) -> None:
        """Copies snapshots, int64 [S], to the rings of state slots, int64 [S]."""
        self._by_slot(cache)[:, slots] = self._rings[snapshot_ids].transpose(0, 1)

    def _by_slot(self, cache: Cache) -> Tensor:
        """Rings of the kept layers, shape [layers, state slots, ring_len, record]; a view."""
        rings: Tensor = cache.rings[: self._num_layers].unflatten(1, (-1, cache.layout.ring_len))
        return rings
