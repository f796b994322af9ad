//! Parsing model output while it arrives.
//!
//! [`Machine`] takes chunks of text (or decoded tokens) and gives [`Delta`]s: reasoning, answer text, tool calls with
//! their arguments as JSON text. It holds back only what a marker may still need. Two grammars share one engine: the
//! strict one, in which a malformed call is never completed into valid JSON, and the original's.
//!
//! The states are described in `docs/recipe/stream-states.md` of the repository. Facts: `docs/streaming.md` and
//! behaviour of `deepseek-recipe` 0.2.0.

mod actions;
mod block;
mod call;
mod delta;
mod machine;
mod matcher;
mod official;
mod options;
mod queue;
mod scanner;
mod state;
mod strict;
mod tokens;

pub use call::{MalformedCall, MalformedReason};
pub use delta::{Delta, DeltaKind};
pub use machine::Machine;
pub use options::{ParsingOptions, ThinkingInitialStage};
pub use queue::{LogprobEntry, TopLogprob};
pub use tokens::{LogprobCount, TokenLogprob, TokenReader};
