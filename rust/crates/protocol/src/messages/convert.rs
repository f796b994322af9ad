//! From a Messages request to a conversation.

use std::collections::HashSet;
use std::sync::Arc;

use recipe_json::FloatStyle;
use recipe_model::{
    AssistantMessage, Content, Conversation, ImageData, ImageDetail, ImageSource, Message,
    SpecialToken, SystemMessage, ToolCall, ToolDefinition, ToolMessage, UserMessage,
};

use super::blocks::{Block, BlockContent, Document, ImageBlock, ResultBlock};
use super::catalog::Catalog;
use super::pending::PendingCalls;
use super::request::{InputMessage, MessagesRequest, MessagesTool, Role};
use crate::common::{self, check_count, DeclaredTool, Rule, Sampling, UNSUPPORTED_IMAGE};
use crate::error::{refuse, RequestError};
use crate::images::{is_strict_base64, is_web_url, NO_FILE_ID};
use crate::options::{ConversionOptions, ModelVersion, WebSearchBehavior};
use crate::request::{ConversationRequest, Generation};
use crate::responses::limit_message_tools;

impl MessagesRequest {
    /// Converts the request.
    ///
    /// # Errors
    /// A shape that only the default mode knows, under `official`; otherwise any broken rule.
    pub fn convert(
        mut self,
        options: &ConversionOptions,
    ) -> Result<ConversationRequest, RequestError> {
        self.deferred.check(options)?;
        let official = options.is_official();
        let version = common::model_version(&self.model, options)?;
        check_count(
            "too many messages",
            self.messages.len(),
            options.limits.max_messages,
            options,
        )?;
        check_count(
            "too many tools",
            self.tools.len(),
            options.limits.max_tools,
            options,
        )?;
        let effort = common::thinking(self.thinking, self.effort, options);
        let thinking = effort.is_some();
        let declared = self.tools(version, options)?;
        if self.messages.is_empty() {
            return refuse("messages: at least one message is required");
        }
        let mut messages = self.messages(&declared, version, options)?;
        let declares_tools = !declared.is_empty();
        common::complete_reasoning(
            &mut messages,
            thinking,
            declares_tools,
            "content[].thinking",
            options,
        )?;
        let format = if official {
            Default::default()
        } else {
            std::mem::take(&mut self.format)
        };
        let format = format.check(options)?;
        let parallel = self
            .tool_choice
            .disable_parallel
            .map(|disable| !disable)
            .filter(|_| !official);
        let choice = std::mem::take(&mut self.tool_choice.choice).requested(official);
        let (tools, tool_choice) = common::choose_tools(declared, choice, thinking, options)?;
        common::check_strict_mix(&tools)?;
        limit_message_tools(&mut messages, &tools);
        let conversation = Conversation {
            messages,
            thinking_mode: thinking,
            tools: tools.into(),
            tool_choice,
            reasoning_effort: effort,
            reasoning_effort_value: self.effort_value.filter(|_| thinking && !official),
            response_format: format.format,
        };
        let constraint = common::output_constraint(format.constraint, &conversation, parallel)?;
        common::check_stop(&self.stop_sequences, false)?;
        common::check_temperature(self.temperature)?;
        common::check_top_p(self.top_p)?;
        let max_tokens = common::check_max_tokens(self.max_tokens, thinking, true, options)?;
        let sampling = Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            max_tokens,
            ..Sampling::default()
        };
        let mut inference = common::inference_options(&sampling, &conversation, version);
        inference.parallel_tool_calls = parallel;
        inference.output_constraint = constraint;
        Ok(ConversationRequest {
            parsing_options: common::parsing_options(&conversation, self.stop_sequences, options),
            conversation: Arc::new(conversation),
            inference_options: inference,
            model_version: version,
            stream: self.stream,
            warnings: Vec::new(),
            generation: Generation {
                compat: options.compat,
                extras: options.extras.clone(),
                ..Generation::default()
            },
        })
    }

    fn tools(
        &mut self,
        version: ModelVersion,
        options: &ConversionOptions,
    ) -> Result<Vec<DeclaredTool>, RequestError> {
        let declared = std::mem::take(&mut self.tools);
        let mut tools = Vec::with_capacity(declared.len());
        for (index, tool) in declared.into_iter().enumerate() {
            let mut tool = match tool {
                MessagesTool::Client(tool) => tool,
                MessagesTool::Custom(tool) if !options.is_official() => tool?,
                MessagesTool::WebSearch
                    if options.messages_web_search == WebSearchBehavior::Drop =>
                {
                    continue
                }
                _ => return refuse(format!("tools[{index}]: server tools are not supported")),
            };
            common::check_tool_name(&tool.name, &format!("tools[{index}].name"))?;
            tool.defer_loading &= common::is_flash(version);
            tools.push(tool);
        }
        if !tools.is_empty() && tools.iter().all(|tool| tool.defer_loading) {
            return refuse("tools: at least one tool must have defer_loading=false. All tools cannot be deferred.");
        }
        Ok(tools)
    }

    fn messages(
        &mut self,
        tools: &[DeclaredTool],
        version: ModelVersion,
        options: &ConversionOptions,
    ) -> Rule<Vec<Message>> {
        let inputs = std::mem::take(&mut self.messages);
        let mut builder = Builder {
            messages: Vec::with_capacity(inputs.len() + 1),
            pending: PendingCalls::default(),
            catalog: Catalog::of(tools, options),
            options,
            image_token: options.special_tokens.get(SpecialToken::Image),
            is_flash: common::is_flash(version),
        };
        if let Some(system) = self.system.take() {
            builder.messages.push(Message::System(SystemMessage {
                content: Content::text(system),
                tools: Vec::new(),
            }));
        }
        let last = inputs.len() - 1;
        for (index, input) in inputs.into_iter().enumerate() {
            builder.input(index, input)?;
        }
        builder.finish(last)
    }
}

