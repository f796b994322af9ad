"""Matrix products of rows, plain and batch invariant.

On a CPU the library behind `torch.nn.functional.linear` picks another algorithm for 1 row than for
64, so that a row's last bits depend on how many rows are beside it. With `batch_invariant` every
product is made of calls of one shape, `ROW_TILE` rows, the last tile filled up with zero rows. Rows
begin at multiples of 64 bytes, filled up with zero columns: a library may sum a row by where it
lies (seen with 33 columns on an AMD EPYC). What then holds the promise is the library's arithmetic:
in a call of fixed shape every row of the result is summed in the same order, wherever in the tile
it lies. No vendor documents that; `python -m di_kernels check` verifies it on the machine at hand.
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear, pad

ROW_TILE = 16
_ALIGNMENT = 64


def matmul_rows(x: torch.Tensor, weight: torch.Tensor, *, batch_invariant: bool) -> torch.Tensor:
    """`x @ weight.T`.

    Args:
        x: Rows, shape (num_rows, size), the dtype of `weight`.
        weight: Shape (out_size, size).
        batch_invariant: Whether a row's bits must not depend on the other rows.

    Returns:
        Shape (num_rows, out_size).
    """
    if not batch_invariant:
        return linear(x, weight)
    missing = -x.shape[1] % (_ALIGNMENT // x.element_size())
    if missing:
        x, weight = pad(x, (0, missing)), pad(weight, (0, missing))
    elif x.data_ptr() % _ALIGNMENT:
        x = x.clone()
    return torch.cat([linear(tile, weight) for tile in row_tiles(x)])[: x.shape[0]]


def row_tiles(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows in tiles of `ROW_TILE`, at least one, the last filled up with zeros."""
    num_rows = x.shape[0]
    missing = -num_rows % ROW_TILE if num_rows else ROW_TILE
    padded = pad(x, (0, 0) * (x.dim() - 1) + (0, missing)) if missing else x
    return torch.split(padded, ROW_TILE)
