"""A pure function in the place of a language model, and what it must produce."""

import zlib
from dataclasses import dataclass

import numpy as np

from di_scheduler.config import SchedulerConfig
from di_scheduler.request import LENGTH, STOP, Int32Array, Request


@dataclass(frozen=True, slots=True)
class FakeModel:
    """Maps a prefix to its next token; drafts are that token, sometimes spoiled.

    Attributes:
        vocab_size: Token ids are below this.
        seed: Another seed, another language.
        draft_error: Probability that a draft is wrong, per prefix.
    """

    vocab_size: int = 50
    seed: int = 0
    draft_error: float = 0.3

    def next_token(self, prefix: Int32Array) -> int:
        """Returns the one token that follows `prefix`, shape (n,), int32."""
        return zlib.crc32(prefix.tobytes(), self.seed) % self.vocab_size

    def drafts(self, prefix: Int32Array, count: int) -> list[int]:
        """Returns `count` guesses at the continuation of `prefix`."""
        tokens = prefix.astype(np.int32)
        guesses: list[int] = []
        for _ in range(count):
            token_id = self.next_token(tokens)
            if zlib.crc32(tokens.tobytes(), self.seed + 1) % 1000 < 1000 * self.draft_error:
                token_id = (token_id + 1) % self.vocab_size
            guesses.append(token_id)
            tokens = np.append(tokens, np.int32(token_id))
        return guesses


def expected_output(
    model: FakeModel, request: Request, config: SchedulerConfig
) -> tuple[list[int], str]:
    """Interprets one request alone, token by token, without blocks, batches or drafts.

    Returns:
        Its output tokens and its finish reason.
    """
    tokens = np.asarray(request.prompt_ids, np.int32)
    output: list[int] = []
    stop_ids = {*request.stop_token_ids, *(() if request.ignore_eos else config.eos_token_ids)}
    while True:
        token_id = model.next_token(tokens)
        output.append(token_id)
        tokens = np.append(tokens, np.int32(token_id))
        if token_id in stop_ids and len(output) > request.min_tokens:
            return output, STOP
        if len(output) == request.max_tokens or len(tokens) >= config.max_model_len:
            return output, LENGTH
