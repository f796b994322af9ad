"""What users of other engines have met, each with its public report."""

import logging

import numpy as np
import pytest

from di_structured import MaskBatch, OutputSchema, allocate_masks
from di_structured.testing import allowed_in_row, byte_vocabulary, compile_here, generate

EOS = 1
THINK_END = 3
OBJECT = OutputSchema.json_object()


def rows_of(session, drafts):
    masks = allocate_masks(len(drafts) + 1, session.vocab_size)
    legal = session.fill_masks(drafts, masks)
    return legal, masks


@pytest.mark.parametrize("position", [0, 1, 2, 3])
def test_masks_behind_the_reasoning_end_are_constrained_wherever_it_falls(start, position):
    # vllm-project/vllm#44006
    session = start(OBJECT.with_reasoning([THINK_END]))
    drafts = [50] * position + [THINK_END] + [5 + ord("{")] * (3 - position)
    legal, masks = rows_of(session, drafts)
    for row in range(position + 1):
        assert len(allowed_in_row(masks[row])) == session.vocab_size
    assert 5 + ord("{") in allowed_in_row(masks[position + 1])
    assert 50 not in allowed_in_row(masks[position + 1])
    assert legal == min(4, position + 2)
    assert session.advance(drafts[:legal]) == legal


def test_whitespace_behind_the_reasoning_end_is_a_rejection_and_no_failure(start, encode):
    # vllm-project/vllm#44006
    session = start(OBJECT.with_reasoning([THINK_END]))
    legal, _ = rows_of(session, [THINK_END, *encode("\n\n{")])
    assert legal == 1
    assert session.advance([THINK_END, *encode("{")]) == 2


def test_the_reasoning_end_inside_the_grammar_is_forbidden_and_harmless(start, encode):
    # vllm-project/vllm#46118
    session = start(OBJECT)
    session.advance(encode("{"))
    assert rows_of(session, [THINK_END])[0] == 0
    assert session.advance(encode("}")) == 1


def test_a_drafter_that_is_always_wrong_costs_nothing_but_its_drafts(start, decode, caplog, capfd):
    # vllm-project/vllm#53777, vllm-project/vllm#51870
    caplog.set_level(logging.DEBUG)
    session = start(OutputSchema.regex("[a-z]{20}"))
    masks = allocate_masks(4, session.vocab_size)
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert session.fill_masks([4, 0, 4], masks) == 0
        session.advance([int(rng.choice(allowed_in_row(masks[0])))])
    assert session.is_complete
    assert caplog.records == []
    assert capfd.readouterr().err == ""


def test_rolling_back_across_the_stop_token_gives_the_mask_before_it(start, encode):
    # mlc-ai/xgrammar#161
    session = start(OBJECT)
    session.advance(encode('{"a":"b"}'))
    _, before = rows_of(session, [])
    session.advance([EOS])
    session.rollback(1)
    _, after = rows_of(session, [])
    np.testing.assert_array_equal(before, after)
    session.rollback(2)
    fresh = start(OBJECT)
    fresh.advance(encode('{"a":"b'))
    np.testing.assert_array_equal(rows_of(session, [])[1], rows_of(fresh, [])[1])


def test_a_token_that_fits_in_part_leaves_the_state_alone():
    # mlc-ai/xgrammar#164
    vocabulary = byte_vocabulary(pieces=[b"ax", b"aby"])
    schema = OutputSchema.regex("ab+c")
    session = compile_here(schema, vocabulary).session(schema)
    _, before = rows_of(session, [])
    for token_id in (261, 262):
        legal, masks = rows_of(session, [token_id])
        assert legal == 0
        np.testing.assert_array_equal(masks[0], before[0])
        with pytest.raises(Exception, match="forbidden"):
            session.advance([token_id])
        np.testing.assert_array_equal(rows_of(session, [])[1], before)


