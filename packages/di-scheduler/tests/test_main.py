import json

import pytest

from di_scheduler.__main__ import main


def test_bench_reports_both_loops_as_json(capsys):
    assert main(["bench", "--json", "--requests", "8", "--steps", "20"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [result["overlapped"] for result in results] == [False, True]
    for result in results:
        assert result["num_requests"] == 8
        assert result["step_us"] > 0
        assert result["blocks_hashed_per_step"] > 0


@pytest.mark.slow
def test_trace_plays_the_same_prompts_in_every_mode_and_snapshots_come_near_the_ideal(capsys):
    assert main(["trace", "--json", "--sessions", "12", "--turns", "4"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert len({result["prompt_tokens"] for result in results}) == 1
    assert len({result["ideal_tokens"] for result in results}) == 1
    shares = {result["mode"]: result["share_of_ideal"] for result in results}
    assert shares["no cache"] == 0.0
    assert shares["snapshots"] >= 0.94
    assert shares["exact replay"] < shares["snapshots"]


def test_unknown_command_is_wrong_use(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["speed"])
    assert caught.value.code == 2
    assert "invalid choice: 'speed'" in capsys.readouterr().err
