"""The stage that measures the trained models on held-out documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear

from tiny import layers
from tiny.acceptance import Trials, calibration_of, try_drafts
from tiny.backbone import Backbone, Mode
from tiny.drafter import Drafter
from tiny.fuse import use_compiler
from tiny.measure import balance_of, bits_per_byte
from tiny.optimise import Batches
from tiny.prepare import TokenStream
from tiny.stages import Log, Run, Target, train_mode
from tiny.state import add_facts, load_state, save_state
from tiny.weights import compute_weights

_CONTEXT = 128
_BALANCE_BATCHES = 8
_MODES = (("greedy", True, False), ("ratio", False, False), ("coupled", False, True))


def run_trials(run: Run, log: Log) -> dict[str, Any]:
    """Scores the backbone and tries the drafter on held-out documents; adds to their facts."""
    parameters, _ = load_state(run.out, "backbone", run.device)
    backbone_biases = parameters.pop("router_biases")
    found = measure_backbone(run, parameters, backbone_biases)
    add_facts(run.out, "backbone", found)
    log({"stage": "trials", **found})
    target = Target.load(run)
    facts: dict[str, Any]
    values, facts = load_state(run.out, "drafter", run.device)
    biases = values["router_biases"]
    with torch.no_grad():
        w = target.w | compute_weights(values, target.mode.dtype, quantised=True)
    drafter = Drafter(run.sizes())
    facts |= measure_drafter(run, target.backbone, drafter, w, (target.biases, biases))
    save_state(run.out, "drafter", values, facts)
    return facts


def measure_backbone(run: Run, parameters: dict[str, Tensor], biases: Tensor) -> dict[str, Any]:
    """Held-out bits per byte, unrounded and as exported, and the balance of the experts."""
    use_compiler(False)
    model = Backbone(run.sizes(), run.token_map(), run.device)
    stream = run.stream("held_out")
    found: dict[str, Any] = {}
    for name, exact in (("unrounded", False), ("rounded", True)):
        mode = train_mode(run.device, exact)
        with torch.no_grad():
            w = compute_weights(parameters, mode.dtype, exact)
        if not exact:  # the selection stays on: only the rounding is compared
            mode = Mode(mode.dtype, sparse=True)

        @torch.no_grad()
        def losses_of(tokens: Tensor, w: Any = w, mode: Mode = mode) -> Tensor:
            hidden, _ = model(w, biases, tokens, mode)
            logits = linear(hidden[:, :-1], w["head.weight"])
            return layers.token_losses(logits, tokens[:, 1:])

        found[f"bits_per_byte_{name}"] = bits_per_byte(
            losses_of,
            stream,
            length=run.length,
            context=run.length // 4,
            batch=run.batch,
            device=run.device,
            limit=run.eval_limit,
        )
    full = Batches(stream, run.batch, run.length, run.device, run.seed)
    drawn = []
    for _ in range(_BALANCE_BATCHES):
        with torch.no_grad():
            _, trace = model(w, biases, full.draw()[:, :-1], mode)
        drawn.append(torch.stack(trace.loads))
    found["balance"] = balance_of(torch.stack(drawn).mean(0))
    return found


def measure_drafter(
    run: Run,
    backbone: Backbone,
    drafter: Drafter,
    w: dict[str, Tensor],
    biases: tuple[Tensor, Tensor],
) -> dict[str, Any]:
    """Accepted lengths on held-out contexts by way of verifying, and the calibration."""
    use_compiler(False)
    torch.manual_seed(run.seed)
    mode = train_mode(run.device, True)
    stream = run.stream("held_out")
    count = run.trial_batch * run.trial_batches
    begins, sources = held_out_contexts(stream, count, _CONTEXT, run.seed + 3)
    tokens = torch.from_numpy(stream.tokens[begins[:, None] + np.arange(_CONTEXT)].astype("int64"))
    found: dict[str, Any] = {}
    for name, greedy, coupled in _MODES:
        parts = [
            try_drafts(
                backbone,
                drafter,
                w,
                biases,
                contexts.to(run.device),
                mode,
                greedy=greedy,
                coupled=coupled,
            )
            for contexts in tokens.split(run.trial_batch)
        ]
        trials = Trials.joined(parts)
        found[name] = {
            "mean_length": trials.mean_length,
            "by_position": trials.by_position,
            "conditional": trials.conditional,
            "calibration": calibration_of(trials),
            "by_source": {
                source: 1.0 + float(trials.accepted[sources == number].mean())
                for number, source in enumerate(stream.names)
                if (sources == number).any()
            },
        }
    return found


def held_out_contexts(
    stream: TokenStream, count: int, length: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draws contexts that lie within one document each: a source by its share, then a place.

    Args:
        stream: Held-out documents.
        count: How many.
        length: Tokens per context.
        seed: Seed of the draws.

    Returns:
        First token and source of every context, int64 [count] each.

    Raises:
        ValueError: No document is longer than `length`.
    """
    lengths = np.append(stream.starts[1:], len(stream.tokens)) - stream.starts
    places = np.maximum(lengths - length, 0)
    tokens, per_source = np.zeros((2, len(stream.names)))
    np.add.at(tokens, stream.sources, lengths)
    np.add.at(per_source, stream.sources, places)
    shares = np.where(per_source > 0, tokens, 0)
    if not shares.any():
        raise ValueError(f"no held-out document has more than {length} tokens")
    chances = places * (shares / np.maximum(per_source, 1))[stream.sources]
    rng = np.random.default_rng(seed)
    document = rng.choice(len(places), count, p=chances / chances.sum())
    offset = rng.integers(places[document])
    return stream.starts[document] + offset, stream.sources[document]
