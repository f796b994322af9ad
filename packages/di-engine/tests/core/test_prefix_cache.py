"""A prompt gives the same logits cold and warm, whatever part of it is cached."""

import numpy as np
import pytest

from di_engine import EngineConfig
from di_engine.core.assembly import EngineParts, assemble
from di_engine.runner.request import EngineRequest, LogprobsSpec
from di_spec.sampling import SamplingParams

pytestmark = pytest.mark.slow

BLOCK = 128
LENGTH = 4 * BLOCK + 100
"""Beyond the 310 tokens that an exact replay of the built-in model recomputes."""

VOCAB = 3840
LIMIT = 1e-4


def build(**settings: object) -> EngineParts:
    defaults: dict[str, object] = {
        "model": "tiny",
        "arithmetic": "float32",
        "max_running": 2,
        "max_model_len": 1024,
        "max_tokens_per_step": 512,
        "num_blocks": 40,
        "snapshot_slots": 0,
        "device": "cpu",
    }
    return assemble(EngineConfig.from_flat(**(defaults | settings)))


@pytest.fixture(scope="module", params=["replay", "snapshots"])
def parts(request: pytest.FixtureRequest) -> EngineParts:
    return build(snapshot_slots=0 if request.param == "replay" else 8)


class Asker:
    """Sends prompts one after another and returns log-probabilities of what follows."""

    def __init__(self, parts: EngineParts) -> None:
        self.engine = parts.engine
        self.number = 0

    def ask(
        self, prompt: np.ndarray, *, salt: bytes = b"", is_cold: bool = False, num_tokens: int = 1
    ) -> tuple[np.ndarray, int]:
        """Log-probabilities of every token after the prompt and after each greedy token, and the
        number of cached prompt tokens."""
        self.number += 1
        self.engine.add(
            EngineRequest(
                request_id=f"r{self.number}",
                prompt_ids=prompt.astype(np.int32),
                sampling=SamplingParams(temperature=0),
                max_tokens=num_tokens,
                ignore_eos=True,
                logprobs=LogprobsSpec(VOCAB),
                cache_salt=salt,
                reads_prefix_cache=not is_cold,
            )
        )
        rows, num_cached = [], 0
        while self.engine.has_work:
            for event in self.engine.step():
                assert event.finish_reason in (None, "length"), event.message
                num_cached = max(num_cached, event.num_cached_tokens)
                for entry in event.logprobs or []:
                    row = np.empty(VOCAB)
                    row[entry.top_ids] = entry.top_logprobs
                    rows.append(row)
        self.engine.scheduler.check_integrity()
        return np.array(rows), num_cached


@pytest.fixture(scope="module")
def asker(parts: EngineParts) -> Asker:
    return Asker(parts)


def prompt_of(seed: int, length: int = LENGTH) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, VOCAB, length)


@pytest.fixture(scope="module")
def cold(asker: Asker) -> np.ndarray:
    """What follows the prompt that the hit lengths are tried on."""
    rows, num_cached = asker.ask(prompt_of(1), salt=b"cold", is_cold=True, num_tokens=3)
    assert num_cached == 0
    return rows


SHARED = [0, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 4 * BLOCK - 1, 4 * BLOCK, 4 * BLOCK + 1]


@pytest.mark.parametrize("shared", [*SHARED, LENGTH - 1, LENGTH])
def test_every_hit_length_gives_the_cold_logits(
    asker: Asker, cold: np.ndarray, shared: int
) -> None:
    prompt = prompt_of(1)
    salt = str(shared).encode()
    earlier = np.concatenate((prompt[:shared], prompt_of(2, 9)))
    asker.ask(earlier, salt=salt)
    warm, _ = asker.ask(prompt, salt=salt, num_tokens=3)
    assert np.abs(warm - cold).max() < LIMIT


@pytest.mark.parametrize("length", [4 * BLOCK, 4 * BLOCK + 1, LENGTH])
def test_the_same_prompt_again(asker: Asker, length: int) -> None:
    prompt = prompt_of(3, length)
    cold, _ = asker.ask(prompt, num_tokens=3)
    warm, num_cached = asker.ask(prompt, num_tokens=3)
    assert num_cached > 0
    assert np.abs(warm - cold).max() < LIMIT


def test_fifty_suffixes_diverge_from_one_prefix(asker: Asker) -> None:
    # ggml-org/llama.cpp#25452
    prefix = prompt_of(4, 4 * BLOCK + 5)
    asker.ask(prefix)
    scheduler = asker.engine.scheduler
    # Each replay is as long as a prompt; with snapshots nearly nothing is computed.
    for number in range(50 if scheduler.config.num_snapshot_slots else 11):
        prompt = np.concatenate((prefix, prompt_of(100 + number, 1 + number % 7)))
        warm, num_cached = asker.ask(prompt)
        assert num_cached > 0
        if number % 10 == 0:
            cold, _ = asker.ask(prompt, salt=b"cold", is_cold=True)
            assert np.abs(warm - cold).max() < LIMIT
    stats = scheduler.stats()
    assert stats.blocks_used == 0
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total


def test_reuse_after_eviction() -> None:
    asker = Asker(build(num_blocks=12, snapshot_slots=2))
    prompt = prompt_of(5)
    cold, _ = asker.ask(prompt)
    for seed in range(6, 10):
        asker.ask(prompt_of(seed, 900))
    again, num_cached = asker.ask(prompt)
    assert num_cached == 0
    warm, num_cached = asker.ask(prompt)
    assert num_cached > 0
    assert np.abs(again - cold).max() < LIMIT
    assert np.abs(warm - cold).max() < LIMIT


def test_hits_are_bitwise_equal_in_deterministic_mode() -> None:
    asker = Asker(build(deterministic=True, snapshot_slots=4))
    prompt = prompt_of(11)
    cold, _ = asker.ask(prompt, num_tokens=3)
    warm, num_cached = asker.ask(prompt, num_tokens=3)
    assert num_cached == 4 * BLOCK
    assert (warm == cold).all()


def test_the_approximate_replay_is_named_so_because_it_is() -> None:
    asker = Asker(build(replay="approximate"))
    prompt = prompt_of(12)
    cold, _ = asker.ask(prompt)
    warm, num_cached = asker.ask(prompt)
    assert num_cached == 4 * BLOCK - 32
    assert np.abs(warm - cold).max() > LIMIT


def test_prompt_logprobs_compute_every_row() -> None:
    asker = Asker(build())
    prompt = prompt_of(13)
    asker.ask(prompt)
    asker.engine.add(
        EngineRequest(
            "all",
            prompt.astype(np.int32),
            SamplingParams(temperature=0),
            1,
            logprobs=LogprobsSpec(None, 0),
        )
    )
    entries = []
    while asker.engine.has_work:
        for event in asker.engine.step():
            entries += event.prompt_logprobs or []
    assert [entry.token_id for entry in entries] == prompt[1:].tolist()
