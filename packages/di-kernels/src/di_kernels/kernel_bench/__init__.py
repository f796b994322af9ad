"""`bench --shapes kernels`: the release's widths on a GPU, beside what a user would take otherwise.

Floors use what an H200 was measured to reach, 4.5 TB/s of reads and 798 TFLOP/s in bfloat16; other
devices are measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from di_kernels.bench import BenchResult, Ceilings
from di_kernels.cases.case import Source
from di_kernels.kernel_bench import (
    attention,
    entries,
    experts_e4m3,
    hyper_connections,
    index,
    layer,
    layer_linears,
    products,
    sampling,
    selection,
    tokens,
)
from di_kernels.kernel_bench.timing import kernel_ceilings, measure

_FAMILIES = (
    (products.experts, ("moe_experts",)),
    (experts_e4m3.experts, ("moe_experts",)),
    (experts_e4m3.quantisers, ("fp8_quantize",)),
    (products.linears, ("mxfp8_linear", "grouped_linear")),
    (layer_linears.one_layer, ("mxfp8_linear", "grouped_linear")),
    (attention.sparse_attention, ("sparse_attention",)),
    (
        hyper_connections.hyper_connections,
        ("hc_mixes", "hc_expand", "hc_collapse_norm", "hc_transition"),
    ),
    (layer.router, ("router_topk",)),
    (layer.engram, ("engram_hash", "engram_lookup", "engram_gate")),
    (selection.select_topk, ("select_topk",)),
    (selection.select_candidate_blocks, ("select_candidate_blocks",)),
    (entries.quantizers, entries.QUANTIZERS),
    (entries.norms, ("rms_norm",)),
    (entries.rope, ("apply_rope",)),
    (entries.records, ("write_records", "read_records")),
    (entries.writers, ("norm_rope_write",)),
    (entries.compressor, ("compress_entries",)),
    (index.index_scores, ("index_scores",)),
    (index.candidate_scores, ("candidate_scores",)),
    (sampling.draw, ("draw_tokens",)),
    (tokens.edits, ("edit_logits",)),
    (tokens.filters, ("filter_tokens",)),
    (tokens.log_probs, ("log_probs",)),
    (tokens.verification, ("verify_drafts",)),
    (tokens.ratio_test, ("verify_drafts_by_ratio",)),
    (tokens.logits, ("linear",)),
)


def run_kernel_bench(
    device: str | torch.device, *, op_filter: Sequence[str] = (), ceilings: Ceilings
) -> Iterator[BenchResult]:
    """Measures every way of every workload."""
    generator = torch.Generator(device).manual_seed(0)
    source = Source(torch.device(device), torch.bfloat16, False, generator)
    for workloads, ops_of in _FAMILIES:
        if op_filter and not set(op_filter) & set(ops_of):
            continue
        for work in workloads(source):
            if op_filter and work.op not in op_filter:
                continue
            for name, call in work.ways.items():
                yield measure(work, name, call, device, ceilings)


__all__ = ["kernel_ceilings", "run_kernel_bench"]
