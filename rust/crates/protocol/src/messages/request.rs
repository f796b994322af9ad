//! The body of a Messages request.

use std::sync::Arc;

use recipe_json::Value;

use super::blocks::{self, BlockContent};
use crate::common::{
    effort_value, read_thinking, DeclaredTool, Deferred, EffortWord, RequestedChoice,
    RequestedFormat,
};
use crate::shape::{
    any, boolean, float, list_of, missing, object, required, string, strings, tagged, text,
    u32_value, unknown, Members, Shape,
};

/// A Messages request of the right shape.
#[derive(Debug, Clone)]
pub struct MessagesRequest {
    pub(crate) model: String,
    pub(crate) messages: Vec<InputMessage>,
    pub(crate) system: Option<String>,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) stop_sequences: Vec<String>,
    pub(crate) stream: bool,
    pub(crate) tools: Vec<MessagesTool>,
    pub(crate) tool_choice: Choice,
    pub(crate) thinking: Option<bool>,
    pub(crate) effort: Option<EffortWord>,
    pub(crate) effort_value: Option<u8>,
    pub(crate) format: RequestedFormat,
    pub(crate) deferred: Deferred,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    User,
    Assistant,
    System,
}

#[derive(Debug, Clone)]
pub(crate) struct InputMessage {
    pub role: Role,
    pub content: BlockContent,
}

#[derive(Debug, Clone)]
pub(crate) enum MessagesTool {
    Client(DeclaredTool),
    /// `type: "custom"`: a client tool, which the original takes for a server tool.
    Custom(Shape<DeclaredTool>),
    WebSearch,
    Server,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Choice {
    pub choice: ChoiceKind,
    pub disable_parallel: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ChoiceKind {
    #[default]
    Auto,
    Any,
    Tool(String),
    None,
}

impl ChoiceKind {
    pub fn requested(self, official: bool) -> RequestedChoice {
        match self {
            ChoiceKind::Auto => RequestedChoice::Auto,
            ChoiceKind::Any if official => RequestedChoice::Auto,
            ChoiceKind::Any => RequestedChoice::Required,
            ChoiceKind::Tool(name) => RequestedChoice::Named(name),
            ChoiceKind::None => RequestedChoice::None,
        }
    }
}

impl MessagesRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// A body that is not of the protocol's shape; see
    /// [`ChatCompletionRequest::from_value`](crate::ChatCompletionRequest::from_value).
    pub fn from_value(body: Value<'_>) -> Shape<Self> {
        let mut members = Members::new(object("body", body)?);
        let mut deferred = Deferred::default();
        let model = members.required_string("model")?;
        let messages = members.required("messages", |key, value| {
            list_of(key, value, |item| message(item, &mut deferred))
        })?;
        members.optional("metadata", blocks::metadata)?;
        let output = members.optional("output_config", |key, value| {
            let mut members = Members::new(object(key, value)?);
            let effort = members.optional("effort", EffortWord::read)?;
            let value = deferred.ignored_officially(members.optional("effort_value", effort_value));
            let format = deferred.ignored_officially(members.optional("format", output_format));
            Ok((effort, value, format))
        })?;
        let (effort, effort_value, format) = output.unwrap_or_default();
        let beta_format =
            deferred.ignored_officially(members.optional("output_format", output_format));
        Ok(MessagesRequest {
            model,
            messages,
            system: members.optional("system", blocks::system)?,
            max_tokens: members.optional("max_tokens", u32_value)?,
            temperature: members.optional("temperature", float)?,
            top_p: members.optional("top_p", float)?,
            stop_sequences: members
                .optional("stop_sequences", strings)?
                .unwrap_or_default(),
            stream: members.optional("stream", boolean)?.unwrap_or(false),
            tools: members
                .optional("tools", |key, value| list_of(key, value, tool))?
                .unwrap_or_default(),
            tool_choice: members
                .optional("tool_choice", tool_choice)?
                .unwrap_or_default(),
            thinking: members.optional("thinking", read_thinking)?,
            effort,
            effort_value,
            format: format.or(beta_format).unwrap_or_default(),
            deferred,
        })
    }

    /// The requested model.
    pub fn model(&self) -> &str {
        &self.model
    }
}

fn message(value: Value<'_>, deferred: &mut Deferred) -> Shape<InputMessage> {
    let (mut role, mut content) = (None, None);
    for (key, value) in object("message", value)? {
        match &*key {
            "role" => role = Some(text("role", value)?),
            "content" => content = Some(value),
            _ => {}
        }
    }
    let role = match &*required("role", role)? {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" => Role::System,
        other => return unknown("role", other, &["user", "assistant", "system"]),
    };
    let content = blocks::content("content", required("content", content)?, deferred)?;
    Ok(InputMessage { role, content })
}

fn tool(value: Value<'_>) -> Shape<MessagesTool> {
    let mut members = Members::new(object("tool", value)?);
    let Some(kind) = members.take("type") else {
        return client_tool(&mut members).map(MessagesTool::Client);
    };
    let kind = text("type", kind)?;
    Ok(match &*kind {
        "custom" => MessagesTool::Custom(client_tool(&mut members)),
        kind if kind.starts_with("web_search_") => MessagesTool::WebSearch,
        _ => MessagesTool::Server,
    })
}

fn client_tool(members: &mut Members<'_>) -> Shape<DeclaredTool> {
    Ok(DeclaredTool {
        name: members.required_string("name")?,
        description: members.optional("description", string)?,
        parameters: members.optional("input_schema", any)?,
        // The original does not read `strict` here.
        strict: None,
        defer_loading: members.optional("defer_loading", boolean)?.unwrap_or(false),
        needs_parameters: true,
    })
}

fn tool_choice(key: &str, value: Value<'_>) -> Shape<Choice> {
    let (kind, mut members) = tagged(key, value)?;
    let choice = match &*kind {
        "auto" => ChoiceKind::Auto,
        "any" => ChoiceKind::Any,
        "tool" => ChoiceKind::Tool(members.required_string("name")?),
        "none" => ChoiceKind::None,
        other => return unknown("type", other, &["auto", "any", "tool", "none"]),
    };
    let disable_parallel = members.optional("disable_parallel_tool_use", boolean)?;
    Ok(Choice {
        choice,
        disable_parallel,
    })
}

fn output_format(key: &str, value: Value<'_>) -> Shape<RequestedFormat> {
    let (kind, mut members) = tagged(key, value)?;
    if &*kind != "json_schema" {
        return unknown("type", &kind, &["json_schema"]);
    }
    match members.take("schema") {
        Some(schema) => Ok(RequestedFormat::JsonSchema {
            schema: Arc::new(schema.into_owned()),
            strict: false,
        }),
        None => missing("schema"),
    }
}
