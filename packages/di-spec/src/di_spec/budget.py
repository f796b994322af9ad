"""How many draft rows to verify in a step, and whose.

The objective is tokens per second of the step: expected tokens over time, `E(B) / T(B)`, where `B`
counts query rows, each request has one row for sure, and the best `B - n` survival probabilities of
all requests are added (DSpark, arXiv 2607.05147, section 5.2; DeepInfer 0.1.0 `mtp_varlen.hpp`). A
request's survivals never increase along its drafts, so the best entries form prefixes, and scanning
every `B` finds the optimum of any cost table, also one that is not monotone.

What keeps the output law with the ratio test: whether draft k is verified must not depend on draft
k or later ones. The total may use confidences of older steps only; given the total, the split may
use the newest ones, because a request's later drafts lose ties to earlier ones and can never
displace them. `BudgetPlanner` follows that rule. With coupled or greedy verification any budget is
safe.
"""

import bisect
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from di_spec.latency import LatencyTable

__all__ = ["Budget", "BudgetPlanner", "CostModel", "RankScores", "choose_budget", "split_budget"]

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Budget:
    """A chosen total.

    Attributes:
        num_rows: Query rows of the step, one per request at least.
        expected_tokens: Expected emitted tokens.
        step_s: Predicted time of the step in seconds; over all ranks, the longest.
    """

    num_rows: int
    expected_tokens: float
    step_s: float


@dataclass(frozen=True, slots=True)
class RankScores:
    """What a rank tells the others before a coupled step.

    Attributes:
        num_requests: Requests of the rank.
        sums: Expected tokens of the rank with 0, 1, 2, ... drafts, float64 [drafts + 1]; the first
            is `num_requests`.
    """

    num_requests: int
    sums: Scores

    @classmethod
    def of(cls, survival: Scores) -> "RankScores":
        """Scores of survivals [requests, drafts]."""
        ranked = np.sort(survival, axis=None)[::-1]
        sums = len(survival) + np.concatenate([[0.0], np.cumsum(ranked)])
        return cls(len(survival), sums)


def choose_budget(
    survival: Scores, seconds: Scores | None, others: Sequence[RankScores] = (), rank: int = 0
) -> Budget:
    """The number of rows with the most expected tokens per second.

    Ties go to fewer rows. Alone, a draft that cannot be accepted is never paid for. With other
    ranks the step lasts as long as the slowest of them: the sum of expected tokens over the
    longest time is maximised, every rank comes to the same plan from the same numbers, and a rank
    fills up to the longest step for free.

    Args:
        survival: Probability that each draft is reached and accepted, float64 [requests, drafts],
            not increasing along a row; 0 where there is no draft.
        seconds: Time of a step with 0, 1, 2, ... rows (`CostModel.dense`); infinite where it
            cannot run. Row counts past its end are not considered. None without a measurement:
            then every draft with a positive survival is verified.
        others: Scores of the other ranks of a coupled step, in rank order without this one; they
            are measured by the same `seconds`.
        rank: Place of this rank among all, only to order the ranks alike everywhere.

    Raises:
        ValueError: If not even one row per request fits into `seconds`.
    """
    own = RankScores.of(survival)
    if seconds is None:
        num_useful = int((survival > 0).sum())
        return Budget(own.num_requests + num_useful, float(own.sums[num_useful]), 0.0)
    ranks = [*others[:rank], own, *others[rank:]]
    menus = [_Menu.of(scores, seconds) for scores in ranks]
    if len(ranks) == 1:
        return menus[0].best()
    return _joint(menus, rank)


