//! The body of a Responses request.

use std::sync::Arc;

use recipe_json::Value;

use super::items::{self, Item};
use super::state::ResponsesEcho;
use super::tools::{self, one_of, ResponsesTool};
use crate::common::{effort_value, Deferred, EffortWord, RequestedChoice, RequestedFormat};
use crate::error::ShapeError;
use crate::shape::{
    boolean, float, list_of, missing, object, string, tagged, u32_value, u8_value, unknown, wrong,
    Members, Shape,
};

/// A Responses request of the right shape.
#[derive(Debug, Clone)]
pub struct ResponsesRequest {
    pub(crate) model: String,
    pub(crate) input: Option<Input>,
    pub(crate) instructions: Option<String>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) max_output_tokens: Option<u32>,
    pub(crate) stream: bool,
    pub(crate) tools: Vec<ResponsesTool>,
    pub(crate) tool_choice: Choice,
    pub(crate) effort: Option<EffortWord>,
    pub(crate) effort_value: Option<u8>,
    pub(crate) summary: Option<&'static str>,
    pub(crate) text: TextFormat,
    pub(crate) top_logprobs: Option<u8>,
    pub(crate) user: Option<String>,
    pub(crate) context: StoredContext,
    pub(crate) parallel_tool_calls: Option<bool>,
    pub(crate) deferred: Deferred,
}

/// `input`: one user message, or items, each with its JSON for the store.
#[derive(Debug, Clone)]
pub(crate) enum Input {
    Text(String),
    Items(Vec<Item>),
}

/// Members that refer to earlier responses or ask to keep this one; the original ignores them.
#[derive(Debug, Clone, Default)]
pub(crate) struct StoredContext {
    pub previous_response_id: Option<String>,
    pub conversation: Option<String>,
    /// `store`; the protocol's default is true.
    pub store: Option<bool>,
    pub background: bool,
    /// The input as sent, to be stored behind the history.
    pub items: Vec<Value<'static>>,
}

impl StoredContext {
    /// Names of the members that need a store.
    pub fn needs(&self) -> Option<&'static str> {
        [
            (self.previous_response_id.is_some(), "previous_response_id"),
            (self.conversation.is_some(), "conversation"),
            (self.store == Some(true), "store"),
            (self.background, "background"),
        ]
        .into_iter()
        .find_map(|(is_set, name)| is_set.then_some(name))
    }

    /// Whether a store, if the caller has one, is to keep this response.
    pub fn keeps_response(&self) -> bool {
        self.store != Some(false)
    }
}

/// `tool_choice` and how the response repeats it.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    pub requested: RequestedChoice,
    pub echo: Value<'static>,
    pub is_web_search: bool,
}

impl Default for Choice {
    fn default() -> Self {
        Choice {
            requested: RequestedChoice::Auto,
            echo: Value::string("auto"),
            is_web_search: false,
        }
    }
}

/// `text`.
#[derive(Debug, Clone, Default)]
pub(crate) struct TextFormat {
    pub requested: RequestedFormat,
    pub verbosity: Option<&'static str>,
    pub name: Option<String>,
    pub description: Option<String>,
    pub strict: Option<bool>,
}

impl ResponsesRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// A body that is not of the protocol's shape; see
    /// [`ChatCompletionRequest::from_value`](crate::ChatCompletionRequest::from_value).
    pub fn from_value(body: Value<'_>) -> Shape<Self> {
        let mut members = Members::new(object("body", body)?);
        let mut deferred = Deferred::default();
        let model = members.required_string("model")?;
        let mut context = stored_context(&mut members, &mut deferred);
        let input = match members.take("input") {
            None | Some(Value::Null) => None,
            Some(value) => {
                if context.keeps_response() {
                    context.items = input_items(&value);
                }
                Some(input(value, &mut deferred)?)
            }
        };
        let reasoning = members.optional("reasoning", |key, value| {
            let mut members = Members::new(object(key, value)?);
            let summary = |key: &str, value| one_of(key, value, &["auto", "concise", "detailed"]);
            let effort = members.optional("effort", EffortWord::read)?;
            let level = deferred.ignored_officially(members.optional("effort_value", effort_value));
            let old_name = members.optional("generate_summary", summary)?;
            Ok((
                effort,
                level,
                members.optional("summary", summary)?.or(old_name),
            ))
        })?;
        let (effort, effort_value, summary) = reasoning.unwrap_or_default();
        let parallel_tool_calls =
            deferred.ignored_officially(members.optional("parallel_tool_calls", boolean));
        Ok(ResponsesRequest {
            model,
            input,
            instructions: members.optional("instructions", string)?,
            temperature: members.optional("temperature", float)?,
            top_p: members.optional("top_p", float)?,
            max_output_tokens: members.optional("max_output_tokens", u32_value)?,
            stream: members.optional("stream", boolean)?.unwrap_or(false),
            tools: members
                .optional("tools", |key, value| list_of(key, value, tools::tool))?
                .unwrap_or_default(),
            tool_choice: members
                .optional("tool_choice", tool_choice)?
                .unwrap_or_default(),
            effort,
            effort_value,
            summary,
            text: members.optional("text", text_format)?.unwrap_or_default(),
            top_logprobs: members.optional("top_logprobs", u8_value)?,
            user: members.optional("user", string)?,
            context,
            parallel_tool_calls,
            deferred,
        })
    }

    /// The requested model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// What a response repeats of this request.
    pub fn echo(&self) -> ResponsesEcho {
        ResponsesEcho {
            instructions: self.instructions.clone(),
            max_output_tokens: self.max_output_tokens,
            temperature: self.temperature.unwrap_or(1.0),
            top_p: self.top_p.unwrap_or(1.0),
            top_logprobs: self.top_logprobs.unwrap_or(0),
            user: self.user.clone(),
        }
    }
}

