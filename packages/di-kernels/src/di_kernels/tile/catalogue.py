"""Every kernel and variant: how it is built, and for which architectures.

Names are what `python -m di_kernels compile` prints. A kernel that is not declared for an
architecture says why.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from di_kernels.tile.toolchain import ARCHITECTURES, architecture_of, compile_kernel, require_tools

if TYPE_CHECKING:
    from di_kernels.tile.gemm import GemmTile

Options = tuple[tuple[str, object], ...]

# Every access is guarded by the kernels themselves; TileLang's own bounds tests cost registers and
# minutes of lowering with sizes known at run time only.
_UNGUARDED: Options = (("tl.disable_safe_memory_legalize", True),)
_FAST_MATH: Options = (*_UNGUARDED, ("tl.enable_fast_math", True))
_MMA_SYNC: Options = (*_UNGUARDED, ("tl.disable_wgmma", True))

_TOO_LARGE = {"sm_120a": "needs 160 KB of shared memory, sm_120 has 99; the tile of 128 serves"}
_SPILLS = {"sm_80": "mma.sync with 256 rows and SwiGLU needs over 255 registers; 128 serve"}
_ROLES = "warp roles hand tiles over with barriers and wgmma of sm_90a"


@dataclass(frozen=True)
class Kernel:
    """One kernel of the catalogue.

    Args:
        name: Unique name.
        ops: Ops that launch it.
        build: Gives the TileLang function for an architecture; imports TileLang.
        options: TileLang pass options.
        has_tensor_core: Whether matrix instructions must appear in the code.
        undeclared: Architectures it is not built for, with the reason.
    """

    name: str
    ops: tuple[str, ...]
    build: Callable[[str], object]
    options: Options = _UNGUARDED
    has_tensor_core: bool = False
    undeclared: dict[str, str] = field(default_factory=dict)

    def options_for(self, architecture: str) -> Options:
        """Pass options; sm_80 has no tensor copies that stop at a tensor's end, so it tests."""
        if architecture == "sm_80":
            return tuple(option for option in self.options if option not in _UNGUARDED)
        return self.options

    @property
    def architectures(self) -> tuple[str, ...]:
        """Architectures it is declared for."""
        return tuple(name for name in ARCHITECTURES if name not in self.undeclared)


# Tokens per tile: (warp groups, blocks of 64 columns per stage, stages, thread blocks per SM).
# Measured on an H200, see `docs/performance/kernels.md`.
ROUTED_TILES = {
    8: (1, 4, 4, 4),
    16: (2, 4, 2, 3),
    32: (1, 4, 2, 4),
    64: (2, 4, 2, 2),
    128: (2, 4, 2, 1),
    256: (2, 1, 4, 1),
}
LINEAR_TILES = {
    8: (2, 4, 3, 2),
    16: (1, 4, 3, 3),
    32: (2, 4, 2, 2),
    64: (1, 4, 2, 2),
    128: (2, 2, 4, 1),
    256: (2, 2, 2, 1),
}
# Tiles for architectures with less shared memory. TileLang 0.1.15 lowers no more than two stages
# for sm_80 where the number of steps is known at run time only.
_SMALL_TILES = {
    "mxfp4": {8: (1, 4, 2, 4), 128: (2, 1, 2, 1), 256: (2, 1, 2, 1)},
    "mxfp8": {8: (2, 4, 2, 2), 16: (2, 4, 2, 2), 64: (2, 2, 2, 1), 128: (2, 2, 2, 1)},
}
_SMALL_MEMORY = ("sm_80", "sm_120a")
# mma.sync beats wgmma by a percent or two where 8 rows leave the tensor core idle.
_MMA_SYNC_TOKENS = 8
# Tiles that gain from converting a block while the one before is multiplied.
_OVERLAPPED = {"mxfp4": (128,), "mxfp8": (16, 32, 64, 128)}


def routed_name(tokens: int, *, swiglu: bool) -> str:
    """Catalogue name of a routed MXFP4 product."""
    return f"mxfp4_routed_{'swiglu' if swiglu else 'plain'}_{tokens}"


def linear_name(tokens: int, *, is_split: bool) -> str:
    """Catalogue name of a grouped MXFP8 product."""
    return f"mxfp8_grouped_{'split' if is_split else 'whole'}_{tokens}"


