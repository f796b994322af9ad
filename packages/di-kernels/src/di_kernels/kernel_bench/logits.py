"""The logits of the release: bfloat16 weights as they are, and kept in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Source
from di_kernels.cases.kernels.release import HIDDEN, VOCABULARY
from di_kernels.kernel_bench.timing import Workload

_BLOCKS = 101


def logits(source: Source) -> Iterator[Workload]:
    """Decode sizes; prefill needs the logits of one row."""
    weight = source.normal(VOCABULARY // _BLOCKS, HIDDEN).repeat(_BLOCKS, 1)
    wide = weight.float()
    for num_rows in (1, 16, 64, 256):
        x = source.normal(num_rows, HIDDEN)

        def cublas(x: torch.Tensor = x) -> torch.Tensor:
            return ops.linear(x, weight, out_dtype=torch.float32)

        def float32(x: torch.Tensor = x) -> torch.Tensor:
            return torch.nn.functional.linear(x.float(), wide)

        ways: dict[str, Callable[[], object]] = {"cublas": cublas, "torch float32": float32}
        moved = weight.nbytes + x.nbytes + 4 * num_rows * VOCABULARY
        flops = 2 * num_rows * weight.numel()
        yield Workload("linear", f"logits, {num_rows} rows", ways, moved, flops)
