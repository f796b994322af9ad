"""The kernels on a Hopper GPU, against float64 and bit for bit with themselves."""

import pytest
import torch

from di_kernels import ops, use_backend
from di_kernels.cases.case import Source
from di_kernels.cases.kernels.release import (
    HIDDEN,
    e4m3_expert_weights,
    expert_weights,
    record_pool,
    window_pool,
)
from di_kernels.check import KERNELS, run_checks

HAS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.skipif(not HAS_HOPPER, reason="needs a GPU of compute capability 9.0")
@pytest.mark.parametrize(
    "op",
    [
        "moe_experts",
        "grouped_linear",
        "sparse_attention",
        "norm_rope_write",
        "select_topk",
        "index_scores",
        "hc_mixes",
        "hc_transition",
        "router_topk",
        "engram_lookup",
        "draw_tokens",
        "edit_logits",
        "filter_tokens",
        "log_probs",
        "verify_drafts",
        "verify_drafts_by_ratio",
    ],
)
def test_kernels_pass_their_checks(op):
    results = list(run_checks("cuda", op_filter=[op], shapes=KERNELS))
    assert results
    assert [r for r in results if r.status != "pass"] == []


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.skipif(not HAS_HOPPER, reason="needs a GPU of compute capability 9.0")
@pytest.mark.parametrize("num_rows", [1, 6, 65, 200])
@pytest.mark.parametrize("invariant", [False, True])
def test_rotations_inside_attention_have_the_bits_of_those_apart(num_rows, invariant):
    generator = torch.Generator().manual_seed(0)
    source = Source(torch.device("cuda"), torch.bfloat16, False, generator)
    window, selected = window_pool(source, 500), record_pool(source, "nvfp4", 128, 20)
    q, sink = source.normal(num_rows, 64, 512), source.wide(64)
    slots = source.integers(-1, 500, num_rows, 128)
    chosen = source.integers(-1, selected.num_slots, num_rows, 512)
    frequencies = ops.rope_frequencies(64, 10_000.0).cuda()
    rotation = ops.rope_rotation(source.integers(0, 1 << 17, num_rows), frequencies)

    def attend(q, **options):
        with use_backend("tilelang"):
            return ops.sparse_attention(
                q, window, slots, sink, selected=selected, selected_slots=chosen,
                batch_invariant=invariant, **options,
            )  # fmt: skip

    with use_backend("reference"):
        rotated = ops.apply_rope(q, rotation)
    out = attend(rotated)
    with use_backend("reference"):
        apart = ops.apply_rope(out, rotation.inverse())
    assert torch.equal(attend(q, rotation=rotation), apart)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.skipif(not HAS_HOPPER, reason="needs a GPU of compute capability 9.0")
@pytest.mark.parametrize("fp8_input", [False, True])
@pytest.mark.parametrize("rows_of_each", [64, 128, 256])
def test_sums_handed_from_block_to_block_have_the_bits_of_sums_kept(fp8_input, rows_of_each):
    generator = torch.Generator().manual_seed(0)
    source = Source(torch.device("cuda"), torch.bfloat16, False, generator)
    experts = 16
    w13, w2 = (e4m3_expert_weights if fp8_input else expert_weights)(source, experts)
    x = source.normal(experts * rows_of_each, HIDDEN)
    indices = (torch.arange(x.shape[0], device="cuda") % experts).view(-1, 1)
    weights = source.wide(x.shape[0], 1).abs()

    def outputs(rows):
        with use_backend("tilelang"):
            return ops.moe_experts(
                x[rows], indices[rows], weights[rows], w13, w2, limit=10.0, fp8_input=fp8_input
            )

    together = outputs(slice(None))
    assert torch.equal(together, outputs(slice(None)))
    few = slice(0, 2 * experts)  # small tiles, a thread block each
    assert torch.equal(together[few], outputs(few))
