//! Rules about the order of messages.

use std::collections::HashSet;

use super::request::ChatMessage;
use crate::common::{marks_empty_reasoning, Rule};
use crate::error::refuse;
use crate::options::{ConversionOptions, ReasoningContentBehavior};

pub(crate) fn check(messages: &[ChatMessage], thinking: bool, options: &ConversionOptions) -> Rule<()> {
    let mut pending: HashSet<&str> = HashSet::new();
    for (index, message) in messages.iter().enumerate() {
        if let ChatMessage::Tool { tool_call_id, .. } = message {
            if !pending.remove(tool_call_id.as_str()) {
                return refuse(
                    "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
                );
            }
            continue;
        }
        check_answered(&pending)?;
        if let ChatMessage::Assistant { content, tool_calls, .. } = message {
            match tool_calls {
                None if content.is_none() => {
                    return refuse("Invalid assistant message: content or tool_calls must be set");
                }
                None => {}
                Some(calls) if calls.is_empty() => {
                    return refuse(format!(
                        "Invalid 'messages[{index}].tool_calls': empty array. Expected an array with minimum length \
                         1, but got an empty array instead."
                    ));
                }
                Some(calls) => {
                    for call in calls {
                        if !pending.insert(&call.id) {
                            return refuse(format!(
                                "Duplicate value for 'tool_call_id' of {} in message[{index}]",
                                call.id
                            ));
                        }
                    }
                }
            }
        }
    }
    check_answered(&pending)?;
    if thinking && options.reasoning_content_behavior == ReasoningContentBehavior::Reject {
        check_reasoning(messages, options)?;
    }
    Ok(())
}

fn check_answered(pending: &HashSet<&str>) -> Rule<()> {
    if pending.is_empty() {
        return Ok(());
    }
    refuse(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each \
         'tool_call_id'. (insufficient tool messages following tool_calls message)",
    )
}

/// In the current turn, calls must come with the reasoning that led to them, unless there was none.
fn check_reasoning(messages: &[ChatMessage], options: &ConversionOptions) -> Rule<()> {
    let turn = messages
        .iter()
        .rposition(|message| matches!(message, ChatMessage::User(_)))
        .map_or(0, |index| index + 1);
    for message in &messages[turn..] {
        if let ChatMessage::Assistant { reasoning_content: None, tool_calls: Some(calls), .. } = message {
            let is_marked =
                calls.iter().any(|call| marks_empty_reasoning(&call.id, options.is_official()));
            if !is_marked {
                return refuse("The `reasoning_content` in the thinking mode must be passed back to the API.");
            }
        }
    }
    Ok(())
}
