"""The draw of tokens against the reference, whose token must come out whatever the row.

Rows of ties, of temperatures from 0 to where logits overflow, of masks that leave one token or
none, of NaN and infinities.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Case, Outputs, Source
from di_kernels.cases.kernels.release import VOCABULARY
from di_kernels.ops.sampling import _DRAW_TOKENS

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
    ):
        for num_rows in _ROWS:
            yield _case(source, num_rows, vocab_size, dtype, has_mask=has_mask)


def _case(
    source: Source, num_rows: int, vocab_size: int, dtype: torch.dtype, *, has_mask: bool
) -> Case:
    logits = source.wide(num_rows, vocab_size, scale=3).to(dtype)
    logits[1::4] = logits[1::4].round()
    logits[5::16, vocab_size // 2] = torch.nan
    logits[6::16, 1] = torch.inf
    logits[7::16] = -torch.inf
    logits[8::16] = 1.0
    temperature = torch.tensor(_TEMPERATURES, dtype=torch.float64, device=source.device)
    temperature = temperature.repeat(-(-num_rows // len(_TEMPERATURES)))[:num_rows]
    seed = source.integers(0, 2**62, num_rows) * 4 + 3  # wraps: all bits are used
    position = source.integers(0, 2**40, num_rows)
    mask = None
    if has_mask:
        mask = source.integers(-(2**31), 2**31, num_rows, -(-vocab_size // 32)).to(torch.int32)
        mask[2::8] = 0
        mask[3::8] = 0
        mask[3::8, 0] = 2

    def run(rows: torch.Tensor) -> Outputs:
        return ops.draw_tokens(
            logits[rows], temperature[rows], seed[rows], position[rows],
            mask_bits=None if mask is None else mask[rows], stream=3, offset=5,
        )  # fmt: skip

    def oracle() -> Outputs:
        return _DRAW_TOKENS.reference(logits, temperature, seed, position, mask, _PURPOSE)

    label = f"{num_rows}x{vocab_size}{', masked' if has_mask else ''}"
    return Case("draw_tokens", label, dtype, num_rows, run, oracle, is_exact=True)
