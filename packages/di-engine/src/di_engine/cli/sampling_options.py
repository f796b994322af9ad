"""Command line flags of the sampling parameters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import typer

from di_engine.cli.options import add_options, option
from di_engine.cli.schema_options import SCHEMA_FLAGS, read_schema

__all__ = ["with_sampling_options"]

_FLAGS: list[tuple[str, Any, Any, str, str]] = [
    ("max_tokens", int, 64, "--max-tokens", "Most tokens to generate."),
    ("min_tokens", int, 0, "--min-tokens", "Tokens before the text may end."),
    ("n", int, 1, "-n", "Completions per prompt."),
    ("temperature", float, 1.0, "--temperature", "Divides the logits; 0 is greedy."),
    ("top_p", float, 1.0, "--top-p", "Mass of the tokens kept; 1 keeps all."),
    ("top_k", int, -1, "--top-k", "Number of tokens kept; -1 keeps all."),
    ("min_p", float, 0.0, "--min-p", "Keep tokens this fraction as likely as the likeliest."),
    ("presence_penalty", float, 0.0, "--presence-penalty", "From -2 to 2."),
    ("frequency_penalty", float, 0.0, "--frequency-penalty", "From -2 to 2."),
    ("repetition_penalty", float, 1.0, "--repetition-penalty", "Above 0; 1 does nothing."),
    ("stop", list[str] | None, None, "--stop", "String that ends the text; may be repeated."),
    (
        "stop_token_ids",
        list[int] | None,
        None,
        "--stop-token-id",
        "Token id that ends the text; may be repeated.",
    ),
    (
        "banned_token_ids",
        list[int] | None,
        None,
        "--banned-token-id",
        "Token id never generated; may be repeated.",
    ),
    (
        "logit_bias",
        list[str] | None,
        None,
        "--logit-bias",
        "TOKEN_ID=NUMBER to add to a logit; may be repeated.",
    ),
    (
        "include_stop_str_in_output",
        bool,
        False,
        "--include-stop-str-in-output",
        "Show the stop string too.",
    ),
    ("ignore_eos", bool, False, "--ignore-eos", "Go on after end-of-sequence."),
    (
        "skip_special_tokens",
        bool,
        True,
        "--skip-special-tokens/--show-special-tokens",
        "Leave special tokens out of the text.",
    ),
    ("logprobs", int | None, None, "--logprobs", "Alternatives per token, in JSON output."),
    ("prompt_logprobs", int | None, None, "--prompt-logprobs", "The same for prompt tokens."),
]


def with_sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the flags to a command, which is called with `sampling`: fields of `SamplingParams`."""
    options = [
        option(name, annotation, default, flag=flag, text=text, panel="sampling")
        for name, annotation, default, flag, text in _FLAGS + SCHEMA_FLAGS
    ]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        sampling = {name: values.pop(name) for name, *_ in _FLAGS}
        for name in ("stop", "stop_token_ids", "banned_token_ids"):
            sampling[name] = sampling[name] or None
        sampling["output_schema"] = read_schema(*(values.pop(name) for name, *_ in SCHEMA_FLAGS))
        sampling["logit_bias"] = _parse_bias(sampling["logit_bias"])
        command(**values, sampling=sampling)

    return add_options(run, inspect.signature(command, eval_str=True), "sampling", options)


def _parse_bias(entries: list[str] | None) -> dict[int, float] | None:
    bias = {}
    for entry in entries or ():
        token_id, _, value = entry.partition("=")
        try:
            bias[int(token_id)] = float(value)
        except ValueError:
            raise typer.BadParameter(
                f"must be TOKEN_ID=NUMBER: got {entry!r}", param_hint="--logit-bias"
            ) from None
    return bias or None
