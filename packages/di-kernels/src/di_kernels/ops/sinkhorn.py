"""Sinkhorn normalisation of the hyper-connections' residual mixes, and two forms for few rows.

From logits A: R = softmax over columns of A, plus eps on every entry; divide by column sums + eps;
then `iterations` - 1 times: divide by row sums + eps, divide by column sums + eps (DeepSeek-V4.1
reference `inference/kernel.py`). The columns of the result sum to 1 within about eps, the rows only
approximately.

Nearly all the time of the reference at few rows is the price of its 120 torch calls on 16 numbers
each, so the CPU has two more forms, without gradients: the same steps in numpy, whose calls are
cheaper, and plain Python for one 4 x 4 matrix.
"""

from __future__ import annotations

import numpy as np
import torch

from di_kernels.checks import check_shape
from di_kernels.registry import Backend, Op, SizeRule


def hc_sinkhorn(
    logits: torch.Tensor, iterations: int, eps: float = 1e-6, *, batch_invariant: bool = False
) -> torch.Tensor:
    """Near doubly stochastic matrices from logits.

    Args:
        logits: Shape (num_rows, copies, copies), float32 or float64.
        iterations: Column normalisations, at least 1.
        eps: Added to every entry once and to every sum.
        batch_invariant: Serve with a form whose bits do not depend on the number of rows.

    Returns:
        Shape and dtype of `logits`; row index = source copy, column index = destination copy.

    Raises:
        ValueError: Another shape, or `iterations` below 1.
    """
    check_shape("logits", logits, (None, logits.shape[-1], logits.shape[-1]))
    if iterations < 1:
        raise ValueError(f"invalid `iterations`: expected at least 1, got: {iterations}")
    run = HC_SINKHORN.select(
        logits, row_invariant=batch_invariant, rows=logits.shape[0], copies=logits.shape[1]
    )
    return run(logits, iterations, eps)


def _reference(logits: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
    """Alternating division by row and column sums in torch."""
    mix = torch.softmax(logits, dim=-1) + eps
    mix = mix / (mix.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        mix = mix / (mix.sum(-1, keepdim=True) + eps)
        mix = mix / (mix.sum(-2, keepdim=True) + eps)
    return mix


def _numpy(logits: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
    """The same steps in numpy, in place, rows of the batch innermost: the reference's bits.

    Sums run over an outer axis, which numpy adds up elementwise in index order. A single row would
    make that axis the inner one and change the order, so it is computed twice side by side.
    """
    rows = logits.shape[0]
    start = torch.softmax(logits, dim=-1).permute(1, 2, 0)
    start = start.expand(-1, -1, 2).contiguous() if rows == 1 else start.contiguous()
    mix = start.numpy()
    mix += eps
    sums = np.empty_like(mix[0])
    row_sums = sums[:, None]
    add_up, add, divide = np.add.reduce, np.add, np.divide
    add_up(mix, 0, None, sums)
    add(sums, eps, sums)
    divide(mix, sums, mix)
    for _ in range(iterations - 1):
        add_up(mix, 1, None, sums)
        add(sums, eps, sums)
        divide(mix, row_sums, mix)
        add_up(mix, 0, None, sums)
        add(sums, eps, sums)
        divide(mix, sums, mix)
    return start.permute(2, 0, 1)[:rows]


def _single_row(logits: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
    """One 4 x 4 matrix in Python floats, as factors of its rows and columns.

    The entries stay k[i][j] / (u[i] * v[j]); a row step sets u[i] = sum of k[i][j] / v[j] + eps *
    u[i], a column step v[j] likewise.
    """
    kernel = torch.softmax(logits[0].to(torch.float64), dim=-1) + eps
    (k00, k01, k02, k03), (k10, k11, k12, k13), (k20, k21, k22, k23), (k30, k31, k32, k33) = (
        kernel.tolist()
    )
    u0 = u1 = u2 = u3 = 1.0
    v0, v1 = k00 + k10 + k20 + k30 + eps, k01 + k11 + k21 + k31 + eps
    v2, v3 = k02 + k12 + k22 + k32 + eps, k03 + k13 + k23 + k33 + eps
    for _ in range(iterations - 1):
        c0, c1, c2, c3 = 1 / v0, 1 / v1, 1 / v2, 1 / v3
        u0 = k00 * c0 + k01 * c1 + k02 * c2 + k03 * c3 + eps * u0
        u1 = k10 * c0 + k11 * c1 + k12 * c2 + k13 * c3 + eps * u1
        u2 = k20 * c0 + k21 * c1 + k22 * c2 + k23 * c3 + eps * u2
        u3 = k30 * c0 + k31 * c1 + k32 * c2 + k33 * c3 + eps * u3
        r0, r1, r2, r3 = 1 / u0, 1 / u1, 1 / u2, 1 / u3
        v0 = k00 * r0 + k10 * r1 + k20 * r2 + k30 * r3 + eps * v0
        v1 = k01 * r0 + k11 * r1 + k21 * r2 + k31 * r3 + eps * v1
        v2 = k02 * r0 + k12 * r1 + k22 * r2 + k32 * r3 + eps * v2
        v3 = k03 * r0 + k13 * r1 + k23 * r2 + k33 * r3 + eps * v3
    factors = torch.tensor((u0, u1, u2, u3, v0, v1, v2, v3), dtype=torch.float64)
    mix = kernel / factors[:4, None] / factors[4:]
    return mix.to(logits.dtype).unsqueeze(0)


_WIDE = (torch.float32, torch.float64)
HC_SINKHORN = Op("hc_sinkhorn", _reference, dtypes=_WIDE)
HC_SINKHORN.register(
    Backend(
        "numpy",
        _numpy,
        device_types=("cpu",),
        dtypes=_WIDE,
        size_rules=(SizeRule("rows", minimum=1),),
        determinism="row_invariant",
        note="The reference's steps in numpy: its bits in less than half its time.",
    )
)
HC_SINKHORN.register(
    Backend(
        "scalar",
        _single_row,
        device_types=("cpu",),
        dtypes=_WIDE,
        size_rules=(
            SizeRule("rows", minimum=1, maximum=1),
            SizeRule("copies", minimum=4, maximum=4),
        ),
        determinism="repeatable",
        note="One 4 x 4 matrix in Python floats: about a quarter of the reference's time.",
    )
)
