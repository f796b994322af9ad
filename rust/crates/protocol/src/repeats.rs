//! Text that a short request could make a prompt repeat without end.

use crate::common::Rule;
use crate::error::refuse;
use crate::options::ConversionOptions;

/// How often the largest schema may be repeated.
const MAX_REPEATS: usize = 16;

/// Counts what is repeated: definitions of tools that messages refer to, and what a namespace adds to its tools.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    bytes: usize,
}

impl Repeats {
    /// Counts `bytes` more, and refuses above the limit, which the original does not have.
    pub fn add(&mut self, bytes: usize, options: &ConversionOptions) -> Rule<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        let limit = options.limits.max_schema_bytes.saturating_mul(MAX_REPEATS);
        if !options.is_official() && self.bytes > limit {
            return refuse(format!(
                "tool references and namespaces repeat too much text: more than {limit} bytes"
            ));
        }
        Ok(())
    }
}
