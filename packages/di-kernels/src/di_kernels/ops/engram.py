"""Engram: hashed n-gram embeddings added to the residual streams behind a gate.

Source: DeepSeek-V4.1 reference `inference/engram.py`. The hash of order o multiplies the compressed
ids of the last o tokens by per-position odd numbers, combines them with exclusive or, and takes the
rest modulo one prime per head; every (order, head) is a column with its own range of table rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from di_kernels.checks import check_dtype, check_shape
from di_kernels.formats import MX_GROUP, mxfp8_decode
from di_kernels.numerics import sigmoid, widen
from di_kernels.registry import FLOATS, Op

_SEED_STRIDE = 10007
_GATE_FLOOR = 1e-6
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, eq=False)
class EngramHashTables:
    """Constants of the hash of all Engram layers.

    Args:
        primes: Shape (layers, orders, heads), int64.
        offsets: First table row of each column, shape (layers, orders * heads), int64.
        multipliers: Factor of the token r positions back, shape (layers, max_ngram_size), int64.
        num_rows: Table rows of each layer.
    """

    primes: torch.Tensor
    offsets: torch.Tensor
    multipliers: torch.Tensor
    num_rows: tuple[int, ...]

    def to(self, device: torch.device | str) -> EngramHashTables:
        """The same constants on another device."""
        return EngramHashTables(
            self.primes.to(device),
            self.offsets.to(device),
            self.multipliers.to(device),
            self.num_rows,
        )


@dataclass(frozen=True, slots=True, eq=False)
class EngramTable:
    """A table of MXFP8 rows, as in the checkpoint.

    Args:
        data: Shape (num_rows, size), float8_e4m3fn.
        scale: Shape (num_rows, size / 32), float8_e8m0fnu or uint8.

    Raises:
        ValueError: The scale does not cover the data exactly.
        TypeError: Another dtype.
    """

    data: torch.Tensor
    scale: torch.Tensor

    def __post_init__(self) -> None:
        check_dtype("data", self.data, (torch.float8_e4m3fn,))
        check_dtype("scale", self.scale, (torch.float8_e8m0fnu, torch.uint8))
        check_shape("data", self.data, (None, None))
        check_shape("scale", self.scale, (self.data.shape[0], self.data.shape[1] // MX_GROUP))


def engram_hash_tables(
    layer_ids: Sequence[int],
    max_ngram_size: int,
    num_heads: int,
    vocab_size: int,
    compressed_vocab_size: int,
) -> EngramHashTables:
    """Primes, offsets and multipliers, computed from the configuration.

    Every column of every layer takes the next unused prime from `vocab_size` on. The multipliers of
    a layer are odd numbers drawn by numpy's PCG64 seeded with 10007 times the layer number, small
    enough that no product overflows.

    Args:
        layer_ids: Engram layers in the order of the configuration.
        max_ngram_size: Largest order; the orders are 2 to this.
        num_heads: Hashes per order.
        vocab_size: Start of the prime search.
        compressed_vocab_size: Number of compressed token ids.

    Returns:
        The constants, on the CPU.

    Raises:
        ValueError: An order below 2, or a size below 1.
    """
    if max_ngram_size < 2:
        raise ValueError(f"invalid `max_ngram_size`: expected at least 2, got: {max_ngram_size}")
    for name, size in (("num_heads", num_heads), ("compressed_vocab_size", compressed_vocab_size)):
        if size < 1:
            raise ValueError(f"invalid `{name}`: expected at least 1, got: {size}")
    shape = (len(layer_ids), max_ngram_size - 1, num_heads)
    search = _primes_from(vocab_size)
    primes = torch.tensor([next(search) for _ in range(int(np.prod(shape)))], dtype=torch.int64)
    columns = primes.view(shape[0], shape[1] * shape[2])
    offsets = torch.cumsum(columns, dim=1) - columns
    bound = max(1, _INT64_MAX // compressed_vocab_size // 2)
    draws = [
        np.random.default_rng(_SEED_STRIDE * layer).integers(
            0, bound, size=max_ngram_size, dtype=np.int64
        )
        for layer in layer_ids
    ]
    drawn = np.stack(draws) if draws else np.empty((0, max_ngram_size), np.int64)
    num_rows = tuple(int(total) for total in columns.sum(1))
    return EngramHashTables(primes.view(shape), offsets, torch.from_numpy(2 * drawn + 1), num_rows)


def engram_hash(context: torch.Tensor, pad_id: int, tables: EngramHashTables) -> torch.Tensor:
    """Table rows of every column, for all Engram layers.

    Args:
        context: Compressed ids of the current token (column 0) and of those before it, shape
            (num_rows, max_ngram_size), int64. -1 stands for a position before the start or inside
            an image; it and everything farther back count as padding.
        pad_id: Compressed id of the padding token.
        tables: Constants, on the same device.

    Returns:
        Shape (num_rows, layers, columns), int64; -1 in all columns where the current token is -1.

    Raises:
        ValueError: The context has another width.
    """
    check_shape("context", context, (None, tables.multipliers.shape[1]))
    run = _ENGRAM_HASH.select(context, heads=tables.primes.shape[2])
    return run(context, pad_id, tables)


def engram_lookup(
    table: torch.Tensor | EngramTable, rows: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Concatenated table rows.

    Args:
        table: Dense, shape (num_table_rows, size), or an `EngramTable`; on the device of `rows`, or
            CUDA views of pinned host memory (`di_kernels.cuda_view`).
        rows: Shape (num_rows, columns), int64; -1 gives zeros.
        dtype: Dtype of the result.

    Returns:
        Shape (num_rows, columns * size).

    Raises:
        IndexError: A row the table does not have, on a CPU. Where a kernel serves, it gives zeros.
    """
    check_shape("rows", rows, (None, None))
    is_dense = isinstance(table, torch.Tensor)
    values = table if isinstance(table, torch.Tensor) else table.data
    layout = f"{'dense' if is_dense else 'MXFP8'} rows to {str(dtype).removeprefix('torch.')}"
    run = _ENGRAM_LOOKUP.select(values, layout=layout, size=values.shape[1])
    return run(table, rows, dtype)


