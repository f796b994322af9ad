"""The training stages: what each reads, how long it may take, what it leaves behind."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from tiny import layers
from tiny.backbone import Backbone, Mode
from tiny.config import Sizes
from tiny.drafter import Drafter, markov_from_pairs
from tiny.fuse import use_compiler
from tiny.measure import bits_per_byte
from tiny.ngram import NgramModel
from tiny.optimise import Batches, Schedule, Trainer, make_optimizer, train_for
from tiny.plain import Plain
from tiny.prepare import TokenStream
from tiny.state import has_state, load_facts, load_state, save_state
from tiny.weights import Initial, compute_weights

_BIAS_RATE = 1e-3
_INDEX_SHARE = 0.1
_QUANTISED_FROM = 0.72
_DECAY = 0.1
_NGRAM_ORDER = 5


@dataclass(frozen=True, slots=True)
class Run:
    """Settings of a training run.

    Attributes:
        data: Directory that `prepare` wrote, with `config.json` and `token_map.json` in it.
        out: Where states are written.
        seconds: Budget of the stage.
        batch: Windows per step.
        length: Tokens per window.
        anchors: Draft blocks per window.
        rate: Peak learning rate.
        seed: Seed of everything that is drawn.
        compile: Fuse small kernels with `torch.compile`; the drafter's stage never does.
        graph: Record steps as CUDA graphs where there is a GPU.
        max_steps: Most steps of each phase; None lets time decide.
        eval_limit: Most held-out tokens scored per document.
        trial_batch: Contexts per batch when drafts are tried.
        trial_batches: Batches of contexts.
        pool: Draw the drafter's batches from so many fixed ones, and run the backbone on each of
            them only once: for a CPU. None draws without end.
    """

    data: Path
    out: Path
    seconds: float
    batch: int = 40
    length: int = 768
    anchors: int = 64
    rate: float = 3e-3
    seed: int = 0
    compile: bool = False
    graph: bool = True
    max_steps: int | None = None
    eval_limit: int = 1 << 30
    trial_batch: int = 256
    trial_batches: int = 16
    pool: int | None = None

    @property
    def device(self) -> torch.device:
        """The GPU if there is one."""
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    @property
    def machine(self) -> str:
        """Name of the device."""
        return torch.cuda.get_device_name() if self.device.type == "cuda" else "CPU"

    @property
    def graphs(self) -> bool:
        """Whether steps are recorded."""
        return self.graph and self.device.type == "cuda"

    def sizes(self) -> Sizes:
        """Sizes of the model."""
        return Sizes.of(json.loads((self.data / "config.json").read_text())["text_config"])

    def stream(self, part: str) -> TokenStream:
        """Tokens of `train` or `held_out`."""
        return TokenStream.load(self.data / f"{part}.npz")

    def token_map(self) -> Tensor:
        """Compressed token ids."""
        return torch.tensor(json.loads((self.data / "token_map.json").read_text()))


Log = Callable[[dict[str, Any]], None]


def train_mode(device: torch.device, exact: bool) -> Mode:
    """bf16 on a GPU, float32 elsewhere; `exact` imitates the engine's native arithmetic."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return Mode(dtype, sparse=exact, round_caches=exact, round_activations=exact)


def run_backbone(run: Run, log: Log) -> dict[str, Any]:
    """Trains the text model: first dense and unrounded, then selecting and rounding as exported."""
    begin, device, sizes = time.monotonic(), run.device, run.sizes()
    use_compiler(run.compile)
    model = Backbone(sizes, run.token_map(), device)
    facts: dict[str, Any] = {}
    if has_state(run.out, "backbone"):
        values, facts = load_state(run.out, "backbone", device)
        biases = values.pop("router_biases")
    else:
        values = {k: v.to(device) for k, v in Initial(sizes, run.seed).backbone().items()}
        biases = torch.zeros(sizes.num_hidden_layers, sizes.n_routed_experts, device=device)
        facts = {"progress": 0.0, "seconds": 0.0, "train_seconds": 0.0, "steps": 0}
    before = dict(facts)
    progress = before["progress"]
    parameters = {name: value.requires_grad_() for name, value in values.items()}
    optimizer = make_optimizer(parameters, _DECAY)
    batches = Batches(
        run.stream("train"), run.batch, run.length, device, run.seed + int(1000 * progress)
    )
    schedule = Schedule(run.rate)
    for phase_end, exact in ((_QUANTISED_FROM, False), (1.0, True)):
        if progress >= phase_end:
            continue
        step = backbone_step(model, parameters, biases, train_mode(device, exact), exact)
        share = (phase_end - progress) / (1.0 - progress)
        deadline = time.monotonic() + share * (begin + run.seconds - time.monotonic())
        trainer = Trainer(parameters, optimizer, step, batches.draw(), run.graphs)
        log({"stage": "backbone", "exact": exact, "ready": round(time.monotonic() - begin, 1)})
        done, started = dict(facts), time.monotonic()

        def save(
            progress: float,
            steps: int,
            done: dict[str, Any] = done,
            started: float = started,
        ) -> None:
            facts.update(
                progress=progress,
                seconds=before["seconds"] + time.monotonic() - begin,
                train_seconds=done["train_seconds"] + time.monotonic() - started,
                steps=done["steps"] + steps,
            )
            save_state(run.out, "backbone", parameters | {"router_biases": biases}, facts)

        steps = train_for(
            trainer, batches, schedule, progress, phase_end, deadline, log, run.max_steps, save
        )
        progress = phase_end
        save(progress, steps)
        del trainer
    facts |= {
        "tokens": facts["steps"] * run.batch * run.length,
        "length": run.length,
        "machine": run.machine,
        "parameters": sum(value.numel() for value in parameters.values()),
    }
    save_state(run.out, "backbone", parameters | {"router_biases": biases}, facts)
    return facts


