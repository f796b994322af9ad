"""Comparison of the stored tensors with what the configuration asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from di_engine.checkpoint.header import StoredTensor
from di_engine.checkpoint.names import Part, TensorSpec, part_of_name

__all__ = ["compare_tensors", "format_problems"]

# A wholly wrong checkpoint has 96,085 problems; the message stays readable and says what it omits.
_SHOWN_PER_KIND = 50


def compare_tensors(
    stored: Mapping[str, StoredTensor],
    expected: Mapping[str, TensorSpec],
    parts: tuple[Part, ...],
) -> dict[str, list[str]]:
    """Returns the problems by kind: `missing`, `unexpected`, `misshaped`, `wrong dtype`.

    Args:
        stored: Tensors of the checkpoint by plain name.
        expected: What the parts to be read consist of.
        parts: The parts that `expected` covers. Stored tensors of other parts are known by their
            name prefix and never a problem.
    """
    problems: dict[str, list[str]] = {
        "missing": [],
        "unexpected": [],
        "misshaped": [],
        "wrong dtype": [],
    }
    for name, spec in expected.items():
        tensor = stored.get(name)
        if tensor is None:
            problems["missing"].append(f"`{name}` {list(spec.shape)} {spec.dtypes[0]}")
            continue
        if tensor.dtype not in spec.dtypes:
            allowed = " or ".join(spec.dtypes)
            problems["wrong dtype"].append(f"`{name}`: {tensor.dtype}, expected {allowed}")
        if tensor.shape != spec.shape:
            problems["misshaped"].append(
                f"`{name}`: {list(tensor.shape)}, expected {list(spec.shape)}"
            )
    for name, tensor in stored.items():
        if name not in expected and part_of_name(name) in parts:
            problems["unexpected"].append(
                f"`{name}` {list(tensor.shape)} {tensor.dtype} in `{tensor.path.name}`"
            )
    return {kind: lines for kind, lines in problems.items() if lines}


def format_problems(problems: Mapping[str, list[str]], extra: Iterable[str] = ()) -> str:
    """Returns one text with every kind, its count and its lines (the first 50 of each kind)."""
    lines = list(extra)
    for kind, entries in problems.items():
        lines.append(f"{len(entries)} {kind}:")
        lines += [f"  {entry}" for entry in entries[:_SHOWN_PER_KIND]]
        if len(entries) > _SHOWN_PER_KIND:
            lines.append(f"  ... and {len(entries) - _SHOWN_PER_KIND} more")
    return "\n  ".join(lines)
