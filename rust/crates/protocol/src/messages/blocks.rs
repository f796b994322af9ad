//! Content blocks of Messages requests.

use recipe_json::Value;

use crate::common::Deferred;
use crate::shape::{
    any, at, boolean, list, object, optional, string, tagged, text, unknown, wrong, Members, Shape,
};

/// A block of message content.
#[derive(Debug, Clone)]
pub(crate) enum Block {
    Text(String),
    Image(ImageBlock),
    Document(Document),
    Thinking(String),
    ServerToolUse,
    ToolUse {
        id: String,
        name: String,
        input: Value<'static>,
    },
    ToolResult {
        id: String,
        content: Vec<ResultBlock>,
        is_error: bool,
    },
    WebSearchToolResult,
    ToolAddition {
        name: String,
    },
    /// Reasoning that the service withheld; it carries nothing for the model.
    RedactedThinking,
}

/// A block of a tool result.
#[derive(Debug, Clone)]
pub(crate) enum ResultBlock {
    Text(String),
    Image(ImageBlock),
    Document(Document),
    ToolReference { name: String },
}

#[derive(Debug, Clone)]
pub(crate) enum ImageBlock {
    Base64 { media_type: String, data: String },
    Url(String),
    File,
}

/// A document, of which only the type and plain text are used.
#[derive(Debug, Clone)]
pub(crate) struct Document {
    pub media_type: Option<String>,
    /// Text of a `text` source with type `text/plain`.
    pub plain_text: Option<String>,
}

const MEDIA_TYPES: [&str; 5] = [
    "image/jpeg",
    "image/jpg",
    "image/png",
    "image/gif",
    "image/webp",
];
const BLOCK_TYPES: [&str; 10] = [
    "text",
    "image",
    "document",
    "thinking",
    "redacted_thinking",
    "server_tool_use",
    "tool_use",
    "tool_result",
    "web_search_tool_result",
    "tool_addition",
];

/// Content as a string (one text block is not the same) or as blocks.
#[derive(Debug, Clone)]
pub(crate) enum BlockContent {
    Text(String),
    Blocks(Vec<Block>),
}

pub(crate) fn content(key: &str, value: Value<'_>, deferred: &mut Deferred) -> Shape<BlockContent> {
    match value {
        Value::String(text) => Ok(BlockContent::Text(text.into_owned())),
        Value::Array(items) => {
            let mut blocks = Vec::with_capacity(items.len());
            for (index, item) in items.into_iter().enumerate() {
                blocks.push(block(item, deferred).map_err(|error| at(error, key, index))?);
            }
            Ok(BlockContent::Blocks(blocks))
        }
        value => wrong(key, "a string or a list", &value),
    }
}

fn block(value: Value<'_>, deferred: &mut Deferred) -> Shape<Block> {
    let (kind, mut members) = tagged("block", value)?;
    Ok(match &*kind {
        "text" => Block::Text(members.required_string("text")?),
        "image" => Block::Image(members.required("source", image)?),
        "document" => Block::Document(members.required("source", document)?),
        "thinking" => {
            members.optional("signature", string)?;
            Block::Thinking(members.required_string("thinking")?)
        }
        "redacted_thinking" => {
            deferred.only_default("`type` is `redacted_thinking`");
            Block::RedactedThinking
        }
        "server_tool_use" => {
            members.required_string("id")?;
            members.required_string("name")?;
            members.required("input", any)?;
            Block::ServerToolUse
        }
        "tool_use" => Block::ToolUse {
            id: members.required_string("id")?,
            name: members.required_string("name")?,
            input: members.required("input", |_, value| Ok(value.into_owned()))?,
        },
        "tool_result" => Block::ToolResult {
            id: members.required_string("tool_use_id")?,
            content: members
                .optional("content", result_content)?
                .unwrap_or_default(),
            is_error: members.optional("is_error", boolean)?.unwrap_or(false),
        },
        "web_search_tool_result" => {
            members.required_string("tool_use_id")?;
            members.required("content", any)?;
            Block::WebSearchToolResult
        }
        "tool_addition" => members.required("tool", |key, value| {
            let (kind, mut members) = tagged(key, value)?;
            if &*kind != "tool_reference" {
                return unknown("type", &kind, &["tool_reference"]);
            }
            Ok(Block::ToolAddition {
                name: members.required_string("name")?,
            })
        })?,
        other => return unknown("type", other, &BLOCK_TYPES),
    })
}

