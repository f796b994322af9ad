"""The free sections of an output: reasoning, then text before a trigger.

Both end behind a token sequence, which may lie anywhere in a draft window and may overlap with
itself, so progress is that of Knuth, Morris and Pratt. The state is one small integer and a
function of the tokens alone: rolling back is remembering it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from di_structured.schema import OutputSchema

__all__ = ["FreeSections"]


@dataclass(frozen=True, slots=True)
class _Section:
    """States from `first` on count matched ids of `end`; with a bound, as many more force it."""

    first: int
    end: tuple[int, ...]
    fallback: tuple[int, ...]
    bound: int | None

    @property
    def num_states(self) -> int:
        return len(self.end) * (1 if self.bound is None else 2)


class FreeSections:
    """The automaton of one schema's free sections.

    Attributes:
        active: The state in which the grammar rules; states below it are free or forced.
    """

    def __init__(self, schema: OutputSchema) -> None:
        """Lays the states out: reasoning, trigger, active."""
        self._sections: list[_Section] = []
        first = 0
        for end, bound in (
            (schema.reasoning_end_token_ids, None),
            (schema.trigger_token_ids, schema.bound_token_id),
        ):
            if end:
                section = _Section(first, end, _fallbacks(end), bound)
                self._sections.append(section)
                first += section.num_states
        self.active = first

    def forced_token(self, state: int) -> int | None:
        """Returns the only token allowed in a state, or None where text is free."""
        section = self._section(state)
        progress = state - section.first - len(section.end)
        return section.end[progress] if progress >= 0 else None

    def step(self, state: int, token_id: int) -> int:
        """Returns the state behind a token; in a forced state the token must be the forced one."""
        section = self._section(state)
        length = len(section.end)
        progress = state - section.first
        if progress >= length:
            return self._after(section) if progress + 1 == 2 * length else state + 1
        while progress and section.end[progress] != token_id:
            progress = section.fallback[progress]
        if section.end[progress] == token_id:
            progress += 1
        if progress == length:
            return self._after(section)
        return section.first + progress + (length if token_id == section.bound else 0)

    def forced_run(self, state: int) -> list[int]:
        """Returns the tokens that are forced from a state on, before the grammar starts."""
        tokens: list[int] = []
        while state < self.active and (token_id := self.forced_token(state)) is not None:
            tokens.append(token_id)
            state = self.step(state, token_id)
        return tokens

    def _section(self, state: int) -> _Section:
        return next(s for s in self._sections if state < s.first + s.num_states)

    def _after(self, section: _Section) -> int:
        return section.first + section.num_states


def _fallbacks(ids: Sequence[int]) -> tuple[int, ...]:
    """For each number of matched ids, the longest shorter match that ends with the same tokens."""
    table = [0] * (len(ids) + 1)
    length = 0
    for index in range(1, len(ids)):
        while length and ids[index] != ids[length]:
            length = table[length]
        if ids[index] == ids[length]:
            length += 1
        table[index + 1] = length
    return tuple(table)
