//! Tools of Responses requests.

use std::sync::Arc;

use recipe_json::{write_compact, write_string, Value};

use crate::common::DeclaredTool;
use crate::shape::{any, boolean, list_of, object, string, tagged, text, unknown, Members, Shape};

/// A declared tool.
#[derive(Debug, Clone)]
pub(crate) enum ResponsesTool {
    Function(DeclaredTool),
    Namespace {
        name: String,
        description: Option<String>,
        tools: Vec<NamespaceTool>,
    },
    Custom {
        name: String,
    },
    ToolSearch {
        execution: Option<&'static str>,
        description: Option<String>,
        parameters: Option<Arc<Value<'static>>>,
    },
    WebSearch {
        kind: String,
        context_size: Option<&'static str>,
        location: Option<Location>,
    },
    Other {
        kind: String,
    },
}

#[derive(Debug, Clone)]
pub(crate) enum NamespaceTool {
    Function(DeclaredTool),
    Custom { name: String },
}

/// Members of `user_location`, in the order in which they are echoed.
pub(crate) type Location = [Option<String>; 4];
const LOCATION: [&str; 4] = ["city", "country", "region", "timezone"];

pub(crate) fn execution(key: &str, value: Value<'_>) -> Shape<&'static str> {
    one_of(key, value, &["client", "server"])
}

pub(crate) fn one_of(key: &str, value: Value<'_>, words: &[&'static str]) -> Shape<&'static str> {
    let word = text(key, value)?;
    match words.iter().find(|known| **known == word) {
        Some(known) => Ok(known),
        None => unknown(key, &word, words),
    }
}

pub(crate) fn tool(value: Value<'_>) -> Shape<ResponsesTool> {
    let (kind, mut members) = tagged("tool", value)?;
    Ok(match &*kind {
        "function" => ResponsesTool::Function(function(&mut members)?),
        "namespace" => ResponsesTool::Namespace {
            name: members.required_string("name")?,
            description: members.optional("description", string)?,
            tools: members.required("tools", |key, value| list_of(key, value, namespace_tool))?,
        },
        "custom" => ResponsesTool::Custom {
            name: members.required_string("name")?,
        },
        "tool_search" => ResponsesTool::ToolSearch {
            execution: members.optional("execution", execution)?,
            description: members.optional("description", string)?,
            parameters: members.optional("parameters", any)?,
        },
        "web_search" | "web_search_2025_08_26" => ResponsesTool::WebSearch {
            kind: kind.into_owned(),
            context_size: members.optional("search_context_size", |key, value| {
                one_of(key, value, &["low", "medium", "high"])
            })?,
            location: members.optional("user_location", |key, value| {
                let mut members = Members::new(object(key, value)?);
                let mut location = Location::default();
                for (slot, key) in location.iter_mut().zip(LOCATION) {
                    *slot = members.optional(key, string)?;
                }
                Ok(location)
            })?,
        },
        other => ResponsesTool::Other {
            kind: other.to_owned(),
        },
    })
}

fn function(members: &mut Members<'_>) -> Shape<DeclaredTool> {
    Ok(DeclaredTool {
        name: members.required_string("name")?,
        description: members.optional("description", string)?,
        parameters: members.optional("parameters", any)?,
        strict: members.optional("strict", boolean)?,
        // The original does not look at the member, so that a wrong type is no error.
        defer_loading: members.take("defer_loading") == Some(Value::Bool(true)),
        needs_parameters: false,
    })
}

fn namespace_tool(value: Value<'_>) -> Shape<NamespaceTool> {
    let (kind, mut members) = tagged("tool", value)?;
    match &*kind {
        "function" => Ok(NamespaceTool::Function(function(&mut members)?)),
        "custom" => Ok(NamespaceTool::Custom {
            name: members.required_string("name")?,
        }),
        other => unknown("type", other, &["function", "custom"]),
    }
}

/// Appends the tools as the response repeats them: members that were missing are null, unknown types are left out.
pub(crate) fn write_echo(out: &mut String, tools: &[ResponsesTool]) {
    out.push('[');
    let mut is_first = true;
    for tool in tools {
        if matches!(tool, ResponsesTool::Other { .. }) {
            continue;
        }
        if !is_first {
            out.push(',');
        }
        is_first = false;
        write_tool(out, tool);
    }
    out.push(']');
}

fn write_tool(out: &mut String, tool: &ResponsesTool) {
    match tool {
        ResponsesTool::Function(function) => write_function(out, function),
        ResponsesTool::Namespace {
            name,
            description,
            tools,
        } => {
            out.push_str("{\"type\":\"namespace\",\"name\":");
            write_string(out, name);
            out.push_str(",\"description\":");
            write_optional(out, description.as_deref());
            out.push_str(",\"tools\":[");
            for (index, tool) in tools.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                match tool {
                    NamespaceTool::Function(function) => write_function(out, function),
                    NamespaceTool::Custom { name } => write_custom(out, name),
                }
            }
            out.push_str("]}");
        }
        ResponsesTool::Custom { name } => write_custom(out, name),
        ResponsesTool::ToolSearch {
            execution,
            description,
            parameters,
        } => {
            out.push_str("{\"type\":\"tool_search\",\"execution\":");
            write_optional(out, *execution);
            out.push_str(",\"description\":");
            write_optional(out, description.as_deref());
            out.push_str(",\"parameters\":");
            write_value(out, parameters.as_deref());
            out.push('}');
        }
        ResponsesTool::WebSearch {
            kind,
            context_size,
            location,
        } => {
            out.push_str("{\"type\":");
            write_string(out, kind);
            out.push_str(",\"search_context_size\":");
            write_optional(out, *context_size);
            out.push_str(",\"user_location\":");
            match location {
                None => out.push_str("null"),
                Some(location) => {
                    for (index, (key, value)) in LOCATION.iter().zip(location).enumerate() {
                        out.push(if index == 0 { '{' } else { ',' });
                        write_string(out, key);
                        out.push(':');
                        write_optional(out, value.as_deref());
                    }
                    out.push('}');
                }
            }
            out.push('}');
        }
        ResponsesTool::Other { .. } => {}
    }
}

fn write_function(out: &mut String, function: &DeclaredTool) {
    out.push_str("{\"type\":\"function\",\"name\":");
    write_string(out, &function.name);
    out.push_str(",\"description\":");
    write_optional(out, function.description.as_deref());
    out.push_str(",\"parameters\":");
    write_value(out, function.parameters.as_deref());
    out.push_str(match function.strict {
        Some(true) => ",\"strict\":true}",
        Some(false) => ",\"strict\":false}",
        None => ",\"strict\":null}",
    });
}

fn write_custom(out: &mut String, name: &str) {
    out.push_str("{\"type\":\"custom\",\"name\":");
    write_string(out, name);
    out.push('}');
}

fn write_value(out: &mut String, value: Option<&Value<'_>>) {
    match value {
        Some(value) => write_compact(out, value),
        None => out.push_str("null"),
    }
}

pub(crate) fn write_optional(out: &mut String, text: Option<&str>) {
    match text {
        Some(text) => write_string(out, text),
        None => out.push_str("null"),
    }
}
