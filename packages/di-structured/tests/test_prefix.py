"""Free sections against a plain search of the token history."""

import hypothesis.strategies as st
from hypothesis import given

from di_structured import OutputSchema
from di_structured.prefix import FreeSections

ids = st.integers(0, 2)
markers = st.lists(ids, min_size=1, max_size=4)


def first_end(tokens, marker, start=0):
    """Index behind the first occurrence of a marker, or None."""
    for end in range(start + len(marker), len(tokens) + 1):
        if tokens[end - len(marker) : end] == marker:
            return end
    return None


@given(markers, markers, st.lists(ids, max_size=30))
def test_sections_end_behind_the_first_occurrence(reasoning, trigger, tokens):
    sections = FreeSections(OutputSchema.regex("a").with_reasoning(reasoning).with_trigger(trigger))
    state = 0
    active_at = None
    for index, token_id in enumerate(tokens):
        assert sections.forced_token(state) is None
        state = sections.step(state, token_id)
        if state == sections.active:
            active_at = index + 1
            break
    middle = first_end(tokens, reasoning)
    expected = None if middle is None else first_end(tokens, trigger, middle)
    assert active_at == expected


def overlap(tokens, trigger):
    """The longest end of the tokens that begins the trigger, shorter than the trigger."""
    lengths = range(min(len(tokens), len(trigger) - 1), -1, -1)
    return next(n for n in lengths if tokens[len(tokens) - n :] == trigger[:n])


@given(markers, ids, st.lists(ids, max_size=20))
def test_a_bound_forces_what_is_missing_of_the_trigger(trigger, bound, tokens):
    sections = FreeSections(OutputSchema.regex("a").with_trigger(trigger, bound))
    state = 0
    for index, token_id in enumerate(tokens):
        state = sections.step(state, token_id)
        if state == sections.active:
            assert tokens[: index + 1][-len(trigger) :] == trigger
            return
        if token_id == bound:
            missing = trigger[overlap(tokens[: index + 1], trigger) :]
            assert sections.forced_run(state) == missing
            for forced in missing:
                assert sections.forced_token(state) == forced
                state = sections.step(state, forced)
            assert state == sections.active
            return


def test_without_sections_the_grammar_rules_at_once():
    assert FreeSections(OutputSchema.regex("a")).active == 0


def test_zero_is_an_id_like_any_other():
    sections = FreeSections(OutputSchema.regex("a").with_trigger([0, 0], bound_token_id=0))
    assert sections.forced_run(sections.step(0, 0)) == [0]
