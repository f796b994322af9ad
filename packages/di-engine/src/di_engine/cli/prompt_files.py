"""Prompts from arguments, files and standard input."""

from __future__ import annotations

import json
import select
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from di_engine.errors import InvalidRequestError

__all__ = ["CommandRequest", "read_requests", "read_text", "sampling_from_json"]


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """One request of a command line.

    Attributes:
        prompt: A prompt in any form that `LLM.generate` takes, or the error that stands for it.
        sampling: Fields of `SamplingParams`.
    """

    prompt: Any
    sampling: dict[str, Any]


def read_requests(
    prompts: list[str], input_file: Path | None, sampling: dict[str, Any]
) -> list[CommandRequest]:
    """Collects the requests of a command.

    Args:
        prompts: Prompts given as arguments; `-` is standard input.
        input_file: One prompt, or one JSON value per line if it ends in `.jsonl`; `-` is standard
            input.
        sampling: Sampling parameters from flags; a JSON object may override each.

    Returns:
        Requests in order, none if nothing was given at all.
    """
    if prompts and input_file is not None:
        raise typer.BadParameter("give prompts or `--input`, not both", param_hint="--input")
    if input_file is not None:
        text = read_text(input_file, "--input")
        if input_file.suffix == ".jsonl":
            lines = enumerate(text.split("\n"), start=1)
            return [_json_request(line, number, sampling) for number, line in lines if line.strip()]
        return [CommandRequest(text.removesuffix("\n"), sampling)]
    if not prompts and _has_waiting_input() and (text := sys.stdin.read()):
        return [CommandRequest(text.removesuffix("\n"), sampling)]
    return [
        CommandRequest(sys.stdin.read().removesuffix("\n") if p == "-" else p, sampling)
        for p in prompts
    ]


def read_text(path: Path, flag: str) -> str:
    """Reads a file that `flag` named; `-` is standard input.

    Raises:
        typer.BadParameter: The file cannot be read, or is not UTF-8.
    """
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(
            f"cannot read `{path}`: {error.strerror}", param_hint=flag
        ) from None
    except UnicodeDecodeError as error:
        raise typer.BadParameter(
            f"`{path}` is not UTF-8: byte {error.start}", param_hint=flag
        ) from None


def _json_request(line: str, number: int, sampling: dict[str, Any]) -> CommandRequest:
    """Reads one line. A line that is no request fails alone, in its place."""
    try:
        return _from_json(line, number, sampling)
    except InvalidRequestError as error:
        return CommandRequest(error, sampling)


def _from_json(line: str, number: int, sampling: dict[str, Any]) -> CommandRequest:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidRequestError(f"line {number} is not JSON: {error}", param="prompt") from None
    if isinstance(value, str | list):
        return CommandRequest(value, sampling)
    if not isinstance(value, dict):
        raise InvalidRequestError(
            f"line {number} must be an object, text or a list of token ids: got {line.strip()}",
            param="prompt",
        )
    prompt = {key: value.pop(key) for key in ("prompt", "prompt_token_ids") if key in value}
    if not prompt:
        raise InvalidRequestError(
            f"line {number} has neither `prompt` nor `prompt_token_ids`: it has "
            f"{', '.join(f'`{key}`' for key in value) or 'nothing'}",
            param="prompt",
        )
    return CommandRequest(prompt, sampling | sampling_from_json(value))


def sampling_from_json(values: dict[str, Any]) -> dict[str, Any]:
    """Sampling parameters as a JSON object has them; token ids of `logit_bias` become integers."""
    bias = values.get("logit_bias")
    if not isinstance(bias, dict):
        return values
    ids = {int(key) if key.isdecimal() else key: value for key, value in bias.items()}
    return values | {"logit_bias": ids}


def _has_waiting_input() -> bool:
    """Whether something was piped in. An idle pipe is not waited for: `-` does that."""
    try:
        return not sys.stdin.isatty() and bool(select.select([sys.stdin], [], [], 0)[0])
    except (ValueError, OSError):
        return False
