"""Calls of every op with an independent answer, shared by `check`, `bench` and the tests."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from di_kernels.cases import draw, formats, fused, layers, tokens
from di_kernels.cases.case import REAL, SMALL, Case, Sizes, Source
from di_kernels.registry import FLOATS

SIZES = {"small": SMALL, "real": REAL}


def all_cases(
    sizes: Sizes,
    device: str | torch.device,
    *,
    dtypes: tuple[torch.dtype, ...] = FLOATS,
    rows: tuple[int, ...] | None = None,
    batch_invariant: bool = False,
    seed: int = 0,
) -> Iterator[Case]:
    """Cases of all ops; equal arguments give equal inputs.

    Args:
        sizes: Widths.
        device: Where the tensors lie.
        dtypes: Dtypes of the leading tensors.
        rows: Numbers of rows; those of `sizes` when None.
        batch_invariant: What ops with that argument are called with.
        seed: Seed of the inputs.
    """
    for dtype in dtypes:
        for num_rows in rows or sizes.rows:
            for module in (formats, layers, fused, draw, tokens):
                generator = torch.Generator().manual_seed(seed)
                source = Source(torch.device(device), dtype, batch_invariant, generator)
                yield from module.cases(sizes, source, num_rows)


__all__ = ["REAL", "SIZES", "SMALL", "Case", "Sizes", "Source", "all_cases"]
