"""Steps per second of both phases of the backbone on a machine, before time is spent on it.

Run it in `tools` as ``python -m tiny.speed --data DIR``; ``--help`` tells the rest.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from tiny import stages
from tiny.backbone import Backbone
from tiny.fuse import use_compiler
from tiny.optimise import Batches, StepFunction, Trainer, make_optimizer
from tiny.weights import Initial

_STEPS = 20


def main() -> None:
    """Times both phases of the backbone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--length", type=int, default=768)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--phases", nargs="+", default=["dense", "exact"])
    options = parser.parse_args()
    run = stages.Run(options.data, options.data, 0.0, options.batch, options.length)
    use_compiler(options.compile)
    device, sizes = run.device, run.sizes()
    model = Backbone(sizes, run.token_map(), device)
    values = Initial(sizes, 0).backbone()
    parameters = {name: value.to(device).requires_grad_() for name, value in values.items()}
    biases = torch.zeros(sizes.num_hidden_layers, sizes.n_routed_experts, device=device)
    batches = Batches(run.stream("train"), run.batch, run.length, device, 0)
    for phase in options.phases:
        exact = phase == "exact"
        mode = stages.train_mode(device, exact)
        step = stages.backbone_step(model, parameters, biases, mode, exact)
        _time(phase, parameters, step, batches)


def _time(
    name: str, parameters: dict[str, torch.Tensor], step: StepFunction, batches: Batches
) -> None:
    start = time.monotonic()
    optimizer = make_optimizer(parameters, 0.1)
    on_gpu = torch.cuda.is_available()
    trainer = Trainer(parameters, optimizer, step, batches.draw(), on_gpu)
    ready = time.monotonic() - start
    losses = []
    start = time.monotonic()
    for _ in range(_STEPS):
        losses.append(trainer.run(batches.draw(), 1e-3)["loss"].clone())
    first, last = float(losses[0]), float(losses[-1])
    seconds = (time.monotonic() - start) / _STEPS
    line = {
        "phase": name,
        "ready_s": round(ready, 1),
        "step_ms": round(1e3 * seconds, 2),
        "tokens_per_s": round(batches.batch * (batches.width - 1) / seconds),
        "loss": [round(first, 3), round(last, 3)],
        "memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if on_gpu else None,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
