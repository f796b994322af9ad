//! The body of a Chat Completions request.

use std::sync::Arc;

use recipe_json::Value;
use recipe_model::{ImageDetail, ToolCall};

use crate::common::{
    effort_value, read_thinking, DeclaredTool, Deferred, EffortWord, RequestedChoice,
    RequestedFormat,
};
use crate::shape::{
    any, at, boolean, float, list_of, missing, object, optional, required, string, strings, tagged,
    text, u32_value, u64_value, u8_value, unknown, wrong, Members, Shape,
};

/// A Chat Completions request of the right shape.
#[derive(Debug, Clone)]
pub struct ChatCompletionRequest {
    pub(crate) model: String,
    pub(crate) messages: Vec<ChatMessage>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) max_completion_tokens: Option<u32>,
    pub(crate) stream: bool,
    pub(crate) include_usage: Option<bool>,
    pub(crate) seed: Option<u64>,
    pub(crate) logprobs: bool,
    pub(crate) top_logprobs: Option<u8>,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_is_scalar: bool,
    pub(crate) tools: Vec<DeclaredTool>,
    pub(crate) tool_choice: RequestedChoice,
    pub(crate) parallel_tool_calls: Option<bool>,
    pub(crate) response_format: RequestedFormat,
    pub(crate) thinking: Option<bool>,
    pub(crate) reasoning_effort: Option<EffortWord>,
    pub(crate) reasoning_effort_value: Option<u8>,
    pub(crate) n: Option<u8>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) deferred: Deferred,
}

/// A message of the right shape.
#[derive(Debug, Clone)]
pub(crate) enum ChatMessage {
    System(ChatContent),
    User(ChatContent),
    Assistant {
        content: Option<ChatContent>,
        reasoning_content: Option<String>,
        tool_calls: Option<Vec<ToolCall>>,
        prefix: bool,
    },
    Tool {
        content: ChatContent,
        tool_call_id: String,
    },
    LatestReminder(String),
}

/// Content as a string or as parts.
#[derive(Debug, Clone)]
pub(crate) enum ChatContent {
    Text(String),
    Parts(Vec<ChatPart>),
}

/// A part of a content list.
#[derive(Debug, Clone)]
pub(crate) enum ChatPart {
    Text(String),
    Image {
        url: String,
        detail: ImageDetail,
    },
    File {
        flat: ChatFile,
        /// OpenAI's spelling, which the original does not know.
        nested: Option<ChatFile>,
    },
}

#[derive(Debug, Clone, Default)]
pub(crate) struct ChatFile {
    pub file_id: Option<String>,
    pub file_data: Option<String>,
    pub filename: Option<String>,
}

impl ChatCompletionRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// A body that is not of the protocol's shape. Shapes that only the default mode knows are accepted here and
    /// refused by conversion under `official`.
    pub fn from_value(body: Value<'_>) -> Shape<Self> {
        let mut members = Members::new(object("body", body)?);
        let mut deferred = Deferred::default();
        let model = members.required_string("model")?;
        let messages = members.required("messages", |key, value| {
            list_of(key, value, |item| message(item, &mut deferred))
        })?;
        let (stop, stop_is_scalar) = members
            .optional("stop", stop_sequences)?
            .unwrap_or_default();
        let max_completion_tokens =
            deferred.ignored_officially(members.optional("max_completion_tokens", u32_value));
        let reasoning_effort_value =
            deferred.ignored_officially(members.optional("reasoning_effort_value", effort_value));
        Ok(ChatCompletionRequest {
            model,
            messages,
            temperature: members.optional("temperature", float)?,
            top_p: members.optional("top_p", float)?,
            max_tokens: members.optional("max_tokens", u32_value)?,
            max_completion_tokens,
            stream: members.optional("stream", boolean)?.unwrap_or(false),
            include_usage: members.optional("stream_options", |key, value| {
                let mut members = Members::new(object(key, value)?);
                Ok(members.optional("include_usage", boolean)?.unwrap_or(false))
            })?,
            seed: members.optional("seed", u64_value)?,
            logprobs: members.optional("logprobs", boolean)?.unwrap_or(false),
            top_logprobs: members.optional("top_logprobs", u8_value)?,
            stop,
            stop_is_scalar,
            tools: members
                .optional("tools", |key, value| list_of(key, value, tool))?
                .unwrap_or_default(),
            tool_choice: members
                .optional("tool_choice", tool_choice)?
                .unwrap_or_default(),
            parallel_tool_calls: members.optional("parallel_tool_calls", boolean)?,
            response_format: members
                .optional("response_format", response_format)?
                .unwrap_or_default(),
            thinking: members.optional("thinking", read_thinking)?,
            reasoning_effort: members.optional("reasoning_effort", EffortWord::read)?,
            reasoning_effort_value,
            n: members.optional("n", u8_value)?,
            presence_penalty: members.optional("presence_penalty", float)?,
            frequency_penalty: members.optional("frequency_penalty", float)?,
            deferred,
        })
    }

    /// The requested model.
    pub fn model(&self) -> &str {
        &self.model
    }
}

