"""Constrained generation under every rule of verification: validity, identity, law.

    python tools/check_structured.py --json            1,000 generations per mode
    python tools/check_structured.py --generations 120 --modes ratio

A model without any sense writes tokens at random, a drafter proposes 0 to 5 of them, half of them
nonsense, and `di_spec.verify` judges them under the masks of `di_structured`. Requests run in
batches, each with a schema, a number of drafts and a reasoning section of its own: none, or one
that ends at any position of the window. Three things are checked:

* validity: a finished text is valid JSON under its schema (`jsonschema`); one that the limit cut is
  a beginning that a fresh grammar admits;
* identity: with `coupled` and `greedy` verification the tokens are those of the run without drafts;
* law: but for `greedy`, the texts of a small grammar have the law of the masked model (chi-square,
  at 99.9 %).

The exit code is 1 if anything is found.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import jsonschema  # type: ignore[import-untyped]  # its stubs are another distribution
import numpy as np
import numpy.typing as npt
import typer

from di_spec import Proposal, QKind, verify
from di_spec.sampling import SamplerBatch, SampleRequest, SamplingParams, TokenHistory
from di_spec.verify import VerifyMode
from di_structured import CompiledGrammar, GrammarSession, MaskBatch, OutputSchema
from di_structured.testing import BOUNDED_SCHEMAS, byte_vocabulary, compile_here

VOCABULARY = byte_vocabulary()
VOCAB_SIZE = VOCABULARY.vocab_size
THINK_END = 3
MAX_DRAFTS = 5
BATCH_SIZE = 24
MODES: tuple[VerifyMode, ...] = ("coupled", "greedy", "ratio", "block")
CHI_SQUARE_LIMIT = 20.515
"""5 degrees of freedom, 99.9 %."""


@dataclass(slots=True)
class Generation:
    """One request of the sweep.

    Attributes:
        number: Of the request; everything random follows from it.
        schema: What its answer must be valid under.
        session: Follows its output.
        num_drafts: Drafts of each of its steps.
        script: Tokens that its model strongly prefers at first: a reasoning section.
        max_tokens: Where it is cut.
        is_dense: Whether its drafts come with the law they were drawn from.
        token_ids: Its output.
        num_rejected: Drafts that were not taken.
    """

    number: int
    schema: dict[str, Any]
    session: GrammarSession
    num_drafts: int
    script: list[int]
    max_tokens: int
    is_dense: bool
    token_ids: list[int] = field(default_factory=list)
    num_rejected: int = 0

    def logits(self, position: int) -> npt.NDArray[np.float64]:
        """Of the model at a position; the same with and without drafts, [vocab_size]."""
        values = np.random.default_rng((self.number, 1, position)).normal(size=VOCAB_SIZE)
        values[list(VOCABULARY.stop_token_ids)] += 4.0
        if position < len(self.script):
            values[self.script[position]] += 60.0
        return values

    def draft(self, mode: VerifyMode) -> tuple[list[int], npt.NDArray[np.float64]]:
        """Drafts and the log-probabilities that they were drawn from, [num_drafts, vocab_size]."""
        first = len(self.token_ids)
        rng = np.random.default_rng((self.number, 2, first))
        drafts: list[int] = []
        laws = np.full((self.num_drafts, VOCAB_SIZE), -np.inf)
        for offset in range(self.num_drafts):
            logits = self.logits(first + offset) + rng.normal(size=VOCAB_SIZE)
            laws[offset] = logits - np.log(np.exp(logits).sum())
            if self.is_dense:
                drafts.append(int(rng.choice(VOCAB_SIZE, p=np.exp(laws[offset]))))
            elif rng.random() < 0.5:
                drafts.append(self._guess(first + offset, drafts, mode))
            else:
                drafts.append(int(rng.integers(VOCAB_SIZE)))
        return drafts, laws

    def _guess(self, position: int, drafts: Sequence[int], mode: VerifyMode) -> int:
        """What the model itself would draw there if the drafts before were its tokens."""
        masks = np.full((len(drafts) + 1, VOCABULARY.num_mask_words), -1, np.int32)
        self.session.fill_masks(drafts, masks)
        request = SampleRequest(self.params(mode), self.history(drafts))
        drawn = verify(
            self.logits(position)[None],
            Proposal(np.zeros((1, 0), np.int64), np.zeros(1, np.int64)),
            SamplerBatch.build([request], VOCAB_SIZE),
            mode="greedy" if mode == "greedy" else "coupled",
            mask_bits=masks[-1:],
        )
        return max(0, int(drawn.token_ids[0, 0]))

    def params(self, mode: VerifyMode) -> SamplingParams:
        """Of the sampler."""
        return SamplingParams(temperature=0.0 if mode == "greedy" else 1.0, seed=self.number)

    def history(self, more: Sequence[int] = ()) -> TokenHistory:
        """Output so far behind a prompt of one token."""
        history = TokenHistory([0])
        history.extend([*self.token_ids, *more])
        return history


def make_generation(
    number: int, grammars: dict[str, CompiledGrammar], num_drafts: int | None = None
) -> Generation:
    """The request with a number: schemas, drafts and reasoning ends in all combinations."""
    schema = BOUNDED_SCHEMAS[number % 20]
    window = number // 20 % (MAX_DRAFTS + 1)
    reasoning = number // 120 % 7  # 0: none, else the marker is at index reasoning - 1
    plain = OutputSchema.json_schema(schema, max_whitespace=2)
    if plain.key not in grammars:
        grammars[plain.key] = compile_here(plain, VOCABULARY)
    constraint = plain.with_reasoning([THINK_END]) if reasoning else plain
    return Generation(
        number,
        schema,
        grammars[plain.key].session(constraint, request_id=str(number)),
        window if num_drafts is None else num_drafts,
        [40] * (reasoning - 1) + [THINK_END] if reasoning else [],
        20 if number % 11 == 0 else 100,
        is_dense=number % 2 == 1,
    )


def run(generations: Sequence[Generation], mode: VerifyMode) -> int:
    """Generates in batches; returns the number of steps."""
    masks = MaskBatch(VOCAB_SIZE)
    waiting, num_steps = list(generations), 0
    running: list[Generation] = []
    while waiting or running:
        running += [waiting.pop(0) for _ in range(min(len(waiting), BATCH_SIZE - len(running)))]
        for is_dense in (False, True):
            if group := [g for g in running if g.is_dense == is_dense]:
                step(group, mode, masks, is_dense=is_dense)
                num_steps += 1
        running = [
            g
            for g in reversed(running)  # rows change places, requests keep their masks
            if not g.session.is_terminated and len(g.token_ids) < g.max_tokens
        ]
    return num_steps


def step(
    group: Sequence[Generation], mode: VerifyMode, masks: MaskBatch, *, is_dense: bool
) -> None:
    """Verifies the drafts of a batch and advances its sessions by what was emitted."""
    drafted = [generation.draft(mode) for generation in group]
    longest = max(len(drafts) for drafts, _ in drafted)
    token_ids = np.full((len(group), longest), -1, np.int64)
    laws = np.full((len(group), longest, VOCAB_SIZE), -np.inf)
    for index, (drafts, law) in enumerate(drafted):
        token_ids[index, : len(drafts)] = drafts
        laws[index, : len(drafts)] = law
    lengths = np.array([len(drafts) for drafts, _ in drafted])
    needs_law = is_dense and mode in ("ratio", "block")
    proposal = (
        Proposal(token_ids, lengths, QKind.DENSE, laws)
        if needs_law
        else Proposal(token_ids, lengths)
    )
    masks.fill((str(g.number), g.session, d) for g, (d, _) in zip(group, drafted, strict=True))
    logits = np.concatenate(
        [[g.logits(len(g.token_ids) + j) for j in range(g.num_drafts + 1)] for g in group]
    )
    batch = SamplerBatch.build(
        [
            SampleRequest(g.params(mode), g.history(), d)
            for g, (d, _) in zip(group, drafted, strict=True)
        ],
        VOCAB_SIZE,
    )
    verified = verify(logits, proposal, batch, mode=mode, mask_bits=masks.bits)
    for index, generation in enumerate(group):
        count = int(verified.num_emitted[index])
        emitted = verified.token_ids[index, :count].tolist()
        emitted = emitted[: generation.max_tokens - len(generation.token_ids)]
        stops = [i for i, token in enumerate(emitted) if token in VOCABULARY.stop_token_ids]
        emitted = emitted[: stops[0] + 1] if stops else emitted
        if not emitted:
            raise AssertionError(f"generation {generation.number}: nothing could be drawn")
        generation.num_rejected += generation.num_drafts - (len(emitted) - 1)
        generation.session.advance(emitted)
        generation.token_ids += emitted


def problems_of(generation: Generation, grammars: dict[str, CompiledGrammar]) -> Iterator[str]:
    """What is wrong with a finished generation."""
    name = f"generation {generation.number}"
    answer = generation.token_ids
    if generation.script:
        if THINK_END not in answer:
            yield f"{name}: the reasoning did not end"
            return
        begin = answer.index(THINK_END) + 1
        if answer[:begin] != generation.script:
            yield f"{name}: the reasoning section was changed"
        answer = answer[begin:]
    if generation.session.is_terminated:
        text = b"".join(VOCABULARY.tokens[i] for i in answer[:-1]).decode()
        try:
            jsonschema.Draft202012Validator(generation.schema).validate(json.loads(text))
        except (ValueError, jsonschema.ValidationError) as error:
            yield f"{name}: {text!r} is invalid: {error}"
        return
    plain = OutputSchema.json_schema(generation.schema, max_whitespace=2)
    try:
        grammars[plain.key].session(plain).advance(answer)
    except Exception as error:
        yield f"{name}: cut text is no valid beginning: {error}"


def sweep(mode: VerifyMode, num_generations: int) -> dict[str, Any]:
    """Runs the generations of one mode and checks validity and identity."""
    begin = time.perf_counter()
    grammars: dict[str, CompiledGrammar] = {}
    generations = [make_generation(number, grammars) for number in range(num_generations)]
    num_steps = run(generations, mode)
    problems = [problem for g in generations for problem in problems_of(g, grammars)]
    num_identical = None
    if mode in ("coupled", "greedy"):
        plain = [make_generation(number, grammars, 0) for number in range(num_generations)]
        run(plain, mode)
        different = [
            g.number for g, p in zip(generations, plain, strict=True) if g.token_ids != p.token_ids
        ]
        problems += [f"generation {number}: drafts change its tokens" for number in different]
        num_identical = num_generations - len(different)
    num_drafts = sum(g.num_drafts > 0 for g in generations)
    return {
        "check": "generations",
        "mode": mode,
        "generations": num_generations,
        "finished": sum(g.session.is_terminated for g in generations),
        "cut": sum(not g.session.is_terminated for g in generations),
        "with_reasoning": sum(bool(g.script) for g in generations),
        "with_drafts": num_drafts,
        "tokens": sum(len(g.token_ids) for g in generations),
        "batch_steps": num_steps,
        "rejected_drafts": sum(g.num_rejected for g in generations),
        "identical_without_drafts": num_identical,
        "problems": problems,
        "seconds": round(time.perf_counter() - begin, 1),
    }


class LawSample(Generation):
    """Two tokens of a small grammar from fixed logits, with drafts from a fixed law."""

    LOGITS = np.random.default_rng(5).normal(size=(5, VOCAB_SIZE))
    DRAFT_LOGITS = np.random.default_rng(6).normal(size=VOCAB_SIZE)
    DRAFT_LOGITS[[5 + byte for byte in b"abcde"]] += 5.0  # often allowed, often at the wrong place
    DRAFT_LAW = DRAFT_LOGITS - np.log(np.exp(DRAFT_LOGITS).sum())

    def logits(self, position: int) -> npt.NDArray[np.float64]:
        """The same for every sample."""
        row: npt.NDArray[np.float64] = self.LOGITS[position]
        return row

    def draft(self, mode: VerifyMode) -> tuple[list[int], npt.NDArray[np.float64]]:
        """Drawn from the fixed law."""
        rng = np.random.default_rng((self.number, 2, len(self.token_ids)))
        drafts = rng.choice(VOCAB_SIZE, size=self.num_drafts, p=np.exp(self.DRAFT_LAW))
        return drafts.tolist(), np.tile(self.DRAFT_LAW, (self.num_drafts, 1))


def check_law(mode: VerifyMode, num_samples: int) -> dict[str, Any]:
    """Compares the frequencies of texts with the law of the masked model."""
    schema = OutputSchema.regex("[ab][cde]")
    grammar = compile_here(schema, VOCABULARY)
    samples = [
        LawSample(number, {}, grammar.session(schema), number % 3, [], 2, is_dense=True)
        for number in range(num_samples)
    ]
    run(samples, mode)
    pairs = [(5 + x, 5 + y) for x in b"ab" for y in b"cde"]
    expected = np.array([np.exp(LawSample.LOGITS[0, x] + LawSample.LOGITS[1, y]) for x, y in pairs])
    expected *= num_samples / expected.sum()
    counts = dict.fromkeys(pairs, 0)
    for sample in samples:
        counts[sample.token_ids[0], sample.token_ids[1]] += 1
    observed = np.array(list(counts.values()))
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return {
        "check": "law",
        "mode": mode,
        "samples": num_samples,
        "chi_square": round(statistic, 2),
        "limit": CHI_SQUARE_LIMIT,
        "rejected_drafts": sum(sample.num_rejected for sample in samples),
        "problems": ([] if statistic < CHI_SQUARE_LIMIT else [f"chi-square is {statistic:.1f}"]),
    }


def main(
    generations: Annotated[int, typer.Option(min=1, help="Generations of each mode.")] = 1000,
    samples: Annotated[
        int, typer.Option(min=0, help="Samples of each law; 0 skips them.")
    ] = 20_000,
    modes: Annotated[
        list[str] | None, typer.Option(help="Modes of verification.", show_default="all")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per check.")] = False,
) -> None:
    """Generate under grammars with every rule of verification and check what comes out."""
    if unknown := set(modes or ()) - set(MODES):
        raise typer.BadParameter(f"must be among {', '.join(MODES)}: got {', '.join(unknown)}")
    chosen = [mode for mode in MODES if not modes or mode in modes]
    reports = itertools.chain(
        (sweep(mode, generations) for mode in chosen),
        (check_law(mode, samples) for mode in chosen if mode != "greedy" and samples),
    )
    has_problems = False
    for report in reports:
        has_problems |= bool(report["problems"])
        if as_json:
            typer.echo(json.dumps(report))
        else:
            problems = report.pop("problems")
            typer.echo(", ".join(f"{name} {value}" for name, value in report.items()))
            for problem in problems[:20]:
                typer.echo(f"  {problem}")
    if has_problems:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
