"""The whole engine on the built-in checkpoint: what a user sees, through every package."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from di_engine import LLM, RequestOutput, SamplingParams

pytestmark = pytest.mark.slow

PROMPTS: list[str | list[int]] = [
    "Once upon a time",
    [0, 17, 4, 99],
    "def f(x):",
    [5] * 33,
    "\u6df1\u5ea6 \U0001f600 caf\u00e9",
    list(range(3, 300)),
]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(model="tiny", max_running=8, max_model_len=512, max_tokens_per_step=512) as made:
        yield made


def essence(output: RequestOutput) -> list[tuple[list[int], str, list[float] | None]]:
    """Tokens, text and log-probabilities of every completion."""
    found = []
    for completion in output.outputs:
        logprobs = completion.logprobs
        values = None
        if logprobs is not None:
            pairs = zip(logprobs, completion.token_ids, strict=True)
            values = [entry[token].logprob for entry, token in pairs]
        found.append((completion.token_ids, completion.text, values))
    return found


def params(seed: int = 0, **fields: object) -> SamplingParams:
    settings = {"max_tokens": 8, "seed": seed, "logprobs": 1, "ignore_eos": True} | fields
    return SamplingParams(**settings)  # type: ignore[arg-type]


def test_text_ids_and_a_mix_are_generated(llm: LLM) -> None:
    outputs = llm.generate(PROMPTS, params())
    assert [output.error for output in outputs] == [None] * len(PROMPTS)
    assert all(len(output.outputs[0].token_ids) == 8 for output in outputs)
    assert llm.tokenizer is not None
    for output in outputs:
        completion = output.outputs[0]
        assert completion.text == llm.tokenizer.decode(completion.token_ids)
        assert completion.finish_reason == "length"
    assert outputs[0].prompt_token_ids[0] == llm.model_config.bos_token_id


def test_streaming_gives_the_same_text_as_generate(llm: LLM) -> None:
    (whole,) = llm.generate(PROMPTS[4], params(max_tokens=24))
    deltas = list(llm.stream(PROMPTS[4], params(max_tokens=24)))
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [t for delta in deltas for t in delta.token_ids] == whole.outputs[0].token_ids


def test_a_stop_string_cuts_the_same_text(llm: LLM) -> None:
    (whole,) = llm.generate("Once", params(max_tokens=24))
    text = whole.text
    stop = text[5:8]
    (cut,) = llm.generate("Once", params(max_tokens=24, stop=stop))
    assert cut.text == text[: text.index(stop)]
    assert cut.outputs[0].stop_reason == stop


def test_prompt_logprobs_are_those_of_generation(llm: LLM) -> None:
    prompt = [0, 17, 4]
    (made,) = llm.generate([prompt], params(max_tokens=6, temperature=0))
    completion = made.outputs[0]
    (scored,) = llm.generate([prompt + completion.token_ids], params(prompt_logprobs=1))
    assert scored.prompt_logprobs is not None
    assert completion.logprobs is not None
    for position, token_id in enumerate(completion.token_ids):
        entry = scored.prompt_logprobs[len(prompt) + position]
        assert entry is not None
        # Native arithmetic rounds to BF16, and a chunk of rows sums in another order than one row.
        assert entry[token_id].logprob == pytest.approx(
            completion.logprobs[position][token_id].logprob, abs=0.15
        )


def test_bad_requests_come_back_at_their_index(llm: LLM) -> None:
    vocab_size = llm.model_config.vocab_size
    prompts = ["fine", "", [vocab_size], [1.5], [3] * 600, "fine", None]
    parameters = [params()] * 5 + [{"max_tokens": 0}, params()]
    outputs = llm.generate(prompts, parameters)  # type: ignore[arg-type]
    assert [output.error is None for output in outputs] == [True] + [False] * 6
    (alone,) = llm.generate("fine", params())
    assert outputs[0].outputs[0].token_ids == alone.outputs[0].token_ids


def test_interruption_leaves_every_request_with_an_output(llm: LLM) -> None:
    def stop(finished: int, total: int, num_tokens: int) -> None:
        if num_tokens >= 4:
            llm.interrupt()

    outputs = llm.generate(["a", "b"], params(max_tokens=300), progress=stop)
    assert {output.outputs[0].finish_reason for output in outputs} == {"abort"}
    llm.engine.scheduler.check_integrity()
    assert not llm.engine.has_work


@pytest.mark.parametrize("arithmetic", ["native", "float32"])
def test_deterministic_outputs_do_not_depend_on_company_or_chunks(arithmetic: str) -> None:
    # vllm-project/vllm#53257: the same prompt at temperature 0 gave several completions.
    def make(**config: object) -> LLM:
        return LLM(
            model="tiny",
            arithmetic=arithmetic,
            deterministic=True,
            max_model_len=512,
            **config,  # type: ignore[arg-type]
        )

    seeds = range(len(PROMPTS))
    with make(max_running=8, max_tokens_per_step=512) as llm:
        together = llm.generate(PROMPTS, [params(seed) for seed in seeds])
        again = llm.generate(PROMPTS[::-1], [params(seed) for seed in seeds][::-1])[::-1]
    with make(max_running=1, max_tokens_per_step=512) as llm:
        alone = [llm.generate([p], params(s))[0] for p, s in zip(PROMPTS, seeds, strict=True)]
    with make(max_running=3, max_tokens_per_step=16) as llm:
        chunked = llm.generate(PROMPTS, [params(seed) for seed in seeds])
    for first, second, third, fourth in zip(together, again, alone, chunked, strict=True):
        assert essence(first) == essence(second)
        assert essence(first) == essence(third)
        assert essence(first) == essence(fourth)


def test_preemption_does_not_change_deterministic_outputs() -> None:
    prompts = [list(range(3 + i, 120 + i)) for i in range(3)]
    results = []
    for num_blocks in (5, 32):
        with LLM(
            model="tiny",
            arithmetic="float32",
            deterministic=True,
            max_model_len=256,
            max_running=3,
            max_tokens_per_step=256,
            num_blocks=num_blocks,
        ) as llm:
            results.append(
                [essence(o) for o in llm.generate(prompts, params(max_tokens=30, temperature=0))]
            )
    assert results[0] == results[1]


def di(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "di_engine.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        **options,  # type: ignore[call-overload]
    )


def test_the_command_prints_text_and_nothing_else() -> None:
    first = di("generate", "Once", "--max-tokens", "6", "--seed", "5", stdin=subprocess.DEVNULL)
    second = di("generate", "-", "--max-tokens", "6", "--seed", "5", input="Once\n")
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert first.stdout.strip()


def test_the_command_reads_and_writes_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"prompt": "a", "max_tokens": 3}\n{"prompt": "a", "max_tokens": 0}\n'
        '{"prompt_token_ids": [7, 8], "max_tokens": 2, "logprobs": 2}\n'
    )
    result = di("generate", "--input", str(path), "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [len(line["outputs"]) for line in lines] == [1, 0, 1]
    assert lines[1]["error"]["param"] == "max_tokens"
    assert len(lines[2]["outputs"][0]["logprobs"][0]) in (2, 3)
    assert result.returncode == 2


@pytest.mark.parametrize("num_interrupts", [1, 2])
@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
def test_ctrl_c_ends_once_and_kills_twice(num_interrupts: int) -> None:
    arguments = ["generate", "Once", "--max-tokens", "3000", "--ignore-eos", "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "di_engine.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    shown = process.stdout.read(1)  # generation has begun
    process.send_signal(signal.SIGINT)
    if num_interrupts == 2:
        process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=120)
    assert shown + rest
    assert b"Traceback" not in errors
    assert process.returncode == 1 if num_interrupts == 1 else process.returncode in (1, -2)


def test_numpy_and_torch_prompts_are_the_same_prompt(llm: LLM) -> None:
    import torch

    ids = [0, 17, 4, 99]
    outputs = llm.generate([ids, np.array(ids), torch.tensor(ids)], params(3))
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
