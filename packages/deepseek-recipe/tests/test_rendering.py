"""Prompts: generation prompt and continued messages over all shapes of a conversation, and markers in messages."""

from __future__ import annotations

import itertools

import pytest
from round_trip import MODEL, convert

import deepseek_recipe as recipe

ENCODINGS = {"v4": recipe.DeepseekV4Encoding, "v41": recipe.DeepseekV41Encoding}
CALL = recipe.ToolCall("c", "tide", '{"a": 1}')
ENDINGS = {
    "system": recipe.SystemMessage("S"),
    "user": recipe.UserMessage("U"),
    "tool": recipe.ToolMessage("R", "c"),
    "answer": recipe.AssistantMessage("A"),
    "answer after reasoning": recipe.AssistantMessage("A", "T"),
    "calls": recipe.AssistantMessage("A", "T", [CALL]),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("ending", ENDINGS)
def test_every_shape_of_the_end(encoding: str, thinking: bool, ending: str) -> None:
    before = [recipe.UserMessage("Q")]
    if ending == "tool":
        before.append(recipe.AssistantMessage("", None, [CALL]))
    conversation = recipe.Conversation([*before, ENDINGS[ending]], thinking_mode=thinking)
    encoder = ENCODINGS[encoding]()

    def render(**arguments: bool) -> str:
        return encoder.render_conversation(conversation, **arguments).prompt

    default = render()
    assert default == render(add_generation_prompt=True, continue_final_message=False)
    opening = "<｜Assistant｜>" + ("<think>" if thinking else "</think>")
    assert default.endswith(opening)
    without = render(add_generation_prompt=False)
    assert default == without + opening or default.startswith(without)
    assert not without.endswith(("<think>", "<｜Assistant｜>"))
    with pytest.raises(ValueError):
        render(continue_final_message=True)
    if ending in ("answer", "answer after reasoning", "calls"):
        continued = render(add_generation_prompt=False, continue_final_message=True)
        assert continued.endswith("A" if ending != "calls" else "calls>")
        assert ("<think>T</think>A" in continued) == (
            ending != "answer" and (thinking or encoding == "v4")
        )
        if ending == "answer" and not thinking:
            assert without == continued + "<｜end▁of▁sentence｜>"
    else:
        with pytest.raises(ValueError):
            render(add_generation_prompt=False, continue_final_message=True)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_reasoning_is_left_open(encoding: str) -> None:
    conversation = recipe.Conversation(
        [recipe.UserMessage("Q"), recipe.AssistantMessage("", "Because")]
    )
    rendered = ENCODINGS[encoding]().render_conversation(
        conversation, add_generation_prompt=False, continue_final_message=True
    )
    assert rendered.prompt.endswith("<think>Because")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_empty_conversation(encoding: str) -> None:
    encoder = ENCODINGS[encoding]()
    empty = recipe.Conversation([])
    assert encoder.render_conversation(empty, add_generation_prompt=False).prompt.startswith(
        "<｜begin▁of▁sentence｜>"
    )
    with pytest.raises(ValueError):
        encoder.render_conversation(empty, add_generation_prompt=False, continue_final_message=True)


MARKERS = [
    recipe.SpecialToken.User,
    recipe.SpecialToken.ThinkingEnd,
    recipe.SpecialToken.Dsml,
    recipe.SpecialToken.Eos,
]
PLACES = ["system", "user", "assistant", "reasoning", "arguments", "tool"]


@pytest.mark.parametrize(("marker", "place"), list(itertools.product(MARKERS, PLACES)))
def test_strict_markers_name_the_message(marker: recipe.SpecialToken, place: str) -> None:
    def text(name: str) -> str:
        return f"x{marker.default_str()}y" if name == place else "x"

    call = recipe.ToolCall("c", "tide", '{"a": "' + text("arguments") + '"}')
    conversation = recipe.Conversation(
        [
            recipe.SystemMessage(text("system")),
            recipe.UserMessage(text("user")),
            recipe.AssistantMessage(text("assistant"), text("reasoning"), [call]),
            recipe.ToolMessage(text("tool"), "c"),
        ],
        tools=[recipe.ToolDefinition("tide")],
    )
    index = {"system": 0, "user": 1, "tool": 3}.get(place, 2)
    for encoding in ENCODINGS.values():
        encoding().render_conversation(conversation)
        with pytest.raises(
            recipe.MarkerError, match=rf"messages\[{index}\]|message {index}"
        ) as caught:
            encoding().render_conversation(conversation, strict_markers=True)
        assert caught.value.message_index == index


def test_strict_markers_accept_plain_messages() -> None:
    conversation = recipe.Conversation([recipe.UserMessage("a < b | c > d ｜ think")])
    for encoding in ENCODINGS.values():
        plain = encoding().render_conversation(conversation)
        assert (
            encoding().render_conversation(conversation, strict_markers=True).prompt == plain.prompt
        )


def test_special_ranges_are_the_special_tokens() -> None:
    request = convert(
        "chat", {"model": MODEL, "messages": [{"role": "user", "content": "<｜User｜> 🌊"}]}
    )
    rendered = recipe.DeepseekV41Encoding().render_conversation(request.conversation)
    tokens = [rendered.prompt[start:end] for start, end in rendered.special_ranges]
    assert tokens.count("<｜User｜>") == 1
    assert rendered.prompt.count("<｜User｜>") == 2


def test_reasoning_after_the_last_user_message_can_be_kept() -> None:
    conversation = recipe.Conversation(
        [recipe.UserMessage("Q"), recipe.AssistantMessage("A", "why")]
    )
    for encoding in ENCODINGS.values():
        assert "why" not in encoding().render_conversation(conversation).prompt
        assert (
            "why" in encoding().render_conversation(conversation, drop_thinking="last_user").prompt
        )
        with pytest.raises(ValueError):
            encoding().render_conversation(conversation, drop_thinking="never")


def test_all_reminders_can_be_kept() -> None:
    reminders = [recipe.LatestReminderMessage("one"), recipe.LatestReminderMessage("two")]
    conversation = recipe.Conversation([recipe.UserMessage("Q"), *reminders])
    encoder = recipe.DeepseekV41Encoding()
    assert "two" not in encoder.render_conversation(conversation).prompt
    assert "two" in encoder.render_conversation(conversation, keep_all_reminders=True).prompt


def test_rendering_and_parsing_in_two_calls() -> None:
    tools = [{"type": "function", "function": {"name": "tide"}}]
    rendered = recipe.render_chat([{"role": "user", "content": "Hi"}], tools=tools)
    assert rendered.prompt.endswith("<think>")
    assert rendered.token_ids is None
    output = 'so</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="tide">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>'
    message = recipe.parse_chat(output, rendered)["choices"][0]["message"]
    assert message["reasoning_content"] == "so"
    assert message["tool_calls"][0]["function"] == {"name": "tide", "arguments": "{}"}
    with pytest.raises(recipe.MarkerError):
        recipe.render_chat([{"role": "user", "content": "</think>"}], strict_markers=True)


def test_ids_of_a_chat(tokenizer: recipe.Tokenizer) -> None:
    pro = recipe.ModelVersion.DeepseekV4Pro
    rendered = recipe.render_chat(
        [{"role": "user", "content": "Hi 🌊"}], version=pro, tokenizer=tokenizer
    )
    assert rendered.token_ids is not None
    assert tokenizer.decode(rendered.token_ids) == rendered.prompt
    ids = tokenizer.encode("why</think>Yes 🌊")
    message = recipe.parse_chat(ids, rendered, tokenizer=tokenizer)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("why", "Yes 🌊")
