"""An engine without a model: what a budget policy earns under load.

Requests have an acceptance level of their own, and whether a draft is accepted depends on (request,
token index, offset) alone, so that all policies meet the same luck. Drafters report a
confidence near the true conditional probability. A step costs what a staircase table says, times a
little noise and a slope that the table does not know, plus drafting.

What it shows is the policy, not a device: the default staircase has the shape of a memory-bound
decode step (flat, then growing with rows), in seconds of no particular GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from di_spec.budget import BudgetPlanner, CostModel, split_budget
from di_spec.latency import LatencyTable, row_buckets
from di_spec.metrics import SpecMetrics
from di_spec.sampling import Stream, uniform53
from di_spec.verify import coupled_agreement

__all__ = ["SimulatedLoad", "acceptance_by_rule", "compare_policies", "simulate", "staircase"]

ADAPTIVE = "adaptive"


def staircase(max_rows: int) -> LatencyTable:
    """Step times of a decode step: 10 ms, 20 us a row up to 64 rows and 90 us a row beyond."""
    rows = row_buckets(max_rows)
    seconds = [0.010 + 20e-6 * min(n, 64) + 90e-6 * max(0, n - 64) for n in rows]
    return LatencyTable(tuple(rows), tuple(seconds))


@dataclass(frozen=True, slots=True)
class SimulatedLoad:
    """What is served: one trace of requests, a fixed number of them at any time.

    Request i of the trace has an acceptance level and a length that depend on (seed, i) alone; a
    finished request is replaced by the next one.

    Attributes:
        num_requests: Requests that run at the same time.
        horizon_s: Simulated seconds.
        num_drafts: Drafts of a block.
        seed: Of acceptance levels, lengths, accept events and times.
        draft_s: Seconds of drafting per step; not paid without speculation.
        context_slope_s: Seconds per row that the latency table does not know.
        confidence_noise: Standard deviation of confidence logits around the truth.
    """

    num_requests: int
    horizon_s: float = 5.0
    num_drafts: int = 5
    seed: int = 0
    draft_s: float = 0.0002
    context_slope_s: float = 4e-6
    confidence_noise: float = 0.5


def simulate(load: SimulatedLoad, policy: int | str, table: LatencyTable) -> dict[str, Any]:
    """Serves the trace under one policy.

    Args:
        load: What is served.
        policy: Number of drafts to verify per request, or `adaptive`.
        table: Step times, known to the adaptive policy.

    Returns:
        `tokens_per_s`, `verified_per_step`, `accepted_length` and the summary of `SpecMetrics`.
    """
    rng = np.random.default_rng(load.seed + 1)
    metrics = SpecMetrics(load.num_drafts)
    cost = CostModel(table)
    planner = BudgetPlanner(cost, lag=1)
    requests = np.arange(load.num_requests)
    position = np.zeros(load.num_requests, np.int64)
    proposed = np.zeros(load.num_requests, np.int64)
    survival = np.zeros((load.num_requests, load.num_drafts))
    elapsed_s = 0.0
    while elapsed_s < load.horizon_s:
        if policy == ADAPTIVE:
            budget = planner.choose(requests.tolist(), proposed.tolist())
            verified = np.minimum(split_budget(survival, budget.num_rows) - 1, proposed)
        else:
            verified = np.minimum(int(policy), proposed)
        logits = _acceptance_logits(load, requests)
        accepted = _accept(load, logits, requests, position, verified)
        emitted = np.minimum(accepted + 1, _lengths(load, requests) - position)
        num_rows = int(load.num_requests + verified.sum())
        drafting_s = load.draft_s if policy != 0 else 0.0
        base_s = float(table.dense(num_rows)[num_rows]) * float(rng.normal(1, 0.02))
        forward_s = base_s + load.context_slope_s * table.bucket(num_rows)
        elapsed_s += forward_s + drafting_s
        cost.observe(num_rows, load.num_requests, forward_s, drafting_s)
        metrics.record(proposed, verified, accepted, emitted, survival)
        position += emitted
        is_done = position >= _lengths(load, requests)
        for request in requests[is_done].tolist():
            planner.forget(request)
        requests[is_done] = requests.max() + 1 + np.arange(is_done.sum())
        position[is_done] = 0
        confidence = _confidence(load, logits, rng)
        confidence[is_done] = 0.0
        survival = np.asarray(np.cumprod(confidence, axis=1), np.float64)
        proposed = np.where(is_done | (policy == 0), 0, load.num_drafts)
        planner.record(requests[~is_done].tolist(), survival[~is_done])
    summary = metrics.summary()
    return {
        "tokens_per_s": metrics.num_emitted / elapsed_s,
        "verified_per_step": metrics.num_verified / metrics.num_steps,
        "accepted_length": summary["accepted_length"],
        "metrics": summary,
    }


def compare_policies(
    concurrencies: Sequence[int] = (1, 8, 16, 60),
    policies: Sequence[int | str] = (0, 3, 5, ADAPTIVE),
    table: LatencyTable | None = None,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Every policy at every number of requests, on the same trace.

    Returns:
        One entry per number of requests and policy, with `gain_over_best_fixed` for the adaptive
        one (1 is equal).
    """
    table = table or staircase(6 * max(concurrencies))
    rows = []
    for num_requests in concurrencies:
        load = SimulatedLoad(num_requests, seed=seed)
        results = {policy: simulate(load, policy, table) for policy in policies}
        for policy, result in results.items():
            row = {"requests": num_requests, "policy": str(policy), **result}
            if policy == ADAPTIVE:
                fixed = [r["tokens_per_s"] for p, r in results.items() if p != ADAPTIVE]
                row["gain_over_best_fixed"] = result["tokens_per_s"] / max(fixed)
            rows.append(row)
    return rows


