"""Selections against a threshold and a running count, exactly; ties, NaN, ragged rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Case, Outputs, Source

_DTYPES = (torch.float32, torch.bfloat16)
# Entries and k: the smallest, one more than k, a thread block's limit, a cluster's, beyond.
_SIZES = (
    (2, 1), (63, 16), (64, 63), (65, 64), (513, 512), (4096, 512), (16_384, 512), (16_385, 512),
    (100_001, 512), (131_071, 512), (131_072, 2048), (131_073, 512),
)  # fmt: skip
_BLOCK_SIZES = ((17, 2), (520, 64), (16_385, 2048), (131_071, 2048), (131_072, 2048))
_LONGEST = 1 << 20
_MOST_OF_A_BLOCK = 16_384


def cases(source: Source) -> Iterator[Case]:
    """Every variant of both ops, with scores of many and of few values."""
    kinds: dict[str, Callable[[int, int], torch.Tensor]] = {
        "normal": lambda rows, entries: source.wide(rows, entries),
        "special": lambda rows, entries: _special(source, rows, entries),
        "equal": lambda rows, entries: torch.full((rows, entries), 0.5, device=source.device),
    }
    for dtype in _DTYPES:
        for kind, scores in kinds.items():
            for entries, k in _SIZES:
                # Sixteen rows are those of clusters of six.
                long = (16,) if entries > _MOST_OF_A_BLOCK else ()
                for rows in ((0, 1, 19) if kind == "normal" else (5,)) + long:
                    yield _topk(source, scores(rows, entries).to(dtype), k, kind)
            for entries, count in _BLOCK_SIZES:
                for rows in (0, 1, 19) if kind == "normal" else (5,):
                    yield _candidates(source, scores(rows, entries).to(dtype), count, kind)
            longest = scores(2, _LONGEST).to(dtype)
            yield _topk(source, longest, 512, kind)
            yield _candidates(source, longest, 2048, kind)


def _special(source: Source, rows: int, entries: int) -> torch.Tensor:
    """Ties of both zeros, subnormal and huge values, infinities and NaN."""
    values = torch.tensor(
        [0.0, -0.0, 1e-40, -1e-40, 2e-40, 1.0, 1.0, -1.0, 3e38, torch.inf, -torch.inf, torch.nan],
        device=source.device,
    )
    return values[source.integers(0, len(values), rows, entries)]


def _visible(source: Source, rows: int, entries: int) -> torch.Tensor:
    """Every entry, none, one, and random numbers of them."""
    visible = source.integers(0, entries + 1, rows)
    edges = torch.tensor([entries, 0, 1], device=source.device)[:rows]
    visible[: len(edges)] = edges
    return visible


def _topk(source: Source, scores: torch.Tensor, k: int, kind: str) -> Case:
    visible = _visible(source, *scores.shape)

    def run(rows: torch.Tensor) -> Outputs:
        return (ops.select_topk(scores[rows], visible[rows], k),)

    def oracle() -> Outputs:
        return (_best(_ranked(scores), visible, k),)

    label = f"{kind} {scores.shape[0]}x{scores.shape[1]}, k {k}"
    return Case("select_topk", label, scores.dtype, scores.shape[0], run, oracle, is_exact=True)


def _candidates(source: Source, scores: torch.Tensor, count: int, kind: str) -> Case:
    visible = _visible(source, *scores.shape)
    # Rows lie apart by more than their entries, as scores with padded rows do.
    padded = torch.nn.functional.pad(scores, (0, -scores.shape[1] % 8 + 8), value=torch.nan)

    def run(rows: torch.Tensor) -> Outputs:
        view = padded[rows][:, : scores.shape[1]]
        blocks = ops.select_candidate_blocks(view, visible[rows], block_size=8, num_blocks=count)
        return (blocks,)

    def oracle() -> Outputs:
        wide = _ranked(scores).clamp_max(torch.finfo(scores.dtype).max)
        wide = torch.nn.functional.pad(wide, (0, -wide.shape[1] % 8), value=-torch.inf)
        maxima = wide.unflatten(1, (-1, 8)).amax(2)
        newest = (visible + 7) // 8
        for row, number in enumerate(newest.tolist()):
            if number:
                maxima[row, number - 1] = torch.inf
        return (_best(maxima, newest, count),)

    label = f"{kind} {scores.shape[0]}x{scores.shape[1]}, {count} blocks of 8"
    return Case(
        "select_candidate_blocks", label, scores.dtype, scores.shape[0], run, oracle, is_exact=True
    )


def _ranked(scores: torch.Tensor) -> torch.Tensor:
    return scores.double().masked_fill(scores.isnan(), -torch.inf)


def _best(scores: torch.Tensor, visible: torch.Tensor, k: int) -> torch.Tensor:
    """Entries above each row's k-th value, and the first of those equal to it."""
    chosen = torch.full((scores.shape[0], k), -1, dtype=torch.int64, device=scores.device)
    for row, seen in enumerate(visible.tolist()):
        values, count = scores[row, :seen], min(k, seen)
        if count:
            least = torch.kthvalue(values, seen - count + 1).values
            above = values > least
            equal = values == least
            equal &= equal.cumsum(0) <= count - above.sum()
            chosen[row, :count] = (above | equal).nonzero()[:, 0]
    return chosen
