//! Tool-call markup.

use recipe_json::{parse, FloatStyle, Value};
use recipe_model::{SpecialToken, ToolCall};

use crate::prompt::Writer;
use crate::PromptFormat;

/// Spellings that differ between the formats.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Markup {
    /// Name of the block tag, with the blank that may precede it.
    pub calls: &'static str,
    /// What stands between the Dsml token and `invoke` or `parameter`.
    pub blank: &'static str,
    pub floats: FloatStyle,
    /// V4.1 leaves an empty line in a call without arguments.
    pub empty_line: bool,
}

impl Markup {
    pub fn of(format: PromptFormat) -> Self {
        match format {
            PromptFormat::V4 => Markup {
                calls: "tool_calls",
                blank: "",
                floats: FloatStyle::Compact,
                empty_line: false,
            },
            PromptFormat::V41 => Markup {
                calls: " calls",
                blank: " ",
                floats: FloatStyle::Python,
                empty_line: true,
            },
        }
    }
}

impl Writer<'_> {
    /// `<DSML calls>`
    pub fn open_calls(&mut self, markup: Markup) {
        self.tag("<", markup.calls, ">");
    }

    pub fn tag(&mut self, open: &str, name: &str, close: &str) {
        self.text(open);
        self.token(SpecialToken::Dsml);
        self.text(name);
        self.text(close);
    }

    /// The block of one assistant message.
    pub fn call_block<'c>(&mut self, calls: impl Iterator<Item = &'c ToolCall>, markup: Markup) {
        self.text("\n\n");
        self.open_calls(markup);
        self.text("\n");
        for call in calls {
            self.call(call, markup);
        }
        self.tag("</", markup.calls, ">");
    }

    fn call(&mut self, call: &ToolCall, markup: Markup) {
        self.tag("<", markup.blank, "invoke name=\"");
        self.text(&call.name);
        self.text("\">\n");
        match parse(&call.arguments) {
            Ok(Value::Object(arguments)) => {
                for (key, value) in arguments.iter() {
                    self.argument(key, value, markup);
                }
                if arguments.is_empty() && markup.empty_line {
                    self.text("\n");
                }
            }
            _ => self.argument("arguments", &Value::string(call.arguments.as_str()), markup),
        }
        self.tag("</", markup.blank, "invoke>\n");
    }

    fn argument(&mut self, key: &str, value: &Value<'_>, markup: Markup) {
        self.tag("<", markup.blank, "parameter name=\"");
        self.text(key);
        match value {
            Value::String(text) => {
                self.text("\" string=\"true\">");
                self.text(text);
            }
            other => {
                self.text("\" string=\"false\">");
                other.write_spaced(&mut self.out, markup.floats);
            }
        }
        self.tag("</", markup.blank, "parameter>\n");
    }
}
