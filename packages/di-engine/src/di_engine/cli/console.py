"""Where text goes: data to standard output, everything else to standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from di_engine.core.assembly import LoadProgress
from di_engine.llm.llm import BatchProgress

__all__ = ["batch_progress", "load_progress", "note", "stderr", "stdout"]

stdout = Console(highlight=False, soft_wrap=True)
"""For data. Colour only on a terminal, and never with `NO_COLOR`."""

stderr = Console(stderr=True, highlight=False, soft_wrap=True)
"""For progress, notes and errors."""


def note(text: str, quiet: bool = False) -> None:
    """Says what is being done, unless `quiet`."""
    if not quiet:
        stderr.print(text, markup=False)


@contextmanager
def load_progress(quiet: bool) -> Iterator[LoadProgress]:
    """Shows bytes while weights are fetched and read; nothing if quiet or not on a terminal."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        console=stderr,
        disable=quiet or not stderr.is_terminal,
        transient=True,
    )
    tasks: dict[str, TaskID] = {}

    def update(done_bytes: int, total_bytes: int, what: str) -> None:
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=total_bytes)
        bar.update(tasks[what], completed=done_bytes, total=total_bytes)

    with bar:
        yield update


@contextmanager
def batch_progress(quiet: bool) -> Iterator[BatchProgress]:
    """Shows finished requests and generated tokens; nothing if quiet or not on a terminal."""
    bar = Progress(
        TextColumn("requests"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[num_tokens]} tokens"),
        TimeElapsedColumn(),
        console=stderr,
        disable=quiet or not stderr.is_terminal,
        transient=True,
    )
    task = bar.add_task("requests", total=None, num_tokens=0)

    def update(num_finished: int, num_requests: int, num_tokens: int) -> None:
        bar.update(task, completed=num_finished, total=num_requests, num_tokens=num_tokens)

    with bar:
        yield update
