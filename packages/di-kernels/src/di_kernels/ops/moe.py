"""Mixture of experts: router, clamped SwiGLU, routed and shared experts.

Source: DeepSeek-V4.1 reference `inference/model.py`. The router's bias only selects; weights come
from the unbiased scores. The gate branch is clamped from above only, and a row's routing weight is
applied before the down projection and before that projection's activation is quantised.
"""

from __future__ import annotations

import collections

import torch

from di_kernels.checks import check_shape
from di_kernels.fragments import MXFP4FragmentWeight
from di_kernels.fragments_e4m3 import MXFP4E4M3FragmentWeight
from di_kernels.layouts import product_layout
from di_kernels.matmul import matmul_rows
from di_kernels.numerics import cast, sigmoid, wide_dtype, widen
from di_kernels.ops.linear import linear
from di_kernels.ops.quantize import fp8_quantize, mxfp8_fake_quantize
from di_kernels.packed import MXFP4PackedWeight
from di_kernels.registry import Op
from di_kernels.weights import MXFP4Weight, Weight

ExpertWeight = (
    torch.Tensor | MXFP4Weight | MXFP4FragmentWeight | MXFP4E4M3FragmentWeight | MXFP4PackedWeight
)
"""Matrices of all experts: dense, in checkpoint or fragment order, or with packed scales."""

_WEIGHT_SUM_FLOOR = 1e-20
# Copying up to so many weights costs less than the calls it saves: 58 against 142 us for 3 experts
# of 128 x 64 and one row on a two-core Xeon, equal at about twice this number.
_GATHERED_VALUES = 1 << 18
# With experts and batches so small, a CPU computes every expert sooner than it chooses among them.
_SMALL_EXPERTS_VALUES = 1 << 18
_SMALL_EXPERTS_PAIRS = 256


