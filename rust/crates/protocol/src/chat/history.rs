//! Rules about the order of messages.

use std::collections::HashSet;

use super::request::ChatMessage;
use crate::common::Rule;
use crate::error::refuse;

/// Follows calls and their results from message to message.
#[derive(Default)]
pub(crate) struct History {
    /// Ids of calls without a result.
    pending: HashSet<String>,
}

impl History {
    pub fn check(&mut self, index: usize, is_last: bool, message: &ChatMessage) -> Rule<()> {
        if let ChatMessage::Tool { tool_call_id, .. } = message {
            if !self.pending.remove(tool_call_id) {
                self.finish()?;
                return refuse(
                    "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
                );
            }
            return Ok(());
        }
        self.finish()?;
        let ChatMessage::Assistant {
            content,
            tool_calls,
            prefix,
            ..
        } = message
        else {
            return Ok(());
        };
        if *prefix && !is_last {
            return refuse(
                "Invalid completion message: prefix set true with message which is not final message or message \
                 role is not assistant",
            );
        }
        match tool_calls {
            None if content.is_none() => {
                return refuse("Invalid assistant message: content or tool_calls must be set");
            }
            None => {}
            Some(calls) if calls.is_empty() => {
                return refuse(format!(
                    "Invalid 'messages[{index}].tool_calls': empty array. Expected an array with minimum length 1, \
                     but got an empty array instead."
                ));
            }
            Some(calls) => {
                for call in calls {
                    if !self.pending.insert(call.id.clone()) {
                        return refuse(format!(
                            "Duplicate value for 'tool_call_id' of {} in message[{index}]",
                            call.id
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Refuses when a call has no result yet.
    pub fn finish(&self) -> Rule<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        refuse(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each \
             'tool_call_id'. (insufficient tool messages following tool_calls message)",
        )
    }
}
