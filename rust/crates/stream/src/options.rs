//! How output is parsed.

use recipe_model::SpecialTokens;

/// What the first byte of output continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ThinkingInitialStage {
    /// Fresh reasoning.
    ReasoningStart,
    /// Reasoning that the prompt left open.
    ReasoningContinuation,
    /// An answer that the prompt left open.
    ContentContinuation,
}

impl ThinkingInitialStage {
    /// Whether the first byte is reasoning.
    pub fn starts_in_reasoning(self) -> bool {
        self != ThinkingInitialStage::ContentContinuation
    }
}

/// Options of the parser.
#[derive(Debug, Clone)]
pub struct ParsingOptions {
    /// Whether tool markup is markup.
    pub parse_tool_calls: bool,
    /// Whether the prompt already opened the block of calls.
    pub starts_in_tool_calls: bool,
    /// Whether the answer is cut down to its JSON.
    pub parse_json_output: bool,
    /// What the first byte continues; unset without thinking.
    pub thinking_initial_stage: Option<ThinkingInitialStage>,
    /// Texts that end the answer; empty ones are ignored.
    pub stop_sequences: Vec<String>,
    /// Spellings of markers.
    pub special_tokens: SpecialTokens,
    /// Keep text behind a block of calls, and further blocks.
    pub keep_text_after_tools: bool,
    /// JSON starts only at a fence or at the first non-blank character, and ends with its value.
    pub strict_json_output: bool,
    /// Supply missing closers instead of calling the call malformed.
    pub repair_tool_calls: bool,
    /// Names of the offered tools, if others are to be malformed.
    pub tool_names: Option<Vec<String>>,
}

impl Default for ParsingOptions {
    fn default() -> Self {
        ParsingOptions {
            parse_tool_calls: true,
            starts_in_tool_calls: false,
            parse_json_output: false,
            thinking_initial_stage: None,
            stop_sequences: Vec::new(),
            special_tokens: SpecialTokens::default(),
            keep_text_after_tools: false,
            strict_json_output: false,
            repair_tool_calls: false,
            tool_names: None,
        }
    }
}
