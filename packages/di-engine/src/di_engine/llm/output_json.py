"""Outputs as plain values for JSON."""

from __future__ import annotations

from typing import Any

from di_engine.llm.outputs import RequestOutput, TokenLogprobs

__all__ = ["LOGPROB_FLOOR", "output_to_dict"]

LOGPROB_FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot write (the floor of DeepInfer 0.1.0)."""


def output_to_dict(output: RequestOutput) -> dict[str, Any]:
    """A finished request as JSON values.

    A message, log-probabilities and an error are left out where there are none.
    """
    result: dict[str, Any] = {
        "request_id": output.request_id,
        "prompt": output.prompt,
        "prompt_token_ids": output.prompt_token_ids,
        "outputs": [],
    }
    for completion in output.outputs:
        entry: dict[str, Any] = {
            "index": completion.index,
            "text": completion.text,
            "token_ids": completion.token_ids,
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        if (message := completion.message) is not None:
            entry["message"] = message.to_dict()
            if message.malformed_tool_calls:
                entry["malformed_tool_calls"] = message.malformed_tool_calls
        if completion.logprobs is not None:
            entry["cumulative_logprob"] = max(completion.cumulative_logprob or 0.0, LOGPROB_FLOOR)
            entry["logprobs"] = [_logprobs_to_list(position) for position in completion.logprobs]
        result["outputs"].append(entry)
    if output.prompt_logprobs is not None:
        result["prompt_logprobs"] = [
            None if position is None else _logprobs_to_list(position)
            for position in output.prompt_logprobs
        ]
    if output.error is not None:
        error = output.error
        result["error"] = {"kind": error.kind, "message": error.message, "param": error.param}
    return result


def _logprobs_to_list(position: TokenLogprobs) -> list[dict[str, Any]]:
    """The token itself first, then the most likely ones."""
    return [
        {
            "token_id": token_id,
            "logprob": max(entry.logprob, LOGPROB_FLOOR),
            "rank": entry.rank,
            "token": entry.decoded_token,
        }
        for token_id, entry in position.items()
    ]
