//! Markers of the strict grammar.
//!
//! Unlike the original's, every tag is matched whole, in the spelling of V4 or of V4.1, so that a quoted token does
//! not start a block and a missing tag is noticed.

use recipe_model::SpecialToken;

use crate::matcher::Pattern;
use crate::official::{
    end_reasoning, json_end, json_starts, skip_end_reasoning, skip_newline, stops,
};
use crate::options::ParsingOptions;
use crate::scanner::Table;
use crate::state::{Action, State};

const BLOCK_TAGS: [&str; 2] = ["tool_calls>", " calls>"];
const INVOKE_NAMES: [&str; 2] = ["invoke name=\"", " invoke name=\""];
const PARAMETER_NAMES: [&str; 2] = ["parameter name=\"", " parameter name=\""];

/// Markers of `state`, in the order in which they win when several are complete.
pub(crate) fn table(state: State, options: &ParsingOptions) -> Table {
    let dsml = options.special_tokens.get(SpecialToken::Dsml);
    let mut watchers = Vec::new();
    let tags = |watchers: &mut Vec<_>, open: &str, names: [&str; 2], action: Action| {
        for name in names {
            watchers.push((Pattern::new(&[open, dsml, name]), action));
        }
    };
    let open_calls = |watchers: &mut Vec<_>| {
        if options.parse_tool_calls {
            for name in BLOCK_TAGS {
                watchers.push((
                    Pattern::new(&["<", dsml, name]).after_newlines(),
                    Action::OpenCalls,
                ));
            }
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
        State::StrictCalls => {
            tags(&mut watchers, "<", INVOKE_NAMES, Action::OpenName);
            tags(&mut watchers, "</", BLOCK_TAGS, Action::CloseCalls);
        }
        State::StrictName => {
            watchers.push((Pattern::plain("\""), Action::CloseName));
            interrupts(&mut watchers, dsml);
        }
        State::StrictNameEnd => {
            return Table::anchored(vec![(Pattern::plain(">"), Action::FlagTrue)]);
        }
        State::StrictArgs => {
            tags(&mut watchers, "<", PARAMETER_NAMES, Action::OpenKey);
            tags(
                &mut watchers,
                "</",
                ["invoke>", " invoke>"],
                Action::CloseInvoke,
            );
            tags(&mut watchers, "<", INVOKE_NAMES, Action::NextInvoke);
            tags(&mut watchers, "</", BLOCK_TAGS, Action::CloseCalls);
        }
        State::StrictKey => {
            watchers.push((Pattern::plain("\" string="), Action::CloseKey));
            interrupts(&mut watchers, dsml);
        }
        State::StrictType => {
            return Table::anchored(vec![
                (Pattern::plain("\"true\">"), Action::FlagTrue),
                (Pattern::plain("\"false\">"), Action::FlagFalse),
            ]);
        }
        State::StrictStringValue | State::StrictRawValue => {
            watchers.push((Pattern::new(&["</", dsml, ""]), Action::CloseValue));
            tags(&mut watchers, "<", PARAMETER_NAMES, Action::NextParameter);
            tags(&mut watchers, "<", INVOKE_NAMES, Action::NextInvoke);
            tags(&mut watchers, "<", BLOCK_TAGS, Action::Interrupt);
        }
        State::StrictValueEnd => {
            return Table::anchored(vec![
                (Pattern::plain("parameter>"), Action::FlagTrue),
                (Pattern::plain(" parameter>"), Action::FlagTrue),
            ]);
        }
        _ => {}
    }
    Table::new(watchers)
}

fn interrupts(watchers: &mut Vec<(Pattern, Action)>, dsml: &str) {
    watchers.push((Pattern::new(&["<", dsml, ""]), Action::Interrupt));
    watchers.push((Pattern::new(&["</", dsml, ""]), Action::Interrupt));
}
