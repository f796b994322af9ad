"""Public functions by family; each checks its arguments, picks a backend and runs it."""

from di_kernels.ops.attention import sink_attention, sparse_attention
from di_kernels.ops.compressor import compress_pool
from di_kernels.ops.engram import (
    EngramHashTables,
    EngramTable,
    engram_gate,
    engram_hash,
    engram_hash_tables,
    engram_lookup,
)
from di_kernels.ops.entries import compress_entries, norm_rope_write
from di_kernels.ops.hyper_connections import (
    HyperMixes,
    hc_collapse,
    hc_collapse_norm,
    hc_expand,
    hc_mixes,
)
from di_kernels.ops.hyper_transition import HyperTransition, hc_transition
from di_kernels.ops.indexer import candidate_scores, index_scores
from di_kernels.ops.linear import (
    grouped_linear,
    linear,
    mxfp4_weight_quantize,
    mxfp8_weight_dequantize,
    mxfp8_weight_quantize,
)
from di_kernels.ops.log_probs import LogProbs, log_probs
from di_kernels.ops.logit_edits import Penalties, TokenValues, edit_logits
from di_kernels.ops.moe import expert_mlp, moe_experts, router_topk, swiglu
from di_kernels.ops.norm import rms_norm
from di_kernels.ops.quantize import (
    fp8_quantize,
    mxfp4_dequantize,
    mxfp4_fake_quantize,
    mxfp4_quantize,
    mxfp8_dequantize,
    mxfp8_fake_quantize,
    mxfp8_quantize,
    nvfp4_dequantize,
    nvfp4_fake_quantize,
    nvfp4_quantize,
)
from di_kernels.ops.ratio import verify_drafts_by_ratio
from di_kernels.ops.records import read_records, write_records
from di_kernels.ops.rope import (
    RopeRotation,
    YarnScaling,
    apply_rope,
    rope_cos_sin,
    rope_frequencies,
    rope_rotation,
)
from di_kernels.ops.sampling import DrawnTokens, draw_tokens
from di_kernels.ops.selection import (
    candidate_visible,
    entries_to_slots,
    expand_candidates,
    select_all,
    select_candidate_blocks,
    select_topk,
)
from di_kernels.ops.sinkhorn import hc_sinkhorn
from di_kernels.ops.token_filters import filter_tokens
from di_kernels.ops.verification import VerifiedDrafts, verify_drafts
from di_kernels.records import RecordFormat, RecordPool, record_bytes

__all__ = [
    "DrawnTokens",
    "EngramHashTables",
    "EngramTable",
    "HyperMixes",
    "HyperTransition",
    "LogProbs",
    "Penalties",
    "RecordFormat",
    "RecordPool",
    "RopeRotation",
    "TokenValues",
    "VerifiedDrafts",
    "YarnScaling",
    "apply_rope",
    "candidate_scores",
    "candidate_visible",
    "compress_entries",
    "compress_pool",
    "draw_tokens",
    "edit_logits",
    "engram_gate",
    "engram_hash",
    "engram_hash_tables",
    "engram_lookup",
    "entries_to_slots",
    "expand_candidates",
    "expert_mlp",
    "filter_tokens",
    "fp8_quantize",
    "grouped_linear",
    "hc_collapse",
    "hc_collapse_norm",
    "hc_expand",
    "hc_mixes",
    "hc_sinkhorn",
    "hc_transition",
    "index_scores",
    "linear",
    "log_probs",
    "moe_experts",
    "mxfp4_dequantize",
    "mxfp4_fake_quantize",
    "mxfp4_quantize",
    "mxfp4_weight_quantize",
    "mxfp8_dequantize",
    "mxfp8_fake_quantize",
    "mxfp8_quantize",
    "mxfp8_weight_dequantize",
    "mxfp8_weight_quantize",
    "norm_rope_write",
    "nvfp4_dequantize",
    "nvfp4_fake_quantize",
    "nvfp4_quantize",
    "read_records",
    "record_bytes",
    "rms_norm",
    "rope_cos_sin",
    "rope_frequencies",
    "rope_rotation",
    "router_topk",
    "select_all",
    "select_candidate_blocks",
    "select_topk",
    "sink_attention",
    "sparse_attention",
    "swiglu",
    "verify_drafts",
    "verify_drafts_by_ratio",
    "write_records",
]
