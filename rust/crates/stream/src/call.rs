//! Malformed calls.

use std::fmt;

use recipe_json::Validator;

/// What is wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MalformedReason {
    /// The output ended before the call did, or in a block before its first call.
    Truncated,
    /// The call ended without its `invoke` closer.
    MissingInvokeCloser,
    /// A value ended without its `parameter` closer.
    MissingParameterCloser,
    /// A value marked `string="false"` is not JSON.
    InvalidJson,
    /// `string=` is neither `"true"` nor `"false"`, or is missing.
    InvalidStringFlag,
    /// Text stands where only a tag may.
    UnexpectedText,
    /// The name of the tool or of a parameter does not end.
    UnterminatedName,
    /// The tool was not offered.
    UnknownTool,
    /// A name is longer than the parser accepts.
    TooLarge,
}

impl MalformedReason {
    /// A stable identifier.
    pub fn as_str(self) -> &'static str {
        match self {
            MalformedReason::Truncated => "truncated",
            MalformedReason::MissingInvokeCloser => "missing_invoke_closer",
            MalformedReason::MissingParameterCloser => "missing_parameter_closer",
            MalformedReason::InvalidJson => "invalid_json",
            MalformedReason::InvalidStringFlag => "invalid_string_flag",
            MalformedReason::UnexpectedText => "unexpected_text",
            MalformedReason::UnterminatedName => "unterminated_name",
            MalformedReason::UnknownTool => "unknown_tool",
            MalformedReason::TooLarge => "too_large",
        }
    }
}

impl fmt::Display for MalformedReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// A call that must not be executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedCall {
    /// Index among the calls that had a header; `None` if this one had none.
    pub index: Option<usize>,
    /// Name of the tool, as far as it came.
    pub name: String,
    /// What is wrong.
    pub reason: MalformedReason,
}

/// The call being read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Call {
    pub name: String,
    /// Its header has been given.
    pub is_open: bool,
    pub has_arguments: bool,
    /// Some argument text has been given.
    pub has_text: bool,
    pub malformed: Option<MalformedReason>,
    /// Check of a value that must be JSON, and its bytes so far.
    pub validator: Validator,
    pub checked: usize,
    /// The value being read is text.
    pub is_string: bool,
    /// A value held for repair.
    pub held: String,
    pub key_bytes: usize,
}
