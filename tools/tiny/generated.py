"""Generated documents: chat turns, tool calls, answers that follow a JSON schema, JSON records.

Conversations are rendered by `deepseek_recipe` in the V4.1 prompt format, thinking and not. What is
said comes from WordNet glosses, from arithmetic and from word lists in this file: no person, place
or product that exists.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import deepseek_recipe as recipe

Gloss = tuple[str, str, str]  # word, kind, meaning
_CITIES = ("Alderport", "Brimwick", "Castermere", "Dunhollow", "Eastmarsh", "Fernhaven", "Glimsby")
_ITEMS = ("lamp", "chair", "kettle", "notebook", "bicycle", "clock", "basket", "ladder", "mirror")
_COLOURS = ("red", "green", "blue", "black", "white", "yellow", "brown", "grey")
_WEATHER = ("sunny", "cloudy", "rainy", "windy", "foggy", "clear")
_FILES = ("notes.txt", "report.md", "main.py", "config.json", "data.csv", "README.md", "setup.py")
_EFFORTS = (None, None, "low", "high", "max")


@dataclass(slots=True)
class Dialogue:
    """A conversation to render: messages as `deepseek_recipe` objects."""

    messages: list[recipe.Message]
    tools: list[recipe.ToolDefinition] | None = None
    schema: dict[str, Any] | None = None
    thinking: bool = True
    effort: str | None = field(default=None)

    def render(self) -> str:
        """The prompt format up to the end of the last answer."""
        conversation = recipe.Conversation(
            self.messages,
            thinking_mode=self.thinking,
            tools=self.tools,
            reasoning_effort=self.effort,
            response_schema=self.schema,
        )
        prompt: str = recipe.DeepseekV41Encoding().render_conversation(conversation).prompt
        end = "<｜end▁of▁sentence｜>"
        return prompt[: prompt.rindex(end)].removeprefix("<｜begin▁of▁sentence｜>")


def generate_documents(glosses: Sequence[Gloss], count: int, seed: int) -> Iterator[str]:
    """Yields `count` documents; equal arguments give equal documents."""
    rng = random.Random(seed)
    makers = (_definition, _arithmetic, _tool_call, _schema_answer, _list_answer, _records)
    weights = (24, 14, 26, 16, 8, 12)
    for _ in range(count):
        (maker,) = rng.choices(makers, weights)
        yield maker(rng, glosses)


def _dialogue(rng: random.Random, messages: list[recipe.Message], **fields: Any) -> str:
    thinking = rng.random() < 0.6
    effort = rng.choice(_EFFORTS) if thinking else None
    return Dialogue(messages, thinking=thinking, effort=effort, **fields).render()


def _answer(text: str, thought: str, calls: list[recipe.ToolCall] | None = None) -> recipe.Message:
    return recipe.AssistantMessage(text, thought, calls)


def _definition(rng: random.Random, glosses: Sequence[Gloss]) -> str:
    word, kind, gloss = rng.choice(glosses)
    meaning = gloss.split(";")[0]
    question = rng.choice(
        (
            f"What does the word {word} mean?",
            f"What is the meaning of {word}?",
            f"Define {word}.",
            f"Please explain the {kind} {word}.",
        )
    )
    article = "an" if kind[0] == "a" else "a"
    answer = f"The word {word} is {article} {kind}. It means: {meaning}."
    thought = f"The user asks what {word} means. It is {article} {kind}."
    messages = [recipe.UserMessage(question), _answer(answer, thought)]
    if rng.random() < 0.3 and ";" in gloss and '"' in gloss:
        example = gloss.split('"')[1]
        messages.append(recipe.UserMessage("Can you give an example?"))
        messages.append(_answer(f"Yes. For example: {example}.", "An example is needed."))
    return _dialogue(rng, messages)


def _arithmetic(rng: random.Random, glosses: Sequence[Gloss]) -> str:
    left, right = rng.randrange(2, 60), rng.randrange(2, 40)
    sign, name, result = rng.choice(
        (("+", "plus", left + right), ("-", "minus", left - right), ("*", "times", left * right))
    )
    question = rng.choice((f"What is {left} {name} {right}?", f"Compute {left} {sign} {right}."))
    thought = f"{left} {sign} {right} = {result}."
    answer = f"{left} {name} {right} is {result}."
    return _dialogue(rng, [recipe.UserMessage(question), _answer(answer, thought)])


def _list_answer(rng: random.Random, glosses: Sequence[Gloss]) -> str:
    number = rng.randrange(2, 5)
    chosen = rng.sample(glosses, number)
    kind = rng.choice(("words", "terms"))
    question = f"Give me {number} {kind} and say what they mean."
    lines = [f"{i}. {word}: {gloss.split(';')[0]}." for i, (word, _, gloss) in enumerate(chosen, 1)]
    answer = f"Here are {number} {kind}:\n\n" + "\n".join(lines)
    return _dialogue(
        rng, [recipe.UserMessage(question), _answer(answer, f"I list {number} {kind}.")]
    )


# --- Tools ---


@dataclass(frozen=True, slots=True)
class _Use:
    """One use of a tool: what is asked, what is called, what comes back, what is said."""

    question: str
    arguments: dict[str, Any]
    result: dict[str, Any]
    answer: str


def _tool(name: str, description: str, **properties: str) -> recipe.ToolDefinition:
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
    }
    return recipe.ToolDefinition(name, description, schema)


def _weather(rng: random.Random) -> _Use:
    city, sky, degrees = rng.choice(_CITIES), rng.choice(_WEATHER), rng.randrange(-5, 35)
    question = rng.choice(
        (f"What is the weather in {city}?", f"How is the weather in {city} today?")
    )
    answer = f"It is {sky} in {city}, at {degrees} degrees."
    return _Use(question, {"city": city}, {"sky": sky, "degrees": degrees}, answer)


def _price(rng: random.Random) -> _Use:
    item, colour, price = rng.choice(_ITEMS), rng.choice(_COLOURS), rng.randrange(3, 90)
    question = f"How much is a {colour} {item}?"
    arguments = {"item": item, "colour": colour}
    return _Use(question, arguments, {"price": price}, f"A {colour} {item} costs {price} coins.")


def _calculate(rng: random.Random) -> _Use:
    left, right = rng.randrange(100, 1000), rng.randrange(100, 1000)
    question = f"Use the calculator: what is {left} + {right}?"
    result = left + right
    arguments = {"expression": f"{left} + {right}"}
    return _Use(question, arguments, {"result": result}, f"{left} + {right} is {result}.")


def _read(rng: random.Random) -> _Use:
    path, lines = rng.choice(_FILES), rng.randrange(1, 50)
    question = rng.choice((f"Read the file {path}.", f"Show me the first {lines} lines of {path}."))
    arguments = {"path": path, "lines": lines}
    result = {"path": path, "found": True, "lines": lines}
    return _Use(question, arguments, result, f"I read {lines} lines of {path}.")


def _timer(rng: random.Random) -> _Use:
    minutes = rng.randrange(1, 60)
    unit = "minute" if minutes == 1 else "minutes"
    question = rng.choice((f"Set a timer for {minutes} {unit}.", f"Remind me in {minutes} {unit}."))
    arguments = {"minutes": minutes, "repeat": False}
    return _Use(question, arguments, {"started": True}, f"The timer is set for {minutes} {unit}.")


_TOOLS: tuple[tuple[recipe.ToolDefinition, Callable[[random.Random], _Use]], ...] = (
    (_tool("get_weather", "Current weather of a city", city="string"), _weather),
    (_tool("get_price", "Price of an item", item="string", colour="string"), _price),
    (_tool("calculate", "Evaluate an arithmetic expression", expression="string"), _calculate),
    (_tool("read_file", "Read lines of a file", path="string", lines="integer"), _read),
    (_tool("set_timer", "Start a timer", minutes="integer", repeat="boolean"), _timer),
)


def _tool_call(rng: random.Random, glosses: Sequence[Gloss]) -> str:
    offered = rng.sample(_TOOLS, rng.randrange(1, 3))
    tool, use_of = rng.choice(offered)
    use = use_of(rng)
    call = recipe.ToolCall("call_0", tool.name, json.dumps(use.arguments))
    messages = [
        recipe.UserMessage(use.question),
        _answer("", f"I call {tool.name}.", [call]),
    ]
    if rng.random() < 0.7:
        messages.append(recipe.ToolMessage(json.dumps(use.result), "call_0"))
        messages.append(_answer(use.answer, "The result is there."))
    return _dialogue(rng, messages, tools=[tool for tool, _ in offered])


# --- JSON ---


def _fields(rng: random.Random) -> dict[str, tuple[dict[str, Any], Any]]:
    """Schema and value of some fields of a record, in a drawn order."""
    fields: dict[str, tuple[dict[str, Any], Any]] = {
        "name": ({"type": "string"}, rng.choice(_ITEMS)),
        "colour": ({"type": "string", "enum": list(_COLOURS[:4])}, rng.choice(_COLOURS[:4])),
        "price": ({"type": "integer"}, rng.randrange(3, 90)),
        "weight": ({"type": "number"}, rng.randrange(1, 100) / 10),
        "in_stock": ({"type": "boolean"}, rng.random() < 0.5),
        "tags": (
            {"type": "array", "items": {"type": "string"}},
            rng.sample(_COLOURS, rng.randrange(1, 3)),
        ),
        "city": ({"type": "string"}, rng.choice(_CITIES)),
        "id": ({"type": "integer"}, rng.randrange(1, 1000)),
    }
    names = rng.sample(list(fields), rng.randrange(2, 6))
    return {name: fields[name] for name in names}


def _schema_answer(rng: random.Random, glosses: Sequence[Gloss]) -> str:
    fields = _fields(rng)
    schema = {
        "type": "object",
        "properties": {name: kind for name, (kind, _) in fields.items()},
        "required": list(fields),
        "additionalProperties": False,
    }
    question = rng.choice(
        ("Give me a record.", "Describe an item as JSON.", "Fill in the form.", "Return one entry.")
    )
    answer = json.dumps({name: value for name, (_, value) in fields.items()})
    thought = "The answer must follow the schema."
    messages = [recipe.UserMessage(question), _answer(answer, thought)]
    return _dialogue(rng, messages, schema=schema)


def _records(rng: random.Random, glosses: Sequence[Gloss]) -> str:
    """Plain JSON lines of equal fields, without a conversation."""
    names = list(_fields(rng))
    lines = []
    for _ in range(rng.randrange(3, 9)):
        drawn: dict[str, Any] = {}
        while not set(names) <= set(drawn):
            drawn |= {name: value for name, (_, value) in _fields(rng).items()}
        lines.append(json.dumps({name: drawn[name] for name in names}))
    return "\n".join(lines)
