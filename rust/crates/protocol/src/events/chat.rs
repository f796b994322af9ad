//! Chat Completions chunks.

use std::sync::Arc;

use recipe_json::{escape_into, write_string};
use recipe_stream::{Delta, DeltaKind, LogprobEntry, MalformedCall};

use super::ids::{now, Random};
use super::json;
use super::{ChunkGenerator, End, FinishReason, Usage};
use crate::options::Compat;
use crate::processor::PromptUsage;
use crate::request::ConversationRequest;

/// What all chunks of a response share.
#[derive(Debug)]
pub(crate) struct ChatHead {
    pub fingerprint: Option<String>,
    /// Everything up to the choice's index.
    json: String,
}

/// The change that a chunk carries.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ChatDelta {
    Role,
    Reasoning(String),
    Content(String),
    CallStart {
        index: usize,
        id: String,
        name: String,
    },
    Arguments {
        index: usize,
        text: String,
    },
    Last,
    /// OpenAI's extra chunk: usage and no choice.
    UsageOnly,
}

/// One event.
#[derive(Debug, Clone)]
pub struct ChatCompletionChunk {
    pub(crate) head: Arc<ChatHead>,
    pub(crate) choice: u32,
    pub(crate) thinking: bool,
    pub(crate) delta: ChatDelta,
    pub(crate) logprobs: Vec<LogprobEntry>,
    pub(crate) finish: Option<&'static str>,
    pub(crate) usage: Option<Usage>,
    has_null_usage: bool,
    pub(crate) malformed: Vec<MalformedCall>,
}

impl ChatCompletionChunk {
    /// The chunk as JSON.
    pub fn to_json(&self) -> String {
        let text_len = match &self.delta {
            ChatDelta::Reasoning(text)
            | ChatDelta::Content(text)
            | ChatDelta::Arguments { text, .. } => text.len(),
            _ => 0,
        };
        let mut out = String::with_capacity(self.head.json.len() + text_len + text_len / 8 + 256);
        out.push_str(&self.head.json);
        if self.delta == ChatDelta::UsageOnly {
            out.push(']');
        } else {
            out.push_str("{\"index\":");
            json::number(&mut out, u64::from(self.choice));
            out.push_str(",\"delta\":{");
            self.write_delta(&mut out);
            out.push_str("},\"logprobs\":");
            self.write_logprobs(&mut out);
            out.push_str(",\"finish_reason\":");
            json::optional_string(&mut out, self.finish);
            out.push_str("}]");
        }
        match &self.usage {
            Some(usage) => {
                out.push_str(",\"usage\":");
                write_usage(&mut out, usage);
            }
            None if self.has_null_usage => out.push_str(",\"usage\":null"),
            None => {}
        }
        json::malformed_member(&mut out, &self.malformed);
        out.push('}');
        out
    }

    fn write_delta(&self, out: &mut String) {
        match &self.delta {
            ChatDelta::Role if self.thinking => {
                out.push_str("\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"\"");
            }
            ChatDelta::Role => out.push_str("\"role\":\"assistant\",\"content\":\"\""),
            ChatDelta::Reasoning(text) => {
                out.push_str("\"content\":null,\"reasoning_content\":\"");
                escape_into(out, text);
                out.push('"');
            }
            ChatDelta::Content(text) => {
                out.push_str("\"content\":\"");
                escape_into(out, text);
                out.push_str(if self.thinking {
                    "\",\"reasoning_content\":null"
                } else {
                    "\""
                });
            }
            ChatDelta::CallStart { index, id, name } => {
                out.push_str("\"tool_calls\":[{\"index\":");
                json::number(out, *index as u64);
                out.push_str(",\"id\":");
                write_string(out, id);
                out.push_str(",\"type\":\"function\",\"function\":{\"name\":");
                write_string(out, name);
                out.push_str(",\"arguments\":\"\"}}]");
            }
            ChatDelta::Arguments { index, text } => {
                out.push_str("\"tool_calls\":[{\"index\":");
                json::number(out, *index as u64);
                out.push_str(",\"function\":{\"arguments\":\"");
                escape_into(out, text);
                out.push_str("\"}}]");
            }
            ChatDelta::Last if self.thinking => {
                out.push_str("\"content\":\"\",\"reasoning_content\":null")
            }
            ChatDelta::Last | ChatDelta::UsageOnly => out.push_str("\"content\":\"\""),
        }
    }

    fn write_logprobs(&self, out: &mut String) {
        if self.logprobs.is_empty() {
            out.push_str("null");
            return;
        }
        let is_reasoning = matches!(self.delta, ChatDelta::Reasoning(_));
        out.push_str(if is_reasoning {
            "{\"reasoning_content\":"
        } else {
            "{\"content\":"
        });
        json::logprobs(out, &self.logprobs);
        out.push('}');
    }
}

