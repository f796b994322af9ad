"""Truncated prefill in the engine: a hit changes nothing, and who asks for all rows gets them."""

import numpy as np
import pytest

from di_engine import EngineConfig
from di_engine.core.assembly import EngineParts, assemble
from di_engine.runner.request import EngineRequest, LogprobsSpec
from di_spec.sampling import SamplingParams

pytestmark = pytest.mark.slow

VOCAB = 3840
WINDOW = 32
KEEP = WINDOW + 1
BLOCK = 128


def build(truncation: str, **settings: object) -> EngineParts:
    values: dict[str, object] = {
        "model": "tiny",
        "arithmetic": "float32",
        "deterministic": True,
        "truncation": truncation,
        "max_running": 3,
        "max_model_len": 512,
        "max_tokens_per_step": 200,
        "num_blocks": 16,
        "device": "cpu",
    }
    return assemble(EngineConfig.from_flat(**(values | settings)))


def prompt_of(seed: int, length: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, VOCAB, length)


class Asker:
    """Sends prompts together and returns the log-probabilities behind each."""

    def __init__(self, parts: EngineParts) -> None:
        self.engine = parts.engine
        self.number = 0
        self.num_cached: list[int] = []

    def ask(
        self, *prompts: np.ndarray, salt: bytes = b"", num_tokens: int = 2, num_prompt: int = -1
    ) -> list[np.ndarray]:
        ids = []
        for prompt in prompts:
            ids.append(f"r{self.number}")
            self.number += 1
            self.engine.add(
                EngineRequest(
                    request_id=ids[-1],
                    prompt_ids=prompt.astype(np.int32),
                    sampling=SamplingParams(temperature=0),
                    max_tokens=num_tokens,
                    ignore_eos=True,
                    logprobs=LogprobsSpec(VOCAB, None if num_prompt < 0 else num_prompt),
                    cache_salt=salt,
                )
            )
        rows: dict[str, list[np.ndarray]] = {i: [] for i in ids}
        cached = dict.fromkeys(ids, 0)
        while self.engine.has_work:
            for event in self.engine.step():
                assert event.finish_reason in (None, "length"), event.message
                cached[event.request_id] = event.num_cached_tokens
                for entry in event.logprobs or []:
                    row = np.empty(VOCAB)
                    row[entry.top_ids] = entry.top_logprobs
                    rows[event.request_id].append(row)
        self.engine.scheduler.check_integrity()
        self.num_cached = list(cached.values())
        return [np.array(rows[i]) for i in ids]


@pytest.fixture(scope="module", params=[0, 3])
def asker(request: pytest.FixtureRequest) -> Asker:
    """Without snapshots, and with a few."""
    return Asker(build("compact", snapshot_slots=request.param))


@pytest.fixture(scope="module")
def uncached() -> Asker:
    return Asker(build("compact", prefix_cache=False))


@pytest.mark.parametrize("length", [2 * BLOCK + KEEP - 1, 2 * BLOCK + 90])
def test_a_hit_gives_the_bits_of_the_cold_prompt(asker: Asker, length: int) -> None:
    prompt, salt = prompt_of(1, length), bytes([length % 256])
    (cold,) = asker.ask(prompt, salt=b"cold" + salt)
    asker.ask(np.concatenate((prompt[: 2 * BLOCK], prompt_of(2, 70))), salt=salt, num_tokens=1)
    (warm,) = asker.ask(prompt, salt=salt)
    # The kept rows are always computed; what is replayed makes the layers below them exact.
    assert 0 < asker.num_cached[0] <= length - KEEP
    assert (warm == cold).all()


def test_company_changes_nothing(uncached: Asker) -> None:
    prompts = [prompt_of(3, 20), prompt_of(4, 250), prompt_of(5, 90)]
    alone = [uncached.ask(prompt)[0] for prompt in prompts]
    for one, other in zip(alone, uncached.ask(*prompts), strict=True):
        assert (one == other).all()


def test_a_drafter_drafts_the_same_from_dropped_rows() -> None:
    """Its context keys of the kept rows are those of a prompt whose rows all went through."""
    drafts = []
    for truncation in ("mask", "compact"):
        parts = build(truncation, drafter="dspark", max_running=1, prefix_cache=False)
        (rows,) = Asker(parts).ask(prompt_of(7, 260))
        speculation = parts.engine.speculation
        assert speculation is not None
        drafts.append((rows, speculation.slots.drafts, speculation.slots.survival))
    (rows, *tables), (other_rows, *other_tables) = drafts
    assert (rows == other_rows).all()
    assert tables[0].any()
    for table, other in zip(tables, other_tables, strict=True):
        assert (table == other).all()


def test_prompt_logprobs_run_every_row(uncached: Asker) -> None:
    whole = Asker(build("off"))
    prompt = prompt_of(6, 100)
    (expected,) = whole.ask(prompt, num_prompt=1)
    assert (uncached.ask(prompt, num_prompt=1)[0] == expected).all()
    assert np.abs(uncached.ask(prompt)[0] - expected).max() > 1e-4