def backbone_step(
    model: Backbone, parameters: dict[str, Tensor], biases: Tensor, mode: Mode, quantised: bool
) -> Callable[[Tensor], dict[str, Tensor]]:
    """Loss of the next token and of the index scores; nudges the router biases to equal loads."""

    def step(batch: Tensor) -> dict[str, Tensor]:
        w = compute_weights(parameters, mode.dtype, quantised)
        tokens, targets = batch[:, :-1], batch[:, 1:]
        hidden, trace = model(w, biases, tokens, mode)
        text = layers.token_losses(linear(hidden, w["head.weight"]), targets).mean()
        index = torch.stack(trace.index_losses).mean()
        loads = torch.stack(trace.loads)
        with torch.no_grad():
            biases.add_(_BIAS_RATE * torch.sign(loads.mean(-1, keepdim=True) - loads))
        smallest = (loads / loads.mean(-1, keepdim=True)).min()
        return {
            "loss": text + _INDEX_SHARE * index,
            "text": text,
            "index": index,
            "smallest": smallest,
        }

    return step


def run_plain(run: Run, log: Log) -> dict[str, Any]:
    """Trains a plain transformer of as many parameters as the backbone, for no more time.

    The time in which steps were made counts, not that of compiling them.
    """
    begin, device, sizes = time.monotonic(), run.device, run.sizes()
    use_compiler(run.compile)
    # The backbone's file is smaller, its experts have 4 bits: this flatters the plain model.
    total = sum(value.numel() for value in Initial(sizes, 0).backbone().values())
    model = Plain.of_size(sizes.vocab_size, total, depth=8)
    parameters = {k: v.to(device).requires_grad_() for k, v in model.initial(run.seed).items()}
    dtype = train_mode(device, False).dtype
    batches = Batches(run.stream("train"), run.batch, run.length, device, run.seed)

    def step(batch: Tensor) -> dict[str, Tensor]:
        w = {name: value.to(dtype) for name, value in parameters.items()}
        hidden = model(w, batch[:, :-1])
        logits = linear(hidden, w["head.weight"])
        return {"loss": layers.token_losses(logits, batch[:, 1:]).mean()}

    optimizer = make_optimizer(parameters, _DECAY)
    trainer = Trainer(parameters, optimizer, step, batches.draw(), run.graphs)
    log({"stage": "plain", "parameters": model.num_parameters})
    started = time.monotonic()
    backbone = load_facts(run.out, "backbone") or {}
    deadline = min(begin + run.seconds, started + backbone.get("train_seconds", math.inf))
    steps = train_for(
        trainer, batches, Schedule(run.rate / 2), 0.0, 1.0, deadline, log, run.max_steps
    )
    ended = time.monotonic()
    use_compiler(False)

    @torch.no_grad()
    def losses_of(tokens: Tensor) -> Tensor:
        w = {name: value.to(dtype) for name, value in parameters.items()}
        logits = linear(model(w, tokens)[:, :-1], w["head.weight"])
        return layers.token_losses(logits, tokens[:, 1:])

    found = bits_per_byte(
        losses_of,
        run.stream("held_out"),
        length=run.length,
        context=run.length // 4,
        batch=run.batch,
        device=device,
        limit=run.eval_limit,
    )
    facts = {
        "parameters": model.num_parameters,
        "seconds": ended - begin,
        "train_seconds": ended - started,
        "steps": steps,
        "machine": run.machine,
        "tokens": steps * run.batch * run.length,
        "bits_per_byte": found,
    }
    save_state(run.out, "plain", {}, facts)
    return facts


