"""`di generate`: prompts in, text or JSON lines out."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

import typer

from di_engine.cli.app import app
from di_engine.cli.console import batch_progress, load_progress, note, stderr
from di_engine.cli.engine_options import with_engine_options
from di_engine.cli.prompt_files import CommandRequest, read_requests
from di_engine.cli.sampling_options import with_sampling_options
from di_engine.config import EngineConfig
from di_engine.llm.llm import LLM
from di_engine.llm.output_json import output_to_dict
from di_engine.llm.outputs import RequestError

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
    output_format: Annotated[
        Literal["text", "jsonl"],
        typer.Option("--output-format", help="Text alone, or one JSON object per prompt."),
    ] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="Same as --output-format jsonl.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no notes.")] = False,
    *,
    sampling: dict[str, Any],
    config: EngineConfig,
) -> None:
    """Generate text from prompts given as arguments, in a file, or on standard input.

    The text goes to standard output, everything else to standard error. The first Ctrl-C ends all
    requests and prints what they have, the second one kills.
    """
    requests = read_requests(prompts or [], input_file, sampling)
    if not requests:
        note(f"no prompt given, using {_EXAMPLE_PROMPT!r}", quiet)
        requests = [CommandRequest(_EXAMPLE_PROMPT, sampling)]
    note(f"loading `{config.model.path}`", quiet)
    with load_progress(quiet) as progress:
        llm = LLM(config, load_progress=progress)
    with llm, _first_interrupt_ends(llm) as was_interrupted:
        wants_json = as_json or output_format == "jsonl"
        if len(requests) == 1 and requests[0].sampling.get("n") == 1 and not wants_json:
            errors = _stream_text(llm, requests[0])
        else:
            errors = _write_outputs(llm, requests, wants_json, quiet)
    for index, error in errors:
        stderr.print(f"prompt {index}: {error.message}", markup=False)
    raise typer.Exit(_exit_code([error for _, error in errors], was_interrupted()))


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
            values = {"prompt_index": index, **output_to_dict(output)}
            sys.stdout.write(json.dumps(values, ensure_ascii=False) + "\n")
        else:
            sys.stdout.writelines(completion.text + "\n" for completion in output.outputs)
    return [(index, o.error) for index, o in enumerate(outputs) if o.error is not None]


class _Interrupt:
    """Answers Ctrl-C: the first one ends the requests, the second one kills."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self.came = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        """Runs as a signal handler."""
        self.came = True
        self._llm.interrupt()
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _first_interrupt_ends(llm: LLM) -> Iterator[Any]:
    interrupt = _Interrupt(llm)
    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield lambda: interrupt.came
    finally:
        signal.signal(signal.SIGINT, previous)


def _exit_code(errors: list[RequestError], was_interrupted: bool) -> int:
    if was_interrupted:
        return 1
    if not errors:
        return 0
    return 2 if all(error.kind == "invalid_request" for error in errors) else 1
