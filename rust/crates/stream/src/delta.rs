//! What the parser gives.

use crate::call::MalformedCall;
use crate::queue::LogprobEntry;

/// One step of output.
#[derive(Debug, Clone, PartialEq)]
pub struct Delta {
    /// The step.
    pub kind: DeltaKind,
    /// Log probabilities that belong to it.
    pub logprobs: Vec<LogprobEntry>,
}

/// The kinds of steps.
#[derive(Debug, Clone, PartialEq)]
pub enum DeltaKind {
    /// Reasoning text.
    Reasoning(String),
    /// Answer text.
    Answer(String),
    /// A call begins; its arguments follow.
    CallStart {
        /// Name of the tool.
        name: String,
    },
    /// Argument text, a piece of JSON.
    Arguments(String),
    /// The current call is over. Not given under the original's grammar.
    CallEnd,
    /// The current call is over and must not be executed; or one ended before it had a name.
    CallMalformed(MalformedCall),
    /// A stop sequence ended the output.
    Stopped {
        /// The sequence.
        sequence: String,
    },
}

impl From<DeltaKind> for Delta {
    fn from(kind: DeltaKind) -> Self {
        Delta {
            kind,
            logprobs: Vec::new(),
        }
    }
}
