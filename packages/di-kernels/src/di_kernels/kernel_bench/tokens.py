"""What surrounds the draw of tokens, from logits to verified drafts, beside what torch offers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Source
from di_kernels.cases.kernels.release import HIDDEN, VOCABULARY
from di_kernels.kernel_bench.timing import Workload
from di_kernels.kernel_bench.torch_ways import compiled_way, ways_of
from di_kernels.registry import REFERENCE, use_backend

_ROWS = (1, 16, 64, 256)
# The references sort float64 rows: milliseconds, and gigabytes for more rows.
_REFERENCE_ROWS = 64
_PAST_TOKENS = 2000
_DRAFTS = 5


def filters(source: Source) -> Iterator[Workload]:
    """Rows of normal logits, and rows with forty tokens far above the others."""
    for num_rows in _ROWS:
        flat = source.wide(num_rows, VOCABULARY, scale=3)
        peaked = flat.scatter_add(
            1,
            source.integers(0, VOCABULARY, num_rows, 40),
            10 + 8 * source.wide(num_rows, 40).abs(),
        )
        temperature = torch.full((num_rows,), 0.7, dtype=torch.float64, device=source.device)
        top_k = torch.full((num_rows,), 50, device=source.device)
        top_p = torch.full((num_rows,), 0.95, dtype=torch.float64, device=source.device)
        for kind, logits, k, p in (
            ("top-p", flat, None, top_p),
            ("top-p, peaked", peaked, None, top_p),
            ("top-k", flat, top_k, None),
            ("top-k and top-p, peaked", peaked, top_k, top_p),
        ):
            ways = ways_of("filter_tokens", logits, temperature, k, p, None, None, compiles=False)
            if num_rows > _REFERENCE_ROWS:
                del ways["torch"]
            ways["torch sort in float32"] = _sorted_filter(logits, k, p)
            if p is None:
                ways["torch topk"] = _topk_filter(logits, 50)
            moved = logits.nbytes + logits.numel() // 8
            yield Workload("filter_tokens", f"{num_rows} rows, {kind}", ways, moved, 0)


def log_probs(source: Source) -> Iterator[Workload]:
    """Log-probabilities of one token, and of the twenty most likely too."""
    for num_rows in _ROWS:
        logits = source.wide(num_rows, VOCABULARY, scale=3)
        tokens = source.integers(0, VOCABULARY, num_rows)
        for num_top in (0, 20):
            ways = ways_of("log_probs", logits, tokens, num_top, None, None, compiles=False)
            if num_rows > _REFERENCE_ROWS:
                del ways["torch"]
            ways["torch log_softmax in float32"] = _log_softmax(logits, tokens, num_top)
            label = f"{num_rows} rows, {num_top} most likely"
            yield Workload("log_probs", label, ways, logits.nbytes, 0)


def edits(source: Source) -> Iterator[Workload]:
    """Penalties on a long past, and a mask."""
    for num_rows in _ROWS:
        logits = source.wide(num_rows, VOCABULARY, scale=3)
        mask = source.integers(-(2**31), 2**31, num_rows, VOCABULARY // 32).to(torch.int32)
        tokens = torch.cat([source.permutation(VOCABULARY)[:_PAST_TOKENS] for _ in range(num_rows)])
        offsets = torch.arange(num_rows + 1, device=source.device) * _PAST_TOKENS
        counts = ops.TokenValues(offsets, tokens, source.integers(0, 3, len(tokens)).double())
        factor = torch.full((num_rows,), 1.1, dtype=torch.float64, device=source.device)
        penalties = ops.Penalties(counts, factor, factor, factor)
        ways = ways_of("edit_logits", logits, None, penalties, mask, compiles=False)
        moved = 3 * logits.nbytes + mask.nbytes + 16 * len(tokens)
        label = f"{num_rows} rows, {_PAST_TOKENS} tokens of the past, masked"
        yield Workload("edit_logits", label, ways, moved, 0)


def verification(source: Source) -> Iterator[Workload]:
    """Five drafts of every request, most of them right."""
    width = 1 + _DRAFTS
    for num_requests in (1, 64, 256):
        rows = num_requests * width
        tokens = source.integers(0, VOCABULARY, rows)
        drafts = torch.where(source.integers(0, 5, rows) == 0, tokens + 1, tokens)
        status = torch.zeros(rows, dtype=torch.uint8, device=source.device)
        offsets = torch.arange(num_requests + 1, device=source.device) * width
        ways = ways_of(
            "verify_drafts", tokens, status, drafts, offsets, width, compiles=num_requests == 64
        )
        moved = rows * (8 + 8 + 1 + 8)
        label = f"{num_requests} requests, {_DRAFTS} drafts"
        yield Workload("verify_drafts", label, ways, moved, 0)


def ratio_test(source: Source) -> Iterator[Workload]:
    """Five drafts of every request, of a law of their own, of thirty tokens, or certain.

    The first draft of every second request is refused, and none of the others'.
    """
    width = 1 + _DRAFTS
    for num_requests in (1, 64):
        rows = num_requests * width
        logits = source.wide(rows, VOCABULARY, scale=3)
        likely = logits.argmax(1)
        drafts = likely.clone()
        drafts[:: 2 * width] = logits[:: 2 * width].argmin(1)
        logits[torch.arange(rows, device=source.device), likely] += 20
        keys = source.integers(0, 2**62, rows), source.integers(0, 2**40, rows)
        degrees = torch.full((rows,), 0.7, dtype=torch.float64, device=source.device)
        status = torch.zeros(rows, dtype=torch.uint8, device=source.device)
        offsets = torch.arange(num_requests + 1, device=source.device) * width
        law = source.wide(num_requests, _DRAFTS, VOCABULARY).log_softmax(-1)
        columns = law.topk(30).indices
        for kind, weights, listed in (
            ("certain", None, None), ("dense", law, None),
            ("listed", law.gather(-1, columns), columns),
        ):  # fmt: skip
            ways = ways_of(
                "verify_drafts_by_ratio", likely, status, logits, degrees, *keys, drafts, offsets,
                width, None, weights, listed, compiles=False,
            )  # fmt: skip
            moved = num_requests * _DRAFTS * VOCABULARY * 4
            moved += num_requests // 2 * VOCABULARY * 4 * (2 if kind == "dense" else 1)
            label = f"{num_requests} requests, {_DRAFTS} drafts, {kind}"
            yield Workload("verify_drafts_by_ratio", label, ways, moved, 0)


def logits(source: Source) -> Iterator[Workload]:
    """Final norm and product with the head, from bfloat16 rows to float32 logits."""
    head = source.normal(VOCABULARY, HIDDEN, scale=HIDDEN**-0.5)
    gain = source.wide(HIDDEN)
    for num_rows in (*_ROWS, 384):
        rows = source.normal(num_rows, HIDDEN)
        ways: dict[str, Callable[[], object]] = {
            "cublas": _logits(rows, gain, head),
            "torch": _on_references(rows, gain, head),
            "torch, bfloat16 logits": _rounded_logits(rows, gain, head),
        }
        if num_rows == 64:
            compiled = torch.compile(_normed_product, dynamic=False)
            ways |= compiled_way("linear", functools.partial(compiled, rows, gain, head))
        moved = head.nbytes + rows.nbytes + 4 * num_rows * VOCABULARY
        flops = 2 * num_rows * head.numel()
        yield Workload("linear", f"final norm and logits, {num_rows} rows", ways, moved, flops)


_Call = Callable[[], torch.Tensor]


def _sorted_filter(
    logits: torch.Tensor, top_k: torch.Tensor | None, top_p: torch.Tensor | None
) -> _Call:
    """Sorted logits, their softmax and its sums, and a scatter back, all in float32."""

    def call() -> torch.Tensor:
        values, order = (logits / 0.7).sort(dim=1, descending=True)
        if top_k is not None:
            least = values.gather(1, top_k.unsqueeze(1) - 1)
            values = values.masked_fill(values < least, -torch.inf)
        if top_p is not None:
            shares = values.softmax(1)
            before = shares.cumsum(1) - shares
            values = values.masked_fill(before > top_p.float().unsqueeze(1), -torch.inf)
        return torch.empty_like(values).scatter_(1, order, values)

    return call


def _topk_filter(logits: torch.Tensor, k: int) -> _Call:
    def call() -> torch.Tensor:
        scaled = logits / 0.7
        least = scaled.topk(k, dim=1).values[:, -1:]
        return scaled.masked_fill(scaled < least, -torch.inf)

    return call


def _log_softmax(logits: torch.Tensor, tokens: torch.Tensor, num_top: int) -> Callable[[], object]:
    def call() -> object:
        values = logits.log_softmax(1)
        chosen = values.gather(1, tokens.unsqueeze(1))
        return (chosen, values.topk(num_top, dim=1)) if num_top else chosen

    return call


def _logits(rows: torch.Tensor, gain: torch.Tensor, head: torch.Tensor) -> _Call:
    return lambda: ops.linear(ops.rms_norm(rows, gain, 1e-6), head, out_dtype=torch.float32)


def _on_references(rows: torch.Tensor, gain: torch.Tensor, head: torch.Tensor) -> _Call:
    """The same by the references: the head becomes float32 in every call."""

    def call() -> torch.Tensor:
        with use_backend(REFERENCE):
            return _logits(rows, gain, head)()

    return call


def _rounded_logits(rows: torch.Tensor, gain: torch.Tensor, head: torch.Tensor) -> _Call:
    """Torch alone; logits are rounded to bfloat16."""

    def call() -> torch.Tensor:
        normed = torch.nn.functional.rms_norm(rows, (HIDDEN,), gain.to(rows.dtype), 1e-6)
        return torch.nn.functional.linear(normed, head)

    return call


def _normed_product(rows: torch.Tensor, gain: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    normed = torch.nn.functional.rms_norm(rows.float(), (HIDDEN,), gain, 1e-6).to(rows.dtype)
    return torch.mm(normed, head.T, out_dtype=torch.float32)
