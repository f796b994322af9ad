//! The V4.1 layout: messages keep their places, user and tool messages share turns.

use std::collections::HashMap;

use recipe_model::{
    AssistantMessage, Content, Conversation, Effort, Message, ResponseFormat, SpecialToken,
    SpecialTokens, SystemMessage,
};

use crate::calls::Markup;
use crate::options::RenderOptions;
use crate::parts::{capacity, kept_from, tools_offered};
use crate::prompt::{RenderedPrompt, Writer};
use crate::{texts, PromptFormat};

pub(crate) fn render(
    conversation: &Conversation,
    tokens: &SpecialTokens,
    options: &RenderOptions,
) -> RenderedPrompt {
    let messages = &conversation.messages;
    let mut layout = Layout {
        writer: Writer::new(tokens, capacity(conversation), messages.len()),
        conversation,
        markup: Markup::of(PromptFormat::V41),
        tools_active: tools_offered(conversation),
        kept_from: kept_from(conversation, options),
        call_positions: None,
    };
    layout.writer.token(SpecialToken::Bos);
    let inserted = layout.front();
    let mut index = 0;
    while let Some(message) = messages.get(index) {
        match message {
            Message::System(system) => layout.system(system, index == 0),
            Message::User(_) | Message::Tool(_) => {
                let end = index + run_length(&messages[index..]);
                layout.user_turn(&messages[index..end]);
                index = end;
                continue;
            }
            Message::LatestReminder(reminder) => {
                let repeated =
                    index > 0 && matches!(messages[index - 1], Message::LatestReminder(_));
                if !repeated || options.keep_all_reminders {
                    layout.writer.token(SpecialToken::LatestReminder);
                    layout.writer.text(&reminder.content);
                }
            }
            Message::Assistant(assistant) => {
                let is_open = assistant.prefix
                    || options.continue_final_message && index + 1 == messages.len();
                layout.assistant(assistant, index, is_open, index == 0 && !inserted);
            }
        }
        index += 1;
    }
    let is_open = messages.last().is_some_and(Message::is_prefix) || options.continue_final_message;
    layout.writer.end(
        conversation,
        is_open,
        layout.tools_active,
        options,
        layout.markup,
    );
    layout.writer.finish()
}

fn run_length(messages: &[Message]) -> usize {
    messages
        .iter()
        .position(|message| !matches!(message, Message::User(_) | Message::Tool(_)))
        .unwrap_or(messages.len())
}

struct Layout<'a> {
    writer: Writer<'a>,
    conversation: &'a Conversation,
    markup: Markup,
    tools_active: bool,
    kept_from: usize,
    /// Call ids of the latest assistant message with calls; `None` before any.
    call_positions: Option<HashMap<&'a str, usize>>,
}

impl<'a> Layout<'a> {
    /// What precedes the first message; returns whether an empty system message was inserted.
    fn front(&mut self) -> bool {
        let conversation = self.conversation;
        if matches!(conversation.messages.first(), Some(Message::System(_))) {
            return false;
        }
        let has_extension = self.tools_active
            || matches!(
                conversation.response_format,
                ResponseFormat::JsonObject | ResponseFormat::JsonSchema(_)
            );
        if has_extension {
            self.system(&SystemMessage::default(), true);
            return true;
        }
        if conversation.thinking_mode && !conversation.messages.is_empty() {
            self.writer.token(SpecialToken::System);
            self.effort_line();
        }
        false
    }

    fn effort_line(&mut self) {
        let conversation = self.conversation;
        let (before, after) = texts::V41_EFFORT;
        self.writer.text(before);
        let level =
            conversation
                .reasoning_effort_value
                .unwrap_or(match conversation.reasoning_effort {
                    Some(Effort::Low) => 50,
                    Some(Effort::High | Effort::Xhigh) | None => 75,
                    Some(Effort::Max) => 100,
                });
        self.writer.text(&level.to_string());
        self.writer.text(after);
    }

    fn system(&mut self, message: &SystemMessage, first: bool) {
        self.writer.token(SpecialToken::System);
        if first && self.conversation.thinking_mode {
            self.effort_line();
        }
        self.writer.content(&message.content);
        if first {
            if self.tools_active {
                self.writer
                    .tool_block(self.conversation, self.markup, "\n\n");
            }
            let json_object = [texts::SCHEMA_FORMAT, texts::V41_JSON_OBJECT].concat();
            self.writer.response_format(
                &self.conversation.response_format,
                &json_object,
                self.markup,
            );
        }
        if !message.tools.is_empty() {
            self.writer.text(texts::UPDATED_TOOLS);
            self.writer.tool_lines(message.tools.iter(), self.markup);
        }
    }

    fn user_turn(&mut self, run: &'a [Message]) {
        self.writer.token(SpecialToken::User);
        for (index, message) in self.ordered(run).into_iter().enumerate() {
            if index > 0 {
                self.writer.text("\n\n");
            }
            match message {
                Message::Tool(tool) => self.tool_result(&tool.content),
                Message::User(user) => self.writer.content(&user.content),
                _ => {}
            }
        }
    }

    /// Results with a call id take the order of the calls; everything else keeps its slot.
    fn ordered(&self, run: &'a [Message]) -> Vec<&'a Message> {
        let mut ordered: Vec<&Message> = run.iter().collect();
        let Some(positions) = &self.call_positions else {
            return ordered;
        };
        let slots: Vec<usize> = (0..run.len())
            .filter(|&slot| call_id(&run[slot]).is_some())
            .collect();
        if slots.len() < 2 {
            return ordered;
        }
        let mut results: Vec<&Message> = slots.iter().map(|&slot| &run[slot]).collect();
        results.sort_by_key(|message| {
            call_id(message)
                .and_then(|id| positions.get(id))
                .copied()
                .unwrap_or(0)
        });
        for (slot, result) in slots.into_iter().zip(results) {
            ordered[slot] = result;
        }
        ordered
    }

    fn tool_result(&mut self, content: &Content) {
        self.writer.text("<tool_result>");
        self.writer.content(content);
        self.writer.text("</tool_result>");
    }

    fn assistant(
        &mut self,
        message: &'a AssistantMessage,
        index: usize,
        is_open: bool,
        is_first: bool,
    ) {
        let calls = message.tool_calls.as_deref().unwrap_or_default();
        self.writer.token(SpecialToken::Assistant);
        let shows_reasoning = self.conversation.thinking_mode
            && (self.tools_active || is_open && !is_first || index >= self.kept_from);
        if shows_reasoning {
            self.writer.token(SpecialToken::ThinkingStart);
            self.writer
                .text(message.reasoning_content.as_deref().unwrap_or(""));
        }
        let left_open =
            shows_reasoning && is_open && message.content.is_empty() && calls.is_empty();
        if !left_open {
            self.writer.token(SpecialToken::ThinkingEnd);
        }
        self.writer.text(&message.content);
        if !calls.is_empty() {
            self.writer.call_block(calls.iter(), self.markup);
            let mut positions = HashMap::with_capacity(calls.len());
            for (position, call) in calls.iter().enumerate() {
                positions.entry(call.id.as_str()).or_insert(position);
            }
            self.call_positions = Some(positions);
        }
        if !is_open {
            self.writer.token(SpecialToken::Eos);
        }
    }
}

fn call_id(message: &Message) -> Option<&str> {
    match message {
        Message::Tool(tool) => tool.tool_call_id.as_deref(),
        _ => None,
    }
}
