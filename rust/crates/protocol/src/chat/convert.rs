//! From a Chat Completions request to a conversation.

use std::sync::Arc;

use recipe_model::{
    AssistantMessage, Content, Conversation, ImageSource, Message, ReminderMessage, ResponseFormat, SpecialToken,
    SystemMessage, ToolMessage, UserMessage,
};

use super::history;
use super::request::{ChatCompletionRequest, ChatContent, ChatFile, ChatMessage, ChatPart};
use crate::common::{self, check_count, Rule, Sampling};
use crate::error::{refuse, RequestError};
use crate::images::{file_data_source, image_url_source, plain_text_document, NO_FILE_ID};
use crate::options::ConversionOptions;
use crate::request::{ConversationRequest, Generation};

impl ChatCompletionRequest {
    /// Converts the request.
    ///
    /// # Errors
    /// A shape that only the default mode knows, under `official`; otherwise any broken rule.
    pub fn convert(mut self, options: &ConversionOptions) -> Result<ConversationRequest, RequestError> {
        self.deferred.check(options)?;
        let version = common::model_version(&self.model, options)?;
        check_count("too many messages", self.messages.len(), options.limits.max_messages, options)?;
        check_count("too many tools", self.tools.len(), options.limits.max_tools, options)?;
        let effort = common::thinking(self.thinking, self.reasoning_effort, options);
        let thinking = effort.is_some();
        let sampling = self.sampling(thinking, options)?;
        common::check_stop(&self.stop, self.stop_is_scalar)?;
        let format = std::mem::take(&mut self.response_format).check(options)?;
        let (tools, tool_choice) = self.tools(thinking, options)?;
        if format.is_strict && tools.iter().any(|tool| tool.strict == Some(true)) {
            return refuse("response_format should not be used with tools");
        }
        self.check_prefix(!tools.is_empty(), &format.format)?;
        let messages = self.messages(thinking, options)?;
        if format.format == ResponseFormat::JsonObject && !common::mentions_json(&messages) {
            return refuse(
                "Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'.",
            );
        }
        let conversation = Conversation {
            messages,
            thinking_mode: thinking,
            tools: tools.into(),
            tool_choice,
            reasoning_effort: effort,
            reasoning_effort_value: self
                .reasoning_effort_value
                .filter(|_| thinking && !options.is_official()),
            response_format: format.format,
        };
        let mut inference = common::inference_options(&sampling, thinking, version);
        if !options.is_official() {
            inference.parallel_tool_calls = self.parallel_tool_calls;
            inference.n = u32::from(self.n.unwrap_or(1));
        }
        inference.output_constraint =
            common::output_constraint(format.constraint, &conversation, inference.parallel_tool_calls);
        Ok(ConversationRequest {
            parsing_options: common::parsing_options(&conversation, self.stop, options),
            conversation: Arc::new(conversation),
            inference_options: inference,
            model_version: version,
            stream: self.stream,
            warnings: Vec::new(),
            generation: Generation {
                compat: options.compat,
                // The original also marks the chunks of requests that did not ask for a stream.
                include_usage: self.include_usage == Some(true) || !self.stream,
                extras: options.extras.clone(),
                responses: None,
                reasoning_key: None,
            },
        })
    }

