//! Responses: request bodies and their conversion.

mod apply_patch;
mod convert;
mod input;
mod items;
mod request;
mod state;
mod store;
mod tools;

pub(crate) use convert::limit_message_tools;
pub use request::ResponsesRequest;
pub use state::{ResponsesEcho, ResponsesState};
pub use store::{ResponseStore, StoreError};
