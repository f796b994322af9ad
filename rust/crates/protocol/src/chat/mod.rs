//! Chat Completions: request bodies and their conversion.

mod convert;
mod history;
mod request;

pub(crate) use request::detail;
pub use request::ChatCompletionRequest;
