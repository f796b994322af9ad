"""Draft rows of a runner: which drafts a step verifies, and where the next ones come from.

Drafts of a step are made right behind its sampling and verified in the next one. With a drafter on
the device nothing of that waits for the host: the tables of `SlotState` carry tokens, counts and
survivals to the next launch, which deals the planned rows out by the newest survivals. The host
makes the same split from copies of the same numbers once it has them, so no answer has to travel
back. A drafter on the host, such as n-grams, reads the tokens when the step is collected, and steps
do not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from di_engine.errors import InvalidRequestError
from di_engine.model.batch import StepBatch
from di_engine.runner.drafting import DeviceDrafter, DraftInputs, Drafts
from di_engine.runner.host_copy import copy_to_host
from di_engine.runner.request import EngineRequest
from di_engine.runner.sampled_rows import EmittedTokens, RunningRequest, SampledRows
from di_engine.runner.slot_state import SlotState
from di_engine.runner.step_inputs import make_earlier_step, upload
from di_scheduler import StepPlan, StepUpdate
from di_spec import (
    NO_DRAFT,
    BudgetPlanner,
    ConfidenceCalibrator,
    DraftContext,
    SpecMetrics,
    VerifyMode,
    split_budget,
)
from di_spec import Drafter as HostDrafter

__all__ = ["HostDrafts", "Speculation", "StepVerification"]

_Survival = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HostDrafts:
    """Drafts of the sampled requests of a step, on their way to the host.

    Attributes:
        token_ids: int64 [R, K].
        survival: float64 [R, K].
        confidence: Uncalibrated logits, [R, K].
    """

    token_ids: Tensor
    survival: Tensor
    confidence: Tensor


@dataclass(frozen=True, slots=True)
class StepVerification:
    """What a step verified, for the figures of speculation.

    Attributes:
        rows: Plan rows of the decoding requests, int64 [D].
        num_proposed: Drafts that they had, int64 [D].
        num_verified: Drafts that got a row, int64 [D].
        num_accepted: Drafts that were accepted, int64 [D].
        survival: Predictions for them, float64 [D, K].
        confidence: Their uncalibrated logits, float64 [D, K].
    """

    rows: npt.NDArray[np.int64]
    num_proposed: npt.NDArray[np.int64]
    num_verified: npt.NDArray[np.int64]
    num_accepted: npt.NDArray[np.int64]
    survival: _Survival
    confidence: npt.NDArray[np.float64]

    def only(self, chosen: npt.NDArray[np.bool_]) -> StepVerification:
        """Returns the verification of some of the requests, `chosen` is bool [D]."""
        return StepVerification(
            self.rows[chosen],
            self.num_proposed[chosen],
            self.num_verified[chosen],
            self.num_accepted[chosen],
            self.survival[chosen],
            self.confidence[chosen],
        )


class Speculation:
    """Drafts and verification of one runner.

    Args:
        slots: Tables that steps leave for the next one.
        drafter: Makes drafts on the device.
        host_drafter: Makes drafts on the host. Exactly one of the two is given.
        num_draft_tokens: Most drafts of a request in a step, `K`.
        mode: Rule of verification.
        calibrator: Temperatures of the drafter's confidence logits.
        planner: Chooses totals from the survivals that it is told; None verifies every draft.

    Attributes:
        slots: Tables that steps leave for the next one.
        metrics: Figures since the start.
        on_verified: Takes the verification of each booked step, without requests that had ended
            before it; for calibration.
    """

    def __init__(
        self,
        slots: SlotState,
        *,
        num_draft_tokens: int,
        mode: VerifyMode,
        drafter: DeviceDrafter | None = None,
        host_drafter: HostDrafter | None = None,
        calibrator: ConfidenceCalibrator | None = None,
        planner: BudgetPlanner | None = None,
    ) -> None:
        if (drafter is None) == (host_drafter is None):
            raise ValueError("give either `drafter` or `host_drafter`")
        self.num_draft_tokens = num_draft_tokens
        self.mode = mode
        self.metrics = SpecMetrics(num_draft_tokens)
        self.on_verified: Callable[[StepVerification], None] | None = None
        self.slots = slots
        self._drafter = drafter
        self._host_drafter = host_drafter
        self._planner = planner
        calibrator = calibrator or ConfidenceCalibrator.identity(mode, num_draft_tokens)
        device = slots.drafts.device
        self._temperatures = torch.tensor(
            calibrator.temperatures[:num_draft_tokens], dtype=torch.float64, device=device
        )
        self._law: Tensor | None = None
        """Distributions of the drafts of each slot, float32 [S, K, vocab_size], once needed."""

    # --- requests ---------------------------------------------------------------------------

    def check(self, request: EngineRequest) -> None:
        """Refuses a request whose answer verification would change.

        Raises:
            InvalidRequestError: Greedy verification and a temperature above 0.
        """
        if self.mode == "greedy" and request.sampling.temperature > 0:
            raise InvalidRequestError(
                f"`temperature` must be 0 with `speculation.verification`: greedy, which takes the "
                f"most likely token in every place: got {request.sampling.temperature}; use "
                "`speculation.verification`: coupled for any temperature",
                param="temperature",
            )

    def begin(self, request: EngineRequest) -> None:
        """Starts a request."""
        if self._host_drafter is not None:
            self._host_drafter.begin(request.request_id, request.prompt_ids.tolist())

    def end(self, request_id: str) -> None:
        """Forgets a request."""
        if self._host_drafter is not None:
            self._host_drafter.end(request_id)

    # --- launch -----------------------------------------------------------------------------

    def repair(self, batch: StepBatch, plan: StepPlan, history_len: int) -> StepBatch:
        """Puts what only the device knows into a step: its split, tokens and lengths."""
        device = batch.token_ids.device
        if _is_split(plan):
            is_decode = ~plan.is_prompt
            limits = upload(plan.max_query_lens[is_decode] - 1, device)
            batch = self.slots.split(batch, limits, int(plan.query_lens[is_decode].sum()))
        earlier = make_earlier_step(
            plan, history_len=history_len, num_draft_tokens=self.num_draft_tokens, device=device
        )
        return self.slots.repair(batch, earlier)

    # --- sampling ---------------------------------------------------------------------------

    def rows(self, plan: StepPlan, requests: list[RunningRequest]) -> SampledRows:
        """The sampled rows of a step, once the step before is booked.

        Args:
            plan: The step.
            requests: Its sampled requests, decoding ones first.
        """
        is_decode = ~plan.is_prompt
        num_drafts = plan.query_lens[is_decode].astype(np.int64) - 1
        decoding = requests[: len(num_drafts)]
        if _is_split(plan):
            places = np.arange(self.num_draft_tokens)
            limits = plan.max_query_lens[is_decode] - 1
            survival = np.stack([running.survival for running in decoding])
            survival = np.where(places < limits[:, None], survival, -1.0)
            num_drafts = split_budget(survival, int(plan.query_lens[is_decode].sum())) - 1
        drafts = [
            running.draft_token_ids[:count]
            for running, count in zip(decoding, num_drafts.tolist(), strict=True)
        ]
        return SampledRows(requests, drafts + [[] for _ in requests[len(drafts) :]])

    def law(self, slots: Tensor) -> Tensor | None:
        """Distributions of the drafts of some slots, float32 [R, K, vocab_size], if kept."""
        return None if self._law is None else self._law[slots]

    def draft(
        self,
        plan: StepPlan,
        batch: StepBatch,
        requests: Sequence[RunningRequest],
        emitted: EmittedTokens,
    ) -> HostDrafts | None:
        """Records what a step emitted and, on the device, makes the drafts behind it.

        Args:
            plan: The step.
            batch: Its inputs as they ran.
            requests: Its sampled requests.
            emitted: Their tokens.

        Returns:
            The drafts, to be read when the step is collected; None with a drafter on the host.
        """
        device = batch.token_ids.device
        sampled = np.flatnonzero(plan.needs_sample)
        rows = upload(sampled, device)
        is_prompt = upload(plan.is_prompt, device).bool()
        # A row that failed has no token; its request ends when the host learns of it.
        num_emitted = emitted.num_emitted.clamp(min=1)
        width = self.num_draft_tokens + 1
        shape = (plan.num_rows, width)
        token_ids = torch.nn.functional.pad(
            emitted.token_ids.clamp(min=0), (0, width - emitted.token_ids.shape[1])
        )
        all_tokens = token_ids.new_zeros(shape).index_copy_(0, rows, token_ids)
        counts = num_emitted.new_zeros(plan.num_rows).index_copy_(0, rows, num_emitted)
        committed = torch.where(is_prompt, batch.query_lens, counts)
        slots = batch.state_slots
        drafts: Drafts | None = None
        survival = None
        all_drafts = token_ids.new_zeros((plan.num_rows, self.num_draft_tokens))
        all_survival = torch.zeros_like(all_drafts, dtype=torch.float64)
        if self._drafter is not None and len(sampled):
            first = batch.context_lens - batch.query_lens
            drafts = self._drafter.draft(
                DraftInputs(
                    requests=requests,
                    anchor_ids=token_ids.gather(1, num_emitted[:, None] - 1).squeeze(1),
                    positions=(first + committed)[rows],
                    state_slots=slots[rows],
                    window_starts=batch.window_starts[rows],
                )
            )
            survival = self._survival(drafts.confidence)
            survival *= ~self._ends(requests, token_ids, num_emitted)[:, None]
            all_drafts.index_copy_(0, rows, drafts.token_ids)
            all_survival.index_copy_(0, rows, survival)
            self._keep_law(slots[rows], drafts.q_logprobs)
        self.slots.record(slots, all_tokens, counts, committed, all_drafts, all_survival)
        if drafts is None or survival is None:
            return None
        return HostDrafts(
            copy_to_host(drafts.token_ids), copy_to_host(survival), copy_to_host(drafts.confidence)
        )

    def _ends(
        self, requests: Sequence[RunningRequest], token_ids: Tensor, num_emitted: Tensor
    ) -> Tensor:
        """Whether a request has emitted a stop id, bool [R]: its drafts are not worth rows.

        The host learns of the end one step late. A minimum length or a stop id that counts as text
        costs a step its drafts at most.
        """
        stops = [running.request.sampling.stop_token_ids for running in requests]
        table = np.full((len(stops), max(map(len, stops))), NO_DRAFT, np.int64)
        for row, ids in zip(table, stops, strict=True):
            row[: len(ids)] = ids
        is_emitted = (
            torch.arange(token_ids.shape[1], device=token_ids.device) < num_emitted[:, None]
        )
        is_stop = (token_ids[:, :, None] == upload(table, token_ids.device)[:, None]).any(2)
        return (is_stop & is_emitted).any(1)

    def _survival(self, confidence: Tensor) -> Tensor:
        scaled = (confidence.double() / self._temperatures).clamp(-60.0, 60.0)
        # A logit that is no number belongs to a row whose drafts are not worth verifying.
        return torch.sigmoid(scaled).nan_to_num(0.0).cumprod(1)

    def _keep_law(self, slots: Tensor, q_logprobs: Tensor | None) -> None:
        if q_logprobs is None:
            return
        if self._law is None:
            shape = (self.slots.drafts.shape[0], *q_logprobs.shape[1:])
            self._law = q_logprobs.new_zeros(shape)
        self._law[slots] = q_logprobs

    # --- step times -------------------------------------------------------------------------

    @property
    def wants_times(self) -> bool:
        """Whether budgets learn from what steps really take."""
        return self._planner is not None and self._planner.cost is not None

    def observe_times(self, plan: StepPlan, forward_s: float, sampler_s: float) -> None:
        """Takes the device times of a step; those of steps with prompt chunks say nothing."""
        if self._planner is None or self._planner.cost is None or plan.is_prompt.any():
            return
        self._planner.cost.observe(plan.num_tokens, plan.num_rows, forward_s, sampler_s)

    # --- collection -------------------------------------------------------------------------

    def verification(
        self, plan: StepPlan, rows: SampledRows, num_emitted: npt.NDArray[np.int64]
    ) -> StepVerification:
        """What a collected step verified; to be taken before `accept_drafts`."""
        count = int((~plan.is_prompt).sum())
        decoding = rows.requests[:count]
        verified = np.array([len(drafts) for drafts in rows.draft_token_ids[:count]], np.int64)
        accepted = np.minimum(np.maximum(num_emitted[:count] - 1, 0), verified)
        empty = np.zeros((count, self.num_draft_tokens))
        return StepVerification(
            rows=np.arange(count),
            num_proposed=np.array([len(r.draft_token_ids) for r in decoding], np.int64),
            num_verified=verified,
            num_accepted=accepted,
            survival=np.stack([r.survival for r in decoding]) if count else empty,
            confidence=np.stack([r.confidence for r in decoding]) if count else empty,
        )

    def accept_drafts(
        self,
        plan: StepPlan,
        rows: SampledRows,
        drafts: HostDrafts | None,
        emitted: npt.NDArray[np.int64],
        verification: StepVerification,
    ) -> npt.NDArray[np.int64] | None:
        """Takes the drafts behind a collected step; returns their numbers by plan row.

        Args:
            plan: The step.
            rows: Its sampled rows.
            drafts: From `draft`, complete on the host.
            emitted: Tokens of each sampled request, -1 behind the last, [R, most rows].
            verification: From `verification`.

        Returns:
            Shape (rows of the plan,); None where every sampled row has `K`.
        """
        if self._host_drafter is not None:
            return self._draft_on_host(self._host_drafter, plan, rows, emitted, verification)
        if drafts is not None:
            for running, token_ids, survival, confidence in zip(
                rows.requests,
                drafts.token_ids.tolist(),
                drafts.survival.numpy(),
                drafts.confidence.double().numpy(),
                strict=True,
            ):
                running.draft_token_ids = token_ids
                running.survival, running.confidence = survival, confidence
            self._tell_planner(plan, drafts.survival.numpy())
        return None

    def _draft_on_host(
        self,
        drafter: HostDrafter,
        plan: StepPlan,
        rows: SampledRows,
        emitted: npt.NDArray[np.int64],
        verification: StepVerification,
    ) -> npt.NDArray[np.int64]:
        counts = np.zeros(plan.num_rows, np.int64)
        ids = [running.request.request_id for running in rows.requests]
        if not ids:
            return counts
        is_whole = verification.num_verified == verification.num_proposed
        accepted = np.where(is_whole, verification.num_accepted, -1)
        drafter.observe(ids[: len(accepted)], accepted.tolist())
        proposal = drafter.propose(DraftContext(ids, emitted, self.num_draft_tokens))
        survival = np.zeros((len(ids), self.num_draft_tokens))
        survival[:, : proposal.token_ids.shape[1]] = proposal.survival()
        confidence = np.zeros_like(survival)
        if proposal.confidence is not None:
            chance = np.clip(proposal.confidence, 1e-6, 1 - 1e-6)
            confidence[:, : chance.shape[1]] = np.log(chance / (1 - chance))
        for index, running in enumerate(rows.requests):
            running.draft_token_ids = proposal.drafts_of(index)
            running.survival, running.confidence = survival[index], confidence[index]
        slots = upload(plan.slots[plan.needs_sample], self.slots.drafts.device)
        self.slots.drafts[slots] = upload(proposal.token_ids, slots.device)
        self.slots.survival[slots] = upload(survival, slots.device, np.float64)
        self._tell_planner(plan, survival)
        counts[plan.needs_sample] = proposal.lengths
        return counts

    def _tell_planner(self, plan: StepPlan, survival: _Survival) -> None:
        if self._planner is None:
            return
        slots = plan.slots[plan.needs_sample].tolist()
        for slot in plan.slots[plan.needs_sample & plan.is_prompt].tolist():
            self._planner.forget(slot)  # another request had the slot
        self._planner.record(slots, survival)

    def book(self, verification: StepVerification, update: StepUpdate, num_rows: int) -> None:
        """Counts a booked step.

        Args:
            verification: What it verified.
            update: What the scheduler kept of it.
            num_rows: Rows of its plan.
        """
        kept = np.full(num_rows, -1, np.int64)
        kept[update.rows] = update.num_new_tokens
        is_counted = kept[verification.rows] >= 0
        if not is_counted.any():
            return
        verification = verification.only(is_counted)
        self.metrics.record(
            verification.num_proposed,
            verification.num_verified,
            verification.num_accepted,
            kept[verification.rows],
            verification.survival,
        )
        if self.on_verified is not None:
            self.on_verified(verification)


def _is_split(plan: StepPlan) -> bool:
    """Whether the step has fewer rows than drafts, so that they are dealt out on the device."""
    return bool((plan.max_query_lens[~plan.is_prompt] > plan.query_lens[~plan.is_prompt]).any())
