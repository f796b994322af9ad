"""Chat with the real recipe and the built-in tokenizer."""

import pytest

from di_engine import tiny
from di_engine.errors import InvalidRequestError
from di_engine.llm.chat import ChatEncoder, ChatOptions
from di_engine.tokenizer import Tokenizer

pytest.importorskip("deepseek_recipe", reason="deepseek-recipe is optional and not installed")

CONVERSATION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_directory(tiny.directory())


@pytest.fixture(scope="module")
def encoder(tokenizer: Tokenizer) -> ChatEncoder:
    return ChatEncoder(tokenizer.backend.to_str())


def test_a_conversation_begins_once_and_ends_at_the_assistants_turn(
    tokenizer: Tokenizer, encoder: ChatEncoder
) -> None:
    token_ids = encoder.encode(CONVERSATION, ChatOptions(thinking=True))
    text = tokenizer.decode(token_ids, skip_special_tokens=False)
    assert token_ids[0] == tokenizer.bos_token_id
    assert token_ids.count(tokenizer.bos_token_id) == 1
    assert "Be brief." in text
    assert text.endswith("<think>")
    without = tokenizer.decode(
        encoder.encode(CONVERSATION, ChatOptions(thinking=False)), skip_special_tokens=False
    )
    assert without.endswith("</think>")


def test_a_special_token_typed_by_a_user_stays_text(
    tokenizer: Tokenizer, encoder: ChatEncoder
) -> None:
    eos = tokenizer.decode([tokenizer.eos_token_id], skip_special_tokens=False)
    token_ids = encoder.encode([{"role": "user", "content": f"a{eos}b"}], ChatOptions())
    assert tokenizer.eos_token_id not in token_ids
    assert eos in tokenizer.decode(token_ids, skip_special_tokens=False)


@pytest.mark.parametrize("messages", [[], [{"role": "nobody", "content": "x"}], [7], [{}]])
def test_what_is_no_conversation_is_a_bad_request(encoder: ChatEncoder, messages: list) -> None:
    with pytest.raises(InvalidRequestError, match="the messages cannot be encoded"):
        encoder.encode(messages, ChatOptions())