def engram_gate(
    x: torch.Tensor,
    keys: torch.Tensor,
    value: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float = 1e-20,
    row_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Streams plus the gated value.

    Per copy: d = sum of x * weight * key / (rms(x) * rms(key) * sqrt(hidden)), gate =
    sigmoid(copysign(sqrt(max(|d|, 1e-6)), d)), result x + gate * value.

    Args:
        x: Streams, shape (num_rows, copies, hidden), float32, float64 or bfloat16.
        keys: One key per copy, shape of `x`.
        value: Shared by the copies, shape (num_rows, hidden).
        weight: Product of the query and key norm weights, shape (copies, hidden), float32 or
            float64.
        eps: Added to both means of squares.
        row_mask: Rows to change, shape (num_rows,), bool; the others come back bit for bit. None
            for all.

    Returns:
        Shape and dtype of `x`.

    Raises:
        ValueError: The shapes do not match.
    """
    check_shape("x", x, (None, None, None))
    check_shape("keys", keys, tuple(x.shape))
    check_shape("value", value, (x.shape[0], x.shape[2]))
    check_shape("weight", weight, tuple(x.shape[1:]))
    if row_mask is not None:
        check_shape("row_mask", row_mask, (x.shape[0],))
    run = _ENGRAM_GATE.select(x, copies=x.shape[1], hidden=x.shape[2])
    return run(x, keys, value, weight, eps, row_mask)


# --- Reference ---


def _primes_from(start: int) -> Iterator[int]:
    candidate = max(start, 2)
    while True:
        if all(candidate % divisor for divisor in range(2, int(candidate**0.5) + 1)):
            yield candidate
        candidate += 1


def _engram_hash(context: torch.Tensor, pad_id: int, tables: EngramHashTables) -> torch.Tensor:
    """Signed 64-bit arithmetic: no product overflows, so every number is non-negative."""
    is_blocked = (context < 0).cumsum(1) > 0
    ids = torch.where(is_blocked, pad_id, context)
    products = ids.unsqueeze(1) * tables.multipliers
    mixed, orders = products[..., 0], []
    for back in range(1, products.shape[-1]):
        mixed = mixed ^ products[..., back]
        orders.append(mixed)
    remainders = torch.stack(orders, dim=-1).unsqueeze(-1) % tables.primes
    rows = remainders.flatten(-2) + tables.offsets
    return torch.where(is_blocked[:, :1, None], -1, rows)


def _engram_lookup(
    table: torch.Tensor | EngramTable, rows: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Indexed copy, then decode."""
    present = rows.clamp_min(0).flatten()
    if isinstance(table, torch.Tensor):
        values = table.index_select(0, present).to(dtype)
    else:
        codes = table.data.view(torch.uint8).index_select(0, present).view(torch.float8_e4m3fn)
        values = mxfp8_decode(codes, table.scale.view(torch.uint8).index_select(0, present), dtype)
    size = values.shape[-1]
    values = values.masked_fill((rows < 0).flatten().unsqueeze(1), 0)
    return values.view(rows.shape[0], rows.shape[1] * size)


def _engram_gate(
    x: torch.Tensor,
    keys: torch.Tensor,
    value: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    row_mask: torch.Tensor | None,
) -> torch.Tensor:
    """Float32 (float64) arithmetic, one rounding at the end."""
    wide, wide_keys = widen(x), widen(keys).to(widen(x).dtype)
    dot = (wide * weight.to(wide.dtype) * wide_keys).sum(-1)
    x_norm = torch.rsqrt(wide.square().mean(-1) + eps)
    key_norm = torch.rsqrt(wide_keys.square().mean(-1) + eps)
    dot = dot * x_norm * key_norm * x.shape[-1] ** -0.5
    # The sign of a zero counts: -0 gives a gate just below one half.
    signed_root = torch.copysign(dot.abs().clamp_min(_GATE_FLOOR).sqrt(), dot)
    added = wide + sigmoid(signed_root).unsqueeze(-1) * value.to(wide.dtype).unsqueeze(1)
    if row_mask is None:
        return added.to(x.dtype)
    return torch.where(row_mask.view(-1, 1, 1), added.to(x.dtype), x)


_ENGRAM_HASH = Op("engram_hash", _engram_hash, dtypes=(torch.int64,), is_differentiable=False)
_ENGRAM_LOOKUP = Op("engram_lookup", _engram_lookup, dtypes=(torch.float8_e4m3fn, *FLOATS))
_ENGRAM_GATE = Op("engram_gate", _engram_gate)
