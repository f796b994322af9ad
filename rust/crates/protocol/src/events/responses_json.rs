//! The Responses response object.

use std::sync::Arc;

use recipe_json::write_string;
use recipe_stream::MalformedCall;

use super::json;
use super::{FinishReason, Usage};
use crate::responses::{ResponsesEcho, ResponsesState};

/// Members that do not change while a response is made.
#[derive(Debug)]
pub(crate) struct Fixed {
    pub id: String,
    pub model: String,
    pub created: u64,
    pub state: ResponsesState,
}

/// A state of the response object.
#[derive(Debug, Clone)]
pub(crate) struct Body {
    pub fixed: Arc<Fixed>,
    pub status: &'static str,
    pub completed_at: Option<u64>,
    pub incomplete_reason: Option<&'static str>,
    /// Finished items as JSON.
    pub output: Vec<Arc<str>>,
    pub usage: Option<Usage>,
    pub malformed: Vec<MalformedCall>,
}

impl Body {
    pub fn in_progress(fixed: Arc<Fixed>) -> Self {
        Body {
            fixed,
            status: "in_progress",
            completed_at: None,
            incomplete_reason: None,
            output: Vec::new(),
            usage: None,
            malformed: Vec::new(),
        }
    }

    /// Sets what the end of the output decides.
    pub fn end(&mut self, reason: &FinishReason, completed_at: u64) {
        self.incomplete_reason = match reason {
            FinishReason::Length => Some("max_output_tokens"),
            FinishReason::ContentFilter => Some("content_filter"),
            _ => None,
        };
        self.status = if self.incomplete_reason.is_some() {
            "incomplete"
        } else {
            "completed"
        };
        self.completed_at = Some(completed_at);
    }

    pub fn write(&self, out: &mut String) {
        let Fixed {
            id,
            model,
            created,
            state,
        } = &*self.fixed;
        let echo = &state.echo;
        out.push_str("{\"id\":");
        write_string(out, id);
        out.push_str(",\"object\":\"response\",\"created_at\":");
        json::number(out, *created);
        out.push_str(",\"status\":\"");
        out.push_str(self.status);
        out.push_str("\",\"background\":false,\"completed_at\":");
        optional_number(out, self.completed_at);
        out.push_str(",\"content_filters\":null,\"error\":null,\"frequency_penalty\":0.0,\"incomplete_details\":");
        match self.incomplete_reason {
            Some(reason) => {
                out.push_str("{\"reason\":\"");
                out.push_str(reason);
                out.push_str("\"}");
            }
            None => out.push_str("null"),
        }
        out.push_str(",\"instructions\":");
        json::optional_string(out, echo.instructions.as_deref());
        out.push_str(",\"max_output_tokens\":");
        optional_number(out, echo.max_output_tokens.map(u64::from));
        out.push_str(",\"max_tool_calls\":null,\"model\":");
        write_string(out, model);
        out.push_str(",\"moderation\":null,\"output\":");
        json::list(out, &self.output, |out, item| out.push_str(item));
        out.push_str(",\"parallel_tool_calls\":");
        out.push_str(if state.parallel_tool_calls {
            "true"
        } else {
            "false"
        });
        out.push_str(",\"presence_penalty\":0.0,\"previous_response_id\":");
        json::optional_string(out, state.previous_response_id.as_deref());
        out.push_str(",\"prompt_cache_key\":null,\"prompt_cache_retention\":null,\"reasoning\":");
        out.push_str(&state.reasoning);
        out.push_str(",\"safety_identifier\":null,\"service_tier\":\"default\",\"store\":");
        out.push_str(if state.history.is_some() {
            "true"
        } else {
            "false"
        });
        out.push_str(",\"temperature\":");
        ResponsesEcho::write_float(out, echo.temperature);
        out.push_str(",\"text\":");
        out.push_str(&state.text);
        out.push_str(",\"tool_choice\":");
        out.push_str(&state.tool_choice);
        out.push_str(",\"tools\":");
        out.push_str(&state.tools);
        out.push_str(",\"top_logprobs\":");
        json::number(out, u64::from(echo.top_logprobs));
        out.push_str(",\"top_p\":");
        ResponsesEcho::write_float(out, echo.top_p);
        out.push_str(",\"truncation\":\"disabled\",\"usage\":");
        match &self.usage {
            Some(usage) => write_usage(out, usage),
            None => out.push_str("null"),
        }
        out.push_str(",\"user\":");
        json::optional_string(out, echo.user.as_deref());
        out.push_str(",\"metadata\":{}");
        json::malformed_member(out, &self.malformed);
        out.push('}');
    }
}

fn optional_number(out: &mut String, value: Option<u64>) {
    match value {
        Some(value) => json::number(out, value),
        None => out.push_str("null"),
    }
}

fn write_usage(out: &mut String, usage: &Usage) {
    out.push_str("{\"input_tokens\":");
    json::number(out, usage.prompt.prompt_tokens);
    out.push_str(",\"input_tokens_details\":{\"cached_tokens\":");
    json::number(out, usage.prompt.prompt_cache_hit_tokens);
    out.push_str("},\"output_tokens\":");
    json::number(out, usage.completion_tokens);
    out.push_str(",\"output_tokens_details\":{\"reasoning_tokens\":");
    json::number(out, usage.reasoning_tokens.unwrap_or(0));
    out.push_str("},\"total_tokens\":");
    json::number(out, usage.prompt.prompt_tokens + usage.completion_tokens);
    out.push('}');
}
