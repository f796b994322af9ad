"""Cases of what surrounds the draw: edits of logits, filters, log-probabilities, verification."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Case, Outputs, Sizes, Source
from di_kernels.cases.draw import WORD, philox
from di_kernels.masses import num_mask_words

_TOP = 5
_DRAFTS = 5


def cases(sizes: Sizes, source: Source, num_rows: int) -> Iterator[Case]:
    """Rows of so many tokens as there are entries."""
    yield _edits(sizes, source, num_rows)
    yield _filters(sizes, source, num_rows)
    yield _log_probs(sizes, source, num_rows)
    yield _verification(source, num_rows)
    yield _ratio(sizes, source, num_rows)


def _mask(source: Source, num_rows: int, vocab_size: int) -> torch.Tensor:
    words = num_mask_words(vocab_size)
    return source.integers(-(2**31), 2**31, num_rows, words).to(torch.int32)


def _allows(mask: list[int], token: int) -> bool:
    return mask[token // 32] >> (token % 32) & 1 == 1


def _edits(sizes: Sizes, source: Source, num_rows: int) -> Case:
    vocab_size, entries = sizes.entries, 7
    logits, mask = source.wide(num_rows, vocab_size), _mask(source, num_rows, vocab_size)
    tokens = torch.stack([source.permutation(vocab_size)[:entries] for _ in range(num_rows)])
    bias = source.wide(num_rows, entries).double()
    counts = source.integers(0, 3, num_rows, entries).double()
    factors = [source.integers(1, 5, num_rows) / 2.0 for _ in range(3)]
    factors = [factor.double() for factor in factors]

    def values_of(rows: torch.Tensor, values: torch.Tensor) -> ops.TokenValues:
        offsets = torch.arange(len(rows) + 1, device=source.device) * entries
        return ops.TokenValues(offsets, tokens[rows].flatten(), values[rows].flatten())

    def run(rows: torch.Tensor) -> Outputs:
        edited = ops.edit_logits(
            logits[rows],
            bias=values_of(rows, bias),
            penalties=ops.Penalties(values_of(rows, counts), *(part[rows] for part in factors)),
            mask_bits=mask[rows],
        )
        return (edited,)

    def oracle() -> Outputs:
        edited = [list(row) for row in logits.double().tolist()]
        for row in range(num_rows):
            repetition, frequency, presence = (factor[row].item() for factor in factors)
            for token, added, count in zip(
                tokens[row].tolist(), bias[row].tolist(), counts[row].tolist(), strict=True
            ):
                value = edited[row][token] + added
                value = value / repetition if value > 0 else value * repetition
                edited[row][token] = value - frequency * count - presence * (count > 0)
            for token in range(vocab_size):
                if not _allows(mask[row].tolist(), token):
                    edited[row][token] = -math.inf
        return (torch.tensor(edited, dtype=torch.float64),)

    label = f"{num_rows}x{vocab_size}"
    moved = logits.nbytes + 8 * logits.numel()
    return Case("edit_logits", label, logits.dtype, num_rows, run, oracle, True, moved)


def _filters(sizes: Sizes, source: Source, num_rows: int) -> Case:
    vocab_size = sizes.entries
    logits, mask = source.wide(num_rows, vocab_size), _mask(source, num_rows, vocab_size)
    logits[1::3] = logits[1::3].round()
    laws = [(0.7, 20, 0.9, 0.0), (1.0, -1, 0.5, 0.05), (2.0, 3, 1.0, 0.0), (0.0, 1, 0.1, 0.0)]
    rows_of = torch.tensor(laws, dtype=torch.float64).repeat(num_rows, 1)[:num_rows]
    temperature, top_k, top_p, min_p = rows_of.to(source.device).unbind(1)
    top_k = top_k.long()

    def run(rows: torch.Tensor) -> Outputs:
        bits = ops.filter_tokens(
            logits[rows], temperature[rows], top_k=top_k[rows], top_p=top_p[rows],
            min_p=min_p[rows], mask_bits=mask[rows],
        )  # fmt: skip
        return (bits,)

    def oracle() -> Outputs:
        rows = zip(logits.double().tolist(), mask.tolist(), rows_of.tolist(), strict=True)
        words = [_kept_words(row, bits, law) for row, bits, law in rows]
        return (torch.tensor(words, dtype=torch.int64).to(torch.int32),)

    label = f"{num_rows}x{vocab_size}"
    return Case("filter_tokens", label, logits.dtype, num_rows, run, oracle, True, logits.nbytes)


def _kept_words(logits: list[float], mask: list[int], law: list[float]) -> list[int]:
    """Bits of the tokens that survive, by a sort and sums of Python integers."""
    temperature, top_k, top_p, min_p = law
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    order = [token for token in order if _allows(mask, token)]
    kept = order
    if temperature > 0:
        relative = [(logits[token] - logits[order[0]]) / temperature for token in order]
        mass = [round(math.exp(value) * 2**44) for value in relative]
        floor = math.log(min_p) if min_p > 0 else -math.inf
        kept = []
        for rank, token in enumerate(order):
            is_few = top_k < 1 or rank < top_k
            is_likely = top_p >= 1 or sum(mass[:rank]) / sum(mass) <= top_p
            if is_few and is_likely and relative[rank] >= floor:
                kept.append(token)
    words = [0] * num_mask_words(len(logits))
    for token in kept:
        words[token // 32] |= 1 << (token % 32)
    return words


def _log_probs(sizes: Sizes, source: Source, num_rows: int) -> Case:
    vocab_size = sizes.entries
    logits, mask = source.wide(num_rows, vocab_size), _mask(source, num_rows, vocab_size)
    tokens = source.integers(0, vocab_size, num_rows)
    temperature = torch.tensor([0.7, 1.0, 0.0], dtype=torch.float64, device=source.device)
    temperature = temperature.repeat(num_rows)[:num_rows]

    def run(rows: torch.Tensor) -> Outputs:
        return ops.log_probs(
            logits[rows], tokens[rows], num_top=_TOP, temperature=temperature[rows],
            mask_bits=mask[rows],
        )  # fmt: skip

    def oracle() -> Outputs:
        chosen, top_ids, top = [], [], []
        for row, bits, token, degrees in zip(
            logits.double().tolist(), mask.tolist(), tokens.tolist(), temperature.tolist(),
            strict=True,
        ):  # fmt: skip
            allowed = [t for t in range(vocab_size) if _allows(bits, t)]
            scaled = {t: row[t] / (degrees or 1.0) for t in allowed}
            log_sum = math.log(math.fsum(math.exp(value) for value in scaled.values()))
            best = sorted(allowed, key=lambda t: (-row[t], t))[:_TOP]
            chosen.append(scaled[token] - log_sum if token in scaled else -math.inf)
            top_ids.append(best)
            top.append([scaled[t] - log_sum for t in best])
        return torch.tensor(chosen), torch.tensor(top_ids), torch.tensor(top)

    label = f"{num_rows}x{vocab_size}"
    return Case(
        "log_probs", label, logits.dtype, num_rows, run, oracle, num_bytes=logits.nbytes,
        tolerance=1e-6,
    )  # fmt: skip


def _verification(source: Source, num_rows: int) -> Case:
    """Requests of 1 to 6 rows, every second draft right."""
    width = 1 + _DRAFTS
    sizes = source.integers(1, width + 1, num_rows)
    tokens, drafts = (source.integers(0, 2, num_rows, width) for _ in range(2))
    status = (source.integers(0, 8, num_rows, width) == 0).to(torch.uint8)
    tokens = tokens.masked_fill(status != 0, -1)

    def run(rows: torch.Tensor) -> Outputs:
        rows = rows.to(source.device)
        is_row = torch.arange(width, device=source.device) < sizes[rows].unsqueeze(1)
        offsets = torch.nn.functional.pad(sizes[rows].cumsum(0), (1, 0))
        token_ids, codes, foreseen = (part[rows][is_row] for part in (tokens, status, drafts))
        return ops.verify_drafts(token_ids, codes, foreseen, offsets, width=width)

    def oracle() -> Outputs:
        answers = [
            _verified(*row, width)
            for row in zip(
                sizes.tolist(), tokens.tolist(), status.tolist(), drafts.tolist(), strict=True
            )
        ]
        emitted, accepted, count, code = zip(*answers, strict=True)
        return (
            torch.tensor(emitted), torch.tensor(accepted), torch.tensor(count),
            torch.tensor(code, dtype=torch.uint8),
        )  # fmt: skip

    label = f"{num_rows} requests"
    moved = 17 * num_rows * width
    return Case("verify_drafts", label, torch.int64, num_rows, run, oracle, True, moved)


def _verified(
    size: int, tokens: list[int], status: list[int], drafts: list[int], width: int
) -> tuple[list[int], int, int, int]:
    emitted: list[int] = []
    for place in range(size):
        if status[place]:
            break
        emitted.append(tokens[place])
        if place + 1 == size or tokens[place] != drafts[place]:
            return emitted + [-1] * (width - place - 1), place, place + 1, 0
    accepted = len(emitted)
    return emitted + [-1] * (width - accepted), accepted, accepted, status[accepted]


def _ratio(sizes: Sizes, source: Source, num_requests: int) -> Case:
    """Two drafts of every request, drawn from a law over all tokens."""
    vocab_size, width = sizes.entries, 3
    logits = source.wide(num_requests, width, vocab_size)
    q = source.wide(num_requests, width - 1, vocab_size).log_softmax(-1).float()
    temperature = torch.full((num_requests, width), 0.8, dtype=torch.float64, device=source.device)
    seed = source.integers(0, 2**62, num_requests, 1).expand(-1, width)
    position = source.integers(0, 2**40, num_requests, 1) + torch.arange(
        width, device=source.device
    )
    drafts = q.argmax(-1)
    drafts = torch.nn.functional.pad(drafts, (0, 1), value=-1)

    def run(rows: torch.Tensor) -> Outputs:
        some = logits[rows].flatten(0, 1)
        laws = temperature[rows].flatten(), seed[rows].flatten(), position[rows].flatten()
        drawn = ops.draw_tokens(some, *laws)
        offsets = torch.arange(len(rows) + 1, device=source.device) * width
        return ops.verify_drafts_by_ratio(
            drawn.token_ids, drawn.status, some, *laws, drafts[rows].flatten(), offsets,
            width=width, q_log_probs=q[rows],
        )  # fmt: skip

    def oracle() -> Outputs:
        answers = [
            _tested(*row)
            for row in zip(
                logits.double().tolist(), q.double().exp().tolist(), seed[:, 0].tolist(),
                position[:, 0].tolist(), drafts.tolist(), strict=True,
            )
        ]  # fmt: skip
        emitted, accepted = zip(*answers, strict=True)
        counts = torch.tensor(accepted)
        status = torch.zeros(num_requests, dtype=torch.uint8)
        return torch.tensor(emitted), counts, counts + 1, status

    label = f"{num_requests} requests, {vocab_size} tokens"
    moved = logits.nbytes + q.nbytes
    return Case(
        "verify_drafts_by_ratio", label, logits.dtype, num_requests, run, oracle, True, moved
    )


def _tested(
    logits: list[list[float]], q: list[list[float]], seed: int, position: int, drafts: list[int]
) -> tuple[list[int], int]:
    """Emitted tokens, -1 behind, and accepted drafts of one request at temperature 0.8."""
    width = len(logits)
    for place, row in enumerate(logits):
        weights = [math.exp((value - max(row)) / 0.8) for value in row]
        p = [weight / math.fsum(weights) for weight in weights]
        purpose, at = 0, position + place
        if place < width - 1:
            high, low, _, _ = philox([0, 2 << 24 | place, at & WORD, at >> 32], seed)
            draft, law = drafts[place], q[place]
            if (high << 21 | low >> 11) * 2.0**-53 * law[draft] < p[draft]:
                continue
            p = [max(target - drafted, 0.0) for target, drafted in zip(p, law, strict=True)]
            purpose = 3 << 24 | place
        emitted = [*drafts[:place], _drawn(p, purpose, at, seed)]
        return emitted + [-1] * (width - place - 1), place
    raise AssertionError("the last row has no draft")


def _drawn(weights: list[float], purpose: int, position: int, seed: int) -> int:
    blocks = range(-(-len(weights) // 4))
    counters = ([block, purpose, position & WORD, position >> 32] for block in blocks)
    words = [word for counter in counters for word in philox(counter, seed)]
    scores = [
        math.log(weight) - math.log(-math.log1p(-(word + 0.5) * 2.0**-32)) if weight else -math.inf
        for weight, word in zip(weights, words, strict=False)
    ]
    return scores.index(max(scores))
