"""The state of one constrained request."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from di_structured.errors import GrammarViolationError, InvalidSchemaError, StructuredError
from di_structured.grammar import CompiledGrammar
from di_structured.masks import free_row
from di_structured.prefix import FreeSections
from di_structured.schema import OutputSchema

__all__ = ["GrammarSession", "SessionSnapshot"]

STOPPED = -1  # state behind a stop token


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """A session as plain data, for a preempted or moved request.

    Attributes:
        schema: The request's schema.
        token_ids: Every token advanced so far.
        request_id: The request.
        stop_token_ids: The session's own stop ids.
    """

    schema: OutputSchema
    token_ids: tuple[int, ...]
    request_id: str
    stop_token_ids: tuple[int, ...]


class GrammarSession:
    """Follows the output of one request and says which tokens may come next.

    The session belongs to a request id, never to a batch row. It is not thread-safe, but different
    sessions may be used by different threads. Its state is a function of the tokens advanced.

    Rules of termination: a stop token is allowed exactly when the text is complete, or would be
    with it, and ends the session; in a free section it is always allowed and ends the session as
    well. Tokens behind a stop token are counted and not judged, and their masks are free: whether
    anything follows is the engine's decision (`ignore_eos`).

    Args:
        grammar: The compiled grammar.
        schema: The request's schema; its free sections are the session's.
        request_id: Named in errors.
        stop_token_ids: Stop ids of this request, beside the vocabulary's own. They may be ordinary
            text.

    Raises:
        InvalidSchemaError: The grammar was compiled from another schema, or an id is outside the
            vocabulary.
    """

    def __init__(
        self,
        grammar: CompiledGrammar,
        schema: OutputSchema,
        *,
        request_id: str = "",
        stop_token_ids: Iterable[int] = (),
    ) -> None:
        """Starts at the first output token."""
        import xgrammar

        if schema.key != grammar.key:
            raise InvalidSchemaError(
                "the grammar was compiled from another schema than the session's"
            )
        vocabulary = grammar.vocabulary
        schema.check_vocabulary(vocabulary.vocab_size)
        self.grammar = grammar
        self.schema = schema
        self.request_id = request_id
        self.vocab_size = vocabulary.vocab_size
        self._extra_stop_ids = tuple(stop_token_ids)
        for token_id in self._extra_stop_ids:
            if not 0 <= token_id < self.vocab_size:
                raise InvalidSchemaError(
                    f"`stop_token_ids` holds {token_id}, outside the vocabulary of "
                    f"{self.vocab_size} tokens"
                )
        self._stop_ids = frozenset(vocabulary.stop_token_ids) | frozenset(self._extra_stop_ids)
        self._matcher = xgrammar.GrammarMatcher(
            grammar.handle, override_stop_tokens=sorted(self._stop_ids)
        )
        # Tokens that xgrammar refuses with a line on standard error: never offered to it.
        self._unmatchable = (
            frozenset(grammar.handle.tokenizer_info.special_token_ids) - self._stop_ids
        )
        self._not_text = self._unmatchable | self._stop_ids
        # A stop id may also be text, or named by a rule: only then can a set bit mean something
        # else than the end.
        may_be_terminals = (
            schema.kind == "structural_tag"
            or (schema.kind == "ebnf" and "Token" in schema.text)
            or not self._stop_ids <= vocabulary.special_token_ids
        )
        self._stop_bits = [
            (token_id, token_id >> 5, 1 << (token_id & 31))
            for token_id in (sorted(self._stop_ids) if may_be_terminals else ())
        ]
        self._sections = FreeSections(schema)
        self._active = self._sections.active
        self._state: int = 0  # of the free sections, or `STOPPED`
        self._token_ids: list[int] = []
        self._states: list[int] = []  # the state before each token
        self._was_fed = bytearray()  # whether the matcher took each token
        self._stopped_in_grammar = False
        self._free_row = free_row(self.vocab_size)
        self._tail = self._free_row[-1]
        self._has_slack = self.vocab_size % 32 != 0
        self._width = self._free_row.size
        self._checked_out: npt.NDArray[np.int32] | None = None

    # --- state

    @property
    def num_tokens(self) -> int:
        """Number of tokens advanced, those behind a stop token included."""
        return len(self._token_ids)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens advanced."""
        return tuple(self._token_ids)

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """The ids that end the text: the vocabulary's and the request's."""
        return self._stop_ids

    @property
    def is_terminated(self) -> bool:
        """Whether a stop token has ended the text."""
        return self._state == STOPPED

    @property
    def is_complete(self) -> bool:
        """Whether the tokens so far are a whole text, so that a stop token may follow, or has."""
        if self._state == STOPPED:
            return self._stopped_in_grammar
        return self._state == self._sections.active and bool(self._matcher.is_completed())

    @property
    def is_constrained(self) -> bool:
        """Whether the next token is restricted: the grammar rules, or a trigger is being forced."""
        if self._state == STOPPED:
            return False
        return (
            self._state == self._sections.active
            or self._sections.forced_token(self._state) is not None
        )

    def forced_tokens(self) -> list[int]:
        """Returns tokens that can only come next, in one possible segmentation of the forced text.

        Offer them as drafts: verification then rejects a segmentation that the model does not
        prefer.
        """
        if self._state == STOPPED:
            return []
        if self._state == self._sections.active:
            return [int(i) for i in self._matcher.find_jump_forward_tokens()]
        return self._sections.forced_run(self._state)

    # --- masks

    def fill_masks(self, drafts: Sequence[int], out: npt.NDArray[np.int32], row: int = 0) -> int:
        """Writes the masks of a draft chain: row `row + j` is for the output and `drafts[:j]`.

        The state is the same afterwards. Rows behind the first forbidden draft, and behind a draft
        that is a stop token, are free: no verification reaches them.

        Args:
            drafts: Proposed tokens. Negative ids are padding and count as forbidden.
            out: Masks, shape (rows, ceil(vocab_size / 32)), int32, C-contiguous: bit `v % 32` of
                word `v // 32` is set if token `v` is allowed. Rows `row .. row + len(drafts)` are
                written; bits from `vocab_size` on are 0.
            row: The first row.

        Returns:
            The number of leading drafts that are allowed.

        Raises:
            ValueError: `out` has another shape or type, or too few rows.
        """
        end = row + len(drafts) + 1
        if out is not self._checked_out or row < 0 or end > len(out):
            self._check_out(out, row, end)
        if self._state == self._active:
            return self._fill_grammar_rows(drafts, out, row)
        return self._fill_any_rows(drafts, out, row)

    def _check_out(self, out: npt.NDArray[np.int32], row: int, end: int) -> None:
        if (
            out.ndim != 2
            or out.shape[1] != self._width
            or out.dtype != np.int32
            or not 0 <= row < end <= len(out)
        ):
            raise ValueError(
                f"`out` must be int32 of shape (at least {end}, {self._width}), got {out.dtype} "
                f"{out.shape}, row {row}"
            )
        self._checked_out = out

    def _fill_grammar_rows(
        self, drafts: Sequence[int], out: npt.NDArray[np.int32], row: int
    ) -> int:
        """The common case, in which every row is the matcher's."""
        matcher = self._matcher
        fill, accept = matcher.fill_next_token_bitmask, matcher.accept_token
        not_text, vocab_size, stop_bits = self._not_text, self.vocab_size, self._stop_bits
        fill(out, row)
        if stop_bits:
            self._clear_early_stops(out, row)
        last, stops = row, 0
        for token_id in drafts:
            if token_id in not_text:
                if token_id in self._stop_ids:
                    stops = matcher.is_completed() or self._completes(token_id, keep=False)
                break
            if not 0 <= token_id < vocab_size or not accept(token_id):
                break
            last += 1
            fill(out, last)
            if stop_bits:
                self._clear_early_stops(out, last)
        fed = last - row
        if fed:
            matcher.rollback(fed)
        if self._has_slack:
            out[row : row + fed + 1, -1] &= self._tail
        if fed < len(drafts):
            out[row + fed + 1 : row + len(drafts) + 1] = self._free_row
        return fed + stops

    def _fill_any_rows(self, drafts: Sequence[int], out: npt.NDArray[np.int32], row: int) -> int:
        """The general case: free sections, forced triggers, and their borders."""
        start = len(self._token_ids)
        self._fill_row(out, row)
        legal = 0
        for token_id in drafts:
            if self._state == STOPPED or not self._accept(token_id):
                break
            legal += 1
            self._fill_row(out, row + legal)
        self.rollback(len(self._token_ids) - start)
        if legal < len(drafts):
            out[row + legal + 1 : row + len(drafts) + 1] = self._free_row
        return legal

    def _fill_row(self, out: npt.NDArray[np.int32], row: int) -> None:
        if self._state == self._sections.active:
            self._fill_grammar_rows((), out, row)
            return
        forced = None if self._state == STOPPED else self._sections.forced_token(self._state)
        if forced is None:
            out[row] = self._free_row
        else:
            out[row] = 0
            out[row, forced >> 5] = np.uint32(1 << (forced & 31)).view(np.int32)

    def _clear_early_stops(self, out: npt.NDArray[np.int32], row: int) -> None:
        """Forbids stop ids that are terminals here and would leave the text unfinished."""
        for token_id, word, bit in self._stop_bits:
            value = out.item(row, word)
            if (
                value & bit
                and not self._matcher.is_completed()
                and not self._completes(token_id, keep=False)
            ):
                out[row, word] = np.uint32(value & ~bit & 0xFFFFFFFF).view(np.int32)

    def _completes(self, token_id: int, *, keep: bool) -> bool:
        """Whether a stop id, fed as a terminal, ends the text; with `keep`, it then stays fed."""
        if token_id in self._unmatchable or not self._matcher.accept_token(token_id):
            return False
        completes = bool(self._matcher.is_completed() or self._matcher.is_terminated())
        if not (completes and keep):
            self._matcher.rollback(1)
        return completes

    # --- tokens

    def advance(self, token_ids: Iterable[int]) -> int:
        """Takes emitted tokens: accepted drafts and the token behind them.

        Returns:
            The number of tokens taken.

        Raises:
            GrammarViolationError: A token is forbidden. Nothing of the call is kept.
        """
        start = len(self._token_ids)
        for index, token_id in enumerate(token_ids):
            if not self._accept(token_id):
                self.rollback(len(self._token_ids) - start)
                name = f"request `{self.request_id}`: " if self.request_id else ""
                raise GrammarViolationError(
                    f"{name}token {token_id} at index {index} is forbidden behind {start + index} "
                    "output tokens; it was "
                    "drawn without this session's mask, or advanced twice",
                    token_id,
                    index,
                )
        return len(self._token_ids) - start

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last tokens.

        Raises:
            StructuredError: There are fewer.
        """
        if not 0 <= num_tokens <= len(self._token_ids):
            raise StructuredError(
                f"cannot roll {num_tokens} tokens back, {len(self._token_ids)} were advanced"
            )
        if not num_tokens:
            return
        fed = sum(self._was_fed[-num_tokens:])
        self._state = self._states[-num_tokens]
        del self._states[-num_tokens:]
        del self._was_fed[-num_tokens:]
        del self._token_ids[-num_tokens:]
        if fed:
            self._matcher.rollback(fed)

    def snapshot(self) -> SessionSnapshot:
        """Returns what `restore` needs."""
        return SessionSnapshot(self.schema, self.token_ids, self.request_id, self._extra_stop_ids)

    @classmethod
    def restore(cls, grammar: CompiledGrammar, snapshot: SessionSnapshot) -> "GrammarSession":
        """Makes a session in the state of a snapshot by taking its tokens again.

        Raises:
            InvalidSchemaError: The grammar was compiled from another schema.
            GrammarViolationError: The tokens are not this grammar's.
        """
        session = cls(
            grammar,
            snapshot.schema,
            request_id=snapshot.request_id,
            stop_token_ids=snapshot.stop_token_ids,
        )
        session.advance(snapshot.token_ids)
        return session

    def _accept(self, token_id: int) -> bool:
        """Takes one token, or returns False with the state unchanged."""
        state = self._state
        fed = False
        if state == STOPPED:
            after = STOPPED
        elif not 0 <= token_id < self.vocab_size:
            return False
        elif state == self._sections.active:
            if token_id in self._stop_ids:
                if not self._matcher.is_completed():
                    if not self._completes(token_id, keep=True):
                        return False
                    fed = True
                after = STOPPED
                self._stopped_in_grammar = True
            elif token_id in self._unmatchable or not self._matcher.accept_token(token_id):
                return False
            else:
                after, fed = state, True
        else:
            forced = self._sections.forced_token(state)
            if forced is not None and token_id != forced:
                return False
            if token_id in self._stop_ids and forced is None:
                after = STOPPED
                self._stopped_in_grammar = False
            else:
                after = self._sections.step(state, token_id)
        self._token_ids.append(token_id)
        self._states.append(state)
        self._was_fed.append(fed)
        self._state = after
        return True
