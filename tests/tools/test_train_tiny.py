"""Training of the tiny checkpoint: its mathematics is the engine's, and the whole of it runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from di_engine import LLM, SamplingParams, tiny
from di_engine.checkpoint import open_checkpoint
from di_engine.model import Numerics, RequestRows, StepBatch
from di_engine.model.drafter import Drafter as EngineDrafter
from di_engine.model.drafter import DraftingModel
from di_engine.model.token_map import build_token_map
from tiny import optimise, sources
from tiny.acceptance import Trials, calibration_error, fit_temperatures
from tiny.backbone import Backbone, Mode
from tiny.calibrate import judge
from tiny.config import Sizes
from tiny.drafter import Drafter
from tiny.engine import EngineModel
from tiny.export import full_config, write_checkpoint
from tiny.measure import windows_of
from tiny.ngram import NgramModel
from tiny.optimise import Batches, Schedule, Trainer, make_optimizer, train_for
from tiny.prepare import TokenStream
from tiny.sources import without_personal_data
from tiny.state import load_state, save_state
from tiny.trials import held_out_contexts
from tiny.weights import Initial, compute_weights

LENGTH = 96


def stream_of(*documents: list[int]) -> TokenStream:
    lengths = np.array([len(document) for document in documents])
    return TokenStream(
        np.concatenate([np.array(document, dtype=np.uint16) for document in documents]),
        np.cumsum(lengths) - lengths,
        np.zeros(len(documents), dtype=np.int64),
        2 * lengths,
        ("texts",),
    )


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """Random weights, exported: sizes, weights for training, biases, and the directory."""
    tokenizer_json = (tiny.directory() / "tokenizer.json").read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_str(tokenizer_json)
    sizes = Sizes.of(full_config(tokenizer)["text_config"])
    initial = Initial(sizes, seed=0)
    parameters = initial.backbone() | initial.drafter()
    generator = torch.Generator().manual_seed(1)
    for name, value in parameters.items():
        if value.dim() == 1 or "confidence" in name:
            value += 0.2 * torch.randn(value.shape, generator=generator)
        if not name.endswith(("_fn", "_base", "_scale", "attn_sink")):
            parameters[name] = value.bfloat16().float()
    biases = 0.1 * torch.randn(sizes.num_hidden_layers, sizes.n_routed_experts, generator=generator)
    drafter_biases = 0.1 * torch.randn(
        sizes.num_nextn_predict_layers, sizes.dspark_n_routed_experts, generator=generator
    )
    directory = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(directory, tokenizer_json, parameters, biases, drafter_biases)
    token_map = torch.from_numpy(build_token_map(tokenizer, sizes.vocab_size))
    backbone = Backbone(sizes, token_map, torch.device("cpu"))
    return sizes, parameters, (biases, drafter_biases), backbone, directory


def test_exported_weights_give_the_engine_the_same_logits_and_drafts(kit) -> None:
    sizes, parameters, biases, backbone, directory = kit
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(3, sizes.vocab_size, (1, LENGTH), generator=generator)
    engine = EngineModel(directory, Numerics("float32", "compute"), LENGTH)
    mode = Mode(torch.float32, sparse=True)
    with torch.no_grad():
        w = compute_weights(parameters, torch.float32, quantised=True)
        hidden, trace = backbone(w, biases[0], tokens, mode)
        logits = hidden[0] @ w["head.weight"].T
    expected = engine.logits(tokens[0].tolist())
    # Below 32 entries all are selected; later a nearly equal score may select another one.
    torch.testing.assert_close(logits[:32], expected[:32], atol=2e-3, rtol=1e-3)
    assert (logits - expected).abs().mean() < 2e-2

    anchor = 30
    drafter = Drafter(sizes)
    features = torch.cat(trace.features, dim=-1)
    with torch.no_grad():
        rotary = backbone.rotary(LENGTH)
        anchors = torch.tensor([[anchor]])
        draft, _ = drafter(w, biases[1], features, tokens, anchors, rotary, mode)
        corrected, confidence = drafter.corrected(
            w, draft, tokens[:, None, anchor : anchor + sizes.dspark_block_size]
        )
    found_logits, found_confidence = engine_draft(engine, directory, tokens[0].tolist(), anchor)
    torch.testing.assert_close(corrected[0, 0], found_logits, atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(confidence[0, 0], found_confidence, atol=2e-3, rtol=1e-3)
    assert corrected.std() > 0.3


def engine_draft(engine, directory, tokens, anchor):
    """Corrected logits and confidence logits of the engine's block after `anchor` tokens."""
    with open_checkpoint(directory, engine.config, parts=("text", "drafter")) as source:
        drafter = EngineDrafter.load(engine.config, source, engine.backbone)
    rows = RequestRows(tokens[:anchor], 0, list(range(engine.num_blocks)), 0)
    batch = StepBatch.build([rows], ngram_size=engine.config.engram_max_ngram_size)
    DraftingModel(engine.backbone, drafter).forward(batch, engine.cache)
    first = torch.zeros(1, dtype=torch.int64)
    block = drafter.run(
        torch.tensor([tokens[anchor]]), torch.tensor([anchor]), first, first, engine.cache
    )
    rows = [
        drafter.correct(block, row, torch.tensor([tokens[anchor + row]]))
        for row in range(engine.config.dspark_block_size)
    ]
    return torch.cat([logits for logits, _ in rows]), torch.cat([value for _, value in rows])


