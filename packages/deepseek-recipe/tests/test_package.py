"""What the package says about itself, and its names."""

from __future__ import annotations

import tomllib
from pathlib import Path

import deepseek_recipe as recipe

PACKAGE = Path(__file__).resolve().parents[1]

#: Public names of DeepSeek's distribution 0.2.0.
NAMES = [
    "AssistantMessage",
    "BytesImageSource",
    "CalcResizeError",
    "ChatCompletionChunk",
    "ChatCompletionChunkGenerator",
    "ChatCompletionRequest",
    "ChatCompletionResponse",
    "Conversation",
    "ConversationRequest",
    "ConversionError",
    "ConversionOptions",
    "DataUrlImageSource",
    "DeepseekV41Encoding",
    "DeepseekV4Encoding",
    "IMAGE_SPECIAL_TOKEN_ID",
    "ImageError",
    "ImageInfo",
    "ImageQuota",
    "ImageResolver",
    "ImageSource",
    "InferenceChunk",
    "InferenceFinishReason",
    "InferenceOptions",
    "LatestReminderMessage",
    "Message",
    "MessagesChunkGenerator",
    "MessagesRequest",
    "MessagesResponse",
    "MessagesStreamEvent",
    "ModelVersion",
    "MultiModalData",
    "OpenCvImagePreprocessor",
    "OutputConstraint",
    "ParsingOptions",
    "PreprocessOptions",
    "PromptUsage",
    "ReasoningContentBehavior",
    "RenderedPrompt",
    "ReqwestImageFetcher",
    "ResponsesChunkGenerator",
    "ResponsesEcho",
    "ResponsesRequest",
    "ResponsesResponse",
    "ResponsesStreamEvent",
    "SpecialToken",
    "SpecialTokens",
    "StreamProcessor",
    "SystemMessage",
    "ThinkingInitialStage",
    "Tokenizer",
    "ToolCall",
    "ToolDefinition",
    "ToolMessage",
    "UrlImageSource",
    "UserMessage",
    "WebSearchBehavior",
]


def test_names_of_the_original() -> None:
    assert [name for name in NAMES if not hasattr(recipe, name)] == []
    assert set(NAMES) <= set(recipe.__all__)


def test_one_version() -> None:
    python = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "version"
    ]
    rust = tomllib.loads((PACKAGE / "Cargo.toml").read_text(encoding="utf-8"))["package"]["version"]
    assert python == rust == recipe.__version__


def test_limits_and_counts_of_images() -> None:
    assert recipe.IMAGE_SPECIAL_TOKEN_ID > 0
    quota = recipe.ImageQuota()
    assert (quota.image_count(), quota.byte_size()) == (0, 0)
    data = recipe.MultiModalData([recipe.ImageInfo(b"", 640, 480)])
    assert not data.is_empty()
    assert data.image_token_adjustment() > 0
