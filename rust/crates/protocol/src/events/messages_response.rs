//! The Messages response.

use recipe_json::{parse, write_compact, write_string, Value};
use recipe_stream::MalformedCall;

use super::json;
use super::messages::{write_stop, write_usage, BlockStart, EventKind, MessagesStreamEvent};
use super::{FinishReason, Usage};
use crate::processor::PromptUsage;

#[derive(Debug, Clone)]
enum Block {
    Thinking {
        text: String,
        signature: String,
    },
    Text(String),
    ToolUse {
        id: String,
        name: String,
        input: String,
        malformed: bool,
    },
}

/// Folds events into the response object.
#[derive(Debug, Clone)]
pub struct MessagesResponse {
    id: String,
    model: String,
    blocks: Vec<Block>,
    reason: Option<FinishReason>,
    usage: Usage,
    malformed: Vec<MalformedCall>,
}

impl MessagesResponse {
    /// An empty response.
    pub fn new(id: String, model: String, prompt: PromptUsage) -> Self {
        MessagesResponse {
            id,
            model,
            blocks: Vec::new(),
            reason: None,
            usage: Usage {
                prompt,
                ..Usage::default()
            },
            malformed: Vec::new(),
        }
    }

    /// Malformed calls; their blocks are not in the response.
    pub fn malformed_calls(&self) -> &[MalformedCall] {
        &self.malformed
    }

    /// Folds one event in.
    pub fn accumulate(&mut self, event: MessagesStreamEvent) {
        match event.kind {
            EventKind::MessageStart { prompt, .. } => self.usage.prompt = prompt,
            EventKind::BlockStart { block, .. } => self.blocks.push(match block {
                BlockStart::Thinking => Block::Thinking {
                    text: String::new(),
                    signature: String::new(),
                },
                BlockStart::Text => Block::Text(String::new()),
                BlockStart::ToolUse { id, name } => Block::ToolUse {
                    id,
                    name,
                    input: String::new(),
                    malformed: false,
                },
            }),
            EventKind::Thinking { index, text: piece } => {
                if let Some(Block::Thinking { text, .. }) = self.blocks.get_mut(index) {
                    text.push_str(&piece);
                }
            }
            EventKind::Signature {
                index,
                signature: piece,
            } => {
                if let Some(Block::Thinking { signature, .. }) = self.blocks.get_mut(index) {
                    signature.push_str(&piece);
                }
            }
            EventKind::Text { index, text: piece } => {
                if let Some(Block::Text(text)) = self.blocks.get_mut(index) {
                    text.push_str(&piece);
                }
            }
            EventKind::InputJson { index, text } => {
                if let Some(Block::ToolUse { input, .. }) = self.blocks.get_mut(index) {
                    input.push_str(&text);
                }
            }
            EventKind::BlockStop {
                index,
                malformed: is_malformed,
            } => {
                if let Some(Block::ToolUse { malformed, .. }) = self.blocks.get_mut(index) {
                    *malformed = is_malformed;
                }
            }
            EventKind::MessageDelta {
                reason,
                usage,
                malformed,
            } => {
                self.reason = Some(reason);
                self.usage = usage;
                self.malformed = malformed;
            }
            EventKind::Ping | EventKind::MessageStop => {}
        }
    }

    /// The response as JSON.
    pub fn to_json(&self) -> String {
        let mut out = String::from("{\"id\":");
        write_string(&mut out, &self.id);
        out.push_str(",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
        write_string(&mut out, &self.model);
        out.push_str(",\"content\":");
        let shown: Vec<&Block> = self
            .blocks
            .iter()
            .filter(|block| {
                !matches!(
                    block,
                    Block::ToolUse {
                        malformed: true,
                        ..
                    }
                )
            })
            .collect();
        json::list(&mut out, &shown, |out, block| write_block(out, block));
        out.push(',');
        write_stop(&mut out, self.reason.as_ref());
        out.push_str(",\"usage\":");
        write_usage(&mut out, &self.usage);
        json::malformed_member(&mut out, &self.malformed);
        out.push('}');
        out
    }
}

fn write_block(out: &mut String, block: &Block) {
    match block {
        Block::Thinking { text, signature } => {
            out.push_str("{\"type\":\"thinking\",\"thinking\":");
            write_string(out, text);
            out.push_str(",\"signature\":");
            write_string(out, signature);
        }
        Block::Text(text) => {
            out.push_str("{\"type\":\"text\",\"text\":");
            write_string(out, text);
        }
        Block::ToolUse {
            id, name, input, ..
        } => {
            out.push_str("{\"type\":\"tool_use\",\"id\":");
            write_string(out, id);
            out.push_str(",\"name\":");
            write_string(out, name);
            out.push_str(",\"input\":");
            // Only the original's grammar lets text that is no JSON get here.
            match parse(input) {
                Ok(value) => write_compact(out, &value),
                Err(_) => write_compact(out, &Value::Object(recipe_json::Object::new())),
            }
        }
    }
    out.push('}');
}