    fn sampling(&self, thinking: bool, options: &ConversionOptions) -> Rule<Sampling> {
        common::check_temperature(self.temperature)?;
        common::check_top_p(self.top_p)?;
        let requested = match self.max_tokens {
            None if !options.is_official() => self.max_completion_tokens,
            max_tokens => max_tokens,
        };
        let max_tokens = common::check_max_tokens(requested, thinking, false, options)?;
        self.check_choices(options)?;
        for (name, penalty) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            if penalty.is_some_and(|value| !(-2.0..=2.0).contains(&value)) {
                return refuse(format!("Invalid {name} value, the valid range of {name} is [-2, 2]"));
            }
        }
        common::check_top_logprobs(self.top_logprobs)?;
        if self.top_logprobs.is_some() && !self.logprobs {
            return refuse(
                "Invalid top_logprobs and logprobs value, logprobs must be set to true if top_logprobs is used.",
            );
        }
        if self.seed.is_some_and(|seed| seed >= 1 << 63) {
            return refuse("Invalid seed value, the valid range of seed is [0, 2^63)");
        }
        if self.include_usage.is_some() && !self.stream {
            return refuse("stream_options should be set along with stream = true");
        }
        Ok(Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            max_tokens,
            logprobs: self.logprobs,
            top_logprobs: self.top_logprobs,
            seed: self.seed,
        })
    }

    fn check_choices(&self, options: &ConversionOptions) -> Rule<()> {
        let n = self.n.unwrap_or(1);
        if options.is_official() {
            if n != 1 {
                return refuse("Invalid n value (currently only n = 1 is supported)");
            }
            return Ok(());
        }
        let largest = options.limits.max_choices;
        if n == 0 || u32::from(n) > largest {
            return refuse(format!("Invalid n value, the valid range of n is [1, {largest}]"));
        }
        Ok(())
    }

    fn tools(
        &mut self,
        thinking: bool,
        options: &ConversionOptions,
    ) -> Rule<(Vec<recipe_model::ToolDefinition>, recipe_model::ToolChoice)> {
        let declared = std::mem::take(&mut self.tools);
        let mut tools = Vec::with_capacity(declared.len());
        for (index, tool) in declared.into_iter().enumerate() {
            common::check_tool_name(&tool.name, &format!("tools[{index}].function.name"))?;
            tools.push(tool.define(true, options)?);
        }
        common::check_unique_names(&tools)?;
        common::check_strict_mix(&tools)?;
        common::choose_tools(tools, std::mem::take(&mut self.tool_choice), thinking)
    }

    fn check_prefix(&self, has_tools: bool, format: &ResponseFormat) -> Rule<()> {
        let is_prefix =
            |message: &ChatMessage| matches!(message, ChatMessage::Assistant { prefix: true, .. });
        let Some((last, earlier)) = self.messages.split_last() else {
            return refuse("Empty input messages");
        };
        if earlier.iter().any(is_prefix) {
            return refuse(
                "Invalid completion message: prefix set true with message which is not final message or message \
                 role is not assistant",
            );
        }
        if !is_prefix(last) {
            return Ok(());
        }
        if has_tools {
            return refuse("Function call should not be used with prefix");
        }
        if *format == ResponseFormat::JsonObject {
            return refuse("response_format json_object should not be used with prefix");
        }
        Ok(())
    }

    fn messages(&mut self, thinking: bool, options: &ConversionOptions) -> Rule<Vec<Message>> {
        history::check(&self.messages, thinking, options)?;
        let image_token = options.special_tokens.get(SpecialToken::Image);
        let reader = PartReader { image_token, official: options.is_official() };
        let mut messages = Vec::with_capacity(self.messages.len());
        for (index, message) in std::mem::take(&mut self.messages).into_iter().enumerate() {
            messages.push(match message {
                ChatMessage::System(content) => {
                    let content = reader.content(content, index)?;
                    if content.text.is_empty() {
                        continue;
                    }
                    Message::System(SystemMessage { content, tools: Vec::new() })
                }
                ChatMessage::User(content) => {
                    Message::User(UserMessage { content: reader.content(content, index)? })
                }
                ChatMessage::Assistant { content, reasoning_content, tool_calls, prefix } => {
                    let content = match content {
                        None => String::new(),
                        Some(content) => reader.assistant_text(content, index)?,
                    };
                    Message::Assistant(AssistantMessage {
                        content,
                        reasoning_content: common::earlier_reasoning(reasoning_content, thinking),
                        tool_calls,
                        prefix,
                    })
                }
                ChatMessage::Tool { content, tool_call_id } => Message::Tool(ToolMessage {
                    content: reader.content(content, index)?,
                    tool_call_id: Some(tool_call_id),
                }),
                ChatMessage::LatestReminder(content) => {
                    Message::LatestReminder(ReminderMessage { content })
                }
            });
        }
        Ok(messages)
    }
}

struct PartReader<'a> {
    image_token: &'a str,
    official: bool,
}

impl PartReader<'_> {
    fn content(&self, content: ChatContent, index: usize) -> Rule<Content> {
        let parts = match content {
            ChatContent::Text(text) => return Ok(Content::text(text)),
            ChatContent::Parts(parts) => parts,
        };
        let path: Arc<str> = format!(".messages[{index}]").into();
        let mut content = Content::default();
        for (position, part) in parts.into_iter().enumerate() {
            if position > 0 {
                content.text.push_str("\n\n");
            }
            match part {
                ChatPart::Text(text) => content.text.push_str(&text),
                ChatPart::Image { url, detail } => {
                    content.push_image(image_url_source(url, detail, &path)?, self.image_token);
                }
                ChatPart::File { flat, nested } => match self.file(flat, nested, &path)? {
                    File::Image(source) => content.push_image(source, self.image_token),
                    File::Text(text) => content.text.push_str(&text),
                },
            }
        }
        Ok(content)
    }

    fn file(&self, flat: ChatFile, nested: Option<ChatFile>, path: &Arc<str>) -> Rule<File> {
        let file = match nested {
            Some(nested) if !self.official => nested,
            _ => flat,
        };
        match (file.file_id, file.file_data) {
            (Some(_), Some(_)) => refuse(format!("{path}: file cannot have both file_id and file_data")),
            (Some(_), None) if file.filename.is_some() => {
                refuse(format!("{path}: file cannot have filename when file_id is present"))
            }
            (Some(_), None) => refuse(format!("{path}: {NO_FILE_ID}")),
            (None, None) => refuse(format!("{path}: file must have a file_id or file_data")),
            (None, Some(data)) => match plain_text_document(&data) {
                Some(text) if !self.official => Ok(File::Text(text)),
                _ => file_data_source(data, path).map(File::Image),
            },
        }
    }

    fn assistant_text(&self, content: ChatContent, index: usize) -> Rule<String> {
        let content = self.content(content, index)?;
        if content.images.is_empty() {
            Ok(content.text)
        } else {
            refuse("Image in assistant message is not supported")
        }
    }
}

enum File {
    Image(ImageSource),
    Text(String),
}
