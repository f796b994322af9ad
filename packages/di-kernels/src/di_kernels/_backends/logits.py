"""Dense bfloat16 products with a float32 result: the logits."""

from __future__ import annotations

import torch

from di_kernels.fragments import FragmentWeight
from di_kernels.ops.linear import _LINEAR
from di_kernels.registry import Backend
from di_kernels.tile.toolchain import HOPPER
from di_kernels.weights import Weight


def _wide_result(
    x: torch.Tensor,
    weight: Weight | FragmentWeight,
    quantize_input: bool,
    out_dtype: torch.dtype,
    batch_invariant: bool,
) -> torch.Tensor:
    """Exact products of bfloat16 values summed in float32 by cuBLAS, without float32 copies."""
    if (
        quantize_input
        or batch_invariant
        or not isinstance(weight, torch.Tensor)
        or weight.dtype != torch.bfloat16
        or out_dtype != torch.float32
    ):
        return _LINEAR.reference(x, weight, quantize_input, out_dtype, batch_invariant)
    flat = x.reshape(-1, x.shape[-1])
    product: torch.Tensor = torch.mm(flat, weight.t(), out_dtype=torch.float32)
    return product.view(*x.shape[:-1], weight.shape[0])


_LINEAR.register(
    Backend(
        "cublas",
        _wide_result,  # type: ignore[arg-type]  # weights of adapters go to the reference
        device_types=("cuda",),
        compute_capabilities=HOPPER,
        dtypes=(torch.bfloat16,),
        determinism="row_invariant_on_request",
        note="bfloat16 weights to float32 logits without a float32 copy of the weights; other "
        "calls, and batch-invariant ones, are the reference's.",
    )
)
