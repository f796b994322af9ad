"""Whether a request's tokens depend on anything but the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from di_engine.bench.variants import variant
from di_engine.config import EngineConfig
from di_engine.errors import InvalidRequestError
from di_engine.llm.llm import LLM, ParamsLike

__all__ = ["Difference", "check_determinism", "describe"]

_REBUILT: dict[str, dict[str, Any]] = {
    "re-chunked": {"max_tokens_per_step": 32, "max_running": 4},
    "synchronous": {"overlap": False},
}
"""Runs that need an engine of their own, and what is different in it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token in which a run differs from the first run.

    Attributes:
        run: Which run.
        prompt_index: Of which prompt.
        position: Number of the output token, from 0.
        expected: Token id of the first run; None if it has fewer tokens.
        found: Token id of this run; None if it has fewer tokens.
    """

    run: str
    prompt_index: int
    position: int
    expected: int | None
    found: int | None


def check_determinism(
    config: EngineConfig, prompts: Sequence[Any], params: Sequence[ParamsLike]
) -> dict[str, Any]:
    """Runs every prompt alone, again (warm), in company, re-chunked, and in other engines.

    The first run is each prompt alone in an engine without a prefix cache.

    Args:
        config: The engine; `deterministic` and the length of prompts are up to the caller.
        prompts: Texts or token id lists.
        params: One for each prompt; give a seed unless it is greedy.

    Returns:
        `runs` that were made, `num_prompts`, `num_tokens` of one run, and `differences`, the first
        one of each run and prompt.

    Raises:
        InvalidRequestError: If a prompt cannot be served, or none is given.
    """
    if not prompts:
        raise InvalidRequestError("no prompt to compare: give at least one", param="prompts")
    with LLM(variant(config, prefix_cache=False)) as llm:
        expected = _alone(llm, prompts, params)
    differences: list[Difference] = []
    runs = ["alone"]

    def compare(run: str, found: list[list[int]]) -> None:
        runs.append(run)
        for index, (one, other) in enumerate(zip(expected, found, strict=True)):
            difference = _first_difference(run, index, one, other)
            if difference is not None:
                differences.append(difference)

    with LLM(variant(config, prefix_cache=True)) as llm:
        compare("cold", _alone(llm, prompts, params))
        compare("warm", _alone(llm, prompts, params))
        compare("in company", _together(llm, prompts, params))
        compare("in company, backwards", _together(llm, prompts[::-1], params[::-1])[::-1])
    for run, changes in _REBUILT.items():
        with LLM(variant(config, **changes)) as llm:
            compare(run, _together(llm, prompts, params))
    return {
        "benchmark": "determinism",
        "deterministic": config.deterministic,
        "num_prompts": len(prompts),
        "num_tokens": sum(map(len, expected)),
        "runs": runs,
        "differences": [asdict(difference) for difference in differences],
    }


def _alone(llm: LLM, prompts: Sequence[Any], params: Sequence[ParamsLike]) -> list[list[int]]:
    pairs = zip(prompts, params, strict=True)
    return [_together(llm, [prompt], [one])[0] for prompt, one in pairs]


def _together(llm: LLM, prompts: Sequence[Any], params: Sequence[ParamsLike]) -> list[list[int]]:
    outputs = llm.generate(list(prompts), list(params))
    for output in outputs:
        if output.error is not None:
            raise InvalidRequestError(f"a prompt cannot be served: {output.error}", param="prompts")
    return [output.outputs[0].token_ids for output in outputs]


def _first_difference(
    run: str, index: int, expected: list[int], found: list[int]
) -> Difference | None:
    for position in range(max(len(expected), len(found))):
        one = expected[position] if position < len(expected) else None
        other = found[position] if position < len(found) else None
        if one != other:
            return Difference(run, index, position, one, other)
    return None


def describe(report: Mapping[str, Any]) -> str:
    """The report in a sentence."""
    where = (
        f"{report['num_prompts']} prompts, {report['num_tokens']} tokens, "
        f"{', '.join(report['runs'])}"
    )
    if not report["differences"]:
        return f"no difference: {where}"
    first = report["differences"][0]
    return (
        f"first difference: token {first['position']} of prompt {first['prompt_index']}, run "
        f"`{first['run']}`: {first['found']} instead of {first['expected']} ({where})"
    )
