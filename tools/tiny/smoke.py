"""The whole pipeline in miniature: every stage for a few steps, on the CPU, from stored texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tiny import stages
from tiny.calibrate import run_calibration
from tiny.card import write_card
from tiny.engine import measure_export
from tiny.export import export_run, write_config
from tiny.generated import generate_documents
from tiny.prepare import prepare
from tiny.state import add_facts, load_facts
from tiny.tokenizer import VOCAB_SIZE
from tiny.trials import run_trials

CORPUS = Path(__file__).resolve().parents[1] / "tiny_corpus" / "python_docstrings.txt"
_PARAGRAPHS = 40
_GENERATED = 80
_GLOSSES = [
    ("lamp", "noun", 'a source of light; "a lamp on the table"'),
    ("read", "verb", "look at and understand something written"),
    ("small", "adjective", "limited in size"),
    ("often", "adverb", "many times"),
]


def run_smoke(directory: Path, log: stages.Log) -> dict[str, Any]:
    """Runs all stages into a directory; returns the facts of each.

    Args:
        directory: Receives ``data``, ``out`` and ``checkpoint``.
        log: Receives progress.
    """
    data, out, checkpoint = (directory / name for name in ("data", "out", "checkpoint"))
    prepare(_documents(), data, VOCAB_SIZE)
    write_config(data)
    run = stages.Run(
        data,
        out,
        seconds=600.0,
        batch=2,
        length=64,
        anchors=4,
        max_steps=3,
        eval_limit=64,
        trial_batch=2,
        trial_batches=2,
        pool=2,
    )
    for stage in (
        stages.run_ngram,
        stages.run_backbone,
        stages.run_plain,
        stages.run_drafter,
        run_trials,
    ):
        log({"stage": stage.__name__})
        stage(run, log)
    log(export_run(data, out, checkpoint))
    add_facts(out, "backbone", measure_export(run, checkpoint, every=4))
    run_calibration(run, checkpoint, 2, log)
    write_card(data, out, checkpoint / "README.md")
    found = {
        name: load_facts(out, name)
        for name in ("ngram", "backbone", "plain", "drafter", "calibration")
    }
    (directory / "facts.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return found


def _documents() -> Iterator[tuple[str, str]]:
    paragraphs = CORPUS.read_text(encoding="utf-8").split("\n\n")
    for start in range(0, len(paragraphs), _PARAGRAPHS):
        yield "python-docstrings", "\n\n".join(paragraphs[start : start + _PARAGRAPHS])
    for text in generate_documents(_GLOSSES, _GENERATED, seed=0):
        yield "generated", text
