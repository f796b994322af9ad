"""Makes the built-in tiny checkpoint: a DeepSeek-V4.1 model in which every mechanism is on.

    python tools/make_tiny.py                 writes it into the source tree of di-engine
    python tools/make_tiny.py --output DIR    writes it elsewhere
    python tools/make_tiny.py --check         compares a fresh one with the stored one

The result is the same byte for byte on every run: the tokenizer is trained on a stored text, the
weights are synthetic (seed 0). Exit codes: 0 good, 1 the stored checkpoint differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from di_engine.checkpoint import ALL_PARTS, dummy_source
from di_engine.config import ModelConfig, engram_primes
from di_engine.model.token_map import build_token_map

REPOSITORY = Path(__file__).resolve().parents[1]
CORPUS = REPOSITORY / "tools" / "tiny_corpus" / "python_docstrings.txt"
TARGET = REPOSITORY / "packages" / "di-engine" / "src" / "di_engine" / "tiny" / "checkpoint"
LIMIT_BYTES = 8_000_000

VOCAB_SIZE = 3840
FIRST_TOKENS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
# The release's markup, in the order of its ids. As there, only the first three count as special:
# the others are text that a parser wants to see.
MARKUP_TOKENS = (
    "<｜System｜>",
    "<｜fim▁hole｜>",
    "<｜fim▁begin｜>",
    "<｜fim▁end｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<|EOT|>",
    "<｜tool▁calls▁begin｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
    "<｜deepseek_image｜>",
)
DRAFTER_BLOCKS = 2
ENGRAM: dict[str, Any] = {
    "engram_layer_ids": [1, 4],
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 512,
    "engram_n_heads": 2,
    "engram_head_dim": 32,
    "engram_pad_token_id": FIRST_TOKENS.index("<｜▁pad▁｜>"),
}


def train_tokenizer(corpus: str) -> Tokenizer:
    """Returns a byte-level BPE of `VOCAB_SIZE` entries with the release's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(MARKUP_TOKENS),
        special_tokens=list(FIRST_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.split("\n\n"), trainer)
    tokenizer.add_tokens(
        [AddedToken(text, special=False, normalized=False) for text in MARKUP_TOKENS]
    )
    return tokenizer


def model_config(tokenizer: Tokenizer) -> dict[str, object]:
    """Returns the `config.json` of the tiny model."""
    token_map = build_token_map(tokenizer, VOCAB_SIZE)
    primes = engram_primes(
        len(ENGRAM["engram_layer_ids"]),
        ENGRAM["engram_max_ngram_size"],
        ENGRAM["engram_vocab_size"],
        ENGRAM["engram_n_heads"],
    )
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "image_token_id": tokenizer.token_to_id("<｜deepseek_image｜>"),
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [32, 32],
            "scale_fmt": "ue8m0",
            "expert_dtype": "fp4",
        },
        "text_config": {
            "model_type": "deepseek_v41_text",
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 160,
            "num_hidden_layers": 10,
            "rms_norm_eps": 1e-20,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": False,
            **attention_config(),
            **experts_config(),
            "hc_mult": 4,
            "hc_sinkhorn_iters": 20,
            "hc_eps": 1e-6,
            **ENGRAM,
            "engram_num_embeddings": [sum(layer) for layer in primes],
            "engram_compressed_vocab_size": int(np.unique(token_map).size),
            "num_nextn_predict_layers": DRAFTER_BLOCKS,
            "dspark_block_size": 5,
            "dspark_noise_token_id": tokenizer.token_to_id("<｜System｜>"),
            "dspark_target_layer_ids": [7, 8, 9],
            "dspark_markov_rank": 16,
            "dspark_n_routed_experts": 8,
            "dspark_num_experts_per_tok": 2,
        },
    }


def attention_config() -> dict[str, object]:
    """Two window layers, two ratio-2 segments, one ratio-1 segment with a re-index layer."""
    return {
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "qk_rope_head_dim": 32,
        "q_lora_rank": 64,
        "o_lora_rank": 64,
        "o_groups": 2,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "sliding_window": 32,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 8,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 1024,
        },
        "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1] + [0] * DRAFTER_BLOCKS,
        "kv_source_layer_ids": [2, 4, 6],
        "index_source_layer_ids": [2, 4, 6, 8],
        "index_n_heads": 4,
        "index_head_dim": 64,
        "index_topk": 32,
        "candidate_source_layer_id": 6,
        "candidate_topk_blocks": 8,
        "candidate_block_size": 8,
    }


def experts_config() -> dict[str, object]:
    """16 experts, 4 of them per token, and a shared one."""
    return {
        "moe_intermediate_size": 32,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "n_shared_experts": 1,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
    }


def write_checkpoint(directory: Path) -> int:
    """Writes the checkpoint into a directory and returns its size in bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(CORPUS.read_text(encoding="utf-8"))
    config = model_config(tokenizer)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (directory / "tokenizer.json").write_text(tokenizer.to_str() + "\n", encoding="utf-8")
    with dummy_source(ModelConfig.from_dict(config), parts=ALL_PARTS) as source:
        tensors = {name: source.get(name) for name in source.names()}
    weights = directory / "model.safetensors"
    safetensors.torch.save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # the library leaves it readable for the owner alone
    return sum(file.stat().st_size for file in directory.iterdir())


def differing_files(directory: Path, other: Path) -> list[str]:
    """Returns the names of files that are absent or different in one of two directories."""
    names = {file.name for folder in (directory, other) for file in folder.iterdir()}
    return sorted(
        name
        for name in names
        if not (directory / name).is_file()
        or not (other / name).is_file()
        or (directory / name).read_bytes() != (other / name).read_bytes()
    )


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=TARGET, help="directory to write")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    if arguments.check:
        with tempfile.TemporaryDirectory() as fresh:
            write_checkpoint(Path(fresh))
            differing = differing_files(Path(fresh), arguments.output)
        for name in differing:
            print(f"{arguments.output / name}: differs from a fresh one", file=sys.stderr)
        return 1 if differing else 0
    size = write_checkpoint(arguments.output)
    print(f"{arguments.output}: {size} bytes")
    if size >= LIMIT_BYTES:
        print(f"larger than the limit of {LIMIT_BYTES} bytes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
