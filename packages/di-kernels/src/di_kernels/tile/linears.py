"""`mxfp8_linear` and `grouped_linear` by TileLang, and the choice of tile and split."""

from __future__ import annotations

import torch

from di_kernels.fragments import MXFP8FragmentWeight
from di_kernels.ops.quantize import mxfp8_fake_quantize
from di_kernels.tile.catalogue import kernel_for
from di_kernels.tile.catalogue.products import LINEAR_TILES, linear_name

# Most parts of the columns: sums of few rows are small, but so is what is left to divide.
_MAX_PARTS = {8: 4, 16: 4, 32: 4, 64: 4, 128: 8, 256: 8}


def parts_for(row_blocks: int, token_tiles: int, steps: int, tokens: int, slots: int) -> int:
    """Parts of the columns: as many as fill the device once, each with at least two steps.

    Args:
        row_blocks: Weight rows / 64, all groups together.
        token_tiles: Tiles of rows of x.
        steps: Pipeline steps of the whole columns.
        tokens: Rows of x per tile.
        slots: Blocks of 64 weight rows the device works on at a time.
    """
    fitting = max(1, slots // (row_blocks * token_tiles))
    wanted = min(_MAX_PARTS[tokens], fitting, max(1, steps // 2))
    part_steps = -(-steps // wanted)
    return -(-steps // part_steps)


def mxfp8_linear(
    x: torch.Tensor,
    weight: MXFP8FragmentWeight,
    quantize_input: bool,
    out_dtype: torch.dtype,
    batch_invariant: bool,
) -> torch.Tensor:
    """Arguments as the op passes them."""
    rows = mxfp8_fake_quantize(x) if quantize_input else x
    flat = rows.reshape(-1, 1, x.shape[-1])
    y = grouped_linear(flat, weight, out_dtype, batch_invariant)
    return y.view(*x.shape[:-1], weight.shape[0])


def grouped_linear(
    x: torch.Tensor, weight: MXFP8FragmentWeight, out_dtype: torch.dtype, batch_invariant: bool
) -> torch.Tensor:
    """Arguments as the op passes them; with `batch_invariant` the columns are never split."""
    num_rows, groups, size = x.shape
    row_blocks = weight.codes.shape[0] // groups
    out = x.new_empty(num_rows, groups, row_blocks * 64)
    if num_rows == 0:
        return out
    tokens = next((tile for tile in LINEAR_TILES if num_rows <= tile), max(LINEAR_TILES))
    depth = LINEAR_TILES[tokens][1]
    steps, parts = size // (64 * depth), 1
    if not batch_invariant:
        multiprocessors = torch.cuda.get_device_properties(x.device).multi_processor_count
        parts = parts_for(
            groups * row_blocks, -(-num_rows // tokens), steps, tokens, 2 * multiprocessors
        )
    part_steps = -(-steps // parts)
    target = out if parts == 1 else out.new_empty((parts, *out.shape), dtype=torch.float32)
    kernel_for(linear_name(tokens, is_split=parts > 1), x.device)(
        weight.codes.view(torch.uint32).view(groups, row_blocks, *weight.codes.shape[1:]),
        weight.scales.view(torch.uint32).view(groups, row_blocks, *weight.scales.shape[1:]),
        x.reshape(num_rows, groups * size), part_steps,
        target.view(parts, num_rows, groups, row_blocks, 64),
    )  # fmt: skip
    if parts > 1:
        kernel_for("sum_of_parts", x.device)(target.view(parts, -1), out.view(-1))
    return out if out_dtype == out.dtype else out.to(out_dtype)
