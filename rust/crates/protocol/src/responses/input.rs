//! From input items to messages.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use recipe_json::write_string;
use recipe_model::{
    AssistantMessage, Content, Message, SystemMessage, ToolCall, ToolDefinition, ToolMessage,
    UserMessage,
};

use super::convert::{define_tools, namespaced, DefinedTools};
use super::items::{Item, ItemContent, ItemPart, Role};
use super::tools::{write_echo, ResponsesTool};
use crate::common::{self, DeclaredTool, Rule, UNSUPPORTED_IMAGE};
use crate::error::{refuse, RequestError};
use crate::images::{image_url_source, plain_text_document, NO_FILE_ID};
use crate::options::{ConversionOptions, ModelVersion};
use crate::request::Warning;

/// Messages, and the tools that tool-search results brought in.
pub(crate) struct TurnsResult {
    pub messages: Vec<Message>,
    pub loaded: DefinedTools,
    pub warnings: Vec<Warning>,
}

/// An assistant turn that is being collected.
#[derive(Default)]
struct Turn {
    is_open: bool,
    text: String,
    reasoning: Option<String>,
    calls: Vec<ToolCall>,
}

/// Calls that wait for their outputs.
#[derive(Default)]
struct Pending {
    /// Call ids in byte order.
    ids: Vec<String>,
    outputs: Vec<Option<Content>>,
    /// How many outputs are missing.
    open: usize,
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
    /// What the tool search with its output at this index has found.
    found: HashMap<usize, Vec<ToolDefinition>>,
    warnings: Vec<Warning>,
    version: ModelVersion,
    image_token: &'a str,
    options: &'a ConversionOptions,
}

