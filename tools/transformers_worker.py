"""Decodes with transformers' DeepSeek-V4 model; started by `compare_transformers.py`.

Runs in an environment of its own, without DI. Reads one JSON object per line from standard input
and answers each with one on standard output: first the model, then one measurement per line.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import transformers
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

EXPERT_IMPLEMENTATIONS = ("grouped_mm", "batched_mm")  # the first is the library's default
TRIAL_STEPS = 4
NUM_TRIALS = 4


class Worker:
    """A randomly initialised model and one decoding batch.

    Args:
        settings: `config` (fields of `DeepseekV4Config`), `dtype`, `threads`.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        torch.set_num_threads(settings["threads"])
        torch.manual_seed(0)
        config = DeepseekV4Config(**settings["config"])
        model: Any = DeepseekV4ForCausalLM(config).to(getattr(torch, settings["dtype"]))
        self.model: Any = model.train(False)
        self.next_ids = torch.empty(0)
        self.cache: Any = None
        self.experts = ""

    @torch.inference_mode()
    def start(self, prompts: list[list[int]]) -> None:
        """Computes the prompts, all of one length, and takes the faster way to run experts."""
        output = self.model(input_ids=torch.tensor(prompts), use_cache=True)
        self.cache = output.cache
        self.next_ids = output.logits[:, -1:].argmax(dim=-1)
        costs: dict[str, list[float]] = {experts: [] for experts in EXPERT_IMPLEMENTATIONS}
        for experts in EXPERT_IMPLEMENTATIONS * NUM_TRIALS:
            self.model.set_experts_implementation(experts)
            self.decode(1)
            costs[experts].append(self.decode(TRIAL_STEPS)["processor_s"])
        # The least of several: a busy machine only ever adds time.
        self.experts = min(costs, key=lambda experts: min(costs[experts]))
        self.model.set_experts_implementation(self.experts)

    @torch.inference_mode()
    def decode(self, num_steps: int) -> dict[str, float]:
        """Makes `num_steps` greedy tokens per prompt; returns wall and processor seconds."""
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(num_steps):
            output = self.model(input_ids=self.next_ids, cache=self.cache, use_cache=True)
            self.next_ids = output.logits[:, -1:].argmax(dim=-1)
        return {
            "wall_s": time.perf_counter() - wall,
            "processor_s": time.process_time() - processor,
        }


def main() -> None:
    """Answers the lines of standard input until it closes."""
    worker = Worker(json.loads(sys.stdin.readline()))
    parameters = sum(parameter.numel() for parameter in worker.model.parameters())
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    print(json.dumps({"parameters": parameters, "versions": versions}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "prompts" in request:
            worker.start(request["prompts"])
            print(json.dumps({"experts": worker.experts}), flush=True)
        else:
            print(json.dumps(worker.decode(request["num_steps"])), flush=True)


if __name__ == "__main__":
    main()
