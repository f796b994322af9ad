//! Input items of Responses requests.

use recipe_json::Value;
use recipe_model::ImageDetail;

use super::tools::{self, ResponsesTool};
use crate::chat::detail;
use crate::common::Deferred;
use crate::shape::{
    at, list_of, object, optional, required, string, tagged, text, unknown, wrong, Members, Shape,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    User,
    Assistant,
    System,
    Developer,
}

/// An input item.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    Message {
        role: Role,
        content: ItemContent,
    },
    Reasoning {
        text: String,
        sealed: Option<String>,
    },
    FunctionCall {
        call_id: String,
        namespace: Option<String>,
        name: String,
        arguments: String,
    },
    CustomCall {
        call_id: String,
        name: String,
        input: String,
    },
    ToolSearchCall {
        call_id: String,
        arguments: Value<'static>,
    },
    Output {
        call_id: String,
        output: ItemContent,
    },
    ToolSearchOutput {
        call_id: String,
        tools: Vec<ResponsesTool>,
    },
    /// A type that is not known here.
    Other(String),
}

#[derive(Debug, Clone)]
pub(crate) enum ItemContent {
    Text(String),
    Parts(Vec<ItemPart>),
}

#[derive(Debug, Clone)]
pub(crate) enum ItemPart {
    Text(String),
    Image {
        url: Option<String>,
        file_id: Option<String>,
        detail: ImageDetail,
    },
    File {
        data: Option<String>,
    },
}

pub(crate) fn item(value: Value<'_>, deferred: &mut Deferred) -> Shape<Item> {
    let Value::Object(members) = value else {
        return wrong("item", "an object", &value);
    };
    let mut members = Members::new(members);
    let kind = match members.take("type") {
        Some(kind) => Some(text("type", kind)?),
        None => None,
    };
    Ok(match kind.as_deref() {
        None | Some("message") => message(&mut members, deferred)?,
        Some("reasoning") => reasoning(&mut members)?,
        Some("function_call") => {
            let arguments = members.required_string("arguments")?;
            let call_id = members.required_string("call_id")?;
            let name = members.required_string("name")?;
            let namespace = members.optional("namespace", string)?;
            Item::FunctionCall {
                call_id,
                namespace,
                name,
                arguments,
            }
        }
        Some("custom_tool_call") => Item::CustomCall {
            call_id: members.required_string("call_id")?,
            name: members.required_string("name")?,
            input: members.required_string("input")?,
        },
        Some("function_call_output" | "custom_tool_call_output") => Item::Output {
            call_id: members.required_string("call_id")?,
            output: output(required("output", members.take("output"))?)?,
        },
        Some("tool_search_call") => {
            members.optional("execution", tools::execution)?;
            Item::ToolSearchCall {
                call_id: members.required_string("call_id")?,
                arguments: members
                    .required("arguments", |key, value| {
                        object(key, value).map(Value::Object)
                    })?
                    .into_owned(),
            }
        }
        Some("tool_search_output") => {
            members.optional("execution", tools::execution)?;
            Item::ToolSearchOutput {
                call_id: members.required_string("call_id")?,
                tools: members.required("tools", |key, value| list_of(key, value, tools::tool))?,
            }
        }
        Some(other) => Item::Other(other.to_owned()),
    })
}

fn message(members: &mut Members<'_>, deferred: &mut Deferred) -> Shape<Item> {
    let role = members.required("role", |key, value| match &*text(key, value)? {
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        "system" => Ok(Role::System),
        "developer" => Ok(Role::Developer),
        other => unknown(key, other, &["user", "assistant", "system", "developer"]),
    })?;
    let content = match required("content", members.take("content"))? {
        Value::String(text) => ItemContent::Text(text.into_owned()),
        Value::Array(items) => {
            let mut parts = Vec::with_capacity(items.len());
            for (index, item) in items.into_iter().enumerate() {
                parts.push(part(item, deferred).map_err(|error| at(error, "content", index))?);
            }
            ItemContent::Parts(parts)
        }
        other => return wrong("content", "a string or a list of content blocks", &other),
    };
    Ok(Item::Message { role, content })
}

fn part(value: Value<'_>, deferred: &mut Deferred) -> Shape<ItemPart> {
    let (kind, mut members) = tagged("part", value)?;
    match &*kind {
        "input_text" | "output_text" => Ok(ItemPart::Text(members.required_string("text")?)),
        "refusal" => {
            deferred.only_default("`type` is `refusal`");
            Ok(ItemPart::Text(members.required_string("refusal")?))
        }
        kind => media_part(
            kind,
            &mut members,
            &["input_text", "output_text", "input_image", "input_file"],
        ),
    }
}

fn media_part(kind: &str, members: &mut Members<'_>, allowed: &[&str]) -> Shape<ItemPart> {
    match kind {
        "input_image" => Ok(ItemPart::Image {
            url: members.optional("image_url", string)?,
            file_id: members.optional("file_id", string)?,
            detail: members.optional("detail", detail)?.unwrap_or_default(),
        }),
        "input_file" => {
            let data = members
                .take("file_data")
                .and_then(|data| data.as_str().map(str::to_owned));
            Ok(ItemPart::File { data })
        }
        other => unknown("type", other, allowed),
    }
}

fn output(value: Value<'_>) -> Shape<ItemContent> {
    match value {
        Value::String(text) => Ok(ItemContent::Text(text.into_owned())),
        Value::Array(items) => {
            let parts = items.into_iter().map(|item| {
                let (kind, mut members) = tagged("part", item)?;
                match &*kind {
                    "input_text" => Ok(ItemPart::Text(members.required_string("text")?)),
                    kind => media_part(
                        kind,
                        &mut members,
                        &["input_text", "input_image", "input_file"],
                    ),
                }
            });
            Ok(ItemContent::Parts(parts.collect::<Shape<_>>()?))
        }
        other => wrong(
            "output",
            "a string or a list of output content parts",
            &other,
        ),
    }
}

fn reasoning(members: &mut Members<'_>) -> Shape<Item> {
    let texts = members
        .optional("content", |key, value| {
            list_of(key, value, |item| {
                Members::new(object("content", item)?).required_string("text")
            })
        })?
        .unwrap_or_default();
    let sealed = match members.take("encrypted_content") {
        Some(value) => optional("encrypted_content", value, string)?,
        None => None,
    };
    Ok(Item::Reasoning {
        text: texts.join("\n"),
        sealed,
    })
}
