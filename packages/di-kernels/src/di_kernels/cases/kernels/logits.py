"""Logits: bfloat16 rows and weights, a float32 result, against float64."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Case, Outputs, Source
from di_kernels.cases.kernels.release import HIDDEN, ROWS

_TOKENS = 1280


def cases(source: Source) -> Iterator[Case]:
    """A part of the vocabulary, all rows."""
    weight = source.normal(_TOKENS, HIDDEN, scale=HIDDEN**-0.5)
    for num_rows in ROWS:
        x = source.normal(num_rows, HIDDEN)

        def run(rows: torch.Tensor, x: torch.Tensor = x) -> Outputs:
            out = ops.linear(
                x[rows], weight, out_dtype=torch.float32, batch_invariant=source.batch_invariant
            )
            return (out,)

        def oracle(x: torch.Tensor = x) -> Outputs:
            return (x.double() @ weight.double().T,)

        label = f"logits {num_rows}x{_TOKENS}x{HIDDEN}"
        yield Case("linear", label, source.dtype, num_rows, run, oracle)
