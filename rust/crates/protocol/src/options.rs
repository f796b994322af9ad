//! Options of conversion, and of the generators that a converted request starts.

use recipe_model::SpecialTokens;

use crate::seal::ReasoningKey;

/// Which of two behaviours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compat {
    /// Ours: faults of the original are fixed, more input is accepted.
    #[default]
    Default,
    /// The original, case by case.
    Official,
}

/// Web-search tools and blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WebSearchBehavior {
    /// Leave them out.
    Drop,
    /// Refuse the request.
    Reject,
}

/// Missing reasoning of earlier turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReasoningContentBehavior {
    /// Use empty reasoning.
    FillEmpty,
    /// Refuse the request where the current turn needs it.
    Reject,
}

/// The models a prompt can be for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelVersion {
    /// DeepSeek V4 Pro
    DeepseekV4Pro,
    /// DeepSeek V4.1 Flash
    DeepseekV41Flash,
}

/// Bounds on what one request may hold. Not applied under [`Compat::Official`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// Messages or input items.
    pub max_messages: usize,
    /// Tools, those inside namespaces and tool-search results included.
    pub max_tools: usize,
    /// Bytes of one tool or response schema as compact JSON.
    pub max_schema_bytes: usize,
    /// Choices of one response.
    pub max_choices: u32,
}

impl Default for RequestLimits {
    fn default() -> Self {
        RequestLimits {
            max_messages: 100_000,
            max_tools: 4096,
            max_schema_bytes: 1 << 20,
            max_choices: 128,
        }
    }
}

/// Behaviours that are off by default in either mode; each is named after what it changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extras {
    /// Messages: a trailing assistant message is continued instead of closed.
    pub continue_messages_prefill: bool,
    /// Messages: results with `is_error` start with `Error: `.
    pub mark_tool_errors: bool,
    /// Chat: usage comes in an extra chunk without choices, and only when asked for.
    pub openai_usage_chunk: bool,
    /// Calls of tools that were not offered are malformed.
    pub validate_tool_names: bool,
    /// Text behind a block of tool calls, and further blocks, are kept.
    pub keep_text_after_tools: bool,
    /// JSON output starts only at a fence or at the first non-blank character, and ends with its value.
    pub strict_json_output: bool,
    /// Missing closers are supplied and non-JSON values become strings, instead of the call being malformed.
    pub repair_tool_calls: bool,
}

/// How requests are converted.
#[derive(Debug, Clone)]
pub struct ConversionOptions {
    /// Default or original behaviour.
    pub compat: Compat,
    /// Whether the model thinks when the request does not say.
    pub default_thinking_mode: bool,
    /// Missing reasoning of earlier turns.
    pub reasoning_content_behavior: ReasoningContentBehavior,
    /// Web search in Responses requests.
    pub responses_web_search: WebSearchBehavior,
    /// Web search in Messages requests.
    pub messages_web_search: WebSearchBehavior,
    /// Largest `max_tokens` with thinking.
    pub thinking_max_tokens_upper_bound: u32,
    /// Largest `max_tokens` without thinking.
    pub non_thinking_max_tokens_upper_bound: u32,
    /// Spellings used for image placeholders and by the output parser.
    pub special_tokens: SpecialTokens,
    /// Accepted model names, in the order in which error texts list them.
    pub model_versions_by_name: Vec<(String, ModelVersion)>,
    /// Options that are off by default.
    pub extras: Extras,
    /// Bounds.
    pub limits: RequestLimits,
    /// Seals the reasoning in `encrypted_content` of Responses, and opens it again.
    pub reasoning_key: Option<ReasoningKey>,
}

impl Default for ConversionOptions {
    fn default() -> Self {
        ConversionOptions {
            compat: Compat::Default,
            default_thinking_mode: true,
            reasoning_content_behavior: ReasoningContentBehavior::FillEmpty,
            responses_web_search: WebSearchBehavior::Drop,
            messages_web_search: WebSearchBehavior::Reject,
            thinking_max_tokens_upper_bound: 393_216,
            non_thinking_max_tokens_upper_bound: 393_216,
            special_tokens: SpecialTokens::default(),
            model_versions_by_name: vec![
                ("DeepSeek-V4-Pro".to_owned(), ModelVersion::DeepseekV4Pro),
                (
                    "DeepSeek-V4.1-Flash".to_owned(),
                    ModelVersion::DeepseekV41Flash,
                ),
            ],
            extras: Extras::default(),
            limits: RequestLimits::default(),
            reasoning_key: None,
        }
    }
}

impl ConversionOptions {
    /// Options that reproduce the original.
    pub fn official() -> Self {
        ConversionOptions {
            compat: Compat::Official,
            ..Self::default()
        }
    }

    pub(crate) fn is_official(&self) -> bool {
        self.compat == Compat::Official
    }
}
