"""Selections: the best entries, and the best blocks of eight."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from di_kernels.tile.kernel import Kernel

if TYPE_CHECKING:
    from di_kernels.tile.select_steps import Selection

BLOCK_ENTRIES = 16_384
CLUSTER_ENTRIES = 131_072
"""Candidates that one thread block and a cluster keep in shared memory."""

_SCORE_BITS = {torch.float32: 32, torch.bfloat16: 16}
_OPS = {1: "select_topk", 8: "select_candidate_blocks"}
# Thread blocks per row, whether the scores stay in shared memory, whether the first count takes the
# best of every four (of a few times k groups, few keys lie above the k-th best), and the candidates
# of a warp in shared memory.
_VARIANTS = {
    "block": (1, True, True, 1024), "cluster": (8, True, False, 1024),
    "six": (6, True, False, 1408), "long": (8, False, False, 1024),
}  # fmt: skip
_CLUSTER = {"sm_80": "a row's thread blocks add their counts up in a cluster's shared memory"}
_SIX = {"sm_120a": "a sixth of a row does not fit its shared memory"}


def selection_name(dtype: torch.dtype, block_size: int, variant: str) -> str:
    """Name of the kernel for scores of a dtype."""
    return f"{_OPS[block_size]}_{_SCORE_BITS[dtype]}_{variant}"


def _selection(
    architecture: str, *, score_bits: int, block_size: int, variant: tuple[int, bool, bool, int]
) -> object:
    from di_kernels.tile.select_steps import Selection
    from di_kernels.tile.selection import select_best

    shape = Selection(score_bits, variant[0], block_size, *variant[1:])
    return select_best(shape, blocks_per_sm=_blocks_per_sm(architecture, shape))


def _blocks_per_sm(architecture: str, shape: Selection) -> int:
    """Thread blocks that a multiprocessor takes; two leave a thread 64 registers."""
    # More keys of a warp leave shared memory for one; what reads its scores again needs more
    # registers, but for the code of sm_90a.
    fits_two = shape.keys == 1024 and (shape.is_kept or architecture == "sm_90a")
    return 2 if fits_two else 1


def kernels() -> list[Kernel]:
    """Both ops, both dtypes of scores, by one block, clusters, and a cluster that reads again."""
    return [
        Kernel(
            selection_name(dtype, block_size, name),
            (op,),
            functools.partial(
                _selection, score_bits=score_bits, block_size=block_size, variant=variant
            ),
            undeclared=(_CLUSTER if variant[0] > 1 else {}) | (_SIX if name == "six" else {}),
        )
        for block_size, op in _OPS.items()
        for dtype, score_bits in _SCORE_BITS.items()
        for name, variant in _VARIANTS.items()
        if name != "six" or block_size == 1
    ]
