//! Search for markers in text that did not come from the renderer.
//!
//! The markup has no escape syntax, so that a marker quoted in a message is not told apart from a real one in the
//! prompt text. Token ids keep them apart; callers who hand over text can ask for a refusal instead.

use recipe_model::{
    Conversation, Message, ResponseFormat, SpecialToken, SpecialTokens, ToolDefinition,
};

use crate::error::RenderError;

/// Tags of tool results, which are plain text but structural.
const RESULT_TAGS: [&str; 2] = ["<tool_result>", "</tool_result>"];

pub(crate) fn check(
    conversation: &Conversation,
    tokens: &SpecialTokens,
) -> Result<(), RenderError> {
    let markers: Vec<&str> = SpecialToken::ALL
        .iter()
        .map(|&token| tokens.get(token))
        .filter(|spelling| !spelling.is_empty())
        .chain(RESULT_TAGS)
        .collect();
    let find = |text: &str| {
        markers
            .iter()
            .find(|marker| text.contains(**marker))
            .copied()
    };
    for (index, message) in conversation.messages.iter().enumerate() {
        for (field, text) in texts(message) {
            if let Some(marker) = find(&text) {
                return Err(RenderError::MarkerInMessage {
                    index,
                    field,
                    marker: marker.to_owned(),
                });
            }
        }
        if let Message::System(system) = message {
            for tool in &system.tools {
                if let Some(marker) = tool_texts(tool).iter().find_map(|text| find(text)) {
                    let marker = marker.to_owned();
                    return Err(RenderError::MarkerInMessage {
                        index,
                        field: "tools",
                        marker,
                    });
                }
            }
        }
    }
    for tool in conversation.tools.iter() {
        if let Some(marker) = tool_texts(tool).iter().find_map(|text| find(text)) {
            let place = format!("tool `{}`", tool.name);
            return Err(RenderError::MarkerInDefinition {
                place,
                marker: marker.to_owned(),
            });
        }
    }
    if let ResponseFormat::JsonSchema(schema) = &conversation.response_format {
        if let Some(marker) = find(&schema.to_compact()) {
            let place = "`response_schema`".to_owned();
            return Err(RenderError::MarkerInDefinition {
                place,
                marker: marker.to_owned(),
            });
        }
    }
    Ok(())
}

/// The texts of a message as they will stand in the prompt; placeholders are cut out.
fn texts(message: &Message) -> Vec<(&'static str, String)> {
    let mut texts = Vec::new();
    match message {
        Message::System(_) | Message::User(_) | Message::Tool(_) => {
            texts.push(("content", without_placeholders(message)));
        }
        Message::LatestReminder(reminder) => texts.push(("content", reminder.content.clone())),
        Message::Assistant(assistant) => {
            texts.push(("content", assistant.content.clone()));
            if let Some(reasoning) = &assistant.reasoning_content {
                texts.push(("reasoning_content", reasoning.clone()));
            }
            for call in assistant.tool_calls.iter().flatten() {
                texts.push(("tool_calls", call.name.clone()));
                // Escapes such as "<" spell a marker only once the arguments are parsed.
                let shown = recipe_json::parse(&call.arguments)
                    .map(|value| unescaped(&value))
                    .unwrap_or_default();
                texts.push(("tool_calls", call.arguments.clone()));
                texts.extend(shown.into_iter().map(|text| ("tool_calls", text)));
            }
        }
    }
    texts
}

fn unescaped(value: &recipe_json::Value<'_>) -> Vec<String> {
    use recipe_json::Value;
    match value {
        Value::String(text) => vec![text.to_string()],
        Value::Array(items) => items.iter().flat_map(unescaped).collect(),
        Value::Object(object) => object
            .iter()
            .flat_map(|(key, item)| std::iter::once(key.to_owned()).chain(unescaped(item)))
            .collect(),
        _ => Vec::new(),
    }
}

fn without_placeholders(message: &Message) -> String {
    let content = match message {
        Message::System(message) => &message.content,
        Message::User(message) => &message.content,
        Message::Tool(message) => &message.content,
        Message::Assistant(_) | Message::LatestReminder(_) => return message.text().to_owned(),
    };
    let mut text = String::with_capacity(content.text.len());
    let mut position = 0;
    for placeholder in &content.placeholders {
        text.push_str(&content.text[position..placeholder.start]);
        text.push('\n');
        position = placeholder.end;
    }
    text.push_str(&content.text[position..]);
    text
}

fn tool_texts(tool: &ToolDefinition) -> [String; 3] {
    [
        tool.name.clone(),
        tool.description.clone().unwrap_or_default(),
        tool.parameters
            .as_ref()
            .map(|parameters| parameters.to_compact())
            .unwrap_or_default(),
    ]
}
