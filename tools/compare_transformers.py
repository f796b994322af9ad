"""Compares CPU decoding with transformers' DeepSeek-V4 implementation on a model of equal size.

    python tools/compare_transformers.py --batch-size 1 --batch-size 8

DI runs a checkpoint (the built-in tiny one by default) through its whole engine: scheduling,
model, sampling. transformers runs its own DeepSeek-V4 model with the same widths, depth, layer
kinds and number of experts, by the cheapest loop that its interface allows: one forward pass and an
argmax per step, with its faster way to run experts. Both get the same number of threads and take
turns, so that both see the same machine. V4.1's Engram layers and candidate blocks have no
counterpart there: DI does that work on top.

`ratio` is of tokens per second by the clock, `processor_ratio` of tokens per second of processor
time, which other programs on the machine disturb less. Above 1, DI is faster.

transformers lives in an environment of its own, made on the first run with `uv`.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import typer

from di_engine.config import EngineConfig, ModelConfig
from di_engine.core.assembly import EngineParts, assemble
from di_engine.runner.request import EngineRequest
from di_spec.sampling import SamplingParams

ROOT = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).with_name("transformers_worker.py")
ENVIRONMENT = ROOT / ".hatch" / "compare-transformers"
TRANSFORMERS = "transformers==5.24.0"  # the first line of releases with `deepseek_v4` is 5.x

Arithmetic = Literal["float32", "native"]
DTYPES = {"float32": "float32", "native": "bfloat16"}


def main(
    model: Annotated[str, typer.Option(help="Checkpoint that DI runs.")] = "tiny",
    batch_size: Annotated[list[int] | None, typer.Option(help="May be repeated.")] = None,
    arithmetic: Annotated[
        list[str] | None, typer.Option(help="float32, native or both.", show_default="both")
    ] = None,
    prompt_len: Annotated[int, typer.Option(help="Prompt tokens.")] = 64,
    num_steps: Annotated[int, typer.Option(help="Decode steps per turn.")] = 32,
    num_turns: Annotated[int, typer.Option(help="Turns of each side; the median counts.")] = 7,
    threads: Annotated[int, typer.Option(help="Threads of each side.")] = 1,
) -> None:
    """Prints one JSON object per arithmetic and batch size."""
    torch.set_num_threads(threads)
    python = make_environment()
    for chosen in arithmetic or list(DTYPES):
        config = EngineConfig.from_flat(
            model=model, arithmetic=chosen, device="cpu", log_every_steps=0
        )
        parts = assemble(config)
        peer = Peer(python, peer_config(parts.model_config), DTYPES[chosen], threads)
        with peer:
            for size in batch_size or [1, 8]:
                result = compare(parts, peer, size, prompt_len, num_steps, num_turns)
                print(
                    json.dumps(
                        {
                            "arithmetic": chosen,
                            "peer_dtype": DTYPES[chosen],
                            "threads": threads,
                            **result,
                            "versions": {**peer.hello["versions"], "di_torch": torch.__version__},
                        }
                    ),
                    flush=True,
                )


def make_environment() -> Path:
    """Makes transformers' environment unless it is there; returns its interpreter."""
    python = ENVIRONMENT / "bin" / "python"
    if python.is_file():
        return python
    uv = shutil.which("uv")
    if uv is None:
        raise SystemExit("`uv` is needed to make the environment: pip install uv")
    torch_version = torch.__version__.split("+")[0]
    print(f"making {ENVIRONMENT} with {TRANSFORMERS} and torch {torch_version}", file=sys.stderr)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    subprocess.run([uv, "venv", "--quiet", "--python", version, ENVIRONMENT], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    try:
        subprocess.run([*install, TRANSFORMERS, f"torch=={torch_version}"], check=True)
    except subprocess.CalledProcessError:
        shutil.rmtree(ENVIRONMENT)
        raise SystemExit(f"{TRANSFORMERS} could not be installed") from None
    return python


def peer_config(config: ModelConfig) -> dict[str, Any]:
    """The nearest `DeepseekV4Config`: same widths, depth, experts and kinds of layers."""
    ratios = [config.ratio(layer) for layer in range(config.num_hidden_layers)]
    same = (
        "vocab_size hidden_size moe_intermediate_size num_hidden_layers num_attention_heads "
        "head_dim q_lora_rank o_lora_rank o_groups n_routed_experts n_shared_experts "
        "num_experts_per_tok routed_scaling_factor max_position_embeddings rope_theta "
        "compress_rope_theta hc_mult hc_sinkhorn_iters swiglu_limit sliding_window "
        "index_n_heads index_head_dim index_topk"
    )
    return {name: getattr(config, name) for name in same.split()} | {
        "partial_rotary_factor": config.qk_rope_head_dim / config.head_dim,
        "layer_types": [
            "compressed_sparse_attention" if ratio else "sliding_attention" for ratio in ratios
        ],
        "mlp_layer_types": ["moe"] * config.num_hidden_layers,
        "compress_rates": {
            "compressed_sparse_attention": max(ratios),
            "heavily_compressed_attention": 128,
        },
    }


class Peer:
    """The process that runs transformers.

    Attributes:
        hello: What it said of itself: parameters and versions.
    """

    def __init__(self, python: Path, config: dict[str, Any], dtype: str, threads: int) -> None:
        self._process = subprocess.Popen(
            [python, WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"OMP_NUM_THREADS": str(threads), "PATH": "", "HF_HUB_OFFLINE": "1"},
        )
        self.hello = self.ask({"config": config, "dtype": dtype, "threads": threads})

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends one line and waits for the answer."""
        assert self._process.stdin is not None, "opened with a pipe"
        assert self._process.stdout is not None, "opened with a pipe"
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the transformers process ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class OwnSide:
    """DI's engine with one decoding batch."""

    def __init__(self, parts: EngineParts, prompts: list[list[int]], max_tokens: int) -> None:
        self._engine = parts.engine
        self._ids = {str(index) for index in range(len(prompts))}
        for index, prompt in enumerate(prompts):
            self._engine.add(
                EngineRequest(
                    request_id=str(index),
                    prompt_ids=np.array(prompt, dtype=np.int32),
                    sampling=SamplingParams(temperature=0),
                    max_tokens=max_tokens,
                    ignore_eos=True,
                )
            )
        waiting = set(self._ids)
        while waiting:
            waiting -= {event.request_id for event in self._engine.step() if event.token_ids}

    def decode(self, num_steps: int) -> dict[str, float]:
        """Runs steps; returns wall seconds, processor seconds and tokens."""
        wall, processor = time.perf_counter(), time.process_time()
        num_tokens = sum(
            len(event.token_ids) for _ in range(num_steps) for event in self._engine.step()
        )
        return {
            "wall_s": time.perf_counter() - wall,
            "processor_s": time.process_time() - processor,
            "num_tokens": num_tokens,
        }

    def end(self) -> None:
        """Aborts the batch."""
        self._engine.abort(self._ids)
        while self._engine.has_work:
            self._engine.step()


def compare(
    parts: EngineParts,
    peer: Peer,
    batch_size: int,
    prompt_len: int,
    num_steps: int,
    num_turns: int,
) -> dict[str, Any]:
    """Measures both sides in turns; the first turn of each is a warm-up."""
    random = np.random.default_rng(0)
    shape = (batch_size, prompt_len)
    prompts = random.integers(3, parts.model_config.vocab_size, shape).tolist()
    own = OwnSide(parts, prompts, max_tokens=num_steps * (num_turns + 1) + 8)
    experts = peer.ask({"prompts": prompts})["experts"]
    rates: dict[str, list[tuple[float, float]]] = {"wall_s": [], "processor_s": []}
    for turn in range(num_turns + 1):
        if turn == 1:
            parts.engine.timer.reset()
        mine = own.decode(num_steps)
        theirs = peer.ask({"num_steps": num_steps})
        if turn > 0:
            for clock, pairs in rates.items():
                peer_rate = batch_size * num_steps / theirs[clock]
                pairs.append((mine["num_tokens"] / mine[clock], peer_rate))
    times = parts.engine.timer.reset()
    own.end()
    return {
        "batch_size": batch_size,
        "prompt_len": prompt_len,
        "num_steps": num_steps,
        "num_turns": num_turns,
        "peer_experts": experts,
        "di_tokens_per_s": round(statistics.median(mine for mine, _ in rates["wall_s"]), 1),
        "transformers_tokens_per_s": round(
            statistics.median(theirs for _, theirs in rates["wall_s"]), 1
        ),
        "ratio": _ratio(rates["wall_s"]),
        "processor_ratio": _ratio(rates["processor_s"]),
        "di_step_ms": {
            name: round(getattr(times, f"{name}_s") / times.num_steps * 1e3, 3)
            for name in ("schedule", "model", "sample")
        },
    }


def _ratio(pairs: list[tuple[float, float]]) -> dict[str, float]:
    ratios = sorted(mine / theirs for mine, theirs in pairs)
    median = statistics.median(ratios)
    return {"median": round(median, 3), "min": round(ratios[0], 3), "max": round(ratios[-1], 3)}


if __name__ == "__main__":
    typer.run(main)
