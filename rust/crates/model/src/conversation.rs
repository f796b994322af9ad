//! The conversation.

use std::sync::Arc;

use recipe_json::Value;

use crate::message::Message;
use crate::tool::ToolDefinition;

/// Whether the model may, must or must not call tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// May
    #[default]
    Auto,
    /// Must not
    None,
    /// Must
    Required,
}

impl ToolChoice {
    /// The word used in requests.
    pub fn as_str(self) -> &'static str {
        match self {
            ToolChoice::Auto => "auto",
            ToolChoice::None => "none",
            ToolChoice::Required => "required",
        }
    }

    /// The inverse of [`ToolChoice::as_str`].
    pub fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "auto" => ToolChoice::Auto,
            "none" => ToolChoice::None,
            "required" => ToolChoice::Required,
            _ => return None,
        })
    }
}

/// How much the model should think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// `low`
    Low,
    /// `high`
    High,
    /// `xhigh`, rendered like `high`
    Xhigh,
    /// `max`
    Max,
}

impl Effort {
    /// The word of the conversation model.
    pub fn as_str(self) -> &'static str {
        match self {
            Effort::Low => "low",
            Effort::High => "high",
            Effort::Xhigh => "xhigh",
            Effort::Max => "max",
        }
    }

    /// The inverse of [`Effort::as_str`].
    pub fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "low" => Effort::Low,
            "high" => Effort::High,
            "xhigh" => Effort::Xhigh,
            "max" => Effort::Max,
            _ => return None,
        })
    }
}

/// What the answer has to look like.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ResponseFormat {
    /// Anything
    #[default]
    Text,
    /// A JSON object
    JsonObject,
    /// JSON that follows a schema
    JsonSchema(Arc<Value<'static>>),
    /// Text that matches a pattern
    Regex(String),
}

impl ResponseFormat {
    /// The word of the conversation model.
    pub fn as_str(&self) -> &'static str {
        match self {
            ResponseFormat::Text => "text",
            ResponseFormat::JsonObject => "json_object",
            ResponseFormat::JsonSchema(_) => "json_schema",
            ResponseFormat::Regex(_) => "regex",
        }
    }
}

/// Everything a prompt is rendered from.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    /// Messages in order.
    pub messages: Vec<Message>,
    /// Whether the model thinks before it answers.
    pub thinking_mode: bool,
    /// Tools; empty when the choice is none.
    pub tools: Arc<[ToolDefinition]>,
    /// May, must or must not call.
    pub tool_choice: ToolChoice,
    /// Unset means `high` when thinking.
    pub reasoning_effort: Option<Effort>,
    /// A number from 1 to 100 for the effort line of V4.1, in place of the one that belongs to the word.
    pub reasoning_effort_value: Option<u8>,
    /// Format of the answer.
    pub response_format: ResponseFormat,
}

impl Default for Conversation {
    fn default() -> Self {
        Conversation {
            messages: Vec::new(),
            thinking_mode: true,
            tools: Arc::from([]),
            tool_choice: ToolChoice::Auto,
            reasoning_effort: None,
            reasoning_effort_value: None,
            response_format: ResponseFormat::Text,
        }
    }
}
