//! The Responses response.

use std::sync::Arc;

use recipe_stream::MalformedCall;

use super::responses::{EventKind, ResponsesStreamEvent};
use super::responses_json::{Body, Fixed};
use crate::responses::ResponsesState;

/// Folds events into the response object.
#[derive(Debug, Clone)]
pub struct ResponsesResponse {
    body: Body,
}

impl ResponsesResponse {
    /// An empty response.
    pub fn new(id: String, model: String, created: u64) -> Self {
        let fixed = Fixed {
            id,
            model,
            created,
            state: ResponsesState::default(),
        };
        ResponsesResponse {
            body: Body::in_progress(Arc::new(fixed)),
        }
    }

    /// Malformed calls; their items have status `incomplete`.
    pub fn malformed_calls(&self) -> &[MalformedCall] {
        &self.body.malformed
    }

    /// Folds one event in.
    pub fn accumulate(&mut self, event: ResponsesStreamEvent) {
        match event.kind {
            EventKind::Response { body, .. } => self.body = (*body).clone(),
            EventKind::ItemDone { item, .. } => self.body.output.push(item),
            _ => {}
        }
    }

    /// The response as JSON.
    pub fn to_json(&self) -> String {
        let mut out = String::new();
        self.body.write(&mut out);
        out
    }

    /// The finished output items as a JSON list, for a store.
    pub fn output_json(&self) -> String {
        let mut out = String::new();
        super::json::list(&mut out, &self.body.output, |out, item| out.push_str(item));
        out
    }
}
