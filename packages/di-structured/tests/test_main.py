"""The benchmark command."""

import json

import pytest

from di_structured.__main__ import main


def test_the_benchmark_reports_both_sides(capsys):
    arguments = "bench --json --requests 3 --drafts 2 --vocab-size 1500 --repeats 1 --threads 1 2"
    assert main(arguments.split()) == 0
    report = json.loads(capsys.readouterr().out)
    assert {row["workload"] for row in report["results"]} == {
        "json_schema",
        "json_object",
        "regex",
        "choice",
    }
    for row in report["results"]:
        assert row["rows"] >= 3
        for clock in ("wall", "processor"):
            assert row[clock]["ratio"] > 0
            assert row[clock]["us_per_row"]["min"] <= row[clock]["us_per_row"]["median"]


def test_the_table_names_the_workload(capsys):
    arguments = "bench --requests 2 --drafts 1 --vocab-size 1500 --repeats 1 --workloads choice"
    assert main(arguments.split()) == 0
    assert "choice" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["bench", "--requests", "0"], ["bench", "--workloads", "x"]])
def test_wrong_use_ends_with_two(arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
