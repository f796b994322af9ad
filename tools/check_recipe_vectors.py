"""Run golden cases of protocol conversion and report the differences.

    python tools/check_recipe_vectors.py TOKENIZER_JSON FILE.jsonl... [--package P] [--compat MODE]

Each line of a file is a case: `id`, `kind`, `input`, `expected`. The command prints how many cases
of each file and kind are equal, the first differences, and ends with status 1 if any case differs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

SYSTEM_PATCH_ID = 128823
SYSTEM_TOKEN = "<｜System｜>"
CALL_ID = re.compile(r"call_(\d{2,})_(ET_)?[A-Za-z0-9]{20}\d{4}")
TIMES = {"created", "created_at", "completed_at"}
ENUMS = {
    "reasoning_content_behavior": "ReasoningContentBehavior",
    "responses_web_search": "WebSearchBehavior",
    "messages_web_search": "WebSearchBehavior",
}


def normalized(value: Any, key: str | None = None) -> Any:
    """Replace times and the random part of call ids."""
    if isinstance(value, dict):
        return {name: normalized(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [normalized(item) for item in value]
    if isinstance(value, str):
        return CALL_ID.sub(lambda match: f"call_{match[1]}_{match[2] or ''}RANDOM", value)
    if key in TIMES and value is not None:
        return 0
    return value


class Runner:
    """Runs cases against a package that has the public names of `deepseek_recipe`.

    Args:
        package: The imported package.
        tokenizer_text: Text of the tokenizer file that the cases were made with.
        compat: `official` or `default`; `None` for a package without that option.
    """

    def __init__(self, package: Any, tokenizer_text: str, compat: str | None) -> None:
        self.package = package
        self.compat = compat
        self.tokenizer = package.Tokenizer.from_str(tokenizer_text)
        self._tokenizer_text = tokenizer_text
        self._patched: Any = None
        self.protocols = {
            "chat": (package.ChatCompletionRequest, package.ChatCompletionResponse),
            "responses": (package.ResponsesRequest, package.ResponsesResponse),
            "messages": (package.MessagesRequest, package.MessagesResponse),
        }

    @property
    def patched_tokenizer(self) -> Any:
        """The tokenizer with one added token renamed to the system token, a device of the cases."""
        if self._patched is None:
            data = json.loads(self._tokenizer_text)
            for token in data["added_tokens"]:
                if token["id"] == SYSTEM_PATCH_ID:
                    token.update(content=SYSTEM_TOKEN, special=True)
            self._patched = self.package.Tokenizer.from_str(json.dumps(data))
        return self._patched

    def run(self, case: dict[str, Any]) -> Any:
        """Return what the package gives for a case, in the form of `expected`."""
        method = getattr(self, f"run_{case['kind']}", None)
        if method is None:
            raise ValueError(f"unknown kind of case: {case['kind']}")
        return method(case["input"])

    def error(self, stage: str, error: BaseException) -> dict[str, Any]:
        """Describe an exception as cases do."""
        result: dict[str, Any] = {
            "stage": stage,
            "class": type(error).__name__,
            "message": str(error),
        }
        if isinstance(error, self.package.ConversionError):
            result["status_code"] = error.status_code
            result["body"] = json.loads(error.body)
        return result

    def special_tokens(self, spellings: dict[str, str] | None) -> Any:
        """Build special tokens, with other spellings where some are given."""
        return self.package.SpecialTokens(**(spellings or {}))

    def options(self, given: dict[str, Any] | None) -> Any:
        """Build conversion options from their description."""
        given = dict(given or {})
        aliases = given.pop("model_aliases", {})
        table = given.pop("model_versions_by_name", None)
        spellings = given.pop("special_tokens", None)
        for name, enum in ENUMS.items():
            if name in given:
                given[name] = getattr(getattr(self.package, enum), given[name])
        if self.compat is not None:
            given["compat"] = self.compat
        options = self.package.ConversionOptions(**given)
        if table is not None:
            versions = {
                name: getattr(self.package.ModelVersion, member) for name, member in table.items()
            }
            options = options.with_model_versions_by_name(versions)
        for name, member in aliases.items():
            options = options.with_model_alias(name, getattr(self.package.ModelVersion, member))
        if spellings is not None:
            options = options.with_special_tokens(self.special_tokens(spellings))
        return options

    def prompts(self, conversation: Any, spellings: dict[str, str] | None) -> dict[str, Any]:
        """Render a conversation in both formats."""
        result = {}
        encodings = {"v4": self.package.DeepseekV4Encoding, "v41": self.package.DeepseekV41Encoding}
        for name, encoding in encodings.items():
            encoder = encoding()
            if spellings is not None:
                encoder = encoder.with_special_tokens(self.special_tokens(spellings))
            prompt = encoder.render_conversation(conversation)
            result[name] = {
                "prompt": prompt.prompt,
                "special_ranges": [list(item) for item in prompt.special_ranges],
                "image_sources": len(prompt.image_sources),
            }
        return result

    def run_convert(self, given: dict[str, Any]) -> Any:
        """Convert a request and describe what came of it."""
        request_class, _ = self.protocols[given["protocol"]]
        stage = "parse"
        try:
            request = request_class(body_of(given))
            stage = "convert"
            model = request.model
            options = self.options(given.get("options"))
            extra: dict[str, Any] = {}
            if given["protocol"] == "responses":
                extra["echo"] = echo_dict(request.echo())
                extra["namespace_tool_map"] = {
                    name: list(pair) for name, pair in request.namespace_tool_map(options).items()
                }
            converted = request.convert(options)
        except Exception as error:
            return {"error": self.error(stage, error)}
        spellings = (given.get("options") or {}).get("special_tokens")
        result = {
            "model": model,
            "conversation": conversation_dict(converted.conversation),
            "inference_options": inference_dict(converted.inference_options),
            "parsing_options": parsing_dict(converted.parsing_options),
            "model_version": member_name(converted.model_version),
            "stream": converted.stream,
            "prompts": self.prompts(converted.conversation, spellings),
        }
        return {"ok": {**result, **extra}}

    def conversation(self, given: dict[str, Any]) -> Any:
        """Build a conversation from its description."""
        given = dict(given)
        messages = [self.message(message) for message in given.pop("messages", [])]
        tools = [self.package.ToolDefinition(**tool) for tool in given.pop("tools", None) or []]
        return self.package.Conversation(messages, tools=tools, **given)

    def message(self, given: dict[str, Any]) -> Any:
        """Build a message of a conversation from its description."""
        given = dict(given)
        role = given.pop("role")
        if given.get("image_sources") is not None:
            given["image_sources"] = [self.image(source) for source in given["image_sources"]]
        if given.get("tool_calls") is not None:
            given["tool_calls"] = [self.package.ToolCall(**call) for call in given["tool_calls"]]
        if given.get("tools") is not None:
            given["tools"] = [self.package.ToolDefinition(**tool) for tool in given["tools"]]
        classes = {
            "system": self.package.SystemMessage,
            "user": self.package.UserMessage,
            "assistant": self.package.AssistantMessage,
            "tool": self.package.ToolMessage,
            "latest_reminder": self.package.LatestReminderMessage,
        }
        return classes[role](**given)

    def image(self, given: dict[str, Any]) -> Any:
        """Build an image source from its description."""
        kind = given["kind"]
        keywords = {name: given[name] for name in ("detail", "path") if name in given}
        if kind == "url":
            return self.package.UrlImageSource(given["url"], **keywords)
        if kind == "data_url":
            return self.package.DataUrlImageSource(given["data_url"], **keywords)
        return self.package.BytesImageSource(bytes.fromhex(given["data_hex"]), **keywords)

    def run_direct(self, given: dict[str, Any]) -> Any:
        """Render a conversation that was built by hand."""
        try:
            conversation = self.conversation(given["conversation"])
            prompts = self.prompts(conversation, given.get("special_tokens"))
        except Exception as error:
            return {"error": self.error("direct", error)}
        return {"ok": {"response_format": conversation.response_format, "prompts": prompts}}

    def run_encode(self, given: dict[str, Any]) -> Any:
        """Encode a prompt to token ids."""
        if "text" in given:
            return {"ok": {"ids": self.tokenizer.encode(given["text"])}}
        tokenizer = self.patched_tokenizer if given.get("system_token_patch") else self.tokenizer
        conversation = self.conversation(given["conversation"])
        result = {}
        encodings = {"v4": self.package.DeepseekV4Encoding, "v41": self.package.DeepseekV41Encoding}
        for name, encoding in encodings.items():
            try:
                result[name] = {"ids": encoding().with_tokenizer(tokenizer).encode(conversation)}
            except Exception as error:
                result[name] = {"error": {"class": type(error).__name__, "message": str(error)}}
        return {"ok": result}

    def processor(self, given: dict[str, Any]) -> tuple[Any, Any]:
        """Build the processor of a stream case, and an accumulator."""
        request_class, response_class = self.protocols[given["protocol"]]
        request = request_class(body_of(given))
        converted = request.convert(self.options(given.get("options")))
        generator = request_class.chunk_generator(converted, "resp-1", "m-out")
        if given.get("signature") is not None:
            generator = generator.with_signature(given["signature"])
        if given.get("namespace_tool_map"):
            pairs = given["namespace_tool_map"]
            if pairs is True:
                pairs = request_class(body_of(given)).namespace_tool_map(
                    self.options(given.get("options"))
                )
            generator = generator.with_namespace_tool_map(
                {name: tuple(pair) for name, pair in pairs.items()}
            )
        if given.get("echo"):
            generator = generator.with_echo(request_class(body_of(given)).echo())
        options = converted.parsing_options
        for name, value in (given.get("parsing_options") or {}).items():
            if name == "thinking_initial_stage" and value is not None:
                value = getattr(self.package.ThinkingInitialStage, value)
            if name == "special_tokens":
                value = self.special_tokens(value)
            setattr(options, name, value)
        tokenizer = self.tokenizer if given.get("tokenizer") else None
        processor = self.package.StreamProcessor(generator, options, tokenizer)
        return processor, response_class("resp-1", "m-out", 0, 0, 0)

    def chunks(self, given: list[dict[str, Any]], split: Any = None) -> list[Any]:
        """Build inference chunks; `split` replaces that of every text chunk."""
        chunk_class = self.package.InferenceChunk
        result = []
        for chunk in given:
            if "ready" in chunk:
                ready = dict(chunk["ready"])
                if ready.get("prompt_usage") is not None:
                    ready["prompt_usage"] = self.package.PromptUsage(**ready["prompt_usage"])
                result.append(chunk_class.ready(**ready))
            elif "text" in chunk:
                how = chunk.get("split") if split is None else split
                if how is None:
                    result.append(chunk_class.text(chunk["text"], chunk.get("token_count", 0)))
                else:
                    result += [chunk_class.text(piece, 1) for piece in pieces(chunk["text"], how)]
            elif "tokens" in chunk:
                logprobs = chunk.get("logprobs")
                if logprobs is not None:
                    logprobs = [(value, [tuple(item) for item in top]) for value, top in logprobs]
                result.append(chunk_class.tokens(chunk["tokens"], logprobs))
            elif "encode" in chunk:
                ids = self.tokenizer.encode(chunk["encode"])
                groups = [[item] for item in ids] if chunk.get("one_by_one") else [ids]
                result += [chunk_class.tokens(group) for group in groups]
            elif "finish" in chunk:
                result.append(
                    chunk_class.finish(getattr(self.package.InferenceFinishReason, chunk["finish"]))
                )
            else:
                raise ValueError(f"unknown chunk: {chunk}")
        return result

    def run_stream(self, given: dict[str, Any], split: Any = None) -> Any:
        """Feed chunks of output and describe every event, and the final response."""
        processor, response = self.processor(given)
        name_of, done = type(response).sse_event_name, type(response).sse_done_data()
        events: list[Any] = []
        per_call: list[int] = []

        def take(produced: list[Any]) -> None:
            per_call.append(len(produced))
            for event in produced:
                events.append(
                    {"event": name_of(event), "data": normalized(json.loads(event.to_json()))}
                )
                response.accumulate(event)

        try:
            for chunk in self.chunks(given["chunks"], split):
                if processor.finished:
                    break
                take(processor.push(chunk))
            take(processor.finish())
        except Exception as error:
            return {
                "error": self.error("stream", error),
                "events": events,
                "finished": processor.finished,
            }
        return {
            "ok": {
                "events": events,
                "events_per_call": per_call,
                "response": normalized(json.loads(response.to_json())),
                "done": done,
                "finished": processor.finished,
            }
        }

    def run_stream_final(self, given: dict[str, Any]) -> Any:
        """Feed chunks of output and describe the final response."""
        responses = []
        for split in given["splits"]:
            result = self.run_stream(given, split)
            if "error" in result:
                return result
            response = result["ok"]["response"]
            response.pop("usage", None)
            responses.append(response)
        if all(response == responses[0] for response in responses):
            return {"ok": {"invariant": True, "response": responses[0]}}
        return {"ok": {"invariant": False, "responses": responses}}

    def run_resolve_max_tokens(self, given: dict[str, Any]) -> Any:
        """Resolve the token limit of a request."""
        request_class, _ = self.protocols[given["protocol"]]
        converted = request_class(body_of(given)).convert(self.options(given.get("options")))
        results: list[Any] = []
        for prompt_tokens, context_limit in given["cases"]:
            try:
                results.append(
                    {"max_tokens": converted.resolve_max_tokens(prompt_tokens, context_limit)}
                )
            except Exception as error:
                results.append({"error": self.error("resolve_max_tokens", error)})
        return {"ok": results}

    def run_lifecycle(self, given: dict[str, Any]) -> Any:
        """Call a processor in the given order and describe what each call does."""
        processor, _ = self.processor(given)
        results: list[Any] = []
        for operation in given["ops"]:
            try:
                if operation == "close":
                    processor.close()
                    results.append({"closed": True, "finished": processor.finished})
                    continue
                if operation == "finish":
                    produced = processor.finish()
                else:
                    produced = processor.push(self.chunks([operation])[0])
                results.append({"events": len(produced), "finished": processor.finished})
            except Exception as error:
                described = {"class": type(error).__name__, "message": str(error)}
                results.append({"error": described, "finished": processor.finished})
        return {"ok": results}

    def run_image_tokens(self, given: dict[str, Any]) -> Any:
        """Count the tokens of an image size."""
        return {
            "ok": [
                self.package.MultiModalData(
                    [self.package.ImageInfo(b"", width, height) for width, height in sizes]
                ).image_token_adjustment()
                for sizes in given["cases"]
            ]
        }


def body_of(given: dict[str, Any]) -> Any:
    """The request body of a case."""
    if "body_text" in given:
        return given["body_text"]
    if "body_hex" in given:
        return bytes.fromhex(given["body_hex"])
    return given["body"]


def pieces(text: str, how: Any) -> list[str]:
    """Cut a text into pieces: whole, single characters, or a repeating list of lengths."""
    if how == "whole":
        return [text]
    if how == "chars":
        return list(text)
    result, position, index = [], 0, 0
    while position < len(text):
        length = how[index % len(how)]
        result.append(text[position : position + length])
        position += length
        index += 1
    return result


def member_name(member: Any) -> str | None:
    """Name the member of an enumeration."""
    return None if member is None else repr(member).rpartition(".")[2]


def echo_dict(echo: Any) -> dict[str, Any]:
    """Describe the request fields that a response repeats."""
    names = ("instructions", "max_output_tokens", "temperature", "top_p", "top_logprobs", "user")
    return {name: rounded(getattr(echo, name)) for name in names}


def rounded(value: Any) -> Any:
    """Round floats as the cases do."""
    return round(value, 6) if isinstance(value, float) else value


def tool_dict(tool: Any) -> dict[str, Any]:
    """Describe a tool."""
    names = ("name", "description", "parameters", "strict", "defer_loading")
    return {name: getattr(tool, name) for name in names}


def message_dict(message: Any) -> dict[str, Any]:
    """Describe a message: the members of its role, lists only where they hold something."""
    result: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "assistant":
        result["reasoning_content"] = message.reasoning_content
        calls = message.tool_calls
        result["tool_calls"] = calls and [
            {"id": call.id, "name": call.name, "arguments": call.arguments} for call in calls
        ]
        result["prefix"] = message.prefix
    if message.role == "tool":
        result["tool_call_id"] = message.tool_call_id
    if message.image_sources:
        result["image_sources"] = [image_dict(source) for source in message.image_sources]
    if message.role == "system" and message.tools:
        result["tools"] = [tool_dict(tool) for tool in message.tools]
    return result


def image_dict(source: Any) -> dict[str, Any]:
    """Describe an image source."""
    result = {"kind": source.kind, "detail": source.detail, "path": source.path}
    name = "data" if source.kind == "bytes" else source.kind
    result[name] = getattr(source, name)
    return result


def conversation_dict(conversation: Any) -> dict[str, Any]:
    """Describe a conversation."""
    names = (
        "thinking_mode",
        "tool_choice",
        "reasoning_effort",
        "response_format",
        "response_schema",
        "response_regex",
    )
    return {
        "messages": [message_dict(message) for message in conversation.messages],
        "tools": [tool_dict(tool) for tool in conversation.tools],
        **{name: getattr(conversation, name) for name in names},
    }


def inference_dict(options: Any) -> dict[str, Any]:
    """Describe inference options."""
    names = ("max_tokens", "temperature", "top_p", "logprobs", "top_logprobs", "seed")
    constraint = options.output_constraint
    described = (
        None if constraint is None else {"kind": constraint.kind, "schema": constraint.schema}
    )
    return {
        **{name: rounded(getattr(options, name)) for name in names},
        "output_constraint": described,
    }


def parsing_dict(options: Any) -> dict[str, Any]:
    """Describe parsing options."""
    names = ("parse_tool_calls", "starts_in_tool_calls", "parse_json_output", "stop_sequences")
    stage = member_name(options.thinking_initial_stage)
    return {**{name: getattr(options, name) for name in names}, "thinking_initial_stage": stage}


def comparable_error(error: dict[str, Any]) -> dict[str, Any]:
    """Keep what is compared: class, message, status; of a body's shape only the beginning."""
    message = error["message"]
    is_shape = error.get("stage") == "parse" or message.startswith(
        ("invalid request body:", "invalid JSON request:")
    )
    if is_shape:
        message = message.partition(":")[0]
    return {"class": error["class"], "message": message, "status_code": error.get("status_code")}


