"""Command line: requests to prompts, output to responses, and what a request became.

Input is read from a file or from standard input, results go to standard output. Exit status: 0
good, 1 the request or output was refused, 2 wrong use.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from deepseek_recipe import _recipe as recipe

PROTOCOLS: dict[str, tuple[Any, Any]] = {
    "chat": (recipe.ChatCompletionRequest, recipe.ChatCompletionResponse),
    "responses": (recipe.ResponsesRequest, recipe.ResponsesResponse),
    "messages": (recipe.MessagesRequest, recipe.MessagesResponse),
}
FINISH_REASONS = {
    "stop": recipe.InferenceFinishReason.Stop,
    "length": recipe.InferenceFinishReason.Length,
    "content_filter": recipe.InferenceFinishReason.ContentFilter,
}


def protocol_of(body: Any) -> str:
    """Guess the protocol of a body by the members that only one of them has."""
    if "input" in body or "instructions" in body:
        return "responses"
    tools = body.get("tools")
    listed = tools if isinstance(tools, list) else []
    has_schema = any("input_schema" in tool for tool in listed if isinstance(tool, dict))
    is_messages = "system" in body or has_schema
    return "messages" if is_messages else "chat"


def convert(arguments: argparse.Namespace) -> tuple[str, Any]:
    """Convert the request named on the command line; returns protocol and converted request."""
    text = read(arguments.request)
    protocol = arguments.protocol
    if protocol == "auto":
        body = json.loads(text)
        protocol = protocol_of(body) if isinstance(body, dict) else "chat"
    options = recipe.ConversionOptions(compat=arguments.compat)
    return protocol, PROTOCOLS[protocol][0](text).convert(options)


def read(path: str) -> str:
    """Text of a file, or of standard input for `-`."""
    return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")


def encoder(request: Any, version: str) -> recipe.DeepseekV4Encoding | recipe.DeepseekV41Encoding:
    """The encoder of the asked version, by default that of the request's model."""
    is_v4 = version == "v4" or (
        version == "auto" and request.model_version == recipe.ModelVersion.DeepseekV4Pro
    )
    return recipe.DeepseekV4Encoding() if is_v4 else recipe.DeepseekV41Encoding()


def render(arguments: argparse.Namespace) -> str:
    """Prompt of a request; with `--mark`, special tokens that the renderer wrote stand in `⟦⟧`."""
    _, request = convert(arguments)
    prompt = encoder(request, arguments.version).render_conversation(
        request.conversation, strict_markers=arguments.strict_markers
    )
    if not arguments.mark:
        return prompt.prompt
    pieces, position = [], 0
    for start, end in prompt.special_ranges:
        pieces += [prompt.prompt[position:start], "⟦", prompt.prompt[start:end], "⟧"]
        position = end
    return "".join([*pieces, prompt.prompt[position:]])


def parse(arguments: argparse.Namespace) -> str:
    """Response to a request whose output is given."""
    protocol, request = convert(arguments)
    request_class, response_class = PROTOCOLS[protocol]
    generator = request_class.chunk_generator(request, "resp-local", request_class.__name__)
    processor = recipe.StreamProcessor(generator, request.parsing_options)
    events = processor.push(recipe.InferenceChunk.text(read(arguments.output)))
    if not processor.finished:
        events += processor.push(recipe.InferenceChunk.finish(FINISH_REASONS[arguments.finish]))
    if arguments.events:
        return "\n".join(event.to_json() for event in events)
    response = response_class("resp-local", request_class.__name__, int(time.time()), 0, 0)
    for event in events:
        response.accumulate(event)
    return indented(json.loads(response.to_json()))


def explain(arguments: argparse.Namespace) -> str:
    """What a request became: messages, tools, sampling, constraint, parsing, what was dropped."""
    protocol, request = convert(arguments)
    conversation, inference, parsing = (
        request.conversation,
        request.inference_options,
        request.parsing_options,
    )
    constraint = inference.output_constraint
    names = (
        "max_tokens",
        "temperature",
        "top_p",
        "logprobs",
        "top_logprobs",
        "seed",
        "n",
        "parallel_tool_calls",
    )
    stage = parsing.thinking_initial_stage
    return indented(
        {
            "protocol": protocol,
            "model_version": repr(request.model_version),
            "stream": request.stream,
            "thinking_mode": conversation.thinking_mode,
            "reasoning_effort": conversation.reasoning_effort,
            "messages": [repr(message) for message in conversation.messages],
            "tools": [tool.name for tool in conversation.tools],
            "tool_choice": conversation.tool_choice,
            "response_format": conversation.response_format,
            "inference_options": {name: getattr(inference, name) for name in names},
            "output_constraint": constraint
            and {"kind": constraint.kind, "schema": constraint.schema},
            "parsing_options": {
                "parse_tool_calls": parsing.parse_tool_calls,
                "starts_in_tool_calls": parsing.starts_in_tool_calls,
                "parse_json_output": parsing.parse_json_output,
                "thinking_initial_stage": stage and repr(stage),
                "stop_sequences": parsing.stop_sequences,
            },
            "warnings": [f"{path}: {message}" for path, message in request.warnings],
        }
    )


def indented(value: Any) -> str:
    """JSON for people."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def argument_parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    parser = argparse.ArgumentParser(
        prog="deepseek_recipe", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--version-info", action="version", version=recipe.__version__, help="print the version"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run, text in (
        ("render", render, "print the prompt of a request"),
        ("parse", parse, "print the response that model output makes"),
        ("explain", explain, "print what a request became"),
    ):
        command = commands.add_parser(name, help=text)
        command.set_defaults(run=run)
        command.add_argument(
            "request", help="request body as JSON: a file, or - for standard input"
        )
        command.add_argument(
            "--protocol",
            choices=["auto", *PROTOCOLS],
            default="auto",
            help="protocol (default: %(default)s)",
        )
        command.add_argument(
            "--compat",
            choices=["default", "official"],
            default="default",
            help="behaviour (default: %(default)s)",
        )
        if name == "render":
            command.add_argument(
                "--version",
                choices=["auto", "v4", "v4.1"],
                default="auto",
                help="format (default: by model)",
            )
            command.add_argument("--mark", action="store_true", help="show special tokens in ⟦⟧")
            command.add_argument(
                "--strict-markers", action="store_true", help="refuse markers in messages"
            )
        if name == "parse":
            command.add_argument("output", help="model output: a file, or - for standard input")
            command.add_argument("--events", action="store_true", help="print events, one a line")
            command.add_argument(
                "--finish",
                choices=list(FINISH_REASONS),
                default="stop",
                help="why it ended (default: %(default)s)",
            )
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    arguments = argument_parser().parse_args(argv)
    try:
        text = arguments.run(arguments)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (ValueError, recipe.ConversionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(text)
    return 0
