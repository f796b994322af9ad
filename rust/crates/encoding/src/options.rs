//! What a caller may vary in rendering.

use recipe_model::{Conversation, Message};

use crate::error::RenderError;

/// Which reasoning of earlier turns stays in the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DropThinking {
    /// All of it when tools are active, none otherwise: the behaviour of the original.
    #[default]
    WithoutTools,
    /// As above, but without tools the reasoning after the last user message is kept, as the encoders in vLLM do.
    LastUser,
}

/// Options of [`render`](crate::render()).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderOptions {
    /// Open a new assistant turn at the end, unless the last message is one to continue.
    pub add_generation_prompt: bool,
    /// Leave the last assistant message open, whether or not it was marked as a prefix.
    pub continue_final_message: bool,
    /// Refuse conversations whose text spells a special token.
    pub strict_markers: bool,
    /// Which earlier reasoning stays.
    pub drop_thinking: DropThinking,
    /// V4.1: write every one of consecutive reminders instead of the first.
    pub keep_all_reminders: bool,
}

impl Default for RenderOptions {
    fn default() -> Self {
        RenderOptions {
            add_generation_prompt: true,
            continue_final_message: false,
            strict_markers: false,
            drop_thinking: DropThinking::default(),
            keep_all_reminders: false,
        }
    }
}

impl RenderOptions {
    pub(crate) fn check(&self, conversation: &Conversation) -> Result<(), RenderError> {
        if !self.continue_final_message {
            return Ok(());
        }
        if self.add_generation_prompt {
            return Err(RenderError::ConflictingFlags);
        }
        match conversation.messages.last() {
            Some(Message::Assistant(_)) => Ok(()),
            last => Err(RenderError::NothingToContinue {
                role: last.map(Message::role),
            }),
        }
    }

    /// Whether the required-call suffix and an open turn belong at the end.
    pub(crate) fn generates(&self) -> bool {
        self.add_generation_prompt || self.continue_final_message
    }
}
