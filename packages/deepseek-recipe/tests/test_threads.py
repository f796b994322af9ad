"""Many threads, and the lock of the interpreter."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from round_trip import MODEL, block, convert, invoke, parameter, run

import deepseek_recipe as recipe

THREADS = 64


def body(index: int) -> dict[str, object]:
    messages = [
        {"role": ("user", "assistant")[turn % 2], "content": f"{index} 🌊 " * 50}
        for turn in range(21)
    ]
    return {
        "model": MODEL,
        "messages": messages,
        "tools": [{"type": "function", "function": {"name": f"t{index}"}}],
    }


def test_64_threads(tokenizer: recipe.Tokenizer) -> None:
    options = recipe.ConversionOptions()
    encoder = recipe.DeepseekV4Encoding().with_tokenizer(tokenizer)
    barrier = threading.Barrier(THREADS)

    def work(index: int) -> tuple[list[int], str, list[tuple[str, str]]]:
        barrier.wait()
        results = []
        for _ in range(5):
            request = recipe.ChatCompletionRequest(json.dumps(body(index))).convert(options)
            ids = encoder.encode(request.conversation)
            output = f"w{index}</think>a{index}" + block(
                invoke(f"t{index}", parameter("p", str(index)))
            )
            outcome = run(list(output), request=request)
            results.append((ids, outcome.content or "", outcome.calls))
        assert all(result == results[0] for result in results)
        return results[0]

    with ThreadPoolExecutor(THREADS) as pool:
        parallel = list(pool.map(work, range(THREADS)))
    for index, (ids, content, calls) in enumerate(parallel):
        alone = recipe.ChatCompletionRequest(body(index)).convert(options)
        assert ids == encoder.encode(alone.conversation)
        assert content == f"a{index}"
        assert calls == [(f"t{index}", json.dumps({"p": str(index)}))]


def test_one_processor_in_many_threads_stays_consistent() -> None:
    request = convert("chat")
    generator = recipe.ChatCompletionRequest.chunk_generator(request, "id", "m")
    processor = recipe.StreamProcessor(generator, request.parsing_options)
    refused: list[str] = []

    def work(_: int) -> int:
        try:
            return sum(
                len(processor.push(recipe.InferenceChunk.text("x" * 5000))) for _ in range(20)
            )
        except RuntimeError as error:
            refused.append(str(error))
            return 0

    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(work, range(THREADS))) > 0
    assert not any("panic" in message for message in refused)
    processor.close()


def test_a_store_in_many_threads_keeps_the_newest() -> None:
    store = recipe.InMemoryResponseStore(max_responses=2)
    options = recipe.ConversionOptions()
    response = recipe.ResponsesResponse("id", "m", 0, 0, 0)

    def work(index: int) -> None:
        for turn in range(20):
            given = {"model": MODEL, "input": f"{index} {turn}"}
            request = recipe.ResponsesRequest(given).convert(options, store)
            store.save(f"{index}-{turn}", request, response)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    names = [f"{index}-{turn}" for index in range(THREADS) for turn in range(20)]
    assert sum(store.load(name) is not None for name in names) == 2


def runs_beside(work: Callable[[], object]) -> int:
    """How often another thread of Python ran while `work` ran once, on the other side of the lock."""
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.0001)

    other = threading.Thread(target=tick)
    other.start()
    before = ticks
    work()
    counted = ticks - before
    done.set()
    other.join()
    return counted


def test_the_lock_is_released(tokenizer: recipe.Tokenizer, tokenizer_path: object) -> None:
    text = "tide harbour 潮 " * 40_000
    given = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": text}]})
    conversation = (
        recipe.ChatCompletionRequest(given).convert(recipe.ConversionOptions()).conversation
    )
    encoder = recipe.DeepseekV4Encoding()
    interval = sys.getswitchinterval()
    # So long that the other thread only runs when the lock is given up.
    sys.setswitchinterval(100)
    try:
        for work in (
            lambda: tokenizer.encode(text),
            lambda: encoder.with_tokenizer(tokenizer).encode(conversation),
            lambda: [encoder.render_conversation(conversation) for _ in range(200)],
            lambda: recipe.ChatCompletionRequest(given),
            lambda: recipe.Tokenizer.from_file(str(tokenizer_path)),
        ):
            if not any(runs_beside(work) > 0 for _ in range(20)):
                pytest.fail("the lock was held")
    finally:
        sys.setswitchinterval(interval)
