"""The draw of tokens, and what surrounds it, against the references, whose bits must come out.

Rows of ties, of temperatures from 0 to where logits overflow, of masks that leave one token or
none, of NaN and infinities.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Case, Outputs, Source
from di_kernels.cases.kernels.release import HIDDEN, VOCABULARY
from di_kernels.masses import num_mask_words
from di_kernels.ops.log_probs import _LOG_PROBS
from di_kernels.ops.logit_edits import _EDIT_LOGITS
from di_kernels.ops.sampling import _DRAW_TOKENS
from di_kernels.ops.token_filters import _FILTER_TOKENS
from di_kernels.registry import REFERENCE, use_backend

_ROWS = (0, 1, 2, 64, 65)
_TEMPERATURES = (1.0, 0.0, 0.7, 1e-6, 1e-30, 1e-320, 100.0)
_PURPOSE = 3 << 24 | 5


def cases(source: Source) -> Iterator[Case]:
    """The release's vocabulary and odd small ones, both dtypes, with and without masks."""
    for vocab_size, dtype, has_mask in (
        (VOCABULARY, torch.float32, False),
        (VOCABULARY, torch.float32, True),
        (1000, torch.float64, True),
        (4, torch.float32, False),
        (1001, torch.float32, True),
        (9001, torch.float64, True),
    ):
        rows = (*_ROWS, 97) if vocab_size == VOCABULARY and not has_mask else _ROWS
        for num_rows in rows:
            if vocab_size % 4 == 0:
                yield _drawn(source, num_rows, vocab_size, dtype, has_mask=has_mask)
            yield _edited(source, num_rows, vocab_size, dtype, has_mask=has_mask)
            yield _filtered(source, num_rows, vocab_size, dtype, has_mask=has_mask)
            yield _measured(source, num_rows, vocab_size, dtype, has_mask=has_mask)
    for num_rows in (1, 64, 65):
        yield _logits(source, num_rows)
    for num_requests in (0, 1, 2, 127, 128, 129):
        yield _verified(source, num_requests)
    for vocab_size, num_requests, kind, dtype, has_mask in (
        (VOCABULARY, 1, "certain", torch.float32, False),
        (VOCABULARY, 17, "certain", torch.float32, True),
        (VOCABULARY, 17, "dense", torch.float32, False),
        (VOCABULARY, 17, "listed", torch.float32, False),
        (9001, 9, "dense", torch.float64, False),
        (1001, 64, "certain", torch.float64, True),
        (1001, 65, "dense", torch.float32, False),
        (1001, 64, "listed", torch.float32, True),
        (4, 2, "dense", torch.float64, False),
        (4, 0, "certain", torch.float32, False),
    ):
        yield _tested(source, num_requests, vocab_size, dtype, kind, has_mask=has_mask)