fn input(value: Value<'_>, deferred: &mut Deferred) -> Shape<Input> {
    match value {
        Value::String(text) => Ok(Input::Text(text.into_owned())),
        value @ Value::Array(_) => Ok(Input::Items(list_of("input", value, |item| {
            items::item(item, deferred)
        })?)),
        value => wrong("input", "a string or a list of items", &value),
    }
}

/// Items for [`ResponsesRequest::with_history`](ResponsesRequest): as [`input`], from owned values.
pub(crate) fn history_items(values: &[Value<'static>]) -> Shape<Vec<Item>> {
    let mut deferred = Deferred::default();
    values
        .iter()
        .map(|value| items::item(value.clone(), &mut deferred))
        .collect::<Result<Vec<_>, ShapeError>>()
}

/// The input in the form in which a store keeps it.
fn input_items(value: &Value<'_>) -> Vec<Value<'static>> {
    match value {
        Value::Array(items) => items.iter().map(|item| item.clone().into_owned()).collect(),
        Value::String(text) => {
            let mut message = recipe_json::Object::new();
            message.insert("type", Value::string("message"));
            message.insert("role", Value::string("user"));
            message.insert("content", Value::string(text.clone().into_owned()));
            vec![Value::Object(message)]
        }
        _ => Vec::new(),
    }
}

fn stored_context(members: &mut Members<'_>, deferred: &mut Deferred) -> StoredContext {
    StoredContext {
        previous_response_id: deferred
            .ignored_officially(members.optional("previous_response_id", string)),
        conversation: deferred.ignored_officially(members.optional(
            "conversation",
            |key, value| match value {
                Value::String(id) => Ok(id.into_owned()),
                value => Members::new(object(key, value)?).required_string("id"),
            },
        )),
        store: deferred.ignored_officially(members.optional("store", boolean)),
        background: deferred
            .ignored_officially(members.optional("background", boolean))
            .unwrap_or(false),
        items: Vec::new(),
    }
}

fn tool_choice(key: &str, value: Value<'_>) -> Shape<Choice> {
    let requested = match value {
        Value::String(word) => {
            let requested = match &*word {
                "auto" => RequestedChoice::Auto,
                "none" => RequestedChoice::None,
                "required" => RequestedChoice::Required,
                other => return unknown(key, other, &["none", "auto", "required"]),
            };
            return Ok(Choice {
                requested,
                echo: Value::string(word.into_owned()),
                is_web_search: false,
            });
        }
        Value::Object(_) => tagged(key, value)?,
        value => {
            return wrong(
                key,
                "`none`, `auto`, `required` or a tool choice object",
                &value,
            )
        }
    };
    let (kind, mut members) = requested;
    let mut echo = recipe_json::Object::new();
    echo.insert("type", Value::string(kind.clone().into_owned()));
    let requested = match &*kind {
        "function" | "custom" => {
            let name = members.required_string("name")?;
            echo.insert("name", Value::string(name.clone()));
            RequestedChoice::Named(name)
        }
        "web_search" | "web_search_2025_08_26" => RequestedChoice::Auto,
        other => {
            return unknown(
                "type",
                other,
                &["function", "web_search", "web_search_2025_08_26", "custom"],
            );
        }
    };
    let is_web_search = requested == RequestedChoice::Auto;
    Ok(Choice {
        requested,
        echo: Value::Object(echo),
        is_web_search,
    })
}

fn text_format(key: &str, value: Value<'_>) -> Shape<TextFormat> {
    let mut members = Members::new(object(key, value)?);
    let verbosity = members.optional("verbosity", |key, value| {
        one_of(key, value, &["low", "medium", "high"])
    })?;
    let Some(format) = members.take("format") else {
        return Ok(TextFormat {
            verbosity,
            ..TextFormat::default()
        });
    };
    let (kind, mut members) = tagged("format", format)?;
    let mut format = TextFormat {
        verbosity,
        ..TextFormat::default()
    };
    match &*kind {
        "text" => {}
        "json_object" => format.requested = RequestedFormat::JsonObject,
        "json_schema" => {
            format.name = Some(members.required_string("name")?);
            let Some(schema) = members.take("schema") else {
                return missing("schema");
            };
            format.description = members.optional("description", string)?;
            format.strict = members.optional("strict", boolean)?;
            format.requested = RequestedFormat::JsonSchema {
                schema: Arc::new(schema.into_owned()),
                strict: format.strict == Some(true),
            };
        }
        other => return unknown("type", other, &["text", "json_schema", "json_object"]),
    }
    Ok(format)
}