def split_budget(survival: Scores, num_rows: int) -> NDArray[np.int64]:
    """Rows of each request, int64 [requests]: 1 plus its entries among the best `num_rows - n`.

    Entries are ordered by survival, equal ones by request, then position; a request's rows are its
    anchor and a prefix of its drafts. The sum is `num_rows`, within 1 to drafts + 1 per request;
    where fewer entries are positive, zeros fill up, so that shapes planned for a total hold.

    Args:
        survival: float64 [requests, drafts], not increasing along a row.
        num_rows: Total to split, from `choose_budget`, of older survivals perhaps.
    """
    num_requests, width = survival.shape
    num_drafts = min(max(num_rows - num_requests, 0), survival.size)
    order = np.argsort(-survival, axis=None, kind="stable")[:num_drafts]
    rows = np.ones(num_requests, np.int64)
    if width:
        np.add.at(rows, order // width, 1)
    return rows


@dataclass(frozen=True, slots=True)
class _Menu:
    """Row counts a rank may choose: expected tokens and seconds of each."""

    rows: NDArray[np.int64]
    tokens: Scores
    seconds: Scores

    @classmethod
    def of(cls, scores: RankScores, seconds: Scores) -> "_Menu":
        first = scores.num_requests
        end = min(first + len(scores.sums), len(seconds))
        rows = np.arange(first, end)
        times = seconds[first:end]
        is_possible = np.isfinite(times)
        if not is_possible.any():
            raise ValueError(
                f"the cost table ends at {len(seconds) - 1} rows: {first} requests need one each"
            )
        return cls(rows[is_possible], scores.sums[: end - first][is_possible], times[is_possible])

    def best(self) -> Budget:
        if self.rows[0] == 0:
            return Budget(0, 0.0, 0.0)
        i = int(np.argmax(self.tokens / self.seconds))
        return self.budget(i, float(self.seconds[i]))

    def budget(self, i: int, step_s: float) -> Budget:
        return Budget(int(self.rows[i]), float(self.tokens[i]), step_s)

    def best_within(self, limits: Scores) -> NDArray[np.int64]:
        """Index of the most tokens, then fewest rows, in at most `limits` seconds; -1 if none."""
        order = np.lexsort((self.rows, self.seconds))
        best = np.maximum.accumulate(self.tokens[order])
        is_new = np.concatenate([[True], best[1:] > best[:-1]])
        leader = order[np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))]
        place = np.searchsorted(self.seconds[order], limits, side="right") - 1
        return np.where(place >= 0, leader[np.maximum(place, 0)], -1)


def _joint(menus: list[_Menu], rank: int) -> Budget:
    limits = np.unique(np.concatenate([menu.seconds for menu in menus]))
    choices = np.stack([menu.best_within(limits) for menu in menus])
    tokens = np.zeros(len(limits))
    longest = np.zeros(len(limits))
    for menu, chosen in zip(menus, choices, strict=True):
        tokens += menu.tokens[chosen]
        longest = np.maximum(longest, menu.seconds[chosen])
    is_possible = (choices >= 0).all(0)
    if longest[is_possible].max() == 0:
        return Budget(0, 0.0, 0.0)
    rate = np.where(is_possible, tokens / np.where(longest > 0, longest, np.inf), -np.inf)
    i = int(np.argmax(rate))
    return menus[rank].budget(int(choices[rank, i]), float(longest[i]))


class CostModel:
    """Step time from a latency table, corrected by what running steps really take.

    `T(B) = table(g) + slope * g + sampler(n)`, with `g` the bucket of `B` and `n` the number of
    requests. The slope covers what the table's placeholder rows lack (context length, real
    routing): each step gives a sample `(measured - table(g)) / g`; buckets with at least 10 of the
    last 5000 samples contribute their median, and the slope is the median of those, at least 0.
    The sampler's time is the median of the last 9 steps with the same `n`, if there are 5, else of
    all. (Windows and thresholds of DeepInfer 0.1.0 `mtp_varlen.hpp`.)

    Args:
        table: Measured step times.
    """

    WINDOW = 5000
    MIN_SAMPLES = 10
    SAMPLER_WINDOW = 9
    MIN_SAMPLER_SAMPLES = 5

    def __init__(self, table: LatencyTable) -> None:
        self.table = table
        self._base = dict(zip(table.rows, table.seconds, strict=True))
        self._window: deque[tuple[int, float]] = deque()
        self._samples: dict[int, list[float]] = {}
        self._sampler: dict[int | None, deque[float]] = {}

    def observe(self, num_rows: int, num_requests: int, forward_s: float, sampler_s: float) -> None:
        """Feeds back one step.

        Args:
            num_rows: Query rows of the step.
            num_requests: Requests of the step.
            forward_s: Seconds of the model forward.
            sampler_s: Seconds of verification, sampling and drafting.
        """
        if 1 <= num_rows <= self.table.max_rows:
            bucket = self.table.bucket(num_rows)
            expected = float(self.table.dense(num_rows)[num_rows])
            self._add(bucket, (forward_s - expected) / bucket)
        for key in (num_requests, None):
            window = self._sampler.setdefault(key, deque(maxlen=self.SAMPLER_WINDOW))
            window.append(sampler_s)

    @property
    def slope_s(self) -> float:
        """Seconds per row beyond the table."""
        medians = [
            _median(samples)
            for samples in self._samples.values()
            if len(samples) >= self.MIN_SAMPLES
        ]
        return max(0.0, _median(sorted(medians))) if medians else 0.0

    def sampler_s(self, num_requests: int) -> float:
        """Seconds of sampling and drafting for a number of requests."""
        for key in (num_requests, None):
            window = self._sampler.get(key, ())
            if len(window) >= self.MIN_SAMPLER_SAMPLES:
                return _median(sorted(window))
        return 0.0

    def dense(self, max_rows: int, num_requests: int) -> Scores:
        """Seconds of a step with 0, 1, ..., `max_rows` rows, for `choose_budget`."""
        buckets = np.asarray(self.table.rows)
        counts = np.arange(max_rows + 1)
        bucket = buckets[np.minimum(np.searchsorted(buckets, counts), len(buckets) - 1)]
        seconds = self.table.dense(max_rows) + self.slope_s * bucket + self.sampler_s(num_requests)
        seconds[0] = 0.0
        return np.asarray(seconds)

    def _add(self, bucket: int, sample: float) -> None:
        self._window.append((bucket, sample))
        bisect.insort(self._samples.setdefault(bucket, []), sample)
        if len(self._window) > self.WINDOW:
            old_bucket, old = self._window.popleft()
            samples = self._samples[old_bucket]
            del samples[bisect.bisect_left(samples, old)]


