"""Time to fill the masks of a step, against the same calls of xgrammar.

The floor is what xgrammar itself needs for the chain of each request: fill, then for each draft
accept and fill, then roll back. Both sides run in turns, each with a buffer of its own, so that a
busy machine slows both. Figures are wall time, which several threads are for, and processor time,
which other processes disturb less; ratios and differences are those of the medians.
"""

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from di_structured.masks import MaskBatch, allocate_masks
from di_structured.schema import OutputSchema
from di_structured.session import GrammarSession
from di_structured.testing.oracle import allowed_in_row
from di_structured.testing.vocabularies import compile_here, synthetic_vocabulary
from di_structured.vocabulary import Vocabulary

__all__ = ["WORKLOADS", "run"]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 8},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string"}},
            "required": ["street", "zip"],
        },
    },
    "required": ["name", "age", "tags", "address"],
}
WORKLOADS = {
    "json_schema": OutputSchema.json_schema(PERSON),
    "json_object": OutputSchema.json_object(),
    "regex": OutputSchema.regex("[0-9]{4}(-[0-9]{2}){2} [0-9:]{200}"),
    "choice": OutputSchema.choice([f"{word} {word} {word}" for word in ("alpha", "beta", "gamma")]),
}


@dataclass(frozen=True, slots=True)
class _Request:
    session: GrammarSession
    matcher: Any
    drafts: list[int]


def run(
    *,
    workloads: Sequence[str] = tuple(WORKLOADS),
    num_requests: int = 64,
    num_drafts: int = 5,
    vocab_size: int = 129_280,
    threads: Sequence[int] = (1, 2),
    repeats: int = 15,
) -> dict[str, Any]:
    """Measures every workload with every number of threads.

    Args:
        workloads: Names of `WORKLOADS`.
        num_requests: Requests in a step.
        num_drafts: Drafts of each, so that a request has one row more.
        vocab_size: Size of the synthetic vocabulary.
        threads: Numbers of threads to fill with; xgrammar's calls always run on one.
        repeats: Steps measured on each side.

    Returns:
        A JSON document: the machine, the shapes, and for each workload and number of threads, in
        wall time and in processor time, the microseconds per row of both sides (median, smallest,
        largest), their ratio, and the difference per row.
    """
    vocabulary = synthetic_vocabulary(vocab_size)
    results = [
        measurement
        for name in workloads
        for measurement in _measure(name, vocabulary, num_requests, num_drafts, threads, repeats)
    ]
    return {
        "benchmark": "mask filling",
        "python": platform.python_version(),
        "machine": platform.machine(),
        "versions": {name: version(name) for name in ("di-structured", "xgrammar", "torch")},
        "vocab_size": vocab_size,
        "num_requests": num_requests,
        "rows_per_request": num_drafts + 1,
        "repeats": repeats,
        "results": results,
    }


def _measure(
    name: str,
    vocabulary: Vocabulary,
    num_requests: int,
    num_drafts: int,
    threads: Sequence[int],
    repeats: int,
) -> list[dict[str, Any]]:
    requests = _requests(WORKLOADS[name], vocabulary, num_requests, num_drafts)
    rows = sum(len(request.drafts) + 1 for request in requests)
    batches = {count: MaskBatch(vocabulary.vocab_size, threads=count) for count in threads}
    entries = [(str(i), r.session, r.drafts) for i, r in enumerate(requests)]
    raw_masks = allocate_masks(rows, vocabulary.vocab_size)
    sides: dict[int, Callable[[], object]] = {0: lambda: _fill_raw(requests, raw_masks)}
    sides |= {count: partial(batch.fill, entries) for count, batch in batches.items()}
    times: dict[int, list[tuple[float, float]]] = {count: [] for count in sides}
    for repeat in range(repeats + 1):
        order = list(sides) if repeat % 2 else list(reversed(sides))
        for count in order:
            seconds = _timed(sides[count])
            if repeat:  # the first round warms up
                times[count].append(seconds)
    raw_masks[:, -1] &= allocate_masks(1, vocabulary.vocab_size)[0, -1]  # its slack bits are open
    for batch in batches.values():
        if not np.array_equal(batch.bits, raw_masks):
            raise AssertionError("the masks of both sides differ")
        batch.close()
    return [
        {
            "workload": name,
            "threads": count,
            "rows": rows,
            **{
                clock: _compare([t[i] for t in times[count]], [t[i] for t in times[0]], rows)
                for i, clock in enumerate(("wall", "processor"))
            },
        }
        for count in threads
    ]


def _requests(
    schema: OutputSchema, vocabulary: Vocabulary, num_requests: int, num_drafts: int
) -> list[_Request]:
    """Requests at different places of their texts, with drafts that their grammars allow."""
    import xgrammar

    grammar = compile_here(schema, vocabulary)
    rng = np.random.default_rng(7)
    requests = []
    for index in range(num_requests):
        scout = grammar.session(schema)
        prefix = _walk(scout, rng, index % 24)
        session = grammar.session(schema)
        session.advance(prefix)
        drafts = _walk(scout, rng, num_drafts)
        matcher = xgrammar.GrammarMatcher(grammar.handle)
        for token_id in prefix:
            matcher.accept_token(token_id)
        requests.append(_Request(session, matcher, drafts))
    return requests


def _walk(session: GrammarSession, rng: np.random.Generator, steps: int) -> list[int]:
    """Takes random allowed tokens, stop tokens apart."""
    masks = allocate_masks(1, session.vocab_size)
    taken: list[int] = []
    for _ in range(steps):
        session.fill_masks([], masks)
        allowed = [i for i in allowed_in_row(masks[0]) if i not in session.stop_token_ids]
        if not allowed:
            break
        taken.append(int(rng.choice(allowed)))
        session.advance(taken[-1:])
    return taken


def _fill_raw(requests: Sequence[_Request], masks: Any) -> None:
    row = 0
    for request in requests:
        matcher = request.matcher
        matcher.fill_next_token_bitmask(masks, row)
        for offset, token_id in enumerate(request.drafts):
            matcher.accept_token(token_id)
            matcher.fill_next_token_bitmask(masks, row + offset + 1)
        matcher.rollback(len(request.drafts))
        row += len(request.drafts) + 1


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    """Wall seconds and the processor seconds of all threads."""
    wall, processor = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - processor


def _compare(seconds: Sequence[float], raw: Sequence[float], rows: int) -> dict[str, Any]:
    ours, theirs = _spread(seconds, rows), _spread(raw, rows)
    return {
        "us_per_row": ours,
        "xgrammar_us_per_row": theirs,
        "ratio": ours["median"] / theirs["median"],
        "added_us_per_row": ours["median"] - theirs["median"],
    }


def _spread(seconds: Sequence[float], rows: int) -> dict[str, float]:
    per_row = [1e6 * value / rows for value in seconds]
    return {"median": statistics.median(per_row), "min": min(per_row), "max": max(per_row)}
