"""Cases of the block formats, records, norm, rotation and linears."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Case, Outputs, Sizes, Source, nbytes
from di_kernels.records import RecordFormat, RecordPool, record_bytes
from di_kernels.weights import MXFP4Weight, MXFP8Weight

_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
_E4M3 = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float64)


def _nearest(values: torch.Tensor, magnitudes: torch.Tensor) -> torch.Tensor:
    """Nearest signed magnitude by trying all; ties to the even code."""
    distance = (values.abs().unsqueeze(-1) - magnitudes).abs()
    is_best = distance == distance.amin(-1, keepdim=True)
    codes = torch.arange(len(magnitudes))
    preference = torch.where(is_best, codes % 2, 2)
    return magnitudes[preference.argmin(-1)] * torch.where(values.signbit(), -1.0, 1.0)


def _power_scale(largest: torch.Tensor, code_max: float, floor: float) -> torch.Tensor:
    """Smallest of all powers of two that is large enough, by trying all."""
    powers = torch.exp2(torch.arange(-127, 128, dtype=torch.float64))
    fits = code_max * powers >= largest.clamp_min(floor).unsqueeze(-1)
    return powers[fits.to(torch.int8).argmax(-1)]


def _round_trip(x: torch.Tensor, record_format: str) -> torch.Tensor:
    """Quantised values from the definition of the format, float64."""
    group = 16 if record_format == "nvfp4" else 32
    groups = torch.unflatten(x.double(), -1, (-1, group))
    largest = groups.abs().amax(-1)
    if record_format == "nvfp4":
        scale = _nearest((largest.clamp_min(6 * 2.0**-9) / 6).clamp_max(448), _E4M3)
    elif record_format == "mxfp8":
        scale = _power_scale(largest, 448.0, 1e-4)
    else:
        scale = _power_scale(largest, 6.0, 6 * 2.0**-126)
    magnitudes = _E4M3 if record_format == "mxfp8" else _E2M1
    scaled = (groups / scale.unsqueeze(-1)).clamp(-magnitudes[-1], magnitudes[-1])
    return (_nearest(scaled, magnitudes) * scale.unsqueeze(-1)).flatten(-2)


def cases(sizes: Sizes, source: Source, num_rows: int) -> Iterator[Case]:
    """Cases of this module for one number of rows."""
    yield from _quantisers(sizes, source, num_rows)
    yield from _records(sizes, source, num_rows)
    yield from _norm_and_rope(sizes, source, num_rows)
    yield from _linears(sizes, source, num_rows)


def _quantisers(sizes: Sizes, source: Source, num_rows: int) -> Iterator[Case]:
    spread = source.wide(num_rows, 1).exp2()
    x = (source.wide(num_rows, sizes.head_dim) * spread).to(source.dtype)
    pairs: tuple[tuple[str, Callable[..., Outputs], Callable[..., torch.Tensor]], ...] = (
        ("mxfp8", ops.mxfp8_quantize, ops.mxfp8_dequantize),
        ("mxfp4", ops.mxfp4_quantize, ops.mxfp4_dequantize),
        ("nvfp4", ops.nvfp4_quantize, ops.nvfp4_dequantize),
    )
    fakes = {
        "mxfp8": ops.mxfp8_fake_quantize,
        "mxfp4": ops.mxfp4_fake_quantize,
        "nvfp4": ops.nvfp4_fake_quantize,
    }
    for name, quantize, dequantize in pairs:
        codes, scale = quantize(x)

        def quantised(rows: torch.Tensor, q: Callable[..., Outputs] = quantize,
                      d: Callable[..., torch.Tensor] = dequantize) -> Outputs:  # fmt: skip
            return (d(*q(x[rows]), torch.float64),)

        def dequantised(rows: torch.Tensor, c: torch.Tensor = codes, s: torch.Tensor = scale,
                        d: Callable[..., torch.Tensor] = dequantize) -> Outputs:  # fmt: skip
            return (d(c[rows], s[rows], torch.float64),)

        def fake(rows: torch.Tensor, f: Callable[..., torch.Tensor] = fakes[name]) -> Outputs:
            return (f(x[rows]).double(),)

        def oracle(n: str = name) -> Outputs:
            return (_round_trip(x.cpu(), n),)

        stored = nbytes(codes, scale)
        label = f"{num_rows}x{sizes.head_dim}"
        for op, run, moved in (
            (f"{name}_quantize", quantised, x.nbytes + stored),
            (f"{name}_dequantize", dequantised, x.nbytes + stored),
            (f"{name}_fake_quantize", fake, 2 * x.nbytes),
        ):
            yield Case(op, label, source.dtype, num_rows, run, oracle, True, moved)


def _records(sizes: Sizes, source: Source, num_rows: int) -> Iterator[Case]:
    formats: tuple[tuple[RecordFormat, str], ...] = (
        ("mxfp8", "mxfp8"),
        ("nvfp4", "nvfp4"),
        ("index_mxfp4", "mxfp4"),
    )
    entries, dim = sizes.entries_per_block, sizes.head_dim
    num_blocks = num_rows // entries + 2
    for record_format, quantiser in formats:
        width = record_bytes(record_format, dim)
        values = source.normal(num_rows, dim)
        slots = source.permutation(num_blocks * entries)[:num_rows]
        slots[num_rows // 2] = -1
        slots = slots.to(source.device)

        def pool(f: RecordFormat = record_format, w: int = width) -> RecordPool:
            shape = (num_blocks, 64 + entries * w)
            buffer = torch.full(shape, 0x7E, dtype=torch.uint8, device=source.device)
            return RecordPool(buffer, f, dim, entries, 32)

        filled = pool()
        ops.write_records(filled, slots, values)

        def write(rows: torch.Tensor, make: Callable[[], RecordPool] = pool,
                  s: torch.Tensor = slots, v: torch.Tensor = values) -> Outputs:  # fmt: skip
            fresh = make()
            ops.write_records(fresh, s[rows], v[rows])
            return (fresh.read(s[rows], torch.float64),)

        def read(rows: torch.Tensor, p: RecordPool = filled, s: torch.Tensor = slots) -> Outputs:
            return (ops.read_records(p, s[rows], torch.float64),)

        def oracle(q: str = quantiser, s: torch.Tensor = slots,
                   v: torch.Tensor = values) -> Outputs:  # fmt: skip
            return (_round_trip(v.cpu(), q).masked_fill((s.cpu() < 0).unsqueeze(1), 0),)

        label = f"{num_rows}x{dim} {record_format}"
        moved = values.nbytes + num_rows * width
        yield Case("write_records", label, source.dtype, num_rows, write, oracle, True, moved)
        yield Case("read_records", label, source.dtype, num_rows, read, oracle, True, moved)


def _norm_and_rope(sizes: Sizes, source: Source, num_rows: int) -> Iterator[Case]:
    x, weight = source.normal(num_rows, sizes.hidden), source.normal(sizes.hidden)

    def norm(rows: torch.Tensor) -> Outputs:
        return (ops.rms_norm(x[rows], weight),)

    def norm_oracle() -> Outputs:
        wide = x.double()
        return (wide / (wide.square().mean(-1, keepdim=True) + 1e-20).sqrt() * weight.double(),)

    label = f"{num_rows}x{sizes.hidden}"
    yield Case("rms_norm", label, source.dtype, num_rows, norm, norm_oracle, False, 2 * x.nbytes)

    q = source.normal(num_rows, sizes.heads, sizes.head_dim)
    frequencies = ops.rope_frequencies(sizes.rotary_dim, 10000.0).to(source.device)
    positions = source.integers(0, 4096, num_rows)
    cos, sin = ops.rope_cos_sin(positions, frequencies)

    def tables(rows: torch.Tensor) -> Outputs:
        return ops.rope_cos_sin(positions[rows], frequencies)

    def tables_oracle() -> Outputs:
        angles = (positions[:, None].float() * frequencies).double()
        return angles.cos(), angles.sin()

    yield Case("rope_cos_sin", label, torch.float32, num_rows, tables, tables_oracle)

    def rope(rows: torch.Tensor) -> Outputs:
        dtype = torch.float64 if source.dtype == torch.float64 else torch.float32
        return (ops.apply_rope(q[rows], ops.rope_rotation(positions[rows], frequencies, dtype)),)

    def rope_oracle() -> Outputs:
        start = sizes.head_dim - sizes.rotary_dim
        pairs = torch.view_as_complex(
            torch.unflatten(q[..., start:].double(), -1, (-1, 2)).contiguous()
        )
        turned = pairs * torch.complex(cos.double(), sin.double()).unsqueeze(1)
        return (torch.cat((q[..., :start].double(), torch.view_as_real(turned).flatten(-2)), -1),)

    label = f"{num_rows}x{sizes.heads}x{sizes.head_dim}"
    yield Case("apply_rope", label, source.dtype, num_rows, rope, rope_oracle, False, 2 * q.nbytes)


def _linears(sizes: Sizes, source: Source, num_rows: int) -> Iterator[Case]:
    x = source.normal(num_rows, sizes.hidden)
    dense = source.normal(sizes.lora, sizes.hidden, scale=sizes.hidden**-0.5)
    mxfp8, mxfp4 = ops.mxfp8_weight_quantize(dense), ops.mxfp4_weight_quantize(dense)
    label = f"{num_rows}x{sizes.hidden}x{sizes.lora}"
    flops = 2 * num_rows * sizes.hidden * sizes.lora
    weights: tuple[tuple[str, torch.Tensor | MXFP8Weight | MXFP4Weight, bool], ...] = (
        ("linear", dense, False),
        ("mxfp8_linear", mxfp8, True),
        ("mxfp4_linear", mxfp4, True),
    )
    for op, weight, quantised in weights:

        def run(rows: torch.Tensor, w: torch.Tensor | MXFP8Weight | MXFP4Weight = weight,
                quantised: bool = quantised) -> Outputs:  # fmt: skip
            return (
                ops.linear(
                    x[rows], w, quantize_input=quantised, batch_invariant=source.batch_invariant
                ),
            )

        def oracle(w: torch.Tensor | MXFP8Weight | MXFP4Weight = weight,
                   quantised: bool = quantised) -> Outputs:  # fmt: skip
            rows = _round_trip(x.cpu(), "mxfp8") if quantised else x.double().cpu()
            full = w if isinstance(w, torch.Tensor) else w.dequantize(torch.float64)
            return (rows @ full.double().cpu().T,)

        moved = x.nbytes + weight.nbytes + num_rows * sizes.lora * x.element_size()
        yield Case(op, label, source.dtype, num_rows, run, oracle, False, moved, flops)

    def dequantised(rows: torch.Tensor) -> Outputs:
        return (ops.mxfp8_weight_dequantize(mxfp8, torch.float64),)

    def dequantised_oracle() -> Outputs:
        rows, columns = torch.meshgrid(
            torch.arange(sizes.lora), torch.arange(sizes.hidden), indexing="ij"
        )
        exponents = mxfp8.scale.cpu().double()[rows // 32, columns // 32] - 127
        return (mxfp8.data.cpu().float().double() * torch.exp2(exponents),)

    yield Case(
        "mxfp8_weight_dequantize", f"{sizes.lora}x{sizes.hidden}", torch.float8_e4m3fn, 1,
        dequantised, dequantised_oracle, True, mxfp8.nbytes + dense.nbytes,
    )  # fmt: skip

    width = sizes.heads // sizes.groups * sizes.head_dim
    o = source.normal(num_rows, sizes.groups, width)
    w = source.normal(sizes.groups, sizes.lora, width, scale=width**-0.5)

    def grouped(rows: torch.Tensor) -> Outputs:
        return (ops.grouped_linear(o[rows], w, batch_invariant=source.batch_invariant),)

    def grouped_oracle() -> Outputs:
        return (torch.einsum("tgk,gnk->tgn", o.double(), w.double()),)

    yield Case(
        "grouped_linear", f"{num_rows}x{sizes.groups}x{width}x{sizes.lora}", source.dtype, num_rows,
        grouped, grouped_oracle, False, nbytes(o, w), 2 * num_rows * w.numel(),
    )  # fmt: skip
