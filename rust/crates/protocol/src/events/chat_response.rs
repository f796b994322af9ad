//! The Chat Completions response.

use recipe_json::write_string;
use recipe_stream::{LogprobEntry, MalformedCall};

use super::chat::{write_usage, ChatCompletionChunk, ChatDelta};
use super::json;
use super::Usage;

#[derive(Debug, Clone, Default)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

#[derive(Debug, Clone, Default)]
struct Choice {
    index: u32,
    content: Option<String>,
    reasoning: Option<String>,
    calls: Vec<Call>,
    logprobs: Vec<LogprobEntry>,
    reasoning_logprobs: Vec<LogprobEntry>,
    finish: Option<&'static str>,
}

/// Folds chunks into the response object. Chunks of several choices may come in any order.
#[derive(Debug, Clone)]
pub struct ChatCompletionResponse {
    id: String,
    model: String,
    created: u64,
    fingerprint: Option<String>,
    choices: Vec<Choice>,
    usage: Option<Usage>,
    malformed: Vec<MalformedCall>,
}

impl ChatCompletionResponse {
    /// An empty response.
    pub fn new(id: String, model: String, created: u64) -> Self {
        ChatCompletionResponse {
            id,
            model,
            created,
            fingerprint: None,
            choices: Vec::new(),
            usage: None,
            malformed: Vec::new(),
        }
    }

    /// Malformed calls of all choices.
    pub fn malformed_calls(&self) -> &[MalformedCall] {
        &self.malformed
    }

    /// Folds one chunk in.
    pub fn accumulate(&mut self, chunk: ChatCompletionChunk) {
        if self.fingerprint.is_none() {
            self.fingerprint.clone_from(&chunk.head.fingerprint);
        }
        self.malformed.extend(chunk.malformed);
        if let Some(usage) = chunk.usage {
            self.usage = Some(match self.usage {
                None => usage,
                Some(sum) => add(sum, usage),
            });
        }
        if chunk.delta == ChatDelta::UsageOnly {
            return;
        }
        let choice = match self
            .choices
            .iter_mut()
            .position(|choice| choice.index == chunk.choice)
        {
            Some(position) => &mut self.choices[position],
            None => {
                let position = self
                    .choices
                    .partition_point(|choice| choice.index < chunk.choice);
                self.choices.insert(
                    position,
                    Choice {
                        index: chunk.choice,
                        ..Choice::default()
                    },
                );
                &mut self.choices[position]
            }
        };
        let is_reasoning = matches!(chunk.delta, ChatDelta::Reasoning(_));
        if is_reasoning {
            choice.reasoning_logprobs.extend(chunk.logprobs);
        } else {
            choice.logprobs.extend(chunk.logprobs);
        }
        choice.finish = choice.finish.or(chunk.finish);
        choice.apply(chunk.delta, chunk.thinking);
    }

    /// The response as JSON.
    pub fn to_json(&self) -> String {
        let mut out = String::from("{\"id\":");
        write_string(&mut out, &self.id);
        out.push_str(",\"object\":\"chat.completion\",\"created\":");
        json::number(&mut out, self.created);
        out.push_str(",\"model\":");
        write_string(&mut out, &self.model);
        out.push_str(",\"choices\":");
        json::list(&mut out, &self.choices, |out, choice| choice.write(out));
        if let Some(usage) = &self.usage {
            out.push_str(",\"usage\":");
            write_usage(&mut out, usage);
        }
        out.push_str(",\"system_fingerprint\":");
        json::optional_string(&mut out, self.fingerprint.as_deref());
        json::malformed_member(&mut out, &self.malformed);
        out.push('}');
        out
    }
}

/// Choices share the prompt and each add what they generated.
fn add(sum: Usage, usage: Usage) -> Usage {
    Usage {
        prompt: sum.prompt,
        completion_tokens: sum.completion_tokens + usage.completion_tokens,
        reasoning_tokens: match (sum.reasoning_tokens, usage.reasoning_tokens) {
            (None, None) => None,
            (left, right) => Some(left.unwrap_or(0) + right.unwrap_or(0)),
        },
    }
}

impl Choice {
    fn apply(&mut self, delta: ChatDelta, thinking: bool) {
        match delta {
            ChatDelta::Role if thinking => {
                self.reasoning.get_or_insert_default();
            }
            ChatDelta::Role | ChatDelta::Last => {
                self.content.get_or_insert_default();
            }
            ChatDelta::Reasoning(text) => self.reasoning.get_or_insert_default().push_str(&text),
            ChatDelta::Content(text) => self.content.get_or_insert_default().push_str(&text),
            ChatDelta::CallStart { id, name, .. } => {
                self.calls.push(Call {
                    id,
                    name,
                    arguments: String::new(),
                });
            }
            ChatDelta::Arguments { text, index } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments.push_str(&text);
                }
            }
            ChatDelta::UsageOnly => {}
        }
    }

    fn write(&self, out: &mut String) {
        out.push_str("{\"index\":");
        json::number(out, u64::from(self.index));
        out.push_str(",\"message\":{\"role\":\"assistant\",\"content\":");
        json::optional_string(out, self.content.as_deref());
        if let Some(reasoning) = &self.reasoning {
            out.push_str(",\"reasoning_content\":");
            write_string(out, reasoning);
        }
        if !self.calls.is_empty() {
            out.push_str(",\"tool_calls\":");
            let calls: Vec<(usize, &Call)> = self.calls.iter().enumerate().collect();
            json::list(out, &calls, |out, (index, call)| {
                out.push_str("{\"index\":");
                json::number(out, *index as u64);
                out.push_str(",\"id\":");
                write_string(out, &call.id);
                out.push_str(",\"type\":\"function\",\"function\":{\"name\":");
                write_string(out, &call.name);
                out.push_str(",\"arguments\":");
                write_string(out, &call.arguments);
                out.push_str("}}");
            });
        }
        out.push_str("},\"logprobs\":");
        self.write_logprobs(out);
        out.push_str(",\"finish_reason\":");
        json::optional_string(out, self.finish);
        out.push('}');
    }

    fn write_logprobs(&self, out: &mut String) {
        let lists = [
            ("content", &self.logprobs),
            ("reasoning_content", &self.reasoning_logprobs),
        ];
        let mut is_first = true;
        for (name, entries) in lists {
            if !entries.is_empty() {
                out.push_str(if is_first { "{" } else { "," });
                is_first = false;
                write_string(out, name);
                out.push(':');
                json::logprobs(out, entries);
            }
        }
        out.push_str(if is_first { "null" } else { "}" });
    }
}
