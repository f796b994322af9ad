"""Reading of one JSON object field by field, collecting every problem instead of the first.

A `FieldReader` hands out checked values. When a field is missing or wrong it notes the problem and
hands out a stand-in of the right type, so that reading goes on and the caller can raise one error
that lists everything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["FieldReader", "show"]

_SHOWN_CHARS = 80


def show(value: object) -> str:
    """Returns `value` as it would stand in JSON, shortened for a message."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


class FieldReader:
    """Reads the fields of one JSON object and collects problems.

    Args:
        values: The JSON object.
        problems: List that problems are appended to; shared by the readers of nested objects.
        prefix: Path of the object, for example `text_config.`, put before field names.
    """

    def __init__(self, values: Mapping[str, Any], problems: list[str], prefix: str = "") -> None:
        self._values = values
        self._problems = problems
        self._prefix = prefix
        self._read: set[str] = set()

    def problem(self, key: str, value: object, supported: str) -> None:
        """Notes that `key` has a `value` that is not what is `supported`."""
        self._problems.append(f"`{self._prefix}{key}`: {show(value)}, supported: {supported}")

    def unread(self) -> tuple[str, ...]:
        """Returns the keys of the object that nobody asked for, sorted."""
        return tuple(sorted(self._prefix + key for key in set(self._values) - self._read))

    def skip(self, *keys: str) -> None:
        """Marks keys as known although their values do not matter here."""
        self._read.update(keys)

    def has(self, key: str) -> bool:
        """Whether the key is present, whatever its value."""
        return key in self._values

    def raw(self, key: str, supported: str, default: Any = ...) -> Any:
        """Returns the unchecked value; without a `default` the absence of the key is a problem."""
        self._read.add(key)
        if key in self._values:
            return self._values[key]
        if default is ...:
            self._problems.append(f"`{self._prefix}{key}`: missing, supported: {supported}")
        return default

    def integer(
        self, key: str, *, low: int = 1, high: int | None = None, default: Any = ...
    ) -> int:
        """Returns an integer field in `[low, high]`."""
        top = "" if high is None else f" to {high}"
        supported = f"an integer from {low}{top}" if top else f"an integer of at least {low}"
        value = self.raw(key, supported, default)
        if value is ...:
            return max(low, 1)
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or value < low:
            self.problem(key, value, supported)
            return max(low, 1)
        return int(value)

    def number(self, key: str, *, default: Any = ...) -> float:
        """Returns a finite number above zero."""
        supported = "a number above 0"
        value = self.raw(key, supported, default)
        if value is ...:
            return 1.0
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        try:
            number = float(value) if is_number else math.nan
        except OverflowError:  # an integer beyond the range of a float
            number = math.inf
        if not math.isfinite(number) or number <= 0:
            self.problem(key, value, supported)
            return 1.0
        return number

    def integers(self, key: str, *, low: int = 0, default: Any = ...) -> tuple[int, ...]:
        """Returns a list of integers of at least `low` as a tuple."""
        supported = f"a list of integers of at least {low}"
        value = self.raw(key, supported, default)
        if value is ...:
            return ()
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            self.problem(key, value, supported)
            return ()
        if any(not isinstance(item, int) or isinstance(item, bool) or item < low for item in value):
            self.problem(key, list(value), supported)
            return ()
        return tuple(value)

    def exactly(self, key: str, expected: object, *, default: Any = ...) -> None:
        """Notes a problem unless the field equals `expected`, in value and in JSON type."""
        value = self.raw(key, show(expected), default)
        if value is ...:
            return
        same_type = isinstance(value, bool) == isinstance(expected, bool)
        if not same_type or value != expected:
            self.problem(key, value, show(expected))

    def section(self, key: str, *, default: Any = ...) -> FieldReader | None:
        """Returns a reader of a nested object, or None when it is absent, null or not an object."""
        value = self.raw(key, "an object", default)
        if value is ... or (value is None and default is None):
            return None
        if not isinstance(value, Mapping):
            self.problem(key, value, "an object")
            return None
        return FieldReader(value, self._problems, f"{self._prefix}{key}.")
