"""Which kind of step comes next, alone or agreed with other ranks.

Ranks that share expert collectives must run prompt rows and decode rows in the same steps. The
separated policies follow DeepInfer 0.1.0 (`csrc/engine/scheduler.hpp`): the count of decode steps
since the last prompt step, equal on all ranks, says when they vote; at an ALL point prompts run if
every rank has some, at an ANY point if one rank has. Three rules are ours: ranks also look whether
all of them are idle, in which case nobody waits for an interval; a half-computed prompt continues
after one decode step; and `prefill_first` treats every step as an ANY point.
"""

from di_scheduler.core import Core
from di_scheduler.placeholder import placeholder_plan
from di_scheduler.plan import StepKind, StepPlan
from di_scheduler.planner import Planner
from di_scheduler.protocols import Vote


class StepChooser:
    """Chooses the kind of each step and has it built.

    Args:
        core: The scheduler's state.
        planner: Builds steps.
        vote: Agreement with the other ranks.
    """

    def __init__(self, core: Core, planner: Planner, vote: Vote) -> None:
        self._core = core
        self._config = core.config
        self._planner = planner
        self._vote = vote
        self._decode_steps = 0
        self._nobody_decodes = True

    def next_plan(self) -> StepPlan | None:
        """Builds the next step; with several ranks a placeholder takes the place of None."""
        role = self._config.role
        if role == "prefill":
            return self._build("prompt")
        if role == "decode":
            return self._build("decode")
        if self._config.policy == "mixed":
            return self._build("mixed")
        if self._prompts_are_due():
            plan = self._planner.build("prompt")
            # A vote for prompts may find no blocks. If no rank built anything and the step counted
            # as a prompt step all the same, the next vote would be the same again, for ever.
            if self._any(plan is not None):
                self._decode_steps = 0
                return plan or self._placeholder("prompt")
        self._decode_steps += 1
        return self._build("decode")

    def _prompts_are_due(self) -> bool:
        steps, config = self._decode_steps, self._config
        is_any = steps != 0 and steps % config.prefill_any_interval == 0
        is_any |= config.policy == "prefill_first"
        is_all = steps % config.prefill_all_interval == 0
        is_partial = steps == 1
        is_check = self._nobody_decodes or steps % config.idle_check_interval == 0
        if self._vote.world_size == 1:
            is_check = True  # looking costs nothing
        if not (is_any or is_all or is_partial or is_check):
            return False
        wants, decodes, partial = self._planner.outlook()
        nobody_wants, all_want, nobody_decodes, nobody_partial = self._vote.reduce_min(
            [int(not wants), int(wants), int(not decodes), int(not partial)]
        )
        self._nobody_decodes = bool(nobody_decodes)
        if nobody_wants:
            return False
        return bool(
            is_any or (is_all and all_want) or (is_partial and not nobody_partial) or nobody_decodes
        )

    def _any(self, is_true: bool) -> bool:
        return self._vote.reduce_min([0 if is_true else 1])[0] == 0

    def _build(self, kind: StepKind) -> StepPlan | None:
        return self._planner.build(kind) or self._placeholder(kind)

    def _placeholder(self, kind: StepKind) -> StepPlan | None:
        if self._vote.world_size == 1:
            return None
        self._core.counters.placeholder_steps += 1
        return placeholder_plan(self._core, kind)
