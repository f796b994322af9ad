"""Sparse attention over packed records."""

from __future__ import annotations

import functools

from di_kernels.tile.kernel import FAST_MATH, OWN_BARRIERS, Kernel

_ELSEWHERE = {
    "sm_80": "warp roles hand tiles over with barriers, which sm_80 does not have",
    "sm_120a": "needs 206 KB of shared memory, sm_120 has 99",
}
_WGMMA = {"sm_100a": "keeps products of wgmma in flight; the variant in parts serves"}
_OPS = ("sparse_attention",)


def _rows(_architecture: str, *, selected_format: str) -> object:
    from di_kernels.tile.attention import sparse_attention

    return sparse_attention(selected_format)


def _parts(architecture: str, *, selected_format: str) -> object:
    from di_kernels.tile.attention_parts import attention_parts

    return attention_parts(selected_format, has_wgmma=architecture == "sm_90a")


def _merge_parts(architecture: str) -> object:
    from di_kernels.tile.merge import merge_parts

    return merge_parts(overlaps_launch=architecture != "sm_80")


def kernels() -> list[Kernel]:
    """Both formats of selected records, row after row and in parts, and the sum over parts."""
    attentions = [
        Kernel(
            f"{name}_{selected}",
            _OPS,
            functools.partial(build, selected_format=selected),
            options,
            has_tensor_core=True,
            undeclared=undeclared,
        )
        for selected in ("nvfp4", "mxfp8")
        for name, build, options, undeclared in (
            ("sparse_attention", _rows, OWN_BARRIERS, _ELSEWHERE | _WGMMA),
            ("attention_parts", _parts, FAST_MATH, _ELSEWHERE),
        )
    ]
    return [*attentions, Kernel("merge_parts", _OPS, _merge_parts)]
