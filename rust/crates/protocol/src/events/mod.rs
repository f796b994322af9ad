//! Protocol events, their generators, and the responses that they fold into.

mod chat;
mod chat_response;
mod custom;
mod ids;
mod json;
mod messages;
mod messages_response;
mod responses;
mod responses_json;
mod responses_response;

pub use chat::{ChatCompletionChunk, ChatCompletionChunkGenerator};
pub use chat_response::ChatCompletionResponse;
pub use messages::{MessagesChunkGenerator, MessagesStreamEvent};
pub use messages_response::MessagesResponse;
pub use responses::{ResponsesChunkGenerator, ResponsesStreamEvent};
pub use responses_response::ResponsesResponse;

use recipe_stream::{Delta, LogprobEntry, MalformedCall};

use crate::processor::PromptUsage;

/// Why a response ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its turn.
    Stop,
    /// With calls to make.
    ToolCalls,
    /// The bound on generated tokens.
    Length,
    /// A content filter.
    ContentFilter,
    /// A stop sequence of the request.
    StopSequence(String),
}

/// Token counts of one response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Prompt counts.
    pub prompt: PromptUsage,
    /// Generated tokens.
    pub completion_tokens: u64,
    /// Of these, reasoning; `None` where it cannot be told.
    pub reasoning_tokens: Option<u64>,
}

/// Everything known at the end.
#[derive(Debug, Clone)]
pub struct End {
    pub(crate) reason: FinishReason,
    pub(crate) usage: Usage,
    pub(crate) malformed: Vec<MalformedCall>,
    /// Log probabilities of tokens behind the last text.
    pub(crate) logprobs: Vec<LogprobEntry>,
}

/// Turns parser output into the events of one protocol.
pub trait ChunkGenerator {
    /// The protocol's event.
    type Event;

    /// Whether the original's behaviour was asked for.
    fn is_official(&self) -> bool;

    /// Opening events.
    fn start(
        &mut self,
        prompt: PromptUsage,
        fingerprint: Option<String>,
        events: &mut Vec<Self::Event>,
    );

    /// Events of one step.
    fn delta(&mut self, delta: Delta, events: &mut Vec<Self::Event>);

    /// Closing events.
    fn end(&mut self, end: End, events: &mut Vec<Self::Event>);
}
