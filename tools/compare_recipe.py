"""Compare the speed of our `deepseek_recipe` with DeepSeek's, side by side in one run.

    python tools/compare_recipe.py TOKENIZER_JSON [--json FILE] [--rounds N] [--rows TEXT]

Two worker processes, one per package, answer the same rows in turns, so that both see the same
machine load. DeepSeek's distribution is installed into an environment of its own, given by
`--official-env` or made beside the results. Every row is the median of interleaved rounds, as
operations or units per second; the ratio is ours over theirs.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import hashlib
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

OFFICIAL = "deepseek-recipe==0.2.0"
MODEL = "DeepSeek-V4.1-Flash"
#: Rows in which ours has to be at least this many times as fast; everywhere else 0.97.
TARGETS = {
    "200 messages": 1.5,
    "8 tools": 1.5,
    "chunks of 64": 1.5,
    "chunks of 4096": 1.5,
    "encode": 2.0,
}
SECONDS_PER_ROUND = 0.12
WORDS = [
    "harbour",
    "tide",
    "light",
    "keeper",
    "storm",
    "signal",
    "vessel",
    "anchor",
    "rope",
    "chart",
    "compass",
    "north",
    "reef",
    "buoy",
    "lantern",
    "pilot",
    "cargo",
    "ledger",
    "weather",
    "current",
    "depth",
    "fathom",
    "channel",
    "mooring",
    "beacon",
    "ferry",
    "customs",
    "inspect",
    "repair",
    "schedule",
    "crew",
    "voyage",
]


def words(count: int, seed: int) -> str:
    """Plain text of `count` words."""
    generator = random.Random(seed)
    return " ".join(generator.choice(WORDS) for _ in range(count))


def varied_text(characters: int) -> str:
    """Text with prose, code, numbers, Chinese, emoji and odd words, hardly ever repeating."""
    generator = random.Random(7)
    pieces: list[str] = []
    length = 0
    while length < characters:
        kind = generator.randrange(6)
        if kind == 0:
            piece = " ".join(generator.choice(WORDS) for _ in range(12)) + ". "
        elif kind == 1:
            name = "".join(
                generator.choice("abcdefghijklmnopqrstuvwxyz")
                for _ in range(generator.randrange(3, 14))
            )
            piece = f"def {name}(x: int) -> str:\n    return f'{{x}}' + \"{name[::-1]}\"\n"
        elif kind == 2:
            piece = f"{generator.random() * 10 ** generator.randrange(9):.4f}, "
        elif kind == 3:
            piece = "".join(chr(generator.randrange(0x4E00, 0x9FA5)) for _ in range(12)) + "。"
        elif kind == 4:
            piece = (
                "".join(
                    generator.choice("aeioukrstmnlpd") for _ in range(generator.randrange(2, 12))
                )
                + " "
            )
        else:
            piece = generator.choice(["🌊 ", "naïve café ", "\n\n", "Grüße, ", "x² ≤ ½ "])
        pieces.append(piece)
        length += len(piece)
    return "".join(pieces)


def tools(count: int) -> list[dict[str, Any]]:
    """Function tools with small schemas."""
    kinds: list[dict[str, Any]] = [
        {"type": "string", "description": "Name of the harbour"},
        {"type": "integer", "minimum": 0, "maximum": 23},
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "properties": {"deep": {"type": "boolean"}}},
    ]
    return [
        {
            "type": "function",
            "function": {
                "name": f"tool_{index}",
                "description": words(12, index),
                "parameters": {
                    "type": "object",
                    "properties": {f"p{key}": kind for key, kind in enumerate(kinds)},
                    "required": ["p0"],
                },
            },
        }
        for index in range(count)
    ]


def body(messages: int, num_tools: int = 0) -> dict[str, Any]:
    """A Chat Completions body; 200 messages have about 43,800 characters of text."""
    roles = ("user", "assistant")
    history = [
        {"role": roles[index % 2], "content": words(32, index)} for index in range(messages - 1)
    ]
    result: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "system", "content": words(32, 99)}, *history],
    }
    if num_tools:
        result["tools"] = tools(num_tools)
    return result


def tool_output(characters: int) -> str:
    """Model output that is mostly tool calls."""
    call = (
        '<｜DSML｜ invoke name="tool_0">\n'
        '<｜DSML｜ parameter name="p0" string="true">{text}</｜DSML｜ parameter>\n'
        '<｜DSML｜ parameter name="p1" string="false">12</｜DSML｜ parameter>\n'
        '<｜DSML｜ parameter name="p2" string="false">["a", "b"]</｜DSML｜ parameter>\n'
        "</｜DSML｜ invoke>\n"
    )
    text = "why</think>Calling.\n\n<｜DSML｜ calls>\n"
    index = 0
    while len(text) < characters:
        text += call.format(text=words(24, index))
        index += 1
    return text + "</｜DSML｜ calls>"


def text_output(characters: int) -> str:
    """Model output without calls: half reasoning, half answer."""
    lines = [words(10, index) + "\n" for index in range(characters // 60 + 1)]
    half = len(lines) // 2
    return "".join(lines[:half]) + "</think>" + "".join(lines[half:])


def rows(package: Any, tokenizer_path: str) -> Iterator[tuple[str, float, Callable[[], object]]]:
    """Name, units per call, and the call of every row."""
    options_arguments = {"compat": "default"} if hasattr(package, "MarkerError") else {}
    options = package.ConversionOptions(**options_arguments)
    v4, v41 = package.DeepseekV4Encoding(), package.DeepseekV41Encoding()
    chat = package.ChatCompletionRequest

    def convert(given: Any) -> Callable[[], object]:
        return lambda: chat(given).convert(options)

    def everything(given: Any) -> Callable[[], object]:
        return lambda: v41.render_conversation(chat(given).convert(options).conversation).prompt

    bodies = {"2 messages": body(2), "200 messages": body(200)}
    for name, given in bodies.items():
        encoded = json.dumps(given, ensure_ascii=False).encode()
        yield f"convert dict, {name}", 1, convert(given)
        yield f"convert bytes, {name}", 1, convert(encoded)
        yield f"convert and render V4.1, {name}", 1, everything(encoded)
        conversation = chat(given).convert(options).conversation
        yield f"render V4, {name}", 1, functools.partial(v4.render_conversation, conversation)
        yield f"render V4.1, {name}", 1, functools.partial(v41.render_conversation, conversation)
    for count in (2, 200):
        encoded = json.dumps(body(count, 8), ensure_ascii=False).encode()
        yield f"all steps, {count} messages and 8 tools", 1, everything(encoded)
    yield "load tokenizer.json", 1, lambda: package.Tokenizer.from_file(tokenizer_path)
    yield from encoding_rows(package, tokenizer_path, v4, options)
    yield from stream_rows(package, options)


def encoding_rows(
    package: Any, tokenizer_path: str, v4: Any, options: Any
) -> Iterator[tuple[str, float, Callable[[], object]]]:
    """Tokens per second of one thread."""
    tokenizer = package.Tokenizer.from_file(tokenizer_path)
    encoder = v4.with_tokenizer(tokenizer)
    chat = package.ChatCompletionRequest
    long = chat(body(200)).convert(options).conversation
    yield "encode, 200 messages", len(encoder.encode(long)), lambda: encoder.encode(long)
    text = varied_text(600_000)
    message = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    varied = chat(message).convert(options).conversation
    yield "encode, varied text", len(encoder.encode(varied)), lambda: encoder.encode(varied)
    repeated = v4.render_conversation(long).prompt
    yield (
        "Tokenizer.encode, 200 messages",
        len(tokenizer.encode(repeated)),
        lambda: tokenizer.encode(repeated),
    )
    yield (
        "Tokenizer.encode, varied text",
        len(tokenizer.encode(text)),
        lambda: tokenizer.encode(text),
    )
    ids = tokenizer.encode(text_output(4000))
    request = {**body(2), "stream": True}

    def token_chunks() -> None:
        converted = chat(request).convert(options)
        processor = package.StreamProcessor(
            chat.chunk_generator(converted, "id", "model"), converted.parsing_options, tokenizer
        )
        for token_id in ids:
            for event in processor.push(package.InferenceChunk.tokens([token_id])):
                event.to_json()

    yield "token chunks of one id to Chat JSON", len(ids), token_chunks


def stream_rows(package: Any, options: Any) -> Iterator[tuple[str, float, Callable[[], object]]]:
    """Bytes of input text per second through `push` and `to_json`."""
    chat_body = {**body(2, 8), "stream": True}
    chat_tools = chat_body["tools"]
    response_tools = [{"type": "function", **tool["function"]} for tool in chat_tools]
    message_tools = [
        {
            "name": tool["function"]["name"],
            "description": tool["function"]["description"],
            "input_schema": tool["function"]["parameters"],
        }
        for tool in chat_tools
    ]
    protocols = {
        "Chat": (package.ChatCompletionRequest, chat_body),
        "Responses": (
            package.ResponsesRequest,
            {"model": MODEL, "input": "x", "stream": True, "tools": response_tools},
        ),
        "Messages": (
            package.MessagesRequest,
            {
                **body(2),
                "messages": body(3)["messages"][1:],
                "max_tokens": 9,
                "stream": True,
                "tools": message_tools,
            },
        ),
    }
    for size in (1, 4, 64, 4096):
        characters = {1: 2000, 4: 6000, 64: 40_000, 4096: 400_000}[size]
        for output_name, output in (
            ("text", text_output(characters)),
            ("tools", tool_output(characters)),
        ):
            pieces = [output[start : start + size] for start in range(0, len(output), size)]
            for protocol, (request_class, given) in protocols.items():
                converted = request_class(given).convert(options)

                def stream(
                    request_class: Any = request_class,
                    converted: Any = converted,
                    pieces: Any = pieces,
                ) -> None:
                    generator = request_class.chunk_generator(converted, "id", "model")
                    processor = package.StreamProcessor(generator, converted.parsing_options)
                    for piece in pieces:
                        for event in processor.push(package.InferenceChunk.text(piece, 1)):
                            event.to_json()

                yield f"{protocol} {output_name}, chunks of {size}", len(output.encode()), stream


def work(tokenizer_path: str, wanted: str) -> None:
    """Worker: answers `next`, then `run` any number of times, on standard input and output."""
    import deepseek_recipe

    iterator = (row for row in rows(deepseek_recipe, tokenizer_path) if wanted in row[0])
    print(
        json.dumps({"version": deepseek_recipe.__version__, "file": deepseek_recipe.__file__}),
        flush=True,
    )
    units = 1.0
    call: Callable[[], object] = dict
    for line in sys.stdin:
        if line.strip() == "next":
            row = next(iterator, None)
            if row is None:
                print("null", flush=True)
                return
            name, units, call = row
            call()
            print(json.dumps(name), flush=True)
        else:
            start = time.process_time()
            count = 0
            while (elapsed := time.process_time() - start) < SECONDS_PER_ROUND or count == 0:
                call()
                count += 1
            print(json.dumps(units * count / elapsed), flush=True)


class Worker:
    """A process that runs the rows with one of the packages."""

    def __init__(self, python: str, tokenizer_path: str, wanted: str) -> None:
        environment = {**os.environ, "PYTHONPATH": ""}
        self.process = subprocess.Popen(
            [python, __file__, tokenizer_path, "--work", "--rows", wanted],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.about = self.read()

    def read(self) -> Any:
        """One answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a worker ended early; see its error above")
        return json.loads(line)

    def ask(self, question: str) -> Any:
        """Send a line, read the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        return self.read()


def official_python(directory: Path) -> str:
    """Python of the environment with DeepSeek's distribution, which is made if it is missing."""
    python = directory / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", OFFICIAL], check=True)
    return str(python)