fn result_content(key: &str, value: Value<'_>) -> Shape<Vec<ResultBlock>> {
    if let Value::String(text) = value {
        return Ok(vec![ResultBlock::Text(text.into_owned())]);
    }
    if !matches!(value, Value::Array(_)) {
        return wrong(key, "a string or a list", &value);
    }
    list(key, value)?.into_iter().map(result_block).collect()
}

fn result_block(value: Value<'_>) -> Shape<ResultBlock> {
    let (kind, mut members) = tagged("block", value)?;
    Ok(match &*kind {
        "text" => ResultBlock::Text(members.required_string("text")?),
        "image" => ResultBlock::Image(members.required("source", image)?),
        "document" => ResultBlock::Document(members.required("source", document)?),
        "tool_reference" => ResultBlock::ToolReference {
            name: members.required_string("tool_name")?,
        },
        other => {
            return unknown(
                "type",
                other,
                &["text", "image", "document", "tool_reference"],
            )
        }
    })
}

fn image(key: &str, value: Value<'_>) -> Shape<ImageBlock> {
    let (kind, mut members) = tagged(key, value)?;
    Ok(match &*kind {
        "base64" => ImageBlock::Base64 {
            media_type: members.required("media_type", |key, value| {
                let media_type = text(key, value)?;
                if MEDIA_TYPES.contains(&media_type.as_ref()) {
                    Ok(media_type.into_owned())
                } else {
                    unknown(key, &media_type, &MEDIA_TYPES)
                }
            })?,
            data: members.required_string("data")?,
        },
        "url" => ImageBlock::Url(members.required_string("url")?),
        "file" => {
            members.required_string("file_id")?;
            ImageBlock::File
        }
        other => return unknown("type", other, &["base64", "url", "file"]),
    })
}

/// Any value passes: documents are placeholders, whatever they hold.
fn document(_: &str, value: Value<'_>) -> Shape<Document> {
    let member = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let media_type = member("media_type");
    let is_plain =
        member("type").as_deref() == Some("text") && media_type.as_deref() == Some("text/plain");
    let plain_text = if is_plain { member("data") } else { None };
    Ok(Document {
        media_type,
        plain_text,
    })
}

/// `system`: a string or text blocks.
pub(crate) fn system(key: &str, value: Value<'_>) -> Shape<String> {
    match value {
        Value::String(text) => Ok(text.into_owned()),
        Value::Array(items) => {
            let mut texts = Vec::with_capacity(items.len());
            for item in items {
                let (kind, mut members) = tagged("block", item)?;
                if &*kind != "text" {
                    return unknown("type", &kind, &["text"]);
                }
                texts.push(members.required_string("text")?);
            }
            Ok(texts.join("\n\n"))
        }
        value => wrong(key, "a string or a list", &value),
    }
}

/// `metadata`: only its shape is checked.
pub(crate) fn metadata(key: &str, value: Value<'_>) -> Shape<()> {
    match value {
        // A list of one string is accepted by the original's deserialiser, and harmless.
        Value::Array(items) if items.len() == 1 && items[0].as_str().is_some() => Ok(()),
        value => {
            let mut members = Members::new(object(key, value)?);
            match members.take("user_id") {
                Some(value) => optional("user_id", value, string).map(|_| ()),
                None => Ok(()),
            }
        }
    }
}
