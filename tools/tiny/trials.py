"""The stage that tries the trained drafter on held-out documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tiny.acceptance import Trials, calibration_of, try_drafts
from tiny.backbone import Backbone
from tiny.drafter import Drafter
from tiny.fuse import use_compiler
from tiny.prepare import TokenStream
from tiny.stages import Log, Run, Target, train_mode
from tiny.state import load_state, save_state
from tiny.weights import compute_weights

_CONTEXT = 128
_MODES = (("greedy", True, False), ("ratio", False, False), ("coupled", False, True))


def run_trials(run: Run, log: Log) -> dict[str, Any]:
    """Tries the trained drafter on held-out documents and adds what it finds to its facts."""
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