impl<'a> Turns<'a> {
    pub fn new(
        messages: Vec<Message>,
        version: ModelVersion,
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
            found: HashMap::new(),
            warnings: Vec::new(),
            version,
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
            Item::Message {
                role: Role::Assistant,
                content,
            } => self.assistant_text(index, content)?,
            Item::Message { role, content } => {
                self.close_turn()?;
                self.close_calls()?;
                let content = self.content(index, "content", content)?;
                let is_system = role == Role::System
                    || role == Role::Developer && common::is_flash(self.version);
                self.messages.push(match is_system {
                    true => Message::System(SystemMessage {
                        content,
                        tools: Vec::new(),
                    }),
                    false => Message::User(UserMessage { content }),
                });
            }
            Item::Reasoning { text, sealed } => self.reasoning(text, sealed)?,
            Item::FunctionCall {
                call_id,
                namespace,
                name,
                arguments,
            } => {
                let name = match namespace {
                    Some(namespace) => namespaced(&namespace, &name, self.version),
                    None => name,
                };
                self.call(ToolCall {
                    id: call_id,
                    name,
                    arguments,
                })?;
            }
            Item::CustomCall {
                call_id,
                name,
                input,
            } => {
                let mut arguments = String::from("{\"input\":");
                write_string(&mut arguments, &input);
                arguments.push('}');
                self.call(ToolCall {
                    id: call_id,
                    name,
                    arguments,
                })?;
            }
            Item::ToolSearchCall { .. } | Item::ToolSearchOutput { .. }
                if !common::is_flash(self.version) =>
            {
                self.warnings.push(Warning {
                    path: format!("input[{index}]"),
                    message: "this model does not search for tools, the item was left out"
                        .to_owned(),
                });
            }
            Item::ToolSearchCall { call_id, arguments } => {
                let name = "tool_search".to_owned();
                let arguments = arguments.to_compact();
                self.call(ToolCall {
                    id: call_id,
                    name,
                    arguments,
                })?;
            }
            Item::Output { call_id, output } => {
                self.close_turn()?;
                let slot = self.output_slot(&call_id)?;
                let content = self.content(index, "output", output)?;
                self.settle(slot, content);
            }
            Item::ToolSearchOutput { call_id, tools } => {
                self.search_output(index, &call_id, tools)?
            }
        }
        Ok(())
    }

    pub fn finish(mut self) -> Result<TurnsResult, RequestError> {
        self.close_turn()?;
        self.close_calls()?;
        Ok(TurnsResult {
            messages: self.messages,
            loaded: self.loaded,
            warnings: self.warnings,
        })
    }

    fn assistant_text(&mut self, index: usize, content: ItemContent) -> Rule<()> {
        let has_image = matches!(&content, ItemContent::Parts(parts)
            if parts.iter().any(|part| matches!(part, ItemPart::Image { .. })));
        if has_image && common::is_flash(self.version) {
            if let ItemContent::Parts(parts) = &content {
                check_images(parts, &format!("input[{index}].content"))?;
            }
            return refuse(format!(
                "input[{index}]: Image in assistant message is unsupported"
            ));
        }
        let content = self.content(index, "content", content)?;
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

    fn call(&mut self, call: ToolCall) -> Rule<()> {
        self.close_calls()?;
        if !self.called.insert(call.id.clone()) {
            return refuse(format!("Duplicate 'call_id': {}.", call.id));
        }
        self.turn.is_open = true;
        self.turn.calls.push(call);
        Ok(())
    }

    /// Ends the assistant turn, if one is being collected.
    fn close_turn(&mut self) -> Rule<()> {
        if !self.turn.is_open {
            return Ok(());
        }
        let Turn {
            text,
            reasoning,
            mut calls,
            ..
        } = std::mem::take(&mut self.turn);
        // The original collects calls in a map, so that they come in the order of their ids.
        calls.sort_by(|left, right| left.id.cmp(&right.id));
        self.pending = Pending {
            ids: calls.iter().map(|call| call.id.clone()).collect(),
            outputs: calls.iter().map(|_| None).collect(),
            open: calls.len(),
            loaded: Vec::new(),
        };
        self.messages.push(Message::Assistant(AssistantMessage {
            content: text,
            reasoning_content: reasoning,
            tool_calls: (!calls.is_empty()).then_some(calls),
            prefix: false,
        }));
        Ok(())
    }

    /// Refuses when a call has no output yet.
    fn close_calls(&mut self) -> Rule<()> {
        let open = self
            .pending
            .ids
            .iter()
            .zip(&self.pending.outputs)
            .find(|(_, output)| output.is_none());
        match open {
            Some((id, _)) => refuse(format!("No tool output found for tool call {id}.")),
            None => Ok(()),
        }
    }

    fn output_slot(&mut self, call_id: &str) -> Rule<usize> {
        if self.answered.contains(call_id) {
            return refuse(format!("Duplicate tool output for call_id: {call_id}."));
        }
        let ids = &self.pending.ids;
        match ids.binary_search_by(|id| id.as_str().cmp(call_id)) {
            Ok(slot) => {
                self.answered.insert(call_id.to_owned());
                Ok(slot)
            }
            Err(_) => refuse(format!(
                "No tool call found for tool output with call_id {call_id}."
            )),
        }
    }

    /// Takes an output; once every call has its own, writes them in the order of the calls.
    fn settle(&mut self, slot: usize, content: Content) {
        self.pending.outputs[slot] = Some(content);
        self.pending.open -= 1;
        if self.pending.open > 0 {
            return;
        }
        let Pending {
            ids,
            outputs,
            loaded,
            ..
        } = std::mem::take(&mut self.pending);
        for (id, content) in ids.into_iter().zip(outputs.into_iter().flatten()) {
            self.messages.push(Message::Tool(ToolMessage {
                content,
                tool_call_id: Some(id),
            }));
        }
        for tools in loaded {
            self.messages.push(Message::System(SystemMessage {
                content: Content::default(),
                tools,
            }));
        }
    }

    fn search_output(
        &mut self,
        index: usize,
        call_id: &str,
        tools: Vec<ResponsesTool>,
    ) -> Rule<()> {
        self.close_turn()?;
        let slot = self.output_slot(call_id)?;
        if self.options.is_official()
            && tools
                .iter()
                .any(|tool| matches!(tool, ResponsesTool::Other { .. }))
        {
            return refuse(format!(
                "input[{index}]: the enum variant ResponsesTool::Unsupported cannot be serialized"
            ));
        }
        let is_empty = |tool: &ResponsesTool| matches!(tool, ResponsesTool::Namespace { tools, .. } if tools.is_empty());
        let shown: Vec<ResponsesTool> = tools.into_iter().filter(|tool| !is_empty(tool)).collect();
        let mut text = String::new();
        write_echo(&mut text, &shown);
        if let Some(tools) = self.found.remove(&index).filter(|tools| !tools.is_empty()) {
            self.pending.loaded.push(tools);
        }
        self.settle(slot, Content::text(text));
        Ok(())
    }

    /// Defines what tool searches have found, ahead of everything else about the items.
    pub fn load_tools(&mut self, items: &[Item]) -> Rule<()> {
        if !common::is_flash(self.version) {
            return Ok(());
        }
        for (index, item) in items.iter().enumerate() {
            let Item::ToolSearchOutput { tools, .. } = item else {
                continue;
            };
            let path = format!("input[{index}].tools");
            let mut defined = define_tools(tools.clone(), &path, self.version, self.options)?;
            for tool in &mut defined.tools {
                tool.defer_loading = true;
            }
            self.found.insert(
                index,
                defined.tools.iter().map(DeclaredTool::unchecked).collect(),
            );
            self.loaded.tools.append(&mut defined.tools);
            self.loaded.namespaces.append(&mut defined.namespaces);
            self.loaded.custom.extend(defined.custom);
            self.warnings.append(&mut defined.warnings);
        }
        Ok(())
    }

    fn content(&self, index: usize, member: &str, content: ItemContent) -> Rule<Content> {
        let parts = match content {
            ItemContent::Text(text) => return Ok(Content::text(text)),
            ItemContent::Parts(parts) => parts,
        };
        let path: Arc<str> = format!("input[{index}]").into();
        if common::is_flash(self.version) {
            check_images(&parts, &format!("{path}.{member}"))?;
        }
        let mut content = Content::default();
        for (position, part) in parts.into_iter().enumerate() {
            if position > 0 {
                content.text.push_str("\n\n");
            }
            match part {
                ItemPart::Text(text) => content.text.push_str(&text),
                ItemPart::File { data } => {
                    let text = data
                        .as_deref()
                        .filter(|_| !self.options.is_official())
                        .and_then(plain_text_document);
                    content
                        .text
                        .push_str(text.as_deref().unwrap_or("[Unsupported Document]"));
                }
                ItemPart::Image { .. } if !common::is_flash(self.version) => {
                    content.text.push_str(UNSUPPORTED_IMAGE);
                }
                ItemPart::Image { url, detail, .. } => {
                    let source = image_url_source(url.unwrap_or_default(), detail, &path)?;
                    content.push_image(source, self.image_token);
                }
            }
        }
        Ok(content)
    }
}

/// Each image names exactly one source, which is a URL.
fn check_images(parts: &[ItemPart], path: &str) -> Rule<()> {
    for (position, part) in parts.iter().enumerate() {
        let ItemPart::Image { url, file_id, .. } = part else {
            continue;
        };
        let problem = match (url, file_id) {
            (Some(_), None) => continue,
            (Some(_), Some(_)) => "input_image cannot have both image_url and file_id",
            (None, Some(_)) => NO_FILE_ID,
            (None, None) => "input_image must have image_url or file_id",
        };
        return refuse(format!("{path}[{position}]: {problem}"));
    }
    Ok(())
}
