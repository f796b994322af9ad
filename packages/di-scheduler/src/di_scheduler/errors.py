"""Errors of di_scheduler. Each message names the value, the limit and the remedy."""


class SchedulerError(Exception):
    """Base class of everything this package raises on purpose."""


class ConfigError(SchedulerError, ValueError):
    """A `SchedulerConfig` whose fields contradict each other or are out of range.

    Attributes:
        problems: Every problem that was found, one sentence each.
    """

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("invalid scheduler configuration: " + "; ".join(problems))


class InvalidRequestError(SchedulerError, ValueError):
    """A request with a value that is wrong by itself; no other request is affected."""


class DuplicateRequestError(InvalidRequestError):
    """A request id that is already in use by an unfinished request."""


class CapacityError(SchedulerError):
    """A request that cannot fit the configured limits, however long it waits.

    Attributes:
        needed: What the request needs, in the unit that the message names.
        available: What the configuration offers at most, in the same unit.
    """

    def __init__(self, message: str, *, needed: int, available: int) -> None:
        self.needed = needed
        self.available = available
        super().__init__(message)


class PlanOrderError(SchedulerError):
    """`plan`, `commit` or `cancel` was called out of order."""


class OutcomeError(SchedulerError, ValueError):
    """A `StepOutcome` that does not fit its plan. Nothing was committed."""


class IntegrityError(SchedulerError):
    """The books do not balance: a fault of this package, never of its input.

    Attributes:
        problems: Every violated invariant, one sentence each.
    """

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("scheduler state is inconsistent: " + "; ".join(problems))
