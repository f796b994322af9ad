"""`mxfp8_linear` and `grouped_linear` by TileLang, and the choice of tile and split."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from di_kernels.fragments import MXFP8FragmentWeight
from di_kernels.ops.quantize import mxfp8_fake_quantize
from di_kernels.tile.catalogue import kernel_for
from di_kernels.tile.catalogue.few_rows import CLUSTER, FEW_ROWS_TILES, WHOLE_TILES, few_rows_name
from di_kernels.tile.catalogue.products import LINEAR_TILES, linear_name, linear_sizes
from di_kernels.tile.toolchain import architecture_of


class FewRowsPlan(NamedTuple):
    """How a product of few rows is cut.

    Args:
        tokens: Rows per tile.
        sums: `whole`, or `cluster` for parts of the columns in the blocks of one.
        part_steps: Pipeline steps of a part.
    """

    tokens: int
    sums: str
    part_steps: int


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
    num_rows, groups = x.shape[:2]
    out = x.new_empty(num_rows, groups, weight.shape[0] // groups)
    if num_rows == 0:
        return out
    multiprocessors = torch.cuda.get_device_properties(x.device).multi_processor_count
    row_blocks, size = weight.codes.shape[0], weight.shape[1]
    plan = few_rows_plan(num_rows, row_blocks, size, multiprocessors, batch_invariant)
    if plan is None:
        launch_tiles(x, weight, out, multiprocessors, batch_invariant=batch_invariant)
    else:
        kernel = kernel_for(few_rows_name(plan.tokens, plan.sums), x.device)
        launch_few_rows(plan, kernel, x, weight, out)
    return out if out_dtype == out.dtype else out.to(out_dtype)


def few_rows_plan(
    num_rows: int, row_blocks: int, size: int, multiprocessors: int, batch_invariant: bool
) -> FewRowsPlan | None:
    """Who has kernels of its own for few rows; None where tiles and a sum over parts are faster.

    That is a matrix so wide that it needs no parts, and one so narrow that all blocks of its
    clusters run at once, one per multiprocessor (times: `docs/performance/kernels.md`).

    Args:
        num_rows: Rows of x.
        row_blocks: Weight rows / 64, all groups together.
        size: Columns.
        multiprocessors: Of the device.
        batch_invariant: No parts.
    """
    tokens = next((tile for tile in FEW_ROWS_TILES if num_rows <= tile), None)
    if tokens is None:
        return None
    warp_groups, depth = FEW_ROWS_TILES[tokens][:2]
    steps = size // (64 * depth)
    is_narrow = row_blocks // warp_groups * CLUSTER <= multiprocessors and steps >= CLUSTER
    if is_narrow and not batch_invariant:
        return FewRowsPlan(tokens, "cluster", -(-steps // CLUSTER))
    slots = warp_groups * multiprocessors
    needs_parts = not batch_invariant and parts_for(row_blocks, 1, steps, tokens, slots) > 1
    if needs_parts or tokens not in WHOLE_TILES:
        return None
    return FewRowsPlan(tokens, "whole", steps)


def launch_few_rows(
    plan: FewRowsPlan,
    kernel: Callable[..., None],
    x: torch.Tensor,
    weight: MXFP8FragmentWeight,
    out: torch.Tensor,
) -> None:
    """One launch.

    Args:
        plan: How the product is cut.
        kernel: The plan's kernel.
        x: Shape (rows, groups, columns).
        weight: The matrices, group after group.
        out: Shape (rows, groups, weight rows of a group).
    """
    num_rows, groups, size = x.shape
    kernel(
        *_words(weight, groups), x.reshape(num_rows, groups * size), plan.part_steps,
        out.view(1, num_rows, groups, out.shape[2] // 64, 64),
    )  # fmt: skip


def launch_tiles(
    x: torch.Tensor,
    weight: MXFP8FragmentWeight,
    out: torch.Tensor,
    multiprocessors: int,
    *,
    batch_invariant: bool,
) -> None:
    """One launch, and another that adds the parts where the columns are split."""
    num_rows, groups, size = x.shape
    row_blocks = weight.codes.shape[0] // groups
    tokens = next((tile for tile in LINEAR_TILES if num_rows <= tile), max(LINEAR_TILES))
    depth = linear_sizes(tokens, architecture_of(x.device))[1]
    steps, parts = size // (64 * depth), 1
    if not batch_invariant:
        parts = parts_for(
            groups * row_blocks, -(-num_rows // tokens), steps, tokens, 2 * multiprocessors
        )
    target = out if parts == 1 else out.new_empty((parts, *out.shape), dtype=torch.float32)
    kernel_for(linear_name(tokens, is_split=parts > 1), x.device)(
        *_words(weight, groups), x.reshape(num_rows, groups * size), -(-steps // parts),
        target.view(parts, num_rows, groups, row_blocks, 64),
    )  # fmt: skip
    if parts > 1:
        kernel_for("sum_of_parts", x.device)(target.view(parts, -1, 4), out.view(-1, 4))


def _words(weight: MXFP8FragmentWeight, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales as words, group by group."""
    codes, scales = weight.codes.view(torch.uint32), weight.scales.view(torch.uint32)
    return codes.view(groups, -1, *codes.shape[1:]), scales.view(groups, -1, *scales.shape[1:])
