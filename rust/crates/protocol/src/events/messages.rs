//! Messages events.

use std::sync::Arc;

use recipe_json::{escape_into, write_string};
use recipe_stream::{Delta, DeltaKind, MalformedCall};

use super::ids::Random;
use super::json;
use super::{ChunkGenerator, End, FinishReason, Usage};
use crate::options::Compat;
use crate::processor::PromptUsage;
use crate::request::ConversationRequest;

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub struct MessagesStreamEvent {
    pub(crate) kind: EventKind,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum EventKind {
    MessageStart {
        head: Arc<(String, String)>,
        prompt: PromptUsage,
    },
    BlockStart {
        index: usize,
        block: BlockStart,
    },
    Ping,
    Thinking {
        index: usize,
        text: String,
    },
    Signature {
        index: usize,
        signature: Arc<str>,
    },
    Text {
        index: usize,
        text: String,
    },
    InputJson {
        index: usize,
        text: String,
    },
    /// `malformed` marks a call that must not be executed.
    BlockStop {
        index: usize,
        malformed: bool,
    },
    MessageDelta {
        reason: FinishReason,
        usage: Usage,
        malformed: Vec<MalformedCall>,
    },
    MessageStop,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum BlockStart {
    Thinking,
    Text,
    ToolUse { id: String, name: String },
}

impl MessagesStreamEvent {
    /// The SSE event name.
    pub fn name(&self) -> &'static str {
        match &self.kind {
            EventKind::MessageStart { .. } => "message_start",
            EventKind::BlockStart { .. } => "content_block_start",
            EventKind::Ping => "ping",
            EventKind::Thinking { .. }
            | EventKind::Signature { .. }
            | EventKind::Text { .. }
            | EventKind::InputJson { .. } => "content_block_delta",
            EventKind::BlockStop { .. } => "content_block_stop",
            EventKind::MessageDelta { .. } => "message_delta",
            EventKind::MessageStop => "message_stop",
        }
    }

    /// The event as JSON.
    pub fn to_json(&self) -> String {
        match &self.kind {
            EventKind::MessageStart { head, prompt } => {
                let mut out = String::from("{\"type\":\"message_start\",\"message\":{\"id\":");
                write_string(&mut out, &head.0);
                out.push_str(",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
                write_string(&mut out, &head.1);
                out.push_str(
                    ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":",
                );
                write_usage(
                    &mut out,
                    &Usage {
                        prompt: *prompt,
                        ..Usage::default()
                    },
                );
                out.push_str("}}");
                out
            }
            EventKind::BlockStart { index, block } => {
                let mut out = head("content_block_start", *index, 192);
                out.push_str(",\"content_block\":");
                match block {
                    BlockStart::Thinking => {
                        out.push_str(
                            "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}",
                        );
                    }
                    BlockStart::Text => out.push_str("{\"type\":\"text\",\"text\":\"\"}}"),
                    BlockStart::ToolUse { id, name } => {
                        out.push_str("{\"type\":\"tool_use\",\"id\":");
                        write_string(&mut out, id);
                        out.push_str(",\"name\":");
                        write_string(&mut out, name);
                        out.push_str(",\"input\":{}}}");
                    }
                }
                out
            }
            EventKind::Ping => "{\"type\":\"ping\"}".to_owned(),
            EventKind::Thinking { index, text } => {
                delta(*index, "thinking_delta\",\"thinking", text)
            }
            EventKind::Signature { index, signature } => {
                delta(*index, "signature_delta\",\"signature", signature)
            }
            EventKind::Text { index, text } => delta(*index, "text_delta\",\"text", text),
            EventKind::InputJson { index, text } => {
                delta(*index, "input_json_delta\",\"partial_json", text)
            }
            EventKind::BlockStop { index, .. } => {
                let mut out = head("content_block_stop", *index, 64);
                out.push('}');
                out
            }
            EventKind::MessageDelta {
                reason,
                usage,
                malformed,
            } => {
                let mut out = String::from("{\"type\":\"message_delta\",\"delta\":{");
                write_stop(&mut out, Some(reason));
                out.push_str("},\"usage\":");
                write_usage(&mut out, usage);
                json::malformed_member(&mut out, malformed);
                out.push('}');
                out
            }
            EventKind::MessageStop => "{\"type\":\"message_stop\"}".to_owned(),
        }
    }
}

fn head(kind: &str, index: usize, capacity: usize) -> String {
    let mut out = String::with_capacity(capacity);
    out.push_str("{\"type\":\"");
    out.push_str(kind);
    out.push_str("\",\"index\":");
    json::number(&mut out, index as u64);
    out
}

fn delta(index: usize, member: &str, text: &str) -> String {
    let mut out = head(
        "content_block_delta",
        index,
        text.len() + text.len() / 8 + 128,
    );
    out.push_str(",\"delta\":{\"type\":\"");
    out.push_str(member);
    out.push_str("\":\"");
    escape_into(&mut out, text);
    out.push_str("\"}}");
    out
}

/// `stop_reason` and `stop_sequence`.
pub(crate) fn write_stop(out: &mut String, reason: Option<&FinishReason>) {
    out.push_str("\"stop_reason\":");
    json::optional_string(
        out,
        reason.map(|reason| match reason {
            FinishReason::Stop => "end_turn",
            FinishReason::ToolCalls => "tool_use",
            FinishReason::Length => "max_tokens",
            FinishReason::ContentFilter => "refusal",
            FinishReason::StopSequence(_) => "stop_sequence",
        }),
    );
    out.push_str(",\"stop_sequence\":");
    json::optional_string(
        out,
        match reason {
            Some(FinishReason::StopSequence(sequence)) => Some(sequence),
            _ => None,
        },
    );
}

pub(crate) fn write_usage(out: &mut String, usage: &Usage) {
    let PromptUsage {
        prompt_tokens,
        prompt_cache_hit_tokens,
    } = usage.prompt;
    out.push_str("{\"input_tokens\":");
    json::number(out, prompt_tokens.saturating_sub(prompt_cache_hit_tokens));
    out.push_str(",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":");
    json::number(out, prompt_cache_hit_tokens);
    out.push_str(",\"output_tokens\":");
    json::number(out, usage.completion_tokens);
    out.push_str(",\"service_tier\":\"standard\"}");
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    ToolUse,
}

/// Makes the events of one response.
#[derive(Debug, Clone)]
pub struct MessagesChunkGenerator {
    head: Arc<(String, String)>,
    signature: Arc<str>,
    official: bool,
    thinking: bool,
    has_reasoning: bool,
    has_pinged: bool,
    calls: usize,
    next_index: usize,
    open: Option<Open>,
    is_malformed: bool,
    random: Random,
}

impl MessagesChunkGenerator {
    /// A generator without a request.
    pub fn new(id: String, model: String, thinking: bool, compat: Compat) -> Self {
        MessagesChunkGenerator {
            signature: id.as_str().into(),
            head: Arc::new((id, model)),
            official: compat == Compat::Official,
            thinking,
            has_reasoning: false,
            has_pinged: false,
            calls: 0,
            next_index: 0,
            open: None,
            is_malformed: false,
            random: Random::new(),
        }
    }

    /// The generator for a converted request.
    pub fn for_request(request: &ConversationRequest, id: String, model: String) -> Self {
        Self::new(
            id,
            model,
            request.conversation.thinking_mode,
            request.generation.compat,
        )
    }

    /// Replaces the signature of the thinking block, which is the response id otherwise.
    #[must_use]
    pub fn with_signature(mut self, signature: String) -> Self {
        self.signature = signature.into();
        self
    }

    fn index(&self) -> usize {
        self.next_index.saturating_sub(1)
    }

    fn open(&mut self, open: Open, block: BlockStart, events: &mut Vec<MessagesStreamEvent>) {
        self.close(events);
        self.open = Some(open);
        self.is_malformed = false;
        push(
            events,
            EventKind::BlockStart {
                index: self.next_index,
                block,
            },
        );
        self.next_index += 1;
        if !self.has_pinged {
            self.has_pinged = true;
            push(events, EventKind::Ping);
        }
    }

    fn close(&mut self, events: &mut Vec<MessagesStreamEvent>) {
        let Some(open) = self.open.take() else {
            return;
        };
        let index = self.index();
        if open == Open::Thinking {
            push(
                events,
                EventKind::Signature {
                    index,
                    signature: self.signature.clone(),
                },
            );
        }
        push(
            events,
            EventKind::BlockStop {
                index,
                malformed: self.is_malformed,
            },
        );
    }
}

fn push(events: &mut Vec<MessagesStreamEvent>, kind: EventKind) {
    events.push(MessagesStreamEvent { kind });
}

impl ChunkGenerator for MessagesChunkGenerator {
    type Event = MessagesStreamEvent;

    fn is_official(&self) -> bool {
        self.official
    }

    fn start(
        &mut self,
        prompt: PromptUsage,
        _: Option<String>,
        events: &mut Vec<MessagesStreamEvent>,
    ) {
        push(
            events,
            EventKind::MessageStart {
                head: self.head.clone(),
                prompt,
            },
        );
        if self.thinking {
            self.open(Open::Thinking, BlockStart::Thinking, events);
        }
    }

    fn delta(&mut self, delta: Delta, events: &mut Vec<MessagesStreamEvent>) {
        match delta.kind {
            DeltaKind::Reasoning(text) => {
                self.has_reasoning = true;
                if self.open != Some(Open::Thinking) {
                    self.open(Open::Thinking, BlockStart::Thinking, events);
                }
                push(
                    events,
                    EventKind::Thinking {
                        index: self.index(),
                        text,
                    },
                );
            }
            DeltaKind::Answer(text) => {
                if self.open != Some(Open::Text) {
                    self.open(Open::Text, BlockStart::Text, events);
                }
                push(
                    events,
                    EventKind::Text {
                        index: self.index(),
                        text,
                    },
                );
            }
            DeltaKind::CallStart { name } => {
                let id = self
                    .random
                    .call_id(self.calls, self.thinking && !self.has_reasoning);
                self.calls += 1;
                self.open(Open::ToolUse, BlockStart::ToolUse { id, name }, events);
            }
            DeltaKind::Arguments(text) => {
                push(
                    events,
                    EventKind::InputJson {
                        index: self.index(),
                        text,
                    },
                );
            }
            DeltaKind::CallMalformed(call) => self.is_malformed |= call.index.is_some(),
            DeltaKind::CallEnd | DeltaKind::Stopped { .. } => {}
        }
    }

    fn end(&mut self, end: End, events: &mut Vec<MessagesStreamEvent>) {
        self.close(events);
        push(
            events,
            EventKind::MessageDelta {
                reason: end.reason,
                usage: end.usage,
                malformed: end.malformed,
            },
        );
        push(events, EventKind::MessageStop);
    }
}
