//! The converted request.

use std::sync::Arc;

use recipe_json::{write_compact, write_string, Value};
use recipe_model::{Conversation, Effort, ToolDefinition};
use recipe_stream::ParsingOptions;

use crate::error::ConversionError;
use crate::options::{Compat, Extras, ModelVersion};
use crate::responses::ResponsesState;
use crate::seal::ReasoningKey;

/// What the output must match; advice for a constrained decoder.
#[derive(Debug, Clone, PartialEq)]
pub enum OutputConstraint {
    /// JSON, of the given schema if there is one.
    Json {
        /// The schema.
        schema: Option<Arc<Value<'static>>>,
    },
    /// Text that matches a pattern.
    Regex {
        /// The pattern.
        pattern: String,
    },
    /// Calls of the given tools.
    ToolCalls {
        /// Whether at least one call must be made.
        required: bool,
        /// Whether more than one call may be made.
        parallel: bool,
        /// The tools, deferred ones included.
        tools: Arc<[ToolDefinition]>,
    },
}

impl OutputConstraint {
    /// `json`, `regex`, `tool_call` or `tool_call_required`.
    pub fn kind(&self) -> &'static str {
        match self {
            OutputConstraint::Json { .. } => "json",
            OutputConstraint::Regex { .. } => "regex",
            OutputConstraint::ToolCalls {
                required: false, ..
            } => "tool_call",
            OutputConstraint::ToolCalls { required: true, .. } => "tool_call_required",
        }
    }

    /// The schema, the pattern, or the tools as compact JSON; empty for any JSON object.
    pub fn schema(&self) -> String {
        match self {
            OutputConstraint::Json { schema: None } => String::new(),
            OutputConstraint::Json {
                schema: Some(schema),
            } => schema.to_compact(),
            OutputConstraint::Regex { pattern } => pattern.clone(),
            OutputConstraint::ToolCalls { tools, .. } => {
                let mut out = String::from("[");
                for (index, tool) in tools.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    write_tool(&mut out, tool);
                }
                out.push(']');
                out
            }
        }
    }
}

fn write_tool(out: &mut String, tool: &ToolDefinition) {
    out.push_str("{\"type\":\"function\",\"function\":{\"name\":");
    write_string(out, &tool.name);
    out.push_str(",\"description\":");
    match &tool.description {
        Some(description) => write_string(out, description),
        None => out.push_str("null"),
    }
    out.push_str(",\"parameters\":");
    match &tool.parameters {
        Some(parameters) => write_compact(out, parameters),
        None => out.push_str("null"),
    }
    out.push_str(match tool.strict {
        Some(true) => ",\"strict\":true}",
        Some(false) => ",\"strict\":false}",
        None => ",\"strict\":null}",
    });
    if tool.defer_loading {
        out.push_str(",\"defer_loading\":true");
    }
    out.push('}');
}

/// What the engine needs besides the prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct InferenceOptions {
    /// Requested bound on generated tokens.
    pub max_tokens: Option<u32>,
    /// Effective temperature.
    pub temperature: f32,
    /// Effective nucleus probability.
    pub top_p: f32,
    /// Whether log probabilities are wanted.
    pub logprobs: bool,
    /// How many alternatives per token.
    pub top_logprobs: Option<u8>,
    /// Seed of the sampler.
    pub seed: Option<u64>,
    /// Number of independent choices.
    pub n: u32,
    /// Whether several calls in one turn are allowed; `None` when the request does not say.
    pub parallel_tool_calls: Option<bool>,
    /// What the output must match.
    pub output_constraint: Option<OutputConstraint>,
}

/// Something of the request that was left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Where it stood.
    pub path: String,
    /// What was left out and why.
    pub message: String,
}

/// A request after conversion: the conversation and everything that belongs to it.
#[derive(Debug, Clone)]
pub struct ConversationRequest {
    /// The conversation.
    pub conversation: Arc<Conversation>,
    /// Sampling and constraints.
    pub inference_options: InferenceOptions,
    /// How the output is to be parsed.
    pub parsing_options: ParsingOptions,
    /// Model the request was for.
    pub model_version: ModelVersion,
    /// Whether events or one response are wanted.
    pub stream: bool,
    /// What was dropped.
    pub warnings: Vec<Warning>,
    /// Behaviour of the generators started from this request.
    pub generation: Generation,
}

/// What generators take over from the request.
#[derive(Debug, Clone, Default)]
pub struct Generation {
    /// Default or original behaviour.
    pub compat: Compat,
    /// Chat: `stream_options.include_usage`.
    pub include_usage: bool,
    /// Options that are off by default.
    pub extras: Extras,
    /// Parts of a Responses request that the response repeats.
    pub responses: Option<Arc<ResponsesState>>,
    /// Seals reasoning.
    pub reasoning_key: Option<ReasoningKey>,
}

impl ConversationRequest {
    /// A request around a conversation that was built directly.
    pub fn from_conversation(conversation: Conversation, model_version: ModelVersion) -> Self {
        let parsing_options = ParsingOptions {
            parse_tool_calls: !conversation.tools.is_empty(),
            ..ParsingOptions::default()
        };
        ConversationRequest {
            conversation: Arc::new(conversation),
            inference_options: InferenceOptions {
                max_tokens: None,
                temperature: 1.0,
                top_p: 1.0,
                logprobs: false,
                top_logprobs: None,
                seed: None,
                n: 1,
                parallel_tool_calls: None,
                output_constraint: None,
            },
            parsing_options,
            model_version,
            stream: false,
            warnings: Vec::new(),
            generation: Generation::default(),
        }
    }

    /// The bound on generated tokens for a prompt of `prompt_tokens` in a context of `context_limit`.
    ///
    /// # Errors
    /// A prompt, or prompt and requested tokens together, beyond the context.
    pub fn resolve_max_tokens(
        &self,
        prompt_tokens: u64,
        context_limit: u64,
    ) -> Result<u64, ConversionError> {
        let requested = self.inference_options.max_tokens.map(u64::from);
        let completion = requested.unwrap_or(0);
        let total = prompt_tokens.saturating_add(completion);
        if total > context_limit {
            return Err(ConversionError::new(format!(
                "This model's maximum context length is {context_limit} tokens. However, you requested {total} \
                 tokens ({prompt_tokens} in the messages, {completion} in the completion). Please reduce the \
                 length of the messages or completion."
            )));
        }
        Ok(requested.unwrap_or_else(|| {
            let default = match (
                self.conversation.thinking_mode,
                self.conversation.reasoning_effort,
            ) {
                (false, _) => 8192,
                (true, Some(Effort::Max)) => 131_072,
                (true, _) => 65_536,
            };
            default.min(context_limit - prompt_tokens).max(1)
        }))
    }
}