pub(crate) fn write_usage(out: &mut String, usage: &Usage) {
    let PromptUsage {
        prompt_tokens,
        prompt_cache_hit_tokens,
    } = usage.prompt;
    out.push_str("{\"prompt_tokens\":");
    json::number(out, prompt_tokens);
    out.push_str(",\"completion_tokens\":");
    json::number(out, usage.completion_tokens);
    out.push_str(",\"total_tokens\":");
    json::number(out, prompt_tokens + usage.completion_tokens);
    out.push_str(",\"prompt_tokens_details\":{\"cached_tokens\":");
    json::number(out, prompt_cache_hit_tokens);
    out.push('}');
    if let Some(reasoning) = usage.reasoning_tokens {
        out.push_str(",\"completion_tokens_details\":{\"reasoning_tokens\":");
        json::number(out, reasoning);
        out.push('}');
    }
    out.push_str(",\"prompt_cache_hit_tokens\":");
    json::number(out, prompt_cache_hit_tokens);
    out.push_str(",\"prompt_cache_miss_tokens\":");
    json::number(out, prompt_tokens.saturating_sub(prompt_cache_hit_tokens));
    out.push('}');
}

/// Makes the chunks of one choice.
#[derive(Debug, Clone)]
pub struct ChatCompletionChunkGenerator {
    id: String,
    model: String,
    official: bool,
    thinking: bool,
    choice: u32,
    include_usage: bool,
    openai_usage: bool,
    has_reasoning: bool,
    calls: usize,
    random: Random,
    head: Arc<ChatHead>,
}

impl ChatCompletionChunkGenerator {
    /// The generator for a converted request.
    pub fn new(request: &ConversationRequest, id: String, model: String) -> Self {
        ChatCompletionChunkGenerator {
            id,
            model,
            official: request.generation.compat == Compat::Official,
            thinking: request.conversation.thinking_mode,
            choice: 0,
            include_usage: request.generation.include_usage,
            openai_usage: request.generation.extras.openai_usage_chunk,
            has_reasoning: false,
            calls: 0,
            random: Random::new(),
            head: Arc::new(ChatHead {
                fingerprint: None,
                json: String::new(),
            }),
        }
    }

    /// One generator per choice of a request for several.
    pub fn for_choices(request: &ConversationRequest, id: &str, model: &str) -> Vec<Self> {
        (0..request.inference_options.n)
            .map(|choice| {
                let mut generator = Self::new(request, id.to_owned(), model.to_owned());
                generator.choice = choice;
                generator
            })
            .collect()
    }

    fn chunk(&self, delta: ChatDelta) -> ChatCompletionChunk {
        ChatCompletionChunk {
            head: self.head.clone(),
            choice: self.choice,
            thinking: self.thinking,
            delta,
            logprobs: Vec::new(),
            finish: None,
            usage: None,
            has_null_usage: self.include_usage,
            malformed: Vec::new(),
        }
    }

    fn head_json(&self, fingerprint: Option<&str>) -> String {
        let mut out = String::from("{\"id\":");
        write_string(&mut out, &self.id);
        out.push_str(",\"object\":\"chat.completion.chunk\",\"created\":");
        json::number(&mut out, now());
        out.push_str(",\"model\":");
        write_string(&mut out, &self.model);
        out.push_str(",\"system_fingerprint\":");
        json::optional_string(&mut out, fingerprint);
        out.push_str(",\"choices\":[");
        out
    }
}

impl ChunkGenerator for ChatCompletionChunkGenerator {
    type Event = ChatCompletionChunk;

    fn is_official(&self) -> bool {
        self.official
    }

    fn start(
        &mut self,
        _: PromptUsage,
        fingerprint: Option<String>,
        events: &mut Vec<ChatCompletionChunk>,
    ) {
        let json = self.head_json(fingerprint.as_deref());
        self.head = Arc::new(ChatHead { fingerprint, json });
        events.push(self.chunk(ChatDelta::Role));
    }

    fn delta(&mut self, delta: Delta, events: &mut Vec<ChatCompletionChunk>) {
        let change = match delta.kind {
            DeltaKind::Reasoning(text) => {
                self.has_reasoning = true;
                ChatDelta::Reasoning(text)
            }
            DeltaKind::Answer(text) => ChatDelta::Content(text),
            DeltaKind::CallStart { name } => {
                let index = self.calls;
                self.calls += 1;
                let id = self
                    .random
                    .call_id(index, self.thinking && !self.has_reasoning);
                ChatDelta::CallStart { index, id, name }
            }
            DeltaKind::Arguments(text) => ChatDelta::Arguments {
                index: self.calls.saturating_sub(1),
                text,
            },
            DeltaKind::CallEnd | DeltaKind::CallMalformed(_) | DeltaKind::Stopped { .. } => return,
        };
        let mut chunk = self.chunk(change);
        chunk.logprobs = delta.logprobs;
        events.push(chunk);
    }

    fn end(&mut self, mut end: End, events: &mut Vec<ChatCompletionChunk>) {
        if !self.thinking {
            end.usage.reasoning_tokens = None;
        }
        let mut last = self.chunk(ChatDelta::Last);
        last.logprobs = end.logprobs;
        last.malformed = end.malformed;
        last.finish = Some(match end.reason {
            FinishReason::Stop | FinishReason::StopSequence(_) => "stop",
            FinishReason::ToolCalls => "tool_calls",
            FinishReason::Length => "length",
            FinishReason::ContentFilter => "content_filter",
        });
        if !self.openai_usage {
            last.usage = Some(end.usage);
            events.push(last);
            return;
        }
        events.push(last);
        if self.include_usage {
            let mut extra = self.chunk(ChatDelta::UsageOnly);
            extra.usage = Some(end.usage);
            events.push(extra);
        }
    }
}
