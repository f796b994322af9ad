"""Caches of the text model: paged global entries, window rings, compressor state."""

from di_engine.cache.cache import Cache
from di_engine.cache.layout import BLOCK_TOKENS, CacheLayout, GlobalSection

__all__ = ["BLOCK_TOKENS", "Cache", "CacheLayout", "GlobalSection"]
