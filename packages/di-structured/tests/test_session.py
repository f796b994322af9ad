"""Sessions: masks against the oracle, and the rules of state."""

import json
import pickle

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from di_structured import (
    GrammarSession,
    GrammarViolationError,
    InvalidSchemaError,
    OutputSchema,
    StructuredError,
    allocate_masks,
)
from di_structured.testing import allowed_by_oracle, allowed_in_row, byte_vocabulary, compile_here

EOS = 1
THINK_END = 3
OBJECT = OutputSchema.json_schema(
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
)

names = st.sampled_from(["a", "b", "name", "é"])
scalars = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda low: {"type": "integer", "minimum": low, "maximum": low + 20}, st.integers(-9, 9)
    ),
    st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 4)),
    st.just({"type": "string", "pattern": "^[a-c]+$"}),
    st.just({"enum": ["x", 1, None, {"k": [1]}]}),
    st.just({"type": "string", "format": "date"}),
)
schemas = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.builds(
            lambda item, n: {"type": "array", "items": item, "maxItems": n},
            inner,
            st.integers(1, 3),
        ),
        st.builds(
            lambda p: {"type": "object", "properties": p, "required": list(p)[:1]},
            st.dictionaries(names, inner, min_size=1, max_size=2),
        ),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
    ),
    max_leaves=4,
)


def walk(session, rng, steps):
    """Takes random allowed tokens; yields after each."""
    masks = allocate_masks(1, session.vocab_size)
    for _ in range(steps):
        session.fill_masks([], masks)
        allowed = allowed_in_row(masks[0])
        token_id = int(rng.choice(allowed))
        session.advance([token_id])
        if session.is_terminated:
            return
        yield


@settings(max_examples=12)
@given(schemas, st.integers(0, 2**32 - 1))
def test_masks_equal_the_per_token_oracle(vocabulary, schema, seed):
    output_schema = OutputSchema.json_schema(schema)
    grammar = compile_here(output_schema, vocabulary)
    session = grammar.session(output_schema)
    masks = allocate_masks(1, vocabulary.vocab_size)
    rng = np.random.default_rng(seed)
    for _ in walk(session, rng, 6):
        session.fill_masks([], masks)
        assert allowed_in_row(masks[0]) == allowed_by_oracle(
            grammar, output_schema, session.token_ids
        )


@settings(max_examples=15)
@given(schemas, st.integers(0, 2**32 - 1))
def test_chain_rows_equal_the_masks_of_fresh_sessions(vocabulary, schema, seed):
    output_schema = OutputSchema.json_schema(schema).with_reasoning([THINK_END])
    grammar = compile_here(output_schema, vocabulary)
    session = grammar.session(output_schema)
    rng = np.random.default_rng(seed)
    free = int(rng.integers(0, 4))
    drafts = [7] * free + [THINK_END]
    scout = grammar.session(output_schema)
    scout.advance(drafts)
    for _ in walk(scout, rng, 6 - free):
        pass
    drafts = list(scout.token_ids)[:6]
    masks = allocate_masks(len(drafts) + 1, vocabulary.vocab_size)
    assert session.fill_masks(drafts, masks) == len(drafts)
    for row in range(len(drafts) + 1):
        fresh = grammar.session(output_schema)
        fresh.advance(drafts[:row])
        alone = allocate_masks(1, vocabulary.vocab_size)
        fresh.fill_masks([], alone)
        np.testing.assert_array_equal(masks[row], alone[0])
    assert session.num_tokens == 0


@settings(max_examples=15)
@given(st.lists(st.integers(-3, 8), max_size=25), st.integers(0, 2**32 - 1))
def test_rollback_gives_the_state_of_a_fresh_session(compile_schema, vocabulary, moves, seed):
    schema = OBJECT.with_reasoning([9, 9, 8]).with_trigger([7, 7, 6], bound_token_id=7)
    grammar = compile_schema(schema)
    session = grammar.session(schema)
    rng = np.random.default_rng(seed)
    masks = allocate_masks(2, vocabulary.vocab_size)
    for move in moves:
        if move < 0:
            session.rollback(min(-move, session.num_tokens))
        else:
            session.fill_masks([], masks)
            preferred = [
                t for t in (9, 8, 7, 6, *rng.permutation(276)) if t in allowed_in_row(masks[0])
            ]
            session.advance([int(preferred[move % 4 if len(preferred) > 4 else 0])])
        fresh = grammar.session(schema)
        fresh.advance(session.token_ids)
        session.fill_masks([], masks, 0)
        fresh.fill_masks([], masks, 1)
        np.testing.assert_array_equal(masks[0], masks[1])
        assert session.is_complete == fresh.is_complete
        assert session.is_terminated == fresh.is_terminated


def test_rows_behind_a_forbidden_draft_are_free_and_the_state_is_unchanged(start, encode):
    session = start(OBJECT)
    masks = np.zeros((6, 9), np.int32)
    drafts = [*encode('{"'), 5 + ord("z"), *encode("a")]
    assert session.fill_masks(drafts, masks, 1) == 2
    assert allowed_in_row(masks[1])[0] == 5 + ord("{")
    assert allowed_in_row(masks[4]) == list(range(session.vocab_size))
    assert not masks[0].any()
    assert session.num_tokens == 0


@pytest.mark.parametrize("bad", [-1, -5, 0, 3, 275, 276, 10**6])
def test_ids_that_are_no_text_are_forbidden_drafts_and_violations(start, bad, capfd):
    session = start(OBJECT)
    masks = allocate_masks(2, session.vocab_size)
    assert session.fill_masks([bad], masks) == 0
    with pytest.raises(GrammarViolationError, match=f"token {bad} at index 0"):
        session.advance([bad])
    assert capfd.readouterr().err == ""