fn stop_sequences(key: &str, value: Value<'_>) -> Shape<(Vec<String>, bool)> {
    match value {
        Value::String(text) => Ok((vec![text.into_owned()], true)),
        value @ Value::Array(_) => Ok((strings(key, value)?, false)),
        value => wrong(key, "a string or a list of strings", &value),
    }
}

/// Members are matched in one pass: this runs once per message.
fn message(value: Value<'_>, deferred: &mut Deferred) -> Shape<ChatMessage> {
    let (mut role, mut content, mut reasoning, mut calls, mut prefix, mut call_id) =
        (None, None, None, None, false, None);
    for (key, value) in object("message", value)? {
        match &*key {
            "role" => role = Some(text("role", value)?),
            "content" => content = Some(value),
            "reasoning_content" => reasoning = Some(value),
            "tool_calls" => calls = Some(value),
            "prefix" => prefix = optional("prefix", value, boolean)?.unwrap_or(false),
            "tool_call_id" => call_id = Some(value),
            "name" => {
                optional("name", value, string)?;
            }
            _ => {}
        }
    }
    let role = required("role", role)?;
    Ok(match &*role {
        "user" => ChatMessage::User(required_content(content, deferred)?),
        "system" => ChatMessage::System(required_content(content, deferred)?),
        "developer" => {
            deferred.only_default("`role` is `developer`");
            ChatMessage::System(required_content(content, deferred)?)
        }
        "assistant" => ChatMessage::Assistant {
            content: match content {
                None | Some(Value::Null) => None,
                content => Some(required_content(content, deferred)?),
            },
            reasoning_content: match reasoning {
                Some(value) => optional("reasoning_content", value, string)?,
                None => None,
            },
            tool_calls: match calls {
                Some(value) => optional("tool_calls", value, |key, value| {
                    list_of(key, value, tool_call)
                })?,
                None => None,
            },
            prefix,
        },
        "tool" => ChatMessage::Tool {
            tool_call_id: string("tool_call_id", required("tool_call_id", call_id)?)?,
            content: required_content(content, deferred)?,
        },
        "latest_reminder" => {
            ChatMessage::LatestReminder(string("content", required("content", content)?)?)
        }
        other => {
            let allowed = [
                "system",
                "developer",
                "user",
                "assistant",
                "tool",
                "latest_reminder",
            ];
            return unknown("role", other, &allowed);
        }
    })
}

fn required_content(value: Option<Value<'_>>, deferred: &mut Deferred) -> Shape<ChatContent> {
    match required("content", value)? {
        Value::String(text) => Ok(ChatContent::Text(text.into_owned())),
        Value::Array(items) => {
            let mut parts = Vec::with_capacity(items.len());
            for (index, item) in items.into_iter().enumerate() {
                parts.push(part(item, deferred).map_err(|error| at(error, "content", index))?);
            }
            Ok(ChatContent::Parts(parts))
        }
        other => wrong("content", "a string or a list of parts", &other),
    }
}