def differences(expected: Any, actual: Any, path: str = "") -> list[str]:
    """Paths at which two results differ, with both values."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        if {"class", "message"} <= expected.keys() & actual.keys():
            expected, actual = comparable_error(expected), comparable_error(actual)
        result = []
        for name in {**expected, **actual}:
            if name not in expected or name not in actual:
                where = "unexpected" if name not in expected else "missing"
                shown = json.dumps((expected | actual)[name], ensure_ascii=False)[:300]
                result.append(f"{path}/{name}: {where}: {shown}")
            else:
                result += differences(expected[name], actual[name], f"{path}/{name}")
        return result
    if isinstance(expected, list) and isinstance(actual, list):
        result = []
        if len(expected) != len(actual):
            result.append(f"{path}: expected {len(expected)} entries, got {len(actual)}")
        for index, (left, right) in enumerate(zip(expected, actual, strict=False)):
            result += differences(left, right, f"{path}[{index}]")
        return result
    if expected == actual and isinstance(expected, bool) == isinstance(actual, bool):
        return []
    texts = [
        json.dumps(value, ensure_ascii=False, default=repr)[:400] for value in (expected, actual)
    ]
    return [f"{path}: expected {texts[0]}, got {texts[1]}"]


def check_file(
    runner: Runner, path: Path, limit: int
) -> tuple[Counter[str], Counter[str], list[str]]:
    """Run the cases of a file; returns counts of all and of equal cases by kind, and reports."""
    total: Counter[str] = Counter()
    equal: Counter[str] = Counter()
    reports: list[str] = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        if not line.strip():
            continue
        case = json.loads(line)
        total[case["kind"]] += 1
        try:
            found = differences(case["expected"], runner.run(case))
        except Exception as error:
            found = [f"raised {type(error).__name__}: {error}"]
        if not found:
            equal[case["kind"]] += 1
        elif len(reports) < limit:
            note = f" ({case['note']})" if case.get("note") else ""
            shown = "\n".join(f"    {difference}" for difference in found[:4])
            reports.append(f"  {case['id']}{note}\n{shown}")
    return total, equal, reports


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json that the cases were made with")
    parser.add_argument(
        "files", type=Path, nargs="+", help="files of cases, one JSON object per line"
    )
    parser.add_argument(
        "--package", default="deepseek_recipe", help="package to run (default: %(default)s)"
    )
    parser.add_argument(
        "--compat",
        default="official",
        choices=["official", "default", "none"],
        help="behaviour; `none` for a package without the option (default: %(default)s)",
    )
    parser.add_argument(
        "--limit", type=int, default=5, help="differing cases shown per file (default: %(default)s)"
    )
    arguments = parser.parse_args()
    package = importlib.import_module(arguments.package)
    compat = None if arguments.compat == "none" else arguments.compat
    runner = Runner(package, arguments.tokenizer.read_text(encoding="utf-8"), compat)
    passed = cases = 0
    for path in arguments.files:
        total, equal, reports = check_file(runner, path, arguments.limit)
        counts = ", ".join(f"{kind} {equal[kind]}/{total[kind]}" for kind in sorted(total))
        print(f"{path.name}: {sum(equal.values())}/{sum(total.values())} equal ({counts})")
        for report in reports:
            print(report)
        passed += sum(equal.values())
        cases += sum(total.values())
    print(f"{passed}/{cases} equal")
    return 0 if passed == cases else 1


if __name__ == "__main__":
    sys.exit(main())
