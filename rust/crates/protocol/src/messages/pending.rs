//! Calls of an assistant message that wait for their results.

use std::collections::HashMap;

use crate::common::Rule;
use crate::error::refuse;

/// Calls without a result: id to place in the message.
#[derive(Default)]
pub(super) struct PendingCalls {
    open: HashMap<String, usize>,
}

impl PendingCalls {
    /// All calls of a message, in order; their ids differ.
    pub fn of<'a>(ids: impl Iterator<Item = &'a String>) -> Self {
        PendingCalls {
            open: ids.cloned().zip(0..).collect(),
        }
    }

    /// Takes the result of a call; false if no such call waits.
    pub fn answer(&mut self, id: &str) -> bool {
        self.open.remove(id).is_some()
    }

    /// Refuses while a call waits; `prefix` is the place that the error begins with.
    pub fn check(&self, prefix: impl FnOnce() -> String) -> Rule<()> {
        if self.open.is_empty() {
            return Ok(());
        }
        let mut waiting: Vec<(&String, &usize)> = self.open.iter().collect();
        waiting.sort_by_key(|(_, place)| **place);
        let ids: Vec<&str> = waiting.iter().map(|(id, _)| id.as_str()).collect();
        refuse(format!(
            "{}`tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` block must \
             have a corresponding `tool_result` block in the next message.",
            prefix(),
            ids.join(", ")
        ))
    }
}
