//! From input items to messages.

use std::collections::HashSet;
use std::sync::Arc;

use recipe_json::write_string;
use recipe_model::{
    AssistantMessage, Content, Message, SystemMessage, ToolCall, ToolDefinition, ToolMessage, UserMessage,
};

use super::convert::{define_tools, DefinedTools};
use super::items::{Item, ItemContent, ItemPart, Role};
use super::tools::{write_echo, ResponsesTool};
use crate::common::{self, Rule};
use crate::error::{refuse, RequestError};
use crate::images::{image_url_source, plain_text_document, NO_FILE_ID};
use crate::options::{ConversionOptions, ReasoningContentBehavior};
use crate::request::Warning;

/// Messages, and the tools that tool-search results brought in.
pub(crate) struct TurnsResult {
    pub messages: Vec<Message>,
    pub loaded: DefinedTools,
    pub warnings: Vec<Warning>,
}

/// Kinds of calls, in the order in which one turn lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CallKind {
    Function,
    Custom,
    ToolSearch,
}

/// An assistant turn that is being collected.
#[derive(Default)]
struct Turn {
    is_open: bool,
    text: String,
    reasoning: Option<String>,
    calls: Vec<(CallKind, ToolCall)>,
}

/// Calls that wait for their outputs.
#[derive(Default)]
struct Pending {
    ids: Vec<String>,
    outputs: Vec<Option<Content>>,
    loaded: Vec<Vec<ToolDefinition>>,
}

/// Builds messages item by item.
pub(crate) struct Turns<'a> {
    pub messages: Vec<Message>,
    turn: Turn,
    pending: Pending,
    /// Every call id so far, and whether its output has been seen.
    answered: HashSet<String>,
    called: HashSet<String>,
    loaded: DefinedTools,
    warnings: Vec<Warning>,
    missing_reasoning: bool,
    thinking: bool,
    image_token: &'a str,
    options: &'a ConversionOptions,
}

impl<'a> Turns<'a> {
    pub fn new(
        messages: Vec<Message>,
        thinking: bool,
        image_token: &'a str,
        options: &'a ConversionOptions,
    ) -> Self {
        Turns {
            messages,
            turn: Turn::default(),
            pending: Pending::default(),
            answered: HashSet::new(),
            called: HashSet::new(),
            loaded: DefinedTools::default(),
            warnings: Vec::new(),
            missing_reasoning: false,
            thinking,
            image_token,
            options,
        }
    }

    pub fn item(&mut self, index: usize, item: Item) -> Result<(), RequestError> {
        match item {
            Item::Other(kind) => {
                self.warnings.push(Warning {
                    path: format!("input[{index}]"),
                    message: format!("items of type `{kind}` are not supported and were left out"),
                });
            }
            Item::Message { role: Role::Assistant, content } => self.assistant_text(index, content)?,
            Item::Message { role, content } => {
                self.close_turn()?;
                self.close_calls()?;
                let content = self.content(index, "content", content)?;
                self.messages.push(match role {
                    Role::System => Message::System(SystemMessage { content, tools: Vec::new() }),
                    _ => {
                        self.missing_reasoning = false;
                        Message::User(UserMessage { content })
                    }
                });
            }
            Item::Reasoning { text, sealed } => self.reasoning(text, sealed)?,
            Item::FunctionCall { call_id, name, arguments } => {
                self.call(CallKind::Function, ToolCall { id: call_id, name, arguments })?;
            }
            Item::CustomCall { call_id, name, input } => {
                let mut arguments = String::from("{\"input\":");
                write_string(&mut arguments, &input);
                arguments.push('}');
                self.call(CallKind::Custom, ToolCall { id: call_id, name, arguments })?;
            }
            Item::ToolSearchCall { call_id, arguments } => {
                let name = "tool_search".to_owned();
                let arguments = arguments.to_compact();
                self.call(CallKind::ToolSearch, ToolCall { id: call_id, name, arguments })?;
            }
            Item::Output { call_id, output } => {
                self.close_turn()?;
                let slot = self.output_slot(&call_id)?;
                let content = self.content(index, "output", output)?;
                self.pending.outputs[slot] = Some(content);
                self.settle();
            }
            Item::ToolSearchOutput { call_id, tools } => self.search_output(index, &call_id, tools)?,
        }
        Ok(())
    }

