"""Command line of the training program."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiny import stages

_STAGES = (
    "download",
    "prepare",
    "ngram",
    "backbone",
    "plain",
    "drafter",
    "trials",
    "export",
    "calibrate",
    "card",
)
_GENERATED_DOCUMENTS = 16_000


def main(arguments: list[str] | None = None) -> int:
    """Runs the stages named on the command line, in their order."""
    parser = argparse.ArgumentParser(prog="train_tiny.py", description=__doc__)
    parser.add_argument("stage", nargs="*", help=f"what to run, of {', '.join(_STAGES)}")
    parser.add_argument("--smoke", type=Path, metavar="DIR", help="all stages in miniature")
    parser.add_argument("--packages", type=Path, default=Path("build/tiny/packages"))
    parser.add_argument("--data", type=Path, default=Path("build/tiny/data"))
    parser.add_argument("--out", type=Path, default=Path("build/tiny/out"))
    parser.add_argument("--checkpoint", type=Path, default=Path("build/tiny/checkpoint"))
    parser.add_argument("--backbone-seconds", type=float, default=225.0)
    parser.add_argument("--plain-seconds", type=float, default=225.0)
    parser.add_argument("--drafter-seconds", type=float, default=335.0)
    parser.add_argument("--batch", type=int, default=40, help="windows per step")
    parser.add_argument("--length", type=int, default=768, help="tokens per window")
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--drafter-batch", type=int, default=20, help="the drafter's windows")
    parser.add_argument("--anchors", type=int, default=128, help="draft blocks per window")
    parser.add_argument("--drafter-rate", type=float, default=1e-3, help="the drafter's peak rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="steps of each phase, instead of seconds")
    parser.add_argument("--compile", action="store_true", help="torch.compile, all but the drafter")
    parser.add_argument("--pool", type=int, help="fixed batches for the drafter, for a CPU")
    parser.add_argument("--trial-batch", type=int, default=128, help="contexts per trial batch")
    parser.add_argument("--trial-batches", type=int, default=16)
    parser.add_argument("--calibration-blocks", type=int, default=8192)
    parser.add_argument("--sample-every", type=int, default=4, help="documents per scored one")
    parser.add_argument("--no-graph", action="store_true", help="no CUDA graphs")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.stage) - set(_STAGES))
    if unknown or not (options.stage or options.smoke):
        parser.error(f"name stages of {', '.join(_STAGES)}, or --smoke DIR: got {unknown}")
    if options.smoke:
        from tiny.smoke import run_smoke

        run_smoke(options.smoke, _log)
    for stage in _STAGES:
        if stage in options.stage:
            _RUNNERS[stage](options)
    return 0


def _run_of(options: argparse.Namespace, seconds: float) -> stages.Run:
    return stages.Run(
        data=options.data,
        out=options.out,
        seconds=seconds,
        batch=options.batch,
        length=options.length,
        anchors=options.anchors,
        rate=options.rate,
        seed=options.seed,
        compile=options.compile,
        graph=not options.no_graph,
        max_steps=options.steps,
        pool=options.pool,
        trial_batch=options.trial_batch,
        trial_batches=options.trial_batches,
    )


def _log(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def _download(options: argparse.Namespace) -> None:
    from tiny.sources import download

    download(options.packages)


def _prepare(options: argparse.Namespace) -> None:
    from tiny.export import write_config
    from tiny.prepare import prepare
    from tiny.tokenizer import VOCAB_SIZE

    prepare(_documents(options), options.data, VOCAB_SIZE)
    write_config(options.data)


def _documents(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    from tiny.generated import generate_documents
    from tiny.sources import read_documents, wordnet_glosses

    yield from read_documents(options.packages)
    glosses = list(wordnet_glosses(options.packages / "wordnet"))
    for text in generate_documents(glosses, _GENERATED_DOCUMENTS, options.seed):
        yield "generated", text


def _backbone(options: argparse.Namespace) -> None:
    _log(stages.run_backbone(_run_of(options, options.backbone_seconds), _log))


def _plain(options: argparse.Namespace) -> None:
    _log(stages.run_plain(_run_of(options, options.plain_seconds), _log))


def _drafter(options: argparse.Namespace) -> None:
    run = replace(
        _run_of(options, options.drafter_seconds),
        batch=options.drafter_batch,
        rate=options.drafter_rate,
    )
    _log(stages.run_drafter(run, _log))


def _trials(options: argparse.Namespace) -> None:
    from tiny.trials import run_trials

    _log(run_trials(_run_of(options, 0.0), _log))


def _ngram(options: argparse.Namespace) -> None:
    _log(stages.run_ngram(_run_of(options, 0.0), _log))


def _export(options: argparse.Namespace) -> None:
    from tiny.engine import measure_export
    from tiny.export import export_run
    from tiny.state import add_facts

    _log(export_run(options.data, options.out, options.checkpoint))
    found = measure_export(_run_of(options, 0.0), options.checkpoint, options.sample_every)
    add_facts(options.out, "backbone", found)
    _log(found)


def _calibrate(options: argparse.Namespace) -> None:
    from tiny.calibrate import run_calibration

    run_calibration(_run_of(options, 0.0), options.checkpoint, options.calibration_blocks, _log)


def _card(options: argparse.Namespace) -> None:
    from tiny.card import write_card

    write_card(options.data, options.out, options.checkpoint / "README.md")


_RUNNERS = {
    "download": _download,
    "prepare": _prepare,
    "ngram": _ngram,
    "backbone": _backbone,
    "plain": _plain,
    "drafter": _drafter,
    "trials": _trials,
    "export": _export,
    "calibrate": _calibrate,
    "card": _card,
}


if __name__ == "__main__":
    sys.exit(main())
