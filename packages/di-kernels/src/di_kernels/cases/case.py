"""What a case is: inputs of an op, a way to run some of its rows, and what must come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Outputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Widths of a model, as the cases need them."""

    rows: tuple[int, ...]
    hidden: int
    heads: int
    head_dim: int
    rotary_dim: int
    lora: int
    groups: int
    window: int
    topk: int
    entries_per_block: int
    index_heads: int
    index_dim: int
    entries: int
    experts: int
    active_experts: int
    expert_size: int
    copies: int
    engram_columns: int
    engram_dim: int


SMALL = Sizes(
    rows=(1, 2, 33), hidden=96, heads=4, head_dim=64, rotary_dim=32, lora=64, groups=2, window=16,
    topk=12, entries_per_block=16, index_heads=4, index_dim=32, entries=75, experts=8,
    active_experts=3, expert_size=64, copies=4, engram_columns=6, engram_dim=32,
)  # fmt: skip
"""Sizes of a tiny model; awkward numbers of rows and entries."""

REAL = Sizes(
    rows=(1, 8), hidden=5120, heads=64, head_dim=512, rotary_dim=64, lora=1280, groups=8,
    window=128, topk=512, entries_per_block=128, index_heads=32, index_dim=128, entries=4096,
    experts=4, active_experts=3, expert_size=2304, copies=4, engram_columns=24, engram_dim=256,
)  # fmt: skip
"""Widths of the DeepSeek-V4.1-Flash release, with 4 of its 384 experts."""


@dataclass(frozen=True, slots=True)
class Case:
    """One call of an op.

    Args:
        op: Name of the op.
        label: Sizes in words.
        dtype: Dtype of the leading tensor.
        num_rows: Rows of the call.
        run: Runs the op on the rows of an index tensor and returns what it gives for them.
        oracle: What all rows should give, from an independent formula, usually in float64.
        is_exact: The oracle must be met without any difference.
        num_bytes: Bytes the op must read and write at least.
        num_flops: Multiplications and additions it must do.
        tolerance: Largest relative RMS error where that of the dtype does not hold, because a
            rounding step inside turns small differences into larger ones.
    """

    op: str
    label: str
    dtype: torch.dtype
    num_rows: int
    run: Callable[[torch.Tensor], Outputs]
    oracle: Callable[[], Outputs]
    is_exact: bool = False
    num_bytes: int = 0
    num_flops: int = 0
    tolerance: float | None = None

    @property
    def name(self) -> str:
        """Op, sizes and dtype in one string."""
        return f"{self.op}[{self.label}, {str(self.dtype).removeprefix('torch.')}]"

    @property
    def all_rows(self) -> torch.Tensor:
        """Index of every row."""
        return torch.arange(self.num_rows)


@dataclass(frozen=True, slots=True)
class Source:
    """Random inputs on a device, always the same for the same seed.

    Args:
        device: Where the tensors lie.
        dtype: Dtype of the leading tensors.
        batch_invariant: What ops with that argument are called with.
        generator: Where the values come from; large inputs of a GPU are drawn faster on it.
    """

    device: torch.device
    dtype: torch.dtype
    batch_invariant: bool
    generator: torch.Generator

    def normal(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Normal values in the case's dtype."""
        values = self._randn(*shape) * scale
        return values.to(self.device, self.dtype)

    def wide(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Normal values in float32, or float64 for a float64 case."""
        dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
        values = self._randn(*shape) * scale
        return values.to(self.device, dtype)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Integers from `low` up to below `high`."""
        drawn = torch.randint(
            low, high, shape, generator=self.generator, device=self.generator.device
        )
        return drawn.to(self.device)

    def permutation(self, size: int) -> torch.Tensor:
        """The integers below `size` in random order."""
        drawn = torch.randperm(size, generator=self.generator, device=self.generator.device)
        return drawn.to(self.device)

    def _randn(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator, device=self.generator.device)


def nbytes(*tensors: torch.Tensor) -> int:
    """Bytes of tensors together."""
    return sum(tensor.nbytes for tensor in tensors)
