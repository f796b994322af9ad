//! From a Chat Completions request to a conversation.

use std::sync::Arc;

use recipe_model::{
    AssistantMessage, Content, Conversation, ImageSource, Message, ReminderMessage, SpecialToken,
    SystemMessage, ToolMessage, UserMessage,
};

use super::history::History;
use super::request::{ChatCompletionRequest, ChatContent, ChatFile, ChatMessage, ChatPart};
use crate::common::{self, check_count, RequestedFormat, Rule, Sampling, UNSUPPORTED_IMAGE};
use crate::error::{refuse, RequestError};
use crate::images::{
    check_file_data, file_data_source, image_url_source, plain_text_document, NO_FILE_ID,
};
use crate::options::{ConversionOptions, ModelVersion};
use crate::request::{ConversationRequest, Generation};

impl ChatCompletionRequest {
    /// Converts the request.
    ///
    /// # Errors
    /// A shape that only the default mode knows, under `official`; otherwise any broken rule.
    pub fn convert(
        mut self,
        options: &ConversionOptions,
    ) -> Result<ConversationRequest, RequestError> {
        self.deferred.check(options)?;
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
        let effort = common::thinking(self.thinking, self.reasoning_effort, options);
        let thinking = effort.is_some();
        for (index, tool) in self.tools.iter().enumerate() {
            common::check_tool_name(&tool.name, &format!("tools[{index}].function.name"))?;
        }
        let mut messages = self.messages(version, options)?;
        if matches!(self.response_format, RequestedFormat::JsonObject)
            && !common::mentions_json(&messages)
        {
            return refuse(
                "Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'.",
            );
        }
        let declares_tools = !self.tools.is_empty();
        common::complete_reasoning(
            &mut messages,
            thinking,
            declares_tools,
            "reasoning_content",
            options,
        )?;
        let declared = std::mem::take(&mut self.tools);
        let choice = std::mem::take(&mut self.tool_choice);
        let (tools, tool_choice) = common::choose_tools(declared, choice, thinking, options)?;
        self.check_prefix(&messages, declares_tools)?;
        common::check_strict_mix(&tools)?;
        common::check_stop(&self.stop, self.stop_is_scalar)?;
        self.check_choices(options)?;
        let format = std::mem::take(&mut self.response_format).check(options)?;
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
        let parallel = self.parallel_tool_calls.filter(|_| !options.is_official());
        let constraint = common::output_constraint(format.constraint, &conversation, parallel)?;
        let sampling = self.sampling(thinking, options)?;
        let mut inference = common::inference_options(&sampling, &conversation, version);
        inference.parallel_tool_calls = parallel;
        inference.output_constraint = constraint;
        if !options.is_official() {
            inference.n = u32::from(self.n.unwrap_or(1));
        }
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
        if self.top_logprobs.is_some() && !self.logprobs {
            return refuse(
                "Invalid top_logprobs and logprobs value, logprobs must be set to true if top_logprobs is used.",
            );
        }
        common::check_top_logprobs(self.top_logprobs)?;
        let requested = match self.max_tokens {
            None if !options.is_official() => self.max_completion_tokens,
            max_tokens => max_tokens,
        };
        let max_tokens = common::check_max_tokens(requested, thinking, false, options)?;
        if self.seed.is_some_and(|seed| seed >= 1 << 63) {
            return refuse("Invalid seed value, the valid range of seed is [0, 2^63)");
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

    /// Members that ask for what is not offered.
    fn check_choices(&self, options: &ConversionOptions) -> Rule<()> {
        if self.include_usage.is_some() && !self.stream {
            return refuse("stream_options should be set along with stream = true");
        }
        self.check_count(options)?;
        for (name, penalty) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            if penalty.is_some_and(|value| !(-2.0..=2.0).contains(&value)) {
                return refuse(format!(
                    "Invalid {name} value, the valid range of {name} is [-2, 2]"
                ));
            }
        }
        Ok(())
    }

    fn check_count(&self, options: &ConversionOptions) -> Rule<()> {
        let n = self.n.unwrap_or(1);
        if options.is_official() {
            if n != 1 {
                return refuse("Invalid n value (currently only n = 1 is supported)");
            }
            return Ok(());
        }
        let largest = options.limits.max_choices;
        if n == 0 || u32::from(n) > largest {
            return refuse(format!(
                "Invalid n value, the valid range of n is [1, {largest}]"
            ));
        }
        Ok(())
    }

    /// A message to be continued goes with neither tools nor JSON output.
    fn check_prefix(&self, messages: &[Message], declares_tools: bool) -> Rule<()> {
        if !messages.last().is_some_and(Message::is_prefix) {
            return Ok(());
        }
        let has_calls = messages
            .iter()
            .any(|message| matches!(message, Message::Assistant(message) if message.tool_calls.is_some()));
        if has_calls || declares_tools {
            return refuse("Function call should not be used with prefix");
        }
        if matches!(self.response_format, RequestedFormat::JsonObject) {
            return refuse("response_format json_object should not be used with prefix");
        }
        Ok(())
    }

    fn messages(
        &mut self,
        version: ModelVersion,
        options: &ConversionOptions,
    ) -> Rule<Vec<Message>> {
        if self.messages.is_empty() {
            return refuse("Empty input messages");
        }
        let reader = PartReader {
            image_token: options.special_tokens.get(SpecialToken::Image),
            official: options.is_official(),
            sees_images: common::is_flash(version),
        };
        let last = self.messages.len() - 1;
        let mut history = History::default();
        let mut messages = Vec::with_capacity(self.messages.len());
        for (index, message) in std::mem::take(&mut self.messages).into_iter().enumerate() {
            history.check(index, index == last, &message)?;
            messages.push(match message {
                ChatMessage::System(content) => {
                    let content = reader.content(content, index)?;
                    if content.text.is_empty() {
                        continue;
                    }
                    Message::System(SystemMessage {
                        content,
                        tools: Vec::new(),
                    })
                }
                ChatMessage::User(content) => Message::User(UserMessage {
                    content: reader.content(content, index)?,
                }),
                ChatMessage::Assistant {
                    content,
                    reasoning_content,
                    tool_calls,
                    prefix,
                } => {
                    let content = match content {
                        None => String::new(),
                        Some(content) => reader.assistant_text(content, index)?,
                    };
                    Message::Assistant(AssistantMessage {
                        content,
                        reasoning_content,
                        tool_calls,
                        prefix,
                    })
                }
                ChatMessage::Tool {
                    content,
                    tool_call_id,
                } => Message::Tool(ToolMessage {
                    content: reader.content(content, index)?,
                    tool_call_id: Some(tool_call_id),
                }),
                ChatMessage::LatestReminder(content) => {
                    Message::LatestReminder(ReminderMessage { content })
                }
            });
        }
        history.finish()?;
        Ok(messages)
    }
}

struct PartReader<'a> {
    image_token: &'a str,
    official: bool,
    sees_images: bool,
}

