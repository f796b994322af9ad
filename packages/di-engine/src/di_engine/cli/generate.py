"""`di generate`: prompts in, text or JSON lines out."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

import typer

from di_engine.cli.app import app
from di_engine.cli.console import batch_progress, load_progress, note, stderr
from di_engine.cli.engine_options import with_engine_options
from di_engine.cli.message_files import read_chats
from di_engine.cli.prompt_files import CommandRequest, read_requests
from di_engine.cli.sampling_options import with_sampling_options
from di_engine.config import EngineConfig
from di_engine.llm.chat import import_recipe
from di_engine.llm.llm import LLM
from di_engine.llm.output_json import output_to_dict
from di_engine.llm.output_schema import import_structured
from di_engine.llm.outputs import ChatMessage, RequestError, RequestOutput
from di_engine.llm.structured_check import check_structured

__all__ = ["generate"]

_EXAMPLE_PROMPT = "Once upon a time"


@app.command()
@with_engine_options
@with_sampling_options
def generate(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help="Prompts; `-` reads one from standard input.", show_default=False),
    ] = None,
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            help="File to read: one prompt, or if its name ends in .jsonl one JSON object per line "
            "with `prompt` or `prompt_token_ids` and any sampling parameter. `-` is stdin.",
            show_default=False,
        ),
    ] = None,
    messages_file: Annotated[
        Path | None,
        typer.Option(
            "--messages",
            help="JSON file with chat messages: a list of them, or an object with `messages` and "
            "any of `tools`, `tool_choice`, `response_format`, `thinking`, `reasoning_effort` and "
            "the sampling parameters; in .jsonl one per line. `-` is stdin. Needs deepseek-recipe.",
            show_default=False,
        ),
    ] = None,
    output_format: Annotated[
        Literal["text", "jsonl"],
        typer.Option("--output-format", help="Text alone, or one JSON object per prompt."),
    ] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="Same as --output-format jsonl.")] = False,
    checks_structured: Annotated[
        bool,
        typer.Option(
            "--check-structured",
            help="Generate a regex, a JSON, an EBNF and a free output for each prompt, in one "
            "batch, and validate them; exit code 1 if one is invalid.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no notes.")] = False,
    *,
    sampling: dict[str, Any],
    config: EngineConfig,
) -> None:
    """Generate text from prompts given as arguments, in a file, or on standard input.

    The text goes to standard output, everything else to standard error. With `--messages` the
    text is the answer, then one JSON object per tool call; reasoning is in the JSON output. The
    first Ctrl-C or SIGTERM ends all requests and prints what they have, the second one kills.
    """
    if checks_structured:
        if messages_file is not None:
            raise typer.BadParameter("takes prompts, not messages", param_hint="--check-structured")
        import_structured()
    if messages_file is None:
        requests = read_requests(prompts or [], input_file, sampling)
    elif prompts or input_file is not None:
        raise typer.BadParameter("give messages or prompts, not both", param_hint="--messages")
    else:
        import_recipe()
        requests = read_chats(messages_file, sampling)
    if not requests:
        note(f"no prompt given, using {_EXAMPLE_PROMPT!r}", quiet)
        requests = [CommandRequest(_EXAMPLE_PROMPT, sampling)]
    note(f"loading `{config.model.path}`", quiet)
    with load_progress(quiet) as progress:
        llm = LLM(config, load_progress=progress)
    with llm, _first_interrupt_ends(llm) as was_interrupted:
        wants_json = as_json or output_format == "jsonl"
        if checks_structured:
            raise typer.Exit(_check_structured(llm, requests, sampling, wants_json))
        if messages_file is not None:
            errors = _write_messages(llm, requests, wants_json, quiet)
        elif len(requests) == 1 and requests[0].sampling.get("n") == 1 and not wants_json:
            errors = _stream_text(llm, requests[0])
        else:
            errors = _write_outputs(llm, requests, wants_json, quiet)
    for index, error in errors:
        stderr.print(f"prompt {index}: {error.message}", markup=False)
    raise typer.Exit(_exit_code([error for _, error in errors], was_interrupted()))


def _check_structured(
    llm: LLM, requests: list[CommandRequest], sampling: dict[str, Any], as_json: bool
) -> int:
    """Prints what the check made of each output; returns the exit code."""
    checked = check_structured(llm, [request.prompt for request in requests], sampling)
    for output in checked:
        if as_json:
            sys.stdout.write(json.dumps(asdict(output), ensure_ascii=False) + "\n")
        else:
            verdict = "valid" if output.problem is None else output.problem
            sys.stdout.write(f"{output.kind:5} {verdict}: {output.text!r}\n")
    return 1 if any(output.problem is not None for output in checked) else 0


_Errors = list[tuple[int, RequestError]]


def _stream_text(llm: LLM, request: CommandRequest) -> _Errors:
    """Prints one completion while it is made."""
    errors = []
    for delta in llm.stream([request.prompt], [request.sampling]):
        sys.stdout.write(delta.text)
        sys.stdout.flush()
        if delta.error is not None:
            errors.append((0, delta.error))
    sys.stdout.write("\n")
    return errors


def _write_outputs(llm: LLM, requests: list[CommandRequest], as_json: bool, quiet: bool) -> _Errors:
    """Prints the outputs of all prompts in order: JSON objects, or each text and a newline."""
    with batch_progress(quiet) as progress:
        outputs = llm.generate(
            [request.prompt for request in requests],
            [request.sampling for request in requests],
            progress=progress,
        )
    for index, output in enumerate(outputs):
        if as_json:
            _write_json(index, output)
        else:
            sys.stdout.writelines(completion.text + "\n" for completion in output.outputs)
    return [(index, o.error) for index, o in enumerate(outputs) if o.error is not None]


def _write_messages(llm: LLM, chats: list[CommandRequest], as_json: bool, quiet: bool) -> _Errors:
    """Prints the answers to all conversations in order, or JSON objects that hold them."""
    with batch_progress(quiet) as progress:
        outputs = llm.chat(
            [chat.prompt for chat in chats],
            sampling_params=[chat.sampling for chat in chats],
            progress=progress,
        )
    for index, output in enumerate(outputs):
        if as_json:
            _write_json(index, output)
            continue
        for completion in output.outputs:
            if completion.message is not None:
                _write_message(index, completion.message)
    return [(index, o.error) for index, o in enumerate(outputs) if o.error is not None]


def _write_message(index: int, message: ChatMessage) -> None:
    """Prints an answer and its calls; calls that must not be run are named on standard error."""
    if message.content or not message.tool_calls:
        sys.stdout.write(message.content + "\n")
    for call in message.tool_calls:
        sys.stdout.write(json.dumps(call["function"], ensure_ascii=False) + "\n")
    for bad in message.malformed_tool_calls:
        stderr.print(
            f"prompt {index}: malformed call of `{bad['name']}`: {bad['reason']}", markup=False
        )


def _write_json(index: int, output: RequestOutput) -> None:
    values = {"prompt_index": index, **output_to_dict(output)}
    sys.stdout.write(json.dumps(values, ensure_ascii=False) + "\n")


_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Interrupt:
    """Answers Ctrl-C and SIGTERM: the first one ends the requests, the second one kills."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self.came = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        """Runs as a signal handler."""
        self.came = True
        self._llm.interrupt()
        for number in _ENDING_SIGNALS:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def _first_interrupt_ends(llm: LLM) -> Iterator[Any]:
    interrupt = _Interrupt(llm)
    previous = {number: signal.signal(number, interrupt) for number in _ENDING_SIGNALS}
    try:
        yield lambda: interrupt.came
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _exit_code(errors: list[RequestError], was_interrupted: bool) -> int:
    if was_interrupted:
        return 1
    if not errors:
        return 0
    return 2 if all(error.kind == "invalid_request" for error in errors) else 1
