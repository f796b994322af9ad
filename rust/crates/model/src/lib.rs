//! What a request becomes: one conversation, whatever protocol it came in.
//!
//! The types here are plain data. `recipe-protocol` builds them from request bodies, `recipe-encoding` renders
//! them as prompts; both agree on the spellings of [`SpecialTokens`].

mod content;
mod conversation;
mod image;
mod message;
mod tokens;
mod tool;

pub use content::{Content, EmptyImageToken};
pub use conversation::{Conversation, Effort, ResponseFormat, ToolChoice};
pub use image::{ImageData, ImageDetail, ImageSource};
pub use message::{
    AssistantMessage, Message, ReminderMessage, SystemMessage, ToolCall, ToolMessage, UserMessage,
};
pub use tokens::{SpecialToken, SpecialTokens};
pub use tool::ToolDefinition;
