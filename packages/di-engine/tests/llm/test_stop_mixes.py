"""Stop strings cut the same texts however the steps run: alone, overlapped, with drafts."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from di_engine import SamplingParams
from di_engine.llm.request_state import RequestState
from di_engine.runner.slot_state import SlotState
from di_engine.runner.speculation import Speculation
from di_engine.testing.counting_engine import CountingEngine
from di_engine.testing.forced_drafts import ForcedDrafter, RandomRows
from di_scheduler import SchedulerConfig

VOCAB = 259
PREFIX = "The house by the river. " * 9

Mix = list[tuple[int, str, SamplingParams]]


@st.composite
def mixes(draw: st.DrawFn) -> Mix:
    """Arrival, prompt and parameters of a few requests; the greedy ones count upwards."""
    mix = []
    for number in range(draw(st.integers(1, 6))):
        prompt = PREFIX[: draw(st.integers(0, len(PREFIX)))] + draw(st.sampled_from("aAx~"))
        # Some are met at once, some across several tokens, some inside a longer one, some never.
        stop = draw(
            st.lists(
                st.sampled_from(["b", "cd", "fgh", "efgh", "klmnop", "zz", "é", "\n"]),
                max_size=3,
            )
        )
        params = SamplingParams(
            temperature=draw(st.sampled_from([0.0, 0.7, 2.0])),
            seed=number,
            max_tokens=draw(st.integers(1, 40)),
            n=draw(st.sampled_from([1, 1, 2])),
            stop=stop,
            include_stop_str_in_output=draw(st.booleans()),
            stop_token_ids=draw(st.sampled_from([[], [110], [0, 5]])),
            min_tokens=draw(st.sampled_from([0, 1])),
        )
        mix.append((draw(st.integers(0, 10)), prompt, params))
    return mix


def run(counting: CountingEngine, mix: Mix) -> list[RequestState]:
    states: dict[int, RequestState] = {}
    for step in range(5_000):
        for index, (at_step, prompt, params) in enumerate(mix):
            if at_step == step:
                states[index] = counting.requests.submit(prompt, params, index)
        if len(states) == len(mix) and not counting.requests.has_work:
            break
        counting.requests.step()
        counting.scheduler.check_integrity()
    assert counting.runner.num_requests == 0
    return [states[index] for index in range(len(mix))]


def texts(states: list[RequestState]) -> list[object]:
    found = []
    for state in states:
        output = state.output()
        assert output.finished
        found.append(
            [(c.text, c.token_ids, c.finish_reason, c.stop_reason) for c in output.outputs]
        )
    return found


@settings(max_examples=15, deadline=None)
@given(
    mix=mixes(),
    num_drafts=st.integers(1, 5),
    seed=st.integers(0, 99),
    num_blocks=st.sampled_from([9, 64]),
    max_running=st.sampled_from([2, 8]),
    prefix_cache=st.booleans(),
)
def test_texts_do_not_depend_on_how_steps_run(
    mix: Mix, num_drafts: int, seed: int, num_blocks: int, max_running: int, prefix_cache: bool
) -> None:
    limits = {"num_blocks": num_blocks, "max_running": max_running, "prefix_cache": prefix_cache}
    plain = run(CountingEngine(), mix)
    expected = texts(plain)
    assert texts(run(CountingEngine(overlap=True, **limits), mix)) == expected

    answers = {
        request_id: completion.token_ids
        for state in plain
        for request_id, completion in zip(state.core_ids, state.output().outputs, strict=True)
    }

    def speculate(config: SchedulerConfig) -> Speculation:
        """Two of three drafts are right; what lies behind a stop is always wrong."""
        return Speculation(
            SlotState(config.state_slots, num_drafts, torch.device("cpu")),
            num_draft_tokens=num_drafts,
            mode="coupled",
            drafter=ForcedDrafter(answers, num_drafts, VOCAB, lambda _, place: place % 3 != 0),
        )

    drafting = CountingEngine(
        overlap=True,
        speculate=speculate,
        row_budget=RandomRows(seed),
        num_draft_tokens=num_drafts,
        drafts_after_prefill=True,
        **limits,
    )
    assert texts(run(drafting, mix)) == expected


def test_a_stop_string_is_met_in_the_middle_of_accepted_drafts() -> None:
    answer = list(range(101, 121))  # "bcdef..." behind "a"

    def speculate(config: SchedulerConfig) -> Speculation:
        return Speculation(
            SlotState(config.state_slots, 5, torch.device("cpu")),
            num_draft_tokens=5,
            mode="coupled",
            drafter=ForcedDrafter({"0": answer}, 5, VOCAB, lambda _, place: True),
        )

    counting = CountingEngine(
        overlap=True, speculate=speculate, num_draft_tokens=5, drafts_after_prefill=True
    )
    params = SamplingParams(temperature=0, max_tokens=40, stop=["ef"])
    (state,) = run(counting, [(0, "a", params)])
    (completion,) = state.output().outputs
    assert (completion.text, completion.finish_reason) == ("bcd", "stop")
    assert counting.runner.speculation is not None
    assert counting.runner.speculation.metrics.num_accepted >= 2
