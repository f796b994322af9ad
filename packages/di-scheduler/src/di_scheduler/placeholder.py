"""The dummy step of a rank that has nothing to run while others do."""

import numpy as np

from di_scheduler.core import Core
from di_scheduler.plan import NO_SAVES, StepKind, StepPlan

NO_UID = -1


def placeholder_plan(core: Core, kind: StepKind) -> StepPlan:
    """Returns a step of one row: slot 0, block 0, token 0 at position 0, nothing to sample."""
    zero, one = np.zeros(1, np.int32), np.ones(1, np.int32)
    none = np.empty(0, np.int32)
    return StepPlan(
        step_id=core.next_step,
        kind=kind,
        is_placeholder=True,
        slots=zero,
        uids=np.full(1, NO_UID, np.int64),
        query_lens=one,
        context_lens=one,
        reserved_lens=zero,
        prev_rows=-one,
        max_query_lens=one,
        draft_lens=zero,
        is_prompt=np.full(1, kind == "prompt"),
        needs_sample=np.zeros(1, np.bool_),
        token_ids=zero,
        write_floors=zero,
        window_starts=zero,
        late_starts=zero,
        restore_ids=-one,
        saves=NO_SAVES,
        new_block_slots=none,
        new_block_indices=none,
        new_block_ids=none,
        records=[],
        table=core.table,
    )
