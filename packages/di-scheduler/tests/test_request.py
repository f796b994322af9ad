import numpy as np
import pytest

from di_scheduler import (
    CapacityError,
    DuplicateRequestError,
    InvalidRequestError,
    Request,
    Scheduler,
    SchedulerConfig,
)

CONFIG = SchedulerConfig(
    max_model_len=64, num_blocks=5, max_running=2, max_tokens_per_step=32, block_size=8,
    vocab_size=100, eos_token_ids=(1,),
)  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt_ids": []}, "empty"),
        ({"prompt_ids": [1, 100]}, r"token id 100 at prompt position 1 is outside 0 \.\. 99"),
        ({"prompt_ids": [-1]}, "token id -1"),
        ({"prompt_ids": [[1, 2]]}, r"shape \(1, 2\)"),
        ({"prompt_ids": [[1], [1, 2]]}, "flat sequence"),
        ({"prompt_ids": [0.5]}, "float64"),
        ({"prompt_ids": ["a"]}, "flat sequence"),
        ({"max_tokens": 0}, "`max_tokens` must be at least 1: 0"),
        ({"max_tokens": 1.5}, "`max_tokens` must be an integer: 1.5"),
        ({"max_tokens": True}, "`max_tokens` must be an integer: True"),
        ({"min_tokens": -1}, "`min_tokens`"),
        ({"min_tokens": 5, "max_tokens": 4}, "between 0 and `max_tokens` = 4: 5"),
        ({"stop_token_ids": (-3,)}, "`stop_token_ids`"),
        ({"stop_token_ids": ("x",)}, "`stop_token_ids`"),
        ({"priority": None}, "`priority`"),
        ({"request_id": ""}, "`request_id`"),
        ({"request_id": 7}, "`request_id`"),
        ({"cache_salt": "text"}, "`cache_salt`"),
    ],
)
def test_wrong_field_is_refused_by_name(fields, words):
    scheduler = Scheduler(CONFIG)
    with pytest.raises(InvalidRequestError, match=words):
        scheduler.add(Request(**{"request_id": "r", "prompt_ids": [2], **fields}))
    assert not scheduler.has_unfinished


@pytest.mark.parametrize(
    ("fields", "needed", "available"),
    [
        ({"prompt_ids": [2] * 64}, 65, 64),
        ({"prompt_ids": [2] * 60, "min_tokens": 5}, 65, 64),
        ({"prompt_ids": [2] * 33}, 5, 4),
        ({"prompt_ids": [2] * 30, "min_tokens": 4}, 5, 4),
        ({"prompt_ids": [2] * 30, "ignore_eos": True}, 8, 4),
        ({"prompt_ids": [2] * 30, "ignore_eos": True, "max_tokens": 4}, 5, 4),
    ],
)
def test_what_can_never_fit_is_refused_at_once_with_the_numbers(fields, needed, available):
    scheduler = Scheduler(CONFIG)
    with pytest.raises(CapacityError) as caught:
        scheduler.add(Request("r", **fields))
    assert (caught.value.needed, caught.value.available) == (needed, available)
    assert not scheduler.has_unfinished


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_ids": [2] * 32},  # the last token of one output token needs no KV
        {"prompt_ids": [2] * 30, "ignore_eos": True, "max_tokens": 3},
        {"prompt_ids": [2] * 30, "max_tokens": 1000},  # may stop early
        {"prompt_ids": np.array([2, 3], np.int64)},
        {"prompt_ids": np.array([2, 3], np.uint8)},
        {"prompt_ids": (2, 3)},
        {"prompt_ids": [0, 99], "ignore_eos": True, "max_tokens": 3, "stop_token_ids": [5]},
    ],
)
def test_what_may_fit_is_accepted(fields):
    scheduler = Scheduler(CONFIG)
    scheduler.add(Request("r", **fields))
    assert scheduler.num_waiting == 1


def test_id_in_use_is_refused_and_free_again_after_the_end():
    scheduler = Scheduler(CONFIG)
    scheduler.add(Request("r", [2]))
    with pytest.raises(DuplicateRequestError, match="'r' is already in progress"):
        scheduler.add(Request("r", [2]))
    assert scheduler.abort("r") == 1
    with pytest.raises(DuplicateRequestError, match="the end of request 'r' is not delivered"):
        scheduler.add(Request("r", [2]))
    assert [view.finish_reason for view in scheduler.flush()] == ["abort"]
    scheduler.add(Request("r", [2]))
