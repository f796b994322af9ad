"""Compares text model and drafter with golden vectors: ``python tools/check_model_vectors.py DIR``.

DIR holds one folder per configuration: `bf16/` and/or `native/` checkpoints of one function, and
`expected/` with what the DeepSeek-V4.1 reference computes for some prompts:

    pN.fp32.safetensors     wide arithmetic, unquantised caches
    pN.kvqdq.safetensors    wide arithmetic, caches quantised as in the release
    pN.native.safetensors   release numerics
    pN.dspark.fp32          the drafter in wide arithmetic; .kvqdq with quantised caches

A table goes to stdout, one line per run. Exit code 0: no miss; 1: a miss; 2: nothing to check.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from di_engine.cache import BLOCK_TOKENS, Cache
from di_engine.checkpoint import open_checkpoint
from di_engine.config import ModelConfig
from di_engine.model import Backbone, Numerics, RequestRows, StepBatch, build_token_map
from di_engine.model.drafter import Drafter
from drafter_vectors import drafter_errors, load_drafter

FP32_LIMIT = 2e-4
KVQDQ_LIMIT = 5e-3
DRAFTER_KVQDQ_LIMIT = 2e-2
LAYER_LIMIT = 0.04
NATIVE_RMS_LIMIT = 0.45
NATIVE_ARGMAX_LIMIT = 0.45

FLOAT32 = Numerics(arithmetic="float32", cache_storage="compute")
FLOAT64_PACKED = Numerics(arithmetic="float64", cache_storage="packed")
NATIVE = Numerics(arithmetic="native", cache_storage="packed")

Expected = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table.

    Attributes:
        config: Folder name.
        prompt: Prompt name, empty for tables.
        file: Expected file.
        run: What was computed and with which weights.
        error: Largest error: absolute, of logits, unless `run` says otherwise; None if not run.
        limit: Largest error allowed.
        mismatches: Entries of discrete tensors that differ; None where none are compared.
        greedy_equal: Whether the greedy continuation is the expected one; None where there is none.
        ok: Whether the line is no miss.
        note: Anything else worth reading.
    """

    config: str
    prompt: str
    file: str
    run: str
    error: float | None = None
    limit: float | None = None
    mismatches: int | None = None
    greedy_equal: bool | None = None
    ok: bool = True
    note: str = ""


def load_backbone(checkpoint: Path, numerics: Numerics) -> Backbone:
    """The text model of a checkpoint directory, on the CPU."""
    config = ModelConfig.from_directory(checkpoint)
    token_map = None
    if config.engram_layer_ids:
        tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        token_map = build_token_map(tokenizer, config.vocab_size)
    with open_checkpoint(checkpoint, config) as source:
        return Backbone.load(config, source, numerics, token_map=token_map)


