"""Which numbers the model computes with, and how its caches store them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from di_engine.errors import ConfigError

Arithmetic = Literal["float32", "float64", "native"]
CacheStorage = Literal["packed", "compute"]
GlobalFormat = Literal["fp4", "mxfp8"]

_COMPUTE_DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "native": torch.bfloat16,
}


@dataclass(frozen=True, slots=True)
class Numerics:
    """Arithmetic and cache storage of one loaded model.

    Attributes:
        arithmetic: ``float32`` and ``float64`` compute every product in that type and quantise no
            activation. ``native`` is the release's own: BF16 activations, MXFP8 quantisation of the
            inputs of quantised linears, rounding points of the DeepSeek-V4.1 reference
            (`inference/model.py`).
        cache_storage: ``packed`` quantises keys into byte records; ``compute`` keeps them
            unquantised in the compute dtype, for comparisons and debugging.
        global_format: Record of a compressed entry when packed: ``fp4`` (E2M1 codes with one E4M3
            scale per 16 channels, the release's choice) or ``mxfp8``.
        deterministic: A row's bits depend on its own request alone, not on the rows beside it.
    """

    arithmetic: Arithmetic = "native"
    cache_storage: CacheStorage = "packed"
    global_format: GlobalFormat = "fp4"
    deterministic: bool = False

    def __post_init__(self) -> None:
        allowed = {
            "arithmetic": get_args(Arithmetic),
            "cache_storage": get_args(CacheStorage),
            "global_format": get_args(GlobalFormat),
        }
        problems = [
            f"`{name}` must be one of {', '.join(values)}: {getattr(self, name)!r}"
            for name, values in allowed.items()
            if getattr(self, name) not in values
        ]
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def compute_dtype(self) -> torch.dtype:
        """Dtype of activations, expanded weights and unpacked keys."""
        return _COMPUTE_DTYPES[self.arithmetic]

    @property
    def wide_dtype(self) -> torch.dtype:
        """Dtype of statistics, logits and compressor state: at least float32."""
        return torch.float64 if self.arithmetic == "float64" else torch.float32

    @property
    def is_native(self) -> bool:
        """Whether activations are rounded and quantised as in the release."""
        return self.arithmetic == "native"

    @property
    def is_packed(self) -> bool:
        """Whether caches hold quantised byte records."""
        return self.cache_storage == "packed"
