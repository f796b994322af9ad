"""Caches of the text model: paged global entries, window rings, compressor state."""

from di_engine.cache.cache import Cache
from di_engine.cache.layout import BLOCK_TOKENS, CacheLayout, GlobalSection
from di_engine.cache.snapshots import RingSnapshots

__all__ = ["BLOCK_TOKENS", "Cache", "CacheLayout", "GlobalSection", "RingSnapshots"]
