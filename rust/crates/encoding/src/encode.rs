//! From rendered prompt to token ids.

use std::fmt;

use recipe_tokenizer::Tokenizer;

use crate::prompt::RenderedPrompt;

/// A special token of the prompt is unknown to the tokenizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodeError {
    /// Its spelling.
    pub token: String,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "failed to encode conversation: special token \"{}\" is not in the added vocabulary",
            self.token
        )
    }
}

impl std::error::Error for EncodeError {}

/// Encodes a prompt: special ranges by look-up, each gap between them without the added vocabulary.
///
/// # Errors
/// A special range that the tokenizer's added vocabulary does not contain.
pub fn encode(prompt: &RenderedPrompt, tokenizer: &Tokenizer) -> Result<Vec<u32>, EncodeError> {
    let mut ids = Vec::with_capacity(prompt.prompt.len() / 3 + 8);
    let mut position = 0;
    let mut encoder = tokenizer.encoder();
    for range in &prompt.special_ranges {
        encoder.encode_ordinary(&prompt.prompt[position..range.start], &mut ids);
        let token = &prompt.prompt[range.clone()];
        match tokenizer.added_id(token) {
            Some(id) => ids.push(id),
            None => {
                return Err(EncodeError {
                    token: token.to_owned(),
                })
            }
        }
        position = range.end;
    }
    encoder.encode_ordinary(&prompt.prompt[position..], &mut ids);
    Ok(ids)
}
