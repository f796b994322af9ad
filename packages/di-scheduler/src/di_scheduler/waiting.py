"""The queue of requests that wait to run, best first."""

import heapq
from collections.abc import Iterator

from di_scheduler.request import Record, Status


class WaitingQueue:
    """Priority queue with cheap removal.

    The order is a key that never changes: `priority * aging + step of arrival` when priorities
    age, else `(priority, order of arrival)`. A preempted request keeps its key and is thereby back
    at the front of its class.

    Attributes:
        num_tokens: Tokens of all waiting requests.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, int], Record]] = []
        self._size = 0
        self.num_tokens = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Record]:
        return (record for _, record in self._heap if record.status is Status.WAITING)

    def push(self, record: Record) -> None:
        """Adds a record whose status is WAITING."""
        heapq.heappush(self._heap, (record.sort_key, record))
        self._size += 1
        self.num_tokens += len(record.token_ids)

    def head(self) -> Record | None:
        """Returns the record that is next, without removing it."""
        while self._heap and self._heap[0][1].status is not Status.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Record:
        """Removes and returns the head; the caller changes its status."""
        record = self.head()
        if record is None:
            raise IndexError("pop from an empty waiting queue")
        heapq.heappop(self._heap)
        self._size -= 1
        self.num_tokens -= len(record.token_ids)
        return record

    def removed(self, record: Record) -> None:
        """Forgets a record in place, whose status is no longer WAITING."""
        self._size -= 1
        self.num_tokens -= len(record.token_ids)
        if len(self._heap) > 2 * self._size + 64:
            self._heap = [entry for entry in self._heap if entry[1].status is Status.WAITING]
            heapq.heapify(self._heap)

    def grew(self, num_tokens: int) -> None:
        """Notes that a waiting record got tokens."""
        self.num_tokens += num_tokens