def test_a_refused_advance_keeps_nothing(start, encode):
    session = start(OBJECT)
    session.advance(encode("{"))
    with pytest.raises(GrammarViolationError) as caught:
        session.advance(encode('"a"x'))
    assert (caught.value.index, caught.value.token_id) == (3, 5 + ord("x"))
    assert session.num_tokens == 1
    assert session.advance(encode('"a":1}')) == 6
    assert session.is_complete


def test_a_stop_token_is_allowed_exactly_when_the_text_is_complete(start, encode):
    session = start(OutputSchema.regex("ab?"), stop_token_ids=[2])
    masks = allocate_masks(1, session.vocab_size)
    seen = []
    for token_id in encode("ab"):
        session.fill_masks([], masks)
        seen.append([t for t in (EOS, 2) if t in allowed_in_row(masks[0])])
        session.advance([token_id])
    session.fill_masks([], masks)
    assert seen == [[], [EOS, 2]]
    assert allowed_in_row(masks[0]) == [EOS, 2]
    session.advance([2])
    assert session.is_terminated
    assert session.is_complete


def test_tokens_behind_the_stop_token_are_counted_and_free(start, encode):
    session = start(OBJECT)
    text = encode('{"a":1}')
    session.advance([*text, EOS, 77, 0, -1])
    masks = allocate_masks(3, session.vocab_size)
    session.fill_masks([5, EOS], masks)
    assert all(len(allowed_in_row(row)) == session.vocab_size for row in masks)
    assert session.num_tokens == len(text) + 4
    session.rollback(4)
    assert not session.is_terminated
    session.advance([EOS])
    assert session.is_terminated


def test_a_stop_token_inside_reasoning_ends_the_text_incomplete(start):
    session = start(OBJECT.with_reasoning([THINK_END]))
    session.advance([50, EOS])
    assert session.is_terminated
    assert not session.is_complete
    session.rollback(1)
    session.advance([THINK_END])
    assert session.is_constrained


def test_slack_bits_are_clear():
    vocabulary = byte_vocabulary(padding=0)
    schema = OutputSchema.regex("(.|\\n)*")
    session = compile_here(schema, vocabulary).session(schema)
    assert vocabulary.vocab_size % 32
    masks = np.full((3, vocabulary.num_mask_words), -1, np.int32)
    session.fill_masks([5 + 97, -1], masks)
    for row in masks:
        assert max(allowed_in_row(row)) < vocabulary.vocab_size


@pytest.mark.parametrize(
    ("out", "row"),
    [
        (np.zeros((2, 8), np.int32), 0),
        (np.zeros((2, 9), np.int64), 0),
        (np.zeros((1, 9), np.int32), 0),
        (np.zeros((2, 9), np.int32), 1),
        (np.zeros((2, 9), np.int32), -1),
        (np.zeros((9,), np.int32), 0),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused(start, out, row):
    with pytest.raises(ValueError, match="`out` must be int32"):
        start(OBJECT).fill_masks([5], out, row)


def test_a_snapshot_survives_pickling_and_gives_the_same_state(start, compile_schema, encode):
    schema = OBJECT.with_reasoning([THINK_END])
    session = start(schema, request_id="r", stop_token_ids=[2])
    session.advance([60, THINK_END, *encode('{"a"')])
    snapshot = pickle.loads(pickle.dumps(session.snapshot()))
    other = GrammarSession.restore(compile_schema(schema), snapshot)
    masks = allocate_masks(2, session.vocab_size)
    session.fill_masks([], masks, 0)
    other.fill_masks([], masks, 1)
    np.testing.assert_array_equal(masks[0], masks[1])
    assert (other.request_id, other.stop_token_ids) == ("r", frozenset({1, 2}))


def test_a_double_advance_is_noticed(start, encode):
    session = start(OBJECT, request_id="r7")
    session.advance(encode('{"a"'))
    with pytest.raises(GrammarViolationError, match=r"request `r7`: .*advanced twice"):
        session.advance(encode('"a"'))


def test_rolling_too_far_back_is_refused(start, encode):
    session = start(OBJECT)
    session.advance(encode("{"))
    with pytest.raises(StructuredError, match=r"cannot roll 2 tokens back, 1 were advanced"):
        session.rollback(2)


def test_a_session_needs_the_grammar_of_its_schema(compile_schema):
    with pytest.raises(InvalidSchemaError, match="another schema"):
        compile_schema(OBJECT).session(OutputSchema.regex("a"))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (OBJECT, '{"a":'),
        (OutputSchema.choice(["yes, it is"]), "yes, it is"),
    ],
)
def test_forced_tokens_spell_the_only_continuation(start, decode, schema, text):
    session = start(schema)
    session.advance(session.forced_tokens())
    assert text.startswith(decode(session.token_ids))


def test_forced_tokens_of_a_bound_trigger_are_the_rest_of_it(start):
    session = start(OBJECT.with_trigger([40, 41, 42], bound_token_id=39))
    assert session.forced_tokens() == []
    session.advance([40, 41, 39])
    assert session.forced_tokens() == [40, 41, 42]


def test_complete_means_that_json_is_whole(start, encode):
    session = start(OBJECT)
    text = '{"a":12}'
    for index, token_id in enumerate(encode(text)):
        session.advance([token_id])
        assert session.is_complete == (index == len(text) - 1)
    assert json.loads(text) == {"a": 12}
