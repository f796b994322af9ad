//! The V4 layout: system messages move to the front, calls and results are ordered by call id.

use recipe_model::{
    AssistantMessage, Content, Conversation, Effort, Message, ReminderMessage, SpecialToken,
    SpecialTokens, ToolCall, ToolMessage,
};

use crate::calls::Markup;
use crate::options::RenderOptions;
use crate::parts::{active_tools, capacity, kept_from, tools_offered};
use crate::prompt::{RenderedPrompt, Writer};
use crate::{texts, PromptFormat};

/// A message after system messages have been taken out and adjacent user messages merged.
enum Item<'a> {
    User(Vec<&'a Content>),
    Assistant {
        message: &'a AssistantMessage,
        index: usize,
    },
    Tool(&'a ToolMessage),
    Reminder(&'a ReminderMessage),
}

pub(crate) fn render(
    conversation: &Conversation,
    tokens: &SpecialTokens,
    options: &RenderOptions,
) -> RenderedPrompt {
    let markup = Markup::of(PromptFormat::V4);
    let mut writer = Writer::new(tokens, capacity(conversation), conversation.messages.len());
    front(&mut writer, conversation, markup);
    let mut items = merged(conversation);
    sort_results(&mut items);
    let thinking = ThinkingRule {
        thinking_mode: conversation.thinking_mode,
        tools_active: tools_offered(conversation),
        kept_from: kept_from(conversation, options),
    };
    let mut is_open = false;
    for (position, item) in items.iter().enumerate() {
        let previous = position.checked_sub(1).map(|before| &items[before]);
        match item {
            Item::User(contents) => {
                match previous {
                    Some(Item::User(_) | Item::Tool(_)) => writer.text("\n\n"),
                    _ => writer.token(SpecialToken::User),
                }
                user_contents(&mut writer, contents);
            }
            Item::Tool(tool) => {
                match previous {
                    Some(Item::Tool(_)) => writer.text("\n\n"),
                    _ => writer.token(SpecialToken::User),
                }
                writer.text("<tool_result>");
                writer.content(&tool.content);
                writer.text("</tool_result>");
            }
            Item::Reminder(reminder) => {
                writer.token(SpecialToken::LatestReminder);
                writer.text(&reminder.content);
            }
            Item::Assistant { message, index } => {
                let is_last = position + 1 == items.len();
                let continued = options.continue_final_message && is_last;
                thinking.write(&mut writer, message, *index, message.prefix || continued);
                writer.text(&message.content);
                if let Some(calls) = &message.tool_calls {
                    writer.call_block(sorted_calls(calls).into_iter(), markup);
                }
                is_open = is_last && (message.prefix || continued);
                if !is_open {
                    writer.token(SpecialToken::Eos);
                }
            }
        }
    }
    writer.end(
        conversation,
        is_open,
        tools_offered(conversation),
        options,
        markup,
    );
    writer.finish()
}

fn front(writer: &mut Writer<'_>, conversation: &Conversation, markup: Markup) {
    writer.token(SpecialToken::Bos);
    if conversation.thinking_mode {
        writer.text(match conversation.reasoning_effort {
            Some(Effort::Low) => "",
            Some(Effort::High | Effort::Xhigh) | None => texts::V4_EFFORT_HIGH,
            Some(Effort::Max) => texts::V4_EFFORT_MAX,
        });
    }
    let mut is_first = true;
    for message in &conversation.messages {
        if let Message::System(system) = message {
            if !system.content.text.is_empty() {
                if !is_first {
                    writer.text("\n\n");
                }
                is_first = false;
                writer.content(&system.content);
            }
        }
    }
    if tools_offered(conversation) {
        // Each line of a tool ends in a line feed here, so without any there is one less.
        let has_lines = active_tools(conversation).next().is_some();
        writer.tool_block(conversation, markup, if has_lines { "\n\n" } else { "\n" });
    }
    writer.response_format(&conversation.response_format, texts::V4_JSON_OBJECT, markup);
}

fn merged(conversation: &Conversation) -> Vec<Item<'_>> {
    let mut items: Vec<Item<'_>> = Vec::with_capacity(conversation.messages.len());
    for (index, message) in conversation.messages.iter().enumerate() {
        match message {
            Message::System(_) => {}
            Message::User(user) => match items.last_mut() {
                Some(Item::User(contents)) => contents.push(&user.content),
                _ => items.push(Item::User(vec![&user.content])),
            },
            Message::Assistant(message) => items.push(Item::Assistant { message, index }),
            Message::Tool(tool) => items.push(Item::Tool(tool)),
            Message::LatestReminder(reminder) => items.push(Item::Reminder(reminder)),
        }
    }
    items
}

/// After a message with n calls, the next n messages are put in the order of their ids, others behind them.
fn sort_results(items: &mut [Item<'_>]) {
    for index in 0..items.len() {
        let Item::Assistant { message, .. } = &items[index] else {
            continue;
        };
        let count = message.tool_calls.as_ref().map_or(0, Vec::len);
        if let Some(results) = items.get_mut(index + 1..index + 1 + count) {
            results.sort_by(|left, right| sort_key(left).cmp(&sort_key(right)));
        }
    }
}

fn sort_key<'a>(item: &Item<'a>) -> (bool, Option<&'a str>) {
    match item {
        Item::Tool(tool) => (false, tool.tool_call_id.as_deref()),
        _ => (true, None),
    }
}

fn sorted_calls(calls: &[ToolCall]) -> Vec<&ToolCall> {
    let mut sorted: Vec<&ToolCall> = calls.iter().collect();
    sorted.sort_by(|left, right| left.id.cmp(&right.id));
    sorted
}

fn user_contents(writer: &mut Writer<'_>, contents: &[&Content]) {
    let filled = contents.iter().filter(|content| !content.text.is_empty());
    for (index, content) in filled.enumerate() {
        if index > 0 {
            writer.text("\n\n");
        }
        writer.content(content);
    }
}

struct ThinkingRule {
    thinking_mode: bool,
    tools_active: bool,
    kept_from: usize,
}

impl ThinkingRule {
    /// The assistant token and what stands for its reasoning.
    fn write(
        &self,
        writer: &mut Writer<'_>,
        message: &AssistantMessage,
        index: usize,
        is_open: bool,
    ) {
        writer.token(SpecialToken::Assistant);
        let reasoning = message.reasoning_content.as_deref();
        let shown = if is_open || self.tools_active || index >= self.kept_from {
            reasoning
        } else {
            None
        };
        if let Some(reasoning) = shown {
            writer.token(SpecialToken::ThinkingStart);
            writer.text(reasoning);
        }
        let left_open = is_open && message.content.is_empty() && self.thinking_mode;
        if !left_open {
            writer.token(SpecialToken::ThinkingEnd);
        }
    }
}