    pub fn finish(mut self) -> Result<TurnsResult, RequestError> {
        self.close_turn()?;
        self.close_calls()?;
        if self.missing_reasoning {
            return refuse("The `reasoning_text` in the thinking mode must be passed back to the API.");
        }
        Ok(TurnsResult { messages: self.messages, loaded: self.loaded, warnings: self.warnings })
    }

    fn assistant_text(&mut self, index: usize, content: ItemContent) -> Rule<()> {
        let content = self.content(index, "content", content)?;
        if !content.images.is_empty() {
            return refuse(format!("input[{index}]: Image in assistant message is unsupported"));
        }
        if !self.turn.calls.is_empty() {
            self.close_turn()?;
        }
        self.close_calls()?;
        self.turn.is_open = true;
        if !content.text.is_empty() {
            if !self.turn.text.is_empty() {
                self.turn.text.push_str("\n\n");
            }
            self.turn.text.push_str(&content.text);
        }
        Ok(())
    }

    fn reasoning(&mut self, text: String, sealed: Option<String>) -> Rule<()> {
        let restored = match (&self.options.reasoning_key, sealed) {
            (Some(key), Some(sealed)) if text.is_empty() && !self.options.is_official() => {
                key.open(&sealed).unwrap_or_default()
            }
            _ => text,
        };
        if !self.turn.calls.is_empty() || !restored.is_empty() && !self.turn.text.is_empty() {
            self.close_turn()?;
        }
        self.close_calls()?;
        if restored.is_empty() {
            return Ok(());
        }
        self.turn.is_open = true;
        match &mut self.turn.reasoning {
            Some(reasoning) => {
                reasoning.push('\n');
                reasoning.push_str(&restored);
            }
            None => self.turn.reasoning = Some(restored),
        }
        Ok(())
    }

    fn call(&mut self, kind: CallKind, call: ToolCall) -> Rule<()> {
        self.close_calls()?;
        if !self.called.insert(call.id.clone()) {
            return refuse(format!("Duplicate 'call_id': {}.", call.id));
        }
        self.turn.is_open = true;
        self.turn.calls.push((kind, call));
        Ok(())
    }

    /// Ends the assistant turn, if one is being collected.
    fn close_turn(&mut self) -> Rule<()> {
        if !self.turn.is_open {
            return Ok(());
        }
        let Turn { text, reasoning, mut calls, .. } = std::mem::take(&mut self.turn);
        calls.sort_by_key(|(kind, _)| *kind);
        let calls: Vec<ToolCall> = calls.into_iter().map(|(_, call)| call).collect();
        self.note_reasoning(&calls, reasoning.as_deref());
        self.pending = Pending {
            ids: calls.iter().map(|call| call.id.clone()).collect(),
            outputs: calls.iter().map(|_| None).collect(),
            loaded: Vec::new(),
        };
        self.messages.push(Message::Assistant(AssistantMessage {
            content: text,
            reasoning_content: common::earlier_reasoning(reasoning, self.thinking),
            tool_calls: (!calls.is_empty()).then_some(calls),
            prefix: false,
        }));
        Ok(())
    }

    /// Refuses when a call has no output yet.
    fn close_calls(&mut self) -> Rule<()> {
        let open = self.pending.ids.iter().zip(&self.pending.outputs).find(|(_, output)| output.is_none());
        match open {
            Some((id, _)) => refuse(format!("No tool output found for tool call {id}.")),
            None => Ok(()),
        }
    }

