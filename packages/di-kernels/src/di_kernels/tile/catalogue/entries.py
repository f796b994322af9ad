"""Quantisers, norm, rotation and writers of cache entries."""

from __future__ import annotations

import functools

from di_kernels.tile.kernel import Kernel

_FORMATS = ("mxfp8", "mxfp4", "nvfp4")
_WRITERS = {
    "write_records": _FORMATS,
    "norm_rope_write": _FORMATS,
    "compress_entries": ("mxfp8", "nvfp4"),
}


def _quantizer(architecture: str, *, name: str, quantizer: str) -> object:
    from di_kernels.tile import quantizers

    return getattr(quantizers, name)(quantizer)


def _norm(architecture: str, *, out_dtype: str, has_weight: bool) -> object:
    from di_kernels.tile.rows import rms_norm

    return rms_norm(out_dtype, has_weight=has_weight)


def _rope(architecture: str) -> object:
    from di_kernels.tile.rows import apply_rope

    return apply_rope()


def _writer(architecture: str, *, name: str, quantizer: str) -> object:
    from di_kernels.tile import entry_writers

    return getattr(entry_writers, name)(quantizer)


def _reader(architecture: str, *, quantizer: str, out_dtype: str) -> object:
    from di_kernels.tile.entry_readers import read_records

    return read_records(quantizer, out_dtype)


def _copy(architecture: str) -> object:
    from di_kernels.tile.entry_writers import copy_records

    return copy_records()


def norm_name(out_dtype: str, *, has_weight: bool) -> str:
    """Catalogue name of a norm."""
    return f"rms_norm_{'weighted' if has_weight else 'plain'}_{out_dtype}"


def writer_name(op: str, record_format: str) -> str:
    """Catalogue name of a writer of records."""
    return f"{op}_{record_format.removeprefix('index_')}"


def reader_name(record_format: str, out_dtype: str) -> str:
    """Catalogue name of a reader of records."""
    return f"read_records_{record_format.removeprefix('index_')}_{out_dtype}"


def kernels() -> list[Kernel]:
    """Every format and variant."""
    quantizers = [
        Kernel(
            f"{quantizer}_{name}",
            (f"{quantizer}_{name}",),
            functools.partial(_quantizer, name=name, quantizer=quantizer),
        )
        for quantizer in _FORMATS
        for name in ("quantize", "fake_quantize")
    ]
    norms = [
        Kernel(
            norm_name(out_dtype, has_weight=has_weight),
            ("rms_norm",),
            functools.partial(_norm, out_dtype=out_dtype, has_weight=has_weight),
        )
        for out_dtype in ("bfloat16", "float32")
        for has_weight in (True, False)
    ]
    writers = [
        Kernel(
            writer_name(name, quantizer),
            (name,),
            functools.partial(_writer, name=name, quantizer=quantizer),
        )
        for name, formats in _WRITERS.items()
        for quantizer in formats
    ]
    readers = [
        Kernel(
            reader_name(quantizer, out_dtype),
            ("read_records",),
            functools.partial(_reader, quantizer=quantizer, out_dtype=out_dtype),
        )
        for quantizer in _FORMATS
        for out_dtype in ("bfloat16", "float32")
    ]
    return [
        *quantizers,
        *norms,
        Kernel("apply_rope", ("apply_rope",), _rope),
        *writers,
        *readers,
        Kernel("copy_records", ("write_records",), _copy),
    ]