class Session:
    """Requests of one backbone with caches of their own.

    Args:
        backbone: The model.
        max_tokens: Longest request.
        num_requests: Requests that live at the same time.
        lookahead: Tokens that may be taken back after a step.
    """

    def __init__(
        self, backbone: Backbone, max_tokens: int, num_requests: int = 1, lookahead: int = 0
    ) -> None:
        self.backbone = backbone
        self.blocks_each = -(-max_tokens // BLOCK_TOKENS)
        self.cache = Cache.allocate(
            backbone.config,
            backbone.numerics,
            num_blocks=num_requests * self.blocks_each,
            num_state_slots=num_requests,
            lookahead=lookahead,
        )

    def rows(self, request: int, token_ids: Sequence[int], start: int, end: int) -> RequestRows:
        """Tokens `start` to `end` of a request; all rows want logits."""
        first_block = request * self.blocks_each
        return RequestRows(
            token_ids=token_ids[start:end],
            num_computed=start,
            block_table=range(first_block, first_block + self.blocks_each),
            state_slot=request,
            history=token_ids[:start],
            logits="all",
        )

    def batch(self, requests: Sequence[RequestRows]) -> StepBatch:
        """The step of `requests`."""
        return StepBatch.build(requests, ngram_size=self.backbone.config.engram_max_ngram_size)

    def run(self, requests: Sequence[RequestRows], taps: Expected | None = None) -> Tensor:
        """Logits of all rows of a step."""
        batch = self.batch(requests)
        return self.backbone.logits(self.backbone.forward(batch, self.cache, taps))


def prefill(backbone: Backbone, token_ids: list[int], taps: Expected | None = None) -> Tensor:
    """Logits of every position, computed in one step."""
    session = Session(backbone, len(token_ids))
    return session.run([session.rows(0, token_ids, 0, len(token_ids))], taps)


def greedy(
    backbone: Backbone,
    prompt: list[int],
    num_tokens: int,
    step_len: int,
    taps: Expected | None = None,
) -> tuple[Tensor, list[int], Tensor]:
    """Greedy continuation after a prompt fed in steps of `step_len` tokens.

    `taps` receives the intermediate tensors of the last prompt step.

    Returns:
        Logits of every prompt position, the chosen ids, and the logits that chose each of them.
    """
    session = Session(backbone, len(prompt) + num_tokens)
    token_ids = list(prompt)
    prompt_logits = [
        session.run([session.rows(0, token_ids, start, min(start + step_len, len(prompt)))], taps)
        for start in range(0, len(prompt), step_len)
    ]
    rows = [prompt_logits[-1][-1]]
    for position in range(len(prompt), len(prompt) + num_tokens - 1):
        token_ids.append(int(rows[-1].argmax()))
        rows.append(session.run([session.rows(0, token_ids, position, position + 1)])[0])
    chosen = torch.stack(rows)
    return torch.cat(prompt_logits), chosen.argmax(-1).tolist(), chosen


def prefix_logits(backbone: Backbone, token_ids: list[int]) -> Tensor:
    """Last-position logits of every prefix, each a request of its own in one mixed batch."""
    num_prefixes = len(token_ids)
    session = Session(backbone, num_prefixes, num_requests=num_prefixes)
    requests = [
        replace(session.rows(i, token_ids, 0, i + 1), logits="last") for i in range(num_prefixes)
    ]
    batch = session.batch(requests)
    hidden = backbone.forward(batch, session.cache)
    return backbone.logits(hidden[batch.logits_rows])


def candidate_mask(config: ModelConfig, taps: Expected, layer: int, shape: torch.Size) -> Tensor:
    """Entries of the candidate blocks of each row, whole blocks, as the vectors store them."""
    num_rows, num_entries = shape
    block_size = config.candidate_block_size
    block_of_entry = torch.arange(num_entries) // block_size
    blocks = taps.get(f"layers.{layer}.candidate_blocks")
    if blocks is None:
        # So few entries that every block up to the newest is a candidate.
        num_visible = (torch.arange(num_rows) + 1) // config.ratio(layer)
        return (block_of_entry * block_size < num_visible[:, None]).to(torch.uint8)
    return (blocks[:, :, None] == block_of_entry).any(1).to(torch.uint8)


def count_mismatches(config: ModelConfig, taps: Expected, expected: Expected) -> int:
    """Differing rows of all discrete tensors that `expected` holds."""
    count = 0
    for name, want in expected.items():
        kind = name.rsplit(".", 1)[-1]
        if kind == "engram_hash_ids":
            count += int((taps[name] != want).sum())
        elif kind in ("gate_indices", "topk_positions"):
            count += count_set_differences(taps[name], want)
        elif kind == "candidate_mask":
            got = candidate_mask(config, taps, int(name.split(".")[1]), want.shape)
            count += int((got != want).any(-1).sum())
    return count


def count_set_differences(got: Tensor, want: Tensor) -> int:
    """Rows whose sets of non-negative numbers differ."""

    def as_sets(rows: Tensor) -> list[set[int]]:
        return [{value for value in row if value >= 0} for row in rows.tolist()]

    if got.shape[0] != want.shape[0]:
        return max(got.shape[0], want.shape[0])
    return sum(a != b for a, b in zip(as_sets(got), as_sets(want), strict=True))


def max_error(got: Tensor, want: Tensor) -> float:
    """Largest absolute difference; infinite when a value is not finite."""
    difference = (got.double() - want.double()).abs().max().item()
    return difference if difference == difference else float("inf")


def relative_rms(got: Tensor, want: Tensor) -> float:
    """Root mean square of the difference over that of the expected values."""
    difference = (got.double() - want.double()).pow(2).mean().sqrt()
    return float(difference / want.double().pow(2).mean().sqrt())


def check_whole(line: Result, backbone: Backbone, expected: Expected, limit: float) -> Result:
    """The prompt in one step, then greedy decoding."""
    taps: Expected = {}
    step_len = len(expected["input_ids"])
    result = _check_greedy(line, backbone, expected, limit, step_len, taps)
    mismatches = count_mismatches(backbone.config, taps, expected)
    run = f"{line.run}, one step"
    return replace(result, run=run, mismatches=mismatches, ok=result.ok and not mismatches)


def check_token_by_token(
    line: Result, backbone: Backbone, expected: Expected, limit: float
) -> Result:
    """The prompt token by token, then greedy decoding."""
    result = _check_greedy(line, backbone, expected, limit, 1, None)
    return replace(result, run=f"{line.run}, token by token")


def _check_greedy(
    line: Result,
    backbone: Backbone,
    expected: Expected,
    limit: float,
    step_len: int,
    taps: Expected | None,
) -> Result:
    prompt = expected["input_ids"].tolist()
    want_ids = expected["greedy_ids"].tolist()
    logits, ids, chosen = greedy(backbone, prompt, len(want_ids), step_len, taps)
    want = torch.cat([expected["logits"], expected["greedy_logits"]])
    error = max_error(torch.cat([logits, chosen]), want)
    is_equal = ids == want_ids
    ok = error < limit and is_equal
    return replace(line, error=error, limit=limit, greedy_equal=is_equal, ok=ok)


def check_prefixes(line: Result, backbone: Backbone, expected: Expected, limit: float) -> Result:
    """Every prefix of a prompt as a prompt of its own, all in one mixed batch."""
    prompt = expected["input_ids"].tolist()
    error = max_error(prefix_logits(backbone, prompt), expected["logits"])
    run = f"{line.run}, prefixes 1..{len(prompt)}"
    return replace(line, run=run, error=error, limit=limit, ok=error < limit)


@torch.inference_mode()
def layer_errors(backbone: Backbone, expected: Expected) -> tuple[list[float], int, int]:
    """Relative RMS error of each layer's output when its input is the recorded one.

    Returns:
        Errors by layer, rows whose experts or selected entries differ, and rows compared.
    """
    prompt = expected["input_ids"].tolist()
    session = Session(backbone, len(prompt))
    batch = session.batch([session.rows(0, prompt, 0, len(prompt))])
    taps: Expected = {}
    step = backbone.start(batch, session.cache, taps)
    streams, pre_mix = backbone.embed(batch)
    errors = []
    for index, layer in enumerate(backbone.layers):
        got, _ = layer(streams, pre_mix, step)
        want = expected[f"layers.{index}.stream"]
        errors.append(relative_rms(got, want))
        streams, pre_mix = want.to(streams.dtype), expected[f"layers.{index}.pre_mix"]
    discrete = [
        name for name in expected if name.rsplit(".", 1)[-1] in ("gate_indices", "topk_positions")
    ]
    differing = sum(count_set_differences(taps[name], expected[name]) for name in discrete)
    return errors, differing, sum(expected[name].shape[0] for name in discrete)


def check_native_layers(line: Result, backbone: Backbone, expected: Expected) -> Result:
    """Release numerics, layer by layer from recorded inputs."""
    errors, differing, compared = layer_errors(backbone, expected)
    worst = max(errors)
    return replace(
        line,
        run=f"{line.run}, layer by layer (relative RMS)",
        error=worst,
        limit=LAYER_LIMIT,
        ok=worst < LAYER_LIMIT,
        note=f"{differing} of {compared} selections differ",
    )


def check_native_statistics(line: Result, backbone: Backbone, expected: Expected) -> Result:
    """Release numerics end to end: rounding noise is amplified, only statistics hold."""
    logits = prefill(backbone, expected["input_ids"].tolist())
    error = relative_rms(logits, expected["logits"])
    agreement = (logits.argmax(-1) == expected["logits"].argmax(-1)).double().mean().item()
    return replace(
        line,
        run=f"{line.run}, end to end (relative RMS)",
        error=error,
        limit=NATIVE_RMS_LIMIT,
        ok=error < NATIVE_RMS_LIMIT and agreement > NATIVE_ARGMAX_LIMIT,
        note=f"argmax agreement {agreement:.2f}, needs {NATIVE_ARGMAX_LIMIT}",
    )


def check_drafter(
    line: Result, backbone: Backbone, drafter: Drafter, expected: Expected, limit: float
) -> Iterator[Result]:
    """Draft blocks behind a prompt that was run in one step, and in several."""
    num_tokens = len(expected["input_ids"])
    for run, step_len in (("one step", num_tokens), ("steps of 7", 7)):
        errors = drafter_errors(backbone, drafter, expected, step_len)
        yield replace(
            line,
            run=f"{line.run}, drafts, {run}",
            error=errors.logits,
            limit=limit,
            mismatches=errors.num_wrong_ids,
            ok=errors.logits < limit and errors.num_wrong_ids == 0,
        )


def check_engram_tables(line: Result, backbone: Backbone, expected: Expected) -> Result:
    """Token map, pad id, primes, offsets and multipliers of the hash."""
    hasher = backbone.hasher
    if hasher is None:
        return replace(line, ok=False, note="the model has no Engram layer")
    got = {
        "token_map": hasher.token_map[:-1],
        "pad_compressed_id": torch.tensor([hasher.pad_id]),
        "primes": hasher.tables.primes,
        "offsets": hasher.tables.offsets,
        "multipliers": hasher.tables.multipliers,
    }
    mismatches = 0
    for name, want in expected.items():
        same_size = got[name].numel() == want.numel()
        mismatches += (
            int((got[name].reshape(want.shape) != want).sum()) if same_size else want.numel()
        )
    return replace(line, mismatches=mismatches, ok=mismatches == 0)


class ConfigFolder:
    """One configuration folder; loads each checkpoint once per numerics."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.weights = [name for name in ("bf16", "native") if (folder / name).is_dir()]
        self._backbones: dict[tuple[str, Numerics], Backbone] = {}

    def backbone(self, weights: str, numerics: Numerics) -> Backbone:
        """The model of checkpoint `weights`."""
        key = (weights, numerics)
        if key not in self._backbones:
            self._backbones[key] = load_backbone(self.folder / weights, numerics)
        return self._backbones[key]

    def check(self, checks_prefixes: Callable[[str], bool]) -> Iterator[Result]:
        """Results of every expected file, in name order."""
        files = sorted((self.folder / "expected").glob("*.safetensors"))
        if not files:
            yield Result(self.folder.name, "", "expected/", "", ok=False, note="no expected files")
        for file in files:
            stem = file.name.removesuffix(".safetensors")
            prompt, _, kind = stem.partition(".")
            line = Result(self.folder.name, prompt if kind else "", file.name, "")
            yield from self._check_file(line, kind or prompt, file, checks_prefixes(prompt))

    def _check_file(
        self, line: Result, kind: str, file: Path, with_prefixes: bool
    ) -> Iterator[Result]:
        kinds = ("fp32", "kvqdq", "native", "engram_tables", "dspark.fp32", "dspark.kvqdq")
        if kind not in kinds:
            yield replace(line, run="not run", note="unknown kind of file")
            return
        expected = load_file(file)
        if kind.startswith("dspark"):
            yield from self._check_drafter(line, kind, expected)
            return
        if kind == "native":
            yield from self._check_native(line, expected)
            return
        # Every weight file holds the same function: one of them goes all ways, the other one way.
        *others, main = self.weights
        named = replace(line, run=f"{main} weights")
        if kind == "engram_tables":
            yield check_engram_tables(named, self.backbone(main, FLOAT32), expected)
            return
        is_fp32 = kind == "fp32"
        numerics, limit = (FLOAT32, FP32_LIMIT) if is_fp32 else (FLOAT64_PACKED, KVQDQ_LIMIT)
        backbone = self.backbone(main, numerics)
        yield check_whole(named, backbone, expected, limit)
        yield check_token_by_token(named, backbone, expected, limit)
        if with_prefixes:
            yield check_prefixes(named, backbone, expected, limit)
        for name in others if is_fp32 else []:
            other = replace(line, run=f"{name} weights")
            yield check_whole(other, self.backbone(name, numerics), expected, limit)

    def _check_drafter(self, line: Result, kind: str, expected: Expected) -> Iterator[Result]:
        is_fp32 = kind == "dspark.fp32"
        numerics, limit = (
            (FLOAT32, FP32_LIMIT) if is_fp32 else (FLOAT64_PACKED, DRAFTER_KVQDQ_LIMIT)
        )
        for name in self.weights if is_fp32 else self.weights[-1:]:
            backbone = self.backbone(name, numerics)
            drafter = load_drafter(self.folder / name, backbone)
            named = replace(line, run=f"{name} weights")
            yield from check_drafter(named, backbone, drafter, expected, limit)

    def _check_native(self, line: Result, expected: Expected) -> Iterator[Result]:
        if "native" not in self.weights:
            yield replace(line, ok=False, note="no `native/` checkpoint to run it on")
            return
        backbone = self.backbone("native", NATIVE)
        named = replace(line, run="native weights")
        last_layer = len(backbone.layers) - 1
        if f"layers.{last_layer}.stream" in expected:
            yield check_native_layers(named, backbone, expected)
        yield check_native_statistics(named, backbone, expected)


def config_folders(directory: Path) -> list[Path]:
    """Folders under `directory` (or itself) that hold a configuration."""
    candidates = [directory, *sorted(path for path in directory.iterdir() if path.is_dir())]
    return [
        path
        for path in candidates
        if (path / "expected").is_dir()
        and any((path / name / "config.json").is_file() for name in ("bf16", "native"))
    ]


def as_table(results: Sequence[Result]) -> Table:
    """The table that the command prints."""
    table = Table(title="model vectors")
    for heading in ("config", "prompt", "file", "run", "max error", "limit"):
        table.add_column(heading, overflow="fold")
    for heading in ("discrete mismatches", "greedy equal", "verdict", "note"):
        table.add_column(heading, overflow="fold")

    def text(value: object) -> str:
        return "-" if value is None else str(value)

    for result in results:
        table.add_row(
            result.config,
            result.prompt or "-",
            result.file,
            result.run,
            "-" if result.error is None else f"{result.error:.2e}",
            "-" if result.limit is None else f"{result.limit:.0e}",
            text(result.mismatches),
            text(result.greedy_equal),
            "ok" if result.ok else "MISS",
            result.note,
        )
    return table


def main(
    directory: Annotated[Path, typer.Argument(exists=True, file_okay=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead.")] = False,
) -> None:
    """Check every configuration folder under DIRECTORY."""
    progress = Console(stderr=True)
    folders = config_folders(directory)
    if not folders:
        progress.print(
            f"no configuration folder under `{directory}`: one holds `expected/` and a "
            "`bf16/config.json` or `native/config.json`"
        )
        raise typer.Exit(2)
    results = []
    for folder in folders:
        for result in ConfigFolder(folder).check(lambda prompt: prompt == "p0"):
            progress.print(f"{result.config} {result.file} {result.run}", highlight=False)
            results.append(result)
    if as_json:
        print(json.dumps([asdict(result) for result in results], indent=1))
    else:
        Console(width=200).print(as_table(results))
    if not all(result.ok for result in results):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
