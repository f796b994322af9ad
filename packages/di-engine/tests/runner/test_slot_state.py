"""Repair on the device: rows that the host could not know are right when they run."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from di_engine.core.engine import Engine
from di_engine.errors import HostSyncError
from di_engine.model.batch import StepBatch
from di_engine.platforms import resolve_device
from di_engine.runner.model_runner import StepResult
from di_engine.runner.request import EngineRequest
from di_engine.runner.slot_state import SlotState
from di_engine.runner.step_inputs import depends_on_device, make_earlier_step, make_step_batch
from di_engine.runner.sync_guard import forbid_host_sync
from di_scheduler import Request, Scheduler, SchedulerConfig, StepOutcome, StepPlan
from di_scheduler.testing import FakeModel, expected_output
from di_spec.sampling import SamplingParams

HOST = resolve_device("cpu")
CPU = HOST.torch_device
LOOK_BACK = 3


@dataclass
class _Emitted:
    plan: StepPlan
    batch: StepBatch
    tokens: list[list[int]]


class SpeculatingRunner:
    """A runner whose model accepts some drafts of some rows, and which checks its own inputs."""

    def __init__(self, model: FakeModel, config: SchedulerConfig) -> None:
        self.model = model
        self.config = config
        self.num_drafts = config.num_draft_tokens
        self.slots = SlotState(config.state_slots, self.num_drafts, CPU)
        self.written: dict[int, list[int]] = {}
        self.num_taken_back = 0

    speculation = None

    def check(self, request: EngineRequest) -> None: ...

    def add(self, request: EngineRequest) -> None: ...

    def append(self, request_id: str, token_ids: list[int]) -> None: ...

    def remove(self, request_id: str) -> None: ...

    def started_s(self, request_id: str) -> None: ...

    def launch(self, plan: StepPlan) -> _Emitted:
        batch = make_step_batch(plan, history_len=LOOK_BACK, device=CPU)
        if depends_on_device(plan):
            earlier = None
            if self.num_drafts:
                earlier = make_earlier_step(
                    plan, history_len=LOOK_BACK, num_draft_tokens=self.num_drafts, device=CPU
                )
            planned = batch
            with forbid_host_sync(HOST):
                batch = self.slots.repair(batch, earlier)
            self.num_taken_back += int((planned.context_lens - batch.context_lens).sum())
        emitted, offset = [], 0
        for row, uid in enumerate(plan.uids.tolist()):
            length = int(plan.query_lens[row])
            rows = slice(offset, offset + length)
            emitted.append(self._run(plan, batch, row, uid, rows))
            offset += length
        return _Emitted(plan, batch, emitted)

    def _run(self, plan: StepPlan, batch: StepBatch, row: int, uid: int, rows: slice) -> list[int]:
        positions = batch.positions[rows].tolist()
        tokens = batch.token_ids[rows].tolist()
        # Tokens behind the first position are taken back; a preempted request starts over.
        prefix = self.written.get(uid, [])[: positions[0]]
        assert len(prefix) == positions[0]
        assert positions == list(range(positions[0], positions[0] + len(tokens)))
        assert int(batch.context_lens[row]) == positions[-1] + 1
        history = [-1] * LOOK_BACK + prefix
        assert batch.ngram_history[row].tolist() == history[len(history) - LOOK_BACK :]
        self.written[uid] = prefix + tokens
        if not plan.needs_sample[row]:
            return []
        num_drafts = 0 if plan.is_prompt[row] else len(tokens) - 1
        known = prefix + tokens[: len(tokens) - num_drafts]
        emitted = [self.model.next_token(np.array(known, np.int32))]
        for draft in tokens[len(tokens) - num_drafts :]:
            if draft != emitted[-1]:
                break
            known.append(draft)
            emitted.append(self.model.next_token(np.array(known, np.int32)))
        return emitted

    def sample(self, launched: _Emitted) -> _Emitted:
        plan, batch = launched.plan, launched.batch
        rows = plan.num_rows
        tokens = torch.full((rows, self.num_drafts + 1), -7)
        drafts = torch.full((rows, self.num_drafts), -7)
        for row, uid in enumerate(plan.uids.tolist()):
            emitted = launched.tokens[row]
            tokens[row, : len(emitted)] = torch.tensor(emitted, dtype=torch.int64)
            first = int(batch.context_lens[row]) - int(plan.query_lens[row])
            if emitted:
                end = first + len(emitted) if not plan.is_prompt[row] else None
                base = np.array(self.written[uid][:end] + emitted[-1:], np.int32)
                guesses = self.model.drafts(base, self.num_drafts)
                drafts[row] = torch.tensor(guesses, dtype=torch.int64)
        counts = torch.tensor([len(emitted) for emitted in launched.tokens])
        committed = torch.where(torch.from_numpy(plan.is_prompt), batch.query_lens, counts)
        if self.num_drafts:
            self.slots.record(batch.state_slots, tokens, counts, committed, drafts)
        else:
            sampled = torch.from_numpy(plan.needs_sample)
            self.slots.record_newest(batch.state_slots[sampled], tokens[sampled, 0])
        return launched

    def collect(self, sampled: _Emitted) -> StepResult:
        width = self.num_drafts + 1
        tokens = [emitted + [0] * (width - len(emitted)) for emitted in sampled.tokens]
        counts = np.array([len(emitted) for emitted in sampled.tokens])
        return StepResult(StepOutcome(np.array(tokens, np.int64), counts))


@settings(max_examples=30, deadline=None)
@given(
    num_drafts=st.integers(0, 5),
    draft_error=st.sampled_from([0.0, 0.2, 0.5, 1.0]),
    seed=st.integers(0, 10**6),
    prompts=st.lists(st.integers(1, 70), min_size=1, max_size=6),
    max_tokens=st.integers(1, 40),
    num_blocks=st.sampled_from([9, 60]),
    overlap=st.booleans(),
    after_prefill=st.booleans(),
)
def test_acceptance_varies_per_row_and_nothing_changes(
    num_drafts: int,
    draft_error: float,
    seed: int,
    prompts: list[int],
    max_tokens: int,
    num_blocks: int,
    overlap: bool,
    after_prefill: bool,
) -> None:
    config = SchedulerConfig(
        max_model_len=120,
        num_blocks=num_blocks,
        block_size=16,
        max_running=4,
        max_tokens_per_step=32,
        num_draft_tokens=num_drafts,
        drafts_after_prefill=after_prefill and num_drafts > 0,
        eos_token_ids=(1,),
    )
    model = FakeModel(vocab_size=20, seed=seed, draft_error=draft_error)
    runner = SpeculatingRunner(model, config)
    engine = Engine(Scheduler(config), runner, overlap=overlap)  # type: ignore[arg-type]
    expected = {}
    for number, length in enumerate(prompts):
        prompt = np.arange(length, dtype=np.int32) % 19 + 1
        engine.add(EngineRequest(f"r{number}", prompt, SamplingParams(temperature=0), max_tokens))
        request = Request(f"r{number}", prompt, max_tokens=max_tokens)
        expected[f"r{number}"] = expected_output(model, request, config)[0]
    received: dict[str, list[int]] = {request_id: [] for request_id in expected}
    while engine.has_work:
        for event in engine.step():
            received[event.request_id] += event.token_ids
        engine.scheduler.check_integrity()
    assert received == expected


def test_lengths_are_taken_back_when_drafts_are_rejected() -> None:
    config = SchedulerConfig(
        max_model_len=200, num_blocks=9, block_size=32, num_draft_tokens=3, max_running=2
    )
    runner = SpeculatingRunner(FakeModel(draft_error=1.0), config)
    engine = Engine(Scheduler(config), runner, overlap=True)  # type: ignore[arg-type]
    engine.add(EngineRequest("r", np.array([4, 5], np.int32), SamplingParams(temperature=0), 10))
    while engine.has_work:
        engine.step()
    assert runner.num_taken_back > 0


@pytest.mark.parametrize(
    "read",
    [
        torch.Tensor.item,
        torch.Tensor.nonzero,
        torch.Tensor.unique,
        lambda value: torch.zeros(1).repeat_interleave(value.expand(1)),
        bool,
        int,
        lambda value: torch.zeros(4)[value.expand(4) > 2],
        lambda value: torch.zeros(4).index_put_((value.expand(4) > 2,), torch.tensor(1.0)),
    ],
)
def test_reading_a_device_value_is_an_error_under_the_guard(read: object) -> None:
    value = torch.tensor(3)
    with forbid_host_sync(HOST), pytest.raises(HostSyncError, match="enqueued"):
        read(value)  # type: ignore[operator]
    with forbid_host_sync(HOST):
        assert (value + 1).shape == ()
        assert torch.zeros(4)[value.expand(2)].shape == (2,)