@pytest.mark.parametrize("grammar", ['root ::= "a" "}"', 'root ::= "a" Token(130)'])
def test_a_stop_token_that_is_the_last_terminal_ends_the_text(compile_schema, encode, grammar):
    # mlc-ai/xgrammar#701
    brace = 5 + ord("}")
    schema = OutputSchema.ebnf(grammar)
    session = compile_schema(schema).session(schema, stop_token_ids=[brace])
    session.advance(encode("a"))
    legal, masks = rows_of(session, [brace, 7])
    assert legal == 1
    assert allowed_in_row(masks[0]) == [brace]
    session.advance([brace])
    assert session.is_terminated
    assert session.is_complete
    session.rollback(1)
    np.testing.assert_array_equal(rows_of(session, [brace, 7])[1], masks)


def test_a_stop_token_that_would_cut_the_text_short_is_forbidden(compile_schema, encode):
    # mlc-ai/xgrammar#905
    schema = OutputSchema.ebnf('root ::= "{" ("{" "}")? "}"')
    session = compile_schema(schema).session(schema, stop_token_ids=[5 + ord("}")])
    session.advance(encode("{"))
    assert 5 + ord("}") in allowed_in_row(rows_of(session, [])[1][0])
    session.advance(encode("{"))
    assert 5 + ord("}") not in allowed_in_row(rows_of(session, [])[1][0])


def test_grammars_over_token_ids_roll_back_by_tokens(compile_schema):
    # guidance-ai/llguidance#364
    schema = OutputSchema.ebnf("root ::= Token(70) Token(2) Token(71) Token(72)")
    session = compile_schema(schema).session(schema)
    session.advance([70, 2, 71])
    session.rollback(2)
    legal, masks = rows_of(session, [2, 71, 72, EOS])
    assert legal == 4
    assert [allowed_in_row(row) for row in masks[:4]] == [[2], [71], [72], [EOS]]


def test_a_draft_that_goes_on_behind_the_stop_token_is_harmless(start, encode):
    # openvinotoolkit/openvino.genai#4082, sgl-project/sglang#14464
    session = start(OBJECT)
    session.advance(encode("{}"))
    legal, masks = rows_of(session, [EOS, EOS, 50])
    assert legal == 1
    assert all(row.any() for row in masks)
    session.advance([EOS])
    legal, masks = rows_of(session, [50])
    assert masks.any(axis=1).all()


def test_masks_follow_the_request_when_rows_change_places(start, encode, vocabulary):
    # community report: counts of forbidden drafts lost when rows are reordered
    digits = OutputSchema.regex("[0-9]{9}")
    drafts = {"none": [], "two": encode("1x"), "five": encode("12345")}
    batch = MaskBatch(vocabulary.vocab_size)
    batch.fill((name, start(digits), tokens) for name, tokens in drafts.items())
    bits, rows = batch.gather([("five", 6), ("none", 1), ("two", 3)])
    assert [batch.num_legal(name) for name in ("five", "none", "two")] == [5, 0, 1]
    assert rows.tolist() == list(range(10))
    lengths = [len(allowed_in_row(row)) for row in bits]
    assert lengths == [10] * 9 + [vocabulary.vocab_size]


def test_whitespace_runs_are_bounded(start):
    # vllm-project/vllm#38696
    session = start(
        OutputSchema.json_schema(
            {"type": "array", "items": {"type": "null"}, "maxItems": 1}, max_whitespace=8
        )
    )
    script = [5 + ord("[")] + [5 + ord("\n")] * 100
    generation = generate(session, seed=1, num_drafts=3, max_tokens=60, script=script)
    assert generation.is_finished
    assert generation.token_ids.count(5 + ord("\n")) <= 16


def test_padding_ids_are_never_allowed_under_a_grammar(start):
    # mlc-ai/xgrammar#611
    session = start(OutputSchema.regex("(.|\\n)*"))
    allowed = allowed_in_row(rows_of(session, [])[1][0])
    assert max(allowed) < session.vocab_size - 5
