"""The model card: what the checkpoint was made from, how, and what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny.sources import SOURCES, Source
from tiny.state import load_facts

_OWN = {
    "generated": ("made by `tools/tiny/generated.py`", "Apache-2.0"),
    "python-docstrings": ("stored in `tools/tiny_corpus`", "PSF-2.0"),
}
_MODES = {"greedy": "greedy", "ratio": "T = 1, ratio", "coupled": "T = 1, coupled"}
_HEAD = """---
license: apache-2.0
language: en
---

# The built-in tiny checkpoint

A DeepSeek-V4.1 model of {parameters:.1f} million parameters with its DSpark drafter, in the
release's formats: MXFP8 linears, MXFP4 experts. It exists to show and test the engine. It has every
mechanism of the architecture, writes what looks like English, reST and Python, and knows nothing:
what it states is not true. It was trained on windows of {length} tokens, never on longer ones. It
was made by `tools/train_tiny.py` of the repository; `tools/tiny/README.md` describes the training.
"""


def write_card(data: Path, out: Path, path: Path) -> None:
    """Writes the card of a run; stages that were not run are named as such.

    Args:
        data: Directory that `prepare` wrote.
        out: Where the stages left their facts.
        path: The card.
    """
    names = ("backbone", "drafter", "plain", "ngram", "calibration")
    facts = {name: load_facts(out, name) for name in names}
    backbone = facts["backbone"] or {}
    summary = json.loads((data / "data.json").read_text())
    text = _HEAD.format(parameters=backbone["parameters"] / 1e6, length=backbone.get("length", "?"))
    text += _data_section(summary) + _training_section(facts)
    text += _loss_section(facts) + _router_section(backbone) + _drafter_section(facts["drafter"])
    text += _calibration_section(facts["calibration"])
    path.write_text(text, encoding="utf-8")


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines) + "\n"


def _data_section(summary: dict[str, dict[str, dict[str, int]]]) -> str:
    by_name = {source.name: source for source in SOURCES}
    rows = []
    for name, numbers in summary["train"].items():
        what, licence = _OWN[name] if name in _OWN else _described(by_name[name])
        held_out = summary["held_out"].get(name, {"bytes": 0})
        sizes = [f"{numbers['bytes'] / 1e6:.2f}", f"{held_out['bytes'] / 1e6:.2f}"]
        rows.append([name, what, licence, *sizes])
    head = ["source", "what", "licence", "training MB", "held-out MB"]
    return (
        "\n## Data\n\n" + _table(head, rows) + "\nOne document in 40 of every source is held out. "
        "Lines with names of authors, credits or\naddresses are left out, and so are the entries "
        "of WordNet that start with a capital. Generated\ndocuments are chat turns, tool calls and "
        "JSON in the V4.1 prompt format; their held-out part\nfollows the same patterns as the "
        "training part. WordNet 3.0 Copyright 2006 by Princeton University.\nAll rights reserved.\n"
    )


def _described(source: Source) -> tuple[str, str]:
    return f"{source.what} (`{source.package}`)", source.licence


def _training_section(facts: dict[str, Any]) -> str:
    rows = []
    for name in ("backbone", "drafter", "plain"):
        values = facts[name]
        if values is None:
            rows.append([name, "not run", "", "", ""])
            continue
        amount = f"{values['tokens'] / 1e6:.1f} M tokens" if "tokens" in values else ""
        if "blocks" in values:
            amount = f"{values['blocks'] / 1e3:.0f} k draft blocks"
        seconds = f"{values['train_seconds']:.0f} s of {values['seconds']:.0f} s"
        rows.append([name, values.get("machine", "?"), seconds, f"{values['steps']}", amount])
    head = ["stage", "machine", "steps made in", "steps", "amount"]
    return "\n## Training\n\n" + _table(head, rows)


def _loss_section(facts: dict[str, Any]) -> str:
    columns: dict[str, dict[str, float]] = {}
    backbone = facts["backbone"] or {}
    columns["before export"] = backbone.get("bits_per_byte_unrounded", {})
    columns["rounded in training"] = backbone.get("bits_per_byte_rounded", {})
    columns["plain transformer"] = (facts["plain"] or {}).get("bits_per_byte", {})
    columns["5-gram"] = (facts["ngram"] or {}).get("bits_per_byte", {})
    names = list(columns["before export"])
    rows = [
        [name, *(f"{values[name]:.3f}" if name in values else "-" for values in columns.values())]
        for name in names
    ]
    note = ""
    if "bits_per_byte_engine" in backbone:
        before, after = backbone["bits_per_byte_sample"], backbone["bits_per_byte_engine"]
        note = (
            f"The exported file in the engine's native arithmetic gives {after['all']:.3f} on a "
            f"sample of the held-out\ndocuments (their first 192 tokens), the unrounded weights "
            f"give {before['all']:.3f} there."
        )
    if facts["plain"] is not None:
        note += "\n" + _comparison(backbone, facts["plain"])
    return (
        "\n## Held-out bits per byte\n\n"
        + _table(["source", *columns], rows)
        + f"\n{note.strip()}\n"
    )


def _comparison(backbone: dict[str, Any], plain: dict[str, Any]) -> str:
    """Says which of the two models is better, and what each was given."""
    ours, other = backbone["bits_per_byte_unrounded"]["all"], plain["bits_per_byte"]["all"]
    verdict = "is better than this one" if other < ours else "is no better than this one"
    return (
        f"The plain transformer of {plain['parameters'] / 1e6:.1f} M parameters {verdict}: "
        f"{other:.3f} bits per byte over all\nagainst {ours:.3f}. It made steps for "
        f"{plain['train_seconds']:.0f} s ({plain['tokens'] / 1e6:.0f} M tokens), the backbone for "
        f"{backbone['train_seconds']:.0f} s ({backbone['tokens'] / 1e6:.0f} M\ntokens); the rest "
        "of their times is compiling."
    )


def _router_section(backbone: dict[str, Any]) -> str:
    balance = backbone["balance"]
    return (
        "\n## Experts\n\nOn held-out text the least used expert of any layer receives "
        f"{balance['smallest']:.2f} of the mean of\nits layer, the most used one "
        f"{balance['largest']:.2f}.\n"
    )


def _drafter_section(drafter: dict[str, Any] | None) -> str:
    if drafter is None:
        return "\n## Drafter\n\nNot trained: its weights are random.\n"
    if "greedy" not in drafter:
        chance = 1 - drafter["distance"] / 2
        return (
            f"\n## Drafter\n\nThe last training batch gave a draft a chance of {chance:.2f} "
            "under the ratio test, given that the ones\nbefore it are right. Accepted lengths "
            "were not measured.\n"
        )
    rows = []
    for name, label in _MODES.items():
        found = drafter[name]
        shares = ", ".join(f"{value:.2f}" for value in found["conditional"])
        contexts = str(found["calibration"]["trials"])
        rows.append([label, f"{found['mean_length']:.2f}", shares, contexts])
    head = [
        "verification",
        "tokens per step",
        "accepted at position, given the ones before",
        "contexts",
    ]
    return (
        "\n## Drafter\n\nFive drafts after contexts of 128 held-out tokens, sources by their share "
        "of the tokens; the\ntarget's own token is counted. The means are carried by the generated "
        "documents, which repeat few\npatterns: written text gets about 2 tokens per step.\n\n"
        + _table(head, rows)
        + "\nTokens per step by source:\n\n"
        + _source_table(drafter)
    )


def _source_table(drafter: dict[str, Any]) -> str:
    return _table(
        ["source", *_MODES.values()],
        [
            [source, *(f"{drafter[mode]['by_source'][source]:.2f}" for mode in _MODES)]
            for source in drafter["greedy"]["by_source"]
        ],
    )


def _calibration_section(calibration: dict[str, Any] | None) -> str:
    if calibration is None:
        return "\n## Confidences\n\nNo temperatures were fitted.\n"
    rows = []
    modes = {mode: label for mode, label in _MODES.items() if mode in calibration}
    for mode, label in modes.items():
        found = calibration[mode]
        for name, errors in (
            ("without a fit", found["error_before"]),
            ("fitted", found["error_after"]),
            ("of right predictions", found["error_of_chance"]),
        ):
            rows.append([label, name, *(f"{value:.3f}" for value in errors.values())])
    places = list(next(iter(calibration.values()))["error_after"])
    lines = [
        f"- {label}: {', '.join(map(str, calibration[mode]['temperatures']))} (fitted to "
        f"{calibration[mode]['blocks_fitting']} blocks, judged on "
        f"{calibration[mode]['blocks_judging']} others)"
        for mode, label in modes.items()
    ]
    return (
        "\n## Confidences\n\nExpected calibration errors (15 bins) of the chance that the drafts "
        "up to a position stand, in the\nengine, where requests of 40 tokens continue held-out "
        "documents. The error is biased upwards by\nthe number of blocks: *of right predictions* "
        "is what outcomes drawn from the fitted predictions\nthemselves show.\n\n"
        + _table(["verification", "confidences", *places], rows)
        + "\nTemperatures by position:\n\n"
        + "\n".join(lines)
        + "\n"
    )
