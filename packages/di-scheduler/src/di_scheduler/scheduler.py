"""The door of the package: add, abort, plan, commit."""

from collections.abc import Iterable

from di_scheduler.accounting import Accountant
from di_scheduler.config import SchedulerConfig
from di_scheduler.core import Core, Counters
from di_scheduler.errors import ConfigError, DuplicateRequestError, PlanOrderError
from di_scheduler.hashing import chain_root
from di_scheduler.outcome import StepOutcome, StepUpdate, update_without_rows
from di_scheduler.plan import StepPlan
from di_scheduler.planner import Planner
from di_scheduler.protocols import AllRows, KVConnector, MetricsSink, RowBudget, SingleRank, Vote
from di_scheduler.request import ABORT, ERROR, Int32Array, Record, Request, Status, checked_prompt
from di_scheduler.stats import Reporter, SchedulerStats, measure
from di_scheduler.step_kind import StepChooser
from di_scheduler.transfers import Transfers


class Scheduler:
    """Decides what each step of one rank computes and books what comes back.

    The scheduler is driven by one thread. `plan` may be called while one earlier plan is not
    committed; plans are committed in order. Every accepted request ends in exactly one update with
    `finished` set.

    Args:
        config: Limits and policies.
        row_budget: Chooses rows per decoding request; the default verifies every draft.
        vote: Lets several ranks agree on the kind of each step; the default is one rank.
        connector: Moves blocks and state between this rank and elsewhere.
        metrics: Takes counters and gauges after every commit.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        row_budget: RowBudget | None = None,
        vote: Vote | None = None,
        connector: KVConnector | None = None,
        metrics: MetricsSink | None = None,
    ) -> None:
        self.config = config
        self._core = Core(config, connector)
        if config.role != "both" and connector is None:
            raise ConfigError([f"`role` = {config.role} needs a connector"])
        self._transfers = None if connector is None else Transfers(self._core, connector)
        planner = Planner(self._core, row_budget or AllRows(), self._transfers)
        self._chooser = StepChooser(self._core, planner, vote or SingleRank())
        self._accountant = Accountant(self._core, self._transfers)
        self._reporter = None if metrics is None else Reporter(self._core, metrics)
        self._next_uid = 1

    # --- requests ---------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Accepts a request.

        Raises:
            InvalidRequestError: A field is wrong by itself.
            DuplicateRequestError: A request of the same id is unfinished, or its last update is
                not delivered yet.
            CapacityError: The request can never fit the configuration.
        """
        token_ids = checked_prompt(request, self.config)
        core, config = self._core, self.config
        if request.request_id in core.by_id:
            raise DuplicateRequestError(
                f"request {request.request_id!r} is already in progress; choose another "
                f"`request_id` or abort the first one"
            )
        if any(view.request_id == request.request_id for view in core.terminal):
            raise DuplicateRequestError(
                f"the end of request {request.request_id!r} is not delivered yet; take the next "
                f"update first or choose another `request_id`"
            )
        prompt_len = len(token_ids) - len(request.output_ids)
        len_limit = config.max_model_len
        if request.max_tokens is not None:
            len_limit = min(len_limit, prompt_len + request.max_tokens)
        stop_ids = () if request.ignore_eos else config.eos_token_ids
        uid = self._next_uid
        self._next_uid += 1
        rank = float(request.priority)
        if config.priority_aging:
            rank = request.priority * config.priority_aging + core.next_step
        record = Record(
            request=request,
            request_id=request.request_id,
            uid=uid,
            sort_key=(rank, uid),
            token_ids=token_ids,
            prompt_len=prompt_len,
            len_limit=len_limit,
            chain_root=chain_root(config.cache_seed, request.cache_salt),
            stop_ids=tuple(dict.fromkeys((*stop_ids, *map(int, request.stop_token_ids)))),
        )
        core.by_id[request.request_id] = record
        core.by_uid[uid] = record
        core.waiting.push(record)
        core.counters.accepted += 1

    def abort(self, request_ids: str | Iterable[str]) -> int:
        """Ends requests with reason `abort` and returns how many were still unfinished.

        Unknown and finished ids are ignored: an abort may cross the last token on its way.
        """
        names = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        return sum(self.finish(name, ABORT) for name in names)

    def finish(self, request_id: str, reason: str, message: str = "") -> bool:
        """Ends one request for a reason that the caller found: a stop string, a failure.

        The terminal view is in the next update. Tokens of a step in flight are dropped.

        Returns:
            Whether the request was still unfinished.
        """
        record = self._core.by_id.get(request_id)
        if record is None:
            return False
        self._core.end(record, reason, message)
        return True

    # --- steps ------------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """Plans the next step.

        Returns:
            The step, or None if there is nothing to run now. If an earlier plan is uncommitted,
            committing it may change that.

        Raises:
            PlanOrderError: Two plans are uncommitted.
        """
        core = self._core
        if len(core.uncommitted) > 1:
            raise PlanOrderError(
                f"steps {core.uncommitted[0].step_id} and {core.uncommitted[1].step_id} are "
                f"uncommitted; commit the first before planning another"
            )
        if self._transfers is not None:
            self._transfers.poll()
        plan = self._chooser.next_plan()
        if plan is None:
            return None
        core.next_step += 1
        core.uncommitted.append(plan)
        core.counters.steps += 1
        return plan

    def commit(self, plan: StepPlan, outcome: StepOutcome) -> StepUpdate:
        """Books what the oldest uncommitted step brought back.

        Returns:
            News per request: tokens, ends, and terminal views that were still due.

        Raises:
            PlanOrderError: `plan` is not the oldest uncommitted plan.
            OutcomeError: The outcome does not fit the plan; nothing was booked.
        """
        self._require_oldest(plan)
        outcome.check(plan)
        self._core.uncommitted.popleft()
        update = self._accountant.commit(plan, outcome)
        if self._reporter is not None:
            self._reporter.report()
        return update

    def cancel(self, plan: StepPlan, message: str = "the step failed") -> None:
        """Closes the oldest uncommitted step without an outcome: its requests end with `error`.

        A newer uncommitted step was launched on top of what this one left behind; it is closed
        in the same way and must not be committed.

        Raises:
            PlanOrderError: `plan` is not the oldest uncommitted plan.
        """
        self._require_oldest(plan)
        core = self._core
        for closed in core.uncommitted:
            core.snapshots.drop_slots(set(closed.saves.snapshot_ids.tolist()))
        while core.uncommitted:
            self._accountant.drop(core.uncommitted.popleft(), ERROR, message)

    def flush(self) -> StepUpdate:
        """Returns the terminal views that no commit has delivered yet."""
        due, self._core.terminal = self._core.terminal, []
        return update_without_rows(due)

    def _require_oldest(self, plan: StepPlan) -> None:
        uncommitted = self._core.uncommitted
        if not uncommitted or uncommitted[0] is not plan:
            oldest = f"step {uncommitted[0].step_id} is" if uncommitted else "no step is"
            raise PlanOrderError(
                f"step {plan.step_id} cannot be closed now: {oldest} the oldest uncommitted one"
            )

    # --- views ------------------------------------------------------------------------------

    @property
    def has_unfinished(self) -> bool:
        """Whether a request, a step, a send or an undelivered terminal view is left."""
        core = self._core
        sends = (core.table.status == Status.SENDING).any()
        return bool(core.by_id or core.uncommitted or core.terminal or sends)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for admission."""
        return len(self._core.waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold a state slot and run."""
        return self._core.num_running

    def token_ids(self, request_id: str) -> Int32Array:
        """Returns a copy of the prompt and committed output tokens of an unfinished request.

        Raises:
            KeyError: There is no unfinished request of that id.
        """
        record = self._core.by_id[request_id]
        if record.slot < 0:
            return record.token_ids.copy()
        table = self._core.table
        return table.token_ids[record.slot, : table.num_tokens[record.slot]].copy()

    @property
    def counters(self) -> Counters:
        """Monotonic figures since the scheduler was made."""
        return self._core.counters

    def stats(self) -> SchedulerStats:
        """Returns the figures of this moment."""
        return measure(self._core)

    def check_integrity(self) -> None:
        """Proves that blocks, slots, snapshots and queues agree; may be called at any time.

        Raises:
            IntegrityError: With every violated invariant.
        """
        self._core.check()
