//! Special tokens and their spellings.
//!
//! Spellings: DeepSeek V4 and V4.1 tokenizer files and the type stub of `deepseek-recipe` 0.2.0.

use std::borrow::Cow;
use std::sync::Arc;

macro_rules! special_tokens {
    ($($name:ident $field:literal $spelling:literal $doc:literal),* $(,)?) => {
        /// A token with a meaning of its own in prompts and model output.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum SpecialToken {
            $(#[doc = $doc] $name),*
        }

        impl SpecialToken {
            /// Every token, in declaration order.
            pub const ALL: &'static [SpecialToken] = &[$(SpecialToken::$name),*];

            /// The default spelling.
            pub fn default_str(self) -> &'static str {
                match self { $(SpecialToken::$name => $spelling),* }
            }

            /// The snake-case name used for keyword arguments.
            pub fn field(self) -> &'static str {
                match self { $(SpecialToken::$name => $field),* }
            }

            /// The name of the variant.
            pub fn name(self) -> &'static str {
                match self { $(SpecialToken::$name => stringify!($name)),* }
            }
        }
    };
}

special_tokens! {
    Bos "bos" "<｜begin▁of▁sentence｜>" "Begin of sentence",
    Eos "eos" "<｜end▁of▁sentence｜>" "End of sentence",
    ThinkingStart "thinking_start" "<think>" "Start of reasoning",
    ThinkingEnd "thinking_end" "</think>" "End of reasoning",
    System "system" "<｜System｜>" "System turn (V4.1)",
    User "user" "<｜User｜>" "User turn",
    Assistant "assistant" "<｜Assistant｜>" "Assistant turn",
    LatestReminder "latest_reminder" "<｜latest_reminder｜>" "Reminder turn",
    Dsml "dsml" "｜DSML｜" "Markup of tool calls, without angle brackets",
    Image "image" "<｜image｜>" "Image placeholder",
    Ref "ref" "<｜ref｜>" "Start of a reference",
    RefEnd "ref_end" "<｜/ref｜>" "End of a reference",
    Box "box" "<｜box｜>" "Start of a box",
    BoxEnd "box_end" "<｜/box｜>" "End of a box",
    Point "point" "<｜point｜>" "Start of a point",
    PointEnd "point_end" "<｜/point｜>" "End of a point",
    Polygon "polygon" "<｜polygon｜>" "Start of a polygon",
    PolygonEnd "polygon_end" "<｜/polygon｜>" "End of a polygon",
}

/// The spelling of every [`SpecialToken`]; cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecialTokens {
    spellings: Arc<[Cow<'static, str>]>,
}

impl Default for SpecialTokens {
    fn default() -> Self {
        SpecialTokens {
            spellings: SpecialToken::ALL
                .iter()
                .map(|token| Cow::Borrowed(token.default_str()))
                .collect(),
        }
    }
}

impl SpecialTokens {
    /// The spelling of `token`.
    pub fn get(&self, token: SpecialToken) -> &str {
        &self.spellings[token as usize]
    }

    /// A copy in which `token` is spelled differently.
    #[must_use]
    pub fn with(&self, token: SpecialToken, spelling: String) -> Self {
        let mut spellings = self.spellings.to_vec();
        spellings[token as usize] = Cow::Owned(spelling);
        SpecialTokens {
            spellings: spellings.into(),
        }
    }
}