def _tile(weight: str, tokens: int, architecture: str) -> GemmTile:
    from di_kernels.tile.gemm import GemmTile

    sizes = (ROUTED_TILES if weight == "mxfp4" else LINEAR_TILES)[tokens]
    if architecture in _SMALL_MEMORY:
        sizes = _SMALL_TILES[weight].get(tokens, sizes)
    overlaps = architecture == "sm_90a" and tokens in _OVERLAPPED[weight]
    return GemmTile(weight, tokens, *sizes, overlaps)


def _routed(architecture: str, *, tokens: int, swiglu: bool) -> object:
    from di_kernels.tile.gemm import routed_gemm

    return routed_gemm(_tile("mxfp4", tokens, architecture), swiglu=swiglu)


def _grouped(architecture: str, *, tokens: int, is_split: bool) -> object:
    from di_kernels.tile.gemm import grouped_gemm

    return grouped_gemm(_tile("mxfp8", tokens, architecture), is_split=is_split)


def _sum_of_parts(architecture: str) -> object:
    from di_kernels.tile.gemm import sum_of_parts

    return sum_of_parts(overlaps_launch=architecture != "sm_80")


def _routing(architecture: str, *, name: str, **options: bool) -> object:
    from di_kernels.tile import routing

    return getattr(routing, name)(**options)


def _attention(architecture: str, *, selected_format: str, is_split: bool) -> object:
    from di_kernels.tile.attention import sparse_attention

    return sparse_attention(selected_format, is_split=is_split)


def _merge_parts(architecture: str) -> object:
    from di_kernels.tile.attention import merge_parts

    return merge_parts(overlaps_launch=architecture != "sm_80")


def _products() -> list[Kernel]:
    kernels = []
    for tokens in ROUTED_TILES:
        for swiglu in (True, False):
            kernels.append(
                Kernel(
                    routed_name(tokens, swiglu=swiglu),
                    ("moe_experts",),
                    functools.partial(_routed, tokens=tokens, swiglu=swiglu),
                    _MMA_SYNC if tokens == _MMA_SYNC_TOKENS else _UNGUARDED,
                    has_tensor_core=True,
                    undeclared=_SPILLS if swiglu and tokens == max(ROUTED_TILES) else {},
                )
            )
    for tokens in LINEAR_TILES:
        for is_split in (False, True):
            kernels.append(
                Kernel(
                    linear_name(tokens, is_split=is_split),
                    ("mxfp8_linear", "grouped_linear"),
                    functools.partial(_grouped, tokens=tokens, is_split=is_split),
                    _MMA_SYNC if tokens == _MMA_SYNC_TOKENS else _UNGUARDED,
                    has_tensor_core=True,
                    undeclared=_TOO_LARGE if tokens == max(LINEAR_TILES) else {},
                )
            )
    return kernels


def _attentions() -> list[Kernel]:
    elsewhere = {name: _ROLES for name in ARCHITECTURES if name != "sm_90a"}
    return [
        Kernel(
            f"sparse_attention_{selected}_{'split' if is_split else 'whole'}",
            ("sparse_attention",),
            functools.partial(_attention, selected_format=selected, is_split=is_split),
            _FAST_MATH,
            has_tensor_core=True,
            undeclared=elsewhere,
        )
        for selected in ("nvfp4", "mxfp8")
        for is_split in (False, True)
    ]


def kernels() -> dict[str, Kernel]:
    """The catalogue, by name."""
    experts = ("moe_experts",)
    every = [
        *_products(),
        Kernel("sum_of_parts", ("mxfp8_linear", "grouped_linear"), _sum_of_parts),
        Kernel("plan", experts, functools.partial(_routing, name="plan")),
        Kernel("permute", experts, functools.partial(_routing, name="permute")),
        Kernel("combine", experts, functools.partial(_routing, name="combine", has_shared=False)),
        Kernel(
            "combine_shared", experts, functools.partial(_routing, name="combine", has_shared=True)
        ),
        *_attentions(),
        Kernel("merge_parts", ("sparse_attention",), _merge_parts),
    ]
    return {kernel.name: kernel for kernel in every}


@functools.cache
def _compiled(name: str, architecture: str) -> Callable[..., None]:
    require_tools()
    kernel = kernels()[name]
    return compile_kernel(
        kernel.build(architecture), architecture, kernel.options_for(architecture)
    )


def kernel_for(name: str, device: torch.device) -> Callable[..., None]:
    """The compiled kernel for a device; compiled or read from disk by the first call.

    Raises:
        KernelError: A tool is missing or the device is not served.
    """
    return _compiled(name, architecture_of(device))
