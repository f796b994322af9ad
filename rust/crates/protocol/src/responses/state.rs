//! What a response repeats of its request.

use std::collections::{BTreeMap, HashSet};

use recipe_json::{write_f64, FloatStyle, Value};

use super::request::{ResponsesRequest, TextFormat};
use super::tools::{write_echo, write_optional};
use crate::common::RequestedFormat;

/// Request members that callers may replace.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponsesEcho {
    /// `instructions`
    pub instructions: Option<String>,
    /// `max_output_tokens`
    pub max_output_tokens: Option<u32>,
    /// Requested temperature, 1 when unset
    pub temperature: f32,
    /// Requested `top_p`, 1 when unset
    pub top_p: f32,
    /// `top_logprobs`, 0 when unset
    pub top_logprobs: u8,
    /// `user`
    pub user: Option<String>,
}

impl Default for ResponsesEcho {
    fn default() -> Self {
        ResponsesEcho {
            instructions: None,
            max_output_tokens: None,
            temperature: 1.0,
            top_p: 1.0,
            top_logprobs: 0,
            user: None,
        }
    }
}

/// Everything a Responses generator takes over from the request.
#[derive(Debug, Clone)]
pub struct ResponsesState {
    /// Members that callers may replace.
    pub echo: ResponsesEcho,
    /// Full tool name to namespace and name.
    pub namespaces: BTreeMap<String, (String, String)>,
    /// Names of custom tools.
    pub custom_tools: HashSet<String>,
    /// `reasoning` as JSON
    pub(crate) reasoning: String,
    /// `text` as JSON
    pub(crate) text: String,
    /// `tool_choice` as JSON
    pub(crate) tool_choice: String,
    /// `tools` as JSON
    pub(crate) tools: String,
    /// `parallel_tool_calls`
    pub(crate) parallel_tool_calls: bool,
    /// `previous_response_id`, only when a store supplied its context
    pub(crate) previous_response_id: Option<String>,
    /// Input with its history, if the caller's store is to keep the response.
    pub history: Option<Value<'static>>,
}

impl Default for ResponsesState {
    fn default() -> Self {
        ResponsesState {
            echo: ResponsesEcho::default(),
            namespaces: BTreeMap::new(),
            custom_tools: HashSet::new(),
            reasoning: "{\"effort\":null,\"summary\":null}".to_owned(),
            text: "{\"format\":{\"type\":\"text\"},\"verbosity\":null}".to_owned(),
            tool_choice: "\"auto\"".to_owned(),
            tools: "[]".to_owned(),
            parallel_tool_calls: true,
            previous_response_id: None,
            history: None,
        }
    }
}

impl ResponsesState {
    /// Takes over what does not change in conversion.
    pub(crate) fn of(request: &ResponsesRequest) -> Self {
        let mut reasoning = String::from("{\"effort\":");
        write_optional(&mut reasoning, request.effort.map(|effort| effort.as_str()));
        reasoning.push_str(",\"summary\":");
        write_optional(&mut reasoning, request.summary);
        reasoning.push('}');
        let mut tools = String::new();
        write_echo(&mut tools, &request.tools);
        ResponsesState {
            echo: request.echo(),
            reasoning,
            text: text_json(&request.text),
            tool_choice: request.tool_choice.echo.to_compact(),
            tools,
            ..ResponsesState::default()
        }
    }
}

fn text_json(text: &TextFormat) -> String {
    let mut out = String::from("{\"format\":{\"type\":");
    match &text.requested {
        RequestedFormat::JsonObject => out.push_str("\"json_object\""),
        RequestedFormat::JsonSchema { schema, .. } => {
            out.push_str("\"json_schema\",\"name\":");
            write_optional(&mut out, text.name.as_deref());
            out.push_str(",\"schema\":");
            recipe_json::write_compact(&mut out, schema);
            out.push_str(",\"description\":");
            write_optional(&mut out, text.description.as_deref());
            out.push_str(match text.strict {
                Some(true) => ",\"strict\":true",
                Some(false) => ",\"strict\":false",
                None => ",\"strict\":null",
            });
        }
        RequestedFormat::Text | RequestedFormat::Regex(_) => out.push_str("\"text\""),
    }
    out.push_str("},\"verbosity\":");
    write_optional(&mut out, text.verbosity);
    out.push('}');
    out
}

impl ResponsesEcho {
    /// Single precision printed with its own shortest digits, as JSON.
    pub(crate) fn write_float(out: &mut String, value: f32) {
        // Going through the decimal text keeps 0.3 from becoming 0.30000001192092896.
        let shortest: f64 = value.to_string().parse().unwrap_or(f64::from(value));
        write_f64(out, shortest, FloatStyle::Compact);
    }
}
