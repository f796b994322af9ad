//! Prompts of DeepSeek V4 and V4.1.
//!
//! [`render`] turns a conversation into prompt text and remembers which byte ranges it wrote as special tokens.
//! [`encode`] turns that into token ids: special ranges by look-up, everything between them without the added
//! vocabulary, so that a marker quoted by a user becomes ordinary ids.
//!
//! Layout facts: behaviour of the wheel `deepseek-recipe` 0.2.0, and the prompt encoders of vLLM
//! (`deepseek_v4_encoding.py`, `deepseek_v41_encoding.py`).

mod calls;
mod encode;
mod error;
mod markers;
mod options;
mod parts;
mod prompt;
mod texts;
mod v4;
mod v41;

pub use encode::{encode, EncodeError};
pub use error::RenderError;
pub use options::{DropThinking, RenderOptions};
pub use prompt::RenderedPrompt;

use recipe_model::{Conversation, SpecialTokens};

/// The two prompt formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PromptFormat {
    /// DeepSeek V4
    V4,
    /// DeepSeek V4.1
    V41,
}

/// Renders `conversation`.
///
/// # Errors
/// Both end-of-prompt flags at once, continuing a conversation that does not end with an assistant message, and,
/// with `strict_markers`, a special token spelled out in text of the conversation.
pub fn render(
    conversation: &Conversation,
    format: PromptFormat,
    tokens: &SpecialTokens,
    options: &RenderOptions,
) -> Result<RenderedPrompt, RenderError> {
    options.check(conversation)?;
    if options.strict_markers {
        markers::check(conversation, tokens)?;
    }
    Ok(match format {
        PromptFormat::V4 => v4::render(conversation, tokens, options),
        PromptFormat::V41 => v41::render(conversation, tokens, options),
    })
}
