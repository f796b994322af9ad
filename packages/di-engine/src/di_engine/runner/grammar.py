"""Grammar masks of a step's rows, from the sessions of its requests.

A session belongs to a request, never to a row or a slot: preemption, reordering and recomputation
leave it as it is. It moves only when the scheduler has booked tokens, and a step's masks are made
behind that, for the row of every draft.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from di_engine.runner.step_inputs import upload

if TYPE_CHECKING:
    from di_engine.runner.sampled_rows import SampledRows

__all__ = ["Grammar", "StepMasks"]

logger = logging.getLogger(__name__)


class Grammar(Protocol):
    """What steps need of a request's grammar; `di_structured.GrammarSession` is one."""

    @property
    def is_constrained(self) -> bool:
        """Whether the next token is restricted."""

    def fill_masks(self, drafts: Sequence[int], out: npt.NDArray[np.int32], row: int = 0) -> int:
        """Writes the mask rows of a draft chain; the state stays."""

    def advance(self, token_ids: Sequence[int]) -> int:
        """Takes emitted tokens, all of them or none."""


class _Guarded:
    """A session whose failure is noted with its request and does not reach the step."""

    def __init__(self, session: Grammar, failures: dict[int, str], index: int) -> None:
        self._session = session
        self._failures = failures
        self._index = index

    @property
    def is_constrained(self) -> bool:
        return True

    def fill_masks(self, drafts: Sequence[int], out: npt.NDArray[np.int32], row: int = 0) -> int:
        """As the session's; after a failure the rows allow everything and nobody reads them."""
        try:
            return self._session.fill_masks(drafts, out, row)
        except Exception as error:  # the request is the boundary: it fails, its neighbours go on
            logger.exception("a grammar mask could not be made")
            self._failures[self._index] = f"the grammar mask could not be made: {error}"
            out[row : row + len(drafts) + 1] = -1
            return 0


class StepMasks:
    """Fills the masks of one step after another.

    Args:
        vocab_size: Width of the logits.
        device: Where the logits are.
        num_threads: Threads that fill.
    """

    def __init__(self, vocab_size: int, device: torch.device, num_threads: int = 1) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._num_threads = num_threads
        self._batch: Any = None  # a `di_structured.MaskBatch`, from the first grammar on

    def fill(self, rows: SampledRows) -> torch.Tensor | None:
        """Makes the masks of all rows of a step.

        A session that fails marks its request, which fails alone.

        Returns:
            int32 [num_rows, ceil(vocab_size / 32)] on the device, valid until the next call; None
            if no row is restricted.
        """
        sessions = [
            _session_of(running.request.grammar, running.is_removed, drafts)
            for running, drafts in zip(rows.requests, rows.draft_token_ids, strict=True)
        ]
        if not any(sessions):
            return None
        if self._batch is None:
            masks = importlib.import_module("di_structured")
            self._batch = masks.MaskBatch(self._vocab_size, threads=self._num_threads)
        failures: dict[int, str] = {}
        batch = self._batch.fill(
            (
                str(index),
                None if session is None else _Guarded(session, failures, index),
                drafts,
            )
            for index, (session, drafts) in enumerate(
                zip(sessions, rows.draft_token_ids, strict=True)
            )
        )
        for index, message in failures.items():
            rows.requests[index].failure = message
        return self._to_device(batch.bits, batch.constrained_rows)

    def _to_device(
        self, bits: npt.NDArray[np.int32], constrained: npt.NDArray[np.int64]
    ) -> torch.Tensor:
        if self._device.type == "cpu":
            return torch.from_numpy(bits)
        # Rows without grammar are not worth the way to the device.
        masks = torch.full(bits.shape, -1, dtype=torch.int32, device=self._device)
        masks[upload(constrained, self._device)] = upload(bits[constrained], self._device, np.int32)
        return masks


def _session_of(grammar: Grammar | None, is_removed: bool, drafts: Sequence[int]) -> Grammar | None:
    """The session to ask; None where no row can be restricted.

    A request that has ended still has rows in the step in flight, which nobody reads. A free
    section can end only behind a draft.
    """
    if grammar is None or is_removed or not (grammar.is_constrained or drafts):
        return None
    return grammar
