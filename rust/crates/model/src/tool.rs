//! Tools offered to the model.

use std::sync::Arc;

use recipe_json::Value;

/// A function the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolDefinition {
    /// Name, unique in a conversation.
    pub name: String,
    /// Shown as an empty string when missing.
    pub description: Option<String>,
    /// JSON Schema of the arguments; `None` when built without one.
    pub parameters: Option<Arc<Value<'static>>>,
    /// Whether the arguments must follow the schema exactly.
    pub strict: Option<bool>,
    /// Known, but not shown in the tool block until a message loads it.
    pub defer_loading: bool,
}
