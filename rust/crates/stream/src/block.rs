//! What stands in a block of calls besides calls: it is no text of the answer, and must not vanish unseen.

use crate::call::MalformedReason;
use crate::delta::Delta;
use crate::machine::Machine;
use crate::state::State;

/// The block being read by the strict grammar.
#[derive(Debug, Clone, Default)]
pub(crate) struct Block {
    /// Calls, well-formed or not, before this block.
    calls_before: usize,
    /// Something other than blanks stands behind the latest call.
    has_stray_text: bool,
    /// It is what is left of a call that has been reported.
    is_explained: bool,
}

impl Machine {
    fn calls_seen(&self) -> usize {
        self.calls_started + self.malformed.len()
    }

    /// A block begins.
    pub(crate) fn open_block(&mut self) {
        self.block = Block {
            calls_before: self.calls_seen(),
            ..Block::default()
        };
    }

    /// Text between calls that is not blank.
    pub(crate) fn stray_text(&mut self) {
        self.block.has_stray_text |= !self.block.is_explained;
    }

    /// A call without a header has been reported; what follows belongs to it.
    pub(crate) fn explain_stray_text(&mut self) {
        self.block.is_explained = true;
    }

    /// A call or the end of the block follows: text before it is reported.
    pub(crate) fn report_stray_text(&mut self, out: &mut Vec<Delta>) {
        if self.block.has_stray_text {
            self.report_nameless(MalformedReason::UnexpectedText, out);
        }
        self.block.has_stray_text = false;
        self.block.is_explained = false;
    }

    /// The output is over, perhaps in the block: a tag that was cut off, or a block without any call, is reported.
    pub(crate) fn end_of_output_in_block(&mut self, has_partial_tag: bool, out: &mut Vec<Delta>) {
        if self.state != State::StrictCalls {
            return;
        }
        self.report_stray_text(out);
        let is_empty = self.calls_seen() == self.block.calls_before;
        if is_empty || has_partial_tag {
            self.report_nameless(MalformedReason::Truncated, out);
        }
    }
}
