//! Messages of the five roles.

use crate::content::Content;
use crate::image::ImageSource;
use crate::tool::ToolDefinition;

/// A call the assistant made earlier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Call id, which the result names.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Argument text as sent; normally a JSON object, but not checked.
    pub arguments: String,
}

/// Instructions, possibly with tools that become available here.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SystemMessage {
    /// Text and images.
    pub content: Content,
    /// Tools loaded by this message.
    pub tools: Vec<ToolDefinition>,
}

/// What the user said.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UserMessage {
    /// Text and images.
    pub content: Content,
}

/// What the model said.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AssistantMessage {
    /// Answer text.
    pub content: String,
    /// Reasoning; `None` when thinking is off, empty when it was not sent back.
    pub reasoning_content: Option<String>,
    /// Calls; `None` when there were none, which differs from an empty list in V4 prompts.
    pub tool_calls: Option<Vec<ToolCall>>,
    /// Whether the model is to continue this message.
    pub prefix: bool,
}

/// The result of a call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolMessage {
    /// Text and images.
    pub content: Content,
    /// Id of the call it answers.
    pub tool_call_id: Option<String>,
}

/// A short note that should stay in the model's view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReminderMessage {
    /// Text.
    pub content: String,
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Role `system`
    System(SystemMessage),
    /// Role `user`
    User(UserMessage),
    /// Role `assistant`
    Assistant(AssistantMessage),
    /// Role `tool`
    Tool(ToolMessage),
    /// Role `latest_reminder`
    LatestReminder(ReminderMessage),
}

impl Message {
    /// The role word.
    pub fn role(&self) -> &'static str {
        match self {
            Message::System(_) => "system",
            Message::User(_) => "user",
            Message::Assistant(_) => "assistant",
            Message::Tool(_) => "tool",
            Message::LatestReminder(_) => "latest_reminder",
        }
    }

    /// The text.
    pub fn text(&self) -> &str {
        match self {
            Message::System(message) => &message.content.text,
            Message::User(message) => &message.content.text,
            Message::Assistant(message) => &message.content,
            Message::Tool(message) => &message.content.text,
            Message::LatestReminder(message) => &message.content,
        }
    }

    /// The images; empty for roles that cannot have any.
    pub fn images(&self) -> &[ImageSource] {
        match self {
            Message::System(message) => &message.content.images,
            Message::User(message) => &message.content.images,
            Message::Tool(message) => &message.content.images,
            Message::Assistant(_) | Message::LatestReminder(_) => &[],
        }
    }

    /// Whether this is an assistant message that the model is to continue.
    pub fn is_prefix(&self) -> bool {
        matches!(self, Message::Assistant(message) if message.prefix)
    }
}
