"""Products of MXFP8 rows with quantised weights by `deep_gemm`: linears and experts.

Rows are quantised as the reference does, in groups of 32 with power-of-two scales, and so are the
codes and scales that the tensor core multiplies: no rounding differs from the reference's but the
order of the sum.
"""

from __future__ import annotations

import importlib

import torch

from di_kernels.numerics import cast, widen
from di_kernels.ops.moe import swiglu
from di_kernels.ops.quantize import mxfp8_quantize
from di_kernels.packed import MXFP4PackedWeight, MXFP8PackedWeight, empty_scales, pack_scales

# One scale per row and 32 columns on both sides: packed scales are already broadcast over rows.
_RECIPE = (1, 1, 32)
_OUTPUTS = (torch.bfloat16, torch.float32)


def mxfp8_linear(
    x: torch.Tensor,
    weight: MXFP8PackedWeight,
    quantize_input: bool,
    out_dtype: torch.dtype,
    batch_invariant: bool,
) -> torch.Tensor:
    """Arguments as the op passes them: `quantize_input` and not `batch_invariant`."""
    rows = x.reshape(-1, x.shape[-1])
    dtype = out_dtype if out_dtype in _OUTPUTS else torch.float32
    y = x.new_empty(rows.shape[0], weight.shape[0], dtype=dtype)
    if rows.shape[0]:
        codes, scale = mxfp8_quantize(rows)
        importlib.import_module("deep_gemm").fp8_gemm_nt(
            (codes, pack_scales(scale)), (weight.codes, weight.scales), y, recipe=_RECIPE
        )
    return cast(y, out_dtype).view(*x.shape[:-1], weight.shape[0])


def moe_experts(
    x: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    w13: MXFP4PackedWeight,
    w2: MXFP4PackedWeight,
    limit: float,
    quantize_input: bool,
    fp8_input: bool,
    shared: torch.Tensor | None,
    batch_invariant: bool,
) -> torch.Tensor:
    """Arguments as the op passes them: `quantize_input` and not `batch_invariant`.

    Rows lie in expert order, each expert's at a multiple of the library's alignment; where an
    expert ends is computed on the device, so nothing waits for it. Memory is that of the most
    unfavourable routing: one alignment per expert beside the rows. Experts outside the range are
    nobody here; the reference raises for them.
    """
    num_rows, k = indices.shape
    if indices.numel() == 0:
        return torch.zeros_like(x) if shared is None else cast(shared, x.dtype).clone()
    deep_gemm = importlib.import_module("deep_gemm")
    alignment = deep_gemm.get_mk_alignment_for_contiguous_layout()
    places, ends, capacity = expert_places(indices.flatten(), w2.shape[0], alignment)

    def product(
        rows: torch.Tensor, source: torch.Tensor, matrices: MXFP4PackedWeight
    ) -> torch.Tensor:
        """Row `source[p]` of `rows`, quantised, times the matrix of pair p's expert."""
        y = rows.new_empty(capacity, matrices.shape[1])
        deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(
            _in_expert_order(rows, source, places, capacity),
            (matrices.codes, matrices.scales),
            y,
            ends,
            recipe=_RECIPE,
            use_psum_layout=True,
        )
        return y[places.clamp_max(capacity - 1)]

    pairs = torch.arange(indices.numel(), device=x.device)
    activated = swiglu(product(x, pairs // k, w13), limit, row_weights=weights.flatten())
    outputs = product(activated, pairs, w2)
    # What stands where nothing was computed may be anything, NaN too.
    outputs = widen(outputs).masked_fill((places == capacity).unsqueeze(1), 0)
    total = outputs.view(num_rows, k, -1).sum(1)
    return cast(total if shared is None else total + widen(shared), x.dtype)


def expert_places(
    experts: torch.Tensor, num_experts: int, alignment: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Where each pair's row lies when rows are sorted by expert and experts start aligned.

    Args:
        experts: Expert of each pair, shape (num_pairs,), integer; out of range for none.
        num_experts: Experts.
        alignment: Rows between possible starts.

    Returns:
        Place of each pair, shape (num_pairs,), int64, the capacity for a pair without an expert;
        the row after the last one of each expert, shape (num_experts,), int32; and the capacity,
        a number of rows that holds every routing of as many pairs.
    """
    num_pairs = len(experts)
    is_routed = (experts >= 0) & (experts < num_experts)
    keys = torch.where(is_routed, experts, num_experts).to(torch.int64)
    ones = torch.ones_like(keys)
    counts = torch.zeros(num_experts + 1, dtype=torch.int64, device=keys.device)
    counts = counts.scatter_add(0, keys, ones)
    aligned = (counts + alignment - 1) // alignment * alignment
    starts = aligned.cumsum(0) - aligned
    order = keys.argsort(stable=True)
    firsts = counts.cumsum(0) - counts
    sorted_keys = keys[order]
    rank = torch.arange(num_pairs, device=keys.device) - firsts[sorted_keys]
    places = torch.empty_like(keys).scatter(0, order, starts[sorted_keys] + rank)
    most = num_pairs + min(num_experts, num_pairs) * (alignment - 1)
    capacity = most // alignment * alignment
    ends = (starts + counts)[:num_experts].to(torch.int32)
    return torch.where(is_routed, places, capacity), ends, capacity


def _in_expert_order(
    rows: torch.Tensor, source: torch.Tensor, places: torch.Tensor, capacity: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and packed scales of row `source[p]` at `places[p]`; the rest stays unset.

    One row more than the capacity takes what has no expert.
    """
    codes, scale = mxfp8_quantize(rows)
    words = scale.contiguous().view(torch.int32)
    sorted_codes = codes.new_empty(capacity + 1, codes.shape[1])
    sorted_codes.view(torch.uint8)[places] = codes.view(torch.uint8)[source]
    scales = empty_scales((capacity + 1,), codes.shape[1], codes.device)
    scales[places] = words[source]
    return sorted_codes[:capacity], scales[:capacity]