def _rows(
    source: Source, num_rows: int, vocab_size: int, dtype: torch.dtype, *, has_mask: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Logits, temperatures and masks."""
    logits = source.wide(num_rows, vocab_size, scale=3).to(dtype)
    logits[1::4] = logits[1::4].round()
    logits[5::16, vocab_size // 2] = torch.nan
    logits[6::16, 1] = torch.inf
    logits[7::16] = -torch.inf
    logits[8::16] = 1.0
    temperature = _cycle(source, _TEMPERATURES, num_rows)
    mask = None
    if has_mask:
        words = num_mask_words(vocab_size)
        mask = source.integers(-(2**31), 2**31, num_rows, words).to(torch.int32)
        mask[2::8] = 0
        mask[3::8] = 0
        mask[3::8, 0] = 2
    return logits, temperature, mask


def _cycle(source: Source, values: tuple[float, ...], num_rows: int) -> torch.Tensor:
    """The values in turn, float64."""
    repeated = torch.tensor(values, dtype=torch.float64).repeat(-(-num_rows // len(values)))
    return repeated[:num_rows].to(source.device)


def _drawn(
    source: Source, num_rows: int, vocab_size: int, dtype: torch.dtype, *, has_mask: bool
) -> Case:
    logits, temperature, mask = _rows(source, num_rows, vocab_size, dtype, has_mask=has_mask)
    seed = source.integers(0, 2**62, num_rows) * 4 + 3  # wraps: all bits are used
    position = source.integers(0, 2**40, num_rows)

    def run(rows: torch.Tensor) -> Outputs:
        return ops.draw_tokens(
            logits[rows], temperature[rows], seed[rows], position[rows],
            mask_bits=None if mask is None else mask[rows], stream=3, offset=5,
        )  # fmt: skip

    def oracle() -> Outputs:
        return _DRAW_TOKENS.reference(logits, temperature, seed, position, mask, _PURPOSE)

    label = f"{num_rows}x{vocab_size}{', masked' if has_mask else ''}"
    return Case("draw_tokens", label, dtype, num_rows, run, oracle, is_exact=True)


def _filtered(
    source: Source, num_rows: int, vocab_size: int, dtype: torch.dtype, *, has_mask: bool
) -> Case:
    logits, temperature, mask = _rows(source, num_rows, vocab_size, dtype, has_mask=has_mask)
    top_k = _cycle(source, (-1, 1, 50, vocab_size - 1, vocab_size), num_rows).long()
    top_p = _cycle(source, (0.9, 1.0, 0.5, 0.999, 1e-9, 1.0, 0.95), num_rows)
    min_p = _cycle(source, (0.0, 0.0, 0.05, 0.0, 1.0, 0.3, 0.0, 0.0, 1e-300), num_rows)

    def run(rows: torch.Tensor) -> Outputs:
        bits = ops.filter_tokens(
            logits[rows], temperature[rows], top_k=top_k[rows], top_p=top_p[rows],
            min_p=min_p[rows], mask_bits=None if mask is None else mask[rows],
        )  # fmt: skip
        return (bits,)

    def oracle() -> Outputs:
        return (_FILTER_TOKENS.reference(logits, temperature, top_k, top_p, min_p, mask),)

    label = f"{num_rows}x{vocab_size}{', masked' if has_mask else ''}"
    return Case("filter_tokens", label, dtype, num_rows, run, oracle, is_exact=True)


def _edited(
    source: Source, num_rows: int, vocab_size: int, dtype: torch.dtype, *, has_mask: bool
) -> Case:
    """Entries of every row: none, one, or many, on masked tokens too."""
    logits, _, mask = _rows(source, num_rows, vocab_size, dtype, has_mask=has_mask)
    sizes = [(0, 1, vocab_size // 3, vocab_size // 2)[row % 4] for row in range(num_rows)]
    tokens = [source.permutation(vocab_size)[:size] for size in sizes]
    bias = [source.wide(size, scale=2).double() for size in sizes]
    counts = [source.integers(0, 4, size).double() for size in sizes]
    repetition = _cycle(source, (1.0, 1.3, 0.7), num_rows)
    frequency = _cycle(source, (0.0, 0.3, -1.7, 1e30), num_rows)
    presence = _cycle(source, (0.1, 0.0, 2.5, -0.2, 0.0), num_rows)

    def values_of(rows: torch.Tensor, values: list[torch.Tensor]) -> ops.TokenValues:
        chosen = rows.tolist()
        nothing = tokens[0][:0] if tokens else source.integers(0, 1, 0)
        lengths = torch.tensor([0] + [sizes[row] for row in chosen]).cumsum(0)
        return ops.TokenValues(
            lengths.to(source.device),
            torch.cat([nothing, *(tokens[row] for row in chosen)]),
            torch.cat([nothing.double(), *(values[row] for row in chosen)]),
        )

    def inputs(
        rows: torch.Tensor,
    ) -> tuple[torch.Tensor, ops.TokenValues, ops.Penalties, torch.Tensor | None]:
        penalties = ops.Penalties(
            values_of(rows, counts), repetition[rows], frequency[rows], presence[rows]
        )
        bits = None if mask is None else mask[rows]
        return logits[rows], values_of(rows, bias), penalties, bits

    def run(rows: torch.Tensor) -> Outputs:
        some, added, penalties, bits = inputs(rows)
        return (ops.edit_logits(some, bias=added, penalties=penalties, mask_bits=bits),)

    def oracle() -> Outputs:
        return (_EDIT_LOGITS.reference(*inputs(torch.arange(num_rows))),)

    label = f"{num_rows}x{vocab_size}{', masked' if has_mask else ''}"
    return Case("edit_logits", label, dtype, num_rows, run, oracle, is_exact=True)


def _measured(
    source: Source, num_rows: int, vocab_size: int, dtype: torch.dtype, *, has_mask: bool
) -> Case:
    """Log-probabilities; exact, because both take exp and log from the same library."""
    logits, temperature, mask = _rows(source, num_rows, vocab_size, dtype, has_mask=has_mask)
    tokens = source.integers(-1, vocab_size + 1, num_rows)
    num_top = (20, 0, 1, 5, 32)[num_rows % 5]

    def run(rows: torch.Tensor) -> Outputs:
        return ops.log_probs(
            logits[rows], tokens[rows], num_top=num_top, temperature=temperature[rows],
            mask_bits=None if mask is None else mask[rows],
        )  # fmt: skip

    def oracle() -> Outputs:
        return _LOG_PROBS.reference(logits, tokens, num_top, temperature, mask)

    label = f"{num_rows}x{vocab_size}, {num_top} most likely{', masked' if has_mask else ''}"
    return Case("log_probs", label, dtype, num_rows, run, oracle, is_exact=True)


def _verified(source: Source, num_requests: int) -> Case:
    """Requests of 1 to 6 rows."""
    width = 6
    sizes = source.integers(1, width + 1, num_requests)
    tokens, drafts = (source.integers(0, 2, num_requests, width) for _ in range(2))
    status = (source.integers(0, 8, num_requests, width) == 0).to(torch.uint8)

    def verify(rows: torch.Tensor) -> Outputs:
        rows = rows.to(source.device)
        is_row = torch.arange(width, device=source.device) < sizes[rows].unsqueeze(1)
        offsets = torch.nn.functional.pad(sizes[rows].cumsum(0), (1, 0))
        token_ids, codes, foreseen = (part[rows][is_row] for part in (tokens, status, drafts))
        return ops.verify_drafts(token_ids, codes, foreseen, offsets, width=width)

    def oracle() -> Outputs:
        with use_backend(REFERENCE):
            return verify(torch.arange(num_requests))

    label = f"{num_requests} requests"
    return Case("verify_drafts", label, torch.int64, num_requests, verify, oracle, is_exact=True)


def _tested(
    source: Source,
    num_requests: int,
    vocab_size: int,
    dtype: torch.dtype,
    kind: str,
    *,
    has_mask: bool,
) -> Case:
    """Requests of 1 to 6 rows with four likely tokens, of which most drafts are.

    Laws of drafts have the dtype of the logits; in float64 every fourth is the target's own.
    """
    width, listed = 6, min(30, vocab_size)
    shape = num_requests, width
    logits = source.wide(*shape, vocab_size, scale=3).to(dtype)
    logits[..., :4] = logits[..., :4] * 0.3 + 13
    temperature = _cycle(source, _TEMPERATURES, num_requests)
    seed, position = source.integers(0, 2**62, *shape), source.integers(0, 2**40, *shape)
    sizes = source.integers(1, width + 1, num_requests)
    tokens, drafts = (source.integers(0, 4, *shape) for _ in range(2))
    drafts = drafts.where(source.integers(0, 9, *shape) > 0, vocab_size + source.integers(-3, 2, 1))
    status = (source.integers(0, 16, *shape) == 0).to(torch.uint8)
    mask = None
    if has_mask:
        mask = source.integers(-(2**31), 2**31, *shape, num_mask_words(vocab_size)).to(torch.int32)
        mask[..., 0] |= 2
    law, columns = None, None
    if kind != "certain":
        law = source.wide(num_requests, width - 1, vocab_size, scale=2).to(dtype)
        law[..., :4] += 4
        law = law.log_softmax(-1)
        if dtype == torch.float64:
            scale = temperature[::4, None, None].clamp(min=1e-3)
            law[::4] = (logits[::4, :-1] / scale).log_softmax(-1)
    if law is not None and kind == "listed":
        order = source.integers(0, 2**40, num_requests, width - 1, vocab_size).argsort(-1)
        columns = order[..., :listed].contiguous()
        law = law.gather(-1, columns).contiguous()
        columns[::3, :, 1] = -1

    def verify(rows: torch.Tensor) -> Outputs:
        rows = rows.to(source.device)
        is_row = torch.arange(width, device=source.device) < sizes[rows].unsqueeze(1)
        offsets = torch.nn.functional.pad(sizes[rows].cumsum(0), (1, 0))
        some = logits[rows][is_row]
        degrees = temperature[rows, None].expand(-1, width)[is_row]
        return ops.verify_drafts_by_ratio(
            tokens[rows][is_row], status[rows][is_row], some, degrees, seed[rows][is_row],
            position[rows][is_row], drafts[rows][is_row], offsets, width=width,
            mask_bits=None if mask is None else mask[rows][is_row],
            q_log_probs=None if law is None else law[rows],
            q_token_ids=None if columns is None else columns[rows],
        )  # fmt: skip

    def oracle() -> Outputs:
        with use_backend(REFERENCE):
            return verify(torch.arange(num_requests))

    label = f"{num_requests} requests, {vocab_size} tokens, {kind}{', masked' if has_mask else ''}"
    op = "verify_drafts_by_ratio"
    return Case(op, label, dtype, num_requests, verify, oracle, is_exact=True)


def _logits(source: Source, num_rows: int) -> Case:
    """Float32 logits of bfloat16 rows and head; the order of sums is the library's."""
    rows, head = source.normal(num_rows, HIDDEN), source.normal(1000, HIDDEN)

    def run(chosen: torch.Tensor) -> Outputs:
        invariant = source.batch_invariant
        return (ops.linear(rows[chosen], head, out_dtype=torch.float32, batch_invariant=invariant),)

    def oracle() -> Outputs:
        return (rows.double() @ head.double().T,)

    label = f"logits, {num_rows}x{HIDDEN}x1000"
    return Case("linear", label, source.dtype, num_rows, run, oracle, tolerance=2e-5)
