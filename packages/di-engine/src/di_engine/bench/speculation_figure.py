"""Draws a report of `bench_speculation`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from di_engine.errors import UnsupportedEnvironmentError

__all__ = ["draw_speculation"]


def draw_speculation(report: dict[str, Any], file: Path) -> None:
    """Writes four panels as a PNG: acceptance, accepted drafts, rows, tokens per second.

    Args:
        report: From `bench_speculation`.
        file: Where to write.

    Raises:
        UnsupportedEnvironmentError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedEnvironmentError(
            "drawing needs `matplotlib`: install `di-engine[figures]`"
        ) from error

    figure = Figure(figsize=(10, 7), layout="constrained")
    FigureCanvasAgg(figure)
    acceptance, lengths, rows, rates = figure.subplots(2, 2).flat

    seen = [entry for entry in report["survival_at"] if entry["num_verified"]]
    places = [entry["position"] for entry in seen]
    acceptance.plot(places, [entry["observed"] for entry in seen], "o-", label="observed")
    acceptance.plot(places, [entry["predicted"] for entry in seen], "s--", label="predicted")
    acceptance.set(
        title="chance that a verified draft is accepted", xlabel="draft", ylim=(0, 1), xticks=places
    )
    acceptance.legend()

    histogram = report["accepted_histogram"]
    lengths.bar(range(len(histogram)), histogram)
    lengths.set(
        title=f"accepted drafts (mean length {report['accepted_length'] or 0:.2f})",
        xlabel="drafts accepted in a step of a request",
        ylabel="times",
    )

    per_step = report["rows_per_step"]
    rows.bar([int(count) for count in per_step], list(per_step.values()))
    rows.set(title=f"budget: {report['budget']}", xlabel="rows of a step", ylabel="steps")

    names = ["plain", "speculative"]
    spreads = [report["tokens_per_s"][name] for name in names]
    medians = [spread["median"] for spread in spreads]
    errors = [
        [spread["median"] - spread["min"] for spread in spreads],
        [spread["max"] - spread["median"] for spread in spreads],
    ]
    rates.bar(names, medians, yerr=errors, capsize=6)
    rates.set(
        title=f"tokens per second ({report['tokens_per_s']['ratio']:.2f} times)",
        ylabel="tokens / s",
    )
    figure.suptitle(
        f"{report['drafter']}, {report['num_draft_tokens']} drafts, {report['verification']}, "
        f"batch {report['batch_size']}, temperature {report['temperature']}; {report['model']} on "
        f"{report['device']}"
    )
    figure.savefig(file, format="png", dpi=110)
