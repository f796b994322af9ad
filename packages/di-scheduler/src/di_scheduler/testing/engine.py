"""The smallest engine: one scheduler, one fake device, synchronous or one step overlapped."""

from collections import deque

from di_scheduler.outcome import RequestUpdate, StepUpdate
from di_scheduler.plan import StepPlan
from di_scheduler.request import Request
from di_scheduler.scheduler import Scheduler
from di_scheduler.testing.device import FakeDevice


class FakeEngine:
    """Drives a scheduler and collects what every request received.

    Args:
        scheduler: The scheduler under test.
        device: Executes its plans.
        overlapped: Plan and launch each step before the results of the one before are read.

    Attributes:
        outputs: Tokens per request id.
        reasons: Finish reason per request id.
        messages: Message of the terminal view per request id.
    """

    def __init__(self, scheduler: Scheduler, device: FakeDevice, overlapped: bool = False) -> None:
        self.scheduler = scheduler
        self.device = device
        self.overlapped = overlapped
        self.outputs: dict[str, list[int]] = {}
        self.reasons: dict[str, str] = {}
        self.messages: dict[str, str] = {}
        self.views: list[RequestUpdate] = []
        self._launched: deque[StepPlan] = deque()

    def add(self, request: Request) -> None:
        """Hands a request to the scheduler and prepares to collect its output."""
        self.scheduler.add(request)
        self.outputs[request.request_id] = []

    def step(self) -> StepPlan | None:
        """Makes one turn of the loop and returns what was planned in it."""
        plan = self.scheduler.plan()
        if plan is not None:
            self.device.launch(plan)
            self._launched.append(plan)
        depth = 1 if self.overlapped and plan is not None else 0
        if len(self._launched) > depth:
            oldest = self._launched.popleft()
            self._take(self.scheduler.commit(oldest, self.device.collect()))
        elif plan is None:
            self._take(self.scheduler.flush())
        return plan

    def run(self, max_steps: int = 10_000) -> None:
        """Steps until nothing is left.

        Raises:
            TimeoutError: Requests were still unfinished after `max_steps`.
        """
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished:
                return
            self.step()
        raise TimeoutError(f"unfinished after {max_steps} steps: {self.unfinished()}")

    def unfinished(self) -> list[str]:
        """Returns the ids that have no terminal view yet."""
        return [name for name in self.outputs if name not in self.reasons]

    def _take(self, update: StepUpdate) -> None:
        for view in update:
            if view.request_id in self.reasons:
                raise AssertionError(f"{view.request_id!r} got news after its end: {view}")
            self.outputs[view.request_id].extend(view.token_ids)
            self.views.append(view)
            if view.finished:
                assert view.finish_reason is not None, f"no reason: {view}"
                self.reasons[view.request_id] = view.finish_reason
                self.messages[view.request_id] = view.message
