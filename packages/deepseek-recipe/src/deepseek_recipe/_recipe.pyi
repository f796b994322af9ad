"""Types of the extension module; checked against the binary by stubtest."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar, final

from typing_extensions import disjoint_base

from deepseek_recipe.store import ResponseStore

__all__ = [
    "IMAGE_SPECIAL_TOKEN_ID",
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
    "DeepseekV4Encoding",
    "DeepseekV41Encoding",
    "ImageError",
    "ImageInfo",
    "ImageQuota",
    "ImageResolver",
    "ImageSource",
    "InferenceChunk",
    "InferenceFinishReason",
    "InferenceOptions",
    "IntegerRangeError",
    "LatestReminderMessage",
    "MalformedToolCall",
    "MarkerError",
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
    "__version__",
]

__version__: str
IMAGE_SPECIAL_TOKEN_ID: int

_RequestBody = bytes | str | dict[str, Any]

class ConversionError(Exception):
    status_code: int
    body: str
    messages_body: str

class ImageError(Exception):
    kind: str
    is_retryable: bool

class CalcResizeError(ValueError): ...

class MarkerError(ValueError):
    message_index: int | None

class IntegerRangeError(OverflowError, ValueError): ...

@final
class SpecialToken:
    Bos: ClassVar[SpecialToken]
    Eos: ClassVar[SpecialToken]
    ThinkingStart: ClassVar[SpecialToken]
    ThinkingEnd: ClassVar[SpecialToken]
    System: ClassVar[SpecialToken]
    User: ClassVar[SpecialToken]
    Assistant: ClassVar[SpecialToken]
    LatestReminder: ClassVar[SpecialToken]
    Dsml: ClassVar[SpecialToken]
    Image: ClassVar[SpecialToken]
    Ref: ClassVar[SpecialToken]
    RefEnd: ClassVar[SpecialToken]
    Box: ClassVar[SpecialToken]
    BoxEnd: ClassVar[SpecialToken]
    Point: ClassVar[SpecialToken]
    PointEnd: ClassVar[SpecialToken]
    Polygon: ClassVar[SpecialToken]
    PolygonEnd: ClassVar[SpecialToken]
    def default_str(self) -> str: ...

@final
class WebSearchBehavior:
    Drop: ClassVar[WebSearchBehavior]
    Reject: ClassVar[WebSearchBehavior]

@final
class ReasoningContentBehavior:
    FillEmpty: ClassVar[ReasoningContentBehavior]
    Reject: ClassVar[ReasoningContentBehavior]

@final
class ModelVersion:
    DeepseekV4Pro: ClassVar[ModelVersion]
    DeepseekV41Flash: ClassVar[ModelVersion]

@final
class InferenceFinishReason:
    Stop: ClassVar[InferenceFinishReason]
    Length: ClassVar[InferenceFinishReason]
    ContentFilter: ClassVar[InferenceFinishReason]

@final
class ThinkingInitialStage:
    ReasoningStart: ClassVar[ThinkingInitialStage]
    ReasoningContinuation: ClassVar[ThinkingInitialStage]
    ContentContinuation: ClassVar[ThinkingInitialStage]
    def starts_in_reasoning(self) -> bool: ...

@final
class SpecialTokens:
    def __new__(
        cls,
        *,
        bos: str | None = None,
        eos: str | None = None,
        thinking_start: str | None = None,
        thinking_end: str | None = None,
        system: str | None = None,
        user: str | None = None,
        assistant: str | None = None,
        latest_reminder: str | None = None,
        dsml: str | None = None,
        image: str | None = None,
        ref: str | None = None,
        ref_end: str | None = None,
        box: str | None = None,
        box_end: str | None = None,
        point: str | None = None,
        point_end: str | None = None,
        polygon: str | None = None,
        polygon_end: str | None = None,
    ) -> SpecialTokens: ...
    def token(self, token: SpecialToken) -> str: ...

@final
class ToolCall:
    def __new__(cls, id: str, name: str, arguments: str) -> ToolCall: ...
    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def arguments(self) -> str: ...

@final
class ToolDefinition:
    def __new__(
        cls,
        name: str,
        description: str | None = None,
        parameters: Any = None,
        strict: bool | None = None,
        defer_loading: bool = False,
    ) -> ToolDefinition: ...
    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str | None: ...
    @property
    def parameters(self) -> Any: ...
    @property
    def strict(self) -> bool | None: ...
    @property
    def defer_loading(self) -> bool: ...

@disjoint_base
class ImageSource:
    @property
    def kind(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def data_url(self) -> str | None: ...
    @property
    def url(self) -> str | None: ...
    @property
    def data(self) -> bytes | None: ...
    @property
    def path(self) -> str: ...

@final
class DataUrlImageSource(ImageSource):
    def __new__(
        cls, data_url: str, detail: str = "high", *, path: str = ""
    ) -> DataUrlImageSource: ...

@final
class UrlImageSource(ImageSource):
    def __new__(cls, url: str, detail: str = "high", *, path: str = "") -> UrlImageSource: ...

@final
class BytesImageSource(ImageSource):
    def __new__(cls, data: bytes, detail: str = "high", *, path: str = "") -> BytesImageSource: ...

@disjoint_base
class Message:
    @property
    def role(self) -> str: ...
    @property
    def content(self) -> str: ...
    @property
    def reasoning_content(self) -> str | None: ...
    @property
    def tool_calls(self) -> list[ToolCall] | None: ...
    @property
    def tool_call_id(self) -> str | None: ...
    @property
    def image_sources(self) -> list[ImageSource]: ...
    @property
    def prefix(self) -> bool: ...

@final
class SystemMessage(Message):
    def __new__(
        cls,
        content: str,
        image_sources: Sequence[ImageSource] | None = None,
        tools: Sequence[ToolDefinition] | None = None,
        *,
        image_token: str | None = None,
    ) -> SystemMessage: ...
    @property
    def tools(self) -> list[ToolDefinition]: ...

@final
class UserMessage(Message):
    def __new__(
        cls,
        content: str,
        image_sources: Sequence[ImageSource] | None = None,
        *,
        image_token: str | None = None,
    ) -> UserMessage: ...

@final
class AssistantMessage(Message):
    def __new__(
        cls,
        content: str,
        reasoning_content: str | None = None,
        tool_calls: Sequence[ToolCall] | None = None,
        prefix: bool = False,
    ) -> AssistantMessage: ...

@final
class ToolMessage(Message):
    def __new__(
        cls,
        content: str,
        tool_call_id: str | None = None,
        image_sources: Sequence[ImageSource] | None = None,
        *,
        image_token: str | None = None,
    ) -> ToolMessage: ...

@final
class LatestReminderMessage(Message):
    def __new__(cls, content: str) -> LatestReminderMessage: ...

@final
class Conversation:
    def __new__(
        cls,
        messages: Sequence[Message] | None = None,
        *,
        thinking_mode: bool = True,
        tools: Sequence[ToolDefinition] | None = None,
        tool_choice: str = "auto",
        reasoning_effort: str | None = None,
        response_format: str = "text",
        response_schema: Any = None,
        response_regex: str | None = None,
        reasoning_effort_value: int | None = None,
    ) -> Conversation: ...
    @property
    def messages(self) -> list[Message]: ...
    @property
    def thinking_mode(self) -> bool: ...
    @property
    def tools(self) -> list[ToolDefinition]: ...
    @property
    def tool_choice(self) -> str: ...
    @property
    def reasoning_effort(self) -> str | None: ...
    @property
    def reasoning_effort_value(self) -> int | None: ...
    @property
    def response_format(self) -> str: ...
    @property
    def response_schema(self) -> Any: ...
    @property
    def response_regex(self) -> str | None: ...

@final
class RenderedPrompt:
    @property
    def prompt(self) -> str: ...
    @property
    def special_ranges(self) -> list[tuple[int, int]]: ...
    @property
    def image_sources(self) -> list[ImageSource]: ...

@final
class Tokenizer:
    @staticmethod
    def from_file(path: str | PathLike[str]) -> Tokenizer: ...
    @staticmethod
    def from_str(json: str) -> Tokenizer: ...
    @staticmethod
    def from_pretrained(
        identifier: str, revision: str | None = None, token: str | None = None
    ) -> Tokenizer: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, token_ids: Sequence[int]) -> str: ...
    def added_token_id(self, token: str) -> int | None: ...

@final
class DeepseekV4Encoding:
    def __new__(cls) -> DeepseekV4Encoding: ...
    def with_tokenizer(self, tokenizer: Tokenizer) -> DeepseekV4Encoding: ...
    def with_special_tokens(self, special_tokens: SpecialTokens) -> DeepseekV4Encoding: ...
    def render_conversation(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        strict_markers: bool = False,
        drop_thinking: str = "without_tools",
        keep_all_reminders: bool = False,
    ) -> RenderedPrompt: ...
    def encode(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        strict_markers: bool = False,
        drop_thinking: str = "without_tools",
        keep_all_reminders: bool = False,
    ) -> list[int]: ...

@final
class DeepseekV41Encoding:
    def __new__(cls) -> DeepseekV41Encoding: ...
    def with_tokenizer(self, tokenizer: Tokenizer) -> DeepseekV41Encoding: ...
    def with_special_tokens(self, special_tokens: SpecialTokens) -> DeepseekV41Encoding: ...
    def render_conversation(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        strict_markers: bool = False,
        drop_thinking: str = "without_tools",
        keep_all_reminders: bool = False,
    ) -> RenderedPrompt: ...
    def encode(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        strict_markers: bool = False,
        drop_thinking: str = "without_tools",
        keep_all_reminders: bool = False,
    ) -> list[int]: ...

@final
class ConversionOptions:
    def __new__(
        cls,
        *,
        default_thinking_mode: bool = True,
        reasoning_content_behavior: ReasoningContentBehavior = ...,
        responses_web_search: WebSearchBehavior = ...,
        messages_web_search: WebSearchBehavior = ...,
        thinking_max_tokens_upper_bound: int = 393216,
        non_thinking_max_tokens_upper_bound: int = 393216,
        compat: str = "default",
        continue_messages_prefill: bool = False,
        mark_tool_errors: bool = False,
        openai_usage_chunk: bool = False,
        validate_tool_names: bool = False,
        keep_text_after_tools: bool = False,
        strict_json_output: bool = False,
        repair_tool_calls: bool = False,
        reasoning_key: bytes | None = None,
        on_warning: Callable[[str, str], object] | None = None,
        max_messages: int | None = None,
        max_tools: int | None = None,
        max_schema_bytes: int | None = None,
        max_choices: int | None = None,
    ) -> ConversionOptions: ...
    @property
    def compat(self) -> str: ...
    @property
    def default_thinking_mode(self) -> bool: ...
    @property
    def reasoning_content_behavior(self) -> ReasoningContentBehavior: ...
    @property
    def responses_web_search(self) -> WebSearchBehavior: ...
    @property
    def messages_web_search(self) -> WebSearchBehavior: ...
    @property
    def thinking_max_tokens_upper_bound(self) -> int: ...
    @property
    def non_thinking_max_tokens_upper_bound(self) -> int: ...
    @property
    def special_tokens(self) -> SpecialTokens: ...
    @property
    def model_versions_by_name(self) -> dict[str, ModelVersion]: ...
    def with_default_thinking_mode(self, default_thinking_mode: bool) -> ConversionOptions: ...
    def with_reasoning_content_behavior(
        self, behavior: ReasoningContentBehavior
    ) -> ConversionOptions: ...
    def with_responses_web_search(self, behavior: WebSearchBehavior) -> ConversionOptions: ...
    def with_messages_web_search(self, behavior: WebSearchBehavior) -> ConversionOptions: ...
    def with_special_tokens(self, special_tokens: SpecialTokens) -> ConversionOptions: ...
    def with_model_alias(self, name: str, model_version: ModelVersion) -> ConversionOptions: ...
    def with_model_versions_by_name(
        self, model_versions_by_name: dict[str, ModelVersion]
    ) -> ConversionOptions: ...
    def with_thinking_max_tokens_upper_bound(self, bound: int) -> ConversionOptions: ...
    def with_non_thinking_max_tokens_upper_bound(self, bound: int) -> ConversionOptions: ...
    def with_warning_hook(self, hook: Callable[[str, str], object]) -> ConversionOptions: ...

@final
class OutputConstraint:
    @property
    def kind(self) -> str: ...
    @property
    def schema(self) -> str: ...
    @property
    def tools(self) -> list[ToolDefinition] | None: ...
    @property
    def is_required(self) -> bool: ...
    @property
    def allows_parallel_calls(self) -> bool: ...

@final
class InferenceOptions:
    @property
    def max_tokens(self) -> int | None: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def logprobs(self) -> bool: ...
    @property
    def top_logprobs(self) -> int | None: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def n(self) -> int: ...
    @property
    def parallel_tool_calls(self) -> bool | None: ...
    @property
    def output_constraint(self) -> OutputConstraint | None: ...

@final
class ParsingOptions:
    def __new__(
        cls,
        *,
        parse_tool_calls: bool = True,
        starts_in_tool_calls: bool = False,
        parse_json_output: bool = False,
        thinking_initial_stage: ThinkingInitialStage | None = None,
        stop_sequences: Sequence[str] | None = None,
        special_tokens: SpecialTokens | None = None,
        keep_text_after_tools: bool = False,
        strict_json_output: bool = False,
        repair_tool_calls: bool = False,
        tool_names: Sequence[str] | None = None,
    ) -> ParsingOptions: ...
    parse_tool_calls: bool
    starts_in_tool_calls: bool
    parse_json_output: bool
    thinking_initial_stage: ThinkingInitialStage | None
    stop_sequences: list[str]
    special_tokens: SpecialTokens
    keep_text_after_tools: bool
    strict_json_output: bool
    repair_tool_calls: bool
    tool_names: list[str] | None

@final
class ConversationRequest:
    def __new__(
        cls, conversation: Conversation, model_version: ModelVersion, *, compat: str = "default"
    ) -> ConversationRequest: ...
    @property
    def conversation(self) -> Conversation: ...
    @property
    def inference_options(self) -> InferenceOptions: ...
    @property
    def parsing_options(self) -> ParsingOptions: ...
    @property
    def model_version(self) -> ModelVersion: ...
    @property
    def stream(self) -> bool: ...
    @property
    def compat(self) -> str: ...
    @property
    def warnings(self) -> list[tuple[str, str]]: ...
    def history_json(self) -> str | None: ...
    def resolve_max_tokens(self, prompt_tokens: int, context_limit: int) -> int: ...

@final
class ChatCompletionRequest:
    def __new__(cls, body: _RequestBody) -> ChatCompletionRequest: ...
    @property
    def model(self) -> str: ...
    def convert(self, options: ConversionOptions) -> ConversationRequest: ...
    @staticmethod
    def chunk_generator(
        request: ConversationRequest, id: str, model: str
    ) -> ChatCompletionChunkGenerator: ...
    @staticmethod
    def chunk_generators(
        request: ConversationRequest, id: str, model: str
    ) -> list[ChatCompletionChunkGenerator]: ...

@final
class ResponsesRequest:
    def __new__(cls, body: _RequestBody) -> ResponsesRequest: ...
    @property
    def model(self) -> str: ...
    def convert(
        self, options: ConversionOptions, store: ResponseStore | None = None
    ) -> ConversationRequest: ...
    def namespace_tool_map(self, options: ConversionOptions) -> dict[str, tuple[str, str]]: ...
    def echo(self) -> ResponsesEcho: ...
    @staticmethod
    def chunk_generator(
        request: ConversationRequest, id: str, model: str
    ) -> ResponsesChunkGenerator: ...

@final
class MessagesRequest:
    def __new__(cls, body: _RequestBody) -> MessagesRequest: ...
    @property
    def model(self) -> str: ...
    def convert(self, options: ConversionOptions) -> ConversationRequest: ...
    @staticmethod
    def chunk_generator(
        request: ConversationRequest, id: str, model: str
    ) -> MessagesChunkGenerator: ...

@final
class ResponsesEcho:
    def __new__(cls) -> ResponsesEcho: ...
    @property
    def instructions(self) -> str | None: ...
    @property
    def max_output_tokens(self) -> int | None: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def top_logprobs(self) -> int: ...
    @property
    def user(self) -> str | None: ...

@final
class PromptUsage:
    def __new__(
        cls, *, prompt_tokens: int = 0, prompt_cache_hit_tokens: int = 0
    ) -> PromptUsage: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def prompt_cache_hit_tokens(self) -> int: ...

@final
class InferenceChunk:
    @staticmethod
    def ready(
        *, prompt_usage: PromptUsage | None = None, system_fingerprint: str | None = None
    ) -> InferenceChunk: ...
    @staticmethod
    def text(content: str, token_count: int = 0) -> InferenceChunk: ...
    @staticmethod
    def tokens(
        token_ids: Sequence[int],
        logprobs: Sequence[tuple[float, Sequence[tuple[int, float]]]] | None = None,
    ) -> InferenceChunk: ...
    @staticmethod
    def finish(reason: InferenceFinishReason) -> InferenceChunk: ...
    @property
    def kind(self) -> str: ...
    @property
    def content(self) -> str | None: ...
    @property
    def token_ids(self) -> list[int] | None: ...
    @property
    def finish_reason(self) -> InferenceFinishReason | None: ...
    @property
    def prompt_usage(self) -> PromptUsage | None: ...
    @property
    def token_count(self) -> int | None: ...
    @property
    def system_fingerprint(self) -> str | None: ...

@final
class MalformedToolCall:
    @property
    def index(self) -> int | None: ...
    @property
    def name(self) -> str: ...
    @property
    def reason(self) -> str: ...

@final
class ChatCompletionChunkGenerator: ...

@final
class ResponsesChunkGenerator:
    def with_namespace_tool_map(
        self, map: Mapping[str, tuple[str, str]]
    ) -> ResponsesChunkGenerator: ...
    def with_echo(self, echo: ResponsesEcho) -> ResponsesChunkGenerator: ...

@final
class MessagesChunkGenerator:
    def __new__(
        cls, id: str, model: str, thinking_mode: bool, *, compat: str = "default"
    ) -> MessagesChunkGenerator: ...
    def with_signature(self, signature: str) -> MessagesChunkGenerator: ...

@final
class ChatCompletionChunk:
    def to_json(self) -> str: ...

@final
class ResponsesStreamEvent:
    def to_json(self) -> str: ...

@final
class MessagesStreamEvent:
    def to_json(self) -> str: ...

@final
class StreamProcessor:
    def __new__(
        cls,
        generator: ChatCompletionChunkGenerator | ResponsesChunkGenerator | MessagesChunkGenerator,
        options: ParsingOptions,
        tokenizer: Tokenizer | None = None,
    ) -> StreamProcessor: ...
    @property
    def finished(self) -> bool: ...
    @property
    def malformed_tool_calls(self) -> list[MalformedToolCall]: ...
    def push(self, chunk: InferenceChunk) -> list[Any]: ...
    def finish(self) -> list[Any]: ...
    def close(self) -> None: ...

@final
class ChatCompletionResponse:
    def __new__(
        cls, id: str, model: str, created: int, prompt_tokens: int, prompt_cache_hit_tokens: int
    ) -> ChatCompletionResponse: ...
    def accumulate(self, chunk: ChatCompletionChunk) -> None: ...
    def to_json(self) -> str: ...
    @property
    def malformed_tool_calls(self) -> list[MalformedToolCall]: ...
    @staticmethod
    def sse_event_name(chunk: ChatCompletionChunk) -> str | None: ...
    @staticmethod
    def sse_done_data() -> str | None: ...

@final
class ResponsesResponse:
    def __new__(
        cls, id: str, model: str, created: int, prompt_tokens: int, prompt_cache_hit_tokens: int
    ) -> ResponsesResponse: ...
    def accumulate(self, chunk: ResponsesStreamEvent) -> None: ...
    def to_json(self) -> str: ...
    def output_json(self) -> str: ...
    @property
    def malformed_tool_calls(self) -> list[MalformedToolCall]: ...
    @staticmethod
    def sse_event_name(chunk: ResponsesStreamEvent) -> str | None: ...
    @staticmethod
    def sse_done_data() -> str | None: ...

@final
class MessagesResponse:
    def __new__(
        cls, id: str, model: str, created: int, prompt_tokens: int, prompt_cache_hit_tokens: int
    ) -> MessagesResponse: ...
    def accumulate(self, chunk: MessagesStreamEvent) -> None: ...
    def to_json(self) -> str: ...
    @property
    def malformed_tool_calls(self) -> list[MalformedToolCall]: ...
    @staticmethod
    def sse_event_name(chunk: MessagesStreamEvent) -> str | None: ...
    @staticmethod
    def sse_done_data() -> str | None: ...

@final
class ImageInfo:
    def __new__(cls, data: bytes, width: int, height: int) -> ImageInfo: ...
    @property
    def data(self) -> bytes: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...

@final
class MultiModalData:
    def __new__(cls, images: Sequence[ImageInfo] | None = None) -> MultiModalData: ...
    @property
    def images(self) -> list[ImageInfo]: ...
    def is_empty(self) -> bool: ...
    def image_token_adjustment(self) -> int: ...

@final
class ImageQuota:
    def __new__(cls) -> ImageQuota: ...
    def image_count(self) -> int: ...
    def byte_size(self) -> int: ...

@final
class PreprocessOptions:
    def __new__(
        cls, detail: str, max_dimension_px: int, low_detail_max_dimension_px: int
    ) -> PreprocessOptions: ...
    @property
    def detail(self) -> str: ...
    @property
    def max_dimension_px(self) -> int: ...
    @property
    def low_detail_max_dimension_px(self) -> int: ...

@final
class ReqwestImageFetcher:
    def __new__(cls) -> ReqwestImageFetcher: ...
    @staticmethod
    def with_max_bytes(max_bytes: int) -> ReqwestImageFetcher: ...
    def with_destination_filter(
        self, filter: Callable[[str, str], bool]
    ) -> ReqwestImageFetcher: ...
    def fetch(self, url: str) -> bytes: ...

@final
class OpenCvImagePreprocessor:
    def __new__(cls) -> OpenCvImagePreprocessor: ...
    def preprocess(self, data: bytes, options: PreprocessOptions) -> ImageInfo: ...

@final
class ImageResolver:
    def __new__(cls, fetcher: Any, preprocessor: Any) -> ImageResolver: ...
    def resolve(self, sources: Sequence[ImageSource], quota: ImageQuota) -> MultiModalData: ...
