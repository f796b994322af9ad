//! Why a conversation was not rendered.

use std::fmt;

/// Errors of [`render`](crate::render()).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenderError {
    /// `add_generation_prompt` and `continue_final_message` were both true.
    ConflictingFlags,
    /// `continue_final_message` without a final assistant message.
    NothingToContinue {
        /// Role of the last message; `None` without messages.
        role: Option<&'static str>,
    },
    /// A message spells a marker, which `strict_markers` forbids.
    MarkerInMessage {
        /// Index of the message in the conversation.
        index: usize,
        /// Which text of it, for example `content`.
        field: &'static str,
        /// The marker.
        marker: String,
    },
    /// A tool definition or the response schema spells a marker.
    MarkerInDefinition {
        /// `tool` with its name, or `response_schema`.
        place: String,
        /// The marker.
        marker: String,
    },
}

impl RenderError {
    /// Index of the message at fault.
    pub fn message_index(&self) -> Option<usize> {
        match self {
            RenderError::MarkerInMessage { index, .. } => Some(*index),
            _ => None,
        }
    }
}

impl fmt::Display for RenderError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RenderError::ConflictingFlags => formatter.write_str(
                "`add_generation_prompt` and `continue_final_message` cannot both be true: \
                 pass `add_generation_prompt=False` to continue the last message",
            ),
            RenderError::NothingToContinue { role } => write!(
                formatter,
                "`continue_final_message` needs an assistant message at the end, the last message is: {}",
                role.unwrap_or("none")
            ),
            RenderError::MarkerInMessage { index, field, marker } => write!(
                formatter,
                "message {index}: `{field}` contains the marker `{marker}`, which `strict_markers` forbids; \
                 remove it, or encode to token ids, where it stays ordinary text"
            ),
            RenderError::MarkerInDefinition { place, marker } => write!(
                formatter,
                "{place} contains the marker `{marker}`, which `strict_markers` forbids"
            ),
        }
    }
}

impl std::error::Error for RenderError {}
