"""Products with a dense bfloat16 weight and float32 results: the logits."""

from __future__ import annotations

import torch

from di_kernels.fragments import FragmentWeight
from di_kernels.ops.linear import _LINEAR
from di_kernels.ops.quantize import mxfp8_fake_quantize
from di_kernels.packed import PackedWeight
from di_kernels.registry import Backend, SizeRule
from di_kernels.tile.toolchain import HOPPER
from di_kernels.weights import Weight

CUBLAS = "cublas"


def float32_product(
    x: torch.Tensor,
    weight: Weight | FragmentWeight | PackedWeight,
    quantize_input: bool,
    out_dtype: torch.dtype,
    batch_invariant: bool,
) -> torch.Tensor:
    """Arguments as the op passes them; nothing is copied to float32."""
    assert isinstance(weight, torch.Tensor), "see `layouts`"
    rows = (mxfp8_fake_quantize(x) if quantize_input else x).reshape(-1, x.shape[-1])
    product = torch.mm(rows, weight.T, out_dtype=out_dtype)
    return product.view(*x.shape[:-1], weight.shape[0])


_LINEAR.register(
    Backend(
        CUBLAS,
        float32_product,
        device_types=("cuda",),
        compute_capabilities=HOPPER,
        dtypes=(torch.bfloat16,),
        size_rules=(SizeRule("out_bytes", 4, 4), SizeRule("dense_bytes", 2, 2)),
        layouts=("dense",),
        note="Sums of bfloat16 products kept in float32, without a float32 copy of the weight.",
    )
)
