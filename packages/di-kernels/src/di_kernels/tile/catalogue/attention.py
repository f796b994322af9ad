"""Sparse attention over packed records."""

from __future__ import annotations

import functools

from di_kernels.tile.kernel import OWN_BARRIERS, Kernel

_ELSEWHERE = {
    "sm_80": "needs 198 KB of shared memory, sm_80 has 163",
    "sm_120a": "needs 198 KB of shared memory, sm_120 has 99",
}
_ROLES = {
    "sm_80": "warp roles hand tiles over with barriers, which sm_80 does not have",
    "sm_100a": "keeps products of wgmma in flight; the kernels of few rows serve",
    "sm_120a": "needs 222 KB of shared memory, sm_120 has 99",
}
_OPS = ("sparse_attention",)


def _rows(_architecture: str, *, selected_format: str) -> object:
    from di_kernels.tile.attention import sparse_attention

    return sparse_attention(selected_format)


def _scores(_architecture: str, *, selected_format: str) -> object:
    from di_kernels.tile.attention_scores import attention_scores

    return attention_scores(selected_format)


def _values(_architecture: str, *, selected_format: str) -> object:
    from di_kernels.tile.attention_values import attention_values

    return attention_values(selected_format)


def kernels() -> list[Kernel]:
    """Row after row, or scores by tiles and values by slices; both formats of selected records."""
    return [
        Kernel(
            f"{name}_{selected}",
            _OPS,
            functools.partial(build, selected_format=selected),
            OWN_BARRIERS,
            has_tensor_core=True,
            undeclared=undeclared,
        )
        for selected in ("nvfp4", "mxfp8")
        for name, build, undeclared in (
            ("sparse_attention", _rows, _ROLES),
            ("attention_scores", _scores, _ELSEWHERE),
            ("attention_values", _values, _ELSEWHERE),
        )
    ]
