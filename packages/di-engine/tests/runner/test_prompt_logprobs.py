"""Prompt log-probabilities: each position once, however the chunks fall."""

import numpy as np
import pytest
import torch

from di_engine.runner.logprobs import raw_logprobs
from di_engine.runner.prompt_logprobs import PromptLogprobs


def project(hidden: torch.Tensor) -> torch.Tensor:
    """Logits that favour the token after the one in the hidden state."""
    return -((torch.arange(50.0) - hidden - 1) ** 2)


@pytest.mark.parametrize(
    "chunks", [[(0, 9)], [(0, 1), (1, 2), (2, 9)], [(0, 4), (4, 8), (8, 9)], [(0, 5), (0, 9)]]
)
def test_chunks_and_repeats_give_each_position_once(chunks: list[tuple[int, int]]) -> None:
    prompt = np.array([3, 4, 5, 9, 10, 11, 30, 31, 32], dtype=np.int32)
    collector = PromptLogprobs(prompt, num_top=2)
    for begin, end in chunks:
        hidden = torch.from_numpy(prompt[begin:end].astype(np.float32)).unsqueeze(1)
        collector.add_chunk(hidden, begin, project)
    entries = collector.take()
    assert [entry.token_id for entry in entries] == prompt[1:].tolist()
    expected = torch.log_softmax(project(torch.from_numpy(prompt).float().unsqueeze(1)), dim=1)
    for row, entry in enumerate(entries):
        assert entry.logprob == pytest.approx(expected[row, entry.token_id].item(), abs=1e-5)
        assert entry.top_ids[0] == prompt[row] + 1
        assert len(entry.top_ids) == 2


def test_a_prompt_of_one_token_has_none() -> None:
    collector = PromptLogprobs(np.array([3], dtype=np.int32), num_top=1)
    collector.add_chunk(torch.tensor([[3.0]]), 0, project)
    assert collector.take() == []


def test_more_alternatives_than_tokens_are_all_tokens() -> None:
    logits, token_ids = torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([0])
    (entry,) = raw_logprobs(logits, token_ids, num_top=9).entries()
    assert entry.top_ids == [1, 0, 2]
