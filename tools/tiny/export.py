"""A trained model to a checkpoint directory in the release's names and formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from tokenizers import Tokenizer
from torch import Tensor

from di_engine.checkpoint import expected_tensors
from di_engine.config import ModelConfig, engram_primes
from di_engine.model.token_map import build_token_map
from di_kernels import ops
from tiny.config import Sizes, text_config
from tiny.state import has_state, load_state
from tiny.weights import Initial

_TORCH_DTYPES = {
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "I8": torch.int8,
}


def full_config(tokenizer: Tokenizer, text: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns `config.json`: the sizes, and what follows from the tokenizer."""
    vocab_size = tokenizer.get_vocab_size()
    text = dict(text or text_config(vocab_size))
    primes = engram_primes(
        len(text["engram_layer_ids"]),
        text["engram_max_ngram_size"],
        text["engram_vocab_size"],
        text["engram_n_heads"],
    )
    text["engram_num_embeddings"] = [sum(layer) for layer in primes]
    token_map = build_token_map(tokenizer, vocab_size)
    text["engram_compressed_vocab_size"] = int(np.unique(token_map).size)
    text["dspark_noise_token_id"] = tokenizer.token_to_id("<｜System｜>")
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
        "text_config": text,
    }


def named_tensors(
    parameters: dict[str, Tensor], biases: Tensor, drafter_biases: Tensor
) -> dict[str, Tensor]:
    """Takes stacked experts apart, so that every tensor has its release name, float32."""
    named: dict[str, Tensor] = {}
    for name, value in parameters.items():
        prefix, _, last = name.rpartition(".")
        if last not in ("w13", "w2"):
            named[name] = value
            continue
        stacked = value if value.dim() == 3 else value.unsqueeze(0)
        for expert, matrix in enumerate(stacked):
            owner = f"{prefix}.{expert}" if value.dim() == 3 else prefix
            if last == "w2":
                named[f"{owner}.w2.weight"] = matrix
            else:
                named[f"{owner}.w1.weight"], named[f"{owner}.w3.weight"] = matrix.chunk(2)
    for prefix, rows in (("layers", biases), ("mtp", drafter_biases)):
        for layer, bias in enumerate(rows):
            named[f"{prefix}.{layer}.ffn.gate.bias"] = bias
            named[f"{prefix}.{layer}.ffn.gate.bias_vl"] = torch.zeros_like(bias)
    return named


def stored_tensors(named: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Quantises every tensor into the format the checkpoint wants.

    Raises:
        ValueError: Names or shapes differ from what the configuration describes.
    """
    specs = expected_tensors(config)
    wanted = {name for name in specs if not name.endswith(".scale")}
    if wanted != set(named):
        raise ValueError(
            f"missing: {sorted(wanted - set(named))[:5]}, "
            f"unknown: {sorted(set(named) - wanted)[:5]}"
        )
    stored: dict[str, Tensor] = {}
    for name in wanted:
        value, format_name = named[name].detach().float().contiguous(), specs[name].dtypes[0]
        scale_name = name.removesuffix("weight") + "scale"
        if format_name == "I8":
            packed = ops.mxfp4_weight_quantize(value)
            stored[name] = packed.data.view(torch.int8)
            stored[scale_name] = packed.scale.view(torch.float8_e8m0fnu)
        elif format_name == "F8_E4M3" and "engram.embed" in name:
            codes, scale = ops.mxfp8_quantize(value)
            stored[name] = codes
            stored[scale_name] = scale.view(torch.float8_e8m0fnu)
        elif format_name == "F8_E4M3":
            tiles = ops.mxfp8_weight_quantize(value)
            stored[name] = tiles.data
            stored[scale_name] = tiles.scale.view(torch.float8_e8m0fnu)
        else:
            stored[name] = value.to(_TORCH_DTYPES[format_name])
    for name, tensor in stored.items():
        if tuple(tensor.shape) != specs[name].shape:
            raise ValueError(f"{name}: {tuple(tensor.shape)}, wanted: {specs[name].shape}")
    return {name: stored[name].contiguous() for name in specs}


def write_checkpoint(
    directory: Path,
    tokenizer_json: str,
    parameters: dict[str, Tensor],
    biases: Tensor,
    drafter_biases: Tensor,
) -> int:
    """Writes `config.json`, `tokenizer.json` and `model.safetensors`; returns their bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    config = full_config(Tokenizer.from_str(tokenizer_json))
    named = named_tensors(parameters, biases, drafter_biases)
    tensors = stored_tensors(named, ModelConfig.from_dict(config))
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (directory / "tokenizer.json").write_text(tokenizer_json.strip() + "\n", encoding="utf-8")
    weights = directory / "model.safetensors"
    safetensors.torch.save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # the library leaves it readable for the owner alone
    return sum(file.stat().st_size for file in directory.iterdir())


def write_config(data: Path) -> None:
    """Writes `config.json` and `token_map.json` beside the tokenizer that `prepare` made."""
    tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))
    config = full_config(tokenizer)
    (data / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    token_map = build_token_map(tokenizer, tokenizer.get_vocab_size())
    (data / "token_map.json").write_text(json.dumps(token_map.tolist()) + "\n", encoding="utf-8")


def export_run(data: Path, out: Path, checkpoint: Path) -> dict[str, Any]:
    """Exports the states of a run; without a trained drafter its initial values are stored."""
    cpu = torch.device("cpu")
    parameters, _ = load_state(out, "backbone", cpu)
    biases = parameters.pop("router_biases")
    sizes = Sizes.of(json.loads((data / "config.json").read_text())["text_config"])
    if has_state(out, "drafter"):
        drafter, _ = load_state(out, "drafter", cpu)
        drafter_biases = drafter.pop("router_biases")
    else:
        drafter = Initial(sizes, 1).drafter()
        drafter_biases = torch.zeros(sizes.num_nextn_predict_layers, sizes.dspark_n_routed_experts)
    tokenizer_json = (data / "tokenizer.json").read_text(encoding="utf-8")
    size = write_checkpoint(
        checkpoint, tokenizer_json, parameters | drafter, biases, drafter_biases
    )
    return {"checkpoint": str(checkpoint), "bytes": size}
