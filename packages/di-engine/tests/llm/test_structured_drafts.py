"""Grammars and drafts together: masks for every draft row, illegal drafts rejected, same tokens."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from di_engine import SamplingParams
from di_engine.runner.slot_state import SlotState
from di_engine.runner.speculation import Speculation
from di_engine.testing.byte_grammars import ByteGrammars
from di_engine.testing.counting_engine import CountingEngine
from di_engine.testing.forced_drafts import ForcedDrafter, RandomRows
from di_scheduler import SchedulerConfig
from di_structured import OutputSchema

THINK = (3 + ord("<"), 3 + ord(">"))
NUM_DRAFTS = 4
VOCAB = 259


def wild(schema: Any, seed: int) -> SamplingParams:
    """At this temperature the counting model draws nearly any token that is allowed."""
    return SamplingParams(temperature=1e4, max_tokens=60, seed=seed, output_schema=schema)


REQUESTS = [
    ("p", wild(OutputSchema.json_schema({"type": "array", "items": {"type": "boolean"}}), 1)),
    ("q", SamplingParams(temperature=1.0, max_tokens=12, seed=2)),
    ("r", wild({"schema_type": "regex", "schema": "[a-c]{3}-[0-9]{1,4}"}, 3)),
    ("s", wild(OutputSchema.choice(["yes", "no", "perhaps"]), 4)),
]


def run(engine: CountingEngine) -> dict[str, list[int]]:
    """Tokens by the ids that the core knows."""
    states = [engine.requests.submit(p, s, i) for i, (p, s) in enumerate(REQUESTS)]
    while engine.requests.has_unfinished:
        engine.requests.step()
    assert all(state.output().error is None for state in states)
    return {
        core_id: completion.token_ids
        for state in states
        for core_id, completion in zip(state.core_ids, state.output().outputs, strict=True)
    }


@pytest.mark.parametrize("overlap", [False, True])
def test_drafts_change_no_constrained_token(overlap: bool) -> None:
    plain = run(CountingEngine(grammars=ByteGrammars(THINK), overlap=overlap))
    answers: dict[str, Sequence[int]] = dict(plain)
    made: list[Speculation] = []

    def speculate(config: SchedulerConfig) -> Speculation:
        made.append(
            Speculation(
                SlotState(config.state_slots, NUM_DRAFTS, torch.device("cpu")),
                num_draft_tokens=NUM_DRAFTS,
                mode="coupled",
                # A wrong draft is one more than the right one, which a grammar often forbids.
                drafter=ForcedDrafter(answers, NUM_DRAFTS, VOCAB, lambda _, place: place % 4 != 0),
            )
        )
        return made[-1]

    drafted = CountingEngine(
        grammars=ByteGrammars(THINK),
        overlap=overlap,
        speculate=speculate,
        row_budget=RandomRows(3),
        num_draft_tokens=NUM_DRAFTS,
        drafts_after_prefill=True,
    )
    assert run(drafted) == plain
    assert 0 < made[0].metrics.num_accepted < made[0].metrics.num_verified
