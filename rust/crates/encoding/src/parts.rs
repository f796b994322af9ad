//! Pieces that both formats share.

use recipe_json::write_string;
use recipe_model::{
    Conversation, Message, ResponseFormat, SpecialToken, ToolChoice, ToolDefinition,
};

use crate::calls::Markup;
use crate::options::{DropThinking, RenderOptions};
use crate::prompt::Writer;
use crate::texts;

/// Tools shown in the tool block.
pub(crate) fn active_tools(conversation: &Conversation) -> impl Iterator<Item = &ToolDefinition> {
    let hidden = conversation.tool_choice == ToolChoice::None;
    conversation
        .tools
        .iter()
        .filter(move |tool| !hidden && !tool.defer_loading)
}

/// Whether any tools may be called, deferred ones included.
pub(crate) fn tools_offered(conversation: &Conversation) -> bool {
    conversation.tool_choice != ToolChoice::None && !conversation.tools.is_empty()
}

/// An upper estimate of the prompt length, so that the text is allocated once.
pub(crate) fn capacity(conversation: &Conversation) -> usize {
    let messages: usize = conversation
        .messages
        .iter()
        .map(|message| {
            message.text().len()
                + match message {
                    Message::Assistant(assistant) => {
                        assistant.reasoning_content.as_ref().map_or(0, String::len)
                            + assistant.tool_calls.as_ref().map_or(0, |calls| {
                                calls
                                    .iter()
                                    .map(|call| 2 * call.arguments.len() + 256)
                                    .sum()
                            })
                    }
                    _ => 0,
                }
                + 80
        })
        .sum();
    messages
        + if conversation.tools.is_empty() {
            1024
        } else {
            4096 + 512 * conversation.tools.len()
        }
}

/// Index from which reasoning is kept although tools are not active.
pub(crate) fn kept_from(conversation: &Conversation, options: &RenderOptions) -> usize {
    match options.drop_thinking {
        DropThinking::WithoutTools => usize::MAX,
        DropThinking::LastUser => conversation
            .messages
            .iter()
            .rposition(|message| matches!(message, Message::User(_)))
            .map_or(0, |index| index + 1),
    }
}

impl Writer<'_> {
    /// Writes the tools with `gap` before the closing sentence.
    pub fn tool_block(&mut self, conversation: &Conversation, markup: Markup, gap: &str) {
        self.text(texts::TOOLS_INTRO);
        self.open_calls(markup);
        self.text(texts::TOOLS_INTRO_END);
        self.usage_example(markup);
        self.text(texts::STRING_RULE);
        let (start, inside, before, after) = texts::THINKING_RULE;
        self.text(start);
        self.token(SpecialToken::ThinkingStart);
        self.text(inside);
        self.token(SpecialToken::ThinkingStart);
        self.text("...");
        self.token(SpecialToken::ThinkingEnd);
        self.text(before);
        self.token(SpecialToken::ThinkingEnd);
        self.text(after);
        self.tool_lines(active_tools(conversation), markup);
        self.text(gap);
        self.text(texts::TOOLS_CLOSING);
    }

    fn usage_example(&mut self, markup: Markup) {
        self.open_calls(markup);
        self.text("\n");
        self.tag("<", markup.blank, "invoke name=\"$TOOL_NAME\">\n");
        self.tag(
            "<",
            markup.blank,
            "parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE",
        );
        self.tag("</", markup.blank, "parameter>\n...\n");
        self.tag("</", markup.blank, "invoke>\n");
        self.tag("<", markup.blank, "invoke name=\"$TOOL_NAME2\">\n...\n");
        self.tag("</", markup.blank, "invoke>\n");
        self.tag("</", markup.calls, ">");
    }

    pub fn tool_lines<'t>(
        &mut self,
        tools: impl Iterator<Item = &'t ToolDefinition>,
        markup: Markup,
    ) {
        for (index, tool) in tools.enumerate() {
            self.text(if index > 0 {
                "\n{\"name\": "
            } else {
                "{\"name\": "
            });
            write_string(&mut self.out, &tool.name);
            self.text(", \"description\": ");
            write_string(&mut self.out, tool.description.as_deref().unwrap_or(""));
            self.text(", \"parameters\": ");
            match &tool.parameters {
                Some(parameters) => parameters.write_spaced(&mut self.out, markup.floats),
                None => self.text("null"),
            }
            self.text("}");
        }
    }

    pub fn response_format(&mut self, format: &ResponseFormat, json_object: &str, markup: Markup) {
        match format {
            ResponseFormat::Text | ResponseFormat::Regex(_) => {}
            ResponseFormat::JsonObject => self.text(json_object),
            ResponseFormat::JsonSchema(schema) => {
                self.text(texts::SCHEMA_FORMAT);
                schema.write_spaced(&mut self.out, markup.floats);
            }
        }
    }

    /// Opens the next assistant turn, unless an open message is to be continued, and asks for calls if required.
    pub fn end(
        &mut self,
        conversation: &Conversation,
        is_open: bool,
        has_tools: bool,
        options: &RenderOptions,
        markup: Markup,
    ) {
        if options.add_generation_prompt && !is_open {
            self.token(SpecialToken::Assistant);
            self.token(if conversation.thinking_mode {
                SpecialToken::ThinkingStart
            } else {
                SpecialToken::ThinkingEnd
            });
        }
        if options.generates() && conversation.tool_choice == ToolChoice::Required && has_tools {
            self.text("\n\n");
            self.open_calls(markup);
            self.text("\n");
        }
    }
}
