import pytest

from di_scheduler import ConfigError, SchedulerConfig


def test_every_problem_is_listed_at_once():
    with pytest.raises(ConfigError) as caught:
        SchedulerConfig(
            max_model_len=1, num_blocks=0, max_running=8, max_tokens_per_step=4, policy="fair",
            prefill_usage_limit=0.0, num_snapshot_slots=2,
        )  # fmt: skip
    text = str(caught.value)
    assert len(caught.value.problems) == 6
    for words in (
        "`max_model_len` must be at least 2: 1",
        "`num_blocks` must be at least 2: 0",
        "`policy` must be one of mixed, prefill_first, decode_first: 'fair'",
        "`prefill_usage_limit` must be in (0, 1]: 0.0",
        "max_running * (1 + num_draft_tokens) = 8: 4",
        "`num_snapshot_slots` needs `prefix_cache`",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"chunked_prefill": False}, "without `chunked_prefill`"),
        ({"num_state_slots": 8}, "`num_state_slots` must be at least max_running \\+ 1 = 9"),
        ({"role": "decode"}, "`role` = decode needs `preemption` = abort"),
        ({"num_draft_tokens": 2}, "= 24: 16"),
        ({"vocab_size": 0}, "`vocab_size`"),
        ({"keep_tokens": 128}, "`keep_tokens` must be 0 or at least .* = 129: 128"),
    ],
)
def test_contradictions_name_both_fields(fields, words):
    with pytest.raises(ConfigError, match=words):
        SchedulerConfig(
            max_model_len=100, num_blocks=9, max_running=8, max_tokens_per_step=16, **fields
        )


def test_exact_replay_is_one_window_less_one_per_layer():
    sizes = {"max_model_len": 9, "num_blocks": 9, "window_size": 128}
    exact = SchedulerConfig(**sizes, num_window_layers=40)
    assert exact.replay_tokens == 5080
    assert SchedulerConfig(**sizes, num_window_layers=20).replay_tokens == 2540
    near = SchedulerConfig(**sizes, num_window_layers=40, replay="approximate")
    assert near.replay_tokens == 128
    assert SchedulerConfig(**sizes).replay_tokens == 0
