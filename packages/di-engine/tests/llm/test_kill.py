"""SIGTERM while requests run, in processes of their own: nobody is left without an ending."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TIME_LIMIT_S = 300
NUM_REQUESTS = 10

SERVER = f"""
import asyncio, json, signal
from di_engine import AsyncLLM, SamplingParams

LONG = SamplingParams(temperature=0.8, max_tokens=3000, ignore_eos=True)


async def read(llm, number, ready):
    deltas = []
    async for delta in llm.stream("The house by the river. " * (number + 1), LONG):
        deltas.append(delta)
        ready.set()
    last = deltas[-1]
    return {{
        "tokens": sum(len(delta.token_ids) for delta in deltas),
        "ends": [delta.ends_request for delta in deltas].count(True),
        "is_last": last.ends_request,
        "reason": last.finish_reason,
        "kind": last.error and last.error.kind,
        "message": last.error and last.error.message,
    }}


async def main():
    # Some run, some wait, one is in its prompt.
    llm = AsyncLLM("tiny", max_running=3, max_tokens_per_step=64)
    llm.shut_down_on(signal.SIGTERM, grace_s=0.0)
    ready = asyncio.Event()
    tasks = [asyncio.create_task(read(llm, i, ready)) for i in range({NUM_REQUESTS})]
    await ready.wait()
    while llm.num_unfinished < {NUM_REQUESTS}:
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    print(json.dumps(await asyncio.gather(*tasks)), flush=True)


asyncio.run(main())
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_every_stream_of_a_killed_server_gets_its_last_delta(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    with start(str(script)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=TIME_LIMIT_S)
    assert process.returncode == 0, err
    ended = json.loads(out)
    assert len(ended) == NUM_REQUESTS
    for stream in ended:
        assert (stream["ends"], stream["is_last"]) == (1, True)
        assert (stream["reason"], stream["kind"]) == ("abort", "stopped")
        assert "shut down before the request had finished" in stream["message"]
        assert stream["tokens"] < 3000
    assert sum(stream["tokens"] for stream in ended) > 0


def test_a_killed_command_prints_what_it_has() -> None:
    options = ["--max-tokens", "3000", "--ignore-eos", "--temperature", "0", "--quiet"]
    with start("-m", "di_engine.cli", "generate", *options, "The house") as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        assert first, process.communicate()[1]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=TIME_LIMIT_S)
    assert process.returncode == 1, err
    assert out.endswith("\n")
    assert "Traceback" not in err
