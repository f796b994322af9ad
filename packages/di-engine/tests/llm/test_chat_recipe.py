"""Chat with the real recipe and the built-in tokenizer."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from di_engine import LLM, ChatMessage, ChatOptions, ChatPrompt, SamplingParams, tiny
from di_engine.cli import generate  # noqa: F401  # registers the command
from di_engine.cli.app import app
from di_engine.errors import InvalidRequestError, UnsupportedEnvironmentError
from di_engine.llm.chat import ChatEncoder, EncodedChat
from di_engine.llm.outputs import CompletionOutput, FinishReason
from di_engine.tokenizer import Tokenizer

pytest.importorskip("deepseek_recipe", reason="deepseek-recipe is optional and not installed")

CONVERSATION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}]
TIDE = {
    "type": "function",
    "function": {
        "name": "tide",
        "description": "Time of high tide",
        "parameters": {"type": "object", "properties": {"port": {"type": "string"}}},
    },
}
CALL = (
    '<｜DSML｜ invoke name="tide">\n'
    '<｜DSML｜ parameter name="port" string="true">Brest</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n"
)
RESULT = {"role": "tool", "content": "06:12"}
QUIET = ChatOptions(thinking=False)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_directory(tiny.directory())


@pytest.fixture(scope="module")
def encoder(tokenizer: Tokenizer) -> ChatEncoder:
    return ChatEncoder(tokenizer.backend.to_str(), [tokenizer.eos_token_id])


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(model="tiny", arithmetic="float32", max_running=4) as llm:
        yield llm


def prompt_text(tokenizer: Tokenizer, chat: EncodedChat) -> str:
    return tokenizer.decode(chat.token_ids, skip_special_tokens=False)


class TestEncode:
    def test_a_conversation_begins_once_and_ends_at_the_assistants_turn(
        self, tokenizer: Tokenizer, encoder: ChatEncoder
    ) -> None:
        chat = encoder.encode(ChatPrompt(CONVERSATION))
        assert chat.token_ids[0] == tokenizer.bos_token_id
        assert chat.token_ids.count(tokenizer.bos_token_id) == 1
        assert "Be brief." in prompt_text(tokenizer, chat)
        assert prompt_text(tokenizer, chat).endswith("<think>")
        without = encoder.encode(ChatPrompt(CONVERSATION, options=QUIET))
        assert prompt_text(tokenizer, without).endswith("</think>")

    def test_a_special_token_typed_by_a_user_stays_text(
        self, tokenizer: Tokenizer, encoder: ChatEncoder
    ) -> None:
        eos = tokenizer.decode([tokenizer.eos_token_id], skip_special_tokens=False)
        chat = encoder.encode(ChatPrompt([{"role": "user", "content": f"a{eos}b"}]))
        assert tokenizer.eos_token_id not in chat.token_ids
        assert eos in prompt_text(tokenizer, chat)

    def test_tools_and_options_reach_the_prompt(
        self, tokenizer: Tokenizer, encoder: ChatEncoder
    ) -> None:
        chat = encoder.encode(ChatPrompt(CONVERSATION, [TIDE], ChatOptions(reasoning_effort="low")))
        text = prompt_text(tokenizer, chat)
        assert '"name": "tide", "description": "Time of high tide"' in text
        assert "Reasoning Effort: 50 " in text
        forced = ChatOptions(thinking=False, tool_choice="required")
        text = prompt_text(tokenizer, encoder.encode(ChatPrompt(CONVERSATION, [TIDE], forced)))
        assert text.endswith("</think>\n\n<｜DSML｜ calls>\n")
        schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
        asked = ChatPrompt(CONVERSATION, options=ChatOptions(response_format=schema))
        assert "## Response Format" in prompt_text(tokenizer, encoder.encode(asked))

    @pytest.mark.parametrize(
        ("prompt", "told"),
        [
            (ChatPrompt([]), "Empty input messages"),
            (ChatPrompt([{}]), "role"),
            (ChatPrompt([{"role": "nobody", "content": "x"}]), "nobody"),
            (ChatPrompt([{"role": "user"}]), "content"),
            (ChatPrompt([{"role": "user", "content": 7}]), "content"),
            (ChatPrompt([{"role": "user", "content": float("nan")}]), "NaN"),
            (ChatPrompt([{"role": "user", "content": "\ud800"}]), "surrogate"),
            (ChatPrompt([{"role": "tool", "content": "x", "tool_call_id": "1"}]), "role 'tool'"),
            (ChatPrompt(CONVERSATION, [{"type": "function"}]), "function"),
            (ChatPrompt(CONVERSATION, [TIDE, TIDE]), "unique"),
            (ChatPrompt(CONVERSATION, options=ChatOptions(reasoning_effort="huge")), "huge"),
            (ChatPrompt(CONVERSATION, [TIDE], ChatOptions(tool_choice="required")), "Thinking"),
            (ChatPrompt(CONVERSATION, [TIDE], ChatOptions(False, tool_choice="tides")), "tides"),
        ],
    )
    def test_what_is_no_conversation_is_told_in_one_line(
        self, encoder: ChatEncoder, prompt: ChatPrompt, told: str
    ) -> None:
        with pytest.raises(InvalidRequestError, match="the messages cannot be encoded") as caught:
            encoder.encode(prompt)
        assert told in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("prompt", "told"),
        [
            (ChatPrompt([7]), r"`messages\[0\]` must be a mapping .*: got int"),  # type: ignore[list-item]
            (ChatPrompt("hi"), "`messages` must be a list: got str"),  # type: ignore[arg-type]
            (ChatPrompt(CONVERSATION, [TIDE, "tide"]), r"`tools\[1\]` must be a mapping"),  # type: ignore[list-item]
            (ChatPrompt(CONVERSATION, TIDE), "`tools` must be a list: got dict"),  # type: ignore[arg-type]
        ],
    )
    def test_wrong_types_are_named_with_their_place(
        self, encoder: ChatEncoder, prompt: ChatPrompt, told: str
    ) -> None:
        with pytest.raises(InvalidRequestError, match=told):
            encoder.encode(prompt)

    def test_images_are_refused_rather_than_lost(self, encoder: ChatEncoder) -> None:
        image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
        with pytest.raises(InvalidRequestError, match="reads text alone"):
            encoder.encode(ChatPrompt([{"role": "user", "content": [image]}]))

    def test_a_tokenizer_without_the_formats_tokens_is_told(self, tokenizer: Tokenizer) -> None:
        file = json.loads(tokenizer.backend.to_str())
        for token in file["added_tokens"]:
            if token["content"] == "<｜System｜>":
                token["content"] = "<｜Other｜>"
        with pytest.raises(InvalidRequestError, match="System"):
            ChatEncoder(json.dumps(file)).encode(ChatPrompt(CONVERSATION))


class TestParse:
    @pytest.fixture
    def parse(self, tokenizer: Tokenizer, encoder: ChatEncoder) -> Any:
        def parse(
            output: str,
            options: ChatOptions = QUIET,
            finish: FinishReason = "stop",
            stop: str | int | None = None,
            **params: Any,
        ) -> ChatMessage:
            chat = encoder.encode(ChatPrompt(CONVERSATION, [TIDE], options))
            token_ids = tokenizer.encode(output)
            if finish == "stop" and stop is None:
                token_ids.append(tokenizer.eos_token_id)
            completion = CompletionOutput(0, "", token_ids, finish_reason=finish, stop_reason=stop)
            return encoder.parse(chat, completion, SamplingParams(**params))

        return parse

    def test_reasoning_answer_and_calls(self, parse: Any) -> None:
        message = parse(
            f"They ask.</think>Wait.\n\n<｜DSML｜ calls>\n{CALL}{CALL}</｜DSML｜ calls>",
            ChatOptions(),
        )
        assert (message.reasoning_content, message.content) == ("They ask.", "Wait.")
        assert message.malformed_tool_calls == []
        functions = [call["function"] for call in message.tool_calls]
        assert functions == [{"name": "tide", "arguments": '{"port": "Brest"}'}] * 2
        first, second = (call["id"] for call in message.tool_calls)
        assert re.match("call_00_", first)
        assert first != second

    def test_a_forced_call_goes_on_where_the_prompt_ends(self, parse: Any) -> None:
        forced = ChatOptions(thinking=False, tool_choice="required")
        message = parse(f"{CALL}</｜DSML｜ calls>", forced)
        assert [call["function"]["name"] for call in message.tool_calls] == ["tide"]

    def test_an_unfinished_call_is_never_one_to_run(self, parse: Any) -> None:
        output = f"<｜DSML｜ calls>\n{CALL}{CALL}"
        message = parse(output[:-20], finish="length")
        assert len(message.tool_calls) == 1
        assert message.malformed_tool_calls == [{"index": 1, "name": "tide", "reason": "truncated"}]
        assert "DSML" not in message.content

    def test_markup_in_ordinary_ids_is_text(
        self, tokenizer: Tokenizer, encoder: ChatEncoder
    ) -> None:
        chat = encoder.encode(ChatPrompt(CONVERSATION))
        marker = tokenizer.encode("</think>")
        spelled = tokenizer.encode("</th") + tokenizer.encode("ink>")
        token_ids = [*spelled, *marker, *spelled]
        completion = CompletionOutput(0, "", token_ids, finish_reason="length")
        message = encoder.parse(chat, completion, SamplingParams())
        assert (message.reasoning_content, message.content) == ("</think>", "</think>")

    def test_an_empty_completion_is_an_empty_message(self, parse: Any) -> None:
        assert parse("") == ChatMessage("")

    def test_hidden_stops_are_no_part_of_the_message(
        self, tokenizer: Tokenizer, parse: Any
    ) -> None:
        assert parse("one STOP.", stop="STOP").content == "one "
        kept = parse("one STOP", stop="STOP", include_stop_str_in_output=True)
        assert kept.content == "one STOP"
        thought = parse("so STOP", ChatOptions(), stop="STOP")
        assert (thought.reasoning_content, thought.content) == ("so ", "")
        last = tokenizer.encode("one")[-1]
        assert parse("one", stop=last).content == tokenizer.decode(tokenizer.encode("one")[:-1])


class TestLLM:
    def test_a_conversation_is_rendered_and_its_answer_parsed(self, llm: LLM) -> None:
        conversation = [{"role": "user", "content": "Define lamp."}]  # answered by a sentence
        params = SamplingParams(max_tokens=8, temperature=0)
        output = llm.chat(conversation, None, params, options=QUIET)[0]
        assert output.error is None
        message = output.outputs[0].message
        assert message is not None
        assert message.content == output.text
        assert message.reasoning_content is None
        again = llm.generate(output.prompt_token_ids, params)[0]
        assert (again.text, again.outputs[0].message) == (output.text, None)
        thinking = llm.chat(conversation, sampling_params=params)[0].outputs[0].message
        assert thinking is not None
        assert thinking.reasoning_content is not None

    def test_a_call_that_the_model_makes_is_parsed(self, llm: LLM) -> None:
        params = SamplingParams(max_tokens=120, temperature=0)
        whole = llm.chat(CONVERSATION, [TIDE], params, options=QUIET)[0].outputs[0]
        assert whole.message is not None
        assert whole.text.strip().startswith("<｜DSML｜ calls>")
        assert (whole.message.content, whole.message.malformed_tool_calls) == ("", [])
        assert json.loads(whole.message.tool_calls[0]["function"]["arguments"])
        params = SamplingParams(max_tokens=len(whole.token_ids) // 2, temperature=0)
        cut = llm.chat(CONVERSATION, [TIDE], params, options=QUIET)[0].outputs[0].message
        assert cut is not None
        assert [call["reason"] for call in cut.malformed_tool_calls] == ["truncated"]

    def test_the_next_turn_takes_the_message_back(
        self, llm: LLM, tokenizer: Tokenizer, encoder: ChatEncoder
    ) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "tide", "arguments": "{}"}}
        message = ChatMessage("Wait.", "They ask.", [call]).to_dict()
        turn = [*CONVERSATION, message, {**RESULT, "tool_call_id": "c"}]
        text = prompt_text(tokenizer, encoder.encode(ChatPrompt(turn, [TIDE])))
        assert "<think>They ask.</think>Wait." in text
        assert text.endswith("<tool_result>06:12</tool_result><｜Assistant｜><think>")

    def test_a_bad_conversation_fails_alone(self, llm: LLM) -> None:
        outputs = llm.chat(
            [CONVERSATION, [{"role": "nobody"}], ChatPrompt(CONVERSATION, [TIDE], QUIET)],
            sampling_params={"max_tokens": 2},
        )
        assert [output.error is None for output in outputs] == [True, False, True]
        error = outputs[1].error
        assert error is not None
        assert (error.kind, error.param) == ("invalid_request", "messages")
        assert "the messages cannot be encoded" in error.message
        assert len(outputs[2].prompt_token_ids) > len(outputs[0].prompt_token_ids)


class TestCommand:
    def run(self, tmp_path: Path, text: str, *arguments: str, name: str = "chat.json") -> Any:
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        command = ["generate", "--model", "tiny", "--quiet", "--max-tokens", "4"]
        return CliRunner().invoke(app, [*command, "--messages", str(file), *arguments])

    def test_conversations_of_a_file(self, tmp_path: Path) -> None:
        lines = [
            CONVERSATION,
            {"messages": CONVERSATION, "tools": [TIDE], "thinking": False, "max_tokens": 2},
            {"messages": [{"role": "nobody"}]},
            {"message": []},
        ]
        text = "\n".join(map(json.dumps, lines))
        result = self.run(tmp_path, text, "--json", name="chats.jsonl")
        assert result.exit_code == 2
        first, second, third, fourth = map(json.loads, result.stdout.splitlines())
        assert first["outputs"][0]["message"].keys() == {"role", "content", "reasoning_content"}
        assert len(second["outputs"][0]["token_ids"]) == 2
        assert second["outputs"][0]["message"].keys() == {"role", "content"}
        assert "nobody" in third["error"]["message"]
        assert "line 4 must be a list of messages" in fourth["error"]["message"]

    def test_text_is_the_answer(self, tmp_path: Path) -> None:
        body = {"messages": CONVERSATION, "thinking": {"type": "disabled"}, "temperature": 0}
        as_text = self.run(tmp_path, json.dumps(body))
        as_json = json.loads(self.run(tmp_path, json.dumps(body), "--json").stdout)
        assert as_text.exit_code == 0
        assert as_text.stdout == as_json["outputs"][0]["message"]["content"] + "\n"

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("{", "the file is not JSON"),
            ("7", "must be a list of messages"),
            ('{"messages": {}}', "must be a list of messages"),
            ('{"messages": [], "thinking": "no"}', "`thinking` must be"),
            ("[" * 100_000, "is not JSON"),
        ],
    )
    def test_a_file_without_a_conversation_is_wrong_use(
        self, tmp_path: Path, text: str, told: str
    ) -> None:
        result = self.run(tmp_path, text)
        assert (result.exit_code, result.stdout) == (2, "")
        assert told in " ".join(result.stderr.replace("│", " ").split())

    def test_messages_and_prompts_exclude_each_other(self, tmp_path: Path) -> None:
        result = self.run(tmp_path, "[]", "a prompt")
        assert result.exit_code == 2
        assert "not both" in result.stderr

    def test_without_the_recipe_one_line_says_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "deepseek_recipe", None)
        result = self.run(tmp_path, json.dumps(CONVERSATION))
        assert isinstance(result.exception, UnsupportedEnvironmentError)
