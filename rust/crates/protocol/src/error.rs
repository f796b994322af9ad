//! Why a request was refused.

use std::fmt;

/// The body has the wrong shape: not the JSON that the protocol describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapeError {
    /// What is wrong, without the common prefix.
    pub detail: String,
}

impl ShapeError {
    pub(crate) fn new(detail: impl Into<String>) -> Self {
        ShapeError {
            detail: detail.into(),
        }
    }
}

impl fmt::Display for ShapeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "invalid request body: {}", self.detail)
    }
}

impl std::error::Error for ShapeError {}

/// The body has the right shape but breaks a rule of the protocol or of this service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversionError {
    /// Text for the client.
    pub message: String,
    /// HTTP status.
    pub status_code: u16,
}

impl ConversionError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        ConversionError {
            message: message.into(),
            status_code: 400,
        }
    }

    /// The OpenAI-shaped error body, the same for all protocols.
    pub fn body(&self) -> String {
        let mut out = String::from("{\"error\":{\"message\":");
        recipe_json::write_string(&mut out, &self.message);
        out.push_str(
            ",\"type\":\"invalid_request_error\",\"param\":null,\"code\":\"invalid_request_error\"}}",
        );
        out
    }

    /// The error body of the Messages protocol.
    pub fn messages_body(&self) -> String {
        let mut out = String::from(
            "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":",
        );
        recipe_json::write_string(&mut out, &self.message);
        out.push_str("}}");
        out
    }
}

impl fmt::Display for ConversionError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for ConversionError {}

/// Either kind of refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestError {
    /// Wrong shape.
    Shape(ShapeError),
    /// Broken rule.
    Content(ConversionError),
}

impl From<ShapeError> for RequestError {
    fn from(error: ShapeError) -> Self {
        RequestError::Shape(error)
    }
}

impl From<ConversionError> for RequestError {
    fn from(error: ConversionError) -> Self {
        RequestError::Content(error)
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestError::Shape(error) => error.fmt(formatter),
            RequestError::Content(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for RequestError {}

/// Shorthand for a broken rule.
pub(crate) fn refuse<T, E: From<ConversionError>>(message: impl Into<String>) -> Result<T, E> {
    Err(ConversionError::new(message).into())
}