impl PartReader<'_> {
    fn content(&self, content: ChatContent, index: usize) -> Rule<Content> {
        let parts = match content {
            ChatContent::Text(text) => return Ok(Content::text(text)),
            ChatContent::Parts(parts) => parts,
        };
        let path: Arc<str> = format!(".messages[{index}]").into();
        if self.sees_images {
            self.check_files(&parts, &path)?;
        }
        let mut content = Content::default();
        for (position, part) in parts.into_iter().enumerate() {
            if position > 0 {
                content.text.push_str("\n\n");
            }
            match part {
                ChatPart::Text(text) => content.text.push_str(&text),
                ChatPart::Image { .. } if !self.sees_images => {
                    content.text.push_str(UNSUPPORTED_IMAGE)
                }
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
        if !self.sees_images {
            let text = file
                .file_data
                .as_deref()
                .filter(|_| !self.official)
                .and_then(plain_text_document);
            return Ok(File::Text(
                text.unwrap_or_else(|| UNSUPPORTED_IMAGE.to_owned()),
            ));
        }
        let data = file.file_data.unwrap_or_default();
        match plain_text_document(&data) {
            Some(text) if !self.official => Ok(File::Text(text)),
            _ => file_data_source(data, path).map(File::Image),
        }
    }

    /// Each file names exactly one source, which is its data.
    fn check_files(&self, parts: &[ChatPart], path: &str) -> Rule<()> {
        for part in parts {
            let ChatPart::File { flat, nested } = part else {
                continue;
            };
            let file = nested.as_ref().filter(|_| !self.official).unwrap_or(flat);
            let problem = match (&file.file_id, &file.file_data) {
                (None, Some(data)) => {
                    // The text of the check is that of a file, before images are looked at.
                    match plain_text_document(data) {
                        Some(_) if !self.official => {}
                        _ => check_file_data(data, path)?,
                    }
                    continue;
                }
                (Some(_), Some(_)) => "file cannot have both file_id and file_data",
                (Some(_), None) if file.filename.is_some() => {
                    "file cannot have filename when file_id is present"
                }
                (Some(_), None) => NO_FILE_ID,
                (None, None) => "file must have a file_id or file_data",
            };
            return refuse(format!("{path}: {problem}"));
        }
        Ok(())
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
