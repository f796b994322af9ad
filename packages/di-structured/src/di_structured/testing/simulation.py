"""A model that draws at random, and the verification of drafts around it.

The model's logits are a function of the position alone, drawn from a seed, so that output with and
without drafts can be compared. Coupled verification takes the same Gumbel noise for a position
whatever was drafted, and must give the same output for every number of drafts. Ratio verification
accepts a one-hot draft with its masked probability and redraws from what is left; its law is that
of the masked model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from di_structured.masks import allocate_masks
from di_structured.session import GrammarSession
from di_structured.testing.oracle import allowed_in_row

__all__ = ["Generation", "generate"]


@dataclass(frozen=True, slots=True)
class Generation:
    """What came out of one request.

    Attributes:
        token_ids: Output tokens, the stop token included if there is one.
        is_finished: Whether a stop token came within the limit.
        steps: Number of verification steps.
        rejected: Number of drafts that were not taken.
    """

    token_ids: tuple[int, ...]
    is_finished: bool
    steps: int
    rejected: int


def generate(
    session: GrammarSession,
    *,
    seed: int,
    num_drafts: int,
    max_tokens: int,
    verification: Literal["coupled", "ratio"] = "coupled",
    script: Sequence[int] = (),
    stop_bias: float = 4.0,
    script_bias: float = 50.0,
) -> Generation:
    """Generates with a random model, random drafts, and the session's masks.

    Args:
        session: A session at its start.
        seed: Of the logits, the noise and the drafts.
        num_drafts: Drafts in each step; half of them are guesses of the model's own draw, half are
            arbitrary.
        max_tokens: The most output tokens.
        verification: How drafts are judged.
        script: Tokens that the model strongly prefers at the first positions, for instance a
            reasoning section.
        stop_bias: Added to the logits of stop tokens, so that texts end.
        script_bias: How strongly the script is preferred.
    """
    model = _Model(session, seed, script, stop_bias, script_bias)
    drafter = np.random.default_rng((seed, 1))
    judge = np.random.default_rng((seed, 2))
    masks = allocate_masks(num_drafts + 1, session.vocab_size)
    output: list[int] = []
    steps = rejected = 0
    while len(output) < max_tokens and not session.is_terminated:
        drafts = _draft(model, drafter, len(output), num_drafts)
        session.fill_masks(drafts, masks)
        emitted = _verify(model, judge, masks, drafts, len(output), verification)
        emitted = emitted[: max_tokens - len(output)]
        steps += 1
        rejected += num_drafts - (len(emitted) - 1)
        for index, token_id in enumerate(emitted):
            if token_id in model.stop_ids:
                emitted = emitted[: index + 1]
                break
        session.advance(emitted)
        output.extend(emitted)
    return Generation(tuple(output), session.is_terminated, steps, rejected)


class _Model:
    """Logits and noise for each position."""

    def __init__(
        self,
        session: GrammarSession,
        seed: int,
        script: Sequence[int],
        stop_bias: float,
        script_bias: float,
    ) -> None:
        self.vocab_size = session.vocab_size
        self.stop_ids = session.stop_token_ids
        self._seed = seed
        self._script = script
        self._stop_bias = stop_bias
        self._script_bias = script_bias

    def logits(self, position: int) -> npt.NDArray[np.float64]:
        """Returns the logits for the token at a position, shape (vocab_size,)."""
        values = np.random.default_rng((self._seed, 3, position)).normal(size=self.vocab_size)
        values[list(self.stop_ids)] += self._stop_bias
        if position < len(self._script):
            values[self._script[position]] += self._script_bias
        return values

    def noise(self, position: int) -> npt.NDArray[np.float64]:
        """Returns the Gumbel noise of a position, shape (vocab_size,)."""
        return np.random.default_rng((self._seed, 4, position)).gumbel(size=self.vocab_size)


def _draft(
    model: _Model, drafter: np.random.Generator, position: int, num_drafts: int
) -> list[int]:
    drafts = []
    for offset in range(num_drafts):
        if drafter.random() < 0.5:
            guess = model.logits(position + offset) + model.noise(position + offset)
            drafts.append(int(guess.argmax()))
        else:
            drafts.append(int(drafter.integers(-1, model.vocab_size)))
    return drafts


def _verify(
    model: _Model,
    judge: np.random.Generator,
    masks: npt.NDArray[np.int32],
    drafts: Sequence[int],
    position: int,
    verification: str,
) -> list[int]:
    """Returns the accepted drafts and one token more."""
    emitted: list[int] = []
    for row in range(len(drafts) + 1):
        allowed = np.array(allowed_in_row(masks[row]))
        logits = model.logits(position + row)[allowed]
        draft = drafts[row] if row < len(drafts) else -1
        if verification == "coupled":
            token_id = int(allowed[(logits + model.noise(position + row)[allowed]).argmax()])
        else:
            token_id = _ratio(judge, allowed, logits, draft)
        emitted.append(token_id)
        if token_id != draft or token_id in model.stop_ids:
            break
    return emitted


def _ratio(
    judge: np.random.Generator,
    allowed: npt.NDArray[np.int64],
    logits: npt.NDArray[np.float64],
    draft: int,
) -> int:
    """Accepts a one-hot draft with its probability, else draws from the others."""
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    place = np.flatnonzero(allowed == draft)
    if place.size:
        if judge.random() < weights[place[0]] or weights.size == 1:
            return draft
        weights[place[0]] = 0.0
        weights /= weights.sum()
    return int(judge.choice(allowed, p=weights))
