"""Quantisers, norm, rotation and writers of cache entries."""

from __future__ import annotations

import torch

from di_kernels.ops.entries import _COMPRESS_ENTRIES, _NORM_ROPE_WRITE
from di_kernels.ops.norm import _RMS_NORM
from di_kernels.ops.quantize import (
    _MXFP4_FAKE_QUANTIZE,
    _MXFP4_QUANTIZE,
    _MXFP8_FAKE_QUANTIZE,
    _MXFP8_QUANTIZE,
    _NVFP4_FAKE_QUANTIZE,
    _NVFP4_QUANTIZE,
)
from di_kernels.ops.records import _READ_RECORDS, _WRITE_RECORDS
from di_kernels.ops.rope import _APPLY_ROPE
from di_kernels.registry import Backend, Op, P, R, SizeRule
from di_kernels.tile import entries
from di_kernels.tile.toolchain import HOPPER, TILELANG, missing_tools

_BFLOAT16 = (torch.bfloat16,)
_ENTRY_RULES = (SizeRule("head_dim", 32, 512, 32), SizeRule("rotary_dim", 16, multiple_of=16))
_PACKED = tuple(f"{name} records of bfloat16" for name in ("mxfp8", "nvfp4", "index_mxfp4"))
_PLAIN = ("plain records of bfloat16", "plain records of float32")


def _register(
    op: Op[P, R],
    run: object,
    note: str,
    *,
    dtypes: tuple[torch.dtype, ...] = _BFLOAT16,
    rules: tuple[SizeRule, ...] = (),
    layouts: tuple[str, ...] | None = None,
) -> None:
    op.register(
        Backend(
            TILELANG,
            run,  # type: ignore[arg-type]
            device_types=("cuda",),
            compute_capabilities=HOPPER,
            dtypes=dtypes,
            size_rules=rules,
            determinism="row_invariant",
            availability=missing_tools,
            layouts=layouts,
            note=note,
        )
    )


for _op, _name in (
    (_MXFP8_QUANTIZE, "mxfp8"),
    (_MXFP4_QUANTIZE, "mxfp4"),
    (_NVFP4_QUANTIZE, "nvfp4"),
):
    _register(_op, entries.quantizer(_name), "Sixteen values a thread, the reference's bits.")
for _fake, _name in (
    (_MXFP8_FAKE_QUANTIZE, "mxfp8"),
    (_MXFP4_FAKE_QUANTIZE, "mxfp4"),
    (_NVFP4_FAKE_QUANTIZE, "nvfp4"),
):
    _register(
        _fake, entries.fake_quantizer(_name), "Sixteen values a thread, the reference's bits."
    )

_register(
    _RMS_NORM,
    entries.rms_norm,
    "A row per thread block, read once.",
    rules=(SizeRule("size", 8, 5120, 8),),
)
_register(
    _APPLY_ROPE,
    entries.apply_rope,
    "Copy and rotation in one pass.",
    rules=(SizeRule("size", 16, multiple_of=16), SizeRule("rotary_dim", 16, multiple_of=16)),
)
_register(
    _WRITE_RECORDS,
    entries.write_records,
    "Quantiser and record in one pass; slots outside the pool store nothing.",
    dtypes=(torch.bfloat16, torch.float32),
    rules=_ENTRY_RULES[:1],
    layouts=_PACKED + _PLAIN,
)
_register(
    _READ_RECORDS,
    entries.read_records,
    "Record to values in one pass; slots outside the pool give zeros.",
    dtypes=(torch.uint8,),
    rules=_ENTRY_RULES[:1],
    layouts=("mxfp8 records", "nvfp4 records", "index_mxfp4 records"),
)
_register(
    _NORM_ROPE_WRITE,
    entries.norm_rope_write,
    "Norm, rotation, quantiser and record by one warp per row.",
    rules=_ENTRY_RULES,
    layouts=_PACKED,
)
_register(
    _COMPRESS_ENTRIES,
    entries.compress_entries,
    "Pooling of pairs, norm, rotation, quantiser and record by one warp per entry.",
    dtypes=(torch.float32,),
    rules=(*_ENTRY_RULES, SizeRule("ratio", 2, 2)),
    layouts=_PACKED[:2],
)
