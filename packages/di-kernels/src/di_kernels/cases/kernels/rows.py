"""Quantisers, norm and rotation of rows at the release's widths.

Quantisers and rotation must have the bits of the reference on a CPU. A norm sums in another order
than torch and is compared with float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Case, Outputs, Source
from di_kernels.cases.kernels.release import EXPERT_SIZE, HEAD_DIM, HEADS, HIDDEN, ROWS
from di_kernels.ops.rope import RopeRotation
from di_kernels.registry import get_op

LORA, INDEX_HEADS, INDEX_DIM, ROTARY = 1280, 32, 128, 64
_QUANTIZERS: dict[str, Callable[..., object]] = {
    name: getattr(ops, name)
    for quantizer in ("mxfp8", "mxfp4", "nvfp4")
    for name in (f"{quantizer}_fake_quantize", f"{quantizer}_quantize")
}


def cases(source: Source) -> Iterator[Case]:
    """Every op of the family."""
    for num_rows in ROWS:
        yield from _quantizer_cases(source, num_rows)
        yield from _norm_cases(source, num_rows)
        yield from _rope_cases(source, num_rows)


def rotations(source: Source, num_rows: int) -> RopeRotation:
    """Rotations at random positions of a long context."""
    yarn = ops.YarnScaling(16.0, 65_536)
    frequencies = ops.rope_frequencies(ROTARY, 160_000.0, yarn=yarn).to(source.device)
    return ops.rope_rotation(source.integers(0, 1 << 20, num_rows), frequencies)


def picked(rotation: RopeRotation, rows: torch.Tensor) -> RopeRotation:
    """Rotations of some rows."""
    return RopeRotation(rotation.cos[rows], rotation.sin[rows])


def _awkward(source: Source, num_rows: int, size: int) -> torch.Tensor:
    """Rows of many magnitudes with ties, zeros of both signs and the ends of the range."""
    x = source.normal(num_rows, size) * source.wide(num_rows, size // 32, scale=8).exp2().bfloat16(
    ).repeat_interleave(32, dim=1)  # fmt: skip
    special = torch.tensor(
        [0.0, -0.0, 1e-30, -1e-38, 448.0, 449.0, 6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0,
         -5.0, 3.0e38, -1e-40, 0.01, 1e-4]
    ).to(source.device, source.dtype)  # fmt: skip
    for row in range(min(num_rows, 3)):
        x[row, 32 * row : 32 * row + len(special)] = special
        x[row, -64:] = special[row]
        x[row, 128:148] = special.clamp(-7, 7)
    return x


def on_cpu(op: str, *arguments: object) -> Outputs:
    """What the reference gives on a CPU, whatever backend is forced."""
    moved = (a.cpu() if isinstance(a, torch.Tensor) else a for a in arguments)
    result = get_op(op).reference(*moved)
    return result if isinstance(result, tuple) else (result,)


def _quantizer_cases(source: Source, num_rows: int) -> Iterator[Case]:
    for size in (HIDDEN, EXPERT_SIZE, HEAD_DIM):
        x = _awkward(source, num_rows, size)
        for op, function in _QUANTIZERS.items():

            def run(
                rows: torch.Tensor, x: torch.Tensor = x, f: Callable[..., object] = function
            ) -> Outputs:
                return _as_bytes(f(x[rows]))

            def want(x: torch.Tensor = x, op: str = op) -> Outputs:
                return _as_bytes(on_cpu(op, x))

            yield Case(op, f"{num_rows}x{size}", source.dtype, num_rows, run, want, True)
    for op, function in _QUANTIZERS.items():
        if num_rows and op.endswith("fake_quantize"):
            yield _not_finite(source, op, function, num_rows)


def _as_bytes(result: object) -> Outputs:
    """One bfloat16 tensor, or codes and scales as bytes."""
    if isinstance(result, torch.Tensor):
        return (result,)
    parts: Outputs = result  # type: ignore[assignment]
    return parts if len(parts) == 1 else tuple(part.view(torch.uint8) for part in parts)


def _not_finite(source: Source, op: str, function: Callable[..., object], num_rows: int) -> Case:
    """Groups with a NaN or an infinity become NaN, their neighbours do not."""
    x = source.normal(num_rows, HEAD_DIM)
    x[0, 40], x[-1, 70] = torch.nan, -torch.inf

    def run(rows: torch.Tensor) -> Outputs:
        (values,) = _as_bytes(function(x[rows]))
        return (values.isnan(),)

    def want() -> Outputs:
        (values,) = on_cpu(op, x)
        return (values.isnan(),)

    label = f"{num_rows}x{HEAD_DIM} with NaN and infinity"
    return Case(op, label, source.dtype, num_rows, run, want, True)


def _norm_cases(source: Source, num_rows: int) -> Iterator[Case]:
    # The last is columns of a wider matrix, as the query latent is.
    for size, start, width in ((HIDDEN, 0, HIDDEN), (HEAD_DIM, 0, HEAD_DIM), (INDEX_DIM, 0, 128),
                               (LORA, 0, LORA + HEAD_DIM)):  # fmt: skip
        x, weight = source.normal(num_rows, width), source.wide(size)
        x[-1:] *= 1e-12  # a row that the epsilon must not flatten
        for out_dtype in (torch.bfloat16, torch.float32):

            def run(
                rows: torch.Tensor, x: torch.Tensor = x, weight: torch.Tensor = weight,
                start: int = start, out_dtype: torch.dtype = out_dtype,
            ) -> Outputs:  # fmt: skip
                columns = x[rows][:, start : start + len(weight)]
                return (
                    ops.rms_norm(columns, weight, out_dtype=out_dtype),
                    ops.rms_norm(columns, None, out_dtype=out_dtype),
                )

            def want(
                x: torch.Tensor = x, weight: torch.Tensor = weight, start: int = start
            ) -> Outputs:
                wide = x[:, start : start + len(weight)].double()
                normed = wide / (wide.square().mean(-1, keepdim=True) + 1e-20).sqrt()
                return normed * weight.double(), normed

            label = f"{num_rows}x{size} of {width} to {str(out_dtype).removeprefix('torch.')}"
            yield Case("rms_norm", label, source.dtype, num_rows, run, want)


def _rope_cases(source: Source, num_rows: int) -> Iterator[Case]:
    rotation = rotations(source, num_rows)
    heads = source.normal(num_rows, HEADS + 1, HEAD_DIM)
    inputs = {
        "queries": heads[:, :-1],  # rows at the stride of one head more
        "outputs, rotated back": source.normal(num_rows, HEADS, HEAD_DIM),
        "keys": heads[:, -1],
        "index queries": source.normal(num_rows, INDEX_HEADS, INDEX_DIM),
    }
    for name, x in inputs.items():
        turns = rotation.inverse() if "back" in name else rotation

        def run(rows: torch.Tensor, x: torch.Tensor = x, turns: RopeRotation = turns) -> Outputs:
            whole = x if len(rows) == len(x) else x[rows]
            return (ops.apply_rope(whole, picked(turns, rows)),)

        def want(x: torch.Tensor = x, turns: RopeRotation = turns) -> Outputs:
            return on_cpu("apply_rope", x, RopeRotation(turns.cos.cpu(), turns.sin.cpu()))

        label = f"{name} {'x'.join(map(str, x.shape))}"
        yield Case("apply_rope", label, source.dtype, num_rows, run, want, True)
