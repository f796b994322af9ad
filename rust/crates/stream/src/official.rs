//! Markers of the original's grammar.

use recipe_model::SpecialToken;

use crate::matcher::Pattern;
use crate::options::ParsingOptions;
use crate::scanner::Table;
use crate::state::{Action, State};

/// Markers of `state`, in the order in which they win when several are complete.
pub(crate) fn table(state: State, options: &ParsingOptions) -> Table {
    let dsml = options.special_tokens.get(SpecialToken::Dsml);
    let mut watchers = Vec::new();
    let open_calls = |watchers: &mut Vec<_>| {
        if options.parse_tool_calls {
            watchers.push((
                Pattern::new(&["<", dsml, ""]).after_newlines(),
                Action::OpenCalls,
            ));
        }
    };
    match state {
        State::Reason => {
            open_calls(&mut watchers);
            watchers.push(skip_newline());
            watchers.push(end_reasoning(options));
        }
        State::Answer => {
            stops(&mut watchers, options);
            open_calls(&mut watchers);
            watchers.push(skip_newline());
            watchers.push(skip_end_reasoning(options));
        }
        State::JsonWait => {
            json_starts(&mut watchers);
            open_calls(&mut watchers);
            watchers.push(skip_newline());
            watchers.push(skip_end_reasoning(options));
        }
        State::Json => json_end(&mut watchers, options),
        State::AfterJson => open_calls(&mut watchers),
        State::Calls => {
            watchers.push((Pattern::plain("invoke name=\""), Action::OpenName));
            watchers.push((
                Pattern::new(&["</", dsml, "tool_calls>"]),
                Action::CloseCalls,
            ));
            watchers.push((Pattern::new(&["</", dsml, " calls>"]), Action::CloseCalls));
        }
        State::Name => watchers.push((Pattern::plain("\""), Action::CloseName)),
        State::Args => {
            watchers.push((Pattern::plain("parameter name="), Action::OpenKey));
            watchers.push((Pattern::new(&["</", dsml, ""]), Action::CloseInvoke));
        }
        State::Key => watchers.push((Pattern::plain(" "), Action::CloseKey)),
        State::Type => {
            watchers.push((Pattern::plain("true\">"), Action::FlagTrue));
            watchers.push((Pattern::plain("false\">"), Action::FlagFalse));
        }
        State::StringValue | State::RawValue => {
            watchers.push((Pattern::new(&["</", dsml, ""]), Action::CloseValue));
        }
        _ => {}
    }
    Table::new(watchers)
}

pub(crate) fn skip_newline() -> (Pattern, Action) {
    (Pattern::plain("\n").at_start(), Action::SkipNewline)
}

pub(crate) fn end_reasoning(options: &ParsingOptions) -> (Pattern, Action) {
    let token = options.special_tokens.get(SpecialToken::ThinkingEnd);
    (
        Pattern::new(&["", token, ""]).after_newlines(),
        Action::EndReasoning,
    )
}

pub(crate) fn skip_end_reasoning(options: &ParsingOptions) -> (Pattern, Action) {
    let token = options.special_tokens.get(SpecialToken::ThinkingEnd);
    (Pattern::new(&["", token, ""]), Action::SkipEndReasoning)
}

pub(crate) fn stops(watchers: &mut Vec<(Pattern, Action)>, options: &ParsingOptions) {
    for (index, sequence) in options.stop_sequences.iter().enumerate() {
        watchers.push((Pattern::plain(sequence), Action::Stop(index)));
    }
}

pub(crate) fn json_starts(watchers: &mut Vec<(Pattern, Action)>) {
    watchers.push((Pattern::plain("```json\n"), Action::OpenFence));
    watchers.push((Pattern::plain("```\n"), Action::OpenFence));
    watchers.push((Pattern::plain("{"), Action::OpenBracket));
    watchers.push((Pattern::plain("["), Action::OpenBracket));
}

pub(crate) fn json_end(watchers: &mut Vec<(Pattern, Action)>, options: &ParsingOptions) {
    stops(watchers, options);
    watchers.push((Pattern::plain("\n```"), Action::CloseFence));
}
