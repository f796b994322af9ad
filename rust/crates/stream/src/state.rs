//! States and marker actions of both grammars.

/// Where the parser is. States with `Strict` in their name belong to the strict grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum State {
    /// Reasoning text.
    Reason,
    /// Answer text.
    Answer,
    /// Before the JSON of a JSON answer.
    JsonWait,
    /// Inside it.
    Json,
    /// Behind it.
    AfterJson,
    /// Between calls.
    Calls,
    /// In the name of a tool.
    Name,
    /// Between parameters.
    Args,
    /// In the name of a parameter.
    Key,
    /// Behind it, before its value.
    Type,
    /// In a value that is text.
    StringValue,
    /// In a value that is JSON.
    RawValue,
    /// Behind the block of calls.
    Ended,
    StrictCalls,
    StrictName,
    /// Behind the quote that ends a tool name: `>` must follow.
    StrictNameEnd,
    StrictArgs,
    StrictKey,
    /// Behind ` string=`: the flag must follow.
    StrictType,
    StrictStringValue,
    StrictRawValue,
    /// Behind a closing tag's Dsml token in a value: `parameter>` must follow.
    StrictValueEnd,
}

impl State {
    pub const COUNT: usize = State::StrictValueEnd as usize + 1;

    /// Whether this state of the strict grammar is inside a block of calls.
    pub fn is_in_calls(self) -> bool {
        matches!(
            self,
            State::StrictCalls
                | State::StrictName
                | State::StrictNameEnd
                | State::StrictArgs
                | State::StrictKey
                | State::StrictType
                | State::StrictStringValue
                | State::StrictRawValue
                | State::StrictValueEnd
        )
    }
}

/// What a complete marker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    SkipNewline,
    EndReasoning,
    SkipEndReasoning,
    OpenCalls,
    /// Index into the stop sequences.
    Stop(usize),
    OpenFence,
    OpenBracket,
    CloseFence,
    OpenName,
    CloseCalls,
    CloseName,
    OpenKey,
    CloseInvoke,
    CloseKey,
    FlagTrue,
    FlagFalse,
    CloseValue,
    /// `<DSML parameter name="` inside a value.
    NextParameter,
    /// `<DSML invoke name="` inside a call.
    NextInvoke,
    /// A tag where none may stand: in a name, or an opened block in a call.
    Interrupt,
}
