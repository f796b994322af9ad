import json

import pytest

from di_spec.__main__ import main
from di_spec.latency import LatencyTable
from di_spec.simulation import (
    SimulatedLoad,
    acceptance_by_rule,
    compare_policies,
    simulate,
    staircase,
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_adaptive_never_loses_and_wins_under_load(seed):
    rows = compare_policies(seed=seed)
    gains = {r["requests"]: r["gain_over_best_fixed"] for r in rows if r["policy"] == "adaptive"}
    assert gains[1] > 0.99
    assert gains[8] > 0.99
    assert gains[16] > 1.0
    assert gains[60] > 1.05
    adaptive = {r["requests"]: r for r in rows if r["policy"] == "adaptive"}
    per_request = [adaptive[n]["verified_per_step"] / n for n in (8, 16, 60)]
    assert per_request == sorted(per_request, reverse=True)  # fewer drafts each as load grows


def test_same_seed_same_run():
    load, table = SimulatedLoad(3, horizon_s=0.5), staircase(18)
    assert simulate(load, "adaptive", table) == simulate(load, "adaptive", table)


def test_costly_rows_leave_no_drafts():
    table = LatencyTable(tuple(range(1, 13)), tuple(0.01 * n for n in range(1, 13)))
    load = SimulatedLoad(2, horizon_s=2.0)
    result = simulate(load, "adaptive", table)
    assert result["verified_per_step"] < 2.5
    assert result["tokens_per_s"] > simulate(load, 5, table)["tokens_per_s"]


def test_command_prints_a_table_or_json(capsys):
    assert main(["simulate", "--requests", "1"]) == 0
    assert "adaptive" in capsys.readouterr().out
    assert main(["simulate", "--requests", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["policy"] for row in rows} == {"0", "3", "5", "adaptive"}
    with pytest.raises(SystemExit) as caught:
        main(["simulate", "--requests", "0"])
    assert caught.value.code == 2


def test_coupling_accepts_a_little_less_than_the_ratio_test(capsys):
    rows = acceptance_by_rule(100, num_pairs=20)
    for row in rows:
        assert row["ratio"] / (2 - row["ratio"]) - 1e-9 <= row["coupled"] <= row["ratio"] + 1e-9
        assert row["independent"] < row["coupled"]
    assert main(["acceptance", "--vocab", "50"]) == 0
    assert "coupled" in capsys.readouterr().out
    assert main(["acceptance", "--vocab", "50", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(rows)
