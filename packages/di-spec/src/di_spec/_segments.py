"""One growing numpy array lent out in segments: data of many requests that numpy reads at once."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["Segments"]

_MIN_SIZE = 8

_CACHE_LINE = 64
"""Bytes."""


class Segments:
    """Segments of one array, each of a power of two of units, one per row.

    A segment that was released is lent again at its size. Where the array is full, what is lent
    moves side by side into a new one with half as much again. So memory is bound by what is lent,
    and a unit is moved O(1) times on average for each unit that is lent.

    Args:
        dtype: Type of the elements.
        width: Elements of a unit.
        where: First unit and number of units of each row's segment, int64 [rows, 2], 0 and 0 for
            rows without. It is kept up to date here; the owner may put a larger one in its place.

    Attributes:
        data: The elements; another array after `lend` had to move them.
        view: The same memory for Python, which reads single elements faster from a memoryview.
        units: The same memory, [units, width].
        where: See above.
    """

    def __init__(self, dtype: type[np.signedinteger], width: int, where: NDArray[np.int64]) -> None:
        self._dtype = dtype
        self._width = width
        self._released: dict[int, list[int]] = {}
        self._end = 0
        self.where = where
        self._use(_MIN_SIZE)

    def lend(self, row: int, num_units: int) -> int:
        """Gives a row a segment of zeros of at least `num_units` instead of the one it has.

        Returns:
            The first unit of the segment. The other rows' segments may have moved.
        """
        self.release(row)
        size = max(_MIN_SIZE, 1 << (num_units - 1).bit_length())
        released = self._released.get(size)
        if released:
            start = released.pop()
            self.units[start : start + size] = 0
        else:
            if self._end + size > len(self.units):
                self._move(size)
            start = self._end
            self._end += size
        self.where[row] = start, size
        return start

    def release(self, row: int) -> None:
        """Takes the segment of a row back, if it has one."""
        start, size = self.where[row].tolist()
        if size:
            self._released.setdefault(size, []).append(start)
            self.where[row] = 0

    def _move(self, room: int) -> None:
        """Moves all segments into a new array with `room` for one more."""
        old, end = self.units, 0
        num_units = 3 * (int(self.where[:, 1].sum()) + room) // 2
        self._use(num_units)
        for row in np.flatnonzero(self.where[:, 1]).tolist():
            start, size = self.where[row].tolist()
            self.units[end : end + size] = old[start : start + size]
            self.where[row, 0] = end
            end += size
        self._released.clear()
        self._end = end

    def _use(self, num_units: int) -> None:
        """Takes new memory, zeros, that begins with a cache line, so that units share none."""
        size, spare = num_units * self._width, _CACHE_LINE // np.dtype(self._dtype).itemsize
        memory = np.zeros(size + spare, self._dtype)
        first = -memory.ctypes.data % _CACHE_LINE // memory.itemsize
        self.data = memory[first : first + size]
        self.view = memoryview(self.data.data)
        self.units = self.data.reshape(-1, self._width)