def target(name: str) -> float:
    """Least accepted ratio of a row."""
    return max((ratio for part, ratio in TARGETS.items() if part in name), default=0.97)


def unit(name: str) -> str:
    """What a row counts per second of processor time."""
    if "chunks of" in name and "one id" not in name:
        return "bytes/s"
    return "tokens/s" if "encode," in name or "one id" in name else "operations/s"


def environment(tokenizer_path: str) -> dict[str, Any]:
    """Day, revision, machine and tokenizer file of a run."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "revision": git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain") else ""),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": model[1] if model else platform.processor(),
        "cores": os.cpu_count(),
        "tokenizer_sha256": hashlib.sha256(Path(tokenizer_path).read_bytes()).hexdigest(),
    }


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tokenizer", help="tokenizer.json of a V4-series checkpoint")
    parser.add_argument("--official-env", type=Path, help="environment for DeepSeek's distribution")
    parser.add_argument(
        "--rounds", type=int, default=9, help="interleaved rounds per row (default: %(default)s)"
    )
    parser.add_argument("--rows", default="", help="only rows whose name contains this text")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.tokenizer, arguments.rows)
        return 0
    directory = arguments.official_env or Path(tempfile.gettempdir()) / "deepseek-recipe-official"
    workers = {
        "ours": Worker(sys.executable, arguments.tokenizer, arguments.rows),
        "official": Worker(official_python(directory), arguments.tokenizer, arguments.rows),
    }
    results: list[dict[str, Any]] = []
    while True:
        names = [worker.ask("next") for worker in workers.values()]
        if names[0] is None:
            break
        samples: dict[str, list[float]] = {name: [] for name in workers}
        for round_index in range(arguments.rounds):
            order = list(workers) if round_index % 2 == 0 else list(reversed(workers))
            for name in order:
                samples[name].append(workers[name].ask("run"))
        ratios = [
            ours / theirs for ours, theirs in zip(samples["ours"], samples["official"], strict=True)
        ]
        row = {
            "row": names[0],
            "unit": unit(names[0]),
            "ours": statistics.median(samples["ours"]),
            "official": statistics.median(samples["official"]),
            "ratio": statistics.median(ratios),
            "spread": [min(ratios), max(ratios)],
            "target": target(names[0]),
        }
        results.append(row)
        verdict = "" if row["ratio"] >= row["target"] else "   below target"
        print(
            f"{row['row']:45} ours {row['ours']:14.4g}/s  official {row['official']:14.4g}/s  "
            f"ratio {row['ratio']:5.2f} (target {row['target']:.2f}){verdict}",
            flush=True,
        )
    report = {
        "environment": environment(arguments.tokenizer),
        "versions": {name: worker.about["version"] for name, worker in workers.items()},
        "rounds": arguments.rounds,
        "seconds_per_round": SECONDS_PER_ROUND,
        "rows": results,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    missed = [row["row"] for row in results if row["ratio"] < row["target"]]
    print(f"{len(results) - len(missed)} of {len(results)} rows reach their target")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