def _median(ascending: Sequence[float]) -> float:
    middle = len(ascending) // 2
    if len(ascending) % 2:
        return float(ascending[middle])
    return float(ascending[middle - 1] + ascending[middle]) / 2


class BudgetPlanner:
    """Chooses totals from survivals that are old enough to be independent of the drafts they cut.

    After each step, `record` the survivals of its new proposals. `choose` uses, for each request,
    the ones recorded `lag` rounds before the newest. Where the newest belong to the proposals about
    to be verified, `lag=1` keeps those from having a say in the total, as the ratio test and block
    verification need; where results arrive one step late, the newest are old enough and `lag=0`
    does the same. Requests without an old entry count as
    certain (1) for the drafts they have. The split takes the newest survivals.

    Args:
        cost: Cost model, or None without a latency table: all drafts are verified.
        lag: Rounds between the newest survival and the one a total uses.
    """

    def __init__(self, cost: CostModel | None, lag: int = 1) -> None:
        if lag < 0:
            raise ValueError(f"`lag` must be at least 0: got {lag}")
        self.cost = cost
        self.lag = lag
        self._recorded: dict[Hashable, deque[Scores]] = {}

    def record(self, request_ids: Sequence[Hashable], survival: Scores) -> None:
        """Keeps the survivals [requests, drafts] of new proposals."""
        for request_id, row in zip(request_ids, survival, strict=True):
            window = self._recorded.setdefault(request_id, deque(maxlen=self.lag + 1))
            window.append(np.array(row, np.float64))

    def forget(self, request_id: Hashable) -> None:
        """Drops a request; unknown ids are ignored."""
        self._recorded.pop(request_id, None)

    def choose(
        self,
        request_ids: Sequence[Hashable],
        num_drafts: Sequence[int],
        others: Sequence[RankScores] = (),
        rank: int = 0,
    ) -> Budget:
        """The total for a step.

        Args:
            request_ids: Requests of the step.
            num_drafts: Drafts that each has ready.
            others: As for `choose_budget`.
            rank: As for `choose_budget`.
        """
        survival = self.lagged(request_ids, num_drafts)
        seconds = None
        if self.cost is not None:
            limit = len(request_ids) + survival.size
            seconds = self.cost.dense(min(limit, self.cost.table.max_rows), len(request_ids))
        return choose_budget(survival, seconds, others, rank)

    def lagged(self, request_ids: Sequence[Hashable], num_drafts: Sequence[int]) -> Scores:
        """Survivals that totals are made of, [requests, most drafts]."""
        width = max(num_drafts, default=0)
        survival = np.zeros((len(request_ids), width))
        for row, (request_id, count) in enumerate(zip(request_ids, num_drafts, strict=True)):
            window = self._recorded.get(request_id)
            if window is not None and len(window) > self.lag:
                old = window[0][:count]
                survival[row, : len(old)] = old
            else:
                survival[row, :count] = 1.0
        return survival
