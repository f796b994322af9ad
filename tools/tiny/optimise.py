"""The training loop all stages share: a step, recorded as a CUDA graph where there is a GPU.

The budget of a stage is wall-clock time. The learning rate follows the share of it that is used up,
so that a stage always ends with a small rate, however fast the machine is.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tiny.prepare import TokenStream

_WARM_UP_CALLS = 3
_SYNC_EVERY = 20
_SAVE_EVERY = 20.0  # seconds

StepFunction = Callable[[Tensor], dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning rate over a stage: a linear rise, a plateau, a linear fall to zero.

    Attributes:
        peak: Largest rate.
        rise: Share of the stage that the rise takes.
        fall: Share that the fall takes.
    """

    peak: float
    rise: float = 0.03
    fall: float = 0.7

    def at(self, progress: float) -> float:
        """Rate after a share of the stage."""
        up = progress / self.rise if self.rise else 1.0
        down = (1 - progress) / self.fall if self.fall else 1.0
        return self.peak * max(0.0, min(1.0, up, down))


class Batches:
    """Random windows of a token stream.

    Half of them start where a document starts, as every request does; its source is drawn by its
    share of the tokens. The others start anywhere.

    Args:
        stream: Training tokens.
        batch: Windows per step.
        length: Tokens per window; one more is drawn, for the target of the last.
        device: Where the windows are wanted.
        seed: Seed of the draws.
        pool: Draw so many batches in advance and go round them; None draws without end.
    """

    def __init__(
        self,
        stream: TokenStream,
        batch: int,
        length: int,
        device: torch.device,
        seed: int,
        pool: int | None = None,
    ) -> None:
        self.batch, self.width, self.device = batch, length + 1, device
        self.tokens = torch.from_numpy(stream.tokens.astype("int32")).to(device)
        ends = torch.from_numpy(stream.starts).roll(-1)
        ends[-1] = len(stream.tokens)
        starts = torch.from_numpy(stream.starts)
        sources = torch.from_numpy(stream.sources)
        lengths = (ends - starts).double()
        by_source = torch.zeros(len(stream.names), dtype=torch.double)
        by_source.index_add_(0, sources, lengths)
        documents = torch.bincount(sources, minlength=len(stream.names)).double()
        self.chances = (by_source / documents)[sources].float().to(device)
        self.starts = starts.to(device)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.offsets = torch.arange(self.width, device=device)
        self._round = itertools.cycle([self._draw() for _ in range(pool)]) if pool else None

    def draw(self) -> Tensor:
        """Int64 [batch, length + 1]."""
        return self._draw() if self._round is None else next(self._round)

    def _draw(self) -> Tensor:
        last = len(self.tokens) - self.width
        half = self.batch // 2
        documents = torch.multinomial(self.chances, half, True, generator=self.generator)
        anywhere = torch.randint(
            last, (self.batch - half,), generator=self.generator, device=self.device
        )
        begin = torch.cat((self.starts[documents].clamp_max(last), anywhere))
        return self.tokens[begin[:, None] + self.offsets].long()


def make_optimizer(parameters: dict[str, Tensor], decay: float) -> torch.optim.AdamW:
    """AdamW; matrices decay, vectors and tables do not."""
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, value in parameters.items():
        is_matrix = value.dim() > 1 and "embed" not in name and "hc_" not in name
        (matrices if is_matrix else others).append(value)
    on_gpu = next(iter(parameters.values())).is_cuda
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}],
        lr=torch.tensor(0.0, device="cuda") if on_gpu else 0.0,
        betas=(0.9, 0.95),
        eps=1e-10,
        fused=on_gpu,
        foreach=not on_gpu,
        capturable=on_gpu,
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Sets the learning rate, in place where a graph reads it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class Trainer:
    """Runs steps of one kind: loss, gradients, clipping, update.

    Args:
        parameters: Leaves that get gradients.
        optimizer: Made by `make_optimizer`.
        step: Computes named scalars from a batch; `loss` is minimised.
        example: A batch, for its shape.
        use_graph: Record the step once and replay it.
    """

    def __init__(
        self,
        parameters: dict[str, Tensor],
        optimizer: torch.optim.AdamW,
        step: StepFunction,
        example: Tensor,
        use_graph: bool,
    ) -> None:
        self.parameters = list(parameters.values())
        self.optimizer = optimizer
        self.step = step
        self.batch = example.clone()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.results: dict[str, Tensor] = {}
        if use_graph:
            self._record()

    def run(self, batch: Tensor, rate: float) -> dict[str, Tensor]:
        """One step; the results are overwritten by the next."""
        set_rate(self.optimizer, rate)
        self.batch.copy_(batch)
        if self.graph is not None:
            self.graph.replay()
        else:
            self.results = self._update()
        return self.results

    def _update(self) -> dict[str, Tensor]:
        results = self.step(self.batch)
        for parameter in self.parameters:
            parameter.grad = None
        results["loss"].backward()
        results["norm"] = torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        return {name: value.detach() for name, value in results.items()}

    def _record(self) -> None:
        """Warms up on a side stream with a rate of zero, then records."""
        set_rate(self.optimizer, 0.0)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_CALLS):
                self._update()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.results = self._update()


def train_for(
    trainer: Trainer,
    batches: Batches,
    schedule: Schedule,
    begin: float,
    end: float,
    deadline: float,
    log: Callable[[dict[str, Any]], None],
    max_steps: int | None = None,
    save: Callable[[float, int], None] | None = None,
) -> int:
    """Trains until a deadline, the progress running from `begin` to `end`; returns the steps.

    Args:
        trainer: Runs the steps.
        batches: Gives the windows.
        schedule: Learning rate.
        begin: Progress of the whole stage when this call starts.
        end: Progress when it ends.
        deadline: End, in `time.monotonic` seconds.
        log: Receives a line now and then.
        max_steps: Ends sooner; progress then runs by steps, so that runs repeat exactly.
        save: Called now and then with the progress and the steps, so that a killed stage can go on.

    Raises:
        FloatingPointError: The loss or its gradient is not finite; what was saved before is sound.
    """
    start = saved = time.monotonic()
    span = max(deadline - start, 1e-6)
    steps = 0
    share = 0.0
    while share < 1.0 and (max_steps is None or steps < max_steps):
        progress = begin + (end - begin) * share
        results = trainer.run(batches.draw(), schedule.at(progress))
        steps += 1
        if steps % _SYNC_EVERY == 0 or steps == max_steps:
            values = {name: round(float(value), 4) for name, value in results.items()}
            if not math.isfinite(values["loss"] + values["norm"]):
                raise FloatingPointError(
                    f"step {steps} has the loss {values['loss']} and the gradient norm "
                    f"{values['norm']}: go on from the last saved state with a lower --rate"
                )
            seconds = time.monotonic() - start
            if save is not None and time.monotonic() - saved > _SAVE_EVERY:
                save(progress, steps)
                saved = time.monotonic()
            if steps % (10 * _SYNC_EVERY) == 0 or steps == max_steps:
                log({"step": steps, "seconds": round(seconds, 1), "progress": progress} | values)
        share = steps / max_steps if max_steps is not None else (time.monotonic() - start) / span
    return steps