struct Builder<'a> {
    messages: Vec<Message>,
    /// Calls of the previous assistant message.
    pending: PendingCalls,
    catalog: Catalog<'a>,
    options: &'a ConversionOptions,
    image_token: &'a str,
    /// Otherwise images, late system messages and late tools have to take other forms.
    is_flash: bool,
}

impl Builder<'_> {
    fn input(&mut self, index: usize, input: InputMessage) -> Rule<()> {
        let blocks = match input.content {
            BlockContent::Text(text) => {
                self.pending.check(|| format!("messages.{index}: "))?;
                vec![Block::Text(text)]
            }
            BlockContent::Blocks(blocks) => {
                if blocks.is_empty() && input.role != Role::System {
                    return refuse(format!(
                        "messages.{index}: all messages must have non-empty content"
                    ));
                }
                blocks
            }
        };
        match input.role {
            Role::User => self.user(index, blocks),
            Role::Assistant => self.assistant(index, blocks),
            Role::System => self.system(index, blocks),
        }
    }

    fn finish(mut self, last: usize) -> Rule<Vec<Message>> {
        self.pending.check(|| format!("messages.{last}:"))?;
        if self.options.extras.continue_messages_prefill {
            if let Some(Message::Assistant(message)) = self.messages.last_mut() {
                message.prefix = message.tool_calls.is_none();
            }
        }
        Ok(self.messages)
    }

    fn user(&mut self, index: usize, blocks: Vec<Block>) -> Rule<()> {
        let mut referenced: Vec<ToolDefinition> = Vec::new();
        let mut answered: HashSet<String> = HashSet::new();
        for (position, block) in blocks.into_iter().enumerate() {
            if let Block::ToolResult {
                id,
                content,
                is_error,
            } = block
            {
                if !answered.insert(id.clone()) {
                    return refuse(format!(
                        "messages.{index}.content.{position}: each tool_use must have a single result. Found multiple \
                         `tool_result` blocks with id: {id}"
                    ));
                }
                if !self.pending.answer(&id) {
                    return refuse(format!(
                        "unexpected `messages.{index}.content.{position}: tool_use_id` found in `tool_result` blocks: \
                         {id}. Each `tool_result` block must have a corresponding `tool_use` block in the previous \
                         message."
                    ));
                }
                let content = self.result(index, position, content, is_error, &mut referenced)?;
                self.messages.push(Message::Tool(ToolMessage {
                    content,
                    tool_call_id: Some(id),
                }));
                continue;
            }
            let content = self.plain(index, position, block, Role::User)?;
            self.pending.check(|| format!("messages.{index}: "))?;
            if let Some(content) = content {
                self.messages.push(Message::User(UserMessage { content }));
            }
        }
        // The blocks ended before every call had its result.
        self.pending.check(|| format!("messages.{}:", index - 1))?;
        if !referenced.is_empty() && self.is_flash {
            self.messages.push(Message::System(SystemMessage {
                content: Content::default(),
                tools: referenced,
            }));
        }
        Ok(())
    }

    fn system(&mut self, index: usize, blocks: Vec<Block>) -> Rule<()> {
        self.pending.check(|| format!("messages.{index}: "))?;
        let mut message = SystemMessage::default();
        let mut is_first = true;
        for (position, block) in blocks.into_iter().enumerate() {
            if let Block::ToolAddition { name } = block {
                let path = format!("messages.{index}.content.{position}");
                match self.catalog.refer(&name)? {
                    Some(tool) => message.tools.push(tool),
                    None => {
                        return refuse(format!(
                            "{path}: `tool_addition` references unknown tool '{name}'"
                        ));
                    }
                }
                continue;
            }
            if let Some(content) = self.plain(index, position, block, Role::System)? {
                if !is_first {
                    message.content.text.push_str("\n\n");
                }
                is_first = false;
                append(&mut message.content, content);
            }
        }
        if self.is_flash {
            self.messages.push(Message::System(message));
        } else if !message.content.text.is_empty() {
            let mut content = Content::text("<system-reminder>\n");
            append(&mut content, message.content);
            content.text.push_str("\n</system-reminder>");
            self.messages.push(Message::User(UserMessage { content }));
        }
        Ok(())
    }

    /// A block of a user or system message that is not a result; `None` if it is dropped.
    fn plain(
        &self,
        index: usize,
        position: usize,
        block: Block,
        role: Role,
    ) -> Rule<Option<Content>> {
        let only_in = |kind: &str, role: &str| {
            refuse(format!(
                "messages.{index}: `{kind}` blocks can only be in `{role}` messages"
            ))
        };
        match block {
            Block::Text(text) => Ok(Some(Content::text(text))),
            Block::Document(document) => Ok(Some(Content::text(self.document(document)))),
            Block::Image(_) if !self.is_flash => Ok(Some(Content::text(UNSUPPORTED_IMAGE))),
            Block::Image(image) => {
                let error_path = format!("messages.{index}.content[{position}]");
                let path = match role {
                    Role::System => format!("messages.{index}"),
                    Role::User | Role::Assistant => error_path.clone(),
                };
                let mut content = Content::default();
                content.push_image(image_source(image, &path, &error_path)?, self.image_token);
                Ok(Some(content))
            }
            Block::Thinking(_) => refuse(format!(
                "messages.{index}.content: thinking blocks may only be in `assistant` messages"
            )),
            Block::ToolUse { .. } | Block::ServerToolUse => only_in("tool_use", "assistant"),
            Block::WebSearchToolResult => only_in("web_search_tool_result", "assistant"),
            Block::ToolAddition { .. } if role != Role::System => {
                only_in("tool_addition", "system")
            }
            Block::ToolResult { .. } if role != Role::User => only_in("tool_result", "user"),
            Block::ToolAddition { .. } | Block::ToolResult { .. } | Block::RedactedThinking => {
                Ok(None)
            }
        }
    }

    fn assistant(&mut self, index: usize, blocks: Vec<Block>) -> Rule<()> {
        self.pending.check(|| format!("messages.{index}: "))?;
        let mut content = String::new();
        let mut reasoning: Option<String> = None;
        let mut calls: Vec<ToolCall> = Vec::new();
        let mut ids: HashSet<String> = HashSet::new();
        for (position, block) in blocks.into_iter().enumerate() {
            match block {
                Block::Thinking(text) => match &mut reasoning {
                    Some(reasoning) => {
                        reasoning.push_str("\n\n");
                        reasoning.push_str(&text);
                    }
                    None => reasoning = Some(text),
                },
                Block::ToolUse { id, name, input } => {
                    if !ids.insert(id.clone()) {
                        return refuse(format!(
                            "messages.{index}.content.{position}: `tool_use` ids must be unique"
                        ));
                    }
                    let mut arguments = String::new();
                    input.write_spaced(&mut arguments, FloatStyle::Compact);
                    calls.push(ToolCall {
                        id,
                        name,
                        arguments,
                    });
                }
                Block::RedactedThinking => {}
                Block::ServerToolUse | Block::WebSearchToolResult => self.check_web_search()?,
                Block::Text(_) | Block::Image(_) | Block::Document(_) if !calls.is_empty() => {
                    PendingCalls::of(calls.iter().map(|call| &call.id))
                        .check(|| format!("messages.{index}.{position}: "))?;
                }
                Block::Text(text) => append_text(&mut content, &text),
                Block::Document(document) => append_text(&mut content, &self.document(document)),
                Block::Image(_) if !self.is_flash => append_text(&mut content, UNSUPPORTED_IMAGE),
                Block::Image(image) => {
                    let path = format!("messages.{index}.content[{position}]");
                    image_source(image, &path, &path)?;
                    return refuse("Image in assistant message is unsupported");
                }
                Block::ToolResult { .. } => {
                    return refuse(format!(
                        "messages.{index}: `tool_result` blocks can only be in `user` messages"
                    ));
                }
                Block::ToolAddition { .. } => {
                    return refuse(format!(
                        "messages.{index}: `tool_addition` blocks can only be in `system` messages"
                    ));
                }
            }
        }
        self.pending = PendingCalls::of(calls.iter().map(|call| &call.id));
        self.messages.push(Message::Assistant(AssistantMessage {
            content,
            reasoning_content: reasoning,
            tool_calls: (!calls.is_empty()).then_some(calls),
            prefix: false,
        }));
        Ok(())
    }

    fn check_web_search(&self) -> Rule<()> {
        match self.options.messages_web_search {
            WebSearchBehavior::Drop => Ok(()),
            WebSearchBehavior::Reject => {
                refuse("Unsupported content block: server tools are not supported")
            }
        }
    }

    fn result(
        &mut self,
        index: usize,
        position: usize,
        blocks: Vec<ResultBlock>,
        is_error: bool,
        referenced: &mut Vec<ToolDefinition>,
    ) -> Rule<Content> {
        let mut content = Content::default();
        if is_error && self.options.extras.mark_tool_errors {
            content.text.push_str("Error: ");
        }
        for (part, block) in blocks.into_iter().enumerate() {
            if part > 0 {
                content.text.push_str("\n\n");
            }
            match block {
                ResultBlock::Text(text) => content.text.push_str(&text),
                ResultBlock::Document(document) => content.text.push_str(&self.document(document)),
                ResultBlock::Image(_) if !self.is_flash => content.text.push_str(UNSUPPORTED_IMAGE),
                ResultBlock::Image(image) => {
                    let path = format!("messages.{index}.content.{position}.tool_result");
                    let error_path = format!("{path}.content[{part}]");
                    content.push_image(image_source(image, &path, &error_path)?, self.image_token);
                }
                ResultBlock::ToolReference { name } => {
                    match self.catalog.refer(&name)? {
                        Some(tool) => referenced.push(tool),
                        None => {
                            return refuse(format!(
                                "messages.{index}.content.{position}: tool reference '{name}' not found in available \
                                 tools"
                            ));
                        }
                    }
                    content.text.push_str(&name);
                }
            }
        }
        Ok(content)
    }

    fn document(&self, document: Document) -> String {
        match document.plain_text {
            Some(text) if !self.options.is_official() => text,
            _ => {
                let kind = document.media_type.as_deref().unwrap_or("unknown");
                format!("[Unsupported document type: {kind}]")
            }
        }
    }
}