def router_topk(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    k: int,
    *,
    scaling_factor: float = 1.0,
    row_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts of each row and their weights.

    With s = sqrt(softplus(logits)): the k largest s + bias, weights s / sum of the chosen s.

    Equal sums go to the lower expert. A row with NaN logits gets valid experts and NaN weights.

    Args:
        logits: Shape (num_rows, num_experts), float32 or float64.
        bias: Shape (num_experts,), or (num_rows, num_experts) where rows differ (image tokens);
            None for none.
        k: Experts per row.
        scaling_factor: Factor of the weights.
        row_mask: Rows to route, shape (num_rows,), bool; the others get expert -1 and weight 0.

    Returns:
        Experts, shape (num_rows, k), int64, and weights, shape (num_rows, k), dtype of `logits`.

    Raises:
        ValueError: The shapes do not match, or k exceeds the number of experts.
    """
    check_shape("logits", logits, (None, None))
    if not 1 <= k <= logits.shape[1]:
        raise ValueError(f"invalid `k`: expected 1 to {logits.shape[1]} experts, got: {k}")
    if bias is not None:
        rows = () if bias.dim() == 1 else (logits.shape[0],)
        check_shape("bias", bias, (*rows, logits.shape[1]))
    if row_mask is not None:
        check_shape("row_mask", row_mask, (logits.shape[0],))
    run = _ROUTER_TOPK.select(logits, experts=logits.shape[1], k=k)
    return run(logits, bias, k, scaling_factor, row_mask)


def swiglu(
    gate_up: torch.Tensor,
    limit: float,
    *,
    row_weights: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Clamped gated activation, rounded once.

    It is g * sigmoid(g) * u * row_weight, g = min(gate, limit), u = clamp(up, -limit, limit).

    Args:
        gate_up: Gate then up, shape (..., 2 * size), float32, float64 or bfloat16.
        limit: Clamp.
        row_weights: Shape (...), float; None for 1.
        out_dtype: Dtype of the result; the dtype of `gate_up` when None.

    Returns:
        Shape (..., size).

    Raises:
        ValueError: The shapes do not match.
    """
    if row_weights is not None:
        check_shape("row_weights", row_weights, tuple(gate_up.shape[:-1]))
    run = _SWIGLU.select(gate_up, size=gate_up.shape[-1] // 2)
    return run(gate_up, limit, row_weights, out_dtype or gate_up.dtype)


def expert_mlp(
    x: torch.Tensor,
    w13: Weight,
    w2: Weight,
    *,
    limit: float,
    quantize_input: bool = False,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """One expert for all rows (the shared expert).

    Args:
        x: Shape (num_rows, hidden), float32, float64 or bfloat16.
        w13: Gate rows then up rows, shape (2 * size, hidden).
        w2: Down projection, shape (hidden, size).
        limit: Clamp of the SwiGLU.
        quantize_input: Quantise the activations of both products to MXFP8.
        batch_invariant: A row's bits do not depend on the other rows.

    Returns:
        Shape and dtype of `x`.

    Raises:
        ValueError: The shapes do not match.
    """
    check_shape("x", x, (None, None))
    gate_up = linear(x, w13, quantize_input=quantize_input, batch_invariant=batch_invariant)
    return linear(
        swiglu(gate_up, limit), w2, quantize_input=quantize_input, batch_invariant=batch_invariant
    )


def moe_experts(
    x: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    w13: ExpertWeight,
    w2: ExpertWeight,
    *,
    limit: float,
    quantize_input: bool = False,
    fp8_input: bool = False,
    shared: torch.Tensor | None = None,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """Sum of each row's routed experts, and of the shared expert's output if given, rounded once.

    Args:
        x: Shape (num_rows, hidden), float32, float64 or bfloat16.
        indices: Experts of each row, shape (num_rows, k), integer; -1 for none.
        weights: Routing weights, shape (num_rows, k), float.
        w13: Gate rows then up rows of every expert, shape (num_experts, 2 * size, hidden).
        w2: Down projections, shape (num_experts, hidden, size).
        limit: Clamp of the SwiGLU.
        quantize_input: Quantise the activations of both products to MXFP8.
        fp8_input: Quantise them to e4m3 with one scale per row instead (`fp8_quantize`): faster on
            a GPU, with weights in e4m3 fragment order, and coarser.
        shared: Added in float32 (float64) before the rounding, shape and dtype of `x`.
        batch_invariant: A row's bits do not depend on the other rows.

    Returns:
        Shape and dtype of `x`.

    Raises:
        ValueError: The shapes do not match, or both quantisations are asked for.
        IndexError: An expert that does not exist.
    """
    check_shape("x", x, (None, None))
    rows, hidden = x.shape
    num_experts, size = w2.shape[0], w2.shape[-1]
    check_shape("indices", indices, (rows, None))
    check_shape("weights", weights, tuple(indices.shape))
    check_shape("w13", w13, (num_experts, 2 * size, hidden))
    check_shape("w2", w2, (num_experts, hidden, size))
    if shared is not None:
        check_shape("shared", shared, (rows, hidden))
    if quantize_input and fp8_input:
        raise ValueError("`quantize_input` and `fp8_input` exclude each other")
    layouts = [product_layout(weight, quantize_input) for weight in (w13, w2)]
    run = _MOE_EXPERTS.select(
        x,
        row_invariant=batch_invariant,
        layout="w13 in {}, w2 in {}".format(*layouts) + (", FP8 rows" if fp8_input else ""),
        hidden=hidden,
        size=size,
        experts=num_experts,
        fp8_size=max(hidden, size) if fp8_input else 0,
    )
    return run(
        x, indices, weights, w13, w2, limit, quantize_input, fp8_input, shared, batch_invariant
    )


# --- Reference ---


def _router_topk(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    k: int,
    scaling_factor: float,
    row_mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stable descending sort of the biased scores."""
    # softplus(x) = -logsigmoid(-x): exact for large |x|, and the same bits wherever a value lies in
    # the tensor.
    scores = torch.sqrt(-torch.nn.functional.logsigmoid(-logits))
    ranked = scores if bias is None else scores + bias.to(scores.dtype)
    indices = torch.sort(ranked, dim=1, descending=True, stable=True).indices[:, :k]
    chosen = scores.gather(1, indices)
    weights = chosen / (chosen.sum(1, keepdim=True) + _WEIGHT_SUM_FLOOR) * scaling_factor
    if row_mask is not None:
        indices = torch.where(row_mask.unsqueeze(1), indices, -1)
        weights = torch.where(row_mask.unsqueeze(1), weights, 0)
    return indices, weights


def _swiglu(
    gate_up: torch.Tensor, limit: float, row_weights: torch.Tensor | None, out_dtype: torch.dtype
) -> torch.Tensor:
    """Float32 (float64) arithmetic, one rounding at the end."""
    gate, up = widen(gate_up).chunk(2, dim=-1)
    gate = gate.clamp_max(limit)
    activated = gate * sigmoid(gate) * up.clamp(-limit, limit)
    if row_weights is not None:
        activated = activated * cast(row_weights, activated.dtype).unsqueeze(-1)
    return cast(activated, out_dtype)


def _moe_experts(
    x: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    w13: ExpertWeight,
    w2: ExpertWeight,
    limit: float,
    quantize_input: bool,
    fp8_input: bool,
    shared: torch.Tensor | None,
    batch_invariant: bool,
) -> torch.Tensor:
    """Expert by expert, or with copied matrices where there is little to copy."""
    num_rows, k = indices.shape
    experts_of_rows = indices.tolist()
    experts = [expert for row in experts_of_rows for expert in row]
    outside = [expert for expert in experts if not -1 <= expert < w2.shape[0]]
    if outside:
        raise IndexError(f"expert out of range: there are {w2.shape[0]}, got: {outside[0]}")
    total = None
    is_free = not batch_invariant and not fp8_input
    if is_free and isinstance(w13, torch.Tensor) and isinstance(w2, torch.Tensor):
        if (
            x.device.type == "cpu"
            and w13.numel() + w2.numel() <= _SMALL_EXPERTS_VALUES
            and num_rows * w2.shape[0] <= _SMALL_EXPERTS_PAIRS
            and all(len(set(row)) == k for row in experts_of_rows)
        ):
            total = _every_expert(x, indices, weights, w13, w2, limit, quantize_input)
        elif 0 < 3 * x.shape[1] * w2.shape[-1] * len(experts) <= _GATHERED_VALUES:
            outputs = _experts_of_few_rows(x, indices, weights, w13, w2, limit, quantize_input)
            total = outputs.view(num_rows, k, x.shape[1]).sum(1)
    if total is None:
        outputs = _experts_in_turn(
            x, indices, experts, weights, w13, w2, limit, quantize_input, fp8_input, batch_invariant
        )
        total = _sum_over_experts(outputs.view(num_rows, k, x.shape[1]), batch_invariant)
    return cast(total if shared is None else total + widen(shared), x.dtype)


def _every_expert(
    x: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    limit: float,
    quantize_input: bool,
) -> torch.Tensor:
    """Two products over all experts, in float32 (float64); what was not chosen is dropped after.

    No row may name an expert twice: with quantised activations the sum of two equal experts is not
    the expert with the sum of the weights.
    """
    num_experts, _, size = w2.shape
    wide = wide_dtype(x.dtype)
    rows = mxfp8_fake_quantize(x) if quantize_input else x
    gate_up = torch.nn.functional.linear(cast(rows, wide), cast(w13, wide).flatten(0, 1))
    gate_up = cast(gate_up, x.dtype).view(-1, num_experts, 2 * size)
    # Column `num_experts` takes the weights of experts -1.
    columns = indices.long().remainder(num_experts + 1)
    pair_weights = weights.new_zeros(len(x), num_experts + 1).scatter(1, columns, weights)
    is_chosen = torch.zeros_like(pair_weights, dtype=torch.bool).scatter(1, columns, True)
    activated = swiglu(gate_up, limit, row_weights=pair_weights[:, :-1])
    if quantize_input:
        activated = mxfp8_fake_quantize(activated)
    down = torch.bmm(cast(activated, wide).transpose(0, 1), cast(w2, wide).transpose(1, 2))
    down = widen(cast(down, x.dtype))
    return down.masked_fill(~is_chosen[:, :-1].t().unsqueeze(2), 0).sum(0)


def _experts_of_few_rows(
    x: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    limit: float,
    quantize_input: bool,
) -> torch.Tensor:
    """Copies each pair's matrices side by side: two products in all, where calls cost most."""
    flat = indices.flatten().clamp_min(0)
    rows = mxfp8_fake_quantize(x) if quantize_input else x
    matrices = cast(w13.index_select(0, flat), x.dtype).view(x.shape[0], -1, x.shape[1])
    gate_up = torch.bmm(matrices, rows.unsqueeze(2)).view(len(flat), -1)
    pair_weights = weights.masked_fill(indices < 0, 0).flatten()
    activated = swiglu(gate_up, limit, row_weights=pair_weights)
    if quantize_input:
        activated = mxfp8_fake_quantize(activated)
    down = cast(w2.index_select(0, flat), x.dtype)
    return widen(torch.bmm(down, activated.unsqueeze(2)).squeeze(2))


def _experts_in_turn(
    x: torch.Tensor,
    indices: torch.Tensor,
    experts: list[int],
    weights: torch.Tensor,
    w13: ExpertWeight,
    w2: ExpertWeight,
    limit: float,
    quantize_input: bool,
    fp8_input: bool,
    batch_invariant: bool,
) -> torch.Tensor:
    """Sorts the pairs by expert; two products per expert that has rows."""
    counts = collections.Counter(experts)
    order = indices.flatten().argsort(stable=True)[counts.pop(-1, 0) :]
    active = sorted(counts.items())

    def product(rows: torch.Tensor, matrices: ExpertWeight) -> torch.Tensor:
        """Rows sorted by expert times their experts' matrices."""
        groups = rows.split_with_sizes([count for _, count in active])
        products = [
            _product(group, matrices[expert], fp8_input, batch_invariant)
            for (expert, _), group in zip(active, groups, strict=True)
        ]
        return torch.cat(products)

    outputs = widen(x).new_zeros(len(experts), x.shape[1])
    if not active:
        return outputs
    rows = mxfp8_fake_quantize(x) if quantize_input else x
    gate_up = product(rows[order // indices.shape[1]], w13)
    activated = swiglu(gate_up, limit, row_weights=weights.flatten()[order])
    if quantize_input:
        activated = mxfp8_fake_quantize(activated)
    return outputs.index_copy(0, order, widen(product(activated, w2)))


def _product(
    rows: torch.Tensor, matrix: ExpertWeight, fp8_input: bool, batch_invariant: bool
) -> torch.Tensor:
    if not fp8_input:
        dense = _dense(matrix, rows.dtype)
        return matmul_rows(rows, dense, batch_invariant=batch_invariant)
    codes, scale = fp8_quantize(rows)
    wide = scale.dtype
    total = matmul_rows(codes.to(wide), _dense(matrix, wide), batch_invariant=batch_invariant)
    return cast(total * scale.unsqueeze(-1), rows.dtype)


def _dense(matrix: ExpertWeight, dtype: torch.dtype) -> torch.Tensor:
    return cast(matrix, dtype) if isinstance(matrix, torch.Tensor) else matrix.dequantize(dtype)


def _sum_over_experts(outputs: torch.Tensor, batch_invariant: bool) -> torch.Tensor:
    if not batch_invariant:
        return outputs.sum(1)
    total = outputs[:, 0]
    for position in range(1, outputs.shape[1]):
        total = total + outputs[:, position]
    return total


_ROUTER_TOPK = Op("router_topk", _router_topk, dtypes=(torch.float32, torch.float64))
_SWIGLU = Op("swiglu", _swiglu)
_MOE_EXPERTS = Op("moe_experts", _moe_experts, determinism="row_invariant_on_request")