def run_drafter(run: Run, log: Log) -> dict[str, Any]:
    """Trains blocks, Markov head and confidence head on the frozen, quantised backbone."""
    begin, device, sizes = time.monotonic(), run.device, run.sizes()
    use_compiler(False)
    target = Target.load(run)
    drafter = Drafter(sizes)
    stream = run.stream("train")
    before: dict[str, Any] = {
        "progress": 0.0,
        "seconds": 0.0,
        "train_seconds": 0.0,
        "steps": 0,
        "blocks": 0,
    }
    if has_state(run.out, "drafter"):  # go on; once finished, with a schedule of its own
        values, before = load_state(run.out, "drafter", device)
        biases = values.pop("router_biases")
    else:
        values = Initial(sizes, run.seed + 1).drafter()
        values |= markov_from_pairs(sizes, stream.tokens)
        biases = torch.zeros(sizes.num_nextn_predict_layers, sizes.dspark_n_routed_experts)
        biases = biases.to(device)
    parameters = {k: v.to(device).requires_grad_() for k, v in values.items()}
    seed = run.seed + 2 + before["steps"]
    batches = Batches(stream, run.batch, run.length, device, seed, run.pool)
    rows = sizes.dspark_block_size
    rotary = target.backbone.rotary(-(-(run.length + rows) // 32) * 32)
    mode = target.mode

    def step(batch: Tensor) -> dict[str, Tensor]:
        tokens = batch[:, :-1]
        with torch.no_grad():
            hidden, features = target.observe(tokens)
            last = run.length - rows - 1
            anchors = torch.randint(1, last, (len(tokens), run.anchors), device=device)
            at = anchors.unsqueeze(-1) + torch.arange(rows, device=device)
            index = at.flatten(1).unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
            logits = linear(hidden.gather(1, index), target.w["head.weight"])
            logits = logits.unflatten(1, (run.anchors, rows))
        w = target.w | compute_weights(parameters, mode.dtype, quantised=True)
        draft, loads = drafter(w, biases, features, tokens, anchors, rotary, mode)
        found = drafter.losses(w, draft, tokens, logits, anchors)
        stacked = torch.stack(loads)
        with torch.no_grad():
            biases.add_(_BIAS_RATE * torch.sign(stacked.mean(-1, keepdim=True) - stacked))
        return {
            "loss": found.total,
            "cross_entropy": found.cross_entropy,
            "distance": found.distance,
            "confidence": found.confidence,
        }

    optimizer = make_optimizer(parameters, 0.0)
    trainer = Trainer(parameters, optimizer, step, batches.draw(), run.graphs)
    log({"stage": "drafter", "ready": round(time.monotonic() - begin, 1)})
    started = time.monotonic()
    facts: dict[str, Any] = {"machine": run.machine}

    def save(progress: float, steps: int) -> None:
        facts.update(
            progress=progress,
            seconds=before["seconds"] + time.monotonic() - begin,
            train_seconds=before["train_seconds"] + time.monotonic() - started,
            steps=before["steps"] + steps,
            blocks=before["blocks"] + steps * run.batch * run.anchors,
        )
        facts.update({name: float(value) for name, value in trainer.results.items()})
        save_state(run.out, "drafter", parameters | {"router_biases": biases}, facts)

    first = before["progress"] % 1.0
    deadline, schedule = begin + run.seconds, Schedule(run.rate)
    save(1.0, train_for(trainer, batches, schedule, first, 1.0, deadline, log, run.max_steps, save))
    return facts


def run_ngram(run: Run, log: Log) -> dict[str, Any]:
    """Counts the n-grams of the training tokens and scores the held-out ones with them."""
    begin, sizes = time.monotonic(), run.sizes()
    model = NgramModel(run.stream("train"), _NGRAM_ORDER, sizes.vocab_size)
    facts: dict[str, Any] = {
        "bits_per_byte": model.bits_per_byte(run.stream("held_out")),
        "order": _NGRAM_ORDER,
        "seconds": time.monotonic() - begin,
    }
    save_state(run.out, "ngram", {}, facts)
    return facts


class Target:
    """The frozen backbone as the drafter sees it.

    Args:
        run: Settings.
        backbone: Forward pass.
        w: Weights, rounded as exported.
        biases: Router biases.
    """

    def __init__(self, run: Run, backbone: Backbone, w: dict[str, Tensor], biases: Tensor) -> None:
        self.backbone, self.w, self.biases = backbone, w, biases
        self.mode = train_mode(run.device, True)
        if run.device.type == "cpu":  # the rounding of activations is most of the time there
            self.mode = replace(self.mode, round_activations=False)
        self._kept: dict[bytes, tuple[Tensor, Tensor]] | None = {} if run.pool else None

    @staticmethod
    def load(run: Run) -> Target:
        """Reads the result of the stage `backbone`."""
        frozen, _ = load_state(run.out, "backbone", run.device)
        biases = frozen.pop("router_biases")
        with torch.no_grad():
            w = compute_weights(frozen, train_mode(run.device, True).dtype, quantised=True)
        return Target(run, Backbone(run.sizes(), run.token_map(), run.device), w, biases)

    def observe(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Final hidden states and features; those of batches that come again are kept."""
        if self._kept is None:
            return self._run(tokens)
        key = tokens.numpy().tobytes()
        if key not in self._kept:
            self._kept[key] = self._run(tokens)
        return self._kept[key]

    @torch.no_grad()
    def _run(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        hidden, trace = self.backbone(self.w, self.biases, tokens, self.mode)
        return hidden, torch.cat(trace.features, dim=-1)
