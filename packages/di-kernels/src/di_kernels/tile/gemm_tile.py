"""How the products with weights in fragment order cut their work."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 64
"""Weight rows and columns of a block in fragment order."""

HOPPER_ARCHITECTURE = "sm_90a"
HOPPER_MULTIPROCESSORS = 132
"""Of an H100 or H200 (SXM); on others thread blocks of a fixed number wait or leave some idle."""

CODE_WORDS = {"mxfp4": 512, "mxfp8": 1024}
SCALE_WORDS = {"mxfp4": 32, "mxfp8": 8}


@dataclass(frozen=True)
class GemmTile:
    """Work of one thread block.

    Args:
        weight: `mxfp4` or `mxfp8`.
        tokens: Rows of x per tile, a multiple of 8.
        warp_groups: Warp groups, 64 weight rows each.
        stage_blocks: Blocks of 64 columns per pipeline stage.
        stages: Pipeline stages.
        blocks_per_sm: Thread blocks meant to share a multiprocessor.
        overlaps: Convert a block while the one before is multiplied (wgmma, sm_90a).
    """

    weight: str
    tokens: int
    warp_groups: int
    stage_blocks: int
    stages: int
    blocks_per_sm: int
    overlaps: bool = False

    @property
    def weight_rows(self) -> int:
        """Weight rows per thread block."""
        return BLOCK * self.warp_groups

    @property
    def threads(self) -> int:
        """Threads that multiply; sm_90a and later add some that copy."""
        return 128 * self.warp_groups


@dataclass(frozen=True)
class RolesTile(GemmTile):
    """Work of one thread block whose warps have roles, see `di_kernels.tile.roles`.

    Args:
        stored_tokens: Tokens whose results are stored together, a divisor of `tokens`.
        row_tiles: Tiles of 64 weight rows per warp group, which share the rows of x.
        moves_registers: The threads that copy leave registers to those that multiply.
        grid: Thread blocks that share all tiles (`di_kernels.tile.shares`); 0 for a thread block
            per tile.
        uses_mma_sync: Multiply bfloat16 by mma.sync instead of wgmma.
    """

    stored_tokens: int = 8
    row_tiles: int = 1
    moves_registers: bool = False
    grid: int = 0
    uses_mma_sync: bool = False

    @property
    def uses_own_wgmma(self) -> bool:
        """Whether tokens are an odd multiple of 8, of which TileLang makes products of 8."""
        return self.tokens > 8 and self.tokens % 16 == 8

    @property
    def weight_rows(self) -> int:
        """Weight rows per thread block."""
        return BLOCK * self.warp_groups * self.row_tiles
