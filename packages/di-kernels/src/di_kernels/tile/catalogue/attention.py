"""Sparse attention over packed records."""

from __future__ import annotations

import functools

from di_kernels.tile.kernel import FAST_MATH, Kernel

_ELSEWHERE = {
    "sm_80": "warp roles hand tiles over with barriers, which sm_80 does not have",
    "sm_120a": "needs 206 KB of shared memory, sm_120 has 99",
}
_SPILLS = {"sm_100a": "mma.sync instead of wgmma spills 208 bytes; the variant in parts serves"}
_OPS = ("sparse_attention",)


def _attention(architecture: str, *, selected_format: str, is_split: bool) -> object:
    from di_kernels.tile.attention import sparse_attention

    return sparse_attention(selected_format, is_split=is_split, has_wgmma=architecture == "sm_90a")


def _merge_parts(architecture: str) -> object:
    from di_kernels.tile.merge import merge_parts

    return merge_parts(overlaps_launch=architecture != "sm_80")


def kernels() -> list[Kernel]:
    """Both formats of selected records, whole and in parts, and the sum over parts."""
    attentions = [
        Kernel(
            f"sparse_attention_{selected}_{'split' if is_split else 'whole'}",
            _OPS,
            functools.partial(_attention, selected_format=selected, is_split=is_split),
            FAST_MATH,
            has_tensor_core=True,
            undeclared=_ELSEWHERE if is_split else _ELSEWHERE | _SPILLS,
        )
        for selected in ("nvfp4", "mxfp8")
        for is_split in (False, True)
    ]
    return [*attentions, Kernel("merge_parts", _OPS, _merge_parts)]
