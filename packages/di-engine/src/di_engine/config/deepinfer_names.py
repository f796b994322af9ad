"""DeepInfer's names for settings, and what they are called here.

One table for people who come from DeepInfer 0.1.0 (`environ.py`, `engine/arg_utils.py`). A value of
None means that this engine has no such setting; the note says why. DeepInfer's variables are not
read: the table is documentation that a test keeps true.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEEPINFER_ARGUMENTS", "DEEPINFER_VARIABLES", "Counterpart"]


@dataclass(frozen=True, slots=True)
class Counterpart:
    """What stands for a DeepInfer setting.

    Attributes:
        field: `section.field` of `EngineConfig`, or None.
        note: Difference in meaning, or why there is no such field.
    """

    field: str | None
    note: str = ""


def _none(note: str) -> Counterpart:
    return Counterpart(None, note)


_PARALLEL = "one rank; settings of several ranks come with the parallel engine"
_GRAPHS = "no graph capture yet"
_IMAGES = "text only yet"
_LOADED = "read from `config.json`"
_DEBUGGING = "use the tools of torch"

DEEPINFER_ARGUMENTS: dict[str, Counterpart] = {
    "model": Counterpart("model.path", "a hub id needs `model.revision`"),
    "revision": Counterpart("model.revision", "a commit, not a branch"),
    "tokenizer": Counterpart("model.tokenizer"),
    "tokenizer_revision": _none("the tokenizer comes from the revision of the model"),
    "trust_remote_code": _none("no code is ever loaded from a checkpoint"),
    "load_format": Counterpart("model.load_format"),
    "max_model_len": Counterpart("model.max_model_len"),
    "seed": Counterpart("seed", "also the base of request seeds"),
    "gpu_memory_utilization": Counterpart("cache.memory_fraction"),
    "tokens_per_block": Counterpart("cache.block_size"),
    "max_num_seqs": Counterpart("scheduler.max_running"),
    "max_num_batched_tokens": Counterpart("scheduler.max_tokens_per_step"),
    "chunked_prefill": Counterpart("scheduler.chunked_prefill", "on by default"),
    "lookahead_tokens": _none("a chunk may have any length"),
    "stop_preempted_request": Counterpart("scheduler.preemption", "`abort` or `recompute`"),
    "expert_parallel_size": _none(_PARALLEL),
    "data_parallel_size": _none(_PARALLEL),
    "context_parallel_size": _none(_PARALLEL),
    "engram_parallel_size": _none(_PARALLEL),
    "engine_rank": _none(_PARALLEL),
    "engine_group_rank": _none(_PARALLEL),
    "engine_type": _none("one role: prompts and decoding together"),
    "served_model_name": _none("no server yet"),
    "disable_log_stats": Counterpart("observability.log_every_steps", "0 turns them off"),
    "decode_sequence": _none("outputs always have both text and token ids"),
    "ignore_len": _none("unused in DeepInfer as well"),
    "offline_inference": _none("unused in DeepInfer as well"),
}

DEEPINFER_VARIABLES: dict[str, Counterpart] = {
    "DEEPINFER_ACCELERATOR": Counterpart("device"),
    "DEEPINFER_COMPUTE_SUM_SMALLER_PROBS": _none("not offered"),
    "DEEPINFER_JIT_CACHE_DIR": _none("TileLang reads `TILELANG_CACHE_DIR` itself"),
    "DEEPINFER_NCCL_NUM_SMS": _none(_PARALLEL),
    "DEEPINFER_USERBUFFER_COMM_SMS": _none(_PARALLEL),
    "DEEPINFER_GLOO_TIMEOUT": _none(_PARALLEL),
    "DEEPINFER_REARRANGE_P2P_GROUPS": _none(_PARALLEL),
    "DEEPINFER_OVERRIDE_NUM_EXTRA_EXPERTS": _none(_PARALLEL),
    "DEEPINFER_EXPERT_COUNT_WINDOW_SIZE": _none(_PARALLEL),
    "DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL": _none(_PARALLEL),
    "DEEPINFER_REARRANGE_AFTER_PREFILL_IN_NORMAL_ENGINE": _none(_PARALLEL),
    "DEEPINFER_MOE_LB_STAT_INTERVAL": _none(_PARALLEL),
    "DEEPINFER_FORCE_IMBALANCE_RATIO": _none(_PARALLEL),
    "DEEPINFER_FORCE_LOAD_BALANCE": _none(_PARALLEL),
    "DEEPINFER_SHOW_EPLB_DETAIL": _none(_PARALLEL),
    "DEEPINFER_PREFILL_MAX_SUM_SEQLEN_K": _none("`scheduler.max_tokens_per_step` bounds a step"),
    "DEEPINFER_INDEX_ATTN_MEMORY_LIMIT": _none("the reference ops bound their own chunks"),
    "DEEPINFER_USE_NEXTN_DECODE": Counterpart("speculation.drafter", "`dspark`"),
    "DEEPINFER_ENABLE_MTP_VARLEN": Counterpart("speculation.budget", "`adaptive`"),
    "DEEPINFER_MAX_BACKTRACKING_TOKENS": _none("follows from `speculation.num_draft_tokens`"),
    "DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE": Counterpart(
        "speculation.calibration", "a file, fitted by `di bench spec --save-calibration`"
    ),
    "DEEPINFER_ENGRAM_PAD_TOKEN": _none(_LOADED),
    "DEEPINFER_ENGRAM_FORCE_GPU_STORAGE": _none("tables live with the weights"),
    "DEEPINFER_SAMPLER_FORCE_TOPK": _none("`top_k` of `SamplingParams`"),
    "DEEPINFER_DECODE_TOKEN_BLACKLIST": _none("banned tokens of `SamplingParams`"),
    "DEEPINFER_ENFORCE_EAGER": _none(_GRAPHS),
    "DEEPINFER_CUDAGRAPH_BATCH_SIZE_INTERVAL": _none(_GRAPHS),
    "DEEPINFER_DFLASH_ENFORCE_EAGER": _none(_GRAPHS),
    "DEEPINFER_DFLASH_CUDAGRAPH_BATCH_SIZE_INTERVAL": _none(_GRAPHS),
    "DEEPINFER_DECODE_PERF_CACHE_DIR": Counterpart("speculation.latency_dir"),
    "DEEPINFER_DECODE_PERF_CACHE_TTL_SEC": _none(
        "seven days; everything a time depends on is in the key"
    ),
    "DEEPINFER_NUM_STATE_SLOTS_RATIO": Counterpart("cache.state_slot_ratio"),
    "DEEPINFER_PREFILL_STORE_EXTRA_STATE": _none("no key-value store yet"),
    "DEEPINFER_PREFILL_STORE_EXTRA_SIZE": _none("no key-value store yet"),
    "DEEPINFER_XGRAMMAR_DEBUG": _none("the error of a request says what is wrong"),
    "DEEPINFER_XGRAMMAR_TIMEOUT": Counterpart(
        "structured.compile_timeout_s", "without the time in the queue; the compile is killed"
    ),
    "DEEPINFER_XGRAMMAR_DISABLE_CACHE": Counterpart("structured.grammar_cache_bytes", "0"),
    "DEEPINFER_XGRAMMAR_CACHE_LIMIT_BYTES": Counterpart("structured.grammar_cache_bytes"),
    "DEEPINFER_SO_BUILDER_CPUS": Counterpart(
        "structured.compile_workers", "processes of low priority, bound to no CPU"
    ),
    "DEEPINFER_PREFILL_ATTEMPT_INTERVAL": _none(_PARALLEL),
    "DEEPINFER_PREFILL_ANY_ATTEMPT_INTERVAL": _none(_PARALLEL),
    "DEEPINFER_ZERO_OVERHEAD_SCHEDULING": _none("synchronous steps yet"),
    "DEEPINFER_LOGGING_INTERVAL_STEP": Counterpart("observability.log_every_steps"),
    "DEEPINFER_NCCL_MEMORY_SAMPLE_INTERVAL_STEPS": _none(_PARALLEL),
    "DEEPINFER_RINGBUFFER_WARNING_INTERVAL": _none(_PARALLEL),
    "DEEPINFER_GC_INTERVAL_STEP": _none("the collector is left alone"),
    "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE": Counterpart("prefill.truncation"),
    "DEEPINFER_YOCO_PREFILL_KEEP_TOKENS": Counterpart("prefill.keep_tokens"),
    "DEEPINFER_BATCH_INVARIANT": Counterpart("deterministic"),
    "DEEPINFER_DISABLE_SYNC_GUARD": _none("no guard to turn off"),
    "DEEPINFER_PROFILE_TORCH_CUDA_MEMORY": _none(_DEBUGGING),
    "DEEPINFER_ENABLE_MEMORY_TRACING": _none(_DEBUGGING),
    "DEEPINFER_PROFILE_HTTP_ENABLE": _none(_DEBUGGING),
    "DEEPINFER_PROFILE_HTTP_PORT_BASE": _none(_DEBUGGING),
    "DEEPINFER_TORCH_PROFILER_DIR": _none(_DEBUGGING),
    "DEEPINFER_USE_MULTIMODAL_POOL": _none(_IMAGES),
    "DEEPINFER_MULTIMODAL_POOL_SIZE_GB": _none(_IMAGES),
    "DEEPINFER_MULTI_MODAL_BUFFER_SIZE": _none(_IMAGES),
    "DEEPINFER_MULTI_MODAL_WORKER_TIMEOUT": _none(_IMAGES),
    "DEEPINFER_HF_MODEL_DIR": Counterpart("model.path", "used by DeepInfer's example scripts"),
}
