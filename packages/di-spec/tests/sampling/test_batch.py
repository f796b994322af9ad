from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from di_spec import InvalidSamplingError
from di_spec.sampling import SamplerBatch, SampleRequest, SamplingParams, TokenHistory

token_ids = st.lists(st.integers(0, 9), max_size=30)


@given(token_ids, token_ids, token_ids)
def test_counts_are_those_of_the_output_and_name_the_prompt(prompt, early, late):
    history = TokenHistory(prompt)
    history.extend(early)
    history.counts()  # built here, kept up to date below
    history.extend(late)
    ids, counts = history.counts()
    expected = {**dict.fromkeys(prompt, 0), **Counter(early + late)}
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == expected
    assert history.num_tokens == len(prompt) + len(early) + len(late)


def test_rows_of_a_request_see_the_drafts_before_them():
    history = TokenHistory([5, 5])
    history.extend([1, 2])
    params = SamplingParams(seed=3, frequency_penalty=1.0, min_tokens=4, stop_token_ids=[9])
    batch = SamplerBatch.build([SampleRequest(params, history, [1, 7, 8])], 10)
    assert batch.position.tolist() == [4, 5, 6, 7]
    assert batch.draft_token_ids.tolist() == [1, 7, 8, -1]
    per_row = [
        dict(
            zip(
                batch.counts.token_id[batch.counts.row == row].tolist(),
                batch.counts.value[batch.counts.row == row].tolist(),
                strict=True,
            )
        )
        for row in range(4)
    ]
    assert per_row[0] == {5: 0, 1: 1, 2: 1}
    assert per_row[1] == {5: 0, 1: 2, 2: 1}
    assert per_row[3] == {5: 0, 1: 2, 2: 1, 7: 1, 8: 1}
    assert batch.banned.row.tolist() == [0, 1]  # two outputs exist, four are wanted
    assert history.counts()[1].tolist() == [0, 1, 1]  # building changed nothing


def test_bad_words_look_across_output_and_drafts():
    history = TokenHistory([1, 2])
    history.extend([3, 4])
    params = SamplingParams(seed=0, bad_words=[[4, 5], [5, 6, 7], [8], [2, 3]])
    batch = SamplerBatch.build([SampleRequest(params, history, [5, 6])], 10)
    banned = [sorted(batch.bad.token_id[batch.bad.row == row].tolist()) for row in range(3)]
    assert banned == [[5, 8], [8], [7, 8]]


def test_rows_and_keys_of_several_requests():
    requests = [
        SampleRequest(SamplingParams(seed=2**64 - 1, temperature=0.5), TokenHistory([1]), [2]),
        SampleRequest(SamplingParams(seed=4, top_k=0), TokenHistory([1, 2, 3])),
    ]
    batch = SamplerBatch.build(requests, 20)
    assert batch.row_offsets.tolist() == [0, 2, 3]
    assert batch.seed.tolist() == [2**64 - 1, 2**64 - 1, 4]
    assert batch.position.tolist() == [1, 2, 3]
    assert batch.top_k.tolist() == [20, 20, 20]


def test_empty_batch():
    batch = SamplerBatch.build([], 8)
    assert batch.num_rows == 0
    assert batch.row_offsets.tolist() == [0]


def test_chosen_rows_keep_their_edits():
    rows = [
        SampleRequest(
            SamplingParams(seed=i, logit_bias={i: 1.0}, banned_token_ids=[i + 1]), TokenHistory([0])
        )
        for i in range(5)
    ]
    part = SamplerBatch.build(rows, 10).of_rows(np.array([1, 4]))
    assert part.seed.tolist() == [1, 4]
    assert part.bias.row.tolist() == [0, 1]
    assert part.bias.token_id.tolist() == [1, 4]
    assert part.banned.token_id.tolist() == [2, 5]


def test_ids_outside_the_vocabulary_are_refused():
    request = SampleRequest(SamplingParams(logit_bias={10: 1.0}), TokenHistory([0]))
    with pytest.raises(InvalidSamplingError, match="logit_bias"):
        SamplerBatch.build([request], 10)


def test_drafts_outside_the_vocabulary_are_not_counted():
    request = SampleRequest(SamplingParams(presence_penalty=1.0), TokenHistory([0]), [99, -1])
    assert set(SamplerBatch.build([request], 10).counts.token_id.tolist()) == {0}
