"""Outputs as JSON."""

import json
import math

from di_engine.llm.output_json import LOGPROB_FLOOR, output_to_dict
from di_engine.llm.outputs import (
    CompletionOutput,
    Logprob,
    RequestError,
    RequestMetrics,
    RequestOutput,
)


def test_logprobs_become_lists_and_minus_infinity_a_number() -> None:
    entry = {5: Logprob(-math.inf, None, "x"), 7: Logprob(-0.5, 1, "y")}
    output = RequestOutput(
        request_id="0",
        prompt="p",
        prompt_token_ids=[1, 5],
        outputs=[CompletionOutput(0, "x", [5], -math.inf, [entry], "stop", "s")],
        metrics=RequestMetrics(0.0),
        prompt_logprobs=[None, entry],
    )
    values = json.loads(json.dumps(output_to_dict(output), allow_nan=False))
    listed = values["outputs"][0]["logprobs"][0]
    assert [item["token_id"] for item in listed] == [5, 7]
    assert listed[0]["logprob"] == LOGPROB_FLOOR
    assert values["prompt_logprobs"][0] is None
    assert values["outputs"][0]["cumulative_logprob"] == LOGPROB_FLOOR
    assert "error" not in values


def test_an_error_is_part_of_the_output() -> None:
    output = RequestOutput(
        request_id="0",
        prompt=None,
        prompt_token_ids=[],
        outputs=[],
        metrics=RequestMetrics(0.0),
        error=RequestError("invalid_request", "what", "param"),
    )
    assert output_to_dict(output)["error"] == {
        "kind": "invalid_request",
        "message": "what",
        "param": "param",
    }