def acceptance_by_rule(
    vocab_size: int = 1000,
    logit_errors: Sequence[float] = (0.1, 0.3, 0.6, 1.0, 1.5),
    num_pairs: int = 200,
    seed: int = 0,
) -> list[dict[str, float]]:
    """Mean acceptance of a draft under each rule, computed exactly for random distributions.

    Target logits are normal with standard deviation 3; the drafter's differ from them by normal
    errors of a given size.

    Returns:
        For each size of error: `ratio` (ratio test), `coupled` (drafts drawn with the target's
        noise) and `independent` (coupled verification of drafts drawn with noise of their own).
    """
    rng = np.random.default_rng(seed)
    rows = []
    for error in logit_errors:
        sums = np.zeros(3)
        for _ in range(num_pairs):
            logits = rng.normal(0, 3, vocab_size)
            p = np.exp(logits - logits.max())
            q = p * np.exp(rng.normal(0, error, vocab_size))
            p, q = p / p.sum(), q / q.sum()
            sums += np.minimum(p, q).sum(), coupled_agreement(p, q), (p * q).sum()
        ratio, coupled, independent = (sums / num_pairs).tolist()
        rows.append(
            {
                "logit_error": error,
                "ratio": ratio,
                "coupled": coupled,
                "independent": independent,
            }
        )
    return rows


def _acceptance_logits(load: SimulatedLoad, requests: NDArray[np.int64]) -> NDArray[np.float64]:
    """Logits of conditional acceptance, [requests, drafts]; later drafts are worse."""
    uniform = uniform53(requests.astype(np.uint64), Stream.DRAFT, load.seed)
    level = 1.0 + 0.7 * np.log((uniform + 1e-9) / (1 - uniform))
    return np.asarray(level[:, None] - 0.15 * np.arange(load.num_drafts))


def _lengths(load: SimulatedLoad, requests: NDArray[np.int64]) -> NDArray[np.int64]:
    """Tokens of each request, 50 to 600."""
    uniform = uniform53(requests.astype(np.uint64), Stream.TARGET, load.seed)
    return np.asarray(50 + 550 * uniform, np.int64)


def _accept(
    load: SimulatedLoad,
    logits: NDArray[np.float64],
    requests: NDArray[np.int64],
    position: NDArray[np.int64],
    verified: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Accepted drafts: events keyed by (request, token index, offset)."""
    offset = np.arange(load.num_drafts)
    key = (
        requests[:, None].astype(np.uint64) * np.uint64(1_000_003)
        + position[:, None].astype(np.uint64) * np.uint64(97)
        + offset.astype(np.uint64)
        + np.uint64(load.seed) * np.uint64(2**40)
    )
    uniform = uniform53(key, Stream.ACCEPT, 0)
    happens = (uniform < _sigmoid(logits)) & (offset < verified[:, None])
    return np.asarray(np.cumprod(happens, axis=1).sum(1), np.int64)


def _confidence(
    load: SimulatedLoad, logits: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    return _sigmoid(logits + rng.normal(0, load.confidence_noise, logits.shape))


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-x)))
