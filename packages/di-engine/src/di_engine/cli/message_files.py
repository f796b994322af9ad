"""Conversations from JSON files, for `--messages`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from di_engine.cli.prompt_files import CommandRequest, read_text, sampling_from_json
from di_engine.errors import InvalidRequestError
from di_engine.llm.chat import ChatOptions, ChatPrompt

__all__ = ["read_chats"]

_FLAG = "--messages"
_OPTIONS = ("reasoning_effort", "tool_choice", "response_format")


def read_chats(path: Path, sampling: dict[str, Any]) -> list[CommandRequest]:
    """Reads the conversations of a file.

    Args:
        path: One JSON value, or one per line if it ends in `.jsonl`; `-` is standard input. A value
            is a list of messages, or an object with `messages`.
        sampling: Sampling parameters from flags; an object may override each.

    Returns:
        Requests in order, each with a `ChatPrompt`, or the error of its line.

    Raises:
        typer.BadParameter: The file cannot be read, holds no conversation, or, not being
            `.jsonl`, its value is none.
    """
    text = read_text(path, _FLAG)
    try:
        if path.suffix != ".jsonl":
            return [_chat(text, "the file", sampling)]
    except InvalidRequestError as error:
        raise typer.BadParameter(f"`{path}`: {error}", param_hint=_FLAG) from None
    lines = [(n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise typer.BadParameter(f"`{path}` holds no conversation", param_hint=_FLAG)
    return [_line(line, f"line {number}", sampling) for number, line in lines]


def _line(text: str, where: str, sampling: dict[str, Any]) -> CommandRequest:
    """Reads one line. A line that is no conversation fails alone, in its place."""
    try:
        return _chat(text, where, sampling)
    except InvalidRequestError as error:
        return CommandRequest(error, sampling)


def _chat(text: str, where: str, sampling: dict[str, Any]) -> CommandRequest:
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"{where} is not JSON: {error}", param="messages") from None
    if isinstance(value, list):
        return CommandRequest(ChatPrompt(value), sampling)
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        raise InvalidRequestError(
            f"{where} must be a list of messages, or an object with the list `messages`",
            param="messages",
        )
    options: dict[str, Any] = {name: value.pop(name) for name in _OPTIONS if name in value}
    if "thinking" in value:
        options["thinking"] = _thinking(value.pop("thinking"), where)
    prompt = ChatPrompt(value.pop("messages"), value.pop("tools", None), ChatOptions(**options))
    return CommandRequest(prompt, sampling | sampling_from_json(value))


def _thinking(value: Any, where: str) -> bool:
    """Reads `thinking`, a truth value or as in Chat Completions."""
    if isinstance(value, bool):
        return value
    kinds = {"enabled": True, "adaptive": True, "disabled": False}
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidRequestError(
            f"{where}: `thinking` must be true, false or an object whose `type` is one of "
            f"{', '.join(kinds)}: got {json.dumps(value)}",
            param="thinking",
        )
    return kinds[kind]
