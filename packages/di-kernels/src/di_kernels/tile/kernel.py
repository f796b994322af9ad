"""What the catalogue knows of a kernel: how it is built, with which options, for what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from di_kernels.tile.toolchain import ARCHITECTURES

Options = tuple[tuple[str, object], ...]

# Every access is guarded by the kernels themselves; TileLang's own bounds tests cost registers and
# minutes of lowering with sizes known at run time only.
UNGUARDED: Options = (("tl.disable_safe_memory_legalize", True),)
FAST_MATH: Options = (*UNGUARDED, ("tl.enable_fast_math", True))
# Barriers that TileLang adds around shared memory would meet in the middle of warp roles.
ROLES: Options = (*UNGUARDED, ("tl.disable_thread_storage_sync", True))
OWN_BARRIERS: Options = (*FAST_MATH, ("tl.disable_thread_storage_sync", True))
MMA_SYNC: Options = (*UNGUARDED, ("tl.disable_wgmma", True))


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
        is_guarded: Whether no access lies outside a tensor, on sm_80 too: TileLang adds no tests.
        other_options: Pass options of architectures whose kernel takes others.
    """

    name: str
    ops: tuple[str, ...]
    build: Callable[[str], object]
    options: Options = UNGUARDED
    has_tensor_core: bool = False
    undeclared: dict[str, str] = field(default_factory=dict)
    is_guarded: bool = False
    other_options: dict[str, Options] = field(default_factory=dict)

    def options_for(self, architecture: str) -> Options:
        """Pass options; sm_80 has no tensor copies that stop at a tensor's end, so it tests."""
        if architecture in self.other_options:
            return self.other_options[architecture]
        if architecture == "sm_80" and not self.is_guarded:
            return tuple(option for option in self.options if option not in UNGUARDED)
        return self.options

    @property
    def architectures(self) -> tuple[str, ...]:
        """Architectures it is declared for."""
        return tuple(name for name in ARCHITECTURES if name not in self.undeclared)
