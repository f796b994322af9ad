"""What a store outside this rank can contribute to a request."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExternalHit:
    """What a store outside this rank holds of a prompt.

    Attributes:
        num_tokens: Leading tokens whose blocks it holds: a multiple of the block size, or the
            whole prompt if the state comes with it.
        has_state: Whether it also holds the state slot as it was after `num_tokens`.
    """

    num_tokens: int
    has_state: bool