fn part(value: Value<'_>, deferred: &mut Deferred) -> Shape<ChatPart> {
    let (kind, mut members) = tagged("part", value)?;
    match &*kind {
        "text" => Ok(ChatPart::Text(members.required_string("text")?)),
        "image_url" => members.required("image_url", |key, value| {
            let mut members = Members::new(object(key, value)?);
            Ok(ChatPart::Image {
                url: members.required_string("url")?,
                detail: members.optional("detail", detail)?.unwrap_or_default(),
            })
        }),
        "file" => Ok(ChatPart::File {
            flat: file(&mut members)?,
            nested: deferred.ignored_officially(members.optional("file", |key, value| {
                file(&mut Members::new(object(key, value)?))
            })),
        }),
        other => unknown("type", other, &["text", "image_url", "file"]),
    }
}

fn file(members: &mut Members<'_>) -> Shape<ChatFile> {
    Ok(ChatFile {
        file_id: members.optional("file_id", string)?,
        file_data: members.optional("file_data", string)?,
        filename: members.optional("filename", string)?,
    })
}

pub(crate) fn detail(key: &str, value: Value<'_>) -> Shape<ImageDetail> {
    let word = text(key, value)?;
    match ImageDetail::from_word(&word) {
        Some(detail) => Ok(detail),
        None => unknown(key, &word, &["low", "high", "original", "auto"]),
    }
}

fn function_kind(members: &mut Members<'_>) -> Shape<()> {
    members.required("type", |key, value| match &*text(key, value)? {
        "function" => Ok(()),
        other => unknown(key, other, &["function"]),
    })
}

fn tool_call(value: Value<'_>) -> Shape<ToolCall> {
    let mut members = Members::new(object("tool_call", value)?);
    let id = members.required_string("id")?;
    function_kind(&mut members)?;
    members.required("function", |key, value| {
        let mut members = Members::new(object(key, value)?);
        Ok(ToolCall {
            id,
            name: members.required_string("name")?,
            arguments: members.required_string("arguments")?,
        })
    })
}

fn tool(value: Value<'_>) -> Shape<DeclaredTool> {
    let mut members = Members::new(object("tool", value)?);
    function_kind(&mut members)?;
    members.required("function", |key, value| {
        let mut members = Members::new(object(key, value)?);
        Ok(DeclaredTool {
            name: members.required_string("name")?,
            description: members.optional("description", string)?,
            parameters: members.optional("parameters", any)?,
            strict: members.optional("strict", boolean)?,
            defer_loading: false,
            needs_parameters: false,
        })
    })
}

fn tool_choice(key: &str, value: Value<'_>) -> Shape<RequestedChoice> {
    match value {
        Value::String(word) => match &*word {
            "auto" => Ok(RequestedChoice::Auto),
            "none" => Ok(RequestedChoice::None),
            "required" => Ok(RequestedChoice::Required),
            other => unknown(key, other, &["none", "auto", "required"]),
        },
        Value::Object(choice) => {
            let mut members = Members::new(choice);
            function_kind(&mut members)?;
            let name = members.required("function", |key, value| {
                Members::new(object(key, value)?).required_string("name")
            })?;
            Ok(RequestedChoice::Named(name))
        }
        value => wrong(key, "`none`, `auto`, `required` or a tool", &value),
    }
}

fn response_format(key: &str, value: Value<'_>) -> Shape<RequestedFormat> {
    let (kind, mut members) = tagged(key, value)?;
    match &*kind {
        "text" => Ok(RequestedFormat::Text),
        "json_object" => Ok(RequestedFormat::JsonObject),
        "regex" => Ok(RequestedFormat::Regex(members.required_string("regex")?)),
        "json_schema" => members.required("json_schema", |key, value| {
            let mut members = Members::new(object(key, value)?);
            let Some(schema) = members.take("schema") else {
                return missing("schema");
            };
            Ok(RequestedFormat::JsonSchema {
                schema: Arc::new(schema.into_owned()),
                strict: members.optional("strict", boolean)?.unwrap_or(false),
            })
        }),
        other => unknown(
            "type",
            other,
            &["json_object", "json_schema", "regex", "text"],
        ),
    }
}