@pytest.mark.slow
def test_every_stage_runs_and_its_checkpoint_serves(tmp_path) -> None:
    from tiny.smoke import run_smoke  # needs deepseek-recipe, the other tests do not

    facts = run_smoke(tmp_path, log=lambda line: None)
    assert facts["backbone"]["bits_per_byte_rounded"]["all"] < 12 / np.log2(np.e) * 2
    assert facts["ngram"]["bits_per_byte"]["all"] > 0
    assert facts["drafter"]["ratio"]["mean_length"] >= 1.0
    assert facts["plain"]["train_seconds"] <= facts["backbone"]["train_seconds"] + 5
    assert set(facts["calibration"]) == {"ratio", "coupled", "greedy"}
    assert len(facts["calibration"]["ratio"]["temperatures"]) == 5
    card = (tmp_path / "checkpoint" / "README.md").read_text(encoding="utf-8")
    assert f"{facts['plain']['bits_per_byte']['all']:.3f}" in card
    with LLM(str(tmp_path / "checkpoint"), max_running=1, max_model_len=128) as llm:
        (output,) = llm.generate(["def "], SamplingParams(max_tokens=4, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 4


def test_names_and_addresses_are_left_out() -> None:
    text = "a = 1\n# Author: Jo Doe\nb (Contributed by Jo Doe in :issue:`1`.) c\nmail jo@doe.org\nd"
    assert without_personal_data(text) == "a = 1\nb  c\nd"


def test_a_download_that_breaks_off_leaves_nothing_under_the_name_of_a_package(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []

    def fetch(package: str, directory: Path, target: Path) -> None:
        assert directory.is_absolute()  # the clients run inside it
        asked.append(package)
        target.mkdir()
        (target / "first").touch()
        if len(asked) == 2:
            raise OSError("broken off")
        (target / "second").touch()

    monkeypatch.setattr(sources, "_FETCHERS", dict.fromkeys(("debian", "sdist", "wheel"), fetch))
    with pytest.raises(OSError, match="broken off"):
        sources.download(Path("packages"))
    names = [source.name for source in sources.SOURCES]
    assert [path.name for path in Path("packages").iterdir()] == names[:1]
    sources.download(Path("packages"))
    packages = [source.package for source in sources.SOURCES]
    assert asked == [*packages[:2], *packages[1:]]  # what is there is not fetched again
    assert all((Path("packages") / name / "second").is_file() for name in names)


def test_every_token_but_the_first_is_scored_once() -> None:
    stream = stream_of([0, *range(5, 60), 1], [0, 7, 1])
    scored: list[list[int]] = [[], []]
    for window in windows_of(stream, length=20, context=5, limit=1000):
        document = 0 if len(scored[0]) < 56 else 1
        scored[document].extend(window.tokens[-window.scored :].tolist())
    assert scored == [[*range(5, 60), 1], [7, 1]]


def test_contexts_of_trials_lie_within_documents_and_sources_keep_their_shares() -> None:
    documents = [[0, *range(5, 5 + size), 1] for size in (40, 30, 10, 118)]
    stream = replace(stream_of(*documents), sources=np.array([0, 0, 0, 1]), names=("short", "long"))
    begins, sources = held_out_contexts(stream, 4000, length=32, seed=0)
    ends = np.append(stream.starts[1:], len(stream.tokens))
    document = np.searchsorted(stream.starts, begins, side="right") - 1
    assert set(document) == {0, 3}
    assert (begins + 32 < ends[document]).all()
    assert (sources == stream.sources[document]).all()
    assert sources.mean() == pytest.approx(120 / 206, abs=0.03)
    with pytest.raises(ValueError, match="more than 200 tokens"):
        held_out_contexts(stream, 1, length=200, seed=0)


def test_a_stage_that_was_killed_goes_on_from_its_last_state(tmp_path, monkeypatch) -> None:
    weight = torch.zeros(1, requires_grad=True)
    optimizer = make_optimizer({"w": weight}, 0.0)
    batches = Batches(stream_of([0, *range(5, 60), 1]), 2, 8, torch.device("cpu"), seed=0)
    fails_at = 61

    def step(batch: torch.Tensor) -> dict[str, torch.Tensor]:
        nonlocal fails_at
        fails_at -= 1
        return {"loss": ((weight - 1) ** 2).sum() if fails_at else weight.sum() * torch.nan}

    saved: list[tuple[float, int]] = []
    monkeypatch.setattr(optimise, "_SAVE_EVERY", 0.0)
    trainer = Trainer({"w": weight}, optimizer, step, batches.draw(), use_graph=False)
    with pytest.raises(FloatingPointError, match="step 80 has the loss nan"):
        train_for(
            trainer,
            batches,
            Schedule(1e-2),
            0.2,
            1.0,
            deadline=0.0,
            log=lambda line: None,
            max_steps=100,
            save=lambda progress, steps: saved.append((round(progress, 3), steps)),
        )
    assert saved == [(0.352, 20), (0.512, 40), (0.672, 60)]


def test_a_state_without_tensors_is_one_file(tmp_path) -> None:
    save_state(tmp_path, "plain", {}, {"steps": 3})
    assert [path.name for path in tmp_path.iterdir()] == ["plain.json"]
    assert load_state(tmp_path, "plain", torch.device("cpu")) == ({}, {"steps": 3})


def test_ngram_probabilities_sum_to_one_and_follow_counts() -> None:
    model = NgramModel(stream_of([0, 2, 3, 2, 3, 2, 4, 1]), order=3, vocab_size=8)
    totals = sum(model.probabilities(np.array([0, 2, token]))[-1] for token in range(8))
    assert totals == pytest.approx(1.0)
    after = {token: model.probabilities(np.array([5, 2, token]))[-1] for token in range(8)}
    assert max(after, key=after.__getitem__) == 3


def test_right_predictions_show_the_error_of_chance_and_wrong_ones_are_fitted() -> None:
    rng = np.random.default_rng(0)

    def blocks(count: int):
        truth = rng.normal(size=(count, 3))
        stands = rng.random(truth.shape) < 1 / (1 + np.exp(-truth))
        accepted = np.cumprod(stands, axis=1).sum(1)
        return np.full(count, 3), accepted, 3 * truth

    found = judge("ratio", blocks(4000), blocks(4000))
    assert found["temperatures"] == pytest.approx([3.0] * 3, rel=0.3)
    assert set(found["error_after"]) == {"1", "2", "3", "all"}
    for place, error in found["error_after"].items():
        assert error < 0.04 < found["error_before"][place]
        assert 0 < found["error_of_chance"][place] < 0.03
        assert abs(error - found["error_of_chance"][place]) < 0.015


def test_temperatures_make_overconfidence_come_true() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(20_000, 2))
    stands = rng.random(truth.shape) < 1 / (1 + np.exp(-truth))
    accepted = np.cumprod(stands, axis=1).sum(1)
    trials = Trials(accepted, 3 * truth, np.zeros_like(truth))
    assert fit_temperatures(trials) == pytest.approx([3.0, 3.0], rel=0.2)
    assert calibration_error(np.full(4, 0.5), np.array([True, False, True, False])) == 0.0