fn append(to: &mut Content, content: Content) {
    let start = to.text.len();
    to.text.push_str(&content.text);
    to.placeholders.extend(
        content
            .placeholders
            .iter()
            .map(|range| start + range.start..start + range.end),
    );
    to.images.extend(content.images);
}

/// Texts are joined by an empty line, but nothing separates them from text not yet written.
fn append_text(content: &mut String, text: &str) {
    if !content.is_empty() {
        content.push_str("\n\n");
    }
    content.push_str(text);
}

fn image_source(image: ImageBlock, path: &str, error_path: &str) -> Rule<ImageSource> {
    let data = match image {
        ImageBlock::File => return refuse(format!("{error_path}: {NO_FILE_ID}")),
        ImageBlock::Url(url) if is_web_url(&url) => ImageData::Url(url.into()),
        ImageBlock::Url(url) => return refuse(format!("{error_path}: invalid url: \"{url}\"")),
        ImageBlock::Base64 { data, .. } if !is_strict_base64(&data) => {
            return refuse(format!("{error_path}: base64 decode error"));
        }
        ImageBlock::Base64 { media_type, data } => {
            ImageData::DataUrl(format!("data:{media_type};base64,{data}").into())
        }
    };
    Ok(ImageSource {
        data,
        detail: ImageDetail::High,
        path: path.into(),
    })
}
