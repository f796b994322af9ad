"""Speculation changes no token: with a model that counts, whatever is drafted and verified."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from di_engine import EngineConfig
from di_engine.core.assembly import assemble
from di_engine.core.metrics import prometheus_collector
from di_engine.core.speculation_parts import DraftSource
from di_engine.errors import InvalidRequestError
from di_engine.runner.drafting import DraftInputs, Drafts
from di_engine.runner.request import EngineRequest
from di_engine.runner.row_budget import AdaptiveRows
from di_engine.runner.slot_state import SlotState
from di_engine.runner.speculation import Speculation
from di_engine.testing.counting_engine import CountingEngine
from di_engine.testing.forced_drafts import ForcedDrafter, RandomRows
from di_engine.testing.request_mix import Arrival, Received, random_mix, run_mix
from di_scheduler import SchedulerConfig
from di_spec import BudgetPlanner, CostModel, LatencyTable, NgramDrafter, VerifyMode
from di_spec import torch as spec_torch
from di_spec.sampling import SamplingParams, Stream

VOCAB = 259
PREFIXES = [[10 + i % 240 for i in range(300)], [7] * 200]

RIGHT: dict[str, Callable[[str, int], bool]] = {
    "right": lambda request_id, position: True,
    "wrong": lambda request_id, position: False,
    "half": lambda request_id, position: position % 3 != 0,
}


def forced(
    answers: dict[str, Sequence[int]], num_drafts: int, kind: str, **options: Any
) -> Callable[[SchedulerConfig], Speculation]:
    def speculate(config: SchedulerConfig) -> Speculation:
        return Speculation(
            SlotState(config.state_slots, num_drafts, torch.device("cpu")),
            num_draft_tokens=num_drafts,
            mode=options.pop("mode", "coupled"),
            drafter=ForcedDrafter(answers, num_drafts, VOCAB, RIGHT[kind]),
            **options,
        )

    return speculate


def looked_up(num_drafts: int) -> Callable[[SchedulerConfig], Speculation]:
    def speculate(config: SchedulerConfig) -> Speculation:
        return Speculation(
            SlotState(config.state_slots, num_drafts, torch.device("cpu")),
            num_draft_tokens=num_drafts,
            mode="coupled",
            host_drafter=NgramDrafter(num_drafts),
        )

    return speculate


def answers_of(received: dict[str, Received]) -> dict[str, Sequence[int]]:
    return {request_id: got.token_ids for request_id, got in received.items()}


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    num_drafts=st.integers(1, 5),
    kind=st.sampled_from(sorted(RIGHT)),
    budget=st.sampled_from(["all", "random", "random on the host"]),
    overlap=st.booleans(),
    num_blocks=st.sampled_from([7, 64]),
    max_running=st.sampled_from([2, 8]),
    policy=st.sampled_from(["mixed", "prefill_first", "decode_first"]),
    prefix_cache=st.booleans(),
)
def test_tokens_and_logprobs_are_those_without_drafts(
    seed: int,
    num_drafts: int,
    kind: str,
    budget: str,
    overlap: bool,
    num_blocks: int,
    max_running: int,
    policy: str,
    prefix_cache: bool,
) -> None:
    mix = random_mix(
        seed, vocab_size=VOCAB, num_requests=1 + seed % 6, max_tokens=40, prefixes=PREFIXES
    )
    plain = run_mix(CountingEngine().engine, mix)
    counting = CountingEngine(
        overlap=overlap,
        speculate=forced(answers_of(plain), num_drafts, kind),
        row_budget=None if budget == "all" else RandomRows(seed, budget == "random"),
        num_draft_tokens=num_drafts,
        drafts_after_prefill=True,
        num_blocks=num_blocks,
        max_running=max_running,
        policy=policy,
        prefix_cache=prefix_cache,
    )
    assert run_mix(counting.engine, mix) == plain
    assert counting.runner.num_requests == 0


@settings(max_examples=6)
@given(
    seed=st.integers(0, 10**6), num_drafts=st.integers(1, 5), num_blocks=st.sampled_from([7, 64])
)
def test_ngram_drafts_change_nothing(seed: int, num_drafts: int, num_blocks: int) -> None:
    mix = random_mix(
        seed, vocab_size=VOCAB, num_requests=1 + seed % 6, max_tokens=40, prefixes=PREFIXES
    )
    plain = run_mix(CountingEngine().engine, mix)
    counting = CountingEngine(
        speculate=looked_up(num_drafts),
        num_draft_tokens=num_drafts,
        drafts_after_prefill=True,
        num_blocks=num_blocks,
    )
    assert run_mix(counting.engine, mix) == plain


def request(**sampling: Any) -> EngineRequest:
    params = {"temperature": 0.0} | sampling
    return EngineRequest("r", np.array([10], np.int32), SamplingParams(**params), 30)


def counts(engine: CountingEngine) -> tuple[list[int], int]:
    """Tokens of a request that counts from 10, and the turns it took."""
    engine.engine.add(request())
    token_ids: list[int] = []
    turns = 0
    while engine.engine.has_work:
        token_ids += [t for event in engine.engine.step() for t in event.token_ids]
        turns += 1
    return token_ids, turns


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("kind", "accepted"), [("right", 5), ("wrong", 0)])
def test_right_drafts_save_steps_and_wrong_ones_cost_none(
    overlap: bool, kind: str, accepted: int
) -> None:
    answer = {"r": list(range(11, 41))}
    counting = CountingEngine(
        overlap=overlap,
        speculate=forced(answer, 5, kind),
        num_draft_tokens=5,
        drafts_after_prefill=True,
    )
    token_ids, turns = counts(counting)
    assert token_ids == answer["r"]
    # One token behind the prompt, then 29 in steps of 1 + accepted.
    steps = 1 + -(-29 // (1 + accepted))
    assert turns <= steps + 2 * overlap
    assert counting.runner.speculation is not None
    figures = counting.runner.speculation.metrics
    assert figures.num_request_steps == steps - 1
    assert figures.num_emitted == 29
    assert figures.num_accepted == (figures.num_verified if accepted else 0)


def test_a_tight_budget_verifies_less_and_says_the_same() -> None:
    # A row costs as much as all the others together: no draft pays.
    table = LatencyTable((1, 2, 3, 4, 48), (1.0, 100.0, 200.0, 300.0, 1e5), "linear")
    planner = BudgetPlanner(CostModel(table), lag=0)
    answer = {"r": list(range(11, 41))}
    counting = CountingEngine(
        overlap=True,
        speculate=forced(answer, 5, "right", planner=planner),
        row_budget=AdaptiveRows(planner),
        num_draft_tokens=5,
        drafts_after_prefill=True,
    )
    assert counts(counting)[0] == answer["r"]
    assert counting.runner.speculation is not None
    figures = counting.runner.speculation.metrics
    assert figures.num_verified < figures.num_proposed


@pytest.mark.parametrize(("stop_id", "is_worthless"), [(13, True), (50, False)])
def test_no_row_is_spent_behind_a_stop_id(stop_id: int, is_worthless: bool) -> None:
    counting = CountingEngine(
        speculate=forced({"r": list(range(11, 41))}, 5, "right"),
        num_draft_tokens=5,
        drafts_after_prefill=True,
    )
    stopping = replace(request(stop_token_ids=(stop_id,)), stop_token_ids=(stop_id,), max_tokens=5)
    counting.engine.add(stopping)
    while counting.engine.has_work:
        counting.engine.step()
    assert counting.engine.speculation is not None
    survival = counting.engine.speculation.slots.survival[1]
    assert bool((survival == 0).all()) == is_worthless


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["coupled", "block"])
def test_nothing_waits_for_the_device(mode: VerifyMode) -> None:
    """Of launching, verifying and drafting with the real blocks; every kind of parameter."""
    config = EngineConfig.from_flat(
        model="tiny",
        device="cpu",
        drafter="dspark",
        num_draft_tokens=3,
        verification=mode,
        max_running=3,
        max_model_len=128,
        forbid_host_syncs=True,
    )
    parts = assemble(config, draft_source=DraftSource(row_budget=RandomRows(2)))
    mix = random_mix(
        4, vocab_size=parts.model_config.vocab_size, num_requests=2, max_tokens=4, ignores_eos=True
    )
    got = run_mix(parts.engine, [replace(arrival, at_step=0) for arrival in mix])
    assert [one.reason for one in got.values()] == ["length"] * 2


def test_bad_logits_fail_at_the_same_token() -> None:
    plain = CountingEngine(nan_after=[20])
    plain_ids, _ = counts(plain)
    answer = {"r": list(range(11, 41))}
    counting = CountingEngine(
        nan_after=[20],
        overlap=True,
        speculate=forced(answer, 5, "right"),
        num_draft_tokens=5,
        drafts_after_prefill=True,
    )
    assert counts(counting)[0] == plain_ids == list(range(11, 21))


class UniformDrafter:
    """Draws each draft uniformly from the few tokens behind the one before, and says so."""

    width = 4

    def draft(self, inputs: DraftInputs) -> Drafts:
        seeds = np.array([r.request.sampling.seed for r in inputs.requests], np.uint64)
        before, drawn, law = inputs.anchor_ids, [], []
        for place in range(3):
            behind = (before[:, None] + 1 + torch.arange(self.width)) % VOCAB
            log_q = torch.full((len(seeds), VOCAB), -torch.inf, dtype=torch.float64)
            log_q.scatter_(1, behind, -float(np.log(self.width)))
            positions = inputs.positions + 1 + place
            before = spec_torch.gumbel_argmax(log_q, seeds, Stream.DRAFT, positions, place)
            drawn.append(before)
            law.append(log_q.float())
        confidence = torch.stack(drawn, 1) % 3 - 1.0
        # Confidence of a draft may look at the ones before it, never at itself.
        confidence = torch.cat([inputs.anchor_ids[:, None] % 3 - 1.0, confidence[:, :-1]], dim=1)
        return Drafts(torch.stack(drawn, 1), confidence, torch.stack(law, 1))


@pytest.mark.parametrize("mode", ["ratio", "block"])
def test_ratio_and_block_keep_the_law(mode: VerifyMode) -> None:
    """The counting model steps by 1 + d with probability (1 - 1/e) e^-d."""

    def speculate(config: SchedulerConfig) -> Speculation:
        slots = SlotState(config.state_slots, 3, torch.device("cpu"))
        return Speculation(slots, num_draft_tokens=3, mode=mode, drafter=UniformDrafter())

    counting = CountingEngine(
        overlap=True,
        speculate=speculate,
        row_budget=RandomRows(5),
        num_draft_tokens=3,
        drafts_after_prefill=True,
        max_running=16,
        max_tokens_per_step=64,
    )
    mix = [
        Arrival(
            EngineRequest(
                f"r{seed}",
                np.array([10], np.int32),
                SamplingParams(seed=seed),
                60,
                ignore_eos=True,
            ),
            0,
        )
        for seed in range(48)
    ]
    steps = []
    for got in run_mix(counting.engine, mix).values():
        tokens = np.array([10, *got.token_ids])
        steps.append((np.diff(tokens) - 1) % VOCAB)
    observed = np.bincount(np.minimum(np.concatenate(steps), 5), minlength=6)
    expected = (1 - np.exp(-1)) * np.exp(-np.arange(6.0))
    expected[5] = np.exp(-5.0)
    expected *= observed.sum()
    # The 99.9 % quantile of chi-square with 5 degrees of freedom.
    assert ((observed - expected) ** 2 / expected).sum() < 20.52
    assert counting.runner.speculation is not None
    assert counting.runner.speculation.metrics.num_accepted > 300


def test_greedy_verification_refuses_a_temperature() -> None:
    counting = CountingEngine(
        speculate=forced({}, 3, "wrong", mode="greedy"),
        num_draft_tokens=3,
        drafts_after_prefill=True,
    )
    with pytest.raises(InvalidRequestError, match=r"`speculation\.verification`: greedy"):
        counting.engine.add(request(temperature=0.5))
    assert not counting.engine.has_work
    counting.engine.add(request())


def test_figures_are_served() -> None:
    pytest.importorskip("prometheus_client")
    counting = CountingEngine(
        speculate=forced({"r": list(range(11, 41))}, 3, "right"),
        num_draft_tokens=3,
        drafts_after_prefill=True,
    )
    counts(counting)
    assert counting.runner.speculation is not None
    counting.metrics.speculation = counting.runner.speculation.metrics
    families = {family.name: family for family in prometheus_collector(counting.metrics).collect()}
    accepted = families["di_speculation_accepted"]
    assert accepted.samples[0].value == counting.runner.speculation.metrics.num_accepted > 0
    assert len(families["di_speculation_accepted_at_position"].samples) == 3
