"""Adapters for DeepSeek's kernel libraries on SM100, behind the same doors as every backend.

None of this was ever run on such hardware: every backend here is registered as unverified. What is
tested is the contract: signatures read from the published source archives, the checks at the head
of the called functions, and the documented formulas computed on a CPU.

Adapted:

| op | function | serves |
|---|---|---|
| `sparse_attention` | `flash_mla.flash_mla_with_kvcache` | 64 or 128 heads of 512, bfloat16; records of 528 and 288 bytes in blocks whole records apart |
| `mxfp8_linear` | `deep_gemm.fp8_gemm_nt` | `MXFP8PackedWeight`, bfloat16 rows quantised to MXFP8; not batch invariant |
| `moe_experts` | `deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous` | `MXFP4PackedWeight`, bfloat16 rows quantised to MXFP8; not batch invariant |

Declined, because the function computes something else than the op promises:

| op | function | reason |
|---|---|---|
| `grouped_linear` | `deep_gemm.fp8_einsum` | takes e4m3 rows only; the op multiplies the rows it is given, which the reference does not quantise before `wo_a` |
| `linear`, `mxfp8_linear` without quantised rows | `deep_gemm.fp8_gemm_nt` | no product of bfloat16 rows with MXFP8 weights there |
| `moe_experts` | `deep_gemm.m_grouped_fp8_fp4_gemm_nt_masked` | every expert would need room for all rows; the contiguous layout holds the same product |
| `moe_experts` | `deep_gemm.fp8_fp4_mega_moe` | owns the exchange between ranks: it needs a process group and buffers in symmetric memory |
| `index_scores` | `deep_gemm.fp8_fp4_paged_mqa_logits` | takes MXFP4 or MXFP8 queries and bfloat16 head weights, returns bfloat16 scores; the op promises float32 scores of the queries it is given, and ties of rounded scores select other entries |
| `candidate_scores` | `deep_gemm.fp8_fp4_paged_sparse_mqa_logits` | the same |
| `select_topk` | `deep_select.topk` (DeepSelect) | scans blocks in random order and names no winner among equal scores, where the op promises the lower index; a NaN aborts or marks the row, where the op ranks it lowest |
| `hc_mixes` | `deep_gemm.tf32_hc_prenorm_gemm` | TF32 product; the op's is float32 |
| `hc_transition` | `deep_gemm.mega_mhc` | the same step between sub-layers, with a TF32 product; the op's is float32 |
| `router_topk` | `deep_gemm.bf16_mega_gate` | includes the product with a bfloat16 gate; the op starts at float32 logits |
| `sink_attention` | `flash_mla.flash_mla_sparse_fwd` | bfloat16 keys only, the op takes any float; on a GPU records are read by `sparse_attention` |
| `sparse_attention` with `rotation` | `flash_mla.fused_norm_rope_attn_rope_cast` | wants `wq_b` and `wo_a` permuted at load and returns e4m3 rows for an e4m3 `wo_a`; the adapter rotates before and after |
| none | `deep_ep` | the exchange of rows between experts is no op of this package |

Sources: deepinfer-flashmla 1.0.0 and deepinfer-gemm 2.8.2 (README, signatures and argument checks),
DeepSelect 1.0.0 (README, `deep_select/interface.py`, algorithm notes).
"""  # noqa: E501 - a table row is one line
