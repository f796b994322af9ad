//! Context that lives outside the request.

use std::fmt;

use recipe_json::Value;

/// Where earlier responses are kept; supplied by the caller, who also does the saving.
pub trait ResponseStore {
    /// The items of the response or conversation `id`: its whole input, followed by its output.
    ///
    /// # Errors
    /// Whatever kept the store from answering. `Ok(None)` means that the id is unknown.
    fn load(&self, id: &str) -> Result<Option<Vec<Value<'static>>>, StoreError>;
}

/// The store could not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreError {
    /// Text for the client.
    pub message: String,
}

impl fmt::Display for StoreError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {}