    fn output_slot(&mut self, call_id: &str) -> Rule<usize> {
        if self.answered.contains(call_id) {
            return refuse(format!("Duplicate tool output for call_id: {call_id}."));
        }
        match self.pending.ids.iter().position(|id| id == call_id) {
            Some(slot) => {
                self.answered.insert(call_id.to_owned());
                Ok(slot)
            }
            None => refuse(format!("No tool call found for tool output with call_id {call_id}.")),
        }
    }

    /// Once every call has its output, writes them in the order of the calls.
    fn settle(&mut self) {
        if self.pending.outputs.iter().any(Option::is_none) {
            return;
        }
        let Pending { ids, outputs, loaded } = std::mem::take(&mut self.pending);
        for (id, content) in ids.into_iter().zip(outputs.into_iter().flatten()) {
            self.messages.push(Message::Tool(ToolMessage { content, tool_call_id: Some(id) }));
        }
        for tools in loaded {
            self.messages.push(Message::System(SystemMessage { content: Content::default(), tools }));
        }
    }

    fn search_output(&mut self, index: usize, call_id: &str, tools: Vec<ResponsesTool>) -> Rule<()> {
        self.close_turn()?;
        let slot = self.output_slot(call_id)?;
        if self.options.is_official() && tools.iter().any(|tool| matches!(tool, ResponsesTool::Other { .. })) {
            return refuse(format!(
                "input[{index}]: the enum variant ResponsesTool::Unsupported cannot be serialized"
            ));
        }
        let mut text = String::new();
        write_echo(&mut text, &tools);
        let mut defined = define_tools(tools, &format!("input[{index}].tools"), self.options)?;
        for tool in &mut defined.tools {
            tool.defer_loading = true;
        }
        if !defined.tools.is_empty() {
            self.pending.loaded.push(defined.tools.clone());
        }
        self.loaded.tools.append(&mut defined.tools);
        self.loaded.namespaces.append(&mut defined.namespaces);
        self.loaded.custom.extend(defined.custom);
        self.warnings.append(&mut defined.warnings);
        self.pending.outputs[slot] = Some(Content::text(text));
        self.settle();
        Ok(())
    }

    fn note_reasoning(&mut self, calls: &[ToolCall], reasoning: Option<&str>) {
        let official = self.options.is_official();
        self.missing_reasoning |= self.thinking
            && self.options.reasoning_content_behavior == ReasoningContentBehavior::Reject
            && reasoning.is_none()
            && !calls.is_empty()
            && !calls.iter().any(|call| common::marks_empty_reasoning(&call.id, official));
    }

    fn content(&self, index: usize, member: &str, content: ItemContent) -> Rule<Content> {
        let parts = match content {
            ItemContent::Text(text) => return Ok(Content::text(text)),
            ItemContent::Parts(parts) => parts,
        };
        let path: Arc<str> = format!("input[{index}]").into();
        let mut content = Content::default();
        for (position, part) in parts.into_iter().enumerate() {
            if position > 0 {
                content.text.push_str("\n\n");
            }
            let part_path = || format!("{path}.{member}[{position}]");
            match part {
                ItemPart::Text(text) => content.text.push_str(&text),
                ItemPart::File { data } => {
                    let text = data.as_deref().filter(|_| !self.options.is_official()).and_then(plain_text_document);
                    content.text.push_str(text.as_deref().unwrap_or("[Unsupported Document]"));
                }
                ItemPart::Image { url: Some(_), file_id: Some(_), .. } => {
                    return refuse(format!(
                        "{}: input_image cannot have both image_url and file_id",
                        part_path()
                    ));
                }
                ItemPart::Image { url: Some(url), file_id: None, detail } => {
                    content.push_image(image_url_source(url, detail, &path)?, self.image_token);
                }
                ItemPart::Image { url: None, file_id: Some(_), .. } => {
                    return refuse(format!("{}: {NO_FILE_ID}", part_path()));
                }
                ItemPart::Image { url: None, file_id: None, .. } => {
                    return refuse(format!(
                        "{}: input_image must have image_url or file_id",
                        part_path()
                    ));
                }
            }
        }
        Ok(content)
    }
}
