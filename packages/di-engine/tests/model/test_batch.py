"""Laying out the rows of a step."""

import pytest
import torch

from di_engine.errors import InvalidRequestError
from di_engine.model import RequestRows, StepBatch


def rows(**changes):
    fields = {"token_ids": [7], "num_computed": 0, "block_table": [0], "state_slot": 0}
    return RequestRows(**(fields | changes))


def test_rows_are_laid_out_request_by_request():
    batch = StepBatch.build(
        [
            rows(token_ids=[5, 6, 7], logits="all"),
            rows(
                token_ids=[9],
                num_computed=130,
                block_table=[3, 1],
                state_slot=2,
                history=[1, 2, 3, 4],
            ),
            rows(token_ids=[8, 8], num_computed=1, state_slot=1, history=[4], logits="none"),
        ],
        ngram_size=4,
    )
    assert batch.token_ids.tolist() == [5, 6, 7, 9, 8, 8]
    assert batch.positions.tolist() == [0, 1, 2, 130, 1, 2]
    assert batch.query_lens.tolist() == [3, 1, 2]
    assert batch.context_lens.tolist() == [3, 131, 3]
    assert batch.block_tables.tolist() == [[0, -1], [3, 1], [0, -1]]
    assert batch.block_tables.dtype == torch.int32
    assert batch.ngram_history.tolist() == [[-1, -1, -1], [2, 3, 4], [-1, -1, 4]]
    assert batch.logits_rows.tolist() == [0, 1, 2, 3]
    assert (batch.max_query_len, batch.max_context_len) == (3, 131)


def test_without_engram_there_is_no_history():
    assert StepBatch.build([rows()]).ngram_history.shape == (1, 0)


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([], "at least one request: got none"),
        ([rows(token_ids=[])], "at least one token id: got none"),
        ([rows(num_computed=128, history=[1, 2, 3])], "129 tokens need 2 blocks of 128: got 1"),
        ([rows(num_computed=5, history=[1])], "the 3 tokens before position 5: got 1"),
        ([rows(), rows()], "distinct `state_slot`"),
        ([rows(window_start=1)], r"`window_start` must lie in 0..0"),
    ],
)
def test_wrong_rows_are_refused(requests, message):
    with pytest.raises(InvalidRequestError, match=message):
        StepBatch.build(requests, ngram_size=4)
